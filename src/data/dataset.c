#include "data/dataset.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/phase.h"
#include "data/dataset_parts.h"
#include "data/rows.h"
#include "table/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file being read row by row, or its rows asked for, and what went wrong so far. */
typedef struct {
    tsr_table *table; /* NULL between files, and where rows are asked for */
    tsr_row_source rows;
    const tsr_columns *columns;
    int64_t skip; /* rows that are still to be passed over */
    bool skipped; /* some rows of this file were */
    const char *path;
    int64_t number;         /* of the row: its line, where it has one */
    char place[4200];       /* for messages */
    double done, total;     /* bytes, of all files; done: before this one */
    int64_t bad_rows;       /* likewise */
    double late;            /* when further bad rows are not looked for any more */
    bool gave_up;           /* it was so late */
    size_t longest;         /* tokens of a row beyond max_length */
    tsr_error *first_error; /* of the first bad row */
    tsr_text others;        /* the places of the next few */
} reader;

static const struct {
    tsr_data_format format;
    const char *name;
} formats[] = {
    {TSR_DATA_AUTO, "auto"},
    {TSR_DATA_MESSAGES, "messages"},
    {TSR_DATA_PRETOKENIZED, "pretokenized"},
    {TSR_DATA_SHAREGPT, "sharegpt"},
    {TSR_DATA_ALPACA, "alpaca"},
    {TSR_DATA_PROMPT_COMPLETION, "prompt_completion"},
    {TSR_DATA_TEXT, "text"},
};

const char *tsr_data_format_name(tsr_data_format format)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format)
            return formats[i].name;
    return "unknown";
}

static const char *key_of(const tsr_dataset_options *options)
{
    return options->key ? options->key : "dataset";
}

static tsr_status open_file(reader *r, const char *path, const char *key)
{
    r->path = path;
    r->number = 0;
    return r->rows.next ? TSR_OK : tsr_table_open(&r->table, path, key);
}

static void close_file(reader *r)
{
    if (r->table)
        r->done += tsr_table_done(r->table);
    tsr_table_close(r->table);
    r->table = NULL;
}

static bool is_blank(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n'))
        i++;
    return i == bytes;
}

/* The next row that is not blank. */
static tsr_status ask_for_row(json_t **row, reader *r)
{
    const char *text;
    size_t bytes;
    do {
        text = NULL;
        bytes = 0;
        int failed = r->rows.next(r->rows.user, r->path, r->number++, &text, &bytes);
        snprintf(r->place, sizeof r->place, "%s:%lld", r->path, (long long)r->number);
        if (failed)
            return tsr_fail(TSR_EIO, "%s: the row callback failed (%d)", r->place, failed);
        if (text && bytes > TSR_TABLE_ROW_BYTES)
            return tsr_fail(TSR_EDATA, "%s: the row is longer than %d MiB, the most that is read",
                            r->place, TSR_TABLE_ROW_MIB);
    } while (text && is_blank(text, bytes));
    return text ? tsr_table_parse(row, text, bytes, r->place, true) : TSR_OK;
}

/* The next row, the caller's; NULL at the end. After TSR_EDATA the one behind it can be asked for. */
static tsr_status find_row(json_t **row, reader *r)
{
    *row = NULL;
    if (r->rows.next)
        return ask_for_row(row, r);
    tsr_status status = tsr_table_next(row, r->table);
    r->number = tsr_table_number(r->table);
    snprintf(r->place, sizeof r->place, "%s", tsr_table_place(r->table));
    return status;
}

/* The same of those that are not passed over, with its columns as the format calls them. */
static tsr_status next_row(json_t **row, reader *r)
{
    TSR_TRY(find_row(row, r));
    for (; r->skip && *row; r->skip--) {
        json_decref(*row);
        TSR_TRY(find_row(row, r));
    }
    return *row && r->columns ? tsr_columns_map(row, r->columns, r->place) : TSR_OK;
}

