/*
 * load.c: tokenizer.json and tokenizer_config.json to a tokenizer.
 */
#include "base/auto.h"
#include "base/hash.h"
#include "io/file.h"
#include "io/json.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENIZER_FILE_BYTES ((uint64_t)256 << 20)

tsr_status tsr_tokenizer_refuse(const tsr_tokenizer *t, const char *path, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return tsr_fail(TSR_EDATA, "%s: %s: %s", t->name, path, message);
}

tsr_status tsr_tokenizer_type(const char **out, const tsr_tokenizer *t, const json_t *json,
                              const char *path)
{
    *out = json_string_value(json_object_get(json, "type"));
    return *out ? TSR_OK
                : tsr_tokenizer_refuse(t, path, "expected an object with a \"type\", found %s",
                                       tsr_json_kind(json));
}

tsr_status tsr_tokenizer_known(const tsr_tokenizer *t, const json_t *json, const char *path,
                               const char *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        char word[48];
        int length = snprintf(word, sizeof word, " %s ", key);
        if (length >= (int)sizeof word || strchr(key, ' ') || !strstr(known, word))
            return tsr_tokenizer_refuse(t, path, "the key \"%s\" is not understood", key);
    }
    return TSR_OK;
}

tsr_status tsr_tokenizer_flag(bool *out, const tsr_tokenizer *t, const json_t *json,
                              const char *path, const char *key, bool fallback)
{
    const json_t *v = json_object_get(json, key);
    *out = v && !json_is_null(v) ? json_is_true(v) : fallback;
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return tsr_tokenizer_refuse(t, path, "%s: expected true or false, found %s", key,
                                    tsr_json_kind(v));
    return TSR_OK;
}

/* ---- normalizer and pre-tokenizer ---- */

static bool is_text(const json_t *json, const char *key, const char *text)
{
    const char *found = json_string_value(json_object_get(json, key));
    return found && !strcmp(found, text);
}

/* Of a vocabulary of characters: U+2581 before the text (Prepend), or in the place of spaces (Replace). */
static tsr_status load_spelling(tsr_tokenizer *t, const json_t *json, const char *path,
                                bool replace)
{
    const json_t *pattern = json_object_get(json, "pattern");
    bool fine = replace ? json_object_size(pattern) == 1 && is_text(pattern, "String", " ") &&
                              is_text(json, "content", TSR_METASPACE)
                        : is_text(json, "prepend", TSR_METASPACE);
    if (!fine || t->nfc)
        return tsr_tokenizer_refuse(
            t, path,
            "only the Prepend of \"" TSR_METASPACE
            "\", and the Replace of \" \" by it, without NFC, are supported");
    if (replace)
        t->spaces = TSR_SPACES_NORMALIZED;
    else if (t->prepend == TSR_PREPEND_ALWAYS)
        return tsr_tokenizer_refuse(t, path, "a second Prepend is not supported");
    else
        t->prepend = TSR_PREPEND_ALWAYS;
    return TSR_OK;
}

static tsr_status load_normalizer(tsr_tokenizer *t, const json_t *json, const char *path)
{
    const char *type;
    if (!json || json_is_null(json))
        return TSR_OK;
    TSR_TRY(tsr_tokenizer_type(&type, t, json, path));
    if (!strcmp(type, "Prepend") || !strcmp(type, "Replace"))
        return load_spelling(t, json, path, type[0] == 'R');
    if (!strcmp(type, "NFC") && t->spaces == TSR_SPACES_KEPT && t->prepend == TSR_PREPEND_NEVER) {
        t->nfc = true; /* twice is once */
        return TSR_OK;
    }
    if (strcmp(type, "Sequence"))
        return tsr_tokenizer_refuse(t, path,
                                    "the normalizer \"%s\" is not supported here: null, NFC, or "
                                    "Prepend and Replace are",
                                    type);
    const json_t *list = json_object_get(json, "normalizers");
    if (!json_is_array(list) || strlen(path) > 60)
        return tsr_tokenizer_refuse(t, path, "expected a list \"normalizers\"");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char inner[128];
        snprintf(inner, sizeof inner, "%s.normalizers[%zu]", path, i);
        TSR_TRY(load_normalizer(t, json_array_get(list, i), inner));
    }
    return TSR_OK;
}

