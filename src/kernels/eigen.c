/*
 * eigen.c: contract eigen.h.
 *
 * Reduction: column j of the matrix becomes (.., d[j], e[j], 0, ..) by the reflection I - tau v v^T;
 * v is kept in what is then free of row j. A panel's reflections reach the rest of the matrix at its
 * end, all at once, as a matmul; within the panel what they would have changed is added to the one
 * product with the matrix that each column needs.
 */
#include "kernels/eigen.h"

#include "base/auto.h"
#include "base/philox.h"
#include "kernels/double_vectors.h"
#include "kernels/gemm_double.h"
#include "kernels/loops.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define PANEL      32
#define TASK_ROWS  16 /* of a product with a vector */
#define ITERATIONS 4  /* of an inverse iteration; two are enough, but for an unlucky beginning */

/* ---- to a tridiagonal matrix ---- */

typedef struct {
    double *matrix, *d, *e, *tau;
    double *first, *second; /* [2 PANEL, n]: v and w of a panel's columns; w and v */
    double *product;        /* [n] */
    int64_t n;
    tsr_pool *pool;
    /* of the product that is being made: rows `begin` and on, with v from there on */
    const double *v;
    int64_t begin;
} reduction;

static void multiply_rows(void *context, int index)
{
    const reduction *r = context;
    int64_t first = r->begin + (int64_t)index * TASK_ROWS;
    for (int64_t i = first; i < tsr_min(first + TASK_ROWS, r->n); i++)
        r->product[i] = tsr_double_dot(r->matrix + i * r->n + r->begin, r->v, r->n - r->begin);
}

/* x [count] becomes v with v[0] = 1, so that (I - tau v v^T) x = (*e, 0, ..). */
static void reflect(double *tau, double *e, double *x, int64_t count)
{
    double rest = tsr_double_dot(x + 1, x + 1, count - 1);
    double head = x[0];
    *tau = 0;
    *e = head;
    x[0] = 1;
    if (!(rest > 0))
        return;
    double norm = sqrt(head * head + rest);
    *e = head > 0 ? -norm : norm;
    *tau = (*e - head) / *e;
    for (int64_t i = 1; i < count; i++)
        x[i] /= head - *e;
}

/* w of column j, the i-th of its panel. */
static void make_update(reduction *r, int64_t j, int i)
{
    int64_t n = r->n, below = j + 1, count = n - below;
    double *v = r->first + 2 * i * n, *w = v + n;
    r->v = v + below;
    r->begin = below;
    tsr_pool_run(r->pool, tsr_block_count(count, TASK_ROWS), multiply_rows, r);
    for (int k = 0; k < i; k++) {
        const double *other_v = r->first + 2 * k * n + below, *other_w = other_v + n;
        double with_w = tsr_double_dot(other_w, v + below, count),
               with_v = tsr_double_dot(other_v, v + below, count);
        tsr_double_add(r->product + below, -with_w, other_v, count);
        tsr_double_add(r->product + below, -with_v, other_w, count);
    }
    double half = r->tau[j] * tsr_double_dot(r->product + below, v + below, count) / 2;
    for (int64_t k = below; k < n; k++)
        w[k] = r->tau[j] * (r->product[k] - half * v[k]);
}

static void reduce_column(reduction *r, int64_t j, int i)
{
    int64_t n = r->n;
    double *row = r->matrix + j * n, *v = r->first + 2 * i * n, *w = v + n;
    for (int k = 0; k < i; k++) { /* what the panel's reflections make of this column */
        const double *other_v = r->first + 2 * k * n, *other_w = other_v + n;
        tsr_double_add(row + j, -other_w[j], other_v + j, n - j);
        tsr_double_add(row + j, -other_v[j], other_w + j, n - j);
    }
    r->d[j] = row[j];
    if (j + 1 == n)
        return;
    memset(v, 0, 2 * (size_t)n * sizeof *v);
    reflect(&r->tau[j], &r->e[j], row + j + 1, n - j - 1);
    memcpy(v + j + 1, row + j + 1, (size_t)(n - j - 1) * sizeof *v);
    make_update(r, j, i);
    memcpy(r->second + 2 * i * n, w, (size_t)n * sizeof *w);
    memcpy(r->second + (2 * i + 1) * n, v, (size_t)n * sizeof *v);
}