/* Makes room for `more` entries behind `count`. */
static tsr_status reserve(void *array, uint64_t *capacity, uint64_t count, uint64_t more,
                          uint64_t entry_bytes)
{
    uint64_t need, bytes;
    if (!tsr_add_u64(&need, count, more) || !tsr_mul_u64(&bytes, need, 2 * entry_bytes))
        return tsr_fail(TSR_ENOMEM, "the data is too large for this machine");
    if (need <= *capacity)
        return TSR_OK;
    void **at = array, *bigger = realloc(*at, bytes);
    if (!bigger)
        return tsr_fail(TSR_ENOMEM, "no memory for the data: %llu bytes",
                        (unsigned long long)bytes);
    *at = bigger;
    *capacity = 2 * need;
    return TSR_OK;
}

static tsr_status reserve_tokens(tsr_dataset *data, uint64_t more)
{
    uint64_t capacity = data->token_capacity;
    TSR_TRY(reserve(&data->ids, &capacity, data->token_count, more, sizeof *data->ids));
    return reserve(&data->labels, &data->token_capacity, data->token_count, more,
                   sizeof *data->labels);
}

static void note_findings(tsr_dataset *data, unsigned findings, int file, int64_t line)
{
    for (int i = 0; i < TSR_FINDING_COUNT; i++) {
        tsr_found *found = &data->stats.found[i];
        if (!(findings & 1u << i))
            continue;
        if (!found->rows++)
            *found = (tsr_found){1, line, file};
    }
}

static tsr_status append(tsr_dataset *data, const tsr_row *row, int file, int64_t line)
{
    TSR_TRY(reserve_tokens(data, row->token_count));
    TSR_TRY(reserve(&data->lengths, &data->document_capacity, data->document_count,
                    row->document_count, sizeof *data->lengths));
    TSR_TRY(reserve(&data->samples, &data->sample_capacity, data->sample_count, 1,
                    sizeof *data->samples));
    tsr_sample_entry entry = {.first_token = data->token_count,
                              .first_document = data->document_count,
                              .token_count = (int32_t)row->token_count,
                              .document_count = (int32_t)row->document_count,
                              .label_count = (int32_t)row->label_count,
                              .file = file,
                              .line = line};
    memcpy(data->ids + entry.first_token, row->ids, row->token_count * sizeof *row->ids);
    memcpy(data->labels + entry.first_token, row->labels, row->token_count * sizeof *row->labels);
    memcpy(data->lengths + entry.first_document, row->lengths,
           row->document_count * sizeof *row->lengths);
    data->samples[data->sample_count++] = entry;
    data->token_count += row->token_count;
    data->document_count += row->document_count;
    note_findings(data, row->findings, file, line);
    return TSR_OK;
}

/* What is trained must be something that the rows have. */
static tsr_status check_loss(tsr_data_format format, const tsr_dataset_options *options)
{
    bool pairs = format == TSR_DATA_PROMPT_COMPLETION || format == TSR_DATA_ALPACA;
    bool chats = format == TSR_DATA_MESSAGES || format == TSR_DATA_SHAREGPT ||
                 format == TSR_DATA_PROMPT_COMPLETION;
    if (options->assistant_only == TSR_LOSS_YES && !chats)
        return tsr_fail(TSR_ECONFIG,
                        "%s: assistant_only_loss: true needs conversations, but the format of %s "
                        "is %s; leave the key out",
                        key_of(options), options->files[0], tsr_data_format_name(format));
    if (options->completion_only == TSR_LOSS_YES && !pairs)
        return tsr_fail(TSR_ECONFIG,
                        "%s: completion_only_loss: true needs rows with prompt and completion, but "
                        "the format of %s is %s; leave the key out",
                        key_of(options), options->files[0], tsr_data_format_name(format));
    return TSR_OK;
}

static tsr_status unknown_keys(const reader *r, const json_t *object,
                               const tsr_dataset_options *options)
{
    tsr_auto_text found = {0}, known = {0};
    tsr_row_own_keys(&found, object);
    for (size_t i = 1; i < sizeof formats / sizeof *formats; i++) {
        tsr_text_puts(&known, known.length ? ", " : "");
        tsr_row_keys(&known, formats[i].format, options);
        tsr_text_printf(&known, " (%s)", formats[i].name);
    }
    return tsr_fail(
        TSR_EDATA,
        "%s: no known format has the keys of the first row (%.300s); expected one of: %s", r->place,
        tsr_text_string(&found), tsr_text_string(&known));
}

