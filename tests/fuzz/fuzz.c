/*
 * fuzz.c: see fuzz.h.
 */
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

_Noreturn void fuzz_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: does not hold: %s; last message: %s\n", file, line, what,
            tsr_last_error());
    abort();
}

void fuzz_begin(void)
{
    tsr_fail(TSR_EINTERNAL, "%s", ""); /* so that an old message cannot pass for a new one */
}

void fuzz_answer(tsr_status status, tsr_status refusal)
{
    fuzz_check(status == TSR_OK || status == refusal);
    fuzz_check(status == TSR_OK || tsr_last_error()[0]);
}

const char *fuzz_file(const uint8_t *data, size_t bytes)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        fuzz_check(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    fuzz_check(ftruncate(fd, 0) == 0);
    fuzz_check(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    return path;
}

char *fuzz_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    fuzz_check(file);
    fuzz_check(fseek(file, 0, SEEK_END) == 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*bytes + 1);
    fuzz_check(text && fread(text, 1, *bytes, file) == *bytes);
    text[*bytes] = 0;
    fclose(file);
    return text;
}
