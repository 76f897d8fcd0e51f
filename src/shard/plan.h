/*
 * shard/plan.h: the whole schedule of a run, compiled before its first step.
 *
 * The order of use is known, so every gather, reduction and update is an operation of a program,
 * and what it must wait for is written in it. Programs:
 *
 *     PROLOGUE              gathers the first unit into an empty slot
 *     TRAIN_FIRST, _NEXT    a training micro-batch: F0 .. F(L-1), H0 .., B(L-1) .. B(lowest that
 *                           trains); with a stride (shard/stride.h) A(u) .. of the layers below B(v)
 *     EVAL_FIRST, _NEXT     an evaluation micro-batch: F0 .. F(L-1), H0 ..
 *     STEP_END              GRAD_NORM, CONTROL, WORD, OPTIM, then GATHER_T of the first units that
 *                           are in slots
 *     EVAL_END              TALLY, CONTROL, WORD
 *
 * _FIRST is the first micro-batch after OPTIM (or after the prologue): it holds NORM(u) just before
 * F(u). Each program is compiled once for each state of the slots it can be entered with, by
 * closure from the empty state, so programs follow one another without a canonical order of slots.
 * The prefetch looks ahead into the next program, which always begins F0, F1, ...
 *
 * OPTIM is one op over all owned parameters, not one per unit: it can begin only when the control
 * word is reduced, which needs the gradients of every unit, so no unit's part could start earlier.
 * It is elementwise over flat arrays: one pass streams them once, with one launch. All that a split
 * would save is the wait of the first GATHER_T for the other units' share of that pass.
 *
 * What does not fit the device goes through it (options and units say what):
 *     activations      SAVE(u) after F(u), LOAD(u) while the layer above is in its backward, through
 *                      two regions of one layer each (shard/unit.h); an evaluation saves nothing
 *     optimizer state  fp32 masters and moments live in host memory; LOAD_STATE, OPTIM and
 *                      SAVE_STATE pass over chunks of fixed size through a ring of buffers, each kind
 *                      on a stream of its own. The ring is filled while the first backward after the
 *                      last update runs; what is behind waits for its buffer alone.
 *
 * A part that nothing has to move (RESIDENT; SHARDED or trainable in a group of one rank) has no op
 * at all and needs no slot; its users wait for OPTIM themselves.
 *
 * A trainable part that is kept (shard/unit.h) is gathered once, in _FIRST, one unit ahead of its first use,
 * into a place of its own. Where all of them are, ranks talk in one go: each unit's gradient has a buffer of
 * its own, and is reduced only when the backward has come to its last eighth. In between nothing crosses the
 * links, which then sleep and leave their power to the matmuls (docs/gpu.md).
 *
 * Waits    An op waits for (event, records of that event in this program up to there): 0 means the
 *          last record before the program. Every event is recorded once at start-up, so that there
 *          always is one. A wait that others of the same program imply is left out.
 * Threads  Read-only after compilation.
 */
#ifndef TSR_SHARD_PLAN_H
#define TSR_SHARD_PLAN_H

#include "base/text.h"
#include "comm/comm.h"
#include "shard/streams.h"
#include "shard/stride.h"
#include "shard/unit.h"

#define TSR_SLOTS_MAX        8
#define TSR_STAGES_MAX       4
#define TSR_GRADIENT_BUFFERS 2 /* where gradients are reduced at once */
#define TSR_KEPT_TURNS       2
#define TSR_OPTIM_PARTS      32 /* of an update in chunks: a unit waits for those up to its own */
#define TSR_STATE_BUFFERS    8  /* that chunks pass through, at most */
#define TSR_STATE_ARRAYS     3  /* masters and two moments */

typedef enum { TSR_COMM_NONE, TSR_COMM_SHARD, TSR_COMM_REPLICA, TSR_COMM_WORLD } tsr_comm_id;

typedef enum {
    TSR_OP_H2D,        /* host shard into a stage, or the whole part into a slot */
    TSR_OP_GATHER,     /* frozen part, from the shards or the stages, into a slot */
    TSR_OP_GATHER_T,   /* trainable part into a slot, or into its own place */
    TSR_OP_NORM,       /* DoRA's norm of a gathered unit */
    TSR_OP_COMPUTE,    /* F, H, A or B of a unit */
    TSR_OP_REDUCE,     /* a gradient buffer into its owners' sums */
    TSR_OP_SAVE,       /* what F(u) saved, from its region to the host */
    TSR_OP_LOAD,       /* and back, for B(u) */
    TSR_OP_GRAD_NORM,  /* fills the control word after a step's last micro-batch */
    TSR_OP_TALLY,      /* fills the control word after an evaluation */
    TSR_OP_CONTROL,    /* reduces the control word over the world */
    TSR_OP_OPTIM,      /* the optimizer over all owned parameters, or over a chunk of them */
    TSR_OP_LOAD_STATE, /* masters and moments of a chunk, from the host */
    TSR_OP_SAVE_STATE, /* and back */
    TSR_OP_WORD,       /* the control word to the host's ring of two */
    TSR_OP_COUNT
} tsr_op_kind;

