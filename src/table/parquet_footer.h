/*
 * table/parquet_footer.h: FileMetaData of parquet.thrift: how many rows, the schema, and one row group after the other.
 * Private to table/parquet.h.
 */
#ifndef TSR_TABLE_PARQUET_FOOTER_H
#define TSR_TABLE_PARQUET_FOOTER_H

#include "table/parquet_page.h"

typedef struct {
    uint8_t *bytes; /* row groups are read from here one at a time */
    int64_t rows;
    int64_t groups_left;
    tsr_thrift groups; /* at the next one */
} tsr_parquet_footer;

/* Reads the footer of shared->fd and sets shared->schema. What was made is the caller's to free, also on failure.
 * TSR_EDATA: the file is cut, damaged or encrypted. */
tsr_status tsr_parquet_footer_read(tsr_parquet_footer *footer, tsr_parquet_shared *shared);
void tsr_parquet_footer_free(tsr_parquet_footer *footer);

/* The next row group: its rows, and chunks[leaf_count]; groups_left must not be 0. */
tsr_status tsr_parquet_footer_group(int64_t *rows, tsr_parquet_chunk *chunks,
                                    tsr_parquet_footer *footer, const tsr_parquet_shared *shared);

#endif
