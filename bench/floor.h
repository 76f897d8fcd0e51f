/*
 * bench/floor.h: the least work of one training step, term by term: what the time of a step is held
 * against. One formula for every benchmark.
 *
 * A frozen linear costs 2 T in out forward and as much for dX (the base has no gradient); an adapter
 * 2 T r (in + out) forward and twice that backward; attention counts the visible half of the scores
 * only, five matmuls backward against two forward; every token is a label.
 */
#ifndef TSR_BENCH_FLOOR_H
#define TSR_BENCH_FLOOR_H

#include <stdbool.h>

typedef struct {
    double layers, d, f, heads, kv_heads, head_dim, vocabulary;
    double r;               /* of all seven linears; 0: none */
    double rows, row_count; /* tokens of a row, rows of a step */
} tsr_floor_shape;

typedef struct {
    const char *name;
    double flops;
} tsr_floor_term;

#define TSR_FLOOR_TERMS 8

/* Fills the terms and returns their sum, in FLOPs of a step. */
double tsr_floor_step(tsr_floor_term term[TSR_FLOOR_TERMS], const tsr_floor_shape *shape);

/* ---- on a GPU, in bf16: each operation takes the longer of its bytes and its FLOPs ---- */

/* What the device sustains, measured in the run that is judged: FLOP/s and bytes/s (read + write). */
typedef struct {
    double gemm, copy, attention_forward, attention_backward;
} tsr_floor_roofs;

typedef struct {
    tsr_floor_shape shape; /* row_count: of one rank */
    tsr_floor_roofs roofs;
    bool dora, nf4;
    double selective, full; /* layers that recompute so; the others keep everything */
} tsr_floor_gpu_options;

typedef struct {
    const char *name;
    double bytes, flops, seconds;
} tsr_floor_gpu_term;

enum {
    TSR_FLOOR_LINEARS_FORWARD,
    TSR_FLOOR_LINEARS_BACKWARD,
    TSR_FLOOR_ADAPTERS_FORWARD,
    TSR_FLOOR_ADAPTERS_BACKWARD,
    TSR_FLOOR_ATTENTION_FORWARD,
    TSR_FLOOR_ATTENTION_BACKWARD,
    TSR_FLOOR_MEMORY_FORWARD, /* norms with the residual, RoPE, SwiGLU */
    TSR_FLOOR_MEMORY_BACKWARD,
    TSR_FLOOR_NF4,
    TSR_FLOOR_DORA, /* norms of W + sBA once a step; what dm reads */
    TSR_FLOOR_HEAD, /* and the loss */
    TSR_FLOOR_RECOMPUTE,
    TSR_FLOOR_OPTIMIZER,
    TSR_FLOOR_GPU_TERMS
};

/* Fills the terms and returns their sum, in seconds of a step of one micro-batch on one rank. What
 * is counted, operation by operation, stands beside each term in floor.c. */
double tsr_floor_gpu(tsr_floor_gpu_term term[TSR_FLOOR_GPU_TERMS],
                     const tsr_floor_gpu_options *options);

#endif
