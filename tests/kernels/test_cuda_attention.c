/*
 * test_cuda_attention.c: the CUDA attention where cuDNN runs it, within prepared bounds, against the C reference, and what
 * passes it by. Every case runs several times into fresh outputs, and all runs must give the same bits. The own kernel:
 * test_cuda_attention_own.c.
 */
#include "cuda_attention_test.h"

/* ---- cuDNN ---- */

#define OWN 1

typedef struct {
    attention_case c;
    int64_t tokens, documents, longest; /* bounds above the case's own; 0: its own */
    int launches;                       /* of the backward; 0: as few as there can be */
    bool atomics;
    int64_t span; /* of tiles; 0: none; OWN: the backward is an own one */
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
    /* tiles: whole spans, a rest, several documents, unused ones, sinks, padding only */
    {{1024, 1, 8, 8, 192, 0, {1024}, 0, 0, 0, 128}, 0, 0, 0, 0, false, 256},
    {{1010, 1, 8, 8, 192, 0, {1001}, 0, 0, 0, 128}, 0, 0, 0, 0, false, 128},
    {{1401, 4, 8, 8, 192, 0, {300, 0, 1000, 1}, 0, 0, 0, 128}, 0, 0, 0, 0, false, 256},
    {{1400, 2, 16, 16, 192, 0, {300, 1000}, 0, 0, 0, 128}, 2000, 3, 1100, 0, false, 256},
    {{900, 2, 8, 8, 192, 0, {129, 770}, 0, 0, 0.1f, 128}, 0, 0, 0, 0, false, 256},
    {{400, 0, 8, 8, 192, 0, {0}, 0, 0, 0, 128}, 0, 3, 400, 0, false, 128},
    /* too long for a launch: several documents, unused ones, sinks, padding only, as many key heads; other heads */
    {{1401, 4, 8, 2, 128, 0, {300, 0, 1000, 1}}, 0, 0, 0, 0, false, OWN},
    {{1400, 2, 16, 1, 128, 0, {300, 1000}}, 2000, 3, 1100, 0, false, OWN},
    {{900, 2, 8, 8, 128, 900, {700, 200}, 0, 0, 0.1f, 0, 3}, 0, 0, 0, 0, false, OWN},
    {{400, 0, 8, 2, 128, 0, {0}}, 0, 3, 400, 0, false, OWN},
    {{1010, 1, 8, 2, 96, 0, {1001}}, 0, 0, 0, 0, false, OWN},
    {{4200, 1, 2, 1, 128, 0, {4200}}, 0, 0, 0, 0, false, OWN}, /* with an own forward */
    {{1400, 2, 16, 4, 96, 0, {300, 1000}}, 2000, 3, 1100, 0, false, OWN},
    {{700, 1, 8, 8, 96, 0, {700}}, 0, 0, 0, 0, false, OWN},
    {{1401, 4, 8, 2, 64, 0, {300, 0, 1000, 1}}, 0, 0, 0, 0, false, OWN},
    {{700, 1, 8, 8, 64, 0, {700}}, 1000, 2, 800, 0, false, OWN},
    {{900, 2, 8, 1, 64, 0, {700, 200}, 0, 0, 0, 0, 3}, 0, 0, 0, 0, false, OWN},
    {{400, 0, 8, 2, 64, 0, {0}}, 0, 3, 400, 0, false, OWN},
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
    const bool ours = cut.own_forward;
    if ((tsr_sdpa_find(sdpa, &shape) == NULL) != ours)
        fail_msg("%s", ours ? "a plan for what is not cuDNN's" : "cuDNN gave no plan");
    shape.window = 3;
    assert_null(tsr_sdpa_find(sdpa, &shape));
    assert_false(rig.kernels->attention_lse_by_token(rig.stream, &shape));
    shape.window = 0, shape.softcap = 30;
    assert_null(tsr_sdpa_find(sdpa, &shape));
    make_problem(&p, &c->c, TSR_BF16, 3);
    p.transposed = !ours;
    shape.softcap = 0;
    assert_int_equal(rig.kernels->attention_lse_by_token(rig.stream, &shape), !ours);
    uint64_t bytes =
        ours ? tsr_attention_workspace_bytes_cuda(&bounds) : tsr_sdpa_workspace_bytes(&cut);
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

/* Micro-batches that three ranks share: documents longer than spans, and short ones, those that end where a span does and
 * empty ones; all that cuDNN's forward takes, and the backwards behind it. */
static const attention_case shared_cases[] = {
    {1024, 1, 4, 2, 128, 0, {1024}},
    {1400, 4, 8, 2, 128, 0, {300, 0, 1000, 1}},
    {1024, 4, 4, 4, 64, 0, {128, 384, 0, 500}},
    {1410, 2, 8, 1, 96, 0, {1300, 100}, 0, 0, 0.2f, 0, 3},
    {1100, 2, 8, 8, 192, 0, {257, 770}, 0, 0, 0, 128},
    {700, 0, 8, 2, 64, 0, {0}},
    {4096, 2, 16, 8, 128, 0, {2100, 1990}}, /* the own backward */
};

static void check_shared_case(tsr_sdpa *sdpa, const attention_case *c)
{
    tsr_attention_bounds bounds =
        bounds_of(&(cudnn_case){.c = *c, .documents = 5, .longest = 1400});
    uint64_t bytes = rig.kernels->attention_workspace_bytes(&bounds);
    problem p;
    make_problem(&p, c, TSR_BF16, 3);
    p.transposed = true;
    RUN(tsr_sdpa_prepare(sdpa, &bounds));
    bounds.spans = (tsr_spans){.rows = 256, .ranks = 3};
    bytes += rig.kernels->attention_workspace_bytes(&bounds);
    operands whole = run(&p, rig.kernels->attention, rig.kernels->attention_backward,
                         cuda_copy(NULL, bytes), bytes);
    if (!rig.kernels->attention_sharing(&bounds).needs_o) {
        tsr_attention_bounds head = tsr_attention_group(bounds, 1);
        head.spans = (tsr_spans){0};
        RUN(tsr_sdpa_prepare(sdpa, &head));
        check_heads(&p, &whole, rig.kernels->attention, rig.kernels->attention_backward, 1);
    }
    for (; bounds.spans.rank < 3; bounds.spans.rank++) {
        RUN(tsr_sdpa_prepare(sdpa, &bounds));
        check_shared(&p, &whole, rig.kernels->attention, rig.kernels->attention_backward,
                     bounds.spans);
    }
    free_problem(&p);
}

static void ranks_share_micro_batches(void **state)
{
    (void)state;
    tsr_sdpa *sdpa = open_sdpa();
    for (size_t i = 0; i < sizeof shared_cases / sizeof *shared_cases; i++) {
        if (!cuda_turn())
            continue;
        print_message("shared, case %zu\n", i);
        check_shared_case(sdpa, &shared_cases[i]);
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
    tsr_attention_args odd = forward_of(&c, &x);
    odd.shape.spans = (tsr_spans){200, 2, 0};
    assert_int_equal(rig.kernels->attention(rig.stream, &odd), TSR_EINVAL);
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
        cmocka_unit_test(cudnn_matches_the_reference), cmocka_unit_test(ranks_share_micro_batches),
        cmocka_unit_test(capped_scores_pass_cudnn_by), cmocka_unit_test(other_values_pass_cudnn_by),
        cmocka_unit_test(cuts_give_the_same_bits),     cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
