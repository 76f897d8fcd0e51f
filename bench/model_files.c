/*
 * model_files.c: the files of a job whose weights do not exist.
 */
#include "base/philox.h"
#include "base/text.h"
#include "model.h"
#include "model/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STEPS_OF_ROWS 4 /* the rows of so many steps differ; then they come again */

#define PLAIN      "\"attention_bias\":false"
#define LLAMA      "llama", "LlamaForCausalLM"
#define QWEN3      "qwen3", "Qwen3ForCausalLM"
#define QWEN3_MOE  "qwen3_moe", "Qwen3MoeForCausalLM"
#define QWEN3_5    "qwen3_5_text", "Qwen3_5ForCausalLM"
#define GPT_OSS    "gpt_oss", "GptOssForCausalLM"
#define DELTA_RULE "\"linear_num_key_heads\":16,\"linear_num_value_heads\":32"
#define YARN                                                                                       \
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1." \
    "0,"                                                                                           \
    "\"truncate\":false,\"original_max_position_embeddings\":4096}"
#define MXFP4 "\"quantization_config\":{\"quant_method\":\"mxfp4\"}"

static const bench_shape shapes[] = {
    {"llama3-8b", LLAMA, 4096, 14336, 32, 32, 8, 128, 128256, 131072, 500000, 1e-5, PLAIN},
    {"llama2-7b", LLAMA, 4096, 11008, 32, 32, 32, 128, 32000, 4096, 10000, 1e-5, PLAIN},
    {"qwen3-8b", QWEN3, 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1000000, 1e-6, PLAIN},
    {"llama3-70b", LLAMA, 8192, 28672, 80, 64, 8, 128, 128256, 131072, 500000, 1e-5, PLAIN},
    {"qwen3-30b-a3b", QWEN3_MOE, 2048, 6144, 48, 32, 4, 128, 151936, 40960, 1000000, 1e-6,
     PLAIN ",\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,"
           "\"norm_topk_prob\":true"},
    {"qwen3.5-9b", QWEN3_5, 4096, 12288, 32, 16, 4, 256, 248320, 262144, 10000000, 1e-6,
     PLAIN "," DELTA_RULE},
    {"gpt-oss-20b", GPT_OSS, 2880, 2880, 24, 64, 8, 64, 201088, 131072, 150000, 1e-5,
     "\"num_local_experts\":32,\"num_experts_per_tok\":4," YARN "," MXFP4},
    {"gpt-oss-120b", GPT_OSS, 2880, 2880, 36, 64, 8, 64, 201088, 131072, 150000, 1e-5,
     "\"num_local_experts\":128,\"num_experts_per_tok\":4," YARN "," MXFP4},
    {"tiny", LLAMA, 256, 704, 6, 4, 2, 64, 4096, 2048, 500000, 1e-5, PLAIN},
    {"tiny-moe", QWEN3_MOE, 256, 704, 4, 4, 2, 64, 4096, 2048, 500000, 1e-6,
     PLAIN ",\"num_experts\":16,\"num_experts_per_tok\":4,\"moe_intermediate_size\":128,"
           "\"norm_topk_prob\":true"},
    {"tiny-gpt-oss", GPT_OSS, 256, 192, 4, 4, 2, 64, 4096, 2048, 150000, 1e-5,
     "\"num_local_experts\":16,\"num_experts_per_tok\":4," YARN "," MXFP4},
    {"tiny-qwen3.5", QWEN3_5, 256, 704, 4, 4, 2, 64, 4096, 2048, 10000000, 1e-6,
     PLAIN ",\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"linear_key_head_dim\":32,"
           "\"linear_value_head_dim\":32"},
};

#define SHAPES (sizeof shapes / sizeof *shapes)

const bench_shape *bench_shape_find(const char *name)
{
    for (size_t i = 0; i < SHAPES; i++)
        if (!strcmp(shapes[i].name, name))
            return &shapes[i];
    return NULL;
}

const char *bench_shape_names(void)
{
    return "llama3-8b, llama2-7b, qwen3-8b, llama3-70b, qwen3-30b-a3b, qwen3.5-9b, gpt-oss-20b, "
           "gpt-oss-120b, tiny, tiny-moe, tiny-gpt-oss, tiny-qwen3.5";
}

