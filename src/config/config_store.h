/*
 * config/config_store.h: what a configuration owns besides its fields: memory, where each key was
 * set, and the errors found while it is loaded. Private to config*.c.
 */
#ifndef TSR_CONFIG_STORE_H
#define TSR_CONFIG_STORE_H

#include "base/text.h"
#include "config/config.h"
#include "config/keys.h"
#include "config/yaml.h"

/* In rising order of strength. */
typedef enum {
    TSR_LAYER_DEFAULT,
    TSR_LAYER_PEER, /* TRL's (`defaults: trl`), or the default of the trainer whose file it is */
    TSR_LAYER_FILE,
    TSR_LAYER_ADAPTER, /* an entry of `adapters:` */
    TSR_LAYER_OVERRIDE
} tsr_config_layer;

typedef struct {
    tsr_config_layer layer;
    const char *where;   /* "job.yaml:12" */
    const char *spelled; /* the name that was used */
    const char *loaded;  /* the value after loading, as text */
    bool bad;            /* its value was an error: checks leave it alone */
} tsr_config_origin;

struct tsr_config_store {
    struct tsr_config_block *blocks;
    struct tsr_config_tree *trees;
    bool failed;              /* an allocation did not succeed */
    const char *adapter_name; /* as in tsr_config */
    int adapter_count;
    tsr_config_origin origin[TSR_KEYS_MAX];
};

/* Zeroed memory that lives as long as the store; NULL, remembered, when there is none. */
void *tsr_config_store_allocate(struct tsr_config_store *store, size_t bytes);
const char *tsr_config_store_copy(struct tsr_config_store *store, const char *text);
void tsr_config_store_free(struct tsr_config_store *store);

/* As tsr_yaml_parse, into a tree that lives as long as the store. */
tsr_status tsr_config_store_parse(const tsr_yaml_value **root, struct tsr_config_store *store,
                                  const char *text, size_t bytes, const char *name);

/* Equal but for the case of ASCII letters, in every locale. */
bool tsr_config_same_letters(const char *a, const char *b, size_t length);

/* All that is wrong, a line each. */
typedef struct {
    tsr_text text;
    int count;
} tsr_config_errors;

void tsr_config_error(tsr_config_errors *errors, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* TSR_OK: there are none; TSR_ECONFIG, with all of them. */
tsr_status tsr_config_all_errors(const tsr_config_errors *errors);

/* One key as it was written, or as a peer's key was translated. */
typedef struct {
    const char *name;
    const char *spelled; /* what the file calls it */
    tsr_yaml_value value;
    const char *where; /* "job.yaml:12", "override lora_r=8" */
    tsr_config_layer layer;
    bool bad; /* what is wrong with its value was said already */
    const char
        *why; /* of a key without effect: why, or what does it instead; NULL: nothing to say */
} tsr_config_entry;

typedef struct {
    tsr_config_entry *items;
    int count, capacity;
} tsr_config_entries;

void tsr_config_add_entry(tsr_config_entries *list, struct tsr_config_store *store,
                          tsr_config_entry entry);

/* Every key of the file or text of `source`, then of its overrides, in their order. `name` is
 * tsr_config_source_name. What is wrong with a single line is said in `errors`. TSR_ECONFIG: not YAML; TSR_EIO, TSR_ENOMEM.
 * (config_source.c) */
tsr_status tsr_config_collect(tsr_config_entries *out, struct tsr_config_store *store,
                              tsr_config_errors *errors, const tsr_config_source *source,
                              const char *name);

/* What messages call the file. */
const char *tsr_config_source_name(const tsr_config_source *source);

/* The whole text of a file of 1 MiB at most. TSR_ECONFIG: missing or larger; TSR_EIO. */
tsr_status tsr_config_read_file(tsr_text *out, const char *path);

/* Where a value comes from, for messages. */
typedef struct {
    struct tsr_config_store *store;
    tsr_config_errors *errors;
    const char *where, *spelled;
} tsr_config_place;

/* Reads `value` into the field of `key` in *fields, a tsr_config or for its members a tsr_config_set; on failure says why in place->errors and leaves
 * the field alone. (config_value.c, config_lists.c, config_data.c) */
bool tsr_config_read(void *fields, const tsr_key *key, const tsr_yaml_value *value,
                     const tsr_config_place *place);
bool tsr_config_read_list(void *field, const tsr_key *key, const tsr_yaml_value *value,
                          const tsr_config_place *place);
bool tsr_config_read_strings(tsr_config_strings *out, const tsr_key *key,
                             const tsr_yaml_value *value, const tsr_config_place *place);
bool tsr_config_read_data(tsr_config_data *out, const tsr_key *key, const tsr_yaml_value *value,
                          const tsr_config_place *place);
bool tsr_config_has_twice(const tsr_yaml_value *map, int index, const tsr_config_place *place);
bool tsr_config_read_number(double *out, const tsr_key *key, const tsr_yaml_value *value,
                            const tsr_config_place *place);

/* Entry `entry` of the list `adapters:`, whose keys it adds; and the store's adapter_name and adapter_count.
 * (config_adapters.c) */
void tsr_config_collect_adapter(tsr_config_entries *out, const tsr_yaml_value *list, int entry,
                                const tsr_config_place *place, const char *file);

/* "where: spelled: found 'x'; expected ..." */
bool tsr_config_refuse(const tsr_config_place *place, const tsr_key *key,
                       const tsr_yaml_value *value);
bool tsr_config_fits(const tsr_key *key, double number);
void tsr_config_found(tsr_text *out, const tsr_yaml_value *value);

/* "true" or "false" for any way to write it; NULL otherwise. */
const char *tsr_config_bool_word(const tsr_yaml_value *value);

/* A text as YAML, in quotes where it needs them. (config_write.c) */
void tsr_config_put_string(tsr_text *out, const char *text);

/* The field as YAML, of the same. (config_write.c) */
void tsr_config_put(tsr_text *out, const void *fields, const tsr_key *key);

/* Whether `was` and `now`, as tsr_config_put of this or an older version wrote them, are the same value:
 * 2e+01 is 20. (config_write.c) */
bool tsr_config_same_text(const tsr_config *config, const tsr_key *key, const char *was,
                          const char *now);

/* The same of the objective. (config_objective.c) */
void tsr_config_derive_objective(tsr_config *config);
/* Whether a key's default is that of the objective, not the table's. */
bool tsr_config_objective_decides(const tsr_config *config, const char *name);
void tsr_config_check_objective(const tsr_config *config, tsr_config_errors *errors);

/* Sets defaults that follow other keys, then says in `errors` what does not go together.
 * (config_check.c) */
void tsr_config_derive(tsr_config *config);
void tsr_config_check(tsr_config *config, const tsr_config_source *source,
                      tsr_config_errors *errors);

/* TRL's defaults: taken, or said. (config_trl.c) */
void tsr_config_apply_trl(tsr_config *config, tsr_config_errors *errors);

void tsr_config_note(tsr_config *config, const char *line);

#endif
