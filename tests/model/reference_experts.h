/*
 * tests/model/reference_experts.h: Mixture of Experts in double precision, forward only, written for clarity and without
 * a line of src: the router's choice, the rows sorted by expert, the experts' linears, the sum over a token's experts,
 * and the auxiliary loss. What families compute: docs/models.md.
 *
 * A slot is t k + j: expert j of token t, best first. Rows are slots sorted by expert, then by slot. All arrays are the
 * caller's.
 */
#ifndef TSR_TESTS_MODEL_REFERENCE_EXPERTS_H
#define TSR_TESTS_MODEL_REFERENCE_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    REFERENCE_SOFTMAX, /* over all experts, taken at the chosen */
    REFERENCE_CHOSEN,  /* softmax over the chosen logits */
    REFERENCE_SIGMOID
} reference_scoring;

typedef struct {
    int experts, k;
    reference_scoring scoring;
    bool normalise;             /* weights are divided by their sum (+ 1e-20 of sigmoid) */
    double scale;               /* of all weights; 0: 1 */
    const double *expert_scale; /* [E], of each expert's; NULL: 1 */
    const double *correction;   /* [E], added to the scores for the choice alone; NULL: 0 */
    int n_group, topk_group;    /* n_group 0 or 1: none */
    int capacity;           /* rows of an expert of a tile at most; 0: as capacity_factor says */
    double capacity_factor; /* the same, over its mean load; 0: any number */
    int tile_rows;          /* tokens of a tile; 0: all */
} reference_routing;

typedef struct {
    int32_t *id;     /* [T k] */
    int32_t *row;    /* [T k]; -1: beyond the capacity */
    int32_t *slot;   /* [T k] of rows; -1: none */
    int32_t *offset; /* [E + 1] */
    double *p;       /* [T k] */
} reference_routes;

/* logits [T, E] = x w^T + bias; bias NULL: 0. */
void reference_router(double *logits, const double *x, const double *w, const double *bias,
                      int tokens, int width, int experts);

/* Everything in *out, of logits. */
void reference_route(const reference_routes *out, const double *logits,
                     const reference_routing *how, int tokens);

/* One linear of every expert: W_e x + scale B_e A_e x + bias_e. */
typedef struct {
    const double *w;     /* [E, out, in] */
    const double *bias;  /* [E, out], or NULL */
    const double *a, *b; /* [E, r, in], [E, out, r] */
    double scale;
    int r, out, in; /* r 0: no adapter */
} reference_expert_linear;

/* y [T k, out]; of rows that no slot has, 0. gather: x is [T, in], a row reads its token; else x is [T k, in]. */
void reference_experts(double *y, const double *x, bool gather, const reference_expert_linear *l,
                       const reference_routes *routes, const reference_routing *how, int tokens);

/* y [T, width]: the sum over j of p z[row]. */
void reference_combine(double *y, const double *z, const reference_routes *routes,
                       const reference_routing *how, int tokens, int width);

/* y [T, width] += sigmoid(gate[t]) z: shared experts; gate NULL: 1. */
void reference_shared(double *y, const double *z, const double *gate, int tokens, int width);

/* The load-balancing loss of Switch Transformers as Transformers computes it: E times the sum over e of the share of
 * slots (of one expert a token: they sum to k) times the mean softmax over all experts, over tokens [0, tokens) of
 * `layers` pooled: ids [layers T, k], logits [layers T, E]. */
double reference_auxiliary(const int32_t *ids, const double *logits, int64_t tokens, int k,
                           int experts);

#endif
