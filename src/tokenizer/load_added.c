/*
 * load_added.c: the added tokens of tokenizer.json and tokenizer_config.json.
 */
#include "io/json.h"
#include "tokenizer/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The id that `tokenizers` gives a token which the model does not have. */
static int64_t next_id(size_t model_count, int64_t largest_added)
{
    return (size_t)(largest_added + 1) > model_count ? largest_added + 1 : (int64_t)model_count;
}

/* The text that is searched for: with a normalizer, that of the normalized tokens is normalized. */
static tsr_status match_text(tsr_added_token *token, const tsr_tokenizer *t, const char *content,
                             size_t bytes)
{
    size_t *map = NULL;
    if (token->normalized && (t->nfc || t->spaces == TSR_SPACES_NORMALIZED)) {
        TSR_TRY(
            tsr_tokenizer_normalize(&token->match, &token->match_bytes, &map, t, content, bytes));
        free(map);
        return TSR_OK;
    }
    token->match = malloc(bytes + 1);
    if (!token->match)
        return tsr_fail(TSR_ENOMEM, "no memory for the added tokens");
    memcpy(token->match, content, bytes + 1);
    token->match_bytes = bytes;
    return TSR_OK;
}

static tsr_status load_one_added(tsr_tokenizer *t, const json_t *json, const char *path,
                                 size_t model_count, int64_t *largest)
{
    const json_t *content = json_object_get(json, "content"), *id = json_object_get(json, "id");
    tsr_added_token token = {0};
    bool single, special;
    if (!json_is_object(json) || !json_is_string(content) || !json_is_integer(id) ||
        !json_string_length(content))
        return tsr_tokenizer_refuse(t, path, "expected an object with content and id");
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content);
    TSR_TRY(tsr_tokenizer_known(t, json, path,
                                " id content single_word lstrip rstrip normalized special "));
    TSR_TRY(tsr_tokenizer_flag(&single, t, json, path, "single_word", false));
    TSR_TRY(tsr_tokenizer_flag(&special, t, json, path, "special", false));
    TSR_TRY(tsr_tokenizer_flag(&token.lstrip, t, json, path, "lstrip", false));
    TSR_TRY(tsr_tokenizer_flag(&token.rstrip, t, json, path, "rstrip", false));
    TSR_TRY(tsr_tokenizer_flag(&token.normalized, t, json, path, "normalized", !special));
    if (single)
        return tsr_tokenizer_refuse(t, path, "single_word: true (\"%s\") is not supported", text);
    int32_t known = tsr_map_get(&t->contents, text, bytes);
    int64_t expected = known >= 0 ? known : next_id(model_count, *largest);
    if (json_integer_value(id) != expected)
        return tsr_tokenizer_refuse(t, path, "\"%s\" has the id %lld, but by its place it is %lld",
                                    text, (long long)json_integer_value(id), (long long)expected);
    if (known < 0)
        TSR_TRY(tsr_tokenizer_add_entry(t, path, text, bytes, expected, false));
    *largest = expected > *largest ? expected : *largest;
    t->vocab[expected].special |= special;
    token.id = (int32_t)expected;
    TSR_TRY(match_text(&token, t, text, bytes));
    tsr_status status = tsr_added_append(token.normalized ? &t->normalized : &t->raw, &token);
    if (status < 0)
        free(token.match);
    return status == TSR_EDATA ? tsr_tokenizer_refuse(t, "added_tokens", "%s", tsr_last_error())
                               : status;
}

static int by_id(const void *left, const void *right)
{
    json_int_t a = json_integer_value(json_object_get(*(json_t *const *)left, "id"));
    json_int_t b = json_integer_value(json_object_get(*(json_t *const *)right, "id"));
    return (a > b) - (a < b);
}

static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};

/* One entry of added_tokens_decoder, "32001": {"content": .., ..}, into an object as one of added_tokens. */
static tsr_status decoder_entry(json_t *entry, const tsr_tokenizer *t, const char *id,
                                const json_t *json)
{
    char path[100], *end;
    snprintf(path, sizeof path, "tokenizer_config.json: added_tokens_decoder[\"%.30s\"]", id);
    long long number = strtoll(id, &end, 10);
    json_t *content = json_object_get(json, "content");
    if (!json_is_string(content) || end == id || *end || number < 0)
        return tsr_tokenizer_refuse(t, path, "expected an id and an object with content");
    bool failed = json_object_set_new(entry, "id", json_integer(number)) ||
                  json_object_set(entry, "content", content);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !failed; i++) {
        bool set;
        TSR_TRY(tsr_tokenizer_flag(&set, t, json, path, flags[i], false));
        if (json_object_get(json, flags[i]))
            failed = json_object_set_new(entry, flags[i], json_boolean(set)) != 0;
    }
    return failed ? tsr_fail(TSR_ENOMEM, "no memory for the added tokens") : TSR_OK;
}

