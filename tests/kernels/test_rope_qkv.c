/*
 * test_rope_qkv.c: magnitude, bias, head norm and rotation against fp64, heads that turn in part, pairs of neighbours,
 * tables of the queries' own and q, k and v in one row too; the gradients, dm included, against central differences; the
 * tables of all three scalings.
 */
#include "kernels/rope_qkv.h"

#include "kernels/kernel_test.h"

#define F32_TOLERANCE          2e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 4e-6
#define TABLE_TOLERANCE        1e-7

/* What is not as in most models; zeros are. */
typedef struct {
    int32_t rotary; /* columns that turn; 0: all */
    bool neighbours, own_queries;
    int64_t gap; /* q, k and v in one row, with gap - 1 columns behind them; 0: three buffers */
} rope_form;

typedef struct {
    int64_t tokens;
    int32_t heads[3], dim, positions;
    bool norm, vectors;
    rope_form form;
    float *cosine, *sine, *q_cosine, *q_sine, *z[3], *g[3], *m[3], *n[3], *bias[3], *weight[3];
    float *dout[3], *wide; /* wide: z in one row */
    uint16_t *bias16[3];
    int32_t *position;
    float *out;
    int64_t part_at[3], part_count, width_at[3], width;
    int64_t stride, dz_count; /* stride: of wide, 0 without */
} rope_case;

static int64_t pairs_of(const rope_case *c)
{
    return (c->form.rotary ? c->form.rotary : c->dim) / 2;
}

static void make_tables(rope_case *c)
{
    int64_t pairs = pairs_of(c), count = c->positions * pairs;
    tsr_rope_scaling scaling = {.theta = 100, .original_max_positions = 8, .query_beta = 0.5};
    c->cosine = new_floats(count), c->sine = new_floats(count);
    assert_int_equal(tsr_rope_tables(c->cosine, c->sine, c->positions, (int32_t)(2 * pairs),
                                     &scaling, TSR_ROPE_TABLE),
                     TSR_OK);
    if (!c->form.own_queries)
        return;
    c->q_cosine = new_floats(count), c->q_sine = new_floats(count);
    assert_int_equal(tsr_rope_tables(c->q_cosine, c->q_sine, c->positions, (int32_t)(2 * pairs),
                                     &scaling, TSR_ROPE_TABLE_OF_QUERIES),
                     TSR_OK);
}

static void make_part(rope_case *c, int p)
{
    int64_t width = (int64_t)c->heads[p] * c->dim;
    c->z[p] = new_random(c->tokens * width, 10 + (uint64_t)p, 1);
    c->dout[p] = new_random(c->tokens * width, 20 + (uint64_t)p, 1);
    c->m[p] = new_gain(width, 30 + (uint64_t)p);
    c->n[p] = new_floats(width);
    c->g[p] = new_floats(width);
    for (int64_t j = 0; j < width; j++) {
        c->n[p][j] = j % 2 ? 2.0f : 0.5f; /* g = m / n is exact */
        c->g[p][j] = c->m[p][j] / c->n[p][j];
    }
    c->bias[p] = new_random(width, 40 + (uint64_t)p, 1);
    c->bias16[p] = new_bf16(c->bias[p], width);
    c->weight[p] = new_gain(c->dim, 50 + (uint64_t)p);
    c->part_at[p] = c->part_count;
    c->width_at[p] = c->width;
    c->part_count += c->tokens * width;
    c->width += width;
}

static void make_case(rope_case *c, const int64_t shape[4], bool norm, bool vectors, rope_form form)
{
    *c = (rope_case){.tokens = shape[0],
                     .heads = {(int32_t)shape[1], (int32_t)shape[2], (int32_t)shape[2]},
                     .dim = (int32_t)shape[3],
                     .positions = 50,
                     .norm = norm,
                     .vectors = vectors,
                     .form = form};
    make_tables(c);
    c->position = malloc((size_t)(c->tokens + 1) * sizeof(int32_t));
    for (int64_t t = 0; t < c->tokens; t++)
        c->position[t] = (int32_t)(t * 7 % c->positions);
    for (int p = 0; p < 3; p++)
        make_part(c, p);
    c->stride = form.gap ? c->width + form.gap - 1 : 0;
    c->dz_count = c->stride ? c->tokens * c->stride : c->part_count;
    c->out = new_floats(c->dz_count + c->width);
    if (!c->stride)
        return;
    c->wide = new_random(c->dz_count, 60, 1);
    for (int p = 0; p < 3; p++) {
        int64_t width = (int64_t)c->heads[p] * c->dim;
        for (int64_t i = 0; i < c->tokens * width; i++)
            c->wide[i / width * c->stride + c->width_at[p] + i % width] = c->z[p][i];
    }
}

