#include "base/unicode.h"

#include "base/unicode_tables.h"

#include <stdlib.h>
#include <string.h>

bool tsr_unicode_white_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
           code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool tsr_unicode_python_space(uint32_t code)
{
    return tsr_unicode_white_space(code) || (code >= 0x1c && code <= 0x1f);
}

/* The canonical combining class; 0 for a starter. */
static int combining_class(uint32_t code)
{
    size_t low = 0, high = sizeof combining_ranges / sizeof *combining_ranges;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code < combining_ranges[middle].first)
            high = middle;
        else if (code > combining_ranges[middle].last)
            low = middle + 1;
        else
            return combining_ranges[middle].combining;
    }
    return 0;
}

/* The full canonical decomposition of a table entry, or NULL. */
static const uint32_t *decomposition(uint32_t code, int *count)
{
    size_t low = 0, high = sizeof decompositions / sizeof *decompositions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code < decompositions[middle].code)
            high = middle;
        else if (code > decompositions[middle].code)
            low = middle + 1;
        else {
            *count = decompositions[middle].count;
            return decomposed + decompositions[middle].start;
        }
    }
    return NULL;
}

enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7 };
enum { L_COUNT = 19, V_COUNT = 21, T_COUNT = 28, S_COUNT = L_COUNT * V_COUNT * T_COUNT };

/* The primary composite of two code points, or 0. */
static uint32_t composite(uint32_t first, uint32_t second)
{
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second > T_BASE &&
        second < T_BASE + T_COUNT)
        return first + (second - T_BASE);
    size_t low = 0, high = sizeof composites / sizeof *composites;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (first < composites[middle].first ||
            (first == composites[middle].first && second < composites[middle].second))
            high = middle;
        else if (first > composites[middle].first || second > composites[middle].second)
            low = middle + 1;
        else
            return composites[middle].code;
    }
    return 0;
}

bool tsr_unicode_nfc_quick(const char *text, size_t bytes)
{
    /* Below U+0300 nothing decomposes that would not compose again, and nothing combines. */
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= 0xcc)
            return false;
    return true;
}

typedef struct {
    uint32_t code;
    int combining;
    size_t begin, end; /* in the source */
} mark;

/* Appends the decomposition of one code point of the source; returns the new count. */
static size_t decompose(mark *marks, size_t count, uint32_t code, size_t begin, size_t end)
{
    uint32_t hangul[3], *one = &code;
    int parts = 1;
    const uint32_t *from = decomposition(code, &parts);
    if (code - S_BASE < S_COUNT) {
        uint32_t index = code - S_BASE;
        hangul[0] = L_BASE + index / (V_COUNT * T_COUNT);
        hangul[1] = V_BASE + index % (V_COUNT * T_COUNT) / T_COUNT;
        hangul[2] = T_BASE + index % T_COUNT;
        parts = index % T_COUNT ? 3 : 2;
        from = hangul;
    }
    if (!from)
        from = one;
    for (int i = 0; i < parts; i++) {
        mark next = {from[i], combining_class(from[i]), begin, end};
        size_t at = count++;
        /* Canonical order: stable by class among the marks that follow a starter. */
        while (next.combining && at > 0 && marks[at - 1].combining > next.combining) {
            marks[at] = marks[at - 1];
            at--;
        }
        marks[at] = next;
    }
    return count;
}

static void cover(mark *a, const mark *b)
{
    a->begin = b->begin < a->begin ? b->begin : a->begin;
    a->end = b->end > a->end ? b->end : a->end;
}

static size_t compose(mark *marks, size_t count)
{
    size_t kept = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        mark next = marks[i];
        if (starter != SIZE_MAX) {
            /* Blocked when something of the same or a higher class, or a starter, lies between. */
            bool adjacent = kept == starter + 1;
            bool open = adjacent || (marks[kept - 1].combining != 0 &&
                                     marks[kept - 1].combining < next.combining);
            uint32_t code = open ? composite(marks[starter].code, next.code) : 0;
            if (code) {
                marks[starter].code = code;
                cover(&marks[starter], &next);
                continue;
            }
        }
        if (next.combining == 0)
            starter = kept;
        marks[kept++] = next;
    }
    return kept;
}

tsr_status tsr_unicode_nfc(char **out, size_t *out_bytes, size_t **map, const char *text,
                           size_t bytes)
{
    /* A decomposition has at most 4 code points, and its source at least 2 bytes. */
    mark *marks = malloc((2 * bytes + 1) * sizeof *marks);
    size_t count = 0, written = 0;
    for (size_t i = 0; marks && i < bytes;) {
        uint32_t code = 0;
        size_t length = tsr_utf8_next(&code, text + i, bytes - i);
        length = length ? length : 1;
        count = decompose(marks, count, code, i, i + length);
        i += length;
    }
    if (marks)
        count = compose(marks, count);
    char *result = malloc(4 * count + 1);
    size_t *ranges = malloc((8 * count + 1) * sizeof *ranges);
    if (!marks || !result || !ranges) {
        free(marks);
        free(result);
        free(ranges);
        return tsr_fail(TSR_ENOMEM, "no memory to normalize a text of %zu bytes", bytes);
    }
    for (size_t i = 0; i < count; i++) {
        size_t length = tsr_utf8_put(result + written, marks[i].code);
        for (size_t j = written; j < written + length; j++) {
            ranges[2 * j] = marks[i].begin;
            ranges[2 * j + 1] = marks[i].end;
        }
        written += length;
    }
    result[written] = 0;
    free(marks);
    *out = result;
    *out_bytes = written;
    *map = ranges;
    return TSR_OK;
}
