/*
 * train/expect.h: how long a step must take at least: its FLOPs at the rate at which this device
 * multiplies matrices.
 */
#ifndef TSR_TRAIN_EXPECT_H
#define TSR_TRAIN_EXPECT_H

#include "train/decide.h"

/* Forward + backward of `tokens` tokens with `label_rows` labels in documents of `document_tokens`:
 * base weights 2 + 2 FLOPs a parameter and token (a frozen base has no weight gradient) and 2 more
 * where recomputed, adapters 2 + 4, head 2 + 2 a label, attention 4 + 10 a visible pair and head
 * dimension. */
double tsr_flops(const tsr_layout *layout, const tsr_recompute *recompute, double tokens,
                 double label_rows, double document_tokens);

/* Measures for about 0.1 s on `device`. */
tsr_status tsr_expect(tsr_expectation *out, const tsr_inputs *inputs, const tsr_decision *decision,
                      const tsr_topology_view *view, tsr_device *device);

#endif
