/*
 * planner/decide.h: what a job's memory is used for: the home of every unit, what each layer
 * recomputes, and with them every buffer and the exact peak, before any weight is read.
 *
 * Where keys are on auto the fastest choice that fits the memory is taken, by the expected time of a step
 * (planner/expect.h). Candidates are, for each way to use host memory that the keys allow (for the base, for
 * activations of some layers or all, for the optimizer's state, and together), as little recomputation as fits, in
 * steps of a layer by what memory costs (planner/rungs.h), and the fastest: recomputation, layers whose activations go
 * and units that stay on the device whole against each other (choose.c). A candidate must be 1 % faster than those
 * before it, which use less of the machine. No choice changes a result.
 */
#ifndef TSR_PLANNER_DECIDE_H
#define TSR_PLANNER_DECIDE_H

#include "inputs/inputs.h"
#include "model/model.h"
#include "planner/speeds.h"
#include "shard/simulate.h"
#include "shard/store.h"

/* The ranks of a job as far as memory depends on them. */
typedef struct {
    int ranks, rank;
    int local_ranks; /* of the rank's node */
} tsr_topology_view;

/* The memory of one rank: of the ranks' cards the fullest, of host memory the least. */
typedef struct {
    uint64_t free;   /* the budget where memory_budget is auto; or TSR_BUDGET_UNKNOWN */
    uint64_t total;  /* of a card that is here; 0: there is none */
    int rank, card;  /* whose, and which of those that the rank sees */
    uint64_t others; /* of it, what other adapters on the same base own */
    /* Host memory beside a GPU, where host_memory_budget is auto: what control groups allow, and what the machine
     * shows, which some virtual machines enlarge as it is used. 0: not known. */
    uint64_t host, host_shown;
    uint64_t others_host;            /* as `others` */
    const struct tsr_decision *base; /* where the base lies is decided there; NULL: here */
} tsr_room;

#define TSR_BUDGET_UNKNOWN INT64_MAX /* of a card, or of a machine, that is not here */

/* How long a step is expected to take (planner/expect.h). */
typedef struct {
    bool known;                     /* from measured speeds; else only ratios mean something */
    int64_t steps;                  /* of the run; 0 without data */
    int64_t rounds;                 /* micro-batches of a step, of one rank */
    double step_tokens, step_flops; /* of an average step, over all ranks */
    tsr_simulation simulation;
} tsr_expectation;

/* What was compared. */
typedef struct {
    tsr_config_offload offload;
    int offloaded_count; /* layers whose activations go to host memory */
    bool state;          /* the optimizer's goes there */
    bool fits, chosen;
    int resident_count, selective_count, full_count, stride;
    uint64_t device_bytes, host_bytes; /* device: with what is beside the arena */
    double seconds;                    /* of a step; 0: it does not fit */
    /* By which they are compared: seconds, and a 5000th of them for each GiB of host memory that the node's ranks pin,
     * which nobody else has meanwhile. */
    double price;
} tsr_alternative;

#define TSR_ALTERNATIVES 32

/* What layers may keep, and in which order they give it up (planner/rungs.h). */
typedef struct tsr_rungs tsr_rungs;

typedef struct tsr_decision {
    int group, replicas; /* ranks of a shard group, groups */
    tsr_home *home;      /* [units of the plan] */
    tsr_rungs *rungs;
    int *rung;      /* [layers] */
    tsr_keep *keep; /* [layers] */
    tsr_unit *units;
    tsr_layer_uses *uses;  /* NULL: layer l is unit l */
    uint64_t *saved_bytes; /* [layers]: of offloaded activations */
    tsr_plan *plan;
    tsr_store store;
    tsr_layer_programs *programs; /* of the model's layers */
    tsr_model_options model;
    tsr_memory_plan memory;
    tsr_room room;
    uint64_t budget, host_budget; /* bytes of device and of host memory that were allowed */
    int local_ranks;              /* that share what a node has once */
    uint64_t
        reserve; /* of them, what a GPU holds beside the arena: context, modules, communicators,
                         library workspaces */
    int resident_count;
    int decoded_count;               /* layers whose experts stay decoded */
    int selective_count, full_count; /* layers that make a part again, or all but their input */
    int stride;          /* of the layers that keep their input (shard/stride.h); 0: all */
    int offloaded_count; /* layers whose activations go to host memory, but for the last two of them */
    bool state_offloaded;
    bool train;
    tsr_expectation expected;
    tsr_alternative alternative[TSR_ALTERNATIVES];
    int alternative_count;
} tsr_decision;

/* Buffers of the run itself, walked after those of the store and the model. */
typedef struct {
    void *sums;     /* TSR_RUN_SUMS_BYTES, of several adapters each; device */
    float *unit;    /* host: one unit's trainable tensors, gathered */
    float *adapter; /* host, rank 0: the whole adapter as it is written */
} tsr_run_buffers;

#define TSR_RUN_SUMS_BYTES 256

