/*
 * test_cuda_attention.c: the kernels of the CUDA attention against the C reference: the own ones in
 * every dtype, cuDNN's within prepared bounds. Outputs and workspaces begin as NaN, every case runs
 * twice into fresh ones, and both runs must give the same bits.
 */
#include "kernels/attention_cudnn.h"
#include "kernels/attention_wgmma.h"

#include "cuda_test.h"

#define MAX_DOCUMENTS 12
#define LEAST         0.1 /* gradients that cancel to 0 keep the noise of terms near 1 */

typedef struct {
    int64_t tokens;
    int32_t documents, q_heads, kv_heads, dim, window;
    int32_t length[MAX_DOCUMENTS];
    float scores; /* the size of q and k; 0: 1 */
    float softcap, scale;
    int32_t v_dim; /* of a head of v and o; 0: dim */
    float sinks;   /* their size; 0: none */
} attention_case;

#define ODD_LENGTHS                                                                                \
    {                                                                                              \
        1, 0, 2, 30, 65, 128, 0, 129, 300, 0                                                       \
    }

static const attention_case own_cases[] = {
    {0, 0, 2, 1, 8, 0, {0}},
    {1, 1, 1, 1, 1, 0, {1}},
    {5, 0, 2, 1, 16, 0, {0}}, /* padding only */
    {70, 3, 2, 1, 5, 0, {2, 0, 61}},
    {300, 1, 4, 2, 64, 0, {300}},
    {666, 10, 4, 1, 128, 0, ODD_LENGTHS},
    {655, 10, 8, 1, 32, 0, ODD_LENGTHS},
    {660, 10, 2, 2, 80, 0, ODD_LENGTHS},
    {700, 10, 4, 2, 96, 0, ODD_LENGTHS},
    {200, 2, 2, 1, 256, 0, {130, 70}},
    {150, 2, 4, 2, 512, 40, {90, 60}},
    {200, 2, 3, 1, 130, 0, {65, 130}}, /* unaligned, the second block of columns almost empty */
    {400, 2, 2, 1, 64, 20, {129, 271}},
    {400, 1, 2, 2, 128, 130, {390}},
    {90, 2, 2, 1, 64, 1, {40, 45}},
    {150, 1, 2, 1, 64, 0, {150}, 40},
    {1030, 1, 1, 1, 64, 0, {1030}},
    {400, 2, 4, 2, 64, 30, {129, 271}, 0, 0, 0.2f}, /* a scale of its own */
    /* heads of 128, whose backward attention_wgmma.h has too: whole blocks, wide groups, windows, padding only */
    {1024, 1, 4, 2, 128, 0, {1024}},
    {1030, 3, 16, 1, 128, 200, {500, 1, 520}},
    {700, 2, 6, 3, 128, 64, {129, 555}, 0, 0, 0.2f},
    {300, 1, 2, 1, 128, 0, {290}, 40},
    {5, 0, 2, 1, 128, 0, {0}},
    /* capped scores: hardly, half and nearly all the way */
    {70, 3, 2, 1, 5, 0, {2, 0, 61}, 0, 1},
    {300, 1, 4, 2, 64, 0, {300}, 0, 50},
    {90, 2, 2, 1, 64, 1, {40, 45}, 0, 20},
    {655, 10, 4, 1, 96, 40, ODD_LENGTHS, 0, 3},
    {666, 10, 4, 2, 128, 0, ODD_LENGTHS, 0, 2},
    {200, 2, 3, 1, 130, 33, {65, 130}, 0, 5},
    {200, 2, 8, 4, 256, 0, {130, 70}, 0, 50, 0.0625f},
    {200, 2, 2, 1, 256, 50, {130, 70}, 0, 1.5f},
    {150, 2, 4, 2, 512, 40, {90, 60}, 0, 3},
    {150, 1, 2, 1, 64, 0, {150}, 8, 30},
    /* values of another size: DeepSeek-V3's, within one width of kernels, wider than keys, odd, capped */
    {666, 10, 4, 4, 192, 0, ODD_LENGTHS, 0, 0, 0, 128},
    {1030, 1, 2, 1, 192, 0, {1030}, 0, 0, 0.1f, 128},
    {400, 2, 4, 2, 192, 30, {129, 271}, 0, 0, 0, 96},
    {300, 1, 2, 2, 160, 0, {290}, 0, 0, 0, 64},
    {655, 10, 4, 4, 24, 0, ODD_LENGTHS, 0, 0, 0, 16},
    {400, 2, 4, 2, 64, 20, {129, 271}, 0, 0, 0, 128},
    {300, 1, 2, 2, 192, 0, {300}, 0, 0, 0, 192},
    {200, 2, 3, 1, 130, 0, {65, 130}, 0, 0, 0, 33},
    {200, 2, 2, 1, 40, 0, {65, 130}, 0, 0, 0, 300},
    {70, 3, 2, 1, 5, 0, {2, 0, 61}, 0, 1, 0, 7},
    {200, 2, 2, 2, 192, 0, {65, 130}, 0, 5, 0, 128},
    /* sinks: of every kernel, with windows, groups, empty documents, a cap, far above the scores */
    {1, 1, 1, 1, 1, 0, {1}, 0, 0, 0, 0, 2},
    {5, 0, 2, 1, 16, 0, {0}, 0, 0, 0, 0, 2}, /* padding only */
    {70, 3, 2, 1, 5, 0, {2, 0, 61}, 0, 0, 0, 0, 2},
    {666, 10, 8, 1, 64, 0, ODD_LENGTHS, 0, 0, 0, 0, 3},
    {666, 10, 8, 1, 64, 128, ODD_LENGTHS, 0, 0, 0, 0, 3},
    {400, 1, 2, 2, 128, 130, {390}, 0, 0, 0, 0, 30},
    {700, 10, 4, 2, 96, 0, ODD_LENGTHS, 0, 0, 0.2f, 0, 1},
    {90, 2, 2, 1, 64, 1, {40, 45}, 0, 20, 0, 0, 2},
    {200, 2, 3, 1, 130, 33, {65, 130}, 0, 5, 0, 0, 2},
    {150, 2, 4, 2, 512, 40, {90, 60}, 0, 0, 0, 0, 2},
    {150, 1, 2, 1, 64, 0, {150}, 40, 0, 0, 0, 40},
};

