/*
 * table/parquet_schema.h: the columns of a Parquet file as a tree, and what each becomes as JSON. Private to
 * table/parquet.h.
 *
 * Nodes stand in depth-first order, as in the file: a node's first child follows it, and the child after `c` is
 * nodes[c].end.
 */
#ifndef TSR_TABLE_PARQUET_SCHEMA_H
#define TSR_TABLE_PARQUET_SCHEMA_H

#include "base/status.h"
#include "table/thrift.h"

#define TSR_PARQUET_MOST_NODES 16384

/* Type of parquet.thrift. */
typedef enum {
    TSR_PARQUET_BOOLEAN,
    TSR_PARQUET_INT32,
    TSR_PARQUET_INT64,
    TSR_PARQUET_INT96,
    TSR_PARQUET_FLOAT,
    TSR_PARQUET_DOUBLE,
    TSR_PARQUET_BYTE_ARRAY,
    TSR_PARQUET_FIXED
} tsr_parquet_type;

/* FieldRepetitionType. */
typedef enum {
    TSR_PARQUET_REQUIRED,
    TSR_PARQUET_OPTIONAL,
    TSR_PARQUET_REPEATED
} tsr_parquet_repetition;

typedef enum {
    TSR_PARQUET_LEAF,
    TSR_PARQUET_STRUCT,
    TSR_PARQUET_LIST,        /* of its child's child */
    TSR_PARQUET_LIST_DIRECT, /* of its child: two levels */
    TSR_PARQUET_MAP
} tsr_parquet_shape;

/* What the values of a leaf mean. */
typedef enum {
    TSR_PARQUET_PLAIN, /* what the type says */
    TSR_PARQUET_UNSIGNED,
    TSR_PARQUET_DECIMAL,
    TSR_PARQUET_DATE,
    TSR_PARQUET_TIME,
    TSR_PARQUET_TIMESTAMP,
    TSR_PARQUET_UUID,
    TSR_PARQUET_FLOAT16
} tsr_parquet_meaning;

typedef struct {
    char *name;
    int end; /* behind the last node below it */
    int first_leaf, leaf_count;
    int most_def, most_rep; /* levels of a value that is there */
    tsr_parquet_repetition repetition;
    tsr_parquet_shape shape;
    /* Of a leaf: */
    tsr_parquet_type type;
    tsr_parquet_meaning meaning;
    uint32_t fixed_bytes; /* of FIXED */
    int32_t scale;        /* of a decimal; of times, digits behind the second: 3, 6 or 9 */
    bool utc;
} tsr_parquet_node;

typedef struct {
    tsr_parquet_node *nodes; /* [0] is the root: a struct */
    int node_count, leaf_count;
    int *leaves; /* [leaf_count] nodes */
} tsr_parquet_schema;

/* Reads FileMetaData.schema, a list of `count` SchemaElements. What was read is the caller's to free, also on failure. */
tsr_status tsr_parquet_schema_read(tsr_parquet_schema *schema, tsr_thrift *t, int64_t count,
                                   const char *path);
void tsr_parquet_schema_free(tsr_parquet_schema *schema);

/* "messages.list.element.role" in a buffer of `room` bytes, which is returned. */
const char *tsr_parquet_column_name(char *out, size_t room, const tsr_parquet_schema *schema,
                                    int node);

#endif
