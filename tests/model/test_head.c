/*
 * test_head.c: the head of a model with made-up weights, without its layers: micro-batches that it takes in spans, as
 * tile_rows says, against the same taken whole, and against micro-batches that have some of these spans alone.
 */
#include "model/arch/decoder.h"
#include "model/model_parts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Spans of 16 tokens, the last one of 11. The chunks of the vocabulary have 80 rows, the last one 40. */
enum {
    TOKENS = 75,
    SPAN = 16,
    SPANS = 5,
    D = 40,
    VOCAB = 200,
    CHUNKS = 3,
    CHUNK = 80,
    R = 8,
    MOST = 64,
    GRADIENTS = CHUNKS * (CHUNK * D + R * D) /* more than the chunks' trainable parts have */
};

/* Of the largest element; in fp32 a matmul of other rows is rounded elsewhere. Measured: 4e-7. */
#define TOLERANCE 3e-6

typedef struct {
    double smoothing, softcap;
    bool evaluates, lora, whole; /* LoRA of the head; all of it is trained */
} head_kind;

static const head_kind kinds[] = {
    {0},
    {.smoothing = 0.1},
    {.softcap = 3},
    {.evaluates = true},
    {.evaluates = true, .smoothing = 0.1},
    {.lora = true},
    {.lora = true, .evaluates = true},
    {.whole = true},
};

static tsr_device *device;
static tsr_stream *stream;
static float x[TOKENS * D], z[TOKENS * D], norm[D], w[VOCAB * D], low_a[R * D], low_b[VOCAB * R];
static int32_t target[TOKENS];

static float noise(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(*seed >> 40) / (float)(1 << 23) - 1;
}

static int setup(void **state)
{
    uint64_t seed = 7;
    float *const all[] = {x, z, norm, w, low_a, low_b};
    const size_t count[] = {TOKENS * D, TOKENS * D, D, VOCAB * D, R * D, VOCAB * R};
    (void)state;
    for (int i = 0; i < 6; i++)
        for (size_t j = 0; j < count[i]; j++)
            all[i][j] = noise(&seed);
    for (int t = 0; t < TOKENS; t++)
        target[t] = (t * 67 + 5) % VOCAB;
    return tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 2}) ||
           tsr_stream_create(&stream, device, "test");
}

static int teardown(void **state)
{
    (void)state;
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
    return 0;
}

/* ---- a model ---- */

typedef struct {
    const head_kind *kind;
    tsr_block block;
    tsr_layout layout;
    tsr_layout_linear linear[TSR_BLOCK_MATRICES];
    tsr_layout_segment frozen[CHUNKS], trainable[CHUNKS][2];
    tsr_layout_unit layer_and_chunks[1 + CHUNKS];
    tsr_segment segment[CHUNKS][2];
    tsr_unit unit[1 + CHUNKS];
    tsr_layer_programs *programs;
    tsr_model *model;
    void *taken[MOST];
    int taken_count;
    int64_t loss, correct, entropy;
    int32_t overflow;
    int64_t gradient[CHUNKS]
                    [GRADIENTS / CHUNKS]; /* of micro-batches that are not divided, floats */
} rig;

static tsr_status take(void *user, void **out, const char *name, const char *why, tsr_array array)
{
    rig *r = user;
    uint64_t bytes = tsr_array_bytes(array);
    (void)name, (void)why;
    assert_true(r->taken_count < MOST);
    *out = bytes ? malloc(bytes) : NULL;
    if (bytes)
        memset(*out, 0x7f, bytes); /* what nobody wrote is no number */
    r->taken[r->taken_count++] = *out;
    return TSR_OK;
}

