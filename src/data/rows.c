#include "data/rows.h"

#include "io/json.h"

#include <stdlib.h>
#include <string.h>

void tsr_row_free(tsr_row *row)
{
    free(row->ids);
    free(row->labels);
    free(row->lengths);
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

static tsr_status reserve(tsr_row *row, size_t tokens, size_t documents)
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

tsr_data_format tsr_row_detect(const json_t *object, const char *text_field)
{
    if (tsr_json_has(object, "input_ids"))
        return TSR_DATA_PRETOKENIZED;
    if (tsr_json_has(object, "messages"))
        return TSR_DATA_MESSAGES;
    if (tsr_json_has(object, "conversations"))
        return TSR_DATA_SHAREGPT;
    if (tsr_json_has(object, "instruction") && tsr_json_has(object, "output"))
        return TSR_DATA_ALPACA;
    if (tsr_json_has(object, "prompt") && tsr_json_has(object, "completion"))
        return TSR_DATA_PROMPT_COMPLETION;
    if (tsr_json_has(object, text_field))
        return TSR_DATA_TEXT;
    return TSR_DATA_AUTO;
}

/* What a file that is no JSON lines looks like in its first bytes; "" if nothing is recognised. */
static const char *recognise(const char *line, size_t bytes)
{
    if (bytes >= 4 && !memcmp(line, "PAR1", 4))
        return " (a Parquet file: write it as JSON lines first)";
    if (bytes >= 2 && !memcmp(line, "\x1f\x8b", 2))
        return " (a gzip file: unpack it first)";
    if (bytes >= 1 && line[0] == '[')
        return " (a list over several lines: write one object a line, as `jq -c '.[]'` does)";
    return "";
}

tsr_status tsr_row_parse(json_t **out, const char *line, size_t bytes, const char *place)
{
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!object) {
        if (json_error_code(&error) == json_error_out_of_memory)
            return tsr_fail(TSR_ENOMEM, "%s: no memory to parse the line", place);
        return tsr_fail(TSR_EDATA, "%s:%d: not valid %s: %s%s", place,
                        error.column < 0 ? 0 : error.column,
                        json_error_code(&error) == json_error_invalid_utf8 ? "UTF-8" : "JSON",
                        error.text, recognise(line, bytes));
    }
    if (!json_is_object(object)) {
        tsr_status status = tsr_fail(
            TSR_EDATA, "%s: the line holds %s, expected an object {...}%s", place,
            tsr_json_kind(object),
            json_is_array(object) ? "; write one object a line, as `jq -c '.[]'` does" : "");
        json_decref(object);
        return status;
    }
    *out = object;
    return TSR_OK;
}

static tsr_status read_messages(tsr_row *row, const json_t *object,
                                const tsr_dataset_options *options, const char *place)
{
    json_t *messages, *tools = NULL;
    TSR_TRY(tsr_json_array(&messages, object, "messages", place));
    if (!json_array_size(messages))
        return tsr_fail(TSR_EDATA, "%s: \"messages\" is empty", place);
    if (tsr_json_has(object, "tools"))
        TSR_TRY(tsr_json_array(&tools, object, "tools", place));
    if (tsr_json_has(object, "chat_template_kwargs"))
        return tsr_fail(TSR_EDATA,
                        "%s: \"chat_template_kwargs\" of a row are not supported by this version; "
                        "remove the key",
                        place);
    tsr_status status =
        tsr_chat_encode(&row->chat, options->chat, messages, tools, !options->full_loss);
    if (status < 0)
        return tsr_fail(status, "%s: %s", place, tsr_last_error());
    size_t count = row->chat.tokens.count;
    if (!count)
        return tsr_fail(TSR_EDATA, "%s: the chat has no token", place);
    if (count > INT32_MAX)
        return tsr_fail(TSR_EDATA, "%s: %zu tokens are more than 2^31 - 1", place, count);
    TSR_TRY(reserve(row, count, 1));
    row->lengths[0] = (int32_t)count;
    for (size_t i = 0; i < count; i++) {
        row->ids[i] = row->chat.tokens.ids[i];
        row->labels[i] = row->chat.mask[i] ? row->ids[i] : TSR_LABEL_IGNORED;
    }
    return TSR_OK;
}

/* out[0..count) from list `key`, each in [least, most], or -100 where `ignored`. */
static tsr_status read_integers(int32_t *out, const json_t *list, const char *key, int64_t least,
                                int64_t most, bool ignored, const char *place)
{
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        int64_t value = json_integer_value(item);
        bool fine = json_is_integer(item) &&
                    ((value >= least && value <= most) || (ignored && value == TSR_LABEL_IGNORED));
        char show[TSR_JSON_SHOW_BYTES];
        if (!fine)
            return tsr_fail(TSR_EDATA,
                            "%s: \"%s\"[%zu] is %s, expected an integer from %lld to %lld%s", place,
                            key, i, tsr_json_show(show, item), (long long)least, (long long)most,
                            ignored ? " or -100 (ignored)" : "");
        out[i] = (int32_t)value;
    }
    return TSR_OK;
}

