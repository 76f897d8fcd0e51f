/*
 * base/hash.h: a 64-bit hash for agreement between ranks (plans, data, configuration). Not for
 * security.
 */
#ifndef TSR_BASE_HASH_H
#define TSR_BASE_HASH_H

#include "base/philox.h"

#include <stdint.h>
#include <string.h>

#define TSR_HASH_START 0xcbf29ce484222325u

/* Folds `bytes` bytes into a running hash that began as TSR_HASH_START: mixes eight bytes at a
 * time. */
static inline uint64_t tsr_hash(uint64_t hash, const void *data, uint64_t bytes)
{
    const unsigned char *p = data;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = tsr_mix(hash ^ word);
    }
    uint64_t tail = bytes; /* the length separates "a" from "a\0" */
    for (uint64_t i = 0; i < bytes; i++)
        tail = tail << 8 | p[i];
    return tsr_mix(hash ^ tsr_mix(tail));
}

#endif
