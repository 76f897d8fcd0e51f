#include "inputs/shared.h"

#include "base/checked.h"

int tsr_inputs_groups(const tsr_inputs *inputs, int ranks)
{
    return ranks / (int)inputs->config.context_parallel_size;
}

tsr_spans tsr_inputs_spans(const tsr_config *config)
{
    return (tsr_spans){config->context_span, (int32_t)config->context_parallel_size, 0};
}

int64_t tsr_inputs_own_tokens(const tsr_config *config, int64_t tokens)
{
    tsr_spans spans = tsr_inputs_spans(config);
    return tsr_spans_most_rows(&spans, tokens);
}

tsr_batch_bounds tsr_inputs_own_bounds(const tsr_config *config, const tsr_batch_bounds *whole)
{
    tsr_batch_bounds own = *whole;
    if (config->context_parallel_size == 1)
        return own;
    own.all_tokens = whole->tokens;
    own.all_label_rows = whole->label_rows;
    own.tokens = tsr_inputs_own_tokens(config, whole->tokens);
    own.label_rows = own.label_rows < own.tokens ? own.label_rows : own.tokens;
    return own;
}

uint64_t tsr_inputs_contributions(const tsr_inputs *inputs, const tsr_batch_bounds *whole)
{
    uint64_t span = (uint64_t)inputs->config.context_span;
    uint64_t tiles = inputs->layout.mixed_count ? 1 : tsr_ceil_div((uint64_t)whole->tokens, span);
    uint64_t each = tiles > 1 && inputs->layout.rows_tied ? 2 * tiles : tiles ? tiles : 1;
    return (inputs->contributions ? inputs->contributions : 1) * each;
}

static tsr_status check_ranks(const tsr_config *config, bool cuda, int ranks)
{
    int64_t size = config->context_parallel_size;
    if (size > ranks || ranks % size)
        return tsr_fail(TSR_ECONFIG,
                        "%s: context_parallel_size is %lld, but the job has %d rank%s; it must "
                        "divide them: start another number (mpirun -n, or --ranks of a plan), or "
                        "write 1",
                        tsr_config_where(config, "context_parallel_size"), (long long)size, ranks,
                        ranks == 1 ? "" : "s");
    if (cuda && config->context_span % TSR_SPAN_STEP)
        return tsr_fail(TSR_ECONFIG,
                        "%s: context_span is %lld; with context_parallel_size %lld on GPUs it must "
                        "be a multiple of %d",
                        tsr_config_where(config, "context_span"), (long long)config->context_span,
                        (long long)size, TSR_SPAN_STEP);
    return TSR_OK;
}

/* The first node of a kind that needs whole micro-batches. */
static const char *whole_node(const tsr_layout *layout)
{
    static const struct {
        const tsr_node_kind *kind;
        const char *what;
    } kinds[] = {
        {&tsr_node_convolution, "short convolutions"},
        {&tsr_node_delta_rule, "gated delta rule layers"},
    };
    for (int layer = 0; layer < layout->layer_count; layer++) {
        const tsr_block *block = layout->unit[layer].block;
        for (int i = 0; i < block->node_count; i++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
                if (block->node[i].kind == kinds[k].kind)
                    return kinds[k].what;
    }
    return NULL;
}

tsr_status tsr_inputs_check_shared(const tsr_inputs *inputs, int ranks)
{
    const tsr_config *config = &inputs->config;
    if (config->context_parallel_size == 1)
        return TSR_OK;
    TSR_TRY(check_ranks(config, inputs->cuda, ranks));
    const char *node = whole_node(&inputs->layout);
    const struct {
        bool asked;
        const char *key, *why;
    } refused[] = {
        {node != NULL, "model_name_or_path", node},
        {tsr_inputs_mixes(inputs), "adapter_mixing", "rows of several adapters"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].asked)
            return tsr_fail(TSR_ECONFIG,
                            "%s: context_parallel_size %lld does not go with what %s names: %s; "
                            "write context_parallel_size: 1",
                            tsr_config_where(config, "context_parallel_size"),
                            (long long)config->context_parallel_size, refused[i].key,
                            refused[i].why);
    return TSR_OK;
}
