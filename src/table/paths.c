#include "table/paths.h"

#include "base/log.h"
#include "base/text.h"
#include "table/table.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NAMED_FILES 3 /* in the log */

static tsr_status out_of_memory(const char *key)
{
    return tsr_fail(TSR_ENOMEM, "%s: out of memory", key);
}

static tsr_status add(tsr_paths *paths, const char *path, const char *key)
{
    if (!(paths->count & (paths->count + 1))) { /* room for the next power of two */
        char **bigger = realloc(paths->items, 2 * ((size_t)paths->count + 1) * sizeof *bigger);
        if (!bigger)
            return out_of_memory(key);
        paths->items = bigger;
    }
    char *copy = strdup(path);
    if (!copy)
        return out_of_memory(key);
    paths->items[paths->count++] = copy;
    return TSR_OK;
}

tsr_status tsr_paths_copy(tsr_paths *out, const char *const *given, int count, const char *key)
{
    tsr_paths made = {0};
    tsr_status status = TSR_OK;
    for (int i = 0; i < count && status >= 0; i++)
        status = add(&made, given[i], key);
    if (status < 0) {
        tsr_paths_free(&made);
        return status;
    }
    *out = made;
    return TSR_OK;
}

void tsr_paths_free(tsr_paths *paths)
{
    for (int i = 0; i < paths->count; i++)
        free(paths->items[i]);
    free(paths->items);
    *paths = (tsr_paths){0};
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort(tsr_paths *paths)
{
    if (paths->count)
        qsort(paths->items, (size_t)paths->count, sizeof *paths->items, by_bytes);
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_file(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

static bool is_directory(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static bool is_known(const char *name)
{
    return *name != '.' && *name != '_' && strcmp(name, "dataset_info.json") &&
           strcmp(name, "dataset_infos.json") && tsr_table_known_name(name);
}

static tsr_status list(tsr_paths *out, const char *directory, const char *key)
{
    char path[PATH_MAX];
    DIR *entries = opendir(directory);
    if (!entries)
        return tsr_fail(tsr_status_of_open(errno), "%s: %s: %s", key, directory, strerror(errno));
    tsr_status status = TSR_OK;
    for (const struct dirent *e; status >= 0 && (e = readdir(entries));) {
        int length = snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        if (is_known(e->d_name) && length < (int)sizeof path && is_file(path))
            status = add(out, path, key);
    }
    closedir(entries);
    sort(out);
    return status;
}

/* ---- splits ---- */

/* The words that name a split; the first is its name. */
static const char *const words[][6] = {{"train", "training"},
                                       {"validation", "valid", "val", "dev"},
                                       {"test", "testing", "eval", "evaluation"}};
#define SPLITS (sizeof words / sizeof *words)

/* The name for all words of a split; another word is its own. */
static const char *common_name(const char *word, size_t bytes)
{
    for (size_t s = 0; s < SPLITS; s++)
        for (size_t w = 0; words[s][w]; w++)
            if (strlen(words[s][w]) == bytes && !strncmp(words[s][w], word, bytes))
                return words[s][0];
    return NULL;
}

/* Whether "-00000-of-00002" stands at `text`. */
static bool is_numbered(const char *text)
{
    static const char shape[] = "-00000-of-00000";
    for (size_t i = 0; shape[i]; i++)
        if (shape[i] == '0' ? !isdigit((unsigned char)text[i]) : text[i] != shape[i])
            return false;
    return true;
}

/* How many bytes of a file's name are its split; 0: it has none that is known. */
static size_t split_bytes(const char *name)
{
    for (size_t i = 1; name[0] && name[i]; i++)
        if (is_numbered(name + i))
            return i;
    size_t word = 0;
    while (isalnum((unsigned char)name[word]))
        word++;
    return common_name(name, word) ? word : 0;
}

static bool is_of_split(const char *name, const char *split)
{
    size_t bytes = split_bytes(name), asked = strlen(split);
    const char *common = common_name(split, asked);
    if (bytes == asked && !strncmp(name, split, bytes))
        return true;
    if (bytes && common && common_name(name, bytes))
        return common == common_name(name, bytes);
    /* "train_sft.jsonl", where train_sft is asked for */
    return !is_numbered(name + bytes) && !strncmp(name, split, asked) &&
           !isalnum((unsigned char)name[asked]);
}

/* The splits that a directory has, each once, in the order of the files. */
static void list_splits(tsr_text *out, const tsr_paths *files)
{
    const char *last = "";
    size_t last_bytes = 0;
    for (int i = 0; i < files->count; i++) {
        const char *name = name_of(files->items[i]);
        size_t bytes = split_bytes(name);
        if (!bytes || (bytes == last_bytes && !strncmp(name, last, bytes)))
            continue;
        tsr_text_printf(out, "%s%.*s", out->length ? ", " : "", (int)bytes, name);
        last = name;
        last_bytes = bytes;
    }
}

static void log_files(const tsr_paths *out, int first, const char *given, const char *split,
                      const char *key)
{
    tsr_text names = {0};
    int count = out->count - first;
    for (int i = first; i < out->count; i++)
        if (i - first < NAMED_FILES || i == out->count - 1)
            tsr_text_printf(&names, "%s%s%s", i > first ? ", " : "",
                            i == out->count - 1 && count > NAMED_FILES + 1 ? "... " : "",
                            name_of(out->items[i]));
    tsr_log(TSR_LOG_INFO, "%s: %s%s%s: %d file%s: %s", key, given, split ? ", split " : "",
            split ? split : "", count, count == 1 ? "" : "s", tsr_text_string(&names));
    tsr_text_free(&names);
}

/* The files of the split, out of those of a directory. */
static tsr_status choose(tsr_paths *out, const tsr_paths *files, const char *directory,
                         const char *split, const char *key)
{
    tsr_text splits = {0};
    int first = out->count;
    list_splits(&splits, files);
    bool all = !splits.length && !strcmp(split, "train");
    tsr_status status = TSR_OK;
    for (int i = 0; i < files->count && status >= 0; i++)
        if (all || is_of_split(name_of(files->items[i]), split))
            status = add(out, files->items[i], key);
    if (status >= 0 && out->count > first)
        log_files(out, first, directory, all ? NULL : split, key);
    else if (status >= 0)
        status = tsr_fail(TSR_EDATA,
                          "%s: %s has no file of the split %s%s%.300s; name the files, or "
                          "set dataset_train_split or dataset_test_split",
                          key, directory, split, splits.length ? ", but of " : "; no file has one",
                          tsr_text_string(&splits));
    tsr_text_free(&splits);
    return status;
}

static tsr_status expand_directory(tsr_paths *out, const char *directory, const char *split,
                                   const char *key)
{
    char data[PATH_MAX];
    tsr_paths files = {0};
    tsr_status status = list(&files, directory, key);
    int length = snprintf(data, sizeof data, "%s/data", directory);
    if (status >= 0 && !files.count && length < (int)sizeof data && is_directory(data))
        status = list(&files, data, key);
    if (status >= 0 && !files.count)
        status = tsr_fail(TSR_EDATA,
                          "%s: the directory %s has no file of rows, and no folder data with any; "
                          "looked for .parquet, .jsonl, .ndjson, .json, .csv, .tsv and .txt, also "
                          "with .gz or .zst",
                          key, directory);
    if (status >= 0)
        status = choose(out, &files, directory, split, key);
    tsr_paths_free(&files);
    return status;
}

static bool is_pattern(const char *path)
{
    return strpbrk(path, "*?[") != NULL;
}

static tsr_status expand_pattern(tsr_paths *out, const char *pattern, const char *key)
{
    glob_t found = {0};
    tsr_paths files = {0};
    int result = glob(pattern, GLOB_NOSORT, NULL, &found); /* its order would be the locale's */
    tsr_status status = result == GLOB_NOSPACE ? out_of_memory(key) : TSR_OK;
    for (size_t i = 0; result == 0 && i < found.gl_pathc && status >= 0; i++)
        if (is_file(found.gl_pathv[i]))
            status = add(&files, found.gl_pathv[i], key);
    globfree(&found);
    sort(&files);
    int first = out->count;
    for (int i = 0; i < files.count && status >= 0; i++)
        status = add(out, files.items[i], key);
    if (status >= 0 && files.count)
        log_files(out, first, pattern, NULL, key);
    else if (status >= 0)
        status = tsr_fail(TSR_EDATA, "%s: no file matches the pattern %s%s", key, pattern,
                          pattern[0] != '/' ? " (a relative path starts from the working directory)"
                                            : "");
    tsr_paths_free(&files);
    return status;
}

tsr_status tsr_paths_expand(tsr_paths *out, const char *const *given, int count, const char *split,
                            const char *key)
{
    tsr_paths made = {0};
    tsr_status status = TSR_OK;
    for (int i = 0; i < count && status >= 0; i++) {
        struct stat about;
        bool there = stat(given[i], &about) == 0;
        if (there && S_ISDIR(about.st_mode))
            status = expand_directory(&made, given[i], split, key);
        else if (!there && errno == ENOENT && is_pattern(given[i]))
            status = expand_pattern(&made, given[i], key);
        else
            status = add(&made, given[i], key);
    }
    if (status < 0) {
        tsr_paths_free(&made);
        return status;
    }
    *out = made;
    return TSR_OK;
}
