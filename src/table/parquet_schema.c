#include "table/parquet_schema.h"

#include "base/text.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEPTH         100
#define MOST_DECIMAL_BYTES 32 /* 76 digits: decimal256 */

/* ConvertedType of parquet.thrift: what older files say instead of a logical type. */
enum {
    CONVERTED_NONE = -1,
    CONVERTED_MAP = 1,
    CONVERTED_MAP_KEY_VALUE,
    CONVERTED_LIST,
    CONVERTED_DECIMAL = 5,
    CONVERTED_DATE,
    CONVERTED_TIME_MILLIS,
    CONVERTED_TIME_MICROS,
    CONVERTED_TIMESTAMP_MILLIS,
    CONVERTED_TIMESTAMP_MICROS,
    CONVERTED_UINT_8,
    CONVERTED_UINT_64 = 14,
    CONVERTED_INTERVAL = 21
};

/* Fields of LogicalType, a union. */
enum {
    LOGICAL_MAP = 2,
    LOGICAL_LIST = 3,
    LOGICAL_DECIMAL = 5,
    LOGICAL_DATE,
    LOGICAL_TIME,
    LOGICAL_TIMESTAMP,
    LOGICAL_INTEGER = 10,
    LOGICAL_UUID = 14,
    LOGICAL_FLOAT16
};

/* A SchemaElement as it stands in the file. */
typedef struct {
    int64_t type, type_bytes, repetition, children, converted, scale;
    bool has_type;
    const uint8_t *name;
    size_t name_bytes;
    int logical; /* 0: none */
    int digits;  /* of a logical time */
    bool utc, is_signed;
} element;

typedef struct {
    tsr_parquet_schema *schema;
    tsr_thrift *t;
    const char *path;
    int64_t count;
} builder;

const char *tsr_parquet_column_name(char *out, size_t room, const tsr_parquet_schema *schema,
                                    int node)
{
    size_t length = 0;
    out[0] = 0;
    for (int i = 1; i <= node; i++) {
        if (schema->nodes[i].end <= node || !schema->nodes[i].name)
            continue;
        int put =
            snprintf(out + length, room - length, "%s%s", length ? "." : "", schema->nodes[i].name);
        if (put < 0 || (size_t)put >= room - length)
            break;
        length += (size_t)put;
    }
    return out;
}

static tsr_status damaged(const builder *b)
{
    return tsr_fail(TSR_EDATA, "%s: the schema in the Parquet file's footer is damaged", b->path);
}

static tsr_status refuse(const builder *b, int node, const char *what)
{
    char name[512];
    return tsr_fail(TSR_EDATA, "%s: column %s %s", b->path,
                    tsr_parquet_column_name(name, sizeof name, b->schema, node), what);
}

/* TimeUnit, a union of empty structs, as digits. */
static int read_unit(tsr_thrift *t)
{
    int digits = 0;
    tsr_thrift_field field = {0};
    while (tsr_thrift_next(t, &field)) {
        digits = 3 * field.id;
        tsr_thrift_skip(t, field.type);
    }
    return digits;
}

/* One member of LogicalType: DecimalType {scale}, TimeType and TimestampType {utc, unit}, IntType {bits, signed}. */
static void read_logical_member(element *e, tsr_thrift *t)
{
    tsr_thrift_field field = {0};
    bool time = e->logical == LOGICAL_TIME || e->logical == LOGICAL_TIMESTAMP;
    while (tsr_thrift_next(t, &field)) {
        if (e->logical == LOGICAL_DECIMAL && field.id == 1)
            e->scale = tsr_thrift_int(t, &field);
        else if (time && field.id == 1)
            e->utc = tsr_thrift_bool(t, &field);
        else if (time && field.id == 2 && tsr_thrift_struct(t, &field))
            e->digits = read_unit(t);
        else if (e->logical == LOGICAL_INTEGER && field.id == 2)
            e->is_signed = tsr_thrift_bool(t, &field);
        else
            tsr_thrift_skip(t, field.type);
    }
}

