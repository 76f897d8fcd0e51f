/*
 * chat_turns.c: where a turn of the assistant begins and ends, by the places of words in one rendering.
 *
 *     ... what the user says <end of turn> <header> what the assistant says <end of turn> <next header> ...
 *                           |------- lead --------|                        |--- tail ----|
 *
 * The lead is what a rendering of the messages before with the generation prompt adds to the last words: the turn
 * begins behind it. It is rendered once for each role that comes before an assistant. The tail is what a rendering
 * that ends with a turn of the assistant adds to its words; that too is rendered once, and once more for turns with
 * calls. So the turns are those that renderings of all beginnings of the row would show (chat_prefix.c), in a time that
 * grows as the row does and not as its square.
 *
 * A turn may leave out the end of the generation prompt (DeepSeek-R1's <think>): it must begin with some of it, and
 * its words must follow.
 */
#include "data/chat_parts.h"

#include <string.h>

static const char *content_of(const tsr_conversation *c, size_t index)
{
    return json_string_value(json_object_get(json_array_get(c->seen, index), "content"));
}

static bool has_calls(const tsr_conversation *c, size_t index)
{
    return json_array_size(json_object_get(json_array_get(c->seen, index), "tool_calls")) > 0;
}

/* The marked messages before `index`, and `last` behind them, which is taken. */
static tsr_status render_with(tsr_rendering *out, const tsr_conversation *c, size_t index,
                              json_t *last, bool prompt)
{
    json_t *list = json_array();
    bool failed = !list || !last;
    for (size_t i = 0; i < index && !failed; i++)
        failed = json_array_append(list, json_array_get(c->marked, i)) != 0;
    failed = failed || json_array_append(list, last);
    tsr_status status = failed ? tsr_fail(TSR_ENOMEM, "no memory for messages")
                               : tsr_chat_render(out, c->chat, list, index + 1, prompt);
    json_decref(list);
    json_decref(last);
    return status;
}

/* The white space at the end of a content, behind its mark. */
static const char *space_behind(const tsr_conversation *c, size_t index)
{
    const char *content = content_of(c, index);
    return content ? content + tsr_chat_words(content).end : "";
}

/* A rendering as a prompt or not of the marked messages before `index`, the last of them without white space at its
 * end; *behind: the end of its mark. TSR_EDATA: it cannot be told. */
static tsr_status render_before(tsr_rendering *out, size_t *behind, const tsr_conversation *c,
                                size_t index, bool prompt)
{
    *behind = 0;
    if (!index)
        return tsr_chat_render(out, c->chat, c->marked, 0, prompt);
    json_t *last = json_copy(json_array_get(c->marked, index - 1));
    const char *marked = json_string_value(json_object_get(last, "content"));
    size_t bytes = marked ? strlen(marked) - strlen(space_behind(c, index - 1)) : 0;
    if (marked && json_object_set_new(last, "content", json_stringn(marked, bytes))) {
        json_decref(last);
        last = NULL;
    }
    TSR_TRY(render_with(out, c, index - 1, last, prompt));
    *behind = tsr_chat_behind_mark(c, &out->text, index - 1);
    return *behind == TSR_CHAT_NO_PLACE ? TSR_EDATA : TSR_OK;
}

/* ---- the lead ---- */

/* Whether the messages before the first turn that is looked for are rendered as a prompt as they are in the row; a
 * system prompt may have another place in it (Mistral). */
static bool same_history(const tsr_conversation *c, const tsr_text *prompt, size_t behind)
{
    const tsr_text *all = &c->row->scratch[2].text;
    return behind <= all->length &&
           (!behind || !memcmp(tsr_text_string(prompt), tsr_text_string(all), behind));
}

static tsr_status learn_lead(tsr_conversation *c, tsr_chat_lead *lead, size_t index)
{
    tsr_rendering *prompt = &c->row->scratch[1];
    size_t behind;
    tsr_status status = render_before(prompt, &behind, c, index, true);
    if (status < 0)
        return status == TSR_EDATA ? TSR_OK : status;
    if (lead == c->leads && !same_history(c, &prompt->text, behind))
        return TSR_OK;
    tsr_text_append(&lead->text, tsr_text_string(&prompt->text) + behind,
                    prompt->text.length - behind);
    lead->ends = TSR_CHAT_NO_PLACE;
    lead->usable = !lead->text.failed;
    return lead->usable ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for the text of a row");
}

