/*
 * shard/unit.h: a unit, the group of tensors that is gathered together (a decoder layer, some of its
 * modules or several layers, as unit_policy says; one vocabulary chunk of the head).
 *
 * A unit has a frozen and a trainable part, each a list of segments, laid out on their own:
 *
 *     gathered layout   segments one after the other, each on TSR_ALIGNMENT bytes; inside a segment
 *                       rank 0's c granules, then rank 1's, ...: the tensor in its own order
 *     shard layout      one rank's c granules of each segment, each on TSR_ALIGNMENT bytes; with
 *                       one rank the same as the gathered layout
 *     gradient layout   fp32, or of a wide unit int64, of the trainable part only: segments one after
 *                       the other without gaps, each cut as in the gathered layout, so that a matmul
 *                       writes a tensor in its own order (tsr_unit_gradient_at). What the other ranks
 *                       have of one owner's granules is received in the same order, without the
 *                       owner's own.
 *     owner's layout    of masters, moments and sums: one rank's c granules of every segment,
 *                       without gaps
 *
 * What is gathered lies in a slot: [frozen part][trainable part], of each only what is gathered at
 * all; a trainable part that is kept in a place of its own. Compute reads it through a tsr_unit_view.
 *
 * Order    Fill in the caller's fields of a unit and its segments, then tsr_unit_lay_out.
 * Threads  Read-only after that.
 */
#ifndef TSR_SHARD_UNIT_H
#define TSR_SHARD_UNIT_H

#include "base/dtype.h"
#include "base/status.h"
#include "shard/granule.h"

typedef struct {
    /* The caller's. */
    const char *name; /* of the tensor; borrowed */
    uint32_t param;   /* whatever number the caller knows it by */
    tsr_dtype dtype;
    uint64_t granule_bytes, granule_count;
    uint64_t element_count; /* of a trainable tensor, without padding; 0: whole granules */
    bool
        coded; /* a trainable tensor's moments are codes of 8 bits (kernels/adamw_8bit.h), else fp32 */
    int adapter; /* a trainable tensor's: which of the executor's owners has its sums, if it has some */
    /* Filled by tsr_unit_lay_out. */
    uint64_t per_rank;                        /* c */
    uint64_t gathered_offset, gathered_bytes; /* in the gathered part: ranks * c * granule_bytes */
    uint64_t shard_offset, shard_bytes;       /* in the shard's part: c * granule_bytes */
    uint64_t gradient_offset, gradient_count; /* in the owner's layout, elements (trainable) */
} tsr_segment;

typedef struct {
    tsr_segment *segment; /* [segment_count], the caller's */
    int segment_count;
    /* Filled by tsr_unit_lay_out; multiples of TSR_ALIGNMENT. */
    uint64_t gathered_bytes, shard_bytes;
    uint64_t gradient_count; /* elements of one rank's part; 0 in a frozen part */
    uint64_t moment_bytes;   /* of either of their moments */
} tsr_unit_part;

/* Where the frozen part lives between gathers. */
typedef enum {
    TSR_HOME_SHARDED,      /* this rank's shard in device memory */
    TSR_HOME_RESIDENT,     /* the whole part in device memory, gathered once at load */
    TSR_HOME_HOST_SHARDED, /* this rank's shard in pinned host memory */
    TSR_HOME_HOST_FULL,    /* the whole part once per node, in shared host memory */
    TSR_HOME_COUNT
} tsr_home;

typedef struct {
    int id; /* its index in the plan's array */
    tsr_home home;
    bool has_norm;        /* NORM(u) runs in the first forward after OPTIM */
    bool keeps_trainable; /* its trainable part, once gathered, stays until the next OPTIM */
    /* Its gradient of a micro-batch has several contributions: B(u) makes their sums, the `wide` ones of
     * kernels/fixed_point.h. */
    bool wide;
    tsr_unit_part frozen, trainable;
} tsr_unit;

/* Where compute finds the two parts: base + segment.gathered_offset. NULL for an empty part. */
typedef struct {
    int unit;
    const char *frozen, *trainable;
} tsr_unit_view;

/* Fills in the layouts for a shard group of `ranks`. TSR_EINVAL: a granule of 0 bytes, a trainable
 * segment that is not F32 or BF16 in granules of TSR_GRANULE_ELEMENTS or has more elements than these, or
 * sizes that overflow; the name is told. */
tsr_status tsr_unit_lay_out(tsr_unit *unit, int ranks);

/* Where a trainable segment's gradient begins in the gradient layout, in elements; and in what is
 * received from the other ranks. */
static inline uint64_t tsr_unit_gradient_at(const tsr_segment *segment, int ranks)
{
    return (uint64_t)ranks * segment->gradient_offset;
}

static inline uint64_t tsr_unit_received_at(const tsr_segment *segment, int ranks)
{
    return (uint64_t)(ranks - 1) * segment->gradient_offset;
}

/* Bytes of an element of the gradient layout, and of all of a unit's. */
static inline uint64_t tsr_unit_gradient_element(const tsr_unit *unit)
{
    return unit->wide ? sizeof(int64_t) : sizeof(float);
}

static inline uint64_t tsr_unit_gradient_bytes(const tsr_unit *unit, int ranks)
{
    return (uint64_t)ranks * unit->trainable.gradient_count * tsr_unit_gradient_element(unit);
}

/* Bytes of either moment of the first `elements` that a rank owns, in the owner's layout. */
uint64_t tsr_unit_moment_bytes(const tsr_unit *units, int unit_count, uint64_t elements);

/* What passes through a slot. A shard group of one rank needs no gather of a SHARDED part: the view
 * points at the shard. The same holds for every trainable part. */
bool tsr_unit_frozen_gathered(const tsr_unit *unit, int ranks);
bool tsr_unit_trainable_gathered(const tsr_unit *unit, int ranks);

/* What is gathered into a place of its own. */
bool tsr_unit_trainable_kept(const tsr_unit *unit, int ranks);

/* Bytes the unit takes in a slot, and where its trainable part begins. */
uint64_t tsr_unit_slot_bytes(const tsr_unit *unit, int ranks);
uint64_t tsr_unit_slot_trainable(const tsr_unit *unit, int ranks);

/* saved_bytes[layer]: of what a layer's forward saves for its backward, at most, where host memory keeps
 * it in between; 0: it stays on the device. NULL: all of it does. Layers that save take turns in the
 * regions of device memory, in their order: a forward writes one, SAVE copies it to the host while the
 * next layer writes the other, and on the way back LOAD fills the region that the backward above has
 * left. */
#define TSR_REGIONS 2

/* The region of a layer; -1: what it saves stays where it is. */
int tsr_saved_region(const uint64_t *saved_bytes, int layer);

/* Whether SAVE and LOAD move it: the last TSR_REGIONS of these layers are still in their regions when
 * their backward begins. */
bool tsr_saved_travels(const uint64_t *saved_bytes, int layer_count, int layer);

/* What a layer has saved of one micro-batch. */
typedef struct {
    char *device, *host;
    uint64_t bytes; /* that are really used: 0 of an empty micro-batch */
} tsr_saved;

/* "sharded", "resident", "host-sharded", "host-full" */
const char *tsr_home_name(tsr_home home);

#endif