static void lay_out(rig *r)
{
    tsr_layout *layout = &r->layout;
    *layout = (tsr_layout){.unit = r->layer_and_chunks,
                           .layer_count = 1,
                           .chunk_count = CHUNKS,
                           .unit_count = 1 + CHUNKS,
                           .largest_r = R,
                           .head_trained = r->kind->lora || r->kind->whole,
                           .head_whole = r->kind->whole,
                           .head_lora = {.r = r->kind->lora ? R : 0, .scale = 0.5}};
    layout->config = (tsr_model_config){.hidden_size = D,
                                        .intermediate_size = 48,
                                        .head_count = 2,
                                        .kv_head_count = 1,
                                        .head_dim = 16,
                                        .vocab_size = VOCAB,
                                        .rms_norm_eps = 1e-6,
                                        .logits_softcap = r->kind->softcap};
    assert_int_equal(tsr_decoder_block(&r->block, &layout->config, 0), TSR_OK);
    r->layer_and_chunks[0] = (tsr_layout_unit){.block = &r->block, .linear = r->linear};
    for (int i = 0; i < r->block.matrix_count; i++)
        r->linear[i] =
            (tsr_layout_linear){.in = r->block.matrix[i].in, .out = r->block.matrix[i].out};
    for (int c = 0; c < CHUNKS; c++) {
        int count = c + 1 < CHUNKS ? CHUNK : VOCAB - c * CHUNK,
            parts = r->kind->lora && c == 0 ? 2 : 1;
        r->frozen[c] = (tsr_layout_segment){.dtype = TSR_F32};
        for (int i = 0; i < 2; i++)
            r->trainable[c][i] = (tsr_layout_segment){
                .dtype = TSR_F32, .unit = 1 + c, .at = i, .element_count = CHUNK * D};
        r->layer_and_chunks[1 + c] = (tsr_layout_unit){.frozen = &r->frozen[c],
                                                       .trainable = r->trainable[c],
                                                       .frozen_count = 1,
                                                       .trainable_count = parts,
                                                       .first_row = (uint64_t)(c * CHUNK),
                                                       .row_count = (uint64_t)count};
        r->unit[1 + c].trainable =
            (tsr_unit_part){.segment = r->segment[c], .segment_count = parts};
        if (parts == 2) /* A, then B */
            r->segment[c][1] =
                (tsr_segment){.gathered_offset = sizeof low_a, .gradient_offset = R * D};
    }
}

static rig *make(const head_kind *kind, int64_t tile_rows, int64_t tokens)
{
    static const tsr_keep keep = TSR_KEEP_ALL;
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->kind = kind;
    lay_out(r);
    tsr_model_options options = {.layout = &r->layout,
                                 .units = r->unit,
                                 .ranks = 1,
                                 .kernels = tsr_kernels_cpu(),
                                 .dtype = TSR_F32,
                                 .bounds = {tokens, 1, tokens, tokens},
                                 .step_micro = 1,
                                 .keep = &keep,
                                 .tile_rows = tile_rows,
                                 .train = !kind->evaluates,
                                 .label_smoothing = kind->smoothing,
                                 .contributions = SPANS};
    for (int c = 0; c < CHUNKS; c++)
        r->unit[1 + c].wide = tsr_model_tiles(&options);
    const tsr_model_sums sums = {.loss = &r->loss,
                                 .loss_overflow = &r->overflow,
                                 .correct = &r->correct,
                                 .entropy = &r->entropy};
    assert_int_equal(tsr_model_programs(&r->programs, &options), TSR_OK);
    options.programs = r->programs;
    assert_int_equal(tsr_model_create(&r->model, &options), TSR_OK);
    assert_int_equal(tsr_model_walk(r->model, &options, take, take, r), TSR_OK);
    assert_int_equal(tsr_model_walk_scratch(r->model, &options, take, take, r), TSR_OK);
    assert_int_equal(tsr_model_start(r->model, stream, stream, &(tsr_host_tables){{0}, {0}}, sums),
                     TSR_OK);
    return r;
}

static void drop(rig *r)
{
    assert_int_equal(tsr_stream_synchronize(stream), TSR_OK); /* the release too */
    tsr_model_destroy(r->model);
    tsr_layer_programs_free(r->programs);
    for (int i = 0; i < r->taken_count; i++)
        free(r->taken[i]);
    free(r);
}

/* ---- a micro-batch ---- */

typedef struct {
    int tokens, labels;
    int32_t token[TOKENS], label_row[TOKENS], label[TOKENS]; /* which of the made-up tokens */
} micro_batch;

/* Of the spans in `spans`, a bit each; labels are the tokens of those in `labelled`, every `step`-th. */
static micro_batch batch_of(unsigned spans, unsigned labelled, int step)
{
    micro_batch m = {0};
    for (int t = 0; t < TOKENS; t++) {
        if (!(spans >> t / SPAN & 1))
            continue;
        if (labelled >> t / SPAN & 1 && t % step == 0) {
            m.label_row[m.labels] = m.tokens;
            m.label[m.labels++] = target[t];
        }
        m.token[m.tokens++] = t;
    }
    return m;
}

typedef struct {
    double nll[TOKENS];
    float dx[TOKENS * D];
    int64_t gradient[CHUNKS][GRADIENTS / CHUNKS]; /* in fixed point */
    int64_t loss, correct, entropy;
} outcome;

