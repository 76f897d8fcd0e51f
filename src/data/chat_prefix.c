/*
 * chat_prefix.c: where a turn is, by rendering the messages up to it and through it: what the second adds to the
 * first is the turn, if the row's text begins with both.
 */
#include "data/chat_parts.h"

#include <stdio.h>
#include <string.h>

bool tsr_chat_begins(const tsr_text *text, const tsr_text *with)
{
    return with->length <= text->length &&
           (with->length == 0 || !memcmp(text->data, with->data, with->length));
}

/* What one row may cost over all its turns, in bytes of text, and what a message costs beside its text: some
 * seconds. */
#define MOST_RENDERED ((size_t)1 << 30)
#define MESSAGE_COST  256

static tsr_status cannot_tell(const char *why, size_t index)
{
    return tsr_fail(TSR_EDATA,
                    "messages[%zu]: %s, so the reply's tokens cannot be found; use a template with "
                    "{%% generation %%} marks (chat_template), split the row, or set "
                    "assistant_only_loss: false, which trains prompts too",
                    index, why);
}

/* The messages before; of the first one that is not the assistant's, nothing. */
static tsr_status render_before(tsr_rendering *out, const tsr_conversation *c, size_t index,
                                bool assistant)
{
    char reason[512];
    tsr_status status = TSR_OK;
    if (index || assistant)
        status = tsr_chat_render(out, c->chat, c->seen, index, assistant);
    else
        tsr_text_clear(&out->text);
    if (status != TSR_EDATA || index)
        return status;
    snprintf(reason, sizeof reason, "%s", tsr_last_error());
    return tsr_fail(TSR_EDATA,
                    "messages[0]: the assistant speaks first, and the chat template cannot render "
                    "the prompt before it (%s); put a user's message first, or leave the row out",
                    reason);
}

static size_t shared_prefix(const tsr_text *a, const tsr_text *b)
{
    size_t most = a->length < b->length ? a->length : b->length, length = 0;
    while (length < most && a->data[length] == b->data[length])
        length++;
    return length;
}

/* The rendering through the turn does not begin with `before`: says what is missing there. */
static tsr_status refuse_opening(const tsr_conversation *c, size_t index, const tsr_text *before,
                                 tsr_rendering *through)
{
    size_t shared = shared_prefix(before, &through->text);
    const char *text = tsr_text_string(before);
    if (tsr_chat_render(through, c->chat, c->seen, index, false) < 0 ||
        shared < through->text.length)
        return cannot_tell("the chat template renders the messages before this turn differently "
                           "once the turn follows",
                           index);
    while (shared > through->text.length && !strchr(">] \n", text[shared - 1]))
        shared--; /* to the beginning of a tag */
    return tsr_fail(TSR_EDATA,
                    "messages[%zu]: this chat template opens the reply with \"%.*s\", which the "
                    "finished conversation does not contain, so the reply's tokens cannot be "
                    "found; use a template with {%% generation %%} marks (chat_template), or set "
                    "assistant_only_loss: false, which trains prompts too",
                    index, (int)strcspn(text + shared, "\n"), text + shared);
}

tsr_status tsr_chat_turn_by_prefix(tsr_span *out, tsr_conversation *c, size_t index)
{
    tsr_rendering *before = &c->row->scratch[0], *through = &c->row->scratch[1];
    bool assistant = tsr_chat_is_assistant(json_array_get(c->messages, index));
    if (c->rendered > MOST_RENDERED)
        return cannot_tell("the turns of this row are found by rendering it once for each of them, "
                           "which would take too long",
                           index);
    TSR_TRY(render_before(before, c, index, assistant));
    TSR_TRY(tsr_chat_render(through, c->chat, c->seen, index + 1, false));
    c->rendered += MESSAGE_COST * (2 * index + 1) + before->text.length + through->text.length;
    if (!tsr_chat_begins(&through->text, &before->text))
        return refuse_opening(c, index, &before->text, through);
    if (!tsr_chat_begins(&c->row->text, &through->text))
        return cannot_tell("the template renders this turn differently once more messages follow "
                           "(earlier thinking dropped, say)",
                           index);
    *out = (tsr_span){before->text.length, through->text.length};
    return TSR_OK;
}
