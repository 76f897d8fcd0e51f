/*
 * chat_trained.c: what of a chat is trained where the row's roles or the ends of turns were chosen.
 *
 * Of a turn of the assistant that is all that the template adds for it, as without a choice. Of another's it is the words of
 * its content, without header, and what ends it. What ends a turn is learned from the assistant's: the text behind its words,
 * without white space (<|im_end|>, </s>); another's turn has an end where the same text follows its words.
 */
#include "data/chat_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    tsr_conversation *c;
    const tsr_chat_training *training;
    bool generation; /* {% generation %} has marked the assistant's turns already, */
    tsr_span *spans; /* with these, which may begin before a turn does; owned */
    size_t span_count;
    bool learned;    /* `end` is known, or that there is none */
    const char *end; /* what ends a turn; NULL: not known */
    size_t end_bytes;
    tsr_span last; /* the end of the last trained turn */
} chooser;

/* Marks the tokens that lie within bytes [begin, end) of the text, or takes the marks of all that touch them. */
static void set(tsr_conversation *c, size_t begin, size_t end, bool trained)
{
    const tsr_tokens *t = &c->row->tokens;
    size_t low = 0, high = t->count;
    while (low < high) { /* the first token that ends behind `begin` or is empty there */
        size_t middle = low + (high - low) / 2;
        if (t->spans[middle].end < begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < t->count && t->spans[i].begin < end; i++)
        if (trained ? t->spans[i].begin >= begin && t->spans[i].end <= end
                    : t->spans[i].end > begin)
            c->row->mask[i] = trained;
}

static bool is_trained(const chooser *m, const json_t *message)
{
    int asked = tsr_chat_asks_training(message);
    unsigned role = tsr_chat_role_bit(json_string_value(json_object_get(message, "role")));
    if (m->training->roles)
        return asked < 0 ? (m->training->roles & role) != 0 : asked == 1;
    return role & TSR_CHAT_ASSISTANT && asked != 0;
}

/* ---- what ends a turn ---- */

static tsr_status learn_end(chooser *m)
{
    size_t i = 0, count = json_array_size(m->c->messages);
    if (m->learned)
        return TSR_OK;
    m->learned = true;
    while (i < count && !tsr_chat_is_assistant(json_array_get(m->c->messages, i)))
        i++;
    if (i == count)
        return TSR_OK;
    TSR_TRY(tsr_chat_end(&m->end, &m->end_bytes, m->c, i));
    return m->end ? TSR_OK
                  : tsr_fail(TSR_EDATA,
                             "messages[%zu]: train_on_eot is about what ends a turn, but this chat "
                             "template puts nothing behind the assistant's words, or changes them",
                             i);
}

/* Where the end of the assistant's turn begins; turn.end: it has none. */
static size_t find_own_end(const chooser *m, tsr_span turn)
{
    const char *text = tsr_text_string(&m->c->row->text);
    for (size_t at = turn.end; m->end && at >= turn.begin + m->end_bytes; at--)
        if (!memcmp(text + at - m->end_bytes, m->end, m->end_bytes))
            return at - m->end_bytes;
    return turn.end;
}

/* The end behind the words of another's turn; false: it has none. */
static bool find_other_end(tsr_span *out, const chooser *m, size_t words_end)
{
    const tsr_text *text = &m->c->row->text;
    size_t at = words_end + tsr_chat_space(tsr_text_string(text) + words_end);
    *out = (tsr_span){at, at + m->end_bytes};
    return m->end && out->end <= text->length &&
           !memcmp(tsr_text_string(text) + at, m->end, m->end_bytes);
}

/* Takes back the end of a trained turn, or with LAST that of the one before it. */
static void settle_end(chooser *m, tsr_span end)
{
    if (m->training->ends == TSR_CHAT_ENDS_NONE)
        set(m->c, end.begin, end.end, false);
    if (m->training->ends == TSR_CHAT_ENDS_LAST)
        set(m->c, m->last.begin, m->last.end, false);
    m->last = end;
}

/* ---- turns ---- */

/* Finding turns takes the place of the rendering that has the marks. */
static tsr_status keep_spans(chooser *m)
{
    const tsr_rendering *marked = &m->c->row->scratch[0];
    size_t bytes = marked->span_count * sizeof *marked->spans;
    if (!m->generation || !bytes)
        return TSR_OK;
    m->spans = malloc(bytes);
    if (!m->spans)
        return tsr_fail(TSR_ENOMEM, "no memory for the turns of a row");
    memcpy(m->spans, marked->spans, bytes);
    m->span_count = marked->span_count;
    return TSR_OK;
}

/* Takes the marks of a turn, and of what {% generation %} marks with it. */
static void unmark(chooser *m, tsr_span turn)
{
    set(m->c, turn.begin, turn.end, false);
    for (size_t i = 0; i < m->span_count; i++)
        if (m->spans[i].begin < turn.end && m->spans[i].end > turn.begin)
            set(m->c, m->spans[i].begin, m->spans[i].end, false);
}

static tsr_status choose_assistant(chooser *m, size_t index, bool trained)
{
    tsr_span turn;
    bool ends = m->training->ends != TSR_CHAT_ENDS_TURN;
    bool all = m->training->ends == TSR_CHAT_ENDS_ALL;
    if (m->generation ? trained && !ends : !trained && !all)
        return TSR_OK; /* it is as it should be */
    if (ends)
        TSR_TRY(learn_end(m));
    TSR_TRY(tsr_chat_turn(&turn, m->c, index));
    if (!trained)
        unmark(m, turn);
    else if (!m->generation)
        set(m->c, turn.begin, turn.end, true);
    size_t at = ends ? find_own_end(m, turn) : turn.end;
    if (trained && ends && !all && at < turn.end)
        settle_end(m, (tsr_span){at, turn.end});
    if (!trained && all && at < turn.end)
        set(m->c, at, at + m->end_bytes, true);
    return TSR_OK;
}

static tsr_status cannot_tell(size_t index, const char *role)
{
    return tsr_fail(TSR_EDATA,
                    "messages[%zu] (role \"%s\"): the chat template changes contents, so its words "
                    "cannot be found for roles_to_train or train_on_eot: all; use another "
                    "chat_template, or leave the key out",
                    index, role);
}

/* The words of a content in the text, with the space that a tokenizer may put before them. False: they are not there as they
 * are in the row. */
static bool find_words(tsr_span *out, const tsr_conversation *c, size_t index)
{
    const char *text = tsr_text_string(&c->row->text);
    const char *content =
        json_string_value(json_object_get(json_array_get(c->seen, index), "content"));
    size_t end = c->placed ? c->row->places[index].end : TSR_CHAT_NO_PLACE;
    content = content ? content : "";
    size_t skip = tsr_chat_space(content), to = tsr_chat_words(content).end;
    size_t bytes = to > skip ? to - skip : 0;
    if (end == TSR_CHAT_NO_PLACE || end < bytes ||
        memcmp(text + end - bytes, content + skip, bytes))
        return false;
    *out = (tsr_span){end - bytes, end};
    if (bytes && out->begin && text[out->begin - 1] == ' ')
        out->begin--;
    return true;
}

static tsr_status choose_other(chooser *m, size_t index, const char *role, bool trained)
{
    tsr_span words, end;
    bool all = m->training->ends == TSR_CHAT_ENDS_ALL;
    if (!trained && !all)
        return TSR_OK;
    if (!m->c->marked)
        TSR_TRY(tsr_chat_place(m->c));
    if (!find_words(&words, m->c, index))
        return cannot_tell(index, role);
    TSR_TRY(learn_end(m));
    if (trained)
        set(m->c, words.begin, words.end, true);
    if (!find_other_end(&end, m, words.end))
        return TSR_OK;
    set(m->c, end.begin, end.end, true);
    if (trained)
        settle_end(m, end);
    return TSR_OK;
}

static tsr_status choose_each(chooser *m, size_t first)
{
    TSR_TRY(keep_spans(m));
    for (size_t i = first; i < json_array_size(m->c->messages); i++) {
        const json_t *message = json_array_get(m->c->messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        bool trained = is_trained(m, message);
        if (tsr_chat_is_assistant(message))
            TSR_TRY(choose_assistant(m, i, trained));
        else
            TSR_TRY(choose_other(m, i, role, trained));
    }
    return TSR_OK;
}

tsr_status tsr_chat_choose(tsr_conversation *c, size_t first, const tsr_chat_training *training)
{
    chooser m = {.c = c, .training = training};
    m.generation = tsr_template_marks_generation(c->chat->chosen);
    tsr_status status = choose_each(&m, first);
    free(m.spans);
    return status;
}