static FILE *create(const bench_run *run, const char *name)
{
    char path[BENCH_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", run->directory, name);
    FILE *file = fopen(path, "w");
    if (!file)
        fprintf(stderr, "bench_model: %s: %s\n", path, strerror(errno));
    return file;
}

static int finish(FILE *file, const char *name)
{
    int failed = ferror(file);
    if (fclose(file) == 0 && !failed)
        return 0;
    fprintf(stderr, "bench_model: writing %s failed: %s\n", name, strerror(errno));
    return -1;
}

static void put_config(tsr_text *out, const bench_shape *s)
{
    tsr_text_printf(out,
                    "{\"architectures\":[\"%s\"],\"model_type\":\"%s\",\"hidden_size\":%" PRId64
                    ",\"intermediate_size\":%" PRId64 ",\"num_hidden_layers\":%" PRId64
                    ",\"num_attention_heads\":%" PRId64 ",\"num_key_value_heads\":%" PRId64
                    ",\"head_dim\":%" PRId64 ",\"vocab_size\":%" PRId64
                    ",\"max_position_embeddings\":%" PRId64
                    ",\"hidden_act\":\"silu\",\"rms_norm_eps\":%g,\"rope_theta\":%.1f,"
                    "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",%s}"
                    "\n",
                    s->class, s->type, s->d, s->f, s->layers, s->heads, s->kv_heads, s->head_dim,
                    s->vocabulary, s->positions, s->eps, s->rope_theta, s->more);
}

tsr_status bench_config_make(tsr_model_config *out, const bench_run *run)
{
    tsr_auto_text text = {0};
    put_config(&text, &run->shape);
    return tsr_model_config_parse(out, tsr_text_string(&text), text.length, run->shape.name);
}

static int write_config(const bench_run *run)
{
    tsr_auto_text text = {0};
    FILE *file = create(run, "config.json");
    if (!file)
        return -1;
    put_config(&text, &run->shape);
    fputs(tsr_text_string(&text), file);
    return finish(file, "config.json");
}

/* ---- model.safetensors: a header, then nothing ---- */

typedef struct {
    tsr_text header;
    uint64_t bytes; /* of the tensors so far */
} tensors;

static void add_tensor(tensors *t, const tsr_tensor *tensor)
{
    uint64_t end = t->bytes + tensor->element_count * tsr_dtype_bytes(tensor->dtype);
    tsr_text_printf(&t->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->bytes ? "," : "{",
                    tensor->name, tsr_dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->ndim; i++)
        tsr_text_printf(&t->header, "%s%" PRIu64, i ? "," : "", tensor->shape[i]);
    tsr_text_printf(&t->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->bytes, end);
    t->bytes = end;
}

static int write_header(const bench_run *run, const tensors *t)
{
    uint64_t length = t->header.length;
    FILE *file = create(run, "model.safetensors");
    if (!file)
        return -1;
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (uint8_t)(length >> (8 * i));
    fwrite(prefix, 1, sizeof prefix, file);
    fwrite(t->header.data, 1, length, file);
    if (fflush(file) != 0 || ftruncate(fileno(file), (off_t)(8 + length + t->bytes)) != 0) {
        fprintf(stderr, "bench_model: model.safetensors: %s\n", strerror(errno));
        fclose(file);
        return -1;
    }
    return finish(file, "model.safetensors");
}

/* What config.json describes, which is there already. */
static tsr_status add_tensors(tensors *t, const bench_run *run)
{
    tsr_model_config config;
    tsr_checkpoint *described;
    TSR_TRY(tsr_model_config_load(&config, run->directory));
    TSR_TRY(tsr_model_describe(&described, run->directory, &config));
    for (uint64_t i = 0; i < tsr_checkpoint_count(described); i++)
        add_tensor(t, tsr_checkpoint_at(described, i));
    tsr_checkpoint_close(described);
    return TSR_OK;
}

static int write_model(const bench_run *run)
{
    tensors t = {0};
    if (add_tensors(&t, run) < 0) {
        fprintf(stderr, "bench_model: %s\n", tsr_last_error());
        return -1;
    }
    tsr_text_puts(&t.header, "}");
    while (t.header.length % 8)
        tsr_text_puts(&t.header, " ");
    int failed = t.header.failed ? -1 : write_header(run, &t);
    tsr_text_free(&t.header);
    return failed;
}

/* ---- data and job ---- */

static int even_rows(bench_run *run)
{
    if (run->batch > BENCH_MOST_DOCUMENTS) {
        fprintf(stderr, "bench_model: --batch is too large\n");
        return -1;
    }
    run->row_count = run->batch;
    for (int64_t i = 0; i < run->batch; i++)
        run->row[i] = run->length;
    return 0;
}

