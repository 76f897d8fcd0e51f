#include "planner/expect.h"

#include "inputs/shared.h"

#include <math.h>
#include <stdlib.h>

#define WORD_BYTES 256 /* of the control word, about */
/* How much faster e4m3 matmuls are whose sums stay in the tensor cores: an earlier h200_fp8.json, a step of 345.2
 * instead of 362.6 ms, of which they are about 190. */
#define FAST_FP8 1.09
/* Of the documents that attention's rates are measured with on a card (environment.c, bench_roofs). */
#define MEASURED_LENGTH 2048

/* Seconds of one use of a unit by a layer, and of the norms before it. waits: of compute, for other ranks. */
typedef struct {
    double compute, norm, waits;
} use_seconds;

typedef struct {
    const tsr_inputs *inputs;
    const tsr_decision *decision;
    const tsr_topology_view *view;
    const tsr_speeds *speeds;
    tsr_work_rates rates;
    double tokens, label_rows, length; /* of a micro-batch; length: of its documents */
    double all_tokens; /* of all ranks that share it: the above are then one's; else 0 */
    double element;
    use_seconds *use;
    int *first;                   /* [2 layer + whether it is the backward]: of its uses */
    double seconds, waits, flops; /* of what is being added up */
} costing;

/* ---- the work of uses ---- */

static void add(void *user, const tsr_work_op *op)
{
    costing *c = user;
    double seconds = tsr_work_seconds(&c->rates, op);
    c->seconds += seconds;
    if (op->kind == TSR_WORK_EXCHANGE)
        c->waits += seconds;
    c->flops += op->least.flops;
}

static double taken(costing *c)
{
    double seconds = c->seconds;
    c->seconds = 0;
    return seconds;
}

static double stream(const costing *c, double bytes)
{
    return bytes / (c->rates.copy * c->rates.reached[TSR_WORK_STREAM]);
}

/* Pairs of tokens that see each other in documents of `length`, all of them `tokens` long. */
static double pairs_of(double tokens, double length, double window)
{
    double seen = (length + 1) / 2; /* by a token, on average */
    if (window > 0 && length > window)
        seen = window - window * (window - 1) / (2 * length);
    return tokens * seen;
}

/* Of the first rows of documents of `length`, or of their last ones. */
static double pairs_of_rows(double rows, double length, double window, bool first)
{
    double whole = floor(rows / length) * length, rest = rows - whole;
    double pairs = rest > 0 ? pairs_of(rest, rest, window) : 0;
    if (rest > 0 && !first)
        pairs = pairs_of(length, length, window) - pairs_of(length - rest, length - rest, window);
    return pairs + pairs_of(whole, length, window);
}

/* As long as what one rank of those that share a micro-batch has of its pairs. */
typedef struct {
    double forward, backward;
} shared_pairs;

/* Those of its queries, and those of its keys, which the others' queries see. */
static shared_pairs pairs_of_rank(const costing *c, const tsr_spans *spans, double window)
{
    double queries = 0, keys = 0;
    double first, rows = (double)spans->rows;
    for (int64_t i = 0; (first = (double)tsr_spans_own(spans, i) * rows) < c->all_tokens; i++) {
        double end = fmin(first + rows, c->all_tokens);
        queries += pairs_of_rows(end, c->length, window, true) -
                   pairs_of_rows(first, c->length, window, true);
        keys += pairs_of_rows(end, c->length, window, false) -
                pairs_of_rows(first, c->length, window, false);
    }
    /* GPUs compute those of own keys. On the CPU, of five matmuls a pair has four where the key is own and three where the
     * query is, both five. */
    double backward = (4 * keys + 3 * queries - 2 * queries / spans->ranks) / 5;
    return (shared_pairs){queries, c->speeds->cuda ? keys : backward};
}

/* Attention waits for all, so the rank with the most of them counts. */
static shared_pairs most_pairs(const costing *c, double window)
{
    shared_pairs most = {0, 0};
    tsr_spans spans = c->decision->model.spans;
    for (spans.rank = 0; spans.rank < spans.ranks; spans.rank++) {
        shared_pairs own = pairs_of_rank(c, &spans, window);
        most.forward = fmax(most.forward, own.forward);
        most.backward = fmax(most.backward, own.backward);
    }
    return most;
}

/* As many pairs in documents of MEASURED_LENGTH as attention takes as long for. */
static double pairs_here(const costing *c, double pairs)
{
    double ends = c->speeds->attention_ends;
    double measured = pairs_of(1, MEASURED_LENGTH, 0);
    return (pairs + ends * c->tokens) * measured / (measured + ends);
}

