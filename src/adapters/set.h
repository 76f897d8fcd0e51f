/*
 * adapters/set.h: which modules of a model get an adapter, and its rank and scale, by PEFT's rules.
 *
 * A module is matched by target_modules: a list (the path is the entry, or ends in "." + entry), a
 * regular expression (the whole path matches) or all linears of the layers; exclude_modules, of
 * either form, takes away. Layers limit all but the entries that are a whole path. A pattern's key
 * matches `(.*\.)?(key)$`. Regular expressions are Oniguruma's with Python's syntax.
 */
#ifndef TSR_ADAPTERS_SET_H
#define TSR_ADAPTERS_SET_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define TSR_ADAPTER_MAX_RANK 8192

/* Tables of the vocabulary. */
typedef enum { TSR_TABLE_NONE, TSR_TABLE_EMBEDDING, TSR_TABLE_HEAD } tsr_adapter_table;

/* A module of the model. Those without `linear` and `table` (norms, activations) are listed so that a
 * target that means them is refused by name. Strings are borrowed. */
typedef struct {
    const char *path; /* "model.layers.3.mlp.up_proj" */
    uint64_t in_features, out_features;
    bool linear;             /* a linear of a decoder layer: may have an adapter */
    bool router;             /* it chooses experts: never one */
    tsr_adapter_table table; /* may have a LoRA where a target names it */
    uint64_t experts;        /* a parameter of so many matrices: may have a LoRA on each; 0: none */
    int parts;               /* of each of those matrices: 2 of gate and up */
    /* [parts], for experts whose parts once were linears, whose names PEFT still takes for the experts': the names below the
     * layer, with %d for the expert's number; NULL: they never were linears. */
    const char *const *linears;
} tsr_adapter_module;

/* A list of names, or one regular expression, or neither (count 0 and regex NULL). */
typedef struct {
    const char *const *names;
    uint64_t count;
    const char *regex;
} tsr_adapter_match;

typedef struct {
    const char *key; /* a regular expression */
    double value;
} tsr_adapter_pattern;

typedef struct {
    uint64_t r;   /* 1 .. TSR_ADAPTER_MAX_RANK */
    double alpha; /* lora_alpha, > 0 */
    bool rslora, dora;
    double dropout;  /* [0, 1) */
    bool all_linear; /* target_modules: all-linear; `target` is then empty */
    bool
        all_linear_peft; /* likewise: what PEFT selects for all-linear with experts, except the routers */
    tsr_adapter_match target; /* neither form: all-linear */
    tsr_adapter_match exclude;
    /* target_parameters: ends of paths of experts' parameters. As in PEFT, neither layers nor exclude limits them. If they
     * are not given, all-linear includes all of them, except with DoRA. */
    const char *const *parameter;
    uint64_t parameter_count;
    bool parameters_given;
    uint64_t expert_r;   /* of each expert; 0: r */
    double expert_alpha; /* 0: alpha */
    const tsr_adapter_pattern *rank_pattern;
    uint64_t rank_pattern_count;
    const tsr_adapter_pattern *alpha_pattern;
    uint64_t alpha_pattern_count;
    const int64_t *layers; /* layers_to_transform; NULL: all layers */
    uint64_t layer_count;
} tsr_adapter_spec;

/* One module's adapter. */
typedef struct {
    uint64_t module; /* index into the modules given */
    uint64_t r;
    double alpha;
    double scale; /* alpha / r, or alpha / sqrt(r) with rsLoRA */
    bool dora;
    tsr_adapter_table table;
    uint64_t experts; /* each has one; 0: it is no experts' */
} tsr_adapter;

/* In the order of the modules; and the target list for adapter_config.json: sorted names
 * (all-linear resolved, never lm_head), or none where a regular expression stands. */
typedef struct {
    tsr_adapter *adapter;
    uint64_t count;
    char **target;
    uint64_t target_count;
    char **parameter; /* target_parameters likewise */
    uint64_t parameter_count;
    /* Ranks and alphas of experts that follow neither from r or alpha nor from a pattern of the specification. */
    tsr_adapter_pattern *expert_r, *expert_alpha;
    uint64_t expert_r_count, expert_alpha_count;
} tsr_adapter_set;

/* On success *out is the caller's, to be freed by tsr_adapter_set_free; on failure untouched.
 * TSR_ECONFIG, naming the key: nothing matched (with the candidates), a target that is not a linear
 * of a layer, a bad regular expression, two keys of one pattern with different values for one
 * module, DoRA on a table or on experts, dropout on experts, a router as a target, layers_to_transform
 * with a regular expression or beyond the layers, a rank, alpha or dropout out of range. A target, an exclusion or a pattern key that matches nothing is a warning in
 * the log, and so is a rank above the smaller side of a linear. */
tsr_status tsr_adapter_set_make(tsr_adapter_set *out, const tsr_adapter_spec *spec,
                                const tsr_adapter_module *modules, uint64_t module_count);

void tsr_adapter_set_free(tsr_adapter_set *set);

/* PEFT's rule for an entry of a list: the path itself, or its end after a dot. */
bool tsr_adapter_path_ends_in(const char *path, const char *name);

/* The path below its layer: "mlp.experts.down_proj"; the whole path, if it is in no layer. */
const char *tsr_adapter_below_layer(const char *path);

/* Whether PEFT mistakes a linear's path, or its name in target_modules, for a linear that experts once had. */
bool tsr_adapter_peft_takes(const char *path, const tsr_adapter_module *modules,
                            uint64_t module_count);

/* Whether a key of the pattern `pattern_name` matches a module. TSR_ECONFIG: it is not a regular expression. */
tsr_status tsr_adapter_key_matches(bool *out, const char *pattern_name, const char *key,
                                   const char *path);

#endif
