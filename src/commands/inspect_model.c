/* A model directory: its configuration in words, parameters, shards, and how the weights are stored. */
#include "commands/inspect.h"

#include "base/text.h"
#include "config/config_number.h"
#include "io/checkpoint.h"
#include "model/arch/arch.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static void add_quantization(json_t *report, bool four_bit, bool nested, bool fp8)
{
    tsr_report_string(report, "quantization",
                      fp8         ? "fp8 e4m3, a scale for each block of 128 x 128"
                      : !four_bit ? "none"
                      : nested    ? "bitsandbytes nf4, double quantized"
                                  : "bitsandbytes nf4");
}

static void add_experts(json_t *report, const tsr_model_config *c)
{
    const tsr_model_experts *e = &c->experts;
    uint64_t layers = 0;
    tsr_text text = {0};
    for (uint64_t i = 0; i < c->layer_count; i++)
        layers += tsr_layer_is_in(&e->sparse, i);
    tsr_text_printf(&text,
                    "%" PRIu64 " of width %" PRIu64 " in each of %" PRIu64 " layers, %" PRIu64
                    " of a token",
                    e->count, e->width, layers, e->chosen);
    tsr_report_string(report, "experts", tsr_text_string(&text));
    tsr_text_free(&text);
}

static void add_architecture(json_t *report, const tsr_model_config *c)
{
    static const char *const ropes[] = {"default", "linear",   "llama3",      "none",
                                        "yarn",    "longrope", "proportional"};
    tsr_text text = {0};
    tsr_text_printf(&text,
                    "%s: %" PRIu64 " layers of width %" PRIu64 ", MLP of %" PRIu64 ", %" PRIu64
                    " heads of %" PRIu64,
                    c->arch->model_type, c->layer_count, c->hidden_size, c->intermediate_size,
                    c->head_count, c->head_dim);
    if (c->kv_head_count != c->head_count)
        tsr_text_printf(&text, " that share %" PRIu64 " of keys and values", c->kv_head_count);
    tsr_text_printf(&text, ", %" PRIu64 " tokens in the vocabulary", c->vocab_size);
    tsr_report_string(report, "architecture", tsr_text_string(&text));
    tsr_text_clear(&text);
    if (c->experts.count)
        add_experts(report, c);
    tsr_text_printf(&text, "%s, theta ", ropes[c->rope[0].type]);
    tsr_number_put(&text, c->rope[0].theta, 0);
    if (c->rope[0].type != TSR_ROPE_DEFAULT) {
        tsr_text_puts(&text, ", factor ");
        tsr_number_put(&text, c->rope[0].factor, 0);
    }
    tsr_report_string(report, "rope", tsr_text_string(&text));
    tsr_text_free(&text);
    tsr_report_int(report, "context_tokens", c->max_position_embeddings);
    if (c->sliding_window)
        tsr_report_int(report, "sliding_window", c->sliding_window);
    tsr_report_bool(report, "tied_embeddings", c->tie_word_embeddings);
    tsr_report_bool(report, "attention_bias", c->q_bias || c->k_bias || c->v_bias || c->o_bias);
    tsr_report_string(report, "dtype", tsr_dtype_name(c->dtype));
    add_quantization(report, c->prequantized, c->double_quant, c->fp8);
}

/* Elements of a tensor as the model sees it; 0 for what only describes a 4-bit weight. *nested: whether the
 * scales of a 4-bit one are quantized. */
static tsr_status parameters_of(uint64_t *out, bool *nested, const tsr_checkpoint *checkpoint,
                                const tsr_tensor *tensor)
{
    static const char weight[] = ".weight";
    const char *found = strstr(tensor->name, weight);
    tsr_weight stored;
    *out = tensor->element_count;
    if (found && found[sizeof weight - 1] == '.')
        *out = 0;
    if (!found || found[sizeof weight - 1] || tensor->dtype != TSR_U8)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_weight(&stored, checkpoint, tensor->name));
    *out = stored.element_count;
    *nested = stored.nested;
    return TSR_OK;
}

/* "experts.7." of a name, whose number begins at *number and ends at *end; false: it has none. */
static bool find_expert(const char **number, const char **end, const char *name)
{
    static const char experts[] = ".experts.";
    const char *found = strstr(name, experts);
    if (!found)
        return false;
    *number = found + strlen(experts);
    *end = *number + strspn(*number, "0123456789");
    return *end > *number && **end == '.';
}

static void add_to(json_t *row, const char *key, uint64_t value)
{
    tsr_report_int(row, key, (uint64_t)json_integer_value(json_object_get(row, key)) + value);
}

