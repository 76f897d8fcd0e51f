#include "inputs/earlier.h"

#include "base/auto.h"
#include "io/peft.h"
#include "io/snapshot.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than the last lines of metrics.jsonl have: a step, its evaluation, the end. */
#define TAIL_BYTES 8192

static tsr_status join(char out[PATH_MAX], const char *directory, const char *name)
{
    if (snprintf(out, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX)
        return tsr_fail(TSR_ECONFIG, "%s: the path is too long", directory);
    return TSR_OK;
}

/* The last bytes of a file, with a zero behind them; -1: there is no such file. */
static ssize_t read_tail(char tail[TAIL_BYTES + 1], const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    off_t bytes = lseek(fd, 0, SEEK_END);
    ssize_t got =
        bytes < 0 ? 0 : pread(fd, tail, TAIL_BYTES, bytes > TAIL_BYTES ? bytes - TAIL_BYTES : 0);
    close(fd);
    tail[got > 0 ? got : 0] = 0;
    return got > 0 ? got : 0;
}

tsr_status tsr_earlier_end(tsr_earlier_state *state, int64_t *step, const char *directory)
{
    char path[PATH_MAX], tail[TAIL_BYTES + 1];
    long long last = 0;
    *state = TSR_EARLIER_NONE;
    *step = 0;
    TSR_TRY(join(path, directory, "metrics.jsonl"));
    if (read_tail(tail, path) < 0)
        return TSR_OK;
    *state = TSR_EARLIER_OPEN;
    char *rest = tail;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (!*line)
            continue;
        sscanf(line, "{\"step\":%lld,", &last);
        *state = strcmp(line, "{\"event\":\"end\",\"status\":\"done\"}") ? TSR_EARLIER_OPEN
                                                                         : TSR_EARLIER_DONE;
    }
    *step = last;
    return TSR_OK;
}

bool tsr_earlier_wrote(const char *path)
{
    char first[sizeof TSR_CONFIG_HEADER] = "";
    FILE *file = fopen(path, "re");
    bool own = file && fgets(first, sizeof first, file) && !strcmp(first, TSR_CONFIG_HEADER);
    if (file)
        fclose(file);
    return own;
}

static tsr_status has_adapter(bool *out, const char *directory)
{
    static const char *const names[] = {TSR_PEFT_CONFIG_FILE, TSR_PEFT_WEIGHTS_FILE};
    char path[PATH_MAX];
    *out = true;
    for (int i = 0; i < 2; i++) {
        TSR_TRY(join(path, directory, names[i]));
        *out = *out && access(path, F_OK) == 0;
    }
    return TSR_OK;
}

tsr_status tsr_earlier_done(int64_t *steps, const char *directory)
{
    tsr_earlier_state state;
    bool adapter;
    TSR_TRY(tsr_earlier_end(&state, steps, directory));
    TSR_TRY(has_adapter(&adapter, directory));
    if (state != TSR_EARLIER_DONE || !adapter)
        *steps = 0;
    return TSR_OK;
}

static tsr_status find_newest(int64_t *step, const char *directory)
{
    tsr_auto_folder *folder = NULL;
    TSR_TRY(tsr_folder_open(&folder, directory));
    *step = -1;
    return folder ? tsr_snapshot_newest(step, folder) : TSR_OK;
}

/* Where the adapter of the run in `directory` is; "": nowhere. *run: whether there is a run. */
static tsr_status find_adapter(char out[PATH_MAX], bool *run, const char *directory)
{
    tsr_earlier_state state;
    int64_t step, newest;
    bool adapter;
    *out = 0;
    TSR_TRY(tsr_earlier_end(&state, &step, directory));
    TSR_TRY(find_newest(&newest, directory));
    TSR_TRY(has_adapter(&adapter, directory));
    *run = adapter || newest >= 0 || state != TSR_EARLIER_NONE;
    /* An adapter beside the checkpoints of a run that goes on is of an earlier step. */
    if (newest >= 0 && (!adapter || state == TSR_EARLIER_OPEN)) {
        char name[TSR_SNAPSHOT_NAME_BYTES];
        tsr_snapshot_name(name, newest);
        return join(out, directory, name);
    }
    if (adapter && strlen(directory) < PATH_MAX)
        strcpy(out, directory);
    return TSR_OK;
}

