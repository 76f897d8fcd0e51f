/*
 * data/line.h: files of lines, a line at a time, in memory that has a limit.
 */
#ifndef TSR_DATA_LINE_H
#define TSR_DATA_LINE_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* The longest line that is read, its newline counted. Longer ones are not rows but files of another kind; parsing takes four
 * times as much memory, and tokens and labels 8 bytes each. */
#define TSR_LINE_MIB 64

typedef struct {
    char *data; /* NULL before the first */
    size_t bytes, capacity;
    int64_t number; /* of the line, from 1 */
} tsr_line;

/* The next line, with its newline; *found is false at the end of the file. TSR_EDATA: it is too long. */
tsr_status tsr_line_read(bool *found, tsr_line *line, FILE *stream, const char *path);

void tsr_line_free(tsr_line *line);

#endif
