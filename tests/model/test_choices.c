/*
 * test_choices.c: a run that is repeated takes the graphs that the first one took, and has its kernels
 * choose from the same list of matmuls, whatever memory it has, from its own text and from a cache. An 8B
 * layer in micro-batches of many lengths, more than there is time for; nothing is timed or multiplied here.
 */
#include "model/arch/decoder.h"
#include "model/model_parts.h"
#include "support/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEVICE "a device\n"
#define ROOM   (UINT64_C(4) << 30)

enum { SHAPES = 16, MOST_MATMULS = 4096 };

static tsr_layout_linear linears[LLAMA_LINEARS];
static tsr_layout_unit units[2];
static tsr_block block;
static tsr_layout layout = {.unit = units,
                            .layer_count = 1,
                            .chunk_count = 1,
                            .unit_count = 2,
                            .config = {.hidden_size = 4096,
                                       .intermediate_size = 14336,
                                       .head_count = 32,
                                       .kv_head_count = 8,
                                       .head_dim = 128}};

typedef struct {
    tsr_model model;
    tsr_gemm_args matmul[MOST_MATMULS];
    int matmuls, timed;
    tsr_text chosen, cache;
    tsr_layer_programs *programs;
} run;

static run *running;

/* ---- in the place of what needs a GPU ---- */

/* The clock prefers the dearest. */
tsr_status __wrap_tsr_graph_time(tsr_graph_choice *out, const tsr_graph_bench *bench,
                                 const tsr_graph_shape *shape);
tsr_status __wrap_tsr_graph_time(tsr_graph_choice *out, const tsr_graph_bench *bench,
                                 const tsr_graph_shape *shape)
{
    tsr_graph_choice choice[TSR_GRAPH_CHOICES];
    int count = tsr_graph_doubts(choice, shape);
    assert_true(count > 1 && tsr_graph_time_bytes(shape) <= bench->scratch_bytes);
    *out = choice[count - 1];
    running->timed++;
    return TSR_OK;
}

tsr_status __wrap_tsr_stream_fill(tsr_stream *stream, void *to, uint8_t value, uint64_t bytes);
tsr_status __wrap_tsr_stream_fill(tsr_stream *stream, void *to, uint8_t value, uint64_t bytes)
{
    (void)to, (void)value, (void)bytes;
    assert_non_null(stream); /* what only lists has none */
    return TSR_OK;
}

static tsr_status note_prepare(tsr_device *device, const tsr_prepare_args *args)
{
    (void)device;
    if (args->chosen)
        tsr_text_puts(args->chosen, DEVICE);
    if (args->cache)
        tsr_text_puts(args->cache, DEVICE);
    assert_true(args->gemm_count <= MOST_MATMULS);
    if (args->gemm_count)
        memcpy(running->matmul, args->gemm, (size_t)args->gemm_count * sizeof *args->gemm);
    running->matmuls = args->gemm_count;
    return TSR_OK;
}

/* ---- runs ---- */

static void set_layer(int64_t rank)
{
    static const uint64_t sides[LLAMA_LINEARS][2] = {{4096, 4096}, {1024, 4096},  {1024, 4096},
                                                     {4096, 4096}, {14336, 4096}, {14336, 4096},
                                                     {4096, 14336}};
    for (int i = 0; i < LLAMA_LINEARS; i++)
        linears[i] = (tsr_layout_linear){.out = sides[i][0],
                                         .in = sides[i][1],
                                         .quantized = true,
                                         .r = (uint64_t)rank,
                                         .scale = 1};
    assert_int_equal(tsr_decoder_block(&block, &layout.config, 0), TSR_OK);
    units[0].block = &block;
    units[0].linear = linears;
    units[1].row_count = 16384;
}

