#include "data/dataset_parts.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/phase.h"
#include "data/dataset_parts.h"
#include "data/rows.h"
#include "data/tokenize.h"
#include "table/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file being read row by row, or its rows asked for, and what went wrong so far. */
typedef struct {
    tsr_tokenize *tokenize;
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
    double begun, told;     /* when */
    const char *phase;      /* with how fast it is, once that is known */
    double late;            /* when further bad rows are not looked for any more */
    bool gave_up;           /* it was so late */
    size_t longest;         /* tokens of a row beyond max_length */
    tsr_error *first_error; /* of the first bad row */
    tsr_error *damage;      /* of a file whose packing is; NULL: none */
    tsr_text others;        /* the places of the next few */
    tsr_text checked;       /* the place of the last row that was looked at since */
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
    {TSR_DATA_INPUT_OUTPUT, "input_output"},
    {TSR_DATA_TEXT, "text"},
    {TSR_DATA_PREFERENCE, "preference"},
    {TSR_DATA_PREFERENCE_IDS, "preference_ids"},
    {TSR_DATA_UNPAIRED, "unpaired"},
};

const char *tsr_data_format_name(tsr_data_format format)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format)
            return formats[i].name;
    return "unknown";
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

static tsr_status append_words(tsr_dataset *data, const int32_t *words, uint64_t count)
{
    if (data->cache)
        return tsr_dataset_kept(data, tsr_token_cache_append(data->cache, words, count));
    TSR_TRY(reserve(&data->own_words, &data->word_capacity, data->word_count, count,
                    sizeof *data->own_words));
    memcpy(data->own_words + data->word_count, words, count * sizeof *words);
    return TSR_OK;
}

/* The row as a sample, or its parts. */
static tsr_status append(tsr_dataset *data, const tsr_tokenized *row)
{
    uint64_t first = data->word_count;
    TSR_TRY(append_words(data, row->words, row->word_count));
    TSR_TRY(reserve(&data->own_samples, &data->sample_capacity, data->sample_count,
                    (uint64_t)row->part_count, sizeof *data->own_samples));
    for (int32_t i = 0; i < row->part_count; i++) {
        const tsr_tokenized_part *part = &row->parts[i];
        data->own_samples[data->sample_count++] =
            (tsr_sample_entry){.first_word = first,
                               .token_count = part->token_count,
                               .document_count = part->document_count,
                               .label_count = part->label_count,
                               .desirable = row->desirable,
                               .margin = row->margin,
                               .file = row->file,
                               .part = part->number,
                               .line = row->line};
        first += 2 * (uint64_t)part->token_count + (uint64_t)part->document_count;
    }
    data->word_count += row->word_count;
    note_findings(data, row->findings, row->file, row->line);
    return TSR_OK;
}

/* What is trained must be something that the rows have. */
static tsr_status check_loss(tsr_data_format format, const tsr_dataset_options *options)
{
    bool pairs = format == TSR_DATA_PROMPT_COMPLETION || format == TSR_DATA_ALPACA ||
                 format == TSR_DATA_INPUT_OUTPUT;
    bool chats = format == TSR_DATA_MESSAGES || format == TSR_DATA_SHAREGPT ||
                 format == TSR_DATA_PROMPT_COMPLETION;
    if (options->assistant_only == TSR_LOSS_YES && !chats)
        return tsr_fail(TSR_ECONFIG,
                        "%s: assistant_only_loss: true needs conversations, but the format of %s "
                        "is %s; leave the key out",
                        tsr_dataset_key(options), options->files[0], tsr_data_format_name(format));
    if (options->completion_only == TSR_LOSS_YES && !pairs)
        return tsr_fail(TSR_ECONFIG,
                        "%s: completion_only_loss: true needs rows with prompt and completion, but "
                        "the format of %s is %s; leave the key out",
                        tsr_dataset_key(options), options->files[0], tsr_data_format_name(format));
    bool chosen = options->training.roles || options->training.ends != TSR_CHAT_ENDS_TURN;
    if (chosen && (options->assistant_only == TSR_LOSS_NO || options->response_template))
        return tsr_fail(TSR_ECONFIG,
                        "%s: roles_to_train and train_on_eot choose parts of a chat, but %s; leave "
                        "one out",
                        tsr_dataset_key(options),
                        options->response_template
                            ? "response_template says what is trained"
                            : "assistant_only_loss: false (or train_on_inputs) trains all of it");
    bool texts = format != TSR_DATA_PRETOKENIZED && format != TSR_DATA_INPUT_OUTPUT;
    if (options->response_template && !texts)
        return tsr_fail(TSR_ECONFIG,
                        "%s: response_template is looked for in the text of a row, but the format "
                        "of %s is %s, whose rows say what is trained; leave the key out",
                        tsr_dataset_key(options), options->files[0], tsr_data_format_name(format));
    return TSR_OK;
}

