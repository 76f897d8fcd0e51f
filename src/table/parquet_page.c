#include "table/parquet_page.h"

#include "table/snappy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define MOST_PAGE_BYTES  (UINT64_C(256) << 20)
#define MOST_HELD_BYTES  (UINT64_C(1) << 30)
#define MOST_HEAD_BYTES  (UINT64_C(16) << 20) /* statistics are in it */
#define FIRST_HEAD_BYTES 512

enum { DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 }; /* PageType */

enum { UNCOMPRESSED, SNAPPY, GZIP, LZO, BROTLI, LZ4, ZSTD, LZ4_RAW }; /* CompressionCodec */

/* PageHeader with the header of its type. */
typedef struct {
    int64_t type, bytes, packed_bytes, crc;
    int64_t values, encoding, def_encoding, rep_encoding;
    int64_t def_bytes, rep_bytes;
    bool has_crc, has_values, is_packed;
} head;

tsr_status tsr_parquet_bad(const tsr_parquet_shared *file, int node, const char *format, ...)
{
    char message[1024], name[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return tsr_fail(TSR_EDATA, "%s: row %lld, column %s: %s", file->path, (long long)file->row,
                    tsr_parquet_column_name(name, sizeof name, &file->schema, node), message);
}

tsr_status tsr_parquet_reserve(tsr_parquet_buffer *buffer, size_t bytes, tsr_parquet_shared *file,
                               int node)
{
    if (bytes <= buffer->capacity)
        return TSR_OK;
    uint64_t more = bytes - buffer->capacity;
    if (file->held_bytes + more > MOST_HELD_BYTES)
        return tsr_parquet_bad(
            file, node,
            "the pages of all columns that must be held at once take more than "
            "1 GiB unpacked; write the file with smaller pages or fewer columns");
    uint8_t *bigger = realloc(buffer->data, bytes);
    if (!bigger)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for a page of %zu bytes", file->path, bytes);
    buffer->data = bigger;
    buffer->capacity = bytes;
    file->held_bytes += more;
    return TSR_OK;
}

void tsr_parquet_release(tsr_parquet_buffer *buffer, tsr_parquet_shared *file)
{
    file->held_bytes -= buffer->capacity;
    free(buffer->data);
    *buffer = (tsr_parquet_buffer){0};
}

tsr_status tsr_parquet_pread(void *out, size_t bytes, uint64_t at, const tsr_parquet_shared *file)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(file->fd, (char *)out + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tsr_fail(TSR_EIO, "%s: reading failed: %s", file->path, strerror(errno));
        if (got == 0)
            return tsr_fail(TSR_EDATA, "%s: the file became shorter while it was read", file->path);
        done += (size_t)got;
    }
    return TSR_OK;
}

/* DataPageHeader, DictionaryPageHeader or DataPageHeaderV2: each has its values first. */
static void read_typed_head(head *h, tsr_thrift *t, int version)
{
    tsr_thrift_field field = {0};
    h->has_values = true;
    h->is_packed = true;
    while (tsr_thrift_next(t, &field)) {
        if (field.id == 1)
            h->values = tsr_thrift_int(t, &field);
        else if (field.id == (version == 2 ? 4 : 2))
            h->encoding = tsr_thrift_int(t, &field);
        else if (version == 1 && field.id == 3)
            h->def_encoding = tsr_thrift_int(t, &field);
        else if (version == 1 && field.id == 4)
            h->rep_encoding = tsr_thrift_int(t, &field);
        else if (version == 2 && field.id == 5)
            h->def_bytes = tsr_thrift_int(t, &field);
        else if (version == 2 && field.id == 6)
            h->rep_bytes = tsr_thrift_int(t, &field);
        else if (version == 2 && field.id == 7)
            h->is_packed = tsr_thrift_bool(t, &field);
        else
            tsr_thrift_skip(t, field.type);
    }
}

