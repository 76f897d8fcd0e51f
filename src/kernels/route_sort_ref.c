/*
 * route_sort_ref.c: contract route_sort.h, and where routes lie in memory.
 */
#include "kernels/route_sort.h"

#include "kernels/loops.h"
#include "kernels/route.h"

tsr_routes tsr_routes_at(void *memory, int64_t tokens, int64_t k, int64_t experts)
{
    int32_t *at = memory;
    int64_t slots = tokens * k;
    return (tsr_routes){.id = at,
                        .row = at + slots,
                        .slot = at + 2 * slots,
                        .offset = at + 3 * slots,
                        .parts = at + 3 * slots + experts + 1};
}

uint64_t tsr_routes_bytes(int64_t tokens, int64_t k, int64_t experts)
{
    return sizeof(int32_t) * (uint64_t)(3 * tokens * k + experts + 1 + TSR_ROUTE_PARTS * experts);
}

tsr_status tsr_route_sort_check(const tsr_route_sort_args *args)
{
    const tsr_routes *r = &args->routes;
    TSR_EXPECT(args->tokens >= 0 && args->k >= 1 && args->experts >= args->k &&
                   args->experts <= TSR_ROUTE_MOST_EXPERTS && args->k <= TSR_ROUTE_MOST_CHOSEN,
               "route_sort", "tokens < 0, or not 1 <= k <= experts, or too many of them");
    TSR_EXPECT(args->tokens <= (1 << 30) / args->k, "route_sort", "more than 2^30 slots");
    TSR_EXPECT(args->capacity >= 0, "route_sort", "capacity < 0");
    TSR_EXPECT(r->offset && r->parts && (args->tokens == 0 || (r->id && r->row && r->slot)),
               "route_sort", "routes are NULL");
    return TSR_OK;
}

tsr_status tsr_route_sort_ref(const tsr_route_sort_args *args, tsr_pool *pool)
{
    (void)pool; /* one thread: three passes over the ids */
    TSR_TRY(tsr_route_sort_check(args));
    const tsr_routes *r = &args->routes;
    int64_t slots = args->tokens * args->k, experts = args->experts;
    int32_t next[TSR_ROUTE_MOST_EXPERTS] = {0};
    for (int64_t s = 0; s < slots; s++) {
        if (r->id[s] < 0 || r->id[s] >= experts)
            return tsr_fail(TSR_EINTERNAL, "route_sort: id[%lld] = %d of %lld experts",
                            (long long)s, r->id[s], (long long)experts);
        next[r->id[s]]++;
    }
    r->offset[0] = 0;
    for (int64_t e = 0; e < experts; e++) {
        int64_t count = args->capacity ? tsr_min(next[e], args->capacity) : next[e];
        r->offset[e + 1] = (int32_t)(r->offset[e] + count);
        next[e] = r->offset[e];
    }
    for (int64_t s = 0; s < slots; s++) {
        int32_t e = r->id[s], row = next[e] < r->offset[e + 1] ? next[e]++ : -1;
        r->row[s] = row;
        if (row >= 0)
            r->slot[row] = (int32_t)s;
    }
    for (int64_t i = r->offset[experts]; i < slots; i++)
        r->slot[i] = -1;
    return TSR_OK;
}
