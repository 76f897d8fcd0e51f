#include "base/unicode.h"
#include "base/auto.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define MOST_PARTS 4 /* code points of a canonical decomposition; its source has at least 2 bytes */
#define FEW_MARKS  32  /* behind a letter: they are sorted by insertion, more in linear time */
#define CLASSES    256 /* combining classes */

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

/* The primary composite of two code points, or 0. */
static uint32_t composite(uint32_t first, uint32_t second)
{
    utf8proc_int32_t pair[] = {(utf8proc_int32_t)first, (utf8proc_int32_t)second};
    utf8proc_option_t options = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
    if (second ==
        0x11a7) /* a vowel: utf8proc 2.8 drops it behind a syllable, as if it were no final */
        return 0;
    return utf8proc_normalize_utf32(pair, 2, options) == 1 ? (uint32_t)pair[0] : 0;
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
    utf8proc_int32_t parts[MOST_PARTS];
    int unused;
    utf8proc_ssize_t part_count = utf8proc_decompose_char(
        (utf8proc_int32_t)code, parts, MOST_PARTS, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &unused);
    for (int i = 0; i < part_count; i++) {
        int combining = utf8proc_get_property(parts[i])->combining_class;
        marks[count++] = (mark){(uint32_t)parts[i], combining, begin, end};
    }
    return count;
}

static void sort_few(mark *marks, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        mark next = marks[i];
        size_t at = i;
        for (; at > 0 && marks[at - 1].combining > next.combining; at--)
            marks[at] = marks[at - 1];
        marks[at] = next;
    }
}

static tsr_status sort_many(mark *marks, size_t count)
{
    size_t next[CLASSES + 1] = {0};
    mark *sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        return tsr_fail(TSR_ENOMEM, "no memory to sort %zu marks of a letter", count);
    for (size_t i = 0; i < count; i++)
        next[marks[i].combining + 1]++;
    for (int class = 0; class < CLASSES; class ++)
        next[class + 1] += next[class];
    for (size_t i = 0; i < count; i++)
        sorted[next[marks[i].combining]++] = marks[i];
    memcpy(marks, sorted, count * sizeof *marks);
    free(sorted);
    return TSR_OK;
}

/* Canonical order: stable by class among the marks that follow a starter. */
static tsr_status sort_marks(mark *marks, size_t count)
{
    for (size_t begin = 0, end; begin < count; begin = end + 1) {
        for (end = begin; end < count && marks[end].combining; end++)
            ;
        if (end - begin <= FEW_MARKS)
            sort_few(marks + begin, end - begin);
        else
            TSR_TRY(sort_many(marks + begin, end - begin));
    }
    return TSR_OK;
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
    TSR_AUTO_FREE mark *marks = malloc((MOST_PARTS / 2 * bytes + 1) * sizeof *marks);
    size_t count = 0, written = 0;
    for (size_t i = 0; marks && i < bytes;) {
        uint32_t code = 0;
        size_t length = tsr_utf8_next(&code, text + i, bytes - i);
        length = length ? length : 1;
        count = decompose(marks, count, code, i, i + length);
        i += length;
    }
    if (marks) {
        TSR_TRY(sort_marks(marks, count));
        count = compose(marks, count);
    }
    char *result = malloc(4 * count + 1);
    size_t *ranges = malloc((8 * count + 1) * sizeof *ranges);
    if (!marks || !result || !ranges) {
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
    *out = result;
    *out_bytes = written;
    *map = ranges;
    return TSR_OK;
}

const char *tsr_unicode_library(void)
{
    return utf8proc_version();
}
