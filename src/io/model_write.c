#include "io/model_write.h"

#include "base/checked.h"
#include "base/text.h"
#include "io/json.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE_FILE     "model.safetensors"
#define INDEX_FILE      "model.safetensors.index.json"
#define MOST_COPY_BYTES (512ull << 20) /* of a tokenizer's file: about 20 MiB in practice */

/* What makes the directory loadable beside config and weights, and what a license asks to be kept. */
static const char *const copied_names[] = {"generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "LICENSE",
                                           "LICENSE.txt",
                                           "LICENSE.md",
                                           "NOTICE",
                                           "USE_POLICY.md"};

#define COPIED (sizeof copied_names / sizeof *copied_names)

/* The one file of a model that is in a directory of its own: the template of chats with tools. */
#define TEMPLATES     "additional_chat_templates"
#define TOOL_TEMPLATE TEMPLATES "/tool_use.jinja"

/* The files of one directory, staged one after the other and published in the same order. */
typedef struct {
    const tsr_model_output *output;
    uint64_t *shard; /* of each tensor */
    uint64_t shard_count, total_bytes;
    tsr_file **files;
    uint64_t file_count;
    bool earlier; /* another model is there, and goes */
} writing;

static tsr_status out_of_memory(const writing *w)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory to write to it", w->output->directory);
}

/* ---- shards ---- */

static bool is_part_of(const char *name, const char *whole)
{
    size_t length = strlen(whole);
    return !strncmp(name, whole, length) && name[length] == '.';
}

/* Filled one after the other, as Transformers does: a tensor that does not fit begins the next. */
static tsr_status assign_shards(writing *w)
{
    const tsr_model_output *o = w->output;
    uint64_t most = o->most_shard_bytes ? o->most_shard_bytes : TSR_MODEL_SHARD_BYTES, filled = 0;
    for (uint64_t i = 0, end; i < o->count; i = end) {
        uint64_t group = 0, bytes;
        for (end = i;
             end < o->count && (end == i || is_part_of(o->tensors[end].name, o->tensors[i].name));
             end++) {
            TSR_TRY(tsr_tensor_source_bytes(&bytes, &o->tensors[end], o->directory));
            if (!tsr_add_u64(&group, group, bytes))
                return tsr_fail(TSR_EINVAL, "%s: the sum of its tensors overflows", o->directory);
        }
        if (w->shard_count == 0 || (filled > 0 && (group > most || filled > most - group))) {
            w->shard_count++;
            filled = 0;
        }
        filled += group;
        w->total_bytes += group;
        for (uint64_t t = i; t < end; t++)
            w->shard[t] = w->shard_count - 1;
    }
    return TSR_OK;
}

static void shard_name(char name[64], const writing *w, uint64_t shard)
{
    if (w->shard_count == 1)
        strcpy(name, SINGLE_FILE);
    else
        snprintf(name, 64, "model-%05" PRIu64 "-of-%05" PRIu64 ".safetensors", shard + 1,
                 w->shard_count);
}

bool tsr_model_write_replaces(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name), end = sizeof suffix - 1;
    if (!strcmp(name, TSR_MODEL_CONFIG_FILE) || !strcmp(name, INDEX_FILE) ||
        !strcmp(name, SINGLE_FILE))
        return true;
    return length > end && !strncmp(name, "model-", 6) && !strcmp(name + length - end, suffix);
}

/* ---- files ---- */

/* Asks before anything appears: publishing must not be what finds this out. */
static tsr_status check_target(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return tsr_fail(TSR_EIO,
                        "%s: a directory has the name of a file of the model; move it elsewhere",
                        path);
    return TSR_OK;
}

static tsr_status target(char **out, const writing *w, const char *name)
{
    if (asprintf(out, "%s/%s", w->output->directory, name) < 0)
        return out_of_memory(w);
    tsr_status status = check_target(*out);
    if (status < 0)
        free(*out);
    return status;
}

static tsr_status stage_data(writing *w, const char *name, const char *data, uint64_t bytes)
{
    char *path;
    tsr_file **file = &w->files[w->file_count];
    TSR_TRY(target(&path, w, name));
    tsr_status status = tsr_file_stage(file, path);
    free(path);
    TSR_TRY(status);
    w->file_count++;
    TSR_TRY(tsr_file_append(*file, data, bytes));
    return tsr_file_finish(*file);
}

static tsr_status stage_copy(writing *w, const char *name)
{
    char *path, *data;
    uint64_t bytes;
    if (asprintf(&path, "%s/%s", w->output->source, name) < 0)
        return out_of_memory(w);
    tsr_status status = TSR_OK;
    if (access(path, F_OK) == 0) {
        status = tsr_file_read(&data, &bytes, path, MOST_COPY_BYTES);
        if (status == TSR_OK) {
            status = stage_data(w, name, data, bytes);
            free(data);
        }
    }
    free(path);
    return status;
}

static tsr_status stage_shard(writing *w, uint64_t shard, uint64_t *first)
{
    uint64_t end = *first;
    char name[64], *path;
    while (end < w->output->count && w->shard[end] == shard)
        end++;
    shard_name(name, w, shard);
    TSR_TRY(target(&path, w, name));
    tsr_status status = tsr_safetensors_stage(&w->files[w->file_count], path,
                                              &w->output->tensors[*first], end - *first);
    free(path);
    TSR_TRY(status);
    w->file_count++;
    *first = end;
    return TSR_OK;
}

