/*
 * planner/cache.h: small files about this machine that outlive a run (io/user_cache.h).
 *
 * A cache that cannot be read or written is no error: then things are measured again, or not known.
 */
#ifndef TSR_PLANNER_CACHE_H
#define TSR_PLANNER_CACHE_H

#include "base/text.h"

#include <limits.h>

typedef struct {
    char directory[PATH_MAX], file[PATH_MAX];
} tsr_cache_place;

/* The file `kind`-<hash of key>.`suffix`; false: there is no place for one. */
bool tsr_cache_find(tsr_cache_place *out, const char *kind, const tsr_text *key,
                    const char *suffix);

/* Held by one job at a time, from before the file is read until it is written: who comes second finds what the
 * first has put there, and does not lose it. -1: without, as there is no such folder, or nobody lets go of it in
 * time; tsr_cache_unlock takes that too. A process that ends lets go. */
int tsr_cache_lock(const tsr_cache_place *place);
void tsr_cache_unlock(int lock);

/* NULL: no such file. The caller frees. */
char *tsr_cache_read(const char *file);

void tsr_cache_write(const tsr_cache_place *place, const char *text, size_t length);

#endif
