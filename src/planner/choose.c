/*
 * choose.c: the fastest choice that fits.
 */
#include "planner/expect.h"
#include "planner/parts.h"
#include "planner/rungs.h"

#include <math.h>

#define WORTH_IT   0.99 /* of the price of what needs less */
#define ROOM_STEP  (256ull << 20)
#define MOST_WIDER 2
/* The model of time knows nothing of power: links that sleep give 1 to 2 % back (docs/gpu.md). */
#define AS_FAST 1.005
/* Of a step's time, for a GiB of host memory: 250 GiB have to save 5 %. */
#define GIB_PRICE 2e-4
#define FINEST    128 /* of all steps of recomputation: fewer at a time are not tried */

/* ---- choosing the fastest ---- */

/* Device memory that units which stay may fill. Where all that is free counts a part of it is left
 * to whoever comes later (communicators, other programs on the card), in steps, so that some more or
 * fewer free bytes hardly ever make another plan. */
static uint64_t room_for_residents(const tsr_decision *d, const tsr_inputs *inputs)
{
    if (d->budget + d->room.others == inputs->config.memory_budget)
        return d->budget;
    if (!inputs->cuda || d->budget == TSR_BUDGET_UNKNOWN)
        return 0;
    return (d->budget - d->budget / 16) / ROOM_STEP * ROOM_STEP;
}

/* How many layers' activations go to host memory, and how many steps layers take to keep less. */
typedef struct {
    int offloaded, steps;
    double price; /* INFINITY: it does not fit */
} point;

typedef struct {
    const tsr_inputs *inputs;
    const tsr_topology_view
        *view; /* rank 0's, which needs the most host memory: so all ranks choose alike */
    const tsr_topology_view *own;
    const tsr_speeds *speeds;
    tsr_choice best;
    int best_index; /* -1: nothing fits yet */
    double best_price;
    /* The fastest of each way that leaves the optimizer's state on the device: of the same way without it the fastest is
     * near. */
    point near[TSR_WAYS / 2];
} contest;

static tsr_status expect(tsr_expectation *out, const contest *k, tsr_decision *d)
{
    TSR_TRY(tsr_plan_complete(d->plan));
    return tsr_expect(out, k->inputs, d, k->view, k->speeds);
}

/* Where no unit is gathered any more, the ranks' links may sleep while they compute: what is left of the
 * memory is used to keep the adapter gathered, and every unit's gradient until late. Not where the last eighth
 * of a backward does not hide its reductions: large ranks over slow links. */
static tsr_status keep_adapter(tsr_decision *d, const contest *k, tsr_choice *c)
{
    tsr_expectation apart, kept;
    if (d->group == 1 || !d->train || d->resident_count < k->inputs->layout.plan_unit_count)
        return TSR_OK;
    TSR_TRY(expect(&apart, k, d));
    c->keeps = true;
    TSR_TRY(tsr_decide_try(d, k->inputs, k->view, c));
    TSR_TRY(expect(&kept, k, d));
    if (tsr_decide_bytes(d) <= room_for_residents(d, k->inputs) &&
        kept.simulation.step <= AS_FAST * apart.simulation.step)
        return TSR_OK;
    c->keeps = false;
    return tsr_decide_try(d, k->inputs, k->view, c);
}

/* Whether anything of the base does. */
static bool moves(const tsr_decision *d, const tsr_choice *c)
{
    return c->offload != TSR_CONFIG_OFFLOAD_NONE || d->group > 1;
}

/* Where no unit moves and memory is left, attention's backward over long documents runs in fewer launches, which
 * is faster: 1 x 8192 tokens of an 8B layer in 3.4 ms with 2.1 GiB, 4.0 with 1.0; one of 2048 with 60 of 102 in
 * 1.1 ms with 4.5 GiB, 1.4 with 1.1 (h200_attention.json). The bits are the same: which kernel runs it, and how, is
 * judged without this (kernels/attention_cudnn.c). */
static tsr_status widen_attention(tsr_decision *d, const contest *k, tsr_choice *c)
{
    uint64_t bytes = tsr_decide_bytes(d), room = room_for_residents(d, k->inputs);
    if (!d->train || bytes >= room ||
        (moves(d, c) && d->resident_count < k->inputs->layout.plan_unit_count))
        return TSR_OK;
    for (c->wider = MOST_WIDER; c->wider > 0; c->wider--) {
        TSR_TRY(tsr_decide_try(d, k->inputs, k->view, c));
        if (tsr_decide_bytes(d) > bytes && tsr_decide_bytes(d) <= room)
            return TSR_OK;
    }
    return tsr_decide_try(d, k->inputs, k->view, c);
}

