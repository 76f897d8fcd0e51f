/*
 * data/batch_order.h: the order of one epoch: a permutation of the units, and the samples of each.
 * Private to data/batch.h.
 */
#ifndef TSR_DATA_BATCH_ORDER_H
#define TSR_DATA_BATCH_ORDER_H

#include "data/pack.h"

#include <stdbool.h>

/* Unit u is samples[unit_first[u] .. unit_first[u + 1]). */
typedef struct {
    int64_t epoch; /* -1: nothing yet */
    int64_t units;
    int32_t *samples;    /* [sample_count] */
    int32_t *unit_first; /* [sample_count + 1] */
    /* [sample_count + 1]: the first unit of each micro-batch, where they have as many tokens, not units, as each other;
     * else NULL. */
    int32_t *micro_first;
} tsr_order;

/* What every epoch is computed from, with its scratch memory. */
typedef struct {
    int64_t sample_count;
    const int32_t *lengths; /* [sample_count] tokens of each sample */
    bool shuffle;
    uint64_t seed;
    tsr_pack *pack;                   /* NULL: a unit is a sample */
    int32_t *order, *row_of, *row_at; /* [sample_count] each; only with pack */
    int64_t group;                    /* samples that are sorted by length together; 0: none are */
    uint64_t *keys;                   /* [sample_count], only with group or step */
    /* Units of a step that are dealt to micro-batches by tokens, and those of a micro-batch that has its share; 0: they are not
     * dealt. With their scratch, [step / per], [step]. Not with pack. */
    int64_t step, per;
    int64_t *load;
    int32_t *dealt;
} tsr_order_source;

/* What a permutation is for: the high half of its counters. */
typedef enum {
    TSR_PERMUTE_SAMPLES = 1,
    TSR_PERMUTE_ROWS,
    TSR_PERMUTE_HELD_OUT,
    TSR_PERMUTE_MIX
} tsr_permute_purpose;

/* items[0..count) in another order, which (key, purpose) and the count alone decide. */
void tsr_permute(int32_t *items, int64_t count, uint64_t key, tsr_permute_purpose purpose);

/* Fills *out for an epoch. The same (source, epoch) always gives the same order. */
void tsr_order_fill(tsr_order *out, const tsr_order_source *source, int64_t epoch);

#endif
