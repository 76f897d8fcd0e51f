/*
 * test_cuda_route.c: the router on the GPU against the C reference: all families' scoring, on tensor cores
 * and on the others, any number of tokens, experts and columns. The choice is compared on the GPU's own
 * logits, so that it must be the same to the last index; where it is by a score that each side's exp
 * rounds, one token in 500 may differ. With the argument "time": how fast the ops of experts are.
 */
#include "cuda_case.h"
#include "cuda_time.h"
#include "kernels/route_sort.h"
#include "route_case.h"

#define P_TOLERANCE 4e-6 /* of given logits */

typedef struct {
    input x, weight, bias, correction, expert_scale;
    tsr_route_args ref, args; /* args: on the device, with `how` of the device */
    output logits, p, id;
    int64_t tokens, experts, k;
} route_pair;

static route_case shaped(const route_case *family, int64_t tokens, int64_t h)
{
    route_case c = *family;
    c.tokens = tokens, c.h = h;
    return c;
}

/* `whole`: integers, whose logits are exact in any order and often equal. */
static route_pair make_route(const route_case *c, tsr_dtype dtype, bool whole)
{
    int64_t experts = c->how.experts, k = c->how.k, tokens = c->tokens, h = c->h;
    tsr_dtype frozen = c->bf16 ? TSR_BF16 : TSR_F32;
    float scale = whole ? 1 : 4 / sqrtf((float)h);
    float *x = new_random(tokens * h + shift, 1, 1), *w = new_random(experts * h + shift, 2, scale);
    for (int64_t i = 0; whole && i < tokens * h + shift; i++)
        x[i] = rintf(x[i]);
    for (int64_t i = 0; whole && i < experts * h + shift; i++)
        w[i] = rintf(w[i]);
    route_pair r = {.x = upload(x, tokens * h, dtype),
                    .weight = upload(w, experts * h, frozen),
                    .correction = random_input(experts, 4, 0.4f, TSR_F32),
                    .expert_scale = random_input(experts, 5, 1, frozen),
                    .tokens = tokens,
                    .experts = experts,
                    .k = k};
    if (c->bias)
        r.bias = random_input(experts, 3, 1, frozen);
    r.ref = (tsr_route_args){.x = r.x.host,
                             .weight = on_host(r.weight),
                             .bias = on_host(r.bias),
                             .how = c->how,
                             .logits = want_of(tokens * experts),
                             .p = want_of(tokens * k),
                             .id = (int32_t *)want_of(tokens * k),
                             .tokens = tokens,
                             .h = h};
    r.logits = blank(tokens * experts, TSR_F32), r.p = blank(tokens * k, TSR_F32);
    r.id = blank(tokens * k, TSR_F32);
    r.args = r.ref;
    r.args.x = r.x.device, r.args.dtype = dtype;
    r.args.weight = on_device(r.weight, frozen), r.args.bias = on_device(r.bias, frozen);
    r.args.logits = r.logits.device, r.args.p = r.p.device, r.args.id = r.id.device;
    if (c->corrected) {
        r.ref.how.correction = r.correction.host;
        r.args.how.correction = device_floats(r.correction);
    }
    if (c->expert_scaled) {
        r.ref.how.expert_scale = on_host(r.expert_scale);
        r.args.how.expert_scale = on_device(r.expert_scale, frozen);
    }
    return r;
}

static double logit_tolerance(const route_pair *r)
{
    bool mma = r->args.dtype == TSR_BF16 && r->args.weight.dtype == TSR_BF16;
    return mma ? tolerance_route.bf16 : tolerance_route.f32;
}

/* What the reference makes of one token's logits: its W is the logits, its x is 1. */
static void choose_on_host(int32_t *id, float *p, const float *logits, const tsr_routing *how)
{
    float one = 1, again[TSR_ROUTE_MOST_EXPERTS];
    tsr_route_args args = {.x = &one,
                           .weight = {logits, TSR_F32},
                           .how = *how,
                           .logits = again,
                           .p = p,
                           .id = id,
                           .tokens = 1,
                           .h = 1};
    RUN(tsr_route_ref(&args, rig.pool));
}

