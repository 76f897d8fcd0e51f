#include "job/output.h"

#include "base/checked.h"
#include "report/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- where ---- */

/* With a slash behind it. */
static tsr_status copy_path(char out[PATH_MAX], const char *directory)
{
    if ((size_t)snprintf(out, PATH_MAX, "%s/", directory) >= PATH_MAX)
        return tsr_fail(TSR_ECONFIG, "output_dir: the path %.80s... is too long", directory);
    return TSR_OK;
}

tsr_status tsr_output_check_place(const tsr_config *config)
{
    const char *where = tsr_config_where(config, "output_dir"), *directory = config->output_dir;
    char path[PATH_MAX], last[PATH_MAX];
    struct stat info;
    TSR_TRY(copy_path(path, directory));
    strcpy(last, *path == '/' ? "/" : ".");
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (stat(path, &info) != 0) {
            int reason = errno;
            if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
                return tsr_fail(TSR_ECONFIG,
                                "%s: output_dir %s: %s is a link that leads nowhere (%s); make the "
                                "directory that it is to lead to, or name another",
                                where, directory, path, strerror(reason));
            if (reason != ENOENT)
                return tsr_fail(TSR_ECONFIG, "%s: output_dir %s: %s cannot be looked at: %s", where,
                                directory, path, strerror(reason));
            /* Made on the way, it would lead to what has been compared with nothing. */
            if (!strncmp(p + 1, "../", 3) || strstr(p + 1, "/../"))
                return tsr_fail(TSR_ECONFIG,
                                "%s: output_dir %s: %s is not there; write the path without '..'",
                                where, directory, path);
            break;
        }
        if (!S_ISDIR(info.st_mode))
            return tsr_fail(TSR_ECONFIG, "%s: output_dir %s: %s is a file; name a directory", where,
                            directory, path);
        strcpy(last, path);
        *p = '/';
    }
    if (access(last, R_OK | W_OK | X_OK) != 0)
        return tsr_fail(TSR_ECONFIG, "%s: output_dir %s: %s cannot be written to: %s", where,
                        directory, last, strerror(errno));
    return TSR_OK;
}

static tsr_status make_directory(const char *directory)
{
    char path[PATH_MAX];
    TSR_TRY(copy_path(path, directory));
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return tsr_fail(TSR_EIO, "output_dir: cannot make the directory %s: %s", path,
                            strerror(errno));
        *p = '/';
    }
    return TSR_OK;
}

tsr_status tsr_output_open(tsr_folder **out, const tsr_config *config, tsr_file_types *type_of,
                           bool make)
{
    if (make)
        TSR_TRY(make_directory(config->output_dir));
    TSR_TRY(tsr_folder_open(out, config->output_dir));
    if (!*out)
        return TSR_OK;
    tsr_status status = tsr_folder_expect(*out, TSR_OUTPUT_LOCK, S_IFREG, TSR_ECONFIG);
    if (status == TSR_OK)
        status = tsr_file_check_names(*out, type_of);
    if (status < 0) {
        tsr_folder_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- how much room there is ---- */

/* On the file system where output_dir is, or will be. False: it does not say. */
static bool find_free(uint64_t *out, const char *directory)
{
    char path[PATH_MAX];
    struct statvfs info;
    snprintf(path, sizeof path, "%s", directory);
    while (statvfs(path, &info) != 0) {
        char *slash = strrchr(path, '/');
        if (errno != ENOENT || !strcmp(path, "/") || !strcmp(path, "."))
            return false;
        if (slash)
            slash[slash == path] = 0;
        else
            strcpy(path, ".");
    }
    return info.f_blocks > 0 && info.f_bavail <= info.f_blocks &&
           tsr_mul_u64(out, info.f_bavail, info.f_frsize);
}

tsr_status tsr_output_check_space(const tsr_config *config, const tsr_output_need *need)
{
    uint64_t available;
    if (!find_free(&available, config->output_dir) || need->bytes <= available ||
        need->bytes - available <= need->freed)
        return TSR_OK;
    tsr_auto_text needed = {0}, there = {0};
    tsr_report_put_bytes(&needed, need->bytes);
    tsr_report_put_bytes(&there, available + need->freed);
    return tsr_fail(TSR_ECONFIG,
                    "%s: output_dir %s: %s will be written there (%s), and there is room for %s; "
                    "make room there or name a directory on another disk%s",
                    tsr_config_where(config, "output_dir"), config->output_dir,
                    tsr_text_string(&needed), need->what, tsr_text_string(&there), need->advice);
}
