#include "data/line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES 4096
#define MOST_BYTES  ((size_t)TSR_LINE_MIB << 20)

static tsr_status grow(tsr_line *line, const char *path)
{
    size_t capacity = line->capacity ? 2 * line->capacity : FIRST_BYTES;
    if (line->bytes == MOST_BYTES)
        return tsr_fail(
            TSR_EDATA,
            "%s:%lld: the line is longer than %d MiB, the most that is read; write what "
            "it holds as several rows, one a line, or leave it out",
            path, (long long)line->number, TSR_LINE_MIB);
    char *bigger = realloc(line->data, capacity);
    if (!bigger)
        return tsr_fail(TSR_ENOMEM, "%s:%lld: no memory for a line of %zu bytes", path,
                        (long long)line->number, capacity);
    line->data = bigger;
    line->capacity = capacity;
    return TSR_OK;
}

tsr_status tsr_line_read(bool *found, tsr_line *line, FILE *stream, const char *path)
{
    int byte = 0;
    line->bytes = 0;
    line->number++;
    while (byte != '\n' && (byte = getc_unlocked(stream)) != EOF) {
        if (line->bytes == line->capacity)
            TSR_TRY(grow(line, path));
        line->data[line->bytes++] = (char)byte;
    }
    if (byte == EOF && ferror(stream))
        return tsr_fail(TSR_EIO, "%s: reading failed: %s", path, strerror(errno));
    *found = line->bytes > 0;
    return TSR_OK;
}

void tsr_line_free(tsr_line *line)
{
    free(line->data);
    *line = (tsr_line){0};
}