/* k different experts. */
static void expect_valid(const int32_t *id, int64_t k, int64_t experts)
{
    bool taken[TSR_ROUTE_MOST_EXPERTS] = {0};
    for (int64_t j = 0; j < k; j++) {
        if (id[j] < 0 || id[j] >= experts || taken[id[j]])
            fail_msg("id[%lld] = %d is no expert, or is there twice", (long long)j, id[j]);
        taken[id[j]] = true;
    }
}

static void expect_choice(const char *name, const route_pair *r)
{
    float *s = cuda_floats(r->logits.device, r->tokens * r->experts, TSR_F32);
    float *p = cuda_floats(r->p.device, r->tokens * r->k, TSR_F32);
    int32_t *id = (int32_t *)cuda_floats(r->id.device, r->tokens * r->k, TSR_F32);
    const tsr_routing *how = &r->ref.how;
    bool by_score = how->correction || how->n_group > 1 || how->scoring == TSR_ROUTE_SIGMOID;
    int64_t others = 0;
    for (int64_t t = 0; t < r->tokens; t++) {
        int32_t want_id[TSR_ROUTE_MOST_CHOSEN];
        float want_p[TSR_ROUTE_MOST_CHOSEN];
        double want[TSR_ROUTE_MOST_CHOSEN];
        expect_valid(id + t * r->k, r->k, r->experts);
        choose_on_host(want_id, want_p, s + t * r->experts, how);
        if (memcmp(want_id, id + t * r->k, (size_t)r->k * sizeof *id) != 0) {
            others++;
            continue;
        }
        for (int64_t j = 0; j < r->k; j++)
            want[j] = (double)want_p[j];
        expect_near("p", p + t * r->k, want, r->k, P_TOLERANCE, 1e-6);
    }
    if (others > (by_score ? r->tokens / 500 + 1 : 0))
        fail_msg("%s, %lld experts: %lld of %lld tokens chose others", name, (long long)r->experts,
                 (long long)others, (long long)r->tokens);
    free(s), free(p), free(id);
}

static void expect_pads(const route_pair *r)
{
    const output out[] = {r->logits, r->p, r->id};
    for (int i = 0; i < 3; i++)
        expect_untouched("behind the output", (uint8_t *)out[i].device + out[i].count * 4, PAD * 4);
}

static void route_one(const route_case *c, tsr_dtype dtype, bool whole)
{
    route_pair r = make_route(c, dtype, whole);
    RUN(tsr_route_ref(&r.ref, rig.pool));
    RUN(rig.kernels->route(rig.stream, &r.args));
    expect("logits", r.logits, r.ref.logits, whole && !c->bias ? 0 : logit_tolerance(&r));
    expect_choice(c->name, &r);
    expect_pads(&r);
    end_case();
}

static void route_matches_in_every_family(void **state)
{
    (void)state;
    for (int i = 0; i < 12 * (int)ROUTE_CASES; i++) {
        if (!cuda_turn())
            continue;
        route_case c = route_cases[i / 12];
        c.bf16 = i % 2;
        shift = i / 6 % 2;
        route_one(&c, all_dtypes[i / 2 % 3], false);
    }
    shift = 0;
}

static const int64_t counts[] = {1, 5, 31, 33, 64, 100, 128, 129, 256, 384, 512, 1000, 1024};
#define COUNTS (int)(sizeof counts / sizeof *counts)

/* Numbers of experts around the tiles and the lanes, of tokens around the blocks, of columns around the stages. */
static void route_matches_at_every_size(void **state)
{
    (void)state;
    const int64_t tokens[] = {1, 63, 64, 65, 200}, columns[] = {8, 56, 64, 72, 136, 256, 520};
    for (int i = 0; i < COUNTS * 10; i++) {
        if (!cuda_turn())
            continue;
        int64_t experts = counts[i / 10];
        route_case c = {.name = "sizes", .bf16 = true, .bias = i % 3 == 0};
        c.how.experts = experts;
        c.how.k = experts < 8 ? experts : i % 4 ? 8 : experts < 32 ? experts : 32;
        c.how.scoring = (tsr_route_scoring)(i % 3);
        c.how.normalise = i % 4 > 1;
        c = shaped(&c, tokens[i % 5], columns[i % 7]);
        route_one(&c, i % 10 < 7 ? TSR_BF16 : TSR_F32, i % 2);
    }
}

