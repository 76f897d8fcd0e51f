/*
 * table/parquet.h: rows of a Parquet file as JSON objects.
 *
 * The format is Apache's (https://github.com/apache/parquet-format: parquet.thrift, Encodings.md, Compression.md,
 * LogicalTypes.md); nested columns are put together as Dremel does (Melnik et al., VLDB 2010).
 *
 * Read     Data pages of both versions, dictionary pages; PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, RLE,
 *          DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, BYTE_STREAM_SPLIT; uncompressed, Snappy, gzip
 *          and Zstandard. Checksums are checked where there are any. Groups become objects, lists (of three levels, and
 *          the older of two) and repeated fields arrays, maps with string keys objects, absent values null.
 * Values   Integers and numbers as they are, null for NaN and infinity; strings and bytes as strings, if they are UTF-8
 *          without U+0000; decimals as strings with all their digits; dates, times, timestamps and UUIDs as strings
 *          ("2024-07-26", "12:30:00.250000", "2024-07-26T12:30:00+00:00").
 * Refused  By name: encryption, other codecs and encodings, intervals, maps with other keys, columns in other files.
 * Memory   The footer (64 MiB at most) and, of one row group at a time, each column's page and dictionary: 256 MiB each at
 *          most, unpacked, and 1 GiB together.
 */
#ifndef TSR_TABLE_PARQUET_H
#define TSR_TABLE_PARQUET_H

#include "base/status.h"

#include <jansson.h>
#include <stdint.h>

typedef struct tsr_parquet tsr_parquet;

/* Takes the descriptor of a file of `bytes` bytes, also on failure. `path` is for messages and is borrowed. */
tsr_status tsr_parquet_open(tsr_parquet **out, int fd, uint64_t bytes, const char *path);
void tsr_parquet_close(tsr_parquet *file);

/* The next row, the caller's; NULL at the end. After a failure the rows have ended. */
tsr_status tsr_parquet_next(json_t **row, tsr_parquet *file);

/* Rows that the footer counts; those that were given or refused so far. */
int64_t tsr_parquet_rows(const tsr_parquet *file);
int64_t tsr_parquet_row(const tsr_parquet *file);

#endif
