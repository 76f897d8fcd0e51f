/*
 * test_cuda_optimizer.c: fixed point, the gradient's norm, AdamW and the words of a step on a GPU: the
 * same bits as the C references, in everything.
 */
#include "cuda_test.h"

#include "base/exact_sum.h"
#include "device/cuda.h"
#include "kernels/adamw.h"
#include "kernels/fixed_point.h"

static uint64_t random_bits(uint64_t i)
{
    return tsr_mix(i * 0x9E3779B97F4A7C15u + 29);
}

static void *allocate(uint64_t bytes)
{
    void *memory = malloc(bytes + 1);
    assert_non_null(memory);
    return memory;
}

/* Device memory has these bytes. */
static void expect_bytes(const char *what, const void *device, const void *want, uint64_t bytes,
                         uint32_t each)
{
    char *got = allocate(bytes);
    cuda_read(got, device, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (got[i] != ((const char *)want)[i])
            fail_msg("%s: element %llu differs", what, (unsigned long long)(i / each));
    free(got);
}

/* Gradients of all sizes: 2^-70 to 2^9 for an exponent range of 80. */
static float *new_gradients(uint64_t count, uint64_t seed)
{
    float *g = allocate(count * sizeof *g);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = random_bits(i + (seed << 32));
        float sign = bits & 1 ? -1 : 1, mantissa = 1 + (float)((bits >> 8) & 0x7fffff) * 0x1p-23f;
        g[i] = bits % 17 == 0 ? 0 : ldexpf(sign * mantissa, (int)((bits >> 40) % 80) - 70);
    }
    return g;
}

/* Sums of all sizes below 2^most; the last `padding` are 0. */
static int64_t *new_sums(uint64_t count, uint64_t padding, uint64_t seed, int most)
{
    int64_t *sum = allocate(count * sizeof *sum);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = random_bits(i + (seed << 32));
        int64_t value = (int64_t)(bits >> (64 - most + (int)(random_bits(i) % (unsigned)most)));
        sum[i] = i + padding >= count ? 0 : bits & 1 ? -value : value;
    }
    return sum;
}

/* ---- fixed_sum ---- */

typedef struct {
    uint64_t ranks, rank;
    const uint64_t *counts; /* of each tensor's elements */
    int tensors, shift;
    bool wide, store, rounded;
    float bad; /* not 0: in the middle of every tensor but the first, of one rank; wide: lost */
    uint64_t donor; /* that rank */
} sum_case;

static uint64_t lay_out_parts(tsr_fixed_part *part, const sum_case *c)
{
    uint64_t stride = 0;
    for (int t = 0; t < c->tensors; t++) {
        uint64_t count = tsr_fixed_part_count(c->counts[t], c->ranks), first = c->rank * count;
        uint64_t left = c->counts[t] > first ? c->counts[t] - first : 0;
        part[t] = (tsr_fixed_part){stride, count, left < count ? left : count, 100 - t};
        stride += count;
    }
    return stride;
}

/* An element that does not fit. */
static void put_bad(void *gradient, uint64_t at, bool wide, float bad)
{
    if (wide)
        ((int64_t *)gradient)[at] = TSR_FIXED_LOST;
    else
        ((float *)gradient)[at] = bad;
}

/* Not a number where there is padding, and `bad` once in each tensor but the first. */
static void spoil(void *gradient, void *received, const tsr_fixed_part *part, const sum_case *c)
{
    for (int t = 0; t < c->tensors; t++)
        for (uint64_t r = 0; r < c->ranks; r++) {
            void *of = r == c->rank ? gradient : received;
            uint64_t at = c->ranks * part[t].offset + c->rank * part[t].count;
            if (r != c->rank)
                at = (c->ranks - 1) * part[t].offset + (r - (r > c->rank)) * part[t].count;
            for (uint64_t i = part[t].real; i < part[t].count; i++)
                put_bad(of, at + i, c->wide, NAN);
            if (c->bad != 0 && t > 0 && r == c->donor && part[t].real > 0)
                put_bad(of, at + part[t].real / 2, c->wide, c->bad);
        }
}