static int64_t values_of(const attention_case *c)
{
    return c->v_dim ? c->v_dim : c->dim;
}

/* ---- one case: data, what is wanted, what the device has ---- */

typedef struct {
    const attention_case *c;
    tsr_dtype dtype;
    int32_t cu_seqlens[MAX_DOCUMENTS + 1];
    int64_t q_count, k_count, v_count, o_count, lse_count;
    float *q, *k, *v, *d_o;        /* rounded to dtype */
    float *sinks;                  /* rounded to dtype, to bf16 for fp16; or NULL */
    float *o, *lse, *dq, *dk, *dv; /* wanted */
    const void *dev_q, *dev_k, *dev_v, *dev_d_o, *dev_cu, *dev_sinks;
    bool transposed; /* lse is [tokens, heads] */
} problem;

/* Rows of no document become `value`. */
static void set_padding(const problem *p, float *rows, int64_t width, float value)
{
    for (int64_t i = p->cu_seqlens[p->c->documents] * width; i < p->c->tokens * width; i++)
        rows[i] = value;
}

/* What a call reads and writes, on the host or on the device. */
typedef struct {
    const void *q, *k, *v, *d_o, *cu_seqlens;
    void *o, *dq, *dk, *dv, *workspace;
    float *lse;
    uint64_t workspace_bytes;
    tsr_dtype dtype;
    tsr_frozen sinks;
} operands;

static tsr_attention_shape shape_of(const attention_case *c, const operands *x)
{
    return (tsr_attention_shape){.cu_seqlens = x->cu_seqlens,
                                 .workspace = x->workspace,
                                 .workspace_bytes = x->workspace_bytes,
                                 .tokens = c->tokens,
                                 .documents = c->documents,
                                 .q_heads = c->q_heads,
                                 .kv_heads = c->kv_heads,
                                 .head_dim = c->dim,
                                 .v_dim = c->v_dim,
                                 .window = c->window,
                                 .scale = c->scale,
                                 .sinks = x->sinks,
                                 .softcap = c->softcap,
                                 .dtype = x->dtype};
}

static tsr_attention_args forward_of(const attention_case *c, const operands *x)
{
    return (tsr_attention_args){
        .q = x->q, .k = x->k, .v = x->v, .o = x->o, .lse = x->lse, .shape = shape_of(c, x)};
}