/* The format of the row that r has just read. */
static tsr_status detect_row(tsr_data_format *out, bool *is_chat, const reader *r,
                             const json_t *object, const tsr_dataset_options *options)
{
    tsr_text keys = {0};
    tsr_status status = TSR_OK;
    tsr_data_format format = options->format;
    if (format == TSR_DATA_AUTO) {
        format = tsr_row_detect(object, options);
        tsr_row_keys(&keys, format, options);
        if (format == TSR_DATA_AUTO)
            status = unknown_keys(r, object, options);
        else
            tsr_log(TSR_LOG_INFO, "%s: format %s, because the first row (%s) has %s",
                    key_of(options), tsr_data_format_name(format), r->place,
                    tsr_text_string(&keys));
    }
    *is_chat =
        format == TSR_DATA_MESSAGES || format == TSR_DATA_SHAREGPT ||
        (format == TSR_DATA_PROMPT_COMPLETION && json_is_array(json_object_get(object, "prompt")));
    tsr_text_free(&keys);
    *out = format;
    return status;
}

tsr_status tsr_dataset_detect(tsr_data_format *out, bool *is_chat,
                              const tsr_dataset_options *options)
{
    reader r = {.rows = options->rows, .columns = options->columns, .skip = options->skip_rows};
    json_t *row = NULL;
    if (options->file_count < 1)
        return tsr_fail(TSR_EDATA, "%s: no file is given", key_of(options));
    tsr_status status = TSR_OK;
    for (int i = 0; i < options->file_count && status >= 0 && !row && (!i || r.skipped); i++) {
        r.skipped = r.skip > 0;
        close_file(&r);
        status = open_file(&r, options->files[i], key_of(options));
        if (status >= 0)
            status = next_row(&row, &r);
    }
    if (status >= 0 && !row)
        status = tsr_fail(TSR_EDATA, "%s: %s has no row%s", key_of(options), r.path,
                          r.skipped ? " behind those that split leaves out" : "");
    if (status >= 0)
        status = detect_row(out, is_chat, &r, row, options);
    json_decref(row);
    close_file(&r);
    return status;
}

/* Applies max_length; *keep is false where the row is dropped. */
static tsr_status truncate_row(tsr_dataset *data, tsr_row *row, bool *keep, reader *r,
                               const tsr_dataset_options *options)
{
    int64_t labels = row->label_count;
    *keep = true;
    if (options->max_length <= 0 || (int64_t)row->token_count <= options->max_length)
        return TSR_OK;
    if (row->token_count > r->longest)
        r->longest = row->token_count;
    if (options->truncation == TSR_TRUNCATE_ERROR)
        return tsr_fail(TSR_EDATA,
                        "%s: the row has %zu tokens, max_length is %lld; raise max_length to %zu, "
                        "or set truncation to right (cuts) or drop",
                        r->place, row->token_count, (long long)options->max_length,
                        row->token_count);
    if (options->truncation == TSR_TRUNCATE_RIGHT) {
        tsr_row_cut(row, options->max_length);
        *keep = row->label_count || !labels;
    } else {
        *keep = false;
    }
    if (*keep)
        data->stats.truncated++;
    else if (options->truncation == TSR_TRUNCATE_RIGHT)
        data->stats.emptied++;
    else
        data->stats.too_long++;
    return TSR_OK;
}

static tsr_status read_row(tsr_dataset *data, tsr_row *row, reader *r, const json_t *object,
                           int file, const tsr_dataset_options *options)
{
    bool keep;
    TSR_TRY(tsr_row_read(row, object, data->format, options, r->place));
    TSR_TRY(truncate_row(data, row, &keep, r, options));
    if (!keep || r->bad_rows) /* after a bad row the others are only checked */
        return TSR_OK;
    return append(data, row, file, r->number);
}

static bool enough_rows(const tsr_dataset *data, const tsr_dataset_options *options)
{
    return options->max_rows > 0 && data->stats.rows >= options->max_rows;
}

