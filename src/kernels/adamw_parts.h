/*
 * kernels/adamw_parts.h: what the references of adamw.h and adamw_8bit.h share. Inside src/kernels only.
 */
#ifndef TSR_KERNELS_ADAMW_PARTS_H
#define TSR_KERNELS_ADAMW_PARTS_H

#include "kernels/adamw.h"

tsr_status tsr_adamw_check_step(const tsr_adamw_step *step);
tsr_status tsr_adamw_check_work(const void *work, tsr_dtype dtype);

/* g[i] of elements [first, first + count), clipped; unit: 2^-shift. */
void tsr_adamw_gradient(float *g, const tsr_adamw_span *span, uint64_t first, uint64_t count,
                        float unit, float clip);

/* Elements [first, first + count) of the working copy. */
void tsr_adamw_put_work(void *work, tsr_dtype dtype, const float *master, uint64_t first,
                        uint64_t count);

#endif
