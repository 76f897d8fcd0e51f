#include "data/pack.h"

#include "base/checked.h"
#include "base/phase.h"

#include <stdlib.h>
#include <string.h>

#define LEVELS 6 /* 64^6 exceeds any int32 */

/* Open rows stand in lists by the room they have left; a tree of bits, 64 to a word, finds the
 * smallest room that is large enough. */
struct tsr_pack {
    int64_t sample_count;
    int32_t max_length;
    int levels;
    uint64_t *bits[LEVELS]; /* bits[0]: one bit for each room; bits[l + 1]: one for each word */
    uint64_t words[LEVELS];
    int32_t *head;   /* [max_length + 1] the last row put into the list of a room, -1: none */
    int32_t *next;   /* [sample_count] the one before it */
    int32_t *first;  /* [max_length + 2] counting sort */
    int32_t *sorted; /* [sample_count] the longest first */
};

static uint64_t bit_words(int32_t max_length, int level)
{
    uint64_t count = (uint64_t)max_length + 1;
    for (int l = 0; l <= level; l++)
        count = tsr_ceil_div(count, 64);
    return count;
}

static uint64_t pack_bytes(int64_t sample_count, int32_t max_length)
{
    uint64_t words = 0;
    for (int level = 0; level < LEVELS; level++) {
        words += bit_words(max_length, level);
        if (bit_words(max_length, level) == 1)
            break;
    }
    return sizeof(tsr_pack) + 8 * words +
           4 * (2 * (uint64_t)sample_count + 2 * (uint64_t)max_length + 3);
}

tsr_status tsr_pack_create(tsr_pack **out, int64_t sample_count, int32_t max_length)
{
    if (sample_count < 0 || sample_count > INT32_MAX || max_length < 1)
        return tsr_fail(TSR_EINVAL, "pack: %lld samples, rows of %d", (long long)sample_count,
                        max_length);
    tsr_pack *pack = calloc(1, pack_bytes(sample_count, max_length));
    if (!pack)
        return tsr_fail(TSR_ENOMEM, "pack: no memory for %lld samples, rows of %d",
                        (long long)sample_count, max_length);
    pack->sample_count = sample_count;
    pack->max_length = max_length;
    uint64_t *words = (uint64_t *)(pack + 1);
    do {
        pack->bits[pack->levels] = words;
        pack->words[pack->levels] = bit_words(max_length, pack->levels);
        words += pack->words[pack->levels];
    } while (pack->words[pack->levels++] > 1);
    pack->head = (int32_t *)words;
    pack->first = pack->head + max_length + 1;
    pack->next = pack->first + max_length + 2;
    pack->sorted = pack->next + sample_count;
    *out = pack;
    return TSR_OK;
}

void tsr_pack_destroy(tsr_pack *pack)
{
    free(pack);
}

static void set_bit(tsr_pack *pack, uint64_t at)
{
    for (int level = 0; level < pack->levels; level++, at >>= 6)
        pack->bits[level][at >> 6] |= 1ull << (at & 63);
}

static void clear_bit(tsr_pack *pack, uint64_t at)
{
    for (int level = 0; level < pack->levels; level++, at >>= 6) {
        uint64_t *word = &pack->bits[level][at >> 6];
        *word &= ~(1ull << (at & 63));
        if (*word)
            return;
    }
}

/* The smallest set bit >= at, -1 if there is none. */
static int64_t next_bit(const tsr_pack *pack, uint64_t at)
{
    for (int level = 0; level < pack->levels; level++) {
        if (at >> 6 >= pack->words[level])
            return -1;
        uint64_t word = pack->bits[level][at >> 6] & ~0ull << (at & 63);
        if (!word) {
            at = (at >> 6) + 1;
            continue;
        }
        at = (at & ~63ull) | (uint64_t)__builtin_ctzll(word);
        while (level-- > 0)
            at = at << 6 | (uint64_t)__builtin_ctzll(pack->bits[level][at]);
        return (int64_t)at;
    }
    return -1;
}

/* Longest first; equally long ones in the given order. */
static void sort_by_length(tsr_pack *pack, const int32_t *lengths, const int32_t *order)
{
    int32_t most = pack->max_length, at = 0;
    memset(pack->first, 0, ((size_t)most + 2) * sizeof *pack->first);
    for (int64_t i = 0; i < pack->sample_count; i++)
        pack->first[lengths[i]]++;
    for (int32_t length = most; length > 0; length--) {
        int32_t count = pack->first[length];
        pack->first[length] = at;
        at += count;
    }
    for (int64_t i = 0; i < pack->sample_count; i++)
        pack->sorted[pack->first[lengths[order[i]]]++] = order[i];
}

int64_t tsr_pack_run(int32_t *row_of, tsr_pack *pack, const int32_t *lengths, const int32_t *order)
{
    sort_by_length(pack, lengths, order);
    for (int level = 0; level < pack->levels; level++)
        memset(pack->bits[level], 0, pack->words[level] * sizeof(uint64_t));
    memset(pack->head, 0xff, ((size_t)pack->max_length + 1) * sizeof *pack->head);
    int32_t rows = 0;
    for (int64_t i = 0; i < pack->sample_count; i++) {
        tsr_phase_at("packing", (double)i + 1, (double)pack->sample_count);
        int32_t sample = pack->sorted[i], row;
        int64_t room = next_bit(pack, (uint64_t)lengths[sample]);
        if (room < 0) {
            row = rows++;
            room = pack->max_length;
        } else {
            row = pack->head[room];
            pack->head[room] = pack->next[row];
            if (pack->head[room] < 0)
                clear_bit(pack, (uint64_t)room);
        }
        row_of[sample] = row;
        room -= lengths[sample];
        if (room > 0) {
            pack->next[row] = pack->head[room];
            pack->head[room] = row;
            set_bit(pack, (uint64_t)room);
        }
    }
    return rows;
}
