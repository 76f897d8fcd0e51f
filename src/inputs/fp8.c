#include "inputs/fp8.h"

static tsr_status check_linear(const tsr_inputs *inputs, const tsr_layout_linear *linear)
{
    const char *where = tsr_config_where(&inputs->config, "base_compute");
    if (!linear->quantized && inputs->model.prequantized)
        return tsr_fail(TSR_ECONFIG,
                        "%s: base_compute: fp8 is made from a base in NF4, but the checkpoint "
                        "left %s unquantized (llm_int8_skip_modules); write base_compute: "
                        "dtype, or quantize the original model whole",
                        where, linear->path);
    if (!linear->quantized)
        return tsr_fail(TSR_ECONFIG,
                        "%s: base_compute: fp8 is made from a base in NF4, but %s is not "
                        "quantized; write load_in_4bit: true, or base_compute: dtype",
                        where, linear->path);
    return TSR_OK;
}

static tsr_status check_widths(const tsr_inputs *inputs, const char *path, uint64_t out,
                               uint64_t in)
{
    if (!inputs->cuda || (in % 16 == 0 && out % 16 == 0))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: base_compute: fp8 needs widths that are multiples of 16, but %s is %llu x "
                    "%llu; write base_compute: dtype",
                    tsr_config_where(&inputs->config, "base_compute"), path,
                    (unsigned long long)out, (unsigned long long)in);
}

/* Experts that are not in NF4 are multiplied as without. */
tsr_status tsr_inputs_check_fp8(const tsr_inputs *inputs)
{
    for (int i = 0; i < inputs->layout.layer_count; i++) {
        const tsr_layout_unit *unit = &inputs->layout.unit[i];
        for (int j = 0; j < tsr_layout_linears(unit); j++) {
            const tsr_layout_linear *linear = &unit->linear[j];
            TSR_TRY(check_linear(inputs, linear));
            TSR_TRY(check_widths(inputs, linear->path, linear->out, linear->in));
        }
        for (int j = 0; j < tsr_layout_stacks(unit); j++) {
            const tsr_layout_stack *stack = &unit->stack[j];
            if (tsr_layout_stack_fp8(stack))
                TSR_TRY(check_widths(inputs, stack->path, stack->out, stack->in));
        }
    }
    return TSR_OK;
}