static tsr_attention_backward_args backward_of(const attention_case *c, const operands *x)
{
    return (tsr_attention_backward_args){.q = x->q,
                                         .k = x->k,
                                         .v = x->v,
                                         .o = x->o,
                                         .d_o = x->d_o,
                                         .lse = x->lse,
                                         .dq = x->dq,
                                         .dk = x->dk,
                                         .dv = x->dv,
                                         .shape = shape_of(c, x)};
}

static void want(problem *p)
{
    uint64_t bytes = (uint64_t)p->lse_count * sizeof(float);
    operands host = {.q = p->q,
                     .k = p->k,
                     .v = p->v,
                     .d_o = p->d_o,
                     .cu_seqlens = p->cu_seqlens,
                     .o = p->o,
                     .dq = p->dq,
                     .dk = p->dk,
                     .dv = p->dv,
                     .workspace = malloc(bytes + 1),
                     .lse = p->lse,
                     .workspace_bytes = bytes,
                     .dtype = TSR_F32,
                     .sinks = {p->sinks, TSR_F32}};
    tsr_attention_args forward = forward_of(p->c, &host);
    tsr_attention_backward_args backward = backward_of(p->c, &host);
    RUN(tsr_attention_ref(&forward, rig.pool));
    RUN(tsr_attention_backward_ref(&backward, rig.pool));
    free(host.workspace);
}

static tsr_dtype sinks_dtype(tsr_dtype dtype)
{
    return dtype == TSR_F32 ? TSR_F32 : TSR_BF16;
}

/* padding: what q, k, v and d_o hold for tokens of no document. */
static void make_problem(problem *p, const attention_case *c, tsr_dtype dtype, float padding)
{
    float size = c->scores != 0 ? c->scores : 1;
    *p = (problem){.c = c,
                   .dtype = dtype,
                   .q_count = c->tokens * c->q_heads * c->dim,
                   .k_count = c->tokens * c->kv_heads * c->dim,
                   .v_count = c->tokens * c->kv_heads * values_of(c),
                   .o_count = c->tokens * c->q_heads * values_of(c),
                   .lse_count = c->tokens * c->q_heads};
    for (int32_t i = 0; i < c->documents; i++)
        p->cu_seqlens[i + 1] = p->cu_seqlens[i] + c->length[i];
    assert_true(p->cu_seqlens[c->documents] <= c->tokens);
    p->q = new_random(p->q_count, 1, 2 * size);
    p->k = new_random(p->k_count, 2, 2 * size);
    p->v = new_random(p->v_count, 3, 1);
    p->d_o = new_random(p->o_count, 4, 1);
    set_padding(p, p->q, c->q_heads * c->dim, padding);
    set_padding(p, p->k, c->kv_heads * c->dim, padding);
    set_padding(p, p->v, c->kv_heads * values_of(c), padding);
    set_padding(p, p->d_o, c->q_heads * values_of(c), padding);
    p->dev_q = cuda_values(p->q, p->q_count, dtype);
    p->dev_k = cuda_values(p->k, p->k_count, dtype);
    p->dev_v = cuda_values(p->v, p->v_count, dtype);
    p->dev_d_o = cuda_values(p->d_o, p->o_count, dtype);
    if (c->sinks > 0) {
        p->sinks = new_random(c->q_heads, 5, 2 * c->sinks);
        p->dev_sinks = cuda_values(p->sinks, c->q_heads, sinks_dtype(dtype));
    }
    p->dev_cu = cuda_copy(p->cu_seqlens, (uint64_t)(c->documents + 1) * sizeof(int32_t));
    p->o = new_floats(p->o_count);
    p->lse = new_floats(p->lse_count);
    p->dq = new_floats(p->q_count);
    p->dk = new_floats(p->k_count);
    p->dv = new_floats(p->v_count);
    want(p);
}

static void free_problem(problem *p)
{
    free(p->q), free(p->k), free(p->v), free(p->d_o), free(p->o), free(p->lse), free(p->dq);
    free(p->dk), free(p->dv), free(p->sinks);
    cuda_free_all();
}

/* ---- one run ---- */

typedef tsr_status forward_function(tsr_stream *, const tsr_attention_args *);
typedef tsr_status backward_function(tsr_stream *, const tsr_attention_backward_args *);

