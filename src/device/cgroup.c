#include "device/cgroup.h"

#include "base/hash.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NO_LIMIT UINT64_MAX
#define UNTOLD   ((uint64_t)1 << 60) /* version 1 says so much where there is no limit */

/* A hierarchy's mount: the directory `root` of it is seen at `point`. */
typedef struct {
    char root[PATH_MAX], point[PATH_MAX];
} mounted;

/* ---- files ---- */

static FILE *open_file(const char *directory, const char *name)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return fopen(path, "re");
}

/* "max", nothing and what is no number: `otherwise`. */
static uint64_t read_number(const char *directory, const char *name, uint64_t otherwise)
{
    unsigned long long value;
    FILE *file = open_file(directory, name);
    if (!file)
        return otherwise;
    if (fscanf(file, "%llu", &value) != 1)
        value = otherwise;
    fclose(file);
    return value;
}

/* The value of a line "key value". */
static uint64_t read_value(const char *directory, const char *name, const char *wanted)
{
    char key[64];
    unsigned long long value, found = 0;
    FILE *file = open_file(directory, name);
    if (!file)
        return 0;
    while (!found && fscanf(file, "%63s %llu", key, &value) == 2)
        if (!strcmp(key, wanted))
            found = value;
    fclose(file);
    return found;
}

/* ---- one group ---- */

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t less(uint64_t from, uint64_t what)
{
    return from > what ? from - what : 0;
}

static void add_memory(tsr_cgroup *out, const char *directory, bool v2)
{
    struct stat info;
    uint64_t limit, used, cache;
    if (v2) {
        limit = lesser(read_number(directory, "memory.max", NO_LIMIT),
                       read_number(directory, "memory.high", NO_LIMIT));
        used = read_number(directory, "memory.current", 0);
        cache = read_value(directory, "memory.stat", "inactive_file");
    } else {
        limit = read_number(directory, "memory.limit_in_bytes", NO_LIMIT);
        used = read_number(directory, "memory.usage_in_bytes", 0);
        cache = read_value(directory, "memory.stat", "total_inactive_file");
    }
    if (limit >= UNTOLD || stat(directory, &info) != 0)
        return;
    const uint64_t place[] = {(uint64_t)info.st_dev, (uint64_t)info.st_ino};
    const tsr_cgroup_memory level = {.id = tsr_hash(TSR_HASH_START, place, sizeof place),
                                     .limit = limit,
                                     .free = less(limit, less(used, cache))};
    if (out->memory_count < TSR_CGROUP_LEVELS)
        out->memory[out->memory_count++] = level;
    else if (level.free < out->memory[TSR_CGROUP_LEVELS - 1].free)
        out->memory[TSR_CGROUP_LEVELS - 1] = level;
}

static void add_cpus(tsr_cgroup *out, const char *directory, bool v2)
{
    uint64_t quota = NO_LIMIT, period = 0; /* of "max" and -1 there is no quota */
    FILE *file = v2 ? open_file(directory, "cpu.max") : NULL;
    unsigned long long numbers[2];
    if (file && fscanf(file, "%llu %llu", &numbers[0], &numbers[1]) == 2) {
        quota = numbers[0];
        period = numbers[1];
    }
    if (file)
        fclose(file);
    if (!v2) {
        quota = read_number(directory, "cpu.cfs_quota_us", NO_LIMIT);
        period = read_number(directory, "cpu.cfs_period_us", 0);
    }
    if (quota == 0 || quota > INT64_MAX || period == 0)
        return;
    uint64_t cpus = (quota - 1) / period + 1;
    if (cpus < INT_MAX && (out->cpus == 0 || (int)cpus < out->cpus))
        out->cpus = (int)cpus;
}

/* ---- hierarchies ---- */

