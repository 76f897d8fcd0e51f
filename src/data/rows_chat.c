/*
 * rows_chat.c: rows that are conversations: messages, sharegpt, and prompt/completion whose two
 * parts are lists of messages.
 */
#include "data/rows_parts.h"
#include "io/json.h"

#include <string.h>
#include <strings.h>

/* What is trained of the row whose tokens are known, by response_template. */
static void train_response(tsr_row *row, const tsr_dataset_options *options)
{
    tsr_chat_row *chat = &row->chat;
    size_t end;
    bool found = tsr_row_find_response(&end, row, &chat->text, options);
    for (size_t i = 0; i < chat->tokens.count; i++)
        if (!found || chat->tokens.spans[i].begin < end)
            chat->mask[i] = 0;
}

/* One list of messages through the template; the first prompt_count are not trained. */
static tsr_status encode(tsr_row *row, const json_t *messages, const json_t *tools,
                         size_t prompt_count, const tsr_dataset_options *options, const char *place)
{
    json_auto_t *prepared = NULL;
    int shift;
    bool marked = options->response_template;
    for (size_t i = 0; i < json_array_size(messages); i++)
        tsr_row_note_keys(row, json_array_get(messages, i), tsr_chat_training_keys);
    TSR_TRY(tsr_row_prepare_messages(&prepared, &shift, messages, options, place));
    prompt_count = prompt_count && !marked ? (size_t)((int64_t)prompt_count + shift) : 0;
    tsr_chat_training training = options->training;
    training.assistant_only = !marked && options->assistant_only != TSR_LOSS_NO;
    tsr_status status =
        tsr_chat_encode(&row->chat, options->chat, prepared, tools, prompt_count, &training);
    if (status < 0)
        return tsr_fail(status, "%s: %s%s", place, tsr_last_error(),
                        shift > 0   ? " (messages[0] is default_system)"
                        : shift < 0 ? " (counted without the system turn, which is dropped)"
                                    : "");
    size_t count = row->chat.tokens.count;
    if (!count)
        return tsr_fail(TSR_EDATA, "%s: the chat has no token", place);
    if (count > INT32_MAX)
        return tsr_fail(TSR_EDATA, "%s: %zu tokens are more than 2^31 - 1", place, count);
    if (marked)
        train_response(row, options);
    TSR_TRY(tsr_row_reserve(row, count, 1));
    row->lengths[0] = (int32_t)count;
    for (size_t i = 0; i < count; i++) {
        row->ids[i] = row->chat.tokens.ids[i];
        row->labels[i] = row->chat.mask[i] ? row->ids[i] : TSR_LABEL_IGNORED;
    }
    row->findings |= row->chat.findings;
    return TSR_OK;
}

static tsr_status refuse_kwargs(const json_t *object, const char *place)
{
    if (!tsr_json_has(object, "chat_template_kwargs"))
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: \"chat_template_kwargs\" of a row are not supported by this version; "
                    "remove the key",
                    place);
}

tsr_status tsr_row_read_tools(json_t **out, const json_t *object, const char *place)
{
    json_t *tools = json_object_get(object, "tools");
    *out = NULL;
    TSR_TRY(refuse_kwargs(object, place));
    if (!tools || json_is_null(tools))
        return TSR_OK;
    if (!json_is_string(tools)) {
        TSR_TRY(tsr_json_array(&tools, object, "tools", place));
        *out = json_incref(tools);
        return TSR_OK;
    }
    const char *text = json_string_value(tools);
    if (!text[strspn(text, " \t\r\n")])
        return TSR_OK;
    tools = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    bool none = json_is_null(tools);
    if (json_is_array(tools)) {
        *out = tools;
        return TSR_OK;
    }
    json_decref(tools);
    return none ? TSR_OK
                : tsr_fail(TSR_EDATA, "%s: \"tools\" is a string that is not the JSON of a list",
                           place);
}

tsr_status tsr_row_read_messages(tsr_row *row, const json_t *object,
                                 const tsr_dataset_options *options, const char *place)
{
    json_auto_t *tools = NULL;
    json_t *messages;
    TSR_TRY(tsr_json_array(&messages, object, "messages", place));
    if (!json_array_size(messages))
        return tsr_fail(TSR_EDATA, "%s: \"messages\" is empty", place);
    TSR_TRY(tsr_row_read_tools(&tools, object, place));
    return encode(row, messages, tools, 0, options, place);
}

tsr_status tsr_row_read_turns(tsr_row *row, const json_t *object, const json_t *prompt,
                              const json_t *completion, const tsr_dataset_options *options,
                              const char *place)
{
    json_auto_t *tools = NULL,
                *both = json_copy((json_t *)(uintptr_t)prompt); /* shares its elements */
    if (!json_array_size(prompt) || !json_array_size(completion))
        return tsr_fail(TSR_EDATA, "%s: \"%s\" is empty", place,
                        json_array_size(prompt) ? "completion" : "prompt");
    TSR_TRY(tsr_row_read_tools(&tools, object, place));
    if (!both || json_array_extend(both, (json_t *)(uintptr_t)completion))
        return tsr_fail(TSR_ENOMEM, "no memory for messages");
    size_t prompt_count = options->completion_only == TSR_LOSS_NO ? 0 : json_array_size(prompt);
    return encode(row, both, tools, prompt_count, options, place);
}

/* ---- sharegpt ---- */

/* A function_call's value, {"name", "arguments"} or a list of them as JSON in a string, as
 * tool_calls. */
