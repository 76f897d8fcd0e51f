/*
 * model/arch/arch.h: the families of models. Each is one file in this folder, which says all that is known of it: the
 * keys of its config.json, and what its layers are made of. Nothing else in the tree knows a family.
 */
#ifndef TSR_MODEL_ARCH_ARCH_H
#define TSR_MODEL_ARCH_ARCH_H

#include "io/json.h"
#include "model/arch/config.h"
#include "model/block.h"

struct tsr_arch {
    const char *model_type; /* as config.json has it: "llama" */
    const char *
        architecture; /* the class in Transformers: "LlamaForCausalLM"; NULL: only in composite ones */
    const char *models; /* published ones that have it: "Llama 1 to 3, TinyLlama" */
    /* What Transformers' configuration class takes where a key is missing; kv_head_count 0: as many as heads,
     * head_dim 0: hidden_size / heads, bos and eos -1: none. */
    int64_t kv_head_count, head_dim, max_position, bos, eos;
    double eps, theta; /* of the norms, of RoPE */
    double partial;  /* partial_rotary_factor where it is left out; 0: the key is not understood */
    bool neighbours; /* RoPE turns columns 2i and 2i + 1 */
    bool long_rope;  /* "longrope" is understood, also as "su" and "yarn" */
    bool query_beta; /* llama_4_scaling_beta is */
    bool mrope; /* mrope_section is: RoPE with three positions a token, which text has all alike */
    double
        sliding_theta; /* of the layers with a window, where they have a RoPE of their own; else 0 */
    bool experts_alone; /* no layer has an MLP of intermediate_size, which may be missing */
    bool tied;
    bool
        further_tokens; /* files may have layers behind the last one, which predict further tokens */
    bool mxfp4;         /* quantization_config may say mxfp4, of the experts */
    bool tokenizer_by_class; /* as in tokenizer/tokenizer.h */
    tsr_activation activation;
    const char *layer_table; /* module of the table of layer_input_width; NULL: no such table */
    /* The keys that change the result, beside those that every family has, up to a NULL. Any other key is refused,
     * unless it is known to change nothing. */
    const char *const *keys;
    /* Reads them, and sets what the family always has. What every family has is in *out already. */
    tsr_status (*read)(tsr_model_config *out, const json_t *root, const char *place);
    /* Layer `layer`; *out is written. */
    tsr_status (*block)(tsr_block *out, const tsr_model_config *config, int layer);
};

/* TSR_EDATA: no family has this model_type; the message names those there are. */
tsr_status tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place);

/* The families in alphabetical order; NULL from the last on. */
const tsr_arch *tsr_arch_at(int index);

/* Layer `layer` of a model; *out is written. */
tsr_status tsr_arch_block(tsr_block *out, const tsr_model_config *config, int layer);

#endif
