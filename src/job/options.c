#include "job/options.h"

#include <string.h>

#define MOST_SIZE 4096 /* of any version: above it the member was never set */

tsr_status tsr_job_options_take(tsr_job_options *out, const tsr_job_options *given)
{
    const char *bytes = (const char *)given;
    size_t size = given->size, known = sizeof *out;
    if (size == 0)
        return tsr_fail(TSR_EINVAL,
                        "tsr_job_options: size is 0; begin with TSR_JOB_OPTIONS_INIT, or with "
                        ".size = sizeof(tsr_job_options)");
    if (size < offsetof(tsr_job_options, override_count) || size > MOST_SIZE)
        return tsr_fail(TSR_EINVAL,
                        "tsr_job_options: size is %zu, expected %zu, or what another "
                        "version's tessera.h has",
                        size, known);
    for (size_t i = known; i < size; i++)
        if (bytes[i])
            return tsr_fail(TSR_EINVAL,
                            "tsr_job_options: byte %zu of %zu is set, of which this libtessera "
                            "knows %zu: the program was built with a newer tessera.h",
                            i, size, known);
    *out = (tsr_job_options){0};
    memcpy(out, given, size < known ? size : known);
    out->size = known;
    return TSR_OK;
}
