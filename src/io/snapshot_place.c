/*
 * snapshot_place.c: directories of checkpoints: their names, making, listing and removing them.
 */
#include "base/log.h"
#include "io/snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "checkpoint-"

/* "<before>checkpoint-<step><after>" */
typedef struct {
    const char *before, *after;
} form;

static const form finished = {"", ""}, staged = {".", ".tmp"}, removed = {".", ".removed"};

static void put_name(char out[TSR_SNAPSHOT_NAME_BYTES], form f, int64_t step)
{
    snprintf(out, TSR_SNAPSHOT_NAME_BYTES, "%s" PREFIX "%" PRId64 "%s", f.before, step, f.after);
}

void tsr_snapshot_name(char out[TSR_SNAPSHOT_NAME_BYTES], int64_t step)
{
    put_name(out, finished, step);
}

void tsr_snapshot_staged_name(char out[TSR_SNAPSHOT_NAME_BYTES], int64_t step)
{
    put_name(out, staged, step);
}

/* The step in a name; -1: it has another form. */
static int64_t step_of(const char *name, form f)
{
    size_t front = strlen(f.before), digits;
    if (strncmp(name, f.before, front) || strncmp(name + front, PREFIX, strlen(PREFIX)))
        return -1;
    name += front + strlen(PREFIX);
    digits = strspn(name, "0123456789");
    if (digits == 0 || digits > 18 || (digits > 1 && *name == '0') ||
        strcmp(name + digits, f.after))
        return -1;
    return strtoll(name, NULL, 10);
}

bool tsr_snapshot_is_name(const char *name)
{
    return step_of(name, finished) >= 0 || step_of(name, staged) >= 0 ||
           step_of(name, removed) >= 0;
}

/* What was found there was put there meanwhile: writing fails by it, not the data. */
static tsr_status enter(tsr_folder **out, const tsr_folder *parent, const char *name)
{
    tsr_status status = tsr_folder_enter(out, parent, name);
    return status == TSR_EDATA ? TSR_EIO : status;
}

/* ---- removing ---- */

static bool is_directory(const tsr_folder *folder, const char *name)
{
    struct stat info;
    return tsr_folder_stat(&info, folder, name) && S_ISDIR(info.st_mode);
}

/* The files of a folder; *stays: there is a directory in it, which is somebody's, and a warning. */
static tsr_status remove_files(const tsr_folder *folder, bool *stays)
{
    char path[PATH_MAX];
    tsr_status status = TSR_OK;
    tsr_auto_dir *entries = NULL;
    TSR_TRY(tsr_folder_list(&entries, folder));
    for (const char *name; status == TSR_OK && (name = tsr_folder_next(entries));) {
        if (!is_directory(folder, name)) {
            status = tsr_folder_remove(folder, name);
            continue;
        }
        tsr_log(TSR_LOG_WARNING, "%s: a directory, which no checkpoint has: it is left there",
                tsr_folder_show(path, folder, name));
        *stays = true;
    }
    return status;
}

/* The directory with its files, if it is there, but for one with a directory in it. */
static tsr_status remove_all(const tsr_folder *parent, form f, int64_t step)
{
    char name[TSR_SNAPSHOT_NAME_BYTES];
    tsr_auto_folder *folder = NULL;
    bool stays = false;
    put_name(name, f, step);
    TSR_TRY(enter(&folder, parent, name));
    if (!folder)
        return TSR_OK;
    tsr_status status = remove_files(folder, &stays);
    return status == TSR_OK && !stays ? tsr_folder_remove_folder(parent, name) : status;
}

/* What is not the checkpoint's and is in the way of removing it: `what` it is, and its path. */
typedef struct {
    char path[PATH_MAX];
    const char *what; /* NULL: nothing is in the way */
} obstacle;

