/*
 * planner/speeds.h: what the machines of a job sustain, for the expected time of a step.
 *
 * Measured by `tessera env --measure` and saved by device and library version (planner/cache.h), or read
 * from a file: the same object, what `tessera env --measure --json` printed, or a result of bench/run_gpu.
 * What is not there is built in: an H200 in a node of eight, from bench/results, or two cores. So without
 * any measurement choices rest on fixed ratios, and are the same everywhere.
 */
#ifndef TSR_PLANNER_SPEEDS_H
#define TSR_PLANNER_SPEEDS_H

#include "device/device.h"
#include "model/work.h"
#include "planner/cache.h"

typedef enum {
    TSR_SPEED_MATMUL,     /* FLOP/s in the compute dtype */
    TSR_SPEED_MATMUL_FP8, /* with e4m3 operands: base_compute: fp8 */
    TSR_SPEED_COPY,       /* bytes/s read + written */
    TSR_SPEED_ATTENTION_FORWARD,
    TSR_SPEED_ATTENTION_BACKWARD,
    TSR_SPEED_TO_DEVICE, /* from pinned memory, of one device alone */
    TSR_SPEED_TO_HOST,
    TSR_SPEED_NODE_TO_DEVICE, /* of all devices of a node together */
    TSR_SPEED_LINK,           /* bytes/s that arrive at a rank from others of its node */
    TSR_SPEED_NETWORK,        /* from other nodes, for each rank */
    TSR_LATENCY_LINK,         /* seconds from a rank to the next, inside a node */
    TSR_LATENCY_NETWORK,
    TSR_SPEED_COUNT
} tsr_speed;

/* Plain values: rank 0's are sent to all. */
typedef struct {
    double value[TSR_SPEED_COUNT];
    bool known[TSR_SPEED_COUNT]; /* measured or given, not built in */
    bool measured;               /* at least matmul and copy are */
    bool cuda;
    tsr_dtype compute;
    uint64_t memory_bytes; /* of the device; 0: not said */
    char device[160];      /* what they are of */
    char source[PATH_MAX]; /* the file */
    tsr_work_rates rates;  /* for an op's time, with the share that kernels reach */
    double attention_ends; /* pairs more for each token that attention takes as long as: its ends */
    double link_slows;     /* the share of compute's speed that a gather or a reduction takes, */
    double host_slows;     /* and a copy to or from the host */
    double host_reached;   /* the share of its speed that such a copy reaches beside computation */
} tsr_speeds;

/* The key of a JSON object that a figure has there. */
const char *tsr_speed_name(tsr_speed speed, tsr_dtype compute);

/* Built in. */
void tsr_speeds_default(tsr_speeds *out, bool cuda, tsr_dtype compute);

/* From a file. TSR_EDATA: it cannot be read or has no roofs; the message says what was expected. */
tsr_status tsr_speeds_read(tsr_speeds *out, const char *path, bool cuda, tsr_dtype compute);

/* Those saved for `device`; built in where there are none. */
void tsr_speeds_find(tsr_speeds *out, const tsr_device *device, tsr_dtype compute);

/* Saves a JSON object for `device`. */
void tsr_speeds_save(const tsr_device *device, const char *text);

#endif