/* What the experts of a layer have each is one row, "experts.*.up_proj.weight", with their number. `rows_of`: by name. */
static void add_tensor(json_t *rows, json_t *rows_of, const tsr_tensor *tensor)
{
    const char *number, *end;
    if (!find_expert(&number, &end, tensor->name)) {
        tsr_inspect_tensor(rows, tensor);
        return;
    }
    tsr_text name = {0};
    tsr_text_printf(&name, "%.*s*%s", (int)(number - tensor->name), tensor->name, end);
    json_t *row = json_object_get(rows_of, tsr_text_string(&name));
    if (row) {
        add_to(row, "bytes", tensor->bytes);
        add_to(row, "experts", 1);
    } else {
        row = tsr_inspect_tensor(rows, tensor);
        tsr_report_string(row, "name", tsr_text_string(&name));
        tsr_report_int(row, "experts", 1);
        json_object_set(rows_of, tsr_text_string(&name), row);
    }
    tsr_text_free(&name);
}

/* The stored ones of a tensor: in fp8 its codes and their scales. */
static int stored_of(const tsr_tensor *out[2], const tsr_tensor *tensor)
{
    out[0] = tensor->codes ? tensor->codes : tensor;
    out[1] = tensor->scales;
    return tensor->codes ? 2 : 1;
}

static json_t *shard_row(json_t *shards, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    json_t *row;
    size_t i;
    json_array_foreach(shards, i, row) if (!strcmp(json_string_value(json_object_get(row, "file")),
                                                   name)) return row;
    row = tsr_report_row(shards);
    tsr_report_string(row, "file", name);
    return row;
}

/* idle: of them, parameters of experts that a token does not go to. */
static tsr_status add_tensors(json_t *report, const tsr_checkpoint *checkpoint, uint64_t idle)
{
    uint64_t parameters = 0, four_bit = 0, some;
    bool nested = false, fp8 = false;
    json_t *dtypes = tsr_report_object(report, "dtypes");
    json_t *shards = tsr_report_array(report, "shards");
    json_t *rows = tsr_report_array(report, "tensors");
    json_auto_t *rows_of = json_object();
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(checkpoint, i);
        const tsr_tensor *stored[2];
        int count = stored_of(stored, tensor);
        fp8 |= tensor->codes != NULL;
        TSR_TRY(parameters_of(&some, &nested, checkpoint, tensor));
        parameters += some;
        four_bit += some != tensor->element_count ? some : 0;
        for (int j = 0; j < count; j++) {
            json_t *shard = shard_row(shards, tsr_safetensors_path(stored[j]->file));
            add_to(shard, "tensors", 1);
            add_to(shard, "bytes", stored[j]->bytes);
            add_tensor(rows, rows_of, stored[j]);
            tsr_inspect_count_dtype(dtypes, stored[j]);
        }
    }
    tsr_report_int(report, "parameters", parameters);
    if (idle)
        tsr_report_int(report, "active_parameters", parameters - idle);
    tsr_report_int(report, "parameters_in_4_bits", four_bit);
    if (json_object_get(report, "quantization")) /* config.json may say another thing */
        add_quantization(report, four_bit > 0, nested, fp8);
    tsr_report_int(report, "weights_bytes", tsr_checkpoint_total_bytes(checkpoint));
    return TSR_OK;
}

static tsr_status count_idle(uint64_t *out, const tsr_model_config *config)
{
    for (uint64_t i = 0; i < config->layer_count; i++) {
        tsr_block block;
        TSR_TRY(tsr_arch_block(&block, config, (int)i));
        *out += tsr_block_idle_parameters(&block);
    }
    return TSR_OK;
}

tsr_status tsr_inspect_model(json_t *report, const char *directory)
{
    static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json"};
    tsr_model_config config;
    tsr_checkpoint *checkpoint = NULL;
    char path[TSR_INSPECT_PATH_BYTES];
    bool there = false;
    uint64_t idle = 0;
    /* What cannot be trained here can still be looked at. */
    bool understood = tsr_model_config_load(&config, directory) == TSR_OK;
    tsr_report_bool(report, "supported", understood);
    if (understood)
        add_architecture(report, &config);
    else
        tsr_report_string(report, "refused", tsr_last_error());
    for (int i = 0; i < 2; i++) {
        TSR_TRY(tsr_inspect_join(path, directory, weights[i]));
        there |= access(path, F_OK) == 0;
    }
    tsr_report_bool(report, "has_weights", there);
    if (!there) /* config.json alone is enough to plan with */
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_open(&checkpoint, directory));
    tsr_status status = understood ? count_idle(&idle, &config) : TSR_OK;
    if (status == TSR_OK)
        status = add_tensors(report, checkpoint, idle);
    tsr_checkpoint_close(checkpoint);
    return status;
}