static tsr_status find_named(char out[PATH_MAX], const tsr_config_source *source)
{
    tsr_config config;
    const tsr_config_source plain = {
        .path = source->path, .use = TSR_CONFIG_PLAN, .has_cuda = source->has_cuda};
    bool run;
    *out = 0;
    if (tsr_config_load(&config, &plain) < 0) /* the caller's load says why */
        return TSR_OK;
    tsr_status status = config.output_dir ? find_adapter(out, &run, config.output_dir) : TSR_OK;
    tsr_config_free(&config);
    return status;
}

/* The one that holds the file. */
static tsr_status find_directory(char directory[PATH_MAX], const tsr_config_source *source)
{
    const char *slash = strrchr(source->path, '/');
    strcpy(directory, ".");
    if (slash && snprintf(directory, PATH_MAX, "%.*s", (int)(slash - source->path + 1),
                          source->path) >= PATH_MAX)
        return tsr_fail(TSR_ECONFIG, "%s: the path is too long", source->path);
    for (size_t end = strlen(directory); end > 1 && directory[end - 1] == '/'; end--)
        directory[end - 1] = 0;
    return TSR_OK;
}

/* Of a run's own job.yaml; "": the run is nowhere. */
static tsr_status find(char out[PATH_MAX], const tsr_config_source *source)
{
    char directory[PATH_MAX];
    bool run;
    TSR_TRY(find_directory(directory, source));
    TSR_TRY(find_adapter(out, &run, directory));
    if (!run)
        return find_named(out, source);
    if (*out)
        return TSR_OK;
    return tsr_fail(
        TSR_ECONFIG,
        "%s: the run in %s has no adapter and no checkpoint yet; name an adapter, "
        "init_adapter=DIRECTORY%s",
        source->path, directory,
        source->use == TSR_CONFIG_EVAL ? ", or evaluate the base alone, init_adapter=none" : "");
}

static bool names(const tsr_config_source *source, const char *key)
{
    for (int i = 0; i < source->override_count; i++)
        if (!strncmp(source->overrides[i], key, strlen(key)))
            return true;
    return false;
}

/* Where a merge of a run's job.yaml writes unless it is said: beside the run. */
static tsr_status put_merged(char out[PATH_MAX + 32], const tsr_config_source *source)
{
    char directory[PATH_MAX], whole[PATH_MAX];
    TSR_TRY(find_directory(directory, source));
    const char *last = strrchr(directory, '/');
    bool named = strcmp(last ? last + 1 : directory, ".") != 0 && !strstr(directory, "..");
    snprintf(out, PATH_MAX + 32, "output_dir=%s-merged",
             named || !realpath(directory, whole) ? directory : whole);
    return TSR_OK;
}

/* With `first` before the overrides of the source. */
static tsr_status load_with(tsr_config *out, const tsr_config_source *source, const char *first)
{
    tsr_config_source own = *source;
    TSR_AUTO_FREE const char **all = calloc((size_t)source->override_count + 1, sizeof *all);
    if (!all)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", source->path);
    all[0] = first;
    for (int i = 0; i < source->override_count; i++)
        all[i + 1] = source->overrides[i];
    own.overrides = all;
    own.override_count++;
    return tsr_config_load(out, &own);
}

tsr_status tsr_earlier_config(tsr_config *out, const tsr_config_source *source)
{
    tsr_config_source own = *source;
    char adapter[PATH_MAX] = "", merged[PATH_MAX + 32];
    bool takes = source->use == TSR_CONFIG_EVAL || source->use == TSR_CONFIG_MERGE;
    own.of_run = takes && source->path && tsr_earlier_wrote(source->path);
    if (own.of_run && !names(source, "init_adapter="))
        TSR_TRY(find(adapter, source));
    own.adapter = *adapter ? adapter : NULL;
    if (!own.of_run || source->use != TSR_CONFIG_MERGE || names(source, "output_dir="))
        return tsr_config_load(out, &own);
    TSR_TRY(put_merged(merged, source));
    return load_with(out, &own, merged);
}