static void free_case(rope_case *c)
{
    for (int p = 0; p < 3; p++) {
        free(c->z[p]), free(c->dout[p]), free(c->m[p]), free(c->n[p]), free(c->g[p]);
        free(c->bias[p]), free(c->bias16[p]), free(c->weight[p]);
    }
    free(c->cosine), free(c->sine), free(c->q_cosine), free(c->q_sine), free(c->position);
    free(c->out), free(c->wide);
}

static bool normalized(const rope_case *c, int p)
{
    return c->norm && p < 2;
}

static tsr_rope_shape shape_of(const rope_case *c)
{
    return (tsr_rope_shape){.cosine = c->cosine,
                            .sine = c->sine,
                            .q_cosine = c->q_cosine,
                            .q_sine = c->q_sine,
                            .positions = c->position,
                            .tokens = c->tokens,
                            .stride = c->stride,
                            .q_heads = c->heads[0],
                            .kv_heads = c->heads[1],
                            .head_dim = c->dim,
                            .position_count = c->positions,
                            .rotary_dim = c->form.rotary,
                            .neighbours = c->form.neighbours,
                            .norm_eps = 1e-6f};
}

static const float *z_of(const rope_case *c, int p)
{
    return c->wide ? c->wide + c->width_at[p] : c->z[p];
}

/* Where dz of a part begins in `out`. */
static int64_t dz_at(const rope_case *c, int p)
{
    return c->stride ? c->width_at[p] : c->part_at[p];
}

static tsr_status run_forward(void *context, tsr_pool *pool)
{
    rope_case *c = context;
    tsr_rope_qkv_args args = {.shape = shape_of(c)};
    for (int p = 0; p < 3; p++) {
        args.part[p] = (tsr_rope_part){.z = z_of(c, p), .out = c->out + c->part_at[p]};
        if (c->vectors) {
            args.part[p].g = c->g[p];
            args.part[p].bias = (tsr_frozen){c->bias16[p], TSR_BF16};
        }
        if (normalized(c, p))
            args.part[p].norm = (tsr_frozen){c->weight[p], TSR_F32};
    }
    return tsr_rope_qkv_ref(&args, pool);
}

static tsr_status run_backward(void *context, tsr_pool *pool)
{
    rope_case *c = context;
    tsr_rope_qkv_backward_args args = {.shape = shape_of(c)};
    for (int p = 0; p < 3; p++) {
        args.part[p] = (tsr_rope_backward_part){.dout = c->dout[p],
                                                .z = z_of(c, p),
                                                .dz = c->out + dz_at(c, p),
                                                .g = c->g[p],
                                                .n = c->n[p],
                                                .dm = c->out + c->dz_count + c->width_at[p],
                                                .bias = {c->bias16[p], TSR_BF16}};
        if (normalized(c, p))
            args.part[p].norm = (tsr_frozen){c->weight[p], TSR_F32};
    }
    return tsr_rope_qkv_backward_ref(&args, pool);
}

/* One head in fp64; z and m of the head. */
static void head64(const rope_case *c, int p, int64_t t, int64_t head, const double *z,
                   const double *m, double *out)
{
    int64_t dim = c->dim, pairs = pairs_of(c);
    const float *cosines = p == 0 && c->q_cosine ? c->q_cosine : c->cosine;
    const float *sines = p == 0 && c->q_sine ? c->q_sine : c->sine;
    double y[64], squares = 0;
    for (int64_t i = 0; i < dim; i++) {
        int64_t j = head * dim + i;
        y[i] = c->vectors ? m[j] / (double)c->n[p][j] * z[i] + (double)c->bias[p][j] : z[i];
        squares += y[i] * y[i];
    }
    if (normalized(c, p))
        for (int64_t i = 0; i < dim; i++)
            y[i] *= (double)c->weight[p][i] / sqrt(squares / (double)dim + 1e-6);
    memcpy(out, y, (size_t)dim * sizeof *out);
    for (int64_t i = 0; i < pairs && p < 2; i++) {
        double cosine = (double)cosines[c->position[t] * pairs + i];
        double sine = (double)sines[c->position[t] * pairs + i];
        int64_t a = c->form.neighbours ? 2 * i : i, b = a + (c->form.neighbours ? 1 : pairs);
        out[a] = y[a] * cosine - y[b] * sine;
        out[b] = y[b] * cosine + y[a] * sine;
    }
}

