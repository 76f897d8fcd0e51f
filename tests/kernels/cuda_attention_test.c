/*
 * cuda_attention_test.c: see cuda_attention_test.h.
 */
#include "cuda_attention_test.h"

#define LEAST 0.1 /* gradients that cancel to 0 keep the noise of terms near 1 */

static int64_t values_of(const attention_case *c)
{
    return c->v_dim ? c->v_dim : c->dim;
}

/* ---- one case: data, what is wanted, what the device has ---- */

/* Rows of no document become `value`. */
static void set_padding(const problem *p, float *rows, int64_t width, float value)
{
    for (int64_t i = p->cu_seqlens[p->c->documents] * width; i < p->c->tokens * width; i++)
        rows[i] = value;
}

/* One token in the first third of the rows becomes `times` as large. */
static void stretch(const problem *p, float *rows, int64_t width, float times)
{
    for (int64_t i = 0; times != 0 && i < width; i++)
        rows[p->c->tokens / 3 * width + i] *= times;
}

tsr_attention_shape shape_of(const attention_case *c, const operands *x)
{
    return (tsr_attention_shape){.cu_seqlens = x->cu_seqlens,
                                 .workspace = x->workspace,
                                 .workspace_bytes = x->workspace_bytes,
                                 .tokens = c->tokens,
                                 .documents = c->documents,
                                 .q_heads = c->q_heads,
                                 .kv_heads = c->kv_heads,
                                 .all_kv_heads = x->all_kv_heads,
                                 .head_dim = c->dim,
                                 .v_dim = c->v_dim,
                                 .window = c->window,
                                 .scale = c->scale,
                                 .sinks = x->sinks,
                                 .softcap = c->softcap,
                                 .spans = x->spans,
                                 .sum = x->sum,
                                 .dtype = x->dtype};
}

tsr_attention_args forward_of(const attention_case *c, const operands *x)
{
    return (tsr_attention_args){
        .q = x->q, .k = x->k, .v = x->v, .o = x->o, .lse = x->lse, .shape = shape_of(c, x)};
}

tsr_attention_backward_args backward_of(const attention_case *c, const operands *x)
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

void make_problem(problem *p, const attention_case *c, tsr_dtype dtype, float padding)
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
    stretch(p, p->k, c->kv_heads * c->dim, c->long_key);
    stretch(p, p->v, c->kv_heads * values_of(c), c->long_value);
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

void free_problem(problem *p)
{
    free(p->q), free(p->k), free(p->v), free(p->d_o), free(p->o), free(p->lse), free(p->dq);
    free(p->dk), free(p->dv), free(p->sinks);
    cuda_free_all();
}

/* ---- one run ---- */

