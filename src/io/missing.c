#include "io/missing.h"

#include "base/near.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOST_ENTRIES 4096 /* of a directory that are looked at */
#define FAR                                                                                        \
    4 /* as many edits make another name, however long: train.jsonl is no misspelt eval.jsonl */

/* The part of `path` that is there, as a directory ("" or ending in a slash), and the name behind it that is not. */
static size_t split(char name[NAME_MAX + 1], const char *path)
{
    char part[PATH_MAX];
    size_t begin = 0;
    for (;;) {
        begin += strspn(path + begin, "/");
        size_t end = begin + strcspn(path + begin, "/");
        snprintf(part, sizeof part, "%.*s", (int)end, path);
        if (!path[end] || access(part, F_OK) != 0) {
            snprintf(name, NAME_MAX + 1, "%.*s", (int)(end - begin), path + begin);
            return begin;
        }
        begin = end;
    }
}

static bool exists(const char *path, int length)
{
    return length >= 0 && length < PATH_MAX && access(path, F_OK) == 0;
}

/* rows.jsonl where there is rows.parquet: of one name in two formats. */
static int distance_of(const char *name, const char *entry, int limit)
{
    const char *a = strrchr(name, '.'), *b = strrchr(entry, '.');
    bool same =
        a && b && a != name && a - name == b - entry && !memcmp(name, entry, (size_t)(a - name));
    int d = tsr_near_distance(name, entry, limit);
    return same && d > 1 ? 1 : d;
}

/* Takes the entry as the name if all that is behind the name in `path` is there too. Of two that are as near the first
 * of the alphabet, whatever order the directory has. */
static void consider(char best[PATH_MAX], int *distance, const char *path, size_t begin,
                     const char *name, const char *entry)
{
    char whole[PATH_MAX];
    int d = distance_of(name, entry, *distance);
    int length = snprintf(whole, sizeof whole, "%.*s%s%s", (int)begin, path, entry,
                          path + begin + strlen(name));
    if (d < FAR && 2 * (size_t)d <= strlen(name) &&
        (d < *distance || (d == *distance && *best && strcmp(whole, best) < 0)) &&
        exists(whole, length)) {
        *distance = d;
        strcpy(best, whole);
    }
}

/* runs/first, of a path that is `first`. */
static void consider_below(char best[PATH_MAX], const char *entry, const char *path)
{
    char whole[PATH_MAX];
    int length = snprintf(whole, sizeof whole, "%s/%s", entry, path);
    if (exists(whole, length) && (!*best || strcmp(whole, best) < 0))
        strcpy(best, whole);
}

static void search(char best[PATH_MAX], const char *path)
{
    char name[NAME_MAX + 1], directory[PATH_MAX], below[PATH_MAX] = "";
    size_t begin = split(name, path);
    int distance = tsr_near_too_far(name);
    snprintf(directory, sizeof directory, "%.*s", begin ? (int)begin : 1, begin ? path : ".");
    DIR *entries = opendir(directory);
    *best = 0;
    if (!entries)
        return;
    struct dirent *entry;
    for (int i = 0; i < MOST_ENTRIES && (entry = readdir(entries)); i++) {
        if (*entry->d_name == '.' && *name != '.')
            continue;
        consider(best, &distance, path, begin, name, entry->d_name);
        if (!begin)
            consider_below(below, entry->d_name, path);
    }
    closedir(entries);
    if (*below) /* of exactly that name */
        strcpy(best, below);
}

const char *tsr_missing_hint(char out[TSR_MISSING_BYTES], const char *path, int error)
{
    char best[PATH_MAX], here[PATH_MAX];
    *out = 0;
    if (error != ENOENT || strlen(path) >= PATH_MAX)
        return out;
    search(best, path);
    if (*best)
        snprintf(out, TSR_MISSING_BYTES, "; did you mean %s?", best);
    else if (*path != '/' && getcwd(here, sizeof here))
        snprintf(out, TSR_MISSING_BYTES, " (a relative path starts from the working directory, %s)",
                 here);
    return out;
}