static void *new_contributions(uint64_t count, uint64_t seed, bool wide)
{
    return wide ? (void *)new_sums(count, 0, seed, 54) : (void *)new_gradients(count, seed);
}

static void one_sum(const sum_case *c)
{
    if (!cuda_turn())
        return;
    tsr_fixed_part part[TSR_FIXED_PARTS];
    uint64_t stride = lay_out_parts(part, c), all = c->ranks * stride, others = all - stride;
    uint64_t each = c->wide ? sizeof(int64_t) : sizeof(float);
    void *gradient = new_contributions(all, 1 + stride, c->wide);
    void *received = new_contributions(others, 2 + stride, c->wide);
    uint64_t kept = c->rounded ? sizeof(float) : sizeof(int64_t);
    int64_t *sums = new_sums(stride, 0, 3, 60), *before = allocate(stride * 8);
    int64_t overflow = 0, zero = 0;
    spoil(gradient, received, part, c);
    memcpy(before, sums, stride * 8);
    tsr_fixed_sum_args args = {.accumulator = c->rounded ? NULL : sums,
                               .rounded = c->rounded ? (float *)sums : NULL,
                               .gradient = gradient,
                               .received = received,
                               .part = part,
                               .overflow = &overflow,
                               .ranks = c->ranks,
                               .rank = c->rank,
                               .part_count = c->tensors,
                               .shift = c->shift,
                               .limit = tsr_fixed_limit(c->shift, 4 * c->ranks),
                               .wide = c->wide,
                               .store = c->store};
    RUN(tsr_fixed_sum_ref(&args, rig.pool));
    void *out = cuda_copy(before, stride * 8);
    args.accumulator = c->rounded ? NULL : out;
    args.rounded = c->rounded ? out : NULL;
    args.gradient = cuda_copy(gradient, all * each);
    args.received = cuda_copy(received, others * each);
    args.overflow = cuda_copy(&zero, 8);
    RUN(rig.kernels->fixed_sum(rig.stream, &args));
    char what[96];
    snprintf(what, sizeof what, "fixed_sum of %d %s tensors, rank %llu of %llu, shift %d, bad %g%s",
             c->tensors, c->wide ? "wide" : "fp32", (unsigned long long)c->rank,
             (unsigned long long)c->ranks, c->shift, (double)c->bad, c->rounded ? ", rounded" : "");
    expect_bytes(what, out, sums, stride * kept, (uint32_t)kept);
    expect_bytes("overflow", args.overflow, &overflow, 8, 8);
    free(gradient), free(received), free(sums), free(before);
    cuda_free_all();
}

static void fixed_sum_gives_the_references_integers(void **state)
{
    static const uint64_t few[] = {1, 63, 64, 65, 1000, 0, 65539, 4096 * 16};
    static const uint64_t ranks[] = {1, 2, 3, 8, 200};
    static const int shifts[] = {TSR_FIXED_SHIFT, 0, 62, 30};
    static const float bad[] = {0, NAN, -INFINITY, 1e30f};
    uint64_t many[TSR_FIXED_PARTS];
    (void)state;
    for (int t = 0; t < TSR_FIXED_PARTS; t++)
        many[t] = random_bits((uint64_t)t) % 9000;
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 4; j++)
            for (int k = 0; k < 4; k++) {
                uint64_t n = ranks[i];
                sum_case c = {.ranks = n,
                              .rank = k % 2 ? n - 1 : n / 2,
                              .shift = shifts[(i + j) % 4],
                              .wide = k / 2,
                              .store = k % 2,
                              .bad = bad[j],
                              .donor = n / 3};
                for (int rounded = 0; rounded <= c.store; rounded++) {
                    c.rounded = rounded;
                    c.counts = few;
                    c.tensors = 8;
                    one_sum(&c);
                    c.counts = many;
                    c.tensors = TSR_FIXED_PARTS;
                    one_sum(&c);
                    c.counts = few + 6;
                    c.tensors = 1;
                    one_sum(&c);
                }
            }
    assert_int_equal(rig.kernels->fixed_sum(rig.stream, &(tsr_fixed_sum_args){.ranks = 1}),
                     TSR_EINVAL);
}

