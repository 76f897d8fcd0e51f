#include "tokenizer/tokenizer.h"

#include "base/auto.h"
#include "base/unicode.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/parts.h"

#include <stdlib.h>
#include <string.h>

void tsr_tokens_clear(tsr_tokens *tokens)
{
    tokens->count = 0;
}

void tsr_tokens_free(tsr_tokens *tokens)
{
    free(tokens->ids);
    free(tokens->spans);
    *tokens = (tsr_tokens){0};
}

/* ---- added tokens in the text ---- */

/* Start of the white space that ends at `end`. */
static size_t space_before(const char *text, size_t begin, size_t end)
{
    while (end > begin) {
        size_t last = end - 1;
        uint32_t code = 0;
        while (last > begin && ((unsigned char)text[last] & 0xc0) == 0x80)
            last--;
        if (!tsr_utf8_next(&code, text + last, end - last) || !tsr_unicode_white_space(code))
            break;
        end = last;
    }
    return end;
}

static size_t space_after(const char *text, size_t begin, size_t end)
{
    while (begin < end) {
        uint32_t code = 0;
        size_t length = tsr_utf8_next(&code, text + begin, end - begin);
        if (!length || !tsr_unicode_white_space(code))
            break;
        begin += length;
    }
    return begin;
}

/* Calls `plain` for what lies between the added tokens of text[begin..end). */
typedef tsr_status (*section_function)(tsr_tokens *out, tsr_tokenizer *t, const char *text,
                                       size_t begin, size_t end);

static tsr_status split_added(tsr_tokens *out, tsr_tokenizer *t, tsr_added_set *set,
                              const char *text, size_t begin, size_t end, section_function plain)
{
    size_t start = begin, at = begin, where;
    const tsr_added_token *token;
    TSR_TRY(tsr_added_search(set, text, begin, end));
    while ((token = tsr_added_next(&where, set, at)) != NULL) {
        size_t from = where, to = where + token->match_bytes;
        at = to;
        if (token->lstrip) {
            from = space_before(text, begin, from);
            from = from < start ? start : from; /* a token before may have taken the space */
        }
        if (token->rstrip)
            to = space_after(text, to, end);
        if (from >= to) /* white space that a token before has taken whole */
            continue;
        if (start < from)
            TSR_TRY(plain(out, t, text, start, from));
        TSR_TRY(tsr_tokens_reserve(out, 1));
        out->ids[out->count] = token->id;
        out->spans[out->count++] = (tsr_span){where, where + token->match_bytes};
        start = to;
    }
    return start < end ? plain(out, t, text, start, end) : TSR_OK;
}

/* ---- between the added tokens ---- */

/* The ByteLevel step and the model on one piece of the text. */
static tsr_status encode_piece(tsr_tokens *out, tsr_tokenizer *t, const char *text, tsr_span piece)
{
    size_t bytes = piece.end - piece.begin, inserted = 0;
    const char *word = text + piece.begin;
    if (t->add_prefix_space && word[0] != ' ') {
        tsr_text_clear(&t->prefixed);
        tsr_text_append(&t->prefixed, " ", 1);
        tsr_text_append(&t->prefixed, word, bytes);
        if (t->prefixed.failed)
            return tsr_fail(TSR_ENOMEM, "no memory for a text of %zu bytes", bytes);
        word = t->prefixed.data;
        bytes++;
        inserted = 1;
    }
    if (!t->byte_level)
        return tsr_bpe_encode(out, &t->bpe, word, bytes, piece.begin, inserted);
    tsr_pieces words = {0};
    tsr_status status = tsr_split_apply(&words, t->byte_level, &t->budget, word, 0, bytes);
    for (size_t i = 0; i < words.count && status == TSR_OK; i++) {
        tsr_span w = words.spans[i];
        bool first = w.begin == 0;
        status =
            tsr_bpe_encode(out, &t->bpe, word + w.begin, w.end - w.begin,
                           piece.begin + w.begin - (first ? 0 : inserted), first ? inserted : 0);
    }
    free(words.spans);
    return status;
}

static tsr_status encode_words(tsr_tokens *out, tsr_tokenizer *t, const char *text, size_t begin,
                               size_t end)
{
    tsr_pieces *now = &t->pieces[0], *next = &t->pieces[1];
    now->count = 0;
    TSR_TRY(tsr_pieces_add(now, begin, end));
    for (int i = 0; i < t->split_count; i++) {
        next->count = 0;
        for (size_t j = 0; j < now->count; j++)
            TSR_TRY(tsr_split_apply(next, t->splits[i], &t->budget, text, now->spans[j].begin,
                                    now->spans[j].end));
        tsr_pieces *other = now;
        now = next;
        next = other;
    }
    for (size_t i = 0; i < now->count; i++)
        TSR_TRY(encode_piece(out, t, text, now->spans[i]));
    return TSR_OK;
}

