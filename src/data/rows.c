#include "data/rows.h"

#include "data/rows_parts.h"
#include "io/json.h"

#include <stdlib.h>
#include <string.h>

void tsr_row_free(tsr_row *row)
{
    free(row->ids);
    free(row->labels);
    free(row->lengths);
    free(row->prompt);
    tsr_text_free(&row->keys);
    tsr_chat_row_free(&row->chat);
    *row = (tsr_row){0};
}

static tsr_status grow(int32_t **array, size_t count)
{
    int32_t *bigger = realloc(*array, count * sizeof **array);
    if (!bigger)
        return tsr_fail(TSR_ENOMEM, "no memory for a row of %zu tokens", count);
    *array = bigger;
    return TSR_OK;
}

tsr_status tsr_row_reserve(tsr_row *row, size_t tokens, size_t documents)
{
    if (tokens > row->token_capacity) {
        TSR_TRY(grow(&row->ids, 2 * tokens));
        TSR_TRY(grow(&row->labels, 2 * tokens));
        row->token_capacity = 2 * tokens;
    }
    if (documents > row->document_capacity) {
        TSR_TRY(grow(&row->lengths, 2 * documents));
        row->document_capacity = 2 * documents;
    }
    row->token_count = tokens;
    row->document_count = documents;
    return TSR_OK;
}

#define ALL_PAIRS                                                                                  \
    (1u << TSR_PAIRS_DPO | 1u << TSR_PAIRS_ORPO | 1u << TSR_PAIRS_KTO | 1u << TSR_PAIRS_REWARD)

/* What a row of each format must have; the first of them that a row has is its format. */
static const struct {
    tsr_data_format format;
    const char *keys[2]; /* the text field stands for itself */
    unsigned pairs;      /* bits of tsr_pairs whose rows have it; 0: NONE */
} needed[] = {
    {TSR_DATA_PRETOKENIZED, {"input_ids"}},
    {TSR_DATA_MESSAGES, {"messages"}},
    {TSR_DATA_SHAREGPT, {"conversations"}},
    {TSR_DATA_ALPACA, {"instruction", "output"}},
    {TSR_DATA_PROMPT_COMPLETION, {"prompt", "completion"}},
    {TSR_DATA_INPUT_OUTPUT, {"segments"}},
    {TSR_DATA_TEXT, {NULL}},
    {TSR_DATA_PREFERENCE_IDS, {"chosen_ids", "rejected_ids"}, ALL_PAIRS},
    {TSR_DATA_PREFERENCE, {"chosen", "rejected"}, ALL_PAIRS},
    {TSR_DATA_UNPAIRED, {"completion", "label"}, 1u << TSR_PAIRS_KTO},
};

#define FORMATS (sizeof needed / sizeof *needed)

static const char *key_at(size_t format, size_t k, const tsr_dataset_options *options)
{
    if (needed[format].format == TSR_DATA_TEXT && !k)
        return tsr_row_text_field(options);
    return needed[format].keys[k];
}

const char *tsr_row_text_field(const tsr_dataset_options *options)
{
    return options->text_field ? options->text_field : "text";
}

static bool has_keys(const json_t *object, size_t format, const tsr_dataset_options *options)
{
    for (size_t k = 0; k < 2 && key_at(format, k, options); k++)
        if (!tsr_json_has(object, key_at(format, k, options)))
            return false;
    return true;
}

static bool may_be(size_t format, const tsr_dataset_options *options)
{
    unsigned pairs = needed[format].pairs ? needed[format].pairs : 1u << TSR_PAIRS_NONE;
    return pairs & 1u << options->pairs;
}

bool tsr_row_may_be(tsr_data_format format, const tsr_dataset_options *options)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (needed[i].format == format)
            return may_be(i, options);
    return false;
}

tsr_data_format tsr_row_detect(const json_t *object, const tsr_dataset_options *options)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (may_be(i, options) && has_keys(object, i, options))
            return needed[i].format;
    return TSR_DATA_AUTO;
}

void tsr_row_keys(tsr_text *out, tsr_data_format format, const tsr_dataset_options *options)
{
    for (size_t i = 0; i < FORMATS; i++)
        for (size_t k = 0; needed[i].format == format && k < 2 && key_at(i, k, options); k++)
            tsr_text_printf(out, "%s\"%s\"", k ? " and " : "", key_at(i, k, options));
}

void tsr_row_own_keys(tsr_text *out, const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) tsr_text_printf(
        out, "%s\"%s\"%s", out->length ? ", " : "", key, json_is_null(value) ? " (null)" : "");
}

