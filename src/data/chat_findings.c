/*
 * chat_findings.c: what is worth a warning about a row: what it asks for and does not get, and what of it its
 * template leaves out.
 */
#include "data/chat_parts.h"

#include <string.h>

/* Whether a message asks to be trained that is not: of the prompt, or not the assistant's. */
static bool asks_in_vain(const json_t *messages, size_t prompt_count, bool assistant_only)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (tsr_chat_asks_training(message) == 1 &&
            (i < prompt_count || (assistant_only && !tsr_chat_is_assistant(message))))
            return true;
    }
    return false;
}

static bool is_blank(const json_t *text)
{
    const char *string = json_string_value(text);
    return !string || !string[strspn(string, " \t\r\n")];
}

static bool has_calls(const json_t *message)
{
    return json_array_size(json_object_get(message, "tool_calls")) > 0;
}

/* Whether the text stays the same without the tool_calls of all messages. */
static tsr_status loses_calls(bool *out, const tsr_conversation *c)
{
    tsr_rendering *without = &c->row->scratch[1];
    json_t *list = json_array();
    bool any = false, failed = !list;
    for (size_t i = 0; i < json_array_size(c->seen); i++) {
        json_t *message = json_copy(json_array_get(c->seen, i));
        any |= has_calls(message);
        json_object_del(message, "tool_calls");
        failed |= json_array_append_new(list, message) != 0;
    }
    tsr_status status = failed ? tsr_fail(TSR_ENOMEM, "no memory for messages") : TSR_OK;
    *out = false;
    if (any && status == TSR_OK) {
        status = tsr_chat_render(without, c->chat, list, json_array_size(list), false);
        *out = status == TSR_OK && without->text.length == c->row->text.length &&
               !memcmp(tsr_text_string(&without->text), tsr_text_string(&c->row->text),
                       without->text.length);
    }
    json_decref(list);
    return status == TSR_EDATA ? TSR_OK : status; /* it needs them */
}

/* Whether an assistant's message has words that the text has too. */
static bool has_words(const json_t *message, bool calls_lost)
{
    bool words = !is_blank(json_object_get(message, "content"));
    for (int i = 0; i < TSR_CHAT_THOUGHTS; i++)
        words |= !is_blank(json_object_get(message, tsr_chat_thoughts[i]));
    return words || (has_calls(message) && !calls_lost);
}

tsr_status tsr_chat_find(const tsr_conversation *c, size_t prompt_count, bool assistant_only)
{
    bool calls_lost;
    size_t bare = 0, worded = 0;
    TSR_TRY(loses_calls(&calls_lost, c));
    for (size_t i = prompt_count; i < json_array_size(c->messages); i++) {
        const json_t *message = json_array_get(c->messages, i);
        if (!tsr_chat_is_assistant(message) || tsr_chat_asks_training(message) == 0)
            continue;
        bool words = has_words(message, calls_lost);
        bare += !words;
        worded += words;
    }
    bool parts = assistant_only || prompt_count; /* or else all is trained */
    bool in_vain = asks_in_vain(c->messages, prompt_count, assistant_only);
    c->row->findings = (unsigned)in_vain << TSR_FINDING_IN_VAIN |
                       (unsigned)calls_lost << TSR_FINDING_CALLS |
                       (unsigned)(parts && bare) << TSR_FINDING_BARE |
                       (unsigned)(parts && bare && !worded) << TSR_FINDING_HOLLOW;
    return TSR_OK;
}