static void check_forward(rope_case *c)
{
    run_on_pools(run_forward, c, c->out, c->part_count);
    for (int p = 0; p < 3; p++) {
        int64_t width = (int64_t)c->heads[p] * c->dim;
        double *z = new_doubles(c->z[p], c->tokens * width), *m = new_doubles(c->m[p], width);
        double *want = new_doubles(NULL, c->tokens * width);
        for (int64_t t = 0; t < c->tokens; t++)
            for (int64_t h = 0; h < c->heads[p]; h++) {
                int64_t at = t * width + h * c->dim;
                head64(c, p, t, h, z + at, m, want + at);
            }
        expect_close("out", c->out + c->part_at[p], want, c->tokens * width, F32_TOLERANCE);
        free(z), free(m), free(want);
    }
}

typedef struct {
    rope_case *c;
    int p;
    double *z, *m;
} loss64;

static double loss(void *context)
{
    loss64 *l = context;
    rope_case *c = l->c;
    int64_t width = (int64_t)c->heads[l->p] * c->dim;
    double total = 0, out[64];
    for (int64_t t = 0; t < c->tokens; t++)
        for (int64_t h = 0; h < c->heads[l->p]; h++) {
            int64_t at = t * width + h * c->dim;
            head64(c, l->p, t, h, l->z + at, l->m, out);
            for (int64_t i = 0; i < c->dim; i++)
                total += out[i] * (double)c->dout[l->p][at + i];
        }
    return total;
}

/* dz of a part on its own. */
static float *dense_dz(const rope_case *c, int p)
{
    int64_t width = (int64_t)c->heads[p] * c->dim;
    float *dz = new_floats(c->tokens * width);
    for (int64_t i = 0; i < c->tokens * width; i++)
        dz[i] = c->out[dz_at(c, p) + i / width * (c->stride ? c->stride : width) + i % width];
    return dz;
}

static void expect_gaps_untouched(const rope_case *c)
{
    for (int64_t i = 0; i < c->dz_count && c->stride; i++)
        if (i % c->stride >= c->width)
            assert_true(isnan(c->out[i]));
}

static void check_backward(rope_case *c)
{
    run_on_pools(run_backward, c, c->out, c->dz_count + c->width);
    expect_gaps_untouched(c);
    for (int p = 0; p < 3; p++) {
        int64_t width = (int64_t)c->heads[p] * c->dim, count = c->tokens * width;
        loss64 l = {c, p, new_doubles(c->z[p], count), new_doubles(c->m[p], width)};
        double *dz = new_gradient(loss, &l, l.z, count), *dm = new_gradient(loss, &l, l.m, width);
        float *got = dense_dz(c, p);
        expect_close("dz", got, dz, count, F32_GRADIENT_TOLERANCE);
        expect_close("dm", c->out + c->dz_count + c->width_at[p], dm, width,
                     F32_GRADIENT_TOLERANCE);
        free(l.z), free(l.m), free(dz), free(dm), free(got);
    }
}

static void forward_matches_fp64(void **state)
{
    (void)state;
    const int64_t shapes[][4] = {{1, 1, 1, 2}, {3, 4, 2, 6}, {300, 4, 2, 64}, {0, 2, 1, 4}};
    for (size_t i = 0; i < 4; i++)
        for (int variant = 0; variant < 4; variant++) {
            rope_case c;
            make_case(&c, shapes[i], variant & 1, variant & 2, (rope_form){0});
            check_forward(&c);
            free_case(&c);
        }
}

static void gradients_match_differences(void **state)
{
    (void)state;
    const int64_t shapes[][4] = {{1, 1, 1, 4}, {5, 4, 2, 6}, {19, 2, 1, 16}, {0, 2, 1, 4}};
    for (size_t i = 0; i < 4; i++)
        for (int norm = 0; norm < 2; norm++) {
            rope_case c;
            make_case(&c, shapes[i], norm, true, (rope_form){0});
            check_backward(&c);
            free_case(&c);
        }
}

/* Every way to be odd, with every other and with norms. */
static void odd_forms_match(void **state)
{
    (void)state;
    const int64_t shapes[][5] = {{1, 1, 1, 4, 2}, {5, 4, 2, 6, 4},  {19, 2, 1, 16, 8},
                                 {9, 3, 0, 8, 2}, {0, 2, 1, 12, 6}, {40, 2, 1, 64, 16}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int odd = 1; odd < 32; odd++) {
            rope_case c;
            rope_form form = {.rotary = odd & 1 ? (int32_t)shapes[i][4] : 0,
                              .neighbours = odd & 2,
                              .own_queries = odd & 4,
                              .gap = odd & 8 ? 1 + odd % 3 : 0};
            make_case(&c, shapes[i], odd & 16, true, form);
            check_forward(&c);
            if (c.dim < 64)
                check_backward(&c);
            free_case(&c);
        }
}