/* The lead of turn `index`; NULL in *out: none that is known. */
static tsr_status find_lead(tsr_chat_lead **out, tsr_conversation *c, size_t index)
{
    const json_t *before = index ? json_array_get(c->seen, index - 1) : NULL;
    const char *role = before ? json_string_value(json_object_get(before, "role")) : "";
    int i = 0;
    while (i < c->lead_count && strcmp(c->leads[i].role, role) != 0)
        i++;
    *out = NULL;
    if (i == TSR_CHAT_MOST_LEADS)
        return TSR_OK;
    if (i == c->lead_count) {
        c->leads[c->lead_count++].role = role;
        TSR_TRY(learn_lead(c, &c->leads[i], index));
    }
    if (c->leads[i].usable && c->leads[0].usable)
        *out = &c->leads[i];
    return TSR_OK;
}

/* ---- the beginning ---- */

static size_t shared_prefix(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t most = a_bytes < b_bytes ? a_bytes : b_bytes, length = 0;
    while (length < most && a[length] == b[length])
        length++;
    return length;
}

static size_t shared_suffix(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t most = a_bytes < b_bytes ? a_bytes : b_bytes, length = 0;
    while (length < most && a[a_bytes - 1 - length] == b[b_bytes - 1 - length])
        length++;
    return length;
}

/* Learns how much of a lead is the end of the message before it, by a rendering without generation prompt. */
static tsr_status learn_ends(tsr_conversation *c, tsr_chat_lead *lead, size_t index)
{
    tsr_rendering *before = &c->row->scratch[1];
    size_t behind;
    if (lead->ends != TSR_CHAT_NO_PLACE)
        return TSR_OK;
    lead->ends = lead->text.length;
    tsr_status status = render_before(before, &behind, c, index, false);
    if (status < 0)
        return status == TSR_EDATA ? TSR_OK : status;
    lead->ends =
        shared_prefix(tsr_text_string(&before->text) + behind, before->text.length - behind,
                      tsr_text_string(&lead->text), lead->text.length);
    return TSR_OK;
}

/* Of a turn whose text has only the first `shared` bytes behind `from` in common with its lead: where its content
 * begins, if these bytes reach it. */
static bool find_content(size_t *out, const tsr_conversation *c, size_t index, size_t from,
                         size_t shared)
{
    const char *text = tsr_text_string(&c->row->text), *content = content_of(c, index);
    size_t words = c->row->places[index].begin;
    if (words == TSR_CHAT_NO_PLACE || words < from)
        return false;
    size_t skipped = tsr_chat_words(content).begin, spaces = tsr_chat_space(content);
    size_t kept = shared_suffix(text + from, words - from, content, skipped);
    if (kept == skipped && spaces < skipped) { /* thinking that was kept begins the content */
        words -= skipped - spaces;
        kept = spaces;
    }
    size_t space = 0;
    while (space < kept && strchr(" \t\r\n", text[words - 1 - space]))
        space++;
    *out = from + shared < words ? from + shared : words;
    return *out + space >= words;
}

/* Where the lead of turn `index` begins in the text, and how much of it is there: behind the white space of the
 * message before, if the template kept that. */
static size_t match_lead(size_t *shared, const tsr_conversation *c, const tsr_chat_lead *lead,
                         size_t index)
{
    const tsr_text *text = &c->row->text;
    size_t from = index ? c->row->places[index - 1].end : 0, best = from;
    const char *space = index ? space_behind(c, index - 1) : "";
    bool any = false;
    *shared = 0;
    for (int kept = 1; kept >= 0; kept--) {
        size_t skip = kept ? strlen(space) : 0;
        if (skip > text->length - from || memcmp(tsr_text_string(text) + from, space, skip) != 0)
            continue;
        size_t found =
            shared_prefix(tsr_text_string(text) + from + skip, text->length - from - skip,
                          tsr_text_string(&lead->text), lead->text.length);
        if (!any || found > *shared) {
            *shared = found;
            best = from + skip;
            any = true;
        }
    }
    return best;
}

