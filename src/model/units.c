/*
 * model/units.c: which units there are, and what of the layout is in each.
 */
#include "model/units.h"

#include "base/text.h"
#include "model/model_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- where a layer can be cut ---- */

/* A run of nodes that cannot be cut. */
typedef struct {
    int first, end;
    uint64_t bytes; /* of its tensors, gathered */
    int module;     /* LINEARS: of no name; NOTHING: it has no linear */
} atom;

enum { LINEARS = -1, NOTHING = -2 };

typedef struct {
    tsr_layout *layout;
    const tsr_unit_policy *policy;
    bool *found; /* [module_count]: it is of some module */
} grouping;

/* Whether `name` is of the module or of one that it is in: some of its components that follow each other. */
static bool is_of(const char *name, const char *module)
{
    size_t length = strlen(name);
    for (const char *at = module; length && (at = strstr(at, name)); at++)
        if ((at == module || at[-1] == '.') && (at[length] == '.' || !at[length]))
            return true;
    return false;
}

/* What a node's weights are of; of any other kind vectors. */
static bool has_vectors(const tsr_node *node)
{
    return node->kind != &tsr_node_linear && node->kind != &tsr_node_experts &&
           node->kind != &tsr_node_combine;
}

/* The first node that uses a vector. */
static int node_of_vector(const tsr_block *block, int vector)
{
    for (int i = 0; i < block->node_count; i++)
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (has_vectors(&block->node[i]) && block->node[i].weight[port] == vector)
                return i;
    return 0;
}

static bool reads_across(const tsr_block *block, const tsr_node *node, int cut)
{
    for (int port = 0; port < TSR_NODE_PORTS; port++) {
        const tsr_value *value = node->in[port] == TSR_NONE ? NULL : &block->value[node->in[port]];
        bool result = value && value->matrix != TSR_NONE && value->node < cut;
        int vector = has_vectors(node) ? node->weight[port] : TSR_NONE;
        if (result || (vector != TSR_NONE && node_of_vector(block, vector) < cut))
            return true;
    }
    return false;
}

static bool can_cut(const tsr_block *block, int cut)
{
    for (int i = cut; i < block->node_count; i++)
        if (reads_across(block, &block->node[i], cut))
            return false;
    return true;
}

/* The node that a segment is of; of the final norm the last one. */
static int node_of(const tsr_layout_unit *unit, const tsr_layout_segment *segment)
{
    const tsr_block *block = unit->block;
    if (segment->linear >= 0)
        return block->matrix[segment->linear].node;
    if (segment->of_stack)
        return block->stack[segment->stack_index].node;
    for (int i = 0; i < block->vector_count; i++)
        if (&unit->frozen[unit->vector[i]] == segment)
            return node_of_vector(block, i);
    return block->node_count - 1;
}

static uint64_t bytes_between(const tsr_layout_unit *unit, int first, int end)
{
    uint64_t bytes = 0;
    for (int i = 0; i < unit->frozen_count + unit->trainable_count; i++) {
        const tsr_layout_segment *s =
            i < unit->frozen_count ? &unit->frozen[i] : &unit->trainable[i - unit->frozen_count];
        int node = node_of(unit, s);
        if (node >= first && node < end)
            bytes += s->granule_count * s->granule_bytes;
    }
    return bytes;
}

/* Of two names that a module is of, the longer one says more: down_proj, mlp.down_proj of mlp. */
static bool says_more(const grouping *g, int name, int than)
{
    return than < 0 || strlen(g->policy->module[name]) > strlen(g->policy->module[than]);
}

/* The number of the name that a module is of, or what was found before. */
static int name_of(grouping *g, const char *module, int before)
{
    int out = before;
    for (int j = 0; j < g->policy->module_count; j++) {
        bool same = is_of(g->policy->module[j], module);
        g->found[j] |= same;
        if (same && says_more(g, j, out))
            out = j;
        else if (out == NOTHING)
            out = LINEARS;
    }
    return out;
}

/* Of a node's linears and stacks. */
static int module_of(grouping *g, const tsr_block *block, int node)
{
    int out = NOTHING;
    for (int i = 0; i < block->matrix_count; i++)
        out = block->matrix[i].node == node ? name_of(g, block->matrix[i].name, out) : out;
    for (int i = 0; i < block->stack_count; i++)
        out = block->stack[i].node == node ? name_of(g, block->stack[i].name, out) : out;
    return out;
}