static operands run(const problem *p, forward_function *forward, backward_function *backward,
                    void *workspace, uint64_t workspace_bytes)
{
    uint64_t size = tsr_dtype_bytes(p->dtype);
    operands x = {.q = p->dev_q,
                  .k = p->dev_k,
                  .v = p->dev_v,
                  .d_o = p->dev_d_o,
                  .cu_seqlens = p->dev_cu,
                  .o = cuda_copy(NULL, (uint64_t)p->o_count * size),
                  .dq = cuda_copy(NULL, (uint64_t)p->q_count * size),
                  .dk = cuda_copy(NULL, (uint64_t)p->k_count * size),
                  .dv = cuda_copy(NULL, (uint64_t)p->v_count * size),
                  .workspace = workspace,
                  .lse = cuda_copy(NULL, (uint64_t)p->lse_count * sizeof(float)),
                  .workspace_bytes = workspace_bytes,
                  .dtype = p->dtype,
                  .sinks = {p->dev_sinks, sinks_dtype(p->dtype)}};
    tsr_attention_args forward_args = forward_of(p->c, &x);
    tsr_attention_backward_args backward_args = backward_of(p->c, &x);
    RUN(tsr_stream_fill(rig.stream, workspace, 0xff, workspace_bytes));
    RUN(forward(rig.stream, &forward_args));
    RUN(tsr_stream_fill(rig.stream, workspace, 0xff, workspace_bytes));
    RUN(backward(rig.stream, &backward_args));
    cuda_wait();
    return x;
}

static void expect_same(const char *what, const void *a, const void *b, uint64_t bytes)
{
    void *left = malloc(bytes + 1), *right = malloc(bytes + 1);
    cuda_read(left, a, bytes);
    cuda_read(right, b, bytes);
    if (memcmp(left, right, bytes) != 0)
        fail_msg("%s: other bits the second time", what);
    free(left), free(right);
}

static void expect_lse(const problem *p, const float *device)
{
    float *got = cuda_floats(device, p->lse_count, TSR_F32);
    double *exact = new_doubles(p->lse, p->lse_count);
    if (p->transposed)
        for (int64_t t = 0; t < p->c->tokens; t++)
            for (int64_t h = 0; h < p->c->q_heads; h++)
                exact[t * p->c->q_heads + h] = (double)p->lse[h * p->c->tokens + t];
    expect_near("lse", got, exact, p->lse_count, tolerance_attention.f32, 1);
    free(got), free(exact);
}

/* `repeats`: the bits of both runs are the same, of dq too. */
static void compare(const problem *p, const operands *first, const operands *second, bool repeats)
{
    uint64_t size = tsr_dtype_bytes(p->dtype);
    /* Scores 1600 times as large are rounded that much coarser. */
    double loose = p->c->scores > 1 ? 200 : 1;
    double forward = tolerance_of(tolerance_attention, p->dtype);
    double backward = tolerance_of(tolerance_attention_backward, p->dtype);
    if (p->dtype != TSR_F32) /* <do, o> of a rounded o, times rows of q and k */
        loose = loose > 1 ? 20 : 1;
    cuda_expect("o", first->o, p->o, p->o_count, p->dtype, forward * loose, 1e-30);
    expect_lse(p, first->lse);
    cuda_expect("dq", first->dq, p->dq, p->q_count, p->dtype, backward * loose, LEAST);
    cuda_expect("dk", first->dk, p->dk, p->k_count, p->dtype, backward * loose, LEAST);
    cuda_expect("dv", first->dv, p->dv, p->v_count, p->dtype, backward * loose, 1e-30);
    expect_same("o", first->o, second->o, (uint64_t)p->o_count * size);
    expect_same("lse", first->lse, second->lse, (uint64_t)p->lse_count * sizeof(float));
    if (repeats)
        expect_same("dq", first->dq, second->dq, (uint64_t)p->q_count * size);
    expect_same("dk", first->dk, second->dk, (uint64_t)p->k_count * size);
    expect_same("dv", first->dv, second->dv, (uint64_t)p->v_count * size);
}

/* ---- the own kernels ---- */

static tsr_status backward_wgmma(tsr_stream *stream, const tsr_attention_backward_args *args)
{
    return tsr_attention_backward_wgmma(stream, args, false);
}

/* All key heads in one launch, and one after the other: the same bits. */
static void check_wgmma(const problem *p, const tsr_attention_bounds *bounds)
{
    uint64_t head =
        (uint64_t)(p->c->q_heads / p->c->kv_heads * ((p->c->tokens + 127) / 128)) * 128 * 512;
    uint64_t all = tsr_attention_wgmma_workspace_bytes(bounds);
    uint64_t least = all - (uint64_t)(p->c->kv_heads - 1) * head;
    void *workspace = cuda_copy(NULL, all);
    operands first = run(p, tsr_attention_own, backward_wgmma, workspace, all);
    operands second = run(p, tsr_attention_own, backward_wgmma, workspace, least);
    compare(p, &first, &second, true);
}

