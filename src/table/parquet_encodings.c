#include "table/parquet_encodings.h"

#include <string.h>

/* Values of a block of deltas; writers have 128. The more, the longer a few bytes keep tsr_parquet_delta_end busy. */
#define MOST_BLOCK 65536

static bool varint(uint64_t *value, const uint8_t **at, const uint8_t *end)
{
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* `width` bits, 0 to 64, from bit `bit` of [from, end), lowest first; the caller has checked that they are there. */
static uint64_t unpack(const uint8_t *from, const uint8_t *end, uint64_t bit, int width)
{
    const uint8_t *at = from + bit / 8;
    int shift = (int)(bit % 8);
    uint64_t low = 0, high = 0;
    if (!width)
        return 0;
    size_t bytes = end - at < 8 ? (size_t)(end - at) : 8;
    memcpy(&low, at, bytes);
    low >>= shift;
    if (shift + width > 64)
        high = (uint64_t)at[8] << (64 - shift);
    uint64_t mask = width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;
    return (low | high) & mask;
}

void tsr_parquet_runs_start(tsr_parquet_runs *runs, const uint8_t *at, const uint8_t *end,
                            int width)
{
    *runs = (tsr_parquet_runs){.at = at, .end = end, .width = width};
}

static bool next_run(tsr_parquet_runs *runs)
{
    uint64_t head;
    if (!varint(&head, &runs->at, runs->end))
        return false;
    uint64_t room = (uint64_t)(runs->end - runs->at);
    runs->packed = head & 1;
    runs->left = head >> 1;
    if (!runs->packed) {
        size_t bytes = ((size_t)runs->width + 7) / 8;
        if (room < bytes)
            return false;
        runs->value = 0;
        memcpy(&runs->value, runs->at, bytes);
        runs->at += bytes;
        return bytes == 4 || runs->value >> runs->width == 0;
    }
    if (runs->left > UINT64_MAX / 8)
        return false;
    /* Groups of eight; the padding of the last may be cut off. */
    uint64_t bytes = runs->left * (uint64_t)runs->width;
    if (runs->width && runs->left > room)
        return false;
    runs->left *= 8;
    if (bytes > room) {
        bytes = room;
        runs->left = room * 8 / (uint64_t)runs->width;
    }
    runs->group = runs->at;
    runs->bit = 0;
    runs->at += bytes;
    return true;
}

bool tsr_parquet_runs_next(uint32_t *value, tsr_parquet_runs *runs)
{
    while (!runs->left)
        if (!next_run(runs))
            return false;
    runs->left--;
    *value = runs->value;
    if (runs->packed) {
        *value = (uint32_t)unpack(runs->group, runs->at, runs->bit, runs->width);
        runs->bit += (uint64_t)runs->width;
    }
    return true;
}

bool tsr_parquet_delta_start(tsr_parquet_delta *d, const uint8_t *at, const uint8_t *end,
                             uint64_t most)
{
    uint64_t block, count, first;
    *d = (tsr_parquet_delta){.at = at, .end = end, .first = true};
    if (!varint(&block, &d->at, end) || !varint(&d->miniblocks, &d->at, end) ||
        !varint(&count, &d->at, end) || !varint(&first, &d->at, end))
        return false;
    if (!d->miniblocks || block % d->miniblocks || block > MOST_BLOCK || count > most)
        return false;
    d->per_miniblock = block / d->miniblocks;
    d->left = count;
    d->value = first >> 1 ^ -(first & 1);
    return d->per_miniblock && d->per_miniblock % 8 == 0;
}

static bool next_block(tsr_parquet_delta *d)
{
    uint64_t least;
    if (!varint(&least, &d->at, d->end) || d->miniblocks > (uint64_t)(d->end - d->at))
        return false;
    d->least_delta = least >> 1 ^ -(least & 1);
    d->widths = d->at;
    d->widths_left = d->miniblocks;
    d->at += d->miniblocks;
    return true;
}

static bool next_miniblock(tsr_parquet_delta *d)
{
    if (!d->widths_left && !next_block(d))
        return false;
    d->width = *d->widths++;
    d->widths_left--;
    uint64_t bytes = d->per_miniblock / 8 * (uint64_t)d->width;
    if (d->width > 64 || bytes > (uint64_t)(d->end - d->at))
        return false;
    d->miniblock = d->at;
    d->at += bytes;
    d->in_miniblock = d->per_miniblock;
    d->bit = 0;
    return true;
}

bool tsr_parquet_delta_next(int64_t *value, tsr_parquet_delta *d)
{
    if (!d->left)
        return false;
    d->left--;
    if (!d->first) {
        if (!d->in_miniblock && !next_miniblock(d))
            return false;
        d->value += d->least_delta + unpack(d->miniblock, d->at, d->bit, d->width);
        d->bit += (uint64_t)d->width;
        d->in_miniblock--;
    }
    d->first = false;
    *value = (int64_t)d->value;
    return true;
}

bool tsr_parquet_delta_end(const uint8_t **end, const tsr_parquet_delta *delta)
{
    tsr_parquet_delta d = *delta;
    int64_t value;
    while (d.left)
        if (!tsr_parquet_delta_next(&value, &d))
            return false;
    *end = d.at;
    return true;
}