static void reduce(reduction *r)
{
    int64_t n = r->n;
    for (int64_t begin = 0; begin < n; begin += PANEL) {
        int64_t end = tsr_min(begin + PANEL, n);
        for (int64_t j = begin; j < end; j++)
            reduce_column(r, j, (int)(j - begin));
        tsr_gemm_double(&(tsr_gemm_double_args){.m = n - end,
                                                .n = n - end,
                                                .k = 2 * (end - begin),
                                                .a = r->first + end,
                                                .b = r->second + end,
                                                .c = r->matrix + end * n + end,
                                                .lda = n,
                                                .ldb = n,
                                                .ldc = n,
                                                .trans_a = true,
                                                .alpha = -1,
                                                .beta = 1},
                        r->pool);
    }
}

/* ---- eigenvalues of it ---- */

/* How many are below x: the negative pivots of T - x I. */
static int64_t count_below(const reduction *r, double x, double tiny)
{
    int64_t below = 0;
    double pivot = 1;
    for (int64_t i = 0; i < r->n; i++) {
        double e = i ? r->e[i - 1] : 0;
        pivot = r->d[i] - x - e * e / pivot;
        if (fabs(pivot) < tiny)
            pivot = -tiny;
        below += pivot < 0;
    }
    return below;
}

/* The largest |entry| of a row, summed: no eigenvalue is beyond. */
static double bound_of(const reduction *r)
{
    double bound = 0;
    for (int64_t i = 0; i < r->n; i++) {
        double sum =
            fabs(r->d[i]) + (i ? fabs(r->e[i - 1]) : 0) + (i + 1 < r->n ? fabs(r->e[i]) : 0);
        bound = sum > bound ? sum : bound;
    }
    return bound;
}

/* values[k], the k-th largest; *values is the first. */
static void bisect(double *values, const reduction *r, int64_t k, double bound)
{
    double low = -bound, high = k ? values[k - 1] : bound, tiny = bound * DBL_EPSILON * 1e-3;
    high += bound * DBL_EPSILON;
    tiny = tiny > DBL_MIN ? tiny : DBL_MIN;
    while (high - low > 2 * DBL_EPSILON * (fabs(low) + fabs(high)) + tiny) {
        double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high)
            break;
        if (r->n - count_below(r, middle, tiny) > k) /* more than k are at or above it */
            low = middle;
        else
            high = middle;
    }
    values[k] = low + (high - low) / 2;
    if (k && values[k] > values[k - 1]) /* the same one again, to rounding */
        values[k] = values[k - 1];
}

/* ---- their vectors ---- */

/* T - x I as a product of a lower and an upper triangle, rows swapped for the larger pivot. */
typedef struct {
    double *upper, *next, *second; /* diagonals of the upper one */
    double *factor;
    bool *swapped;
} factors;

static void factor(factors *f, const reduction *r, double x, double tiny)
{
    int64_t n = r->n;
    double pivot = r->d[0] - x, right = n > 1 ? r->e[0] : 0;
    for (int64_t i = 0; i + 1 < n; i++) {
        double e = r->e[i], d = r->d[i + 1] - x, far = i + 2 < n ? r->e[i + 1] : 0;
        f->swapped[i] = fabs(e) > fabs(pivot);
        if (f->swapped[i]) {
            f->factor[i] = pivot / e;
            f->upper[i] = e;
            f->next[i] = d;
            f->second[i] = far;
            pivot = right - f->factor[i] * d;
            right = -f->factor[i] * far;
        } else {
            pivot = fabs(pivot) < tiny ? tiny : pivot;
            f->factor[i] = e / pivot;
            f->upper[i] = pivot;
            f->next[i] = right;
            f->second[i] = 0;
            pivot = d - f->factor[i] * right;
            right = far;
        }
    }
    f->upper[n - 1] = fabs(pivot) < tiny ? tiny : pivot;
}

