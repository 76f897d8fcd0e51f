/*
 * test_cuda_nf4_merge.c: nf4_merge on a GPU against the C reference, with DoRA's norms and without, and the
 * norms alone; W apart gives nf4_dequant's bits.
 */
#include "cuda_nf4.h"

#include "kernels/fp8_decode.h"
#include "kernels/kernels_cuda.h"
#include "kernels/nf4_dequant.h"

typedef struct {
    int64_t rows, columns, r;
    bool nested;
    int b_offset; /* elements: off its vectors */
} merge_case;

/* Squares are added in fp32, 64 to 256 columns at a time, of a B A that tensor cores add up. */
#define NORM_TOLERANCE 2e-6

/* g is the division of what m and n are. */
static void expect_norms(const char *what, const tsr_nf4_merge_norms *got, const float *want,
                         const float *m, int64_t rows)
{
    float *n = cuda_floats(got->n, rows, TSR_F32), *g = cuda_floats(got->g, rows, TSR_F32);
    for (int64_t i = 0; i < rows; i++) {
        volatile float quotient = m ? m[i] / n[i] : 1;
        float gain = quotient;
        double error = fabs((double)n[i] - (double)want[i]);
        bool near = isfinite(want[i]) ? error <= NORM_TOLERANCE * (double)want[i]
                                      : n[i] == want[i] || (isnan(n[i]) && isnan(want[i]));
        bool same = memcmp(&gain, &g[i], sizeof gain) == 0 || (isnan(gain) && isnan(g[i]));
        if (!near || !same)
            fail_msg("%s: row %lld has the norm %a, want %a, and g %a, want %a", what, (long long)i,
                     (double)n[i], (double)want[i], (double)g[i], (double)gain);
    }
    free(n), free(g);
}

static void expect_same(const char *what, const void *got, const void *want, int64_t count)
{
    uint16_t *bits[2] = {malloc((size_t)count * 2), malloc((size_t)count * 2)};
    assert_true(bits[0] && bits[1]);
    cuda_read(bits[0], got, (uint64_t)count * 2);
    cuda_read(bits[1], want, (uint64_t)count * 2);
    if (memcmp(bits[0], bits[1], (size_t)count * 2) != 0)
        fail_msg("%s: bits differ", what);
    free(bits[0]), free(bits[1]);
}

/* The merged weight is `merged` whether there are norms or not, W apart what nf4_dequant makes, and the
 * norms of both are the same. */
static void merge_with_norms(const char *what, const tsr_nf4_merge_args *args, const float *want,
                             const float *m)
{
    int64_t count = args->weight.count, rows = count / args->weight.columns;
    tsr_nf4_merge_args with = *args;
    tsr_nf4_dequant_args alone = args->weight;
    float *partials =
        cuda_copy(NULL, 4 * (uint64_t)tsr_nf4_merge_partials(rows, args->weight.columns) + GUARD);
    with.weight.out = new_output(count, TSR_BF16, 0);
    alone.out = new_output(count, TSR_BF16, 0);
    with.norms = (tsr_nf4_merge_norms){.n = new_output(rows, TSR_F32, 0),
                                       .g = new_output(rows, TSR_F32, 0),
                                       .m = cuda_copy(m, (uint64_t)rows * 4),
                                       .partials = partials};
    RUN(rig.kernels->nf4_merge(rig.stream, &with));
    expect_norms(what, &with.norms, want, m, rows);
    expect_same(what, with.weight.out, args->weight.out, count);
    tsr_nf4_merge_norms first = with.norms;
    with.norms.n = new_output(rows, TSR_F32, 0);
    with.norms.m = NULL;
    with.apart = true;
    RUN(rig.kernels->nf4_merge(rig.stream, &with));
    RUN(rig.kernels->nf4_dequant(rig.stream, &alone));
    expect_norms(what, &with.norms, want, NULL, rows);
    expect_same(what, with.weight.out, alone.out, count);
    expect_same(what, with.norms.n, first.n, 2 * rows);
}

/* What is merged: for the reference, and the same on the device without an output. */
typedef struct {
    nf4_data d;
    float *a, *b, *norm, *gain;
    tsr_nf4_merge_args host, device;
} merge_data;

static tsr_nf4_merge_args merge_args(const merge_case *c, const merge_data *m)
{
    return (tsr_nf4_merge_args){
        .weight = {.out = m->d.want,
                   .codes = m->d.codes,
                   .absmax = c->nested ? (void *)m->d.q : (void *)m->d.absmax,
                   .nested_absmax = m->d.nested,
                   .nested_map = m->d.map,
                   .level = m->d.level,
                   .count = c->rows * c->columns,
                   .columns = c->columns,
                   .offset = 0.04f,
                   .nested = c->nested},
        .a = m->a,
        .b = m->b + c->b_offset,
        .r = c->r,
        .scale = 1.75f,
        .norms = {.n = m->norm, .g = m->gain}};
}

