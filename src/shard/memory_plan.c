#include "shard/memory_plan.h"

#include "base/checked.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

tsr_status tsr_memory_plan_add(tsr_memory_plan *plan, tsr_place place, tsr_buffer_use use,
                               const char *name, const char *why, tsr_array array)
{
    uint64_t bytes = tsr_array_bytes(array);
    if (bytes == 0)
        return TSR_OK;
    uint64_t total;
    if (bytes > UINT64_MAX / 2 ||
        !tsr_add_u64(&total, plan->total[place], tsr_align_up(bytes, TSR_ALIGNMENT)))
        return tsr_fail(TSR_EINVAL, "the memory plan overflows at %s (%llu bytes)", name,
                        (unsigned long long)bytes);
    if (plan->count == plan->capacity) {
        int capacity = plan->capacity ? 2 * plan->capacity : 64;
        tsr_buffer *grown = realloc(plan->buffer, (size_t)capacity * sizeof *grown);
        if (!grown)
            return tsr_fail(TSR_ENOMEM, "no memory for a plan of %d buffers", capacity);
        plan->buffer = grown;
        plan->capacity = capacity;
    }
    tsr_buffer *buffer = &plan->buffer[plan->count++];
    tsr_text_join(buffer->name, sizeof buffer->name, name, "");
    buffer->why = why;
    buffer->array = array;
    buffer->bytes = bytes;
    buffer->place = place;
    buffer->use = use;
    plan->total[place] = total;
    plan->of_use[use][place] += tsr_align_up(bytes, TSR_ALIGNMENT);
    return TSR_OK;
}

void tsr_memory_plan_free(tsr_memory_plan *plan)
{
    free(plan->buffer);
    *plan = (tsr_memory_plan){0};
}

/* The next buffer of the plan must be this one. */
static tsr_status check_planned(tsr_taker *taker, tsr_place place, const char *name, uint64_t bytes)
{
    const tsr_memory_plan *plan = taker->plan;
    if (taker->cursor >= plan->count)
        return tsr_fail(TSR_EINTERNAL, "buffer %s (%llu bytes) is not in the memory plan", name,
                        (unsigned long long)bytes);
    const tsr_buffer *planned = &plan->buffer[taker->cursor++];
    if (planned->place != place || planned->bytes != bytes ||
        strncmp(planned->name, name, sizeof planned->name - 1) != 0)
        return tsr_fail(TSR_EINTERNAL,
                        "buffer %d of the memory plan is %s (%llu bytes), but %s (%llu bytes) is "
                        "taken",
                        taker->cursor - 1, planned->name, (unsigned long long)planned->bytes, name,
                        (unsigned long long)bytes);
    return TSR_OK;
}

static tsr_arena *arena_of(const tsr_taker *taker, tsr_place place, tsr_buffer_use use)
{
    bool device = place == TSR_PLACE_DEVICE;
    tsr_arena *scratch = device ? taker->scratch_device : taker->scratch_host;
    return use == TSR_BUFFER_SCRATCH && scratch ? scratch : device ? taker->device : taker->host;
}

tsr_status tsr_taker_take(tsr_taker *taker, void **out, tsr_place place, const char *name,
                          const char *why, tsr_array array)
{
    uint64_t bytes = tsr_array_bytes(array);
    *out = NULL;
    if (bytes == 0)
        return TSR_OK;
    bool running = taker->device || taker->host;
    if (!running)
        return tsr_memory_plan_add(taker->plan, place, taker->use, name, why, array);
    if (taker->plan)
        TSR_TRY(check_planned(taker, place, name, bytes));
    if (place == TSR_PLACE_NODE || (taker->has_base && taker->use == TSR_BUFFER_BASE))
        return TSR_OK;
    tsr_arena *arena = arena_of(taker, place, taker->use);
    if (!arena)
        return tsr_fail(TSR_EINTERNAL, "buffer %s: no arena of its place", name);
    return tsr_arena_take(out, arena, name, bytes);
}

tsr_status tsr_taker_device(void *user, void **out, const char *name, const char *why,
                            tsr_array array)
{
    void *address;
    TSR_TRY(tsr_taker_take(user, &address, TSR_PLACE_DEVICE, name, why, array));
    if (out)
        *out = address;
    return TSR_OK;
}

tsr_status tsr_taker_host(void *user, void **out, const char *name, const char *why,
                          tsr_array array)
{
    void *address;
    TSR_TRY(tsr_taker_take(user, &address, TSR_PLACE_HOST, name, why, array));
    if (out)
        *out = address;
    return TSR_OK;
}

/* What the plan has for `arena`. */
static uint64_t planned_in(const tsr_taker *taker, tsr_place place, const tsr_arena *arena)
{
    uint64_t sum = 0;
    for (int use = 0; use < TSR_BUFFER_USES; use++)
        if (arena_of(taker, place, (tsr_buffer_use)use) == arena &&
            !(taker->has_base && use == TSR_BUFFER_BASE))
            sum += taker->plan->of_use[use][place];
    return sum;
}

static tsr_status check_arena(const tsr_taker *taker, tsr_place place, const tsr_arena *arena)
{
    uint64_t taken = arena ? tsr_arena_high_water(arena) : 0;
    uint64_t planned = planned_in(taker, place, arena);
    if (taken == planned)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL, "%s memory: %llu bytes were taken, %llu were planned",
                    place == TSR_PLACE_DEVICE ? "device" : "host", (unsigned long long)taken,
                    (unsigned long long)planned);
}

tsr_status tsr_taker_finish(const tsr_taker *taker)
{
    const tsr_memory_plan *plan = taker->plan;
    if (!plan)
        return TSR_OK;
    if (taker->cursor != plan->count)
        return tsr_fail(TSR_EINTERNAL, "buffer %s of the memory plan was never taken",
                        plan->buffer[taker->cursor].name);
    TSR_TRY(check_arena(taker, TSR_PLACE_DEVICE, taker->device));
    TSR_TRY(check_arena(taker, TSR_PLACE_HOST, taker->host));
    if (taker->scratch_device)
        TSR_TRY(check_arena(taker, TSR_PLACE_DEVICE, taker->scratch_device));
    return taker->scratch_host ? check_arena(taker, TSR_PLACE_HOST, taker->scratch_host) : TSR_OK;
}
