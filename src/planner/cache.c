#include "planner/cache.h"

#include "base/clock.h"
#include "base/hash.h"
#include "io/file.h"
#include "io/user_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#define MOST_BYTES   (16u << 20)
#define LOCK_SECONDS 30 /* what is chosen while it is held takes some seconds */

bool tsr_cache_find(tsr_cache_place *out, const char *kind, const tsr_text *key, const char *suffix)
{
    uint64_t hash = tsr_hash(TSR_HASH_START, key->data, key->length);
    char name[NAME_MAX + 1];
    if (!tsr_user_cache_find(out->directory))
        return false;
    snprintf(name, sizeof name, "/%s-%016" PRIx64 ".%s", kind, hash, suffix);
    tsr_text_join(out->file, sizeof out->file, out->directory, name);
    return true;
}

int tsr_cache_lock(const tsr_cache_place *place)
{
    double end = tsr_now() + LOCK_SECONDS;
    tsr_user_cache_make(place->directory);
    int lock = open(place->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || tsr_now() >= end) {
            close(lock);
            return -1;
        }
        usleep(10000);
    }
    return lock;
}

void tsr_cache_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}

char *tsr_cache_read(const char *file)
{
    char *text = NULL;
    uint64_t bytes;
    return tsr_file_read(&text, &bytes, file, MOST_BYTES) == TSR_OK ? text : NULL;
}

void tsr_cache_write(const tsr_cache_place *place, const char *text, size_t length)
{
    tsr_user_cache_make(place->directory);
    (void)tsr_file_write(place->file, text, length);
}
