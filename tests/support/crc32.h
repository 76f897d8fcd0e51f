/*
 * tests/support/crc32.h: zlib's CRC-32, in which golden files name bytes that they do not hold.
 */
#ifndef TSR_TESTS_SUPPORT_CRC32_H
#define TSR_TESTS_SUPPORT_CRC32_H

#include <stdint.h>

static inline uint32_t crc32_of(const void *data, uint64_t bytes)
{
    static uint32_t table[256];
    for (uint32_t i = 0; i < 256 && !table[255]; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] >> 1 ^ (0xedb88320u & -(table[i] & 1));
    }
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;
    for (uint64_t i = 0; i < bytes; i++)
        crc = crc >> 8 ^ table[(crc ^ p[i]) & 255];
    return ~crc;
}

#endif
