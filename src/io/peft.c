#include "io/peft_parts.h"

#include "io/missing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "base_model.model."

static const char *const suffixes[] = {
    [TSR_PEFT_A] = ".lora_A.weight",
    [TSR_PEFT_B] = ".lora_B.weight",
    [TSR_PEFT_MAGNITUDE] = ".lora_magnitude_vector",
    [TSR_PEFT_EMBEDDING_A] = ".lora_embedding_A",
    [TSR_PEFT_EMBEDDING_B] = ".lora_embedding_B",
    [TSR_PEFT_ROWS] = ".token_adapter.trainable_tokens_delta",
    [TSR_PEFT_WHOLE] = ".weight", /* the others end in none of these but it */
};

#define PART_COUNT (sizeof suffixes / sizeof *suffixes)

tsr_status tsr_peft_tensor_name(char **out, const char *path, tsr_peft_part part)
{
    if (asprintf(out, PREFIX "%s%s", path, suffixes[part]) < 0)
        return tsr_fail(TSR_ENOMEM, "no memory for the name of the adapter of %s", path);
    return TSR_OK;
}

/* The part that a tensor's name says, and the length of its module's path. */
static bool split_name(tsr_peft_part *part, size_t *path_length, const char *name)
{
    size_t length = strlen(name), prefix = strlen(PREFIX);
    if (strncmp(name, PREFIX, prefix))
        return false;
    for (size_t i = 0; i < PART_COUNT; i++) {
        size_t suffix = strlen(suffixes[i]);
        if (length > prefix + suffix && !strcmp(name + length - suffix, suffixes[i])) {
            *part = (tsr_peft_part)i;
            *path_length = length - prefix - suffix;
            return true;
        }
    }
    return false;
}

static tsr_peft_module *find_or_add(tsr_peft *peft, const char *path, size_t length)
{
    /* Tensors come sorted by name, so a module's parts are neighbours. */
    if (peft->count) {
        tsr_peft_module *last = &peft->modules[peft->count - 1];
        if (!strncmp(last->path, path, length) && !last->path[length])
            return last;
    }
    char *copy = strndup(path, length);
    if (!copy)
        return NULL;
    peft->modules[peft->count].path = copy;
    return &peft->modules[peft->count++];
}

/* What PEFT's save_embedding_layers adds beside a LoRA of the embedding: the base's own weight. */
static bool is_base_layer(const char *path, size_t length)
{
    static const char name[] = ".base_layer";
    return length >= sizeof name && !strncmp(path + length - strlen(name), name, strlen(name));
}

static tsr_status add_tensor(tsr_peft *peft, const tsr_tensor *tensor)
{
    tsr_peft_part part;
    size_t length;
    const char *path = tsr_safetensors_path(tensor->file);
    char shown[TSR_SHAPE_TEXT_BYTES];
    if (!split_name(&part, &length, tensor->name))
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is not understood, expected names as '" PREFIX
                        "<module>.lora_A.weight', .lora_B.weight, .lora_magnitude_vector or, of "
                        "modules_to_save, .weight, or .token_adapter.trainable_tokens_delta",
                        path, tensor->name);
    if (tensor->dtype != TSR_F32 && tensor->dtype != TSR_BF16 && tensor->dtype != TSR_F16)
        return tsr_fail(TSR_EDATA, "%s: tensor '%s' is %s, expected F32, BF16 or F16", path,
                        tensor->name, tsr_dtype_name(tensor->dtype));
    if (tensor->ndim != (part == TSR_PEFT_MAGNITUDE ? 1 : 2) || tensor->element_count == 0)
        return tsr_fail(TSR_EDATA, "%s: tensor '%s' has shape %s, expected %s", path, tensor->name,
                        tsr_shape_text(shown, tensor->shape, tensor->ndim),
                        part == TSR_PEFT_A || part == TSR_PEFT_EMBEDDING_A   ? "[r, in]"
                        : part == TSR_PEFT_B || part == TSR_PEFT_EMBEDDING_B ? "[out, r]"
                        : part == TSR_PEFT_WHOLE                             ? "[out, in]"
                        : part == TSR_PEFT_ROWS                              ? "[tokens, in]"
                                                                             : "[out]");
    if (part == TSR_PEFT_WHOLE && is_base_layer(tensor->name + strlen(PREFIX), length))
        return TSR_OK;
    tsr_peft_module *module = find_or_add(peft, tensor->name + strlen(PREFIX), length);
    if (!module)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its modules", path);
    if (part == TSR_PEFT_A || part == TSR_PEFT_EMBEDDING_A)
        module->a = tensor;
    else if (part == TSR_PEFT_B || part == TSR_PEFT_EMBEDDING_B)
        module->b = tensor;
    else if (part == TSR_PEFT_WHOLE)
        module->whole = tensor;
    else if (part == TSR_PEFT_ROWS)
        module->rows = tensor;
    else
        module->magnitude = tensor;
    return TSR_OK;
}

