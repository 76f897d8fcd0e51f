/*
 * train/decide.h: what a job's memory is used for: the home of every unit, what each layer
 * recomputes, and with them every buffer and the exact peak, before any weight is read.
 *
 * Where keys are on auto the cheapest choice that fits memory_budget is taken: first layers recompute
 * selectively, then fully, one after the other from the first. If that is not enough, host memory is
 * used (each time with as little recomputation as will do) for, in this order: the base; the activations
 * of layers, which then keep no more than gradient_checkpointing allows at least; base and activations;
 * the optimizer's state, alone and in the same order with the others.
 */
#ifndef TSR_TRAIN_DECIDE_H
#define TSR_TRAIN_DECIDE_H

#include "model/model.h"
#include "shard/store.h"
#include "train/inputs.h"

/* The ranks of a job as far as memory depends on them. */
typedef struct {
    int ranks, rank;
    int local_ranks; /* of the rank's node */
} tsr_topology_view;

typedef struct {
    int group, replicas;      /* ranks of a shard group, groups */
    tsr_home *home;           /* [units] */
    tsr_recompute *recompute; /* [layers] */
    tsr_unit *units;
    tsr_plan *plan;
    tsr_store store;
    tsr_model_options model;
    tsr_memory_plan memory;
    uint64_t budget; /* bytes of device memory that were allowed */
    uint64_t
        reserve; /* of them, what a GPU holds beside the arena: context, modules, communicators,
                         library workspaces */
    int resident_count, selective_count, full_count;
    bool activations_offloaded, state_offloaded;
    bool train;
} tsr_decision;

/* Buffers of the run itself, walked after those of the store and the model. */
typedef struct {
    void *sums;     /* TSR_RUN_SUMS_BYTES, device */
    float *unit;    /* host: one unit's trainable tensors, gathered */
    float *adapter; /* host, rank 0: the whole adapter as it is written */
} tsr_run_buffers;

#define TSR_RUN_SUMS_BYTES 256

#define TSR_CUDA_RESERVE_BYTES (1ull << 30)

/* budget: the device memory of one rank where memory_budget is auto. TSR_ECONFIG: it does not fit;
 * the message has the largest buffers and the smallest change that would. On success free with
 * tsr_decision_free. */
tsr_status tsr_decide(tsr_decision *out, const tsr_inputs *inputs, const tsr_topology_view *view,
                      bool train, uint64_t budget);
void tsr_decision_free(tsr_decision *decision);

/* The most tokens of a micro-batch that would fit, with what the configuration allows for it;
 * TSR_MOST_TOKENS: that or more. 0: not even one does. */
#define TSR_MOST_TOKENS (1 << 20)
tsr_status tsr_decide_most_tokens(int64_t *out, const tsr_inputs *inputs,
                                  const tsr_topology_view *view, bool train, uint64_t budget);

/* Every buffer of the run in its one order: planning with `model` and `buffers` NULL, or taking. */
tsr_status tsr_decision_walk(tsr_decision *decision, const tsr_inputs *inputs,
                             const tsr_topology_view *view, tsr_taker *taker, tsr_model *model,
                             tsr_run_buffers *buffers);

/* Bytes of the embedding as it is kept in host memory, one copy a node. */
uint64_t tsr_embedding_bytes(const tsr_layout *layout);

/* The least time of a step (train/expect.h). */
typedef struct {
    double
        step_flops; /* matmuls and attention of an average step, over all ranks; 0 without data */
    double rank_flops_s; /* what one rank's device reaches on a matmul, measured */
    double step_seconds; /* step_flops / (ranks x rank_flops_s) */
    int64_t steps;
} tsr_expectation;

/* What `tessera plan` prints, for people or as JSON (also plan.json). expected may be NULL, most_tokens
 * 0: it was not asked. */
tsr_status tsr_decision_print(tsr_text *out, const tsr_decision *decision, const tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_expectation *expected,
                              int64_t most_tokens, bool json);

#endif
