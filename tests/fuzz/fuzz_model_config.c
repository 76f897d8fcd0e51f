/* config.json of a model: sizes that are accepted are positive and their products fit. */
#include "fuzz/fuzz.h"
#include "model/arch/arch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsr_model_config config;
    uint64_t product;
    fuzz_begin();
    tsr_status status = tsr_model_config_parse(&config, (const char *)data, bytes, "config.json");
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    fuzz_check(config.vocab_size && config.hidden_size && config.intermediate_size);
    fuzz_check(config.layer_count && config.head_count && config.kv_head_count && config.head_dim);
    fuzz_check(!__builtin_mul_overflow(config.vocab_size, config.hidden_size, &product));
    fuzz_check(!__builtin_mul_overflow(config.intermediate_size, config.hidden_size, &product));
    fuzz_check(config.head_count % config.kv_head_count == 0);
    fuzz_check(config.eos_count >= 0 && config.eos_count <= TSR_MODEL_MAX_EOS);
    return 0;
}
