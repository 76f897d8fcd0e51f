/*
 * tokenizer/tokenizer.h: a checkpoint's tokenizer.json, BPE over bytes or, with byte_fallback, over
 * characters, with the ids of Hugging Face's `tokenizers`.
 *
 * What is understood: added tokens (with lstrip, rstrip, normalized), normalizer null or NFC, the
 * pre-tokenizers Split, ByteLevel and Digits, the BPE model, the post-processors TemplateProcessing
 * and ByteLevel, the decoder ByteLevel; of characters, as SentencePiece's models are converted, the
 * normalizers Prepend and Replace, the pre-tokenizer Metaspace, the decoders Replace, ByteFallback,
 * Fuse and Strip. Anything else in the file is refused by its path in the JSON. `truncation` and
 * `padding` are ignored, as every call through transformers resets them.
 *
 * Sizes    `_bytes` of UTF-8; a token's span is a byte range of the text that was given.
 * Threads  Encoding fills a cache of words: one thread at a time per tokenizer; tsr_tokenizer_share makes more.
 */
#ifndef TSR_TOKENIZER_TOKENIZER_H
#define TSR_TOKENIZER_TOKENIZER_H

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

typedef struct tsr_tokenizer tsr_tokenizer;

/* Growing arrays of one entry a token; zero-initialise, free with tsr_tokens_free. spans[i] are the
 * bytes that token i came from: empty for a token that the post-processor added. Where NFC changed
 * the text, a span covers the whole of the characters that were composed. White space that an added
 * token takes along (lstrip, rstrip) is no token's. */
typedef struct {
    int32_t *ids;
    tsr_span *spans;
    size_t count, capacity;
} tsr_tokens;

void tsr_tokens_clear(tsr_tokens *tokens);
void tsr_tokens_free(tsr_tokens *tokens);

/* Reads tokenizer.json, tokenizer_config.json (where it has no added_tokens_decoder, with
 * special_tokens_map.json over it) and the chat templates of a checkpoint's directory.
 * added_tokens_decoder of tokenizer_config.json counts before tokenizer.json's flags of added tokens, and adds its own.
 * by_class: the model is one for which Transformers 5 takes the class that tokenizer_config.json names; its
 * LlamaTokenizer spells spaces as that file says, and not as tokenizer.json does.
 * On success the caller owns *out. TSR_EDATA: a file is missing, malformed or not understood. */
tsr_status tsr_tokenizer_open(tsr_tokenizer **out, const char *directory, bool by_class);

/* The same from the text of the two files; `config` may be NULL. `name` is what messages call it.
 */
tsr_status tsr_tokenizer_parse(tsr_tokenizer **out, const char *name, const char *json,
                               size_t json_bytes, const char *config, size_t config_bytes);
void tsr_tokenizer_destroy(tsr_tokenizer *tokenizer);

/* The same tokenizer for another thread: the vocabulary is held once. On success the caller destroys *out, before
 * `origin`. TSR_ENOMEM. */
tsr_status tsr_tokenizer_share(tsr_tokenizer **out, const tsr_tokenizer *origin);

/* A hash of the files that it was read from, and of how they were read. */
uint64_t tsr_tokenizer_hash(const tsr_tokenizer *tokenizer);

/* Appends the tokens of text[0..bytes) to *out. add_special: with what the post-processor adds (a
 * BOS, say). Special tokens written in the text are special tokens, as in Hugging Face. TSR_EDATA:
 * the text is not UTF-8. */
tsr_status tsr_tokenizer_encode(tsr_tokens *out, tsr_tokenizer *tokenizer, const char *text,
                                size_t bytes, bool add_special);

/* Appends the text of ids[0..count) to *out; bytes that are no UTF-8 become U+FFFD. Ids without a
 * token are passed over. skip_special: leaves out the special tokens. */
tsr_status tsr_tokenizer_decode(tsr_text *out, const tsr_tokenizer *tokenizer, const int32_t *ids,
                                size_t count, bool skip_special);

/* The id of a token by its content in the file (byte-level letters); -1 if there is none. */
int32_t tsr_tokenizer_id(const tsr_tokenizer *tokenizer, const char *token);

/* The largest id plus one: a model whose vocab_size is below it does not fit the tokenizer. */
int32_t tsr_tokenizer_vocab_count(const tsr_tokenizer *tokenizer);

/* The eos_token of tokenizer_config.json; -1 where it names none, or no token of the tokenizer. */
int32_t tsr_tokenizer_eos(const tsr_tokenizer *tokenizer);

/* The value of bos_token, eos_token and so on in tokenizer_config.json; NULL if absent. Borrowed. */
const char *tsr_tokenizer_special(const tsr_tokenizer *tokenizer, const char *key);

/* The chat template: chat_template.jinja, else tokenizer_config.json, else chat_template.json; with
 * `tools` the one named tool_use, additional_chat_templates/tool_use.jinja or in
 * tokenizer_config.json. The .jinja files keep tokenizer_config.json's out, as in transformers. NULL if there
 * is none. *bytes its length. *name the file it came from. Borrowed. */
const char *tsr_tokenizer_template(const tsr_tokenizer *tokenizer, bool tools, size_t *bytes,
                                   const char **name);

#endif