static int list_atoms(atom out[TSR_BLOCK_NODES], grouping *g, const tsr_layout_unit *unit)
{
    const tsr_block *block = unit->block;
    int count = 0;
    for (int i = 0; i < block->node_count; i++) {
        int module = module_of(g, block, i);
        if (i == 0 || can_cut(block, i))
            out[count++] = (atom){.first = i, .module = NOTHING};
        atom *last = &out[count - 1];
        last->end = i + 1;
        last->module = module > last->module ? module : last->module;
    }
    for (int i = 0; i < count; i++)
        out[i].bytes = bytes_between(unit, out[i].first, out[i].end);
    return count;
}

/* ---- policies ---- */

/* What has no linear goes with what comes next, the last of it with what came before. */
static void cut_by_module(tsr_layout_unit *unit, const atom *atoms, int count)
{
    int part = 0, module = NOTHING;
    for (int i = 0; i < count; i++) {
        int next = i;
        while (next < count && atoms[next].module == NOTHING)
            next++;
        if (next < count) {
            part += module != NOTHING && atoms[next].module != module;
            module = atoms[next].module;
        }
        memset(unit->part + atoms[i].first, part, (size_t)(atoms[i].end - atoms[i].first));
    }
    unit->part_count = part + 1;
}

static tsr_status refuse_bytes(const grouping *g, int layer, const atom *largest)
{
    const tsr_layout_unit *unit = &g->layout->unit[layer];
    tsr_text names = {0};
    for (int i = 0; i < unit->block->matrix_count; i++) {
        int node = unit->block->matrix[i].node;
        if (node >= largest->first && node < largest->end)
            tsr_text_printf(&names, "%s%s", names.length ? ", " : "", unit->block->matrix[i].name);
    }
    for (int i = 0; i < unit->block->stack_count; i++)
        if (unit->block->stack[i].node >= largest->first &&
            unit->block->stack[i].node < largest->end)
            tsr_text_printf(&names, "%s%s", names.length ? ", " : "", unit->block->stack[i].name);
    tsr_status status = tsr_fail(
        TSR_ECONFIG,
        "%s: unit_policy: %" PRIu64
        " bytes are too few: %s of layer %d are gathered together and take %" PRIu64
        "; write that or more, or layer",
        g->policy->where, g->policy->bytes, tsr_text_string(&names), layer, largest->bytes);
    tsr_text_free(&names);
    return status;
}

static tsr_status cut_by_bytes(grouping *g, int layer, const atom *atoms, int count)
{
    tsr_layout_unit *unit = &g->layout->unit[layer];
    const atom *largest = atoms;
    uint64_t bytes = 0;
    int part = 0;
    for (int i = 1; i < count; i++)
        largest = atoms[i].bytes > largest->bytes ? &atoms[i] : largest;
    if (largest->bytes > g->policy->bytes)
        return refuse_bytes(g, layer, largest);
    for (int i = 0; i < count; i++) {
        if (bytes + atoms[i].bytes > g->policy->bytes) {
            part++;
            bytes = 0;
        }
        bytes += atoms[i].bytes;
        memset(unit->part + atoms[i].first, part, (size_t)(atoms[i].end - atoms[i].first));
    }
    unit->part_count = part + 1;
    return TSR_OK;
}

/* Cuts a layer into parts. */
static tsr_status cut_layer(grouping *g, int layer)
{
    tsr_layout_unit *unit = &g->layout->unit[layer];
    atom atoms[TSR_BLOCK_NODES];
    memset(unit->part, 0, sizeof unit->part);
    unit->part_count = 1;
    if (g->policy->kind == TSR_UNITS_LAYERS)
        return TSR_OK;
    int count = list_atoms(atoms, g, unit);
    if (g->policy->kind == TSR_UNITS_BYTES)
        return cut_by_bytes(g, layer, atoms, count);
    cut_by_module(unit, atoms, count);
    return TSR_OK;
}

