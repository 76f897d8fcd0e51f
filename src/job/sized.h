/*
 * job/sized.h: structs of the interface that begin with their size, since the caller may have been built with an older or a
 * newer tessera.h.
 */
#ifndef TSR_JOB_SIZED_H
#define TSR_JOB_SIZED_H

#include "base/status.h"
#include "tessera.h"

typedef struct {
    const char *name, *initialiser;
    size_t bytes; /* that this library knows */
} tsr_sized;

extern const tsr_sized tsr_sized_report, tsr_sized_evaluation, tsr_sized_plan_info;

/* Copies what the caller's struct has of this library's; the rest is zero. TSR_EINVAL: it is NULL, says no size, or has
 * members set that this library does not know. */
tsr_status tsr_job_options_take(tsr_job_options *out, const tsr_job_options *given);

/* Before a call does anything: whether the caller's struct can be filled. TSR_EINVAL: it is NULL, or says no size. */
tsr_status tsr_sized_check(const tsr_sized *type, const void *callers);

/* Fills a checked struct of the caller's with what it has of `own`; members that this library does not know become zero. */
void tsr_sized_fill(const tsr_sized *type, void *callers, const void *own);

#endif
