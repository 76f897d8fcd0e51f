/*
 * test_linear_mixed.c: a linear whose tokens are of several adapters, each of another rank, one without any, one without tokens,
 * one with dropout: z, dx and gradients against sums in double. Range by range, the gradients of each adapter are those of a
 * linear of its tokens alone, bit for bit; so are those of a range that is left out of a stack. In fp32 no run stacks, but it
 * must be right all the same.
 *
 *     test_adapters_linear_mixed        on the CPU, fp32
 *     test_adapters_linear_mixed cuda   on a GPU, bf16 and fp32; 77 without one
 */
#include "linear_case.h"

#include "adapters/linear_parts.h"

#define RANGES  6
#define DROPPED 5

typedef struct {
    linear_case *c;
    tsr_linear_range range[RANGES];
    double *a[RANGES], *b[RANGES];
    bool stacked[RANGES];
    void *dropped[2], *kept;
    int64_t *samples;
    int32_t *positions;
} mixed_case;

static char *rows(const mixed_case *m, void *from, int range, int64_t columns)
{
    uint64_t element = tsr_dtype_bytes(m->c->spec.dtype);
    return (char *)from + (uint64_t)(m->range[range].first * columns) * element;
}

/* An array of NaN. */
static void *take_blank(linear_case *c, uint64_t bytes)
{
    void *out = take(c, bytes);
    RUN(tsr_stream_fill(rig.stream, out, 0xff, bytes));
    return out;
}

/* Memory for stacks, of as many columns as there can be; and which ranges are stacked. */
static void prepare_stacks(mixed_case *m)
{
    linear_case *c = m->c;
    uint64_t element = tsr_dtype_bytes(c->spec.dtype), columns = c->linear.low;
    c->context.stack = (tsr_linear_stack){take_blank(c, columns * c->linear.in * element),
                                          take_blank(c, columns * c->linear.out * element),
                                          take_blank(c, columns * c->linear.in * sizeof(float)),
                                          take_blank(c, columns * c->linear.out * sizeof(float))};
    for (int k = 0, count; k < RANGES; k += count ? count : 1) {
        count = tsr_linear_stack_count(&c->context, &c->linear, k);
        for (int i = k; i < k + count; i++)
            m->stacked[i] = true;
    }
    assert_int_equal(m->stacked[0], m->stacked[1]);
    assert_int_equal(m->stacked[0], c->spec.r + c->spec.r / 2 <= TSR_LINEAR_STACK);
    assert_false(m->stacked[DROPPED]);
}

/* Tokens of 1 : 2 : 3 : none : 2 : the rest; ranks of the whole, half of it, none, the whole, half of it, and the whole with
 * dropout. */
static mixed_case make(spec s, bool stacks)
{
    mixed_case m = {.c = begin(s)};
    linear_case *c = m.c;
    int64_t first = 0, unit = s.t / 10 > 0 ? s.t / 10 : 1;
    uint64_t element = tsr_dtype_bytes(s.dtype), t = (uint64_t)s.t;
    const int64_t rank[RANGES] = {s.r, s.r / 2, 0, s.r, s.r / 2, s.r};
    const int64_t share[RANGES] = {1, 2, 3, 0, 2, 0};
    for (int k = 0; k < RANGES; k++) {
        tsr_linear_range *range = &m.range[k];
        void *a, *b;
        int64_t tokens = k == DROPPED ? s.t - first : share[k] * unit;
        m.a[k] = numbers(&a, c, s.in * (rank[k] + 1), 0.1, (uint64_t)k + 40);
        m.b[k] = numbers(&b, c, s.out * (rank[k] + 1), s.update, (uint64_t)k + 20);
        *range = (tsr_linear_range){.first = first,
                                    .tokens = tokens,
                                    .r = (uint64_t)rank[k],
                                    .scale = SCALE / (k + 1),
                                    .a = a,
                                    .b = b,
                                    .drops = k == DROPPED};
        range->dropout = tsr_dropout_make(0.25, 5, 1, 77);
        range->da = take_blank(c, c->linear.r * c->linear.in * sizeof(float));
        range->db = take_blank(c, c->linear.r * c->linear.out * sizeof(float));
        first += tokens;
    }
    c->context.dropped = m.dropped[0] = take(c, t * c->linear.in * element);
    c->context.d_dropped = m.dropped[1] = take(c, t * c->linear.in * element);
    c->linear.range_count = RANGES;
    c->linear.low = 4 * c->linear.r; /* more than any of them needs */
    c->context.low = take_blank(c, t * c->linear.low * element);
    c->context.d_low = take_blank(c, t * c->linear.low * element);
    m.kept = take_blank(c, t * c->linear.low * element);
    m.samples = take(c, t * sizeof *m.samples);
    m.positions = take(c, t * sizeof *m.positions);
    for (int64_t i = 0; i < s.t; i++) {
        int64_t sample = i / 7;
        int32_t position = (int32_t)(i % 7);
        RUN(tsr_device_write(rig.device, m.samples + i, &sample, sizeof sample));
        RUN(tsr_device_write(rig.device, m.positions + i, &position, sizeof position));
    }
    c->context.samples = m.samples;
    c->context.positions = m.positions;
    c->linear.range = m.range;
    if (stacks)
        prepare_stacks(&m);
    c->linear.range = NULL; /* it moves when this returns */
    c->linear.range_count = 0;
    return m;
}

