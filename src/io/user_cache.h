/*
 * io/user_cache.h: the directory of what outlives a run and can be made again: $XDG_CACHE_HOME/tessera, or
 * ~/.cache/tessera without XDG_CACHE_HOME.
 */
#ifndef TSR_IO_USER_CACHE_H
#define TSR_IO_USER_CACHE_H

#include <limits.h>
#include <stdbool.h>

/* False: neither variable names an absolute path, or it is too long for names of 64 bytes in it. */
bool tsr_user_cache_find(char out[PATH_MAX]);

/* Makes such a directory, and the one that it is in, for their owner alone (0700), where they are not there. What fails
 * shows when the directory is opened. */
void tsr_user_cache_make(const char *directory);

#endif