/* Real shapes: Qwen3, gpt-oss, Mixtral, DeepSeek V3. */
static void route_matches_at_real_shapes(void **state)
{
    (void)state;
    const int64_t shapes[][4] = {{128, 8, 2048, 1500}, {32, 4, 2880, 700}, {8, 2, 4096, 300}};
    for (int i = 0; i < 3; i++) {
        route_case c = {.name = "real", .bf16 = true};
        c.how = (tsr_routing){.experts = shapes[i][0], .k = shapes[i][1], .normalise = true};
        c = shaped(&c, shapes[i][3], shapes[i][2]);
        if (cuda_turn())
            route_one(&c, TSR_BF16, false);
    }
    route_case v3 = {.name = "deepseek_v3", .bf16 = true, .corrected = true};
    v3.how = (tsr_routing){.experts = 256,
                           .k = 8,
                           .scoring = TSR_ROUTE_SIGMOID,
                           .normalise = true,
                           .scale = 2.5f,
                           .n_group = 8,
                           .topk_group = 4};
    v3 = shaped(&v3, 600, 7168);
    if (cuda_turn())
        route_one(&v3, TSR_BF16, false);
}

static void equals_go_to_the_lower_index(void **state)
{
    (void)state;
    for (int i = 0; i < COUNTS * 4; i++) {
        if (!cuda_turn())
            continue;
        int64_t experts = counts[i / 4];
        route_case c = {.name = "equals", .tokens = 130, .h = 16, .bf16 = i % 2};
        c.how.experts = experts;
        c.how.k = experts < 6 ? experts : 6;
        c.how.scoring = (tsr_route_scoring)(i % 3);
        if (i % 4 == 3 && experts % 8 == 0 && experts >= 16)
            c.how.n_group = 8, c.how.topk_group = 3, c.how.k = 4;
        route_one(&c, i % 2 ? TSR_BF16 : TSR_F32, true);
    }
}

/* NaN first, and every id an expert's. */
static void what_is_no_number_is_chosen_once(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        float w[40], one[8] = {1};
        for (int e = 0; e < 40; e++)
            w[e] = e % 8 ? 0 : e == 8 ? NAN : e == 24 ? -INFINITY : (float)e;
        route_pair r = {.tokens = 1, .experts = 5, .k = 5};
        tsr_dtype dtype = i ? TSR_BF16 : TSR_F32;
        float *keep_w = copy_of(w, 40), *keep_x = copy_of(one, 8);
        void *x = cuda_values(keep_x, 8, dtype), *weight = cuda_values(keep_w, 40, dtype);
        r.logits = blank(5, TSR_F32), r.p = blank(5, TSR_F32), r.id = blank(5, TSR_F32);
        r.args = (tsr_route_args){.x = x,
                                  .weight = {weight, dtype},
                                  .how = {.experts = 5, .k = 5, .scoring = TSR_ROUTE_CHOSEN},
                                  .logits = r.logits.device,
                                  .p = r.p.device,
                                  .id = r.id.device,
                                  .tokens = 1,
                                  .h = 8,
                                  .dtype = dtype};
        RUN(rig.kernels->route(rig.stream, &r.args));
        int32_t id[5];
        cuda_read(id, r.id.device, sizeof id);
        const int32_t want[5] = {1, 4, 2, 0, 3};
        assert_memory_equal(id, want, sizeof id);
        end_case();
    }
}

