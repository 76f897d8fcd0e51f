/*
 * planner/parts.h: shared by decide.c (one choice), choose.c (the fastest), room.c (what may be used), advise.c and longest.c (what would fit),
 * print.c, screen.c, buffers.c and purposes.c (what is said of it).
 */
#ifndef TSR_PLANNER_PARTS_H
#define TSR_PLANNER_PARTS_H

#include "planner/decide.h"

#include <limits.h>

/* What of a configuration is being tried. */
typedef struct {
    tsr_config_offload offload;
    int steps; /* that layers take to keep less (planner/rungs.h); 1 more than all: with a stride */
    bool partly;      /* none keeps all or only its input: `selective` */
    int64_t resident; /* units that stay on the device whole */
    bool keeps;       /* the gathered adapter stays, too, and gradients are reduced late */
    int wider;        /* launches of attention's backward */
    int64_t decoded;  /* layers whose experts stay decoded, unless a key says so */
    int offloaded;    /* layers that train whose activations go to host memory */
    bool some;        /* there are some, and their number is free */
    bool state;       /* of the optimizer goes there */
    tsr_batch_bounds bounds;
} tsr_choice;

#define TSR_EVERY_LAYER INT_MAX

/* What the keys of memory allow. */
typedef struct {
    tsr_config_offload offload;
    tsr_config_recompute recompute;
    tsr_config_choice activations, state;
} tsr_allowance;

/* The ways to use host memory, a bit for each of the base, which hides behind the layers; the activations
 * of some layers or all, which hide as well where those are few or keep little, but go both ways; the optimizer's state,
 * for which the end of every step waits. */
#define TSR_WAYS 8

tsr_allowance tsr_decide_allowed(const tsr_config *config);

/* Sets way number `i`; whether it is allowed. */
bool tsr_decide_way(tsr_choice *c, int i, const tsr_allowance *allowed);

/* The range of `steps` that gradient_checkpointing allows. */
void tsr_decide_steps(int *first, int *last, const tsr_decision *d, tsr_config_recompute mode);

/* What needs the least memory of all that it allows. */
int tsr_decide_least(const tsr_decision *d, tsr_config_recompute mode, bool offloaded);

/* Sets chunks and buffers of the optimizer's state, where that lives in host memory; `coded`: its moments are of 8
 * bits (chunks.c). */
void tsr_decide_chunks(tsr_plan_options *options, const tsr_decision *d, const tsr_layout *layout,
                       bool coded);

/* Of a choice that fits the device and not the host: the fewest layers whose activations go there that still leave the
 * device room for the others'; the decision holds it. */
tsr_status tsr_decide_offload_fewer(tsr_decision *d, const tsr_inputs *inputs,
                                    const tsr_topology_view *view, tsr_choice *c);

/* The fewest steps that fit; of a choice that moves activations all of them. *fits tells whether any do; the decision then
 * holds it, otherwise it holds the most frugal one. */
tsr_status tsr_decide_search(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view, tsr_choice *c,
                             tsr_config_recompute mode);

/* Of c->steps up to `high` the fewest that fit. */
tsr_status tsr_decide_raise(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                            const tsr_topology_view *view, tsr_choice *c, int high);

/* Units that stay on the device, as the configuration says; auto: none. */
int64_t tsr_decide_residents(const tsr_inputs *inputs);

/* A decision with nothing decided; freed by tsr_decide_clear and tsr_decision_free whether or not this
 * fails. */
tsr_status tsr_decide_begin(tsr_decision *d, const tsr_inputs *inputs,
                            const tsr_topology_view *view, bool train, const tsr_room *room,
                            const tsr_speeds *speeds);

/* What of a card is in use, if that is more than this process itself has on it before it takes its arena. */
uint64_t tsr_room_held(const tsr_room *room);

/* The most that a memory_budget may ask for. */
uint64_t tsr_room_most(const tsr_room *room);

/* What is left of the device beside `others`. */
uint64_t tsr_room_left(const tsr_config *config, const tsr_room *room);

/* And of the host, or TSR_BUDGET_UNKNOWN. TSR_ECONFIG: host_memory_budget without a GPU. */
tsr_status tsr_room_host(uint64_t *out, const tsr_inputs *inputs, const tsr_room *room);

