/*
 * data/chat_parts.h: what the files of data/chat.h share.
 *
 * chat.c           the template, rendering, the mask
 * chat_messages.c  messages: what they must have, what they say about training, as a template sees them
 * chat_roles.c     what a message's role means
 * chat_names.c     templates by name, and where a template comes from
 * chat_tokens.c    whether the template's own tokens are the tokenizer's
 * chat_findings.c  what is worth a warning about a row
 * chat_marks.c     where the words of messages are in a rendering
 * chat_turns.c     where a turn begins and ends, by these places
 * chat_trained.c   what is trained where roles or ends of turns were chosen
 * chat_prefix.c    the same by rendering up to the turn and through it, where that does not tell
 */
#ifndef TSR_DATA_CHAT_PARTS_H
#define TSR_DATA_CHAT_PARTS_H

#include "data/chat.h"

/* What an assistant thought, as rows and templates name it; the first that is there counts. */
#define TSR_CHAT_THOUGHTS 3
extern const char *const tsr_chat_thoughts[TSR_CHAT_THOUGHTS];

/* TSR_EDATA: the first message that cannot be rendered, or that says of its training what is not understood. */
tsr_status tsr_chat_check_messages(const json_t *messages);

/* Whether a checked message says that it is to be trained (1) or not (0); -1: it says nothing. */
int tsr_chat_asks_training(const json_t *message);

/* Whether the message's role is a word for the assistant. */
bool tsr_chat_is_assistant(const json_t *message);

/* The messages as transformers hands them to the template of the row: without keys that are null, which rows of a
 * table have for what other rows say; what was thought under either name that templates read; and their roles
 * in the template's words. TSR_EDATA: a role that nobody knows. The caller owns *out. */
tsr_status tsr_chat_see(json_t **out, tsr_chat *chat, const json_t *messages);

/* The word by which the row's template is to see a role: as it is if the template has it of its own, else the
 * standard one. NULL in *out: nobody knows it. Borrowed from the chat or from `word`. */
tsr_status tsr_chat_role(const char **out, tsr_chat *chat, const char *word);

/* A template that is known by name. */
typedef struct {
    const char *names;  /* separated by spaces; the first is said in messages */
    const char *end;    /* the token that ends a turn; NULL: eos_token */
    const char *tokens; /* what must be tokens and does not look like it; spaces between */
    const char *text;
} tsr_chat_named;

/* NULL: no such name. */
const tsr_chat_named *tsr_chat_find_named(const char *name);

/* Fills chat->lacking; chat->chosen is the template. */
tsr_status tsr_chat_look_up_tokens(tsr_chat *chat);

/* Renders the first `count` of `seen`, with the generation prompt or without. */
tsr_status tsr_chat_render(tsr_rendering *out, tsr_chat *chat, const json_t *seen, size_t count,
                           bool prompt);

/* Sets one of the names that the template sees; takes the value. */
tsr_status tsr_chat_set_name(tsr_chat *chat, const char *key, json_t *value);

#define TSR_CHAT_MOST_ROLES 16 /* that are remembered */

/* A role of a template, and whether the template has it of its own. */
typedef struct {
    const tsr_template *template;
    char word[24];
    bool known;
} tsr_chat_known_role;

struct tsr_chat {
    tsr_chat *origin; /* whose template and `lacking` these are; NULL: they are its own */
    tsr_tokenizer *tokenizer;
    tsr_template *template;
    const char *tool_source, *tool_name; /* the tokenizer's for rows with tools; NULL: none */
    size_t tool_bytes;
    tsr_template *tool_template; /* the same once it was needed */
    const tsr_chat_named *named; /* what `template` is, if it was chosen by name */
    const tsr_template *chosen;  /* of the row being encoded */
    json_t *names; /* what the template sees; messages, tools and the prompt flag change */
    int64_t now;
    int64_t steps; /* left to the renderings of the row */
    bool dated;    /* a rendering asked for it */
    uint64_t hash;
    tsr_text lacking; /* tokens of the template that the tokenizer has not */
    tsr_chat_known_role roles[TSR_CHAT_MOST_ROLES];
    int role_count;
};