/* With outputs of NaN. */
static operands new_operands(const problem *p, void *workspace, uint64_t workspace_bytes)
{
    uint64_t size = tsr_dtype_bytes(p->dtype);
    return (operands){.q = p->dev_q,
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
}

static void run_into(const problem *p, const operands *x, forward_function *forward,
                     backward_function *backward)
{
    tsr_attention_args forward_args = forward_of(p->c, x);
    tsr_attention_backward_args backward_args = backward_of(p->c, x);
    RUN(tsr_stream_fill(rig.stream, x->workspace, 0xff, x->workspace_bytes));
    RUN(forward(rig.stream, &forward_args));
    RUN(tsr_stream_fill(rig.stream, x->workspace, 0xff, x->workspace_bytes));
    backward_args.delta = x->delta;
    if (x->delta)
        backward_args.o = NULL;
    RUN(backward(rig.stream, &backward_args));
    cuda_wait();
}

operands run(const problem *p, forward_function *forward, backward_function *backward,
             void *workspace, uint64_t workspace_bytes)
{
    operands x = new_operands(p, workspace, workspace_bytes);
    run_into(p, &x, forward, backward);
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

void compare(const problem *p, const operands *first, const operands *second, bool repeats)
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

/* ---- a group of heads ---- */

typedef struct {
    int64_t groups;
    int group;
} head_group;

/* The group's columns of rows whose columns are `count` in all, packed: bits, for which two bytes are a BF16. */
static const void *columns_of(const problem *p, head_group g, const void *rows, int64_t count,
                              tsr_dtype dtype)
{
    int64_t columns = count / p->c->tokens / g.groups;
    uint64_t size = tsr_dtype_bytes(dtype), bytes = (uint64_t)(columns * p->c->tokens) * size;
    const tsr_dtype copied = size == 2 ? TSR_BF16 : dtype;
    tsr_copy_columns_args args = {.out = cuda_copy(NULL, bytes),
                                  .in = (const char *)rows + (uint64_t)(g.group * columns) * size,
                                  .rows = p->c->tokens,
                                  .columns = columns,
                                  .out_stride = columns,
                                  .in_stride = columns * g.groups,
                                  .in_dtype = copied,
                                  .dtype = copied,
                                  .scale = 1};
    RUN(rig.kernels->copy_columns(rig.stream, &args));
    cuda_wait();
    return args.out;
}

static void expect_columns(const problem *p, head_group g, const char *what, const void *got,
                           const void *whole, int64_t count)
{
    expect_same(what, got, columns_of(p, g, whole, count, p->dtype),
                (uint64_t)(count / g.groups) * tsr_dtype_bytes(p->dtype));
}

static const float *delta_of(const problem *p, const void *o)
{
    float *out = cuda_copy(NULL, (uint64_t)p->lse_count * sizeof *out);
    tsr_attention_delta_args args = {.out = out,
                                     .o = o,
                                     .d_o = p->dev_d_o,
                                     .tokens = p->c->tokens,
                                     .q_heads = p->c->q_heads,
                                     .v_dim = (int32_t)values_of(p->c),
                                     .dtype = p->dtype};
    RUN(rig.kernels->attention_delta(rig.stream, &args));
    return out;
}

static void check_group(const problem *p, head_group g, const operands *whole,
                        forward_function *forward, backward_function *backward)
{
    attention_case c = *p->c;
    problem part = *p;
    uint64_t sinks = tsr_dtype_bytes(sinks_dtype(p->dtype));
    c.q_heads /= (int32_t)g.groups, c.kv_heads /= (int32_t)g.groups;
    part.c = &c;
    part.dev_q = columns_of(p, g, p->dev_q, p->q_count, p->dtype);
    part.dev_k = columns_of(p, g, p->dev_k, p->k_count, p->dtype);
    part.dev_v = columns_of(p, g, p->dev_v, p->v_count, p->dtype);
    part.dev_d_o = columns_of(p, g, p->dev_d_o, p->o_count, p->dtype);
    if (p->dev_sinks)
        part.dev_sinks = (const char *)p->dev_sinks + (uint64_t)(g.group * c.q_heads) * sinks;
    part.q_count /= g.groups, part.k_count /= g.groups, part.v_count /= g.groups;
    part.o_count /= g.groups, part.lse_count /= g.groups;
    operands x = new_operands(&part, whole->workspace, whole->workspace_bytes);
    x.all_kv_heads = p->c->kv_heads;
    if (g.group % 2)
        x.delta = columns_of(p, g, delta_of(p, whole->o), p->lse_count, TSR_F32);
    run_into(&part, &x, forward, backward);
    const float *lse = p->transposed ? columns_of(p, g, whole->lse, p->lse_count, TSR_F32)
                                     : whole->lse + g.group * part.lse_count;
    expect_same("lse of a group", x.lse, lse, (uint64_t)part.lse_count * sizeof(float));
    expect_columns(p, g, "o of a group", x.o, whole->o, p->o_count);
    expect_columns(p, g, "dq of a group", x.dq, whole->dq, p->q_count);
    expect_columns(p, g, "dk of a group", x.dk, whole->dk, p->k_count);
    expect_columns(p, g, "dv of a group", x.dv, whole->dv, p->v_count);
}

void check_heads(const problem *p, const operands *whole, forward_function *forward,
                 backward_function *backward, int32_t kv_heads)
{
    head_group g = {p->c->kv_heads / kv_heads, 0};
    for (; g.groups > 1 && g.group < g.groups; g.group++) {
        cuda_mark mark = cuda_arrays();
        check_group(p, g, whole, forward, backward);
        cuda_free_since(mark);
    }
}

/* ---- shared by ranks ---- */

#define MAX_LAUNCHES 64

/* Sums over ranks that run one after the other: each first gives its part, and gets the total the second time. */
typedef struct {
    int32_t *total[MAX_LAUNCHES];
    int launch;
    bool complete, last;
} adder;

static tsr_status add(void *user, tsr_stream *stream, int32_t *values, uint64_t count,
                      tsr_stream **rest)
{
    adder *a = user;
    assert_false(a->last); /* nothing comes after that */
    a->last = rest != NULL;
    if (rest)
        *rest = stream;
    assert_true(a->launch < MAX_LAUNCHES);
    int32_t *host = malloc(count * sizeof *host), **total = &a->total[a->launch++];
    RUN(tsr_stream_synchronize(stream));
    cuda_read(host, values, count * sizeof *host);
    if (a->complete)
        RUN(tsr_device_write(rig.device, values, *total, count * sizeof *host));
    else if (!*total)
        *total = calloc(count, sizeof **total);
    for (uint64_t i = 0; !a->complete && i < count; i++)
        (*total)[i] += host[i];
    free(host);
    return TSR_OK;
}

/* `parts` values of each token at rows of its own; by_head: one value each, [heads, tokens]. */
static void expect_own(const problem *p, const char *what, const tsr_spans *spans, const void *got,
                       const void *want, uint64_t bytes, int64_t heads, bool by_head)
{
    uint64_t all = bytes * (uint64_t)(heads * p->c->tokens);
    char *left = malloc(all + 1), *right = malloc(all + 1);
    cuda_read(left, got, all);
    cuda_read(right, want, all);
    for (int64_t i = 0; i < heads * p->c->tokens; i++) {
        int64_t token = by_head ? i % p->c->tokens : i / heads;
        uint64_t at = (uint64_t)i * bytes;
        if (tsr_row_is_own(spans, token) && memcmp(left + at, right + at, bytes) != 0)
            fail_msg("%s of token %lld has other bits on rank %d of %d", what, (long long)token,
                     spans->rank, spans->ranks);
    }
    free(left), free(right);
}

static void expect_own_rows(const problem *p, const tsr_spans *spans, const operands *got,
                            const operands *want)
{
    const attention_case *c = p->c;
    uint64_t size = tsr_dtype_bytes(p->dtype), dim = (uint64_t)c->dim * size;
    uint64_t wide = (uint64_t)values_of(c) * size;
    expect_own(p, "o", spans, got->o, want->o, wide, c->q_heads, false);
    expect_own(p, "lse", spans, got->lse, want->lse, sizeof(float), c->q_heads, !p->transposed);
    expect_own(p, "dq", spans, got->dq, want->dq, dim, c->q_heads, false);
    expect_own(p, "dk", spans, got->dk, want->dk, dim, c->kv_heads, false);
    expect_own(p, "dv", spans, got->dv, want->dv, wide, c->kv_heads, false);
}

/* A rank's run into outputs of NaN: the backward reads o and lse of all rows. */
static void run_shared(const problem *p, const operands *x, const operands *whole,
                       forward_function *forward, backward_function *backward)
{
    uint64_t size = tsr_dtype_bytes(p->dtype);
    tsr_attention_args forward_args = forward_of(p->c, x);
    tsr_attention_backward_args backward_args = backward_of(p->c, x);
    backward_args.o = x->delta ? NULL : whole->o, backward_args.delta = x->delta;
    backward_args.lse = whole->lse;
    RUN(tsr_stream_fill(rig.stream, x->o, 0xff, (uint64_t)p->o_count * size));
    RUN(tsr_stream_fill(rig.stream, x->lse, 0xff, (uint64_t)p->lse_count * sizeof(float)));
    RUN(tsr_stream_fill(rig.stream, x->dq, 0xff, (uint64_t)p->q_count * size));
    RUN(tsr_stream_fill(rig.stream, x->dk, 0xff, (uint64_t)p->k_count * size));
    RUN(tsr_stream_fill(rig.stream, x->dv, 0xff, (uint64_t)p->v_count * size));
    RUN(tsr_stream_fill(rig.stream, x->workspace, 0xff, x->workspace_bytes));
    RUN(forward(rig.stream, &forward_args));
    RUN(tsr_stream_fill(rig.stream, x->workspace, 0xff, x->workspace_bytes));
    RUN(backward(rig.stream, &backward_args));
    cuda_wait();
}

void check_shared(const problem *p, const operands *whole, forward_function *forward,
                  backward_function *backward, tsr_spans spans)
{
    operands x = new_operands(p, whole->workspace, whole->workspace_bytes);
    x.spans = spans;
    run_shared(p, &x, whole, forward, backward);
    expect_own_rows(p, &spans, &x, whole);
}

void check_ranks(const problem *p, const operands *whole, forward_function *forward,
                 backward_function *backward, int ranks)
{
    adder sum = {0};
    operands x = new_operands(p, whole->workspace, whole->workspace_bytes);
    x.delta = delta_of(p, whole->o);
    for (int turn = 0; turn < 3 * ranks; turn++) {
        x.spans = (tsr_spans){TSR_SPAN_STEP, ranks, turn % ranks};
        if (turn >= ranks)
            x.sum = (tsr_attention_sum){add, &sum};
        sum.launch = 0, sum.last = false, sum.complete = turn >= 2 * ranks;
        run_shared(p, &x, whole, forward, backward);
        if (turn < ranks || sum.complete)
            expect_own_rows(p, &x.spans, &x, whole);
    }
    for (int i = 0; i < MAX_LAUNCHES; i++)
        free(sum.total[i]);
}