/* In the directory `name`, or the name itself. `foreign`: it is to be a whole checkpoint. */
static tsr_status look_into(obstacle *out, const tsr_folder *parent, const char *name, bool foreign)
{
    struct stat info;
    tsr_auto_folder *folder = NULL;
    tsr_auto_dir *entries = NULL;
    bool any = false;
    if (!tsr_folder_stat(&info, parent, name))
        return TSR_OK;
    tsr_folder_show(out->path, parent, name);
    if (!S_ISDIR(info.st_mode)) {
        out->what = "not a directory, so not a checkpoint";
        return TSR_OK;
    }
    TSR_TRY(enter(&folder, parent, name));
    if (!folder)
        return TSR_OK;
    TSR_TRY(tsr_folder_list(&entries, folder));
    for (const char *entry; (entry = tsr_folder_next(entries));) {
        any = true;
        foreign &= strcmp(entry, TSR_SNAPSHOT_MANIFEST) != 0;
        if (!out->what && is_directory(folder, entry)) {
            tsr_folder_show(out->path, folder, entry);
            out->what = "a directory, which no checkpoint of a run contains";
        }
    }
    if (any && foreign) { /* Hugging Face's trainer has checkpoint-<step> too */
        tsr_folder_show(out->path, parent, name);
        out->what = "a directory, without a " TSR_SNAPSHOT_MANIFEST ", so another program's";
    }
    return TSR_OK;
}

/* In the checkpoint, or under the name that it would get. */
static tsr_status find_obstacle(obstacle *out, const tsr_folder *parent, int64_t step)
{
    char name[TSR_SNAPSHOT_NAME_BYTES];
    out->what = NULL;
    tsr_snapshot_name(name, step);
    TSR_TRY(look_into(out, parent, name, true));
    if (out->what)
        return TSR_OK;
    put_name(name, removed, step);
    return look_into(out, parent, name, false);
}