/* A token's bits do not depend on who is beside it, nor on the run. */
static void a_token_has_the_same_bits_anywhere(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        route_case c = {.name = "bits", .tokens = 300, .h = 264, .bf16 = i % 2};
        c.how = (tsr_routing){.experts = i < 2 ? 160 : 48, .k = 8};
        route_pair r = make_route(&c, i % 2 ? TSR_BF16 : TSR_F32, false);
        int64_t experts = r.experts, first = 37, count = 101;
        RUN(rig.kernels->route(rig.stream, &r.args));
        output logits = blank(count * experts, TSR_F32), p = blank(count * 8, TSR_F32);
        output id = blank(count * 8, TSR_F32);
        tsr_route_args some = r.args;
        some.x = (const uint8_t *)r.args.x + (uint64_t)(first * c.h) * tsr_dtype_bytes(some.dtype);
        some.tokens = count, some.logits = logits.device, some.p = p.device, some.id = id.device;
        RUN(rig.kernels->route(rig.stream, &some));
        float *all[3] = {cuda_floats(r.logits.device, 300 * experts, TSR_F32),
                         cuda_floats(r.p.device, 300 * 8, TSR_F32),
                         cuda_floats(r.id.device, 300 * 8, TSR_F32)};
        float *part[3] = {cuda_floats(logits.device, count * experts, TSR_F32),
                          cuda_floats(p.device, count * 8, TSR_F32),
                          cuda_floats(id.device, count * 8, TSR_F32)};
        for (int j = 0; j < 3; j++) {
            int64_t width = j ? 8 : experts;
            assert_memory_equal(all[j] + first * width, part[j], (size_t)(count * width) * 4);
            free(all[j]), free(part[j]);
        }
        end_case();
    }
}

/* ---- the gradient ---- */

/* aux: with the auxiliary loss; over_logits: dlogits in their place. */
static void backward_one(const route_case *c, tsr_dtype dtype, bool aux, bool add, bool over_logits)
{
    route_pair r = make_route(c, dtype, false);
    int64_t experts = r.experts, slots = r.tokens * r.k, count = r.tokens * c->h;
    RUN(tsr_route_ref(&r.ref, rig.pool));
    float *dp_host = new_random(slots + shift, 6, 1);
    for (int64_t i = 0; i < slots; i += 5)
        dp_host[i + shift] = 0; /* left out */
    input dp = upload(dp_host, slots, TSR_F32), of_aux = random_input(experts, 7, 1, TSR_F32);
    float *s = new_random(r.tokens * experts + shift, 9, 1);
    memcpy(s + shift, r.ref.logits, (size_t)(r.tokens * experts) * sizeof *s);
    input logits = upload(s, r.tokens * experts, TSR_F32);
    input old = random_input(count, 8, 1, dtype);
    float *ds = want_of(r.tokens * experts);
    tsr_route_backward_args ref = {.dp = dp.host,
                                   .logits = logits.host,
                                   .id = r.ref.id,
                                   .aux = aux ? of_aux.host : NULL,
                                   .weight = r.ref.weight,
                                   .how = r.ref.how,
                                   .dlogits = ds,
                                   .dx = copy_of(old.host, count),
                                   .tokens = r.tokens,
                                   .h = c->h,
                                   .add = add};
    RUN(tsr_route_backward_ref(&ref, rig.pool));
    output dlogits = over_logits ? over(logits, r.tokens * experts, TSR_F32)
                                 : blank(r.tokens * experts, TSR_F32);
    output dx = add ? over(old, count, dtype) : blank(count, dtype);
    tsr_route_backward_args args = ref;
    args.dp = device_floats(dp), args.logits = device_floats(logits);
    args.id = cuda_copy(r.ref.id, (uint64_t)slots * sizeof(int32_t));
    args.aux = aux ? device_floats(of_aux) : NULL;
    args.weight = r.args.weight, args.how = r.args.how;
    args.dlogits = dlogits.device, args.dx = dx.device, args.dtype = dtype;
    RUN(rig.kernels->route_backward(rig.stream, &args));
    /* Of one expert there is no gradient but what rounding leaves. */
    expect_least("dlogits", dlogits, ds, tolerance_route.f32, 0.01);
    expect_least("dx", dx, ref.dx, logit_tolerance(&r), 0.01);
    end_case();
}

static void gradient_matches_in_every_family(void **state)
{
    (void)state;
    for (int i = 0; i < 24 * (int)ROUTE_CASES; i++) {
        if (!cuda_turn())
            continue;
        route_case c = route_cases[i / 24];
        c.bf16 = i % 2;
        shift = i % 12 == 11;
        backward_one(&c, all_dtypes[i / 2 % 3], i / 6 % 2, i / 12 % 2, i % 5 == 1);
    }
    shift = 0;
}

