/*
 * ops_report.h: times one op of bench_ops and says what it reaches, as bench_ops.c describes.
 */
#ifndef TSR_BENCH_OPS_REPORT_H
#define TSR_BENCH_OPS_REPORT_H

#include "device/device.h"

#include <jansson.h>

typedef tsr_status op_run(const void *args);

typedef struct {
    double gemm, copy; /* FLOP/s in bf16, bytes/s */
} ops_roofs;

/* Before the first report: where results go, and of which names (NULL: all; else those that contain it).
 * Borrowed. */
void ops_report_into(json_t *list, tsr_stream *on, ops_roofs roof, const char *name);

/* After the last, while the device is there. */
void ops_report_end(void);

/* `args`: `sets` of them, `stride` bytes apart. The median's seconds; 0 for an op that is not wanted. */
double ops_report(const char *name, const char *shape, double bytes, double flops, op_run *run,
                  const void *args, uint64_t stride, int sets);

/* The same, held against twice the matmul roof, which is that of bf16. */
void ops_report_fp8(const char *name, const char *shape, double bytes, double flops, op_run *run,
                    const void *args, uint64_t stride, int sets);

/* A ratio of times. */
void ops_report_share(const char *name, const char *shape, double share);

#endif