/* ---- fixed_accumulate ---- */

static void one_accumulation(uint64_t count, bool store, uint64_t offset)
{
    if (!cuda_turn())
        return;
    static const float bad[] = {NAN, INFINITY, 1e30f};
    uint64_t all = count + offset;
    int64_t *sum = new_sums(all, 0, 1, 61);
    float *g = new_gradients(all, 2);
    for (uint64_t i = 0; i < all; i++) {
        uint64_t kind = random_bits(i + count) % 200;
        if (kind < 3)
            g[i] = bad[kind];
        else if (kind == 3)
            sum[i] = TSR_FIXED_LOST;
    }
    tsr_fixed_accumulate_args args = {.sum = (int64_t *)cuda_copy(sum, all * 8) + offset,
                                      .g = (float *)cuda_copy(g, all * 4) + offset,
                                      .count = count,
                                      .shift = TSR_FIXED_SHIFT,
                                      .limit = tsr_fixed_limit(TSR_FIXED_SHIFT, 600),
                                      .store = store};
    RUN(rig.kernels->fixed_accumulate(rig.stream, &args));
    args.g = g + offset;
    int64_t *device = args.sum;
    args.sum = sum + offset;
    RUN(tsr_fixed_accumulate_ref(&args, rig.pool));
    expect_bytes("fixed_accumulate", device - offset, sum, all * 8, 8);
    free(sum), free(g);
    cuda_free_all();
}

static void fixed_accumulate_gives_the_references_integers(void **state)
{
    static const uint64_t counts[] = {1, 2, 7, 64, 2048, 100003};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int kind = 0; kind < 4; kind++)
            one_accumulation(counts[i], kind % 2, (uint64_t)kind / 2);
    RUN(rig.kernels->fixed_accumulate(rig.stream, &(tsr_fixed_accumulate_args){.store = true}));
    assert_int_equal(
        rig.kernels->fixed_accumulate(rig.stream, &(tsr_fixed_accumulate_args){.count = 1}),
        TSR_EINVAL);
}

/* ---- fixed_add ---- */

#define LONG_SUM                                                                                   \
    ((uint64_t)1 << 22) /* several times what the card's multiprocessors hold at once */

static void one_add(uint64_t count, bool store, uint64_t offset)
{
    if (!cuda_turn())
        return;
    int64_t *sum = new_sums(count + offset, 0, 1, 61), *part = new_sums(count + offset, 0, 2, 61);
    tsr_fixed_add_args args = {.accumulator =
                                   (int64_t *)cuda_copy(sum, (count + offset) * 8) + offset,
                               .part = (int64_t *)cuda_copy(part, (count + offset) * 8) + offset,
                               .count = count,
                               .store = store};
    RUN(rig.kernels->fixed_add(rig.stream, &args));
    args.part = part + offset;
    int64_t *device = args.accumulator;
    args.accumulator = sum + offset;
    RUN(tsr_fixed_add_ref(&args, rig.pool));
    expect_bytes("fixed_add", device - offset, sum, (count + offset) * 8, 8);
    free(sum), free(part);
    cuda_free_all();
}

static void fixed_add_is_exact(void **state)
{
    static const uint64_t counts[] = {1, 2, 7, 64, 1025, 100003};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int kind = 0; kind < 4; kind++)
            one_add(counts[i], kind % 2, (uint64_t)kind / 2);
    RUN(rig.kernels->fixed_add(rig.stream, &(tsr_fixed_add_args){.store = true}));
}

/* A large sum, one of a single element, and the tail of the large one, which its last blocks have. */
static void three_sums(int64_t *x, int64_t *y, int64_t *one, bool on_device)
{
    enum { TAIL = 1 << 12 };
    tsr_fixed_add_args add[3] = {{x, y, LONG_SUM, false},
                                 {one, one + 1, 1, false},
                                 {y + LONG_SUM - TAIL, x + LONG_SUM - TAIL, TAIL, false}};
    for (int i = 0; i < 3; i++)
        if (on_device)
            RUN(rig.kernels->fixed_add(rig.stream, &add[i]));
        else
            RUN(tsr_fixed_add_ref(&add[i], rig.pool));
}