static void read_logical(element *e, tsr_thrift *t)
{
    tsr_thrift_field field = {0};
    while (tsr_thrift_next(t, &field)) {
        e->logical = field.id;
        if (tsr_thrift_struct(t, &field))
            read_logical_member(e, t);
    }
}

static void read_element(element *e, tsr_thrift *t)
{
    tsr_thrift_field field = {0};
    *e = (element){.converted = CONVERTED_NONE};
    while (tsr_thrift_next(t, &field)) {
        if (field.id == 1) {
            e->type = tsr_thrift_int(t, &field);
            e->has_type = true;
        } else if (field.id == 2) {
            e->type_bytes = tsr_thrift_int(t, &field);
        } else if (field.id == 3) {
            e->repetition = tsr_thrift_int(t, &field);
        } else if (field.id == 4) {
            e->name = tsr_thrift_binary(&e->name_bytes, t, &field);
        } else if (field.id == 5) {
            e->children = tsr_thrift_int(t, &field);
        } else if (field.id == 6) {
            e->converted = tsr_thrift_int(t, &field);
        } else if (field.id == 7) {
            e->scale = tsr_thrift_int(t, &field);
        } else if (field.id == 10 && tsr_thrift_struct(t, &field)) {
            read_logical(e, t);
        } else {
            tsr_thrift_skip(t, field.type);
        }
    }
}

/* A logical type says what a converted one may say too; this makes it one word. */
static void unify(element *e)
{
    static const struct {
        int converted, logical, digits;
    } same[] = {
        {CONVERTED_MAP, LOGICAL_MAP, 0},
        {CONVERTED_MAP_KEY_VALUE, LOGICAL_MAP, 0},
        {CONVERTED_LIST, LOGICAL_LIST, 0},
        {CONVERTED_DECIMAL, LOGICAL_DECIMAL, 0},
        {CONVERTED_DATE, LOGICAL_DATE, 0},
        {CONVERTED_TIME_MILLIS, LOGICAL_TIME, 3},
        {CONVERTED_TIME_MICROS, LOGICAL_TIME, 6},
        {CONVERTED_TIMESTAMP_MILLIS, LOGICAL_TIMESTAMP, 3},
        {CONVERTED_TIMESTAMP_MICROS, LOGICAL_TIMESTAMP, 6},
    };
    if (e->logical)
        return;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (e->converted != same[i].converted)
            continue;
        e->logical = same[i].logical;
        e->digits = same[i].digits;
        e->utc = true;
    }
    if (e->converted >= CONVERTED_UINT_8 && e->converted <= CONVERTED_UINT_64)
        e->logical = LOGICAL_INTEGER; /* not signed */
}

/* What a leaf's values mean, if the type can hold that. */
static bool choose_meaning(tsr_parquet_node *n, const element *e)
{
    bool bytes = n->type == TSR_PARQUET_BYTE_ARRAY || n->type == TSR_PARQUET_FIXED;
    bool whole = n->type == TSR_PARQUET_INT32 || n->type == TSR_PARQUET_INT64;
    n->meaning = TSR_PARQUET_PLAIN;
    n->scale = e->digits;
    n->utc = e->utc;
    if (n->type == TSR_PARQUET_INT96) { /* the timestamps of Hive, Impala and Spark */
        n->meaning = TSR_PARQUET_TIMESTAMP;
        n->scale = 9;
        n->utc = false;
        return true;
    }
    switch (e->logical) {
    case LOGICAL_INTEGER:
        n->meaning = e->is_signed ? TSR_PARQUET_PLAIN : TSR_PARQUET_UNSIGNED;
        return whole;
    case LOGICAL_DECIMAL:
        n->meaning = TSR_PARQUET_DECIMAL;
        n->scale = (int32_t)e->scale;
        return (whole || bytes) && e->scale >= 0 && e->scale <= 76 &&
               n->fixed_bytes <= MOST_DECIMAL_BYTES;
    case LOGICAL_DATE:
        n->meaning = TSR_PARQUET_DATE;
        return n->type == TSR_PARQUET_INT32;
    case LOGICAL_TIME:
        n->meaning = TSR_PARQUET_TIME;
        return n->type == (e->digits == 3 ? TSR_PARQUET_INT32 : TSR_PARQUET_INT64) &&
               e->digits >= 3 && e->digits <= 9;
    case LOGICAL_TIMESTAMP:
        n->meaning = TSR_PARQUET_TIMESTAMP;
        return n->type == TSR_PARQUET_INT64 && e->digits >= 3 && e->digits <= 9;
    case LOGICAL_UUID:
        n->meaning = TSR_PARQUET_UUID;
        return n->type == TSR_PARQUET_FIXED && n->fixed_bytes == 16;
    case LOGICAL_FLOAT16:
        n->meaning = TSR_PARQUET_FLOAT16;
        return n->type == TSR_PARQUET_FIXED && n->fixed_bytes == 2;
    default:
        return true;
    }
}