/* Lengths drawn evenly until the tokens are used up; the last one takes what is left. */
int bench_rows_make(bench_run *run)
{
    int64_t left = run->batch * run->length, least, most;
    uint64_t drawn = 0;
    char end;
    if (!run->documents)
        return even_rows(run);
    if (sscanf(run->documents, "%" SCNd64 ":%" SCNd64 "%c", &least, &most, &end) != 2 ||
        least < 2 || most < least) {
        fprintf(stderr, "bench_model: --documents is LEAST:MOST tokens\n");
        return -1;
    }
    for (run->row_count = 0; left > 0 && run->row_count < BENCH_MOST_DOCUMENTS; run->row_count++) {
        int64_t length = least + (int64_t)(tsr_mix(++drawn) % (uint64_t)(most - least + 1));
        length = left - length < least ? left : length;
        run->row[run->row_count] = length;
        left -= length;
    }
    if (left > 0)
        fprintf(stderr, "bench_model: --documents are too many\n");
    return left > 0 ? -1 : 0;
}

static void write_ids(FILE *file, const char *key, int64_t count, int64_t vocabulary,
                      uint64_t *drawn)
{
    fprintf(file, "\"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        fprintf(file, "%s%d", i ? "," : "", (int)(tsr_mix(++*drawn) % (uint64_t)vocabulary));
    fputs("]", file);
}

static int write_rows(const bench_run *run)
{
    int64_t count = run->row_count * run->ranks * STEPS_OF_ROWS;
    uint64_t drawn = 0;
    FILE *file = create(run, "rows.jsonl");
    if (!file)
        return -1;
    for (int64_t row = 0; row < count; row++) {
        const char *key = !run->pairs ? "input_ids" : row % 2 ? "rejected_ids" : "chosen_ids";
        bool begins = !run->pairs || row % 2 == 0, ends = !run->pairs || row % 2;
        int64_t prompt = run->pairs; /* one token, of which there is no label either */
        fputs(begins ? "{" : ", ", file);
        if (begins && prompt)
            fputs("\"prompt_ids\": [1], ", file);
        write_ids(file, key, run->row[row % run->row_count] - prompt,
                  (int64_t)run->shape.vocabulary, &drawn);
        fputs(ends ? "}\n" : "", file);
    }
    return finish(file, "rows.jsonl");
}

static int64_t longest_row(const bench_run *run)
{
    int64_t most = 0;
    for (int64_t i = 0; i < run->row_count; i++)
        most = run->row[i] > most ? run->row[i] : most;
    return most;
}

static int write_job(const bench_run *run)
{
    FILE *file = create(run, "job.yaml");
    int64_t each = run->pairs ? 2 : 1; /* rows of a sample */
    if (!file)
        return -1;
    fprintf(file,
            "model_name_or_path: \"%s\"\ndataset: \"%s/rows.jsonl\"\n"
            "%sshuffle: false\nmax_length: %" PRId64 "\n"
            "dtype: %s\nbackend: %s\n",
            run->directory, run->directory,
            run->pairs ? "dataset_format: preference_ids\nobjective: dpo\n"
                       : "dataset_format: pretokenized\n",
            longest_row(run), run->dtype, run->backend);
    fprintf(file,
            "lora_r: %" PRId64 "\nlora_alpha: %" PRId64 "\nlora_dropout: 0\nuse_dora: %s\n"
            "lora_target_modules: all-linear\n",
            run->r, 2 * run->r, run->dora ? "true" : "false");
    fprintf(file,
            "per_device_train_batch_size: %" PRId64 "\ntotal_batch_size: %" PRId64
            "\nmax_steps: %" PRId64 "\n"
            "lr_scheduler_type: constant\nlogging_steps: 1000000\n",
            run->row_count / each, run->row_count / each * run->ranks, run->warmup + run->steps);
    if (run->timeline)
        fprintf(file, "trace: \"%s/out/trace.json\"\n", run->directory);
    fprintf(file,
            "gradient_checkpointing: %s\noffload: %s\nmemory_budget: %s\n"
            "resident_units: %s\noutput_dir: \"%s/out\"\noverwrite_output_dir: true\n",
            run->recompute, run->offload, run->memory_budget, run->resident, run->directory);
    if (run->adapters > 1)
        fputs("adapters:\n", file);
    for (int64_t i = 0; run->adapters > 1 && i < run->adapters; i++)
        fprintf(file, "- {name: a%" PRId64 ", seed: %" PRId64 "}\n", i, i);
    return finish(file, "job.yaml");
}

int bench_files_write(const bench_run *run)
{
    if (write_config(run) || write_model(run) || write_rows(run))
        return -1;
    return write_job(run);
}
