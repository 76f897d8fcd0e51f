/*
 * io/peft.h: PEFT's LoRA adapters, in and out (FORMATS 2).
 *
 * A directory with adapter_config.json and adapter_model.safetensors. In: a field that is not
 * understood and not at PEFT 0.21's default is refused by its name (TSR_EDATA). Out: the files that
 * PEFT 0.21 writes, F32.
 */
#ifndef TSR_IO_PEFT_H
#define TSR_IO_PEFT_H

#include "io/safetensors.h"

#include <stdbool.h>

#define TSR_PEFT_CONFIG_FILE  "adapter_config.json"
#define TSR_PEFT_WEIGHTS_FILE "adapter_model.safetensors"
#define TSR_PEFT_CARD_FILE    "README.md"
/* The routers' correction biases, beside an adapter whose training moved them (docs/formats.md 2). PEFT does not read it. */
#define TSR_PEFT_ROUTER_BIAS_FILE "router_bias.safetensors"
#define TSR_PEFT_MAX_RANK         8192

/* target_modules or exclude_modules: a list of names, or a regular expression, or neither. */
typedef struct {
    char **names;
    uint64_t count;
    char *regex;
} tsr_peft_match;

typedef struct {
    char *key; /* a regular expression */
    double value;
} tsr_peft_pattern;

/* Zero-initialise to build one by hand; strings may then be borrowed if tsr_peft_config_free is not
 * called. */
typedef struct {
    char *base_model_name_or_path; /* NULL: null */
    uint64_t r;
    double lora_alpha, lora_dropout;
    bool use_rslora, use_dora;
    bool all_linear; /* target_modules is the word "all-linear"; target is then empty */
    tsr_peft_match target, exclude;
    tsr_peft_pattern *rank_pattern; /* in the file's order */
    uint64_t rank_pattern_count;
    tsr_peft_pattern *alpha_pattern;
    uint64_t alpha_pattern_count;
    int64_t *layers_to_transform; /* NULL: all */
    uint64_t layer_count;
    tsr_peft_match save;      /* modules_to_save: names of modules that are trained whole */
    tsr_peft_match parameter; /* target_parameters: names of experts' parameters, never a regex */
    /* trainable_token_indices, in the order of the rows: of the embedding and of the head. With none of the head it is
     * written as a list. */
    int64_t *embedding_tokens, *head_tokens;
    uint64_t embedding_token_count, head_token_count;
    bool scores; /* task_type SEQ_CLS, of a reward model; else CAUSAL_LM */
    bool
        beside_towers; /* of a vision-language model's text decoder: the model card loads that model */
} tsr_peft_config;

/* On success the caller frees *out with tsr_peft_config_free; on failure it is untouched. */
tsr_status tsr_peft_config_load(tsr_peft_config *out, const char *path);
tsr_status tsr_peft_config_parse(tsr_peft_config *out, const char *text, uint64_t bytes,
                                 const char *place);
void tsr_peft_config_free(tsr_peft_config *config);

/* adapter_config.json as PEFT 0.21 writes it: every field, sorted, indent 2. *out is the caller's
 * (free). */
tsr_status tsr_peft_config_format(char **out, const tsr_peft_config *config);

/* An adapter directory, open for reading. */
typedef struct tsr_peft tsr_peft;

/* One module's tensors, borrowed. */
typedef struct tsr_peft_module {
    const char *path;            /* "model.layers.0.mlp.up_proj" */
    const tsr_tensor *a;         /* [r, in_features] */
    const tsr_tensor *b;         /* [out_features, r] */
    const tsr_tensor *magnitude; /* [out_features], or NULL: none stored */
    /* [out_features, in_features] of a module that is saved whole: r is 0 then, and the others are NULL; else NULL. */
    const tsr_tensor *whole;
    /* [rows, in_features] of a module of which tokens' rows are trained: the others are NULL then; else NULL. */
    const tsr_tensor *rows;
    uint64_t r, in_features, out_features;
    /* [experts][parts]: adapters on the linears that experts once were, joined into this one (tsr_peft_join); the tensors
     * above are then NULL, and r is that of all experts. NULL: not joined. */
    struct tsr_peft_module *one;
    uint64_t experts;
    int parts;
} tsr_peft_module;

/* Opens both files. TSR_EDATA: a tensor that is not a LoRA's, a lora_A without its lora_B (or the
 * other way), shapes that do not fit each other, a dtype other than F32, BF16 or F16, magnitudes
 * where use_dora is false, missing where it is true. */
tsr_status tsr_peft_open(tsr_peft **out, const char *directory);
void tsr_peft_close(tsr_peft *peft);

const tsr_peft_config *tsr_peft_config_of(const tsr_peft *peft);

