/*
 * rows_segments.c: rows that say themselves what is trained: {segments: [{label, text}]}, axolotl's input_output.
 *
 * Each segment is tokenised alone, without special tokens but those in its text, and nothing is appended: the text of a row is
 * that of its segments, as it is there. Tokens never span two of them.
 */
#include "data/rows_parts.h"
#include "io/json.h"

#include <string.h>

static tsr_status read_segment(const char **text, bool *trained, const json_t *segment,
                               size_t index, const char *place)
{
    const json_t *label = json_object_get(segment, "label");
    *text = json_string_value(json_object_get(segment, "text"));
    *trained = json_is_true(label);
    if (!*text || !json_is_boolean(label))
        return tsr_fail(TSR_EDATA,
                        "%s: \"segments\"[%zu] is not an object {\"label\": true or false, "
                        "\"text\": \"...\"}",
                        place, index);
    return TSR_OK;
}

/* Appends the tokens of one segment. */
static tsr_status add_segment(tsr_row *row, const char *text, bool trained,
                              const tsr_dataset_options *options, const char *place)
{
    tsr_tokens *tokens = &row->chat.tokens;
    size_t before = row->token_count;
    tsr_tokens_clear(tokens);
    tsr_status status = tsr_tokenizer_encode(tokens, options->tokenizer, text, strlen(text), false);
    if (status < 0)
        return tsr_fail(status, "%s: %s", place, tsr_last_error());
    if (tokens->count > (size_t)INT32_MAX - before)
        return tsr_fail(TSR_EDATA, "%s: more than 2^31 - 1 tokens", place);
    TSR_TRY(tsr_row_reserve(row, before + tokens->count, 1));
    for (size_t i = 0; i < tokens->count; i++) {
        row->ids[before + i] = tokens->ids[i];
        row->labels[before + i] = trained ? tokens->ids[i] : TSR_LABEL_IGNORED;
    }
    return TSR_OK;
}

tsr_status tsr_row_read_input_output(tsr_row *row, const json_t *object,
                                     const tsr_dataset_options *options, const char *place)
{
    json_t *segments;
    bool all = options->completion_only == TSR_LOSS_NO;
    TSR_TRY(tsr_json_array(&segments, object, "segments", place));
    row->token_count = 0;
    for (size_t i = 0; i < json_array_size(segments); i++) {
        const char *text;
        bool trained;
        TSR_TRY(read_segment(&text, &trained, json_array_get(segments, i), i, place));
        TSR_TRY(add_segment(row, text, trained || all, options, place));
    }
    if (!row->token_count)
        return tsr_fail(TSR_EDATA, "%s: \"segments\" have no text", place);
    row->lengths[0] = (int32_t)row->token_count;
    return TSR_OK;
}
