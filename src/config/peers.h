/*
 * config/peers.h: files of other trainers, in this program's keys.
 *
 * A peer is a table with a row for each of its keys. tsr_peers_translate recognises whose file it is, and turns its keys
 * into ours before the keys' own reader sees them; each keeps the line that it was written in. A row is one of:
 *
 *     renamed    another name of one of our keys, with a map of values where these differ too
 *     converted  a function, where the value has another shape, or depends on other keys
 *     others     no key here: without effect, or refused unless it has a value that does nothing
 *
 * Keys that a peer shares with TRL have their rows in keys_peers.c alone. Private to config.
 */
#ifndef TSR_CONFIG_PEERS_H
#define TSR_CONFIG_PEERS_H

#include "config/config_store.h"

typedef struct tsr_peers_work tsr_peers_work;

/* `what` is the row's text in docs/peers.md. */
typedef struct {
    const char *name, *here;
    void (*convert)(tsr_peers_work *work, const tsr_config_entry *entry);
    const char *what;
} tsr_peer_converted;

/* What the peer takes where none of the keys `unless` (separated by spaces) is given, and this program does not. */
typedef struct {
    const char *unless, *key, *value;
} tsr_peer_default;

/* Each table ends with a row of zeros, and may be NULL. A file is the peer's if it has `needs` (NULL: nothing) and at
 * least `least` of `marks` (separated by spaces). */
typedef struct {
    const char *name, *needs, *marks;
    int least;
    const tsr_key_alias *renamed;
    const tsr_peer_converted *converted;
    const tsr_key_peer *others;
    const tsr_peer_default *defaults;
} tsr_peer;

extern const tsr_peer tsr_peer_axolotl, tsr_peer_llamafactory, tsr_peer_trl;

int tsr_peers_count(void);
const tsr_peer *tsr_peers_at(int index);

/* What became of a file. */
typedef struct {
    const tsr_peer *peer;    /* NULL: a job.yaml of ours */
    tsr_config_entries ours; /* our keys, and those that nobody knows */
    tsr_config_entries idle; /* without effect here */
    tsr_text remarks;        /* what is not quite as in the peer; "; " between two */
} tsr_peers_result;

/* Translates `theirs`. What is refused is said in `errors`. On return the caller frees out->remarks; what else is in
 * *out lives as long as the store. */
void tsr_peers_translate(tsr_peers_result *out, struct tsr_config_store *store,
                         tsr_config_errors *errors, const tsr_config_entries *theirs);

/* Whether any peer has a key of this name, TRL asked first; its row of either kind, or NULL (both pointers may be NULL). */
bool tsr_peers_row(const char *name, const tsr_key_alias **renamed, const tsr_key_peer **other);

/* The name nearest to a misspelt one in a file of `peer` (NULL: a job.yaml of ours); NULL: none is near. */
const char *tsr_peers_nearest(const tsr_peer *peer, const char *name);

/* The key of ours that a peer's key of this name is or becomes; NULL: none. */
const char *tsr_peers_called(const char *name);

/* Whether a translated key that is not here is one that a peer's key is to become, and no misspelt one. */
bool tsr_peers_awaits(const tsr_config_entry *entry);

/* ---- for the functions of converted rows ---- */

struct tsr_peers_work {
    struct tsr_config_store *store;
    tsr_config_errors *errors;
    const tsr_config_entries *theirs;
    tsr_peers_result *out;
};

/* The peer's key of this name; NULL: not given, or null. */
const tsr_config_entry *tsr_peers_find(const tsr_peers_work *work, const char *name);

/* Our key with a value, from where `from` was written; the text is copied. */
void tsr_peers_give(tsr_peers_work *work, const tsr_config_entry *from, const char *key,
                    tsr_yaml_value value);
void tsr_peers_give_text(tsr_peers_work *work, const tsr_config_entry *from, const char *key,
                         const char *text);

/* The key has no effect; `why` may be NULL. */
void tsr_peers_idle(tsr_peers_work *work, const tsr_config_entry *from, const char *why);

/* "where: spelled: found 'x'; because" */
void tsr_peers_refuse(tsr_peers_work *work, const tsr_config_entry *from,
                      const tsr_yaml_value *found, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

void tsr_peers_remark(tsr_peers_work *work, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Values that live as long as the store. A map or list of ours has room for what it is asked for. */
tsr_yaml_value tsr_peers_text(const tsr_peers_work *work, const char *text);
tsr_yaml_value tsr_peers_room(const tsr_peers_work *work, tsr_yaml_kind kind, int room);
void tsr_peers_put(const tsr_peers_work *work, tsr_yaml_value *map, const char *key,
                   tsr_yaml_value value);
void tsr_peers_push(tsr_yaml_value *list, tsr_yaml_value value);

/* "a,b, c" or a list of words, as a list; anything else is returned as it is. */
tsr_yaml_value tsr_peers_split(const tsr_peers_work *work, const tsr_yaml_value *value);

/* A member of a map; NULL: not there, or null. */
const tsr_yaml_value *tsr_peers_member(const tsr_yaml_value *map, const char *key);

/* A number by this name; `otherwise`: not given, or no number. */
double tsr_peers_number(const tsr_peers_work *work, const char *name, double otherwise);

/* true, yes, on. */
bool tsr_peers_is_true(const tsr_yaml_value *value);

/* Whether it is one of the words, separated by spaces; null, numbers and empty lists by their plain forms "null", "0",
 * "[]", "{}". */
bool tsr_peers_is_one_of(const tsr_yaml_value *value, const char *words);

/* Our dataset or eval_dataset from a list of maps with our members (path, format, ...): in its plainest form. */
void tsr_peers_give_data(tsr_peers_work *work, const tsr_config_entry *from, const char *key,
                         const tsr_yaml_value *list);

/* AdamW under all its names (optim, optimizer); those of bitsandbytes in 8 bits are names here, too. */
void tsr_peers_convert_optimizer(tsr_peers_work *work, const tsr_config_entry *entry);

/* A share or number of rows to hold out: validation_split; 0 or null: none. */
void tsr_peers_convert_share(tsr_peers_work *work, const tsr_config_entry *entry);

/* A directory for tokenised rows: dataset_cache. It changes no result: without that key it does nothing. */
void tsr_peers_convert_cache(tsr_peers_work *work, const tsr_config_entry *entry);

/* A number of ranks, which the launcher starts. */
void tsr_peers_convert_processes(tsr_peers_work *work, const tsr_config_entry *entry);

/* A share of all steps, or each epoch, for a number of times an epoch. */
void tsr_peers_give_times(tsr_peers_work *work, const tsr_config_entry *entry, const char *steps,
                          const char *strategy, double epochs);

#endif
