#include "train/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
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
    tsr_status status = tsr_file_check_names(*out, type_of);
    if (status < 0) {
        tsr_folder_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- whose it is ---- */

tsr_status tsr_output_lock(const tsr_folder *folder, const tsr_config *config, int kind)
{
    if (tsr_folder_lock(folder, kind | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: another job is writing to output_dir %s; name another directory, or wait "
                    "for that job's end",
                    tsr_config_where(config, "output_dir"), config->output_dir);
}

void tsr_output_unlock(const tsr_folder *folder)
{
    (void)tsr_folder_lock(folder, LOCK_UN);
}
