#include "train/faulty_system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TAKES_PLACE __attribute__((visibility("default")))

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);

const char *const system_names[SYSTEM_KINDS] = {
    [SYSTEM_OPEN] = "open",     [SYSTEM_WRITE] = "write",  [SYSTEM_FSYNC] = "fsync",
    [SYSTEM_RENAME] = "rename", [SYSTEM_MKDIR] = "mkdir",  [SYSTEM_UNLINK] = "unlink",
    [SYSTEM_RMDIR] = "rmdir",   [SYSTEM_MALLOC] = "malloc"};

static _Thread_local struct {
    bool armed, came;
    system_kind kind;
    int left, error;
} fault;

static _Thread_local struct {
    bool on;
    system_op *ops;
    int count, capacity;
} tape;

void system_fail(system_kind kind, int nth, int error)
{
    fault.kind = kind;
    fault.left = nth;
    fault.error = error;
    fault.came = false;
    fault.armed = true;
}

bool system_clear(void)
{
    fault.armed = false;
    return fault.came;
}

static bool fails(system_kind kind)
{
    if (!fault.armed || fault.kind != kind || --fault.left != 0)
        return false;
    fault.came = true;
    errno = fault.error;
    return true;
}

/* ---- the record ---- */

void system_record(void)
{
    memset(&tape, 0, sizeof tape);
    tape.on = true;
}

system_op *system_recorded(int *count)
{
    tape.on = false;
    *count = tape.count;
    return tape.ops;
}

void system_free(system_op *ops, int count)
{
    for (int i = 0; i < count; i++)
        free(ops[i].data);
    free(ops);
}

static system_op *note(system_kind kind, const char *path)
{
    if (!tape.on)
        return NULL;
    if (tape.count == tape.capacity) {
        tape.capacity = 2 * tape.capacity + 64;
        tape.ops = __libc_realloc(tape.ops, (size_t)tape.capacity * sizeof *tape.ops);
        if (!tape.ops)
            abort();
    }
    system_op *op = &tape.ops[tape.count++];
    *op = (system_op){.kind = kind};
    snprintf(op->path, sizeof op->path, "%s", path);
    return op;
}

/* The path of an open file; false: not one. */
static bool path_of(char out[512], int fd)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, 511);
    out[length > 0 ? length : 0] = 0;
    return *out == '/';
}

/* ---- in libc's place ---- */

TAKES_PLACE int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (fails(SYSTEM_OPEN))
        return -1;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && flags & O_CREAT)
        note(SYSTEM_OPEN, path);
    return fd;
}

/* A file system that is full takes a part first. */
TAKES_PLACE ssize_t write(int fd, const void *data, size_t bytes)
{
    static _Thread_local bool full;
    char path[512];
    if (full) {
        full = false;
        errno = fault.error;
        return -1;
    }
    if (fails(SYSTEM_WRITE)) {
        full = bytes > 1;
        return full ? syscall(SYS_write, fd, data, bytes / 2) : -1;
    }
    ssize_t put = syscall(SYS_write, fd, data, bytes);
    if (put > 0 && tape.on && path_of(path, fd)) {
        system_op *op = note(SYSTEM_WRITE, path);
        op->data = __libc_malloc((size_t)put);
        op->bytes = (size_t)put;
        memcpy(op->data, data, (size_t)put);
    }
    return put;
}

TAKES_PLACE int fsync(int fd)
{
    char path[512];
    if (fails(SYSTEM_FSYNC))
        return -1;
    if (tape.on && path_of(path, fd))
        note(SYSTEM_FSYNC, path);
    return (int)syscall(SYS_fsync, fd);
}

TAKES_PLACE int rename(const char *from, const char *to)
{
    if (fails(SYSTEM_RENAME))
        return -1;
    int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    system_op *op = result == 0 ? note(SYSTEM_RENAME, from) : NULL;
    if (op)
        snprintf(op->to, sizeof op->to, "%s", to);
    return result;
}

TAKES_PLACE int mkdir(const char *path, mode_t mode)
{
    if (fails(SYSTEM_MKDIR))
        return -1;
    int result = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (result == 0)
        note(SYSTEM_MKDIR, path);
    return result;
}

TAKES_PLACE int unlink(const char *path)
{
    if (fails(SYSTEM_UNLINK))
        return -1;
    int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (result == 0)
        note(SYSTEM_UNLINK, path);
    return result;
}

TAKES_PLACE int rmdir(const char *path)
{
    if (fails(SYSTEM_RMDIR))
        return -1;
    int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
    if (result == 0)
        note(SYSTEM_RMDIR, path);
    return result;
}

TAKES_PLACE void *malloc(size_t bytes)
{
    return fails(SYSTEM_MALLOC) ? NULL : __libc_malloc(bytes);
}

TAKES_PLACE void *calloc(size_t count, size_t bytes)
{
    return fails(SYSTEM_MALLOC) ? NULL : __libc_calloc(count, bytes);
}

TAKES_PLACE void *realloc(void *old, size_t bytes)
{
    return fails(SYSTEM_MALLOC) ? NULL : __libc_realloc(old, bytes);
}