/* The spans of tokens from `first` on, of a rewritten text of `bytes`, as those of the source, which is
 * text[begin..end). */
static void map_spans(tsr_tokens *out, size_t first, const size_t *map, size_t bytes, size_t begin,
                      size_t end)
{
    for (size_t i = first; i < out->count; i++) {
        tsr_span *span = &out->spans[i];
        bool empty = span->begin == span->end;
        size_t from = span->begin < bytes ? map[2 * span->begin] : end - begin;
        span->end = begin + (empty ? from : map[2 * (span->end - 1) + 1]);
        span->begin = begin + from;
    }
}

/* The pre-tokenizer, which may spell spaces, and the model. */
static tsr_status encode_plain(tsr_tokens *out, tsr_tokenizer *t, const char *text, size_t begin,
                               size_t end)
{
    if (t->spaces != TSR_SPACES_SPLIT)
        return encode_words(out, t, text, begin, end);
    TSR_AUTO_FREE char *spelled = NULL;
    TSR_AUTO_FREE size_t *map = NULL;
    size_t bytes, first = out->count;
    bool prepend =
        !tsr_metaspace_begins(text + begin, end - begin) &&
        (t->prepend == TSR_PREPEND_MISSING || (t->prepend == TSR_PREPEND_FIRST && !begin));
    TSR_TRY(tsr_metaspace_write(&spelled, &bytes, &map, text + begin, end - begin, prepend));
    tsr_status status = encode_words(out, t, spelled, 0, bytes);
    map_spans(out, first, map, bytes, begin, end);
    return status;
}

tsr_status tsr_tokenizer_normalize(char **out, size_t *out_bytes, size_t **map,
                                   const tsr_tokenizer *t, const char *text, size_t bytes)
{
    return t->nfc ? tsr_unicode_nfc(out, out_bytes, map, text, bytes)
                  : tsr_metaspace_write(out, out_bytes, map, text, bytes,
                                        t->prepend == TSR_PREPEND_ALWAYS);
}

/* A section without raw added tokens: normalized, then searched for the normalized ones. */
static tsr_status encode_section(tsr_tokens *out, tsr_tokenizer *t, const char *text, size_t begin,
                                 size_t end)
{
    bool changes = t->nfc ? !tsr_unicode_nfc_quick(text + begin, end - begin)
                          : t->spaces == TSR_SPACES_NORMALIZED;
    if (!changes)
        return split_added(out, t, &t->normalized, text, begin, end, encode_plain);
    TSR_AUTO_FREE char *normal = NULL;
    TSR_AUTO_FREE size_t *map = NULL;
    size_t bytes, first = out->count;
    TSR_TRY(tsr_tokenizer_normalize(&normal, &bytes, &map, t, text + begin, end - begin));
    tsr_status status = split_added(out, t, &t->normalized, normal, 0, bytes, encode_plain);
    map_spans(out, first, map, bytes, begin, end);
    return status;
}

static tsr_status add_ids(tsr_tokens *out, const int32_t *ids, size_t count, size_t at)
{
    TSR_TRY(tsr_tokens_reserve(out, count));
    for (size_t i = 0; i < count; i++) {
        out->ids[out->count] = ids[i];
        out->spans[out->count++] = (tsr_span){at, at};
    }
    return TSR_OK;
}

tsr_status tsr_tokenizer_encode(tsr_tokens *out, tsr_tokenizer *tokenizer, const char *text,
                                size_t bytes, bool add_special)
{
    size_t bad;
    if (!tsr_utf8_check(text, bytes, &bad))
        return tsr_fail(TSR_EDATA, "the text is not UTF-8 at byte %zu: it cannot be tokenised",
                        bad);
    if (add_special)
        TSR_TRY(add_ids(out, tokenizer->prefix, tokenizer->prefix_count, 0));
    tsr_regex_budget_begin(&tokenizer->budget, bytes, (size_t)tokenizer->split_count + 1);
    TSR_TRY(split_added(out, tokenizer, &tokenizer->raw, text, 0, bytes, encode_section));
    if (add_special)
        TSR_TRY(add_ids(out, tokenizer->suffix, tokenizer->suffix_count, bytes));
    return TSR_OK;
}

/* ---- questions ---- */

