#include "shard/unit.h"

#include "device/device.h"

static tsr_status lay_out_segment(tsr_segment *s, tsr_unit_part *part, int ranks, bool trainable)
{
    if (s->granule_bytes == 0)
        return tsr_fail(TSR_EINVAL, "%s: a granule of 0 bytes", s->name);
    if (trainable && s->dtype != TSR_F32 && s->dtype != TSR_BF16)
        return tsr_fail(TSR_EINVAL, "%s: a trainable tensor is F32 or BF16, not %s", s->name,
                        tsr_dtype_name(s->dtype));
    if (trainable && s->granule_bytes != TSR_GRANULE_ELEMENTS * tsr_dtype_bytes(s->dtype))
        return tsr_fail(TSR_EINVAL,
                        "%s: granules of %llu bytes, but a trainable tensor of %s has granules of "
                        "%d elements",
                        s->name, (unsigned long long)s->granule_bytes, tsr_dtype_name(s->dtype),
                        TSR_GRANULE_ELEMENTS);
    s->per_rank = tsr_granule_per_rank(s->granule_count, (uint64_t)ranks);
    if (!tsr_mul_u64(&s->shard_bytes, s->per_rank, s->granule_bytes) ||
        !tsr_mul_u64(&s->gathered_bytes, s->shard_bytes, (uint64_t)ranks) ||
        s->gathered_bytes >= UINT64_MAX / 2 - part->gathered_bytes ||
        s->per_rank >= UINT64_MAX / 8192)
        return tsr_fail(TSR_EINVAL, "%s: %llu granules of %llu bytes do not fit in 64 bits",
                        s->name, (unsigned long long)s->granule_count,
                        (unsigned long long)s->granule_bytes);
    if (trainable && s->element_count == 0)
        s->element_count = s->granule_count * TSR_GRANULE_ELEMENTS;
    if (trainable && s->element_count > s->granule_count * TSR_GRANULE_ELEMENTS)
        return tsr_fail(TSR_EINVAL, "%s: %llu elements in %llu granules", s->name,
                        (unsigned long long)s->element_count, (unsigned long long)s->granule_count);
    s->gathered_offset = part->gathered_bytes;
    s->shard_offset = part->shard_bytes;
    part->gathered_bytes += tsr_align_up(s->gathered_bytes, TSR_ALIGNMENT);
    part->shard_bytes += tsr_align_up(s->shard_bytes, TSR_ALIGNMENT);
    s->gradient_offset = part->gradient_count;
    s->gradient_count = trainable ? s->per_rank * TSR_GRANULE_ELEMENTS : 0;
    part->gradient_count += s->gradient_count;
    part->moment_bytes += s->gradient_count * (s->coded ? 1 : sizeof(float));
    return TSR_OK;
}

static tsr_status lay_out_part(tsr_unit_part *part, int ranks, bool trainable)
{
    part->gathered_bytes = part->shard_bytes = part->gradient_count = part->moment_bytes = 0;
    for (int i = 0; i < part->segment_count; i++)
        TSR_TRY(lay_out_segment(&part->segment[i], part, ranks, trainable));
    return TSR_OK;
}

tsr_status tsr_unit_lay_out(tsr_unit *unit, int ranks)
{
    if (ranks < 1)
        return tsr_fail(TSR_EINVAL, "a shard group of %d ranks", ranks);
    TSR_TRY(lay_out_part(&unit->frozen, ranks, false));
    return lay_out_part(&unit->trainable, ranks, true);
}

uint64_t tsr_unit_moment_bytes(const tsr_unit *units, int unit_count, uint64_t elements)
{
    uint64_t bytes = 0;
    int u = 0;
    for (; u < unit_count && units[u].trainable.gradient_count <= elements; u++) {
        bytes += units[u].trainable.moment_bytes;
        elements -= units[u].trainable.gradient_count;
    }
    for (int i = 0; u < unit_count && i < units[u].trainable.segment_count && elements > 0; i++) {
        const tsr_segment *s = &units[u].trainable.segment[i];
        uint64_t count = s->gradient_count < elements ? s->gradient_count : elements;
        bytes += count * (s->coded ? 1 : sizeof(float));
        elements -= count;
    }
    return bytes;
}

bool tsr_unit_frozen_gathered(const tsr_unit *unit, int ranks)
{
    if (unit->frozen.gathered_bytes == 0 || unit->home == TSR_HOME_RESIDENT)
        return false;
    return unit->home != TSR_HOME_SHARDED || ranks > 1;
}

bool tsr_unit_trainable_gathered(const tsr_unit *unit, int ranks)
{
    return unit->trainable.gathered_bytes > 0 && ranks > 1 && !unit->keeps_trainable;
}

bool tsr_unit_trainable_kept(const tsr_unit *unit, int ranks)
{
    return unit->trainable.gathered_bytes > 0 && ranks > 1 && unit->keeps_trainable;
}

uint64_t tsr_unit_slot_trainable(const tsr_unit *unit, int ranks)
{
    return tsr_unit_frozen_gathered(unit, ranks) ? unit->frozen.gathered_bytes : 0;
}

uint64_t tsr_unit_slot_bytes(const tsr_unit *unit, int ranks)
{
    return tsr_unit_slot_trainable(unit, ranks) +
           (tsr_unit_trainable_gathered(unit, ranks) ? unit->trainable.gathered_bytes : 0);
}

static bool saves(const uint64_t *saved_bytes, int layer)
{
    return saved_bytes && saved_bytes[layer] > 0;
}

int tsr_saved_region(const uint64_t *saved_bytes, int layer)
{
    int before = 0;
    for (int l = 0; l < layer; l++)
        before += saves(saved_bytes, l);
    return saves(saved_bytes, layer) ? before % TSR_REGIONS : -1;
}

bool tsr_saved_travels(const uint64_t *saved_bytes, int layer_count, int layer)
{
    int after = 0;
    if (layer >= layer_count || !saves(saved_bytes, layer))
        return false;
    for (int l = layer + 1; l < layer_count && after < TSR_REGIONS; l++)
        after += saves(saved_bytes, l);
    return after == TSR_REGIONS;
}

const char *tsr_home_name(tsr_home home)
{
    static const char *const name[TSR_HOME_COUNT] = {[TSR_HOME_SHARDED] = "sharded",
                                                     [TSR_HOME_RESIDENT] = "resident",
                                                     [TSR_HOME_HOST_SHARDED] = "host-sharded",
                                                     [TSR_HOME_HOST_FULL] = "host-full"};
    return (unsigned)home < TSR_HOME_COUNT ? name[home] : "?";
}
