#include "tokenizer/map.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static tsr_map_slot *find(const tsr_map *map, const char *key, size_t length, uint64_t hash)
{
    size_t mask = map->capacity - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        tsr_map_slot *slot = &map->slots[i];
        if (slot->value < 0 || (slot->hash == hash && slot->length == length &&
                                (length == 0 || !memcmp(map->bytes + slot->key, key, length))))
            return slot;
    }
}

int32_t tsr_map_get(const tsr_map *map, const char *key, size_t length)
{
    if (!map->count)
        return -1;
    return find(map, key, length, tsr_hash(TSR_HASH_START, key, length))->value;
}

static tsr_status grow(tsr_map *map)
{
    tsr_map bigger = *map;
    bigger.capacity = map->capacity ? 2 * map->capacity : 1024;
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    if (!bigger.slots)
        return tsr_fail(TSR_ENOMEM, "no memory for a table of %zu words", bigger.capacity);
    for (size_t i = 0; i < bigger.capacity; i++)
        bigger.slots[i].value = -1;
    for (size_t i = 0; i < map->capacity; i++) {
        const tsr_map_slot *slot = &map->slots[i];
        if (slot->value >= 0)
            *find(&bigger, map->bytes + slot->key, slot->length, slot->hash) = *slot;
    }
    free(map->slots);
    *map = bigger;
    return TSR_OK;
}

tsr_status tsr_map_set(tsr_map *map, const char *key, size_t length, int32_t value)
{
    if (2 * map->count >= map->capacity)
        TSR_TRY(grow(map));
    if (length > map->byte_capacity - map->byte_count) {
        size_t capacity = 2 * map->byte_capacity + length + 4096;
        char *bytes = realloc(map->bytes, capacity);
        if (!bytes)
            return tsr_fail(TSR_ENOMEM, "no memory for a table of words (%zu bytes)", capacity);
        map->bytes = bytes;
        map->byte_capacity = capacity;
    }
    uint64_t hash = tsr_hash(TSR_HASH_START, key, length);
    tsr_map_slot *slot = find(map, key, length, hash);
    if (slot->value < 0) {
        *slot = (tsr_map_slot){hash, map->byte_count, (uint32_t)length, value};
        if (length)
            memcpy(map->bytes + map->byte_count, key, length);
        map->byte_count += length;
        map->count++;
    }
    slot->value = value;
    return TSR_OK;
}

void tsr_map_free(tsr_map *map)
{
    free(map->slots);
    free(map->bytes);
    *map = (tsr_map){0};
}