uint64_t tsr_tokenizer_hash(const tsr_tokenizer *tokenizer)
{
    return tokenizer->hash;
}

int32_t tsr_tokenizer_id(const tsr_tokenizer *tokenizer, const char *token)
{
    return tsr_map_get(&tokenizer->contents, token, strlen(token));
}

int32_t tsr_tokenizer_vocab_count(const tsr_tokenizer *tokenizer)
{
    return (int32_t)tokenizer->vocab_count;
}

const char *tsr_tokenizer_special(const tsr_tokenizer *tokenizer, const char *key)
{
    const json_t *value = json_object_get(tokenizer->config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_string_value(value);
}

int32_t tsr_tokenizer_eos(const tsr_tokenizer *tokenizer)
{
    const char *content = tsr_tokenizer_special(tokenizer, "eos_token");
    return content ? tsr_tokenizer_id(tokenizer, content) : -1;
}

/* The template of this name in tokenizer_config.json, which holds one, or named ones in a list or an
 * object. */
static const json_t *config_template(const tsr_tokenizer *tokenizer, const char *name)
{
    const json_t *value = json_object_get(tokenizer->config, "chat_template"), *found = NULL;
    if (json_is_string(value))
        return strcmp(name, "default") ? NULL : value;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const char *label = json_string_value(json_object_get(one, "name"));
        if (label && !strcmp(label, name))
            found = json_object_get(one, "template");
    }
    return json_is_object(value) ? json_object_get(value, name) : found;
}

const char *tsr_tokenizer_template(const tsr_tokenizer *tokenizer, bool tools, size_t *bytes,
                                   const char **name)
{
    if (tokenizer->chat_template.text || tokenizer->tool_template.text) {
        const tsr_template_file *file =
            tools ? &tokenizer->tool_template : &tokenizer->chat_template;
        *name = file->name;
        *bytes = file->bytes;
        return file->text;
    }
    const json_t *value = config_template(tokenizer, tools ? "tool_use" : "default");
    *name = tokenizer->config_name;
    *bytes = json_string_length(value);
    return json_string_value(value);
}

static void free_file(tsr_template_file *file)
{
    free(file->text);
    free(file->name);
}

/* What a tokenizer has for the thread that uses it. */
static void free_own(tsr_tokenizer *t)
{
    for (int i = 0; i < t->split_count; i++)
        tsr_split_destroy(t->splits[i]);
    tsr_split_destroy(t->byte_level);
    tsr_added_forget(&t->raw);
    tsr_added_forget(&t->normalized);
    tsr_bpe_forget(&t->bpe);
    free(t->pieces[0].spans);
    free(t->pieces[1].spans);
    tsr_text_free(&t->prefixed);
}

static void free_shared(tsr_tokenizer *t)
{
    for (size_t i = 0; i < t->vocab_count; i++)
        free(t->vocab[i].content);
    tsr_added_free(&t->raw);
    tsr_added_free(&t->normalized);
    tsr_map_free(&t->contents);
    tsr_bpe_free(&t->bpe);
    free(t->vocab);
    free(t->prefix);
    free(t->suffix);
    json_decref(t->config);
    free(t->config_name);
    free_file(&t->chat_template);
    free_file(&t->tool_template);
    free(t->name);
}

void tsr_tokenizer_destroy(tsr_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    free_own(tokenizer);
    if (!tokenizer->shared)
        free_shared(tokenizer);
    free(tokenizer);
}

static tsr_status share_splits(tsr_tokenizer *t, const tsr_tokenizer *origin)
{
    for (; t->split_count < origin->split_count; t->split_count++)
        TSR_TRY(tsr_split_share(&t->splits[t->split_count], origin->splits[t->split_count]));
    return origin->byte_level ? tsr_split_share(&t->byte_level, origin->byte_level) : TSR_OK;
}

tsr_status tsr_tokenizer_share(tsr_tokenizer **out, const tsr_tokenizer *origin)
{
    tsr_tokenizer *t = malloc(sizeof *t);
    if (!t)
        return tsr_fail(TSR_ENOMEM, "no memory for a tokenizer");
    *t = *origin;
    t->shared = true;
    t->split_count = 0;
    t->byte_level = NULL;
    t->raw = tsr_added_share(&origin->raw);
    t->normalized = tsr_added_share(&origin->normalized);
    t->bpe = tsr_bpe_share(&origin->bpe);
    memset(t->pieces, 0, sizeof t->pieces);
    t->prefixed = (tsr_text){0};
    tsr_status status = share_splits(t, origin);
    if (status < 0) {
        tsr_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return TSR_OK;
}