static tsr_unit_view view_of(const rig *r, int chunk, float parts[2 * R * D + CHUNK * R])
{
    const float *rows = w + chunk * CHUNK * D, *b = low_b + chunk * CHUNK * R;
    int count = r->layer_and_chunks[1 + chunk].row_count;
    uint64_t a = chunk == 0 ? R * D : 0;
    memcpy(parts, low_a, a * sizeof *parts);
    memcpy(parts + a, b, (size_t)(count * R) * sizeof *parts);
    return (tsr_unit_view){1 + chunk, r->kind->whole ? NULL : (const char *)rows,
                           r->kind->whole  ? (const char *)rows
                           : r->kind->lora ? (const char *)parts
                                           : NULL};
}

static void run_head(rig *r, const tsr_layer *layer, bool train)
{
    float parts[2 * R * D + CHUNK * R];
    assert_int_equal(tsr_model_head_begin(r->model, layer), TSR_OK);
    for (int c = 0; c < CHUNKS; c++) {
        const tsr_unit_view view = view_of(r, c, parts);
        assert_int_equal(tsr_model_head_chunk(r->model, 1 + c, &view), TSR_OK);
        assert_int_equal(tsr_stream_synchronize(stream), TSR_OK);
    }
    for (int c = CHUNKS - 1; c >= 0 && train && r->layout.head_trained; c--) {
        const tsr_unit_view view = view_of(r, c, parts);
        assert_int_equal(tsr_model_head_weight(r->model, 1 + c, &view, r->gradient[c]), TSR_OK);
        assert_int_equal(tsr_stream_synchronize(stream), TSR_OK);
    }
    if (train)
        assert_int_equal(tsr_model_head_backward(r->model, layer), TSR_OK);
    assert_int_equal(tsr_stream_synchronize(stream), TSR_OK);
}

static outcome compute(rig *r, const micro_batch *m)
{
    static float left_x[TOKENS * D], left_z[TOKENS * D];
    int32_t zero[TOKENS] = {0}, position[TOKENS], cu[2] = {0, m->tokens};
    const int64_t sample = 0;
    const tsr_layer layer = {.final_norm = {norm, TSR_F32}};
    bool train = !r->kind->evaluates;
    outcome out = {0};
    for (int i = 0; i < m->tokens; i++) {
        position[i] = i;
        memcpy(left_x + i * D, x + m->token[i] * D, D * sizeof *x);
        memcpy(left_z + i * D, z + m->token[i] * D, D * sizeof *z);
    }
    const tsr_model_batch batch = {.tokens = m->tokens,
                                   .documents = 1,
                                   .label_rows = m->labels,
                                   .ids = zero,
                                   .positions = position,
                                   .cu_seqlens = cu,
                                   .label_row = m->label_row,
                                   .label = m->label,
                                   .sample = &sample,
                                   .first_position = zero,
                                   .label_tokens = 37,
                                   .train = train};
    r->loss = r->correct = r->entropy = 0;
    assert_int_equal(tsr_model_stage(r->model, &batch), TSR_OK);
    r->model->carried = (tsr_layer_input){left_x, left_z, NULL};
    run_head(r, &layer, train);
    memcpy(out.nll, tsr_model_nll(r->model), (size_t)m->labels * sizeof *out.nll);
    if (train)
        memcpy(out.dx, r->model->activations.dx, (size_t)(m->tokens * D) * sizeof *out.dx);
    for (int c = 0; c < CHUNKS; c++)
        if (r->unit[1 + c].wide)
            memcpy(out.gradient[c], r->gradient[c], sizeof out.gradient[c]);
        else
            assert_true(tsr_fixed_from_f32(
                out.gradient[c], (const float *)(const void *)r->gradient[c], GRADIENTS / CHUNKS,
                TSR_FIXED_SHIFT, tsr_fixed_limit(TSR_FIXED_SHIFT, 1)));
    out.loss = r->loss;
    out.correct = r->correct;
    out.entropy = r->entropy;
    assert_int_equal(r->overflow, 0);
    assert_int_equal(tsr_model_release(r->model), TSR_OK);
    return out;
}

/* Of the first micro-batch, and again when what lasts is known. */
static outcome run(const head_kind *kind, int64_t tile_rows, const micro_batch *m)
{
    rig *r = make(kind, tile_rows, m->tokens);
    outcome first = compute(r, m), again = compute(r, m);
    assert_memory_equal(&first, &again, sizeof first);
    drop(r);
    return first;
}