/* Kernels come in while those before them run (kernels/cuda.cuh), and read what these write: turn after
 * turn, with nothing that waits between. */
static void kernels_wait_for_those_before_them(void **state)
{
    (void)state;
    bool early = tsr_device_cuda_properties(rig.device)->early_kernels;
    printf("here kernels %s\n", early ? "start early" : "are launched plainly");
    int64_t *x = new_sums(LONG_SUM, 0, 5, 20), *y = new_sums(LONG_SUM, 0, 6, 20), one[2] = {1, 2};
    int64_t *x_device = cuda_copy(x, LONG_SUM * sizeof *x);
    int64_t *y_device = cuda_copy(y, LONG_SUM * sizeof *y),
            *one_device = cuda_copy(one, sizeof one);
    for (int turn = 0; turn < 16; turn++)
        three_sums(x_device, y_device, one_device, true);
    for (int turn = 0; turn < 16; turn++)
        three_sums(x, y, one, false);
    expect_bytes("the long sum", x_device, x, LONG_SUM * sizeof *x, 8);
    expect_bytes("its tail", y_device, y, LONG_SUM * sizeof *y, 8);
    expect_bytes("the single element", one_device, one, sizeof one, 8);
    free(x), free(y);
    cuda_free_all();
}

/* ---- grad_norm ---- */

/* Granules of very different sizes beside each other; some of zeros. */
static void one_norm(uint64_t count, int shift, uint64_t offset, int most, bool rounded)
{
    if (!cuda_turn())
        return;
    tsr_exact_sum sum;
    int64_t *g = new_sums(count + offset, 0, count, most);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t kind = random_bits(i / 64) % 8;
        if (kind == 0)
            g[offset + i] = 0;
        else if (kind < 4)
            g[offset + i] /= 1ll << 8 * kind;
    }
    tsr_exact_clear(&sum);
    tsr_exact_add(&sum, 1.0 / 3); /* what is there is added to */
    tsr_exact_add(&sum, -1e-300);
    float *f = allocate((count + offset) * 4);
    tsr_fixed_to_f32(f, g, count + offset, shift);
    tsr_grad_norm_args host = {.sum = &sum, .count = count, .shift = shift}, args = host;
    args.sum = cuda_copy(&sum, sizeof sum);
    if (rounded)
        args.rounded = (float *)cuda_copy(f, (count + offset) * 4) + offset;
    else
        args.gradient = (int64_t *)cuda_copy(g, (count + offset) * 8) + offset;
    RUN(rig.kernels->grad_norm(rig.stream, &args));
    const void *device = args.sum;
    host.gradient = g + offset; /* of both the same */
    RUN(tsr_grad_norm_ref(&host, rig.pool));
    char what[64];
    snprintf(what, sizeof what, "grad_norm of %llu, shift %d%s, limb", (unsigned long long)count,
             shift, rounded ? ", rounded" : "");
    expect_bytes(what, device, &sum, sizeof sum, 8);
    free(g), free(f);
    cuda_free_all();
}

static void grad_norm_gives_the_references_limbs(void **state)
{
    static const uint64_t counts[] = {0, 64, 128, 64 * 7, 64 * 63, 64 * 1000, 64 * 40009};
    static const int shifts[] = {TSR_FIXED_SHIFT, 0, 62};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t j = 0; j < sizeof shifts / sizeof *shifts; j++)
            for (int rounded = 0; rounded < 2; rounded++)
                one_norm(counts[i], shifts[j], (i + j) % 2, j == 1 ? 62 : 50, rounded);
    assert_int_equal(rig.kernels->grad_norm(rig.stream, &(tsr_grad_norm_args){.count = 64}),
                     TSR_EINVAL);
}

