/*
 * config_grouped.c: the keys of experts that are chosen by sigmoid scores, in groups: GLM 4.5 and DeepSeek-V3.
 */
#include "model/arch/config_parts.h"

#include <inttypes.h>
#include <string.h>

#define MOST_EXPERTS (1 << 12)
#define MOST_SIZE    (1 << 20)

/* A size; *out stays where the key is missing. */
static tsr_status read_size(uint64_t *out, const json_t *root, const char *key, int64_t most,
                            const char *place)
{
    return tsr_json_has(root, key) ? tsr_model_config_size(out, root, key, most, place) : TSR_OK;
}

/* A key of the models' first code, which has other ways too. */
static tsr_status expect_word(const json_t *root, const char *key, const char *wanted,
                              const char *place)
{
    const char *found;
    if (!tsr_json_has(root, key))
        return TSR_OK;
    TSR_TRY(tsr_json_string(&found, root, key, place));
    if (strcmp(found, wanted))
        return tsr_fail(TSR_EDATA, "%s: %s '%s' is not supported, only %s", place, key, found,
                        wanted);
    return TSR_OK;
}

static tsr_status expect_every_layer(const json_t *root, const char *place)
{
    int64_t every = 1;
    if (tsr_json_has(root, "moe_layer_freq"))
        TSR_TRY(tsr_json_int(&every, root, "moe_layer_freq", 1, TSR_MODEL_MOST_LAYERS, place));
    if (every != 1)
        return tsr_fail(TSR_EDATA, "%s: moe_layer_freq %" PRId64 " is not supported, only 1", place,
                        every);
    return TSR_OK;
}

/* A token goes to experts of chosen groups, and a group's score is the sum of its best two. */
static tsr_status judge(const tsr_grouped_experts *e, const char *place)
{
    if (e->count % e->groups || (e->groups > 1 && e->count / e->groups < 2))
        return tsr_fail(TSR_EDATA,
                        "%s: n_routed_experts %" PRIu64 " do not make n_group %" PRIu64
                        " equal groups of two or more",
                        place, e->count, e->groups);
    if (e->chosen_groups > e->groups)
        return tsr_fail(TSR_EDATA, "%s: topk_group %" PRIu64 " is above n_group %" PRIu64, place,
                        e->chosen_groups, e->groups);
    if (e->per_token > e->count / e->groups * e->chosen_groups)
        return tsr_fail(TSR_EDATA,
                        "%s: num_experts_per_tok %" PRIu64 " is above the %" PRIu64
                        " experts of topk_group groups",
                        place, e->per_token, e->count / e->groups * e->chosen_groups);
    return TSR_OK;
}

tsr_status tsr_model_config_grouped_experts(tsr_grouped_experts *out,
                                            const tsr_model_config *config, const json_t *root,
                                            const char *place)
{
    int64_t dense = (int64_t)out->dense_layers, shared = (int64_t)out->shared;
    if (tsr_json_has(root, "first_k_dense_replace"))
        TSR_TRY(
            tsr_json_int(&dense, root, "first_k_dense_replace", 0, TSR_MODEL_MOST_LAYERS, place));
    if (tsr_json_has(root, "n_shared_experts"))
        TSR_TRY(tsr_json_int(&shared, root, "n_shared_experts", 0, MOST_EXPERTS, place));
    out->dense_layers =
        (uint64_t)dense < config->layer_count ? (uint64_t)dense : config->layer_count;
    out->shared = (uint64_t)shared;
    TSR_TRY(read_size(&out->count, root, "n_routed_experts", MOST_EXPERTS, place));
    TSR_TRY(read_size(&out->per_token, root, "num_experts_per_tok", MOST_EXPERTS, place));
    TSR_TRY(read_size(&out->size, root, "moe_intermediate_size", MOST_SIZE, place));
    TSR_TRY(read_size(&out->groups, root, "n_group", MOST_EXPERTS, place));
    TSR_TRY(read_size(&out->chosen_groups, root, "topk_group", MOST_EXPERTS, place));
    TSR_TRY(tsr_model_config_flag(&out->normalise, root, "norm_topk_prob", place));
    if (tsr_json_has(root, "routed_scaling_factor"))
        TSR_TRY(tsr_json_number(&out->scale, root, "routed_scaling_factor", 1e-6, 1e6, place));
    TSR_TRY(expect_word(root, "scoring_func", "sigmoid", place));
    TSR_TRY(expect_word(root, "topk_method", "noaux_tc", place));
    TSR_TRY(expect_every_layer(root, place));
    TSR_TRY(judge(out, place));
    if (out->dense_layers < config->layer_count)
        return tsr_fail(TSR_EDATA,
                        "%s: layers from %" PRIu64 " on have experts (first_k_dense_replace), "
                        "which are not supported for %s",
                        place, out->dense_layers, config->arch->model_type);
    return TSR_OK;
}