static void parse_head(head *h, tsr_thrift *t)
{
    static const int version_of[] = {[5] = 1, [7] = 0, [8] = 2};
    tsr_thrift_field field = {0};
    *h = (head){.type = -1, .bytes = -1, .packed_bytes = -1};
    h->def_encoding = h->rep_encoding = TSR_PARQUET_ENCODING_RLE;
    while (tsr_thrift_next(t, &field)) {
        if (field.id == 1)
            h->type = tsr_thrift_int(t, &field);
        else if (field.id == 2)
            h->bytes = tsr_thrift_int(t, &field);
        else if (field.id == 3)
            h->packed_bytes = tsr_thrift_int(t, &field);
        else if (field.id == 4) {
            h->crc = tsr_thrift_int(t, &field);
            h->has_crc = true;
        } else if ((field.id == 5 || field.id == 7 || field.id == 8) &&
                   tsr_thrift_struct(t, &field))
            read_typed_head(h, t, version_of[field.id]);
        else
            tsr_thrift_skip(t, field.type);
    }
}

/* The header at chunk->at, which is moved behind it. */
static tsr_status read_head(head *h, tsr_parquet_chunk *chunk, tsr_parquet_shared *file, int node)
{
    uint64_t room = chunk->end - chunk->at;
    for (uint64_t bytes = FIRST_HEAD_BYTES;; bytes *= 8) {
        if (bytes > room)
            bytes = room;
        TSR_TRY(tsr_parquet_reserve(&file->packed, (size_t)bytes, file, node));
        TSR_TRY(tsr_parquet_pread(file->packed.data, (size_t)bytes, chunk->at, file));
        tsr_thrift t = {file->packed.data, file->packed.data + bytes, false, false};
        parse_head(h, &t);
        if (!t.failed) {
            chunk->at += (uint64_t)(t.at - file->packed.data);
            return TSR_OK;
        }
        if (!t.short_of || bytes == room || bytes > MOST_HEAD_BYTES)
            return tsr_parquet_bad(file, node,
                                   "the page header at byte %llu of the file is damaged",
                                   (unsigned long long)chunk->at);
    }
}

static tsr_status check_head(const head *h, const tsr_parquet_chunk *chunk,
                             const tsr_parquet_shared *file, int node)
{
    if (h->bytes < 0 || h->packed_bytes < 0 || h->values < 0 || h->values > INT32_MAX ||
        h->def_bytes < 0 || h->rep_bytes < 0 || (!h->has_values && h->type != INDEX_PAGE) ||
        (uint64_t)h->packed_bytes > chunk->end - chunk->at)
        return tsr_parquet_bad(file, node,
                               "the page header before byte %llu of the file is damaged",
                               (unsigned long long)chunk->at);
    if ((uint64_t)h->bytes > MOST_PAGE_BYTES)
        return tsr_parquet_bad(file, node,
                               "a page holds %lld bytes, at most 256 MiB are read; write the file "
                               "with smaller pages",
                               (long long)h->bytes);
    return TSR_OK;
}

static bool unpack_gzip(uint8_t *out, size_t bytes, const uint8_t *packed, size_t packed_bytes)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)packed,
                  .avail_in = (uInt)packed_bytes,
                  .next_out = out,
                  .avail_out = (uInt)bytes};
    if (inflateInit2(&z, 15 + 32) != Z_OK) /* a gzip or a zlib header */
        return false;
    int result = inflate(&z, Z_FINISH);
    /* Members may follow one another. */
    while (result == Z_STREAM_END && z.avail_in && inflateReset(&z) == Z_OK)
        result = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return result == Z_STREAM_END && z.avail_out == 0;
}

static bool unpack_bytes(uint8_t *out, size_t bytes, const uint8_t *packed, size_t packed_bytes,
                         int64_t codec)
{
    if (codec == SNAPPY)
        return tsr_snappy_unpack(out, bytes, packed, packed_bytes);
    if (codec == GZIP)
        return unpack_gzip(out, bytes, packed, packed_bytes);
    if (codec == ZSTD)
        return ZSTD_decompress(out, bytes, packed, packed_bytes) == bytes;
    if (bytes != packed_bytes)
        return false;
    memcpy(out, packed, bytes);
    return true;
}

static tsr_status check_codec(int64_t codec, const tsr_parquet_shared *file, int node)
{
    static const char *const names[] = {"",       "Snappy", "gzip",      "LZO",
                                        "Brotli", "LZ4",    "Zstandard", "LZ4_RAW"};
    if (codec == UNCOMPRESSED || codec == SNAPPY || codec == GZIP || codec == ZSTD)
        return TSR_OK;
    return tsr_parquet_bad(file, node,
                           "it is packed by %s, which is not read; write the file with Snappy, "
                           "gzip, Zstandard or no compression",
                           codec > 0 && codec <= LZ4_RAW ? names[codec] : "an unknown codec");
}

