#include "shard/random_plan.h"

#include "base/philox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_below(random_source *random, uint64_t bound)
{
    return tsr_mix(random->key ^ tsr_mix(random->next++)) % bound;
}

static void make_part(random_model *model, random_source *random, int unit, bool trainable)
{
    tsr_unit_part *part = trainable ? &model->unit[unit].trainable : &model->unit[unit].frozen;
    part->segment = model->segment[unit][trainable];
    part->segment_count = 1 + (int)random_below(random, MAX_SEGMENTS - 1);
    for (int i = 0; i < part->segment_count; i++) {
        tsr_segment *s = &part->segment[i];
        char *name = model->name[unit][trainable][i];
        snprintf(name, sizeof model->name[0][0][0], "unit%d.%s%d", unit, trainable ? "t" : "f", i);
        bool half = trainable && random_below(random, 2);
        uint64_t frozen_bytes = random_below(random, 2) ? 512 : 16;
        *s = (tsr_segment){.name = name,
                           .param = (uint32_t)(unit * 8 + trainable * 4 + i),
                           .dtype = !trainable ? TSR_U8
                                    : half     ? TSR_BF16
                                               : TSR_F32,
                           .granule_bytes = !trainable ? frozen_bytes
                                            : half     ? 2 * TSR_GRANULE_ELEMENTS
                                                       : 4 * TSR_GRANULE_ELEMENTS,
                           .granule_count = 1 + random_below(random, 12)};
        s->element_count = s->granule_count * TSR_GRANULE_ELEMENTS - random_below(random, 64);
    }
}

/* What has a backward may save. */
static void make_offload(random_model *model, random_source *random)
{
    tsr_plan_options *o = &model->options;
    uint64_t owned = 0;
    bool saves = random_below(random, 3) > 0, all = random_below(random, 2);
    int lowest = 0;
    while (o->layers ? model->layer[lowest].backward_count == 0
                     : model->unit[lowest].trainable.segment_count == 0)
        lowest++;
    for (int l = lowest; l < o->layer_count; l++)
        if (saves && (all || random_below(random, 3)))
            model->saved_bytes[l] = 8 * (1 + random_below(random, MAX_SAVED_BYTES / 8));
    for (int u = 0; u < o->unit_count; u++)
        owned += model->unit[u].trainable.gradient_count / TSR_GRANULE_ELEMENTS;
    if (!saves && random_below(random, 2))
        o->stride = 1 + (int)random_below(random, (uint64_t)o->layer_count);
    uint64_t chunks = 1 + random_below(random, 3 * TSR_STATE_BUFFERS);
    o->state_buffers = (int)random_below(random, TSR_STATE_BUFFERS + 1);
    if (random_below(random, 3))
        o->chunk_elements = (owned + chunks - 1) / chunks * TSR_GRANULE_ELEMENTS;
}

void random_model_make_full(random_model *model)
{
    tsr_plan_options *o = &model->options;
    uint64_t granules = 0;
    bool trains = false;
    for (int u = 0; u < o->layer_count; u++) {
        tsr_unit *unit = &model->unit[u];
        trains |= unit->trainable.segment_count > 0;
        unit->has_norm = unit->trainable.segment_count > 0;
        model->saved_bytes[u] = trains ? MAX_SAVED_BYTES : 0;
        granules += unit->trainable.gradient_count / TSR_GRANULE_ELEMENTS;
    }
    o->chunk_elements = (granules + 2) / 3 * TSR_GRANULE_ELEMENTS;
    o->state_buffers = 2;
}

void random_model_set(random_model *model, int ranks, int replicas, bool train)
{
    model->options.ranks = ranks;
    model->options.replicas = replicas;
    model->options.train = train;
    model->options.stride = train ? model->options.stride : 0;
    if (!train)
        memset(model->saved_bytes, 0, sizeof model->saved_bytes);
    for (int u = 0; u < model->options.unit_count; u++) {
        if (tsr_unit_lay_out(&model->unit[u], ranks) < 0)
            abort();
    }
}

