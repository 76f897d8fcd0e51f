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

/* out = drop(x), or out += that. */
tsr_status tsr_linear_drop(const tsr_linear_context *context, const tsr_linear *linear, void *out,
                           const void *x, bool add);

/* linear_mixed.c: of a linear with ranges. */
tsr_status tsr_linear_mixed_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                    const void *x, void *z, void *low);
tsr_status tsr_linear_mixed_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                     const tsr_linear_gradients *gradients);

#endif
