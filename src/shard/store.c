#include "shard/store.h"

#include <stdio.h>
#include <stdlib.h>

tsr_status tsr_store_make(tsr_store *out, const tsr_plan *plan, int rank)
{
    const tsr_plan_options *o = &plan->options;
    tsr_store store = {.plan = plan, .rank = rank};
    TSR_TRY(tsr_trainable_make(&store.trainable, o->units, o->unit_count, o->ranks, rank));
    store.frozen = calloc((size_t)o->unit_count, sizeof *store.frozen);
    store.kept = calloc((size_t)o->unit_count, sizeof *store.kept);
    if (!store.frozen || !store.kept) {
        tsr_store_free(&store);
        return tsr_fail(TSR_ENOMEM, "no memory for the addresses of %d units", o->unit_count);
    }
    *out = store;
    return TSR_OK;
}

void tsr_store_free(tsr_store *store)
{
    tsr_trainable_free(&store->trainable);
    free(store->frozen);
    free(store->kept);
    *store = (tsr_store){0};
}

/* Bytes that a unit's frozen part takes in its home on this rank. */
static uint64_t home_bytes(const tsr_unit *unit)
{
    bool whole = unit->home == TSR_HOME_RESIDENT || unit->home == TSR_HOME_HOST_FULL;
    return whole ? unit->frozen.gathered_bytes : unit->frozen.shard_bytes;
}

/* All parts of one home, one after the other from `base` (NULL while planning). Their sum. */
static uint64_t place_home(tsr_store *store, tsr_home home, char *base)
{
    uint64_t offset = 0;
    for (int u = 0; u < store->plan->options.unit_count; u++) {
        const tsr_unit *unit = &store->plan->options.units[u];
        uint64_t bytes = home_bytes(unit);
        if (unit->home != home || bytes == 0)
            continue;
        if (base)
            store->frozen[u] = base + offset;
        offset += bytes;
    }
    return offset;
}

static tsr_status walk_homes(tsr_store *store, tsr_taker *taker)
{
    static const struct {
        tsr_home home;
        tsr_place place;
        const char *name, *why;
    } home[] = {
        {TSR_HOME_SHARDED, TSR_PLACE_DEVICE, "frozen.shards", "this rank's part of the base"},
        {TSR_HOME_RESIDENT, TSR_PLACE_DEVICE, "frozen.resident",
         "units of the base that stay whole"},
        {TSR_HOME_HOST_SHARDED, TSR_PLACE_HOST, "frozen.host_shards",
         "this rank's part of the base, pinned"},
        {TSR_HOME_HOST_FULL, TSR_PLACE_NODE, "frozen.host_copy", "the base, one copy a node"},
    };
    for (size_t i = 0; i < sizeof home / sizeof *home; i++) {
        void *base;
        uint64_t bytes = place_home(store, home[i].home, NULL);
        TSR_TRY(tsr_taker_take(taker, &base, home[i].place, home[i].name, home[i].why,
                               tsr_array_of_bytes(bytes)));
        if (base)
            place_home(store, home[i].home, base);
        if (home[i].home == TSR_HOME_HOST_FULL)
            store->node_bytes = bytes;
        if (home[i].home == TSR_HOME_SHARDED) {
            store->shards = base;
            store->shard_bytes = bytes;
        }
    }
    return TSR_OK;
}

/* Trainable parts that are kept, one after the other from `base` (NULL while planning). Their sum. */
static uint64_t place_kept(tsr_store *store, char *base)
{
    const tsr_plan_options *o = &store->plan->options;
    uint64_t offset = 0;
    for (int u = 0; u < o->unit_count; u++) {
        if (!tsr_unit_trainable_kept(&o->units[u], o->ranks))
            continue;
        if (base)
            store->kept[u] = base + offset;
        offset += o->units[u].trainable.gathered_bytes;
    }
    return offset;
}

