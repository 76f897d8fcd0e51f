/*
 * io/model_config_parts.h: the pieces of model_config.c, private to src/io.
 */
#ifndef TSR_IO_MODEL_CONFIG_PARTS_H
#define TSR_IO_MODEL_CONFIG_PARTS_H

#include "io/json.h"
#include "io/model_config.h"

/* rope_parameters, rope_scaling and rope_theta of either generation. `place` is the file's name. */
tsr_status tsr_model_config_rope(tsr_rope_config *out, const json_t *root, const char *place);

/* quantization_config, if there is one. */
tsr_status tsr_model_config_quantization(tsr_model_config *out, const json_t *root,
                                         const char *place);

/* Refuses by name every key that nobody reads and that is not known to be harmless, and those whose
 * value is not the one that does nothing. */
tsr_status tsr_model_config_check_keys(const json_t *root, tsr_model_type type, const char *place);

#endif
