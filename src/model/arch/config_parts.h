/*
 * model/arch/config_parts.h: what the families share in reading config.json. Inside src/model/arch.
 */
#ifndef TSR_MODEL_ARCH_CONFIG_PARTS_H
#define TSR_MODEL_ARCH_CONFIG_PARTS_H

#include "io/json.h"
#include "model/arch/arch.h"

/* Refuses architectures that are not the one class `wanted`. */
tsr_status tsr_model_config_class(const json_t *root, const char *wanted, const char *place);

/* rope_parameters, rope_scaling and rope_theta of either generation; of a family whose sliding layers turn in another
 * way, rope[1] is theirs. `place` is the file's name. */
tsr_status tsr_model_config_rope(tsr_model_config *out, const json_t *root, const char *place);

/* quantization_config, if there is one. */
tsr_status tsr_model_config_quantization(tsr_model_config *out, const json_t *root,
                                         const char *place);

/* Refuses by name every key that nobody reads and that is not known to be harmless, and those whose
 * value is not the one that does nothing. */
tsr_status tsr_model_config_check_keys(const json_t *root, const tsr_arch *arch, const char *place);

/* A whole number of 1 up to `most`. */
tsr_status tsr_model_config_size(uint64_t *out, const json_t *root, const char *key, int64_t most,
                                 const char *place);

/* A boolean; *out stays where the key is missing. */
tsr_status tsr_model_config_flag(bool *out, const json_t *root, const char *key, const char *place);

/* attention_bias: whether q, k, v and o have biases; false where the key is missing. */
tsr_status tsr_model_config_attention_bias(tsr_model_config *out, const json_t *root,
                                           const char *place);

/* sliding_window; where the key is missing, `missing`; null: 0. */
tsr_status tsr_model_config_sliding_window(uint64_t *out, const json_t *root, uint64_t missing,
                                           const char *place);

/* The same, and which layers slide: all but each `every`th; `every` 0: all, where there is a window. */
tsr_status tsr_model_config_slide(tsr_model_config *out, const json_t *root, uint64_t missing,
                                  uint64_t every, const char *place);

/* layer_types, where it is there: which layers slide. */
tsr_status tsr_model_config_layer_types(tsr_model_config *out, const json_t *root,
                                        const char *place);

/* Which layers slide, of the two families that say so by use_sliding_window, max_window_layers and
 * layer_types: Qwen 2 and 3. */
tsr_status tsr_model_config_qwen_window(tsr_model_config *out, const json_t *root,
                                        const char *place);

#endif