/* Whether `list`, separated by commas, has `word`. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, word, length) && (p[length] == ',' || !p[length]))
            return true;
    return false;
}

/* A blank is written \040, and so are others. */
static void unescape(char *text)
{
    char *out = text;
    for (const char *p = text; *p;) {
        unsigned code;
        if (*p == '\\' && sscanf(p + 1, "%3o", &code) == 1) {
            *out++ = (char)code;
            p += 4;
        } else
            *out++ = *p++;
    }
    *out = 0;
}

static bool is_below(const char *path, const char *root)
{
    size_t length = strcmp(root, "/") ? strlen(root) : 0;
    return !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

/* One line of mountinfo, if it mounts the hierarchy: with that controller, or version 2 (""). */
static bool parse_mount(mounted *out, char *line, const char *controller)
{
    char type[32], options[1024];
    char *rest = strstr(line, " - ");
    if (!rest || sscanf(rest, " - %31s %*s %1023s", type, options) != 2 ||
        sscanf(line, "%*s %*s %*s %4095s %4095s", out->root, out->point) != 2)
        return false;
    unescape(out->root);
    unescape(out->point);
    return *controller ? !strcmp(type, "cgroup") && has_word(options, controller)
                       : !strcmp(type, "cgroup2");
}

/* The mount that shows `path`; else any of the hierarchy, whose root is then the best that is known. */
static bool find_mount(mounted *out, const char *root, const char *controller, const char *path)
{
    bool found = false, shows = false;
    mounted next;
    char *line = NULL;
    size_t capacity = 0;
    FILE *file = open_file(root, "proc/self/mountinfo");
    if (!file)
        return false;
    while (!shows && getline(&line, &capacity, file) > 0) {
        if (!parse_mount(&next, line, controller))
            continue;
        shows = is_below(path, next.root);
        if (shows || !found)
            *out = next;
        found = true;
    }
    free(line);
    fclose(file);
    return found;
}

/* Every group from `path` up to the mount's root. */
static void add_groups(tsr_cgroup *out, const char *root, const char *controller, const char *path)
{
    char directory[3 * PATH_MAX];
    mounted mount;
    bool v2 = !*controller;
    if (!find_mount(&mount, root, controller, path))
        return;
    const char *inside = "";
    if (is_below(path, mount.root) && strcmp(path, "/") != 0)
        inside = path + (strcmp(mount.root, "/") ? strlen(mount.root) : 0);
    size_t top = (size_t)snprintf(directory, sizeof directory, "%s%s", root, mount.point);
    snprintf(directory + top, sizeof directory - top, "%s", inside);
    for (size_t end = strlen(directory); end >= top; end--) {
        if (end > top && directory[end] != '/' && directory[end])
            continue;
        directory[end] = 0;
        if (v2 || !strcmp(controller, "memory"))
            add_memory(out, directory, v2);
        if (v2 || !strcmp(controller, "cpu"))
            add_cpus(out, directory, v2);
    }
}

void tsr_cgroup_read(tsr_cgroup *out, const char *root)
{
    char *line = NULL;
    size_t capacity = 0;
    *out = (tsr_cgroup){0};
    FILE *file = open_file(root, "proc/self/cgroup");
    while (file && getline(&line, &capacity, file) > 0) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        if (!*++list)
            add_groups(out, root, "", path);
        if (has_word(list, "memory"))
            add_groups(out, root, "memory", path);
        if (has_word(list, "cpu"))
            add_groups(out, root, "cpu", path);
    }
    free(line);
    if (file)
        fclose(file);
}

uint64_t tsr_cgroup_limit(const tsr_cgroup *cgroup)
{
    uint64_t least = NO_LIMIT;
    for (int i = 0; i < cgroup->memory_count; i++)
        least = lesser(least, cgroup->memory[i].limit);
    return least;
}

uint64_t tsr_cgroup_free(const tsr_cgroup *cgroup)
{
    uint64_t least = NO_LIMIT;
    for (int i = 0; i < cgroup->memory_count; i++)
        least = lesser(least, cgroup->memory[i].free);
    return least;
}
