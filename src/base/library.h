/*
 * base/library.h: a shared library that is looked for when it is first needed, not when the program
 * starts: a job on the CPU runs where the libraries of GPUs are missing.
 *
 * The folder that wraps a library lists the functions that it calls in an X-macro; from the list come
 * the table, whose types are those of the library's own header, and the names looked up:
 *
 *     #define FUNCTIONS(X) X(GetVersion) X(GroupStart)
 *     typedef struct {
 *     #define FIELD(name) __typeof__(nccl##name) *name;
 *         FUNCTIONS(FIELD)
 *     } functions;
 *     static const char *const names[] = {
 *     #define NAME(name) "nccl" #name,
 *         FUNCTIONS(NAME)
 *     };
 *
 * It stays loaded until the process ends.
 */
#ifndef TSR_BASE_LIBRARY_H
#define TSR_BASE_LIBRARY_H

#include "base/status.h"

#include <pthread.h>

typedef struct {
    int major, minor, patch;
} tsr_library_version;

/* "libnccl.so.2", from "libnccl.so." and NCCL_MAJOR. */
#define TSR_LIBRARY_TEXT_(x)            #x
#define TSR_LIBRARY_NAME(prefix, major) prefix TSR_LIBRARY_TEXT_(major)

/* Static and zero-initialised from `lock` on. */
typedef struct {
    const char *name;           /* "NCCL" */
    const char *soname;         /* of the major version whose header was compiled: "libnccl.so.2" */
    const char *install;        /* where it comes from: "package libnccl2" */
    const char *instead;        /* what works without it: "write backend: cpu" */
    tsr_library_version oldest; /* that works */
    tsr_library_version built;  /* whose header was compiled */
    const char *const *names;
    int count;
    void *functions;                      /* the table: `count` pointers, in the order of `names` */
    tsr_library_version (*version)(void); /* asks the loaded library, through the table */

    pthread_mutex_t lock;
    bool loaded;
    tsr_library_version found;
} tsr_library;

/* Loads it and fills in the table, unless that was done. TSR_EDEVICE: it is not there, lacks a
 * function, or is too old; the message says what was looked for, what was found and what to do.
 * `found` (may be NULL) gets its version. Any thread. */
tsr_status tsr_library_load(tsr_library_version *found, tsr_library *library);

#endif
