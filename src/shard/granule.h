/*
 * shard/granule.h: how a tensor is cut over the ranks of a shard group.
 *
 * By flat index, in granules, not by rows: frozen NF4 in granules of 1024 elements (512 bytes of
 * codes, 16 absmax), other frozen tensors in granules of 64, trainable ones of 256, which is a block of 8-bit
 * moments. Of G granules rank i of N holds
 * [i c, (i + 1) c), c = ceil(G / N), cut off at G; what is missing up to c is padding of zero
 * bytes. So any shape and any number of ranks works, no block and no nibble is split, and gathered
 * in rank order the parts are the tensor in its own order, followed by the padding.
 */
#ifndef TSR_SHARD_GRANULE_H
#define TSR_SHARD_GRANULE_H

#include "base/checked.h"

#define TSR_GRANULE_ELEMENTS 256 /* of a trainable tensor */

/* c: granules of one rank's part, padding included. ranks >= 1. */
static inline uint64_t tsr_granule_per_rank(uint64_t granule_count, uint64_t ranks)
{
    return tsr_ceil_div(granule_count, ranks);
}

/* The granules that `rank` really holds: [*first, *first + *count); count is 0 past the end. */
static inline void tsr_granule_range(uint64_t *first, uint64_t *count, uint64_t granule_count,
                                     uint64_t ranks, uint64_t rank)
{
    uint64_t per_rank = tsr_granule_per_rank(granule_count, ranks);
    uint64_t begin = rank * per_rank < granule_count ? rank * per_rank : granule_count;
    uint64_t left = granule_count - begin;
    *first = begin;
    *count = left < per_rank ? left : per_rank;
}

#endif
