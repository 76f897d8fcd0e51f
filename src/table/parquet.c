/*
 * parquet.c: records put together from columns.
 *
 * Each value has a definition level (how many of the optional and repeated nodes on its path are there) and a repetition
 * level (at which repeated node it goes on; 0 begins a row). The first leaf below a node tells whether the node is there
 * and whether its list goes on; the other leaves must agree, or the file is damaged.
 */
#include "table/parquet.h"

#include "table/parquet_footer.h"
#include "table/parquet_value.h"
#include "table/table.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tsr_parquet {
    tsr_parquet_shared shared;
    tsr_parquet_footer footer;
    tsr_parquet_column *columns; /* [leaf_count] */
    tsr_parquet_chunk *chunks;   /* [leaf_count], of the row group */
    int64_t group_left;          /* rows */
    size_t row_bytes;            /* of the row so far, as JSON */
    bool ended;
};

/* Where in the record a node is looked for: what its values' levels must be at least, and begin with. */
typedef struct {
    int def, rep;
} place;

static tsr_status disagree(const tsr_parquet *p, int node)
{
    return tsr_parquet_bad(&p->shared, node,
                           "its levels do not agree with those of the columns beside it: the file "
                           "is damaged");
}

static tsr_status no_memory(const tsr_parquet *p)
{
    return tsr_fail(TSR_ENOMEM, "%s: row %lld: no memory for the row", p->shared.path,
                    (long long)p->shared.row);
}

static tsr_status charge(tsr_parquet *p, size_t bytes, int node)
{
    p->row_bytes += bytes;
    if (p->row_bytes <= TSR_TABLE_ROW_BYTES)
        return TSR_OK;
    return tsr_parquet_bad(&p->shared, node,
                           "the row is longer than %d MiB, the most that is read; write what it "
                           "holds as several rows, or leave it out",
                           TSR_TABLE_ROW_MIB);
}

/* The column of the first leaf below a node, at its next value. */
static tsr_status first_of(tsr_parquet_column **out, tsr_parquet *p, const tsr_parquet_node *n,
                           place at)
{
    tsr_parquet_column *c = &p->columns[n->first_leaf];
    TSR_TRY(tsr_parquet_column_peek(c, &p->shared));
    *out = c;
    if (c->rep < 0)
        return tsr_parquet_bad(&p->shared, c->node, "the column ends before its row group does");
    return c->rep == at.rep && c->def >= at.def ? TSR_OK : disagree(p, c->node);
}

/* A node that is not there: every leaf below it has one value that says so. */
static tsr_status skip_absent(tsr_parquet *p, const tsr_parquet_node *n, place at)
{
    int def = p->columns[n->first_leaf].def;
    for (int i = n->first_leaf; i < n->first_leaf + n->leaf_count; i++) {
        tsr_parquet_column *c = &p->columns[i];
        tsr_parquet_value none;
        TSR_TRY(tsr_parquet_column_peek(c, &p->shared));
        if (c->rep != at.rep || c->def != def)
            return disagree(p, c->node);
        TSR_TRY(tsr_parquet_column_take(&none, c, &p->shared));
    }
    return TSR_OK;
}

static tsr_status read_node(json_t **out, tsr_parquet *p, int node, place at);

static tsr_status read_leaf(json_t **out, tsr_parquet *p, int node, place at)
{
    const tsr_parquet_node *n = &p->shared.schema.nodes[node];
    tsr_parquet_value value = {0};
    tsr_parquet_column *c;
    TSR_TRY(first_of(&c, p, n, at));
    if (c->def != n->most_def)
        return disagree(p, node);
    TSR_TRY(tsr_parquet_column_take(&value, c, &p->shared));
    TSR_TRY(charge(p, value.bytes + 4, node));
    return tsr_parquet_json(out, &value, node, &p->shared);
}

