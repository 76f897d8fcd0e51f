#include "shard/trainable.h"

#include <stdlib.h>
#include <string.h>

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
        for (int i = 0; i < segments; i++)
            t.coded |= units[u].trainable.segment[i].coded;
        t.widest = segments > t.widest ? segments : t.widest;
        t.begin[u + 1] = t.begin[u] + units[u].trainable.gradient_count;
        t.work_offset[u + 1] = t.work_offset[u] + units[u].trainable.shard_bytes;
    }
    t.count = t.begin[unit_count];
    t.work_bytes = t.work_offset[unit_count];
    t.moment_bytes = tsr_unit_moment_bytes(units, unit_count, t.count);
    *out = t;
    return TSR_OK;
}

void tsr_trainable_free(tsr_trainable *trainable)
{
    free(trainable->begin);
    free(trainable->work_offset);
    *trainable = (tsr_trainable){0};
}

tsr_status tsr_trainable_walk(tsr_trainable *trainable, tsr_taker *taker, bool train, bool rounded,
                              tsr_place state)
{
    uint64_t kept = train ? trainable->count : 0;
    tsr_array moments = trainable->coded ? tsr_array_of_bytes(train ? trainable->moment_bytes : 0)
                                         : (tsr_array){TSR_F32, kept, 1};
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
        {NULL, "trainable.m", "AdamW's first moment", moments, state},
        {NULL, "trainable.v", "AdamW's second moment", moments, state},
        {NULL,
         "trainable.absmax",
         "the largest of each block of 8-bit moments",
         {TSR_F32, trainable->coded ? kept / TSR_GRANULE_ELEMENTS : 0, 2},
         TSR_PLACE_DEVICE},
        {NULL,
         "trainable.gradient",
         rounded ? "exact sums over ranks, rounded once"
                 : "sums over micro-batches and ranks, exact in fixed point",
         {rounded ? TSR_F32 : TSR_I64, kept, 1},
         TSR_PLACE_DEVICE},
    };
    for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
        TSR_TRY(tsr_taker_take(taker, &buffer[i].out, buffer[i].place, buffer[i].name,
                               buffer[i].why, buffer[i].array));
    trainable->work = buffer[0].out;
    trainable->master = buffer[1].out;
    trainable->m = buffer[2].out;
    trainable->v = buffer[3].out;
    trainable->absmax = buffer[4].out;
    trainable->accumulator = rounded ? NULL : buffer[5].out;
    trainable->rounded = rounded ? buffer[5].out : NULL;
    return TSR_OK;
}

tsr_trainable_span tsr_trainable_at(const tsr_trainable *trainable, int unit, int segment)
{
    const tsr_segment *s = &trainable->units[unit].trainable.segment[segment];
    uint64_t first, count, begin = trainable->begin[unit] + s->gradient_offset;
    tsr_granule_range(&first, &count, s->granule_count, (uint64_t)trainable->ranks,
                      (uint64_t)trainable->rank);
    return (tsr_trainable_span){
        .segment = s,
        .begin = begin,
        .moment = tsr_unit_moment_bytes(trainable->units, trainable->unit_count, begin),
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

int tsr_trainable_state(tsr_state_buffer out[TSR_TRAINABLE_STATE_MOST],
                        const tsr_trainable *trainable, const tsr_trainable_span *span)
{
    bool coded = span->segment->coded;
    const tsr_trainable *t = trainable;
    float *absmax = coded ? t->absmax + span->begin / TSR_GRANULE_ELEMENTS * 2 : NULL;
    const tsr_state_buffer all[TSR_TRAINABLE_STATE_MOST] = {
        {"master", (char *)(t->master + span->begin), TSR_F32, TSR_GRANULE_ELEMENTS},
        {"exp_avg", t->m + span->moment, coded ? TSR_U8 : TSR_F32, TSR_GRANULE_ELEMENTS},
        {"exp_avg_sq", t->v + span->moment, coded ? TSR_U8 : TSR_F32, TSR_GRANULE_ELEMENTS},
        {"absmax", (char *)absmax, TSR_F32, 2}};
    memcpy(out, all, sizeof all);
    return coded ? 4 : 3;
}
