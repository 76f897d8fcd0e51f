#include "data/chat_parts.h"

#include "base/auto.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW_STEPS (5 * TSR_TEMPLATE_STEPS) /* some seconds: turns are found by several renderings */

void tsr_chat_row_free(tsr_chat_row *row)
{
    tsr_text_free(&row->text);
    tsr_tokens_free(&row->tokens);
    free(row->mask);
    tsr_rendering_free(&row->scratch[0]);
    tsr_rendering_free(&row->scratch[1]);
    tsr_rendering_free(&row->scratch[2]);
    free(row->places);
    memset(row, 0, sizeof *row);
}

tsr_status tsr_chat_set_name(tsr_chat *chat, const char *key, json_t *value)
{
    return json_object_set_new(chat->names, key, value) == 0
               ? TSR_OK
               : tsr_fail(TSR_ENOMEM, "no memory for the names of a chat template");
}

/* The names as transformers gives them: tools and documents are there and none. */
static tsr_status fill_names(tsr_chat *chat, const tsr_chat_options *options)
{
    static const char *const tokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};
    chat->names = json_object();
    if (!chat->names)
        return tsr_fail(TSR_ENOMEM, "no memory for the names of a chat template");
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const char *text = tsr_tokenizer_special(chat->tokenizer, tokens[i]);
        if (text)
            TSR_TRY(tsr_chat_set_name(chat, tokens[i], json_string(text)));
    }
    if (options->eos_token)
        TSR_TRY(tsr_chat_set_name(chat, "eos_token", json_string(options->eos_token)));
    TSR_TRY(tsr_chat_set_name(chat, "documents", json_null()));
    if (options->variables &&
        json_object_update(chat->names, (json_t *)(uintptr_t)options->variables))
        return tsr_fail(TSR_EDATA, "the variables of a chat template are an object");
    return TSR_OK;
}

static void hash_source(tsr_chat *chat, const char *text, uint64_t bytes)
{
    static const char date[] = "strftime_now";
    chat->hash = tsr_hash(chat->hash, text, bytes);
    if (bytes && memmem(text, bytes, date, sizeof date - 1))
        chat->hash = tsr_hash(chat->hash, &chat->now, sizeof chat->now);
}

/* The default template, and the source of the one for tools: only a model has one of its own. */
static tsr_status load_template(tsr_chat *chat, const char *choice)
{
    char *text;
    uint64_t bytes;
    const char *name;
    TSR_TRY(tsr_chat_template_text(&text, &bytes, &name, chat->tokenizer, choice));
    tsr_status status = tsr_template_parse(&chat->template, name, text, bytes);
    hash_source(chat, text, bytes);
    free(text);
    chat->named = tsr_chat_find_named(name);
    if (tsr_chat_is_own(chat->tokenizer, choice))
        chat->tool_source =
            tsr_tokenizer_template(chat->tokenizer, true, &chat->tool_bytes, &chat->tool_name);
    hash_source(chat, chat->tool_source, chat->tool_bytes);
    return status;
}

static tsr_status hash_names(tsr_chat *chat)
{
    TSR_AUTO_FREE char *text = json_dumps(chat->names, JSON_SORT_KEYS);
    if (!text)
        return tsr_fail(TSR_ENOMEM, "no memory for the names of a chat template");
    chat->hash = tsr_hash(chat->hash, text, strlen(text));
    return TSR_OK;
}

const char *tsr_chat_turn_end(const tsr_chat *chat)
{
    const char *eos = json_string_value(json_object_get(chat->names, "eos_token"));
    const char *end = chat->named ? chat->named->end : NULL;
    return end && (!eos || strcmp(end, eos) != 0) ? end : NULL;
}

tsr_status tsr_chat_create(tsr_chat **out, tsr_tokenizer *tokenizer,
                           const tsr_chat_options *options)
{
    static const tsr_chat_options none;
    tsr_chat *chat = calloc(1, sizeof *chat);
    if (!chat)
        return tsr_fail(TSR_ENOMEM, "no memory for a chat");
    options = options ? options : &none;
    chat->tokenizer = tokenizer;
    chat->now = options->now;
    chat->steps = ROW_STEPS;
    chat->hash = TSR_HASH_START;
    tsr_status status = load_template(chat, options->template);
    if (status == TSR_OK)
        status = fill_names(chat, options);
    if (status == TSR_OK)
        status = hash_names(chat);
    chat->chosen = chat->template;
    if (status == TSR_OK)
        status = tsr_chat_look_up_tokens(chat);
    chat->dated = false; /* no row has asked yet */
    if (status < 0) {
        tsr_chat_destroy(chat);
        return status;
    }
    *out = chat;
    return TSR_OK;
}

void tsr_chat_destroy(tsr_chat *chat)
{
    if (!chat)
        return;
    if (chat->origin) {
        chat->origin->dated |= chat->dated;
    } else {
        tsr_template_destroy(chat->template);
        tsr_text_free(&chat->lacking);
    }
    tsr_template_destroy(chat->tool_template);
    json_decref(chat->names);
    free(chat);
}

