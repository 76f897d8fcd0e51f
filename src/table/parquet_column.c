#include "table/parquet_column.h"

#include <stdlib.h>
#include <string.h>

static const tsr_parquet_node *leaf_of(const tsr_parquet_column *c, const tsr_parquet_shared *file)
{
    return &file->schema.nodes[c->node];
}

static tsr_status damaged(const tsr_parquet_column *c, const tsr_parquet_shared *file,
                          const char *what)
{
    return tsr_parquet_bad(file, c->node, "the page's %s are damaged or end too early", what);
}

void tsr_parquet_column_start(tsr_parquet_column *c, const tsr_parquet_chunk *chunk)
{
    c->chunk = *chunk;
    c->chunk_left = chunk->values;
    c->page_left = 0;
    c->ready = c->has_dictionary = false;
}

void tsr_parquet_column_free(tsr_parquet_column *c, tsr_parquet_shared *file)
{
    tsr_parquet_release(&c->page, file);
    tsr_parquet_release(&c->dictionary, file);
    tsr_parquet_release(&c->text, file);
}

static uint32_t little_endian(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Bytes of a PLAIN value, 0 where they vary or are less than one. */
static size_t width_of(const tsr_parquet_node *leaf)
{
    static const size_t widths[] = {0, 4, 8, 12, 4, 8, 0, 0};
    return leaf->type == TSR_PARQUET_FIXED ? leaf->fixed_bytes : widths[leaf->type];
}

static int bits_of(int most)
{
    int bits = 0;
    while (most >> bits)
        bits++;
    return bits;
}

/* ---- a page begins ---- */

/* Finds where each value of a BYTE_ARRAY dictionary ends, and puts that behind the bytes. */
static tsr_status index_dictionary(tsr_parquet_column *c, tsr_parquet_shared *file)
{
    size_t bytes = c->dictionary.bytes, at = 0, ends = (bytes + 3) / 4 * 4;
    TSR_TRY(
        tsr_parquet_reserve(&c->dictionary, ends + 4 * (size_t)c->dictionary_count, file, c->node));
    uint8_t *data = c->dictionary.data;
    for (uint32_t i = 0; i < c->dictionary_count; i++) {
        uint32_t length = bytes - at < 4 ? UINT32_MAX : little_endian(data + at);
        if (bytes - at < 4 || length > bytes - at - 4)
            return damaged(c, file, "dictionary values");
        at += 4 + length;
        uint32_t end = (uint32_t)at;
        memcpy(data + ends + 4 * (size_t)i, &end, 4);
    }
    c->dictionary_ends = data + ends;
    return TSR_OK;
}

static tsr_status start_dictionary(tsr_parquet_column *c, const tsr_parquet_page *page,
                                   tsr_parquet_shared *file)
{
    const tsr_parquet_node *leaf = leaf_of(c, file);
    size_t width = width_of(leaf);
    if (c->has_dictionary)
        return tsr_parquet_bad(file, c->node, "it has two dictionaries");
    if (page->encoding != TSR_PARQUET_ENCODING_PLAIN &&
        page->encoding != TSR_PARQUET_ENCODING_PLAIN_DICTIONARY)
        return tsr_parquet_bad(file, c->node, "its dictionary has the encoding %lld, not PLAIN",
                               (long long)page->encoding);
    if (leaf->type == TSR_PARQUET_BOOLEAN)
        return tsr_parquet_bad(file, c->node, "it is of booleans, but has a dictionary");
    if ((uint64_t)page->values > c->dictionary.bytes / (width ? width : 4))
        return damaged(c, file, "dictionary values");
    c->has_dictionary = true;
    c->dictionary_count = (uint32_t)page->values;
    return width ? TSR_OK : index_dictionary(c, file);
}

/* The levels of version 1: a length, then runs. */
static bool start_levels(tsr_parquet_runs *levels, const uint8_t **at, const uint8_t *end, int most)
{
    if (!most)
        return true;
    if (end - *at < 4)
        return false;
    uint32_t bytes = little_endian(*at);
    *at += 4;
    if (bytes > (size_t)(end - *at))
        return false;
    tsr_parquet_runs_start(levels, *at, *at + bytes, bits_of(most));
    *at += bytes;
    return true;
}

static bool is_bytes(const tsr_parquet_node *leaf)
{
    return leaf->type == TSR_PARQUET_BYTE_ARRAY;
}

/* The lengths of DELTA_LENGTH_BYTE_ARRAY; the bytes follow them. */
static bool start_delta_lengths(tsr_parquet_column *c)
{
    return tsr_parquet_delta_start(&c->lengths, c->at, c->end, (uint64_t)c->page_left) &&
           tsr_parquet_delta_end(&c->at, &c->lengths);
}

static bool start_delta_bytes(tsr_parquet_column *c)
{
    c->text.bytes = 0;
    return tsr_parquet_delta_start(&c->prefixes, c->at, c->end, (uint64_t)c->page_left) &&
           tsr_parquet_delta_end(&c->at, &c->prefixes) && start_delta_lengths(c);
}

/* Booleans as runs have a length before them, in pages of both versions. */
static bool start_boolean_runs(tsr_parquet_column *c)
{
    tsr_parquet_runs_start(&c->runs, c->at, c->at, 1);
    return c->at == c->end || start_levels(&c->runs, &c->at, c->end, 1);
}

static bool start_indices(tsr_parquet_column *c)
{
    if (c->at == c->end) /* a page of nulls */
        tsr_parquet_runs_start(&c->runs, c->at, c->end, 1);
    else if (*c->at > 32)
        return false;
    else
        tsr_parquet_runs_start(&c->runs, c->at + 1, c->end, *c->at);
    return true;
}

/* Whether the encoding is one that values of the type have, and its start is whole. */
static bool start_values(bool *known, tsr_parquet_column *c, const tsr_parquet_node *leaf)
{
    tsr_parquet_type type = leaf->type;
    bool whole = type == TSR_PARQUET_INT32 || type == TSR_PARQUET_INT64;
    *known = true;
    c->taken = 0;
    switch (c->encoding) {
    case TSR_PARQUET_ENCODING_PLAIN:
        return true;
    case TSR_PARQUET_ENCODING_PLAIN_DICTIONARY:
    case TSR_PARQUET_ENCODING_RLE_DICTIONARY:
        return start_indices(c);
    case TSR_PARQUET_ENCODING_RLE:
        *known = type == TSR_PARQUET_BOOLEAN;
        return *known && start_boolean_runs(c);
    case TSR_PARQUET_ENCODING_DELTA_BINARY_PACKED:
        *known = whole;
        return *known && (c->at == c->end || tsr_parquet_delta_start(&c->lengths, c->at, c->end,
                                                                     (uint64_t)c->page_left));
    case TSR_PARQUET_ENCODING_DELTA_LENGTH:
        *known = is_bytes(leaf);
        return *known && (c->at == c->end || start_delta_lengths(c));
    case TSR_PARQUET_ENCODING_DELTA_BYTES:
        *known = is_bytes(leaf) || type == TSR_PARQUET_FIXED;
        return *known && (c->at == c->end || start_delta_bytes(c));
    case TSR_PARQUET_ENCODING_BYTE_STREAM_SPLIT:
        *known = width_of(leaf) > 0 && type != TSR_PARQUET_INT96;
        return *known && (size_t)(c->end - c->at) % width_of(leaf) == 0;
    default:
        *known = false;
        return false;
    }
}

static tsr_status start_page(tsr_parquet_column *c, const tsr_parquet_page *page,
                             tsr_parquet_shared *file)
{
    const tsr_parquet_node *leaf = leaf_of(c, file);
    bool known;
    if (page->values > c->chunk_left)
        return tsr_parquet_bad(file, c->node, "its pages hold more values than its row group says");
    c->page_left = page->values;
    c->encoding = page->encoding;
    c->at = page->data->data;
    c->end = c->at + page->data->bytes;
    if (page->version_2) {
        tsr_parquet_runs_start(&c->rep_levels, c->at, c->at + page->rep_bytes,
                               bits_of(leaf->most_rep));
        c->at += page->rep_bytes;
        tsr_parquet_runs_start(&c->def_levels, c->at, c->at + page->def_bytes,
                               bits_of(leaf->most_def));
        c->at += page->def_bytes;
    } else if (!start_levels(&c->rep_levels, &c->at, c->end, leaf->most_rep) ||
               !start_levels(&c->def_levels, &c->at, c->end, leaf->most_def)) {
        return damaged(c, file, "levels");
    }
    c->lengths = c->prefixes = (tsr_parquet_delta){0};
    if (start_values(&known, c, leaf))
        return TSR_OK;
    return known ? damaged(c, file, "values")
                 : tsr_parquet_bad(file, c->node,
                                   "its values have the encoding %lld, which is not read for their "
                                   "type",
                                   (long long)c->encoding);
}

static tsr_status next_page(tsr_parquet_column *c, tsr_parquet_shared *file)
{
    tsr_parquet_page page;
    do {
        TSR_TRY(tsr_parquet_page_read(&page, &c->page, &c->dictionary, &c->chunk, file, c->node));
        TSR_TRY(page.is_dictionary ? start_dictionary(c, &page, file) : start_page(c, &page, file));
    } while (!c->page_left);
    return TSR_OK;
}

/* ---- a value ---- */

static bool read_level(int *level, tsr_parquet_runs *levels, int most)
{
    uint32_t value = 0;
    if (most && (!tsr_parquet_runs_next(&value, levels) || value > (uint32_t)most))
        return false;
    *level = (int)value;
    return true;
}

tsr_status tsr_parquet_column_peek(tsr_parquet_column *c, tsr_parquet_shared *file)
{
    const tsr_parquet_node *leaf = leaf_of(c, file);
    if (c->ready)
        return TSR_OK;
    if (!c->chunk_left) {
        c->rep = -1;
        c->def = 0;
        return TSR_OK;
    }
    if (!c->page_left)
        TSR_TRY(next_page(c, file));
    if (!read_level(&c->rep, &c->rep_levels, leaf->most_rep) ||
        !read_level(&c->def, &c->def_levels, leaf->most_def))
        return damaged(c, file, "levels");
    c->ready = true;
    return TSR_OK;
}

/* A value that stands at `from` as PLAIN has it; of a fixed width. */
static void load(tsr_parquet_value *value, const uint8_t *from, const tsr_parquet_node *leaf)
{
    int32_t four;
    value->data = from;
    value->bytes = width_of(leaf);
    if (leaf->type == TSR_PARQUET_INT32 || leaf->type == TSR_PARQUET_FLOAT) {
        memcpy(&four, from, sizeof four);
        value->bits = four;
    } else if (leaf->type == TSR_PARQUET_INT64 || leaf->type == TSR_PARQUET_DOUBLE) {
        memcpy(&value->bits, from, sizeof value->bits);
    }
}

static bool take_plain(tsr_parquet_value *value, tsr_parquet_column *c,
                       const tsr_parquet_node *leaf)
{
    size_t left = (size_t)(c->end - c->at), width = width_of(leaf);
    if (leaf->type == TSR_PARQUET_BOOLEAN) {
        if (c->taken / 8 >= left)
            return false;
        value->bits = c->at[c->taken / 8] >> c->taken % 8 & 1;
        c->taken++;
        return true;
    }
    if (!width) {
        if (left < 4)
            return false;
        value->bytes = little_endian(c->at);
        value->data = c->at + 4;
        if (value->bytes > left - 4)
            return false;
        c->at += 4 + value->bytes;
        return true;
    }
    if (left < width)
        return false;
    load(value, c->at, leaf);
    c->at += width;
    return true;
}

static bool take_indexed(tsr_parquet_value *value, tsr_parquet_column *c,
                         const tsr_parquet_node *leaf)
{
    uint32_t index;
    if (!c->has_dictionary || !tsr_parquet_runs_next(&index, &c->runs) ||
        index >= c->dictionary_count)
        return false;
    if (width_of(leaf)) {
        load(value, c->dictionary.data + (size_t)index * width_of(leaf), leaf);
        return true;
    }
    const uint8_t *ends = c->dictionary_ends + 4 * (size_t)index;
    uint32_t begin = index ? little_endian(ends - 4) : 0;
    value->data = c->dictionary.data + begin + 4;
    value->bytes = little_endian(ends) - begin - 4;
    return true;
}

static bool take_runs(tsr_parquet_value *value, tsr_parquet_column *c)
{
    uint32_t bit;
    if (!tsr_parquet_runs_next(&bit, &c->runs))
        return false;
    value->bits = bit;
    return true;
}

static bool take_delta(tsr_parquet_value *value, tsr_parquet_column *c,
                       const tsr_parquet_node *leaf)
{
    if (!tsr_parquet_delta_next(&value->bits, &c->lengths))
        return false;
    if (leaf->type == TSR_PARQUET_INT32)
        value->bits = (int32_t)(uint32_t)value->bits;
    return true;
}

static bool take_delta_length(tsr_parquet_value *value, tsr_parquet_column *c)
{
    int64_t length;
    if (!tsr_parquet_delta_next(&length, &c->lengths) || length < 0 || length > c->end - c->at)
        return false;
    value->data = c->at;
    value->bytes = (size_t)length;
    c->at += length;
    return true;
}

/* The beginning of the last value, and more. All that is appended stands in the page, so no value is longer than it. */
static tsr_status take_delta_bytes(bool *good, tsr_parquet_value *value, tsr_parquet_column *c,
                                   const tsr_parquet_node *leaf, tsr_parquet_shared *file)
{
    int64_t prefix;
    *good = tsr_parquet_delta_next(&prefix, &c->prefixes) && prefix >= 0 &&
            prefix <= (int64_t)c->text.bytes && take_delta_length(value, c);
    if (!*good)
        return TSR_OK;
    TSR_TRY(tsr_parquet_reserve(&c->text, c->page.bytes + 1, file, c->node));
    memcpy(c->text.data + prefix, value->data, value->bytes);
    c->text.bytes = (size_t)prefix + value->bytes;
    value->data = c->text.data;
    value->bytes = c->text.bytes;
    *good = leaf->type != TSR_PARQUET_FIXED || value->bytes == leaf->fixed_bytes;
    return TSR_OK;
}

static tsr_status take_split(bool *good, tsr_parquet_value *value, tsr_parquet_column *c,
                             const tsr_parquet_node *leaf, tsr_parquet_shared *file)
{
    size_t width = width_of(leaf), count = (size_t)(c->end - c->at) / width;
    *good = c->taken < count;
    if (!*good)
        return TSR_OK;
    TSR_TRY(tsr_parquet_reserve(&c->text, width, file, c->node));
    for (size_t i = 0; i < width; i++)
        c->text.data[i] = c->at[i * count + c->taken];
    c->taken++;
    load(value, c->text.data, leaf);
    return TSR_OK;
}

static tsr_status take_value(tsr_parquet_value *value, tsr_parquet_column *c,
                             tsr_parquet_shared *file)
{
    const tsr_parquet_node *leaf = leaf_of(c, file);
    bool good = false;
    switch (c->encoding) {
    case TSR_PARQUET_ENCODING_PLAIN:
        good = take_plain(value, c, leaf);
        break;
    case TSR_PARQUET_ENCODING_PLAIN_DICTIONARY:
    case TSR_PARQUET_ENCODING_RLE_DICTIONARY:
        good = take_indexed(value, c, leaf);
        break;
    case TSR_PARQUET_ENCODING_RLE:
        good = take_runs(value, c);
        break;
    case TSR_PARQUET_ENCODING_DELTA_BINARY_PACKED:
        good = take_delta(value, c, leaf);
        break;
    case TSR_PARQUET_ENCODING_DELTA_LENGTH:
        good = take_delta_length(value, c);
        break;
    case TSR_PARQUET_ENCODING_DELTA_BYTES:
        TSR_TRY(take_delta_bytes(&good, value, c, leaf, file));
        break;
    default:
        TSR_TRY(take_split(&good, value, c, leaf, file));
    }
    return good ? TSR_OK : damaged(c, file, "values");
}

tsr_status tsr_parquet_column_take(tsr_parquet_value *value, tsr_parquet_column *c,
                                   tsr_parquet_shared *file)
{
    c->ready = false;
    c->page_left--;
    c->chunk_left--;
    return c->def == leaf_of(c, file)->most_def ? take_value(value, c, file) : TSR_OK;
}
