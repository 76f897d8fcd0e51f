#include "io/model_write.h"

#include "base/auto.h"
#include "base/checked.h"
#include "io/json.h"
#include "io/tokenizer_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

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
                                           "preprocessor_config.json",
                                           "video_preprocessor_config.json",
                                           "processor_config.json",
                                           "LICENSE",
                                           "LICENSE.txt",
                                           "LICENSE.md",
                                           "NOTICE",
                                           "USE_POLICY.md"};

#define COPIED (sizeof copied_names / sizeof *copied_names)

/* The one file of a model that is in a directory of its own: the template of chats with tools. */
#define TEMPLATES     "additional_chat_templates"
#define TOOL_TEMPLATE "tool_use.jinja"

/* The files of one directory, staged one after the other and published in the same order. */
typedef struct {
    const tsr_model_output *output;
    tsr_folder *templates; /* NULL: none */
    uint64_t *shard;       /* of each tensor */
    uint64_t shard_count, total_bytes;
    tsr_file **files;
    uint64_t file_count;
    bool earlier; /* another model is there, and goes */
} writing;

static tsr_status out_of_memory(const writing *w)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory to write to it", tsr_folder_path(w->output->folder));
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
    const char *directory = tsr_folder_path(o->folder);
    for (uint64_t i = 0, end; i < o->count; i = end) {
        uint64_t group = 0, bytes;
        for (end = i;
             end < o->count && (end == i || is_part_of(o->tensors[end].name, o->tensors[i].name));
             end++) {
            TSR_TRY(tsr_tensor_source_bytes(&bytes, &o->tensors[end], directory));
            if (!tsr_add_u64(&group, group, bytes))
                return tsr_fail(TSR_EINVAL, "%s: the sum of its tensors overflows", directory);
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

mode_t tsr_model_write_makes(const char *name)
{
    for (size_t i = 0; i < COPIED; i++)
        if (!strcmp(name, copied_names[i]))
            return S_IFREG;
    return tsr_model_write_replaces(name) ? S_IFREG : !strcmp(name, TEMPLATES) ? S_IFDIR : 0;
}

/* ---- files ---- */

static tsr_status stage_data(writing *w, const tsr_folder *folder, const char *name,
                             const char *data, uint64_t bytes)
{
    tsr_file **file = &w->files[w->file_count];
    /* Before anything appears: publishing must not be what finds this out. */
    TSR_TRY(tsr_folder_expect(folder, name, S_IFREG, TSR_EIO));
    TSR_TRY(tsr_file_stage(file, folder, name));
    w->file_count++;
    TSR_TRY(tsr_file_append(*file, data, bytes));
    return tsr_file_finish(*file);
}

static tsr_tokenizer_origin origin_of(const writing *w)
{
    const tsr_model_output *o = w->output;
    return (tsr_tokenizer_origin){o->source, o->chat_template, o->template_bytes};
}

/* The source's `path` as `name`, if it has one. */
static tsr_status stage_copy(writing *w, const tsr_folder *folder, const char *name,
                             const char *path)
{
    const tsr_tokenizer_origin origin = origin_of(w);
    TSR_AUTO_FREE char *data = NULL;
    uint64_t bytes;
    TSR_TRY(tsr_tokenizer_read(&data, &bytes, &origin, path));
    return data ? stage_data(w, folder, name, data, bytes) : TSR_OK;
}

static tsr_status stage_shard(writing *w, uint64_t shard, uint64_t *first)
{
    const tsr_model_output *o = w->output;
    uint64_t end = *first;
    char name[64];
    while (end < o->count && w->shard[end] == shard)
        end++;
    shard_name(name, w, shard);
    TSR_TRY(tsr_folder_expect(o->folder, name, S_IFREG, TSR_EIO));
    TSR_TRY(tsr_safetensors_stage(&w->files[w->file_count], o->folder, name, &o->tensors[*first],
                                  end - *first));
    w->file_count++;
    *first = end;
    return TSR_OK;
}

static tsr_status stage_index(writing *w)
{
    const tsr_model_output *o = w->output;
    TSR_AUTO_FREE char *text = NULL;
    char name[64];
    json_t *map = json_object();
    bool failed = !map;
    for (uint64_t i = 0; i < o->count && map; i++) {
        shard_name(name, w, w->shard[i]);
        failed |= json_object_set_new(map, o->tensors[i].name, json_string(name)) != 0;
    }
    json_auto_t *root =
        json_pack("{s{sI sI} so}", "metadata", "total_parameters", (json_int_t)o->parameter_count,
                  "total_size", (json_int_t)w->total_bytes, "weight_map", map);
    TSR_TRY(failed || !root ? out_of_memory(w) : tsr_json_format(&text, root, 2));
    return stage_data(w, o->folder, INDEX_FILE, text, strlen(text));
}

/* ---- an earlier model ---- */

static bool source_has(const writing *w, const char *name)
{
    const tsr_tokenizer_origin origin = origin_of(w);
    return tsr_tokenizer_has(&origin, name);
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
    const tsr_folder *folder = w->output->folder;
    if (!is_earlier(w, name))
        return TSR_OK;
    w->earlier = true;
    if (round == CHECK)
        return tsr_folder_expect(folder, name, S_IFREG, TSR_EIO);
    bool config = !strcmp(name, TSR_MODEL_CONFIG_FILE);
    return round == (config ? REMOVE_CONFIG : REMOVE_REST) ? tsr_folder_remove(folder, name)
                                                           : TSR_OK;
}

static tsr_status walk_earlier(writing *w, earlier_round round)
{
    tsr_auto_dir *entries = NULL;
    TSR_TRY(tsr_folder_list(&entries, w->output->folder));
    for (const char *name; (name = tsr_folder_next(entries));)
        TSR_TRY(treat_earlier(w, name, round));
    return TSR_OK;
}

/* Before anything is made, and again before anything goes. */
static tsr_status check_earlier(writing *w)
{
    TSR_TRY(walk_earlier(w, FIND));
    return walk_earlier(w, CHECK);
}

static tsr_status remove_earlier_template(const writing *w)
{
    tsr_auto_folder *templates = NULL;
    TSR_TRY(tsr_folder_enter(&templates, w->output->folder, TEMPLATES));
    if (!templates)
        return TSR_OK;
    return tsr_folder_remove(templates, TOOL_TEMPLATE);
}

/* config.json first, so that what remains is no model. */
static tsr_status remove_earlier(writing *w)
{
    TSR_TRY(check_earlier(w));
    TSR_TRY(walk_earlier(w, REMOVE_CONFIG));
    TSR_TRY(walk_earlier(w, REMOVE_REST));
    return w->earlier && !w->templates ? remove_earlier_template(w) : TSR_OK;
}

static tsr_status stage_tool_template(writing *w)
{
    if (!source_has(w, TEMPLATES "/" TOOL_TEMPLATE))
        return TSR_OK;
    TSR_TRY(tsr_folder_make(&w->templates, w->output->folder, TEMPLATES));
    return stage_copy(w, w->templates, TOOL_TEMPLATE, TEMPLATES "/" TOOL_TEMPLATE);
}

static mode_t makes_template(const char *name)
{
    return strcmp(name, TOOL_TEMPLATE) ? 0 : S_IFREG;
}

/* What was left by those that were killed while they wrote a model here. */
static tsr_status tidy(const writing *w)
{
    tsr_auto_folder *templates = NULL;
    TSR_TRY(tsr_file_tidy(w->output->folder, tsr_model_write_makes));
    TSR_TRY(tsr_folder_enter(&templates, w->output->folder, TEMPLATES));
    return templates ? tsr_file_tidy(templates, makes_template) : TSR_OK;
}

static tsr_status stage_all(writing *w)
{
    TSR_AUTO_FREE char *config = NULL;
    uint64_t first = 0;
    TSR_TRY(check_earlier(w));
    TSR_TRY(tidy(w));
    TSR_TRY(assign_shards(w));
    w->files = calloc(COPIED + w->shard_count + 3, sizeof *w->files);
    if (!w->files)
        return out_of_memory(w);
    TSR_TRY(tsr_model_config_format(&config, w->output)); /* errors before hours of work */
    for (size_t i = 0; i < COPIED; i++)
        TSR_TRY(stage_copy(w, w->output->folder, copied_names[i], copied_names[i]));
    TSR_TRY(stage_tool_template(w));
    for (uint64_t i = 0; i < w->shard_count; i++)
        TSR_TRY(stage_shard(w, i, &first));
    if (w->shard_count > 1)
        TSR_TRY(stage_index(w));
    return stage_data(w, w->output->folder, TSR_MODEL_CONFIG_FILE, config, strlen(config));
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
    tsr_folder_close(w.templates);
    free(w.files);
    free(w.shard);
    if (status == TSR_OK && written)
        *written = (tsr_model_written){w.shard_count, w.total_bytes};
    return status;
}
