/*
 * kernels/route_sort.h: the rows of tokens that are sorted by expert: routes.id -> row, slot, offset
 * (routes.h). A stable counting sort: an expert's rows are in the order of their slots.
 *
 * A capacity limits the rows of an expert: slots beyond it, in slot order, are left out. Their row is -1,
 * and offset counts what stays.
 *
 * Cost     12 T k bytes, and the ids a second time.
 */
#ifndef TSR_KERNELS_ROUTE_SORT_H
#define TSR_KERNELS_ROUTE_SORT_H

#include "kernels/routes.h"

typedef struct {
    tsr_routes routes; /* id is read, the rest written */
    int64_t tokens, k, experts;
    int64_t capacity; /* 0: none */
} tsr_route_sort_args;

tsr_status tsr_route_sort_check(const tsr_route_sort_args *args);
tsr_status tsr_route_sort_ref(const tsr_route_sort_args *args, tsr_pool *pool);

#endif