static void odd_arguments_are_refused(void **state)
{
    (void)state;
    static const rope_form forms[] = {{.rotary = 3}, {.rotary = 6}, {.rotary = -2}};
    for (int i = 0; i < 4; i++) {
        rope_case c;
        make_case(&c, (int64_t[]){3, 1, 1, 4}, false, false, (rope_form){.own_queries = true});
        float *sine = c.q_sine;
        if (i == 3)
            c.q_sine = NULL;
        else
            c.form = forms[i];
        assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINVAL);
        assert_int_equal(run_backward(&c, test_pool(0)), TSR_EINVAL);
        c.q_sine = sine;
        free_case(&c);
    }
}

static void in_place_is_the_same(void **state)
{
    (void)state;
    rope_case c;
    make_case(&c, (int64_t[]){30, 4, 2, 16}, false, true, (rope_form){0});
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_OK);
    float *want = c.out, *z = new_floats(c.part_count);
    for (int p = 0; p < 3; p++) {
        memcpy(z + c.part_at[p], c.z[p], (size_t)(c.tokens * c.heads[p] * c.dim) * sizeof(float));
        free(c.z[p]);
        c.z[p] = z + c.part_at[p];
    }
    c.out = z;
    assert_int_equal(run_forward(&c, test_pool(1)), TSR_OK);
    assert_memory_equal(want, z, (size_t)c.part_count * sizeof(float));
    c.out = want;
    c.z[0] = c.z[1] = c.z[2] = NULL;
    free_case(&c);
    free(z);
}

static void a_position_outside_the_table(void **state)
{
    (void)state;
    rope_case c;
    make_case(&c, (int64_t[]){3, 1, 1, 4}, false, false, (rope_form){0});
    c.position[2] = c.positions;
    assert_int_equal(run_forward(&c, test_pool(0)), TSR_EINTERNAL);
    assert_int_equal(run_backward(&c, test_pool(0)), TSR_EINTERNAL);
    free_case(&c);
}

/* Llama 3.1's figures at three frequencies: short waves as they are, long ones divided by 8, and
 * one between. */
static void tables_of_every_scaling(void **state)
{
    (void)state;
    float cosine[20 * 64], sine[20 * 64];
    tsr_rope_scaling s = {.theta = 500000};
    assert_int_equal(tsr_rope_tables(cosine, sine, 20, 128, &s, TSR_ROPE_TABLE), TSR_OK);
    for (int p = 0; p < 20; p++)
        for (int i = 0; i < 64; i++) {
            double angle = p * pow(500000, -i / 64.0);
            assert_true(fabs((double)cosine[p * 64 + i] - cos(angle)) < TABLE_TOLERANCE);
            assert_true(fabs((double)sine[p * 64 + i] - sin(angle)) < TABLE_TOLERANCE);
        }
    s = (tsr_rope_scaling){.type = TSR_ROPE_LINEAR, .theta = 10000, .factor = 4};
    assert_int_equal(tsr_rope_tables(cosine, sine, 20, 128, &s, TSR_ROPE_TABLE), TSR_OK);
    assert_true(fabs((double)sine[10 * 64] - sin(2.5)) < TABLE_TOLERANCE);
    s = (tsr_rope_scaling){TSR_ROPE_LLAMA3, 500000, 8, 1, 4, 8192};
    assert_int_equal(tsr_rope_tables(cosine, sine, 20, 128, &s, TSR_ROPE_TABLE), TSR_OK);
    assert_true(fabs((double)sine[3 * 64] - sin(3.0)) < TABLE_TOLERANCE);
    double last = pow(500000, -63 / 64.0) / 8;
    assert_true(fabs((double)sine[19 * 64 + 63] - sin(19 * last)) < 1e-12);
    double middle = pow(500000, -32 / 64.0), wave = 2 * acos(-1.0) / middle;
    double smooth = (8192 / wave - 1) / 3;
    assert_true(smooth > 0 && smooth < 1);
    double mixed = (1 - smooth) * middle / 8 + smooth * middle;
    assert_true(fabs((double)sine[19 * 64 + 32] - sin(19 * mixed)) < TABLE_TOLERANCE);
    s.factor = 0;
    assert_int_equal(tsr_rope_tables(cosine, sine, 20, 128, &s, TSR_ROPE_TABLE), TSR_EINVAL);
    s = (tsr_rope_scaling){.theta = 10000};
    assert_int_equal(tsr_rope_tables(cosine, sine, 20, 127, &s, TSR_ROPE_TABLE), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_fp64),    cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(odd_forms_match),         cmocka_unit_test(odd_arguments_are_refused),
        cmocka_unit_test(in_place_is_the_same),    cmocka_unit_test(a_position_outside_the_table),
        cmocka_unit_test(tables_of_every_scaling),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