static void gradient_matches_at_every_size(void **state)
{
    (void)state;
    const int64_t tokens[] = {1, 64, 65, 300}, columns[] = {8, 120, 128, 136, 2048};
    for (int i = 0; i < COUNTS * 5; i++) {
        if (!cuda_turn())
            continue;
        route_case c = {.name = "sizes", .bf16 = true};
        c.how.experts = counts[i / 5];
        c.how.k = c.how.experts < 8 ? c.how.experts : 8;
        c.how.scoring = (tsr_route_scoring)(i % 3);
        c.how.normalise = i % 2;
        c = shaped(&c, tokens[i % 4], columns[i % 5]);
        backward_one(&c, TSR_BF16, i % 4 == 3, i % 3 == 0, i % 7 == 0);
    }
}

/* So many tokens that a block has more than 128 columns. */
static void gradient_matches_at_real_shapes(void **state)
{
    (void)state;
    const int64_t shapes[][4] = {
        {128, 8, 2048, 3000}, {128, 8, 1000, 8200}, {32, 4, 2880, 1500}, {8, 2, 4096, 2100}};
    for (int i = 0; i < 8; i++) {
        const int64_t *of = shapes[i / 2];
        route_case c = {.name = "real", .bf16 = true};
        c.how = (tsr_routing){.experts = of[0], .k = of[1], .normalise = true};
        c = shaped(&c, of[3], of[2]);
        if (cuda_turn())
            backward_one(&c, TSR_BF16, false, i % 2, true);
    }
}

/* ---- statistics ---- */

static void run_stats(int64_t *out, const tsr_route_stats_args *args, int64_t experts)
{
    RUN(rig.kernels->route_stats(rig.stream, args));
    cuda_read(out, args->count, (uint64_t)experts * sizeof *out);
    cuda_read(out + 1024, args->prob, (uint64_t)experts * sizeof *out);
    cuda_read(out + 2048, args->dropped, sizeof *out);
}

static void expect_stats(int64_t experts, int64_t k, int64_t tokens, route_load load)
{
    static int64_t got[2049], again[2049], want[2049];
    tsr_routes r = new_routes(tokens, k, experts, load);
    int64_t slots = tokens * k;
    input logits = random_input(tokens * experts, 9, 3, TSR_F32);
    for (int64_t s = 0; s < slots; s++)
        r.row[s] = s % 7 ? (int32_t)s : -1;
    int64_t *device = cuda_copy(NULL, 2049 * sizeof *device);
    tsr_route_stats_args ref = {.id = r.id,
                                .row = r.row,
                                .logits = logits.host,
                                .count = want,
                                .prob = want + 1024,
                                .dropped = want + 2048,
                                .tokens = tokens,
                                .k = k,
                                .experts = experts,
                                .begin = true};
    RUN(tsr_route_stats_ref(&ref, rig.pool));
    tsr_route_stats_args args = ref;
    args.id = cuda_copy(r.id, (uint64_t)slots * sizeof *r.id);
    args.row = cuda_copy(r.row, (uint64_t)slots * sizeof *r.row);
    args.logits = device_floats(logits);
    args.count = device, args.prob = device + 1024, args.dropped = device + 2048;
    run_stats(got, &args, experts);
    assert_memory_equal(got, want, (size_t)experts * sizeof *got);
    assert_int_equal(got[2048], want[2048]);
    for (int64_t e = 0; e < experts; e++)
        if (!(fabs((double)(got[1024 + e] - want[1024 + e])) <= 2e-6 * (double)want[1024 + e] + 64))
            fail_msg("prob[%lld] = %lld, want %lld", (long long)e, (long long)got[1024 + e],
                     (long long)want[1024 + e]);
    /* In two parts: the same integers. */
    int64_t first = tokens / 3;
    args.tokens = first;
    run_stats(again, &args, experts);
    args.begin = false, args.tokens = tokens - first;
    args.id += first * k, args.row += first * k, args.logits += first * experts;
    run_stats(again, &args, experts);
    assert_memory_equal(again, got, (size_t)experts * sizeof *got);
    assert_memory_equal(again + 1024, got + 1024, (size_t)experts * sizeof *got);
    assert_int_equal(again[2048], got[2048]);
    free(r.id);
    end_case();
}

