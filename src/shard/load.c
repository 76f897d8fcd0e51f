#include "shard/load.h"

#include <stdlib.h>

tsr_load_place tsr_load_at(const tsr_store *store, const tsr_comm *world, int unit, int segment)
{
    const tsr_unit *u = &store->plan->options.units[unit];
    const tsr_segment *s = &u->frozen.segment[segment];
    tsr_load_place place = {.segment = s, .ranks = store->plan->options.ranks, .rank = store->rank};
    if (u->home == TSR_HOME_HOST_FULL) {
        place.ranks = tsr_comm_local_size(world);
        place.rank = tsr_comm_local_rank(world);
    }
    tsr_granule_range(&place.first_granule, &place.granule_count, s->granule_count,
                      (uint64_t)place.ranks, (uint64_t)place.rank);
    /* A gathered segment is the tensor in its own order, a shard begins with its first granule. */
    bool whole = u->home == TSR_HOME_RESIDENT || u->home == TSR_HOME_HOST_FULL;
    uint64_t offset =
        whole ? s->gathered_offset + place.first_granule * s->granule_bytes : s->shard_offset;
    place.data = store->frozen[unit] ? store->frozen[unit] + offset : NULL;
    return place;
}

tsr_status tsr_load_all(const tsr_store *store, const tsr_comm *world, tsr_load_fill *fill,
                        void *user)
{
    const tsr_plan_options *o = &store->plan->options;
    for (int u = 0; u < o->unit_count; u++)
        for (int s = 0; s < o->units[u].frozen.segment_count; s++) {
            tsr_load_place place = tsr_load_at(store, world, u, s);
            if (place.granule_count > 0)
                TSR_TRY(fill(user, u, &place));
        }
    return TSR_OK;
}

/* Every rank's part of a RESIDENT unit into all ranks' copies, in place. */
static tsr_status gather_resident(const tsr_store *store, int unit, tsr_comm *shard,
                                  tsr_stream *stream)
{
    const tsr_unit_part *part = &store->plan->options.units[unit].frozen;
    tsr_gather_range *range = calloc((size_t)part->segment_count + 1, sizeof *range);
    if (!range) {
        tsr_status status = tsr_fail(TSR_ENOMEM, "no memory for %d ranges", part->segment_count);
        tsr_comm_abort(shard, status, tsr_last_error()); /* the other ranks wait in the gather */
        return status;
    }
    for (int i = 0; i < part->segment_count; i++) {
        const tsr_segment *s = &part->segment[i];
        char *whole = store->frozen[unit] + s->gathered_offset;
        range[i] = (tsr_gather_range){.send = whole + (uint64_t)store->rank * s->shard_bytes,
                                      .receive = whole,
                                      .bytes = s->shard_bytes};
    }
    tsr_status status = tsr_comm_all_gather(shard, stream, range, part->segment_count);
    tsr_status ended = tsr_stream_synchronize(stream); /* the ranges are borrowed until then */
    free(range);
    return status < 0 ? status : ended;
}

tsr_status tsr_load_finish(const tsr_store *store, tsr_comm *world, tsr_comm *shard,
                           tsr_stream *stream)
{
    const tsr_plan_options *o = &store->plan->options;
    for (int u = 0; u < o->unit_count && o->ranks > 1; u++)
        if (o->units[u].home == TSR_HOME_RESIDENT && o->units[u].frozen.gathered_bytes > 0)
            TSR_TRY(gather_resident(store, u, shard, stream));
    TSR_TRY(tsr_comm_barrier(world, stream));
    return tsr_stream_synchronize(stream);
}
