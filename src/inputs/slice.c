#include "inputs/slice.h"

#include "table/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A bound and its unit; *text moves behind it. False: it is no number. */
static bool read_bound(int64_t *out, bool *given, bool *percent, const char **text)
{
    char *end;
    long long value = strtoll(*text, &end, 10);
    *given = end > *text;
    *percent = *given && *end == '%';
    *out = value;
    *text = end + *percent;
    return !*given || (value > -(1LL << 53) && value < 1LL << 53);
}

static bool parse(tsr_slice *out, const char *text)
{
    size_t length = strcspn(text, "[");
    bool first, second;
    *out = (tsr_slice){.sliced = text[length] == '['};
    if (!length || length >= sizeof out->name || strchr(text, '+'))
        return false;
    memcpy(out->name, text, length);
    if (!out->sliced)
        return true;
    text += length + 1;
    if (!read_bound(&out->from, &out->has_from, &first, &text) || *text++ != ':' ||
        !read_bound(&out->to, &out->has_to, &second, &text) || strcmp(text, "]") != 0)
        return false;
    out->percent = first || second;
    bool mixed = out->has_from && out->has_to && first != second;
    bool beyond = out->percent && (llabs(out->from) > 100 || llabs(out->to) > 100);
    return !mixed && !beyond;
}

tsr_status tsr_slice_parse(tsr_slice *out, const char *text, const char *where, const char *key)
{
    if (parse(out, text))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: %s: found split '%s'; expected a name, or a part of one such as "
                    "train[:10%%], train[100:200] or train[-50:]",
                    where, key, text);
}

static tsr_status count_rows(int64_t *out, const tsr_dataset_options *options)
{
    *out = 0;
    for (int i = 0; i < options->file_count; i++) {
        tsr_table *table = NULL;
        json_t *row = NULL;
        tsr_status status = tsr_table_open(&table, options->files[i], options->key);
        int64_t known = status < 0 ? -1 : tsr_table_rows(table);
        *out += known > 0 ? known : 0;
        while (status >= 0 && known < 0) {
            status = tsr_table_next(&row, table);
            if (status < 0 || !row)
                break;
            json_decref(row);
            ++*out;
        }
        tsr_table_close(table);
        TSR_TRY(status);
    }
    return TSR_OK;
}

static int64_t bound(int64_t value, const tsr_slice *slice, int64_t rows)
{
    if (slice->percent)
        value = llrint((double)value * (double)rows / 100); /* halves to even */
    if (value < 0)
        value = value + rows > 0 ? value + rows : 0;
    return rows >= 0 && value > rows ? rows : value;
}

tsr_status tsr_slice_apply(tsr_dataset_options *options, const tsr_slice *slice, const char *where)
{
    bool counts = slice->percent || slice->from < 0 || slice->to < 0;
    int64_t rows = INT64_MAX;
    if (!slice->sliced)
        return TSR_OK;
    if (counts && options->rows.next)
        return tsr_fail(TSR_ECONFIG,
                        "%s: %s: split: rows of a callback cannot be counted; name the rows "
                        "from the beginning: %s[:100]",
                        where, options->key, slice->name);
    if (counts)
        TSR_TRY(count_rows(&rows, options));
    int64_t from = slice->has_from ? bound(slice->from, slice, rows) : 0;
    int64_t to = slice->has_to ? bound(slice->to, slice, rows) : rows;
    if (to <= from)
        return tsr_fail(TSR_ECONFIG, "%s: %s: split: its part of '%s' has no row%s", where,
                        options->key, slice->name, counts ? "; take a larger one" : "");
    options->skip_rows = from;
    if (to < INT64_MAX && (!options->max_rows || to - from < options->max_rows))
        options->max_rows = to - from;
    return TSR_OK;
}