static tsr_status read_calls(json_t **out, const char *text, size_t turn, const char *place)
{
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_t *list = json_is_array(value) ? json_incref(value) : json_pack("[O*]", value);
    json_t *calls = json_array();
    bool fine = value && list && calls && json_array_size(list);
    for (size_t i = 0; fine && i < json_array_size(list); i++) {
        json_t *call = json_array_get(list, i);
        fine = json_is_string(json_object_get(call, "name")) && tsr_json_has(call, "arguments") &&
               !json_array_append_new(
                   calls, json_pack("{s:s, s:O}", "type", "function", "function", call));
    }
    json_decref(list);
    json_decref(value);
    if (fine) {
        *out = calls;
        return TSR_OK;
    }
    json_decref(calls);
    return tsr_fail(TSR_EDATA,
                    "%s: \"conversations\"[%zu] is a function_call whose value is not the JSON of "
                    "{\"name\": ..., \"arguments\": ...} or of a list of these",
                    place, turn);
}

static tsr_status unknown_speaker(const json_t *from, size_t index, const char *place)
{
    char show[TSR_JSON_SHOW_BYTES];
    tsr_auto_text others = {0};
    tsr_chat_put_roles(&others);
    return tsr_fail(TSR_EDATA,
                    "%s: \"conversations\"[%zu] is from %s, expected human, gpt, system, tool, "
                    "function_call, or another word for one of them (user, assistant, %s)",
                    place, index, tsr_json_show(show, from), tsr_text_string(&others));
}

/* Some data sets have messages under ShareGPT's key. */
static bool is_message(const json_t *turn)
{
    return tsr_json_has(turn, "role") && !tsr_json_has(turn, "from");
}

/* Who speaks, by either name. */
static const char *speaker_of(const json_t *turn)
{
    return json_string_value(json_object_get(turn, is_message(turn) ? "role" : "from"));
}

/* One turn as a message; the caller owns *out. */
static tsr_status read_turn(json_t **out, const json_t *turn, size_t index, const char *place)
{
    const json_t *from = json_object_get(turn, "from"), *value = json_object_get(turn, "value");
    if (is_message(turn)) {
        *out = json_copy((json_t *)(uintptr_t)turn);
        return *out ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for messages");
    }
    if (!json_is_string(from) || !json_is_string(value))
        return tsr_fail(TSR_EDATA,
                        "%s: \"conversations\"[%zu] is neither an object {\"from\": \"human\", "
                        "\"value\": \"...\"} nor a message {\"role\": \"user\", \"content\": "
                        "\"...\"}",
                        place, index);
    bool is_call = !strcasecmp(json_string_value(from), "function_call");
    const char *role = is_call ? "assistant" : tsr_chat_standard_role(json_string_value(from));
    if (!role)
        return unknown_speaker(from, index, place);
    json_t *calls = NULL;
    if (is_call)
        TSR_TRY(read_calls(&calls, json_string_value(value), index, place));
    *out = is_call ? json_pack("{s:s, s:s, s:o}", "role", role, "content", "", "tool_calls", calls)
                   : json_pack("{s:s, s:O}", "role", role, "content", value);
    return *out ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for messages");
}

/* Adds a turn to *messages; what it says of its training goes with it. */
static tsr_status add_turn(json_t *messages, const json_t *turn, size_t index, const char *place)
{
    json_t *message;
    TSR_TRY(read_turn(&message, turn, index, place));
    bool failed = json_array_append_new(messages, message) != 0;
    for (size_t i = 0; tsr_chat_training_keys[i] && !failed; i++) {
        json_t *value = json_object_get(turn, tsr_chat_training_keys[i]);
        failed = value && json_object_set(message, tsr_chat_training_keys[i], value);
    }
    return failed ? tsr_fail(TSR_ENOMEM, "no memory for messages") : TSR_OK;
}

/* LLaMA-Factory's rows have the system prompt in a key of its own. There, as here, one that is the
 * first turn takes its place. */
static tsr_status read_system(json_t *messages, const json_t *object, const json_t *turns,
                              const char *place)
{
    const char *text;
    const char *first = speaker_of(json_array_get(turns, 0));
    const char *role = first ? tsr_chat_standard_role(first) : NULL;
    if (!tsr_json_has(object, "system") || (role && !strcmp(role, "system")))
        return TSR_OK;
    TSR_TRY(tsr_json_string(&text, object, "system", place));
    if (!*text)
        return TSR_OK;
    return json_array_append_new(messages,
                                 json_pack("{s:s, s:s}", "role", "system", "content", text))
               ? tsr_fail(TSR_ENOMEM, "no memory for messages")
               : TSR_OK;
}

static tsr_status read_conversation(json_t *messages, tsr_row *row, const json_t *object,
                                    const char *place)
{
    json_t *turns;
    TSR_TRY(tsr_json_array(&turns, object, "conversations", place));
    if (!json_array_size(turns))
        return tsr_fail(TSR_EDATA, "%s: \"conversations\" is empty", place);
    TSR_TRY(read_system(messages, object, turns, place));
    for (size_t i = 0; i < json_array_size(turns); i++) {
        tsr_row_note_keys(row, json_array_get(turns, i), tsr_chat_training_keys);
        TSR_TRY(add_turn(messages, json_array_get(turns, i), i, place));
    }
    return TSR_OK;
}

tsr_status tsr_row_read_sharegpt(tsr_row *row, const json_t *object,
                                 const tsr_dataset_options *options, const char *place)
{
    json_t *messages = json_array(), *tools = NULL;
    tsr_status status = messages ? read_conversation(messages, row, object, place)
                                 : tsr_fail(TSR_ENOMEM, "no memory for messages");
    if (status >= 0)
        status = tsr_row_read_tools(&tools, object, place);
    if (status >= 0)
        status = encode(row, messages, tools, 0, options, place);
    json_decref(messages);
    json_decref(tools);
    return status;
}