static tsr_status read_struct(json_t **out, tsr_parquet *p, int node, place at)
{
    const tsr_parquet_node *nodes = p->shared.schema.nodes;
    json_t *object = json_object();
    tsr_status status = object ? TSR_OK : no_memory(p);
    for (int c = node + 1; c < nodes[node].end && status >= 0; c = nodes[c].end) {
        json_t *value = NULL;
        status = charge(p, strlen(nodes[c].name) + 4, c);
        if (status >= 0)
            status = read_node(&value, p, c, at);
        /* The schema's names are UTF-8, and no two of a group are the same. */
        if (status >= 0 && json_object_set_new_nocheck(object, nodes[c].name, value) != 0)
            status = no_memory(p);
    }
    if (status < 0) {
        json_decref(object);
        return status;
    }
    *out = object;
    return TSR_OK;
}

static tsr_status read_content(json_t **out, tsr_parquet *p, int node, place at);

/* An element of a list; `direct`: the repeated node is it, otherwise its only child. */
static tsr_status add_element(json_t *array, tsr_parquet *p, int repeated, bool direct, place at)
{
    json_t *value = NULL;
    TSR_TRY(charge(p, 1, repeated));
    TSR_TRY(direct ? read_content(&value, p, repeated, at)
                   : read_node(&value, p, repeated + 1, at));
    return json_array_append_new(array, value) == 0 ? TSR_OK : no_memory(p);
}

/* An entry of a map. */
static tsr_status add_entry(json_t *object, tsr_parquet *p, int repeated, place at)
{
    const tsr_parquet_node *nodes = p->shared.schema.nodes;
    json_t *key = NULL, *value = NULL;
    int key_node = repeated + 1;
    TSR_TRY(read_node(&key, p, key_node, at));
    tsr_status status = TSR_OK;
    if (!json_is_string(key))
        status = tsr_parquet_bad(&p->shared, key_node, "a key of the map is null");
    else if (json_object_get(object, json_string_value(key)))
        status = tsr_parquet_bad(&p->shared, key_node, "two entries of the map have one key");
    if (status >= 0)
        status = read_node(&value, p, nodes[key_node].end, at);
    if (status >= 0 && json_object_set_new_nocheck(object, json_string_value(key), value) != 0)
        status = no_memory(p);
    json_decref(key);
    return status;
}

/* All repetitions of a node: an array, or the entries of a map. */
static tsr_status read_repeated(json_t **out, tsr_parquet *p, int repeated, tsr_parquet_shape shape,
                                place at)
{
    const tsr_parquet_node *n = &p->shared.schema.nodes[repeated];
    tsr_parquet_column *c;
    TSR_TRY(first_of(&c, p, n, at));
    bool more = c->def >= n->most_def;
    if (!more)
        TSR_TRY(skip_absent(p, n, at));
    json_t *made = shape == TSR_PARQUET_MAP ? json_object() : json_array();
    tsr_status status = made ? TSR_OK : no_memory(p);
    at.def = n->most_def;
    while (more && status >= 0) {
        status = shape == TSR_PARQUET_MAP
                     ? add_entry(made, p, repeated, at)
                     : add_element(made, p, repeated, shape == TSR_PARQUET_LIST_DIRECT, at);
        if (status >= 0)
            status = tsr_parquet_column_peek(c, &p->shared);
        at.rep = n->most_rep;
        more = c->rep == n->most_rep;
    }
    if (status < 0) {
        json_decref(made);
        return status;
    }
    *out = made;
    return TSR_OK;
}

/* A node that is there, without its repetition. */
static tsr_status read_content(json_t **out, tsr_parquet *p, int node, place at)
{
    tsr_parquet_shape shape = p->shared.schema.nodes[node].shape;
    if (shape == TSR_PARQUET_LEAF)
        return read_leaf(out, p, node, at);
    if (shape == TSR_PARQUET_STRUCT)
        return read_struct(out, p, node, at);
    return read_repeated(out, p, node + 1, shape, at);
}