static tsr_status walk_kept(tsr_store *store, tsr_taker *taker)
{
    void *base;
    TSR_TRY(tsr_taker_take(taker, &base, TSR_PLACE_DEVICE, "trainable.whole",
                           "the adapter as matmuls read it, gathered once a step",
                           tsr_array_of_bytes(place_kept(store, NULL))));
    place_kept(store, base);
    return TSR_OK;
}

/* `count` buffers of one kind: name[0], name[1], ... */
static tsr_status walk_ring(tsr_taker *taker, void **out, int count, const char *name,
                            const char *why, tsr_array array)
{
    for (int i = 0; i < count; i++) {
        char full[32];
        snprintf(full, sizeof full, "%s[%d]", name, i);
        TSR_TRY(tsr_taker_take(taker, &out[i], TSR_PLACE_DEVICE, full, why, array));
    }
    return TSR_OK;
}

tsr_status tsr_store_walk(tsr_store *store, tsr_taker *taker)
{
    const tsr_plan *plan = store->plan;
    void *slot[TSR_SLOTS_MAX] = {0}, *stage[TSR_STAGES_MAX] = {0};
    void *state[TSR_STATE_BUFFERS] = {0};
    void *gradient, *received, *partial, *word, *host_word;
    tsr_dtype sums = plan->wide ? TSR_I64 : TSR_F32; /* the widest that a gradient has */
    uint64_t words = tsr_store_words(store);
    tsr_place place = plan->chunk_count > 0 ? TSR_PLACE_HOST : TSR_PLACE_DEVICE;
    taker->use = TSR_BUFFER_SCRATCH;
    TSR_TRY(walk_ring(taker, slot, plan->options.slots, "slot", "one unit, gathered for its use",
                      tsr_array_of_bytes(plan->slot_bytes)));
    TSR_TRY(walk_ring(taker, stage, plan->options.stages, "stage",
                      "one unit's shard on its way from host memory",
                      tsr_array_of_bytes(plan->stage_bytes)));
    TSR_TRY(tsr_taker_take(taker, &gradient, TSR_PLACE_DEVICE, "gradient",
                           "of a unit each, before they are reduced",
                           (tsr_array){sums, (uint64_t)plan->gradient_buffers,
                                       plan->gradient_bytes / tsr_dtype_bytes(sums)}));
    TSR_TRY(tsr_taker_take(taker, &received, TSR_PLACE_DEVICE, "gradient.received",
                           "the other ranks' share of it",
                           (tsr_array){sums, plan->receive_bytes / tsr_dtype_bytes(sums), 1}));
    TSR_TRY(tsr_taker_take(taker, &partial, TSR_PLACE_DEVICE, "gradient.partial",
                           "one replica's sums of it",
                           (tsr_array){TSR_I64, plan->partial_bytes / sizeof(int64_t), 1}));
    taker->use = TSR_BUFFER_BASE;
    TSR_TRY(walk_homes(store, taker));
    taker->use = TSR_BUFFER_OWN;
    TSR_TRY(walk_kept(store, taker));
    bool kept = plan->options.train && !plan->options.mixed;
    TSR_TRY(tsr_trainable_walk(&store->trainable, taker, kept, plan->options.one_round, place));
    taker->use = TSR_BUFFER_SCRATCH;
    TSR_TRY(walk_ring(taker, state, plan->state_buffers, "optimizer state",
                      "a chunk of master, m and v, on the device for its update",
                      store->trainable.coded
                          ? tsr_array_of_bytes(plan->state_bytes)
                          : (tsr_array){TSR_F32, TSR_STATE_ARRAYS,
                                        plan->state_bytes / (TSR_STATE_ARRAYS * sizeof(float))}));
    taker->use = TSR_BUFFER_OWN;
    TSR_TRY(tsr_taker_take(taker, &word, TSR_PLACE_DEVICE, "control.word",
                           "what a step is decided by: loss, norm, whether all is finite",
                           (tsr_array){TSR_I64, words, 1}));
    TSR_TRY(tsr_taker_take(taker, &host_word, TSR_PLACE_HOST, "control.host_words",
                           "the same, for the host", (tsr_array){TSR_I64, 4, words}));
    for (int i = 0; i < TSR_SLOTS_MAX; i++)
        store->slot[i] = slot[i];
    for (int i = 0; i < TSR_STAGES_MAX; i++)
        store->stage[i] = stage[i];
    for (int i = 0; i < TSR_STATE_BUFFERS; i++)
        store->state[i] = state[i];
    store->gradient = gradient;
    store->received = received;
    store->partial = partial;
    store->word = word;
    for (int i = 0; i < 2 && host_word; i++) {
        store->host_word[i] = (int64_t *)host_word + (uint64_t)i * words;
        store->host_flags[i] = (int64_t *)host_word + (uint64_t)(2 + i) * words;
    }
    return TSR_OK;
}