/* The uses of a layer's units by its forward, or its backward. */
static int runs_of(tsr_layer_run out[TSR_LAYER_RUNS], const costing *c, int layer, bool backward)
{
    const tsr_decision *d = c->decision;
    if (backward && (!d->train || layer < c->inputs->layout.first_trained))
        return 0;
    return tsr_layer_runs(out, &c->inputs->layout, layer, tsr_layer_program_of(d->programs, layer),
                          backward, tsr_stride_ends(d->plan->stride, layer));
}

static tsr_work_layer describe(const costing *c, int u)
{
    const tsr_decision *d = c->decision;
    double window = (double)tsr_model_config_window(&c->inputs->layout.config, (uint64_t)u);
    bool shared = c->all_tokens > 0;
    const tsr_layer_program *program = tsr_layer_program_of(d->programs, u);
    tsr_head_sharing heads = tsr_model_head_sharing(&d->model, program);
    int ranks = d->model.spans.ranks;
    shared_pairs own = {0, 0};
    if (shared && heads.by_heads)
        own.forward = own.backward = pairs_of(c->all_tokens, c->length, window) / ranks;
    else if (shared)
        own = most_pairs(c, window);
    double pairs = shared ? own.forward : pairs_of(c->tokens, c->length, window);
    tsr_work_layer layer = {.element = c->element,
                            .fp8 = d->model.fp8,
                            .tokens = c->tokens,
                            .pairs = pairs,
                            .pairs_here = pairs_here(c, pairs),
                            .pairs_back = shared ? pairs_here(c, own.backward) : 0,
                            .all_tokens = c->all_tokens,
                            .head_groups = heads.groups,
                            .head_ranks = heads.by_heads ? ranks : 0,
                            .adds_dq = c->speeds->cuda,
                            .step_micro = d->model.step_micro,
                            .program = program};
    tsr_work_layer_of(&layer, &c->inputs->layout, u);
    for (int i = 0; i < layer.program->block->matrix_count; i++)
        layer.linear[i].drops = layer.linear[i].r > 0 && d->model.dropout > 0;
    for (int i = 0; i < layer.program->block->stack_count; i++)
        layer.stack[i].decoded = u >= tsr_model_first_decoded(&d->model);
    return layer;
}

static tsr_work_head head_of(const costing *c, int chunk, bool train)
{
    const tsr_layout *layout = &c->inputs->layout;
    return (tsr_work_head){c->label_rows, (double)layout->config.hidden_size,
                           (double)layout->unit[chunk].row_count, c->element, train};
}

/* Uses of a layer that are of chunks (model/units.h): the gradient of a chunk of the head makes its logits again and
 * has as many matmuls as its loss; the embedding's moves the tokens' rows, and fills its gradient. */
static void cost_chunks(costing *c, int layer, bool backward, int runs)
{
    const tsr_layout *layout = &c->inputs->layout;
    int all = runs + tsr_layer_chunks_before(layout, layer, backward) +
              tsr_layer_chunks_after(layout, layer, backward);
    double d = (double)layout->config.hidden_size;
    for (int i = 0; i < all; i++) {
        int chunk = tsr_layer_chunk(layout, layer, backward, i, runs);
        if (chunk < 0)
            continue;
        const tsr_work_head head = head_of(c, chunk, true);
        double rows = 2 * c->tokens * d * c->element / layout->embedding_count;
        if (chunk < tsr_layout_head_end(layout))
            tsr_work_chunk(&head, add, c);
        else
            c->seconds += stream(c, rows + (backward ? head.vocabulary * d * sizeof(float) : 0));
        c->use[c->first[2 * layer + backward] + i].compute = taken(c);
    }
}

/* With what has been added up. */
static use_seconds compute_of(costing *c, const use_seconds *use)
{
    double waits = c->waits;
    c->waits = 0;
    return (use_seconds){taken(c), use->norm, waits};
}