static void statistics_match(void **state)
{
    (void)state;
    const int64_t tokens[] = {0, 1, 64, 1000};
    for (int i = 0; i < COUNTS * 4; i++)
        if (cuda_turn())
            expect_stats(counts[i / 4], counts[i / 4] < 8 ? 1 : 8, tokens[i % 4],
                         (route_load)(i % LOADS));
}

/* ---- how fast ---- */

#define COPIES 4 /* of what L2 would otherwise hold from call to call */

typedef struct {
    tsr_route_args route;
    tsr_route_sort_args sort;
    tsr_route_backward_args backward;
    tsr_route_stats_args stats;
    tsr_combine_args combine;
    tsr_routed_glu_backward_args glu_backward;
    void *x[COPIES], *dx[COPIES];
    int turn;
} speed;

static void run_route(void *context)
{
    speed *s = context;
    s->route.x = s->x[s->turn++ % COPIES];
    RUN(rig.kernels->route(rig.stream, &s->route));
}

static void run_sort(void *context)
{
    RUN(rig.kernels->route_sort(rig.stream, &((speed *)context)->sort));
}

static void run_both(void *context)
{
    run_route(context);
    run_sort(context);
}

static void run_backward(void *context)
{
    speed *s = context;
    s->backward.dx = s->dx[s->turn++ % COPIES];
    RUN(rig.kernels->route_backward(rig.stream, &s->backward));
}

static void run_counts(void *context)
{
    RUN(rig.kernels->route_stats(rig.stream, &((speed *)context)->stats));
}

static void run_combine(void *context)
{
    RUN(rig.kernels->combine(rig.stream, &((speed *)context)->combine));
}

static void run_glu_backward(void *context)
{
    RUN(rig.kernels->routed_glu_backward(rig.stream, &((speed *)context)->glu_backward));
}

static void run_copy(void *context)
{
    const tsr_combine_args *a = &((speed *)context)->combine;
    uint64_t bytes = (uint64_t)(a->tokens * a->k * a->h); /* half of z over the other */
    RUN(tsr_cuda_status(cudaMemcpyAsync((char *)a->z + bytes, a->z, bytes, cudaMemcpyDeviceToDevice,
                                        tsr_stream_cuda(rig.stream)),
                        "copy"));
}

static double report(const char *what, timed *run, speed *s, double bytes, double roof)
{
    double ms = median_ms(run, s, 15), rate = bytes * 1e-6 / ms;
    printf("  %-34s %8.1f us, %6.0f GB/s", what, 1000 * ms, rate);
    printf(roof > 0 ? ", %.2f of a copy\n" : "\n", rate / roof);
    return rate;
}

static void plan_speed(speed *s, int64_t tokens, int64_t h, int64_t experts, int64_t k,
                       int64_t inner)
{
    int64_t slots = tokens * k;
    tsr_routes r =
        tsr_routes_at(cuda_copy(NULL, tsr_routes_bytes(tokens, k, experts)), tokens, k, experts);
    float *logits = random_array(tokens * experts, TSR_F32), *p = random_array(slots, TSR_F32);
    tsr_frozen weight = {random_array(experts * h, TSR_BF16), TSR_BF16};
    tsr_routing how = {.experts = experts, .k = k, .normalise = true};
    int64_t *count = cuda_copy(NULL, (uint64_t)(2 * experts + 1) * sizeof *count);
    for (int i = 0; i < COPIES; i++) {
        s->x[i] = random_array(tokens * h, TSR_BF16);
        s->dx[i] = random_array(tokens * h, TSR_BF16);
    }
    s->route = (tsr_route_args){NULL, weight, {0}, how, logits, p, r.id, tokens, h, TSR_BF16};
    s->sort = (tsr_route_sort_args){r, tokens, k, experts, 0};
    s->backward = (tsr_route_backward_args){.dp = random_array(slots, TSR_F32),
                                            .logits = logits,
                                            .id = r.id,
                                            .weight = weight,
                                            .how = how,
                                            .dlogits = random_array(tokens * experts, TSR_F32),
                                            .tokens = tokens,
                                            .h = h,
                                            .add = true,
                                            .dtype = TSR_BF16};
    s->stats = (tsr_route_stats_args){
        r.id, r.row, logits, count, count + experts, count + 2 * experts, tokens, k, experts, true};
    s->combine = (tsr_combine_args){.y = s->dx[0],
                                    .z = random_array(slots * h, TSR_BF16),
                                    .p = p,
                                    .row = r.row,
                                    .tokens = tokens,
                                    .k = k,
                                    .h = h,
                                    .dtype = TSR_BF16};
    void *z = random_array(slots * 2 * inner, TSR_BF16);
    s->glu_backward = (tsr_routed_glu_backward_args){.dp = random_array(slots, TSR_F32),
                                                     .dz = z,
                                                     .z = z,
                                                     .dact = random_array(slots * inner, TSR_BF16),
                                                     .p = p,
                                                     .row = r.row,
                                                     .tokens = tokens,
                                                     .k = k,
                                                     .f = inner,
                                                     .dtype = TSR_BF16};
}