tsr_status tsr_store_borrow(tsr_store *store, const tsr_store *from)
{
    const tsr_plan_options *own = &store->plan->options, *its = &from->plan->options;
    for (int u = 0; u < own->unit_count; u++) {
        const tsr_unit *a = &own->units[u], *b = &its->units[u];
        if (a->home != b->home || a->frozen.gathered_bytes != b->frozen.gathered_bytes ||
            a->frozen.shard_bytes != b->frozen.shard_bytes)
            return tsr_fail(TSR_EINTERNAL,
                            "unit %d of the base is not where the other adapter's is", u);
        store->frozen[u] = from->frozen[u];
    }
    store->node_bytes = store->shard_bytes = 0; /* to be shared and exposed: there is nothing */
    store->shards = NULL;
    return TSR_OK;
}

tsr_status tsr_store_share(tsr_store *store, tsr_comm *world, tsr_stream *stream)
{
    if (store->node_bytes == 0)
        return TSR_OK;
    void *base;
    TSR_TRY(tsr_comm_share(&base, world, stream, store->node_bytes));
    place_home(store, TSR_HOME_HOST_FULL, base);
    store->node_base = base;
    return TSR_OK;
}

tsr_optim_part tsr_store_part(const tsr_store *store, int chunk)
{
    const tsr_trainable *t = &store->trainable;
    tsr_plan_range range = tsr_plan_chunk(store->plan, chunk);
    uint64_t moment = tsr_unit_moment_bytes(t->units, t->unit_count, range.begin);
    uint64_t end = tsr_unit_moment_bytes(t->units, t->unit_count, range.begin + range.count);
    tsr_optim_part part = {range.begin, range.count, moment, end - moment, t->master, t->m, t->v};
    char *here = chunk < 0 ? NULL : store->state[chunk % store->plan->state_buffers];
    if (chunk < 0)
        return part;
    part.master = (float *)here;
    part.m = here + range.count * sizeof(float);
    part.v = part.m + part.moment_bytes;
    return part;
}

void *tsr_store_gradient(const tsr_store *store, int buffer)
{
    return (char *)store->gradient + (uint64_t)buffer * store->plan->gradient_bytes;
}

tsr_unit_view tsr_store_view(const tsr_store *store, int unit, int slot)
{
    const tsr_unit *u = &store->plan->options.units[unit];
    int ranks = store->plan->options.ranks;
    tsr_unit_view view = {.unit = unit};
    const char *base = slot >= 0 ? store->slot[slot] : NULL;
    if (tsr_unit_frozen_gathered(u, ranks))
        view.frozen = base;
    else if (u->frozen.gathered_bytes > 0)
        view.frozen = store->frozen[unit];
    if (tsr_unit_trainable_gathered(u, ranks))
        view.trainable = base ? base + tsr_unit_slot_trainable(u, ranks) : NULL;
    else if (store->kept[unit])
        view.trainable = store->kept[unit];
    else if (u->trainable.gathered_bytes > 0)
        view.trainable = store->trainable.work + store->trainable.work_offset[unit];
    return view;
}