static tsr_status add_split(tsr_tokenizer *t, const char *path, const char *pattern, size_t bytes,
                            bool literal, tsr_split_behavior behavior, bool invert)
{
    char place[512];
    if (t->split_count == TSR_TOKENIZER_SPLITS)
        return tsr_tokenizer_refuse(t, path, "more than %d patterns", TSR_TOKENIZER_SPLITS);
    snprintf(place, sizeof place, "%.300s: %.150s", t->name, path);
    TSR_TRY(tsr_split_create(&t->splits[t->split_count], pattern, bytes, literal, behavior, invert,
                             place));
    t->split_count++;
    return TSR_OK;
}

static tsr_status load_split(tsr_tokenizer *t, const json_t *json, const char *path)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    TSR_TRY(tsr_tokenizer_known(t, json, path, " type pattern behavior invert "));
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *string = json_object_get(pattern, "String");
    const json_t *chosen = regex ? regex : string;
    const char *behavior = json_string_value(json_object_get(json, "behavior"));
    bool invert;
    if (!json_is_string(chosen) || json_object_size(pattern) != 1)
        return tsr_tokenizer_refuse(t, path,
                                    "pattern: expected {\"Regex\": ..} or "
                                    "{\"String\": ..}");
    TSR_TRY(tsr_tokenizer_flag(&invert, t, json, path, "invert", false));
    for (int i = 0; behavior && i < 5; i++)
        if (!strcmp(behavior, names[i]))
            return add_split(t, path, json_string_value(chosen), json_string_length(chosen), !regex,
                             (tsr_split_behavior)i, invert);
    return tsr_tokenizer_refuse(t, path, "the behavior \"%s\" is not understood",
                                behavior ? behavior : "");
}

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static tsr_status load_byte_level(tsr_tokenizer *t, const json_t *json, const char *path)
{
    bool pattern;
    TSR_TRY(tsr_tokenizer_known(t, json, path, " type add_prefix_space trim_offsets use_regex "));
    TSR_TRY(tsr_tokenizer_flag(&t->add_prefix_space, t, json, path, "add_prefix_space", true));
    TSR_TRY(tsr_tokenizer_flag(&pattern, t, json, path, "use_regex", true));
    if (!pattern)
        return TSR_OK;
    return tsr_split_create(&t->byte_level, gpt2_pattern, strlen(gpt2_pattern), false,
                            TSR_SPLIT_ISOLATED, false, t->name);
}

static tsr_status load_digits(tsr_tokenizer *t, const json_t *json, const char *path)
{
    bool individual;
    TSR_TRY(tsr_tokenizer_known(t, json, path, " type individual_digits "));
    TSR_TRY(tsr_tokenizer_flag(&individual, t, json, path, "individual_digits", false));
    return add_split(t, path, "\\p{N}", 5, false,
                     individual ? TSR_SPLIT_ISOLATED : TSR_SPLIT_CONTIGUOUS, false);
}

/* SentencePiece's spelling of spaces; with `split` words begin with them. */
static tsr_status load_metaspace(tsr_tokenizer *t, const json_t *json, const char *path)
{
    const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    bool split, prefix;
    TSR_TRY(tsr_tokenizer_known(
        t, json, path, " type replacement add_prefix_space prepend_scheme split str_rep "));
    TSR_TRY(tsr_tokenizer_flag(&split, t, json, path, "split", true));
    TSR_TRY(tsr_tokenizer_flag(&prefix, t, json, path, "add_prefix_space", true));
    if (!is_text(json, "replacement", TSR_METASPACE) || t->nfc || t->spaces != TSR_SPACES_KEPT ||
        t->prepend != TSR_PREPEND_NEVER || t->split_count)
        return tsr_tokenizer_refuse(t, path,
                                    "Metaspace is supported with \"" TSR_METASPACE
                                    "\", as the first step and without a normalizer");
    t->spaces = TSR_SPACES_SPLIT;
    if (!prefix || (scheme && !strcmp(scheme, "never")))
        t->prepend = TSR_PREPEND_NEVER;
    else if (scheme && !strcmp(scheme, "first"))
        t->prepend = TSR_PREPEND_FIRST;
    else if (!scheme || !strcmp(scheme, "always"))
        t->prepend = TSR_PREPEND_MISSING;
    else
        return tsr_tokenizer_refuse(t, path, "the prepend_scheme \"%s\" is not understood", scheme);
    return split ? add_split(t, path, TSR_METASPACE, TSR_METASPACE_BYTES, true,
                             TSR_SPLIT_MERGED_WITH_NEXT, false)
                 : TSR_OK;
}