static void solve(double *x, const factors *f, int64_t n)
{
    for (int64_t i = 0; i + 1 < n; i++) {
        if (f->swapped[i]) {
            double swap = x[i];
            x[i] = x[i + 1];
            x[i + 1] = swap;
        }
        x[i + 1] -= f->factor[i] * x[i];
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        double sum = x[i];
        if (i + 1 < n)
            sum -= f->next[i] * x[i + 1];
        if (i + 2 < n)
            sum -= f->second[i] * x[i + 2];
        x[i] = sum / f->upper[i];
    }
}

/* Takes the vectors before it out of x, twice: once leaves what rounding makes of it. */
static void make_orthogonal(double *x, const double *vectors, int64_t before, int64_t n)
{
    for (int twice = 0; twice < 2; twice++)
        for (int64_t k = 0; k < before; k++)
            tsr_double_add(x, -tsr_double_dot(x, vectors + k * n, n), vectors + k * n, n);
}

static void iterate(double *vectors, const factors *f, int64_t k, int64_t n)
{
    double *x = vectors + k * n;
    for (int64_t i = 0; i < n; i++) {
        tsr_philox random = tsr_philox_at(0, (uint64_t)k, (uint64_t)i);
        x[i] = (double)tsr_philox_uniform(random.word[0]) - 0.5;
    }
    for (int i = 0; i < ITERATIONS; i++) {
        make_orthogonal(x, vectors, k, n);
        tsr_double_normalize(x, n);
        solve(x, f, n);
        tsr_double_normalize(x, n);
    }
    make_orthogonal(x, vectors, k, n);
    tsr_double_normalize(x, n);
}

/* ---- together ---- */

typedef struct {
    const reduction *reduction;
    double *vectors;
} way_back;

/* A vector of the tridiagonal matrix becomes one of the given: the reflections, last first. */
static void reflect_back(void *context, int index)
{
    const way_back *w = context;
    const reduction *r = w->reduction;
    double *x = w->vectors + (int64_t)index * r->n;
    for (int64_t j = r->n - 2; j >= 0; j--) {
        const double *v = r->matrix + j * r->n + j + 1;
        int64_t count = r->n - j - 1;
        tsr_double_add(x + j + 1, -r->tau[j] * tsr_double_dot(x + j + 1, v, count), v, count);
    }
}

static tsr_status find_vectors(double *values, double *vectors, const reduction *r, int64_t count)
{
    int64_t n = r->n;
    double bound = bound_of(r), tiny = bound * DBL_EPSILON;
    TSR_AUTO_FREE double *numbers = malloc(4 * (size_t)n * sizeof *numbers);
    TSR_AUTO_FREE bool *swapped = malloc((size_t)n * sizeof *swapped);
    if (!numbers || !swapped)
        return tsr_fail(TSR_ENOMEM, "out of memory for the eigenvectors of a matrix");
    factors f = {numbers, numbers + n, numbers + 2 * n, numbers + 3 * n, swapped};
    tiny = tiny > DBL_MIN ? tiny : DBL_MIN;
    for (int64_t k = 0; k < count; k++) {
        bisect(values, r, k, bound);
        factor(&f, r, values[k], tiny);
        iterate(vectors, &f, k, n);
    }
    way_back back = {r, vectors};
    tsr_pool_run(r->pool, (int)count, reflect_back, &back);
    return TSR_OK;
}

tsr_status tsr_eigen_largest(double *values, double *vectors, double *matrix, int64_t n,
                             int64_t count, tsr_pool *pool)
{
    TSR_EXPECT(n >= 1 && n <= INT32_MAX && count >= 1 && count <= n, "eigen", "count out of range");
    TSR_AUTO_FREE double *numbers = calloc((size_t)(4 + 4 * PANEL) * (size_t)n, sizeof *numbers);
    if (!numbers)
        return tsr_fail(TSR_ENOMEM, "out of memory for the eigenvalues of a matrix");
    reduction r = {.matrix = matrix,
                   .d = numbers,
                   .e = numbers + n,
                   .tau = numbers + 2 * n,
                   .product = numbers + 3 * n,
                   .first = numbers + 4 * n,
                   .second = numbers + (4 + 2 * PANEL) * n,
                   .n = n,
                   .pool = pool};
    reduce(&r);
    return find_vectors(values, vectors, &r, count);
}
