/*
 * io/missing.h: what the user may have meant by a path that is not there.
 */
#ifndef TSR_IO_MISSING_H
#define TSR_IO_MISSING_H

#include <limits.h>

#define TSR_MISSING_BYTES (2 * PATH_MAX)

/* What ends a message about `path`, after an errno of `error`: "; did you mean runs/first?" where a file or directory of
 * nearly that name is there, or one of that name a directory further down; of any other relative path where it was
 * looked for, " (a relative path starts from the working directory, DIRECTORY)"; else "". Returns `out`. */
const char *tsr_missing_hint(char out[TSR_MISSING_BYTES], const char *path, int error);

#endif
