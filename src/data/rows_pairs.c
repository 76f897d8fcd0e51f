/*
 * rows_pairs.c: rows of preferences: a chosen and a rejected answer, or one answer with a label.
 *
 * Tokens are those of TRL 1.16 (docs/objectives.md). DPO and KTO tokenize the prompt alone and the prompt with each answer; the
 * prompt's tokens are the longest beginning that these share, so a token that spans the boundary belongs to the answer. ORPO and
 * CPO tokenize without special tokens and add bos and eos, to conversations too unless bare_conversations is set; at most one
 * token at the boundary moves to the answer. A reward model's documents are whole: there is no boundary.
 */
#include "data/rows_parts.h"
#include "io/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row whose prompt is known. */
typedef struct {
    tsr_row *row;
    const tsr_dataset_options *options;
    const char *place;
    const json_t *prompt, *tools; /* a string, or a list of messages */
    bool turns;
} pair_reader;

/* ---- renderings ---- */

static bool is_older(const pair_reader *r)
{
    return r->options->pairs == TSR_PAIRS_ORPO;
}

/* The prompt followed by the answer. */
static tsr_status encode_text(const pair_reader *r, const char *prompt, const char *answer)
{
    tsr_chat_row *chat = &r->row->chat;
    tsr_text_clear(&chat->text);
    tsr_text_puts(&chat->text, prompt);
    tsr_text_puts(&chat->text, answer);
    if (chat->text.failed)
        return tsr_fail(TSR_ENOMEM, "no memory for the text of a row");
    tsr_tokens_clear(&chat->tokens);
    return tsr_tokenizer_encode(&chat->tokens, r->options->tokenizer, tsr_text_string(&chat->text),
                                chat->text.length, !is_older(r));
}

/* The same for messages; without an answer, with the generation prompt. */
static tsr_status encode_turns(const pair_reader *r, const json_t *answer)
{
    const tsr_chat_training all = {0};
    tsr_chat_row *chat = &r->row->chat;
    json_auto_t *both = json_copy((json_t *)(uintptr_t)r->prompt), *prepared = NULL;
    int shift;
    if (!both || (answer && json_array_extend(both, (json_t *)(uintptr_t)answer)))
        return tsr_fail(TSR_ENOMEM, "no memory for messages");
    TSR_TRY(tsr_row_prepare_messages(&prepared, &shift, both, r->options, r->place));
    return answer ? tsr_chat_encode(chat, r->options->chat, prepared, r->tools, 0, &all)
                  : tsr_chat_prompt(chat, r->options->chat, prepared, r->tools);
}

/* Into row->chat.tokens: the prompt, followed by `answer` if there is one. */
static tsr_status render(const pair_reader *r, const json_t *answer)
{
    tsr_status status = r->turns ? encode_turns(r, answer)
                                 : encode_text(r, json_string_value(r->prompt),
                                               answer ? json_string_value(answer) : "");
    if (status < 0)
        return tsr_fail(status, "%s: %s", r->place, tsr_last_error());
    if (r->row->chat.tokens.count > INT32_MAX / 2)
        return tsr_fail(TSR_EDATA, "%s: %zu tokens are too many", r->place,
                        r->row->chat.tokens.count);
    return TSR_OK;
}

static tsr_status keep_prompt(tsr_row *row, const int32_t *ids, size_t count)
{
    if (count > row->prompt_capacity) {
        int32_t *more = realloc(row->prompt, 2 * count * sizeof *more);
        if (!more)
            return tsr_fail(TSR_ENOMEM, "no memory for a row of %zu tokens", count);
        row->prompt = more;
        row->prompt_capacity = 2 * count;
    }
    if (count)
        memcpy(row->prompt, ids, count * sizeof *row->prompt);
    row->prompt_count = count;
    return TSR_OK;
}

/* ---- documents ---- */

static size_t common_prefix(const int32_t *a, size_t a_count, const int32_t *b, size_t b_count)
{
    size_t n = 0;
    while (n < a_count && n < b_count && a[n] == b[n])
        n++;
    return n;
}

