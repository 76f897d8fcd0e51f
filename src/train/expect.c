#include "train/expect.h"

#include "kernels/roofs.h"

double tsr_flops(const tsr_layout *layout, const tsr_recompute *recompute, double tokens,
                 double label_rows, double document_tokens)
{
    const tsr_model_config *config = &layout->config;
    double pairs = tokens * (document_tokens + 1) / 2; /* of tokens that see each other */
    double attention = pairs * (double)(config->head_count * config->head_dim), flops = 0;
    for (int layer = 0; layer < layout->layer_count; layer++) {
        double base = 0, adapters = 0;
        const tsr_layout_linear *down = &layout->unit[layer].linear[TSR_DOWN];
        for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
            const tsr_layout_linear *linear = &layout->unit[layer].linear[kind];
            base += (double)(linear->in * linear->out);
            adapters += (double)(linear->r * (linear->in + linear->out));
        }
        bool backward = layer >= layout->first_trained;
        bool again = backward && recompute[layer] == TSR_RECOMPUTE_FULL;
        if (again && !down->dora) /* what down_proj computed is not read again */
            flops -= 2 * tokens * (double)(down->in * down->out + down->r * (down->in + down->out));
        flops += 2 * tokens * base * (1 + backward + again);
        flops += 2 * tokens * adapters * (1 + 2 * backward + again);
        flops += attention * (4 + 10 * backward + 4 * again);
    }
    bool trains = layout->first_trained < layout->layer_count;
    return flops +
           2 * label_rows * (double)(config->vocab_size * config->hidden_size) * (1 + trains);
}

#define SIDE    768
#define SECONDS 0.1

/* FLOP/s of a square matmul, of its fastest sample: a plan is made in a moment, and beside whatever
 * the machine does. */
static tsr_status measure(double *out, tsr_device *device)
{
    const tsr_roofs_matmul_shape shape = {SIDE, SIDE, SIDE, true, TSR_F32};
    const tsr_kernels *kernels;
    tsr_roofs *roofs;
    tsr_roof roof = {0};
    TSR_TRY(tsr_kernels_open(&kernels, device));
    TSR_TRY(tsr_roofs_open(&roofs, kernels, device, tsr_roofs_matmul_bytes(&shape)));
    tsr_status status = tsr_roofs_matmul(&roof, roofs, &shape, SECONDS);
    tsr_roofs_close(roofs);
    *out = roof.best;
    return status;
}

tsr_status tsr_expect(tsr_expectation *out, const tsr_inputs *inputs, const tsr_decision *decision,
                      const tsr_topology_view *view, tsr_device *device)
{
    tsr_expectation e = {0};
    TSR_TRY(measure(&e.rank_flops_s, device));
    if (inputs->batch) {
        const tsr_batch_run *run = tsr_batch_run_of(inputs->batch);
        const tsr_dataset_stats *stats = tsr_dataset_stats_of(inputs->dataset);
        double steps = (double)run->steps;
        e.steps = run->steps;
        e.step_flops = tsr_flops(
            &inputs->layout, decision->recompute, (double)run->input_tokens / steps,
            (double)run->label_tokens / steps, (double)stats->tokens / (double)stats->documents);
        e.step_seconds = e.step_flops / (e.rank_flops_s * view->ranks);
    }
    *out = e;
    return TSR_OK;
}