static void drop_case(mixed_case *m)
{
    for (int k = 0; k < RANGES; k++) {
        free(m->a[k]);
        free(m->b[k]);
    }
    end(m->c);
}

/* z and dx of a range without dropout, in double. */
static void expect_products(const mixed_case *m, int k)
{
    const linear_case *c = m->c;
    const tsr_linear_range *range = &m->range[k];
    int64_t in = c->spec.in, out = c->spec.out, r = (int64_t)range->r, t = range->tokens;
    double *w = zeros(out * in), *z = zeros(t * out), *dx = zeros(t * in);
    memcpy(w, c->w, (size_t)(out * in) * sizeof *w);
    multiply(w, m->b[k], m->a[k], out, in, r, false, range->scale);
    double *w_t = transposed(w, out, in);
    multiply(z, c->x + range->first * in, w_t, t, out, in, false, 1);
    multiply(dx, c->dy + range->first * out, w, t, in, out, false, 1);
    tsr_dtype dtype = c->spec.dtype;
    double z_apart = distance(rows(m, c->d_z, k, out), z, t * out, dtype, 1);
    double dx_apart = distance(rows(m, c->gradients.dx, k, in), dx, t * in, dtype, 1);
    if (!(z_apart < tolerance(dtype) && dx_apart < tolerance(dtype)))
        fail_msg("range %d: z is %.2g away, dx %.2g", k, z_apart, dx_apart);
    free(w);
    free(w_t);
    free(z);
    free(dx);
}

/* dA and dB of a range without dropout, in double; of one without tokens they are 0. */
static void expect_gradients(const mixed_case *m, int k)
{
    const linear_case *c = m->c;
    const tsr_linear_range *range = &m->range[k];
    int64_t in = c->spec.in, out = c->spec.out, r = (int64_t)range->r;
    double *g = zeros(out * in), *da = zeros(r * in), *db = zeros(out * r);
    double *a_t = transposed(m->a[k], r, in);
    multiply(g, c->dy + range->first * out, c->x + range->first * in, out, in, range->tokens, true,
             1);
    multiply(da, m->b[k], g, r, in, out, true, range->scale);
    multiply(db, g, a_t, out, r, in, false, range->scale);
    double da_apart = distance(range->da, da, r * in, TSR_F32, 1);
    double db_apart = distance(range->db, db, out * r, TSR_F32, 1);
    double most = range->tokens ? tolerance(c->spec.dtype) : 0;
    if (!(da_apart <= most && db_apart <= most))
        fail_msg("range %d: dA is %.2g away, dB %.2g", k, da_apart, db_apart);
    free(g);
    free(da);
    free(db);
    free(a_t);
}

static void expect_bytes(const void *device, const void *other, uint64_t count, const char *what,
                         int range)
{
    float *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b);
    assert_non_null(a);
    assert_non_null(b);
    RUN(tsr_device_read(rig.device, a, device, count * sizeof *a));
    RUN(tsr_device_read(rig.device, b, other, count * sizeof *b));
    if (memcmp(a, b, count * sizeof *a) != 0)
        fail_msg("range %d: another %s than alone", range, what);
    free(a);
    free(b);
}

