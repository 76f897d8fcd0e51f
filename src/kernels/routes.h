/*
 * kernels/routes.h: which tokens go to which experts, as the ops of Mixture of Experts share it.
 *
 * A slot is t k + j: expert j of token t, best first. A row is a slot in the order of the experts:
 * sorted by expert, then by slot. Activations between experts are rows, so that an expert's lie
 * together. How many rows an expert has is known on the device alone; there are at most T k.
 *
 * `route` writes id, `route_sort` the rest; all of it is int32.
 */
#ifndef TSR_KERNELS_ROUTES_H
#define TSR_KERNELS_ROUTES_H

#include "kernels/types.h"

typedef struct {
    int32_t *id;     /* [T, k] expert of each slot */
    int32_t *row;    /* [T, k] row of each slot; -1: beyond the expert's capacity, left out */
    int32_t *slot;   /* [T k] slot of each row; -1 from row offset[E] on */
    int32_t *offset; /* [E + 1] rows of expert e are [offset[e], offset[e + 1]) */
    int32_t *parts;  /* [TSR_ROUTE_PARTS, E] scratch of route_sort */
} tsr_routes;

#define TSR_ROUTE_PARTS 128 /* of the slots, each counted on its own */

/* All in one block of 3 T k + E + 1 + TSR_ROUTE_PARTS E int32, in that order. */
tsr_routes tsr_routes_at(void *memory, int64_t tokens, int64_t k, int64_t experts);
uint64_t tsr_routes_bytes(int64_t tokens, int64_t k, int64_t experts);

#endif
