/*
 * table/table.h: a file of rows, whatever its format, as a stream of JSON objects.
 *
 * Formats  JSON lines; a JSON array of objects; Parquet (table/parquet.h says what of it); CSV and TSV with a header line
 *          (RFC 4180, all values are strings); text, each line that is not empty becomes {"text": line}. All but Parquet
 *          may be packed by gzip or Zstandard. The first bytes of the file decide; where they do not tell text from JSON
 *          lines, the ending of its name does (.csv, .tsv, .txt; others are JSON lines), without .gz or .zst.
 * Rows     A row is at most TSR_TABLE_ROW_MIB as JSON, CSV or text; only one is held. A Parquet file holds pages too.
 * Places   "train.jsonl:17" where rows are found by their line, "train.parquet: row 17" otherwise; both from 1.
 * Errors   TSR_EDATA names file, row and, where there is one, column. One that concerns a row alone is passed over by the
 *          next call; after any other the rows have ended.
 * Threads  A table is not locked: one thread at a time.
 */
#ifndef TSR_TABLE_TABLE_H
#define TSR_TABLE_TABLE_H

#include "base/status.h"

#include <jansson.h>
#include <stdint.h>

/* Longer rows are not samples but files of another kind; parsing takes four times as much memory, and tokens and labels 8
 * bytes each. */
#define TSR_TABLE_ROW_MIB   64
#define TSR_TABLE_ROW_BYTES ((size_t)TSR_TABLE_ROW_MIB << 20)

typedef struct tsr_table tsr_table;

/* `key` begins the message of a file that cannot be opened ("dataset"). The caller owns *out. TSR_EDATA: no such file, no
 * regular file, a format that is recognised but not read. */
tsr_status tsr_table_open(tsr_table **out, const char *path, const char *key);
void tsr_table_close(tsr_table *table);

/* Whether a file's name ends as those of rows do: .parquet, .jsonl, .csv.gz and the like. */
bool tsr_table_known_name(const char *name);

/* The next row, an object, which is the caller's (json_decref); NULL at the end. It must not be changed: rows may share
 * values. */
tsr_status tsr_table_next(json_t **row, tsr_table *table);

/* Of the row that tsr_table_next gave or refused last: its line, or its place among the rows, from 1; and the place for a
 * message. Borrowed until the next call. */
int64_t tsr_table_number(const tsr_table *table);
const char *tsr_table_place(tsr_table *table);

/* Whether it failed because the file's packing is damaged: then rows before it may be wrong too. */
bool tsr_table_is_damaged(const tsr_table *table);

/* Of the whole file, -1 where only reading it tells. */
int64_t tsr_table_rows(const tsr_table *table);

/* For progress: bytes of the file behind which the next row begins, about. */
double tsr_table_done(const tsr_table *table);

/* One row of JSON text as an object, for rows that come from elsewhere too. `place` begins the message; `line`: it is
 * "file:line", and the column follows. TSR_EDATA: not one object. The caller owns *row. */
tsr_status tsr_table_parse(json_t **row, const char *text, size_t bytes, const char *place,
                           bool line);

#endif