/* added_tokens_decoder of tokenizer_config.json by the tokens' contents; empty if there is none. */
static tsr_status load_decoder(json_t *by_content, const tsr_tokenizer *t)
{
    const json_t *decoder = json_object_get(t->config, "added_tokens_decoder");
    const char *id;
    json_t *value;
    if (decoder && !json_is_null(decoder) && !json_is_object(decoder))
        return tsr_tokenizer_refuse(t, "tokenizer_config.json: added_tokens_decoder",
                                    "expected an object, found %s", tsr_json_kind(decoder));
    json_object_foreach((json_t *)(uintptr_t)decoder, id, value)
    {
        json_t *entry = json_object();
        tsr_status status = entry ? decoder_entry(entry, t, id, value)
                                  : tsr_fail(TSR_ENOMEM, "no memory for the added tokens");
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (status == TSR_OK && json_object_set(by_content, content, entry))
            status = tsr_fail(TSR_ENOMEM, "no memory for the added tokens");
        json_decref(entry);
        TSR_TRY(status);
    }
    return TSR_OK;
}

/* Appends what only added_tokens_decoder has, in the order of the ids. */
static bool append_others(json_t *list, json_t *by_content)
{
    size_t count = json_object_size(by_content), at = 0;
    json_t **sorted = malloc((count + 1) * sizeof *sorted), *value;
    const char *key;
    if (!sorted)
        return false;
    json_object_foreach(by_content, key, value) sorted[at++] = value;
    qsort(sorted, count, sizeof *sorted, by_id);
    bool fine = true;
    for (size_t i = 0; i < count && fine; i++)
        fine = json_array_append(list, sorted[i]) == 0;
    free(sorted);
    return fine;
}

/* The added tokens as transformers has them: those of tokenizer.json, with the flags of added_tokens_decoder in
 * tokenizer_config.json where it has the token too, and then its others. A special token stays one. */
static tsr_status merge_decoder(json_t *list, json_t *by_content, const tsr_tokenizer *t,
                                const json_t *added)
{
    TSR_TRY(load_decoder(by_content, t));
    for (size_t i = 0; i < json_array_size(added); i++) {
        json_t *token = json_copy(json_array_get(added, i));
        const char *content = json_string_value(json_object_get(token, "content"));
        const json_t *other = content ? json_object_get(by_content, content) : NULL;
        bool failed = !token, special = json_is_true(json_object_get(token, "special"));
        for (size_t j = 0; other && j < sizeof flags / sizeof *flags && !failed; j++) {
            json_t *flag = json_object_get(other, flags[j]);
            if (flag && !(special && !strcmp(flags[j], "special")))
                failed = json_object_set(token, flags[j], flag) != 0;
        }
        if (other)
            json_object_del(by_content, content);
        failed = failed || json_array_append(list, token) != 0;
        json_decref(token);
        if (failed)
            return tsr_fail(TSR_ENOMEM, "no memory for the added tokens");
    }
    return append_others(list, by_content) ? TSR_OK
                                           : tsr_fail(TSR_ENOMEM, "no memory for the added tokens");
}

static tsr_status load_list(tsr_tokenizer *t, const json_t *list, size_t own_count)
{
    size_t model_count = t->contents.count;
    int64_t largest = -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        char path[100];
        const json_t *token = json_array_get(list, i);
        if (i < own_count)
            snprintf(path, sizeof path, "added_tokens[%zu]", i);
        else
            snprintf(path, sizeof path, "tokenizer_config.json: added_tokens_decoder[\"%lld\"]",
                     (long long)json_integer_value(json_object_get(token, "id")));
        TSR_TRY(load_one_added(t, token, path, model_count, &largest));
    }
    return TSR_OK;
}

tsr_status tsr_tokenizer_load_added(tsr_tokenizer *t, const json_t *added)
{
    if (added && !json_is_null(added) && !json_is_array(added))
        return tsr_tokenizer_refuse(t, "added_tokens", "expected a list");
    json_auto_t *list = json_array(), *by_content = json_object();
    if (!list || !by_content)
        return tsr_fail(TSR_ENOMEM, "no memory for the added tokens");
    TSR_TRY(merge_decoder(list, by_content, t, added));
    TSR_TRY(load_list(t, list, json_array_size(added)));
    tsr_status status = tsr_added_finish(&t->raw);
    if (status == TSR_OK)
        status = tsr_added_finish(&t->normalized);
    return status == TSR_EDATA ? tsr_tokenizer_refuse(t, "added_tokens", "%s", tsr_last_error())
                               : status;
}
