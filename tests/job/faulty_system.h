/*
 * faulty_system.h: the system calls and the allocator of a test program, which fail or are recorded
 * on the thread that asks for it. Linked into a program, they take the place of libc's.
 */
#ifndef TESTS_TRAIN_FAULTY_SYSTEM_H
#define TESTS_TRAIN_FAULTY_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    SYSTEM_OPEN,
    SYSTEM_WRITE,
    SYSTEM_FSYNC,
    SYSTEM_RENAME,
    SYSTEM_MKDIR,
    SYSTEM_UNLINK,
    SYSTEM_RMDIR,
    SYSTEM_MALLOC,
    SYSTEM_KINDS
} system_kind;

extern const char *const system_names[SYSTEM_KINDS];

/* From now on the calling thread's `nth` call (from 1) of this kind fails with `error`. */
void system_fail(system_kind kind, int nth, int error);

/* No more; whether the fault came. */
bool system_clear(void);

/* From now on file systems say that so much is free, or, below 0, that they have no blocks at all; NULL:
 * what is true. On the calling thread. */
void system_free_bytes(const int64_t *bytes);

/* From now on fsync does not wait for the disk, on the calling thread. */
void system_hurry(void);

/* Before the calling thread's `nth` call (from 1) that has to do with a path, of any kind, `hook` is
 * called once, with that path: what is changed there is what the call finds. */
void system_before(int nth, void (*hook)(const char *path));

/* What a file system was asked to do. */
typedef struct {
    system_kind kind;
    bool creates;            /* OPEN: a file, if it is not there */
    bool folder;             /* OPEN: of a directory */
    bool absent;             /* OPEN: there was nothing to open */
    char path[512], to[512]; /* to: RENAME */
    uint8_t *data;           /* WRITE: at the end of the file */
    size_t bytes;
} system_op;

/* Records what the calling thread does, until system_recorded, which gives the list; the caller
 * frees it with system_free. */
void system_record(void);
system_op *system_recorded(int *count);
void system_free(system_op *ops, int count);

#endif
