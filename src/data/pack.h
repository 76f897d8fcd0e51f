/*
 * data/pack.h: best-fit-decreasing packing: the longest sample first, each into the fullest row
 * that still has room for it (Johnson 1974; TRL's "bfd"). A sample is never split.
 *
 * The number of rows and the lengths of the rows depend on the lengths of the samples only, never
 * on the order of samples of equal length: so an epoch with another order has as many rows.
 *
 * Cost      O(n log max_length); nothing is allocated after tsr_pack_create.
 * Threads   One thread at a time.
 */
#ifndef TSR_DATA_PACK_H
#define TSR_DATA_PACK_H

#include "base/status.h"

#include <stdint.h>

typedef struct tsr_pack tsr_pack;

/* Memory for packing sample_count samples into rows of at most max_length tokens. On success the
 * caller owns *out. */
tsr_status tsr_pack_create(tsr_pack **out, int64_t sample_count, int32_t max_length);
void tsr_pack_destroy(tsr_pack *pack);

/* Packs samples with lengths[0..sample_count), all in [1, max_length]. order[0..sample_count) is a
 * permutation of the samples: of equally long ones the earlier goes first. Writes the row of every
 * sample to row_of[sample], rows numbered as they were opened, and returns their number. */
int64_t tsr_pack_run(int32_t *row_of, tsr_pack *pack, const int32_t *lengths, const int32_t *order);

#endif
