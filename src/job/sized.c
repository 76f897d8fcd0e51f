#include "job/sized.h"

#include <string.h>

#define LEAST_BYTES (2 * sizeof(size_t)) /* of any version: the size, and a member */
#define MOST_BYTES  4096                 /* above it the size was never set */

static const tsr_sized sized_options = {"tsr_job_options", "TSR_JOB_OPTIONS_INIT",
                                        sizeof(tsr_job_options)};
const tsr_sized tsr_sized_report = {"tsr_job_report", "TSR_JOB_REPORT_INIT",
                                    sizeof(tsr_job_report)};
const tsr_sized tsr_sized_evaluation = {"tsr_job_evaluation", "TSR_JOB_EVALUATION_INIT",
                                        sizeof(tsr_job_evaluation)};
const tsr_sized tsr_sized_plan_info = {"tsr_job_plan_info", "TSR_JOB_PLAN_INFO_INIT",
                                       sizeof(tsr_job_plan_info)};

static size_t size_of(const void *callers)
{
    size_t size;
    memcpy(&size, callers, sizeof size);
    return size;
}

tsr_status tsr_sized_check(const tsr_sized *type, const void *callers)
{
    if (!callers)
        return tsr_fail(TSR_EINVAL, "%s is NULL", type->name);
    size_t size = size_of(callers);
    if (size == 0)
        return tsr_fail(TSR_EINVAL, "%s: size is 0; begin with %s, or with .size = sizeof(%s)",
                        type->name, type->initialiser, type->name);
    if (size < LEAST_BYTES || size > MOST_BYTES)
        return tsr_fail(TSR_EINVAL,
                        "%s: size is %zu, expected %zu, or what another version's tessera.h has",
                        type->name, size, type->bytes);
    return TSR_OK;
}

tsr_status tsr_job_options_take(tsr_job_options *out, const tsr_job_options *given)
{
    const char *bytes = (const char *)given;
    size_t known = sizeof *out;
    TSR_TRY(tsr_sized_check(&sized_options, given));
    for (size_t i = known; i < given->size; i++)
        if (bytes[i])
            return tsr_fail(TSR_EINVAL,
                            "tsr_job_options: byte %zu of %zu is set, of which this libtessera "
                            "knows %zu: the program was built with a newer tessera.h",
                            i, given->size, known);
    *out = (tsr_job_options){0};
    memcpy(out, given, given->size < known ? given->size : known);
    out->size = known;
    return TSR_OK;
}

void tsr_sized_fill(const tsr_sized *type, void *callers, const void *own)
{
    size_t size = size_of(callers), known = size < type->bytes ? size : type->bytes;
    memset(callers, 0, size);
    memcpy(callers, own, known);
    memcpy(callers, &size, sizeof size);
}
