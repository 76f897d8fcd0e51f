/*
 * rows_text.c: rows that are plain text: text, prompt/completion, and alpaca, which is
 * prompt/completion under Stanford's prompt.
 *
 * A row is tokenised once, with the special tokens that the tokenizer adds, and ends with the end
 * of sequence token, which is added where it is missing. A token is trained when all of its bytes
 * lie in the completion: one that reaches over the edge is not.
 */
#include "data/rows_parts.h"
#include "io/json.h"

#include <string.h>

/* Tokenises row->chat.text; tokens that begin before byte `prompt_bytes` are not trained, or before the end of
 * response_template. */
static tsr_status encode(tsr_row *row, size_t prompt_bytes, const tsr_dataset_options *options,
                         const char *place)
{
    const tsr_text *text = &row->chat.text;
    tsr_tokens *tokens = &row->chat.tokens;
    if (text->failed)
        return tsr_fail(TSR_ENOMEM, "no memory for the text of a row");
    bool none =
        options->response_template && !tsr_row_find_response(&prompt_bytes, row, text, options);
    tsr_tokens_clear(tokens);
    tsr_status status =
        tsr_tokenizer_encode(tokens, options->tokenizer, tsr_text_string(text), text->length, true);
    if (status < 0)
        return tsr_fail(status, "%s: %s", place, tsr_last_error());
    size_t count = tokens->count;
    int32_t eos = options->eos_id;
    bool ended = count && tokens->ids[count - 1] == eos;
    if (count >= INT32_MAX)
        return tsr_fail(TSR_EDATA, "%s: %zu tokens are more than 2^31 - 1", place, count);
    TSR_TRY(tsr_row_reserve(row, count + !ended, 1));
    for (size_t i = 0; i < count; i++) {
        row->ids[i] = tokens->ids[i];
        row->labels[i] =
            !none && tokens->spans[i].begin >= prompt_bytes ? tokens->ids[i] : TSR_LABEL_IGNORED;
    }
    if (!ended) {
        row->ids[count] = eos;
        row->labels[count] = none ? TSR_LABEL_IGNORED : eos;
    }
    row->lengths[0] = (int32_t)row->token_count;
    return TSR_OK;
}

/* A string with its length: it may hold anything but U+0000. */
static tsr_status append_string(tsr_text *out, const json_t *object, const char *key,
                                const char *place)
{
    const char *text;
    TSR_TRY(tsr_json_string(&text, object, key, place));
    tsr_text_puts(out, text);
    return TSR_OK;
}

tsr_status tsr_row_read_text(tsr_row *row, const json_t *object, const tsr_dataset_options *options,
                             const char *place)
{
    const char *key = tsr_row_text_field(options);
    tsr_text_clear(&row->chat.text);
    TSR_TRY(append_string(&row->chat.text, object, key, place));
    if (!row->chat.text.length)
        return tsr_fail(TSR_EDATA, "%s: \"%s\" is empty", place, key);
    return encode(row, 0, options, place);
}

/* The prompt is in row->chat.text; the completion follows it. */
static tsr_status complete(tsr_row *row, const json_t *object, const char *key,
                           const tsr_dataset_options *options, const char *place)
{
    size_t prompt_bytes = row->chat.text.length;
    TSR_TRY(append_string(&row->chat.text, object, key, place));
    const char *completion = tsr_text_string(&row->chat.text) + prompt_bytes;
    bool alone = options->completion_only != TSR_LOSS_NO && !options->response_template;
    if (alone && !completion[strspn(completion, " \t\r\n")])
        row->findings |= 1u << TSR_FINDING_BARE | 1u << TSR_FINDING_HOLLOW;
    return encode(row, alone ? prompt_bytes : 0, options, place);
}

tsr_status tsr_row_read_prompt_completion(tsr_row *row, const json_t *object,
                                          const tsr_dataset_options *options, const char *place)
{
    const json_t *prompt = json_object_get(object, "prompt");
    const json_t *completion = json_object_get(object, "completion");
    bool turns = json_is_array(prompt), plain = json_is_string(prompt);
    if ((!turns && !plain) || json_typeof(prompt) != json_typeof(completion))
        return tsr_fail(TSR_EDATA,
                        "%s: \"prompt\" is %s and \"completion\" %s, expected two strings or two "
                        "lists of messages",
                        place, tsr_json_kind(prompt), tsr_json_kind(completion));
    if (turns ? !options->chat : !options->tokenizer)
        return tsr_fail(TSR_EDATA,
                        "%s: \"prompt\" is %s, but not in the first row; one data set has rows of "
                        "one kind",
                        place, turns ? "a list of messages" : "a string");
    if (turns)
        return tsr_row_read_turns(row, object, prompt, completion, options, place);
    if (options->assistant_only == TSR_LOSS_YES)
        return tsr_fail(TSR_EDATA,
                        "%s: assistant_only_loss: true needs conversations, and \"prompt\" is a "
                        "string; completion_only_loss trains the completion alone",
                        place);
    tsr_text_clear(&row->chat.text);
    TSR_TRY(append_string(&row->chat.text, object, "prompt", place));
    return complete(row, object, "completion", options, place);
}

/* ---- alpaca ---- */

/* The prompts of Stanford Alpaca (PROMPT_DICT in train.py of github.com/tatsu-lab/stanford_alpaca,
 * Taori et al. 2023); the output follows without a space or newline, as it does there. */
static const char with_input[] =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n### Instruction:\n%s"
    "\n\n### Input:\n%s\n\n### Response:";
static const char without_input[] =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n%s\n\n### Response:";

/* LLaMA-Factory's further columns would change the prompt. */
static tsr_status check_columns(const json_t *object, const char *place)
{
    static const char *const columns[] = {"system", "history"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(object, columns[i]);
        bool nothing = !value || json_is_null(value) ||
                       (json_is_string(value) && !json_string_length(value)) ||
                       (json_is_array(value) && !json_array_size(value));
        if (!nothing)
            return tsr_fail(TSR_EDATA,
                            "%s: \"%s\" has no place in the alpaca prompt; write the row as "
                            "{\"messages\": [{\"role\": ..., \"content\": ...}]}",
                            place, columns[i]);
    }
    return TSR_OK;
}

tsr_status tsr_row_read_alpaca(tsr_row *row, const json_t *object,
                               const tsr_dataset_options *options, const char *place)
{
    const char *instruction, *input = "";
    TSR_TRY(check_columns(object, place));
    TSR_TRY(tsr_json_string(&instruction, object, "instruction", place));
    if (tsr_json_has(object, "input"))
        TSR_TRY(tsr_json_string(&input, object, "input", place));
    tsr_text_clear(&row->chat.text);
    if (*input)
        tsr_text_printf(&row->chat.text, with_input, instruction, input);
    else
        tsr_text_printf(&row->chat.text, without_input, instruction);
    return complete(row, object, "output", options, place);
}
