/*
 * table/table_parts.h: what a format is to table.c. Private to table/table.h.
 */
#ifndef TSR_TABLE_TABLE_PARTS_H
#define TSR_TABLE_TABLE_PARTS_H

#include "base/text.h"
#include "table/reader.h"
#include "table/table.h"

/* What the formats of text share. */
typedef struct {
    tsr_reader *reader;
    const char *path;
    int64_t line;   /* lines that were begun */
    int64_t number; /* of the row being read */
    bool ended;     /* nothing more can be read */
    tsr_text row;   /* its bytes */
} tsr_table_text;

/* A format of text. `state` is the format's own, NULL until its `next` makes it. */
typedef struct {
    bool by_line; /* number is a line */
    /* The next row, or NULL at the end. A failure sets text->ended unless what follows can be read. Required. */
    tsr_status (*next)(json_t **row, tsr_table_text *text, void **state);
    void (*free)(void *state); /* NULL: there is none */
} tsr_table_format;

extern const tsr_table_format tsr_table_json_lines, tsr_table_json_array, tsr_table_csv,
    tsr_table_tsv, tsr_table_plain;

/* "path:line" or "path: row number", cut where it is too long. */
#define TSR_TABLE_PLACE_BYTES 4200
const char *tsr_table_show(char out[TSR_TABLE_PLACE_BYTES], const tsr_table_text *text,
                           bool by_line);

/* Appends to the row. TSR_EDATA: it would be too long. */
tsr_status tsr_table_append(tsr_table_text *text, const char *data, size_t bytes, bool by_line);

/* A string value; NULL where it is not UTF-8, holds U+0000, or memory is short. */
json_t *tsr_table_string(const char *data, size_t bytes);

/* Why it is NULL: "byte 3 of the value is not UTF-8", in `out`, which is returned; NULL: memory. */
#define TSR_TABLE_FAULT_BYTES 80
const char *tsr_table_fault(char out[TSR_TABLE_FAULT_BYTES], const char *data, size_t bytes);

/* A string value of a text file. `column` NULL: it has none. */
tsr_status tsr_table_cell(json_t **out, const char *data, size_t bytes, const char *place,
                          const char *column);

#endif