/* Where the answer begins in the tokens of both. */
static size_t answer_begin(const pair_reader *r, const int32_t *ids, size_t count)
{
    const tsr_row *row = r->row;
    size_t same = common_prefix(row->prompt, row->prompt_count, ids, count);
    if (!is_older(r) || same == row->prompt_count)
        return same;
    return row->prompt_count - 1 < count ? row->prompt_count - 1 : count;
}

/* -1: the tokenizer has none. */
static int32_t bos_of(const tsr_tokenizer *tokenizer)
{
    const char *word = tsr_tokenizer_special(tokenizer, "bos_token");
    return word ? tsr_tokenizer_id(tokenizer, word) : -1;
}

/* Appends a document; *at: where its answer begins. */
static tsr_status add_document(size_t *at, const pair_reader *r, const int32_t *ids, size_t count)
{
    tsr_row *row = r->row;
    const tsr_tokenizer *tokenizer =
        r->turns ? tsr_chat_tokenizer(r->options->chat) : r->options->tokenizer;
    bool bare = r->turns && (!is_older(r) || r->options->bare_conversations);
    int32_t bos = is_older(r) && !bare ? bos_of(tokenizer) : -1;
    int32_t eos = bare ? -1 : r->options->eos_id;
    size_t begin = answer_begin(r, ids, count), from = row->token_count;
    bool first = bos >= 0 && !(count && ids[0] == bos);
    bool last = eos >= 0 && !(count && ids[count - 1] == eos);
    size_t whole = count + first + last, document = row->document_count;
    TSR_TRY(tsr_row_reserve(row, from + whole, document + 1));
    int32_t *out = row->ids + from;
    if (first)
        *out++ = bos;
    if (count)
        memcpy(out, ids, count * sizeof *out);
    if (last)
        out[count] = eos;
    row->lengths[document] = (int32_t)whole;
    *at = begin + first;
    return TSR_OK;
}

/* Labels a document from `begin` on. */
static void train_from(tsr_row *row, size_t document, size_t begin)
{
    size_t at = 0;
    for (size_t d = 0; d < document; d++)
        at += (size_t)row->lengths[d];
    for (size_t i = 0; i < (size_t)row->lengths[document]; i++)
        row->labels[at + i] = i < begin ? TSR_LABEL_IGNORED : row->ids[at + i];
}

static tsr_status no_answer(const pair_reader *r, const char *key)
{
    return tsr_fail(
        TSR_EDATA,
        "%s: \"%s\" has no token after the prompt; complete the answer or remove the row", r->place,
        key);
}

/* An answer is a turn of its own: it does not continue one. */
static tsr_status check_prompt(const pair_reader *r)
{
    size_t count = r->turns ? json_array_size(r->prompt) : 0;
    const json_t *last = count ? json_array_get(r->prompt, count - 1) : NULL;
    const char *word = json_string_value(json_object_get(last, "role"));
    const char *role = word ? tsr_chat_standard_role(word) : NULL;
    if (!role || strcmp(role, "assistant") != 0)
        return TSR_OK;
    return tsr_fail(
        TSR_EDATA,
        "%s: the prompt ends with an assistant message, which an answer cannot continue in this "
        "version; move that message into both answers",
        r->place);
}

/* The documents of all answers, [count]. */
static tsr_status add_documents(const pair_reader *r, const json_t *const *answers,
                                const char *const *keys, size_t count)
{
    tsr_row *row = r->row;
    size_t begin[2], least = SIZE_MAX;
    TSR_TRY(check_prompt(r));
    TSR_TRY(render(r, NULL));
    TSR_TRY(keep_prompt(row, row->chat.tokens.ids, row->chat.tokens.count));
    row->token_count = row->document_count = 0;
    for (size_t i = 0; i < count; i++) {
        TSR_TRY(render(r, answers[i]));
        TSR_TRY(add_document(&begin[i], r, row->chat.tokens.ids, row->chat.tokens.count));
        least = begin[i] < least ? begin[i] : least;
    }
    for (size_t i = 0; i < count; i++) {
        bool apart = is_older(r) || r->options->pairs == TSR_PAIRS_KTO;
        train_from(row, i, apart ? begin[i] : least);
        if ((apart ? begin[i] : least) >= (size_t)row->lengths[i])
            return no_answer(r, keys[i]);
    }
    return TSR_OK;
}

