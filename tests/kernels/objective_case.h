/*
 * tests/kernels/objective_case.h: micro-batches of documents with made-up log-probabilities, and every objective.
 */
#ifndef TSR_TESTS_KERNELS_OBJECTIVE_CASE_H
#define TSR_TESTS_KERNELS_OBJECTIVE_CASE_H

#include "kernel_test.h"

#include "kernels/objective.h"

#define OBJECTIVE_MOST_LOSSES 15

typedef struct {
    const char *name;
    tsr_objective objective; /* without what is the same in all */
    bool beyond, prompts;    /* which parts of documents have rows */
} objective_case;

/* clang-format off */
#define DPO(word, ...) {word, {.kind = TSR_OBJECTIVE_DPO, .count = 1, .loss = {__VA_ARGS__}, .loss_weight = {1}}}
static const objective_case objective_cases[] = {
    DPO("sigmoid", TSR_PREFER_SIGMOID), DPO("hinge", TSR_PREFER_HINGE), DPO("ipo", TSR_PREFER_IPO),
    DPO("robust", TSR_PREFER_ROBUST), DPO("exo_pair", TSR_PREFER_EXO_PAIR), DPO("nca_pair", TSR_PREFER_NCA_PAIR),
    DPO("bco_pair", TSR_PREFER_BCO_PAIR), DPO("sppo_hard", TSR_PREFER_SPPO_HARD), DPO("apo_zero", TSR_PREFER_APO_ZERO),
    DPO("apo_down", TSR_PREFER_APO_DOWN), DPO("aot", TSR_PREFER_AOT), DPO("aot_unpaired", TSR_PREFER_AOT_UNPAIRED),
    DPO("discopop", TSR_PREFER_DISCOPOP), DPO("sigmoid_norm", TSR_PREFER_SIGMOID_NORM), DPO("sft", TSR_PREFER_SFT),
    {"list, ld_alpha", {.kind = TSR_OBJECTIVE_DPO, .count = 3,
        .loss = {TSR_PREFER_SIGMOID, TSR_PREFER_SFT, TSR_PREFER_IPO}, .loss_weight = {1, 0.25, -0.5}, .ld_alpha = 0.4}, true},
    {"forward_kl", {.kind = TSR_OBJECTIVE_DPO, .count = 1, .loss_weight = {1}, .divergence = TSR_DIVERGENCE_FORWARD_KL}},
    {"js_divergence", {.kind = TSR_OBJECTIVE_DPO, .count = 1, .loss_weight = {1}, .divergence = TSR_DIVERGENCE_JS}},
    {"alpha_divergence", {.kind = TSR_OBJECTIVE_DPO, .count = 1, .loss = {TSR_PREFER_HINGE}, .loss_weight = {2},
        .divergence = TSR_DIVERGENCE_ALPHA}},
    {"weighted", {.kind = TSR_OBJECTIVE_DPO, .count = 2, .loss = {TSR_PREFER_SIGMOID, TSR_PREFER_SFT}, .loss_weight = {1, 0.5},
        .weighting = true}},
    {"orpo", {.kind = TSR_OBJECTIVE_ORPO, .count = 1}, .prompts = true},
    {"cpo sigmoid", {.kind = TSR_OBJECTIVE_CPO, .count = 1, .loss = {TSR_PREFER_SIGMOID}, .cpo_alpha = 1}},
    {"cpo hinge", {.kind = TSR_OBJECTIVE_CPO, .count = 1, .loss = {TSR_PREFER_HINGE}, .cpo_alpha = 0.5}},
    {"cpo ipo", {.kind = TSR_OBJECTIVE_CPO, .count = 1, .loss = {TSR_PREFER_IPO}, .cpo_alpha = 1}},
    {"simpo", {.kind = TSR_OBJECTIVE_CPO, .count = 1, .loss = {TSR_PREFER_SIMPO}}},
    {"alphapo", {.kind = TSR_OBJECTIVE_CPO, .count = 1, .loss = {TSR_PREFER_SIMPO}, .alpha = 0.25}},
    {"kto", {.kind = TSR_OBJECTIVE_KTO, .count = 1, .loss = {TSR_PREFER_KTO}}},
    {"apo_zero_unpaired", {.kind = TSR_OBJECTIVE_KTO, .count = 1, .loss = {TSR_PREFER_APO_ZERO_UNPAIRED}}},
};
/* clang-format on */
#define OBJECTIVE_CASES (int)(sizeof objective_cases / sizeof *objective_cases)