static tsr_status check_module(tsr_peft_module *module, const tsr_peft_config *config,
                               const char *file)
{
    const tsr_tensor *a = module->a, *b = module->b, *m = module->magnitude;
    bool dora = config->use_dora,
         experts = config->parameter.count > 0; /* rank and count are one */
    char shown_a[TSR_SHAPE_TEXT_BYTES], shown_b[TSR_SHAPE_TEXT_BYTES];
    const tsr_tensor *other = module->whole ? module->whole : module->rows;
    if (other && (a || b || m || (module->whole && module->rows)))
        return tsr_fail(TSR_EDATA,
                        "%s: module '%s' has more than one of a LoRA, a whole weight and rows of "
                        "tokens",
                        file, module->path);
    if (other) {
        module->out_features = other->shape[0];
        module->in_features = other->shape[1];
        return TSR_OK;
    }
    if (!a || !b)
        return tsr_fail(TSR_EDATA, "%s: module '%s' has no %s", file, module->path,
                        a ? "lora_B.weight" : "lora_A.weight");
    if (a->shape[0] != b->shape[1])
        return tsr_fail(TSR_EDATA, "%s: module '%s': lora_A %s and lora_B %s do not have one rank",
                        file, module->path, tsr_shape_text(shown_a, a->shape, 2),
                        tsr_shape_text(shown_b, b->shape, 2));
    if (a->shape[0] > TSR_PEFT_MAX_RANK && !experts)
        return tsr_fail(TSR_EDATA, "%s: module '%s' has rank %" PRIu64 ", at most %d is supported",
                        file, module->path, a->shape[0], TSR_PEFT_MAX_RANK);
    if (dora && !m)
        return tsr_fail(TSR_EDATA,
                        "%s: module '%s' has no lora_magnitude_vector, but use_dora is true in %s",
                        file, module->path, TSR_PEFT_CONFIG_FILE);
    if (!dora && m)
        return tsr_fail(TSR_EDATA,
                        "%s: module '%s' has a lora_magnitude_vector, but use_dora is false in %s",
                        file, module->path, TSR_PEFT_CONFIG_FILE);
    if (m && m->shape[0] != b->shape[0])
        return tsr_fail(TSR_EDATA,
                        "%s: module '%s': lora_magnitude_vector has %" PRIu64
                        " elements, but lora_B is %s",
                        file, module->path, m->shape[0], tsr_shape_text(shown_b, b->shape, 2));
    module->r = a->shape[0];
    module->in_features = a->shape[1];
    module->out_features = b->shape[0];
    return TSR_OK;
}

int tsr_peft_by_path(const void *x, const void *y)
{
    return strcmp(((const tsr_peft_module *)x)->path, ((const tsr_peft_module *)y)->path);
}

static tsr_status open_weights(tsr_peft *peft, const char *path)
{
    TSR_TRY(tsr_safetensors_open(&peft->file, path));
    uint64_t count = tsr_safetensors_count(peft->file);
    if (count == 0)
        return tsr_fail(TSR_EDATA, "%s: it holds no tensor", path);
    peft->modules = calloc(count, sizeof *peft->modules);
    if (!peft->modules)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its modules", path);
    for (uint64_t i = 0; i < count; i++)
        TSR_TRY(add_tensor(peft, tsr_safetensors_at(peft->file, i)));
    for (uint64_t i = 0; i < peft->count; i++)
        TSR_TRY(check_module(&peft->modules[i], &peft->config, path));
    qsort(peft->modules, peft->count, sizeof *peft->modules, tsr_peft_by_path);
    return TSR_OK;
}