static tsr_status make_leaf(builder *b, int at, const element *e)
{
    tsr_parquet_node *n = &b->schema->nodes[at];
    if (e->type < TSR_PARQUET_BOOLEAN || e->type > TSR_PARQUET_FIXED)
        return refuse(b, at, "has a type that is not known");
    n->type = (tsr_parquet_type)e->type;
    n->shape = TSR_PARQUET_LEAF;
    if (n->type == TSR_PARQUET_FIXED) {
        if (e->type_bytes <= 0 || e->type_bytes > 1 << 20)
            return refuse(b, at, "has values of a fixed length that is not 1 to 1048576 bytes");
        n->fixed_bytes = (uint32_t)e->type_bytes;
    }
    if (e->converted == CONVERTED_INTERVAL)
        return refuse(b, at,
                      "holds intervals, which JSON has no form for; leave it out of the file");
    if (!choose_meaning(n, e))
        return refuse(b, at, "has a logical type that its physical type cannot hold");
    b->schema->leaves[b->schema->leaf_count++] = at;
    return TSR_OK;
}

/* The backward compatibility rules of LogicalTypes.md: whether the repeated node is the element itself. */
static bool is_direct(const tsr_parquet_node *list, const tsr_parquet_node *repeated)
{
    size_t length = strlen(list->name);
    if (repeated->shape == TSR_PARQUET_LEAF)
        return true;
    if (repeated[1].end != repeated->end || repeated[1].repetition == TSR_PARQUET_REPEATED)
        return true; /* several fields, or one that is a list itself */
    return !strcmp(repeated->name, "array") || (!strncmp(repeated->name, list->name, length) &&
                                                !strcmp(repeated->name + length, "_tuple"));
}

static bool has_one_repeated(const tsr_parquet_node *n)
{
    return n[1].end == n->end && n[1].repetition == TSR_PARQUET_REPEATED;
}

/* A group whose children were read. */
static tsr_status choose_shape(builder *b, int at, const element *e)
{
    tsr_parquet_node *n = &b->schema->nodes[at];
    n->shape = TSR_PARQUET_STRUCT;
    /* The repeated part of a map has a converted type of its own in older files. */
    bool outer = n->repetition != TSR_PARQUET_REPEATED && has_one_repeated(n);
    if (e->logical == LOGICAL_LIST && has_one_repeated(n))
        n->shape = is_direct(n, n + 1) ? TSR_PARQUET_LIST_DIRECT : TSR_PARQUET_LIST;
    if (e->logical != LOGICAL_MAP || !outer)
        return TSR_OK;
    const tsr_parquet_node *pair = n + 1, *key = n + 2;
    if (pair->shape != TSR_PARQUET_STRUCT || key->end == pair->end ||
        b->schema->nodes[key->end].end != pair->end)
        return refuse(b, at, "is a map whose entries are not a key and a value");
    if (key->shape != TSR_PARQUET_LEAF || key->type != TSR_PARQUET_BYTE_ARRAY ||
        key->meaning != TSR_PARQUET_PLAIN || key->repetition == TSR_PARQUET_REPEATED)
        return refuse(b, at, "is a map whose keys are no strings, which JSON has no form for");
    n->shape = TSR_PARQUET_MAP;
    return TSR_OK;
}

