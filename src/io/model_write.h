/*
 * io/model_write.h: a model directory as Hugging Face's save_pretrained leaves it: config.json, the
 * weights in one file or in shards with an index, and the tokenizer's files.
 *
 * Every file is complete and on the disk under a temporary name before anything else in the directory
 * changes; then an earlier model's files go, its config.json first (and of its tokenizer and license
 * those that the new one lacks), and the new ones take their names, config.json last: nothing loads a
 * directory without it. What is no file but has such a name is found before anything changes. After a failure
 * no temporary file is left.
 */
#ifndef TSR_IO_MODEL_WRITE_H
#define TSR_IO_MODEL_WRITE_H

#include "io/safetensors.h"

#include <stdbool.h>

#define TSR_MODEL_CONFIG_FILE "config.json"
#define TSR_MODEL_SHARD_BYTES 5000000000ull /* what Transformers 4 takes for a shard */

/* Zero-initialise; everything is borrowed during the call. */
typedef struct {
    const tsr_folder *folder;
    const char *source; /* the model it is made of: config.json is its, but for the values below;
                              generation_config.json, tokenizer and license files are copied */
    const char *chat_template; /* instead of the source's; NULL: that stays */
    uint64_t template_bytes;
    tsr_dtype dtype; /* config.json's: F32, BF16 or F16 */
    bool untied;     /* embedding and head are not one, whatever the source's config.json says */
    bool nf4;        /* quantization_config: bitsandbytes' nf4; false: none */
    bool mxfp4;      /* or the source's: tensors in MXFP4 are copied */
    bool double_quant;
    tsr_dtype compute_dtype; /* of quantization_config */
    /* What is not in 4 bits beside the head, as modules; NULL or up to a NULL. */
    const char *const *plain_modules;
    /* In the order of the shards. One whose name begins with the last one's that does not, and a
     * dot, is a part of it and stays in its shard. */
    const tsr_tensor_source *tensors;
    uint64_t count;
    uint64_t parameter_count;  /* for the index */
    uint64_t most_shard_bytes; /* 0: TSR_MODEL_SHARD_BYTES; a larger tensor has its own shard */
} tsr_model_output;

typedef struct {
    uint64_t shard_count, total_bytes;
} tsr_model_written;

/* *written may be NULL. TSR_EDATA: the source's config.json; TSR_EIO: writing failed. */
tsr_status tsr_model_write(tsr_model_written *written, const tsr_model_output *output);

/* Whether a name in a directory is one that tsr_model_write replaces: config.json, weights, index.
 */
bool tsr_model_write_replaces(const char *name);

/* What tsr_model_write makes of a name, replaced or beside: S_IFREG, S_IFDIR, or 0: nothing. */
mode_t tsr_model_write_makes(const char *name);

/* The text of config.json. *out is the caller's (free). */
tsr_status tsr_model_config_format(char **out, const tsr_model_output *output);

#endif
