/*
 * tokenizer/map.h: byte strings to numbers, by open addressing. Keys are copied.
 */
#ifndef TSR_TOKENIZER_MAP_H
#define TSR_TOKENIZER_MAP_H

#include "base/status.h"

#include <stdint.h>

typedef struct {
    uint64_t hash;
    size_t key; /* in `bytes` */
    uint32_t length;
    int32_t value; /* -1: empty */
} tsr_map_slot;

/* Zero-initialise. */
typedef struct {
    tsr_map_slot *slots;
    size_t capacity, count;
    char *bytes;
    size_t byte_count, byte_capacity;
} tsr_map;

/* The value of a key, or -1. */
int32_t tsr_map_get(const tsr_map *map, const char *key, size_t length);
/* Sets a key's value, which is not negative. TSR_ENOMEM. */
tsr_status tsr_map_set(tsr_map *map, const char *key, size_t length, int32_t value);
void tsr_map_free(tsr_map *map);

#endif
