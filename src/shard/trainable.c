#include "shard/trainable.h"

#include <stdlib.h>

tsr_status tsr_trainable_make(tsr_trainable *out, const tsr_unit *units, int unit_count, int ranks,
                              int rank)
{
    if (unit_count < 1 || ranks < 1 || rank < 0 || rank >= ranks)
        return tsr_fail(TSR_EINVAL, "trainable state of %d units, rank %d of %d", unit_count, rank,
                        ranks);
    tsr_trainable t = {.units = units, .unit_count = unit_count, .ranks = ranks, .rank = rank};
    t.begin = calloc((size_t)unit_count + 1, sizeof *t.begin);
    t.work_offset = calloc((size_t)unit_count + 1, sizeof *t.work_offset);
    if (!t.begin || !t.work_offset) {
        tsr_trainable_free(&t);
        return tsr_fail(TSR_ENOMEM, "no memory for the ranges of %d units", unit_count);
    }
    for (int u = 0; u < unit_count; u++) {
        int segments = units[u].trainable.segment_count;
        t.widest = segments > t.widest ? segments : t.widest;
        t.begin[u + 1] = t.begin[u] + units[u].trainable.gradient_count;
        t.work_offset[u + 1] = t.work_offset[u] + units[u].trainable.shard_bytes;
    }
    t.count = t.begin[unit_count];
    t.work_bytes = t.work_offset[unit_count];
    *out = t;
    return TSR_OK;
}

void tsr_trainable_free(tsr_trainable *trainable)
{
    free(trainable->begin);
    free(trainable->work_offset);
    *trainable = (tsr_trainable){0};
}

tsr_status tsr_trainable_walk(tsr_trainable *trainable, tsr_taker *taker, bool train,
                              tsr_place state)
{
    uint64_t kept = train ? trainable->count : 0;
    struct {
        void *out;
        const char *name, *why;
        tsr_array array;
        tsr_place place;
    } buffer[] = {
        {NULL, "trainable.work", "this rank's part of the adapter as matmuls read it",
         tsr_array_of_bytes(trainable->work_bytes), TSR_PLACE_DEVICE},
        {NULL,
         "trainable.master",
         "this rank's part of the adapter as AdamW changes it",
         {TSR_F32, kept, 1},
         state},
        {NULL, "trainable.m", "AdamW's first moment", {TSR_F32, kept, 1}, state},
        {NULL, "trainable.v", "AdamW's second moment", {TSR_F32, kept, 1}, state},
        {NULL,
         "trainable.gradient",
         "sums over micro-batches and ranks, exact in fixed point",
         {TSR_I64, kept, 1},
         TSR_PLACE_DEVICE},
    };
    for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
        TSR_TRY(tsr_taker_take(taker, &buffer[i].out, buffer[i].place, buffer[i].name,
                               buffer[i].why, buffer[i].array));
    trainable->work = buffer[0].out;
    trainable->master = buffer[1].out;
    trainable->m = buffer[2].out;
    trainable->v = buffer[3].out;
    trainable->accumulator = buffer[4].out;
    return TSR_OK;
}

tsr_trainable_span tsr_trainable_at(const tsr_trainable *trainable, int unit, int segment)
{
    const tsr_segment *s = &trainable->units[unit].trainable.segment[segment];
    uint64_t first, count;
    tsr_granule_range(&first, &count, s->granule_count, (uint64_t)trainable->ranks,
                      (uint64_t)trainable->rank);
    return (tsr_trainable_span){
        .segment = s,
        .begin = trainable->begin[unit] + s->gradient_offset,
        .count = s->gradient_count,
        .first = first * TSR_GRANULE_ELEMENTS,
        .real = count * TSR_GRANULE_ELEMENTS,
        .work = trainable->work ? trainable->work + trainable->work_offset[unit] + s->shard_offset
                                : NULL,
    };
}

tsr_fixed_part tsr_trainable_part(const tsr_trainable *trainable, int unit, int segment)
{
    const tsr_segment *s = &trainable->units[unit].trainable.segment[segment];
    uint64_t first = (uint64_t)trainable->rank * s->gradient_count;
    uint64_t left = s->element_count > first ? s->element_count - first : 0;
    return (tsr_fixed_part){
        .offset = s->gradient_offset,
        .count = s->gradient_count,
        .real = left < s->gradient_count ? left : s->gradient_count,
        .mark = 1 + (int64_t)(trainable->unit_count - 1 - unit) * trainable->widest + segment,
    };
}

void tsr_trainable_marked(int *unit, int *segment, const tsr_trainable *trainable, int64_t mark)
{
    *unit = trainable->unit_count - 1 - (int)((mark - 1) / trainable->widest);
    *segment = (int)((mark - 1) % trainable->widest);
}

void tsr_trainable_state(const tsr_trainable *trainable,
                         tsr_state_buffer out[TSR_TRAINABLE_STATE_COUNT])
{
    uint64_t bytes = trainable->count * sizeof(float);
    out[0] = (tsr_state_buffer){"master", trainable->master, bytes, TSR_F32};
    out[1] = (tsr_state_buffer){"m", trainable->m, bytes, TSR_F32};
    out[2] = (tsr_state_buffer){"v", trainable->v, bytes, TSR_F32};
}