/* Modules sorted by path. Read tensors with tsr_safetensors_read_f32. */
uint64_t tsr_peft_module_count(const tsr_peft *peft);
const tsr_peft_module *tsr_peft_module_at(const tsr_peft *peft, uint64_t index);
const tsr_peft_module *tsr_peft_module_find(const tsr_peft *peft, const char *path);

/* Modules whose paths begin with `from` get `to` instead. */
tsr_status tsr_peft_rename(tsr_peft *peft, const char *from, const char *to);

/* Gives the module at path `from`, if there is one, the path `to`. */
tsr_status tsr_peft_rename_module(tsr_peft *peft, const char *from, const char *to);

/* Adapters on linears of experts, [experts][parts], become one adapter of the parameter `path`, as PEFT 0.21 makes it: the
 * parts' A one after the other, their B on the diagonal. All must be there, with one shape. */
typedef struct {
    const char *path;
    char *const *linear;
    uint64_t experts;
    int parts;
} tsr_peft_joint;

tsr_status tsr_peft_join(tsr_peft *peft, const tsr_peft_joint *joint);

/* Edit the configuration: add a name with this rank and alpha to target_parameters; remove a name from target_modules. */
tsr_status tsr_peft_add_parameter(tsr_peft *peft, const char *name, uint64_t r, double alpha);
void tsr_peft_drop_target(tsr_peft *peft, uint64_t index);

/* The other way: add a name to target_modules; remove one from target_parameters. */
tsr_status tsr_peft_add_target(tsr_peft *peft, const char *name);
void tsr_peft_drop_parameter(tsr_peft *peft, uint64_t index);

/* Renames a key of rank_pattern or, with `alpha`, of alpha_pattern; NULL: removes it. */
tsr_status tsr_peft_rename_key(tsr_peft *peft, bool alpha, uint64_t index, const char *key);

/* Elements [first, first + count) of a joined A [experts, parts r, in], or of B [experts, out, parts r]. */
tsr_status tsr_peft_read_joined(float *out, const tsr_peft_module *module, bool is_b,
                                uint64_t first, uint64_t count);

/* B of all experts in memory, [experts, rows, r], and in a file's lora_B, [rows, r experts]. */
typedef struct {
    uint64_t experts, rows, r;
    bool by_turns; /* the two halves of the rows alternate in the file */
} tsr_peft_expert_b;

/* peft_experts.c: copy elements [first, first + count), counted as in memory, from a file's tensor or into one. */
tsr_status tsr_peft_read_expert_b(float *out, const tsr_tensor *stored,
                                  const tsr_peft_expert_b *shape, uint64_t first, uint64_t count);
void tsr_peft_put_expert_b(float *file, const float *values, const tsr_peft_expert_b *shape,
                           uint64_t first, uint64_t count);

/* EMBEDDING_A, _B: of an embedding's LoRA, [r, rows] and [columns, r]; WHOLE: of a module that modules_to_save trains; ROWS: of one that trainable_token_indices has rows of. */
typedef enum {
    TSR_PEFT_A,
    TSR_PEFT_B,
    TSR_PEFT_MAGNITUDE,
    TSR_PEFT_EMBEDDING_A,
    TSR_PEFT_EMBEDDING_B,
    TSR_PEFT_ROWS,
    TSR_PEFT_WHOLE
} tsr_peft_part;

/* The name PEFT gives a part in the file, as "base_model.model.<path>.lora_A.weight"; *out is the
 * caller's (free). */
tsr_status tsr_peft_tensor_name(char **out, const char *path, tsr_peft_part part);

/* One tensor to write. Borrowed. */
typedef struct {
    const char *name; /* as tsr_peft_tensor_name gives it */
    int ndim;         /* 1 or 2 */
    uint64_t shape[2];
    const float *data;
} tsr_peft_tensor;

/* Whether the folder has a README.md that tsr_peft_write has not written: a person's, which stays as it
 * is. */
bool tsr_peft_card_is_foreign(const tsr_folder *folder);

/* Writes README.md (unless there is a foreign one), adapter_config.json and adapter_model.safetensors.
 * All are complete and on the disk before the first appears under its name, the weights last; after a
 * failure no temporary file is left. */
tsr_status tsr_peft_write(const tsr_folder *folder, const tsr_peft_config *config,
                          const tsr_peft_tensor *tensors, uint64_t count);

/* What is written beside the adapter: the tensors of TSR_PEFT_ROUTER_BIAS_FILE; with none there is no such file. Borrowed. */
typedef struct {
    const tsr_tensor_source *biases;
    uint64_t bias_count;
} tsr_peft_beside;

/* The same with what lies beside; the weights still come last. */
tsr_status tsr_peft_write_with(const tsr_folder *folder, const tsr_peft_config *config,
                               const tsr_peft_tensor *tensors, uint64_t count,
                               const tsr_peft_beside *beside);

#endif