/* file->packed, whose first `plain` bytes (the levels of version 2) are not packed, into `out`. */
static tsr_status unpack(tsr_parquet_buffer *out, const head *h, size_t plain, int64_t codec,
                         tsr_parquet_shared *file, int node)
{
    const uint8_t *packed = file->packed.data;
    size_t bytes = (size_t)h->bytes, packed_bytes = (size_t)h->packed_bytes;
    /* One byte more: a decoder may be handed no room, but not NULL. */
    TSR_TRY(tsr_parquet_reserve(out, bytes + 1, file, node));
    out->bytes = bytes;
    if (plain <= bytes && plain <= packed_bytes) {
        memcpy(out->data, packed, plain);
        if (bytes == plain && packed_bytes == plain)
            return TSR_OK; /* no values: some writers pack nothing to nothing */
        if (unpack_bytes(out->data + plain, bytes - plain, packed + plain, packed_bytes - plain,
                         h->is_packed ? codec : UNCOMPRESSED))
            return TSR_OK;
    }
    return tsr_parquet_bad(file, node, "a page cannot be unpacked: it is damaged");
}

static tsr_status read_body(const head *h, tsr_parquet_chunk *chunk, tsr_parquet_shared *file,
                            int node)
{
    size_t bytes = (size_t)h->packed_bytes;
    TSR_TRY(tsr_parquet_reserve(&file->packed, bytes + 1, file, node));
    TSR_TRY(tsr_parquet_pread(file->packed.data, bytes, chunk->at, file));
    if (h->has_crc &&
        (uint32_t)h->crc != (uint32_t)crc32_z(crc32_z(0, NULL, 0), file->packed.data, bytes))
        return tsr_parquet_bad(file, node,
                               "the checksum of the page at byte %llu of the file is wrong",
                               (unsigned long long)chunk->at);
    chunk->at += bytes;
    return TSR_OK;
}

tsr_status tsr_parquet_page_read(tsr_parquet_page *page, tsr_parquet_buffer *values,
                                 tsr_parquet_buffer *dictionary, tsr_parquet_chunk *chunk,
                                 tsr_parquet_shared *file, int node)
{
    head h;
    TSR_TRY(check_codec(chunk->codec, file, node));
    for (;;) {
        if (chunk->at == chunk->end)
            return tsr_parquet_bad(file, node, "the column ends before its row group does");
        TSR_TRY(read_head(&h, chunk, file, node));
        TSR_TRY(check_head(&h, chunk, file, node));
        if (h.type == DATA_PAGE || h.type == DICTIONARY_PAGE || h.type == DATA_PAGE_V2)
            break;
        chunk->at += (uint64_t)h.packed_bytes; /* a page of another type */
    }
    /* Where there are no levels, parquet-java names this encoding for them. */
    const tsr_parquet_node *leaf = &file->schema.nodes[node];
    if ((leaf->most_def && h.def_encoding != TSR_PARQUET_ENCODING_RLE) ||
        (leaf->most_rep && h.rep_encoding != TSR_PARQUET_ENCODING_RLE))
        return tsr_parquet_bad(file, node,
                               "its levels are in the encoding BIT_PACKED, which was given up and "
                               "is not read; write the file again with a newer library");
    *page = (tsr_parquet_page){.is_dictionary = h.type == DICTIONARY_PAGE,
                               .values = h.values,
                               .encoding = h.encoding,
                               .version_2 = h.type == DATA_PAGE_V2,
                               .rep_bytes = (uint32_t)h.rep_bytes,
                               .def_bytes = (uint32_t)h.def_bytes};
    page->data = page->is_dictionary ? dictionary : values;
    int64_t levels = page->version_2 ? h.rep_bytes + h.def_bytes : 0;
    if (levels > h.bytes)
        return tsr_parquet_bad(file, node, "the levels of a page are longer than the page");
    TSR_TRY(read_body(&h, chunk, file, node));
    return unpack(page->data, &h, (size_t)levels, chunk->codec, file, node);
}