/* `finite`: without the extremes among fp32 scales. */
static merge_data new_merge(const merge_case *c, tsr_dtype dtype, bool finite)
{
    int64_t count = c->rows * c->columns;
    merge_data m = {.d = new_nf4(&(nf4_case){count, c->columns, c->nested, 0, 0})};
    m.a = new_random(c->r * c->columns, 6, 0.05f);
    m.b = new_random(c->rows * c->r + c->b_offset, 7, 0.3f);
    for (int64_t i = 3; i < m.d.blocks && i < 3 + EXTREMES && finite; i++)
        m.d.absmax[i] = 0.1f;
    bool zero = c->rows > 1 && !c->nested; /* the first row */
    for (int64_t i = 0; i < m.d.blocks && zero && i * 64 < c->columns; i++)
        m.d.absmax[i] = 0;
    memset(m.b + c->b_offset, 0, (size_t)(zero ? c->r : 0) * sizeof *m.b);
    m.norm = new_floats(c->rows), m.gain = new_floats(c->rows);
    void *device_a = cuda_values(m.a, c->r * c->columns, dtype); /* rounds what the host has, too */
    char *device_b = cuda_values(m.b, c->rows * c->r + c->b_offset, dtype);
    m.device = m.host = merge_args(c, &m);
    m.device.norms = (tsr_nf4_merge_norms){0};
    m.device.weight.dtype = dtype;
    m.device.weight.out = NULL;
    m.device.weight.codes = cuda_copy(m.d.codes, (uint64_t)(count + 1) / 2);
    m.device.weight.absmax = c->nested ? cuda_copy(m.d.q, (uint64_t)m.d.blocks)
                                       : cuda_copy(m.d.absmax, (uint64_t)m.d.blocks * 4);
    m.device.weight.nested_absmax = cuda_copy(m.d.nested, (uint64_t)(m.d.blocks / 256 + 1) * 4);
    m.device.weight.nested_map = cuda_copy(m.d.map, 1024);
    m.device.weight.level = cuda_copy(m.d.level, 64);
    m.device.a = device_a;
    m.device.b = device_b + (uint32_t)c->b_offset * tsr_dtype_bytes(dtype);
    return m;
}

static void free_merge(merge_data *m)
{
    free(m->a), free(m->b), free(m->norm), free(m->gain);
    free_nf4(&m->d);
    cuda_free_all();
}

static void name_merge(char out[128], const merge_case *c)
{
    snprintf(out, 128, "nf4_merge of %lld x %lld, r %lld, %s scales", (long long)c->rows,
             (long long)c->columns, (long long)c->r, c->nested ? "nested" : "fp32");
}

static void one_merge(const merge_case *c, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    int64_t count = c->rows * c->columns;
    merge_data m = new_merge(c, dtype, true); /* products with infinity are of no use here */
    RUN(tsr_nf4_merge_ref(&m.host, rig.pool));
    m.device.weight.out = new_output(count, dtype, 0);
    RUN(rig.kernels->nf4_merge(rig.stream, &m.device));
    char what[128];
    name_merge(what, c);
    /* What is not fused is rounded when the weight is made, and again when it is added to. */
    bool once = dtype == TSR_F32 || (tsr_nf4_merge_fused(dtype, c->columns, c->r) && !c->b_offset);
    cuda_expect(what, m.device.weight.out, m.d.want, count, dtype,
                tolerance_of(tolerance_merge, dtype) * (once ? 1 : 2), 1e-30);
    if (dtype == TSR_BF16 && once)
        merge_with_norms(what, &m.device, m.norm, m.d.factor);
    free_merge(&m);
}

/* The norms alone, of W in e4m3, with fp8_decode's scales: the reference's. g is 1 where m is what n was. */
static void one_alone(const merge_case *c)
{
    if (!cuda_turn())
        return;
    merge_data m = new_merge(c, TSR_BF16, false);
    float *scale = new_floats(c->rows), *n = NULL;
    float *device_scale = new_output(c->rows, TSR_F32, 0);
    tsr_fp8_decode_args decode = {.weight = m.host.weight, .scale = scale};
    decode.weight.out = m.host.weight.out = NULL;
    decode.weight.dtype = TSR_F8_E4M3;
    RUN(tsr_fp8_decode_ref(&decode, rig.pool));
    m.host.e4m3_scale = scale;
    RUN(tsr_nf4_merge_ref(&m.host, rig.pool));
    decode = (tsr_fp8_decode_args){.weight = m.device.weight, .scale = device_scale};
    decode.weight.dtype = TSR_F8_E4M3;
    RUN(rig.kernels->fp8_decode(rig.stream, &decode));
    tsr_nf4_merge_norms *norms = &m.device.norms;
    norms->partials = cuda_copy(NULL, 4 * (uint64_t)tsr_nf4_merge_partials(c->rows, c->columns));
    norms->m = cuda_copy(m.d.factor, (uint64_t)c->rows * 4);
    m.device.e4m3_scale = device_scale;
    char what[128];
    name_merge(what, c);
    strcat(what, ", alone");
    float *first = NULL;
    for (int turn = 0; turn < 3; turn++) {
        norms->n = new_output(c->rows, TSR_F32, 0);
        norms->g = new_output(c->rows, TSR_F32, 0);
        RUN(rig.kernels->nf4_merge(rig.stream, &m.device));
        expect_norms(what, norms, m.norm, turn == 0 ? m.d.factor : turn == 1 ? NULL : n, c->rows);
        if (first)
            expect_same(what, norms->n, first, 2 * c->rows);
        first = norms->n;
        norms->m = turn == 0 ? NULL : first;
        n = n ? n : cuda_floats(first, c->rows, TSR_F32);
    }
    free(scale), free(n);
    free_merge(&m);
}

