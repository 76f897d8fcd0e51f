/*
 * config/yaml.h: a YAML document as a small tree, with the line of every value. The one place that
 * calls libyaml.
 *
 * One document; a mapping of scalars, lists and maps. Anchors are followed; depth and number of
 * values are bounded, so that a hostile file cannot grow.
 */
#ifndef TSR_CONFIG_YAML_H
#define TSR_CONFIG_YAML_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum { TSR_YAML_SCALAR, TSR_YAML_LIST, TSR_YAML_MAP } tsr_yaml_kind;

typedef struct tsr_yaml_value tsr_yaml_value;
struct tsr_yaml_value {
    tsr_yaml_kind kind;
    int line;              /* from 1 */
    bool quoted;           /* a scalar in quotes or a block: never null */
    const char *text;      /* scalar; without zeros inside */
    tsr_yaml_value *keys;  /* map: scalars */
    tsr_yaml_value *items; /* list, map */
    int count;
};

typedef struct {
    tsr_yaml_value root; /* an empty document is an empty map */
    struct tsr_yaml_block *blocks;
} tsr_yaml_tree;

/* Parses `bytes` of text. `name` stands in messages, as name:line:column. On success free *out with
 * tsr_yaml_free. TSR_ECONFIG: not YAML, or not of this shape. */
tsr_status tsr_yaml_parse(tsr_yaml_tree *out, const char *text, size_t bytes, const char *name);

void tsr_yaml_free(tsr_yaml_tree *tree);
#define tsr_auto_yaml                                                                              \
    __attribute__((cleanup(tsr_yaml_free))) tsr_yaml_tree /* freed where its scope ends */

/* null, ~, or nothing at all. */
bool tsr_yaml_is_null(const tsr_yaml_value *value);

/* libyaml's version. Borrowed. */
const char *tsr_yaml_library(void);

#endif