/* One step; `done`: ByteLevel, which maps bytes to letters and so has to be the last. */
static tsr_status load_pre_tokenizer(bool *done, tsr_tokenizer *t, const json_t *json,
                                     const char *path)
{
    const char *type;
    TSR_TRY(tsr_tokenizer_type(&type, t, json, path));
    if (*done)
        return tsr_tokenizer_refuse(t, path, "%s after ByteLevel is not supported", type);
    if (!strcmp(type, "Split"))
        return load_split(t, json, path);
    if (!strcmp(type, "Digits"))
        return load_digits(t, json, path);
    if (!strcmp(type, "ByteLevel") && !t->bpe.characters) {
        *done = true;
        return load_byte_level(t, json, path);
    }
    if (!strcmp(type, "Metaspace") && t->bpe.characters)
        return load_metaspace(t, json, path);
    if (strcmp(type, "Sequence"))
        return tsr_tokenizer_refuse(t, path,
                                    "the pre-tokenizer \"%s\" is not supported here: Sequence, "
                                    "Split, Digits and %s are",
                                    type, t->bpe.characters ? "Metaspace" : "ByteLevel");
    const json_t *list = json_object_get(json, "pretokenizers");
    if (!json_is_array(list) || strlen(path) > 60)
        return tsr_tokenizer_refuse(t, path, "expected a list \"pretokenizers\"");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char inner[128];
        snprintf(inner, sizeof inner, "%s.pretokenizers[%zu]", path, i);
        TSR_TRY(load_pre_tokenizer(done, t, json_array_get(list, i), inner));
    }
    return TSR_OK;
}

/* ---- post-processor and decoder ---- */

/* The ids of one special token of a template, appended to *ids. */
static tsr_status template_ids(int32_t **ids, size_t *count, const tsr_tokenizer *t,
                               const json_t *template, const char *name, const char *path)
{
    const json_t *token = json_object_get(json_object_get(template, "special_tokens"), name);
    const json_t *list = json_object_get(token, "ids");
    if (!json_is_array(list))
        return tsr_tokenizer_refuse(t, path, "special_tokens has no ids for \"%s\"", name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        int64_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        if (number < 0 || (uint64_t)number >= t->vocab_count || !t->vocab[number].content)
            return tsr_tokenizer_refuse(t, path, "\"%s\" has an id that no token has", name);
        int32_t *more = realloc(*ids, (*count + 1) * sizeof *more);
        if (!more)
            return tsr_fail(TSR_ENOMEM, "no memory for the post-processor");
        *ids = more;
        more[(*count)++] = (int32_t)number;
    }
    return TSR_OK;
}

static tsr_status load_template(tsr_tokenizer *t, const json_t *json, const char *path)
{
    const json_t *single = json_object_get(json, "single");
    bool sequence = false;
    TSR_TRY(tsr_tokenizer_known(t, json, path, " type single pair special_tokens "));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i);
        const char *text =
            json_string_value(json_object_get(json_object_get(part, "Sequence"), "id"));
        const char *special =
            json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
        if (text && !strcmp(text, "A") && !sequence)
            sequence = true;
        else if (special)
            TSR_TRY(template_ids(sequence ? &t->suffix : &t->prefix,
                                 sequence ? &t->suffix_count : &t->prefix_count, t, json, special,
                                 path));
        else
            return tsr_tokenizer_refuse(t, path, "single[%zu] is not understood", i);
    }
    return sequence ? TSR_OK : tsr_tokenizer_refuse(t, path, "single holds no Sequence A");
}

static tsr_status load_post_processor(bool *template, tsr_tokenizer *t, const json_t *json,
                                      const char *path)
{
    const char *type;
    if (!json || json_is_null(json))
        return TSR_OK;
    TSR_TRY(tsr_tokenizer_type(&type, t, json, path));
    if (!strcmp(type, "ByteLevel")) /* changes offsets only */
        return TSR_OK;
    if (!strcmp(type, "TemplateProcessing")) {
        if (*template)
            return tsr_tokenizer_refuse(t, path, "a second TemplateProcessing is not supported");
        *template = true;
        return load_template(t, json, path);
    }
    const json_t *list = json_object_get(json, "processors");
    if (strcmp(type, "Sequence") || !json_is_array(list) || strlen(path) > 60)
        return tsr_tokenizer_refuse(t, path,
                                    "the post-processor \"%s\" is not supported: "
                                    "Sequence, TemplateProcessing and ByteLevel are",
                                    type);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char inner[128];
        snprintf(inner, sizeof inner, "%s.processors[%zu]", path, i);
        TSR_TRY(load_post_processor(template, t, json_array_get(list, i), inner));
    }
    return TSR_OK;
}