/* Whether a whole layer joins the unit before it, which has `layers` of `bytes`. */
static bool joins(const grouping *g, int layers, uint64_t bytes, uint64_t more)
{
    const tsr_unit_policy *p = g->policy;
    if (layers == 0 || p->kind == TSR_UNITS_MODULES)
        return false;
    return p->kind == TSR_UNITS_BYTES ? bytes + more <= p->bytes : layers < p->layers;
}

static tsr_status check_names(const grouping *g)
{
    const tsr_unit_policy *p = g->policy;
    const tsr_block *block = g->layout->unit[0].block;
    tsr_text names = {0};
    int missing = 0;
    while (missing < p->module_count && g->found[missing])
        missing++;
    if (missing == p->module_count)
        return TSR_OK;
    for (int i = 0; i < block->matrix_count; i++)
        tsr_text_printf(&names, "%s%s", i ? ", " : "", block->matrix[i].name);
    for (int i = 0; i < block->stack_count; i++)
        tsr_text_printf(&names, ", %s", block->stack[i].name);
    tsr_status status =
        tsr_fail(TSR_ECONFIG,
                 "%s: unit_policy: %s is of no module of a layer; write layer, a number of layers, "
                 "bytes (64MiB), or names of modules; layer 0 has %s",
                 p->where, p->module[missing], tsr_text_string(&names));
    tsr_text_free(&names);
    return status;
}

static int number_chunk(tsr_layout_unit *chunk, int unit)
{
    chunk->first_unit = unit;
    chunk->part_count = 1;
    return unit + 1;
}

/* Numbers the units, in the order of their first uses: a backward goes through them in the other direction. */
static tsr_status number_units(grouping *g)
{
    tsr_layout *layout = g->layout;
    int unit = 0, layers = 0; /* whole ones in the unit before */
    uint64_t bytes = 0;
    for (int l = tsr_layout_head_end(layout); l < layout->unit_count; l++)
        unit = number_chunk(&layout->unit[l], unit);
    for (int l = 0; l < layout->layer_count; l++) {
        tsr_layout_unit *own = &layout->unit[l];
        TSR_TRY(cut_layer(g, l));
        uint64_t more = bytes_between(own, 0, own->block->node_count);
        bool whole = own->part_count == 1, joined = whole && joins(g, layers, bytes, more);
        own->first_unit = joined ? unit - 1 : unit;
        layers = joined ? layers + 1 : whole;
        bytes = joined ? bytes + more : more;
        unit = own->first_unit + own->part_count;
    }
    layout->plan_head_unit = unit;
    for (int l = layout->layer_count; l < tsr_layout_head_end(layout); l++)
        unit = number_chunk(&layout->unit[l], unit);
    layout->plan_unit_count = unit;
    layout->grouped = layout->head_trained;
    for (int l = 0; l < layout->unit_count; l++)
        layout->grouped |= layout->unit[l].first_unit != l || layout->unit[l].part_count > 1;
    return check_names(g);
}

/* Tells each segment of one kind its unit and its number there. */
static void place_segments(const tsr_layout_unit *unit, tsr_layout_segment *segments, int count,
                           int *used)
{
    for (int i = 0; i < count; i++) {
        int part = unit->block ? unit->part[node_of(unit, &segments[i])] : 0;
        segments[i].unit = unit->first_unit + part;
        segments[i].at = used[segments[i].unit]++;
    }
}

tsr_status tsr_layout_group(tsr_layout *layout, const tsr_unit_policy *policy)
{
    grouping g = {.layout = layout,
                  .policy = policy,
                  .found = calloc((size_t)policy->module_count + 1, sizeof *g.found)};
    tsr_status status = g.found ? number_units(&g) : tsr_fail(TSR_ENOMEM, "out of memory");
    free(g.found);
    TSR_TRY(status);
    int *used = calloc(2 * (size_t)layout->plan_unit_count, sizeof *used);
    if (!used)
        return tsr_fail(TSR_ENOMEM, "out of memory for the units");
    for (int l = 0; l < layout->unit_count; l++) {
        tsr_layout_unit *unit = &layout->unit[l];
        place_segments(unit, unit->frozen, unit->frozen_count, used);
        place_segments(unit, unit->trainable, unit->trainable_count,
                       used + layout->plan_unit_count);
    }
    free(used);
    return TSR_OK;
}