/* ---- rows ---- */

/* All are strings, or all are lists of messages. */
static tsr_status check_kind(pair_reader *r, const json_t *value, const char *key)
{
    bool turns = json_is_array(value);
    if (!turns && !json_is_string(value))
        return tsr_fail(TSR_EDATA, "%s: \"%s\" is %s, expected a string or a list of messages",
                        r->place, key, tsr_json_kind(value));
    if (turns != (r->options->chat != NULL))
        return tsr_fail(
            TSR_EDATA,
            "%s: \"%s\" is %s, but answers are %s in the first row; prompts and answers of a data "
            "set must all be of one kind",
            r->place, key, tsr_json_kind(value),
            r->options->chat ? "lists of messages" : "strings");
    r->turns = turns;
    if (turns && !json_array_size(value))
        return tsr_fail(TSR_EDATA, "%s: \"%s\" is empty", r->place, key);
    return TSR_OK;
}

/* Bytes of the character before byte `at`. */
static size_t step_back(const char *text, size_t at)
{
    size_t from = at;
    while (from > 0 && (text[--from] & 0xc0) == 0x80)
        continue;
    return at - from;
}

/* TRL's end of the prompt: where the texts differ, or the last character of the shorter one; a space before it goes to the
 * answers. */
static size_t find_split(const char *a, const char *b)
{
    size_t length = strlen(a) < strlen(b) ? strlen(a) : strlen(b), n = 0;
    while (n < length && a[n] == b[n])
        n++;
    bool differs = n < length;
    while (n > 0 && (a[n] & 0xc0) == 0x80) /* the same first bytes of two characters */
        n--;
    if (!differs)
        return n - step_back(a, n);
    return n > 0 && a[n - 1] == ' ' ? n - 1 : n;
}

/* The end of the last answer_begin before the texts differ. */
static tsr_status find_mark(size_t *at, const pair_reader *r, const char *a, const char *b)
{
    const char *mark = r->options->answer_begin;
    size_t length = strlen(mark), n = 0;
    char show[TSR_JSON_SHOW_BYTES];
    while (a[n] && a[n] == b[n])
        n++;
    while (n >= length && memcmp(a + n - length, mark, length) != 0)
        n--;
    *at = n;
    if (n >= length)
        return TSR_OK;
    json_auto_t *found = json_string(mark);
    return tsr_fail(
        TSR_EDATA,
        "%s: \"chosen\" and \"rejected\" have no %s (answer_begin) before they differ; correct the "
        "row, or give it a \"prompt\"",
        r->place, tsr_json_show(show, found));
}

/* Divides texts without a prompt: by answer_begin if it is set, else as TRL does. */
static tsr_status split_text(json_t *parts[3], const pair_reader *r, const char *chosen,
                             const char *rejected)
{
    size_t n = 0;
    if (r->options->answer_begin)
        TSR_TRY(find_mark(&n, r, chosen, rejected));
    else
        n = find_split(chosen, rejected);
    parts[0] = json_stringn(chosen, n);
    parts[1] = json_string(chosen + n);
    parts[2] = json_string(rejected + n);
    return parts[0] && parts[1] && parts[2] ? TSR_OK
                                            : tsr_fail(TSR_ENOMEM, "no memory for a row's prompt");
}

static json_t *slice(const json_t *list, size_t first, size_t end)
{
    json_t *out = json_array();
    for (size_t i = first; i < end && out; i++)
        if (json_array_append(out, json_array_get(list, i))) {
            json_decref(out);
            out = NULL;
        }
    return out;
}

static tsr_status split_turns(json_t *parts[3], const pair_reader *r, const json_t *chosen,
                              const json_t *rejected)
{
    size_t a = json_array_size(chosen), b = json_array_size(rejected), n = 0;
    size_t most = (a < b ? a : b) - 1; /* one stays as the answer */
    while (n < most && json_equal(json_array_get(chosen, n), json_array_get(rejected, n)))
        n++;
    if (!n)
        return tsr_fail(
            TSR_EDATA,
            "%s: \"chosen\" and \"rejected\" do not begin with the same message, or one ends "
            "with it; add a \"prompt\", or begin both with the same messages",
            r->place);
    parts[0] = slice(chosen, 0, n);
    parts[1] = slice(chosen, n, a);
    parts[2] = slice(rejected, n, b);
    return parts[0] && parts[1] && parts[2] ? TSR_OK
                                            : tsr_fail(TSR_ENOMEM, "no memory for a row's prompt");
}