static tsr_status unknown_keys(const reader *r, const json_t *object,
                               const tsr_dataset_options *options)
{
    tsr_auto_text found = {0}, known = {0};
    tsr_row_own_keys(&found, object);
    for (size_t i = 1; i < sizeof formats / sizeof *formats; i++) {
        if (!tsr_row_may_be(formats[i].format, options))
            continue;
        tsr_text_puts(&known, known.length ? ", " : "");
        tsr_row_keys(&known, formats[i].format, options);
        tsr_text_printf(&known, " (%s)", formats[i].name);
    }
    return tsr_fail(
        TSR_EDATA,
        "%s: no known format has the keys of the first row (%.300s); expected one of: %s. Columns "
        "of "
        "other names: dataset: [{path: ..., field_messages: NAME}], or field_instruction and "
        "field_output (docs/data.md)%s",
        r->place, tsr_text_string(&found), tsr_text_string(&known),
        options->pairs == TSR_PAIRS_NONE && json_object_get(object, "rejected")
            ? "; rows with chosen and rejected need objective: dpo, orpo, cpo, kto or reward"
            : "");
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
                    tsr_dataset_key(options), tsr_data_format_name(format), r->place,
                    tsr_text_string(&keys));
    }
    const json_t *answer =
        json_object_get(object, format == TSR_DATA_PREFERENCE ? "chosen" : "completion");
    bool pairs = format == TSR_DATA_PREFERENCE || format == TSR_DATA_UNPAIRED;
    *is_chat =
        (pairs && json_is_array(answer)) || format == TSR_DATA_MESSAGES ||
        format == TSR_DATA_SHAREGPT ||
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
        return tsr_fail(TSR_EDATA, "%s: no file is given", tsr_dataset_key(options));
    tsr_status status = TSR_OK;
    for (int i = 0; i < options->file_count && status >= 0 && !row && (!i || r.skipped); i++) {
        r.skipped = r.skip > 0;
        close_file(&r);
        status = open_file(&r, options->files[i], tsr_dataset_key(options));
        if (status >= 0)
            status = next_row(&row, &r);
    }
    if (status >= 0 && !row)
        status = tsr_fail(TSR_EDATA, "%s: %s has no row%s", tsr_dataset_key(options), r.path,
                          r.skipped ? " behind those that split leaves out" : "");
    if (status >= 0)
        status = detect_row(out, is_chat, &r, row, options);
    json_decref(row);
    close_file(&r);
    return status;
}

static bool enough_rows(const tsr_dataset *data, const tsr_dataset_options *options)
{
    return options->max_rows > 0 && data->stats.rows >= options->max_rows;
}

#define PHASE "reading and tokenizing"

/* Says how far it has come; once a second also how fast. */
static void tell(reader *r, const tsr_dataset *data)
{
    static _Thread_local char speed[64]; /* who listens may keep the pointer */
    double now = tsr_now();
    if (now - r->told >= 1) {
        double rows = (double)data->stats.rows / (now - r->begun);
        snprintf(speed, sizeof speed, PHASE " (%.0f rows/s)", rows);
        r->phase = speed;
        r->told = now;
    }
    tsr_phase_at(r->phase, r->done + tsr_table_done(r->table), r->total);
}

#define PLACES 5 /* bad rows that are named behind the first */

#define SECONDS_MORE 30 /* for the others */

static void note_bad_row(reader *r, const tsr_tokenized *row)
{
    if (!r->bad_rows++) {
        *r->first_error = *row->error;
        r->late = tsr_now() + SECONDS_MORE;
    } else if (r->bad_rows - 1 <= PLACES)
        tsr_text_printf(&r->others, "%s%s", r->others.length ? ", " : "",
                        tsr_text_string(&row->place));
}

/* The first of the rows to which max_length did something. */
static void note_loss(tsr_dataset_stats *stats, const tsr_tokenized *row)
{
    tsr_found *found = row->fate == TSR_ROW_CUT        ? &stats->first_cut
                       : row->fate == TSR_ROW_SPLIT    ? &stats->first_split
                       : row->fate == TSR_ROW_TOO_LONG ? &stats->first_too_long
                       : row->fate == TSR_ROW_EMPTIED  ? &stats->first_emptied
                                                       : NULL;
    if (found && !found->rows++)
        *found = (tsr_found){1, row->line, row->file};
}

