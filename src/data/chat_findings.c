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

/* A part of a message, without white space at its ends. */
typedef struct {
    const char *text;
    size_t bytes;
} part;

static part trim(const char *text, size_t bytes)
{
    while (bytes && strchr(" \t\r\n", text[bytes - 1]))
        bytes--;
    while (bytes && strchr(" \t\r\n", *text)) {
        text++;
        bytes--;
    }
    return (part){text, bytes};
}

#define MOST_PARTS (TSR_CHAT_THOUGHTS + 1)

/* What an assistant's message thinks, in keys of its own and at the head of its content, and the rest of that. */
static int read_parts(part thoughts[MOST_PARTS], part *rest, const json_t *message)
{
    static const char begin[] = "<think>", end[] = "</think>";
    const char *content = json_string_value(json_object_get(message, "content"));
    int count = 0;
    for (int i = 0; i < TSR_CHAT_THOUGHTS; i++) {
        const char *thought = json_string_value(json_object_get(message, tsr_chat_thoughts[i]));
        if (thought)
            thoughts[count++] = trim(thought, strlen(thought));
    }
    content = content ? content : "";
    const char *from = strstr(content, begin), *to = from ? strstr(from, end) : NULL;
    if (to) {
        from += sizeof begin - 1;
        thoughts[count++] = trim(from, (size_t)(to - from));
        content = to + sizeof end - 1;
    }
    *rest = trim(content, strlen(content));
    return count;
}

static bool holds(const tsr_text *text, part p)
{
    return memmem(tsr_text_string(text), text->length, p.text, p.bytes);
}

/* Whether the text has any word of an assistant's message; *lost: it lacks some of its thinking. */
static bool shows_words(bool *lost, const tsr_text *text, const json_t *message, bool calls_lost)
{
    part thoughts[MOST_PARTS], rest;
    int count = read_parts(thoughts, &rest, message);
    bool words = rest.bytes || (has_calls(message) && !calls_lost);
    for (int i = 0; i < count; i++) {
        bool there = holds(text, thoughts[i]);
        *lost |= !there;
        words |= there && thoughts[i].bytes;
    }
    return words;
}

tsr_status tsr_chat_note_findings(tsr_conversation *c, size_t prompt_count, bool assistant_only)
{
    bool calls_lost, thought_lost = false;
    size_t bare = 0, worded = 0;
    TSR_TRY(loses_calls(&calls_lost, c));
    for (size_t i = prompt_count; i < json_array_size(c->messages); i++) {
        const json_t *message = json_array_get(c->messages, i);
        if (!tsr_chat_is_assistant(message) || tsr_chat_asks_training(message) == 0)
            continue;
        bool words = shows_words(&thought_lost, &c->row->text, message, calls_lost);
        bare += !words;
        worded += words;
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
