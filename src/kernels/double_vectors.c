/*
 * double_vectors.c: contract double_vectors.h.
 */
#include "kernels/double_vectors.h"

#include "kernels/loops.h"

#include <math.h>

TSR_CLONES double tsr_double_dot(const double *a, const double *b, int64_t count)
{
    double sum[TSR_LANES] = {0}, total = 0;
    int64_t whole = count / TSR_LANES * TSR_LANES;
    for (int64_t i = 0; i < whole; i += TSR_LANES)
        for (int l = 0; l < TSR_LANES; l++)
            sum[l] += a[i + l] * b[i + l];
    for (int64_t i = whole; i < count; i++)
        sum[i - whole] += a[i] * b[i];
    for (int l = 0; l < TSR_LANES; l++)
        total += sum[l];
    return total;
}

TSR_CLONES void tsr_double_add(double *y, double factor, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += factor * x[i];
}

/* By the largest first: squares might overflow, or vanish. */
void tsr_double_normalize(double *x, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
    if (largest == 0)
        return;
    for (int64_t i = 0; i < count; i++)
        x[i] /= largest;
    double norm = sqrt(tsr_double_dot(x, x, count));
    for (int64_t i = 0; i < count; i++)
        x[i] /= norm;
}

typedef struct {
    double *rows;
    int64_t n, done;
} projection;

static void project_row(void *context, int index)
{
    const projection *p = context;
    const double *from = p->rows + p->done * p->n;
    double *row = p->rows + (p->done + 1 + index) * p->n;
    tsr_double_add(row, -tsr_double_dot(row, from, p->n), from, p->n);
}

void tsr_double_orthonormalize(double *rows, int64_t count, int64_t n, tsr_pool *pool)
{
    projection p = {.rows = rows, .n = n};
    for (int twice = 0; twice < 2; twice++)
        for (p.done = 0; p.done < count; p.done++) {
            tsr_double_normalize(rows + p.done * n, n);
            tsr_pool_run(pool, (int)(count - p.done - 1), project_row, &p);
        }
}