/* A row that is done. */
static tsr_status take_row(tsr_dataset *data, reader *r, const tsr_tokenized *row,
                           const tsr_dataset_options *options)
{
    tsr_dataset_stats *stats = &data->stats;
    if (row->status < 0 && !row->error)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", tsr_text_string(&row->place));
    if (row->status < 0 && row->status != TSR_EDATA)
        return tsr_error_put(row->error);
    if (options->max_length > 0 && row->length > (size_t)options->max_length &&
        row->length > r->longest)
        r->longest = row->length;
    if (row->status < 0)
        note_bad_row(r, row);
    stats->truncated += row->fate == TSR_ROW_CUT;
    stats->too_long += row->fate == TSR_ROW_TOO_LONG;
    stats->emptied += row->fate == TSR_ROW_EMPTIED;
    if (row->fate == TSR_ROW_SPLIT) {
        stats->split++;
        stats->parts += row->part_count;
        stats->empty_parts += row->empty_parts;
    }
    note_loss(stats, row);
    tsr_row_merge_keys(&data->unread_keys, &row->keys);
    if (!r->bad_rows)
        return row->words ? append(data, row) : TSR_OK;
    tsr_text_clear(&r->checked); /* after a bad row the others are only checked */
    tsr_text_puts(&r->checked, tsr_text_string(&row->place));
    return TSR_OK;
}

/* Each row may take as long as its text and template may, and the job is refused already. */
static bool too_late(reader *r)
{
    r->gave_up = r->bad_rows && tsr_now() > r->late;
    return r->gave_up;
}

/* Waits for the oldest row and takes those that are done, or all. */
static tsr_status take_rows(tsr_dataset *data, reader *r, bool all,
                            const tsr_dataset_options *options)
{
    tsr_tokenized *row = tsr_tokenize_take(r->tokenize, true);
    for (; row && !too_late(r); row = tsr_tokenize_take(r->tokenize, all))
        TSR_TRY(take_row(data, r, row, options));
    return TSR_OK;
}

/* Hands a row on, or why there is none; takes `object`. */
static tsr_status give_row(tsr_dataset *data, reader *r, json_t *object, tsr_status bad, int file,
                           const tsr_dataset_options *options)
{
    tsr_tokenized *slot = tsr_tokenize_slot(r->tokenize);
    tsr_error *error = NULL;
    if (bad < 0 && (error = malloc(sizeof *error)))
        tsr_error_take(error, bad);
    tsr_status status = slot ? TSR_OK : take_rows(data, r, false, options);
    if (!slot && status == TSR_OK && !r->gave_up)
        slot = tsr_tokenize_slot(r->tokenize);
    if (!slot) {
        json_decref(object);
        free(error);
        return status;
    }
    slot->object = object;
    slot->status = bad;
    slot->error = error;
    slot->file = file;
    slot->line = r->number;
    tsr_text_puts(&slot->place, r->place);
    tsr_tokenize_put(r->tokenize);
    return TSR_OK;
}

/* Rows before the place where it shows may be wrong for the same reason. */
static void note_damage(reader *r, tsr_status status)
{
    if (!r->damage && (r->damage = malloc(sizeof *r->damage)))
        tsr_error_take(r->damage, status);
}