/* Of all uses of memory the one with the least to gain: a layer of Qwen3-30B-A3B takes 1.1 GiB and saves 0.9 ms of a step. */
static tsr_status keep_decoded(tsr_decision *d, const contest *k, tsr_choice *c)
{
    const tsr_inputs *inputs = k->inputs;
    uint64_t room = room_for_residents(d, inputs);
    bool may = inputs->cuda && inputs->config.decoded_layers < 0 && !d->room.base &&
               tsr_decide_bytes(d) < room && inputs->layout.config.experts.count > 0;
    if (!may || (moves(d, c) && d->resident_count < inputs->layout.plan_unit_count))
        return TSR_OK;
    return tsr_decide_fill_decoded(d, inputs, k->view, c, room);
}

/* What is left of the memory. */
static tsr_status use_room(tsr_decision *d, const contest *k, tsr_choice *c)
{
    TSR_TRY(keep_adapter(d, k, c));
    TSR_TRY(widen_attention(d, k, c));
    return keep_decoded(d, k, c);
}

/* resident_units auto: what is free is used for units that need no copy and no gather any more. */
static tsr_status fill_residents(tsr_decision *d, const contest *k, tsr_choice *c)
{
    const tsr_inputs *inputs = k->inputs;
    uint64_t room = room_for_residents(d, inputs);
    bool may = inputs->config.resident_units < 0 && moves(d, c) && !d->room.base;
    return may && tsr_decide_bytes(d) <= room ? tsr_decide_fill(d, inputs, k->view, c, room)
                                              : TSR_OK;
}

static tsr_status add_residents(tsr_decision *d, const contest *k, tsr_choice *c)
{
    TSR_TRY(fill_residents(d, k, c));
    return use_room(d, k, c);
}

/* As alternatives have it, of what the decision holds. */
static double price_of(const tsr_decision *d, double seconds)
{
    return seconds * (1 + GIB_PRICE * d->local_ranks * (double)tsr_decide_host_bytes(d) / 0x1p30);
}

/* Whether no other way to use host memory is worth more: nothing goes there, or all that does hides behind the rest. */
static bool is_best(const tsr_decision *d, const tsr_alternative *a)
{
    const tsr_simulation *s = &d->expected.simulation;
    bool moves = a->offload != TSR_CONFIG_OFFLOAD_NONE || a->offloaded_count || a->state;
    return !moves || WORTH_IT * s->step <= s->busy[TSR_STREAM_COMPUTE] - s->slowed;
}

/* What the decision holds. Units of a base in host memory that all stay on the device have left nothing there. */
static tsr_alternative describe(const contest *k, const tsr_decision *d, const tsr_choice *c)
{
    bool left = d->resident_count == k->inputs->layout.plan_unit_count &&
                k->inputs->config.offload == TSR_CONFIG_OFFLOAD_AUTO;
    return (tsr_alternative){.offload = left ? TSR_CONFIG_OFFLOAD_NONE : c->offload,
                             .offloaded_count = d->offloaded_count,
                             .state = d->state_offloaded,
                             .fits = tsr_decide_is_within(d),
                             .resident_count = d->resident_count,
                             .selective_count = d->selective_count,
                             .full_count = d->full_count,
                             .stride = d->stride,
                             .device_bytes = tsr_decide_bytes(d),
                             .host_bytes =
                                 d->memory.total[TSR_PLACE_HOST] + d->memory.total[TSR_PLACE_NODE]};
}

/* Whether another way has come to the same. */
static bool is_known(const tsr_decision *d, const tsr_alternative *a)
{
    for (int i = 0; i < d->alternative_count; i++) {
        const tsr_alternative *b = &d->alternative[i];
        if (a->offload == b->offload && a->selective_count == b->selective_count &&
            a->full_count == b->full_count && a->device_bytes == b->device_bytes &&
            a->host_bytes == b->host_bytes)
            return true;
    }
    return false;
}

/* Writes down what the decision holds; if it fits, how long a step takes. *least: with `low` steps, the fewest there are, and
 * no other way is worth more. */
static tsr_status enter(bool *least, contest *k, tsr_decision *d, const tsr_choice *c, int low)
{
    tsr_alternative next = describe(k, d, c), *a = &d->alternative[d->alternative_count];
    if (is_known(d, &next))
        return TSR_OK;
    *a = next;
    d->alternative_count++;
    if (!a->fits)
        return TSR_OK;
    TSR_TRY(expect(&d->expected, k, d));
    a->seconds = d->expected.simulation.step;
    *least |= c->steps == low && is_best(d, a);
    a->price = price_of(d, a->seconds);
    if (k->best_index >= 0 && a->price >= WORTH_IT * k->best_price)
        return TSR_OK;
    k->best = *c;
    k->best_index = d->alternative_count - 1;
    k->best_price = a->price;
    return TSR_OK;
}

