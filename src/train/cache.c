#include "train/cache.h"

#include "base/hash.h"
#include "io/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MOST_BYTES (16u << 20)

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

char *tsr_cache_read(const char *file)
{
    char *text = NULL;
    uint64_t bytes;
    return tsr_file_read(&text, &bytes, file, MOST_BYTES) == TSR_OK ? text : NULL;
}

void tsr_cache_write(const tsr_cache_place *place, const char *text, size_t length)
{
    mkdir(place->parent, 0700);
    mkdir(place->directory, 0700);
    (void)tsr_file_write(place->file, text, length);
}