static void cost_layer(costing *c, int u)
{
    const tsr_decision *d = c->decision;
    tsr_work_layer layer = describe(c, u);
    tsr_layer_run runs[TSR_LAYER_RUNS];
    int count = runs_of(runs, c, u, false);
    use_seconds *own =
        c->use + c->first[2 * u] + tsr_layer_chunks_before(&c->inputs->layout, u, false);
    for (int i = 0; i < count; i++) {
        layer.run = &runs[i];
        tsr_work_norm(&layer, add, c);
        own[i].norm = taken(c);
    }
    double before = c->flops;
    for (int i = 0; i < count; i++) {
        layer.run = &runs[i];
        tsr_work_forward(&layer, add, c);
        own[i] = compute_of(c, &own[i]);
    }
    if (tsr_stride_again(d->plan->stride, u))
        c->flops += c->flops - before;
    cost_chunks(c, u, false, count);
    count = runs_of(runs, c, u, true);
    own = c->use + c->first[2 * u + 1] + tsr_layer_chunks_before(&c->inputs->layout, u, true);
    for (int i = 0; i < count; i++) {
        layer.run = &runs[i];
        tsr_work_backward(&layer, add, c);
        own[i] = compute_of(c, &own[i]);
    }
    if (count)
        cost_chunks(c, u, true, count);
}

static void cost_uses(costing *c)
{
    const tsr_layout *layout = &c->inputs->layout;
    for (int u = 0; u < layout->layer_count; u++)
        cost_layer(c, u);
    for (int u = layout->layer_count; u < tsr_layout_head_end(layout); u++) {
        const tsr_work_head head = head_of(c, u, c->decision->train);
        tsr_work_chunk(&head, add, c);
        c->use[c->first[2 * u]].compute = taken(c);
    }
}

/* Room for all uses. */
static tsr_status list_uses(costing *c)
{
    const tsr_layout *layout = &c->inputs->layout;
    tsr_layer_run runs[TSR_LAYER_RUNS];
    int count = 0;
    c->first = calloc(2 * (size_t)layout->unit_count, sizeof *c->first);
    for (int i = 0; c->first && i < 2 * layout->unit_count; i++) {
        c->first[i] = count;
        int layer = i / 2, own = layer < layout->layer_count ? runs_of(runs, c, layer, i % 2) : 1;
        count += own;
        if (own && layer < layout->layer_count)
            count += tsr_layer_chunks_before(layout, layer, i % 2) +
                     tsr_layer_chunks_after(layout, layer, i % 2);
    }
    c->use = calloc((size_t)count, sizeof *c->use);
    return c->first && c->use ? TSR_OK
                              : tsr_fail(TSR_ENOMEM, "out of memory for the expected time");
}

/* ---- transfers ---- */

/* Ranks that communicate, and how many of them are in one node. */
typedef struct {
    double ranks, in_node;
} circle;

static circle shard_circle(const costing *c)
{
    double group = c->decision->group, local = c->view->local_ranks;
    return (circle){group, group < local ? group : local};
}

/* The ranks that hold the same shard, a group apart from each other. */
static circle replica_circle(const costing *c)
{
    double apart = c->view->local_ranks / c->decision->group;
    return (circle){c->decision->replicas, apart > 1 ? apart : 1};
}

/* Those that share a micro-batch, which follow each other. */
static circle sharing_circle(const costing *c)
{
    double sharers = c->decision->model.spans.ranks, local = c->view->local_ranks;
    return (circle){sharers, sharers < local ? sharers : local};
}

/* `bytes` arrive at each rank of a ring, each from one of the others. What a node wants of the
 * others crosses the network once, a share of it to each rank, which hands it on. */
static double collective(const costing *c, circle with, double bytes)
{
    const double *v = c->speeds->value;
    double nodes = with.ranks / with.in_node;
    if (with.ranks <= 1)
        return 0;
    double inside = with.in_node > 1 ? bytes / v[TSR_SPEED_LINK] : 0;
    double outside = bytes * (with.ranks - with.in_node) / (with.ranks - 1) / with.in_node /
                     v[TSR_SPEED_NETWORK];
    double latency = (with.ranks - nodes) * v[TSR_LATENCY_LINK] +
                     (nodes > 1 ? nodes * v[TSR_LATENCY_NETWORK] : 0);
    return (inside > outside ? inside : outside) + latency;
}

/* A rank's part of what the group gathers comes from itself. */
static double gather(const costing *c, double bytes)
{
    circle with = shard_circle(c);
    return collective(c, with, bytes * (with.ranks - 1) / with.ranks);
}

/* The rank's part of a unit's gradient from all others of the group. It is read with theirs and added to
 * the sums, which are int64, or rounded to fp32; with replicas, sums of its own go over these, there and back,
 * and are added then. */
static double reduce(const costing *c, const tsr_plan_op *op)
{
    circle with = shard_circle(c), replicas = replica_circle(c);
    double bytes = (double)op->bytes, part = bytes / with.ranks;
    double sums = 8.0 * (double)c->decision->units[op->unit].trainable.gradient_count;
    double over = 2 * sums * (replicas.ranks - 1) / replicas.ranks;
    double added = c->decision->plan->options.one_round ? sums / 2 : 2 * sums;
    double partial = replicas.ranks > 1 ? 2 * sums : 0;
    return collective(c, with, part * (with.ranks - 1)) + collective(c, replicas, over) +
           stream(c, bytes + partial + added);
}

