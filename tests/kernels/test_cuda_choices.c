/*
 * test_cuda_choices.c: what is chosen for a GPU does not depend on the memory that is left: which kernel
 * runs attention, in how much memory, and, once a run has chosen, the algorithms of its matmuls. Without a GPU: cuBLASLt is
 * made up, and so is the clock.
 */
#include "kernels/attention_cudnn.h"
#include "kernels/attention_wgmma.h"
#include "kernels/gemm_cublaslt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- in the place of what needs a GPU ---- */

const tsr_cuda_properties *__wrap_tsr_device_cuda_properties(const tsr_device *device);
const tsr_cuda_properties *__wrap_tsr_device_cuda_properties(const tsr_device *device)
{
    static const tsr_cuda_properties card = {.sm_count = 132, .major = 9};
    (void)device;
    return &card;
}

cudaError_t __wrap_cudaSetDevice(int index);
cudaError_t __wrap_cudaSetDevice(int index)
{
    (void)index;
    return cudaSuccess;
}

static int timed, asked;
static uint64_t fastest; /* the algorithm that the clock prefers */

tsr_status __wrap_tsr_blas_tune(tsr_blas *blas, tsr_stream *stream, const tsr_gemm_args *shape,
                                int count, void *scratch, uint64_t scratch_bytes);
tsr_status __wrap_tsr_blas_tune(tsr_blas *blas, tsr_stream *stream, const tsr_gemm_args *shape,
                                int count, void *scratch, uint64_t scratch_bytes)
{
    (void)stream, (void)scratch;
    assert_true(tsr_blas_tune_bytes(shape, count) <= scratch_bytes);
    for (int i = 0; i < count; i++) {
        tsr_matmul_key key = tsr_matmul_bucket(&shape[i]);
        if (tsr_matmul_find(blas, &key)->origin >= TSR_MATMUL_SETTLED)
            continue;
        tsr_matmul_keep(blas, &key, &(cublasLtMatmulAlgo_t){.data = {fastest}}, TSR_MATMUL_TIMED);
        timed++;
    }
    return TSR_OK;
}