static void own_kernel_matches_the_reference(void **state)
{
    (void)state;
    const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (size_t i = 0; i < sizeof own_cases / sizeof *own_cases; i++)
        for (size_t j = 0; j < sizeof dtypes / sizeof *dtypes; j++) {
            const attention_case *c = &own_cases[i];
            problem p;
            if (!cuda_turn())
                continue;
            print_message("own kernel, case %zu, %s\n", i, tsr_dtype_name(dtypes[j]));
            make_problem(&p, c, dtypes[j], NAN); /* padding is never read */
            tsr_attention_bounds bounds = {.tokens = c->tokens,
                                           .q_heads = c->q_heads,
                                           .kv_heads = c->kv_heads,
                                           .head_dim = c->dim,
                                           .v_dim = c->v_dim,
                                           .softcap = c->softcap,
                                           .dtype = dtypes[j],
                                           .train = true};
            uint64_t bytes = tsr_attention_own_workspace_bytes(&bounds);
            void *workspace = cuda_copy(NULL, bytes);
            operands first =
                run(&p, tsr_attention_own, tsr_attention_backward_own, workspace, bytes);
            operands second =
                run(&p, tsr_attention_own, tsr_attention_backward_own, workspace, bytes);
            compare(&p, &first, &second, true);
            if (tsr_attention_wgmma_fits(&bounds) && tsr_kernels_kept(rig.stream)->boxes)
                check_wgmma(&p, &bounds);
            free_problem(&p);
        }
}

/* ---- cuDNN ---- */

#define OWN 1

typedef struct {
    attention_case c;
    int64_t tokens, documents, longest; /* bounds above the case's own; 0: its own */
    int launches;                       /* of the backward; 0: as few as there can be */
    bool atomics;
    int64_t span; /* of tiles; 0: none; OWN: the backward is attention_wgmma.h's */
} cudnn_case;