/* ---- recomputation and what moves, against each other ----
 *
 * Bytes of the device can be had for time of compute (steps of recomputation), for the link's in the forward and the
 * backward (units of the base that do not stay) or for that of both of its directions (layers whose activations go). Each is
 * cheap as long as it hides behind the others, so none can be settled before the rest: points are tried, and at each the
 * rest of the memory is filled with units that stay. */

/* What of a way is free. */
typedef struct {
    const contest *k;
    tsr_decision *d;
    point least, most;
    tsr_choice best;
    double price; /* of it */
} field;

/* The price at p. If that does not fit, p becomes the nearest point that does, with more steps. */
static tsr_status probe(point *p, field *f)
{
    const contest *k = f->k;
    tsr_choice c = {.offload = f->best.offload,
                    .steps = p->steps,
                    .partly = f->best.partly,
                    .resident = tsr_decide_residents(k->inputs),
                    .offloaded = p->offloaded,
                    .state = f->best.state,
                    .bounds = f->best.bounds};
    tsr_expectation e;
    bool fits;
    p->price = INFINITY;
    TSR_TRY(tsr_decide_raise(&fits, f->d, k->inputs, k->view, &c, f->most.steps));
    if (!fits)
        return TSR_OK;
    TSR_TRY(fill_residents(f->d, k, &c));
    if (!tsr_decide_is_within(f->d))
        return TSR_OK;
    TSR_TRY(expect(&e, k, f->d));
    p->steps = c.steps;
    p->price = price_of(f->d, e.simulation.step);
    if (p->price < f->price) {
        f->price = p->price;
        f->best = c;
    }
    return TSR_OK;
}

/* From p on by `stride` steps, as long as that is better. */
static tsr_status walk(point *p, field *f, int stride)
{
    for (;;) {
        point next = {p->offloaded, p->steps + stride, INFINITY};
        if (next.steps < f->least.steps || next.steps > f->most.steps)
            return TSR_OK;
        TSR_TRY(probe(&next, f));
        if (next.price >= p->price)
            return TSR_OK;
        *p = next;
    }
}

/* *best: the best with so many layers, if that is better; searched for from *best's steps on, in ever shorter strides. */
static tsr_status compare(point *best, field *f, int offloaded, int stride)
{
    point p = {offloaded, best->steps, INFINITY};
    if (offloaded < f->least.offloaded || offloaded > f->most.offloaded)
        return TSR_OK;
    TSR_TRY(probe(&p, f));
    for (; stride > f->most.steps / FINEST && p.price < INFINITY; stride /= 2) {
        int steps = p.steps;
        TSR_TRY(walk(&p, f, -stride));
        if (p.steps == steps)
            TSR_TRY(walk(&p, f, stride));
    }
    if (p.price < best->price)
        *best = p;
    return TSR_OK;
}

/* The best number of layers, the fewest where several are as good: first a few numbers are tried, or only *best if that is
 * known to be near, then those beside the best so far. */
static tsr_status compare_all(point *best, field *f)
{
    int by = (f->most.offloaded - f->least.offloaded + 3) / 4;
    int range = f->most.steps - f->least.steps;
    if (best->price < INFINITY) {
        best->price = INFINITY;
        TSR_TRY(compare(best, f, best->offloaded, range / 32));
        by /= 4;
    } else {
        best->steps = f->most.steps;
        TSR_TRY(compare(best, f, f->least.offloaded, range / 2));
        for (int n = f->least.offloaded + by; by && n < f->most.offloaded; n += by)
            TSR_TRY(compare(best, f, n, range / 8));
        if (by)
            TSR_TRY(compare(best, f, f->most.offloaded, range / 8));
    }
    while ((by /= 2) > f->most.offloaded / (FINEST / 2)) {
        int middle = best->offloaded;
        TSR_TRY(compare(best, f, middle - by, range / 32));
        TSR_TRY(compare(best, f, middle + by, range / 32));
    }
    return TSR_OK;
}

/* The fastest of a way, of which c fits with the fewest steps; the decision holds it. */
static tsr_status find_fastest(tsr_choice *c, contest *k, tsr_decision *d, int least, int most)
{
    int layers = k->inputs->layout.layer_count - k->inputs->layout.first_trained;
    bool host = c->offload != TSR_CONFIG_OFFLOAD_NONE, some = c->some && layers > TSR_REGIONS;
    field f = {.k = k,
               .d = d,
               .least = {some ? TSR_REGIONS + 1 : c->offloaded, least, INFINITY},
               .most = {some ? layers : c->offloaded, most, INFINITY},
               .best = *c,
               .price = INFINITY};
    if (!moves(d, c) && !c->offloaded) /* only for the room that all of them leave */
        f.least.steps = f.most.steps;
    point *near = &k->near[host + 2 * (c->offloaded > 0)], best = *near;
    TSR_TRY(compare_all(&best, &f));
    if (!c->state)
        *near = best;
    *c = f.best;
    TSR_TRY(tsr_decide_try(d, k->inputs, k->view, c));
    return use_room(d, k, c);
}