tsr_status tsr_chat_share(tsr_chat **out, tsr_chat *origin, tsr_tokenizer *tokenizer)
{
    tsr_chat *chat = malloc(sizeof *chat);
    json_t *names = json_deep_copy(origin->names);
    if (!chat || !names) {
        free(chat);
        json_decref(names);
        return tsr_fail(TSR_ENOMEM, "no memory for a chat");
    }
    *chat = *origin;
    chat->origin = origin;
    chat->tokenizer = tokenizer;
    chat->tool_template = NULL; /* each reads it where a row needs it */
    chat->chosen = chat->template;
    chat->names = names;
    chat->role_count = 0;
    *out = chat;
    return TSR_OK;
}

const tsr_tokenizer *tsr_chat_tokenizer(const tsr_chat *chat)
{
    return chat->tokenizer;
}

uint64_t tsr_chat_hash(const tsr_chat *chat)
{
    return chat->hash;
}

bool tsr_chat_dated(const tsr_chat *chat)
{
    return chat->dated;
}

void tsr_chat_set_dated(tsr_chat *chat)
{
    chat->dated = true;
}

/* The template of a row. The one for tools is read when the first row has some: other data trains
 * where it is not understood. */
static tsr_status choose_template(tsr_chat *chat, bool tools)
{
    chat->chosen = chat->template;
    if (!tools || !chat->tool_source)
        return TSR_OK;
    if (!chat->tool_template) {
        char name[4200];
        snprintf(name, sizeof name, "%s (tool_use)", chat->tool_name);
        TSR_TRY(
            tsr_template_parse(&chat->tool_template, name, chat->tool_source, chat->tool_bytes));
    }
    chat->chosen = chat->tool_template;
    return TSR_OK;
}

tsr_status tsr_chat_render(tsr_rendering *out, tsr_chat *chat, const json_t *seen, size_t count,
                           bool prompt)
{
    json_auto_t *part = json_array();
    bool failed = !part;
    for (size_t i = 0; i < count && !failed; i++)
        failed = json_array_append(part, json_array_get(seen, i)) != 0;
    tsr_status status = failed ? tsr_fail(TSR_ENOMEM, "no memory for messages") : TSR_OK;
    if (status == TSR_OK)
        status = tsr_chat_set_name(chat, "messages", json_incref(part));
    if (status == TSR_OK)
        status = tsr_chat_set_name(chat, "add_generation_prompt", json_boolean(prompt));
    if (status == TSR_OK)
        status = tsr_template_render(out, chat->chosen, chat->names, chat->now, &chat->steps);
    chat->dated |= out->dated;
    return status;
}

/* ---- the mask ---- */

static tsr_status reserve_mask(tsr_chat_row *row, int fill)
{
    size_t count = row->tokens.count;
    if (count > row->mask_capacity) {
        uint8_t *mask = realloc(row->mask, 2 * count);
        if (!mask)
            return tsr_fail(TSR_ENOMEM, "no memory for the labels of %zu tokens", count);
        row->mask = mask;
        row->mask_capacity = 2 * count;
    }
    if (count)
        memset(row->mask, fill, count);
    return TSR_OK;
}

/* Marks the tokens that lie within bytes [begin, end) of the text, from *at on. One without bytes, a space that
 * the tokenizer puts before what follows, belongs to what follows. */
static void mark(tsr_chat_row *row, size_t *at, size_t begin, size_t end)
{
    const tsr_tokens *t = &row->tokens;
    while (*at < t->count && t->spans[*at].begin < begin)
        ++*at;
    for (size_t i = *at; i < t->count && t->spans[i].begin < end && t->spans[i].end <= end; i++)
        row->mask[i] = 1;
}

static tsr_status mark_turns(tsr_conversation *c, size_t first)
{
    size_t at = 0;
    for (size_t i = first; i < json_array_size(c->messages); i++) {
        const json_t *message = json_array_get(c->messages, i);
        tsr_span turn;
        if (!tsr_chat_is_assistant(message) || tsr_chat_asks_training(message) == 0)
            continue;
        TSR_TRY(tsr_chat_turn(&turn, c, i));
        mark(c->row, &at, turn.begin, turn.end);
    }
    return TSR_OK;
}

/* Where more than the assistant's turns was marked: takes back the turns that say they are not trained. */
static tsr_status unmark_turns(tsr_conversation *c, size_t first)
{
    const tsr_tokens *t = &c->row->tokens;
    size_t at = 0;
    for (size_t i = first; i < json_array_size(c->messages); i++) {
        const json_t *message = json_array_get(c->messages, i);
        tsr_span turn;
        if (tsr_chat_asks_training(message) != 0)
            continue;
        TSR_TRY(tsr_chat_turn(&turn, c, i));
        while (at < t->count && t->spans[at].end <= turn.begin)
            at++;
        for (size_t k = at; k < t->count && t->spans[k].begin < turn.end; k++)
            c->row->mask[k] = 0;
    }
    return TSR_OK;
}

/* ---- encoding ---- */