static tsr_status find_begin(bool *found, size_t *out, tsr_conversation *c, size_t index)
{
    tsr_chat_lead *lead;
    size_t shared;
    *found = false;
    TSR_TRY(find_lead(&lead, c, index));
    if (!lead || (index && c->row->places[index - 1].end == TSR_CHAT_NO_PLACE))
        return TSR_OK;
    size_t from = match_lead(&shared, c, lead, index);
    *out = from + shared;
    *found = shared == lead->text.length;
    if (*found)
        return TSR_OK;
    TSR_TRY(learn_ends(c, lead, index));
    *found = shared > lead->ends && find_content(out, c, index, from, shared);
    if (*found)
        c->row->findings |= 1u << TSR_FINDING_UNPROMPTED;
    return TSR_OK;
}

/* ---- the tail ---- */

/* Renders the messages before `index` and a turn of the assistant that is a mark alone. */
static tsr_status learn_tail(tsr_conversation *c, size_t index)
{
    tsr_rendering *through = &c->row->scratch[1];
    const json_t *role = json_object_get(json_array_get(c->seen, index), "role");
    json_t *last = tsr_chat_mark_alone(c, index, json_string_value(role));
    tsr_status status = render_with(through, c, index, last, false);
    c->tail_state = TSR_TAIL_NONE;
    size_t behind = status < 0 ? TSR_CHAT_NO_PLACE : tsr_chat_behind_mark(c, &through->text, index);
    if (behind == TSR_CHAT_NO_PLACE)
        return status == TSR_EDATA ? TSR_OK : status;
    tsr_text_append(&c->tail, tsr_text_string(&through->text) + behind,
                    through->text.length - behind);
    c->tail_state = TSR_TAIL_KNOWN;
    return c->tail.failed ? tsr_fail(TSR_ENOMEM, "no memory for the text of a row") : TSR_OK;
}

/* Bytes of the tail where more follows: without the end of sequence that some templates put behind all (Phi-3). */
static size_t inner_tail(const tsr_conversation *c)
{
    const char *eos = json_string_value(json_object_get(c->chat->names, "eos_token"));
    size_t length = eos ? strlen(eos) : 0;
    bool ends = length && length < c->tail.length &&
                !memcmp(tsr_text_string(&c->tail) + c->tail.length - length, eos, length);
    return c->tail.length - (ends ? length : 0);
}

tsr_status tsr_chat_end(const char **out, size_t *bytes, tsr_conversation *c, size_t index)
{
    *out = NULL;
    if (!c->marked)
        TSR_TRY(tsr_chat_place(c));
    if (c->tail_state == TSR_TAIL_UNKNOWN)
        TSR_TRY(learn_tail(c, index));
    if (c->tail_state == TSR_TAIL_NONE)
        return TSR_OK;
    const char *tail = tsr_text_string(&c->tail);
    size_t begin = tsr_chat_space(tail), end = inner_tail(c);
    while (end > begin && strchr(" \t\r\n", tail[end - 1]))
        end--;
    *bytes = end > begin ? end - begin : 0;
    *out = *bytes ? tail + begin : NULL;
    return TSR_OK;
}

/* Learns whether a turn with calls ends with the same tail. */
static tsr_status learn_calls(tsr_conversation *c, size_t index)
{
    tsr_rendering *through = &c->row->scratch[1];
    if (c->calls_state != TSR_TAIL_UNKNOWN)
        return TSR_OK;
    c->calls_state = TSR_TAIL_NONE;
    tsr_status status = tsr_chat_render(through, c->chat, c->marked, index + 1, false);
    if (status < 0)
        return status == TSR_EDATA ? TSR_OK : status;
    const char *end = tsr_text_string(&through->text) + through->text.length;
    size_t bytes = c->tail.length;
    if (bytes <= through->text.length && !memcmp(end - bytes, tsr_text_string(&c->tail), bytes))
        c->calls_state = TSR_TAIL_KNOWN;
    return TSR_OK;
}

