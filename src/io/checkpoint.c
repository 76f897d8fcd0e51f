#include "io/checkpoint.h"

#include "base/auto.h"
#include "base/hash.h"
#include "io/fp8_blocks.h"
#include "io/json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

struct tsr_checkpoint {
    char *directory;
    char **shard_names; /* as the index names them */
    tsr_safetensors **shards;
    uint64_t shard_count, shard_capacity;
    const tsr_tensor **tensors; /* of all shards, sorted by name */
    uint64_t tensor_count, total_bytes;
    tsr_tensor *described; /* what `tensors` points to where there is no shard; owns its names */
    tsr_tensor *views;     /* of weights in fp8, instead of these and their scales */
};

static bool exists(const char *directory, const char *name)
{
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/%s", directory, name) < sizeof path &&
           access(path, F_OK) == 0;
}

/* Even where it cannot be opened, as a link that leads nowhere: opening it then says why. */
static bool is_named(const char *directory, const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    return (size_t)snprintf(path, sizeof path, "%s/%s", directory, name) < sizeof path &&
           (lstat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR));
}

/* Relative, inside the directory, and a safetensors file. */
static tsr_status check_shard_name(const char *name, const char *tensor, const char *index)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);
    if (name[0] == '/')
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is listed in '%s', an absolute path; expected a file of "
                        "the checkpoint's directory",
                        index, tensor, name);
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (!strncmp(part, "..", 2) && (part[2] == 0 || part[2] == '/'))
            return tsr_fail(TSR_EDATA,
                            "%s: tensor '%s' is listed in '%s', which contains '..'; expected a "
                            "file of the checkpoint's directory",
                            index, tensor, name);
    }
    if (length < sizeof suffix || strcmp(name + length - (sizeof suffix - 1), suffix))
        return tsr_fail(TSR_EDATA, "%s: tensor '%s' is listed in '%s', expected a *%s file", index,
                        tensor, name, suffix);
    return TSR_OK;
}

/* The shard of this name, opened at its first use. */
static tsr_status find_shard(tsr_safetensors **out, tsr_checkpoint *checkpoint, const char *name)
{
    /* Neighbours in the index mostly share a shard: look from the last one. */
    for (uint64_t i = checkpoint->shard_count; i-- > 0;)
        if (!strcmp(checkpoint->shard_names[i], name)) {
            *out = checkpoint->shards[i];
            return TSR_OK;
        }
    if (checkpoint->shard_count == checkpoint->shard_capacity) {
        uint64_t capacity = checkpoint->shard_capacity ? 2 * checkpoint->shard_capacity : 8;
        char **names = realloc(checkpoint->shard_names, capacity * sizeof *names);
        if (names)
            checkpoint->shard_names = names;
        tsr_safetensors **shards = realloc(checkpoint->shards, capacity * sizeof *shards);
        if (shards)
            checkpoint->shards = shards;
        if (!names || !shards)
            return tsr_fail(TSR_ENOMEM, "%s: no memory for its shards", checkpoint->directory);
        checkpoint->shard_capacity = capacity;
    }
    TSR_AUTO_FREE char *path = NULL, *copy = strdup(name);
    if (!copy || asprintf(&path, "%s/%s", checkpoint->directory, name) < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its shards", checkpoint->directory);
    if (!is_named(checkpoint->directory, name))
        return tsr_fail(TSR_EDATA,
                        "%s: it is missing, and %s lists it; the download is not complete: run it "
                        "again",
                        path, INDEX_FILE);
    TSR_TRY(tsr_safetensors_open(out, path));
    checkpoint->shard_names[checkpoint->shard_count] = copy;
    copy = NULL;
    checkpoint->shards[checkpoint->shard_count++] = *out;
    return TSR_OK;
}

static tsr_status open_listed(tsr_checkpoint *checkpoint, const json_t *map, const char *index)
{
    const char *tensor;
    json_t *value;
    if (json_object_size(map) == 0)
        return tsr_fail(TSR_EDATA, "%s: weight_map lists no tensor", index);
    json_object_foreach((json_t *)map, tensor, value)
    {
        tsr_safetensors *shard;
        char found[TSR_JSON_SHOW_BYTES];
        const char *name = json_string_value(value);
        if (!name)
            return tsr_fail(TSR_EDATA,
                            "%s: weight_map of tensor '%s' is %s, expected a file's name", index,
                            tensor, tsr_json_show(found, value));
        TSR_TRY(check_shard_name(name, tensor, index));
        while (!strncmp(name, "./", 2)) /* the same file */
            name += 2;
        TSR_TRY(find_shard(&shard, checkpoint, name));
        if (!tsr_safetensors_find(shard, tensor))
            return tsr_fail(TSR_EDATA, "%s: tensor '%s' is listed in '%s', which does not have it",
                            index, tensor, name);
    }
    return TSR_OK;
}

static tsr_status open_index(tsr_checkpoint *checkpoint)
{
    TSR_AUTO_FREE char *path = NULL;
    json_auto_t *root = NULL;
    json_t *map;
    if (asprintf(&path, "%s/%s", checkpoint->directory, INDEX_FILE) < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its index", checkpoint->directory);
    TSR_TRY(tsr_json_load_object(&root, path));
    TSR_TRY(tsr_json_object(&map, root, "weight_map", path));
    return open_listed(checkpoint, map, path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const tsr_tensor *const *)a)->name, (*(const tsr_tensor *const *)b)->name);
}

