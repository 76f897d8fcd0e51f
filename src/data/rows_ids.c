/*
 * rows_ids.c: rows that are tokens already.
 */
#include "data/rows_parts.h"
#include "io/json.h"

#include <string.h>

tsr_status tsr_row_read_integers(int32_t *out, const json_t *list, const char *key, int64_t least,
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
    TSR_TRY(tsr_row_read_integers(row->lengths, list, "seq_lengths", 1, INT32_MAX, false, place));
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

/* A mask of TRL's tokenised rows: what is 0 in it is not trained, whatever the labels say. */
static tsr_status apply_mask(tsr_row *row, const json_t *object, const char *key, const char *place)
{
    json_t *list;
    if (!tsr_json_has(object, key))
        return TSR_OK;
    TSR_TRY(tsr_json_array(&list, object, key, place));
    if (json_array_size(list) != row->token_count)
        return tsr_fail(TSR_EDATA, "%s: \"%s\" has %zu entries, but \"input_ids\" has %zu", place,
                        key, json_array_size(list), row->token_count);
    for (size_t i = 0; i < row->token_count; i++) {
        const json_t *item = json_array_get(list, i);
        int64_t value = json_integer_value(item);
        char show[TSR_JSON_SHOW_BYTES];
        if (!json_is_integer(item) || value < 0 || value > 1)
            return tsr_fail(TSR_EDATA, "%s: \"%s\"[%zu] is %s, expected 0 or 1", place, key, i,
                            tsr_json_show(show, item));
        if (!value)
            row->labels[i] = TSR_LABEL_IGNORED;
    }
    return TSR_OK;
}

tsr_status tsr_row_read_pretokenized(tsr_row *row, const json_t *object,
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
    TSR_TRY(tsr_row_reserve(row, count, lengths ? json_array_size(lengths) : 1));
    TSR_TRY(tsr_row_read_integers(row->ids, ids, "input_ids", 0, most, false, place));
    if (labels)
        TSR_TRY(tsr_row_read_integers(row->labels, labels, "labels", 0, most, true, place));
    else
        memcpy(row->labels, row->ids, count * sizeof *row->labels);
    TSR_TRY(apply_mask(row, object, "assistant_masks", place));
    if (options->completion_only != TSR_LOSS_NO)
        TSR_TRY(apply_mask(row, object, "completion_mask", place));
    TSR_TRY(read_lengths(row, object, place));
    return check_companions(row, object, place);
}
