/*
 * model/graphs.c: the graphs of the adapters of a run (adapters/graph.h): for which shapes they are
 * chosen, and how they are told.
 *
 * Timed are, in the order of the batches' shapes, those where more than one is in doubt and which are not
 * small, unless all are asked for, until the time that all of it will take, judged from shapes alone, has
 * reached MOST_SECONDS. What was found, or does not fit into this run's memory, counts as if it were timed:
 * so these are the same shapes each time, and the rest keeps the cheapest by price, whatever a cache has by
 * then. The run's own file is obeyed for every shape.
 */
#include "model/model_parts.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/phase.h"

#include <inttypes.h>
#include <string.h>

#define MOST_SECONDS 1.0

/* Of `tokens` of a batch. */
static tsr_graph_shape shape_of(const tsr_model_options *options, const tsr_layout_linear *linear,
                                const tsr_batch_shape *batch, int64_t tokens, bool backward)
{
    static const char plain;
    static const float magnitude;
    const tsr_linear_context context = {.dtype = options->dtype,
                                        .tokens = tokens,
                                        .step_micro = options->step_micro,
                                        .fp8.on = options->fp8};
    const tsr_linear one = {.out = linear->out,
                            .in = linear->in,
                            .r = linear->r,
                            .weight.data = linear->quantized ? NULL : &plain,
                            .g = linear->dora ? &magnitude : NULL,
                            .drops = batch->train && options->dropout > 0};
    return tsr_linear_graph_shape(&context, &one, backward);
}

static bool is_listed(const tsr_graph_shape *list, int count, const tsr_graph_shape *shape)
{
    for (int i = 0; i < count; i++)
        if (tsr_graph_same_shape(&list[i], shape))
            return true;
    return false;
}

/* Whether a linear goes this way in such a batch, and has an adapter. */
static bool takes(const tsr_layout_linear *linear, const tsr_batch_shape *batch, bool backward)
{
    return linear->r > 0 && batch->tokens > 0 && (!backward || batch->train);
}

/* How many tokens a linear has at a time of such a batch. */
static int kinds_of(tsr_tile_kind out[2], const tsr_model_options *options, int unit, int linear,
                    const tsr_batch_shape *batch)
{
    const tsr_layer_program *program = tsr_layer_program_of(options->programs, unit);
    return tsr_tile_kinds(out, program, program->block->matrix[linear].node, batch->tokens);
}

static void list_shape(tsr_graph_shape out[TSR_GRAPH_PLACES], int *listed,
                       const tsr_model_options *options, const tsr_layout_linear *linear,
                       const tsr_batch_shape *batch, int64_t tokens, bool backward)
{
    tsr_graph_shape shape = shape_of(options, linear, batch, tokens, backward);
    if (takes(linear, batch, backward) && *listed < TSR_GRAPH_PLACES &&
        !is_listed(out, *listed, &shape))
        out[(*listed)++] = shape;
}

static void list_linear(tsr_graph_shape out[TSR_GRAPH_PLACES], int *listed,
                        const tsr_model_options *options, int unit, int linear,
                        const tsr_batch_shape *batch)
{
    tsr_tile_kind kinds[2];
    int count = kinds_of(kinds, options, unit, linear, batch);
    for (int i = 0; i < 2 * count; i++)
        list_shape(out, listed, options, &options->layout->unit[unit].linear[linear], batch,
                   kinds[i / 2].tokens, i % 2);
}

/* The shapes that the graphs of the adapters are chosen for, each once, in the order of the batches'. */
static int list_shapes(tsr_graph_shape out[TSR_GRAPH_PLACES], const tsr_model_options *options,
                       const tsr_batch_shape *shapes, int count)
{
    const tsr_layout *layout = options->layout;
    int listed = 0;
    for (int i = 0; i < count; i++)
        for (int unit = 0; unit < layout->layer_count; unit++)
            for (int j = 0; j < tsr_layout_linears(&layout->unit[unit]); j++)
                list_linear(out, &listed, options, unit, j, &shapes[i]);
    return listed;
}

/* Whether they are timed for such a shape, by this run or by one that left it in the cache. */
static bool is_for_timing(const tsr_model_options *options, const tsr_graph_shape *shape)
{
    return (options->graph_rule == TSR_GRAPHS_TIMED || !tsr_graph_is_small(shape)) &&
           tsr_graph_time_seconds(shape) > 0;
}

