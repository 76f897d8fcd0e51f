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
    TSR_LAYER_TRL, /* `defaults: trl` */
    TSR_LAYER_FILE,
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
    bool failed; /* an allocation did not succeed */
    tsr_config_origin origin[TSR_KEYS_MAX];
};

/* Zeroed memory that lives as long as the store; NULL, remembered, when there is none. */
void *tsr_config_store_allocate(struct tsr_config_store *store, size_t bytes);
const char *tsr_config_store_copy(struct tsr_config_store *store, const char *text);
void tsr_config_store_free(struct tsr_config_store *store);

/* Equal but for the case of ASCII letters, in every locale. */
bool tsr_config_same_letters(const char *a, const char *b, size_t length);

/* All that is wrong, a line each. */
typedef struct {
    tsr_text text;
    int count;
} tsr_config_errors;

void tsr_config_error(tsr_config_errors *errors, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Where a value comes from, for messages. */
typedef struct {
    struct tsr_config_store *store;
    tsr_config_errors *errors;
    const char *where, *spelled;
} tsr_config_place;

/* Reads `value` into the field of `key` in *config; on failure says why in place->errors and leaves
 * the field alone. (config_value.c, config_lists.c) */
bool tsr_config_read(tsr_config *config, const tsr_key *key, const tsr_yaml_value *value,
                     const tsr_config_place *place);
bool tsr_config_read_list(void *field, const tsr_key *key, const tsr_yaml_value *value,
                          const tsr_config_place *place);
bool tsr_config_read_number(double *out, const tsr_key *key, const tsr_yaml_value *value,
                            const tsr_config_place *place);

/* "where: spelled: found 'x'; expected ..." */
bool tsr_config_refuse(const tsr_config_place *place, const tsr_key *key,
                       const tsr_yaml_value *value);
bool tsr_config_fits(const tsr_key *key, double number);
void tsr_config_found(tsr_text *out, const tsr_yaml_value *value);

/* "true" or "false" for any way to write it; NULL otherwise. */
const char *tsr_config_bool_word(const tsr_yaml_value *value);

/* The field as YAML. (config_write.c) */
void tsr_config_put(tsr_text *out, const tsr_config *config, const tsr_key *key);

/* Whether `was` and `now`, as tsr_config_put of this or an older version wrote them, are the same value:
 * 2e+01 is 20. (config_write.c) */
bool tsr_config_same_text(const tsr_config *config, const tsr_key *key, const char *was,
                          const char *now);

/* Sets defaults that follow other keys, then says in `errors` what does not go together.
 * (config_check.c) */
void tsr_config_derive(tsr_config *config);
void tsr_config_check(tsr_config *config, const tsr_config_source *source,
                      tsr_config_errors *errors);

/* TRL's defaults: taken, or said. (config_trl.c) */
void tsr_config_apply_trl(tsr_config *config, tsr_config_errors *errors);

void tsr_config_note(tsr_config *config, const char *line);

#endif