/* A row of another format than the data's, or of none. */
static tsr_status check_keys(const json_t *object, tsr_data_format format,
                             const tsr_dataset_options *options, const char *place)
{
    tsr_data_format found = tsr_row_detect(object, options);
    size_t i = 0;
    while (needed[i].format != format)
        i++;
    if (has_keys(object, i, options))
        return TSR_OK;
    tsr_auto_text wanted = {0}, has = {0};
    tsr_row_keys(&wanted, format, options);
    tsr_row_own_keys(&has, object);
    return tsr_fail(TSR_EDATA, "%s: a row of the format %s has %s; this one has %s%.300s%s%s%s",
                    place, tsr_data_format_name(format), tsr_text_string(&wanted),
                    has.length ? "" : "no key", tsr_text_string(&has),
                    found != TSR_DATA_AUTO ? " (format " : "",
                    found != TSR_DATA_AUTO ? tsr_data_format_name(found) : "",
                    found != TSR_DATA_AUTO ? "); one data set has one format" : "");
}

bool tsr_row_find_response(size_t *end, tsr_row *row, const tsr_text *text,
                           const tsr_dataset_options *options)
{
    const char *marker = options->response_template, *from = tsr_text_string(text), *at;
    size_t bytes = strlen(marker);
    bool found = false;
    for (const char *stop = from + text->length;
         (at = memmem(from, (size_t)(stop - from), marker, bytes)); from = at + 1) {
        *end = (size_t)(at - tsr_text_string(text)) + bytes;
        found = true;
    }
    row->findings |= (unsigned)!found << TSR_FINDING_UNMARKED;
    return found;
}

#define MOST_KEYS_BYTES 200 /* of their names together, and of a row's but for the last */

static void remember_key(tsr_text *keys, const char *key)
{
    tsr_auto_text quoted = {0};
    tsr_text_printf(&quoted, "\"%s\"", key);
    if (!strstr(tsr_text_string(keys), tsr_text_string(&quoted)) &&
        keys->length + quoted.length < MOST_KEYS_BYTES)
        tsr_text_printf(keys, "%s%s", keys->length ? ", " : "", tsr_text_string(&quoted));
}

void tsr_row_merge_keys(tsr_text *all, const tsr_text *keys)
{
    for (size_t at = 0; at < keys->length; at += strlen(keys->data + at) + 1)
        remember_key(all, keys->data + at);
}

void tsr_row_note_keys(tsr_row *row, const json_t *object, const char *const *read)
{
    static const char *const parts[] = {"train", "weight", "loss", "mask"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        bool seems = false;
        for (int i = 0; i < 4; i++)
            seems |= strcasestr(key, parts[i]) != NULL;
        for (int i = 0; read[i]; i++)
            seems &= strcmp(key, read[i]) != 0;
        if (!seems || json_is_null(value))
            continue;
        row->findings |= 1u << TSR_FINDING_KEYS;
        if (row->keys.length < MOST_KEYS_BYTES)
            tsr_text_append(&row->keys, key, strlen(key) + 1);
    }
}

/* The first token of a document is no label; counts the others. */
static void settle_labels(tsr_row *row)
{
    size_t at = 0;
    for (size_t d = 0; d < row->document_count; at += (size_t)row->lengths[d++])
        row->labels[at] = TSR_LABEL_IGNORED;
    row->label_count = 0;
    for (size_t i = 0; i < row->token_count; i++)
        row->label_count += row->labels[i] != TSR_LABEL_IGNORED;
}

/* Of pairs whose documents are scored: their last token that does not pad, as Transformers' models for sequence classification
 * look for it; of a document of nothing else the first. */
static void label_last(tsr_row *row, int32_t pad)
{
    size_t at = 0;
    for (size_t i = 0; i < row->token_count; i++)
        row->labels[i] = TSR_LABEL_IGNORED;
    for (size_t d = 0; d < row->document_count; d++) {
        size_t begin = at, last;
        at += (size_t)row->lengths[d];
        for (last = at - 1; last > begin && row->ids[last] + 1 == pad;)
            last--;
        row->labels[last] = row->ids[last];
    }
    row->label_count = (int64_t)row->document_count;
}

/* Ids that the tokenizer gave. */
static tsr_status check_vocabulary(const tsr_row *row, const tsr_dataset_options *options,
                                   const char *place)
{
    for (size_t i = 0; options->vocab_size && i < row->token_count; i++)
        if (row->ids[i] >= options->vocab_size)
            return tsr_fail(TSR_EDATA,
                            "%s: token %zu has the id %d, but the model's vocabulary ends at %lld: "
                            "the tokenizer does not belong to this model",
                            place, i, row->ids[i], (long long)options->vocab_size - 1);
    return TSR_OK;
}