static void time_experts(int64_t tokens, int64_t h, int64_t experts, int64_t k, int64_t inner)
{
    speed s = {.turn = 0};
    double T = (double)tokens, x = 2 * T * (double)h, all = 4 * T * (double)experts;
    double slots = T * (double)k, rows = 2 * slots * (double)inner;
    double w = 2 * (double)(experts * h), z = 2 * slots * (double)h;
    plan_speed(&s, tokens, h, experts, k, inner);
    printf("%lld tokens of %lld, %lld of %lld experts of %lld\n", (long long)tokens, (long long)h,
           (long long)k, (long long)experts, (long long)inner);
    double roof = report("copy", run_copy, &s, z, 0);
    report("route", run_route, &s, x + w + all + 8 * slots, roof);
    report("route_sort", run_sort, &s, 16 * slots, roof);
    report("route and route_sort", run_both, &s, x + w + all + 24 * slots, roof);
    report("route_stats", run_counts, &s, all + 8 * slots, roof);
    report("combine", run_combine, &s, x + z, roof);
    report("routed_glu_backward", run_glu_backward, &s, 5 * rows, roof);
    report("route_backward, added", run_backward, &s, 2 * x + w + 3 * all, roof);
    int32_t *id = malloc((size_t)(tokens * k) * sizeof *id);
    assert_non_null(id);
    for (int64_t t = 0; t < tokens; t++)
        draw_ids(id + t * k, t, k, experts, LOAD_ZIPF, 1);
    RUN(tsr_device_write(rig.device, s.sort.routes.id, id, (uint64_t)(tokens * k) * sizeof *id));
    report("route_sort, Zipf's load", run_sort, &s, 16 * slots, roof);
    report("combine, Zipf's load", run_combine, &s, x + z, roof);
    report("routed_glu_backward, Zipf's load", run_glu_backward, &s, 5 * rows, roof);
    free(id);
    cuda_free_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_matches_in_every_family),
        cmocka_unit_test(route_matches_at_every_size),
        cmocka_unit_test(route_matches_at_real_shapes),
        cmocka_unit_test(equals_go_to_the_lower_index),
        cmocka_unit_test(what_is_no_number_is_chosen_once),
        cmocka_unit_test(a_token_has_the_same_bits_anywhere),
        cmocka_unit_test(gradient_matches_in_every_family),
        cmocka_unit_test(gradient_matches_at_every_size),
        cmocka_unit_test(gradient_matches_at_real_shapes),
        cmocka_unit_test(statistics_match),
    };
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    cuda_setup(NULL);
    printf("%s\n", tsr_device_description(rig.device));
    time_experts(8192, 2048, 128, 8, 768);
    time_experts(2048, 2048, 128, 8, 768);
    time_experts(8192, 2880, 32, 4, 2880);
    time_experts(8192, 4096, 8, 2, 14336);
    time_experts(4096, 7168, 256, 8, 2048);
    return cuda_teardown(NULL);
}