static const cudnn_case cudnn_cases[] = {
    {{1024, 1, 4, 2, 128, 0, {1024}}, 0, 0, 0, 0},
    {{666, 10, 8, 2, 128, 0, ODD_LENGTHS}, 0, 0, 0, 0},
    {{655, 10, 8, 2, 128, 0, ODD_LENGTHS}, 2000, 21, 1000, 0}, /* unused documents */
    {{700, 10, 4, 4, 64, 0, ODD_LENGTHS}, 0, 0, 0, 0},
    {{665, 10, 8, 1, 96, 400, ODD_LENGTHS}, 0, 0, 0, 0}, /* a window that hides nothing */
    {{665, 10, 8, 4, 128, 0, ODD_LENGTHS}, 0, 0, 0, 4},  /* pieces */
    {{600, 2, 16, 4, 128, 0, {300, 257}}, 0, 0, 0, 4},   /* documents by groups of heads */
    {{400, 0, 8, 2, 128, 0, {0}}, 0, 10, 300, 0},        /* padding only */
    {{666, 10, 8, 2, 128, 0, ODD_LENGTHS}, 0, 0, 0, 0, true},
    {{655, 10, 8, 2, 96, 0, ODD_LENGTHS}, 2000, 21, 1000, 0, true}, /* unused documents */
    {{700, 10, 4, 4, 64, 0, ODD_LENGTHS}, 0, 0, 0, 0, true},
    {{665, 10, 8, 4, 128, 0, ODD_LENGTHS}, 0, 0, 0, 4, true}, /* pieces */
    {{600, 2, 16, 4, 128, 0, {300, 257}}, 0, 0, 0, 4, true},  /* groups of heads */
    {{400, 0, 8, 2, 128, 0, {0}}, 0, 10, 300, 0, true},       /* padding only */
    /* DeepSeek-V3's heads: whole, unused documents, pieces, groups of heads, padding only, with atomics */
    {{666, 10, 8, 8, 192, 0, ODD_LENGTHS, 0, 0, 0, 128}, 0, 0, 0, 0},
    {{655, 10, 8, 8, 192, 0, ODD_LENGTHS, 0, 0, 0.1f, 128}, 2000, 21, 1000, 0},
    {{665, 10, 8, 8, 192, 0, ODD_LENGTHS, 0, 0, 0, 128}, 0, 0, 0, 4},
    {{600, 2, 16, 16, 192, 0, {300, 257}, 0, 0, 0, 128}, 0, 0, 0, 4},
    {{400, 0, 8, 8, 192, 0, {0}, 0, 0, 0, 128}, 0, 10, 300, 0},
    {{666, 10, 8, 8, 192, 0, ODD_LENGTHS, 0, 0, 0, 128}, 0, 0, 0, 0, true},
    /* sinks */
    {{655, 10, 8, 2, 128, 0, ODD_LENGTHS, 0, 0, 0, 0, 2}, 2000, 21, 1000, 0},
    {{700, 10, 8, 1, 64, 0, ODD_LENGTHS, 0, 0, 0, 0, 3}, 0, 0, 0, 0},
    {{665, 10, 8, 1, 96, 400, ODD_LENGTHS, 0, 0, 0.2f, 0, 6}, 0, 0, 0, 0},
    {{600, 2, 16, 4, 128, 0, {300, 257}, 0, 0, 0, 0, 2}, 0, 0, 0, 4},
    {{400, 0, 8, 2, 128, 0, {0}, 0, 0, 0, 0, 2}, 0, 10, 300, 0},
    {{700, 10, 8, 1, 64, 0, ODD_LENGTHS, 0, 0, 0, 0, 3}, 0, 0, 0, 0, true},
    /* tiles: whole spans, a rest, several documents, unused ones, other heads, sinks, padding only */
    {{1024, 1, 8, 2, 96, 0, {1024}}, 0, 0, 0, 0, false, 256},
    {{1010, 1, 8, 2, 96, 0, {1001}}, 0, 0, 0, 0, false, 128},
    {{1401, 4, 8, 2, 64, 0, {300, 0, 1000, 1}}, 0, 0, 0, 0, false, 256},
    {{1400, 2, 16, 4, 96, 0, {300, 1000}}, 2000, 3, 1100, 0, false, 256},
    {{700, 1, 8, 8, 64, 0, {700}}, 0, 0, 0, 0, false, 128},
    {{900, 2, 8, 8, 192, 0, {129, 770}, 0, 0, 0.1f, 128}, 0, 0, 0, 0, false, 256},
    {{900, 2, 8, 1, 64, 0, {700, 200}, 0, 0, 0, 0, 3}, 0, 0, 0, 0, false, 256},
    {{400, 0, 8, 2, 96, 0, {0}}, 0, 3, 400, 0, false, 128},
    {{700, 1, 8, 8, 96, 0, {700}}, 0, 0, 0, 0, false, 128},
    {{700, 1, 8, 8, 64, 0, {700}}, 0, 0, 0, 0, false, 256},
    {{700, 1, 8, 2, 64, 0, {700}}, 0, 0, 0, 0, false, 128},
    {{700, 1, 8, 8, 96, 0, {700}}, 0, 0, 0, 0, false, 256},
    /* too long for a launch, heads of 128: several documents, unused ones, sinks, padding only */
    {{1401, 4, 8, 2, 128, 0, {300, 0, 1000, 1}}, 0, 0, 0, 0, false, OWN},
    {{1400, 2, 16, 1, 128, 0, {300, 1000}}, 2000, 3, 1100, 0, false, OWN},
    {{900, 2, 8, 8, 128, 900, {700, 200}, 0, 0, 0.1f, 0, 3}, 0, 0, 0, 0, false, OWN},
    {{400, 0, 8, 2, 128, 0, {0}}, 0, 3, 400, 0, false, OWN},
};

static tsr_attention_bounds bounds_of(const cudnn_case *c)
{
    tsr_attention_bounds b = {.tokens = c->tokens ? c->tokens : c->c.tokens,
                              .documents = c->documents ? c->documents : c->c.documents,
                              .longest = c->longest,
                              .q_heads = c->c.q_heads,
                              .kv_heads = c->c.kv_heads,
                              .head_dim = c->c.dim,
                              .v_dim = c->c.v_dim,
                              .dtype = TSR_BF16,
                              .train = true,
                              .atomics = c->atomics};
    for (int32_t i = 0; i < c->c.documents; i++)
        b.longest = c->c.length[i] > b.longest ? c->c.length[i] : b.longest;
    return b;
}

