/*
 * ops_report.c: see ops_report.h.
 */
#include "ops_report.h"

#include "ops_memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES  11
#define SAMPLE_S 2e-3

static json_t *ops;
static tsr_stream *stream;
static tsr_event *begin, *end;
static ops_roofs roofs;
static const char *only;

void ops_report_into(json_t *list, tsr_stream *on, ops_roofs roof, const char *name)
{
    ops = list;
    stream = on;
    ops_must(tsr_event_create_timed(&begin, tsr_stream_device(on)), "an event");
    ops_must(tsr_event_create_timed(&end, tsr_stream_device(on)), "an event");
    roofs = roof;
    only = name;
}

void ops_report_end(void)
{
    tsr_event_destroy(begin);
    tsr_event_destroy(end);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Between two events of the stream: the host looks for the end every 70 us only, 3 % of a sample. */
static double launches_seconds(op_run *run, const char *args, uint64_t stride, int sets, int count)
{
    ops_must(tsr_event_record(begin, stream), "an op");
    for (int i = 0; i < count; i++)
        ops_must(run(args + stride * (uint64_t)(i % sets)), "an op");
    ops_must(tsr_event_record(end, stream), "an op");
    ops_must(tsr_stream_synchronize(stream), "an op");
    return tsr_event_time(end) - tsr_event_time(begin);
}

static double measure(const char *name, const char *shape, double bytes, double flops, double rate,
                      op_run *run, const void *args, uint64_t stride, int sets)
{
    double sample[SAMPLES];
    if (only && !strstr(name, only))
        return 0;
    launches_seconds(run, args, stride, sets, sets);
    double once = launches_seconds(run, args, stride, sets, 10) / 10;
    int launches = (int)fmin(SAMPLE_S / once + 1, 1000);
    for (int i = 0; i < SAMPLES; i++)
        sample[i] = launches_seconds(run, args, stride, sets, launches) / launches;
    qsort(sample, SAMPLES, sizeof *sample, compare);
    double s = sample[SAMPLES / 2], floor = fmax(bytes / roofs.copy, flops / rate);
    fprintf(stderr, "%-26s %-22s %9.1f us %7.0f GB/s %7.1f TFLOP/s  %.3f\n", name, shape, 1e6 * s,
            1e-9 * bytes / s, 1e-12 * flops / s, floor / s);
    json_array_append_new(ops, json_pack("{ss ss sf sf sf sf sf sf}", "op", name, "shape", shape,
                                         "us", 1e6 * s, "us_min", 1e6 * sample[0], "us_max",
                                         1e6 * sample[SAMPLES - 1], "gb_s", 1e-9 * bytes / s,
                                         "tflop_s", 1e-12 * flops / s, "of_roof", floor / s));
    return s;
}

double ops_report(const char *name, const char *shape, double bytes, double flops, op_run *run,
                  const void *args, uint64_t stride, int sets)
{
    return measure(name, shape, bytes, flops, roofs.gemm, run, args, stride, sets);
}

void ops_report_fp8(const char *name, const char *shape, double bytes, double flops, op_run *run,
                    const void *args, uint64_t stride, int sets)
{
    measure(name, shape, bytes, flops, 2 * roofs.gemm, run, args, stride, sets);
}

void ops_report_share(const char *name, const char *shape, double share)
{
    fprintf(stderr, "%-26s %-22s %48.3f\n", name, shape, share);
    json_array_append_new(ops, json_pack("{ss ss sf}", "op", name, "shape", shape, "share", share));
}