static double from_host(const costing *c, double bytes)
{
    const double *v = c->speeds->value;
    double share = v[TSR_SPEED_NODE_TO_DEVICE] / c->view->local_ranks;
    double rate = v[TSR_SPEED_TO_DEVICE] < share ? v[TSR_SPEED_TO_DEVICE] : share;
    return bytes / (rate * c->speeds->host_reached);
}

static double to_host(const costing *c, double bytes)
{
    return from_host(c, bytes) * c->speeds->value[TSR_SPEED_TO_DEVICE] /
           c->speeds->value[TSR_SPEED_TO_HOST];
}

/* AdamW over what the op updates. */
static double update(const costing *c, const tsr_plan_op *op)
{
    costing of = *c;
    of.seconds = 0;
    tsr_work_update((double)tsr_plan_chunk(c->decision->plan, op->chunk).count,
                    (double)tsr_plan_state_bytes(c->decision->plan, op->chunk),
                    c->decision->plan->options.one_round ? 4 : 8, c->element, add, &of);
    return of.seconds;
}

/* What layers save is laid out for the tokens that there are. */
static double saved(const costing *c, const tsr_plan_op *op)
{
    return (double)op->bytes * c->tokens / (double)c->decision->model.bounds.tokens;
}

/* What a transfer takes of compute's speed it takes at a link's full speed: at half of it, half. */
static tsr_op_cost beside(double seconds, double at_full_speed, double slows)
{
    double share = at_full_speed < seconds ? at_full_speed / seconds : 1;
    return (tsr_op_cost){.seconds = seconds, .slows = seconds > 0 ? share * slows : 0};
}

static tsr_op_cost host_cost(const costing *c, double seconds, double bytes, tsr_speed speed)
{
    return beside(seconds, bytes / c->speeds->value[speed], c->speeds->host_slows);
}

static tsr_op_cost link_cost(const costing *c, double seconds, double bytes)
{
    return beside(seconds, bytes / c->speeds->value[TSR_SPEED_LINK], c->speeds->link_slows);
}

static tsr_op_cost cost_of(void *user, const tsr_plan_op *op)
{
    const costing *c = user;
    double bytes = (double)op->bytes, group = c->decision->group;
    circle world = {c->view->ranks, c->view->local_ranks};
    switch ((tsr_op_kind)op->kind) {
    case TSR_OP_H2D:
    case TSR_OP_LOAD_STATE:
        return host_cost(c, from_host(c, bytes), bytes, TSR_SPEED_TO_DEVICE);
    case TSR_OP_LOAD:
        bytes = saved(c, op);
        return host_cost(c, from_host(c, bytes), bytes, TSR_SPEED_TO_DEVICE);
    case TSR_OP_SAVE:
        bytes = saved(c, op);
        return host_cost(c, to_host(c, bytes), bytes, TSR_SPEED_TO_HOST);
    case TSR_OP_SAVE_STATE:
        return host_cost(c, to_host(c, bytes), bytes, TSR_SPEED_TO_HOST);
    case TSR_OP_GATHER:
    case TSR_OP_GATHER_T:
        return link_cost(c, gather(c, bytes), bytes * (group - 1) / group);
    case TSR_OP_REDUCE:
        return link_cost(c, reduce(c, op), bytes * (group - 1));
    case TSR_OP_NORM:
        return (tsr_op_cost){.seconds = c->use[c->first[2 * op->layer] + op->use].norm};
    case TSR_OP_COMPUTE: {
        const use_seconds *use =
            &c->use[c->first[2 * op->layer + (op->phase == TSR_USE_BACKWARD)] + op->use];
        return (tsr_op_cost){.seconds = use->compute, .waits = use->waits};
    }
    case TSR_OP_OPTIM: /* fills a card, on which it comes first */
        return (tsr_op_cost){.seconds = update(c, op), .slows = c->speeds->cuda ? 1 : 0};
    case TSR_OP_CONTROL: /* there and back */
        return (tsr_op_cost){.seconds = 2 * collective(c, world, WORD_BYTES)};
    default:
        return (tsr_op_cost){.seconds = c->rates.ends_s[TSR_WORK_STREAM]};
    }
}

/* ---- a step ---- */