/* One step of the decoder of a vocabulary of characters. What `tsr_tokenizer_decode` does is what they do
 * together; Strip alone may be there or not. */
static tsr_status load_character_decoder(tsr_tokenizer *t, const json_t *json, const char *path)
{
    const char *type;
    const json_t *start = json_object_get(json, "start"), *stop = json_object_get(json, "stop");
    TSR_TRY(tsr_tokenizer_type(&type, t, json, path));
    if (!strcmp(type, "ByteFallback") || !strcmp(type, "Fuse") ||
        (!strcmp(type, "Replace") &&
         is_text(json_object_get(json, "pattern"), "String", TSR_METASPACE) &&
         is_text(json, "content", " ")))
        return TSR_OK;
    if (strcmp(type, "Strip") || !is_text(json, "content", " ") || json_integer_value(start) > 1 ||
        json_integer_value(start) < 0 || json_integer_value(stop) != 0)
        return tsr_tokenizer_refuse(t, path,
                                    "\"%s\" is not supported in this form: Replace, ByteFallback, "
                                    "Fuse and Strip are, as SentencePiece's models have them",
                                    type);
    t->strip_start = json_integer_value(start) == 1;
    return TSR_OK;
}

static tsr_status load_character_decoders(tsr_tokenizer *t, const json_t *json)
{
    const char *type;
    const json_t *list = json_object_get(json, "decoders");
    TSR_TRY(tsr_tokenizer_type(&type, t, json, "decoder"));
    if (strcmp(type, "Sequence"))
        return load_character_decoder(t, json, "decoder");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char path[64];
        snprintf(path, sizeof path, "decoder.decoders[%zu]", i);
        TSR_TRY(load_character_decoder(t, json_array_get(list, i), path));
    }
    return TSR_OK;
}

static tsr_status load_decoder(tsr_tokenizer *t, const json_t *json)
{
    const char *type;
    if (t->bpe.characters)
        return load_character_decoders(t, json);
    TSR_TRY(tsr_tokenizer_type(&type, t, json, "decoder"));
    const json_t *list = json_object_get(json, "decoders");
    if (!strcmp(type, "Sequence") && json_array_size(list) == 1)
        TSR_TRY(tsr_tokenizer_type(&type, t, json_array_get(list, 0), "decoder.decoders[0]"));
    if (strcmp(type, "ByteLevel"))
        return tsr_tokenizer_refuse(t, "decoder", "\"%s\" is not supported: only ByteLevel is",
                                    type);
    return TSR_OK;
}

/* Spaces as Transformers 5's LlamaTokenizer spells them: as Metaspace does, with no normalizer. */
static tsr_status load_llama_spelling(tsr_tokenizer *t)
{
    bool legacy, prefix;
    const char *place = "tokenizer_config.json";
    TSR_TRY(tsr_tokenizer_flag(&legacy, t, t->config, place, "legacy", false));
    TSR_TRY(tsr_tokenizer_flag(&prefix, t, t->config, place, "add_prefix_space", true));
    t->spaces = TSR_SPACES_SPLIT;
    t->prepend = !prefix ? TSR_PREPEND_NEVER : legacy ? TSR_PREPEND_MISSING : TSR_PREPEND_FIRST;
    t->strip_start = prefix;
    return TSR_OK;
}

/* The pre-tokenizer and the decoder. */
static tsr_status load_outer_steps(tsr_tokenizer *t, const json_t *root)
{
    bool byte_level = false, spelled = t->spaces != TSR_SPACES_KEPT;
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    if ((spelled && !t->bpe.characters) || (t->prepend == TSR_PREPEND_ALWAYS && !spelled))
        return tsr_tokenizer_refuse(t, "normalizer",
                                    "Prepend and Replace are supported together, or Replace alone, "
                                    "and with byte_fallback");
    if (!t->bpe.characters || (pre && !json_is_null(pre)))
        TSR_TRY(load_pre_tokenizer(&byte_level, t, pre, "pre_tokenizer"));
    if (!byte_level && !t->bpe.characters)
        return tsr_tokenizer_refuse(t, "pre_tokenizer",
                                    "without ByteLevel it is supported with byte_fallback alone");
    return load_decoder(t, json_object_get(root, "decoder"));
}