/* ---- tests ---- */

static void assert_near(const char *what, const float *a, const float *b, size_t count)
{
    float most = 0, apart = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmaxf(most, fabsf(b[i]));
        apart = fmaxf(apart, fabsf(a[i] - b[i]));
    }
    if (!(apart <= TOLERANCE * most))
        fail_msg("%s: %g apart, of %g", what, apart, most);
}

/* The loss of spans that are rounded one by one. */
static int64_t loss_of(const micro_batch *m, const double *nll)
{
    double sum[SPANS] = {0};
    int64_t loss = 0;
    for (int i = 0; i < m->labels; i++)
        sum[m->label_row[i] / SPAN] += nll[i];
    for (int i = 0; i < SPANS; i++)
        loss += llrint(ldexp(sum[i], TSR_LOSS_SHIFT));
    return loss;
}

/* All tokens have labels; some of every span; none of the first, of one in between, of the last. */
static void test_near_whole(void **state)
{
    static const struct {
        unsigned labelled;
        int step;
    } labels[] = {{31, 1}, {31, 3}, {30, 2}, {23, 1}, {15, 2}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
            micro_batch m = batch_of(31, labels[i].labelled, labels[i].step);
            outcome whole = run(&kinds[k], 0, &m), spans = run(&kinds[k], SPAN, &m);
            assert_true(spans.loss == loss_of(&m, spans.nll));
            assert_int_equal(spans.correct, whole.correct);
            assert_true(llabs(spans.entropy - whole.entropy) <
                        (INT64_C(1) << TSR_LOSS_SHIFT) * TOLERANCE * m.labels);
            for (int j = 0; j < m.labels; j++)
                assert_true(fabs(spans.nll[j] - whole.nll[j]) <= TOLERANCE * (1 + whole.nll[j]));
            assert_near("dx", spans.dx, whole.dx, TOKENS * D);
            static float divided[GRADIENTS], undivided[GRADIENTS];
            tsr_fixed_to_f32(divided, spans.gradient[0], GRADIENTS, TSR_FIXED_SHIFT);
            tsr_fixed_to_f32(undivided, whole.gradient[0], GRADIENTS, TSR_FIXED_SHIFT);
            assert_near("the head's gradient", divided, undivided, GRADIENTS);
        }
}

/* Labels of one span alone are one matmul either way. */
static void test_one_span(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int span = 0; span < SPANS; span++) {
            micro_batch m = batch_of(31, 1u << span, 2);
            outcome whole = run(&kinds[k], 0, &m), spans = run(&kinds[k], SPAN, &m);
            assert_memory_equal(&spans, &whole, sizeof whole);
            whole = run(&kinds[k], TOKENS, &m); /* no longer than a tile */
            assert_memory_equal(&spans, &whole, sizeof whole);
        }
}

/* Whoever has a span computes the same for it: the bits of losses and gradients are those of the whole micro-batch, and
 * what is summed adds up. */
static void test_whoever_has_a_span(void **state)
{
    static const unsigned part[] = {2 | 8, 1 | 4 | 16}; /* the short one is the last of its owner */
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        micro_batch all = batch_of(31, 31, 2);
        outcome want = run(&kinds[k], SPAN, &all), sum = {0};
        for (int p = 0; p < 2; p++) {
            micro_batch m = batch_of(part[p], 31, 2);
            outcome got = run(&kinds[k], SPAN, &m);
            for (int i = 0; i < m.tokens; i++)
                assert_memory_equal(got.dx + i * D, want.dx + m.token[i] * D, D * sizeof *got.dx);
            for (int i = 0, j = 0; i < m.labels; i++, j++) {
                while (all.token[all.label_row[j]] != m.token[m.label_row[i]])
                    j++;
                assert_true(got.nll[i] == want.nll[j]);
            }
            sum.loss += got.loss;
            sum.correct += got.correct;
            sum.entropy += got.entropy;
            tsr_fixed_add(sum.gradient[0], got.gradient[0], GRADIENTS);
        }
        assert_memory_equal(sum.gradient, want.gradient, sizeof want.gradient);
        assert_true(sum.loss == want.loss && sum.correct == want.correct &&
                    sum.entropy == want.entropy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_near_whole),
        cmocka_unit_test(test_one_span),
        cmocka_unit_test(test_whoever_has_a_span),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
