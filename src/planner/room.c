/*
 * room.c: the memory that a rank may use, of its device and of its host.
 */
#include "planner/parts.h"

/* ---- the device ---- */

uint64_t tsr_room_held(const tsr_room *room)
{
    uint64_t used = room->total > room->free ? room->total - room->free : 0;
    return used > TSR_CUDA_RESERVE_BYTES ? used : 0;
}

uint64_t tsr_room_most(const tsr_room *room)
{
    if (!room->total)
        return UINT64_MAX;
    return tsr_room_held(room) ? room->free : room->total;
}

uint64_t tsr_room_budget(const tsr_config *config, const tsr_room *room)
{
    uint64_t most = tsr_room_most(room);
    if (!config->memory_budget)
        return room->free;
    return config->memory_budget < most ? config->memory_budget : most;
}

uint64_t tsr_room_left(const tsr_config *config, const tsr_room *room)
{
    uint64_t all = tsr_room_budget(config, room);
    return all > room->others ? all - room->others : 0;
}

/* ---- the host ---- */

tsr_status tsr_room_host(uint64_t *out, const tsr_inputs *inputs, const tsr_room *room)
{
    const tsr_config *config = &inputs->config;
    uint64_t asked = config->host_memory_budget, all = asked ? asked : TSR_BUDGET_UNKNOWN;
    if (!asked && room->host)
        all = room->host;
    if (!asked && room->host_shown && room->host_shown < all)
        all = room->host_shown;
    if (asked && !inputs->cuda)
        return tsr_fail(TSR_ECONFIG,
                        "%s: host_memory_budget is for jobs on a GPU; on the CPU all memory is the "
                        "device's: write memory_budget instead",
                        tsr_config_where(config, "host_memory_budget"));
    *out = all == TSR_BUDGET_UNKNOWN ? all : all > room->others_host ? all - room->others_host : 0;
    return TSR_OK;
}

bool tsr_decide_ignore_shown(tsr_decision *d, const tsr_inputs *inputs)
{
    uint64_t before = d->host_budget;
    d->room.host_shown = 0;
    return tsr_room_host(&d->host_budget, inputs, &d->room) == TSR_OK && d->host_budget > before;
}

uint64_t tsr_decide_host_bytes(const tsr_decision *d)
{
    uint64_t sharers = (uint64_t)d->local_ranks;
    return d->memory.total[TSR_PLACE_HOST] +
           (d->memory.total[TSR_PLACE_NODE] + sharers - 1) / sharers;
}

/* ---- both ---- */

bool tsr_decide_is_within(const tsr_decision *d)
{
    return tsr_decide_bytes(d) <= d->budget && tsr_decide_host_bytes(d) <= d->host_budget;
}

bool tsr_decide_may_fit(const tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c)
{
    uint64_t device = tsr_decide_bytes(d), host = tsr_decide_host_bytes(d), base, room;
    if (device > d->budget || host <= d->host_budget)
        return device <= d->budget;
    if (c->offload == TSR_CONFIG_OFFLOAD_NONE || inputs->config.resident_units >= 0)
        return false;
    base = d->memory.of_use[TSR_BUFFER_BASE][TSR_PLACE_HOST] +
           d->memory.of_use[TSR_BUFFER_BASE][TSR_PLACE_NODE] / (uint64_t)d->local_ranks;
    room = d->budget - device;
    return host - (base < room ? base : room) <= d->host_budget;
}