/* AGAIN: a forward that only makes what the backward of the layers above begins with. */
typedef enum { TSR_USE_FORWARD, TSR_USE_HEAD, TSR_USE_AGAIN, TSR_USE_BACKWARD } tsr_use_phase;

typedef enum {
    TSR_PROGRAM_PROLOGUE,
    TSR_PROGRAM_TRAIN_FIRST,
    TSR_PROGRAM_TRAIN_NEXT,
    TSR_PROGRAM_EVAL_FIRST,
    TSR_PROGRAM_EVAL_NEXT,
    TSR_PROGRAM_STEP_END,
    TSR_PROGRAM_EVAL_END,
    TSR_PROGRAM_COUNT
} tsr_program_kind;

/* Events, numbered: FREED + slot, ..., DRAINED + stage, WRITTEN + gradient buffer, ... (of buffers that are
 * reduced late, + 0) */
enum {
    TSR_EVENT_FREED = 0,                                /* compute: a use of the slot has ended */
    TSR_EVENT_READY = TSR_EVENT_FREED + TSR_SLOTS_MAX,  /* comm: the slot was gathered */
    TSR_EVENT_LOADED = TSR_EVENT_READY + TSR_SLOTS_MAX, /* h2d: the slot was copied from the host */
    TSR_EVENT_FILLED = TSR_EVENT_LOADED + TSR_SLOTS_MAX,    /* h2d: the stage was filled */
    TSR_EVENT_DRAINED = TSR_EVENT_FILLED + TSR_STAGES_MAX,  /* comm: the stage was gathered from */
    TSR_EVENT_WRITTEN = TSR_EVENT_DRAINED + TSR_STAGES_MAX, /* compute: a gradient buffer */
    TSR_EVENT_REDUCED = TSR_EVENT_WRITTEN + TSR_GRADIENT_BUFFERS, /* comm: likewise */
    TSR_EVENT_COMPUTED =
        TSR_EVENT_REDUCED + TSR_GRADIENT_BUFFERS, /* compute: an evaluation's end */
    TSR_EVENT_TALLIED,                            /* optim: the control word was filled */
    TSR_EVENT_CONTROLLED,                         /* comm: it was reduced */
    TSR_EVENT_REFRESHED, /* comm: a part that is kept was gathered; in turns */
    TSR_EVENT_OPTIMIZED = TSR_EVENT_REFRESHED + TSR_KEPT_TURNS, /* optim: a part of the update */
    TSR_EVENT_WORDED = TSR_EVENT_OPTIMIZED + TSR_OPTIM_PARTS,   /* d2h: it was copied to the host */
    TSR_EVENT_USED,                                 /* compute: F or B has ended with a region */
    TSR_EVENT_SAVED = TSR_EVENT_USED + TSR_REGIONS, /* d2h: the region was copied */
    TSR_EVENT_RESTORED = TSR_EVENT_SAVED + TSR_REGIONS,        /* h2d: it was filled */
    TSR_EVENT_FETCHED = TSR_EVENT_RESTORED + TSR_REGIONS,      /* state in: a chunk was fetched */
    TSR_EVENT_UPDATED = TSR_EVENT_FETCHED + TSR_STATE_BUFFERS, /* optim: its chunk was updated */
    TSR_EVENT_STORED = TSR_EVENT_UPDATED + TSR_STATE_BUFFERS,  /* state out: copied back */
    TSR_EVENT_COUNT = TSR_EVENT_STORED + TSR_STATE_BUFFERS
};

/* Why the compute stream waits. */
typedef enum {
    TSR_CAUSE_H2D,
    TSR_CAUSE_GATHER,
    TSR_CAUSE_REDUCE,
    TSR_CAUSE_LOAD,
    TSR_CAUSE_SAVE,
    TSR_CAUSE_EXCHANGE, /* inside an op: for ranks that share its micro-batch (shard/context.h) */
    TSR_CAUSE_OTHER,
    TSR_CAUSE_COUNT
} tsr_wait_cause;

