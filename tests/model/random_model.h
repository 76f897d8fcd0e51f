/*
 * tests/model/random_model.h: small models with random weights, as a checkpoint and an adapter on
 * the disk and as doubles in memory. What is stored is what the doubles are: they are rounded to
 * the file's dtype first.
 */
#ifndef TSR_TESTS_MODEL_RANDOM_MODEL_H
#define TSR_TESTS_MODEL_RANDOM_MODEL_H

#include "model/layout.h"

#include "support/llama.h"

#include <stdbool.h>
#include <stdint.h>

enum { MODEL_MOST_TENSORS = 160, MODEL_MOST_LAYERS = 4 };

typedef enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 } model_rope;

typedef struct {
    const char *type; /* "llama", "mistral", "qwen2", "qwen3" */
    int d, f, layers, heads, kv_heads, head_dim, vocab;
    int window; /* 0: none */
    bool attention_bias, tied;
    model_rope rope; /* linear: factor 4; llama3: factor 8, 1, 4, 32 positions */
    double theta, eps;
    tsr_dtype dtype; /* of the file */
    /* The adapter; r 0: none. */
    int r;
    double alpha;
    bool rslora, dora;
    unsigned targets; /* bit k: linear kind k */
    int first_layer;  /* layers below it have none */
    uint64_t seed;
} model_spec;

typedef struct {
    char name[96];
    double *data;
    uint64_t rows, columns; /* a vector: rows 0 */
} model_tensor;

/* One linear; NULL where there is none. n: DoRA's norms at the adapter as it was made. */
typedef struct {
    model_tensor *w, *bias, *a, *b, *m;
    double *n, scale;
    uint64_t in, out, key;
} model_linear;

typedef struct {
    model_spec spec;
    model_tensor tensor[MODEL_MOST_TENSORS];
    int count;
    model_linear linear[MODEL_MOST_LAYERS][LLAMA_LINEARS];
    model_tensor *input_norm[MODEL_MOST_LAYERS], *post_norm[MODEL_MOST_LAYERS],
        *q_norm[MODEL_MOST_LAYERS], *k_norm[MODEL_MOST_LAYERS];
    model_tensor *embedding, *final_norm, *head;
} random_model;

/* The caller frees *out with model_free. */
void model_make(random_model *out, const model_spec *spec);
void model_free(random_model *model);

/* config.json and model.safetensors into `directory`, which is made. dtype: of the weights, which
 * must hold the doubles. */
void model_write(const random_model *model, const char *directory, tsr_dtype dtype);

/* The adapter as PEFT writes one, into `directory`. */
void model_write_adapter(const random_model *model, const char *directory);

/* Uniform in [-1, 1), from (seed, index) alone. */
double model_uniform(uint64_t seed, uint64_t index);

#endif
