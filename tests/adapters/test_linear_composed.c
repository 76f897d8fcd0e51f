/*
 * test_linear_composed.c: DoRA with dropout, which is composed in the linear, by each of its graphs against sums
 * in double of its definition.
 *
 *     test_adapters_linear_composed        on the CPU, fp32
 *     test_adapters_linear_composed cuda   on a GPU, bf16 and fp32; 77 without one
 */
#include "linear_case.h"

#define P 0.1 /* of dropout */

/* What a composed linear has beside, on the host: rows of W x + bias + (g - 1) W xd + g s B A xd, of
 * W xd + s B A xd, and dm. */
typedef struct {
    linear_case *c;
    double *y, *inner, *dm;
    void *d_y;
} composed_case;

/* xd, and the mask times its scale. */
static double *drop_rows(double **mask, linear_case *c, const int64_t *samples,
                         const int32_t *positions)
{
    int64_t t = c->spec.t, in = c->spec.in;
    double *xd = zeros(t * in);
    uint8_t kept[512];
    assert_true(in <= 512);
    *mask = zeros(t * in);
    for (int64_t i = 0; i < t; i++) {
        tsr_dropout_mask_row(kept, (uint64_t)in, &c->linear.dropout, (uint64_t)samples[i],
                             (uint32_t)positions[i]);
        for (int64_t j = 0; j < in; j++) {
            (*mask)[i * in + j] = kept[j] / (1 - round(P * 65536) / 65536);
            xd[i * in + j] = (*mask)[i * in + j] * c->x[i * in + j];
        }
    }
    return xd;
}

static void *copy_of(linear_case *c, const void *host, uint64_t bytes)
{
    void *device = take(c, bytes);
    RUN(tsr_device_write(rig.device, device, host, bytes));
    return device;
}

/* The definition, term by term; da and db of x are replaced by those of xd. */
static void make_composed_reference(composed_case *k, const float *g, const float *n,
                                    const float *bias, const double *xd, const double *mask)
{
    linear_case *c = k->c;
    int64_t t = c->spec.t, in = c->spec.in, out = c->spec.out, r = c->spec.r;
    double *low = zeros(t * r), *lora = zeros(t * out), *base = zeros(t * out);
    double *a_t = transposed(c->a, r, in), *b_t = transposed(c->b, out, r);
    double *w_t = transposed(c->w, out, in), *through = zeros(t * in), *dz = zeros(t * out);
    multiply(low, xd, a_t, t, r, in, false, 1);
    multiply(lora, low, b_t, t, out, r, false, SCALE);
    multiply(base, xd, w_t, t, out, in, false, 1);
    multiply(k->y = zeros(t * out), c->x, w_t, t, out, in, false, 1);
    k->inner = zeros(t * out);
    k->dm = zeros(out);
    for (int64_t i = 0; i < t * out; i++) {
        double gain = (double)g[i % out];
        k->y[i] += (double)bias[i % out] + (gain - 1) * base[i] + gain * lora[i];
        k->inner[i] = base[i] + lora[i];
        k->dm[i % out] += c->dy[i] * k->inner[i] / (double)n[i % out];
        dz[i] = (gain - 1) * c->dy[i];
    }
    multiply(through, dz, c->w, t, in, out, false, 1);
    for (int64_t i = 0; i < t * out; i++)
        dz[i] = (double)g[i % out] * c->dy[i];
    double *d_low = zeros(t * r);
    multiply(d_low, dz, c->b, t, r, out, false, SCALE);
    multiply(through, d_low, c->a, t, in, r, false, 1);
    memset(c->dx, 0, (size_t)(t * in) * sizeof *c->dx);
    multiply(c->dx, c->dy, c->w, t, in, out, false, 1);
    for (int64_t i = 0; i < t * in; i++)
        c->dx[i] += mask[i] * through[i];
    memset(c->da, 0, (size_t)(r * in) * sizeof *c->da);
    memset(c->db, 0, (size_t)(out * r) * sizeof *c->db);
    multiply(c->da, d_low, xd, r, in, t, true, 1);
    multiply(c->db, dz, low, out, r, t, true, SCALE);
    free(low), free(lora), free(base), free(a_t), free(b_t), free(w_t);
    free(through), free(dz), free(d_low);
}