static run *new_run(tsr_stream *stream, tsr_graph_rule rule, const char *known, const char *cached,
                    uint64_t room)
{
    static tsr_kernels kernels;
    static const tsr_keep keep = TSR_KEEP_ALL;
    static const tsr_model_adapter adapters[2] = {{.dropout = 0}, {.dropout = 0.1}};
    tsr_batch_shape shapes[SHAPES];
    run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    running = r;
    kernels = tsr_kernels_none;
    kernels.prepare = note_prepare;
    kernels.attention_workspace_bytes = tsr_attention_workspace_bytes;
    for (int i = 0; i < SHAPES; i++)
        shapes[i] = (tsr_batch_shape){8192 - i * 480, 4000 - i * 200, true};
    r->model.options = (tsr_model_options){.layout = &layout,
                                           .kernels = &kernels,
                                           .dtype = TSR_BF16,
                                           .train = true,
                                           .step_micro = 4,
                                           .keep = &keep,
                                           .adapter = adapters,
                                           .graph_rule = rule};
    assert_int_equal(tsr_model_programs(&r->programs, &r->model.options), TSR_OK);
    r->model.options.programs = r->programs;
    r->model.compute = stream;
    r->model.activation_begin = (char *)(uintptr_t)TSR_ALIGNMENT;
    r->model.activation_end = r->model.activation_begin + room;
    tsr_prepare_args args = {
        .known = known, .cached = cached, .chosen = &r->chosen, .cache = &r->cache};
    if (tsr_model_prepare(&r->model, shapes, SHAPES, &args) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_true(r->matmuls > 0);
    return r;
}

static void free_run(run *r)
{
    tsr_text_free(&r->chosen);
    tsr_text_free(&r->cache);
    tsr_layer_programs_free(r->programs);
    free(r);
}

static int compare_choices(const tsr_graph_book *book, const tsr_graph_book *other)
{
    int differing = 0;
    for (int i = 0; i < other->count; i++) {
        const tsr_graph_shape *shape = &other->entry[i].shape;
        differing +=
            !tsr_graph_same_choice(tsr_graph_choose(book, shape), tsr_graph_choose(other, shape));
    }
    return differing;
}

static bool same_matmul(const tsr_gemm_args *a, const tsr_gemm_args *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->trans_a == b->trans_a && a->trans_b == b->trans_b &&
           a->alpha == b->alpha && a->beta == b->beta && a->dtype == b->dtype &&
           a->c_dtype == b->c_dtype && a->fast == b->fast;
}

/* Frees the second. */
static void expect_repeated(const run *first, run *again)
{
    assert_int_equal(again->timed, 0);
    assert_int_equal(compare_choices(&first->model.graphs, &again->model.graphs), 0);
    assert_int_equal(compare_choices(&again->model.graphs, &first->model.graphs), 0);
    assert_int_equal(again->matmuls, first->matmuls);
    for (int i = 0; i < first->matmuls; i++)
        assert_true(same_matmul(&again->matmul[i], &first->matmul[i]));
    free_run(again);
}

static tsr_device *device;
static tsr_stream *stream;

static const char *text(const tsr_text *t)
{
    return tsr_text_string(t);
}

static void test_repeated(void **state)
{
    (void)state;
    const tsr_graph_rule rules[] = {TSR_GRAPHS_TIMED, TSR_GRAPHS_AUTO};
    for (int64_t rank = 16; rank <= 64; rank *= 4)
        for (int i = 0; i < 2; i++) {
            set_layer(rank);
            run *first = new_run(stream, rules[i], NULL, NULL, ROOM);
            assert_true(first->timed > 0);
            expect_repeated(first, new_run(stream, rules[i], text(&first->chosen), NULL, ROOM));
            expect_repeated(first, new_run(stream, rules[i], text(&first->chosen), NULL, ROOM / 2));
            expect_repeated(first, new_run(stream, rules[i], NULL, text(&first->cache), ROOM));
            expect_repeated(first, new_run(stream, rules[i], NULL, text(&first->cache), ROOM / 2));
            free_run(first);
        }
}

/* What did not fit keeps what it took. */
static void test_more_memory(void **state)
{
    (void)state;
    set_layer(16);
    run *roomy = new_run(stream, TSR_GRAPHS_TIMED, NULL, NULL, ROOM);
    run *first = new_run(stream, TSR_GRAPHS_TIMED, NULL, NULL, ROOM / 8);
    assert_true(first->timed > 0 && first->timed < roomy->timed);
    expect_repeated(first, new_run(stream, TSR_GRAPHS_TIMED, text(&first->chosen), NULL, ROOM));
    free_run(roomy);
    free_run(first);
}

/* What other jobs have left in the cache since changes nothing for which there was no time. */
static void test_fuller_cache(void **state)
{
    (void)state;
    set_layer(16);
    run *first = new_run(stream, TSR_GRAPHS_TIMED, NULL, NULL, ROOM);
    tsr_graph_book all = {0};
    tsr_text others = {0};
    for (int i = 0; i < SHAPES * 2 * LLAMA_LINEARS; i++) {
        tsr_linear_context context = {.dtype = TSR_BF16, .tokens = 8192 - i / 14 * 480};
        const tsr_layout_linear *l = &linears[i / 2 % LLAMA_LINEARS];
        tsr_graph_choice choice[TSR_GRAPH_CHOICES];
        tsr_graph_shape shape = tsr_linear_graph_shape(
            &context, &(tsr_linear){.out = l->out, .in = l->in, .r = l->r}, i % 2);
        tsr_graph_keep(&all, &shape, choice[tsr_graph_doubts(choice, &shape) - 1]);
    }
    tsr_text_puts(&others, DEVICE);
    tsr_graph_export(&others, &all);
    assert_true(compare_choices(&first->model.graphs, &all) > 0);
    expect_repeated(first, new_run(stream, TSR_GRAPHS_TIMED, NULL, text(&others), ROOM));
    tsr_text_free(&others);
    free_run(first);
}

/* Two adapters in a micro-batch, one of which leaves every other linear alone and has dropout: the matmuls of each
 * alone, those of both, and the same list again. */
static void test_mixed(void **state)
{
    (void)state;
    tsr_layout_mixed mixed[LLAMA_LINEARS][2];
    set_layer(16);
    run *alone = new_run(stream, TSR_GRAPHS_TIMED, NULL, NULL, ROOM);
    for (int i = 0; i < LLAMA_LINEARS; i++) {
        mixed[i][0] = (tsr_layout_mixed){.r = 16, .scale = 2};
        mixed[i][1] = (tsr_layout_mixed){.r = i % 2 ? 0 : 8, .scale = 1};
        linears[i].mixed = mixed[i];
    }
    layout.mixed_count = 2;
    run *first = new_run(stream, TSR_GRAPHS_TIMED, NULL, NULL, ROOM);
    assert_true(first->matmuls > alone->matmuls);
    expect_repeated(first, new_run(stream, TSR_GRAPHS_TIMED, text(&first->chosen), NULL, ROOM));
    layout.mixed_count = 0;
    free_run(first);
    free_run(alone);
}

static int setup(void **state)
{
    (void)state;
    return tsr_device_create_cpu(&device, &(tsr_device_options){0}) ||
           tsr_stream_create(&stream, device, "test");
}

static int teardown(void **state)
{
    (void)state;
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_more_memory),
        cmocka_unit_test(test_fuller_cache),
        cmocka_unit_test(test_mixed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