/* ---- the files ---- */

static tsr_status load_root(tsr_tokenizer *t, const json_t *root)
{
    if (!json_is_object(root))
        return tsr_tokenizer_refuse(t, "the file", "expected an object, found %s",
                                    tsr_json_kind(root));
    TSR_TRY(tsr_tokenizer_known(t, root, "the file",
                                " version truncation padding added_tokens normalizer "
                                "pre_tokenizer post_processor decoder model "));
    TSR_TRY(tsr_tokenizer_load_model(t, json_object_get(root, "model")));
    t->as_llama = t->as_llama && t->bpe.characters;
    TSR_TRY(t->as_llama ? load_llama_spelling(t)
                        : load_normalizer(t, json_object_get(root, "normalizer"), "normalizer"));
    TSR_TRY(tsr_tokenizer_load_added(t, json_object_get(root, "added_tokens")));
    if (!t->as_llama)
        TSR_TRY(load_outer_steps(t, root));
    bool template = false;
    return load_post_processor(&template, t, json_object_get(root, "post_processor"),
                               "post_processor");
}

static tsr_status load_text(tsr_tokenizer *t, const char *json, size_t bytes)
{
    json_auto_t *root = NULL;
    TSR_TRY(tsr_json_parse(&root, json, bytes, t->name));
    t->hash = tsr_hash(TSR_HASH_START, json, bytes);
    return load_root(t, root);
}

static tsr_status copy_string(char **out, const char *text)
{
    *out = strdup(text);
    return *out ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for a name");
}

static tsr_status set_config(tsr_tokenizer *t, const char *name, const char *text, size_t bytes)
{
    TSR_TRY(copy_string(&t->config_name, name));
    /* model_max_length is 10^30 in many models, written as an integer: no whole number is needed.
     */
    json_error_t error;
    t->config = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES, &error);
    if (!t->config)
        return tsr_fail(TSR_EDATA, "%s: line %d, column %d: %s", name, error.line, error.column,
                        error.text);
    return json_is_object(t->config) ? TSR_OK
                                     : tsr_fail(TSR_EDATA, "%s: expected an object, found %s", name,
                                                tsr_json_kind(t->config));
}

static tsr_status hash_config(tsr_tokenizer *t)
{
    TSR_AUTO_FREE char *text = json_dumps(t->config, JSON_ENCODE_ANY | JSON_SORT_KEYS);
    if (t->config && !text)
        return tsr_fail(TSR_ENOMEM, "no memory for tokenizer_config.json");
    t->hash = tsr_hash(t->hash, text, text ? strlen(text) : 0);
    t->hash = tsr_hash(t->hash, &t->as_llama, sizeof t->as_llama);
    return TSR_OK;
}

