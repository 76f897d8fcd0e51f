/*
 * table/parquet_column.h: the values of one column of a row group in their order, each with its levels. Private to
 * table/parquet.h.
 */
#ifndef TSR_TABLE_PARQUET_COLUMN_H
#define TSR_TABLE_PARQUET_COLUMN_H

#include "table/parquet_encodings.h"
#include "table/parquet_page.h"

/* Whole numbers, booleans and the bits of FLOAT and DOUBLE are in `bits` (INT32 with its sign extended); of other types
 * data[0..bytes) is the value, until the next one. */
typedef struct {
    int64_t bits;
    const uint8_t *data;
    size_t bytes;
} tsr_parquet_value;

typedef struct {
    int node;
    tsr_parquet_chunk chunk;
    tsr_parquet_buffer page, dictionary;
    /* The dictionary; of BYTE_ARRAY, where each value ends is behind the bytes, in `dictionary` too. */
    bool has_dictionary;
    uint32_t dictionary_count;
    const uint8_t *dictionary_ends;
    int64_t page_left, chunk_left; /* values, nulls too, of the page, and of the chunk with it */
    tsr_parquet_runs rep_levels, def_levels;
    int rep, def; /* of the next value, once `ready` */
    bool ready;
    /* Values of the page: */
    int64_t encoding;
    const uint8_t *at, *end;
    uint64_t taken; /* of PLAIN booleans and BYTE_STREAM_SPLIT */
    tsr_parquet_runs runs;
    tsr_parquet_delta lengths, prefixes; /* `lengths` are the values of DELTA_BINARY_PACKED */
    tsr_parquet_buffer text; /* of DELTA_BYTE_ARRAY and BYTE_STREAM_SPLIT: the last value */
} tsr_parquet_column;

/* Makes the column ready for its chunk of the next row group. */
void tsr_parquet_column_start(tsr_parquet_column *column, const tsr_parquet_chunk *chunk);
void tsr_parquet_column_free(tsr_parquet_column *column, tsr_parquet_shared *file);

/* Sets column->rep and def: the levels of the next value; rep -1 at the end of the chunk. */
tsr_status tsr_parquet_column_peek(tsr_parquet_column *column, tsr_parquet_shared *file);

/* Goes behind it. `value` is needed where def is the most that the column has, and is filled then. */
tsr_status tsr_parquet_column_take(tsr_parquet_value *value, tsr_parquet_column *column,
                                   tsr_parquet_shared *file);

#endif
