/*
 * test_attention_shared.c: attention of micro-batches that ranks share, some heads at a time: each rank's own rows have the
 * bits of one call that has everything, whatever the groups of heads, and however kernels want lse, o or sums of dq.
 */
#include "model/attention_shared.h"

#include "base/checked.h"
#include "kernels/kernel_test.h"

#include <pthread.h>

#define CASES     30
#define MAX_RANKS 4
#define SPAN      16

/* ---- kernels: the CPU's, which give no more than they promise ---- */

static struct {
    int32_t kv_heads; /* at a time */
    bool by_token, needs_o, sums, by_heads;
} way;

/* [rows, columns] becomes [columns, rows]. */
static void transpose(float *x, int64_t rows, int64_t columns)
{
    float *copy = new_floats(rows * columns);
    memcpy(copy, x, (size_t)(rows * columns) * sizeof *x);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            x[j * rows + i] = copy[i * columns + j];
    free(copy);
}

/* Rows that are other ranks' become NaN. */
static void forget(float *x, const tsr_attention_shape *s, int64_t columns)
{
    for (int64_t i = 0; i < s->tokens; i++)
        if (!tsr_row_is_own(&s->spans, i))
            memset(x + i * columns, 0xff, (size_t)columns * sizeof *x);
}

static tsr_status forward_call(void *opaque, tsr_pool *pool)
{
    const tsr_attention_args *a = opaque;
    const tsr_attention_shape *s = &a->shape;
    TSR_TRY(tsr_attention_ref(a, pool));
    forget(a->o, s, (int64_t)s->q_heads * s->v_dim);
    if (way.by_token)
        transpose(a->lse, s->q_heads, s->tokens);
    return TSR_OK;
}

/* As kernels want it. */
static tsr_status check_boundaries(const void *const *arrays, int count)
{
    for (int i = 0; i < count; i++)
        if ((uintptr_t)arrays[i] % TSR_ALIGNMENT)
            return tsr_fail(TSR_EINTERNAL, "array %d is not on %d bytes", i, TSR_ALIGNMENT);
    return TSR_OK;
}

static tsr_status forward(tsr_stream *stream, const tsr_attention_args *a)
{
    const void *arrays[] = {a->q, a->k, a->v, a->o, a->lse, a->shape.workspace};
    TSR_TRY(check_boundaries(arrays, 6));
    return tsr_stream_call(stream, forward_call, a, sizeof *a);
}

/* Sums of dq are its bits, of a rank's own rows, and 0 elsewhere. */
static uint64_t sum_count(const tsr_attention_shape *s)
{
    return ((uint64_t)s->tokens * (uint64_t)(s->q_heads * s->head_dim) + 1) / 2 * 2;
}

/* What follows is added up in pairs. */
static uint64_t ref_bytes(int64_t tokens, int32_t q_heads)
{
    const tsr_attention_bounds bounds = {.tokens = tokens, .q_heads = q_heads};
    return tsr_align_up(tsr_attention_workspace_bytes(&bounds), sizeof(int64_t));
}

static int32_t *sums_of(const tsr_attention_shape *s)
{
    return (int32_t *)(void *)((char *)s->workspace + ref_bytes(s->tokens, s->q_heads));
}

static tsr_status backward_call(void *opaque, tsr_pool *pool)
{
    const tsr_attention_backward_args *a = opaque;
    const tsr_attention_shape *s = &a->shape;
    int64_t row = (int64_t)s->q_heads * s->head_dim;
    if (way.by_token)
        transpose((float *)a->lse, s->tokens, s->q_heads);
    TSR_TRY(tsr_attention_backward_ref(a, pool));
    if (way.by_heads)
        return TSR_OK;
    forget(a->dk, s, (int64_t)s->kv_heads * s->head_dim);
    forget(a->dv, s, (int64_t)s->kv_heads * s->v_dim);
    if (!way.sums) {
        forget(a->dq, s, row);
        return TSR_OK;
    }
    memset(sums_of(s), 0, sum_count(s) * sizeof(int32_t));
    for (int64_t i = 0; i < s->tokens; i++)
        if (tsr_row_is_own(&s->spans, i))
            memcpy(sums_of(s) + i * row, (float *)a->dq + i * row, (size_t)row * sizeof(float));
    memset(a->dq, 0xff, (size_t)(s->tokens * row) * sizeof(float));
    return TSR_OK;
}

static tsr_status dq_call(void *opaque, tsr_pool *pool)
{
    const tsr_attention_backward_args *a = opaque;
    const tsr_attention_shape *s = &a->shape;
    (void)pool;
    memcpy(a->dq, sums_of(s), (size_t)(s->tokens * s->q_heads * s->head_dim) * sizeof(float));
    return TSR_OK;
}

