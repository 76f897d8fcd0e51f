/*
 * config/keys.h: the table of all keys. Parsing, messages, help and the written job.yaml follow it,
 * so a key is added here and nowhere else (and as a field of tsr_config).
 */
#ifndef TSR_CONFIG_KEYS_H
#define TSR_CONFIG_KEYS_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    TSR_KEY_BOOL,     /* bool */
    TSR_KEY_WORD,     /* an enum: `words` */
    TSR_KEY_INT,      /* int64_t */
    TSR_KEY_NUMBER,   /* double */
    TSR_KEY_STEPS,    /* double: whole, or a share below 1 */
    TSR_KEY_DURATION, /* double, seconds: 90, 1h30m, 01:30:00 */
    TSR_KEY_BYTES,    /* uint64_t: 22GiB */
    TSR_KEY_STRING,   /* const char * */
    TSR_KEY_STRINGS,  /* tsr_config_strings: one or a list */
    TSR_KEY_DATA,     /* tsr_config_data: files, or maps: tsr_keys_of_set */
    TSR_KEY_NAMES,    /* tsr_config_names: a map from `words` to texts */
    TSR_KEY_MODULES,  /* tsr_config_modules: all-linear, a list or a regular expression */
    TSR_KEY_INTS,     /* tsr_config_ints: one or a list */
    TSR_KEY_TOKENS,   /* tsr_config_tokens: a list, or a map of embed_tokens and lm_head to lists */
    TSR_KEY_PATTERNS, /* tsr_config_patterns */
    TSR_KEY_UNITS,    /* tsr_config_units: layer, a number, 64MiB or names */
    TSR_KEY_LR_KWARGS /* tsr_schedule_arguments */
} tsr_key_type;

/* A word that cannot be used has the reason in `refused`. */
typedef struct {
    const char *word;
    int value;
    const char *refused;
} tsr_key_word;

enum {
    TSR_KEY_LOW_OPEN = 1,       /* the lower bound itself is not allowed */
    TSR_KEY_HIGH_OPEN = 2,      /* nor the upper one */
    TSR_KEY_WHOLE = 4,          /* PATTERNS: whole numbers */
    TSR_KEY_FALSE_IS_NONE = 8,  /* STRING: false is null */
    TSR_KEY_LIST_OF_ONE = 16,   /* WORD: [word] too; [] is none */
    TSR_KEY_ALL_LINEAR = 32,    /* MODULES: all-linear, or [all-linear]; null: PEFT's default */
    TSR_KEY_TRL_SAID_ONLY = 64, /* `defaults: trl` cannot take TRL's value */
    TSR_KEY_PATH = 128,         /* STRING: not empty */
    TSR_KEY_RESULT = 256,       /* a resumed run must have the value of its checkpoint */
    TSR_KEY_TRUE_TOO = 512,     /* STRING: true has a meaning, however it is written */
    TSR_KEY_EMPTY_TOO = 4096,   /* STRINGS: [] has a meaning */
    TSR_KEY_ONE_EACH = 2048,    /* NAMES: one text each, no list */
    TSR_KEY_OF_BASE = 8192,     /* the same for all entries of `adapters:` */
    TSR_KEY_ONE_START = 1024    /* is meant for one start: a resolved job.yaml does not carry it */
};

typedef struct {
    const char *name;
    const char *group;
    tsr_key_type type;
    size_t offset;
    const tsr_key_word *words; /* ends with a NULL word */
    double low, high;          /* both 0: no bounds */
    double step;               /* the value is a multiple of it; 0: any */
    unsigned flags;
    const char *none; /* "null" or "auto": the word for none_value; NULL: null is refused */
    double none_value;
    const char *initial; /* the default, as YAML */
    const char *trl;     /* TRL's default where it differs, as YAML */
    const char *derived; /* what the default follows, for the help: "seed" */
    const char *later;   /* refused except at the default, because ... */
    const char *help;
} tsr_key;

#define TSR_KEYS_MAX 160

/* Those of objectives (keys_objective.c), which tsr_keys_at has too. */
#define TSR_OBJECTIVE_KEYS 20
extern const tsr_key tsr_objective_keys[TSR_OBJECTIVE_KEYS];

int tsr_keys_count(void);
const tsr_key *tsr_keys_at(int index);

/* The members of a data set's map, whose offsets are those of tsr_config_set; *count of them. */
const tsr_key *tsr_keys_of_set(int *count);

/* The index of a key's own name; -1: none. */
int tsr_keys_find(const char *name);

/* What the key takes, for messages: "a whole number, 1 or more", "one of linear, cosine". */
void tsr_keys_expects(tsr_text *out, const tsr_key *key);

/* "whole number", "map". */
const char *tsr_keys_type_name(const tsr_key *key);

/* "2e-4; TRL's is 2e-5" */
void tsr_keys_default(tsr_text *out, const tsr_key *key);

/* What other trainers call it: "axolotl: micro_batch_size"; nothing: as here. */
void tsr_keys_other_names(tsr_text *out, const tsr_key *key);

/* A peer's name of one of our keys. `map` translates values ("true" -> "bfloat16"; ends with NULL),
 * to NULL where the value has no effect; without one the value is taken as it is, below `below` if that is not 0. */
typedef struct {
    const char *from, *to;
} tsr_key_translation;

typedef struct {
    const char *name, *key;
    const tsr_key_translation *map;
    double below;
    const char *otherwise; /* what a value outside the map means */
} tsr_key_alias;

const tsr_key_alias *tsr_keys_alias(const char *name);
const tsr_key_alias *tsr_keys_aliases(void); /* all; ends with a NULL name */

/* A peer's key that is not ours. With `nothing` (values separated by spaces) any other value is an
 * error, for the reason `why`; without, it has no effect here, and `why` (may be NULL) says what does it instead. A name
 * may have one *, for anything. */
typedef struct {
    const char *name;
    const char *nothing;
    const char *why;
} tsr_key_peer;

const tsr_key_peer *tsr_keys_peer(const char *name);

/* ---- for a command line ---- */

/* Whether it is a key of ours or of a peer. */
bool tsr_keys_known(const char *name);

/* Whether a key, ours or a peer's, is true or false, and true where no value is given. */
bool tsr_keys_is_flag(const char *name);

/* Whether it says nothing without a value. Of others that are no flags either may be. */
bool tsr_keys_needs_value(const char *name);

/* Whether it takes several values. */
bool tsr_keys_is_list(const char *name);

/* Whether a key that is a flag takes this word too: `full` of gradient_checkpointing. */
bool tsr_keys_takes_word(const char *name, const char *word);

/* ---- tables of peers ---- */

/* Whether a row's name, with or without a *, is that of a key. */
bool tsr_keys_matches(const char *row, const char *name);

/* Takes `candidate` as *best if it is nearer to `name` than *distance; a name with a * never. */
void tsr_keys_consider(const char **best, int *distance, const char *name, const char *candidate);

/* The known name nearest to a misspelt one, or what other tools' name for it is called here; NULL:
 * none is near. */
const char *tsr_keys_nearest(const char *name);

#endif
