#include "io/file.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_PER_CALL (1u << 30) /* Linux moves at most 2 GiB - 4 KiB a call */
#define NAME_ATTEMPTS 100

tsr_status tsr_file_read(char **data, uint64_t *bytes, const char *path, uint64_t most_bytes)
{
    tsr_status status;
    char *buffer = NULL;
    uint64_t used = 0, total;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (fd < 0)
        return tsr_fail(errno == ENOENT || errno == ENOTDIR ? TSR_EDATA : TSR_EIO,
                        "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &info) < 0) {
        status = tsr_fail(TSR_EIO, "%s: fstat failed: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        status = tsr_fail(TSR_EDATA, "%s: not a regular file", path);
        goto out;
    }
    total = (uint64_t)info.st_size;
    if (total > most_bytes) {
        status =
            tsr_fail(TSR_EDATA, "%s: the file has %" PRIu64 " bytes, at most %" PRIu64 " are taken",
                     path, total, most_bytes);
        goto out;
    }
    buffer = malloc(total + 1);
    if (!buffer) {
        status = tsr_fail(TSR_ENOMEM, "%s: no memory for %" PRIu64 " bytes", path, total);
        goto out;
    }
    while (used < total) {
        uint64_t want = total - used < MOST_PER_CALL ? total - used : MOST_PER_CALL;
        ssize_t got = read(fd, buffer + used, want);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = tsr_fail(TSR_EIO, "%s: reading failed: %s", path, strerror(errno));
            goto out;
        }
        if (got == 0)
            break; /* it became shorter: what is there is judged as it is */
        used += (uint64_t)got;
    }
    buffer[used] = 0;
    *data = buffer;
    *bytes = used;
    buffer = NULL;
    status = TSR_OK;
out:
    free(buffer);
    close(fd);
    return status;
}

struct tsr_file {
    char *path, *temporary; /* temporary NULL: nothing to remove */
    int fd;                 /* -1 once finished */
};

/* "<directory>/.<name>.<process>.<attempt>.tmp"; NULL: no memory. */
static char *temporary_name(const char *path, int attempt)
{
    const char *slash = strrchr(path, '/');
    size_t directory_length = slash ? (size_t)(slash - path) + 1 : 0;
    tsr_text name = {0};
    tsr_text_append(&name, path, directory_length);
    tsr_text_printf(&name, ".%s.%ld.%d.tmp", path + directory_length, (long)getpid(), attempt);
    if (!name.failed)
        return name.data;
    tsr_text_free(&name);
    return NULL;
}

tsr_status tsr_file_stage(tsr_file **out, const char *path)
{
    tsr_file *file = calloc(1, sizeof *file);
    if (!file)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to write it", path);
    file->fd = -1;
    file->path = strdup(path);
    int reason = file->path ? EEXIST : ENOMEM;
    for (int attempt = 0; reason == EEXIST && attempt < NAME_ATTEMPTS; attempt++) {
        char *name = temporary_name(path, attempt);
        file->fd = name ? open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
        reason = file->fd >= 0 ? 0 : name ? errno : ENOMEM;
        if (file->fd >= 0)
            file->temporary = name;
        else
            free(name);
    }
    if (reason == 0) {
        *out = file;
        return TSR_OK;
    }
    tsr_file_discard(file);
    if (reason == ENOMEM)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to write it", path);
    return tsr_fail(TSR_EIO, "%s: a temporary file beside it cannot be created: %s", path,
                    strerror(reason));
}

tsr_status tsr_file_append(tsr_file *file, const void *data, uint64_t bytes)
{
    const char *next = data;
    if (file->fd < 0)
        return tsr_fail(TSR_EINVAL, "%s: written to after it was finished", file->path);
    while (bytes > 0) {
        ssize_t put = write(file->fd, next, bytes < MOST_PER_CALL ? bytes : MOST_PER_CALL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return tsr_fail(TSR_EIO, "%s: writing failed: %s", file->temporary,
                            put < 0 ? strerror(errno) : "nothing was written");
        next += put;
        bytes -= (uint64_t)put;
    }
    return TSR_OK;
}

tsr_status tsr_file_finish(tsr_file *file)
{
    if (file->fd < 0)
        return TSR_OK;
    int failed = fsync(file->fd) < 0 ? errno : 0;
    if (close(file->fd) < 0 && !failed)
        failed = errno;
    file->fd = -1;
    if (failed)
        return tsr_fail(TSR_EIO, "%s: bringing it to the disk failed: %s", file->temporary,
                        strerror(failed));
    return TSR_OK;
}

tsr_status tsr_directory_sync(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (failed == 0 || (fd >= 0 && (failed == EINVAL || failed == ENOTSUP)))
        return TSR_OK;
    return tsr_fail(TSR_EIO, "%s: bringing the directory to the disk failed: %s", directory,
                    strerror(failed));
}

/* After this a crash does not undo the rename. */
static tsr_status sync_directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *directory =
        slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!directory)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to bring its directory to the disk", path);
    tsr_status status = tsr_directory_sync(directory);
    free(directory);
    return status;
}

tsr_status tsr_file_publish(tsr_file *file)
{
    TSR_TRY(tsr_file_finish(file));
    if (!file->temporary)
        return TSR_OK;
    if (rename(file->temporary, file->path) < 0)
        return tsr_fail(TSR_EIO, "%s: renaming the complete file %s failed: %s", file->path,
                        file->temporary, strerror(errno));
    free(file->temporary);
    file->temporary = NULL;
    return sync_directory_of(file->path);
}

void tsr_file_discard(tsr_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    if (file->temporary)
        (void)unlink(file->temporary);
    free(file->temporary);
    free(file->path);
    free(file);
}

tsr_status tsr_file_write(const char *path, const void *data, uint64_t bytes)
{
    tsr_file *file;
    TSR_TRY(tsr_file_stage(&file, path));
    tsr_status status = tsr_file_append(file, data, bytes);
    if (status == TSR_OK)
        status = tsr_file_publish(file);
    tsr_file_discard(file);
    return status;
}