static tsr_status read_file(tsr_dataset *data, reader *r, int file,
                            const tsr_dataset_options *options)
{
    int64_t before = data->stats.rows;
    r->skipped = r->skip > 0;
    TSR_TRY(open_file(r, data->files[file], tsr_dataset_key(options)));
    while (!enough_rows(data, options) && !too_late(r)) {
        json_t *object;
        tsr_status status = next_row(&object, r);
        if (status >= 0 && !object)
            break;
        if (status < 0 && status != TSR_EDATA)
            return status;
        if (status < 0 && r->table && tsr_table_is_damaged(r->table))
            note_damage(r, status);
        data->stats.rows++;
        if (r->table) /* the number of asked ones is not known before their end */
            tell(r, data);
        TSR_TRY(give_row(data, r, object, status, file, options));
    }
    close_file(r);
    if (data->stats.rows == before && !enough_rows(data, options) && !r->gave_up && !r->skipped)
        return tsr_fail(TSR_EDATA, "%s: %s has no row", tsr_dataset_key(options),
                        data->files[file]);
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

/* The first bad row, and how many more there are. */
static tsr_status refuse_rows(const reader *r, const tsr_dataset_options *options)
{
    char longest[64] = ""; /* who raises max_length wants to do it once */
    if (r->longest && options->truncation == TSR_TRUNCATE_ERROR)
        snprintf(longest, sizeof longest, "; the longest row has %zu tokens", r->longest);
    tsr_status status = tsr_error_put(r->first_error);
    if (r->bad_rows == 1)
        return status;
    if (r->damage) {
        tsr_auto_text first = {0};
        tsr_text_puts(&first, tsr_last_error());
        (void)tsr_error_put(r->damage);
        return tsr_fail(status, "%s (and %lld bad rows, which that may explain: %s)",
                        tsr_last_error(), (long long)r->bad_rows - 1, tsr_text_string(&first));
    }
    return tsr_fail(status, "%s (and %lld more bad rows%s%s: %s%s%s)", tsr_last_error(),
                    (long long)r->bad_rows - 1, r->gave_up ? " as far as " : "",
                    r->gave_up ? tsr_text_string(&r->checked) : "", tsr_text_string(&r->others),
                    r->bad_rows - 1 > PLACES ? ", ..." : "", longest);
}

tsr_status tsr_dataset_read_files(tsr_dataset *data, const tsr_dataset_options *options)
{
    reader r = {.rows = options->rows,
                .columns = options->columns,
                .skip = options->skip_rows,
                .first_error = malloc(sizeof(tsr_error)),
                .begun = tsr_now(),
                .phase = PHASE,
                .total = options->rows.next ? 1 : file_bytes(data)};
    r.told = r.begun;
    tsr_status status = tsr_tokenize_create(&r.tokenize, data->format, options);
    if (status >= 0 && !r.first_error)
        status = tsr_fail(TSR_ENOMEM, "%s: out of memory", tsr_dataset_key(options));
    for (int i = 0; i < data->file_count && status >= 0 && !r.gave_up; i++)
        status = read_file(data, &r, i, options);
    if (status >= 0)
        status = take_rows(data, &r, true, options);
    tsr_tokenize_destroy(r.tokenize);
    tsr_phase_at(PHASE, r.total, r.total);
    if (status >= 0 && r.bad_rows)
        status = refuse_rows(&r, options);
    close_file(&r);
    free(r.first_error);
    free(r.damage);
    tsr_text_free(&r.others);
    tsr_text_free(&r.checked);
    return status;
}

static tsr_status copy_files(tsr_dataset *data, const tsr_dataset_options *options)
{
    data->files = calloc((size_t)options->file_count, sizeof *data->files);
    for (int i = 0; data->files && i < options->file_count; i++) {
        data->files[i] = strdup(options->files[i]);
        if (!data->files[i])
            return tsr_fail(TSR_ENOMEM, "%s: out of memory", tsr_dataset_key(options));
        data->file_count++;
    }
    return data->files ? TSR_OK
                       : tsr_fail(TSR_ENOMEM, "%s: out of memory", tsr_dataset_key(options));
}

tsr_status tsr_dataset_load(tsr_dataset **out, const tsr_dataset_options *options)
{
    tsr_data_format format;
    bool is_chat;
    TSR_TRY(tsr_dataset_detect(&format, &is_chat, options));
    TSR_TRY(check_loss(format, options));
    if (is_chat ? !options->chat : !tsr_data_has_ids(format) && !options->tokenizer)
        return tsr_fail(TSR_EINVAL, "%s: %s", tsr_dataset_key(options),
                        is_chat ? "chats need a chat template" : "text needs a tokenizer");
    if (options->truncation == TSR_TRUNCATE_SPLIT && (options->pairs || options->max_length == 1))
        return tsr_fail(TSR_EINVAL, "%s: preferences, and rows of one token, are not split",
                        tsr_dataset_key(options));
    tsr_dataset *data = calloc(1, sizeof *data);
    if (!data)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", tsr_dataset_key(options));
    data->format = format;
    tsr_status status = copy_files(data, options);
    if (status >= 0)
        status = tsr_dataset_make(data, options);
    if (status < 0) {
        tsr_dataset_destroy(data);
        return status;
    }
    tsr_dataset_warn(data, options);
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
    if (!data->view || data->parts) {
        free(data->files);
        free(data->file_formats);
    }
    free(data->parts);
    free(data->view);
    free(data->own_words);
    free(data->own_samples);
    tsr_token_cache_close(data->cache);
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
    const int32_t *words = data->words + entry->first_word;
    return (tsr_sample){.ids = words,
                        .labels = words + entry->token_count,
                        .lengths = words + 2 * (int64_t)entry->token_count,
                        .token_count = entry->token_count,
                        .document_count = entry->document_count,
                        .label_count = entry->label_count,
                        .desirable = entry->desirable,
                        .margin = entry->margin,
                        .file = entry->file,
                        .part = entry->part,
                        .line = entry->line};
}

tsr_data_format tsr_dataset_format(const tsr_dataset *data)
{
    return data->format;
}

tsr_data_format tsr_dataset_file_format(const tsr_dataset *data, int index)
{
    return data->file_formats ? data->file_formats[index] : data->format;
}

int tsr_dataset_file_count(const tsr_dataset *data)
{
    return data->file_count;
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
    uint64_t bytes = data->bytes;
    for (int i = 0; i < data->part_count; i++)
        bytes += tsr_dataset_bytes(data->parts[i]);
    return data->view ? bytes + data->sample_count * sizeof *data->view : bytes;
}
