/*
 * adapters/linear_parts.h: the products of a linear, for all tokens of a context. Inside src/adapters only.
 */
#ifndef TSR_ADAPTERS_LINEAR_PARTS_H
#define TSR_ADAPTERS_LINEAR_PARTS_H

#include "adapters/linear.h"

/* y [T, rows] = alpha x [T, columns] w^T + beta y, w [rows, columns]. */
tsr_status tsr_linear_project(const tsr_linear_context *context, void *y, const void *x,
                              const void *w, uint64_t rows, uint64_t columns, float alpha,
                              float beta);

/* dx [T, columns] = alpha dy [T, rows] w + beta dx: the gradient of tsr_linear_project's x. */
tsr_status tsr_linear_project_back(const tsr_linear_context *context, void *dx, const void *dy,
                                   const void *w, uint64_t rows, uint64_t columns, float alpha,
                                   float beta);

/* The base's weight for one of its matmuls, forward or backward; in fp8 in context->fp8. */
tsr_status tsr_linear_base_weight(const void **w, const tsr_linear_context *context,
                                  const tsr_linear *linear, bool backward, tsr_fp8_rows made);

/* z = W x + beta z. */
tsr_status tsr_linear_base_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                   void *z, const void *x, const void *w, float beta);

/* dx = W^T dz + beta dx. */
tsr_status tsr_linear_base_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                    void *dx, const void *dz, const void *w, float beta,
                                    tsr_fp8_rows made);

/* da and db of dy, the gradient of scale B A x; and d_low, where dx or they need it. gradients->low is of
 * this x. */
tsr_status tsr_linear_adapter_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                       const tsr_linear_gradients *gradients, const void *dy,
                                       const void *x, float scale);

/* Its part beside da: db and d_low, from `low`. */
tsr_status tsr_linear_low_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                   float *db, const void *dy, const void *low, float scale);

/* dw [rows, columns] fp32 = dy^T x: the gradient of tsr_linear_project's w. */
tsr_status tsr_linear_outer(const tsr_linear_context *context, float *dw, const void *dy,
                            const void *x, uint64_t rows, uint64_t columns);

/* out = drop(x), or out += that. */
tsr_status tsr_linear_drop(const tsr_linear_context *context, const tsr_linear *linear, void *out,
                           const void *x, bool add);

/* From row `first` of [T, columns] of the compute dtype on; NULL stays. */
static inline void *tsr_linear_rows_at(const tsr_linear_context *context, const void *rows,
                                       int64_t first, uint64_t columns)
{
    uint64_t offset = (uint64_t)first * columns * tsr_dtype_bytes(context->dtype);
    return rows ? (char *)rows + offset : NULL;
}

/* Columns of x A^T that a linear with ranges has in memory. */
static inline uint64_t tsr_linear_low_columns(const tsr_linear *linear)
{
    return linear->low ? linear->low : linear->r;
}

/* linear_stacked.c: how many ranges from `first` on are stacked; 0: this one is not. */
int tsr_linear_stack_count(const tsr_linear_context *context, const tsr_linear *linear, int first);

/* Of ranges [first, first + count): z = s B A x, and without dropout their share of the backward, but W^T dz. Rows are
 * those of all tokens. */
tsr_status tsr_linear_stacked_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                      int first, int count, const void *x, void *z, void *low);
tsr_status tsr_linear_stacked_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                       int first, int count, const tsr_linear_gradients *gradients);

/* linear_mixed.c: of a linear with ranges. */
tsr_status tsr_linear_mixed_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                    const void *x, void *z, void *low);
tsr_status tsr_linear_mixed_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                     const tsr_linear_gradients *gradients);

#endif