/* For tsr_checkpoint_find. */
static void sort(tsr_checkpoint *checkpoint)
{
    qsort(checkpoint->tensors, checkpoint->tensor_count, sizeof *checkpoint->tensors, by_name);
}

/* One sorted list over all shards. A tensor that no index lists counts too, as in Transformers. */
static tsr_status collect(tsr_checkpoint *checkpoint)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < checkpoint->shard_count; i++)
        count += tsr_safetensors_count(checkpoint->shards[i]);
    checkpoint->tensors = calloc(count + 1, sizeof *checkpoint->tensors);
    if (!checkpoint->tensors)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its %" PRIu64 " tensors",
                        checkpoint->directory, count);
    for (uint64_t i = 0; i < checkpoint->shard_count; i++)
        for (uint64_t t = 0; t < tsr_safetensors_count(checkpoint->shards[i]); t++) {
            const tsr_tensor *tensor = tsr_safetensors_at(checkpoint->shards[i], t);
            checkpoint->tensors[checkpoint->tensor_count++] = tensor;
            checkpoint->total_bytes += tensor->bytes;
        }
    sort(checkpoint);
    for (uint64_t i = 1; i < count; i++) {
        const tsr_tensor *a = checkpoint->tensors[i - 1], *b = checkpoint->tensors[i];
        if (!strcmp(a->name, b->name))
            return tsr_fail(TSR_EDATA, "tensor '%s' is in two shards, %s and %s: remove one",
                            a->name, tsr_safetensors_path(a->file), tsr_safetensors_path(b->file));
    }
    return TSR_OK;
}