/* ---- the end ---- */

/* A turn of words alone, which end at `from`: behind the white space of its content, if the template kept that,
 * comes the tail. */
static bool find_tail(size_t *out, const tsr_conversation *c, size_t index, size_t from,
                      size_t tail_bytes)
{
    const char *text = tsr_text_string(&c->row->text) + from, *space = space_behind(c, index);
    size_t kept = strlen(space), left = c->row->text.length - from;
    const size_t skips[] = {kept, 0};
    for (int i = 0; i < 2; i++) {
        bool there = skips[i] + tail_bytes <= left && !memcmp(text, space, skips[i]) &&
                     !memcmp(text + skips[i], tsr_text_string(&c->tail), tail_bytes);
        *out = from + skips[i] + tail_bytes;
        if (there)
            return true;
    }
    return false;
}

static const char *find(const char *text, const char *end, const char *part, size_t bytes)
{
    return part && bytes ? memmem(text, (size_t)(end - text), part, bytes) : NULL;
}

/* A turn with calls: the tail must be there once between `from` and the words of the next message. */
static bool search_tail(size_t *out, const tsr_conversation *c, size_t index, size_t from,
                        size_t tail_bytes)
{
    const char *text = tsr_text_string(&c->row->text), *tail = tsr_text_string(&c->tail);
    tsr_span next = c->row->places[index + 1];
    size_t to = next.begin != TSR_CHAT_NO_PLACE ? next.begin : next.end;
    if (to == TSR_CHAT_NO_PLACE || to < from)
        return false;
    const char *at = find(text + from, text + to, tail, tail_bytes);
    if (!at || find(at + 1, text + to, tail, tail_bytes))
        return false;
    *out = (size_t)(at - text) + tail_bytes;
    return true;
}

static bool find_end(size_t *out, const tsr_conversation *c, size_t index, size_t begin)
{
    size_t words = c->row->places[index].end, inner = inner_tail(c);
    const size_t tails[] = {c->tail.length, inner};
    bool alone = !has_calls(c, index);
    if (alone && words == TSR_CHAT_NO_PLACE)
        return false;
    if (words == TSR_CHAT_NO_PLACE || words < begin)
        words = begin;
    for (int i = 0; i < 2; i++)
        if (alone ? find_tail(out, c, index, words, tails[i])
                  : search_tail(out, c, index, words, tails[i]))
            return true;
    return false;
}

tsr_status tsr_chat_turn_by_places(bool *found, tsr_span *out, tsr_conversation *c, size_t index)
{
    tsr_span turn;
    *found = false;
    if (!c->marked)
        TSR_TRY(tsr_chat_place(c));
    if (!c->placed || !tsr_chat_is_assistant(json_array_get(c->messages, index)))
        return TSR_OK;
    TSR_TRY(find_begin(found, &turn.begin, c, index));
    if (!*found)
        return TSR_OK;
    if (index + 1 == json_array_size(c->seen)) {
        *out = (tsr_span){turn.begin, c->row->text.length};
        return TSR_OK;
    }
    if (c->tail_state == TSR_TAIL_UNKNOWN)
        TSR_TRY(learn_tail(c, index));
    if (c->tail_state == TSR_TAIL_KNOWN && has_calls(c, index))
        TSR_TRY(learn_calls(c, index));
    bool known =
        has_calls(c, index) ? c->calls_state == TSR_TAIL_KNOWN : c->tail_state == TSR_TAIL_KNOWN;
    *found = known && find_end(&turn.end, c, index, turn.begin);
    if (*found)
        *out = turn;
    return TSR_OK;
}

tsr_status tsr_chat_turn(tsr_span *out, tsr_conversation *c, size_t index)
{
    bool found;
    TSR_TRY(tsr_chat_turn_by_places(&found, out, c, index));
    return found ? TSR_OK : tsr_chat_turn_by_prefix(out, c, index);
}
