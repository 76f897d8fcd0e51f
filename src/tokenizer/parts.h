/*
 * tokenizer/parts.h: the inside of a tokenizer. load.c, model.c and
 * load_added.c read it from JSON, tokenizer.c runs it.
 */
#ifndef TSR_TOKENIZER_PARTS_H
#define TSR_TOKENIZER_PARTS_H

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>

#define TSR_TOKENIZER_SPLITS 16

typedef struct {
    char *content; /* as in the file; NULL: no token has this id */
    size_t content_bytes;
    char *bytes; /* what it decodes to */
    size_t byte_count;
    bool special, is_byte; /* is_byte: <0x0A> of a vocabulary of characters */
} tsr_vocab_entry;

/* Where spaces become U+2581: before added tokens that are normalized are searched, or after. */
typedef enum { TSR_SPACES_KEPT, TSR_SPACES_NORMALIZED, TSR_SPACES_SPLIT } tsr_spaces;

/* Before which parts one is put: all, those that begin with none, or if the text itself begins so. */
typedef enum {
    TSR_PREPEND_NEVER,
    TSR_PREPEND_ALWAYS,
    TSR_PREPEND_MISSING,
    TSR_PREPEND_FIRST
} tsr_prepend;

/* A chat template from a file of its own. */
typedef struct {
    char *text; /* NULL: there is no such file */
    size_t bytes;
    char *name;
} tsr_template_file;

struct tsr_tokenizer {
    char *name; /* of tokenizer.json, for messages */
    tsr_vocab_entry *vocab;
    size_t vocab_count, vocab_capacity;
    tsr_map contents;              /* content to id */
    tsr_added_set raw, normalized; /* found in the text as it is, and after the normalizer */
    bool nfc;
    tsr_spaces spaces;
    tsr_prepend prepend;
    bool strip_start; /* decoding drops a space that begins the text */
    bool as_llama;    /* spaces are Transformers' LlamaTokenizer's, not tokenizer.json's */
    tsr_split *splits[TSR_TOKENIZER_SPLITS];
    int split_count;
    tsr_split *byte_level; /* its own pattern; NULL without use_regex */
    bool add_prefix_space;
    tsr_bpe bpe;
    int32_t *prefix, *suffix; /* of the post-processor */
    size_t prefix_count, suffix_count;

    json_t *config; /* tokenizer_config.json with special_tokens_map.json; NULL: neither is there */
    char *config_name;
    tsr_template_file chat_template, tool_template;

    uint64_t hash; /* of all files above */
    bool shared; /* all above is another tokenizer's, but for what its parts have for one thread */

    tsr_regex_budget budget; /* of the text that is being encoded */
    tsr_pieces pieces[2];    /* scratch */
    tsr_text prefixed;
};

#define TSR_VOCAB_IDS ((size_t)1 << 22) /* ids are below this */

/* The bytes that a byte-level string stands for; false if a character is none of its letters. */
bool tsr_byte_level_decode(char *out, size_t *out_bytes, const char *text, size_t bytes);

/* Fails with the file's name and the JSON path. */
tsr_status tsr_tokenizer_refuse(const tsr_tokenizer *t, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The object's "type"; fails unless it is a string. */
tsr_status tsr_tokenizer_type(const char **out, const tsr_tokenizer *t, const json_t *json,
                              const char *path);
/* Refuses a key of the object that is not among the words of `known` (" a b c "). */
tsr_status tsr_tokenizer_known(const tsr_tokenizer *t, const json_t *json, const char *path,
                               const char *known);
/* An optional boolean. */
tsr_status tsr_tokenizer_flag(bool *out, const tsr_tokenizer *t, const json_t *json,
                              const char *path, const char *key, bool fallback);

/* The text after the normalizer, of a tokenizer that has one; freed by the caller as of tsr_unicode_nfc. */
tsr_status tsr_tokenizer_normalize(char **out, size_t *out_bytes, size_t **map,
                                   const tsr_tokenizer *t, const char *text, size_t bytes);

/* Adds a token to the vocabulary. word: one of the model; only these may stand for a whole word with ignore_merges. An
 * added one is found by its content before words are made, in whatever letters it is written. */
tsr_status tsr_tokenizer_add_entry(tsr_tokenizer *t, const char *path, const char *content,
                                   size_t bytes, int64_t id, bool word);
tsr_status tsr_tokenizer_load_model(tsr_tokenizer *t, const json_t *model);
/* After the model, the normalizer and t->config. */
tsr_status tsr_tokenizer_load_added(tsr_tokenizer *t, const json_t *added);

#endif
