/*
 * tessera_status.h: what every call of libtessera returns: 0, a positive answer, or one of these, by what is damaged.
 * tsr_status_name (tessera.h) has their names, tsr_last_error() the message.
 */
#ifndef TESSERA_STATUS_H
#define TESSERA_STATUS_H

typedef enum {
    TSR_OK = 0,
    TSR_JOB_DONE = 1, /* tsr_job_step: no step is left */
    /* The caller's mistake: nothing was changed, the object can still be used. */
    TSR_EINVAL = -1,       /* exit 70: a bug in the calling code */
    TSR_EUNSUPPORTED = -2, /* exit 70: not in this build or backend */
    TSR_EUSAGE = -3,       /* exit 64: wrong command line */
    /* The configuration, and the data or model files. */
    TSR_ECONFIG = -4, /* exit 78: refused */
    TSR_EDATA = -5,   /* exit 65: bad, missing or not understood */
    /* The call failed. */
    TSR_EIO = -6,               /* exit 71: the system failed while reading or writing */
    TSR_ENOMEM = -7,            /* exit 71 */
    TSR_EINTERNAL = -8,         /* exit 70: an invariant does not hold: a defect of the library */
    TSR_ESTOPPED = -9,          /* exit 75: stopped, saved */
    TSR_ESTOPPED_UNSAVED = -10, /* exit 71: stopped, nothing is kept */
    /* A peer is lost, or differs: every later call on the job fails. */
    TSR_ECOMM = -11,    /* exit 71 */
    TSR_ETIMEOUT = -12, /* exit 71 */
    TSR_ERANKS = -13,   /* exit 76: ranks disagree */
    /* The device is dead. */
    TSR_EDEVICE = -14 /* exit 71 */
} tsr_status;

#endif