static tsr_status read_lengths(tsr_row *row, const json_t *object, const char *place)
{
    if (!tsr_json_has(object, "seq_lengths")) {
        row->lengths[0] = (int32_t)row->token_count;
        return TSR_OK;
    }
    json_t *list;
    TSR_TRY(tsr_json_array(&list, object, "seq_lengths", place));
    TSR_TRY(read_integers(row->lengths, list, "seq_lengths", 1, INT32_MAX, false, place));
    int64_t sum = 0;
    for (size_t i = 0; i < row->document_count; i++)
        sum += row->lengths[i];
    if (sum != (int64_t)row->token_count)
        return tsr_fail(TSR_EDATA,
                        "%s: \"seq_lengths\" add up to %lld, but \"input_ids\" has %zu tokens",
                        place, (long long)sum, row->token_count);
    return TSR_OK;
}

/* attention_mask and position_ids say nothing new here, but where they disagree with what will be
 * trained (padding, documents without seq_lengths), the row means something else. */
static tsr_status check_companions(const tsr_row *row, const json_t *object, const char *place)
{
    const char *keys[] = {"attention_mask", "position_ids"};
    for (int k = 0; k < 2; k++) {
        if (!tsr_json_has(object, keys[k]))
            continue;
        json_t *list;
        TSR_TRY(tsr_json_array(&list, object, keys[k], place));
        if (json_array_size(list) != row->token_count)
            return tsr_fail(TSR_EDATA, "%s: \"%s\" has %zu entries, but \"input_ids\" has %zu",
                            place, keys[k], json_array_size(list), row->token_count);
        size_t at = 0;
        for (size_t d = 0; d < row->document_count; d++)
            for (int32_t t = 0; t < row->lengths[d]; t++, at++) {
                const json_t *item = json_array_get(list, at);
                if (json_is_integer(item) && json_integer_value(item) == (k ? t : 1))
                    continue;
                char show[TSR_JSON_SHOW_BYTES];
                return tsr_fail(TSR_EDATA, "%s: \"%s\"[%zu] is %s, expected %d: %s", place, keys[k],
                                at, tsr_json_show(show, item), k ? t : 1,
                                k ? "documents of a row are given by \"seq_lengths\""
                                  : "rows must not be padded");
            }
    }
    return TSR_OK;
}

static tsr_status read_pretokenized(tsr_row *row, const json_t *object,
                                    const tsr_dataset_options *options, const char *place)
{
    int64_t most = options->vocab_size ? options->vocab_size - 1 : INT32_MAX;
    json_t *ids, *labels = NULL, *lengths = NULL;
    TSR_TRY(tsr_json_array(&ids, object, "input_ids", place));
    size_t count = json_array_size(ids);
    if (!count)
        return tsr_fail(TSR_EDATA, "%s: \"input_ids\" is empty", place);
    if (count > INT32_MAX)
        return tsr_fail(TSR_EDATA, "%s: %zu tokens are more than 2^31 - 1", place, count);
    if (tsr_json_has(object, "labels"))
        TSR_TRY(tsr_json_array(&labels, object, "labels", place));
    if (tsr_json_has(object, "seq_lengths"))
        TSR_TRY(tsr_json_array(&lengths, object, "seq_lengths", place));
    if (labels && json_array_size(labels) != count)
        return tsr_fail(TSR_EDATA, "%s: \"labels\" has %zu entries, but \"input_ids\" has %zu",
                        place, json_array_size(labels), count);
    TSR_TRY(reserve(row, count, lengths ? json_array_size(lengths) : 1));
    TSR_TRY(read_integers(row->ids, ids, "input_ids", 0, most, false, place));
    if (labels)
        TSR_TRY(read_integers(row->labels, labels, "labels", 0, most, true, place));
    else
        memcpy(row->labels, row->ids, count * sizeof *row->labels);
    TSR_TRY(read_lengths(row, object, place));
    return check_companions(row, object, place);
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

tsr_status tsr_row_read(tsr_row *row, const json_t *object, tsr_data_format format,
                        const tsr_dataset_options *options, const char *place)
{
    if (format == TSR_DATA_PRETOKENIZED) {
        TSR_TRY(read_pretokenized(row, object, options, place));
    } else {
        TSR_TRY(read_messages(row, object, options, place));
        for (size_t i = 0; options->vocab_size && i < row->token_count; i++)
            if (row->ids[i] >= options->vocab_size)
                return tsr_fail(TSR_EDATA,
                                "%s: token %zu has the id %d, but the model's vocabulary ends at "
                                "%lld: the tokenizer does not belong to this model",
                                place, i, row->ids[i], (long long)options->vocab_size - 1);
    }
    settle_labels(row);
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