tsr_status tsr_row_read(tsr_row *row, const json_t *object, tsr_data_format format,
                        const tsr_dataset_options *options, const char *place)
{
    static const tsr_row_reader readers[] = {
        [TSR_DATA_MESSAGES] = tsr_row_read_messages,
        [TSR_DATA_SHAREGPT] = tsr_row_read_sharegpt,
        [TSR_DATA_ALPACA] = tsr_row_read_alpaca,
        [TSR_DATA_PROMPT_COMPLETION] = tsr_row_read_prompt_completion,
        [TSR_DATA_INPUT_OUTPUT] = tsr_row_read_input_output,
        [TSR_DATA_TEXT] = tsr_row_read_text,
        [TSR_DATA_PREFERENCE] = tsr_row_read_preference,
        [TSR_DATA_PREFERENCE_IDS] = tsr_row_read_preference_ids,
        [TSR_DATA_UNPAIRED] = tsr_row_read_unpaired,
        [TSR_DATA_PRETOKENIZED] = tsr_row_read_pretokenized};
    const char *const text_field[] = {tsr_row_text_field(options), NULL};
    bool tokens = tsr_data_has_ids(format);
    row->findings = 0;
    row->desirable = 0;
    row->margin = 0;
    tsr_text_clear(&row->keys);
    TSR_TRY(check_keys(object, format, options, place));
    if (!tokens)
        tsr_row_note_keys(row, object, text_field);
    TSR_TRY(readers[format](row, object, options, place));
    if (!tokens)
        TSR_TRY(check_vocabulary(row, options, place));
    settle_labels(row);
    if (options->pairs == TSR_PAIRS_REWARD)
        label_last(row, options->pad);
    return TSR_OK;
}

void tsr_row_cut(tsr_row *row, int64_t most)
{
    int64_t left = most;
    size_t documents = 0;
    while (left > 0 && documents < row->document_count) {
        if (row->lengths[documents] > left)
            row->lengths[documents] = (int32_t)left;
        left -= row->lengths[documents++];
    }
    row->document_count = documents;
    row->token_count = (size_t)(most - left);
    settle_labels(row);
}

void tsr_row_cut_documents(tsr_row *row, int64_t most)
{
    size_t from = 0, to = 0;
    for (size_t d = 0; d < row->document_count; d++) {
        size_t length = (size_t)row->lengths[d], kept = length;
        if ((int64_t)kept > most)
            kept = (size_t)most;
        memmove(row->ids + to, row->ids + from, kept * sizeof *row->ids);
        memmove(row->labels + to, row->labels + from, kept * sizeof *row->labels);
        row->lengths[d] = (int32_t)kept;
        from += length;
        to += kept;
    }
    row->token_count = to;
    settle_labels(row);
}

int32_t tsr_row_least_labels(const tsr_row *row)
{
    int32_t least = INT32_MAX;
    size_t at = 0;
    for (size_t d = 0; d < row->document_count; d++) {
        int32_t labels = 0;
        for (int32_t t = 0; t < row->lengths[d]; t++)
            labels += row->labels[at++] != TSR_LABEL_IGNORED;
        least = labels < least ? labels : least;
    }
    return least;
}

int32_t tsr_row_longest(const tsr_row *row)
{
    int32_t longest = 0;
    for (size_t d = 0; d < row->document_count; d++)
        longest = row->lengths[d] > longest ? row->lengths[d] : longest;
    return longest;
}

bool tsr_row_next_part(tsr_row_part *part, const tsr_row *row, int64_t most)
{
    size_t at = part->end, document = part->document, begin = part->document_begin;
    if (at == row->token_count)
        return false;
    while (begin + (size_t)row->lengths[document] <= at)
        begin += (size_t)row->lengths[document++];
    *part = (tsr_row_part){.begin = at - (at > begin),
                           .document = document,
                           .document_begin = begin,
                           .document_count = 1};
    size_t end = begin + (size_t)row->lengths[document], stop = part->begin + (size_t)most;
    while (end < stop && ++document < row->document_count &&
           end + (size_t)row->lengths[document] <= stop) {
        end += (size_t)row->lengths[document];
        part->document_count++;
    }
    part->end = end < stop ? end : stop;
    for (size_t i = part->begin + 1; i < part->end; i++)
        part->label_count += row->labels[i] != TSR_LABEL_IGNORED;
    return true;
}