/* ---- runs ---- */

typedef struct {
    tsr_layer_run *run;
    int count;
} run_list;

static void add_step(run_list *list, int unit, int step, bool trains)
{
    tsr_layer_run *last = list->count ? &list->run[list->count - 1] : NULL;
    if (!last || last->unit != unit) {
        last = &list->run[list->count++];
        *last = (tsr_layer_run){.unit = unit, .first = step, .end = step};
    }
    last->end = step + 1;
    last->trains |= trains;
}

/* A run without steps so far. */
static void add_unit(run_list *list, int unit)
{
    if (!list->count || list->run[list->count - 1].unit != unit)
        list->run[list->count++] = (tsr_layer_run){.unit = unit};
}

int tsr_layer_runs(tsr_layer_run out[TSR_LAYER_RUNS], const tsr_layout *layout, int layer,
                   const tsr_layer_program *program, bool backward, bool enters)
{
    const tsr_layout_unit *unit = &layout->unit[layer];
    const tsr_steps *first = backward ? &program->remade : &program->forward;
    int root = unit->block->value[unit->block->root].node;
    run_list list = {.run = out};
    if (backward && unit->final_norm != TSR_NO_SEGMENT)
        add_unit(&list, unit->frozen[unit->final_norm].unit);
    if (backward && enters)
        add_unit(&list, unit->first_unit + unit->part[root]);
    for (int i = 0; i < first->count; i++)
        add_step(&list, unit->first_unit + unit->part[first->step[i].node], i, false);
    for (int i = 0; backward && i < program->backward.count; i++)
        add_step(&list, unit->first_unit + unit->part[program->backward.step[i].node],
                 first->count + i, true);
    if (!list.count)
        add_unit(&list, unit->first_unit);
    return list.count;
}

int tsr_layer_chunks_before(const tsr_layout *layout, int layer, bool backward)
{
    if (backward)
        return layout->head_trained && layer == layout->layer_count - 1 ? layout->chunk_count : 0;
    return layer == 0 ? layout->embedding_count : 0;
}

int tsr_layer_chunks_after(const tsr_layout *layout, int layer, bool backward)
{
    return backward && layer == 0 ? layout->embedding_count : 0;
}

int tsr_layer_chunk(const tsr_layout *layout, int layer, bool backward, int number, int runs)
{
    int before = tsr_layer_chunks_before(layout, layer, backward);
    int after = tsr_layer_chunks_after(layout, layer, backward);
    if (number < before && backward)
        return tsr_layout_head_end(layout) - 1 - number;
    if (number < before)
        return tsr_layout_head_end(layout) + number;
    if (number < before + runs || number >= before + runs + after)
        return -1;
    return layout->unit_count - 1 - (number - before - runs);
}

/* The uses of layer l from `at` on; NULL: they are counted. */
static int list_uses(tsr_layer_use *at, const tsr_model_options *options, int layer, bool backward)
{
    const tsr_layout *layout = options->layout;
    tsr_layer_run run[TSR_LAYER_RUNS];
    tsr_activation_options activation = tsr_model_activation(options);
    const tsr_layer_program *program = tsr_layer_program_of(options->programs, layer);
    if (backward && !program->trains)
        return 0;
    int count = tsr_layer_runs(run, options->layout, layer, program, backward,
                               tsr_stride_ends(tsr_activation_stride(&activation), layer));
    int before = tsr_layer_chunks_before(layout, layer, backward);
    int all = before + count + tsr_layer_chunks_after(layout, layer, backward);
    for (int i = 0; at && i < all; i++) {
        int chunk = tsr_layer_chunk(layout, layer, backward, i, count);
        at[i] = chunk < 0 ? (tsr_layer_use){(int16_t)run[i - before].unit, run[i - before].trains}
                          : (tsr_layer_use){(int16_t)layout->unit[chunk].first_unit, backward};
    }
    return all;
}