static tsr_status stage_index(writing *w)
{
    const tsr_model_output *o = w->output;
    char *text = NULL, name[64];
    json_t *map = json_object();
    bool failed = !map;
    for (uint64_t i = 0; i < o->count && map; i++) {
        shard_name(name, w, w->shard[i]);
        failed |= json_object_set_new(map, o->tensors[i].name, json_string(name)) != 0;
    }
    json_t *root =
        json_pack("{s{sI sI} so}", "metadata", "total_parameters", (json_int_t)o->parameter_count,
                  "total_size", (json_int_t)w->total_bytes, "weight_map", map);
    tsr_status status = failed || !root ? out_of_memory(w) : tsr_json_format(&text, root, 2);
    if (status == TSR_OK)
        status = stage_data(w, INDEX_FILE, text, strlen(text));
    json_decref(root);
    free(text);
    return status;
}

/* ---- an earlier model ---- */

static bool source_has(const writing *w, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", w->output->source, name);
    return access(path, F_OK) == 0;
}

/* Whether a file is an earlier model's and gets no new content: its tokenizer would be taken for this
 * one's. Such names where no model was are somebody's, and stay. */
static bool is_earlier(const writing *w, const char *name)
{
    if (tsr_model_write_replaces(name))
        return true;
    for (size_t i = 0; i < COPIED; i++)
        if (!strcmp(name, copied_names[i]))
            return w->earlier && !source_has(w, name);
    return false;
}

typedef enum { FIND, CHECK, REMOVE_CONFIG, REMOVE_REST } earlier_round;

static tsr_status treat_earlier(writing *w, const char *name, earlier_round round)
{
    char path[4096];
    if (!is_earlier(w, name))
        return TSR_OK;
    w->earlier = true;
    snprintf(path, sizeof path, "%s/%s", w->output->directory, name);
    if (round == CHECK)
        return check_target(path);
    bool config = !strcmp(name, TSR_MODEL_CONFIG_FILE);
    if (round != (config ? REMOVE_CONFIG : REMOVE_REST) || unlink(path) == 0)
        return TSR_OK;
    return tsr_fail(TSR_EIO, "%s: cannot be removed: %s", path, strerror(errno));
}

static tsr_status walk_earlier(writing *w, earlier_round round)
{
    const char *directory = w->output->directory;
    tsr_status status = TSR_OK;
    DIR *entries = opendir(directory);
    if (!entries)
        return tsr_fail(TSR_EIO, "%s: cannot be opened: %s", directory, strerror(errno));
    for (struct dirent *entry; status == TSR_OK && (entry = readdir(entries));)
        status = treat_earlier(w, entry->d_name, round);
    closedir(entries);
    return status;
}

/* Before anything is made, and again before anything goes. */
static tsr_status check_earlier(writing *w)
{
    TSR_TRY(walk_earlier(w, FIND));
    return walk_earlier(w, CHECK);
}

/* config.json first, so that what remains is no model. */
static tsr_status remove_earlier(writing *w)
{
    char path[4096];
    TSR_TRY(check_earlier(w));
    TSR_TRY(walk_earlier(w, REMOVE_CONFIG));
    TSR_TRY(walk_earlier(w, REMOVE_REST));
    snprintf(path, sizeof path, "%s/" TOOL_TEMPLATE, w->output->directory);
    if (w->earlier && !source_has(w, TOOL_TEMPLATE) && unlink(path) != 0 && errno != ENOENT &&
        errno != ENOTDIR)
        return tsr_fail(TSR_EIO, "%s: cannot be removed: %s", path, strerror(errno));
    return TSR_OK;
}

static tsr_status stage_tool_template(writing *w)
{
    char path[4096];
    if (!source_has(w, TOOL_TEMPLATE))
        return TSR_OK;
    snprintf(path, sizeof path, "%s/" TEMPLATES, w->output->directory);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return tsr_fail(TSR_EIO, "%s: cannot be made: %s", path, strerror(errno));
    return stage_copy(w, TOOL_TEMPLATE);
}

static tsr_status stage_all(writing *w)
{
    char *config = NULL;
    uint64_t first = 0;
    TSR_TRY(check_earlier(w));
    TSR_TRY(assign_shards(w));
    w->files = calloc(COPIED + w->shard_count + 3, sizeof *w->files);
    if (!w->files)
        return out_of_memory(w);
    TSR_TRY(tsr_model_config_format(&config, w->output)); /* errors before hours of work */
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < COPIED && status == TSR_OK; i++)
        status = stage_copy(w, copied_names[i]);
    if (status == TSR_OK)
        status = stage_tool_template(w);
    for (uint64_t i = 0; i < w->shard_count && status == TSR_OK; i++)
        status = stage_shard(w, i, &first);
    if (status == TSR_OK && w->shard_count > 1)
        status = stage_index(w);
    if (status == TSR_OK)
        status = stage_data(w, TSR_MODEL_CONFIG_FILE, config, strlen(config));
    free(config);
    return status;
}

tsr_status tsr_model_write(tsr_model_written *written, const tsr_model_output *output)
{
    writing w = {.output = output, .shard = calloc(output->count + 1, sizeof *w.shard)};
    tsr_status status = w.shard ? stage_all(&w) : out_of_memory(&w);
    if (status == TSR_OK)
        status = remove_earlier(&w);
    for (uint64_t i = 0; i < w.file_count && status == TSR_OK; i++)
        status = tsr_file_publish(w.files[i]);
    for (uint64_t i = 0; i < w.file_count; i++)
        tsr_file_discard(w.files[i]);
    free(w.files);
    free(w.shard);
    if (status == TSR_OK && written)
        *written = (tsr_model_written){w.shard_count, w.total_bytes};
    return status;
}
