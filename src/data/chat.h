/*
 * data/chat.h: a conversation to its text, its tokens and the mask of the tokens it trains.
 *
 * What an assistant says is what {% generation %} marks. In a template without such marks it is
 * what rendering through the turn adds to the rendering of the messages before it with the
 * generation prompt: content, end of turn, and what the template adds after it. The turn is looked for in the
 * rendering of the whole chat, where earlier turns may have lost their thinking, or may not begin with the end of
 * the generation prompt; such rows are kept, with a finding. Where a turn cannot be told the row is refused.
 *
 * Roles are words of the data set (human, gpt, model, ...): a template sees system, user, assistant and tool for
 * them, unless it has the word of its own (Llama's ipython).
 *
 * A message says itself that its turn is not trained: "weight": 0, "train": false, "training": false.
 *
 * A model may have a template of its own for rows with tools (tool_use); an empty list of tools takes
 * it too, as in transformers.
 *
 * The whole text is tokenised once, without added special tokens. A token is trained when all of
 * its bytes lie in what the assistant says: one that reaches over an edge is not.
 *
 * Threads  One at a time; tsr_chat_share makes more.
 */
#ifndef TSR_DATA_CHAT_H
#define TSR_DATA_CHAT_H

#include "data/findings.h"
#include "jinja/template.h"
#include "tokenizer/tokenizer.h"

typedef struct tsr_chat tsr_chat;

typedef struct {
    /* The template of all rows: a name (chatml, llama3, ...) or a file; NULL or tokenizer_default: the tokenizer's
     * own; tokenizer_default_fallback_NAME: that, or NAME where there is none. */
    const char *template;
    const json_t *variables; /* object of further names for the template; NULL: none. Borrowed */
    const char *eos_token;   /* NULL: the tokenizer's. Copied */
    int64_t now; /* what strftime_now says, in seconds of a calendar without time zones from 1970;
                    0: not given, and a template that asks is refused */
} tsr_chat_options;

/* Zero-initialise; may be used again; free with tsr_chat_row_free. mask[i] is 1 if token i is
 * trained. */
typedef struct {
    tsr_text text;
    tsr_tokens tokens;
    uint8_t *mask;
    size_t mask_capacity;
    unsigned findings; /* a bit for each tsr_finding */
    tsr_rendering scratch[3];
    tsr_span *places; /* scratch too */
    size_t place_capacity;
} tsr_chat_row;

void tsr_chat_row_free(tsr_chat_row *row);

/* "system", "user", "assistant" or "tool" for a word that data sets have for it ("human", "GPT", "model"), whatever
 * the case of its letters; NULL: no such word. */
const char *tsr_chat_standard_role(const char *word);

/* Appends the words other than the standard ones: "developer, human, ...". */
void tsr_chat_put_roles(tsr_text *out);

/* Roles as bits, and that some were chosen; the assistant's alone is what is trained without. */
enum {
    TSR_CHAT_SYSTEM = 1,
    TSR_CHAT_USER = 2,
    TSR_CHAT_ASSISTANT = 4,
    TSR_CHAT_TOOL = 8,
    TSR_CHAT_ROLES_CHOSEN = 16
};

/* The bit of a word for a role; 0: no such word. */
unsigned tsr_chat_role_bit(const char *word);

/* Which ends of turns (<|im_end|>, </s>) are trained: those of trained turns, those of all, that of the last trained turn, none. */
typedef enum {
    TSR_CHAT_ENDS_TURN,
    TSR_CHAT_ENDS_ALL,
    TSR_CHAT_ENDS_LAST,
    TSR_CHAT_ENDS_NONE
} tsr_chat_ends;

/* What of a chat is trained; zero: all of it. */
typedef struct {
    bool assistant_only; /* the turns of `roles`, with their ends */
    unsigned
        roles; /* bits, with TSR_CHAT_ROLES_CHOSEN: then a message's own switch counts for every role; 0: the
                            assistant's */
    tsr_chat_ends ends;
} tsr_chat_training;

/* The keys of a message that say whether its turn is trained; NULL at the end. */
extern const char *const tsr_chat_training_keys[];

/* `tokenizer` is borrowed and must outlive the chat; options may be NULL. TSR_ECONFIG: no template
 * anywhere, or neither a name nor a file. TSR_EDATA: the template cannot be read or is not understood. */
tsr_status tsr_chat_create(tsr_chat **out, tsr_tokenizer *tokenizer,
                           const tsr_chat_options *options);
void tsr_chat_destroy(tsr_chat *chat);

/* The same chat for another thread, which has a tokenizer of its own (tsr_tokenizer_share). On success the caller
 * destroys *out, on the thread of `origin` and before it: what the template asked for is then known there. TSR_ENOMEM. */
tsr_status tsr_chat_share(tsr_chat **out, tsr_chat *origin, tsr_tokenizer *tokenizer);

/* A hash of all that a row's text depends on but the row: templates, names, and the date if a template asks for it. */
uint64_t tsr_chat_hash(const tsr_chat *chat);

/* What looks like tokens of the template (not that for tools) and is text to the tokenizer: "<|im_start|> (8 pieces),
 * ..."; "" if there is none. Borrowed. */
const char *tsr_chat_lacking_tokens(const tsr_chat *chat);

/* The source of the template that `choice` of the options means, which the caller frees, and what messages call it.
 * Errors as above. */
tsr_status tsr_chat_template_text(char **text, uint64_t *bytes, const char **name,
                                  const tsr_tokenizer *tokenizer, const char *choice);

/* Whether the tokenizer's own template is meant, and is there. */
bool tsr_chat_is_own(const tsr_tokenizer *tokenizer, const char *choice);

/* What ends a turn of the template that was chosen by name, if that is not eos_token; else NULL. Borrowed. */
const char *tsr_chat_turn_end(const tsr_chat *chat);

/* That it was created with. */
const tsr_tokenizer *tsr_chat_tokenizer(const tsr_chat *chat);

/* Whether a template has asked for the date so far. */
bool tsr_chat_dated(const tsr_chat *chat);
/* So it is from now on: rows that were read from a cache did. */
void tsr_chat_set_dated(tsr_chat *chat);

/* Fills *row from `messages`, an array of {role, content, ...}; `tools` is an array or NULL.
 * training->assistant_only: the mask as above, otherwise all tokens are trained. The first prompt_count
 * messages and the generation prompt after them are never trained (0: no such prompt). TSR_EDATA: a
 * message without role or content, or whose training is not understood; the template raised, or the turns
 * cannot be told apart. */
tsr_status tsr_chat_encode(tsr_chat_row *row, tsr_chat *chat, const json_t *messages,
                           const json_t *tools, size_t prompt_count,
                           const tsr_chat_training *training);

/* The text and tokens of `messages` with the generation prompt; the mask is all zero. */
tsr_status tsr_chat_prompt(tsr_chat_row *row, tsr_chat *chat, const json_t *messages,
                           const json_t *tools);

#endif
