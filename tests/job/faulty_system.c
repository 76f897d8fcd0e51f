#include "job/faulty_system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
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

static _Thread_local bool hurries;
static _Thread_local const int64_t *room;

void system_free_bytes(const int64_t *bytes)
{
    room = bytes;
}

void system_hurry(void)
{
    hurries = true;
}

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

/* Of a name in an open directory. */
static void place_of(char out[512], int folder, const char *name)
{
    char path[512];
    if (*name == '/' || folder == AT_FDCWD || !path_of(path, folder))
        snprintf(out, 512, "%s", name);
    else
        snprintf(out, 512, "%.300s/%.200s", path, name);
}

static system_op *note_at(system_kind kind, int folder, const char *name)
{
    char path[512];
    if (!tape.on)
        return NULL;
    place_of(path, folder, name);
    return note(kind, path);
}

/* ---- what comes in between ---- */

static _Thread_local struct {
    void (*hook)(const char *path);
    int left;
} between;

void system_before(int nth, void (*hook)(const char *path))
{
    between.left = nth;
    between.hook = hook;
}

static void come_between(int folder, const char *name)
{
    char path[512];
    if (!between.hook || --between.left != 0)
        return;
    void (*hook)(const char *path) = between.hook;
    between.hook = NULL;
    if (name)
        place_of(path, folder, name);
    if (name || path_of(path, folder))
        hook(path);
}

/* ---- in libc's place ---- */

static int open_at(int folder, const char *path, int flags, mode_t mode)
{
    come_between(folder, path);
    if (fails(SYSTEM_OPEN))
        return -1;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    int reason = fd < 0 ? errno : 0;
    system_op *op = fd >= 0 || reason == ENOENT ? note_at(SYSTEM_OPEN, folder, path) : NULL;
    if (op) {
        op->absent = fd < 0;
        op->creates = flags & O_CREAT;
        op->folder = flags & O_DIRECTORY;
    }
    errno = reason ? reason : errno;
    return fd;
}

TAKES_PLACE int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_at(AT_FDCWD, path, flags, mode);
}

TAKES_PLACE int openat(int folder, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_at(folder, path, flags, mode);
}

/* What _FORTIFY_SOURCE makes of calls without a mode. */
int __open_2(const char *path, int flags);
int __openat_2(int folder, const char *path, int flags);

TAKES_PLACE int __open_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}

TAKES_PLACE int __openat_2(int folder, const char *path, int flags)
{
    return open_at(folder, path, flags, 0);
}

/* A file system that is full takes a part first. */
TAKES_PLACE ssize_t write(int fd, const void *data, size_t bytes)
{
    static _Thread_local bool full;
    char path[512];
    come_between(fd, NULL);
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
    come_between(fd, NULL);
    if (fails(SYSTEM_FSYNC))
        return -1;
    if (tape.on && path_of(path, fd))
        note(SYSTEM_FSYNC, path);
    return hurries ? 0 : (int)syscall(SYS_fsync, fd);
}

TAKES_PLACE int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    come_between(from_folder, from);
    if (fails(SYSTEM_RENAME))
        return -1;
    int result = (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
    system_op *op = result == 0 ? note_at(SYSTEM_RENAME, from_folder, from) : NULL;
    if (op)
        place_of(op->to, to_folder, to);
    return result;
}

TAKES_PLACE int mkdirat(int folder, const char *path, mode_t mode)
{
    come_between(folder, path);
    if (fails(SYSTEM_MKDIR))
        return -1;
    int result = (int)syscall(SYS_mkdirat, folder, path, mode);
    if (result == 0)
        note_at(SYSTEM_MKDIR, folder, path);
    return result;
}

TAKES_PLACE int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

TAKES_PLACE int unlinkat(int folder, const char *path, int flags)
{
    system_kind kind = flags & AT_REMOVEDIR ? SYSTEM_RMDIR : SYSTEM_UNLINK;
    come_between(folder, path);
    if (fails(kind))
        return -1;
    int result = (int)syscall(SYS_unlinkat, folder, path, flags);
    if (result == 0)
        note_at(kind, folder, path);
    return result;
}

TAKES_PLACE int statvfs(const char *path, struct statvfs *out)
{
    struct statfs info;
    memset(out, 0, sizeof *out);
    if (syscall(SYS_statfs, path, &info) != 0)
        return -1;
    out->f_frsize = room ? 1 : (unsigned long)info.f_bsize;
    out->f_blocks = info.f_blocks;
    out->f_bavail = info.f_bavail;
    if (room) {
        out->f_blocks = *room < 0 ? 0 : INT64_MAX;
        out->f_bavail = *room < 0 ? 0 : (fsblkcnt_t)*room;
    }
    return 0;
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