#define PLACES 5 /* bad rows that are named behind the first */

#define SECONDS_MORE 30 /* for the others */

static void note_bad_row(reader *r, tsr_status status)
{
    if (!r->bad_rows++) {
        tsr_error_take(r->first_error, status);
        r->late = tsr_now() + SECONDS_MORE;
    } else if (r->bad_rows - 1 <= PLACES)
        tsr_text_printf(&r->others, "%s%s", r->others.length ? ", " : "", r->place);
}

/* Each row may take as long as its text and template may, and the job is refused already. */
static bool too_late(reader *r)
{
    r->gave_up = r->bad_rows && tsr_now() > r->late;
    return r->gave_up;
}

static tsr_status read_file(tsr_dataset *data, tsr_row *row, reader *r, int file,
                            const tsr_dataset_options *options)
{
    int64_t before = data->stats.rows;
    r->skipped = r->skip > 0;
    TSR_TRY(open_file(r, data->files[file], key_of(options)));
    while (!enough_rows(data, options) && !too_late(r)) {
        json_t *object;
        tsr_status status = next_row(&object, r);
        if (status >= 0 && !object)
            break;
        data->stats.rows++;
        if (r->table) /* the number of asked ones is not known before their end */
            tsr_phase_at("reading and tokenizing", r->done + tsr_table_done(r->table), r->total);
        if (status >= 0)
            status = read_row(data, row, r, object, file, options);
        json_decref(object);
        if (status < 0 && status != TSR_EDATA)
            return status;
        if (status < 0)
            note_bad_row(r, status);
    }
    close_file(r);
    if (data->stats.rows == before && !enough_rows(data, options) && !r->gave_up && !r->skipped)
        return tsr_fail(TSR_EDATA, "%s: %s has no row", key_of(options), data->files[file]);
    return TSR_OK;
}

/* Of all files together; what cannot be looked at is refused when it is opened. */
static double file_bytes(const tsr_dataset *data)
{
    double bytes = 0;
    struct stat about;
    for (int i = 0; i < data->file_count; i++)
        bytes += stat(data->files[i], &about) == 0 ? (double)about.st_size : 0;
    return bytes;
}

static tsr_status read_files(tsr_dataset *data, const tsr_dataset_options *options)
{
    tsr_row row = {0};
    reader r = {.rows = options->rows,
                .columns = options->columns,
                .skip = options->skip_rows,
                .first_error = malloc(sizeof(tsr_error)),
                .total = options->rows.next ? 1 : file_bytes(data)};
    tsr_status status = TSR_OK;
    if (!r.first_error)
        status = tsr_fail(TSR_ENOMEM, "%s: out of memory", key_of(options));
    for (int i = 0; i < data->file_count && status >= 0 && !r.gave_up; i++)
        status = read_file(data, &row, &r, i, options);
    tsr_phase_at("reading and tokenizing", r.total, r.total);
    if (status >= 0 && r.bad_rows) {
        char longest[64] = ""; /* who raises max_length wants to do it once */
        if (r.longest && options->truncation == TSR_TRUNCATE_ERROR)
            snprintf(longest, sizeof longest, "; the longest row has %zu tokens", r.longest);
        status = tsr_error_put(r.first_error);
        if (r.bad_rows > 1)
            status = tsr_fail(status, "%s (and %lld more bad rows%s%s: %s%s%s)", tsr_last_error(),
                              (long long)r.bad_rows - 1, r.gave_up ? " as far as " : "",
                              r.gave_up ? r.place : "", tsr_text_string(&r.others),
                              r.bad_rows - 1 > PLACES ? ", ..." : "", longest);
    }
    close_file(&r);
    free(r.first_error);
    tsr_text_free(&r.others);
    data->unread_keys = row.keys;
    row.keys = (tsr_text){0};
    tsr_row_free(&row);
    return status;
}

/* Gives back what growing took too much; a failure only keeps it. */
static void shrink(void *array, uint64_t *capacity, uint64_t count, uint64_t entry_bytes)
{
    void **at = array, *smaller = count ? realloc(*at, count * entry_bytes) : NULL;
    if (!smaller)
        return;
    *at = smaller;
    *capacity = count;
}

