/*
 * job/options.h: the options of a caller who may have been built with an older or a newer tessera.h.
 */
#ifndef TSR_JOB_OPTIONS_H
#define TSR_JOB_OPTIONS_H

#include "base/status.h"
#include "tessera.h"

/* Copies what the caller's struct has of this library's; the rest is zero. TSR_EINVAL: it says no size, or has
 * members set that this library does not know. */
tsr_status tsr_job_options_take(tsr_job_options *out, const tsr_job_options *given);

#endif
