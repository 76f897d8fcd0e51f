/*
 * Forward and backward of hundreds of random blocks, in fp32, against the same blocks in double precision: what they
 * compute, and the gradient of their input, of A, B and m against differences of it, to 1e-4 of a tensor's largest
 * element. Experts in every way of routing, with a capacity and an auxiliary loss. With adapters or without, LoRA and DoRA, dropout, biases, documents, windows; in tiles of
 * rows or whole. Whatever is kept for the backward, and in however many units the block is, with the same bits.
 */
#include "model/layer.h"
#include "model/random_block.h"
#include "model/reference_block.h"

#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_EXPERTS = 12, BLOCKS = 300, TOKENS = 7, PROBES = 3, MOST = 4096, KEEPS = 6 };

#define GRADIENTS (1 << 17) /* of a block, all together */
#define TOLERANCE 1e-4      /* of the largest element; measured: 6.4e-5 */
#define BEFORE_DELTA_RULE                                                                          \
    4e-4 /* of blocks with one, which divides queries and keys by their norms; measured: 2.4e-4 */
#define NEAR_ZERO                                                                                  \
    0.05 /* gradients are some 10; where they are 0, as of q and k over one token, rounding is left */
#define DIFFERENCE 1e-5
#define THETA      100.0
#define EPOCH      3

static const int64_t rows_of_tiles[] = {0, 3, 2, 5, 1, 6, 4};

/* A tensor in both precisions, with its gradient. */
typedef struct {
    double *data, *gradient; /* gradient: by differences, where it was probed */
    float *values, *computed;
    int64_t *sums; /* what tiles add the gradient up in */
    uint64_t count;
} tensor;

typedef struct {
    tsr_block block;
    tsr_layer_program program;
    tsr_matrix_traits traits[TSR_BLOCK_WEIGHTS];
    tensor w[TSR_BLOCK_MATRICES], bias[TSR_BLOCK_MATRICES], vector[TSR_BLOCK_VECTORS];
    tensor a[TSR_BLOCK_MATRICES], b[TSR_BLOCK_MATRICES], m[TSR_BLOCK_MATRICES];
    tensor experts[TSR_BLOCK_STACKS], expert_bias[TSR_BLOCK_STACKS];
    tensor expert_a[TSR_BLOCK_STACKS], expert_b[TSR_BLOCK_STACKS];
    tensor aux; /* [MOST_EXPERTS], of the loss */
    double capacity_factor;
    tensor x, weight; /* of the loss: sum of weight out */
    double *n[TSR_BLOCK_MATRICES];
    float *g32[TSR_BLOCK_MATRICES], *n32[TSR_BLOCK_MATRICES];
    uint8_t *mask[TSR_BLOCK_MATRICES];
    tsr_dropout dropout[TSR_BLOCK_MATRICES];
    double kept;
    bool drops;
    uint8_t part[TSR_BLOCK_NODES];
    uint64_t seed, drawn;
    int32_t positions[TOKENS], cu_seqlens[3];
    int64_t samples[TOKENS];
    float cosine[TOKENS * 32], sine[TOKENS * 32];
    /* Of the pass. */
    tsr_device *device;
    tsr_stream *stream;
    void *kept_buffer[TSR_BLOCK_VALUES];
    char *scratch;
    float *carried_x, *carried_z, *dx, *spare[6];
} rig;

static double uniform(rig *r)
{
    return (double)(tsr_mix(tsr_mix(r->seed) ^ ++r->drawn) >> 11) * 0x1p-52 - 1;
}

static void make(rig *r, tensor *t, uint64_t count, double centre, double spread)
{
    *t = (tensor){.count = count,
                  .data = malloc((count + 1) * sizeof(double)),
                  .gradient = calloc(count + 1, sizeof(double)),
                  .values = malloc((count + 1) * sizeof(float)),
                  .computed = calloc(count + 1, sizeof(float)),
                  .sums = calloc(count + 1, sizeof(int64_t))};
    assert_true(t->data && t->gradient && t->values && t->computed && t->sums);
    for (uint64_t i = 0; i < count; i++) {
        t->values[i] = (float)(centre + spread * uniform(r));
        t->data[i] = (double)t->values[i];
    }
}

