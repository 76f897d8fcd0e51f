#include "io/user_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool tsr_user_cache_find(char out[PATH_MAX])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && *cache == '/')
        length = snprintf(out, PATH_MAX, "%s/tessera", cache);
    else if (home && *home == '/')
        length = snprintf(out, PATH_MAX, "%s/.cache/tessera", home);
    return length > 0 && length + 64 < PATH_MAX;
}

void tsr_user_cache_make(const char *directory)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(directory, '/');
    if (slash && slash > directory) {
        snprintf(parent, sizeof parent, "%.*s", (int)(slash - directory), directory);
        mkdir(parent, 0700);
    }
    mkdir(directory, 0700);
}
