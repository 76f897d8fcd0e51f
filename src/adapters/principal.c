/*
 * principal.c: contract principal.h. X [length, side] is W, or its transpose where W has fewer rows
 * than columns: so X^T X is the smaller one.
 */
#include "adapters/principal.h"

#include "adapters/init.h"
#include "base/auto.h"
#include "kernels/double_vectors.h"
#include "kernels/eigen.h"
#include "kernels/gemm.h"
#include "kernels/gemm_double.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PANEL_ROWS 512 /* of X in fp64 at a time */

typedef struct {
    const tsr_principal_args *args;
    tsr_pool *pool;
    float *a, *b;
    bool turned; /* X is the transpose of W */
    int64_t length, side, rank;
    double *panel; /* [PANEL_ROWS, side] */
    int64_t first; /* row of X that is the panel's first */
} work;

static tsr_status no_memory(void)
{
    return tsr_fail(TSR_ENOMEM, "out of memory for the principal part of a weight");
}

/* ---- A and B ---- */

static float rounded(const work *w, double value)
{
    float x = (float)value;
    return w->args->dtype == TSR_BF16 ? tsr_bf16_to_f32(tsr_f32_to_bf16(x)) : x;
}

/* Component k: factors of X, `of_length` and `of_side`, each times its own number. */
static void put_component(const work *w, int64_t k, const double *of_length, double by_length,
                          const double *of_side, double by_side)
{
    const double *column = w->turned ? of_side : of_length;
    const double *row = w->turned ? of_length : of_side;
    double by_column = w->turned ? by_side : by_length, by_row = w->turned ? by_length : by_side;
    uint64_t in = w->args->in, r = w->args->r;
    for (uint64_t i = 0; i < in; i++)
        w->a[(uint64_t)k * in + i] = rounded(w, row[i] * by_row);
    for (uint64_t i = 0; i < w->args->out; i++)
        w->b[i * r + (uint64_t)k] = rounded(w, column[i] * by_column);
}

/* ---- exact ---- */

static void widen_row(void *context, int index)
{
    const work *w = context;
    const float *from = w->args->w;
    int64_t row = w->first + index, in = (int64_t)w->args->in;
    double *out = w->panel + (int64_t)index * w->side;
    for (int64_t i = 0; i < w->side; i++)
        out[i] = (double)(w->turned ? from[i * in + row] : from[row * in + i]);
}

/* The rows of X from `first` on become the panel: how many. */
static int64_t fill_panel(work *w, int64_t first)
{
    int64_t count = w->length - first < PANEL_ROWS ? w->length - first : PANEL_ROWS;
    w->first = first;
    tsr_pool_run(w->pool, (int)count, widen_row, w);
    return count;
}

/* X^T X. */
static void make_gram(double *gram, work *w)
{
    for (int64_t first = 0; first < w->length; first += PANEL_ROWS) {
        int64_t count = fill_panel(w, first);
        tsr_gemm_double(&(tsr_gemm_double_args){.m = w->side,
                                                .n = w->side,
                                                .k = count,
                                                .a = w->panel,
                                                .b = w->panel,
                                                .c = gram,
                                                .trans_a = true,
                                                .alpha = 1,
                                                .beta = first ? 1 : 0},
                        w->pool);
    }
}

/* out [rank, length] = V X^T. */
static void project(double *out, const double *vectors, work *w)
{
    for (int64_t first = 0; first < w->length; first += PANEL_ROWS) {
        int64_t count = fill_panel(w, first);
        tsr_gemm_double(&(tsr_gemm_double_args){.m = w->rank,
                                                .n = count,
                                                .k = w->side,
                                                .a = vectors,
                                                .b = w->panel,
                                                .c = out + first,
                                                .ldc = w->length,
                                                .trans_b = true,
                                                .alpha = 1},
                        w->pool);
    }
}

static tsr_status factor_exactly(work *w)
{
    size_t side = (size_t)w->side, rank = (size_t)w->rank;
    TSR_AUTO_FREE double *panel = malloc(PANEL_ROWS * side * sizeof *panel);
    TSR_AUTO_FREE double *gram = malloc(side * side * sizeof *gram);
    TSR_AUTO_FREE double *vectors = malloc(rank * (side + 1) * sizeof *vectors);
    TSR_AUTO_FREE double *images = malloc(rank * (size_t)w->length * sizeof *images);
    if (!panel || !gram || !vectors || !images)
        return no_memory();
    double *values = vectors + rank * side, scale = w->args->scale;
    w->panel = panel;
    make_gram(gram, w);
    TSR_TRY(tsr_eigen_largest(values, vectors, gram, w->side, w->rank, w->pool));
    project(images, vectors, w);
    for (int64_t k = 0; k < w->rank; k++) {
        const double *image = images + k * w->length; /* X v = s u: its length is more exact */
        double s = sqrt(tsr_double_dot(image, image, w->length));
        put_component(w, k, image, s > 0 ? 1 / sqrt(s * scale) : 0, vectors + k * w->side,
                      sqrt(s / scale));
    }
    return TSR_OK;
}

/* ---- at random ---- */

