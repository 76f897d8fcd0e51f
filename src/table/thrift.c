#include "table/thrift.h"

#define MOST_DEPTH 64

static void fail(tsr_thrift *t)
{
    t->failed = true;
    t->at = t->end;
}

static size_t left(const tsr_thrift *t)
{
    return (size_t)(t->end - t->at);
}

/* `bytes` bytes, or NULL. */
static const uint8_t *take(tsr_thrift *t, uint64_t bytes)
{
    const uint8_t *at = t->at;
    if (t->failed)
        return NULL;
    if (bytes > left(t)) {
        t->short_of = true;
        fail(t);
        return NULL;
    }
    t->at += bytes;
    return at;
}

static uint8_t byte(tsr_thrift *t)
{
    const uint8_t *at = take(t, 1);
    return at ? *at : 0;
}

static uint64_t varint(tsr_thrift *t)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t next = byte(t);
        value |= (uint64_t)(next & 0x7F) << shift;
        if (!(next & 0x80))
            return value;
    }
    fail(t);
    return 0;
}

static int64_t zigzag(tsr_thrift *t)
{
    uint64_t value = varint(t);
    return (int64_t)(value >> 1 ^ -(value & 1));
}

bool tsr_thrift_next(tsr_thrift *t, tsr_thrift_field *field)
{
    uint8_t head = byte(t);
    field->type = head & 15;
    if (t->failed || field->type == TSR_THRIFT_STOP)
        return false;
    int64_t id = head >> 4 ? field->id + (head >> 4) : zigzag(t);
    if (id < INT16_MIN || id > INT16_MAX)
        fail(t);
    field->id = (int)id;
    return !t->failed;
}

static bool expect(tsr_thrift *t, const tsr_thrift_field *field, tsr_thrift_type type)
{
    if (field->type != type)
        fail(t);
    return !t->failed;
}

int64_t tsr_thrift_int(tsr_thrift *t, const tsr_thrift_field *field)
{
    if (field->type == TSR_THRIFT_BYTE)
        return (int8_t)byte(t);
    if (field->type < TSR_THRIFT_I16 || field->type > TSR_THRIFT_I64)
        fail(t);
    return zigzag(t);
}

bool tsr_thrift_bool(tsr_thrift *t, const tsr_thrift_field *field)
{
    if (field->type != TSR_THRIFT_TRUE && field->type != TSR_THRIFT_FALSE)
        fail(t);
    return field->type == TSR_THRIFT_TRUE;
}

const uint8_t *tsr_thrift_binary(size_t *bytes, tsr_thrift *t, const tsr_thrift_field *field)
{
    *bytes = 0;
    if (!expect(t, field, TSR_THRIFT_BINARY))
        return NULL;
    uint64_t length = varint(t);
    const uint8_t *at = take(t, length);
    *bytes = at ? (size_t)length : 0;
    return at;
}

bool tsr_thrift_struct(tsr_thrift *t, const tsr_thrift_field *field)
{
    return expect(t, field, TSR_THRIFT_STRUCT);
}

/* The length of a list or set, and the type of its elements. */
static uint64_t list_head(tsr_thrift *t, tsr_thrift_type *element)
{
    uint8_t head = byte(t);
    uint64_t count = head >> 4 == 15 ? varint(t) : head >> 4;
    *element = head & 15;
    if (count > left(t)) { /* an element takes a byte at least */
        t->short_of = true;
        fail(t);
    }
    return t->failed ? 0 : count;
}

int64_t tsr_thrift_list(tsr_thrift *t, const tsr_thrift_field *field, tsr_thrift_type element)
{
    tsr_thrift_type found;
    if (!expect(t, field, TSR_THRIFT_LIST))
        return 0;
    uint64_t count = list_head(t, &found);
    if (count && found != element)
        fail(t);
    return t->failed ? 0 : (int64_t)count;
}

static void skip(tsr_thrift *t, tsr_thrift_type type, bool element, int depth);

static void skip_elements(tsr_thrift *t, int depth)
{
    tsr_thrift_type type;
    uint64_t count = list_head(t, &type);
    for (uint64_t i = 0; i < count && !t->failed; i++)
        skip(t, type, true, depth);
}

static void skip_map(tsr_thrift *t, int depth)
{
    uint64_t count = varint(t);
    uint8_t types = count ? byte(t) : 0;
    for (uint64_t i = 0; i < count && !t->failed; i++) {
        skip(t, types >> 4, true, depth);
        skip(t, types & 15, true, depth);
    }
}

static void skip_struct(tsr_thrift *t, int depth)
{
    tsr_thrift_field field = {0};
    while (tsr_thrift_next(t, &field))
        skip(t, field.type, false, depth);
}

/* A boolean is in its field's head, but a byte as an element. */
static void skip(tsr_thrift *t, tsr_thrift_type type, bool element, int depth)
{
    if (depth == MOST_DEPTH) {
        fail(t);
        return;
    }
    switch (type) {
    case TSR_THRIFT_TRUE:
    case TSR_THRIFT_FALSE:
        if (element)
            byte(t);
        break;
    case TSR_THRIFT_BYTE:
        byte(t);
        break;
    case TSR_THRIFT_I16:
    case TSR_THRIFT_I32:
    case TSR_THRIFT_I64:
        varint(t);
        break;
    case TSR_THRIFT_DOUBLE:
        take(t, 8);
        break;
    case TSR_THRIFT_BINARY:
        take(t, varint(t));
        break;
    case TSR_THRIFT_LIST:
    case TSR_THRIFT_SET:
        skip_elements(t, depth + 1);
        break;
    case TSR_THRIFT_MAP:
        skip_map(t, depth + 1);
        break;
    case TSR_THRIFT_STRUCT:
        skip_struct(t, depth + 1);
        break;
    case TSR_THRIFT_UUID:
        take(t, 16);
        break;
    default:
        fail(t);
    }
}

void tsr_thrift_skip(tsr_thrift *t, tsr_thrift_type type)
{
    skip(t, type, false, 0);
}