/* Outlines the plan and writes every buffer down. */
tsr_status tsr_decide_try(tsr_decision *d, const tsr_inputs *inputs, const tsr_topology_view *view,
                          const tsr_choice *c);
void tsr_decide_clear(tsr_decision *d, const tsr_layout *layout);

/* No longer counts what the machine shows of its memory. Whether more of the host may be used then. */
bool tsr_decide_ignore_shown(tsr_decision *d, const tsr_inputs *inputs);

/* The most units that stay on the device whole within `room` bytes of it; the decision holds them. */
tsr_status tsr_decide_fill(tsr_decision *d, const tsr_inputs *inputs, const tsr_topology_view *view,
                           tsr_choice *c, uint64_t room);

/* The same of layers whose experts stay decoded. */
tsr_status tsr_decide_fill_decoded(tsr_decision *d, const tsr_inputs *inputs,
                                   const tsr_topology_view *view, tsr_choice *c, uint64_t room);

/* Of the device, with what is beside the arena. */
uint64_t tsr_decide_bytes(const tsr_decision *d);

/* Of the host, of one rank: its own, and its share of what a node has once. */
uint64_t tsr_decide_host_bytes(const tsr_decision *d);

/* Whether what was tried fits device and host. */
bool tsr_decide_is_within(const tsr_decision *d);

/* The same of a choice whose units of a base in host memory may still stay on the device, as far as there is room. */
bool tsr_decide_may_fit(const tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c);

/* Whether anything that is allowed fits. */
tsr_status tsr_decide_fits(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                           const tsr_topology_view *view, const tsr_batch_bounds *bounds,
                           const tsr_allowance *allowed);

/* Says of a memory_budget that does not fit the card what it was cut to, and why; and of a job that needs more host memory than
 * the `shown` bytes, that it does. 0: all is told. And of ranks that share no micro-batch although they may, that they wait. */
tsr_status tsr_decide_warn(const tsr_decision *d, const tsr_inputs *inputs, uint64_t shown);

/* TSR_ECONFIG: what does not fit, and the smallest change that would. */
tsr_status tsr_decide_refuse(tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view);

/* `text` behind its label, broken at spaces. */
void tsr_decide_put_line(tsr_text *out, const char *label, const char *text);

/* Rows of a tile of a layer (model/program.h) in the largest micro-batches; 0: there are no tiles. */
int64_t tsr_decide_tile_rows(const tsr_decision *d);

/* "157.85 MiB". */
void tsr_decide_put_bytes(tsr_text *out, uint64_t bytes);

/* "128 a layer, 8 of a token: 3.35 of 30.5 billion parameters are active" */
void tsr_decide_put_experts(tsr_text *out, const tsr_layout *layout);

/* "2 ranks share each micro-batch of more than 8192 tokens ...", where any do. */
void tsr_decide_put_context(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs);

/* What a buffer is for in a user's words: "gather slots"; its own `why` where there are none. */
const char *tsr_decide_words(const tsr_buffer *buffer);

/* What a place is used for. */
typedef struct {
    const char *words;
    uint64_t bytes;
} tsr_share;

/* The largest first; `shares` has room for all buffers of the plan and one more. Returns how many there are. */
int tsr_decide_shares(tsr_share *shares, const tsr_decision *d, tsr_place place);

/* The buffers of a plan, each with what it is for: for people those of a kind together and the largest
 * first; as elements of a JSON array. TSR_ENOMEM. */
tsr_status tsr_decide_print_buffers(tsr_text *out, const tsr_memory_plan *memory, bool json);

/* "device", "host", "node" */
const char *tsr_decide_place_name(tsr_place place);

/* Whether a layer keeps it for its backward; what it is for then ends in that. */
#define TSR_DECIDE_KEPT ", kept for the backward"
bool tsr_decide_is_kept(const tsr_buffer *buffer);

/* "slot[*]" of "slot[1]" into `out`, at most TSR_BUFFER_NAME_BYTES. */
void tsr_decide_without_numbers(char *out, const char *name);

#endif
