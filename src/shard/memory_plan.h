/*
 * shard/memory_plan.h: every buffer of a run, by name, before it exists.
 *
 * Whoever needs memory walks over its buffers with a taker. While planning, the taker only writes
 * them down; at start-up the same walk takes them from the arenas, and the taker checks each
 * against the plan. So the plan's totals are the arenas' high-water marks, to the byte.
 *
 * Sharing  Adapters that take turns on one base have a plan each. BASE buffers exist once. SCRATCH buffers are the same memory
 *          for all of them, since nothing in it is needed after a step. The rest is each adapter's OWN.
 *
 * Sizes    Every buffer is rounded up to TSR_ALIGNMENT in the totals, as in an arena.
 */
#ifndef TSR_SHARD_MEMORY_PLAN_H
#define TSR_SHARD_MEMORY_PLAN_H

#include "base/dtype.h"
#include "device/device.h"

/* Arena memory, or one copy for all ranks of a node (tsr_comm_share), which no arena holds. */
typedef enum { TSR_PLACE_DEVICE, TSR_PLACE_HOST, TSR_PLACE_NODE, TSR_PLACE_COUNT } tsr_place;

typedef enum {
    TSR_BUFFER_OWN,
    TSR_BUFFER_BASE,
    TSR_BUFFER_SCRATCH,
    TSR_BUFFER_USES
} tsr_buffer_use;

/* What a buffer holds: rows x columns elements, or a vector (columns 1). */
typedef struct {
    tsr_dtype dtype;
    uint64_t rows, columns;
} tsr_array;

static inline uint64_t tsr_array_bytes(tsr_array array)
{
    return array.rows * array.columns * tsr_dtype_bytes(array.dtype);
}

/* Of parts of several kinds. */
static inline tsr_array tsr_array_of_bytes(uint64_t bytes)
{
    return (tsr_array){TSR_U8, bytes, 1};
}

#define TSR_BUFFER_NAME_BYTES 64

typedef struct {
    char name[TSR_BUFFER_NAME_BYTES];
    const char *why; /* what it is for; borrowed */
    tsr_array array;
    uint64_t bytes; /* as asked for */
    tsr_place place;
    tsr_buffer_use use;
} tsr_buffer;

/* Zero-initialise. */
typedef struct {
    tsr_buffer *buffer;
    int count, capacity;
    uint64_t total[TSR_PLACE_COUNT];                   /* rounded up */
    uint64_t of_use[TSR_BUFFER_USES][TSR_PLACE_COUNT]; /* of them */
} tsr_memory_plan;

/* Adds a buffer (one of 0 bytes is not listed). `why` is borrowed until the plan is freed. TSR_ENOMEM,
 * TSR_EINVAL: the sum overflows. */
tsr_status tsr_memory_plan_add(tsr_memory_plan *plan, tsr_place place, tsr_buffer_use use,
                               const char *name, const char *why, tsr_array array);
void tsr_memory_plan_free(tsr_memory_plan *plan);

/* Planning: only `plan` is set. Running: the arenas are set, and `plan`, if set, is what was
 * planned and is only read: a buffer that is not the next one in it is TSR_EINTERNAL. */
typedef struct {
    tsr_memory_plan *plan;
    tsr_arena *device, *host;
    tsr_arena *scratch_device,
        *scratch_host;  /* running: for SCRATCH; NULL: it comes from those above */
    bool has_base;      /* running: buffers of the BASE are another taker's: they become NULL */
    tsr_buffer_use use; /* what is taken from now on; whoever sets it sets it back to OWN */
    int cursor;         /* running: the next buffer of the plan */
} tsr_taker;

/* *out becomes NULL while planning and for 0 bytes. A NODE buffer is only written down or checked. why: what it is
 * for, for people; outlives the plan. */
tsr_status tsr_taker_take(tsr_taker *taker, void **out, tsr_place place, const char *name,
                          const char *why, tsr_array array);

/* The same with the shape of a walk's callback; `user` is the tsr_taker. */
tsr_status tsr_taker_device(void *user, void **out, const char *name, const char *why,
                            tsr_array array);
tsr_status tsr_taker_host(void *user, void **out, const char *name, const char *why,
                          tsr_array array);

/* After a run's last take: TSR_EINTERNAL unless every buffer of the plan was taken and the arenas'
 * high-water marks are the plan's totals of what each arena is for. */
tsr_status tsr_taker_finish(const tsr_taker *taker);

#endif
