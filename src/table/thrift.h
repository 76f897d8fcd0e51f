/*
 * table/thrift.h: reads Thrift's compact protocol, which Parquet's footer and page headers are written in
 * (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
 *
 * A reader that has failed stays so: every call answers zero and touches nothing, loops over fields and lists end, and
 * what was read is checked once at the end. Lists are not longer than the bytes that are left; what is passed over may
 * nest 64 deep.
 */
#ifndef TSR_TABLE_THRIFT_H
#define TSR_TABLE_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *at, *end;
    bool failed;
    bool short_of; /* it failed because the bytes ended */
} tsr_thrift;

typedef enum {
    TSR_THRIFT_STOP,
    TSR_THRIFT_TRUE,
    TSR_THRIFT_FALSE,
    TSR_THRIFT_BYTE,
    TSR_THRIFT_I16,
    TSR_THRIFT_I32,
    TSR_THRIFT_I64,
    TSR_THRIFT_DOUBLE,
    TSR_THRIFT_BINARY,
    TSR_THRIFT_LIST,
    TSR_THRIFT_SET,
    TSR_THRIFT_MAP,
    TSR_THRIFT_STRUCT,
    TSR_THRIFT_UUID
} tsr_thrift_type;

/* The field of a struct that is read next. Zero-initialise before the first. */
typedef struct {
    int id;
    tsr_thrift_type type;
} tsr_thrift_field;

/* The next field; false at the end of the struct. The caller reads or skips its value. */
bool tsr_thrift_next(tsr_thrift *t, tsr_thrift_field *field);

/* The value of a field; one of another type fails. */
int64_t tsr_thrift_int(tsr_thrift *t, const tsr_thrift_field *field); /* of 8 to 64 bits */
bool tsr_thrift_bool(tsr_thrift *t, const tsr_thrift_field *field);
const uint8_t *tsr_thrift_binary(size_t *bytes, tsr_thrift *t, const tsr_thrift_field *field);
bool tsr_thrift_struct(tsr_thrift *t, const tsr_thrift_field *field);

/* A list's length; its elements, of the type, follow. */
int64_t tsr_thrift_list(tsr_thrift *t, const tsr_thrift_field *field, tsr_thrift_type element);

void tsr_thrift_skip(tsr_thrift *t, tsr_thrift_type type);

#endif