/* A case's arguments, on the host; free with objective_end. */
typedef struct {
    tsr_objective objective;
    tsr_objective_args args;
    double *nll, *reference, *sums;
    float *weight, *log_squares;
    int32_t *part, *desirable, overflow;
    int64_t loss, words[TSR_PREFERENCE_WORDS];
} objective_run;

/* Documents of 1 to 9 rows, or `long` times as many. */
static inline int32_t objective_rows(int64_t document, int part, const objective_case *c, int times)
{
    int32_t rows = (int32_t)(1 + (7 * document + 5 * part) % 9) * times;
    if (part == TSR_PART_PROMPT)
        return c->prompts && document % 2 == 0 ? rows : 0;
    return part == TSR_PART_BEYOND && !(c->beyond && document % 2) ? 0 : rows;
}

static inline void objective_begin(objective_run *r, const objective_case *c, int64_t documents,
                                   int times)
{
    int64_t parts = TSR_PARTS * documents;
    *r = (objective_run){.objective = c->objective};
    r->objective.beta = 0.3;
    r->objective.label_smoothing = 0.1;
    r->objective.ld_alpha = c->objective.ld_alpha > 0 ? c->objective.ld_alpha : 1;
    r->objective.discopop_tau = 0.7;
    r->objective.f_alpha_divergence_coef = 0.5;
    r->objective.simpo_gamma = 0.5;
    r->objective.desirable_weight = 1.5;
    r->objective.undesirable_weight = 0.75;
    r->part = calloc((size_t)parts + 1, sizeof *r->part);
    r->desirable = calloc((size_t)documents, sizeof *r->desirable);
    r->reference = calloc((size_t)parts + 1, sizeof *r->reference);
    r->sums = calloc((size_t)tsr_objective_doubles(documents) + 1, sizeof *r->sums);
    assert_true(r->part && r->desirable && r->reference && r->sums);
    for (int64_t p = 0; p < parts; p++)
        r->part[p + 1] = r->part[p] + objective_rows(p / TSR_PARTS, (int)(p % TSR_PARTS), c, times);
    int64_t rows = r->part[parts];
    r->nll = calloc((size_t)rows + 1, sizeof *r->nll);
    r->weight = calloc((size_t)rows + 1, sizeof *r->weight);
    float *random = new_random(rows + parts, 11, 1);
    r->log_squares = calloc((size_t)rows + 1, sizeof *r->log_squares);
    assert_true(r->nll && r->weight && r->log_squares);
    for (int64_t i = 0; i < rows; i++)
        r->log_squares[i] = -0.6f - 0.5f * random[i];
    for (int64_t i = 0; i < rows; i++)
        r->nll[i] = 1.1 + (double)random[i];
    for (int64_t p = 0; p < parts; p++) {
        for (int32_t i = r->part[p]; i < r->part[p + 1]; i++)
            r->reference[p] -= r->nll[i];
        r->reference[p] += r->part[p + 1] > r->part[p] ? 2 * (double)random[rows + p] : 0;
        r->desirable[p / TSR_PARTS / 2] = p / TSR_PARTS / 2 % 3 != 0;
    }
    free(random);
    bool refers = r->objective.kind == TSR_OBJECTIVE_DPO || r->objective.kind == TSR_OBJECTIVE_KTO;
    r->args = (tsr_objective_args){.objective = &r->objective,
                                   .rows = rows,
                                   .documents = documents,
                                   .nll = r->nll,
                                   .part = r->part,
                                   .reference = refers ? r->reference : NULL,
                                   .desirable = r->desirable,
                                   .log_squares = r->log_squares,
                                   .sums = r->sums,
                                   .weight = r->weight,
                                   .scale = 0.5,
                                   .loss = &r->loss,
                                   .loss_overflow = &r->overflow,
                                   .words = r->words};
}

static inline void objective_end(objective_run *r)
{
    free(r->nll), free(r->weight), free(r->part), free(r->desirable), free(r->reference);
    free(r->sums), free(r->log_squares);
}

#endif