static tsr_status read_node(json_t **out, tsr_parquet *p, int node, place at)
{
    const tsr_parquet_node *n = &p->shared.schema.nodes[node];
    if (n->repetition == TSR_PARQUET_REPEATED)
        return read_repeated(out, p, node, TSR_PARQUET_LIST_DIRECT, at);
    if (n->repetition == TSR_PARQUET_OPTIONAL) {
        tsr_parquet_column *c;
        TSR_TRY(first_of(&c, p, n, at));
        if (c->def < n->most_def) {
            TSR_TRY(charge(p, 4, node));
            *out = json_null();
            return skip_absent(p, n, at);
        }
        at.def = n->most_def;
    }
    return read_content(out, p, node, at);
}

/* Every column must have given all that its row group has of it. */
static tsr_status end_group(tsr_parquet *p)
{
    for (int i = 0; i < p->shared.schema.leaf_count; i++)
        if (p->columns[i].chunk_left)
            return tsr_parquet_bad(&p->shared, p->columns[i].node,
                                   "it has more values than its row group has rows");
    return TSR_OK;
}

static tsr_status start_group(tsr_parquet *p)
{
    TSR_TRY(tsr_parquet_footer_group(&p->group_left, p->chunks, &p->footer, &p->shared));
    for (int i = 0; i < p->shared.schema.leaf_count; i++)
        tsr_parquet_column_start(&p->columns[i], &p->chunks[i]);
    return TSR_OK;
}

static tsr_status next_row(json_t **row, tsr_parquet *p)
{
    while (!p->group_left && p->footer.groups_left) {
        TSR_TRY(end_group(p));
        TSR_TRY(start_group(p));
    }
    if (p->group_left) {
        p->group_left--;
        p->row_bytes = 0;
        return read_struct(row, p, 0, (place){0, 0});
    }
    p->shared.row--;
    p->ended = true;
    TSR_TRY(end_group(p));
    return p->shared.row == p->footer.rows
               ? TSR_OK
               : tsr_fail(TSR_EDATA, "%s: the row groups have %lld rows, the footer says %lld",
                          p->shared.path, (long long)p->shared.row, (long long)p->footer.rows);
}

tsr_status tsr_parquet_next(json_t **row, tsr_parquet *p)
{
    *row = NULL;
    if (p->ended)
        return TSR_OK;
    p->shared.row++;
    tsr_status status = next_row(row, p);
    p->ended |= status < 0;
    return status;
}

static tsr_status start(tsr_parquet *p)
{
    tsr_parquet_shared *s = &p->shared;
    TSR_TRY(tsr_parquet_footer_read(&p->footer, s));
    p->columns = calloc((size_t)s->schema.leaf_count, sizeof *p->columns);
    p->chunks = calloc((size_t)s->schema.leaf_count, sizeof *p->chunks);
    if (!p->columns || !p->chunks)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", s->path);
    for (int i = 0; i < s->schema.leaf_count; i++)
        p->columns[i].node = s->schema.leaves[i];
    return TSR_OK;
}

tsr_status tsr_parquet_open(tsr_parquet **out, int fd, uint64_t bytes, const char *path)
{
    tsr_parquet *p = calloc(1, sizeof *p);
    if (!p) {
        close(fd);
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", path);
    }
    p->shared = (tsr_parquet_shared){.fd = fd, .path = path, .bytes = bytes};
    tsr_status status = start(p);
    if (status < 0) {
        tsr_parquet_close(p);
        return status;
    }
    *out = p;
    return TSR_OK;
}

void tsr_parquet_close(tsr_parquet *p)
{
    if (!p)
        return;
    for (int i = 0; p->columns && i < p->shared.schema.leaf_count; i++)
        tsr_parquet_column_free(&p->columns[i], &p->shared);
    free(p->columns);
    free(p->chunks);
    tsr_parquet_release(&p->shared.packed, &p->shared);
    tsr_parquet_schema_free(&p->shared.schema);
    tsr_parquet_footer_free(&p->footer);
    close(p->shared.fd);
    free(p);
}

int64_t tsr_parquet_rows(const tsr_parquet *p)
{
    return p->footer.rows;
}

int64_t tsr_parquet_row(const tsr_parquet *p)
{
    return p->shared.row;
}
