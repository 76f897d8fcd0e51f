/*
 * shard/bucket.h: the shapes a run prepares for.
 *
 * Counts of a micro-batch (tokens, label rows) are rounded up to one of at most TSR_BUCKET_MAX listed
 * sizes. Each has its choices made at start-up (matmul algorithm, attention plan, graphs), and the
 * largest sizes the arena. Gathers do not depend on the bucket. Pure.
 */
#ifndef TSR_SHARD_BUCKET_H
#define TSR_SHARD_BUCKET_H

#include "base/status.h"

#include <stdint.h>

#define TSR_BUCKET_MAX 16

typedef struct {
    int count;
    int64_t size[TSR_BUCKET_MAX]; /* increasing; the last is the largest count */
} tsr_buckets;

/* Sizes that are multiples of `step` (>= 1), but the last, which is `largest` (>= 1) itself; spread
 * evenly, so that rounding up wastes at most a sixteenth of the largest, plus a step. */
tsr_status tsr_buckets_make(tsr_buckets *out, int64_t largest, int64_t step);

/* The index of the smallest size >= count; -1 if count is larger than all. */
int tsr_bucket_of(const tsr_buckets *buckets, int64_t count);

#endif