/* out [rank, to] = Q [rank, from] times X or its transpose, whichever has `from` rows. */
static tsr_status multiply(float *out, const float *q, const work *w, bool by_length)
{
    int64_t length = w->length, side = w->side;
    return tsr_gemm_ref(&(tsr_gemm_args){.m = w->rank,
                                         .n = by_length ? side : length,
                                         .k = by_length ? length : side,
                                         .a = q,
                                         .b = w->args->w,
                                         .c = out,
                                         .trans_b = by_length == w->turned,
                                         .alpha = 1,
                                         .dtype = TSR_F32,
                                         .c_dtype = TSR_F32},
                        w->pool);
}

static void make_orthonormal(float *rows, double *wide, const work *w, int64_t n)
{
    for (int64_t i = 0; i < w->rank * n; i++)
        wide[i] = (double)rows[i];
    tsr_double_orthonormalize(wide, w->rank, n, w->pool);
    for (int64_t i = 0; i < w->rank * n; i++)
        rows[i] = (float)wide[i];
}

/* Q [rank, length], orthonormal: it spans about what X does. */
static tsr_status find_range(float *q, float *p, double *wide, const work *w)
{
    const tsr_principal_args *args = w->args;
    tsr_adapter_init_normal(p, 0, (uint64_t)(w->rank * w->side), 1, args->seed, args->module_key);
    TSR_TRY(multiply(q, p, w, false));
    make_orthonormal(q, wide, w, w->length);
    for (int64_t i = 0; i < args->rounds; i++) {
        TSR_TRY(multiply(p, q, w, true));
        make_orthonormal(p, wide, w, w->side);
        TSR_TRY(multiply(q, p, w, false));
        make_orthonormal(q, wide, w, w->length);
    }
    return TSR_OK;
}

/* out = rows of C [rank, rank] times rows [rank, n]. */
static void combine(double *out, const double *c, const double *rows, const work *w, int64_t n)
{
    tsr_gemm_double(
        &(tsr_gemm_double_args){
            .m = w->rank, .n = n, .k = w->rank, .a = c, .b = rows, .c = out, .alpha = 1},
        w->pool);
}

/* From Q and Q X = P: the singular vectors of P are those of X within Q's space. `wide` [rank, length]
 * has Q in fp64. */
static tsr_status factor_within(work *w, const double *wide, const float *p)
{
    size_t rank = (size_t)w->rank, side = (size_t)w->side;
    TSR_AUTO_FREE double *wide_p = malloc(rank * side * sizeof *wide_p);
    TSR_AUTO_FREE double *gram = malloc(rank * (2 * rank + 1) * sizeof *gram);
    TSR_AUTO_FREE double *of_length = malloc(rank * (size_t)w->length * sizeof *of_length);
    TSR_AUTO_FREE double *of_side = malloc(rank * side * sizeof *of_side);
    if (!wide_p || !gram || !of_length || !of_side)
        return no_memory();
    double *vectors = gram + rank * rank, *values = vectors + rank * rank;
    for (size_t i = 0; i < rank * side; i++)
        wide_p[i] = (double)p[i];
    tsr_gemm_double(&(tsr_gemm_double_args){.m = w->rank,
                                            .n = w->rank,
                                            .k = w->side,
                                            .a = wide_p,
                                            .b = wide_p,
                                            .c = gram,
                                            .trans_b = true,
                                            .alpha = 1},
                    w->pool);
    TSR_TRY(tsr_eigen_largest(values, vectors, gram, w->rank, w->rank, w->pool));
    combine(of_length, vectors, wide, w, w->length);
    combine(of_side, vectors, wide_p, w, w->side);
    for (int64_t k = 0; k < w->rank; k++) {
        const double *image = of_side + k * w->side; /* s v */
        double s = sqrt(tsr_double_dot(image, image, w->side)), scale = w->args->scale;
        put_component(w, k, of_length + k * w->length, sqrt(s / scale), image,
                      s > 0 ? 1 / sqrt(s * scale) : 0);
    }
    return TSR_OK;
}

static tsr_status factor_at_random(work *w)
{
    size_t rank = (size_t)w->rank, length = (size_t)w->length, side = (size_t)w->side;
    TSR_AUTO_FREE float *q = malloc(rank * length * sizeof *q);
    TSR_AUTO_FREE float *p = malloc(rank * side * sizeof *p);
    TSR_AUTO_FREE double *wide = malloc(rank * length * sizeof *wide);
    if (!q || !p || !wide)
        return no_memory();
    TSR_TRY(find_range(q, p, wide, w));
    TSR_TRY(multiply(p, q, w, true));
    return factor_within(w, wide, p);
}

tsr_status tsr_principal_factors(float *a, float *b, const tsr_principal_args *args, tsr_pool *pool)
{
    work w = {.args = args,
              .pool = pool,
              .a = a,
              .b = b,
              .turned = args->out < args->in,
              .length = (int64_t)(args->out < args->in ? args->in : args->out),
              .side = (int64_t)(args->out < args->in ? args->out : args->in)};
    w.rank = (int64_t)args->r < w.side ? (int64_t)args->r : w.side;
    memset(a, 0, args->r * args->in * sizeof *a);
    memset(b, 0, args->out * args->r * sizeof *b);
    return args->rounds == TSR_PRINCIPAL_EXACT ? factor_exactly(&w) : factor_at_random(&w);
}