/* There must be a row, and in some row something to train. */
static tsr_status check_left(const tsr_dataset *data, const tsr_dataset_options *options)
{
    const tsr_dataset_stats *stats = &data->stats;
    const char *key = key_of(options), *first = data->files[0];
    long long rows = stats->rows, dropped = stats->too_long + stats->emptied;
    if (!stats->samples)
        return tsr_fail(TSR_EDATA,
                        "%s: none of the %lld rows (%s:1 and on) is left: %lld were dropped by "
                        "truncation to max_length %lld; raise it",
                        key, rows, first, dropped, (long long)options->max_length);
    if (stats->label_tokens)
        return tsr_findings_check(data, key);
    const tsr_sample_entry *from = &data->samples[0], *to = &data->samples[stats->samples - 1];
    if (dropped)
        return tsr_fail(TSR_EDATA,
                        "%s: nothing to train is left: truncation to max_length %lld dropped %lld "
                        "of %lld rows, and the others (%s:%lld to %s:%lld) have no token to train; "
                        "raise max_length",
                        key, (long long)options->max_length, dropped, rows, data->files[from->file],
                        (long long)from->line, data->files[to->file], (long long)to->line);
    return tsr_fail(TSR_EDATA,
                    "%s: no token of the %lld rows (%s:%lld to %s:%lld) is trained: every label is "
                    "-100%s",
                    key, rows, data->files[from->file], (long long)from->line,
                    data->files[to->file], (long long)to->line,
                    options->chat && options->assistant_only != TSR_LOSS_NO
                        ? "; no chat has an assistant's turn (assistant_only_loss: false trains "
                          "all tokens)"
                        : "");
}

void tsr_dataset_measure(tsr_dataset *data)
{
    tsr_dataset_stats *stats = &data->stats;
    stats->samples = (int64_t)data->sample_count;
    stats->documents = stats->tokens = stats->label_tokens = 0;
    stats->longest_sample = stats->longest_document = stats->unlabelled = 0;
    uint64_t hash = tsr_hash(TSR_HASH_START, &data->sample_count, sizeof data->sample_count);
    for (uint64_t i = 0; i < data->sample_count; i++) {
        tsr_sample s = tsr_dataset_sample(data, (int64_t)i);
        int64_t count[] = {s.token_count, s.document_count};
        hash = tsr_hash(hash, count, sizeof count);
        hash = tsr_hash(hash, s.ids, 4 * (uint64_t)s.token_count);
        hash = tsr_hash(hash, s.labels, 4 * (uint64_t)s.token_count);
        hash = tsr_hash(hash, s.lengths, 4 * (uint64_t)s.document_count);
        stats->documents += s.document_count;
        stats->tokens += s.token_count;
        stats->label_tokens += s.label_count;
        stats->unlabelled += !s.label_count;
        if (s.token_count > stats->longest_sample)
            stats->longest_sample = s.token_count;
        for (int32_t d = 0; d < s.document_count; d++)
            if (s.lengths[d] > stats->longest_document)
                stats->longest_document = s.lengths[d];
        tsr_phase_at("hashing the data", (double)i + 1, (double)data->sample_count);
    }
    data->hash = hash;
}

/* Figures, hash and warnings, once everything is read. */
static tsr_status settle(tsr_dataset *data, const tsr_dataset_options *options)
{
    const tsr_dataset_stats *stats = &data->stats;
    int64_t dropped = stats->too_long + stats->emptied;
    shrink(&data->ids, &data->token_capacity, data->token_count, sizeof *data->ids);
    shrink(&data->labels, &data->token_capacity, data->token_count, sizeof *data->labels);
    shrink(&data->lengths, &data->document_capacity, data->document_count, sizeof *data->lengths);
    shrink(&data->samples, &data->sample_capacity, data->sample_count, sizeof *data->samples);
    tsr_dataset_measure(data);
    TSR_TRY(check_left(data, options));
    const char *key = key_of(options);
    if (stats->unlabelled)
        tsr_log(TSR_LOG_WARNING, "%s: %lld of %lld rows have no token to train", key,
                (long long)stats->unlabelled, (long long)stats->samples);
    if (stats->truncated || dropped)
        tsr_log(TSR_LOG_WARNING, "%s: max_length %lld cut %lld rows and dropped %lld of %lld", key,
                (long long)options->max_length, (long long)stats->truncated, (long long)dropped,
                (long long)stats->rows);
    tsr_findings_warn(data, key);
    return TSR_OK;
}