static tsr_status backward(tsr_stream *stream, const tsr_attention_backward_args *a)
{
    tsr_stream *rest = stream;
    const void *arrays[] = {
        a->q, a->k, a->v, a->o, a->d_o, a->lse, a->dq, a->dk, a->dv, a->delta, a->shape.workspace};
    TSR_TRY(check_boundaries(arrays, 11));
    if ((a->o != NULL) != way.needs_o)
        return tsr_fail(TSR_EINTERNAL, "o and delta are not as they were asked for");
    if (way.by_heads && tsr_spans_shared(&a->shape.spans))
        return tsr_fail(TSR_EINTERNAL, "own heads, and the call is shared");
    TSR_TRY(tsr_stream_call(stream, backward_call, a, sizeof *a));
    if (!way.sums || way.by_heads)
        return TSR_OK;
    TSR_TRY(a->shape.sum.add(a->shape.sum.user, stream, sums_of(&a->shape), sum_count(&a->shape),
                             &rest));
    return tsr_stream_call(rest, dq_call, a, sizeof *a);
}

static uint64_t workspace_bytes(const tsr_attention_bounds *b)
{
    return ref_bytes(b->tokens, b->q_heads) +
           sum_count(&(tsr_attention_shape){
               .tokens = b->tokens, .q_heads = b->q_heads, .head_dim = b->head_dim}) *
               sizeof(int32_t);
}

static bool lse_by_token(const tsr_stream *stream, const tsr_attention_shape *shape)
{
    (void)stream, (void)shape;
    return way.by_token;
}

static tsr_attention_sharing sharing(const tsr_attention_bounds *bounds)
{
    (void)bounds;
    return (tsr_attention_sharing){way.kv_heads, way.needs_o, way.by_heads};
}

/* ---- a random micro-batch ---- */

enum { Q, K, V, D_O, INPUTS, O = INPUTS, D_Q, D_K, D_V, ROWS };

/* Of all rows, or of a rank's own. */
typedef struct {
    float *rows[ROWS], *lse;
} values;

typedef struct {
    tsr_attention_shape shape;
    int32_t cu_seqlens[4];
    int64_t width[ROWS];
    float sinks[48];
    values whole;
} problem;

static uint64_t drawn;

static int32_t draw(int32_t below)
{
    return (int32_t)(tsr_philox_uniform(tsr_philox_at(78, 3, drawn++).word[0]) * (float)below);
}

static void set_widths(problem *p)
{
    const tsr_attention_shape *s = &p->shape;
    const int64_t q = (int64_t)s->q_heads * s->head_dim, k = (int64_t)s->kv_heads * s->head_dim;
    const int64_t o = (int64_t)s->q_heads * s->v_dim, v = (int64_t)s->kv_heads * s->v_dim;
    const int64_t width[ROWS] = {q, k, v, o, o, q, k, v};
    memcpy(p->width, width, sizeof width);
}

static tsr_attention_args ahead_of(const values *v, const tsr_attention_shape *s)
{
    return (tsr_attention_args){v->rows[Q], v->rows[K], v->rows[V], v->rows[O], v->lse, *s};
}

static tsr_attention_backward_args back_of(const values *v, const tsr_attention_shape *s)
{
    tsr_attention_backward_args a = {.lse = v->lse, .shape = *s};
    a.q = v->rows[Q], a.k = v->rows[K], a.v = v->rows[V];
    a.o = v->rows[O], a.d_o = v->rows[D_O];
    a.dq = v->rows[D_Q], a.dk = v->rows[D_K], a.dv = v->rows[D_V];
    return a;
}

/* All of it computed at once. */
static void compute(problem *p)
{
    tsr_attention_shape s = p->shape;
    s.workspace_bytes = ref_bytes(s.tokens, s.q_heads);
    s.workspace = new_floats((int64_t)s.workspace_bytes / 4);
    const tsr_attention_args ahead = ahead_of(&p->whole, &s);
    const tsr_attention_backward_args back = back_of(&p->whole, &s);
    assert_int_equal(tsr_attention_ref(&ahead, test_pool(0)), TSR_OK);
    assert_int_equal(tsr_attention_backward_ref(&back, test_pool(0)), TSR_OK);
    free(s.workspace);
}

