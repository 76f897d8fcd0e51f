/*
 * snapshot_place.c: directories of checkpoints: their names, making, listing and removing them.
 */
#include "base/log.h"
#include "io/file.h"
#include "io/snapshot.h"
#include "io/snapshot_parts.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX    "checkpoint-"
#define TEMPORARY ".tmp"
#define REMOVED   ".removed"

tsr_status tsr_snapshot_join(char *out, size_t bytes, const char *directory, const char *name)
{
    if ((size_t)snprintf(out, bytes, "%s/%s", directory, name) >= bytes)
        return tsr_fail(TSR_ECONFIG, "%s/%s: the path is too long", directory, name);
    return TSR_OK;
}

static tsr_status place(char *out, size_t bytes, const char *parent, const char *before,
                        int64_t step, const char *after)
{
    char name[64];
    snprintf(name, sizeof name, "%s" PREFIX "%" PRId64 "%s", before, step, after);
    return tsr_snapshot_join(out, bytes, parent, name);
}

tsr_status tsr_snapshot_path(char *out, size_t bytes, const char *parent, int64_t step)
{
    return place(out, bytes, parent, "", step, "");
}

tsr_status tsr_snapshot_staging(char *out, size_t bytes, const char *parent, int64_t step)
{
    return place(out, bytes, parent, ".", step, TEMPORARY);
}

/* The step in "<before>checkpoint-<step><after>"; -1: another name. */
static int64_t step_of(const char *name, const char *before, const char *after)
{
    size_t front = strlen(before), digits;
    if (strncmp(name, before, front) || strncmp(name + front, PREFIX, strlen(PREFIX)))
        return -1;
    name += front + strlen(PREFIX);
    digits = strspn(name, "0123456789");
    if (digits == 0 || digits > 18 || (digits > 1 && *name == '0') || strcmp(name + digits, after))
        return -1;
    return strtoll(name, NULL, 10);
}

/* ---- removing ---- */

/* A directory and the files in it. A checkpoint has no directories: one that is in it is somebody's,
 * and stays, with what it is in, and a warning; then *stays. */