tsr_status tsr_tokenizer_parse(tsr_tokenizer **out, const char *name, const char *json,
                               size_t json_bytes, const char *config, size_t config_bytes)
{
    tsr_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_fail(TSR_ENOMEM, "no memory for a tokenizer");
    tsr_status status = copy_string(&t->name, name);
    if (status == TSR_OK && config)
        status = set_config(t, "tokenizer_config.json", config, config_bytes);
    if (status == TSR_OK)
        status = load_text(t, json, json_bytes);
    if (status == TSR_OK)
        status = hash_config(t);
    if (status < 0) {
        tsr_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return TSR_OK;
}

static bool path_of(char path[4096], const char *directory, const char *file)
{
    return snprintf(path, 4096, "%s/%s", directory, file) < 4096 && !access(path, F_OK);
}

static tsr_status read_template(tsr_template_file *file, const char *path)
{
    uint64_t bytes;
    TSR_TRY(copy_string(&file->name, path));
    TSR_TRY(tsr_file_read(&file->text, &bytes, path, TOKENIZER_FILE_BYTES));
    file->bytes = bytes;
    return TSR_OK;
}

/* chat_template.jinja, and what rows with tools take. The string in chat_template.json counts where a model
 * has no other: transformers reads that file for processors of images alone. */
static tsr_status load_chat_templates(tsr_tokenizer *t, const char *directory)
{
    char path[4096];
    if (path_of(path, directory, "additional_chat_templates/tool_use.jinja"))
        TSR_TRY(read_template(&t->tool_template, path));
    if (path_of(path, directory, "chat_template.jinja"))
        return read_template(&t->chat_template, path);
    const json_t *in_config = json_object_get(t->config, "chat_template");
    if ((in_config && !json_is_null(in_config)) || t->tool_template.text ||
        !path_of(path, directory, "chat_template.json"))
        return TSR_OK;
    json_auto_t *root = NULL;
    const char *text;
    TSR_TRY(copy_string(&t->chat_template.name, path));
    TSR_TRY(tsr_json_load_object(&root, path));
    tsr_status status = tsr_json_string(&text, root, "chat_template", path);
    if (status == TSR_OK) {
        t->chat_template.bytes = strlen(text);
        status = copy_string(&t->chat_template.text, text);
    }
    return status;
}

/* special_tokens_map.json of older repositories, whose config has no added_tokens_decoder: its tokens
 * take the place of the config's, as in transformers. */
static tsr_status load_special_tokens(tsr_tokenizer *t, const char *directory)
{
    char path[4096];
    json_auto_t *map = NULL;
    if (json_object_get(t->config, "added_tokens_decoder") ||
        !path_of(path, directory, "special_tokens_map.json"))
        return TSR_OK;
    TSR_TRY(tsr_json_load_object(&map, path));
    if (!t->config)
        t->config = json_object();
    int failed = json_object_update(t->config, map);
    return failed ? tsr_fail(TSR_ENOMEM, "no memory for the special tokens") : TSR_OK;
}

/* tokenizer_config.json names Transformers' LlamaTokenizer. */
static bool names_llama(const tsr_tokenizer *t)
{
    const char *class = json_string_value(json_object_get(t->config, "tokenizer_class"));
    return class && (!strcmp(class, "LlamaTokenizer") || !strcmp(class, "LlamaTokenizerFast"));
}

/* A model may have its tokenizer in a form that only Transformers turns into tokenizer.json. */
static tsr_status check_form(const tsr_tokenizer *t, const char *directory)
{
    static const char *const others[] = {"tokenizer.model", "tekken.json", "vocab.json"};
    char path[4096];
    if (!access(t->name, F_OK) || errno != ENOENT)
        return TSR_OK; /* opening it says what else is wrong */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (path_of(path, directory, others[i]))
            return tsr_fail(
                TSR_EDATA,
                "%s: it is missing, and %s is not read in its place; let Transformers write "
                "it, with AutoTokenizer.from_pretrained(\"%s\").save_pretrained(\"%s\")",
                t->name, others[i], directory, directory);
    return tsr_fail(TSR_EDATA,
                    "%s: it is missing; download the model's tokenizer too (tokenizer.json, "
                    "tokenizer_config.json)",
                    t->name);
}

static tsr_status load_files(tsr_tokenizer *t, const char *directory, bool by_class)
{
    char path[4096];
    char *text;
    uint64_t bytes;
    if (snprintf(path, sizeof path, "%s/tokenizer.json", directory) >= (int)sizeof path)
        return tsr_fail(TSR_EDATA, "%s: the path is too long", directory);
    TSR_TRY(copy_string(&t->name, path));
    if (path_of(path, directory, "tokenizer_config.json")) {
        TSR_TRY(tsr_file_read(&text, &bytes, path, TOKENIZER_FILE_BYTES));
        tsr_status status = set_config(t, path, text, bytes);
        free(text);
        TSR_TRY(status);
    }
    t->as_llama = by_class && names_llama(t);
    TSR_TRY(check_form(t, directory));
    TSR_TRY(tsr_file_read(&text, &bytes, t->name, TOKENIZER_FILE_BYTES));
    tsr_status status = load_text(t, text, bytes);
    free(text);
    TSR_TRY(status);
    TSR_TRY(load_special_tokens(t, directory));
    TSR_TRY(hash_config(t));
    return load_chat_templates(t, directory);
}

tsr_status tsr_tokenizer_open(tsr_tokenizer **out, const char *directory, bool by_class)
{
    tsr_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_fail(TSR_ENOMEM, "no memory for a tokenizer");
    tsr_status status = load_files(t, directory, by_class);
    if (status < 0) {
        tsr_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return TSR_OK;
}
