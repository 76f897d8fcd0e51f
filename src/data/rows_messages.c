/*
 * rows_messages.c: the messages of a row as data/chat.h takes them: contents that are lists of parts, as OpenAI's, are
 * one text, and a system turn goes or comes.
 */
#include "data/rows_parts.h"
#include "io/json.h"

#include <string.h>

static tsr_status out_of_memory(void)
{
    return tsr_fail(TSR_ENOMEM, "no memory for messages");
}

/* The text of one part: {"type": "text", "text": ...}. NULL in *out: it has none. */
static tsr_status read_part(const char **out, const json_t *part, size_t message, size_t index,
                            const char *place)
{
    char show[TSR_JSON_SHOW_BYTES];
    const json_t *type = json_object_get(part, "type");
    const char *word = json_string_value(type);
    if (!word)
        return tsr_fail(TSR_EDATA,
                        "%s: messages[%zu]: \"content\"[%zu] is no part such as {\"type\": "
                        "\"text\", \"text\": \"...\"}",
                        place, message, index);
    if (strcmp(word, "text") != 0)
        return tsr_fail(TSR_EDATA,
                        "%s: messages[%zu]: \"content\"[%zu] is of type %s, but rows are text: "
                        "expected parts of type \"text\" alone",
                        place, message, index, tsr_json_show(show, type));
    *out = json_string_value(json_object_get(part, "text"));
    return *out ? TSR_OK
                : tsr_fail(TSR_EDATA,
                           "%s: messages[%zu]: \"content\"[%zu] is of type text without a string "
                           "\"text\"",
                           place, message, index);
}

/* The message with its parts as one text; the caller owns *out. */
static tsr_status join_parts(json_t **out, const json_t *message, size_t index, const char *place)
{
    const json_t *parts = json_object_get(message, "content");
    tsr_auto_text text = {0};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const char *part;
        TSR_TRY(read_part(&part, json_array_get(parts, i), index, i, place));
        tsr_text_puts(&text, part);
    }
    json_t *copy = json_copy((json_t *)(uintptr_t)message);
    json_t *content = text.failed ? NULL : json_string(tsr_text_string(&text));
    if (copy && content && json_object_set(copy, "content", content) == 0)
        *out = copy;
    else
        json_decref(copy);
    json_decref(content);
    return *out ? TSR_OK : out_of_memory();
}

/* Those behind the first `from`. */
static tsr_status add_messages(json_t *list, const json_t *messages, size_t from, const char *place)
{
    for (size_t i = from; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *joined = NULL;
        if (json_is_array(json_object_get(message, "content")))
            TSR_TRY(join_parts(&joined, message, i, place));
        if (joined ? json_array_append_new(list, joined) : json_array_append(list, message))
            return out_of_memory();
    }
    return TSR_OK;
}

static bool is_system(const json_t *message)
{
    const char *word = json_string_value(json_object_get(message, "role"));
    const char *role = word ? tsr_chat_standard_role(word) : NULL;
    return role && !strcmp(role, "system");
}

/* Behind the first `from`. */
static bool has_system(const json_t *messages, size_t from)
{
    for (size_t i = from; i < json_array_size(messages); i++)
        if (is_system(json_array_get(messages, i)))
            return true;
    return false;
}

tsr_status tsr_row_prepare_messages(json_t **out, int *shift, const json_t *messages,
                                    const tsr_dataset_options *options, const char *place)
{
    const char *system = options->default_system;
    bool drop = options->drop_system && is_system(json_array_get(messages, 0));
    bool add = system && !has_system(messages, drop);
    json_t *list = json_array();
    tsr_status status = list ? TSR_OK : out_of_memory();
    *shift = add - drop;
    if (add && status == TSR_OK &&
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "system", "content", system)))
        status = out_of_memory();
    if (status == TSR_OK)
        status = add_messages(list, messages, drop, place);
    if (status < 0)
        json_decref(list);
    else
        *out = list;
    return status;
}