/* The largest cap that makes at least `launches` of them. */
static uint64_t cap_for(const tsr_attention_bounds *bounds, int launches)
{
    uint64_t cap = TSR_SDPA_CAP_BYTES;
    tsr_sdpa_cut cut;
    assert_true(tsr_sdpa_cut_for(&cut, bounds, cap));
    while (cut.pieces * cut.groups < launches && cap > 1) {
        cap -= cap / 16 + 1;
        assert_true(tsr_sdpa_cut_for(&cut, bounds, cap));
    }
    return cap;
}

/* The largest cap that makes tiles of at most `span`, or none but the own backward. */
static uint64_t cap_for_tiles(const tsr_attention_bounds *bounds, int64_t span)
{
    uint64_t cap = TSR_SDPA_CAP_BYTES;
    tsr_sdpa_cut cut;
    do {
        cap -= cap / 16 + 1;
        assert_true(tsr_sdpa_cut_for(&cut, bounds, cap));
    } while (span == OWN ? !cut.own_bytes : !cut.span || cut.span > span);
    assert_int_equal(cut.span, span == OWN ? 0 : span);
    return cap;
}

static tsr_sdpa *open_sdpa(void)
{
    tsr_sdpa *sdpa = tsr_kernels_kept(rig.stream)->sdpa;
    if (!sdpa) {
        print_message("cuDNN is not in this build, or not used on this card\n");
        skip();
    }
    return sdpa;
}

static void check_cudnn(tsr_sdpa *sdpa, const cudnn_case *c)
{
    problem p;
    tsr_sdpa_cut cut;
    tsr_attention_bounds bounds = bounds_of(c);
    uint64_t cap = c->span ? cap_for_tiles(&bounds, c->span) : cap_for(&bounds, c->launches);
    assert_true(tsr_sdpa_cut_for(&cut, &bounds, cap));
    RUN(tsr_sdpa_prepare_within(sdpa, &bounds, cap));
    tsr_attention_shape shape = shape_of(&c->c, &(operands){.dtype = TSR_BF16});
    if (!tsr_sdpa_find(sdpa, &shape) && c->c.v_dim) {
        print_message("cuDNN has no plan for heads of %d and %d: not run\n", c->c.dim, c->c.v_dim);
        return;
    }
    if (!tsr_sdpa_find(sdpa, &shape))
        fail_msg("cuDNN gave no plan");
    shape.window = 3;
    assert_null(tsr_sdpa_find(sdpa, &shape));
    shape.window = 0, shape.softcap = 30;
    assert_null(tsr_sdpa_find(sdpa, &shape));
    make_problem(&p, &c->c, TSR_BF16, 3);
    p.transposed = true;
    uint64_t bytes = tsr_sdpa_workspace_bytes(&cut);
    void *workspace = cuda_copy(NULL, bytes);
    operands last =
        run(&p, rig.kernels->attention, rig.kernels->attention_backward, workspace, bytes);
    for (int i = 0; i < 3; i++) {
        operands next =
            run(&p, rig.kernels->attention, rig.kernels->attention_backward, workspace, bytes);
        compare(&p, &last, &next, !c->atomics);
        last = next;
    }
    free_problem(&p);
}

/* How a backward is cut into launches changes no bit. */
static void cuts_give_the_same_bits(void **state)
{
    (void)state;
    tsr_sdpa *sdpa = open_sdpa();
    operands first = {0};
    problem p;
    cudnn_case c = {{600, 2, 16, 4, 128, 0, {300, 257}}, 0, 0, 0, 0, false};
    make_problem(&p, &c.c, TSR_BF16, 3);
    p.transposed = true;
    for (c.launches = 0; c.launches <= 8; c.launches += 4) {
        tsr_sdpa_cut cut;
        tsr_attention_bounds bounds = bounds_of(&c);
        bounds.tokens += c.launches; /* plans of its own */
        uint64_t cap = cap_for(&bounds, c.launches);
        assert_true(tsr_sdpa_cut_for(&cut, &bounds, cap));
        assert_true(cut.pieces * cut.groups >= c.launches);
        RUN(tsr_sdpa_prepare_within(sdpa, &bounds, cap));
        uint64_t bytes = tsr_sdpa_workspace_bytes(&cut);
        operands x = run(&p, rig.kernels->attention, rig.kernels->attention_backward,
                         cuda_copy(NULL, bytes), bytes);
        first = c.launches ? first : x;
        compare(&p, &first, &x, true);
    }
    free_problem(&p);
}