static void drop(tensor *t)
{
    free(t->data);
    free(t->gradient);
    free(t->values);
    free(t->computed);
    free(t->sums);
}

/* ---- a block with weights ---- */

static void make_linear(rig *r, int i)
{
    const tsr_matrix *m = &r->block.matrix[i];
    uint64_t rank = r->traits[i].r;
    make(r, &r->w[i], m->out * m->in, 0, 1.7 / sqrt((double)m->in));
    make(r, &r->bias[i], m->bias ? m->out : 0, 0, 0.5);
    make(r, &r->a[i], rank * m->in, 0, 1.5 / sqrt((double)m->in));
    make(r, &r->b[i], m->out * rank, 0, 0.7 / sqrt((double)(rank + 1)));
    make(r, &r->m[i], r->traits[i].dora ? m->out : 0, 1, 0.4);
    r->n[i] = malloc((m->out + 1) * sizeof(double));
    r->n32[i] = malloc((m->out + 1) * sizeof(float));
    r->g32[i] = malloc((m->out + 1) * sizeof(float));
    r->mask[i] = malloc((uint64_t)TOKENS * m->in + 1);
    assert_true(r->n[i] && r->n32[i] && r->g32[i] && r->mask[i]);
    for (uint64_t j = 0; j < r->m[i].count; j++) {
        r->n32[i][j] = (float)(1 + 0.4 * uniform(r));
        r->n[i][j] = (double)r->n32[i][j];
        r->g32[i][j] = r->m[i].values[j] / r->n32[i][j];
    }
    r->dropout[i] = tsr_dropout_make(r->drops ? 0.3 : 0, r->seed, EPOCH, (uint64_t)i);
    for (int t = 0; t < TOKENS && r->drops; t++)
        tsr_dropout_mask_row(r->mask[i] + (uint64_t)t * m->in, m->in, &r->dropout[i], 5,
                             (uint32_t)r->positions[t]);
    if (!r->drops)
        memset(r->mask[i], 1, (uint64_t)TOKENS * m->in);
}

static void make_stack(rig *r, int i)
{
    const tsr_stack *s = &r->block.stack[i];
    uint64_t rank = r->traits[tsr_stack_weight(i)].r;
    assert_true(s->experts <= MOST_EXPERTS);
    make(r, &r->experts[i], s->experts * s->out * s->in, 0, 1.7 / sqrt((double)s->in));
    make(r, &r->expert_bias[i], s->bias ? s->experts * s->out : 0, 0, 0.5);
    make(r, &r->expert_a[i], s->experts * rank * s->in, 0, 1.5 / sqrt((double)s->in));
    make(r, &r->expert_b[i], s->experts * s->out * rank, 0, 0.7 / sqrt((double)(rank + 1)));
}

/* A router's matrix is centred. */
static void make_vector(rig *r, int i)
{
    const tsr_vector *v = &r->block.vector[i];
    if (v->rows)
        make(r, &r->vector[i], v->rows * v->count, 0, 2 / sqrt((double)v->count));
    else
        make(r, &r->vector[i], v->count, 1, 0.4);
}