static tsr_status no_weights(const char *directory)
{
    struct stat info;
    if (stat(directory, &info) < 0)
        return tsr_fail(tsr_status_of_open(errno), "%s: %s; expected a checkpoint's directory",
                        directory, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return tsr_fail(TSR_EDATA, "%s: not a directory; expected a checkpoint's directory",
                        directory);
    if (exists(directory, "pytorch_model.bin") || exists(directory, "pytorch_model.bin.index.json"))
        return tsr_fail(TSR_EDATA,
                        "%s: it has pytorch_model.bin but no %s, and only safetensors are read; "
                        "load it in Transformers and save it again with save_pretrained",
                        directory, SINGLE_FILE);
    return tsr_fail(TSR_EDATA,
                    "%s: it has no weights, neither %s nor %s; download them, or name the "
                    "directory that has them",
                    directory, SINGLE_FILE, INDEX_FILE);
}

bool tsr_checkpoint_has_weights(const char *directory)
{
    return exists(directory, SINGLE_FILE) || exists(directory, INDEX_FILE) ||
           exists(directory, "pytorch_model.bin") ||
           exists(directory, "pytorch_model.bin.index.json");
}

/* The tensor whose name is that of `tensor` with the suffix of fp8's scales, or without it; NULL: there is none. */
static const tsr_tensor *scales_of(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor)
{
    TSR_AUTO_FREE char *name = NULL;
    if (asprintf(&name, "%s%s", tensor->name, TSR_FP8_SCALE_SUFFIX) < 0)
        return NULL;
    return tsr_checkpoint_find(checkpoint, name);
}

static const tsr_tensor *scaled_by(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor)
{
    static const char suffix[] = TSR_FP8_SCALE_SUFFIX;
    size_t length = strlen(tensor->name), tail = sizeof suffix - 1;
    if (length <= tail || strcmp(tensor->name + length - tail, suffix))
        return NULL;
    TSR_AUTO_FREE char *name = strndup(tensor->name, length - tail);
    return name ? tsr_checkpoint_find(checkpoint, name) : NULL;
}

/* What a tensor becomes: a view, where it has scales; nothing, where it is scales. */
static tsr_status view_one(const tsr_tensor **out, tsr_tensor *view, const tsr_checkpoint *c,
                           const tsr_tensor *tensor)
{
    const tsr_tensor *codes = scaled_by(c, tensor);
    const tsr_tensor *scales = tensor->dtype == TSR_F8_E4M3 ? scales_of(c, tensor) : NULL;
    *out = codes ? NULL : scales ? view : tensor;
    if (codes && codes->dtype != TSR_F8_E4M3)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' scales '%s', which is %s, expected F8_E4M3: the two are "
                        "not from one checkpoint",
                        tsr_safetensors_path(tensor->file), tensor->name, codes->name,
                        tsr_dtype_name(codes->dtype));
    return scales ? tsr_fp8_view(view, tensor, scales) : TSR_OK;
}

/* Weights in fp8 become views; their scales are no tensors of their own. */
static tsr_status view_fp8(tsr_checkpoint *c)
{
    uint64_t views = 0, kept = 0;
    const tsr_tensor **tensors = calloc(c->tensor_count + 1, sizeof *tensors);
    c->views = calloc(c->tensor_count + 1, sizeof *c->views);
    tsr_status status = TSR_OK;
    if (!tensors || !c->views)
        status = tsr_fail(TSR_ENOMEM, "%s: no memory for its tensors", c->directory);
    for (uint64_t i = 0; i < c->tensor_count && status == TSR_OK; i++) {
        status = view_one(&tensors[kept], &c->views[views], c, c->tensors[i]);
        views += tensors[kept] == &c->views[views];
        kept += tensors[kept] != NULL;
    }
    if (status < 0) {
        free(tensors);
        return status;
    }
    free(c->tensors);
    c->tensors = tensors;
    c->tensor_count = kept;
    return TSR_OK;
}

tsr_status tsr_checkpoint_open(tsr_checkpoint **out, const char *directory)
{
    tsr_status status;
    tsr_safetensors *shard;
    tsr_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint || !(checkpoint->directory = strdup(directory))) {
        free(checkpoint);
        return tsr_fail(TSR_ENOMEM, "%s: no memory to open it", directory);
    }
    if (is_named(directory, SINGLE_FILE))
        status = find_shard(&shard, checkpoint, SINGLE_FILE);
    else if (is_named(directory, INDEX_FILE))
        status = open_index(checkpoint);
    else
        status = no_weights(directory);
    if (status == TSR_OK)
        status = collect(checkpoint);
    if (status == TSR_OK)
        status = view_fp8(checkpoint);
    if (status < 0) {
        tsr_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return TSR_OK;
}

