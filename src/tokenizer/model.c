/*
 * model.c: the vocabulary and the merges of tokenizer.json.
 */
#include "base/unicode.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the byte-level alphabet: 188 bytes are themselves, the others U+0100 and on, in order ----
 */

static bool own_letter(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
           (byte >= 174 && byte <= 255);
}

static int byte_of_letter(uint32_t code)
{
    if (code < 256)
        return own_letter((int)code) ? (int)code : -1;
    uint32_t next = 256;
    for (int byte = 0; byte < 256 && code < 256 + 68; byte++)
        if (!own_letter(byte) && next++ == code)
            return byte;
    return -1;
}

bool tsr_byte_level_decode(char *out, size_t *out_bytes, const char *text, size_t bytes)
{
    *out_bytes = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t code;
        size_t length = tsr_utf8_next(&code, text + i, bytes - i);
        int byte = length ? byte_of_letter(code) : -1;
        if (byte < 0)
            return false;
        out[(*out_bytes)++] = (char)byte;
        i += length;
    }
    return true;
}

/* ---- vocabulary ---- */

tsr_status tsr_tokenizer_add_entry(tsr_tokenizer *t, const char *path, const char *content,
                                   size_t bytes, int64_t id, bool word)
{
    if (id < 0 || (uint64_t)id >= TSR_VOCAB_IDS)
        return tsr_tokenizer_refuse(t, path, "token \"%s\": the id %lld is not in 0 .. %zu",
                                    content, (long long)id, TSR_VOCAB_IDS - 1);
    if ((size_t)id >= t->vocab_capacity) {
        size_t capacity = (size_t)id + (size_t)id / 2 + 1024;
        tsr_vocab_entry *vocab = realloc(t->vocab, capacity * sizeof *vocab);
        if (!vocab)
            return tsr_fail(TSR_ENOMEM, "no memory for a vocabulary of %zu tokens", capacity);
        memset(vocab + t->vocab_capacity, 0, (capacity - t->vocab_capacity) * sizeof *vocab);
        t->vocab = vocab;
        t->vocab_capacity = capacity;
    }
    tsr_vocab_entry *entry = &t->vocab[id];
    if (entry->content)
        return tsr_tokenizer_refuse(t, path, "the tokens \"%s\" and \"%s\" have one id, %lld",
                                    entry->content, content, (long long)id);
    entry->content = malloc(2 * bytes + 2);
    if (!entry->content)
        return tsr_fail(TSR_ENOMEM, "no memory for a vocabulary");
    if ((size_t)id >= t->vocab_count)
        t->vocab_count = (size_t)id + 1;
    memcpy(entry->content, content, bytes);
    entry->content[bytes] = 0;
    entry->content_bytes = bytes;
    entry->bytes = entry->content + bytes + 1;
    if (t->bpe.characters) {
        tsr_metaspace_read(entry->bytes, &entry->byte_count, &entry->is_byte, content, bytes);
        if (word)
            TSR_TRY(tsr_map_set(&t->bpe.words, content, bytes, (int32_t)id));
    } else if (!tsr_byte_level_decode(entry->bytes, &entry->byte_count, content, bytes)) {
        /* A token with other letters stands for its own text. */
        memcpy(entry->bytes, content, bytes);
        entry->byte_count = bytes;
    } else if (word) {
        TSR_TRY(tsr_map_set(&t->bpe.words, entry->bytes, entry->byte_count, (int32_t)id));
    }
    return tsr_map_set(&t->contents, content, bytes, (int32_t)id);
}

/* The tokens of single bytes. byte_fallback needs one for each byte but those of ASCII whose character is a token:
 * Gemma 1 and 2 have a tab in the place of <0x09>. So no character is unknown. */
static tsr_status load_bytes(tsr_tokenizer *t)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[8] = {(char)byte};
        bool needed = byte >= 0x80 || tsr_map_get(&t->bpe.words, name, 1) < 0;
        if (t->bpe.characters)
            snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        t->bpe.byte_ids[byte] =
            tsr_map_get(&t->bpe.words, name, t->bpe.characters ? strlen(name) : 1);
        if (t->bpe.characters && needed && t->bpe.byte_ids[byte] < 0)
            return tsr_tokenizer_refuse(
                t, "model.vocab", "the token \"%s\" is missing, which byte_fallback needs", name);
    }
    return TSR_OK;
}

static tsr_status load_vocab(tsr_tokenizer *t, const json_t *vocab)
{
    if (!json_is_object(vocab))
        return tsr_tokenizer_refuse(t, "model.vocab", "expected an object of token: id");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value)
    {
        if (!json_is_integer(value))
            return tsr_tokenizer_refuse(t, "model.vocab", "the id of \"%s\" is not an integer",
                                        key);
        TSR_TRY(tsr_tokenizer_add_entry(t, "model.vocab", key, strlen(key),
                                        json_integer_value(value), true));
    }
    return load_bytes(t);
}

