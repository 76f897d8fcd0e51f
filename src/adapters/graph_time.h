/*
 * adapters/graph_time.h: the graphs of a shape timed, as a linear runs them, and the fastest taken.
 *
 * Which    Those whose price (graph.h) is within a quarter of the cheapest's: by shape alone, so that
 *          the same ones are timed each time. Of a small shape, where a launch takes longer than the kernel that
 *          is launched, time says how busy the host and the card are: it differs from machine to machine, and
 *          with it the roundings of the run. Such a shape keeps the cheapest unless timing is asked for.
 * How      In turn, several rounds, so that they share what the card's clock does; on made-up operands
 *          in a scratch. The cheapest by price stays unless another is clearly faster: what two runs
 *          measure differs by about a percent. What norms take (graph.h) is added, by its price.
 */
#ifndef TSR_ADAPTERS_GRAPH_TIME_H
#define TSR_ADAPTERS_GRAPH_TIME_H

#include "adapters/graph.h"
#include "kernels/kernels.h"

/* Choices worth timing, the cheapest first. Returns how many, at least 1. */
int tsr_graph_doubts(tsr_graph_choice out[TSR_GRAPH_CHOICES], const tsr_graph_shape *shape);

/* Whether its cheapest graph would run for less than two microseconds, were all kernels launched at once. */
bool tsr_graph_is_small(const tsr_graph_shape *shape);

/* The scratch that timing a shape takes, and about how long it does; 0 s: nothing is in doubt. */
uint64_t tsr_graph_time_bytes(const tsr_graph_shape *shape);
double tsr_graph_time_seconds(const tsr_graph_shape *shape);

typedef struct {
    const tsr_kernels *kernels;
    tsr_stream *stream;     /* idle */
    void *scratch;          /* device memory that nothing else uses, aligned; overwritten */
    uint64_t scratch_bytes; /* TSR_EINVAL: less than tsr_graph_time_bytes */
} tsr_graph_bench;

/* Median seconds of each choice; at most TSR_GRAPH_CHOICES. Waits. */
tsr_status tsr_graph_measure(double *seconds, const tsr_graph_bench *bench,
                             const tsr_graph_shape *shape, const tsr_graph_choice *choice,
                             int count);

/* The index of the least, if it is clearly less than that of the first, else 0. */
int tsr_graph_fastest(const double *seconds, int count);

/* The fastest of the doubts. Waits. */
tsr_status tsr_graph_time(tsr_graph_choice *out, const tsr_graph_bench *bench,
                          const tsr_graph_shape *shape);

#endif
