/*
 * bench/floor.h: the floating-point work of one training step, term by term: what the time of a step
 * is held against. One formula for every benchmark.
 *
 * A frozen linear costs 2 T in out forward and as much for dX (the base has no gradient); an adapter
 * 2 T r (in + out) forward and twice that backward; attention counts the visible half of the scores
 * only, five matmuls backward against two forward; every token is a label.
 */
#ifndef TSR_BENCH_FLOOR_H
#define TSR_BENCH_FLOOR_H

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

#endif
