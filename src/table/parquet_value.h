/*
 * table/parquet_value.h: one value of a column as JSON. Private to table/parquet.h.
 */
#ifndef TSR_TABLE_PARQUET_VALUE_H
#define TSR_TABLE_PARQUET_VALUE_H

#include "table/parquet_column.h"

#include <jansson.h>

/* The caller owns *out. TSR_EDATA: JSON cannot have it: an unsigned number of 64 bits, bytes that are not UTF-8. */
tsr_status tsr_parquet_json(json_t **out, const tsr_parquet_value *value, int node,
                            const tsr_parquet_shared *file);

#endif