static double *read_rows(const mixed_case *m, const void *device, int64_t count)
{
    double *out = zeros(count);
    char *raw = malloc((size_t)count * sizeof(float));
    bool wide = m->c->spec.dtype == TSR_F32;
    assert_non_null(raw);
    RUN(tsr_device_read(rig.device, raw, device,
                        (uint64_t)count * tsr_dtype_bytes(m->c->spec.dtype)));
    for (int64_t i = 0; i < count; i++) {
        float value;
        uint16_t low;
        memcpy(&value, raw + 4 * i * wide, sizeof value);
        memcpy(&low, raw + 2 * i, sizeof low);
        out[i] = (double)(wide ? value : tsr_bf16_to_f32(low));
    }
    free(raw);
    return out;
}

/* The tokens of a range as all there are. */
static void expect_alone(mixed_case *m, int k, bool keeps, const double *z, const double *dx)
{
    linear_case *c = m->c;
    const tsr_linear_range *range = &m->range[k];
    tsr_linear linear = c->linear;
    tsr_linear_context context = c->context;
    tsr_linear_gradients gradients = c->gradients;
    int64_t in = c->spec.in, out = c->spec.out;
    linear.range_count = 0;
    linear.apart = true;
    linear.r = range->r;
    linear.scale = range->scale;
    linear.a = range->a;
    linear.b = range->b;
    linear.drops = range->drops;
    linear.dropout = range->dropout;
    context.tokens = range->tokens;
    context.samples += range->first;
    context.positions += range->first;
    gradients.x = rows(m, (void *)c->gradients.x, k, in);
    gradients.dz = rows(m, c->gradients.dz, k, out);
    gradients.low = keeps ? m->kept : NULL;
    RUN(tsr_linear_forward(&context, &linear, gradients.x, c->d_z, NULL, (void *)gradients.low));
    RUN(tsr_linear_backward(&context, &linear, &gradients));
    RUN(tsr_stream_synchronize(rig.stream));
    double most = 2 * tolerance(c->spec.dtype); /* either is as far from the truth */
    assert_true(distance(c->d_z, z, range->tokens * out, c->spec.dtype, 1) < most);
    assert_true(distance(gradients.dx, dx, range->tokens * in, c->spec.dtype, 1) < most);
    if (!range->r || m->stacked[k])
        return;
    expect_bytes(range->da, gradients.da, range->r * linear.in, "dA", k);
    expect_bytes(range->db, gradients.db, range->r * linear.out, "dB", k);
}

static void check_kept(spec s, bool keeps, bool stacks)
{
    mixed_case m = make(s, stacks);
    linear_case *c = m.c;
    tsr_linear linear = c->linear;
    tsr_linear_gradients gradients = c->gradients;
    linear.range = m.range;
    linear.range_count = RANGES;
    gradients.low = keeps ? m.kept : NULL;
    gradients.da = gradients.db = NULL; /* each range has its own */
    for (int add = 0; add < 2; add++) {
        gradients.add = add;
        if (add)
            RUN(tsr_stream_fill(rig.stream, gradients.dx, 0,
                                (uint64_t)(s.t * s.in) * tsr_dtype_bytes(s.dtype)));
        RUN(tsr_linear_forward(&c->context, &linear, gradients.x, c->d_z, NULL,
                               (void *)gradients.low));
        RUN(tsr_linear_backward(&c->context, &linear, &gradients));
        RUN(tsr_stream_synchronize(rig.stream));
        for (int k = 0; k < DROPPED; k++) {
            expect_products(&m, k);
            expect_gradients(&m, k);
        }
    }
    double *z = read_rows(&m, c->d_z, s.t * s.out), *dx = read_rows(&m, gradients.dx, s.t * s.in);
    for (int k = 0; k < RANGES; k++)
        expect_alone(&m, k, keeps, z + m.range[k].first * s.out, dx + m.range[k].first * s.in);
    free(z);
    free(dx);
    drop_case(&m);
}

/* Sanitizers are slow: there half of the ways of each case. */
#ifdef TSR_SANITIZED
#define EVERY 2
#else
#define EVERY 1
#endif

static void check(spec s)
{
    static int turn;
    if (s.t < 20 || s.r % 16)
        return;
    for (int i = turn++ % EVERY; i < 4; i += EVERY)
        check_kept(s, i % 2, i / 2);
}

static void test_ranges(void **state)
{
    (void)state;
    over_cases(check);
}

int main(int argc, char **argv)
{
    if (case_is_skipped(argc, argv))
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
