/*
 * test_attention_spans.c: a micro-batch that several ranks share: every rank's own rows have the bits of the call that is
 * not shared, each row is one rank's, and a rank multiplies only what its rows need.
 */
#include "kernels/attention.h"

#include "kernels/gemm_block.h"
#include "kernels/kernel_test.h"

#define CASES         60
#define MAX_RANKS     4
#define MAX_DOCUMENTS 4
#define QUERIES       128 /* tiles of attention_ref.c */
#define KEYS          64

/* ---- counted matmuls ---- */

static _Atomic int64_t matmuls;

void __real_tsr_gemm_block(const tsr_gemm_block_args *block);
void __wrap_tsr_gemm_block(const tsr_gemm_block_args *block);

void __wrap_tsr_gemm_block(const tsr_gemm_block_args *block)
{
    matmuls++;
    __real_tsr_gemm_block(block);
}

/* ---- a random shape ---- */

typedef struct {
    tsr_attention_shape shape;
    int32_t cu_seqlens[MAX_DOCUMENTS + 1];
    float *q, *k, *v, *d_o, *sinks;
} problem;

/* What a run gives; all of NaN before. delta: of o, NULL until it is asked for. */
typedef struct {
    float *o, *lse, *delta, *dq, *dk, *dv;
} results;

/* Uniform in [0, below). */
static int32_t draw(uint64_t *stream, int32_t below)
{
    return (int32_t)(tsr_philox_uniform(tsr_philox_at(77, 3, (*stream)++).word[0]) * (float)below);
}

static void make_problem(problem *p, uint64_t *stream)
{
    tsr_attention_shape *s = &p->shape;
    *p = (problem){0};
    s->documents = 1 + draw(stream, MAX_DOCUMENTS);
    for (int32_t i = 0; i < s->documents; i++)
        p->cu_seqlens[i + 1] =
            p->cu_seqlens[i] + (draw(stream, 5) ? draw(stream, 400) : draw(stream, 3));
    s->cu_seqlens = p->cu_seqlens;
    s->tokens = p->cu_seqlens[s->documents] + (draw(stream, 2) ? draw(stream, 70) : 0);
    s->kv_heads = 1 + draw(stream, 2);
    s->q_heads = s->kv_heads * (1 + draw(stream, 2));
    s->head_dim = 1 + draw(stream, 24);
    s->v_dim = draw(stream, 2) ? 1 + draw(stream, 24) : s->head_dim;
    s->window = draw(stream, 2) ? 1 + draw(stream, 200) : 0;
    s->softcap = draw(stream, 3) ? 0 : 2;
    p->q = new_random(s->tokens * s->q_heads * s->head_dim, *stream, 2);
    p->k = new_random(s->tokens * s->kv_heads * s->head_dim, *stream + 1, 2);
    p->v = new_random(s->tokens * s->kv_heads * s->v_dim, *stream + 2, 1);
    p->d_o = new_random(s->tokens * s->q_heads * s->v_dim, *stream + 3, 1);
    p->sinks = new_random(s->q_heads, *stream + 4, 2);
    if (draw(stream, 3) == 0)
        s->sinks = (tsr_frozen){p->sinks, TSR_F32};
    s->workspace_bytes = tsr_attention_workspace_bytes(
        &(tsr_attention_bounds){.tokens = s->tokens, .q_heads = s->q_heads});
    s->workspace = malloc(s->workspace_bytes + 1);
}

static void free_problem(problem *p)
{
    free(p->q), free(p->k), free(p->v), free(p->d_o), free(p->sinks), free(p->shape.workspace);
}

static float *new_unwritten(int64_t count)
{
    float *data = new_floats(count);
    memset(data, 0xff, (size_t)count * sizeof *data);
    return data;
}