static void cudnn_matches_the_reference(void **state)
{
    (void)state;
    tsr_sdpa *sdpa = open_sdpa();
    for (size_t i = 0; i < sizeof cudnn_cases / sizeof *cudnn_cases; i++) {
        if (!cuda_turn())
            continue;
        print_message("cuDNN, case %zu\n", i);
        check_cudnn(sdpa, &cudnn_cases[i]);
    }
}

/* Shapes that cuDNN has plans for, but with capped scores, which it has not: both directions by the own kernel. */
static void capped_scores_pass_cudnn_by(void **state)
{
    (void)state;
    tsr_sdpa *sdpa = open_sdpa();
    cudnn_case c = {{655, 10, 8, 2, 128, 0, ODD_LENGTHS}, 0, 0, 0, 0, false};
    tsr_attention_bounds bounds = bounds_of(&c);
    RUN(tsr_sdpa_prepare_within(sdpa, &bounds, cap_for(&bounds, 0)));
    c.c.softcap = 2;
    problem p;
    make_problem(&p, &c.c, TSR_BF16, NAN);
    bounds.softcap = c.c.softcap;
    uint64_t bytes = rig.kernels->attention_workspace_bytes(&bounds);
    void *workspace = cuda_copy(NULL, bytes);
    operands first =
        run(&p, rig.kernels->attention, rig.kernels->attention_backward, workspace, bytes);
    operands second =
        run(&p, rig.kernels->attention, rig.kernels->attention_backward, workspace, bytes);
    compare(&p, &first, &second, true);
    free_problem(&p);
}

/* Values of another size than keys are the own kernel's, whatever was prepared; but 192 and 128 columns. */
static void other_values_pass_cudnn_by(void **state)
{
    (void)state;
    tsr_attention_bounds b = {.tokens = 1024,
                              .documents = 1,
                              .longest = 1024,
                              .q_heads = 4,
                              .kv_heads = 4,
                              .head_dim = 128,
                              .v_dim = 64,
                              .dtype = TSR_BF16,
                              .train = true};
    tsr_sdpa_cut cut;
    assert_false(tsr_sdpa_cut_for(&cut, &b, TSR_SDPA_CAP_BYTES));
    tsr_sdpa *sdpa = open_sdpa();
    b.v_dim = 0;
    RUN(tsr_sdpa_prepare(sdpa, &b));
    tsr_attention_shape shape = {.tokens = 1024,
                                 .documents = 1,
                                 .q_heads = 4,
                                 .kv_heads = 4,
                                 .head_dim = 128,
                                 .dtype = TSR_BF16};
    assert_non_null(tsr_sdpa_find(sdpa, &shape));
    shape.v_dim = 64;
    assert_null(tsr_sdpa_find(sdpa, &shape));
}

/* ---- refusals ---- */

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    static const attention_case c = {30, 1, 2, 1, 16, 0, {30}};
    problem p;
    make_problem(&p, &c, TSR_F32, 0);
    operands x = {.q = p.dev_q,
                  .k = p.dev_k,
                  .v = p.dev_v,
                  .d_o = p.dev_d_o,
                  .cu_seqlens = p.dev_cu,
                  .o = (void *)p.dev_q,
                  .dq = (void *)p.dev_q,
                  .dk = (void *)p.dev_k,
                  .dv = (void *)p.dev_v,
                  .lse = (float *)p.dev_q,
                  .dtype = TSR_F32};
    tsr_attention_backward_args args = backward_of(&c, &x);
    assert_int_equal(rig.kernels->attention_backward(rig.stream, &args), TSR_EINVAL);
    args.shape.kv_heads = 3;
    assert_int_equal(rig.kernels->attention_backward(rig.stream, &args), TSR_EINVAL);
    tsr_attention_args wide = forward_of(&(attention_case){1, 1, 1, 1, 520}, &x);
    assert_int_equal(rig.kernels->attention(rig.stream, &wide), TSR_EUNSUPPORTED);
    wide.shape.head_dim = 8, wide.shape.v_dim = 520;
    assert_int_equal(rig.kernels->attention(rig.stream, &wide), TSR_EUNSUPPORTED);
    cuda_wait();
    free_problem(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_kernel_matches_the_reference),
        cmocka_unit_test(cudnn_matches_the_reference),
        cmocka_unit_test(capped_scores_pass_cudnn_by),
        cmocka_unit_test(other_values_pass_cudnn_by),
        cmocka_unit_test(cuts_give_the_same_bits),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