void tsr_checkpoint_close(tsr_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (uint64_t i = 0; i < checkpoint->shard_count; i++) {
        tsr_safetensors_close(checkpoint->shards[i]);
        free(checkpoint->shard_names[i]);
    }
    for (uint64_t i = 0; checkpoint->described && i < checkpoint->tensor_count; i++)
        free((char *)checkpoint->described[i].name);
    free(checkpoint->described);
    free(checkpoint->views);
    free(checkpoint->shards);
    free(checkpoint->shard_names);
    free(checkpoint->tensors);
    free(checkpoint->directory);
    free(checkpoint);
}

/* Copies one tensor, and its name. */
static tsr_status describe_one(tsr_checkpoint *c, const tsr_tensor *tensor)
{
    tsr_tensor *copy = &c->described[c->tensor_count];
    *copy = *tensor;
    copy->name = strdup(tensor->name);
    if (!copy->name)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its tensors", c->directory);
    copy->element_count = 1;
    for (int i = 0; i < copy->ndim; i++)
        copy->element_count *= copy->shape[i];
    copy->bytes = copy->element_count * tsr_dtype_bytes(copy->dtype);
    c->total_bytes += copy->bytes;
    c->tensors[c->tensor_count++] = copy;
    return TSR_OK;
}

tsr_status tsr_checkpoint_describe(tsr_checkpoint **out, const char *directory,
                                   const tsr_tensor *tensors, uint64_t count)
{
    tsr_checkpoint *c = calloc(1, sizeof *c);
    if (c) {
        c->directory = strdup(directory);
        c->described = calloc(count + 1, sizeof *c->described);
        c->tensors = calloc(count + 1, sizeof *c->tensors);
    }
    tsr_status status = TSR_OK;
    if (!c || !c->directory || !c->described || !c->tensors)
        status = tsr_fail(TSR_ENOMEM, "%s: no memory for its tensors", directory);
    for (uint64_t i = 0; i < count && status == TSR_OK; i++)
        status = describe_one(c, &tensors[i]);
    if (status < 0) {
        tsr_checkpoint_close(c);
        return status;
    }
    sort(c);
    *out = c;
    return TSR_OK;
}

const char *tsr_checkpoint_directory(const tsr_checkpoint *checkpoint)
{
    return checkpoint->directory;
}

uint64_t tsr_checkpoint_count(const tsr_checkpoint *checkpoint)
{
    return checkpoint->tensor_count;
}

const tsr_tensor *tsr_checkpoint_at(const tsr_checkpoint *checkpoint, uint64_t index)
{
    return index < checkpoint->tensor_count ? checkpoint->tensors[index] : NULL;
}

const tsr_tensor *tsr_checkpoint_find(const tsr_checkpoint *checkpoint, const char *name)
{
    tsr_tensor wanted = {.name = name};
    const tsr_tensor *key = &wanted;
    const tsr_tensor **found =
        bsearch(&key, checkpoint->tensors, checkpoint->tensor_count, sizeof key, by_name);
    return found ? *found : NULL;
}

tsr_status tsr_checkpoint_sample(uint64_t *hash, const tsr_checkpoint *checkpoint)
{
    *hash = TSR_HASH_START;
    for (uint64_t i = 0; i < checkpoint->tensor_count; i++)
        tsr_safetensors_sample_ahead(checkpoint->tensors[i]);
    for (uint64_t i = 0; i < checkpoint->tensor_count; i++)
        TSR_TRY(tsr_safetensors_sample(hash, checkpoint->tensors[i]));
    return TSR_OK;
}

uint64_t tsr_checkpoint_bytes_read(const tsr_checkpoint *checkpoint)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < checkpoint->shard_count; i++)
        total += tsr_safetensors_bytes_read(checkpoint->shards[i]);
    return total;
}

uint64_t tsr_checkpoint_total_bytes(const tsr_checkpoint *checkpoint)
{
    return checkpoint->total_bytes;
}
