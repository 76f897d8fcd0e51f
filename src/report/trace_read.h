/*
 * report/trace_read.h: a file of the key `trace`, read back and summed up for one step: for `inspect`.
 *
 * Step     The last one in the file. On a rank it lasts from the start of the first event with its number to the end
 *          of the last; what else runs in that time, of the step before or after, counts too.
 * Ranks    Times are means over the ranks that have the step, peaks the largest of them.
 * Sizes    Times in seconds. A file has at most TSR_TRACE_FILE_BYTES; its tree takes some 13 times as much.
 * File     Chrome's array of events, or an object with it as "traceEvents"; events that are not the program's are
 *          passed over.
 */
#ifndef TSR_REPORT_TRACE_READ_H
#define TSR_REPORT_TRACE_READ_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TSR_TRACE_FILE_BYTES (256ull << 20)
#define TSR_TRACE_ROWS       16

typedef struct {
    const char *name; /* borrowed from the tree */
    double count;     /* of a kernel */
    double time;      /* of a stream: in which it ran operations */
    /* Of a stream: the part of `time` in which compute ran none. Two streams may share it. */
    double exposed, exposed_most;
    int exposed_rank; /* whose is exposed_most */
} tsr_trace_time;

typedef struct {
    const char *name;
    uint64_t planned_bytes, used_bytes;
    bool used_known;
} tsr_trace_peak;

typedef struct {
    json_t *root;
    int64_t step;
    int ranks;
    double time, idle;             /* of the step; of compute in it */
    tsr_trace_time *stream;        /* in the order of the rows */
    tsr_trace_time *wait, *kernel; /* the longest first */
    tsr_trace_peak *peak;          /* the largest first; none of a trace without counters */
    uint64_t stream_count, wait_count, kernel_count, peak_count;
    double kernel_time; /* of all */
} tsr_trace_sums;

/* On success free *out with tsr_trace_sums_free. TSR_EDATA: no such file, too large, no JSON, no trace of the
 * program's, or one of its events lacks something: by its number from 0. */
tsr_status tsr_trace_sums_read(tsr_trace_sums *out, const char *path);
void tsr_trace_sums_free(tsr_trace_sums *sums);

#endif
