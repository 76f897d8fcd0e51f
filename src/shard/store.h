/*
 * shard/store.h: the memory of sharded parameters at run time: shards, resident parts, host copies,
 * slots, stages, gradient buffers, the trainable state with its buffers and the control word. (What
 * layers save for their backward is the model's memory.)
 *
 * Order    tsr_store_make, tsr_store_walk with a planning taker (as often as wanted), then once
 *          with the arenas; tsr_store_share; then load (shard/load.h); then the executor.
 * Threads  The plan orders all accesses.
 */
#ifndef TSR_SHARD_STORE_H
#define TSR_SHARD_STORE_H

#include "shard/control.h"
#include "shard/plan.h"
#include "shard/trainable.h"

typedef struct {
    const tsr_plan *plan;
    int rank; /* of the shard group */
    tsr_trainable trainable;
    char **frozen; /* [unit_count]: shard or whole part, by its home */
    char *slot[TSR_SLOTS_MAX], *stage[TSR_STAGES_MAX];
    char **kept;      /* [unit_count]: gathered trainable parts that are kept; else NULL */
    void *gradient;   /* [gradient_buffers][ranks * gradient_count of a unit]: tsr_store_gradient */
    void *received;   /* [(ranks - 1) * gradient_count of a unit] */
    int64_t *partial; /* [gradient_count of a unit]; NULL with one replica */
    char *state[TSR_STATE_BUFFERS]; /* masters, then m, then v of a chunk; NULL: none go through */
    int64_t *word;                  /* [tsr_store_words], device */
    int64_t *host_word[2];          /* [tsr_store_words], host */
    int64_t *host_flags[2];         /* the same: how the next words begin */
    char *shards;                   /* all SHARDED parts of this rank, which never change */
    uint64_t shard_bytes;
    char *node_base; /* HOST_FULL parts, shared by a node */
    uint64_t node_bytes;
} tsr_store;

/* `plan` is borrowed. On success the caller frees *out. */
tsr_status tsr_store_make(tsr_store *out, const tsr_plan *plan, int rank);
void tsr_store_free(tsr_store *store);

tsr_status tsr_store_walk(tsr_store *store, tsr_taker *taker);

/* The shared host memory of HOST_FULL parts. Blocking, collective on `world`; nothing to do without
 * such a part. */
tsr_status tsr_store_share(tsr_store *store, tsr_comm *world, tsr_stream *stream);

/* The base of `store`, whose taker had has_base, is that of `from`, which lives longer. TSR_EINTERNAL: their units are not the
 * same. */
tsr_status tsr_store_borrow(tsr_store *store, const tsr_store *from);

/* Where the optimizer finds elements [begin, begin + count) of masters and moments: in the chunk's
 * buffer, or (chunk -1) where they live. */
typedef struct {
    uint64_t begin, count;
    uint64_t moment, moment_bytes; /* the same range of m, and of v, in bytes */
    float *master;
    char *m, *v;
} tsr_optim_part;

tsr_optim_part tsr_store_part(const tsr_store *store, int chunk);

/* Of a wide unit int64_t, of others float. */
void *tsr_store_gradient(const tsr_store *store, int buffer);

/* Of a control word (shard/control.h). */
static inline uint64_t tsr_store_words(const tsr_store *store)
{
    return TSR_WORD_COUNT + store->plan->options.more_words;
}

/* What compute sees of `unit` when it sits in `slot` (-1: it needs none). */
tsr_unit_view tsr_store_view(const tsr_store *store, int unit, int slot);

#endif