static results new_results(const tsr_attention_shape *s)
{
    return (results){.o = new_unwritten(s->tokens * s->q_heads * s->v_dim),
                     .lse = new_unwritten(s->tokens * s->q_heads),
                     .dq = new_unwritten(s->tokens * s->q_heads * s->head_dim),
                     .dk = new_unwritten(s->tokens * s->kv_heads * s->head_dim),
                     .dv = new_unwritten(s->tokens * s->kv_heads * s->v_dim)};
}

static void free_results(results *r)
{
    free(r->o), free(r->lse), free(r->delta), free(r->dq), free(r->dk), free(r->dv);
}

static void make_delta(const problem *p, results *r)
{
    const tsr_attention_shape *s = &p->shape;
    r->delta = new_unwritten(s->tokens * s->q_heads);
    assert_int_equal(
        tsr_attention_delta_ref(&(tsr_attention_delta_args){r->delta, r->o, p->d_o, s->tokens,
                                                            s->q_heads, s->v_dim, TSR_F32},
                                test_pool(1)),
        TSR_OK);
}

/* Both directions; the backward reads o, or delta, and lse of `whole`, where every row is. Returns how many matmuls they took. */
static int64_t run(const problem *p, tsr_spans spans, const results *r, const results *whole)
{
    tsr_attention_args forward = {p->q, p->k, p->v, r->o, r->lse, p->shape};
    tsr_attention_backward_args backward = {.q = p->q,
                                            .k = p->k,
                                            .v = p->v,
                                            .o = whole->delta ? NULL : whole->o,
                                            .d_o = p->d_o,
                                            .lse = whole->lse,
                                            .delta = whole->delta,
                                            .dq = r->dq,
                                            .dk = r->dk,
                                            .dv = r->dv,
                                            .shape = p->shape};
    forward.shape.spans = backward.shape.spans = spans;
    matmuls = 0;
    assert_int_equal(tsr_attention_ref(&forward, test_pool(1)), TSR_OK);
    assert_int_equal(tsr_attention_backward_ref(&backward, test_pool(1)), TSR_OK);
    return matmuls;
}

/* ---- what is wanted ---- */

static bool has_own(const tsr_spans *spans, int64_t first, int64_t end)
{
    for (int64_t row = first; row < end; row++)
        if (tsr_row_is_own(spans, row))
            return true;
    return false;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The matmuls of both directions by what they are for, tile by tile. */
static int64_t needed(const problem *p, const tsr_spans *spans)
{
    const tsr_attention_shape *s = &p->shape;
    int64_t count = 0;
    for (int32_t d = 0; d < s->documents; d++) {
        int64_t start = p->cu_seqlens[d], length = p->cu_seqlens[d + 1] - start;
        for (int64_t q = 0; q < length; q += QUERIES)
            for (int64_t k = 0; k < least(q + QUERIES, length); k += KEYS) {
                bool seen = !s->window || q - (k + KEYS - 1) < s->window; /* one pair of the tile */
                bool rows = has_own(spans, start + q, start + least(q + QUERIES, length));
                bool keys = has_own(spans, start + k, start + least(k + KEYS, length));
                if (seen)
                    count += (rows ? 2 + 1 : 0) + (keys ? 2 : 0) + (rows || keys ? 2 : 0);
            }
    }
    return count * s->q_heads;
}

static void expect_own(const char *what, const tsr_spans *spans, int64_t row, const float *got,
                       const float *want, int64_t count)
{
    if (memcmp(got, want, (size_t)count * sizeof *got) != 0)
        fail_msg("%s of row %lld has other bits for rank %d of %d, spans of %lld", what,
                 (long long)row, spans->rank, spans->ranks, (long long)spans->rows);
}

static void expect_own_rows(const problem *p, const tsr_spans *spans, const results *got,
                            const results *want)
{
    const tsr_attention_shape *s = &p->shape;
    int64_t q = s->q_heads * s->head_dim, k = s->kv_heads * s->head_dim;
    int64_t o = s->q_heads * s->v_dim, v = s->kv_heads * s->v_dim;
    for (int64_t i = 0; i < s->tokens; i++) {
        if (!tsr_row_is_own(spans, i))
            continue;
        expect_own("o", spans, i, got->o + i * o, want->o + i * o, o);
        for (int64_t h = i; h < s->q_heads * s->tokens; h += s->tokens)
            expect_own("lse", spans, i, got->lse + h, want->lse + h, 1);
        expect_own("dq", spans, i, got->dq + i * q, want->dq + i * q, q);
        expect_own("dk", spans, i, got->dk + i * k, want->dk + i * k, k);
        expect_own("dv", spans, i, got->dv + i * v, want->dv + i * v, v);
    }
}

/* ---- tests ---- */

static void own_rows_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    uint64_t stream = 0;
    for (int i = 0; i < CASES; i++) {
        problem p;
        make_problem(&p, &stream);
        results whole = new_results(&p.shape), part;
        tsr_spans spans = {0};
        assert_int_equal(run(&p, spans, &whole, &whole), needed(&p, &spans));
        make_delta(&p, &whole);
        spans.rows = 1 + draw(&stream, draw(&stream, 2) ? 40 : 300);
        spans.ranks = 1 + i % MAX_RANKS;
        for (; spans.rank < spans.ranks; spans.rank++) {
            part = new_results(&p.shape);
            assert_int_equal(run(&p, spans, &part, &whole), needed(&p, &spans));
            expect_own_rows(&p, &spans, &part, &whole);
            free_results(&part);
        }
        free_results(&whole);
        free_problem(&p);
    }
}