/* ---- adamw ---- */

#define MAX_SPANS 6

typedef struct {
    float *p, *m, *v;
    float *absmax; /* not NULL: m and v are codes */
    int64_t *g;
    float *rounded; /* the same as fp32; not NULL: on the device they are so */
    void *work;
    uint64_t count;
    tsr_dtype dtype;
    bool has_work;
} owned;

static owned new_owned(uint64_t count, int kind)
{
    owned o = {.count = count, .dtype = kind % 2 ? TSR_BF16 : TSR_F32, .has_work = kind % 3 != 2};
    uint64_t padding = count > 100 ? 37 : 0;
    o.p = new_random((int64_t)count, 1, 1);
    o.m = new_random((int64_t)count, 2, 0.01f);
    o.v = new_random((int64_t)count, 3, 1e-3f);
    o.g = new_sums(count, padding, 4, 48);
    if (kind % 4 >= 2) {
        o.rounded = allocate(count * 4);
        tsr_fixed_to_f32(o.rounded, o.g, count, TSR_FIXED_SHIFT);
    }
    o.work = allocate(count * 4);
    memset(o.work, 0xff, count * 4);
    for (uint64_t i = 0; i < count; i++) {
        o.v[i] = i % 5 ? fabsf(o.v[i]) : i % 10 ? 0 : 1e-39f; /* subnormals too */
        if (i % 7 == 0)
            o.m[i] = i % 14 ? 0 : 1e-40f;
        if (i + padding >= count)
            o.p[i] = o.m[i] = o.v[i] = 0;
    }
    return o;
}

/* Codes of all kinds; blocks whose absmax is 0, subnormal, large. */
static owned new_coded(uint64_t count, int kind)
{
    owned o = new_owned(count, kind);
    if (kind % 4 == 3)
        return o;
    o.absmax = allocate(count / 128 * sizeof *o.absmax);
    for (uint64_t i = 0; i < count / 128; i++)
        o.absmax[i] = i % 7 == 6 ? 0 : ldexpf(1, -(int)(i % 150));
    for (uint64_t i = 0; i < count; i++) {
        ((uint8_t *)o.m)[i] = (uint8_t)(random_bits(i) >> 7);
        ((uint8_t *)o.v)[i] = (uint8_t)(random_bits(i) >> 17);
    }
    return o;
}

static void free_owned(owned *o)
{
    free(o->p), free(o->m), free(o->v), free(o->absmax), free(o->g), free(o->rounded),
        free(o->work);
}

static tsr_adamw_span host_span(const owned *o)
{
    return (tsr_adamw_span){.master = o->p,
                            .m = o->m,
                            .v = o->v,
                            .gradient = o->g,
                            .work = o->has_work ? o->work : NULL,
                            .work_dtype = o->dtype,
                            .count = o->count,
                            .absmax = o->absmax};
}

/* `offset` elements off their alignment. */
static tsr_adamw_span device_span(const owned *o, uint64_t offset)
{
    uint64_t count = o->count, each = tsr_dtype_bytes(o->dtype);
    tsr_adamw_span s = {.work_dtype = o->dtype, .count = count};
    s.master = (float *)cuda_copy(NULL, (count + offset) * 4) + offset;
    s.m = (float *)cuda_copy(NULL, (count + offset) * 4) + offset;
    s.v = (float *)cuda_copy(NULL, (count + offset) * 4) + offset;
    const void *gradient = o->rounded ? (void *)o->rounded : o->g;
    uint64_t width = o->rounded ? sizeof *o->rounded : sizeof *o->g;
    char *g = (char *)cuda_copy(NULL, (count + offset) * width) + offset * width;
    if (o->has_work)
        s.work = (char *)cuda_copy(NULL, (count + offset) * each) + offset * each;
    RUN(tsr_device_write(rig.device, s.master, o->p, count * 4));
    RUN(tsr_device_write(rig.device, s.m, o->m, count * 4));
    RUN(tsr_device_write(rig.device, s.v, o->v, count * 4));
    RUN(tsr_device_write(rig.device, g, gradient, count * width));
    s.gradient = o->rounded ? NULL : (int64_t *)g;
    s.rounded = o->rounded ? (float *)g : NULL;
    if (o->absmax)
        s.absmax = cuda_copy(o->absmax, count / 128 * 4);
    return s;
}