/* Two documents. */
static void make_rig(rig *r, uint64_t seed, int way)
{
    memset(r, 0, sizeof *r);
    r->seed = seed;
    r->drops = way & 1;
    r->kept = 1 - round(0.3 * 65536) / 65536;
    random_block(&r->block, seed);
    random_traits(r->traits, &r->block, seed, r->drops);
    int first = 1 + (int)(seed % (TOKENS - 1));
    for (int t = 0; t < TOKENS; t++) {
        r->positions[t] = t < first ? t : t - first;
        r->samples[t] = 5;
    }
    r->cu_seqlens[1] = first;
    r->cu_seqlens[2] = TOKENS;
    for (int i = 0; i < r->block.matrix_count; i++)
        make_linear(r, i);
    for (int i = 0; i < r->block.stack_count; i++)
        make_stack(r, i);
    for (int i = 0; i < r->block.vector_count; i++)
        make_vector(r, i);
    make(r, &r->aux, MOST_EXPERTS, 0, r->block.stack_count && seed % 2 ? 2 : 0);
    r->capacity_factor = seed % 3 ? 0 : 0.75;
    make(r, &r->x, TOKENS * r->block.width, 0, 1);
    make(r, &r->weight, TOKENS * r->block.width, 0, 1);
}

/* Whether no node behind node `at` reads the result of a linear before it. */
static bool can_be_cut(const tsr_block *b, int at)
{
    for (int i = at; i < b->node_count; i++)
        for (int port = 0; port < TSR_NODE_PORTS; port++) {
            int16_t in = b->node[i].in[port];
            if (in != TSR_NONE && b->value[in].matrix != TSR_NONE && b->value[in].node < at)
                return false;
        }
    return true;
}

/* Units of consecutive nodes, at random; or one. */
static void cut(rig *r, bool whole, uint64_t seed)
{
    for (int i = 1; i < r->block.node_count; i++) {
        bool begins = !whole && can_be_cut(&r->block, i) && tsr_mix(seed + (uint64_t)i) % 2;
        r->part[i] = (uint8_t)(r->part[i - 1] + begins);
    }
}

static void set_kept(rig *r, int way, tsr_keep keep)
{
    tsr_layer_program_make(&r->program,
                           &(tsr_layer_program_options){.block = &r->block,
                                                        .traits = r->traits,
                                                        .trains = true,
                                                        .below = !(way & 2),
                                                        .tile_rows = rows_of_tiles[r->seed % 7],
                                                        .part = r->part,
                                                        .keep = keep});
}

static void free_rig(rig *r)
{
    for (int i = 0; i < r->block.matrix_count; i++) {
        tensor *all[] = {&r->w[i], &r->bias[i], &r->a[i], &r->b[i], &r->m[i]};
        for (int j = 0; j < 5; j++)
            drop(all[j]);
        free(r->n[i]);
        free(r->n32[i]);
        free(r->g32[i]);
        free(r->mask[i]);
    }
    for (int i = 0; i < r->block.stack_count; i++) {
        tensor *all[] = {&r->experts[i], &r->expert_bias[i], &r->expert_a[i], &r->expert_b[i]};
        for (int j = 0; j < 4; j++)
            drop(all[j]);
    }
    for (int i = 0; i < r->block.vector_count; i++)
        drop(&r->vector[i]);
    drop(&r->aux);
    drop(&r->x);
    drop(&r->weight);
}

/* ---- in double ---- */