#define TSR_CUDA_RESERVE_BYTES (1ull << 30)

/* What may be used of it, without `others`. */
uint64_t tsr_room_budget(const tsr_config *config, const tsr_room *room);

/* All ranks must be given the same room and speeds. A memory_budget is cut to what can be had of a card that others
 * use too. TSR_ECONFIG: it does not fit; the message has the largest buffers, who holds the card's memory, and the
 * smallest change that would. On success free with tsr_decision_free. */
tsr_status tsr_decide(tsr_decision *out, const tsr_inputs *inputs, const tsr_topology_view *view,
                      bool train, const tsr_room *room, const tsr_speeds *speeds);
void tsr_decision_free(tsr_decision *decision);

/* The largest of each that would fit, the rest being as it is, with what the configuration allows for it;
 * the limit: that or more. */
#define TSR_MOST_TOKENS (1 << 20)
#define TSR_MOST_LAYERS 256
typedef struct {
    int64_t tokens;      /* of a micro-batch of rows like the job's; 0: nothing was asked */
    int64_t sequence;    /* of a micro-batch of one row */
    int64_t layers;      /* like the model's, the base on the device unless `offload` says where; 0:
                            no number of them that the job's adapter can be on */
    uint64_t parameters; /* of a model with so many */
} tsr_largest;

/* For training, where the job fits. */
tsr_status tsr_decide_largest(tsr_largest *out, const tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_room *room,
                              const tsr_speeds *speeds);

/* The longest row, for training: of a micro-batch of one row, all of whose tokens may be labels; of an objective over
 * pairs, a row is two documents of that length. */
typedef struct {
    int64_t length;        /* `limit`, or a multiple of 256 below it, or of 16 below 256 */
    int64_t beyond;        /* the next one, which does not fit; 0: `length` is `limit` */
    int64_t limit;         /* at most TSR_MOST_TOKENS */
    const char *limit_key; /* of config.json; NULL: TSR_MOST_TOKENS */
} tsr_longest;

/* inputs: without data; its rows become those of `found`, and are what *out was decided for, as tsr_decide does. The longest
 * that fits is found by trying, from the limit down: if memory is not monotone in the length, a length between `beyond` and
 * twice `length` may fit too. TSR_ECONFIG: not even the shortest row fits, as tsr_decide has it. On success free *out with
 * tsr_decision_free. */
tsr_status tsr_decide_longest(tsr_decision *out, tsr_longest *found, tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_room *room,
                              const tsr_speeds *speeds);

/* What `tessera plan --longest` prints before the plan of that row; json: the beginning of an object, whose last member is the
 * plan. keys: what a job.yaml needs for such rows, "key=value key=value"; command: a line that trains them; NULL: none is
 * known. */
tsr_status tsr_longest_print(tsr_text *out, const tsr_longest *found, const tsr_decision *decision,
                             const tsr_inputs *inputs, const char *keys, const char *command,
                             bool json);

/* What needs the least memory of all that the configuration allows, whether or not it fits; if it does not, *change
 * gets the smallest change that would. On success free *out with tsr_decision_free. */
tsr_status tsr_decide_frugal(tsr_decision *out, tsr_text *change, const tsr_inputs *inputs,
                             const tsr_topology_view *view, bool train, const tsr_room *room,
                             const tsr_speeds *speeds);

/* Every buffer of the run in its one order: planning with `model` and `buffers` NULL, or taking. */
tsr_status tsr_decision_walk(tsr_decision *decision, const tsr_inputs *inputs,
                             const tsr_topology_view *view, tsr_taker *taker, tsr_model *model,
                             tsr_run_buffers *buffers);

/* A table of which the host looks up rows, the embedding or the layout's layer_rows, as it is kept: one copy a node. */
tsr_array tsr_host_table(const tsr_tensor *table);

/* What `tessera plan` prints at first: at most 24 lines of 80 columns. `change`: what to do about a plan that does not
 * fit; NULL: it fits. */
tsr_status tsr_decision_screen(tsr_text *out, const tsr_decision *decision,
                               const tsr_inputs *inputs, const tsr_topology_view *view,
                               const tsr_speeds *speeds, const tsr_largest *largest,
                               const char *change);

/* Words behind TSR_WORD_COUNT that the loads of experts take; an objective's follow them. */
uint64_t tsr_decision_loads(const tsr_decision *decision, const tsr_layout *layout);

/* What `tessera plan --all` prints, or as JSON (also plan.json). */
tsr_status tsr_decision_print(tsr_text *out, const tsr_decision *decision, const tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_speeds *speeds,
                              const tsr_largest *largest, bool json);

/* The shapes that micro-batches come in, training before evaluation, each from the largest down; without
 * a data set the assumed one. Returns how many. */
#define TSR_DECIDE_SHAPES (2 * TSR_BATCH_BUCKETS)
int tsr_decide_shapes(tsr_batch_shape out[TSR_DECIDE_SHAPES], const tsr_inputs *inputs, bool train);

#endif