/* Away from its name first: half a checkpoint never has it. */
static tsr_status remove_step(const tsr_folder *parent, int64_t step)
{
    char from[TSR_SNAPSHOT_NAME_BYTES], to[TSR_SNAPSHOT_NAME_BYTES];
    tsr_snapshot_name(from, step);
    put_name(to, removed, step);
    TSR_TRY(remove_all(parent, removed, step));
    TSR_TRY(tsr_folder_rename(parent, from, to));
    TSR_TRY(tsr_folder_sync(parent));
    return remove_all(parent, removed, step);
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

/* Steps of all names of a form, the newest first; the caller frees. */
static tsr_status list(steps *out, const tsr_folder *parent, form f)
{
    DIR *entries;
    *out = (steps){0};
    TSR_TRY(tsr_folder_list(&entries, parent));
    tsr_status status = TSR_OK;
    for (const char *name; status == TSR_OK && (name = tsr_folder_next(entries));) {
        int64_t step = step_of(name, f);
        if (step < 0)
            continue;
        int64_t *grown = realloc(out->step, ((size_t)out->count + 1) * sizeof *grown);
        if (!grown) {
            status = tsr_fail(TSR_ENOMEM, "%s: no memory to list its checkpoints",
                              tsr_folder_path(parent));
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

tsr_status tsr_snapshot_newest(int64_t *step, const tsr_folder *parent)
{
    steps found;
    tsr_status status = list(&found, parent, finished);
    if (status == TSR_OK)
        *step = found.count ? found.step[0] : -1;
    free(found.step);
    return status;
}

/* A training does not end because of what somebody keeps in an old checkpoint. */
static tsr_status prune_step(const tsr_folder *parent, int64_t step)
{
    obstacle o;
    TSR_TRY(find_obstacle(&o, parent, step));
    if (!o.what)
        return remove_step(parent, step);
    tsr_log(TSR_LOG_WARNING,
            "%s: %s: " PREFIX "%" PRId64 " is not removed until it is moved elsewhere", o.path,
            o.what, step);
    return TSR_OK;
}

tsr_status tsr_snapshot_prune(const tsr_folder *parent, int64_t before, int64_t keep,
                              int64_t spared)
{
    steps found;
    int64_t kept = 0;
    tsr_status status = list(&found, parent, finished);
    for (int i = 0; i < found.count && status == TSR_OK; i++)
        if (found.step[i] < before && ++kept > keep && found.step[i] != spared)
            status = prune_step(parent, found.step[i]);
    free(found.step);
    return status;
}

/* Their names are needed, so that this must be asked before the first one goes. */
static tsr_status check_obstacles(const steps *found, const tsr_folder *parent, int64_t step)
{
    obstacle o;
    for (int i = 0; i < found->count && found->step[i] > step; i++) {
        TSR_TRY(find_obstacle(&o, parent, found->step[i]));
        if (o.what)
            return tsr_fail(TSR_ECONFIG,
                            "output_dir: %s is %s, and " PREFIX "%" PRId64
                            " is to be removed: move it elsewhere",
                            o.path, o.what, found->step[i]);
    }
    return TSR_OK;
}

tsr_status tsr_snapshot_drop_after(const tsr_folder *parent, int64_t step)
{
    steps found;
    tsr_status status = list(&found, parent, finished);
    if (status == TSR_OK)
        status = check_obstacles(&found, parent, step);
    for (int i = 0; i < found.count && found.step[i] > step && status == TSR_OK; i++)
        status = remove_step(parent, found.step[i]);
    free(found.step);
    return status;
}

static tsr_status add_bytes(uint64_t *total, const tsr_folder *parent, form f, int64_t step)
{
    char name[TSR_SNAPSHOT_NAME_BYTES];
    struct stat info;
    tsr_auto_folder *folder = NULL;
    tsr_auto_dir *entries = NULL;
    put_name(name, f, step);
    TSR_TRY(enter(&folder, parent, name));
    if (!folder)
        return TSR_OK;
    TSR_TRY(tsr_folder_list(&entries, folder));
    for (const char *file; (file = tsr_folder_next(entries));)
        if (tsr_folder_stat(&info, folder, file) && S_ISREG(info.st_mode))
            *total += 512 * (uint64_t)info.st_blocks;
    return TSR_OK;
}

tsr_status tsr_snapshot_bytes(uint64_t *freed, int64_t *kept, const tsr_folder *parent,
                              int64_t step)
{
    const form forms[] = {finished, staged, removed};
    tsr_status status = TSR_OK;
    *freed = 0;
    *kept = 0;
    for (int f = 0; f < 3 && status == TSR_OK; f++) {
        steps found;
        status = list(&found, parent, forms[f]);
        for (int i = 0; i < found.count && status == TSR_OK; i++)
            if (f > 0 || found.step[i] > step)
                status = add_bytes(freed, parent, forms[f], found.step[i]);
            else
                (*kept)++;
        free(found.step);
    }
    return status;
}

static tsr_status tidy(const tsr_folder *parent, form f)
{
    steps found;
    tsr_status status = list(&found, parent, f);
    for (int i = 0; i < found.count && status == TSR_OK; i++)
        status = remove_all(parent, f, found.step[i]);
    free(found.step);
    return status;
}

tsr_status tsr_snapshot_tidy(const tsr_folder *parent)
{
    TSR_TRY(tidy(parent, staged));
    return tidy(parent, removed);
}

/* ---- an attempt ---- */

tsr_status tsr_snapshot_begin(const tsr_folder *parent, int64_t step)
{
    char name[TSR_SNAPSHOT_NAME_BYTES];
    tsr_auto_folder *folder = NULL;
    tsr_snapshot_staged_name(name, step);
    TSR_TRY(remove_all(parent, staged, step));
    tsr_status status = tsr_folder_make(&folder, parent, name);
    return status == TSR_EDATA ? TSR_EIO : status;
}

tsr_status tsr_snapshot_enter(tsr_folder **out, const tsr_folder *parent, int64_t step)
{
    char name[TSR_SNAPSHOT_NAME_BYTES], path[PATH_MAX];
    tsr_snapshot_staged_name(name, step);
    TSR_TRY(enter(out, parent, name));
    return *out ? TSR_OK
                : tsr_fail(TSR_EIO, "%s: something removed it while this program used it",
                           tsr_folder_show(path, parent, name));
}

void tsr_snapshot_discard(const tsr_folder *parent, int64_t step)
{
    tsr_error error; /* what failed is told, not the cleaning */
    tsr_error_take(&error, TSR_EIO);
    (void)remove_all(parent, staged, step);
    (void)tsr_error_put(&error);
}