tsr_status tsr_model_uses(tsr_layer_uses **out, const tsr_model_options *options)
{
    int layers = options->layout->layer_count;
    size_t count = 0;
    *out = NULL;
    if (!options->layout->grouped)
        return TSR_OK;
    for (int i = 0; i < 2 * layers; i++)
        count += (size_t)list_uses(NULL, options, i / 2, i % 2);
    tsr_layer_uses *uses = malloc((size_t)layers * sizeof *uses + count * sizeof(tsr_layer_use));
    if (!uses)
        return tsr_fail(TSR_ENOMEM, "out of memory for the uses of %d layers", layers);
    tsr_layer_use *at = (tsr_layer_use *)(uses + layers);
    for (int l = 0; l < layers; l++) {
        uses[l].forward = at;
        at += uses[l].forward_count = list_uses(at, options, l, false);
        uses[l].backward = at;
        at += uses[l].backward_count = list_uses(at, options, l, true);
    }
    *out = uses;
    return TSR_OK;
}

/* ---- the units of the plan ---- */

static tsr_status allocate_part(tsr_unit_part *part, int count)
{
    part->segment_count = count;
    part->segment = calloc((size_t)count + 1, sizeof *part->segment);
    return part->segment ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for the units");
}

static void count_segments(tsr_unit *units, const tsr_layout_unit *from)
{
    for (int i = 0; i < from->frozen_count; i++)
        units[from->frozen[i].unit].frozen.segment_count++;
    for (int i = 0; i < from->trainable_count; i++)
        units[from->trainable[i].unit].trainable.segment_count++;
}

static void fill_segments(tsr_unit *units, const tsr_layout_unit *from, bool trainable)
{
    int count = trainable ? from->trainable_count : from->frozen_count;
    for (int i = 0; i < count; i++) {
        const tsr_layout_segment *s = trainable ? &from->trainable[i] : &from->frozen[i];
        tsr_unit_part *part = trainable ? &units[s->unit].trainable : &units[s->unit].frozen;
        part->segment[s->at] = (tsr_segment){.name = s->name,
                                             .dtype = s->dtype,
                                             .granule_bytes = s->granule_bytes,
                                             .granule_count = s->granule_count,
                                             .element_count = s->element_count,
                                             .coded = s->coded,
                                             .adapter = s->adapter};
        units[s->unit].has_norm |= trainable && s->linear >= 0 && from->linear[s->linear].dora;
    }
}

static tsr_status finish_unit(tsr_unit *unit, uint32_t *param, int ranks)
{
    for (int i = 0; i < unit->frozen.segment_count; i++)
        unit->frozen.segment[i].param = (*param)++;
    for (int i = 0; i < unit->trainable.segment_count; i++)
        unit->trainable.segment[i].param = (*param)++;
    return tsr_unit_lay_out(unit, ranks);
}

static tsr_status fill_units(tsr_unit *units, const tsr_layout *layout, const tsr_home *home,
                             int ranks)
{
    uint32_t param = 0;
    for (int i = 0; i < layout->unit_count; i++)
        count_segments(units, &layout->unit[i]);
    for (int i = 0; i < layout->plan_unit_count; i++) {
        units[i].id = i;
        units[i].home = home[i];
        TSR_TRY(allocate_part(&units[i].frozen, units[i].frozen.segment_count));
        TSR_TRY(allocate_part(&units[i].trainable, units[i].trainable.segment_count));
    }
    for (int i = 0; i < layout->unit_count; i++) {
        fill_segments(units, &layout->unit[i], false);
        fill_segments(units, &layout->unit[i], true);
    }
    for (int i = 0; i < layout->plan_unit_count; i++)
        TSR_TRY(finish_unit(&units[i], &param, ranks));
    return TSR_OK;
}

tsr_status tsr_layout_units(tsr_unit **out, const tsr_layout *layout, const tsr_home *home,
                            int ranks)
{
    tsr_unit *units = calloc((size_t)layout->plan_unit_count, sizeof *units);
    if (!units)
        return tsr_fail(TSR_ENOMEM, "out of memory for the units");
    tsr_status status = fill_units(units, layout, home, ranks);
    if (status < 0) {
        tsr_layout_units_free(units, layout->plan_unit_count);
        return status;
    }
    *out = units;
    return TSR_OK;
}

void tsr_layout_units_free(tsr_unit *units, int unit_count)
{
    for (int i = 0; units && i < unit_count; i++) {
        free(units[i].frozen.segment);
        free(units[i].trainable.segment);
    }
    free(units);
}
