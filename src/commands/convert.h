/*
 * commands/convert.h: what `merge` and `quantize` share: a model in, a model out, on the host, by one
 * process. The configuration is read, the place checked, and everything that can be refused is
 * refused before the first weight is read.
 */
#ifndef TSR_COMMANDS_CONVERT_H
#define TSR_COMMANDS_CONVERT_H

#include "commands/weights.h"
#include "inputs/inputs.h"
#include "io/model_write.h"
#include "report/report.h"
#include "tessera.h"

typedef struct {
    const tsr_job_options *options;
    const char *phase; /* of the progress: "merge" */
    tsr_inputs inputs;
    tsr_folder *output; /* output_dir; NULL: not there yet */
    int output_lock;    /* -1: not taken */
    tsr_weight_uses *uses;
    tsr_device *device; /* the host; its pool does the work */
    double done, total; /* bytes read of the base */
    tsr_model_written written;
    char *template; /* the chat template that takes the place of the model's; NULL: none */
    uint64_t template_bytes;
} tsr_convert;

/* One command: `run` finds inputs and device open, and fills the report. */
typedef struct {
    const char *name;
    tsr_config_use use;
    tsr_status (*run)(tsr_convert *convert, json_t *report);
} tsr_convert_command;

/* *text is the caller's (free): the report, as JSON or for people. */
tsr_status tsr_convert_run(char **text, const tsr_job_options *options, bool json,
                           const tsr_convert_command *command);

/* `bytes` more were read. TSR_ESTOPPED_UNSAVED: the stop flag is set. `user` is the tsr_convert. */
tsr_status tsr_convert_tick(void *user, uint64_t bytes);

/* Writes `output`, the directory and source of which are those of the configuration. */
tsr_status tsr_convert_write(tsr_convert *convert, const tsr_model_output *output);

/* A tensor that is not changed but for its dtype: F32 and F16 become BF16 where `narrow` is true.
 * Buffers are shared by all copies of one writing. */
typedef struct {
    tsr_convert *convert;
    bool narrow;
    char *in;      /* TSR_CONVERT_CHUNK_BYTES */
    uint16_t *out; /* TSR_CONVERT_CHUNK_BYTES / 4 elements */
} tsr_copier;

typedef struct {
    tsr_copier *copier;
    const tsr_tensor *tensor;
} tsr_copied;

#define TSR_CONVERT_CHUNK_BYTES ((uint64_t)16 << 20)

tsr_status tsr_copier_open(tsr_copier *copier, tsr_convert *convert, bool narrow);
void tsr_copier_close(tsr_copier *copier);

/* `item` must stay until the tensor is written. */
tsr_tensor_source tsr_copied_source(tsr_copied *item, tsr_copier *copier, const tsr_tensor *tensor);

#endif