static tsr_status copy_files(tsr_dataset *data, const tsr_dataset_options *options)
{
    data->files = calloc((size_t)options->file_count, sizeof *data->files);
    for (int i = 0; data->files && i < options->file_count; i++) {
        data->files[i] = strdup(options->files[i]);
        if (!data->files[i])
            return tsr_fail(TSR_ENOMEM, "%s: out of memory", key_of(options));
        data->file_count++;
    }
    return data->files ? TSR_OK : tsr_fail(TSR_ENOMEM, "%s: out of memory", key_of(options));
}

tsr_status tsr_dataset_load(tsr_dataset **out, const tsr_dataset_options *options)
{
    tsr_data_format format;
    bool is_chat;
    TSR_TRY(tsr_dataset_detect(&format, &is_chat, options));
    TSR_TRY(check_loss(format, options));
    if (is_chat ? !options->chat : format != TSR_DATA_PRETOKENIZED && !options->tokenizer)
        return tsr_fail(TSR_EINVAL, "%s: %s", key_of(options),
                        is_chat ? "chats need a chat template" : "text needs a tokenizer");
    tsr_dataset *data = calloc(1, sizeof *data);
    if (!data)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", key_of(options));
    data->format = format;
    tsr_status status = copy_files(data, options);
    if (status >= 0)
        status = read_files(data, options);
    if (status >= 0)
        status = settle(data, options);
    if (status < 0) {
        tsr_dataset_destroy(data);
        return status;
    }
    *out = data;
    return TSR_OK;
}

void tsr_dataset_destroy(tsr_dataset *data)
{
    if (!data)
        return;
    for (int i = 0; i < data->part_count; i++)
        tsr_dataset_destroy(data->parts[i]);
    for (int i = 0; i < data->file_count && !data->view; i++)
        free(data->files[i]);
    if (!data->view || data->parts)
        free(data->files);
    free(data->parts);
    free(data->view);
    free(data->ids);
    free(data->labels);
    free(data->lengths);
    free(data->samples);
    tsr_text_free(&data->unread_keys);
    free(data);
}

int64_t tsr_dataset_sample_count(const tsr_dataset *data)
{
    return (int64_t)data->sample_count;
}

tsr_sample tsr_dataset_sample(const tsr_dataset *data, int64_t index)
{
    if (data->view)
        return data->view[index];
    const tsr_sample_entry *entry = &data->samples[index];
    return (tsr_sample){.ids = data->ids + entry->first_token,
                        .labels = data->labels + entry->first_token,
                        .lengths = data->lengths + entry->first_document,
                        .token_count = entry->token_count,
                        .document_count = entry->document_count,
                        .label_count = entry->label_count,
                        .file = entry->file,
                        .line = entry->line};
}

tsr_data_format tsr_dataset_format(const tsr_dataset *data)
{
    return data->format;
}

const tsr_dataset_stats *tsr_dataset_stats_of(const tsr_dataset *data)
{
    return &data->stats;
}

const char *tsr_dataset_file(const tsr_dataset *data, int index)
{
    return data->files[index];
}

const char *tsr_dataset_unread_keys(const tsr_dataset *data)
{
    return tsr_text_string(&data->unread_keys);
}

uint64_t tsr_dataset_hash(const tsr_dataset *data)
{
    return data->hash;
}

uint64_t tsr_dataset_bytes(const tsr_dataset *data)
{
    uint64_t bytes = data->token_capacity * 8 + data->document_capacity * sizeof *data->lengths +
                     data->sample_capacity * sizeof *data->samples;
    for (int i = 0; i < data->part_count; i++)
        bytes += tsr_dataset_bytes(data->parts[i]);
    return data->view ? bytes + data->sample_count * sizeof *data->view : bytes;
}
