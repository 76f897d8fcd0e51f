/*
 * model/arch/experts.h: layers with experts, as the sparse families share them. Inside src/model/arch.
 */
#ifndef TSR_MODEL_ARCH_EXPERTS_H
#define TSR_MODEL_ARCH_EXPERTS_H

#include "io/json.h"
#include "model/arch/config.h"
#include "model/block.h"

/* A family's names for the parts of a sparse layer, below the layer. Static. */
typedef struct {
    tsr_router_names router;
    const char *gate_up, *down; /* the parameters in Transformers */
    tsr_stack_names gate_up_files, down_files;
    const char *shared
        [3]; /* gate, up and down of the MLP beside them; NULL: the family adds it, or has none */
} tsr_expert_names;

/* Names of most: mlp.gate, and each expert's mlp.experts.0.gate_proj, up_proj and down_proj. */
extern const tsr_expert_names tsr_expert_names_usual;

/* The same with a correction, mlp.gate.e_score_correction_bias, and mlp.shared_experts. */
extern const tsr_expert_names tsr_expert_names_grouped;

/* Whether a layer has experts. */
static inline bool tsr_decoder_is_sparse(const tsr_model_config *config, int layer)
{
    return tsr_layer_is_in(&config->experts.sparse, (uint64_t)layer);
}

/* The routes of x, the router's input; and what the experts make of the tokens of `input`. */
tsr_block_routes tsr_decoder_route(tsr_block *block, int16_t x, const tsr_model_config *config,
                                   const tsr_expert_names *names);
int16_t tsr_decoder_routed(tsr_block *block, int16_t input, const tsr_block_routes *routes,
                           const tsr_model_config *config, const tsr_expert_names *names);

/* What the MLP beside the experts makes of x. */
int16_t tsr_decoder_shared_mlp(tsr_block *block, int16_t x, const tsr_model_config *config,
                               const tsr_expert_names *names);

/* All of it, of one input: what the experts make of x, and the MLP beside them. */
int16_t tsr_decoder_experts(tsr_block *block, int16_t x, const tsr_model_config *config,
                            const tsr_expert_names *names);

/* A layer x += attention(norm(x)), x += mlp(norm(x)), the MLP dense or, in a sparse layer, of experts. */
tsr_status tsr_decoder_sparse_block(tsr_block *out, const tsr_model_config *config, int layer,
                                    const tsr_expert_names *names);

/* Keys for the number of experts (the first one present, up to a NULL), how many a token has, and their width. */
typedef struct {
    const char *const *count;
    const char *chosen, *width;
} tsr_expert_keys;

/* Checks that k is at most the number of experts. All layers are sparse afterwards. */
tsr_status tsr_model_config_experts(tsr_model_config *out, const json_t *root,
                                    const tsr_expert_keys *keys, const char *place);

/* What a family of grouped experts takes where keys are missing. */
typedef struct {
    int64_t dense_layers,
        shared; /* the first layers, which have an MLP; MLPs beside the experts, as one */
    uint64_t groups, chosen_groups;
    double scale;
} tsr_grouped_defaults;

/* Experts chosen by sigmoid scores, in groups: GLM 4.5, DeepSeek-V3. TSR_EDATA: sizes do not fit each other, or keys of the
 * models' original code ask for another way of choosing. */
tsr_status tsr_model_config_grouped(tsr_model_config *out, const json_t *root,
                                    const tsr_grouped_defaults *defaults, const char *place);

#endif
