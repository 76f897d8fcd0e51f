#include "table/parquet_footer.h"

#include <stdlib.h>
#include <string.h>

#define TAIL_BYTES        8 /* the footer's length and "PAR1" */
#define MOST_FOOTER_BYTES (64u << 20)

/* ColumnChunk with its ColumnMetaData. */
typedef struct {
    int64_t type, codec, values, packed_bytes, data_at, dictionary_at;
    bool elsewhere, encrypted, described;
} described_chunk;

static tsr_status damaged(const tsr_parquet_shared *file)
{
    return tsr_fail(TSR_EDATA,
                    "%s: the Parquet file's footer is damaged; download or write the file again",
                    file->path);
}

static void read_metadata(described_chunk *c, tsr_thrift *t)
{
    tsr_thrift_field field = {0};
    c->described = true;
    while (tsr_thrift_next(t, &field)) {
        switch (field.id) {
        case 1:
            c->type = tsr_thrift_int(t, &field);
            break;
        case 4:
            c->codec = tsr_thrift_int(t, &field);
            break;
        case 5:
            c->values = tsr_thrift_int(t, &field);
            break;
        case 7:
            c->packed_bytes = tsr_thrift_int(t, &field);
            break;
        case 9:
            c->data_at = tsr_thrift_int(t, &field);
            break;
        case 11:
            c->dictionary_at = tsr_thrift_int(t, &field);
            break;
        default:
            tsr_thrift_skip(t, field.type);
        }
    }
}

static void read_chunk(described_chunk *c, tsr_thrift *t)
{
    tsr_thrift_field field = {0};
    *c = (described_chunk){.type = -1, .values = -1, .packed_bytes = -1, .data_at = -1};
    while (tsr_thrift_next(t, &field)) {
        c->elsewhere |= field.id == 1;
        c->encrypted |= field.id == 8 || field.id == 9;
        if (field.id == 3 && tsr_thrift_struct(t, &field))
            read_metadata(c, t);
        else
            tsr_thrift_skip(t, field.type);
    }
}

static tsr_status place_chunk(tsr_parquet_chunk *out, const described_chunk *c, int node,
                              const tsr_parquet_shared *file)
{
    if (c->encrypted)
        return tsr_parquet_bad(file, node, "it is encrypted; write the file unencrypted");
    if (c->elsewhere)
        return tsr_parquet_bad(file, node, "it is in another file, which is not read");
    /* Some writers have 0 for "no dictionary". */
    int64_t at =
        c->dictionary_at > 0 && c->dictionary_at < c->data_at ? c->dictionary_at : c->data_at;
    if (c->described && !c->values) /* of a row group without rows; offsets may mean nothing */
        at = 4;
    if (!c->described || c->values < 0 || at < 4 || c->packed_bytes < 0 ||
        (uint64_t)at > file->bytes || (uint64_t)c->packed_bytes > file->bytes - (uint64_t)at)
        return tsr_parquet_bad(file, node,
                               "its row group says that it is where the file has no room for it; "
                               "the file is damaged");
    if (c->type != (int64_t)file->schema.nodes[node].type)
        return tsr_parquet_bad(file, node,
                               "it has another type in its row group than in the schema");
    *out = (tsr_parquet_chunk){c->codec, c->values, (uint64_t)at,
                               (uint64_t)at + (uint64_t)c->packed_bytes};
    return TSR_OK;
}

tsr_status tsr_parquet_footer_group(int64_t *rows, tsr_parquet_chunk *chunks,
                                    tsr_parquet_footer *footer, const tsr_parquet_shared *file)
{
    tsr_thrift *t = &footer->groups;
    tsr_thrift_field field = {0};
    int64_t count = -1;
    *rows = -1;
    footer->groups_left--;
    while (tsr_thrift_next(t, &field)) {
        if (field.id == 1) {
            count = tsr_thrift_list(t, &field, TSR_THRIFT_STRUCT);
            for (int64_t i = 0; i < count && !t->failed; i++) {
                described_chunk chunk;
                read_chunk(&chunk, t);
                if (!t->failed && i < file->schema.leaf_count)
                    TSR_TRY(place_chunk(&chunks[i], &chunk, file->schema.leaves[i], file));
            }
        } else if (field.id == 3) {
            *rows = tsr_thrift_int(t, &field);
        } else {
            tsr_thrift_skip(t, field.type);
        }
    }
    return t->failed || count != file->schema.leaf_count || *rows < 0 ? damaged(file) : TSR_OK;
}

/* The fields of FileMetaData; row groups are passed over here. */
static tsr_status parse(tsr_parquet_footer *f, tsr_thrift *t, tsr_parquet_shared *file)
{
    tsr_thrift_field field = {0};
    bool encrypted = false;
    f->rows = -1;
    while (tsr_thrift_next(t, &field)) {
        encrypted |= field.id == 8;
        if (field.id == 2) {
            int64_t count = tsr_thrift_list(t, &field, TSR_THRIFT_STRUCT);
            TSR_TRY(tsr_parquet_schema_read(&file->schema, t, count, file->path));
        } else if (field.id == 3) {
            f->rows = tsr_thrift_int(t, &field);
        } else if (field.id == 4) {
            f->groups_left = tsr_thrift_list(t, &field, TSR_THRIFT_STRUCT);
            f->groups = *t;
            for (int64_t i = 0; i < f->groups_left && !t->failed; i++)
                tsr_thrift_skip(t, TSR_THRIFT_STRUCT);
        } else {
            tsr_thrift_skip(t, field.type);
        }
    }
    if (encrypted)
        return tsr_fail(TSR_EDATA, "%s: the Parquet file is encrypted; write it unencrypted",
                        file->path);
    return t->failed || f->rows < 0 || !file->schema.nodes ? damaged(file) : TSR_OK;
}

tsr_status tsr_parquet_footer_read(tsr_parquet_footer *footer, tsr_parquet_shared *file)
{
    uint8_t tail[TAIL_BYTES] = {0};
    uint32_t bytes;
    if (file->bytes >= 4 + TAIL_BYTES)
        TSR_TRY(tsr_parquet_pread(tail, TAIL_BYTES, file->bytes - TAIL_BYTES, file));
    memcpy(&bytes, tail, sizeof bytes);
    if (memcmp(tail + 4, "PAR1", 4) || bytes > file->bytes - 4 - TAIL_BYTES)
        return tsr_fail(TSR_EDATA,
                        "%s: the Parquet file is cut or damaged: it does not end with a footer; "
                        "download or write it again",
                        file->path);
    if (bytes > MOST_FOOTER_BYTES)
        return tsr_fail(TSR_EDATA,
                        "%s: the footer takes %u bytes, at most 64 MiB are read; write the file "
                        "with fewer columns or larger row groups",
                        file->path, bytes);
    footer->bytes = malloc((size_t)bytes + 1);
    if (!footer->bytes)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its footer", file->path);
    file->bytes -= TAIL_BYTES + bytes;
    TSR_TRY(tsr_parquet_pread(footer->bytes, bytes, file->bytes, file));
    tsr_thrift t = {footer->bytes, footer->bytes + bytes, false, false};
    return parse(footer, &t, file);
}

void tsr_parquet_footer_free(tsr_parquet_footer *footer)
{
    free(footer->bytes);
    *footer = (tsr_parquet_footer){0};
}