enum { FIRST = 1 }; /* the heuristic's */

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference, int most,
                                cublasLtMatmulHeuristicResult_t result[], int *found)
{
    (void)handle, (void)matmul, (void)a, (void)b, (void)c, (void)d, (void)preference;
    assert_true(most > 0);
    result[0] = (cublasLtMatmulHeuristicResult_t){.algo.data = {FIRST}};
    *found = 1;
    asked++;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                            cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                            const cublasLtMatmulAlgo_t *algo,
                            cublasLtMatmulHeuristicResult_t *result)
{
    (void)handle, (void)matmul, (void)a, (void)b, (void)c, (void)d;
    *result = (cublasLtMatmulHeuristicResult_t){.algo = *algo};
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t config(const cublasLtMatmulAlgo_t *algo,
                             cublasLtMatmulAlgoConfigAttributes_t what, void *value, size_t bytes,
                             size_t *written)
{
    const uint32_t one = what == CUBLASLT_ALGO_CONFIG_SPLITK_NUM;
    (void)algo;
    *written = bytes;
    memcpy(value, &one, bytes < sizeof one ? bytes : sizeof one);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t ability(const cublasLtMatmulAlgo_t *algo,
                              cublasLtMatmulAlgoCapAttributes_t what, void *value, size_t bytes,
                              size_t *written)
{
    (void)algo, (void)what;
    *written = bytes;
    memset(value, 0, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout(cublasLtMatrixLayout_t out, size_t bytes, cudaDataType type,
                             uint64_t rows, uint64_t columns, int64_t ld)
{
    (void)out, (void)bytes, (void)type, (void)rows, (void)columns, (void)ld;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t preference(cublasLtMatmulPreference_t out, size_t bytes)
{
    (void)out, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t out,
                             cublasLtMatmulPreferenceAttributes_t what, const void *value,
                             size_t bytes)
{
    (void)out, (void)what, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the runs of a job ---- */

enum { LENGTHS = 16, KINDS = 8, SHAPES = LENGTHS * KINDS };

#define ROOM   (UINT64_C(4) << 30)
#define LITTLE (UINT64_C(100) << 20) /* too little for the first ones, enough for others */

static tsr_gemm_args shapes[SHAPES];
static const tsr_head_bounds head = {
    .rows = 4000, .d = 4096, .chunk = 16384, .dtype = TSR_BF16, .train = true};

static void set_shapes(void)
{
    static const int32_t sides[KINDS][2] = {{4096, 4096},  {14336, 4096}, {4096, 14336},
                                            {1024, 4096},  {4096, 1024},  {16, 4096},
                                            {14336, 1024}, {8, 8}};
    for (int i = 0; i < SHAPES; i++)
        shapes[i] = (tsr_gemm_args){.m = 8192 - i / KINDS * 480,
                                    .n = sides[i % KINDS][0],
                                    .k = sides[i % KINDS][1],
                                    .trans_b = true,
                                    .alpha = 1,
                                    .dtype = TSR_BF16,
                                    .c_dtype = TSR_BF16};
}

/* What a step of it multiplies by, and what it left. */
typedef struct {
    uint64_t algorithm[SHAPES];
    tsr_text chosen, cache;
    int timed, asked;
} job_run;

static void leave(void *context)
{
    (void)context; /* on the stack */
}

static job_run prepared(const tsr_prepare_args *wanted)
{
    job_run run = {0};
    tsr_device *device;
    tsr_kernels_context context = {.blas = calloc(1, sizeof *context.blas)};
    tsr_prepare_args args = *wanted;
    assert_non_null(context.blas);
    assert_int_equal(tsr_blas_turn(context.blas, 0), TSR_OK);
    context.blas->bf16_flops = 132 * 5e12;
    strcpy(context.blas->made_for, "a card");
    assert_int_equal(tsr_device_create_cpu(&device, &(tsr_device_options){0}), TSR_OK);
    tsr_device_keep(device, &context, leave);
    args.chosen = &run.chosen;
    args.cache = &run.cache;
    timed = asked = 0;
    fastest++; /* the clock never says the same twice */
    if (tsr_kernels_cuda()->prepare(device, &args) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    run.timed = timed;
    run.asked = asked;
    for (int i = 0; i < SHAPES; i++) {
        tsr_matmul_key key = tsr_matmul_bucket(&shapes[i]);
        const tsr_matmul_choice *choice = tsr_matmul_find(context.blas, &key);
        run.algorithm[i] = choice->origin ? choice->algo.data[0] : FIRST;
    }
    tsr_device_destroy(device);
    free(context.blas->table[0]);
    free(context.blas);
    return run;
}

static job_run run_with(const char *known, const char *cached, uint64_t scratch_bytes)
{
    return prepared(&(tsr_prepare_args){.gemm = shapes,
                                        .gemm_count = SHAPES,
                                        .head = &head,
                                        .head_count = 1,
                                        .scratch_bytes = scratch_bytes,
                                        .known = known,
                                        .cached = cached});
}

static void free_run(job_run *run)
{
    tsr_text_free(&run->chosen);
    tsr_text_free(&run->cache);
}

static int lines_of(const tsr_text *text)
{
    int lines = 0;
    for (const char *p = tsr_text_string(text); *p; p++)
        lines += *p == '\n';
    return lines;
}

static void expect_repeated(const job_run *first, job_run again)
{
    assert_int_equal(again.timed, 0);
    assert_memory_equal(again.algorithm, first->algorithm, sizeof first->algorithm);
    free_run(&again);
}

/* A run that has its own text times nothing, whatever memory it has. */
static void own_choices_are_obeyed(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        job_run first = run_with(NULL, NULL, i ? LITTLE : ROOM);
        const char *known = tsr_text_string(&first.chosen);
        assert_true(first.timed > 0 && first.asked > 0);
        assert_int_equal(lines_of(&first.chosen), 1 + first.timed + first.asked);
        expect_repeated(&first, run_with(known, NULL, ROOM));
        expect_repeated(&first, run_with(known, NULL, LITTLE));
        expect_repeated(&first, run_with(known, "a card\n", ROOM));
        expect_repeated(&first, prepared(&(tsr_prepare_args){.agreed = known})); /* another rank */
        job_run again = run_with(known, NULL, ROOM);
        assert_int_equal(again.asked, 0);
        free_run(&again);
        free_run(&first);
    }
}

/* So does one that finds what another has timed. Of older runs their own text has no more than that. */
static void a_cache_is_enough(void **state)
{
    (void)state;
    job_run first = run_with(NULL, NULL, ROOM);
    const char *cache = tsr_text_string(&first.cache);
    assert_int_equal(lines_of(&first.cache), 1 + first.timed);
    expect_repeated(&first, run_with(NULL, cache, ROOM));
    expect_repeated(&first, run_with(NULL, cache, LITTLE));
    expect_repeated(&first, run_with(cache, NULL, ROOM));
    /* What was not timed stays out of it, and it loses nothing. */
    job_run again = run_with(tsr_text_string(&first.chosen), cache, ROOM);
    assert_int_equal(lines_of(&again.cache), lines_of(&first.cache));
    free_run(&again);
    again = run_with(tsr_text_string(&first.chosen), NULL, ROOM);
    assert_string_equal(tsr_text_string(&again.cache), "a card\n");
    free_run(&again);
    free_run(&first);
}

/* ---- attention ---- */

static const struct {
    int64_t tokens, documents, longest;
    int32_t q_heads, kv_heads;
} micro_batches[] = {
    {8192, 41, 4096, 32, 8},   {8192, 41, 3000, 32, 8},    {8192, 41, 8192, 32, 8},
    {8192, 10, 8192, 32, 8},   {16384, 10, 8192, 32, 8},   {32768, 20, 8192, 32, 8},
    {8192, 20, 4096, 64, 8},   {8192, 10, 8192, 64, 8},    {8192, 4, 2048, 32, 8},
    {8192, 1, 8192, 32, 8},    {8192, 160, 2048, 32, 8},   {8192, 600, 2048, 32, 8},
    {16384, 1, 16384, 32, 8},  {16384, 1, 16384, 64, 8},   {24576, 1, 24576, 32, 8},
    {32768, 1, 32768, 32, 8},  {32768, 1, 32768, 32, 32},  {16384, 16, 1024, 28, 4},
    {65536, 70, 16384, 32, 8}, {131072, 1, 131072, 32, 8},
};

static tsr_attention_bounds bounds_of(size_t i, int wider, bool atomics)
{
    return (tsr_attention_bounds){.tokens = micro_batches[i].tokens,
                                  .documents = micro_batches[i].documents,
                                  .longest = micro_batches[i].longest,
                                  .q_heads = micro_batches[i].q_heads,
                                  .kv_heads = micro_batches[i].kv_heads,
                                  .head_dim = 128,
                                  .dtype = TSR_BF16,
                                  .train = true,
                                  .atomics = atomics,
                                  .wider = wider};
}

/* Memory that is left makes fewer launches, and changes nothing else. */
static void attention_runs_in_the_same_kernel(void **state)
{
    (void)state;
#ifndef TSR_CUDNN
    skip();
#endif
    for (size_t i = 0; i < 2 * sizeof micro_batches / sizeof *micro_batches; i++) {
        tsr_sdpa_cut cut, wide;
        tsr_attention_bounds b = bounds_of(i / 2, 0, i % 2);
        bool runs = tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP(&b));
        for (int wider = 1; wider <= 2; wider++) {
            b = bounds_of(i / 2, wider, i % 2);
            bool also = tsr_sdpa_cut_for(&wide, &b, TSR_SDPA_CAP(&b));
            assert_int_equal(also, runs);
            if (!runs)
                continue;
            assert_int_equal(wide.span, cut.span);
            assert_int_equal(wide.own_bytes, cut.own_bytes);
            assert_true(wide.pieces * wide.groups <= cut.pieces * cut.groups);
        }
        if (b.longest > 18000) /* the own backward, but for dq that is added up by atomics */
            assert_true(runs && !cut.span && (cut.own_bytes == 0) == i % 2);
        if (i / 2 < 2 || i % 2) /* the first two are long enough for its launches to pay */
            assert_true(runs);
    }
}

/* What the plan takes for a real shape, and that cutting keeps to it. */
static void workspaces_are_bounded(void **state)
{
    (void)state;
#ifndef TSR_CUDNN
    skip();
#endif
    for (int64_t longest = 512; longest <= 16384; longest *= 2) {
        tsr_attention_bounds b = {.tokens = 16384,
                                  .documents = 16384 / longest,
                                  .longest = longest,
                                  .q_heads = 32,
                                  .kv_heads = 32,
                                  .head_dim = 192,
                                  .v_dim = 128,
                                  .dtype = TSR_BF16,
                                  .train = true};
        tsr_sdpa_cut cut;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_true(!cut.own_bytes && cut.documents * cut.pieces >= b.documents);
        assert_int_equal(cut.heads * cut.groups, b.q_heads);
        assert_int_equal(cut.kv_heads * cut.groups, b.kv_heads);
        assert_true(cut.plan_bytes <= (longest > 8192 ? 2 : 1) * TSR_SDPA_CAP_BYTES + (2 << 20));
        uint64_t repeatable = tsr_sdpa_workspace_bytes(&cut);
        assert_true(tsr_attention_workspace_bytes_cuda(&b) == repeatable);
        b.atomics = true;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_true(tsr_attention_workspace_bytes_cuda(&b) == tsr_sdpa_workspace_bytes(&cut));
        assert_true(tsr_sdpa_workspace_bytes(&cut) < repeatable && cut.groups == 1);
        b.train = false;
        assert_true(tsr_attention_workspace_bytes_cuda(&b) < 4 << 20);
        /* heads of 96 and 128 */
        b.kv_heads = 8, b.head_dim = 96, b.v_dim = 0, b.train = true, b.atomics = false;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_true((cut.own_bytes > 0) == (longest >= 1024));
        b.head_dim = 128;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_true(cut.own_bytes > 0 && cut.own_forward == (longest >= 4096));
        assert_true(tsr_attention_workspace_bytes_cuda(&b) <= repeatable + (64 << 20));
        b.longest = 256, b.documents = 64; /* where cuDNN's takes less time */
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES) && cut.own_bytes == 0);
    }
}

/* Documents of any length: what a launch keeps does not grow with them. */
static void long_documents_are_bounded(void **state)
{
    (void)state;
#ifndef TSR_CUDNN
    skip();
#endif
    for (int64_t longest = 32768; longest < 400000; longest *= 2) {
        tsr_attention_bounds b = {.tokens = longest,
                                  .documents = 1,
                                  .longest = longest,
                                  .q_heads = 32,
                                  .kv_heads = 8,
                                  .head_dim = 128,
                                  .dtype = TSR_BF16,
                                  .train = true};
        tsr_sdpa_cut cut;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_true(!cut.span && cut.own_bytes && cut.own_forward);
        assert_true(cut.own_bytes <= TSR_WGMMA_SUM_BYTES + (uint64_t)longest * 32 * 12 + (1 << 21));
        b.head_dim = 64;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_true(cut.by_head && !cut.span && cut.stats_bytes == (uint64_t)longest * 32 * 4);
        assert_true(cut.own_bytes >= tsr_attention_own_workspace_bytes(&b));
        assert_true(cut.own_bytes <= (256 << 20) + (uint64_t)longest * 32 * 8 + (1 << 20));
        b.spans = (tsr_spans){8192, 4, 1}; /* parts of documents as one rank of them can have */
        b.documents = 10;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_int_equal(cut.parts, 0); /* of heads of 128 alone */
        b.head_dim = 128;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_int_equal(cut.parts, 10 + longest / 8192 / 4 - 1);
        assert_int_equal(cut.own_forward, longest >= 10 * 4096);
        b.spans = (tsr_spans){0};
        b.documents = 1, b.kv_heads = 32, b.head_dim = 192, b.v_dim = 128;
        assert_true(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
        assert_int_equal(cut.span, 8192);
        assert_int_equal(cut.rows, longest / 8192);
        assert_int_equal(cut.columns, longest / 8192);
        assert_true(cut.plan_bytes <= TSR_SDPA_CAP_BYTES + (2 << 20));
        /* sums of dk and dv of eight key heads; of a span what is copied, its shares and the sum of dq */
        assert_true(cut.tile_bytes <= (uint64_t)longest * 8 * (192 + 128) * 4 + (256 << 20));
        assert_true(tsr_attention_workspace_bytes_cuda(&b) == tsr_sdpa_workspace_bytes(&cut));
        b.documents = 3000; /* too many for tiles */
        assert_false(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
    }
}

static void check_group(const tsr_attention_bounds *all, int32_t kv_heads)
{
    const tsr_attention_bounds group = tsr_attention_group(*all, kv_heads);
    tsr_sdpa_cut cut, whole;
    bool cut_all = tsr_sdpa_cut_for(&whole, all, TSR_SDPA_CAP_BYTES);
    assert_int_equal(tsr_sdpa_cut_for(&cut, &group, TSR_SDPA_CAP_BYTES), cut_all);
    assert_true(tsr_attention_workspace_bytes_cuda(&group) <=
                tsr_attention_workspace_bytes_cuda(all));
    if (!cut_all)
        return;
    assert_int_equal(cut.own_bytes > 0, whole.own_bytes > 0);
    assert_int_equal(cut.by_head, whole.by_head);
    assert_int_equal(cut.own_forward, whole.own_forward);
    assert_int_equal(cut.parts, whole.parts);
    assert_int_equal(cut.heads, group.q_heads);
}

/* Groups of heads of a shared micro-batch: the kernels are those of all heads, however few there are and long it is; and a
 * group is no smaller than keeps a card busy. */
static void groups_run_as_all_heads(void **state)
{
    (void)state;
    static const int64_t tokens[] = {2048, 4096, 32768, 131072, 600000};
    static const int32_t kv[] = {1, 2, 8, 32}, dims[] = {64, 96, 128};
    for (int i = 0; i < 5 * 4 * 3; i++) {
        const tsr_attention_bounds b = {.tokens = tokens[i % 5],
                                        .documents = 1,
                                        .longest = tokens[i % 5],
                                        .q_heads = 32,
                                        .kv_heads = kv[i / 5 % 4],
                                        .head_dim = dims[i / 20],
                                        .spans = {1024, 2, 0},
                                        .dtype = TSR_BF16,
                                        .train = true};
        const tsr_attention_sharing sharing = tsr_attention_sharing_cuda(&b);
        int32_t all = sharing.by_heads ? b.kv_heads / 2 : b.kv_heads;
        int64_t blocks = b.tokens / 128 * sharing.kv_heads / (sharing.by_heads ? 1 : 2);
        assert_int_equal(sharing.by_heads, !sharing.needs_o && b.kv_heads % 2 == 0);
        assert_int_equal(all % sharing.kv_heads, 0);
        assert_true(sharing.kv_heads == all ||
                    (!sharing.needs_o && blocks >= (sharing.by_heads ? 512 : 256)));
        for (int32_t heads = 1; heads < b.kv_heads && !sharing.needs_o; heads *= 2)
            check_group(&b, heads);
    }
}

static int setup(void **state)
{
    (void)state;
    set_shapes();
    fastest = FIRST;
    tsr_cublaslt_lib = (tsr_cublaslt_functions){.MatmulAlgoGetHeuristic = heuristic,
                                                .MatmulAlgoCheck = check,
                                                .MatmulAlgoConfigGetAttribute = config,
                                                .MatmulAlgoCapGetAttribute = ability,
                                                .MatrixLayoutInit_internal = layout,
                                                .MatmulPreferenceInit_internal = preference,
                                                .MatmulPreferenceSetAttribute = prefer};
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_choices_are_obeyed),
        cmocka_unit_test(a_cache_is_enough),
        cmocka_unit_test(attention_runs_in_the_same_kernel),
        cmocka_unit_test(workspaces_are_bounded),
        cmocka_unit_test(long_documents_are_bounded),
        cmocka_unit_test(groups_run_as_all_heads),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