void tsr_conversation_free(tsr_conversation *c)
{
    json_decref(c->seen);
    json_decref(c->marked);
    for (int i = 0; i < c->lead_count; i++)
        tsr_text_free(&c->leads[i].text);
    tsr_text_free(&c->tail);
}

/* Looks at the messages, renders all of them and tokenises the text. The marks of the template stay in scratch[0].
 */
static tsr_status render_row(tsr_conversation *c, const json_t *tools, bool prompt)
{
    tsr_chat_row *row = c->row;
    tsr_tokens_clear(&row->tokens);
    row->findings = 0;
    c->chat->steps = ROW_STEPS;
    TSR_TRY(tsr_chat_check_messages(c->messages));
    TSR_TRY(choose_template(c->chat, tools != NULL));
    TSR_TRY(tsr_chat_see(&c->seen, c->chat, c->messages));
    /* The tree is only read; the reference count changes. */
    json_t *given = tools ? json_incref((json_t *)(uintptr_t)tools) : json_null();
    TSR_TRY(tsr_chat_set_name(c->chat, "tools", given));
    TSR_TRY(tsr_chat_render(&row->scratch[0], c->chat, c->seen, json_array_size(c->seen), prompt));
    tsr_text text = row->text;
    row->text = row->scratch[0].text;
    row->scratch[0].text = text;
    return tsr_tokenizer_encode(&row->tokens, c->chat->tokenizer, tsr_text_string(&row->text),
                                row->text.length, false);
}

/* Where the text of the first `count` messages with the generation prompt ends. */
static tsr_status find_prompt(size_t *end, tsr_conversation *c, size_t count)
{
    tsr_rendering *prompt = &c->row->scratch[1];
    tsr_span turn = {0};
    bool found = false;
    *end = 0;
    if (!count)
        return TSR_OK;
    TSR_TRY(tsr_chat_render(prompt, c->chat, c->seen, count, true));
    *end = prompt->text.length;
    if (tsr_chat_begins(&c->row->text, &prompt->text))
        return TSR_OK;
    if (count <
        json_array_size(c->messages)) /* it may leave out the end of the generation prompt */
        TSR_TRY(tsr_chat_turn_by_places(&found, &turn, c, count));
    *end = turn.begin;
    return found ? TSR_OK
                 : tsr_fail(TSR_EDATA, "the chat template renders the prompt differently once the "
                                       "completion follows, so the completion's tokens cannot be "
                                       "found; write the row as \"messages\"");
}

static void mark_generation(tsr_chat_row *row, size_t begin)
{
    size_t at = 0;
    for (size_t i = 0; i < row->scratch[0].span_count; i++) {
        tsr_span span = row->scratch[0].spans[i];
        if (span.end > begin)
            mark(row, &at, span.begin > begin ? span.begin : begin, span.end);
    }
}

/* Findings are about the assistant's turns with their ends; a choice of its own is not in vain. */
static void drop_findings(tsr_chat_row *row, const tsr_chat_training *training)
{
    const unsigned bare = 1u << TSR_FINDING_BARE | 1u << TSR_FINDING_HOLLOW;
    if (training->roles)
        row->findings &= ~(bare | 1u << TSR_FINDING_IN_VAIN);
    if (training->ends == TSR_CHAT_ENDS_NONE)
        row->findings &= ~bare;
}

static tsr_status encode(tsr_conversation *c, const json_t *tools, size_t prompt_count,
                         const tsr_chat_training *training)
{
    tsr_chat_row *row = c->row;
    size_t at = 0, begin;
    bool assistant_only = training->assistant_only;
    bool chosen = assistant_only && (training->roles || training->ends != TSR_CHAT_ENDS_TURN);
    TSR_TRY(render_row(c, tools, false));
    TSR_TRY(find_prompt(&begin, c, prompt_count));
    TSR_TRY(reserve_mask(row, !assistant_only && !prompt_count));
    TSR_TRY(tsr_chat_note_findings(c, prompt_count, assistant_only));
    if (assistant_only && !chosen && !tsr_template_marks_generation(c->chat->chosen))
        return mark_turns(c, prompt_count);
    if (!assistant_only) {
        if (prompt_count)
            mark(row, &at, begin, row->text.length);
        return unmark_turns(c, prompt_count);
    }
    mark_generation(row, begin);
    drop_findings(row, training);
    return tsr_chat_choose(c, prompt_count, training);
}

tsr_status tsr_chat_encode(tsr_chat_row *row, tsr_chat *chat, const json_t *messages,
                           const json_t *tools, size_t prompt_count,
                           const tsr_chat_training *training)
{
    tsr_conversation c = {.chat = chat, .row = row, .messages = messages};
    tsr_status status = encode(&c, tools, prompt_count, training);
    tsr_conversation_free(&c);
    return status;
}

tsr_status tsr_chat_prompt(tsr_chat_row *row, tsr_chat *chat, const json_t *messages,
                           const json_t *tools)
{
    tsr_conversation c = {.chat = chat, .row = row, .messages = messages};
    tsr_status status = render_row(&c, tools, true);
    tsr_conversation_free(&c);
    TSR_TRY(status);
    return reserve_mask(row, 0);
}