static double loss_of(const rig *r, double *out)
{
    reference_linear linear[TSR_BLOCK_MATRICES];
    reference_expert_linear stack[TSR_BLOCK_STACKS];
    const double *vector[TSR_BLOCK_VECTORS];
    double sum = 0;
    for (int i = 0; i < r->block.matrix_count; i++) {
        const tsr_matrix_traits *t = &r->traits[i];
        linear[i] = (reference_linear){.w = r->w[i].data,
                                       .bias = r->bias[i].data,
                                       .a = r->a[i].data,
                                       .b = r->b[i].data,
                                       .m = t->dora ? r->m[i].data : NULL,
                                       .n = r->n[i],
                                       .mask = r->drops ? r->mask[i] : NULL,
                                       .scale = 0.75,
                                       .kept = r->kept,
                                       .r = t->r};
    }
    for (int i = 0; i < r->block.stack_count; i++)
        stack[i] = (reference_expert_linear){.w = r->experts[i].data,
                                             .bias = r->block.stack[i].bias ? r->expert_bias[i].data
                                                                            : NULL,
                                             .a = r->expert_a[i].data,
                                             .b = r->expert_b[i].data,
                                             .scale = 0.75,
                                             .r = (int)r->traits[tsr_stack_weight(i)].r,
                                             .out = (int)r->block.stack[i].out,
                                             .in = (int)r->block.stack[i].in};
    for (int i = 0; i < r->block.vector_count; i++)
        vector[i] = r->vector[i].data;
    reference_block_run(out, &(reference_block){.block = &r->block,
                                                .linear = linear,
                                                .vector = vector,
                                                .stack = stack,
                                                .capacity_factor = r->capacity_factor,
                                                .tile_rows = (int)rows_of_tiles[r->seed % 7],
                                                .aux = r->aux.data,
                                                .aux_sum = &sum,
                                                .x = r->x.data,
                                                .positions = r->positions,
                                                .theta = THETA,
                                                .tokens = TOKENS});
    for (uint64_t i = 0; i < r->weight.count; i++)
        sum += r->weight.data[i] * out[i];
    return sum;
}

/* The derivative by one element, by central differences. */
static double derivative(const rig *r, double *element)
{
    static double out[MOST];
    double before = *element, plus, minus;
    *element = before + DIFFERENCE;
    plus = loss_of(r, out);
    *element = before - DIFFERENCE;
    minus = loss_of(r, out);
    *element = before;
    return (plus - minus) / (2 * DIFFERENCE);
}

/* ---- in fp32 ---- */

static void *memory(uint64_t bytes)
{
    uint64_t rounded = (bytes + 511) / 256 * 256;
    void *out = aligned_alloc(256, rounded);
    assert_non_null(out);
    memset(out, 0x7f, rounded); /* what nobody wrote is no number */
    return out;
}

static tsr_layer_memory take_memory(rig *r)
{
    const tsr_layer_program_sizes sizes = {
        tsr_kernels_cpu(),
        {.tokens = TOKENS, .documents = 2, .longest = TOKENS, .dtype = TSR_F32, .train = true},
        TSR_F32};
    if (tsr_layer_program_place(&r->program, &sizes) < 0)
        fail_msg("%s", tsr_last_error());
    uint64_t row = TOKENS * r->block.width * sizeof(float);
    for (int i = 0; i < r->program.kept_count; i++)
        r->kept_buffer[i] =
            memory(tsr_value_bytes(&r->program, r->program.kept_buffer[i], TOKENS, TSR_F32));
    r->scratch = memory(r->program.scratch_bytes);
    r->carried_x = memory(row);
    r->carried_z = memory(row);
    r->dx = memory(row);
    for (int i = 0; i < 6; i++)
        r->spare[i] = memory(MOST * sizeof(float));
    return (tsr_layer_memory){r->kept_buffer, r->scratch, r->carried_x, r->carried_z, r->dx};
}

static void free_memory(rig *r)
{
    void *all[] = {r->scratch, r->carried_x, r->carried_z, r->dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int i = 0; i < 6; i++)
        free(r->spare[i]);
    for (int i = 0; i < r->program.kept_count; i++)
        free(r->kept_buffer[i]);
}

/* Where a layer puts a gradient; NULL: it has none. */
static void *place_of(const rig *r, const tensor *t)
{
    return !t->count ? NULL : r->program.tile_rows ? (void *)t->sums : t->computed;
}

/* The sums of tiles are the gradients. */
static void take_sums(rig *r)
{
    for (int i = 0; i < r->block.matrix_count; i++) {
        tensor *all[] = {&r->a[i], &r->b[i], &r->m[i]};
        for (int j = 0; j < 3; j++)
            tsr_fixed_to_f32(all[j]->computed, all[j]->sums, all[j]->count, TSR_FIXED_SHIFT);
    }
    for (int i = 0; i < r->block.stack_count; i++) {
        tensor *all[] = {&r->expert_a[i], &r->expert_b[i]};
        for (int j = 0; j < 2; j++)
            tsr_fixed_to_f32(all[j]->computed, all[j]->sums, all[j]->count, TSR_FIXED_SHIFT);
    }
}

