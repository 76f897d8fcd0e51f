#include "data/held_out.h"

#include "base/philox.h"
#include "data/batch_order.h"

#include <math.h>
#include <stdlib.h>

/* Marks the first `held` of a permutation of all samples. */
static tsr_status choose(bool *leaves, int64_t count, int64_t held, uint64_t seed)
{
    int32_t *order = malloc((size_t)count * sizeof *order);
    if (!order)
        return tsr_fail(TSR_ENOMEM, "no memory for the order of %lld samples", (long long)count);
    for (int64_t i = 0; i < count; i++)
        order[i] = (int32_t)i;
    tsr_permute(order, count, tsr_mix(seed), TSR_PERMUTE_HELD_OUT);
    for (int64_t i = 0; i < held; i++)
        leaves[order[i]] = true;
    free(order);
    return TSR_OK;
}

static tsr_status check_labels(const tsr_dataset *part, const char *what,
                               const tsr_held_out_options *options)
{
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(part);
    if (stats->label_tokens)
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: validation_split: the %lld samples %s have no token to train; choose "
                    "another data_seed or validation_split",
                    options->where, (long long)stats->samples, what);
}

/* Of the held-out samples only the first. */
static tsr_status limit(tsr_dataset **held, int64_t most)
{
    int64_t count = tsr_dataset_sample_count(*held);
    tsr_dataset *first;
    if (!most || most >= count)
        return TSR_OK;
    bool *leaves = calloc((size_t)count, sizeof *leaves);
    if (!leaves)
        return tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)count);
    for (int64_t i = 0; i < most; i++)
        leaves[i] = true;
    tsr_status status = tsr_dataset_divide(&first, *held, leaves);
    free(leaves);
    TSR_TRY(status);
    tsr_dataset_destroy(*held);
    *held = first;
    return TSR_OK;
}

tsr_status tsr_dataset_hold_out(tsr_dataset **out, tsr_dataset *data,
                                const tsr_held_out_options *options)
{
    int64_t count = tsr_dataset_sample_count(data);
    double wanted = options->split < 1 ? ceil(options->split * (double)count) : options->split;
    if (count > INT32_MAX)
        return tsr_fail(TSR_EDATA, "%s: validation_split: %lld samples are more than 2^31 - 1",
                        options->where, (long long)count);
    if (wanted >= (double)count)
        return tsr_fail(TSR_ECONFIG,
                        "%s: validation_split: %g would leave nothing to train: the data has %lld "
                        "sample%s; write fewer, or a share below 1",
                        options->where, options->split, (long long)count, count == 1 ? "" : "s");
    bool *leaves = calloc((size_t)count, sizeof *leaves);
    tsr_dataset *held = NULL;
    tsr_status status = leaves
                            ? choose(leaves, count, (int64_t)wanted, options->seed)
                            : tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)count);
    if (status >= 0)
        status = tsr_dataset_divide(&held, data, leaves);
    if (status >= 0)
        status = limit(&held, options->most);
    if (status >= 0)
        status = check_labels(data, "that are left", options);
    if (status >= 0)
        status = check_labels(held, "that are held out", options);
    free(leaves);
    if (status < 0) {
        tsr_dataset_destroy(held);
        return status;
    }
    *out = held;
    return TSR_OK;
}