/* A layer's uses of units [first, end); of its backward, what makes values again, and what goes down to unit
 * `lowest`. */
static void make_uses(random_model *model, random_source *random, int layer, int first, int end,
                      int lowest)
{
    tsr_layer_use *forward = model->use[layer][0], *backward = model->use[layer][1];
    tsr_layer_uses *uses = &model->layer[layer];
    *uses = (tsr_layer_uses){forward, backward, 0, 0};
    for (int u = first; u < end; u++)
        forward[uses->forward_count++] = (tsr_layer_use){.unit = (int16_t)u};
    for (int u = first; u < end - 1 && end > lowest && random_below(random, 2); u++)
        backward[uses->backward_count++] = (tsr_layer_use){.unit = (int16_t)u};
    for (int u = end - 1; u >= first && u >= lowest; u--)
        backward[uses->backward_count++] = (tsr_layer_use){(int16_t)u, true};
}

/* Units of up to three layers, or layers of up to three units. */
static void group(random_model *model, random_source *random)
{
    tsr_plan_options *o = &model->options;
    int units = o->layer_count, layer = 0, lowest = 0;
    bool coarse = random_below(random, 2);
    while (model->unit[lowest].trainable.segment_count == 0)
        lowest++;
    for (int u = 0; u < units;) {
        int some = 1 + (int)random_below(random, 3);
        int end = coarse ? u + 1 : u + some < units ? u + some : units;
        /* Of a unit of several layers the lowest ones may have no backward. */
        int idle = u == lowest ? (int)random_below(random, (uint64_t)some) : 0;
        for (int i = 0; i < (coarse ? some : 1); i++)
            make_uses(model, random, layer++, u, end, coarse && i < idle ? end : lowest);
        u = end;
    }
    o->head_unit = units;
    o->layer_count = layer;
    o->layers = model->layer;
}

void random_model_make(random_model *out, random_source *random, const random_limits *limits)
{
    memset(out, 0, sizeof *out);
    tsr_plan_options *o = &out->options;
    o->units = out->unit;
    o->saved_bytes = out->saved_bytes;
    o->layer_count = 1 + (int)random_below(random, (uint64_t)limits->max_layers);
    o->unit_count = o->layer_count + 1 + (int)random_below(random, (uint64_t)limits->max_chunks);
    o->ranks = 1 + (int)random_below(random, (uint64_t)limits->max_ranks);
    o->replicas = 1 + (int)random_below(random, (uint64_t)limits->max_replicas);
    o->slots = 2 + (int)random_below(random, 3);
    o->stages = 1 + (int)random_below(random, 4);
    /* Half of the plans have one home for all. */
    int home = limits->home >= 0         ? limits->home
               : random_below(random, 2) ? (int)random_below(random, TSR_HOME_COUNT)
                                         : -1;
    bool all_train = random_below(random, 2);
    for (int u = 0; u < o->unit_count; u++) {
        out->unit[u].id = u;
        out->unit[u].home =
            (tsr_home)(home >= 0 ? home : (int)random_below(random, TSR_HOME_COUNT));
        make_part(out, random, u, false);
        bool layer = u < o->layer_count;
        if (layer && (all_train || random_below(random, 2) || u == o->layer_count - 1)) {
            make_part(out, random, u, true);
            out->unit[u].has_norm = random_below(random, 2);
        }
    }
    int units = o->layer_count;
    random_model_set(out, o->ranks, o->replicas, true);
    if (limits->groups && random_below(random, 2))
        group(out, random);
    make_offload(out, random);
    random_model_set(out, o->ranks, o->replicas, random_below(random, 8) != 0);
    /* A third keeps all trainable parts, a third some. Likewise those that are wide. */
    uint64_t keeps = random_below(random, 3), wide = random_below(random, 3);
    for (int u = 0; u < units; u++) {
        out->unit[u].keeps_trainable = keeps == 2 || (keeps == 1 && random_below(random, 2));
        out->unit[u].wide = wide == 2 || (wide == 1 && random_below(random, 2));
    }
}

