#include "planner/cache.h"

#include "base/clock.h"
#include "base/hash.h"
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES   (16u << 20)
#define LOCK_SECONDS 30 /* what is chosen while it is held takes some seconds */

bool tsr_cache_find(tsr_cache_place *out, const char *kind, const tsr_text *key, const char *suffix)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    uint64_t hash = tsr_hash(TSR_HASH_START, key->data, key->length);
    size_t most = sizeof out->file;
    int length = -1;
    if (cache && *cache == '/')
        length = snprintf(out->parent, most, "%s", cache);
    else if (home && *home == '/')
        length = snprintf(out->parent, most, "%s/.cache", home);
    if (length < 0 || (size_t)length + 64 > most) /* room for what follows */
        return false;
    snprintf(out->directory, most, "%.*s/tessera", length, out->parent);
    snprintf(out->file, most, "%.*s/tessera/%s-%016" PRIx64 ".%s", length, out->parent, kind, hash,
             suffix);
    return true;
}

static void make_folder(const tsr_cache_place *place)
{
    mkdir(place->parent, 0700);
    mkdir(place->directory, 0700);
}

int tsr_cache_lock(const tsr_cache_place *place)
{
    double end = tsr_now() + LOCK_SECONDS;
    make_folder(place);
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
    make_folder(place);
    (void)tsr_file_write(place->file, text, length);
}
