/*
 * table/parquet_page.h: the pages of one column of a row group: found, checked and unpacked. Private to table/parquet.h.
 */
#ifndef TSR_TABLE_PARQUET_PAGE_H
#define TSR_TABLE_PARQUET_PAGE_H

#include "table/parquet_schema.h"

#include <stddef.h>

/* Encoding of parquet.thrift. */
typedef enum {
    TSR_PARQUET_ENCODING_PLAIN = 0,
    TSR_PARQUET_ENCODING_PLAIN_DICTIONARY = 2,
    TSR_PARQUET_ENCODING_RLE = 3,
    TSR_PARQUET_ENCODING_BIT_PACKED = 4,
    TSR_PARQUET_ENCODING_DELTA_BINARY_PACKED = 5,
    TSR_PARQUET_ENCODING_DELTA_LENGTH = 6,
    TSR_PARQUET_ENCODING_DELTA_BYTES = 7,
    TSR_PARQUET_ENCODING_RLE_DICTIONARY = 8,
    TSR_PARQUET_ENCODING_BYTE_STREAM_SPLIT = 9
} tsr_parquet_encoding;

/* A growing buffer; its capacity is counted in the file's `held_bytes`. */
typedef struct {
    uint8_t *data;
    size_t bytes, capacity;
} tsr_parquet_buffer;

/* What the columns of a file share. */
typedef struct {
    int fd;
    const char *path;
    uint64_t bytes; /* of the file before its footer */
    tsr_parquet_schema schema;
    int64_t row;               /* that is being read, from 1 */
    uint64_t held_bytes;       /* of all buffers */
    tsr_parquet_buffer packed; /* a page as it is in the file */
} tsr_parquet_shared;

/* The column of a row group, as the footer describes it. */
typedef struct {
    int64_t codec; /* CompressionCodec */
    int64_t values;
    uint64_t at, end; /* in the file, of the pages not read yet */
} tsr_parquet_chunk;

typedef struct {
    bool is_dictionary;
    int64_t values; /* nulls too */
    int64_t encoding;
    /* Unpacked: levels and values of a data page. Version 1 has the lengths of its levels inside. */
    bool version_2;
    uint32_t rep_bytes, def_bytes; /* of version 2 */
    tsr_parquet_buffer *data;
} tsr_parquet_page;

/* "file: row 12, column a.b: " and the message; returns TSR_EDATA. */
tsr_status tsr_parquet_bad(const tsr_parquet_shared *file, int node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Reads the next page of `node`'s chunk that holds values or a dictionary; *page->data is one of the buffers. TSR_EDATA:
 * there is none. */
tsr_status tsr_parquet_page_read(tsr_parquet_page *page, tsr_parquet_buffer *values,
                                 tsr_parquet_buffer *dictionary, tsr_parquet_chunk *chunk,
                                 tsr_parquet_shared *file, int node);

/* Room for `bytes` bytes; what was in it is kept. TSR_EDATA: all buffers together would be too large. */
tsr_status tsr_parquet_reserve(tsr_parquet_buffer *buffer, size_t bytes, tsr_parquet_shared *file,
                               int node);
void tsr_parquet_release(tsr_parquet_buffer *buffer, tsr_parquet_shared *file);

/* Reads exactly `bytes` bytes at `at`. */
tsr_status tsr_parquet_pread(void *out, size_t bytes, uint64_t at, const tsr_parquet_shared *file);

#endif