static bool ends(uint8_t kind)
{
    return kind == TSR_PROGRAM_STEP_END || kind == TSR_PROGRAM_EVAL_END;
}

/* Goes on from `state` with n programs done. */
static int walk_on(uint8_t *kinds, int n, int count, const tsr_plan *plan, int state,
                   random_source *random)
{
    int least = n;
    while (n < count) {
        uint8_t possible[TSR_PROGRAM_COUNT];
        int possible_count = 0;
        for (int k = 0; k < TSR_PROGRAM_COUNT; k++)
            if (tsr_plan_program(plan, state, (tsr_program_kind)k))
                possible[possible_count++] = (uint8_t)k;
        kinds[n] = possible[random_below(random, (uint64_t)possible_count)];
        state = tsr_plan_program(plan, state, (tsr_program_kind)kinds[n])->exit;
        n++;
    }
    while (n > least + 1 && !ends(kinds[n - 1]))
        n--;
    return n;
}

int random_walk(uint8_t *kinds, int count, const tsr_plan *plan, random_source *random)
{
    return walk_on(kinds, 0, count, plan, 0, random);
}

int random_walk_through(uint8_t *kinds, int count, const tsr_plan *plan, int program,
                        random_source *random)
{
    /* Breadth first over states, the programs in a random order. */
    int *from = malloc((size_t)plan->state_count * 2 * sizeof *from);
    if (!from)
        abort();
    int *queue = from + plan->state_count, head = 0, tail = 0;
    for (int s = 0; s < plan->state_count; s++)
        from[s] = -1;
    queue[tail++] = 0;
    while (head < tail) {
        int state = queue[head++];
        uint64_t turn = random_below(random, TSR_PROGRAM_COUNT);
        for (uint64_t k = 0; k < TSR_PROGRAM_COUNT; k++) {
            int at =
                plan->program_at[state * TSR_PROGRAM_COUNT + (int)((k + turn) % TSR_PROGRAM_COUNT)];
            int exit = at < 0 ? 0 : plan->program[at].exit;
            if (exit != 0 && from[exit] < 0) {
                from[exit] = at;
                queue[tail++] = exit;
            }
        }
    }
    int way = 0;
    for (int s = plan->program[program].entry; s != 0; s = plan->program[from[s]].entry)
        way++;
    int n = way;
    for (int s = plan->program[program].entry; s != 0; s = plan->program[from[s]].entry)
        kinds[--n] = (uint8_t)plan->program[from[s]].kind;
    free(from);
    kinds[way] = (uint8_t)plan->program[program].kind;
    return walk_on(kinds, way + 1, count, plan, plan->program[program].exit, random);
}

void plain_model_make(random_model *model, int layers, int chunks, int ranks, tsr_home home)
{
    memset(model, 0, sizeof *model);
    model->options = (tsr_plan_options){.units = model->unit,
                                        .saved_bytes = model->saved_bytes,
                                        .unit_count = layers + chunks,
                                        .layer_count = layers,
                                        .ranks = ranks,
                                        .train = true};
    for (int u = 0; u < layers + chunks; u++) {
        tsr_unit *unit = &model->unit[u];
        tsr_segment *frozen = model->segment[u][0], *trainable = model->segment[u][1];
        *frozen =
            (tsr_segment){.name = "w", .dtype = TSR_U8, .granule_bytes = 512, .granule_count = 6};
        *trainable = (tsr_segment){.name = "a",
                                   .dtype = TSR_F32,
                                   .granule_bytes = 4 * TSR_GRANULE_ELEMENTS,
                                   .granule_count = 6};
        *unit = (tsr_unit){.id = u,
                           .home = home,
                           .has_norm = u < layers,
                           .frozen = {.segment = frozen, .segment_count = 1},
                           .trainable = {.segment = trainable, .segment_count = u < layers}};
        if (tsr_unit_lay_out(unit, ranks ? ranks : 1) < 0)
            abort();
    }
}
