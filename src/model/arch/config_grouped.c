/*
 * config_grouped.c: the keys of experts that are chosen by sigmoid scores, in groups: GLM 4.5 and DeepSeek-V3.
 */
#include "model/arch/config_parts.h"
#include "model/arch/experts.h"

#include <inttypes.h>
#include <string.h>

#define MOST_SHARED 64

/* A size; *out stays where the key is missing. */
static tsr_status read_size(uint64_t *out, const json_t *root, const char *key, int64_t most,
                            const char *place)
{
    return tsr_json_has(root, key) ? tsr_model_config_size(out, root, key, most, place) : TSR_OK;
}

/* The same, from 0 on. */
static tsr_status read_count(int64_t *out, const json_t *root, const char *key, int64_t most,
                             const char *place)
{
    return tsr_json_has(root, key) ? tsr_json_int(out, root, key, 0, most, place) : TSR_OK;
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
    TSR_TRY(read_count(&every, root, "moe_layer_freq", TSR_MODEL_MOST_LAYERS, place));
    if (every != 1)
        return tsr_fail(TSR_EDATA, "%s: moe_layer_freq %" PRId64 " is not supported, only 1", place,
                        every);
    return TSR_OK;
}

/* A token goes to experts of chosen groups, and a group's score is the sum of its best two. */
static tsr_status judge(const tsr_model_experts *e, const char *place)
{
    if (e->count % e->groups || (e->groups > 1 && e->count / e->groups < 2))
        return tsr_fail(TSR_EDATA,
                        "%s: n_routed_experts %" PRIu64 " do not make n_group %" PRIu64
                        " equal groups of two or more",
                        place, e->count, e->groups);
    if (e->chosen_groups > e->groups)
        return tsr_fail(TSR_EDATA, "%s: topk_group %" PRIu64 " is above n_group %" PRIu64, place,
                        e->chosen_groups, e->groups);
    if (e->chosen > e->count / e->groups * e->chosen_groups)
        return tsr_fail(TSR_EDATA,
                        "%s: num_experts_per_tok %" PRIu64 " is above the %" PRIu64
                        " experts of topk_group groups",
                        place, e->chosen, e->count / e->groups * e->chosen_groups);
    return TSR_OK;
}

tsr_status tsr_model_config_grouped(tsr_model_config *out, const json_t *root,
                                    const tsr_grouped_defaults *defaults, const char *place)
{
    static const char *const counts[] = {"n_routed_experts", "num_local_experts", NULL};
    static const tsr_expert_keys names = {counts, "num_experts_per_tok", "moe_intermediate_size"};
    tsr_model_experts *e = &out->experts;
    int64_t dense = defaults->dense_layers, shared = defaults->shared;
    TSR_TRY(tsr_model_config_experts(out, root, &names, place));
    TSR_TRY(read_count(&dense, root, "first_k_dense_replace", TSR_MODEL_MOST_LAYERS, place));
    TSR_TRY(read_count(&shared, root, "n_shared_experts", MOST_SHARED, place));
    e->scoring = TSR_ROUTE_SIGMOID;
    e->groups = defaults->groups;
    e->chosen_groups = defaults->chosen_groups;
    e->scale = defaults->scale;
    e->normalise = true;
    e->shared_width = (uint64_t)shared * e->width;
    TSR_TRY(read_size(&e->groups, root, "n_group", TSR_ROUTE_MOST_EXPERTS, place));
    TSR_TRY(read_size(&e->chosen_groups, root, "topk_group", TSR_ROUTE_MOST_EXPERTS, place));
    TSR_TRY(tsr_model_config_flag(&e->normalise, root, "norm_topk_prob", place));
    if (tsr_json_has(root, "routed_scaling_factor"))
        TSR_TRY(tsr_json_number(&e->scale, root, "routed_scaling_factor", 1e-6, 1e6, place));
    TSR_TRY(expect_word(root, "scoring_func", "sigmoid", place));
    TSR_TRY(expect_word(root, "topk_method", "noaux_tc", place));
    TSR_TRY(expect_every_layer(root, place));
    TSR_TRY(judge(e, place));
    for (uint64_t i = 0; i < out->layer_count && i < (uint64_t)dense; i++)
        tsr_layer_take_out(&e->sparse, i);
    if ((uint64_t)dense >= out->layer_count)
        *e = (tsr_model_experts){0};
    return TSR_OK;
}
