/*
 * The counting of work, against the floors of the measured runs in bench/results, which were computed
 * by another implementation of the same formulas, and against sums by hand.
 */
#include "llama_layer.h"
#include "model/expert_parts.h"
#include "support/llama.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define RESULTS TSR_SOURCE_DIR "/bench/results/"
/* Of a floor: q, k and v of a lowest layer that recomputes in full are decoded once more than the older
 * implementation said. */
#define MOST_ERROR 2e-4

typedef struct {
    tsr_work_rates rates;
    double seconds;
    tsr_work_amount least, here;
} sum;

static void add(void *user, const tsr_work_op *op)
{
    sum *s = user;
    s->seconds += tsr_work_seconds(&s->rates, op);
    s->least.flops += op->least.flops;
    s->least.bytes += op->least.bytes;
    s->here.flops += op->here.flops;
    s->here.bytes += op->here.bytes;
}

static const struct {
    const char *name;
    tsr_model_config config;
} shapes[] = {{"llama3-8b",
               {.hidden_size = 4096,
                .intermediate_size = 14336,
                .head_count = 32,
                .kv_head_count = 8,
                .head_dim = 128,
                .vocab_size = 128256}},
              {"llama2-7b",
               {.hidden_size = 4096,
                .intermediate_size = 11008,
                .head_count = 32,
                .kv_head_count = 32,
                .head_dim = 128,
                .vocab_size = 32000}},
              {"llama3-70b",
               {.hidden_size = 8192,
                .intermediate_size = 28672,
                .head_count = 64,
                .kv_head_count = 8,
                .head_dim = 128,
                .vocab_size = 128256}}};

/* A layer of which only what the test sets has a size. */
static void make(llama_layer *l, const tsr_model_config *config, tsr_work_linear like,
                 double element, bool fp8)
{
    assert_int_equal(llama_layer_make(l, config, 0, like, element, fp8), TSR_OK);
    llama_layer_program(l, false, TSR_KEEP_ALL);
}

static const tsr_model_config nothing; /* of no size */

