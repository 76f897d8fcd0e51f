/*
 * shard/trainable.h: what the owner of trainable granules keeps: fp32 master, Adam's two moments
 * (fp32, or codes of 8 bits as kernels/adamw_8bit.h has them), the sums of gradients and the working copy
 * that is gathered.
 *
 * Flat arrays over all owned elements: units in order, segments in order, c granules of 256 elements
 * each, the tail padded with zeros. Element ranges are the same in master, m, v and sums (a coded element
 * of m or v is a byte, another four), and a granule has one pair of absmax;
 * the working copy has the shard layout of each unit's trainable part, unit after unit (with fp32
 * that is the very same order). Masters and moments may live in host memory, for the optimizer to
 * pass over in chunks. Where nothing is added to a unit's sums once they are made, they are kept as what AdamW
 * and the norm read of them, fp32 (kernels/fixed_point.h): half the bytes and the same bits of every parameter.
 *
 * Threads  The plan orders all accesses; the host reads or writes only while the streams are idle.
 */
#ifndef TSR_SHARD_TRAINABLE_H
#define TSR_SHARD_TRAINABLE_H

#include "kernels/fixed_point.h"
#include "shard/memory_plan.h"
#include "shard/unit.h"

typedef struct {
    const tsr_unit *units;
    int unit_count;
    int widest;            /* tensors of one unit, at most */
    int ranks, rank;       /* of the shard group */
    uint64_t *begin;       /* [unit_count + 1]: unit u owns elements [begin[u], begin[u + 1]) */
    uint64_t *work_offset; /* [unit_count + 1]: bytes */
    uint64_t count, work_bytes; /* elements and bytes owned by this rank */
    uint64_t moment_bytes;      /* of m, and of v */
    bool coded;                 /* some tensors' moments are codes */
    float *master;              /* [count], device or host memory */
    char *m, *v;                /* likewise */
    float *absmax;        /* [count / 256][2], of m and v; device memory; NULL: nothing is coded */
    int64_t *accumulator; /* [count]; NULL: `rounded` */
    float *rounded;       /* [count] */
    char *work;           /* [work_bytes] */
} tsr_trainable;

/* One segment's owned range. */
typedef struct {
    const tsr_segment *segment;
    uint64_t begin, count; /* in the flat arrays, padding included */
    uint64_t first, real;  /* elements [first, first + real) of the padded tensor are owned */
    uint64_t moment;       /* bytes of m, and of v, before its own */
    void *work;            /* [count] of segment->dtype */
} tsr_trainable_span;

/* What a checkpoint holds of a tensor and a resumed run needs. */
typedef struct {
    const char *name; /* "master", "exp_avg", "exp_avg_sq", "absmax" */
    char *data;       /* of the span */
    tsr_dtype dtype;
    uint64_t each; /* elements of a granule */
} tsr_state_buffer;

#define TSR_TRAINABLE_STATE_MOST 4

/* `units` are laid out for `ranks` and borrowed. On success the caller frees *out. */
tsr_status tsr_trainable_make(tsr_trainable *out, const tsr_unit *units, int unit_count, int ranks,
                              int rank);
void tsr_trainable_free(tsr_trainable *trainable);

/* Takes (or plans) the arrays from device memory, masters and moments from `state`. Without `train`
 * only the working copy. rounded: sums are not added to. */
tsr_status tsr_trainable_walk(tsr_trainable *trainable, tsr_taker *taker, bool train, bool rounded,
                              tsr_place state);

/* Segment `segment` of unit `unit`'s trainable part. */
tsr_trainable_span tsr_trainable_at(const tsr_trainable *trainable, int unit, int segment);

/* The same range of a unit's sums. */
tsr_fixed_part tsr_trainable_part(const tsr_trainable *trainable, int unit, int segment);

/* Which segment a mark of tsr_trainable_part names. Those of higher units are smaller: of several
 * the smallest is the first from the output back. */
void tsr_trainable_marked(int *unit, int *segment, const tsr_trainable *trainable, int64_t mark);

/* The resume state of a span: masters and moments, the master first. The working copy follows from the masters,
 * the sums are of no use between steps. Returns how many. */
int tsr_trainable_state(tsr_state_buffer out[TSR_TRAINABLE_STATE_MOST],
                        const tsr_trainable *trainable, const tsr_trainable_span *span);

#endif