#define TSR_CHAT_MOST_LEADS 8
#define TSR_CHAT_NO_PLACE   SIZE_MAX

/* What stands between the words of a message of `role` and the turn of the assistant after it. */
typedef struct {
    const char *role; /* "": before the first message */
    tsr_text text;    /* through the end of the generation prompt */
    size_t ends; /* bytes of it that end the message before; TSR_CHAT_NO_PLACE: not asked yet */
    bool usable;
} tsr_chat_lead;

/* One row while it is encoded: its messages, and the same as its template sees them. */
typedef struct {
    tsr_chat *chat;
    tsr_chat_row *row;
    const json_t *messages;
    json_t *seen;
    /* chat_marks.c */
    json_t *marked; /* `seen` with marks in its contents; NULL before tsr_chat_place */
    bool placed;    /* row->places are known */
    char nonce[17]; /* what marks begin with */
    /* chat_turns.c */
    tsr_chat_lead leads[TSR_CHAT_MOST_LEADS];
    int lead_count;
    tsr_text tail; /* what follows the words of an assistant's turn, with its end */
    enum { TSR_TAIL_UNKNOWN, TSR_TAIL_KNOWN, TSR_TAIL_NONE } tail_state, calls_state;
    /* chat_prefix.c */
    size_t rendered; /* what it has cost so far */
} tsr_conversation;

void tsr_conversation_free(tsr_conversation *c);

/* Adds to row->findings; row->text is the rendering. Uses scratch[1]. */
tsr_status tsr_chat_note_findings(tsr_conversation *c, size_t prompt_count, bool assistant_only);

/* ---- chat_marks.c ---- */

/* The bytes of an assistant's content that marks are put around: without white space at its ends, and behind its
 * thinking. Of another's content the end alone is marked. */
tsr_span tsr_chat_words(const char *content);

/* Bytes of white space that a text begins with. */
size_t tsr_chat_space(const char *text);

/* Fills row->places: where the words of each message are in row->text, TSR_CHAT_NO_PLACE where they have no mark or
 * are not in it. c->placed stays false where the rendering with marks, taken away, is not row->text. The rendering
 * stays in scratch[2]. */
tsr_status tsr_chat_place(tsr_conversation *c);

/* A message whose content is the mark that ends `index`; NULL: no memory. The caller owns it. */
json_t *tsr_chat_mark_alone(const tsr_conversation *c, size_t index, const char *role);

/* The bytes behind the mark that ends message `index` in a rendering of c->marked; TSR_CHAT_NO_PLACE if it is not
 * there exactly once. */
size_t tsr_chat_behind_mark(const tsr_conversation *c, const tsr_text *marked, size_t index);

/* ---- the two methods ---- */

/* The bytes of a turn in row->text; false: this way does not tell. */
tsr_status tsr_chat_turn_by_places(bool *found, tsr_span *out, tsr_conversation *c, size_t index);
/* TSR_EDATA: this way does not tell either, and why. */
tsr_status tsr_chat_turn_by_prefix(tsr_span *out, tsr_conversation *c, size_t index);

/* What ends a turn of the assistant, as message `index` has one, without white space: "<|im_end|>". Borrowed from `c`; NULL: it
 * has no end, or cannot be told. */
tsr_status tsr_chat_end(const char **out, size_t *bytes, tsr_conversation *c, size_t index);

/* Marks what training->roles and ->ends say, behind the first messages; with {% generation %} the assistant's turns are
 * marked already. TSR_EDATA: the template does not show what is needed. (chat_trained.c) */
tsr_status tsr_chat_choose(tsr_conversation *c, size_t first, const tsr_chat_training *training);

bool tsr_chat_begins(const tsr_text *text, const tsr_text *with);

/* By places, else by prefix. */
tsr_status tsr_chat_turn(tsr_span *out, tsr_conversation *c, size_t index);

#endif