static void resolve(tsr_layer *layer, tsr_layer_gradients *gradients, rig *r)
{
    layer->program = &r->program;
    for (int i = 0; i < r->block.matrix_count; i++) {
        const tsr_matrix *m = &r->block.matrix[i];
        bool dora = r->traits[i].dora;
        layer->linear[i] = (tsr_linear){.out = m->out,
                                        .in = m->in,
                                        .weight = {.data = r->w[i].values, .dtype = TSR_F32},
                                        .bias = {m->bias ? r->bias[i].values : NULL, TSR_F32},
                                        .r = r->traits[i].r,
                                        .scale = 0.75,
                                        .a = r->a[i].values,
                                        .b = r->b[i].values,
                                        .g = dora ? r->g32[i] : NULL,
                                        .n = dora ? r->n32[i] : NULL,
                                        .drops = r->drops,
                                        .dropout = r->dropout[i]};
        gradients[i] = (tsr_layer_gradients){place_of(r, &r->a[i]), place_of(r, &r->b[i]),
                                             place_of(r, &r->m[i])};
    }
    for (int i = 0; i < r->block.stack_count; i++) {
        uint64_t rank = r->traits[tsr_stack_weight(i)].r;
        bool bias = r->block.stack[i].bias;
        layer->stack[i] =
            (tsr_expert_stack){.plain = {r->experts[i].values, TSR_F32},
                               .bias = {bias ? r->expert_bias[i].values : NULL, TSR_F32},
                               .r = rank,
                               .scale = 0.75,
                               .a = r->expert_a[i].values,
                               .b = r->expert_b[i].values};
        gradients[tsr_stack_weight(i)] = (tsr_layer_gradients){.a = place_of(r, &r->expert_a[i]),
                                                               .b = place_of(r, &r->expert_b[i])};
    }
    for (int i = 0; i < r->block.vector_count; i++)
        layer->vector[i] = (tsr_frozen){r->vector[i].values, TSR_F32};
}

static void fill_tables(rig *r)
{
    const tsr_rope_scaling scaling = {.type = TSR_ROPE_DEFAULT, .theta = THETA};
    for (int i = 0; i < r->block.node_count; i++) {
        const tsr_node *node = &r->block.node[i];
        int32_t dim = node->kind == &tsr_node_rope     ? node->spec.rope.head_dim
                      : node->kind == &tsr_node_latent ? node->spec.latent.rope_dim
                                                       : 0;
        if (dim)
            assert_int_equal(
                tsr_rope_tables(r->cosine, r->sine, TOKENS, dim, &scaling, TSR_ROPE_TABLE), TSR_OK);
    }
}

/* The run of steps on one unit that begins with step `first`, of `count` in all. */
static tsr_layer_run run_from(const rig *r, bool backward, int first, int count)
{
    tsr_layer_run run = {.first = first, .end = first + 1};
    int part = r->part[tsr_step_at(&r->program, backward, first)->node];
    while (run.end < count && r->part[tsr_step_at(&r->program, backward, run.end)->node] == part)
        run.end++;
    return run;
}