/* One way to use host memory: as little recomputation as fits, with and without units that stay; then the fastest. Where
 * the number of layers whose activations go is free, only the fastest, since no number is the one to begin with.
 * *least: as `enter` has it. */
static tsr_status enter_way(bool *least, contest *k, tsr_decision *d, tsr_choice c,
                            tsr_config_recompute mode)
{
    const tsr_inputs *inputs = k->inputs;
    int low, high;
    bool fits;
    TSR_TRY(tsr_decide_search(&fits, d, inputs, k->view, &c, mode));
    tsr_decide_steps(&low, &high, d, mode);
    c.offloaded = d->offloaded_count;
    if (!fits)
        return enter(least, k, d, &c, low);
    tsr_choice bare = c, fastest = c;
    if (c.some)
        TSR_TRY(find_fastest(&fastest, k, d, low, high));
    if (c.some && tsr_decide_is_within(d))
        return enter(least, k, d, &fastest, low);
    TSR_TRY(tsr_decide_try(d, inputs, k->view, &c));
    TSR_TRY(add_residents(d, k, &c));
    if (c.some && !tsr_decide_is_within(d)) { /* units are too coarse for what the host lacks */
        c = bare;
        TSR_TRY(tsr_decide_offload_fewer(d, inputs, k->view, &c));
        TSR_TRY(add_residents(d, k, &c));
    }
    TSR_TRY(enter(least, k, d, &c, low));
    if (c.resident > bare.resident) {
        TSR_TRY(tsr_decide_try(d, inputs, k->view, &bare));
        TSR_TRY(enter(least, k, d, &bare, low));
    }
    if (c.some || (!c.offloaded && (low == high || c.steps >= high)))
        return TSR_OK;
    TSR_TRY(find_fastest(&fastest, k, d, c.offloaded ? low : c.steps, high));
    return fastest.steps == c.steps ? TSR_OK : enter(least, k, d, &fastest, low);
}

/* *fits: the decision holds the fastest. A way that moves more than another which is the least there can be has nothing
 * to win, and is left out. */
static tsr_status choose(bool *fits, tsr_decision *d, contest *k)
{
    tsr_allowance allowed = tsr_decide_allowed(&k->inputs->config);
    tsr_choice c = {.bounds = k->inputs->bounds, .resident = tsr_decide_residents(k->inputs)};
    bool least[TSR_WAYS] = {false};
    k->best_index = -1;
    for (int i = 0; i < TSR_WAYS / 2; i++)
        k->near[i].price = INFINITY;
    if (!d->train) /* there is nothing to move */
        allowed.activations = allowed.state = TSR_CONFIG_CHOICE_NO;
    if (d->room.base)
        allowed.offload = TSR_CONFIG_OFFLOAD_NONE;
    for (int i = 0; i < TSR_WAYS; i++) {
        bool idle = !tsr_decide_way(&c, i, &allowed);
        for (int less = 0; less < i; less++)
            idle |= (less & i) == less && least[less];
        if (!idle)
            TSR_TRY(enter_way(&least[i], k, d, c, allowed.recompute));
    }
    *fits = k->best_index >= 0;
    if (!*fits)
        return TSR_OK;
    d->alternative[k->best_index].chosen = true;
    TSR_TRY(tsr_decide_try(d, k->inputs, k->own, &k->best));
    return expect(&d->expected, k, d);
}

tsr_status tsr_decide(tsr_decision *out, const tsr_inputs *inputs, const tsr_topology_view *view,
                      bool train, const tsr_room *room, const tsr_speeds *speeds)
{
    tsr_decision d;
    tsr_topology_view first = *view;
    first.rank = 0;
    contest k = {.inputs = inputs, .view = &first, .own = view, .speeds = speeds};
    bool fits = false;
    tsr_status status = tsr_decide_begin(&d, inputs, view, train, room, speeds);
    if (status == TSR_OK)
        status = choose(&fits, &d, &k);
    if (status == TSR_OK && !fits && tsr_decide_ignore_shown(&d, inputs)) {
        d.alternative_count = 0;
        status = choose(&fits, &d, &k);
    }
    if (status == TSR_OK)
        status = fits ? tsr_decide_warn(&d, inputs,
                                        inputs->config.host_memory_budget ? 0 : room->host_shown)
                      : tsr_decide_refuse(&d, inputs, view);
    if (status < 0) {
        tsr_decide_clear(&d, &inputs->layout);
        tsr_decision_free(&d);
        return status;
    }
    *out = d;
    return TSR_OK;
}