static void expect_span(const tsr_adamw_span *device, const owned *want)
{
    uint64_t bytes = want->count * 4;
    uint32_t each = device->absmax ? 1 : 4;
    expect_bytes("m", device->m, want->m, want->count * each, each);
    expect_bytes("v", device->v, want->v, want->count * each, each);
    if (device->absmax)
        expect_bytes("absmax", device->absmax, want->absmax, want->count / 128 * 4, 4);
    expect_bytes("p", device->master, want->p, bytes, 4);
    if (want->has_work)
        expect_bytes("work", device->work, want->work, want->count * tsr_dtype_bytes(want->dtype),
                     tsr_dtype_bytes(want->dtype));
}

static const tsr_adamw_step usual = {.learning_rate = 2e-4,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .epsilon = 1e-8,
                                     .weight_decay = 0.01,
                                     .step = 99}; /* ignored */

/* Each control in turn: one step after the other. coded: of adamw_8bit. */
static void run_steps(const uint64_t *counts, int spans, uint64_t offset, bool coded,
                      tsr_adamw_step step, const tsr_adamw_control *controls, int steps)
{
    if (!cuda_turn())
        return;
    owned o[MAX_SPANS];
    tsr_adamw_span host[MAX_SPANS], device[MAX_SPANS];
    for (int i = 0; i < spans; i++) {
        o[i] = coded ? new_coded(counts[i], i) : new_owned(counts[i], i);
        host[i] = host_span(&o[i]);
        device[i] = device_span(&o[i], o[i].absmax ? 4 * offset : offset);
        host[i].rate = device[i].rate = i % 3 == 1 ? 16 : 0;
    }
    tsr_adamw_control *control = cuda_copy(controls, (uint64_t)steps * sizeof *controls);
    for (int t = 0; t < steps; t++) {
        tsr_adamw_args args = {host, (uint64_t)spans, step, &controls[t], TSR_FIXED_SHIFT};
        RUN(coded ? tsr_adamw_8bit_ref(&args, rig.pool) : tsr_adamw_ref(&args, rig.pool));
        args.spans = device;
        args.control = control + t;
        RUN(coded ? rig.kernels->adamw_8bit(rig.stream, &args)
                  : rig.kernels->adamw(rig.stream, &args));
        for (int i = 0; i < spans; i++)
            expect_span(&device[i], &o[i]);
    }
    for (int i = 0; i < spans; i++)
        free_owned(&o[i]);
    cuda_free_all();
}

static void adamw_gives_the_references_bits(void **state)
{
    static const uint64_t counts[] = {1, 64, 1001, 70000, 5, 1024};
    static const tsr_adamw_control controls[] = {{1, 0, 1},     {0.3f, 0, 2},   {1, 1, 3},
                                                 {1, 0, 3},     {1e-30f, 0, 4}, {1, 0, 1000},
                                                 {1, 0, 123456}};
    tsr_adamw_step other = {.learning_rate = 1e-2, .beta1 = 0, .beta2 = 0.5, .epsilon = 1e-30};
    (void)state;
    for (int spans = 1; spans <= MAX_SPANS; spans++)
        run_steps(counts + MAX_SPANS - spans, spans, (uint64_t)spans % 2, false, usual, controls,
                  7);
    run_steps(counts, MAX_SPANS, 0, false, other, controls, 7);
    run_steps((uint64_t[]){3000001}, 1, 0, false, usual, controls, 2);
    run_steps((uint64_t[]){0}, 1, 0, false, usual, controls, 1);
}

/* ---- adamw_8bit ---- */

