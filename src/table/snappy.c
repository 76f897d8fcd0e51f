#include "table/snappy.h"

#include <string.h>

/* The length at the front: seven bits a byte, lowest first. */
static bool read_length(uint64_t *length, const uint8_t **at, const uint8_t *end)
{
    *length = 0;
    for (int shift = 0; shift <= 28; shift += 7) {
        if (*at == end)
            return false;
        uint8_t byte = *(*at)++;
        *length |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* `count` bytes, lowest first, of which there are enough. */
static size_t little_endian(const uint8_t *at, size_t count)
{
    size_t value = 0;
    for (size_t i = 0; i < count; i++)
        value |= (size_t)at[i] << (8 * i);
    return value;
}

/* Bytes that follow a tag: the length of a long literal, the offset of a copy. */
static size_t more_bytes(uint8_t tag)
{
    static const size_t of_copy[] = {0, 1, 2, 4};
    if (tag & 3)
        return of_copy[tag & 3];
    return tag >> 2 < 60 ? 0 : (size_t)(tag >> 2) - 59;
}

/* The output may overlap what is copied: then it repeats. */
static void copy(uint8_t *to, size_t offset, size_t length)
{
    const uint8_t *from = to - offset;
    if (offset >= length)
        memcpy(to, from, length);
    else
        for (size_t i = 0; i < length; i++)
            to[i] = from[i];
}

bool tsr_snappy_unpack(uint8_t *out, size_t bytes, const uint8_t *packed, size_t packed_bytes)
{
    const uint8_t *at = packed, *end = packed + packed_bytes;
    uint64_t length_said;
    size_t done = 0;
    if (!read_length(&length_said, &at, end) || length_said != bytes)
        return false;
    while (at < end) {
        uint8_t tag = *at++;
        size_t more = more_bytes(tag), length = (tag >> 2) + 1u;
        if ((size_t)(end - at) < more)
            return false;
        size_t value = little_endian(at, more);
        at += more;
        if ((tag & 3) == 0) {
            if (more)
                length = value + 1;
            if (length > (size_t)(end - at) || length > bytes - done)
                return false;
            memcpy(out + done, at, length);
            at += length;
        } else {
            if ((tag & 3) == 1) { /* three bits of the offset, and of the length, are in the tag */
                value |= (size_t)(tag >> 5) << 8;
                length = ((tag >> 2) & 7u) + 4;
            }
            if (value == 0 || value > done || length > bytes - done)
                return false;
            copy(out + done, value, length);
        }
        done += length;
    }
    return done == bytes;
}