static tsr_status no_preference(const char *place, const char *chosen, const char *rejected)
{
    return tsr_fail(TSR_EDATA,
                    "%s: \"%s\" and \"%s\" are equal, so the row shows no preference; remove it",
                    place, chosen, rejected);
}

/* The prompt, the chosen and the rejected answer of a pair; the caller owns them. */
static tsr_status take_parts(json_t *parts[3], pair_reader *r, const json_t *object)
{
    static const char *const keys[] = {"prompt", "chosen", "rejected"};
    bool given = tsr_json_has(object, "prompt");
    for (int i = given ? 0 : 1; i < 3; i++) {
        parts[i] = json_incref(json_object_get(object, keys[i]));
        TSR_TRY(check_kind(r, parts[i], keys[i]));
    }
    if (json_equal(parts[1], parts[2]))
        return no_preference(r->place, "chosen", "rejected");
    if (given)
        return TSR_OK;
    json_auto_t *chosen = parts[1], *rejected = parts[2];
    parts[1] = parts[2] = NULL;
    if (r->turns)
        return split_turns(parts, r, chosen, rejected);
    return split_text(parts, r, json_string_value(chosen), json_string_value(rejected));
}

static tsr_status read_pair(pair_reader *r, const json_t *object)
{
    static const char *const keys[] = {"chosen", "rejected"};
    json_auto_t *tools = NULL;
    json_t *parts[3] = {NULL};
    tsr_status status = take_parts(parts, r, object);
    if (status == TSR_OK)
        status = tsr_row_read_tools(&tools, object, r->place);
    if (status == TSR_OK) {
        r->prompt = parts[0];
        r->tools = tools;
        status = add_documents(r, (const json_t *const[]){parts[1], parts[2]}, keys, 2);
    }
    for (int i = 0; i < 3; i++)
        json_decref(parts[i]);
    return status;
}

/* ---- a reward model's pairs ---- */

#define MOST_MARGIN 1000000 /* beyond it a loss has no place in a step's word */

/* By how much the chosen document's reward is to be larger. */
static tsr_status read_margin(tsr_row *row, const json_t *object, const char *place)
{
    const json_t *value = json_object_get(object, "margin");
    char show[TSR_JSON_SHOW_BYTES];
    if (!tsr_json_has(object, "margin"))
        return TSR_OK;
    row->margin = (float)json_number_value(value);
    if (!json_is_number(value) || !(fabsf(row->margin) <= MOST_MARGIN))
        return tsr_fail(TSR_EDATA, "%s: \"margin\" is %s, expected a number from -%d to %d", place,
                        tsr_json_show(show, value), MOST_MARGIN, MOST_MARGIN);
    return TSR_OK;
}

/* A document is the prompt, if there is one, and an answer. */
static tsr_status add_whole(pair_reader *r, const json_t *object, const char *key)
{
    const json_t *answer = json_object_get(object, key);
    size_t at;
    TSR_TRY(check_kind(r, answer, key));
    json_auto_t *none = r->turns ? json_array() : json_string("");
    r->prompt = tsr_json_has(object, "prompt") ? json_object_get(object, "prompt") : none;
    if (!r->prompt)
        return tsr_fail(TSR_ENOMEM, "no memory for a row's prompt");
    TSR_TRY(render(r, answer));
    TSR_TRY(add_document(&at, r, r->row->chat.tokens.ids, r->row->chat.tokens.count));
    if (r->row->lengths[r->row->document_count - 1])
        return TSR_OK;
    return tsr_fail(TSR_EDATA, "%s: \"%s\" has no token; complete it or remove the row", r->place,
                    key);
}

