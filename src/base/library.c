#include "base/library.h"

#include "base/log.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void print_version(char *text, size_t bytes, tsr_library_version v)
{
    snprintf(text, bytes, "%d.%d.%d", v.major, v.minor, v.patch);
}

static bool is_older(tsr_library_version a, tsr_library_version b)
{
    return a.major != b.major   ? a.major < b.major
           : a.minor != b.minor ? a.minor < b.minor
                                : a.patch < b.patch;
}

/* `problem`, then what is wanted and what to do. */
static tsr_status fail(const tsr_library *library, const char *problem)
{
    char oldest[48], built[48];
    print_version(oldest, sizeof oldest, library->oldest);
    print_version(built, sizeof built, library->built);
    return tsr_fail(TSR_EDEVICE,
                    "%s cannot be used: %s; expected %s of version %s or newer (this build was "
                    "made with %s); install it (%s), put its folder into LD_LIBRARY_PATH, or %s",
                    library->name, problem, library->soname, oldest, built, library->install,
                    library->instead);
}

/* The file that a symbol comes from. */
static const char *file_of(const void *symbol, const char *otherwise)
{
    Dl_info info;
    return symbol && dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : otherwise;
}

static tsr_status fill_in(const tsr_library *library, void *handle)
{
    char problem[1024];
    const void *first = dlsym(handle, library->names[0]);
    for (int i = 0; i < library->count; i++) {
        void *symbol = dlsym(handle, library->names[i]);
        if (!symbol) {
            snprintf(problem, sizeof problem, "%s has no function %s",
                     file_of(first, library->soname), library->names[i]);
            return fail(library, problem);
        }
        memcpy((char *)library->functions + (size_t)i * sizeof symbol, &symbol, sizeof symbol);
    }
    return TSR_OK;
}

static tsr_status check_version(tsr_library *library, void *handle)
{
    char problem[1024], found[48];
    const char *file = file_of(dlsym(handle, library->names[0]), library->soname);
    library->found = library->version();
    print_version(found, sizeof found, library->found);
    if (is_older(library->found, library->oldest)) {
        snprintf(problem, sizeof problem, "%s is version %s", file, found);
        return fail(library, problem);
    }
    tsr_log(TSR_LOG_DEBUG, "%s %s: %s", library->name, found, file);
    return TSR_OK;
}

static tsr_status load(tsr_library *library)
{
    void *handle = dlopen(library->soname, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *error = dlerror();
        return fail(library, error ? error : library->soname);
    }
    tsr_status status = fill_in(library, handle);
    if (status == TSR_OK)
        status = check_version(library, handle);
    if (status < 0)
        dlclose(handle);
    return status;
}

tsr_status tsr_library_load(tsr_library_version *found, tsr_library *library)
{
    pthread_mutex_lock(&library->lock);
    tsr_status status = library->loaded ? TSR_OK : load(library);
    library->loaded = status == TSR_OK;
    if (found && status == TSR_OK)
        *found = library->found;
    pthread_mutex_unlock(&library->lock);
    return status;
}
