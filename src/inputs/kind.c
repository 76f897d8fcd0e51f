#include "inputs/kind.h"

#include "io/peft.h"
#include "io/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_SHOWN 12 /* runs that a message names */

/* A run and a checkpoint have an adapter's files too. */
static const struct {
    const char *name, *marker;
} kinds[] = {
    [TSR_KIND_RUN] = {"run", "metrics.jsonl"},
    [TSR_KIND_CHECKPOINT] = {"checkpoint", TSR_SNAPSHOT_MANIFEST},
    [TSR_KIND_ADAPTER] = {"adapter", TSR_PEFT_CONFIG_FILE},
    [TSR_KIND_MODEL] = {"model", "config.json"},
    [TSR_KIND_UNKNOWN] = {"unknown", NULL},
};

const char *tsr_kind_name(tsr_kind kind)
{
    return kinds[kind].name;
}

static bool has(const char *directory, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < PATH_MAX &&
           access(path, F_OK) == 0;
}

tsr_kind tsr_kind_of(const char *directory)
{
    tsr_kind kind = TSR_KIND_RUN;
    while (kind < TSR_KIND_UNKNOWN && !has(directory, kinds[kind].marker))
        kind++;
    return kind;
}

static tsr_status add(tsr_kind_runs *runs, const char *name)
{
    char **more = realloc(runs->names, ((size_t)runs->count + 1) * sizeof *more);
    if (!more)
        return tsr_fail(TSR_ENOMEM, "out of memory for the names of runs");
    runs->names = more;
    runs->names[runs->count] = strdup(name);
    if (!runs->names[runs->count])
        return tsr_fail(TSR_ENOMEM, "out of memory for the names of runs");
    runs->count++;
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

tsr_status tsr_kind_runs_find(tsr_kind_runs *out, const char *directory)
{
    tsr_kind_runs runs = {0};
    tsr_status status = TSR_OK;
    char name[NAME_MAX + sizeof "/metrics.jsonl"];
    DIR *entries = opendir(directory);
    if (!entries)
        return tsr_fail(TSR_EIO, "%s: cannot be opened: %s", directory, strerror(errno));
    for (struct dirent *entry; status == TSR_OK && (entry = readdir(entries));) {
        snprintf(name, sizeof name, "%s/metrics.jsonl", entry->d_name);
        if (*entry->d_name != '.' && has(directory, name))
            status = add(&runs, entry->d_name);
    }
    closedir(entries);
    if (runs.count)
        qsort(runs.names, (size_t)runs.count, sizeof *runs.names, by_name);
    if (status < 0)
        tsr_kind_runs_free(&runs);
    else
        *out = runs;
    return status;
}

void tsr_kind_runs_free(tsr_kind_runs *runs)
{
    for (int i = 0; i < runs->count; i++)
        free(runs->names[i]);
    free(runs->names);
    *runs = (tsr_kind_runs){0};
}

tsr_status tsr_kind_refuse(tsr_status code, const char *directory)
{
    tsr_kind_runs runs;
    tsr_auto_text list = {0};
    TSR_TRY(tsr_kind_runs_find(&runs, directory));
    for (int i = 0; i < runs.count && i < MOST_SHOWN; i++)
        tsr_text_printf(&list, "%s%s", i ? ", " : "", runs.names[i]);
    if (runs.count > MOST_SHOWN)
        tsr_text_printf(&list, " and %d more", runs.count - MOST_SHOWN);
    int count = runs.count;
    tsr_kind_runs_free(&runs);
    if (count)
        return tsr_fail(code,
                        "%s is not a run, checkpoint, adapter or model; it contains the run%s %s",
                        directory, count > 1 ? "s" : "", tsr_text_string(&list));
    return tsr_fail(code,
                    "%s is not a run (metrics.jsonl), checkpoint (manifest.json), adapter "
                    "(adapter_config.json) or model (config.json), and contains no runs",
                    directory);
}