/* Long spans of one long document: each rank has about its part of the pairs forward, and backward of five matmuls
 * five of (1/n)^2 of the pairs and seven of (1 - 1/n) / n. */
static void work_is_shared(void **state)
{
    (void)state;
    problem p = {.cu_seqlens = {0, 6144}};
    p.shape = (tsr_attention_shape){.cu_seqlens = p.cu_seqlens,
                                    .tokens = 6144,
                                    .documents = 1,
                                    .q_heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 1,
                                    .v_dim = 1};
    double all = (double)needed(&p, &(tsr_spans){0});
    for (int32_t n = 2; n <= MAX_RANKS; n++)
        for (int32_t rank = 0; rank < n; rank++) {
            double each = 1.0 / n, share = 2 * each + each * (5 * each + 7 * (1 - each));
            tsr_spans spans = {256, n, rank};
            double part = (double)needed(&p, &spans);
            assert_true(fabs(part / all - share / 7) < 0.002);
        }
}

static void every_row_is_one_ranks(void **state)
{
    (void)state;
    static const int32_t owners[] = {0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0};
    for (int32_t span = 0; span < 12; span++)
        assert_int_equal(tsr_span_owner(&(tsr_spans){10, 3, 0}, span), owners[span]);
    for (int32_t span = 0, index[3] = {0}; span < 12; span++)
        assert_int_equal(tsr_spans_own(&(tsr_spans){10, 3, owners[span]}, index[owners[span]]++),
                         span);
    assert_int_equal(tsr_spans_own(&(tsr_spans){0}, 5), 5);
    for (int64_t tokens = 0; tokens < 200; tokens += 7)
        for (int32_t ranks = 0; ranks <= 5; ranks++) {
            int64_t sum = 0, rows = tokens % 30;
            int32_t count = ranks > 1 && rows ? ranks : 1;
            for (int32_t rank = 0; rank < count; rank++) {
                tsr_spans spans = {rows, ranks, rank};
                int64_t own = 0;
                for (int64_t i = 0; i < tokens; i++)
                    own += tsr_row_is_own(&spans, i);
                assert_int_equal(tsr_spans_own_rows(&spans, tokens), own);
                assert_int_equal(tsr_spans_touch(&spans, tokens / 3, tokens),
                                 has_own(&spans, tokens / 3, tokens));
                sum += own;
            }
            assert_int_equal(sum, tokens);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_rows_have_the_bits_of_the_whole),
        cmocka_unit_test(work_is_shared),
        cmocka_unit_test(every_row_is_one_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