#define TSR_OP_WAITS   6
#define TSR_OP_RECORDS 3

typedef struct {
    uint16_t event;
    uint32_t count; /* records of it in this program before the wait */
} tsr_plan_wait;

typedef struct {
    uint8_t kind, stream, comm, phase;
    int8_t slot, stage, region; /* -1: none */
    int16_t buffer;             /* -1: none */
    uint8_t wait_count, record_count;
    bool first, last; /* COMPUTE, OPTIM: of its program */
    bool releases;    /* COMPUTE: the slot's occupant leaves before its next use */
    bool ends;        /* COMPUTE: the last use of the layer's forward, or backward */
    int16_t use;      /* NORM, COMPUTE: which of the layer's forward, or backward, from 0 */
    int unit;         /* -1: none */
    int layer;        /* NORM, COMPUTE, SAVE, LOAD; chunks of the head count on; -1: none */
    int chunk;        /* of the optimizer's state; -1: none, or all of it */
    uint64_t bytes;   /* that arrive on this rank, or in its host memory; SAVE, LOAD: at most */
    tsr_plan_wait wait[TSR_OP_WAITS];
    uint16_t record[TSR_OP_RECORDS];
} tsr_plan_op;

/* What programs have to know about each other. */
typedef enum {
    TSR_AFTER_NOTHING, /* the empty state before the prologue */
    TSR_AFTER_UPDATE,  /* after the prologue or STEP_END: norms are to be computed */
    TSR_AFTER_TRAIN,
    TSR_AFTER_EVAL,
    TSR_AFTER_TALLY
} tsr_after;

typedef struct {
    uint8_t after;
    uint8_t stage;          /* the next one of the ring */
    bool fetched;           /* the first chunks of the optimizer's state are in their buffers */
    uint8_t comm_behind;    /* trailing parts of the last update that comm has not waited for */
    uint8_t compute_behind; /* likewise on compute, where trainable parts are read in place */
    int16_t unit[TSR_SLOTS_MAX]; /* occupant of each slot, -1: none */
    /* compute has waited for what comm, and for what h2d, put there last */
    bool ready_awaited[TSR_SLOTS_MAX], loaded_awaited[TSR_SLOTS_MAX];
} tsr_plan_state;

typedef struct {
    tsr_program_kind kind;
    int entry, exit; /* states */
    tsr_plan_op *op;
    int op_count;
} tsr_program;

/* A use of a unit by a layer's forward or backward. */
typedef struct {
    int16_t unit;
    bool trains; /* a backward that adds to the gradient of the unit's trainable part */
} tsr_layer_use;

/* A layer's uses, in order. Its forward uses no unit twice; its backward may, where it first makes
 * values again. backward_count 0: it has no backward. */
typedef struct {
    const tsr_layer_use *forward, *backward;
    int forward_count, backward_count;
} tsr_layer_uses;

/* Zero-initialise; zero is the default of every field but units, unit_count and layer_count. */
typedef struct {
    const tsr_unit *units; /* laid out for `ranks`; borrowed */
    int unit_count;
    int layer_count;
    /* [layer_count], borrowed; where layers and units are not the same. Units are in the order of the
     * layers, and those from head_unit on are chunks of the head. NULL: layer l is unit l. */
    const tsr_layer_uses *layers;
    int head_unit; /* 0: layer_count */
    const uint64_t
        *saved_bytes; /* [layer_count] (shard/unit.h), borrowed; NULL: nothing is saved */
    int ranks;        /* of the shard group; 0: 1 */
    int replicas;     /* shard groups; 0: 1 */
    int slots;        /* 0: 2 */
    int stages;       /* 0: 2 */
    bool train;       /* false: evaluation only */
    /* A step has one micro-batch on each rank at most: sums of gradients are rounded to fp32 at once. */
    bool one_round;
    int stride; /* of the layers that keep their input (shard/stride.h); 0: 1, all of them */
    /* Of a chunk of the optimizer's state, which then lives in host memory; a multiple of a granule's
     * elements. 0: the state lives on the device. */
    uint64_t chunk_elements;
    int state_buffers;   /* that its chunks pass through, at most; 0: TSR_STATE_BUFFERS */
    uint64_t more_words; /* of the control word, beside TSR_WORD_COUNT */
    /* Micro-batches of several adapters run in a plan of their own, `mixed`, which has neither masters nor moments nor sums:
     * those are each adapter's, in whose plan, `ends_alone`, a step's end may follow the prologue. */
    bool mixed, ends_alone;
} tsr_plan_options;

