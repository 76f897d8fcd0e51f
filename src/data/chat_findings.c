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
    const tsr_text *text = &c->row->text;
    size_t i = 0, count = json_array_size(c->seen);
    *out = false;
    while (i < count && !has_calls(json_array_get(c->seen, i)))
        i++;
    if (i == count)
        return TSR_OK;
    json_t *list = json_deep_copy(c->seen);
    for (i = 0; i < json_array_size(list); i++)
        json_object_del(json_array_get(list, i), "tool_calls");
    tsr_status status = list ? tsr_chat_render(without, c->chat, list, count, false)
                             : tsr_fail(TSR_ENOMEM, "no memory for messages");
    json_decref(list);
    *out = status == TSR_OK && without->text.length == text->length &&
           !memcmp(tsr_text_string(&without->text), tsr_text_string(text), text->length);
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

/* Whether a text holds `part`, white space at its ends aside; also if nothing is left of it. */
static bool holds(const tsr_text *text, const char *part, size_t bytes)
{
    while (bytes && strchr(" \t\r\n", part[bytes - 1]))
        bytes--;
    while (bytes && strchr(" \t\r\n", *part)) {
        part++;
        bytes--;
    }
    return !bytes || memmem(tsr_text_string(text), text->length, part, bytes);
}

/* Whether the text lacks what an assistant's message thinks, in a key of its own or at the head of its content. */
static bool loses_thought(const tsr_text *text, const json_t *message)
{
    static const char begin[] = "<think>", end[] = "</think>";
    const char *content = json_string_value(json_object_get(message, "content"));
    for (int i = 0; i < TSR_CHAT_THOUGHTS; i++) {
        const char *thought = json_string_value(json_object_get(message, tsr_chat_thoughts[i]));
        if (thought && !holds(text, thought, strlen(thought)))
            return true;
    }
    const char *from = content ? strstr(content, begin) : NULL;
    const char *to = from ? strstr(from, end) : NULL;
    return to && !holds(text, from + sizeof begin - 1, (size_t)(to - from) - (sizeof begin - 1));
}

tsr_status tsr_chat_find(tsr_conversation *c, size_t prompt_count, bool assistant_only)
{
    bool calls_lost, thought_lost = false;
    size_t bare = 0, worded = 0;
    TSR_TRY(loses_calls(&calls_lost, c));
    for (size_t i = prompt_count; i < json_array_size(c->messages); i++) {
        const json_t *message = json_array_get(c->messages, i);
        if (!tsr_chat_is_assistant(message) || tsr_chat_asks_training(message) == 0)
            continue;
        bool words = has_words(message, calls_lost);
        bare += !words;
        worded += words;
        thought_lost = thought_lost || loses_thought(&c->row->text, message);
    }
    bool parts = assistant_only || prompt_count; /* or else all is trained */
    bool in_vain = asks_in_vain(c->messages, prompt_count, assistant_only);
    c->row->findings |= (unsigned)in_vain << TSR_FINDING_IN_VAIN |
                        (unsigned)calls_lost << TSR_FINDING_CALLS |
                        (unsigned)thought_lost << TSR_FINDING_THINKING |
                        (unsigned)(parts && bare) << TSR_FINDING_BARE |
                        (unsigned)(parts && bare && !worded) << TSR_FINDING_HOLLOW;
    return TSR_OK;
}