/* Forward, whatever other layers do to the scratch, and backward. out: [TOKENS, width]. */
static void compute(float *out, rig *r)
{
    tsr_layer layer;
    tsr_layer_gradients gradients[TSR_BLOCK_WEIGHTS];
    tsr_layer_memory at = take_memory(r);
    uint64_t all = TOKENS * r->block.width;
    const tsr_linear_context context = {.kernels = tsr_kernels_cpu(),
                                        .stream = r->stream,
                                        .dtype = TSR_F32,
                                        .tokens = TOKENS,
                                        .step_micro = 1,
                                        .weight = r->spare[0],
                                        .low = r->spare[1],
                                        .d_low = r->spare[2],
                                        .dropped = r->spare[3],
                                        .d_dropped = r->spare[4],
                                        .lora = r->spare[5],
                                        .samples = r->samples,
                                        .positions = r->positions};
    float ones[64];
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    const tsr_model_tables tables = {.rope[0] = {r->cosine, r->sine, TOKENS},
                                     .ones = ones,
                                     .capacity_factor = r->capacity_factor};
    const tsr_layer_batch batch = {.tokens = TOKENS,
                                   .positions = r->positions,
                                   .cu_seqlens = r->cu_seqlens,
                                   .documents = 2,
                                   .gradient_limit = tsr_fixed_limit(TSR_FIXED_SHIFT, TOKENS),
                                   .aux = r->seed % 2 ? r->aux.values : NULL};
    float *first = tsr_layer_first(&r->program, &at);
    memcpy(first, r->x.values, all * sizeof *first);
    tsr_layer_input input = {first, NULL, NULL};
    tsr_fp8_rows made8[TSR_BLOCK_MATRICES] = {{0}};
    resolve(&layer, gradients, r);
    layer.made8 = made8;
    fill_tables(r);
    int count = tsr_step_count(&r->program, false);
    for (tsr_layer_run run = {0}; run.end < count;) {
        run = run_from(r, false, run.end, count);
        if (tsr_layer_forward(&context, &tables, &layer, &batch, &at, &input, &run) < 0)
            fail_msg("%s", tsr_last_error());
    }
    assert_int_equal(tsr_stream_synchronize(r->stream), TSR_OK);
    for (uint64_t i = 0; i < all; i++)
        out[i] =
            ((const float *)input.x)[i] +
            (input.z ? (input.g ? input.g[i % r->block.width] : 1) * ((const float *)input.z)[i]
                     : 0);
    memset(r->scratch, 0x7f, r->program.scratch_bytes);
    memset(r->carried_x, 0x7f, all * sizeof(float));
    memset(r->carried_z, 0x7f, all * sizeof(float));
    memcpy(r->dx, r->weight.values, all * sizeof(float));
    count = tsr_step_count(&r->program, true);
    for (tsr_layer_run run = {0}; run.end < count;) {
        run = run_from(r, true, run.end, count);
        if (tsr_layer_backward(&context, &tables, &layer, &batch, &at, gradients, &run) < 0)
            fail_msg("%s", tsr_last_error());
    }
    assert_int_equal(tsr_stream_synchronize(r->stream), TSR_OK);
    memcpy(r->x.computed, r->dx, all * sizeof(float));
    if (r->program.tile_rows)
        take_sums(r);
    free_memory(r);
}

/* ---- both ---- */

static double largest(const float *values, uint64_t count)
{
    double most = 0;
    for (uint64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)values[i]));
    return most;
}

static double worst;     /* of all tensors, of their largest element */
static double tolerance; /* of the block at work */

static void judge(const char *about, const char *what, double difference, double most)
{
    double off = difference / fmax(most, NEAR_ZERO);
    worst = fmax(worst, off);
    if (!(off < tolerance))
        fail_msg("%s: %s is off by %g of its largest element %g", about, what, off, most);
}

/* Some elements of a gradient. */
static void probe(rig *r, tensor *t, const char *about, const char *what)
{
    double most = largest(t->computed, t->count);
    for (int i = 0; i < PROBES && t->count; i++) {
        uint64_t at = tsr_mix(r->seed ^ ++r->drawn) % t->count;
        double wanted = derivative(r, &t->data[at]);
        judge(about, what, fabs(wanted - (double)t->computed[at]), fmax(most, fabs(wanted)));
    }
}