static composed_case compose(linear_case *c)
{
    composed_case k = {.c = c};
    uint64_t t = (uint64_t)c->spec.t, out = c->linear.out, floats = sizeof(float), seed = 9;
    uint64_t element = tsr_dtype_bytes(c->spec.dtype);
    float vectors[3 * 2048];
    int64_t samples[512];
    int32_t positions[512];
    assert_true(out <= 2048 && t <= 512);
    for (uint64_t i = 0; i < 3 * out; i++) /* g, n, bias */
        vectors[i] = (float)(i < 2 * out ? 1 + 0.3 * uniform(&seed) : uniform(&seed));
    for (uint64_t i = 0; i < t; i++) {
        samples[i] = (int64_t)i / 50 + 3;
        positions[i] = (int32_t)(i % 50);
    }
    float *device = copy_of(c, vectors, 3 * out * floats);
    c->linear.g = device;
    c->linear.n = device + out;
    c->linear.bias = (tsr_frozen){device + 2 * out, TSR_F32};
    c->linear.drops = true;
    c->linear.dropout = tsr_dropout_make(P, 1, 2, 3);
    c->context.samples = copy_of(c, samples, t * sizeof *samples);
    c->context.positions = copy_of(c, positions, t * sizeof *positions);
    c->context.dropped = take(c, t * c->linear.in * element);
    c->context.d_dropped = take(c, t * c->linear.in * element);
    c->context.lora = take(c, t * out * element);
    c->context.partials = take(c, ((uint64_t)rig.kernels->partial_rows + 1) * out * floats);
    c->gradients.z = c->d_z;
    c->gradients.dm = take(c, out * floats);
    k.d_y = take(c, t * out * element);
    double *mask, *xd = drop_rows(&mask, c, samples, positions);
    make_composed_reference(&k, vectors, vectors + out, vectors + 2 * out, xd, mask);
    free(xd), free(mask);
    return k;
}

static double forward_composed(composed_case *k)
{
    linear_case *c = k->c;
    int64_t count = c->spec.t * c->spec.out;
    RUN(tsr_linear_forward(&c->context, &c->linear, c->gradients.x, c->d_z, k->d_y, NULL));
    RUN(tsr_stream_synchronize(rig.stream));
    assert_true(distance(c->d_z, k->inner, count, c->spec.dtype, 1) < tolerance(c->spec.dtype));
    return distance(k->d_y, k->y, count, c->spec.dtype, 1);
}

/* A backward takes what the forward has kept. Worst of dA, dB and dm. */
static double backward_composed(composed_case *k, bool add, void *dx)
{
    linear_case *c = k->c;
    const spec *s = &c->spec;
    tsr_linear_gradients g = c->gradients;
    g.add = add;
    g.dx = dx;
    forward_composed(k);
    float *sums[] = {g.da, g.db, g.dm}; /* written, whatever is there */
    for (int i = 0; i < 3; i++)
        RUN(tsr_stream_fill(rig.stream, sums[i], 0xff, (uint64_t)s->out * sizeof(float)));
    RUN(tsr_linear_backward(&c->context, &c->linear, &g));
    RUN(tsr_stream_synchronize(rig.stream));
    double apart = distance(g.da, c->da, s->r * s->in, TSR_F32, 1);
    apart = fmax(apart, distance(g.db, c->db, s->out * s->r, TSR_F32, 1));
    return fmax(apart, distance(g.dm, k->dm, s->out, TSR_F32, 1));
}

static double backward_composed_each(composed_case *k, double *dx)
{
    linear_case *c = k->c;
    const spec *s = &c->spec;
    double apart = backward_composed(k, false, c->gradients.dx);
    *dx = distance(c->gradients.dx, c->dx, s->t * s->in, s->dtype, 1);
    assert_true(backward_composed(k, true, c->gradients.dx) == apart);
    assert_true(distance(c->gradients.dx, c->dx, s->t * s->in, s->dtype, 2) < tolerance(s->dtype));
    assert_true(backward_composed(k, false, NULL) == apart);
    return apart;
}

static void check_composed(spec s)
{
    composed_case k = compose(begin(s));
    linear_case *c = k.c;
    double plain[2] = {INFINITY, INFINITY}; /* y and dx by F1 and B1, the first ones */
    int ran[2] = {0};
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        tsr_graph_choice choice = tsr_graph_choice_at(i);
        bool backward = tsr_graph_table[choice.graph].backward;
        tsr_graph_shape shape = tsr_linear_graph_shape(&c->context, &c->linear, backward);
        char name[TSR_GRAPH_NAME];
        double apart = 0, gradients = 0;
        assert_true(shape.composes && shape.drops);
        if (!can_run(&shape, choice))
            continue;
        tsr_graph_keep(&c->book, &shape, choice);
        tsr_graph_name(name, choice);
        if (backward)
            gradients = backward_composed_each(&k, &apart);
        else
            apart = forward_composed(&k);
        plain[backward] = fmin(plain[backward], ran[backward]++ ? INFINITY : apart);
        print_message("[%d, %d to %d] r %d %-4s %-7s composed %s %.2g dA dB dm %.2g\n", (int)s.t,
                      (int)s.in, (int)s.out, (int)s.r, tsr_dtype_name(s.dtype), name,
                      backward ? "dx" : "y", apart, gradients);
        expect_near(&s, apart, plain[backward]);
        /* In bf16 what they are products of is rounded once more: g dy and the dropped x. */
        assert_true(gradients < (s.dtype == TSR_BF16 ? 2 : 1) * tolerance(s.dtype));
    }
    bool merges = s.dtype == TSR_F32 || s.in % TSR_NF4_BLOCK == 0;
    assert_true(ran[0] == 1 + merges && ran[1] >= 2);
    free(k.y), free(k.inner), free(k.dm);
    end(c);
}

static void test_composed(void **state)
{
    (void)state;
    over_cases(check_composed);
}

int main(int argc, char **argv)
{
    if (case_is_skipped(argc, argv))
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_composed)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
