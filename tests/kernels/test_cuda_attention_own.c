/*
 * test_cuda_attention_own.c: the own kernels of the CUDA attention against the C reference, in every dtype and, in bf16, as
 * on several cards. Every case runs twice into fresh outputs, and both runs must give the same bits, as must the own rows of
 * ranks that share it.
 */
#include "kernels/attention_wgmma.h"

#include "cuda_attention_test.h"

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
    {700, 10, 4, 2, 256, 0, ODD_LENGTHS},
    {400, 2, 2, 1, 256, 100, {129, 271}, 0, 0, 0, 248, 2},
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
    /* of that backward's blocks so many that they go in turn, and more blocks of keys than it orders at a time */
    {1030, 3, 64, 64, 128, 0, {500, 1, 520}},
    {33100, 3, 1, 1, 128, 50, {16000, 1, 17000}},
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
    /* of attention_wgmma.h's forward: windows of a few tiles, heads of each width, a group that sees nothing of
     * a tile, documents that end in the middle of blocks */
    {1600, 3, 8, 2, 64, 512, {1100, 60, 430}, 0, 0, 0, 0, 2},
    {1200, 2, 4, 1, 120, 640, {1100, 90}},
    {1200, 2, 4, 1, 240, 640, {1100, 90}},
    {1500, 2, 2, 2, 256, 517, {260, 1200}, 0, 0, 0, 0, 1},
    {2000, 1, 4, 4, 64, 0, {1990}},
    {1000, 4, 4, 2, 256, 0, {250, 250, 250, 249}},
    /* Gemma 2's heads: of the 2b and 9b, with their window and one that hides much, and of the 27b */
    {4300, 1, 2, 1, 256, 4096, {4290}, 0, 50, 0.0625f},
    {1300, 2, 8, 4, 256, 512, {1100, 190}, 0, 50, 0.25f},
    {1300, 2, 4, 2, 128, 640, {1100, 190}, 0, 50, 0.0833f},
    {1030, 3, 16, 1, 128, 0, {500, 1, 520}, 0, 50, 0.25f},
};

/* As on cards with little shared memory (sm_86, sm_89, sm_120), and with blocks as of long documents. */
static const tsr_attention_card cards[] = {{99 << 10, 1}, {163 << 10, 1}, {227 << 10, 1}};
static const tsr_attention_card *card;
static int forwards; /* cases that the forward of attention_wgmma.h took */
static int capped;   /* and with capped scores */

static tsr_status own_on_card(tsr_stream *stream, const tsr_attention_args *args)
{
    return tsr_attention_own_as(stream, args, card);
}

static tsr_status own_backward_on_card(tsr_stream *stream, const tsr_attention_backward_args *args)
{
    return tsr_attention_backward_own_as(stream, args, card);
}

static int64_t shared_bytes(void)
{
    return (int64_t)tsr_device_cuda_properties(rig.device)->shared_bytes;
}

static tsr_attention_bounds bounds_of(const problem *p)
{
    return (tsr_attention_bounds){.tokens = p->c->tokens,
                                  .q_heads = p->c->q_heads,
                                  .kv_heads = p->c->kv_heads,
                                  .head_dim = p->c->dim,
                                  .v_dim = p->c->v_dim,
                                  .softcap = p->c->softcap,
                                  .dtype = p->dtype,
                                  .train = true};
}

static uint64_t own_workspace_bytes(const problem *p)
{
    tsr_attention_bounds bounds = bounds_of(p);
    return tsr_attention_own_workspace_bytes(&bounds);
}

static tsr_status backward_wgmma(tsr_stream *stream, const tsr_attention_backward_args *args)
{
    return tsr_attention_backward_wgmma(stream, args, false);
}

/* The forward of attention_wgmma.h, with the backward of all kernels. */
static void check_wgmma_forward(const problem *p, void *workspace, uint64_t bytes, int ranks)
{
    operands of_none = {.dtype = p->dtype};
    tsr_attention_args args = forward_of(p->c, &of_none);
    if (!tsr_attention_wgmma_takes_forward(rig.stream, &args))
        return;
    operands first =
        run(p, tsr_attention_forward_wgmma, tsr_attention_backward_own, workspace, bytes);
    operands second =
        run(p, tsr_attention_forward_wgmma, tsr_attention_backward_own, workspace, bytes);
    compare(p, &first, &second, true);
    check_heads(p, &first, tsr_attention_forward_wgmma, tsr_attention_backward_own, 1);
    check_ranks(p, &first, tsr_attention_forward_wgmma, tsr_attention_backward_own, ranks);
    forwards++, capped += p->c->softcap > 0;
}