/* All gradients one behind the other; returns how many. */
static uint64_t collect(float *to, const rig *r)
{
    uint64_t count = 0;
    for (int i = -1; i < r->block.matrix_count; i++) {
        const tensor *all[3] = {&r->x};
        int tensors = i < 0 ? 1 : 3;
        if (i >= 0) {
            all[0] = &r->a[i];
            all[1] = &r->b[i];
            all[2] = &r->m[i];
        }
        for (int j = 0; j < tensors; count += all[j++]->count) {
            assert_true(count + all[j]->count <= GRADIENTS);
            memcpy(to + count, all[j]->computed, all[j]->count * sizeof *to);
        }
    }
    for (int i = 0; i < r->block.stack_count; i++) {
        const tensor *all[2] = {&r->expert_a[i], &r->expert_b[i]};
        for (int j = 0; j < 2; count += all[j++]->count) {
            assert_true(count + all[j]->count <= GRADIENTS);
            memcpy(to + count, all[j]->computed, all[j]->count * sizeof *to);
        }
    }
    return count;
}

/* Whatever is kept instead, and however the block is cut, every bit is the same. */
static void check_bits(rig *r, const float *out, int way, int other, const char *about)
{
    tsr_keep keep = random_keep(r->seed + 1000 * (uint64_t)other, other % 4     ? 1
                                                                  : way / 4 % 3 ? 0
                                                                                : 2);
    cut(r, other % 2, r->seed + (uint64_t)other);
    static float again[MOST], before[GRADIENTS], after[GRADIENTS];
    uint64_t count = collect(before, r);
    set_kept(r, way, keep);
    compute(again, r);
    collect(after, r);
    if (memcmp(again, out, r->x.count * sizeof *out) != 0 ||
        memcmp(before, after, count * sizeof *before) != 0)
        fail_msg("%s: other values were kept, or it was cut, and the bits are others", about);
}

static double tolerance_of(const tsr_block *block)
{
    for (int i = 0; i < block->node_count; i++)
        if (block->node[i].kind == &tsr_node_delta_rule)
            return BEFORE_DELTA_RULE;
    return TOLERANCE;
}

static void check(uint64_t seed, int way, tsr_stream *stream)
{
    static rig r;
    static double wanted[MOST];
    static float out[MOST];
    char about[64];
    make_rig(&r, seed, way);
    tolerance = tolerance_of(&r.block);
    set_kept(&r, way, random_keep(seed, way / 4 % 3));
    r.stream = stream;
    snprintf(about, sizeof about, "block %d, way %d", (int)seed, way);
    compute(out, &r);
    for (int other = 0; other < KEEPS; other++)
        check_bits(&r, out, way, other, about);
    loss_of(&r, wanted);
    double most = largest(out, r.x.count);
    for (uint64_t i = 0; i < r.x.count; i++)
        judge(about, "the output", fabs(wanted[i] - (double)out[i]), most);
    for (int i = 0; i < r.block.matrix_count; i++) {
        if (!r.traits[i].r)
            continue;
        probe(&r, &r.a[i], about, "the gradient of A");
        probe(&r, &r.b[i], about, "the gradient of B");
        if (r.traits[i].dora)
            probe(&r, &r.m[i], about, "the gradient of m");
    }
    for (int i = 0; i < r.block.stack_count; i++) {
        probe(&r, &r.expert_a[i], about, "the gradient of the experts' A");
        probe(&r, &r.expert_b[i], about, "the gradient of the experts' B");
    }
    if (!(way & 2))
        probe(&r, &r.x, about, "the gradient of the input");
    free_rig(&r);
}

static void test_blocks(void **state)
{
    (void)state;
    tsr_device *device;
    tsr_stream *stream;
    const tsr_device_options options = {.thread_count = 1, .no_pinning = true};
    assert_int_equal(tsr_device_create_cpu(&device, &options), TSR_OK);
    assert_int_equal(tsr_stream_create(&stream, device, "compute"), TSR_OK);
    for (uint64_t seed = 0; seed < BLOCKS; seed++)
        check(seed, (int)(tsr_mix(seed) % 12), stream);
    print_message("    off by %.2g of a tensor's largest element at most\n", worst);
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