typedef struct {
    tsr_plan_options options; /* defaults filled in */
    tsr_program *program;
    int program_count;
    tsr_plan_state *state; /* [0]: the empty one */
    int state_count;
    int *program_at;     /* [state * TSR_PROGRAM_COUNT + kind]: index, -1 where it cannot follow */
    int lowest_backward; /* the last layer of a backward; layer_count without training */
    tsr_stride stride;
    int gradient_buffers;
    int last_buffer;   /* gradient buffer of a micro-batch's last REDUCE */
    bool reduces_late; /* a gradient buffer for each unit that trains */
    bool wide;         /* some of these units are */
    uint64_t slot_bytes, stage_bytes, gradient_bytes; /* of one each */
    uint64_t receive_bytes; /* what the other ranks have of this one's part of a unit's gradient */
    uint64_t partial_bytes; /* the sums of such a part, where they go over replicas */
    uint64_t saved_bytes;   /* of one region */
    uint64_t state_bytes;   /* of one buffer for a chunk of the optimizer's state */
    int chunk_count;        /* 0: the state lives on the device */
    int state_buffers;      /* chunk c goes through buffer c % state_buffers */
    int optim_parts;        /* of an update, of chunks that follow each other */
    uint64_t owned;         /* elements of all trainable parts on this rank */
    uint64_t hash;          /* 0: an outline */
} tsr_plan;

/* An outline: all but the programs, the states and the hash, which is what its buffers depend on. The errors are those of
 * tsr_plan_compile, which is this and tsr_plan_complete. */
tsr_status tsr_plan_outline(tsr_plan **out, const tsr_plan_options *options);
/* Compiles the programs of an outline; nothing is left to do for another plan. The outline must not have failed before. */
tsr_status tsr_plan_complete(tsr_plan *plan);

/* On success the caller destroys *out. TSR_EINVAL: no layer or no chunk of the head, fewer than 2
 * slots (or stages where they are needed), a head chunk that trains, training without a trainable
 * part, a unit that saves activations but has no backward, or with a stride, a chunk that is no multiple of a
 * granule. TSR_EINTERNAL: a mixed plan with a wide unit.
 */
tsr_status tsr_plan_compile(tsr_plan **out, const tsr_plan_options *options);
void tsr_plan_destroy(tsr_plan *plan);

/* The program of `kind` in `state`; NULL where it cannot follow. */
const tsr_program *tsr_plan_program(const tsr_plan *plan, int state, tsr_program_kind kind);

/* Elements [begin, begin + count) of what a rank owns. */
typedef struct {
    uint64_t begin, count;
} tsr_plan_range;

/* A chunk of the optimizer's state; chunk -1: all of it. */
tsr_plan_range tsr_plan_chunk(const tsr_plan *plan, int chunk);

/* The last chunk of a step that goes through a buffer. */
int tsr_plan_last_chunk(const tsr_plan *plan, int buffer);

/* The part of the update that updates a chunk (-1: all of them), and the one that completes a unit. */
int tsr_plan_chunk_part(const tsr_plan *plan, int chunk);
int tsr_plan_unit_part(const tsr_plan *plan, int unit);

/* Bytes of its masters and moments. */
uint64_t tsr_plan_state_bytes(const tsr_plan *plan, int chunk);

/* TSR_ERANKS, naming the first op (or segment) that differs and the rank, unless all ranks compiled
 * the same plan from the same layout. Blocking, collective; at start-up (allocates). */
tsr_status tsr_plan_check_ranks(const tsr_plan *plan, tsr_comm *world, tsr_stream *stream);

/* One op a line, appended. */
void tsr_plan_print(tsr_text *out, const tsr_plan *plan);
void tsr_plan_op_print(tsr_text *out, const tsr_plan_op *op);

const char *tsr_op_name(tsr_op_kind kind);
/* "COMPUTE F layer 3", "GATHER head 0", "OPTIM"; where layers and units are not the same, "COMPUTE F layer 3 unit 7"
 * and "GATHER unit 7". */
#define TSR_OP_LABEL_BYTES 64
void tsr_op_label(char out[TSR_OP_LABEL_BYTES], const tsr_plan *plan, const tsr_plan_op *op);
const char *tsr_program_name(tsr_program_kind kind);
/* The cause of a wait for an event; "h2d", "gather", ... */
tsr_wait_cause tsr_event_cause(int event);
const char *tsr_cause_name(tsr_wait_cause cause);
/* "freed[1]" into `out`, at most 16 bytes. */
void tsr_event_name(char out[16], int event);

#endif