/* Keeps those that there is time for, and returns how many. */
static int list_doubted(tsr_graph_shape *shape, int count, const tsr_model_options *options)
{
    int listed = 0;
    double spent = 0;
    for (int i = 0; i < count; i++) {
        double seconds = tsr_graph_time_seconds(&shape[i]);
        if (!is_for_timing(options, &shape[i]) || spent + seconds > MOST_SECONDS)
            continue;
        spent += seconds;
        shape[listed++] = shape[i];
    }
    return listed;
}

/* Puts down what was found, and the cheapest where there is no time or no memory. False: it is to be timed. */
static bool settle(tsr_model *model, const tsr_graph_shape *shape, const char *known,
                   const char *cached, bool doubted)
{
    tsr_graph_choice choice;
    uint64_t room = (uint64_t)(model->activation_end - model->activation_begin);
    if (tsr_graph_recall(&choice, known, shape))
        tsr_graph_keep(&model->graphs, shape, choice);
    else if (doubted && tsr_graph_recall(&choice, cached, shape))
        tsr_graph_keep_timed(&model->graphs, shape, choice);
    else if (doubted && tsr_graph_time_bytes(shape) <= room)
        return false;
    else if (is_for_timing(&model->options, shape))
        tsr_graph_keep(&model->graphs, shape, tsr_graph_cheapest(shape));
    return true;
}

void tsr_model_recall_graphs(tsr_graph_search *out, tsr_model *model, const tsr_batch_shape *shapes,
                             int count, const tsr_prepare_args *args, const char *device)
{
    const char *known = tsr_graph_text_for(args->known, device);
    const char *cached = tsr_graph_text_for(args->cached, device);
    int all = list_shapes(out->timed, &model->options, shapes, count);
    memcpy(out->doubted, out->timed, (size_t)all * sizeof *out->timed);
    out->doubted_count = list_doubted(out->doubted, all, &model->options);
    out->timed_count = 0;
    for (int i = 0; i < all; i++) {
        tsr_graph_shape shape = out->timed[i];
        bool doubted = is_listed(out->doubted, out->doubted_count, &shape);
        if (!settle(model, &shape, known, cached, doubted))
            out->timed[out->timed_count++] = shape;
    }
}

tsr_status tsr_model_time_graphs(tsr_model *model, const tsr_graph_search *search)
{
    const tsr_graph_bench bench = {.kernels = model->options.kernels,
                                   .stream = model->compute,
                                   .scratch = model->activation_begin,
                                   .scratch_bytes =
                                       (uint64_t)(model->activation_end - model->activation_begin)};
    const tsr_graph_shape *shape = search->timed;
    int count = search->timed_count;
    double start = tsr_now();
    if (count == 0)
        return TSR_OK;
    for (int i = 0; i < count; i++) {
        tsr_graph_choice choice;
        tsr_phase_at("timing adapters", i, count);
        TSR_TRY(tsr_graph_time(&choice, &bench, &shape[i]));
        tsr_graph_keep_timed(&model->graphs, &shape[i], choice);
    }
    tsr_phase_at("timing adapters", count, count);
    TSR_TRY(tsr_stream_fill(model->compute, bench.scratch, 0, bench.scratch_bytes));
    TSR_TRY(tsr_stream_synchronize(model->compute));
    tsr_log(TSR_LOG_INFO, "graphs of %d shapes of adapters timed in %.2f s", count,
            tsr_now() - start);
    return TSR_OK;
}

/* ---- how they are told ---- */

#define MOST_NAMES 64

/* The linears of one name, of all layers, as far as they take one choice. */
typedef struct {
    const char *name;    /* "q_proj" */
    int64_t least, most; /* tokens of the shapes in which they do; most 0: none */
    bool told;
} named;

typedef struct {
    named item[MOST_NAMES];
    int count;
} names;