/* All key heads in one launch, and one after the other: the same bits. */
static void check_wgmma(const problem *p)
{
    tsr_attention_bounds bounds = bounds_of(p);
    uint64_t head =
        (uint64_t)(p->c->q_heads / p->c->kv_heads * ((p->c->tokens + 127) / 128)) * 128 * 512;
    uint64_t all = tsr_attention_wgmma_workspace_bytes(&bounds);
    uint64_t least = all - (uint64_t)(p->c->kv_heads - 1) * head;
    if (!tsr_attention_wgmma_fits(&bounds) || !tsr_kernels_kept(rig.stream)->boxes)
        return;
    void *workspace = cuda_copy(NULL, all);
    operands first = run(p, tsr_attention_own, backward_wgmma, workspace, all);
    operands second = run(p, tsr_attention_own, backward_wgmma, workspace, least);
    compare(p, &first, &second, true);
    check_heads(p, &second, tsr_attention_own, backward_wgmma, 1);
    check_ranks(p, &second, tsr_attention_own, backward_wgmma, 2 + (int)p->c->tokens % 2);
}

/* By every own kernel that takes it. */
static void check_case(const attention_case *c, tsr_dtype dtype, int ranks)
{
    problem p;
    make_problem(&p, c, dtype, NAN); /* padding is never read */
    uint64_t bytes = own_workspace_bytes(&p);
    void *workspace = cuda_copy(NULL, bytes);
    operands first = run(&p, tsr_attention_own, tsr_attention_backward_own, workspace, bytes);
    operands second = run(&p, tsr_attention_own, tsr_attention_backward_own, workspace, bytes);
    compare(&p, &first, &second, true);
    check_heads(&p, &first, tsr_attention_own, tsr_attention_backward_own, 1);
    check_ranks(&p, &first, tsr_attention_own, tsr_attention_backward_own, ranks);
    for (size_t k = 0; dtype == TSR_BF16 && k < sizeof cards / sizeof *cards; k++) {
        card = &cards[k];
        if (card->shared_bytes > shared_bytes())
            continue;
        first = run(&p, own_on_card, own_backward_on_card, workspace, bytes);
        second = run(&p, own_on_card, own_backward_on_card, workspace, bytes);
        compare(&p, &first, &second, true);
        check_heads(&p, &first, own_on_card, own_backward_on_card, 1);
        check_ranks(&p, &first, own_on_card, own_backward_on_card, ranks);
    }
    check_wgmma_forward(&p, workspace, bytes, ranks);
    check_wgmma(&p);
    free_problem(&p);
}

static void own_kernel_matches_the_reference(void **state)
{
    (void)state;
    const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (size_t i = 0; i < sizeof own_cases / sizeof *own_cases; i++)
        for (size_t j = 0; j < sizeof dtypes / sizeof *dtypes; j++) {
            if (!cuda_turn())
                continue;
            print_message("own kernel, case %zu, %s\n", i, tsr_dtype_name(dtypes[j]));
            check_case(&own_cases[i], dtypes[j], 2 + (int)i % 2);
        }
    print_message("%d cases by the forward of attention_wgmma.h, %d of them capped\n", forwards,
                  capped);
}

/* ---- capped scores of random shapes ---- */

#define DRAWN 40

/* Uniform in [0, below). */
static int32_t draw(uint64_t *stream, int32_t below)
{
    return (int32_t)(tsr_philox_uniform(tsr_philox_at(78, 3, (*stream)++).word[0]) * (float)below);
}