/* One linear in a layer of no size. */
static void make_one(llama_layer *l, int index, tsr_work_linear one, double element, bool fp8)
{
    make(l, &nothing, (tsr_work_linear){0}, element, fp8);
    l->layer.linear[index] = one;
    llama_layer_program(l, false, TSR_KEEP_ALL);
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static bool is(const json_t *object, const char *key, const char *value)
{
    const char *found = json_string_value(json_object_get(object, key));
    return found && !strcmp(found, value);
}

/* `factored`: counted as all of DoRA's norms were done once, and those of a base without NF4 still are. */
static void add_norms(sum *s, tsr_work_layer layer, bool factored)
{
    for (int i = 0; i < LLAMA_LINEARS; i++)
        layer.linear[i].nf4 = !factored;
    tsr_work_norm(&layer, add, s);
}

/* What the floors were recorded with: passes over the residual stream that are not done: the backward of the first
 * norm of the lowest layer, and, recomputing, the sums that are there. */
static void add_passes(sum *s, const tsr_work_layer *layer, bool first, bool full)
{
    double one = layer->element * layer->tokens * (double)layer->program->block->width;
    tsr_work_op op = {.kind = TSR_WORK_STREAM};
    op.least.bytes = (4 * first + 2 * full) * one;
    add(s, &op);
}

/* What a layer keeps by the name that a file has for it. `selective` was: all but what norms and gated units make. */
static tsr_keep keep_of(const tsr_block *b, const json_t *run)
{
    tsr_keep keep = {{0}};
    if (is(run, "recompute", "full"))
        return keep;
    for (int v = 0; v < b->value_count; v++) {
        int node = b->value[v].node;
        bool light = node != TSR_NONE && v != b->node[node].out[TSR_NORM_SUM] &&
                     b->node[node].kind == &tsr_node_norm;
        light |= node != TSR_NONE && b->node[node].kind == &tsr_node_glu;
        if (!light || !is(run, "recompute", "selective"))
            tsr_keep_add(&keep, v);
    }
    return keep;
}

static void add_layers(sum *s, llama_layer *l, int layers, const json_t *run, bool factored)
{
    for (int i = 0; i < layers; i++) {
        llama_layer_program(l, i == 0, keep_of(&l->block, run));
        l->layer.last = i == layers - 1;
        add_norms(s, l->layer, factored);
        tsr_work_forward(&l->layer, add, s);
        tsr_work_backward(&l->layer, add, s);
        add_passes(s, &l->layer, i == 0, is(run, "recompute", "full"));
    }
}

static void add_step(sum *s, const json_t *run, bool factored)
{
    llama_layer l;
    double tokens = number(run, "batch") * number(run, "length"), layers = number(run, "layers");
    double elements = 0;
    int k = 0;
    while (!is(run, "shape", shapes[k].name))
        k++;
    const tsr_model_config *config = &shapes[k].config;
    make(&l, config,
         (tsr_work_linear){.r = number(run, "r"), .nf4 = true, .dora = is(run, "adapter", "dora")},
         2, false);
    for (int i = 0; i < LLAMA_LINEARS; i++) {
        const tsr_work_linear *x = &l.layer.linear[i];
        elements += layers * (x->r * (x->in + x->out) + (x->dora ? x->out : 0));
    }
    l.layer.tokens = tokens;
    l.layer.pairs = tokens * (number(run, "length") + 1) / 2;
    add_layers(s, &l, (int)layers, run, factored);
    const tsr_work_head head = {tokens, (double)config->hidden_size, (double)config->vocab_size, 2,
                                true};
    tsr_work_chunk(&head, add, s);
    tsr_work_update(elements, 12 * elements, 4, 2, add, s);
}

/* `factored`: its floors were recorded when DoRA's norms were. */
static int check_file(const char *path, bool factored)
{
    json_error_t error;
    json_t *file = json_load_file(path, 0, &error);
    const json_t *runs = json_object_get(file, "runs");
    int checked = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *run = json_object_get(json_array_get(runs, i), "result");
        const json_t *floor = json_object_get(run, "floor");
        if (!floor)
            continue;
        sum s = {
            .rates = {.matmul = 1e12 * number(floor, "gemm_tflop_s"),
                      .copy = 1e9 * number(floor, "copy_gb_s"),
                      .attention_forward = 1e12 * number(floor, "attention_forward_tflop_s"),
                      .attention_backward = 1e12 * number(floor, "attention_backward_tflop_s")}};
        add_step(&s, run, factored);
        double error_of = 1e3 * s.seconds / number(floor, "floor_ms") - 1;
        if (!(fabs(error_of) < MOST_ERROR))
            fail_msg("%s, run %zu: a floor of %.4f ms, not %.4f", path, i, 1e3 * s.seconds,
                     number(floor, "floor_ms"));
        checked++;
    }
    json_decref(file);
    return checked;
}

static void test_measured_floors(void **state)
{
    (void)state;
    assert_int_equal(check_file(RESULTS "h200_one_gpu.json", true), 15);
    assert_int_equal(check_file(RESULTS "h200_offload.json", false), 13);
    assert_int_equal(check_file(RESULTS "h200x2_scale.json", true), 5);
    assert_int_equal(check_file(RESULTS "h200x2_llama2.json", true), 5);
    assert_int_equal(check_file(RESULTS "h200_70b.json", true), 1);
}

/* One linear of 3 x 2, one document of 4 tokens, an adapter of rank 1, by hand; in fp32, where it takes F1 and B1. */
static void test_one_linear(void **state)
{
    (void)state;
    llama_layer l;
    tsr_work_layer *layer = &l.layer;
    sum forward = {.rates = {1, 1, 1, 1}}, backward = forward;
    make_one(&l, LLAMA_DOWN, (tsr_work_linear){.in = 3, .out = 2}, 4, false);
    layer->tokens = 4;
    tsr_work_forward(layer, add, &forward);
    tsr_work_backward(layer, add, &backward);
    assert_true(forward.least.flops == 2 * 4 * 3 * 2);
    assert_true(forward.least.bytes == 4 * (4 * 3 + 3 * 2 + 4 * 2));
    assert_true(forward.here.bytes == forward.least.bytes);
    assert_true(backward.least.flops == forward.least.flops);

    layer->linear[LLAMA_DOWN].r = 1;
    llama_layer_program(&l, false, TSR_KEEP_ALL);
    sum with = {.rates = {1, 1, 1, 1}}, back = with;
    tsr_work_forward(layer, add, &with);
    tsr_work_backward(layer, add, &back);
    assert_true(with.least.flops - forward.least.flops == 2 * 4 * (3 + 2));
    assert_true(back.least.flops - backward.least.flops == 2 * 2 * 4 * (3 + 2));
    /* x A^T reads x and A and writes T x r; (x A^T) B^T is nothing, or reads both and writes y. */
    assert_true(with.least.bytes - forward.least.bytes == 4 * (4 * 3 + 3 + 4));
    assert_true(with.here.bytes - with.least.bytes == 4 * (4 + 2 + 4 * 2));
    assert_true(with.here.flops == with.least.flops);
    /* dY, low and dS, B and dB for dB and dS; x, dS and dA for dA. */
    assert_true(back.least.bytes - backward.least.bytes ==
                4 * (4 * 2 + 2 * 4 + 2 * 2) + 4 * (4 * 3 + 4 + 3));
    /* The backward has x A^T from the forward. */
    assert_true(back.here.flops == back.least.flops);
}