static const char *short_name(const tsr_layout *layout, int unit, int index)
{
    const char *name = layout->unit[unit].block->matrix[index].name, *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static named *find_name(names *of, const char *name)
{
    for (int i = 0; i < of->count; i++)
        if (!strcmp(of->item[i].name, name))
            return &of->item[i];
    if (of->count < MOST_NAMES)
        of->item[of->count++].name = name;
    return &of->item[of->count - 1];
}

static tsr_graph_choice chosen(const tsr_model_options *options, const tsr_graph_book *book,
                               const tsr_graph_shape *shape)
{
    return options->graph_rule == TSR_GRAPHS_PLAIN ? tsr_graph_plain(shape)
                                                   : tsr_graph_choose(book, shape);
}

/* Enters a linear where it takes the choice. */
static void enter(named *to, const tsr_model_options *options, const tsr_graph_book *book,
                  const tsr_layout_linear *linear, const tsr_batch_shape *batch, int64_t tokens,
                  tsr_graph_choice choice)
{
    bool backward = tsr_graph_table[choice.graph].backward;
    tsr_graph_shape shape = shape_of(options, linear, batch, tokens, backward);
    if (!takes(linear, batch, backward) ||
        !tsr_graph_same_choice(chosen(options, book, &shape), choice))
        return;
    to->least = to->most && to->least < shape.tokens ? to->least : shape.tokens;
    to->most = to->most > shape.tokens ? to->most : shape.tokens;
}

static void enter_linear(names *out, const tsr_model_options *options, const tsr_graph_book *book,
                         int unit, int linear, const tsr_batch_shape *batch,
                         tsr_graph_choice choice)
{
    tsr_tile_kind kinds[2];
    int count = kinds_of(kinds, options, unit, linear, batch);
    for (int i = 0; i < count; i++)
        enter(find_name(out, short_name(options->layout, unit, linear)), options, book,
              &options->layout->unit[unit].linear[linear], batch, kinds[i].tokens, choice);
}

static void find_names(names *out, const tsr_model_options *options, const tsr_graph_book *book,
                       const tsr_batch_shape *shapes, int count, tsr_graph_choice choice)
{
    const tsr_layout *layout = options->layout;
    memset(out, 0, sizeof *out);
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++)
            for (int j = 0; j < count; j++)
                enter_linear(out, options, book, unit, i, &shapes[j], choice);
}

/* Takes the first name that is not told yet, and all with the same shapes; false: none is left. */
static bool next_group(bool group[MOST_NAMES], named *out, names *of)
{
    *out = (named){0};
    for (int i = 0; i < of->count; i++) {
        named *one = &of->item[i];
        if (out->most == 0 && !one->told)
            *out = *one;
        group[i] = out->most && one->least == out->least && one->most == out->most;
        one->told |= group[i];
    }
    return out->most > 0;
}

static const char *direction(tsr_graph_choice choice)
{
    return tsr_graph_table[choice.graph].backward ? "backward" : "forward";
}

/* "adapters backward by B5: q_proj k_proj at 8192 tokens; up_proj at 1024 to 8192 tokens" */
static void print_choice(tsr_text *out, names *of, tsr_graph_choice choice)
{
    char name[TSR_GRAPH_NAME];
    bool group[MOST_NAMES], first = true;
    named r;
    tsr_graph_name(name, choice);
    for (; next_group(group, &r, of); first = false) {
        if (first)
            tsr_text_printf(out, "adapters %s by %s:", direction(choice), name);
        else
            tsr_text_puts(out, ";");
        for (int i = 0; i < of->count; i++)
            if (group[i])
                tsr_text_printf(out, " %s", of->item[i].name);
        if (r.least < r.most)
            tsr_text_printf(out, " at %" PRId64 " to", r.least);
        else
            tsr_text_puts(out, " at");
        tsr_text_printf(out, " %" PRId64 " tokens", r.most);
    }
    tsr_text_puts(out, first ? "" : "\n");
}

/* {"direction":"backward","graph":"B5","linears":["q_proj","k_proj"],"tokens":[1024,8192]} of each group. */
static void print_json_choice(tsr_text *out, names *of, tsr_graph_choice choice, bool *first)
{
    char name[TSR_GRAPH_NAME];
    bool group[MOST_NAMES];
    named r;
    tsr_graph_name(name, choice);
    for (; next_group(group, &r, of); *first = false) {
        const char *before = "";
        tsr_text_puts(out, *first ? "" : ",");
        tsr_text_printf(out, "\n{\"direction\":\"%s\",\"graph\":\"%s\",\"linears\":[",
                        direction(choice), name);
        for (int i = 0; i < of->count; i++)
            if (group[i]) {
                tsr_text_printf(out, "%s\"%s\"", before, of->item[i].name);
                before = ",";
            }
        tsr_text_printf(out, "],\"tokens\":[%" PRId64 ",%" PRId64 "]}", r.least, r.most);
    }
}

tsr_status tsr_model_print_graphs(tsr_text *out, const tsr_model_options *options,
                                  const tsr_model *model, const tsr_batch_shape *shapes, int count,
                                  bool json)
{
    bool first = true;
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        names of;
        tsr_graph_choice choice = tsr_graph_choice_at(i);
        find_names(&of, options, model ? &model->graphs : NULL, shapes, count, choice);
        if (json)
            print_json_choice(out, &of, choice, &first);
        else
            print_choice(out, &of, choice);
    }
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory for the graphs' names") : TSR_OK;
}