static tsr_status remove_all(const char *path, bool *stays)
{
    char name[PATH_MAX];
    tsr_status status = TSR_OK;
    *stays = false;
    DIR *entries = opendir(path);
    if (!entries)
        return errno == ENOENT
                   ? TSR_OK
                   : tsr_fail(TSR_EIO, "%s: cannot be listed: %s", path, strerror(errno));
    for (struct dirent *entry; status == TSR_OK && (entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        status = tsr_snapshot_join(name, sizeof name, path, entry->d_name);
        if (status < 0 || unlink(name) == 0)
            continue;
        if (errno == EISDIR) {
            tsr_log(TSR_LOG_WARNING, "%s: a directory, which no checkpoint has: it is left there",
                    name);
            *stays = true;
        } else {
            status = tsr_fail(TSR_EIO, "%s: cannot be removed: %s", name, strerror(errno));
        }
    }
    closedir(entries);
    if (status == TSR_OK && !*stays && rmdir(path) != 0)
        status = tsr_fail(TSR_EIO, "%s: cannot be removed: %s", path, strerror(errno));
    return status;
}

/* Whether `path` has entries, but no manifest: Hugging Face's trainer has checkpoint-<step> too. */
static bool is_foreign(const char *path)
{
    bool any = false, manifest = false;
    DIR *entries = opendir(path);
    if (!entries)
        return false;
    for (struct dirent *entry; (entry = readdir(entries));) {
        any |= strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
        manifest |= !strcmp(entry->d_name, TSR_SNAPSHOT_MANIFEST);
    }
    closedir(entries);
    return any && !manifest;
}

/* A directory in the directory `path`; "": none. */
static tsr_status find_directory(char out[PATH_MAX], const char *path)
{
    struct stat about;
    tsr_status status = TSR_OK;
    bool found = false;
    DIR *entries = opendir(path);
    *out = 0;
    if (!entries)
        return errno == ENOENT
                   ? TSR_OK
                   : tsr_fail(TSR_EIO, "%s: cannot be listed: %s", path, strerror(errno));
    for (struct dirent *entry; status == TSR_OK && !found && (entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        status = tsr_snapshot_join(out, PATH_MAX, path, entry->d_name);
        found = status == TSR_OK && lstat(out, &about) == 0 && S_ISDIR(about.st_mode);
    }
    closedir(entries);
    if (!found)
        *out = 0;
    return status;
}

/* What is not the checkpoint's and would be in the way of removing it: in it, or under the name that
 * it would get, or all of it. "": nothing. */
static tsr_status find_obstacle(char out[PATH_MAX], const char **what, const char *parent,
                                int64_t step)
{
    char path[PATH_MAX];
    TSR_TRY(tsr_snapshot_path(path, sizeof path, parent, step));
    *what = "without a " TSR_SNAPSHOT_MANIFEST ", so another program's";
    if (is_foreign(path)) {
        strcpy(out, path);
        return TSR_OK;
    }
    *what = "which no checkpoint has";
    TSR_TRY(find_directory(out, path));
    if (*out)
        return TSR_OK;
    TSR_TRY(place(path, sizeof path, parent, ".", step, REMOVED));
    return find_directory(out, path);
}

/* Away from its name first: half a checkpoint never has it. */
static tsr_status remove_step(const char *parent, int64_t step)
{
    char from[PATH_MAX], to[PATH_MAX];
    bool stays;
    TSR_TRY(tsr_snapshot_path(from, sizeof from, parent, step));
    TSR_TRY(place(to, sizeof to, parent, ".", step, REMOVED));
    TSR_TRY(remove_all(to, &stays));
    if (rename(from, to) != 0)
        return tsr_fail(TSR_EIO, "%s: cannot be removed: %s", from, strerror(errno));
    TSR_TRY(tsr_directory_sync(parent));
    return remove_all(to, &stays);
}

/* ---- listing ---- */

typedef struct {
    int64_t *step;
    int count;
} steps;

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Steps of all names "<before>checkpoint-<step><after>", the newest first; the caller frees. */
static tsr_status list(steps *out, const char *parent, const char *before, const char *after)
{
    *out = (steps){0};
    DIR *entries = opendir(parent);
    if (!entries)
        return errno == ENOENT || errno == ENOTDIR
                   ? TSR_OK
                   : tsr_fail(TSR_EIO, "%s: cannot be listed: %s", parent, strerror(errno));
    tsr_status status = TSR_OK;
    for (struct dirent *entry; status == TSR_OK && (entry = readdir(entries));) {
        int64_t step = step_of(entry->d_name, before, after);
        if (step < 0)
            continue;
        int64_t *grown = realloc(out->step, ((size_t)out->count + 1) * sizeof *grown);
        if (!grown) {
            status = tsr_fail(TSR_ENOMEM, "%s: no memory to list its checkpoints", parent);
            break;
        }
        out->step = grown;
        out->step[out->count++] = step;
    }
    closedir(entries);
    if (out->count)
        qsort(out->step, (size_t)out->count, sizeof *out->step, newest_first);
    return status;
}

tsr_status tsr_snapshot_newest(int64_t *step, const char *parent)
{
    steps found;
    tsr_status status = list(&found, parent, "", "");
    if (status == TSR_OK)
        *step = found.count ? found.step[0] : -1;
    free(found.step);
    return status;
}

/* A training does not end because of what somebody keeps in an old checkpoint. */
static tsr_status prune_step(const char *parent, int64_t step)
{
    char obstacle[PATH_MAX];
    const char *what;
    TSR_TRY(find_obstacle(obstacle, &what, parent, step));
    if (!*obstacle)
        return remove_step(parent, step);
    tsr_log(TSR_LOG_WARNING,
            "%s: a directory, %s: " PREFIX "%" PRId64 " is not removed until it is moved elsewhere",
            obstacle, what, step);
    return TSR_OK;
}

tsr_status tsr_snapshot_prune(const char *parent, int64_t before, int64_t keep)
{
    steps found;
    int64_t kept = 0;
    tsr_status status = list(&found, parent, "", "");
    for (int i = 0; i < found.count && status == TSR_OK; i++)
        if (found.step[i] < before && ++kept > keep)
            status = prune_step(parent, found.step[i]);
    free(found.step);
    return status;
}

/* Their names are needed, so that this must be asked before the first one goes. */
static tsr_status check_obstacles(const steps *found, const char *parent, int64_t step)
{
    char obstacle[PATH_MAX];
    const char *what;
    for (int i = 0; i < found->count && found->step[i] > step; i++) {
        TSR_TRY(find_obstacle(obstacle, &what, parent, found->step[i]));
        if (*obstacle)
            return tsr_fail(TSR_ECONFIG,
                            "output_dir: %s is a directory, %s, and " PREFIX "%" PRId64
                            " is to be removed: move it elsewhere",
                            obstacle, what, found->step[i]);
    }
    return TSR_OK;
}

tsr_status tsr_snapshot_drop_after(const char *parent, int64_t step)
{
    steps found;
    tsr_status status = list(&found, parent, "", "");
    if (status == TSR_OK)
        status = check_obstacles(&found, parent, step);
    for (int i = 0; i < found.count && found.step[i] > step && status == TSR_OK; i++)
        status = remove_step(parent, found.step[i]);
    free(found.step);
    return status;
}

tsr_status tsr_snapshot_tidy(const char *parent)
{
    static const char *const endings[] = {TEMPORARY, REMOVED};
    tsr_status status = TSR_OK;
    for (int e = 0; e < 2 && status == TSR_OK; e++) {
        steps found;
        char path[PATH_MAX];
        bool stays;
        status = list(&found, parent, ".", endings[e]);
        for (int i = 0; i < found.count && status == TSR_OK; i++) {
            status = place(path, sizeof path, parent, ".", found.step[i], endings[e]);
            if (status == TSR_OK)
                status = remove_all(path, &stays);
        }
        free(found.step);
    }
    return status;
}

/* ---- an attempt ---- */

tsr_status tsr_snapshot_begin(const char *parent, int64_t step)
{
    char path[PATH_MAX];
    bool stays;
    TSR_TRY(tsr_snapshot_staging(path, sizeof path, parent, step));
    TSR_TRY(remove_all(path, &stays));
    if (!stays && mkdir(path, 0777) != 0)
        return tsr_fail(TSR_EIO, "%s: cannot be made: %s", path, strerror(errno));
    return TSR_OK;
}

void tsr_snapshot_discard(const char *parent, int64_t step)
{
    char path[PATH_MAX];
    bool stays;
    tsr_error error; /* what failed is told, not the cleaning */
    tsr_error_take(&error, TSR_EIO);
    if (tsr_snapshot_staging(path, sizeof path, parent, step) == TSR_OK)
        (void)remove_all(path, &stays);
    (void)tsr_error_put(&error);
}