static void nf4_norms_alone(void **state)
{
    static const int64_t rows[] = {1, 7, 16, 65, 129, 200};
    static const int64_t columns[] = {64, 192, 256, 320, 1088};
    static const int64_t ranks[] = {8, 16, 32, 64, 72, 384};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++)
                one_alone(&(merge_case){rows[i], columns[j], ranks[k], (i + j + k) % 2, 0});
    one_alone(&(merge_case){1024, 4096, 16, true, 0});
    one_alone(&(merge_case){1024, 4096, 8, false, 0});
    one_alone(&(merge_case){300, 14336, 64, true, 0});
    one_alone(&(merge_case){2048, 4096, 384, true, 0});
}

static void nf4_merges(void **state)
{
    static const int64_t rows[] = {1, 7, 8, 16, 63, 64, 65, 127, 129, 200, 257};
    static const int64_t columns[] = {64, 128, 192, 256, 320, 1088};
    static const int64_t ranks[] = {8, 16, 24, 32, 40, 64, 72, 136, 384, 512};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++)
                one_merge(&(merge_case){rows[i], columns[j], ranks[k], (i + j + k) % 2, 0},
                          TSR_BF16);
    one_merge(&(merge_case){1024, 4096, 16, true, 0}, TSR_BF16);
    one_merge(&(merge_case){300, 14336, 64, true, 0}, TSR_BF16);
    one_merge(&(merge_case){2048, 4096, 384, true, 0}, TSR_BF16);
    /* What the fused kernel does not take. */
    one_merge(&(merge_case){64, 256, 16, true, 1}, TSR_BF16);
    one_merge(&(merge_case){50, 96, 16, true, 0}, TSR_BF16);
    one_merge(&(merge_case){50, 128, 12, false, 0}, TSR_BF16);
    one_merge(&(merge_case){50, 128, 16, true, 0}, TSR_F32);
    one_merge(&(merge_case){50, 128, 16, true, 0}, TSR_F16);
    tsr_nf4_merge_args none = {.weight = {.columns = 64}, .r = 16};
    RUN(rig.kernels->nf4_merge(rig.stream, &none));
    none.weight.columns = 0;
    assert_int_equal(rig.kernels->nf4_merge(rig.stream, &none), TSR_EINVAL);
}

/* Norms only where one kernel merges, and of what it leaves. */
static void nf4_merge_refuses_norms(void **state)
{
    float some[4];
    tsr_nf4_merge_args args = {.weight = {.out = some,
                                          .codes = (uint8_t *)some,
                                          .absmax = some,
                                          .level = some,
                                          .count = 256,
                                          .columns = 64,
                                          .dtype = TSR_BF16},
                               .a = some,
                               .b = some,
                               .r = 16,
                               .norms = {.n = some, .g = some}};
    (void)state;
    assert_int_equal(rig.kernels->nf4_merge(rig.stream, &args), TSR_EUNSUPPORTED);
    args.norms.partials = some;
    args.weight.dtype = TSR_F32;
    assert_int_equal(rig.kernels->nf4_merge(rig.stream, &args), TSR_EUNSUPPORTED);
    args.weight.out = NULL;
    args.e4m3_scale = some;
    assert_int_equal(rig.kernels->nf4_merge(rig.stream, &args), TSR_EUNSUPPORTED);
}

/* By the kernel of cards that have no wgmma. */
static void nf4_merges_on_any_card(void **state)
{
    tsr_kernels_context *context = tsr_device_kept(tsr_stream_device(rig.stream));
    void *boxes = context->boxes;
    context->boxes = NULL;
    nf4_merges(state);
    nf4_norms_alone(state);
    context->boxes = boxes;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_merges),
        cmocka_unit_test(nf4_norms_alone),
        cmocka_unit_test(nf4_merges_on_any_card),
        cmocka_unit_test(nf4_merge_refuses_norms),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