/* The directory itself, and what people often have in place of an adapter. */
static tsr_status check_directory(const char *directory, const char *weights)
{
    struct stat info;
    char *old = NULL;
    bool has_old;
    if (stat(directory, &info) < 0) {
        char hint[TSR_MISSING_BYTES];
        int error = errno;
        return tsr_fail(tsr_status_of_open(error), "%s: %s; expected an adapter's directory%s",
                        directory, strerror(error), tsr_missing_hint(hint, directory, error));
    }
    if (!S_ISDIR(info.st_mode))
        return tsr_fail(TSR_EDATA, "%s: not a directory; expected an adapter's directory",
                        directory);
    if (access(weights, F_OK) == 0 || asprintf(&old, "%s/adapter_model.bin", directory) < 0)
        return TSR_OK;
    has_old = access(old, F_OK) == 0;
    free(old);
    if (has_old)
        return tsr_fail(TSR_EDATA,
                        "%s: it has adapter_model.bin but no %s; load it in PEFT and save it again "
                        "with save_pretrained",
                        directory, TSR_PEFT_WEIGHTS_FILE);
    return TSR_OK;
}

tsr_status tsr_peft_open(tsr_peft **out, const char *directory)
{
    char *config = NULL, *weights = NULL;
    tsr_status status = TSR_OK;
    tsr_peft *peft = calloc(1, sizeof *peft);
    if (!peft || asprintf(&config, "%s/%s", directory, TSR_PEFT_CONFIG_FILE) < 0) {
        config = NULL;
        status = tsr_fail(TSR_ENOMEM, "%s: no memory to open it", directory);
    } else if (asprintf(&weights, "%s/%s", directory, TSR_PEFT_WEIGHTS_FILE) < 0) {
        weights = NULL;
        status = tsr_fail(TSR_ENOMEM, "%s: no memory to open it", directory);
    }
    if (status == TSR_OK)
        status = check_directory(directory, weights);
    if (status == TSR_OK)
        status = tsr_peft_config_load(&peft->config, config);
    if (status == TSR_OK)
        status = open_weights(peft, weights);
    free(config);
    free(weights);
    if (status < 0) {
        tsr_peft_close(peft);
        return status;
    }
    *out = peft;
    return TSR_OK;
}

void tsr_peft_close(tsr_peft *peft)
{
    if (!peft)
        return;
    for (uint64_t i = 0; i < peft->count; i++) {
        tsr_peft_module *m = &peft->modules[i];
        for (uint64_t j = 0; m->one && j < m->experts * (uint64_t)m->parts; j++)
            free((char *)m->one[j].path);
        free(m->one);
        free((char *)m->path);
    }
    free(peft->modules);
    tsr_safetensors_close(peft->file);
    tsr_peft_config_free(&peft->config);
    free(peft);
}

const tsr_peft_config *tsr_peft_config_of(const tsr_peft *peft)
{
    return &peft->config;
}

uint64_t tsr_peft_module_count(const tsr_peft *peft)
{
    return peft->count;
}

const tsr_peft_module *tsr_peft_module_at(const tsr_peft *peft, uint64_t index)
{
    return index < peft->count ? &peft->modules[index] : NULL;
}

const tsr_peft_module *tsr_peft_module_find(const tsr_peft *peft, const char *path)
{
    tsr_peft_module wanted = {.path = path};
    return bsearch(&wanted, peft->modules, peft->count, sizeof wanted, tsr_peft_by_path);
}

tsr_status tsr_peft_rename_module(tsr_peft *peft, const char *from, const char *to)
{
    const tsr_peft_module *found = tsr_peft_module_find(peft, from);
    if (!found)
        return TSR_OK;
    char *renamed = strdup(to);
    if (!renamed)
        return tsr_fail(TSR_ENOMEM, "no memory for the name of the adapter of %s", to);
    tsr_peft_module *module = &peft->modules[found - peft->modules];
    free((char *)module->path);
    module->path = renamed;
    qsort(peft->modules, peft->count, sizeof *peft->modules, tsr_peft_by_path);
    return TSR_OK;
}

tsr_status tsr_peft_rename(tsr_peft *peft, const char *from, const char *to)
{
    size_t length = strlen(from);
    for (uint64_t i = 0; i < peft->count; i++) {
        const char *path = peft->modules[i].path;
        char *renamed;
        if (strncmp(path, from, length))
            continue;
        if (asprintf(&renamed, "%s%s", to, path + length) < 0)
            return tsr_fail(TSR_ENOMEM, "no memory for the name of the adapter of %s", path);
        free((char *)path);
        peft->modules[i].path = renamed;
    }
    qsort(peft->modules, peft->count, sizeof *peft->modules, tsr_peft_by_path);
    return TSR_OK;
}