/* ---- merges ---- */

/* The two halves of a merge: "a b" or ["a", "b"]. */
static bool merge_halves(const char **left, size_t *left_bytes, const char **right,
                         size_t *right_bytes, const json_t *merge)
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' '))
            return false;
        *left = text;
        *left_bytes = (size_t)(space - text);
        *right = space + 1;
        *right_bytes = strlen(space + 1);
        return true;
    }
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b))
        return false;
    *left = json_string_value(a);
    *left_bytes = json_string_length(a);
    *right = json_string_value(b);
    *right_bytes = json_string_length(b);
    return true;
}

static tsr_status load_merge(tsr_tokenizer *t, const json_t *merge, size_t rank, tsr_text *joined)
{
    const char *left, *right;
    size_t left_bytes, right_bytes;
    char path[64];
    snprintf(path, sizeof path, "model.merges[%zu]", rank);
    if (!merge_halves(&left, &left_bytes, &right, &right_bytes, merge))
        return tsr_tokenizer_refuse(t, path, "expected two tokens, \"a b\" or [\"a\", \"b\"]");
    tsr_text_clear(joined);
    tsr_text_append(joined, left, left_bytes);
    tsr_text_append(joined, right, right_bytes);
    if (joined->failed)
        return tsr_fail(TSR_ENOMEM, "no memory for a merge");
    int32_t a = tsr_map_get(&t->contents, left, left_bytes);
    int32_t b = tsr_map_get(&t->contents, right, right_bytes);
    int32_t both = tsr_map_get(&t->contents, tsr_text_string(joined), joined->length);
    if (a < 0 || b < 0 || both < 0)
        return tsr_tokenizer_refuse(t, path, "the token \"%s\" is not in the vocabulary",
                                    a < 0   ? left
                                    : b < 0 ? right
                                            : joined->data);
    return tsr_bpe_add_merge(&t->bpe, a, b, (int32_t)rank, both);
}

static tsr_status load_merges(tsr_tokenizer *t, const json_t *merges)
{
    if (!json_is_array(merges))
        return tsr_tokenizer_refuse(t, "model.merges", "expected a list");
    tsr_auto_text joined = {0};
    size_t count = json_array_size(merges);
    if (count > INT32_MAX)
        return tsr_tokenizer_refuse(t, "model.merges", "more than 2^31 of them");
    for (size_t i = 0; i < count; i++)
        TSR_TRY(load_merge(t, json_array_get(merges, i), i, &joined));
    return TSR_OK;
}

/* ---- the model ---- */

/* A key that has to be null, or its empty value. */
static tsr_status must_be_empty(const tsr_tokenizer *t, const json_t *model, const char *key)
{
    const json_t *v = json_object_get(model, key);
    char path[64];
    if (!v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)))
        return TSR_OK;
    snprintf(path, sizeof path, "model.%s", key);
    return tsr_tokenizer_refuse(t, path, "is not supported: only null is");
}

tsr_status tsr_tokenizer_load_model(tsr_tokenizer *t, const json_t *model)
{
    const char *type;
    if (!json_is_object(model))
        return tsr_tokenizer_refuse(t, "model", "expected an object");
    TSR_TRY(tsr_tokenizer_type(&type, t, model, "model"));
    if (strcmp(type, "BPE"))
        return tsr_tokenizer_refuse(t, "model.type",
                                    "\"%s\" is not supported, only BPE is; choose a model that has "
                                    "such a tokenizer (docs/models.md)",
                                    type);
    TSR_TRY(tsr_tokenizer_known(t, model, "model",
                                " type dropout unk_token continuing_subword_prefix "
                                "end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab "
                                "merges "));
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return tsr_tokenizer_refuse(t, "model.dropout", "is not supported: only null is");
    TSR_TRY(must_be_empty(t, model, "continuing_subword_prefix"));
    TSR_TRY(must_be_empty(t, model, "end_of_word_suffix"));
    TSR_TRY(tsr_tokenizer_flag(&t->bpe.characters, t, model, "model", "byte_fallback", false));
    TSR_TRY(tsr_tokenizer_flag(&t->bpe.ignore_merges, t, model, "model", "ignore_merges", false));
    TSR_TRY(load_vocab(t, json_object_get(model, "vocab")));
    TSR_TRY(load_merges(t, json_object_get(model, "merges")));
    for (int byte = 0; byte < 256 && !t->bpe.characters; byte++)
        if (t->bpe.byte_ids[byte] < 0) /* an unknown token could come out only here */
            return must_be_empty(t, model, "unk_token");
    return TSR_OK;
}