/* Of some key heads, times `each`. */
static void make_problem(problem *p, int32_t each)
{
    tsr_attention_shape *s = &p->shape;
    *p = (problem){.cu_seqlens = {0, draw(60), 60 + draw(60), 120 + draw(60)}};
    s->cu_seqlens = p->cu_seqlens;
    s->documents = 3;
    s->tokens = p->cu_seqlens[3] + draw(20);
    s->kv_heads = each * (1 + draw(each > 1 ? 3 : 5));
    s->q_heads = s->kv_heads * (1 + draw(3));
    s->head_dim = 1 + draw(8);
    s->v_dim = 1 + draw(8);
    s->window = draw(2) ? 1 + draw(50) : 0;
    s->softcap = draw(3) ? 0 : 2;
    set_widths(p);
    for (int i = 0; i < ROWS; i++)
        p->whole.rows[i] = new_random(s->tokens * p->width[i], drawn + (uint64_t)i, 2);
    p->whole.lse = new_floats(s->tokens * s->q_heads);
    for (int i = 0; i < 48; i++)
        p->sinks[i] = (float)draw(5) - 2;
    if (draw(2))
        s->sinks = (tsr_frozen){p->sinks, TSR_F32};
    compute(p);
}

static void free_values(values *v)
{
    for (int i = 0; i < ROWS; i++)
        free(v->rows[i]);
    free(v->lse);
}

/* ---- a rank ---- */

typedef struct {
    const problem *p;
    tsr_comm *comm;
    values own;
    int waits, waited; /* as the context tells */
    tsr_status status;
    char message[256];
    pthread_t thread;
} rank_run;

static tsr_status count_wait(void *user, bool over)
{
    rank_run *r = user;
    r->waits += !over, r->waited += over;
    return r->waits - r->waited == !over ? TSR_OK : tsr_fail(TSR_EINTERNAL, "a wait in a wait");
}

static void take_own(rank_run *r, const tsr_spans *spans, int64_t own_tokens)
{
    const problem *p = r->p;
    for (int i = 0; i < ROWS; i++) {
        r->own.rows[i] = new_floats(own_tokens * p->width[i]);
        memset(r->own.rows[i], 0xff, (size_t)(own_tokens * p->width[i]) * sizeof(float));
        for (int64_t row = 0; i < INPUTS && row < p->shape.tokens; row++)
            if (tsr_row_is_own(spans, row))
                memcpy(r->own.rows[i] + tsr_spans_place(spans, row) * p->width[i],
                       p->whole.rows[i] + row * p->width[i], (size_t)p->width[i] * sizeof(float));
    }
    r->own.lse = new_random(tsr_spans_most_rows(spans, p->shape.tokens) * p->shape.q_heads, 1, 1);
}

/* Both directions, of a run whose largest micro-batch is longer than this one. */
static tsr_status run_both(rank_run *r, tsr_context *context, tsr_stream *compute_stream)
{
    tsr_kernels kernels = *tsr_kernels_cpu();
    kernels.attention = forward, kernels.attention_backward = backward;
    kernels.attention_workspace_bytes = workspace_bytes;
    kernels.attention_lse_by_token = lse_by_token;
    kernels.attention_sharing = sharing;
    tsr_attention_shape s = r->p->shape;
    s.spans = tsr_context_spans(context);
    tsr_node node = {.kind = NULL};
    tsr_attention_spec *spec = &node.spec.attention;
    spec->q_heads = s.q_heads, spec->kv_heads = s.kv_heads;
    spec->head_dim = s.head_dim, spec->v_dim = s.v_dim;
    int64_t own_tokens = tsr_spans_own_rows(&s.spans, s.tokens);
    tsr_layer_batch batch = {.tokens = own_tokens, .all_tokens = s.tokens, .shared = context};
    batch.attention.tokens = s.tokens + 2 * SPAN;
    batch.attention.own_tokens = own_tokens + SPAN;
    batch.attention.documents = 3, batch.attention.spans = s.spans;
    batch.attention.dtype = TSR_F32, batch.attention.train = true;
    const tsr_linear_context linears = {.kernels = &kernels, .stream = compute_stream};
    const tsr_pass pass = {.context = &linears, .batch = &batch};
    const tsr_attention_bounds bounds = tsr_attention_bounds_of(&node, batch.attention);
    take_own(r, &s.spans, own_tokens);
    s.workspace_bytes = tsr_attention_shared_bytes(&kernels, &bounds);
    s.workspace = aligned_alloc(TSR_ALIGNMENT, tsr_align_up(s.workspace_bytes, TSR_ALIGNMENT));
    assert_non_null(s.workspace);
    memset(s.workspace, 0xff, s.workspace_bytes);
    const tsr_attention_args ahead = ahead_of(&r->own, &s);
    const tsr_attention_backward_args back = back_of(&r->own, &s);
    tsr_status status = tsr_attention_shared(&pass, &node, &ahead);
    if (status == TSR_OK)
        status = tsr_attention_shared_backward(&pass, &node, &back);
    tsr_status ended = tsr_stream_synchronize(compute_stream);
    free(s.workspace);
    return status < 0 ? status : ended;
}