static void adamw_8bit_gives_the_references_bits(void **state)
{
    static const uint64_t counts[] = {256, 2560, 70144, 1001, 0, 4096};
    static const tsr_adamw_control controls[] = {{1, 0, 1},     {0.3f, 0, 2}, {1, 1, 3},
                                                 {1, 0, 3},     {1, 0, 1000}, {1e-30f, 0, 4},
                                                 {1, 0, 123456}};
    (void)state;
    for (int spans = 1; spans <= MAX_SPANS; spans++)
        run_steps(counts, spans, (uint64_t)spans % 2, true, usual, controls, 7);
    run_steps((uint64_t[]){256 * 12001}, 1, 0, true, usual, controls, 2);
}

/* 1 - b^t of the device and of the host's libm: every t of a short run, and some of a long one. */
static void adamw_corrects_the_bias_as_the_reference(void **state)
{
    enum { STEPS = 400 };
    static tsr_adamw_control controls[STEPS];
    static const double beta2[] = {0.999, 0.95, 0.9999};
    (void)state;
    for (int i = 0; i < STEPS; i++)
        controls[i] = (tsr_adamw_control){
            1, 0, i < 300 ? (uint64_t)i + 1 : 300 + 1 + random_bits((uint64_t)i) % 200000};
    for (int i = 0; i < 3; i++) {
        tsr_adamw_step step = usual;
        step.beta2 = beta2[i];
        run_steps((uint64_t[]){257}, 1, 0, false, step, controls, STEPS);
    }
}

static void adamw_refuses_what_the_reference_refuses(void **state)
{
    (void)state;
    tsr_adamw_control *control = cuda_copy(NULL, sizeof *control);
    tsr_adamw_span span = {.work = control, .work_dtype = TSR_F16};
    tsr_adamw_args args = {.step = usual, .control = control, .shift = TSR_FIXED_SHIFT};
    RUN(rig.kernels->adamw(rig.stream, &args));
    args.step.epsilon = 0;
    assert_int_equal(rig.kernels->adamw(rig.stream, &args), TSR_EINVAL);
    args.step = usual;
    args.step.beta1 = 1;
    assert_int_equal(rig.kernels->adamw(rig.stream, &args), TSR_EINVAL);
    args.step = usual;
    args.spans = &span;
    args.span_count = 1;
    assert_int_equal(rig.kernels->adamw(rig.stream, &args), TSR_EINVAL);
    args.control = NULL;
    assert_int_equal(rig.kernels->adamw(rig.stream, &args), TSR_EINVAL);
    cuda_free_all();
}

/* ---- step_sums, step_control ---- */

static void step_sums_are_added_and_cleared(void **state)
{
    (void)state;
    for (int flags = 0; flags < 4; flags++) {
        int64_t loss = -5 + ((int64_t)flags << 40), gradient = flags & 2 ? 1 : 0;
        int64_t word_loss = 7, word_bad = 3, reported[TSR_REPORTED_SUMS] = {40, -3},
                word_reported[TSR_REPORTED_SUMS] = {1, 2};
        int32_t overflow = flags & 1;
        tsr_step_sums_args args = {cuda_copy(&loss, 8), cuda_copy(&overflow, 4),
                                   cuda_copy(&gradient, 8), cuda_copy(&word_loss, 8),
                                   cuda_copy(&word_bad, 8)};
        if (flags & 1) {
            args.reported = cuda_copy(reported, sizeof reported);
            args.word_reported = cuda_copy(word_reported, sizeof word_reported);
        }
        RUN(rig.kernels->step_sums(rig.stream, &args));
        tsr_step_sums_args host = {&loss, &overflow, &gradient, &word_loss, &word_bad};
        if (flags & 1) {
            host.reported = reported;
            host.word_reported = word_reported;
        }
        RUN(tsr_step_sums_ref(&host, rig.pool));
        if (flags & 1) {
            assert_true(reported[0] == 0 && word_reported[0] == 41 && word_reported[1] == -1);
            expect_bytes("reported", args.reported, reported, sizeof reported, sizeof reported);
            expect_bytes("word_reported", args.word_reported, word_reported, sizeof reported,
                         sizeof reported);
        }
        expect_bytes("loss", args.loss, &loss, 8, 8);
        expect_bytes("loss_overflow", args.loss_overflow, &overflow, 4, 4);
        expect_bytes("gradient_overflow", args.gradient_overflow, &gradient, 8, 8);
        expect_bytes("word_loss", args.word_loss, &word_loss, 8, 8);
        expect_bytes("word_non_finite", args.word_non_finite, &word_bad, 8, 8);
        cuda_free_all();
    }
}