/* Heads of 64, 128 and 256 most of all; scores hardly capped to most of the way. */
static attention_case draw_case(uint64_t *stream)
{
    static const int32_t dims[] = {64, 128, 256, 128, 256, 96, 192};
    static const float caps[] = {3, 5, 20, 50, 50}, scales[] = {1, 2, 3};
    attention_case c = {.documents = 1 + draw(stream, 4), .dim = dims[draw(stream, 7)]};
    for (int32_t i = 0; i < c.documents; i++) {
        c.length[i] = draw(stream, 5) ? draw(stream, 600) : draw(stream, 3);
        c.tokens += c.length[i];
    }
    c.tokens += 1 + draw(stream, 70);
    c.kv_heads = 1 + draw(stream, 2);
    c.q_heads = c.kv_heads * (1 + draw(stream, 3));
    c.window = draw(stream, 2) ? 1 + draw(stream, 3) * 256 + draw(stream, 200) : 0;
    c.v_dim = c.dim == 192 ? 128 : draw(stream, 4) ? 0 : c.dim - 8;
    c.softcap = caps[draw(stream, 5)];
    c.scale = scales[draw(stream, 3)] / sqrtf((float)c.dim);
    c.sinks = draw(stream, 3) ? 0 : 3;
    return c;
}

static void random_capped_shapes_match_the_reference(void **state)
{
    (void)state;
    uint64_t stream = 0;
    for (int i = 0; i < DRAWN; i++) {
        const attention_case c = draw_case(&stream);
        if (!cuda_turn())
            continue;
        print_message("capped, case %d: %lld tokens, %d documents, %d and %d heads of %d and %d, "
                      "window %d, cap %g, scale %g, sinks %g\n",
                      i, (long long)c.tokens, c.documents, c.q_heads, c.kv_heads, c.dim, c.v_dim,
                      c.window, (double)c.softcap, (double)c.scale, (double)c.sinks);
        check_case(&c, TSR_BF16, 2 + i % 2);
    }
}

/* dq is added up in fixed point, whose unit follows from the largest keys and values. Its error is that of sums in fp32,
 * with which these cases had 0.98 to 0.99 of what is allowed here, also where one key or value is far larger than the
 * rest. */
static const struct {
    attention_case c;
    double error; /* allowed: root of the mean square, over that of dq */
} digit_cases[] = {
    {{3000, 1, 4, 2, 128, 0, {3000}}, 2.50e-3},
    {{3000, 1, 4, 2, 64, 0, {3000}}, 2.53e-3},
    {{3000, 2, 4, 2, 128, 200, {1000, 2000}}, 2.49e-3},
    {{3000, 1, 4, 2, 128, 0, {3000}, 0, 0, 0, 0, 0, 100, 0},
     8.20e-3}, /* <dO, o> of a rounded o, times 100 */
    {{3000, 1, 4, 2, 128, 0, {3000}, 0, 0, 0, 0, 0, 0, 100}, 2.54e-3},
    {{3000, 1, 4, 2, 128, 0, {3000}, 0.1f, 0, 0, 0, 0, 100, 0}, 2.34e-3},
    {{3000, 1, 4, 2, 128, 0, {3000}, 0.1f, 0, 0, 0, 0, 100, 100}, 2.25e-3},
};

static void fixed_point_keeps_the_digits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof digit_cases / sizeof *digit_cases; i++) {
        problem p;
        if (!cuda_turn())
            continue;
        make_problem(&p, &digit_cases[i].c, TSR_BF16, NAN);
        uint64_t bytes = own_workspace_bytes(&p);
        operands x =
            run(&p, tsr_attention_own, tsr_attention_backward_own, cuda_copy(NULL, bytes), bytes);
        float *dq = cuda_floats(x.dq, p.q_count, TSR_BF16);
        double error = 0, all = 0;
        for (int64_t e = 0; e < p.q_count; e++) {
            double far = (double)dq[e] - (double)p.dq[e];
            error += far * far, all += (double)p.dq[e] * (double)p.dq[e];
        }
        error = sqrt(error / all);
        print_message("digits of dq, case %zu: error %.3e of %.3e\n", i, error,
                      sqrt(all / (double)p.q_count));
        if (!(error <= digit_cases[i].error))
            fail_msg("dq is %.3e off, of %.3e allowed", error, digit_cases[i].error);
        free(dq);
        free_problem(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_kernel_matches_the_reference),
        cmocka_unit_test(random_capped_shapes_match_the_reference),
        cmocka_unit_test(fixed_point_keeps_the_digits),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