static void add_narrow(void *user, const tsr_work_op *op)
{
    if (op->kind == TSR_WORK_NARROW)
        add(user, op);
}

/* Where no forward merges, x A^T is made once, and once more in a forward that runs again; of NF4 in bf16 without
 * dropout in each backward. dB, dS and dA are the rest. */
static void test_low_is_kept(void **state)
{
    (void)state;
    const struct {
        double element;
        bool nf4, fp8, drops, kept;
    } cases[] = {{2, true, false, false, false},
                 {2, true, false, true, true},
                 {2, true, true, false, true},
                 {2, false, false, false, true},
                 {4, true, false, false, true}};
    const double one = 2.0 * 8192 * 2048 * 16;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        llama_layer l;
        sum forward = {.rates = {1, 1, 1, 1, 1}}, backward = forward, again = forward;
        make_one(
            &l, LLAMA_O,
            (tsr_work_linear){
                .in = 2048, .out = 2048, .r = 16, .nf4 = cases[i].nf4, .drops = cases[i].drops},
            cases[i].element, cases[i].fp8);
        l.layer.tokens = 8192;
        tsr_work_forward(&l.layer, add_narrow, &forward);
        tsr_work_backward(&l.layer, add_narrow, &backward);
        llama_layer_program(&l, false, TSR_KEEP_NONE);
        tsr_work_backward(&l.layer, add_narrow, &again);
        assert_true(forward.here.flops == cases[i].kept * one);
        assert_true(backward.here.flops == (3 + !cases[i].kept) * one);
        assert_true(again.here.flops == 4 * one && backward.least.flops == 3 * one);
    }
}

/* The same linear with an fp8 base: a byte an element of x, W and dz; x and dz are written as such, and dz
 * is read for it here. The adapter's work is what it was. */
static void test_fp8_base(void **state)
{
    (void)state;
    llama_layer l;
    const tsr_work_rates rates = {1, 1, 1, 1, 4};
    sum forward[2], backward[2];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        make_one(&l, LLAMA_DOWN, (tsr_work_linear){.in = 3, .out = 2, .r = 1, .nf4 = true}, 2, fp8);
        l.layer.tokens = 4;
        forward[fp8] = backward[fp8] = (sum){.rates = rates};
        tsr_work_forward(&l.layer, add, &forward[fp8]);
        tsr_work_backward(&l.layer, add, &backward[fp8]);
    }
    const double matmul = 4 * 3 + 3 * 2, decode = 3 * 2;
    assert_true(forward[1].least.flops == forward[0].least.flops);
    assert_true(backward[1].here.flops == backward[0].here.flops);
    assert_true(forward[0].least.bytes - forward[1].least.bytes == matmul + decode - 4 * 3);
    assert_true(forward[0].here.bytes - forward[1].here.bytes == matmul + decode - 4 * 3);
    assert_true(backward[0].least.bytes - backward[1].least.bytes ==
                4 * 2 + 3 * 2 + decode - 4 * 2);
    assert_true(backward[0].here.bytes - backward[1].here.bytes ==
                4 * 2 + 3 * 2 + decode - 3 * 4 * 2);

    /* FLOPs alone: the base's at four times the rate. */
    l.layer.linear[LLAMA_DOWN].r = 0;
    sum slow = {.rates = {1, 1e30, 1, 1, 1}}, fast = {.rates = {1, 1e30, 1, 1, 4}};
    tsr_work_forward(&l.layer, add, &slow);
    tsr_work_forward(&l.layer, add, &fast);
    assert_true(fabs(slow.seconds - 4 * fast.seconds) < 1e-6 * slow.seconds);
}