static void one_control(const tsr_exact_sum *squares, double max_norm, int64_t error, int64_t bad)
{
    if (!cuda_turn())
        return;
    tsr_adamw_control control = {5, 7, 41};
    tsr_step_control_args args = {cuda_copy(&control, sizeof control),
                                  cuda_copy(squares, sizeof *squares), cuda_copy(&error, 8),
                                  cuda_copy(&bad, 8), max_norm};
    RUN(rig.kernels->step_control(rig.stream, &args));
    tsr_step_control_args host = {&control, squares, &error, &bad, max_norm};
    RUN(tsr_step_control_ref(&host, rig.pool));
    tsr_adamw_control got;
    cuda_read(&got, args.control, sizeof got);
    if (memcmp(&got.clip, &control.clip, 4) != 0 || got.skip != control.skip ||
        got.step != control.step)
        fail_msg("step_control: clip %a, skip %u, step %llu; want %a, %u, %llu (norm %a, most %g)",
                 (double)got.clip, got.skip, (unsigned long long)got.step, (double)control.clip,
                 control.skip, (unsigned long long)control.step, tsr_grad_norm(squares), max_norm);
    cuda_free_all();
}

static void step_control_gives_the_references_bits(void **state)
{
    static const double summands[][3] = {{0},
                                         {1},
                                         {4, 5, 0x1p-60},
                                         {0x1p53, 1, 0},
                                         {0x1p53, 1, 0x1p-1000},
                                         {0x1p53, 3},
                                         {5e-324},
                                         {3e-310, 5e-324},
                                         {1e308, 1e308},
                                         {-1},
                                         {1, -1},
                                         {1, -0x1p-80},
                                         {0x1p40, -0x1p-30},
                                         {0x1.fffffffffffffp10, 0x1p-43},
                                         {INFINITY, 1},
                                         {NAN},
                                         {2e-300, 1e-290}};
    static const double norms[] = {0, 1, 0.3, 1e-3, 1e9, -1, NAN};
    tsr_exact_sum sum;
    (void)state;
    for (size_t i = 0; i < sizeof summands / sizeof *summands; i++)
        for (size_t j = 0; j < sizeof norms / sizeof *norms; j++) {
            tsr_exact_clear(&sum);
            for (int k = 0; k < 3; k++)
                tsr_exact_add(&sum, summands[i][k]);
            one_control(&sum, norms[j], 0, 0);
        }
    for (int turn = 0; turn < 200; turn++) {
        tsr_exact_clear(&sum);
        for (int k = 0; k < 50; k++) {
            uint64_t bits = random_bits((uint64_t)(turn * 50 + k));
            tsr_exact_add(&sum, ldexp((double)(bits >> 11), (int)(bits % 60) - 80));
        }
        one_control(&sum, norms[turn % 4], turn % 10 == 3, turn % 10 == 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_sum_gives_the_references_integers),
        cmocka_unit_test(fixed_accumulate_gives_the_references_integers),
        cmocka_unit_test(fixed_add_is_exact),
        cmocka_unit_test(kernels_wait_for_those_before_them),
        cmocka_unit_test(grad_norm_gives_the_references_limbs),
        cmocka_unit_test(adamw_gives_the_references_bits),
        cmocka_unit_test(adamw_8bit_gives_the_references_bits),
        cmocka_unit_test(adamw_corrects_the_bias_as_the_reference),
        cmocka_unit_test(adamw_refuses_what_the_reference_refuses),
        cmocka_unit_test(step_sums_are_added_and_cleared),
        cmocka_unit_test(step_control_gives_the_references_bits),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
