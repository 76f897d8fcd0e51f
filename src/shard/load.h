/*
 * shard/load.h: putting frozen bytes in their places at start-up.
 *
 * Each rank fills its own part only: for SHARDED, HOST_SHARDED and RESIDENT its granules of the
 * shard group's cut, for HOST_FULL its granules of a cut over the ranks of its node. A RESIDENT
 * part is written in its final place and gathered there.
 *
 * Order    Fill every place of tsr_load_place (or let tsr_load_all call back for each), then
 *          tsr_load_finish.
 */
#ifndef TSR_SHARD_LOAD_H
#define TSR_SHARD_LOAD_H

#include "shard/store.h"

/* Where this rank's bytes of a frozen segment go. */
typedef struct {
    const tsr_segment *segment;
    char *data;                            /* of granule `first`; zero bytes until filled */
    uint64_t first_granule, granule_count; /* really there: no padding */
    int ranks, rank;                       /* the cut it belongs to */
} tsr_load_place;

tsr_load_place tsr_load_at(const tsr_store *store, const tsr_comm *world, int unit, int segment);

/* Fills place->data with granule_count granules; the last granule's missing elements stay zero. */
typedef tsr_status tsr_load_fill(void *user, int unit, const tsr_load_place *place);

/* Calls `fill` for every frozen segment with granules on this rank, units in order. */
tsr_status tsr_load_all(const tsr_store *store, const tsr_comm *world, tsr_load_fill *fill,
                        void *user);

/* Gathers RESIDENT parts and waits until every rank has filled its own. Blocking, collective. */
tsr_status tsr_load_finish(const tsr_store *store, tsr_comm *world, tsr_comm *shard,
                           tsr_stream *stream);

#endif