/* Norms of what a forward merges, with dropout too, cost their partial sums, at least nothing; those of a
 * forward that does not, for its few tokens, one more s B A for the weight; those of an fp8 base the same by
 * themselves, at least s B A; those of another base W A^T, A A^T and B (A A^T). */
static void test_norms(void **state)
{
    (void)state;
    const double in = 4096, out = 14336, r = 16, sums = 2 * 4 * out * in / 64;
    const struct {
        double tokens;
        bool nf4, drops, fp8;
        double here, least, bytes; /* bytes: beside the sums */
    } cases[] = {
        {8192, true, false, false, 0, 0, 0},
        {8192, true, true, false, 0, 0, 0},
        {16, true, false, false, 2 * in * out * r, 0, 1.3 * in * out},
        {8192, true, false, true, 2 * in * out * r, 2 * in * out * r, (2.6 + 1.0 / 64) * in * out},
        {8192, false, false, false, 2 * r * (out * in + r * in + out * r),
         2 * r * (out * in + r * in + out * r), 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        llama_layer l;
        sum s = {.rates = {1, 1, 1, 1}};
        make_one(&l, LLAMA_K,
                 (tsr_work_linear){.in = in,
                                   .out = out,
                                   .r = r,
                                   .dora = true,
                                   .nf4 = cases[i].nf4,
                                   .drops = cases[i].drops},
                 2, cases[i].fp8);
        l.layer.tokens = cases[i].tokens;
        tsr_work_norm(&l.layer, add, &s);
        assert_true(s.here.flops == cases[i].here && s.least.flops == cases[i].least);
        if (cases[i].nf4)
            assert_true(s.least.bytes == 0 &&
                        fabs(s.here.bytes - sums - cases[i].bytes) < 1e-9 * s.here.bytes);
    }
}

/* dz of gate, up and o is put into e4m3 where it is made, but for a dm; of the others it is read for it. */
static void test_fp8_gradients(void **state)
{
    (void)state;
    for (int way = 0; way < 2 * LLAMA_LINEARS; way++) {
        int kind = way / 2, dora = way % 2;
        bool made = !dora && (kind == LLAMA_GATE || kind == LLAMA_UP || kind == LLAMA_O);
        llama_layer l;
        sum s = {.rates = {1, 1, 1, 1, 4}};
        make_one(&l, kind, (tsr_work_linear){.in = 3, .out = 2, .r = 1, .dora = dora}, 2, true);
        l.layer.tokens = 4;
        l.layer.linear[kind].r = 0; /* its adapter's own work */
        tsr_work_backward(&l.layer, add, &s);
        assert_true(s.here.bytes - s.least.bytes == (made ? 0 : 2 * 4 * 2));
    }
}

/* Of a linear as a GPU runs it dY is read once, where that is cheaper; where one kernel cannot, for dB and again for dS. */
static void test_passes_over_dy(void **state)
{
    (void)state;
    llama_layer l;
    double more[2], dy[2], r[2] = {16, 64}, tokens[2] = {1024, 8192};
    for (int i = 0; i < 2; i++) {
        sum s = {.rates = {1, 1, 1, 1}};
        double x = dy[i] = 2 * tokens[i] * 2048;
        make_one(&l, LLAMA_DOWN, (tsr_work_linear){.in = 2048, .out = 2048, .r = r[i], .nf4 = true},
                 2, false);
        l.layer.tokens = tokens[i];
        tsr_work_backward(&l.layer, add, &s);
        /* Without what is read and written of rank r: x is read for x A^T and again for dA; and merging, which
         * counts as 1.3 bytes an element. */
        double low = 2 * r[i] * (tokens[i] + 2048), merging = 1.3 * 2048 * 2048;
        more[i] = s.here.bytes - s.least.bytes - x - low - merging;
    }
    assert_true(fabs(more[0]) < 1);
    assert_true(fabs(more[1] - dy[1]) < 1);
}

/* Dropout costs nothing at least, but with a magnitude the base's matmul once more each way. */
static void test_dropout(void **state)
{
    (void)state;
    llama_layer l;
    const double product = 2 * 4 * 3 * 2, bytes = 2 * (4 * 3 + 3 * 2 + 4 * 2);
    for (int dora = 0; dora < 2; dora++) {
        sum s[2][2] = {{{.rates = {1, 1, 1, 1}}, {.rates = {1, 1, 1, 1}}},
                       {{.rates = {1, 1, 1, 1}}, {.rates = {1, 1, 1, 1}}}};
        for (int drops = 0; drops < 2; drops++) {
            make_one(&l, LLAMA_DOWN,
                     (tsr_work_linear){.in = 3, .out = 2, .r = 1, .dora = dora, .drops = drops}, 2,
                     false);
            l.layer.tokens = 4;
            tsr_work_forward(&l.layer, add, &s[drops][0]);
            tsr_work_backward(&l.layer, add, &s[drops][1]);
        }
        for (int way = 0; way < 2; way++) {
            const tsr_work_amount *without = &s[0][way].least, *with = &s[1][way].least;
            assert_true(with->flops - without->flops == dora * product);
            assert_true(with->bytes - without->bytes == dora * bytes);
            /* x and its copy, once more backward, where what is behind the mask is added to dX too; of a
             * magnitude's y, five passes forward and three backward. */
            double passes = (way ? 5 : 2) * 4 * 3 + dora * (way ? 3 : 5) * 4 * 2;
            assert_true(s[1][way].here.bytes - s[0][way].here.bytes == dora * bytes + 2 * passes);
        }
    }
}

/* Merged, three passes over y forward, x is split into two, W is decoded once more, and the adapter, in the
 * weight, has no products beside the base's; the backward is what it is where nothing merges. */
static void test_dropout_of_merged(void **state)
{
    (void)state;
    const double t = 8192, in = 4096, out = 14336, r = 16, decode = (0.5 + 1.0 / 64 + 2) * in * out;
    const double base = 2 * (t * in + in * out + t * out);
    llama_layer l;
    const sum none = {.rates = {1, 1, 1, 1}};
    sum forward[3], backward[3]; /* LoRA, with dropout, DoRA with dropout */
    for (int i = 0; i < 3; i++) {
        forward[i] = backward[i] = none;
        make_one(&l, LLAMA_DOWN,
                 (tsr_work_linear){
                     .in = in, .out = out, .r = r, .dora = i == 2, .nf4 = true, .drops = i > 0},
                 2, false);
        l.layer.tokens = t;
        tsr_work_forward(&l.layer, add, &forward[i]);
        tsr_work_backward(&l.layer, add, &backward[i]);
    }
    const tsr_work_amount *lora = &forward[0].here, *dora = &forward[2].here;
    assert_true(fabs(dora->flops - lora->flops - 2 * t * in * out) < 1e6);
    assert_true(fabs(dora->bytes - lora->bytes - base - decode - 2 * t * (3 * in + 3 * out)) < 1e3);
    lora = &backward[1].here, dora = &backward[2].here;
    double dm = 2 * t * 3 * out; /* counted as without dropout */
    double low =
        2 * (t * in + in * r + t * r); /* x A^T, which a forward that merges does not leave */
    assert_true(fabs(dora->bytes - lora->bytes - base - low - 2 * t * 3 * out - dm) < 1e3);
    assert_true(forward[2].least.bytes - forward[0].least.bytes == base);
}

static const tsr_model_config small = {.hidden_size = 256,
                                       .intermediate_size = 704,
                                       .head_count = 4,
                                       .kv_head_count = 2,
                                       .head_dim = 64};

static tsr_keep all_but_act(const tsr_block *b)
{
    tsr_keep keep = {{0}};
    for (int v = 0; v < b->value_count; v++)
        if (b->value[v].node == TSR_NONE || b->node[b->value[v].node].kind != &tsr_node_glu)
            tsr_keep_add(&keep, v);
    return keep;
}

static void test_recompute(void **state)
{
    (void)state;
    llama_layer l;
    double seconds[3], down = 2.0 * 128 * 704 * 256;
    const sum none = {
        .rates = {.matmul = 1, .copy = 1e30, .attention_forward = 1, .attention_backward = 1}};
    make(&l, &small, (tsr_work_linear){0}, 2, false);
    l.layer.tokens = 128;
    l.layer.pairs = 128 * 129 / 2;
    for (int i = 0; i < 3; i++) {
        const tsr_keep keep[3] = {TSR_KEEP_ALL, all_but_act(&l.block), TSR_KEEP_NONE};
        sum s = none;
        llama_layer_program(&l, false, keep[i]);
        tsr_work_backward(&l.layer, add, &s);
        seconds[i] = s.seconds;
    }
    sum forward = none;
    tsr_work_forward(&l.layer, add, &forward);
    assert_true(fabs(seconds[1] - seconds[0]) < 1e-6 * seconds[0]); /* bytes only */
    assert_true(fabs(seconds[2] - seconds[0] - (forward.seconds - down)) < 1e-6 * seconds[0]);
}

/* Bytes of decoding in a backward: what is there of NF4 and not of plain weights. */
typedef struct {
    double least, here;
} pair;

static pair decoding(llama_layer *l, bool first, tsr_keep keep)
{
    sum s[2] = {{.rates = {1, 1, 1, 1, 1}}, {.rates = {1, 1, 1, 1, 1}}};
    for (int nf4 = 0; nf4 < 2; nf4++) {
        for (int i = 0; i < LLAMA_LINEARS; i++)
            l->layer.linear[i].nf4 = nf4;
        llama_layer_program(l, first, keep);
        for (int i = 0; i < LLAMA_LINEARS; i++)
            l->layer.linear[i].r = 0; /* the adapters' own work */
        tsr_work_backward(&l->layer, add, &s[nf4]);
        for (int i = 0; i < LLAMA_LINEARS; i++)
            l->layer.linear[i].r = 8;
    }
    return (pair){s[1].least.bytes - s[0].least.bytes, s[1].here.bytes - s[0].here.bytes};
}

/* With full recomputation all but down_proj are decoded for the forward as well; least is what is not there
 * from the backward's: nothing, or e4m3 as it lies. The lowest layer has no backward of q, k and v. */
static void test_decoding_again(void **state)
{
    (void)state;
    llama_layer l;
    const double d = 256, f = 704, qkv = d * (256 + 2 * 128), down = d * f;
    const double all = qkv + d * 256 + 3 * d * f;
    for (int way = 0; way < 4; way++) {
        bool fp8 = way % 2, first = way / 2;
        make(&l, &small, (tsr_work_linear){.r = 8}, fp8 ? 2 : 4, fp8);
        l.layer.tokens = 128;
        l.layer.pairs = 128 * 129 / 2;
        double one = 0.5 + 1.0 / 64 + (fp8 ? 1 : 4), wanted = all - first * qkv;
        double both = wanted - down, only = first * qkv;
        pair once = decoding(&l, first, TSR_KEEP_ALL);
        pair again = decoding(&l, first, TSR_KEEP_NONE);
        assert_true(fabs(once.least - one * wanted) < 1 && fabs(once.here - one * wanted) < 1);
        assert_true(fabs(again.here - once.here - one * (both + only)) < 1);
        assert_true(fabs(again.least - once.least - fp8 * both - one * only) < 1);
    }
}

/* Nothing below the lowest adapter has a backward: of a layer in which down_proj alone trains no other linear, nor
 * attention. */
static void test_lowest(void **state)
{
    (void)state;
    llama_layer l;
    sum s = {.rates = {1, 1, 1, 1}};
    make(&l, &small, (tsr_work_linear){0}, 2, false);
    l.layer.linear[LLAMA_DOWN].r = 8;
    l.layer.tokens = 128;
    l.layer.pairs = 128 * 129 / 2;
    llama_layer_program(&l, true, TSR_KEEP_ALL);
    tsr_work_backward(&l.layer, add, &s);
    assert_true(s.least.flops == 2 * 128 * 8 * (2 * 256 + 704)); /* dB and dS, dA */
}

/* ---- experts ---- */

#define MOST_OPS 16

typedef struct {
    tsr_work_op op[MOST_OPS];
    int count;
} op_list;

static void list_op(void *user, const tsr_work_op *op)
{
    op_list *list = user;
    assert_true(list->count < MOST_OPS);
    list->op[list->count++] = *op;
}

static const tsr_work_op *only(const op_list *list, tsr_work_kind kind, tsr_work_term term)
{
    const tsr_work_op *found = NULL;
    for (int i = 0; i < list->count; i++)
        if (list->op[i].kind == kind && list->op[i].term == term) {
            assert_null(found);
            found = &list->op[i];
        }
    return found;
}

/* 100 tokens, 2 of 8 experts each, 64 in and 96 out: rows in e4m3 are written once, of tokens where those are gathered, which
 * gate and up do forward and down backward; the adapter's products count double. At least, experts are multiplied as fast as a
 * dense matrix; in bf16 a tile begins and ends in the time of 600 summands. Those that stay decoded are read by the matmuls
 * alone. */
static void test_experts_in_fp8(void **state)
{
    enum { T = 100, ROWS = 2 * T, IN = 64, OUT = 96, WEIGHT = IN * OUT };
    static tsr_block block;
    static const tsr_layer_program program = {.block = &block};
    const tsr_work_rates floor = {.matmul = 1, .copy = 1e30, .matmul_fp8 = 4};
    (void)state;
    for (int way = 0; way < 16; way++) {
        bool down = way & 1, back = way & 2, fp8 = way & 4, decoded = way & 8;
        for (int r = 0; r <= 4; r += 4) {
            const tsr_node node = {
                .kind = down ? &tsr_node_combine : &tsr_node_experts,
                .spec.experts = {.experts = 8, .chosen = 2, .in = IN, .out = OUT}};
            const tsr_work_layer layer = {.program = &program,
                                          .stack = {{r, true, decoded, fp8}},
                                          .element = 2,
                                          .fp8 = fp8,
                                          .tokens = T};
            op_list list = {.count = 0};
            const tsr_costing c = {.layer = &layer, .call = list_op, .user = &list};
            tsr_cost_experts(&c, &node, back ? TSR_PASS_BACKWARD : TSR_PASS_FORWARD, true);
            double inner = back ? OUT : IN, outer = back ? IN : OUT;
            double products = 2.0 * ROWS * WEIGHT, low = 2.0 * ROWS * r * outer;
            tsr_work_term term = back ? TSR_WORK_LINEARS_BACKWARD : TSR_WORK_LINEARS_FORWARD;
            const tsr_work_op *op =
                only(&list, fp8 ? TSR_WORK_GROUPED_FP8 : TSR_WORK_GROUPED, term);
            assert_non_null(op);
            assert_true(op->least.flops == products + (fp8 ? 2 : 1) * low);
            assert_true(op->here.flops == op->least.flops * (fp8 ? 1 : 1 + 600 / inner));
            assert_true(op->here.bytes == (fp8 ? ROWS * (inner + 2 * outer) + 8 * WEIGHT
                                               : 2 * (ROWS * (inner + outer) + 8 * WEIGHT)));
            assert_true(op->least.bytes == op->here.bytes);
            assert_true(tsr_work_seconds(&floor, op) == op->least.flops / (fp8 ? 4 : 1));
            op = only(&list, TSR_WORK_DECODE, TSR_WORK_NF4);
            assert_non_null(op);
            assert_true(op->here.bytes ==
                        (decoded ? 0 : 8 * WEIGHT * (0.5 + 1.0 / 64 + (fp8 ? 1 : 2))));
            assert_true(op->least.bytes == 8 * WEIGHT * (0.5 + 1.0 / 64 + (fp8 ? 1 : 2)));
            op = only(&list, TSR_WORK_STREAM, TSR_WORK_QUANTIZE);
            assert_true((op != NULL) == fp8);
            if (fp8) {
                assert_true(op->least.bytes == (down == back ? T : ROWS) * inner);
                assert_true(op->here.bytes == 3 * op->least.bytes);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured_floors), cmocka_unit_test(test_one_linear),
        cmocka_unit_test(test_low_is_kept),     cmocka_unit_test(test_fp8_base),
        cmocka_unit_test(test_norms),           cmocka_unit_test(test_passes_over_dy),
        cmocka_unit_test(test_dropout),         cmocka_unit_test(test_dropout_of_merged),
        cmocka_unit_test(test_recompute),       cmocka_unit_test(test_decoding_again),
        cmocka_unit_test(test_fp8_gradients),   cmocka_unit_test(test_lowest),
        cmocka_unit_test(test_experts_in_fp8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
