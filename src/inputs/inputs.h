/*
 * inputs/inputs.h: everything a job reads before its weights: configuration, config.json, the
 * checkpoint's headers, the tokenizer, the data, the adapter's configuration; and what follows from
 * them: layout and batches.
 */
#ifndef TSR_INPUTS_INPUTS_H
#define TSR_INPUTS_INPUTS_H

#include "data/batch.h"
#include "data/dataset.h"
#include "inputs/adapter.h"
#include "model/activation.h"
#include "table/paths.h"

typedef struct {
    tsr_config config;
    tsr_model_config model;
    tsr_checkpoint *checkpoint;
    tsr_tokenizer *tokenizer; /* NULL where all rows are tokens */
    tsr_chat *chat;           /* the first of `chats`; NULL without conversations */
    struct {
        const char *template; /* as tsr_chat_options has it */
        tsr_chat *chat;
    } * chats; /* a data set may have a template of its own */
    int chat_count;
    int64_t today;         /* for a chat template that asks; every rank has the same */
    char date[32];         /* chat_template_date where the user gave none */
    int threads;           /* that tokenize; 0: the caller's alone */
    tsr_token_place cache; /* as dataset_cache says */
    tsr_row_source rows;   /* the caller's, instead of files; its callback NULL: none */
    tsr_paths files,
        eval_files; /* that the configuration's paths name; with rows.next those paths */
    tsr_dataset *dataset, *eval_dataset;
    tsr_batch *batch, *eval_batch; /* NULL where there is no data set */
    tsr_batch *
        reference_batch; /* all samples of `dataset`, for an objective's reference; NULL: it has none */
    tsr_train_adapter adapter;
    tsr_train_adapter reference; /* of ref_adapter: DIRECTORY; else zero */
    tsr_adapter_module *modules;
    uint64_t module_count;
    tsr_layout layout;
    tsr_safetensors *router_bias; /* beside init_adapter (model/router_bias.h); NULL: none is */
    tsr_batch_bounds bounds;      /* of training and evaluation together */
    uint64_t contributions;       /* micro-batches of the largest step */
    /* Of tsr_inputs_mixed, [layout.mixed_count]; borrowed. */
    const struct tsr_model_adapter *mixed;
    /* Hashes of a sample of what the checkpoint and init_adapter hold; 0 in a plan. */
    uint64_t weights, adapter_weights;
    /* The backend, decided by the job before the model is read. */
    bool cuda;
    tsr_dtype compute; /* F32 or BF16 */
} tsr_inputs;

/* Zero-initialise *out, and set `rows`, `today` and `threads` before the data are read; call in this order. Every rank reads
 * the same; a failure leaves what was opened to tsr_inputs_close. */
tsr_status tsr_inputs_read_config(tsr_inputs *inputs, const tsr_config_source *source);
/* planned: without weights, as config.json describes them. */
tsr_status tsr_inputs_read_model(tsr_inputs *inputs, bool train, bool planned);
tsr_status tsr_inputs_read_data(tsr_inputs *inputs, bool train, int ranks);

/* Only what the data need: config.json, the tokenizer, the data sets; after the configuration. Rows
 * of tokens do without a tokenizer. */
tsr_status tsr_inputs_read_data_alone(tsr_inputs *inputs);

/* Appends what a reader of a summary should know of the chat template, "; " before each: its date, what it
 * writes as tokens and is none, and an end of turn that is not eos_token. */
void tsr_inputs_put_chat(tsr_text *out, const tsr_inputs *inputs);

/* The chat template that takes the place of the model's: its text, the caller's (free); *text NULL: none does. */
tsr_status tsr_inputs_template(char **text, uint64_t *bytes, tsr_inputs *inputs);

/* Planning without a data set: micro-batches of per_device_train_batch_size samples of max_length
 * tokens, all labels. */
void tsr_inputs_assume_data(tsr_inputs *inputs);

/* The same of one row: as of a job without data that has per_device_train_batch_size: 1 and max_length: `length`, from 2. */
void tsr_inputs_assume_row(tsr_inputs *inputs, int64_t length);

/* Micro-batches of a full step, of all ranks; known without a data set. */
int64_t tsr_inputs_step_micro(const tsr_inputs *inputs, int ranks);

/* A job like this one on a model with so many layers: what memory depends on, of which the rest is
 * borrowed. On success free with tsr_inputs_like_close. */
tsr_status tsr_inputs_like(tsr_inputs *out, const tsr_inputs *inputs, uint64_t layers);
void tsr_inputs_like_close(tsr_inputs *inputs);

/* What micro-batches with rows of several jobs' adapters need: one layout for them all, and otherwise the first job's inputs,
 * from which everything else is borrowed; there are no data. Closed as any other. */
tsr_status tsr_inputs_mixed(tsr_inputs *out, const tsr_inputs *const *jobs, int count,
                            const tsr_batch_bounds *bounds);

/* Whether the job is one of several that share micro-batches. */
static inline bool tsr_inputs_mixes(const tsr_inputs *inputs)
{
    return inputs->config.adapter_mixing == TSR_CONFIG_ADAPTERS_MIXED &&
           inputs->config.adapter_count > 1;
}

/* A hash of what the files say about the model and the adapter, but not of the weights (that is
 * inputs->weights): equal on all ranks. */
uint64_t tsr_inputs_model_hash(const tsr_inputs *inputs);

void tsr_inputs_close(tsr_inputs *inputs);

#endif