static tsr_status read_whole_pair(pair_reader *r, const json_t *object)
{
    json_auto_t *tools = NULL;
    if (tsr_json_has(object, "prompt"))
        TSR_TRY(check_kind(r, json_object_get(object, "prompt"), "prompt"));
    if (json_equal(json_object_get(object, "chosen"), json_object_get(object, "rejected")))
        return no_preference(r->place, "chosen", "rejected");
    TSR_TRY(tsr_row_read_tools(&tools, object, r->place));
    r->tools = tools;
    r->row->token_count = r->row->document_count = r->row->prompt_count = 0;
    TSR_TRY(add_whole(r, object, "chosen"));
    TSR_TRY(add_whole(r, object, "rejected"));
    return read_margin(r->row, object, r->place);
}

tsr_status tsr_row_read_preference(tsr_row *row, const json_t *object,
                                   const tsr_dataset_options *options, const char *place)
{
    pair_reader r = {.row = row, .options = options, .place = place};
    return options->pairs == TSR_PAIRS_REWARD ? read_whole_pair(&r, object) : read_pair(&r, object);
}

tsr_status tsr_row_read_unpaired(tsr_row *row, const json_t *object,
                                 const tsr_dataset_options *options, const char *place)
{
    static const char *const key = "completion";
    pair_reader r = {.row = row, .options = options, .place = place};
    const json_t *label = json_object_get(object, "label"), *answer = json_object_get(object, key);
    json_auto_t *tools = NULL;
    char show[TSR_JSON_SHOW_BYTES];
    r.prompt = json_object_get(object, "prompt");
    if (!json_is_boolean(label))
        return tsr_fail(TSR_EDATA, "%s: \"label\" is %s, expected true (good) or false (bad)",
                        place, tsr_json_show(show, label));
    if (!r.prompt)
        return tsr_fail(
            TSR_EDATA,
            "%s: the row has no \"prompt\"; a row with \"completion\" and \"label\" needs one",
            place);
    TSR_TRY(check_kind(&r, r.prompt, "prompt"));
    TSR_TRY(check_kind(&r, answer, key));
    TSR_TRY(tsr_row_read_tools(&tools, object, place));
    r.tools = tools;
    row->desirable = json_is_true(label);
    return add_documents(&r, &answer, &key, 1);
}

/* ---- tokens ---- */

/* Appends prompt and answer as they are. */
static tsr_status add_ids(tsr_row *row, const json_t *prompt, const json_t *answer, const char *key,
                          const tsr_dataset_options *options, const char *place)
{
    int64_t most = options->vocab_size ? options->vocab_size - 1 : INT32_MAX;
    size_t from = row->token_count, document = row->document_count;
    size_t before = json_array_size(prompt), count = json_array_size(answer);
    if (!count)
        return tsr_fail(TSR_EDATA, "%s: \"%s\" is empty; an answer needs a token", place, key);
    if (before + count > INT32_MAX / 2)
        return tsr_fail(TSR_EDATA, "%s: %zu tokens are too many", place, before + count);
    TSR_TRY(tsr_row_reserve(row, from + before + count, document + 1));
    TSR_TRY(tsr_row_read_integers(row->ids + from, prompt, "prompt_ids", 0, most, false, place));
    TSR_TRY(tsr_row_read_integers(row->ids + from + before, answer, key, 0, most, false, place));
    row->lengths[document] = (int32_t)(before + count);
    train_from(row, document, before);
    return TSR_OK;
}

tsr_status tsr_row_read_preference_ids(tsr_row *row, const json_t *object,
                                       const tsr_dataset_options *options, const char *place)
{
    json_t *prompt = NULL, *chosen, *rejected;
    if (tsr_json_has(object, "prompt_ids"))
        TSR_TRY(tsr_json_array(&prompt, object, "prompt_ids", place));
    TSR_TRY(tsr_json_array(&chosen, object, "chosen_ids", place));
    TSR_TRY(tsr_json_array(&rejected, object, "rejected_ids", place));
    if (json_equal(chosen, rejected))
        return no_preference(place, "chosen_ids", "rejected_ids");
    if (options->pairs == TSR_PAIRS_REWARD)
        TSR_TRY(read_margin(row, object, place));
    row->token_count = row->document_count = 0;
    TSR_TRY(add_ids(row, prompt, chosen, "chosen_ids", options, place));
    return add_ids(row, prompt, rejected, "rejected_ids", options, place);
}