static tsr_status check_names(const builder *b, int at)
{
    const tsr_parquet_node *nodes = b->schema->nodes;
    for (int c = at + 1; c < nodes[at].end; c = nodes[c].end)
        for (int d = at + 1; d < c; d = nodes[d].end)
            if (!strcmp(nodes[c].name, nodes[d].name))
                return refuse(b, c, "is there twice");
    return TSR_OK;
}

static tsr_status set_name(builder *b, tsr_parquet_node *n, const element *e)
{
    if (!e->name && !b->t->failed)
        n->name = strdup(""); /* of the root it may be left out */
    else if (!e->name || memchr(e->name, 0, e->name_bytes) ||
             !tsr_utf8_check((const char *)e->name, e->name_bytes, &(size_t){0}))
        return damaged(b);
    else
        n->name = strndup((const char *)e->name, e->name_bytes);
    return n->name ? TSR_OK : tsr_fail(TSR_ENOMEM, "%s: out of memory", b->path);
}

/* The next element and what is below it. */
static tsr_status build(builder *b, const tsr_parquet_node *parent, int depth)
{
    tsr_parquet_schema *s = b->schema;
    element e;
    int at = s->node_count;
    if (at == b->count || depth == MOST_DEPTH)
        return damaged(b);
    tsr_parquet_node *n = &s->nodes[s->node_count++];
    read_element(&e, b->t);
    unify(&e);
    n->end = at + 1;
    TSR_TRY(set_name(b, n, &e));
    if (b->t->failed || e.children < 0 || e.children > b->count || e.repetition < 0 ||
        e.repetition > TSR_PARQUET_REPEATED)
        return damaged(b);
    if (parent) { /* the root has no level */
        n->repetition = (tsr_parquet_repetition)e.repetition;
        n->most_def = parent->most_def + (n->repetition != TSR_PARQUET_REQUIRED);
        n->most_rep = parent->most_rep + (n->repetition == TSR_PARQUET_REPEATED);
    }
    n->first_leaf = s->leaf_count;
    if (e.has_type && !e.children && parent) {
        TSR_TRY(make_leaf(b, at, &e));
    } else {
        n->end = (int)b->count; /* until it is known: messages name what is above */
        for (int64_t i = 0; i < e.children; i++)
            TSR_TRY(build(b, n, depth + 1));
        n->end = s->node_count;
        if (s->leaf_count == n->first_leaf)
            return parent ? refuse(b, at, "is a group without columns")
                          : tsr_fail(TSR_EDATA, "%s: the Parquet file has no column", b->path);
        TSR_TRY(choose_shape(b, at, &e));
        TSR_TRY(check_names(b, at));
    }
    n->leaf_count = s->leaf_count - n->first_leaf;
    return TSR_OK;
}

tsr_status tsr_parquet_schema_read(tsr_parquet_schema *schema, tsr_thrift *t, int64_t count,
                                   const char *path)
{
    builder b = {.schema = schema, .t = t, .path = path, .count = count};
    if (schema->nodes || count < 1)
        return damaged(&b);
    if (count > TSR_PARQUET_MOST_NODES)
        return tsr_fail(TSR_EDATA, "%s: the file has %lld columns and groups, at most %d are read",
                        path, (long long)count, TSR_PARQUET_MOST_NODES);
    schema->nodes = calloc((size_t)count, sizeof *schema->nodes);
    schema->leaves = calloc((size_t)count, sizeof *schema->leaves);
    if (!schema->nodes || !schema->leaves)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", path);
    TSR_TRY(build(&b, NULL, 0));
    return schema->node_count == count && !t->failed ? TSR_OK : damaged(&b);
}

void tsr_parquet_schema_free(tsr_parquet_schema *schema)
{
    for (int i = 0; i < schema->node_count; i++)
        free(schema->nodes[i].name);
    free(schema->nodes);
    free(schema->leaves);
    *schema = (tsr_parquet_schema){0};
}