static void *rank_main(void *opaque)
{
    rank_run *r = opaque;
    const tsr_device_options options = {
        .thread_count = 1, .no_pinning = true, .timeout_seconds = 60};
    tsr_device *device = NULL;
    tsr_stream *compute_stream = NULL, *collectives = NULL;
    tsr_context *context = NULL;
    r->status = tsr_device_create_cpu(&device, &options);
    if (r->status == TSR_OK)
        r->status = tsr_stream_create(&compute_stream, device, "compute");
    if (r->status == TSR_OK)
        r->status = tsr_stream_create(&collectives, device, "comm");
    if (r->status == TSR_OK)
        r->status = tsr_context_create(&context, r->comm, compute_stream, collectives, SPAN);
    if (r->status == TSR_OK) {
        tsr_context_watch(context, count_wait, r);
        r->status = run_both(r, context, compute_stream);
    }
    if (r->status < 0)
        snprintf(r->message, sizeof r->message, "%s", tsr_last_error());
    if (collectives)
        tsr_stream_synchronize(collectives);
    tsr_context_destroy(context);
    tsr_stream_destroy(collectives);
    tsr_stream_destroy(compute_stream);
    tsr_comm_destroy(r->comm);
    tsr_device_destroy(device);
    return NULL;
}

static void expect_own(const rank_run *r, const tsr_spans *spans)
{
    static const char *const name[ROWS] = {"q", "k", "v", "d_o", "o", "dq", "dk", "dv"};
    const problem *p = r->p;
    int64_t tokens = p->shape.tokens, heads = p->shape.q_heads;
    int64_t own_tokens = tsr_spans_own_rows(spans, tokens);
    for (int64_t row = 0; row < tokens; row++) {
        int64_t place = tsr_spans_place(spans, row);
        if (place < 0)
            continue;
        for (int i = INPUTS; i < ROWS; i++)
            if (memcmp(r->own.rows[i] + place * p->width[i], p->whole.rows[i] + row * p->width[i],
                       (size_t)p->width[i] * sizeof(float)))
                fail_msg("%s of row %lld has other bits on rank %d of %d", name[i], (long long)row,
                         spans->rank, spans->ranks);
        for (int64_t h = 0; h < heads && !way.by_heads; h++)
            assert_memory_equal(r->own.lse +
                                    (way.by_token ? place * heads + h : h * own_tokens + place),
                                p->whole.lse + h * tokens + row, sizeof(float));
    }
}

static void run_ranks(const problem *p, int ranks)
{
    tsr_comm *comm[MAX_RANKS];
    rank_run run[MAX_RANKS] = {{0}};
    assert_int_equal(tsr_comm_create_threads(comm, ranks, 60), TSR_OK);
    for (int i = 0; i < ranks; i++) {
        run[i].p = p, run[i].comm = comm[i];
        assert_int_equal(pthread_create(&run[i].thread, NULL, rank_main, &run[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(run[i].thread, NULL);
    for (int i = 0; i < ranks; i++) {
        if (run[i].status < 0)
            fail_msg("rank %d of %d: %s", i, ranks, run[i].message);
        expect_own(&run[i], &(tsr_spans){SPAN, ranks, i});
        /* For rows, forward and backward, and for sums of dq; or for rows and for results. */
        assert_int_equal(run[i].waits, way.by_heads ? 4 * (p->shape.kv_heads / way.kv_heads / ranks)
                                                    : 3 * p->shape.kv_heads / way.kv_heads);
        assert_int_equal(run[i].waited, run[i].waits);
        free_values(&run[i].own);
    }
}

/* Key heads as so many of a rank; ranks 1: of all. */
static void run_random(int32_t ranks_of_heads, int ranks)
{
    problem p;
    make_problem(&p, ranks_of_heads);
    int32_t heads = p.shape.kv_heads / ranks_of_heads;
    way.kv_heads = 1 + draw(heads);
    while (heads % way.kv_heads)
        way.kv_heads--;
    way.by_token = draw(2), way.needs_o = !way.by_heads && draw(4) == 0, way.sums = draw(2);
    run_ranks(&p, ranks);
    free_values(&p.whole);
}

static void groups_have_the_bits_of_all_heads(void **state)
{
    (void)state;
    way.by_heads = false;
    for (int i = 0; i < CASES; i++)
        run_random(1, 2 + i % (MAX_RANKS - 1));
}

/* Also where a rank has no rows. */
static void ranks_with_heads_of_their_own_have_the_bits_of_all(void **state)
{
    (void)state;
    way.by_heads = true;
    for (int i = 0; i < CASES; i++) {
        int ranks = 2 + i % (MAX_RANKS - 1);
        run_random(ranks, ranks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_have_the_bits_of_all_heads),
        cmocka_unit_test(ranks_with_heads_of_their_own_have_the_bits_of_all)};
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