/* Of an average micro-batch. */
static void take_shape(costing *c, tsr_expectation *e)
{
    const tsr_inputs *inputs = c->inputs;
    const tsr_batch *batch = c->decision->train ? inputs->batch : inputs->eval_batch;
    const tsr_batch_run *run = batch ? tsr_batch_run_of(batch) : NULL;
    double length = (double)inputs->bounds.longest, all;
    if (run) {
        const tsr_dataset_stats *stats =
            tsr_dataset_stats_of(c->decision->train ? inputs->dataset : inputs->eval_dataset);
        double micro = (double)run->step_micro * (double)run->steps;
        e->steps = run->steps;
        e->rounds = run->rounds;
        e->step_tokens = (double)run->input_tokens / (double)run->steps;
        c->tokens = (double)run->input_tokens / micro;
        c->label_rows = (double)run->label_tokens / micro;
        length = (double)stats->tokens / (double)stats->documents;
        all = (double)run->step_micro;
    } else {
        int64_t groups = tsr_inputs_groups(inputs, c->view->ranks);
        int64_t micro = tsr_inputs_step_micro(inputs, c->view->ranks);
        e->rounds = (micro + groups - 1) / groups;
        c->tokens = (double)inputs->bounds.tokens;
        c->label_rows = (double)inputs->bounds.label_rows;
        all = (double)micro;
        e->step_tokens = c->tokens * all;
    }
    c->length = length < c->tokens ? length : c->tokens;
    e->step_flops = all; /* times those of a micro-batch: see below */
}

/* Of a micro-batch that several ranks share what the one with the most rows has. */
static void take_own(costing *c)
{
    const tsr_spans *spans = &c->decision->model.spans;
    double all = c->tokens;
    if (!tsr_spans_shared(spans) || all <= (double)spans->rows)
        return;
    c->all_tokens = all;
    c->tokens = (double)tsr_inputs_own_tokens(&c->inputs->config, (int64_t)all);
    c->label_rows *= c->tokens / all;
    const circle with = sharing_circle(c);
    double latency = collective(c, with, 0);
    c->rates.exchange = 1 / (collective(c, with, 1) - latency);
    c->rates.reached[TSR_WORK_EXCHANGE] = 1;
    c->rates.ends_s[TSR_WORK_EXCHANGE] = latency;
}

static void begin(costing *out, tsr_expectation *e, const tsr_inputs *inputs,
                  const tsr_decision *decision, const tsr_topology_view *view,
                  const tsr_speeds *speeds)
{
    costing c = {.inputs = inputs,
                 .decision = decision,
                 .view = view,
                 .speeds = speeds,
                 .rates = speeds->rates,
                 .element = tsr_dtype_bytes(inputs->compute)};
    if (!speeds->cuda) { /* the ranks of a node share its cores */
        c.rates.matmul /= view->local_ranks;
        c.rates.matmul_fp8 /= view->local_ranks;
        c.rates.copy /= view->local_ranks;
        c.rates.attention_forward /= view->local_ranks;
        c.rates.attention_backward /= view->local_ranks;
    } else if (decision->model.fp8_fast)
        c.rates.matmul_fp8 *= FAST_FP8;
    take_shape(&c, e);
    *out = c;
}

tsr_status tsr_expect(tsr_expectation *out, const tsr_inputs *inputs, const tsr_decision *decision,
                      const tsr_topology_view *view, const tsr_speeds *speeds)
{
    tsr_expectation e = {.known = speeds->measured};
    costing c;
    begin(&c, &e, inputs, decision, view, speeds);
    tsr_status status = list_uses(&c);
    if (status == TSR_OK) {
        cost_uses(&c);
        e.step_flops *= c.flops;
        take_own(&c);
        if (c.all_tokens > 0)
            cost_uses(&c);
        status = tsr_plan_simulate(&e.simulation, decision->plan, e.rounds, cost_of, &c);
    }
    free(c.use);
    free(c.first);
    if (status == TSR_OK)
        *out = e;
    return status;
}

tsr_status tsr_expect_ladder(tsr_ladder *out, double *byte_seconds, const tsr_inputs *inputs,
                             const tsr_decision *decision, const tsr_topology_view *view,
                             const tsr_speeds *speeds, int layer)
{
    tsr_expectation unused = {0};
    costing c;
    begin(&c, &unused, inputs, decision, view, speeds);
    take_own(&c);
    const tsr_work_layer work = describe(&c, layer);
    tsr_status status = tsr_ladder_make(out, &work, &c.rates);
    *byte_seconds = stream(&c, 1);
    return status;
}
