#include "table/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define BUFFER_BYTES     (128 << 10)
#define GZIP_WINDOW_BITS (15 + 16) /* zlib: the largest window, and a gzip header */

typedef enum { PLAIN, GZIP, ZSTANDARD } packing;

struct tsr_reader {
    int fd;
    const char *path;
    packing packing;
    uint64_t offset;     /* in the file, of the end of `packed` */
    size_t at, end;      /* of `packed`: what is not unpacked yet */
    size_t taken, ready; /* of `data`: what the caller has not taken */
    bool file_ended;     /* nothing comes behind `packed` */
    bool between;        /* gzip members, Zstandard frames: the file may end here */
    bool gzip_open;
    z_stream gzip;
    char damage[192]; /* "": none */
    bool said;        /* it was reported, behind what could be unpacked */
    ZSTD_DCtx *zstandard;
    char packed[BUFFER_BYTES], data[BUFFER_BYTES];
};

static tsr_status damaged(tsr_reader *r, const char *what)
{
    snprintf(r->damage, sizeof r->damage, "the %s stream is damaged at byte %llu of the file: %s",
             tsr_reader_packing(r), (unsigned long long)(r->offset - (r->end - r->at)), what);
    return tsr_fail(TSR_EDATA, "%s: %s", r->path, r->damage);
}

/* Reads until `into` is full or the file ends. */
static tsr_status read_file(size_t *bytes, tsr_reader *r, char *into)
{
    *bytes = 0;
    while (*bytes < BUFFER_BYTES && !r->file_ended) {
        ssize_t got = read(r->fd, into + *bytes, BUFFER_BYTES - *bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tsr_fail(TSR_EIO, "%s: reading failed: %s", r->path, strerror(errno));
        r->file_ended = got == 0;
        *bytes += (size_t)got;
    }
    r->offset += *bytes;
    return TSR_OK;
}

static tsr_status unpack_gzip(tsr_reader *r)
{
    if (r->between) {
        /* Zeros may fill up the last block of a tape. */
        while (r->at < r->end && !r->packed[r->at])
            r->at++;
        if (r->at == r->end)
            return TSR_OK;
        inflateReset(&r->gzip);
        r->between = false;
    }
    r->gzip.next_in = (Bytef *)r->packed + r->at;
    r->gzip.avail_in = (uInt)(r->end - r->at);
    r->gzip.next_out = (Bytef *)r->data + r->ready;
    r->gzip.avail_out = (uInt)(BUFFER_BYTES - r->ready);
    int result = inflate(&r->gzip, Z_NO_FLUSH);
    r->at = r->end - r->gzip.avail_in;
    r->ready = BUFFER_BYTES - r->gzip.avail_out;
    r->between = result == Z_STREAM_END;
    if (result == Z_MEM_ERROR)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to unpack it", r->path);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return damaged(r, r->gzip.msg ? r->gzip.msg : "this is not gzip");
    return TSR_OK;
}

static tsr_status unpack_zstandard(tsr_reader *r)
{
    ZSTD_inBuffer in = {r->packed, r->end, r->at};
    ZSTD_outBuffer out = {r->data, BUFFER_BYTES, r->ready};
    size_t result = ZSTD_decompressStream(r->zstandard, &out, &in);
    if (ZSTD_isError(result))
        return damaged(r, ZSTD_getErrorName(result));
    r->between = result == 0;
    r->at = in.pos;
    r->ready = out.pos;
    return TSR_OK;
}

/* Unpacks until `data` is full. */
static tsr_status unpack(tsr_reader *r)
{
    while (r->ready < BUFFER_BYTES) {
        if (r->at == r->end && !r->file_ended) {
            r->at = 0;
            TSR_TRY(read_file(&r->end, r, r->packed));
        }
        bool last = r->at == r->end;
        size_t before = r->ready;
        if (last && r->between)
            return TSR_OK;
        TSR_TRY(r->packing == GZIP ? unpack_gzip(r) : unpack_zstandard(r));
        if (last && r->ready == before && !r->between)
            return damaged(r, "the file ends before the stream does");
    }
    return TSR_OK;
}

/* Fills `data`, from which everything was taken. What could be unpacked before damage comes first. */
static tsr_status fill(tsr_reader *r)
{
    r->taken = r->ready = 0;
    if (r->packing == PLAIN)
        return read_file(&r->ready, r, r->data);
    tsr_status status = r->damage[0] ? TSR_EDATA : unpack(r);
    if (status == TSR_EDATA && r->ready)
        return TSR_OK;
    r->said = status == TSR_EDATA;
    return r->said ? tsr_fail(TSR_EDATA, "%s: %s", r->path, r->damage) : status;
}

/* What is in `packed` decides, or is handed out as it is. */
static tsr_status start(tsr_reader *r)
{
    TSR_TRY(read_file(&r->end, r, r->packed));
    const unsigned char *p = (const unsigned char *)r->packed;
    if (r->end >= 2 && p[0] == 0x1F && p[1] == 0x8B) {
        r->packing = GZIP;
        if (inflateInit2(&r->gzip, GZIP_WINDOW_BITS) != Z_OK)
            return tsr_fail(TSR_ENOMEM, "%s: no memory to unpack it", r->path);
        r->gzip_open = true;
    } else if (r->end >= 4 &&
               (!memcmp(p, "\x28\xB5\x2F\xFD", 4) ||
                ((p[0] & 0xF0) == 0x50 && !memcmp(p + 1, "\x2A\x4D\x18", 3)))) { /* skippable */
        r->packing = ZSTANDARD;
        r->zstandard = ZSTD_createDCtx();
        if (!r->zstandard)
            return tsr_fail(TSR_ENOMEM, "%s: no memory to unpack it", r->path);
    } else {
        memcpy(r->data, r->packed, r->end);
        r->at = r->ready = r->end;
    }
    const char *data;
    size_t bytes;
    TSR_TRY(tsr_reader_look(&data, &bytes, r));
    if (bytes >= 3 && !memcmp(data, "\xEF\xBB\xBF", 3))
        tsr_reader_take(r, 3);
    return TSR_OK;
}

tsr_status tsr_reader_open(tsr_reader **out, int fd, const char *path)
{
    tsr_reader *r = calloc(1, sizeof *r);
    if (!r) {
        close(fd);
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", path);
    }
    r->fd = fd;
    r->path = path;
    tsr_status status = start(r);
    if (status < 0) {
        tsr_reader_close(r);
        return status;
    }
    *out = r;
    return TSR_OK;
}

void tsr_reader_close(tsr_reader *r)
{
    if (!r)
        return;
    if (r->gzip_open)
        inflateEnd(&r->gzip);
    ZSTD_freeDCtx(r->zstandard);
    close(r->fd);
    free(r);
}

tsr_status tsr_reader_look(const char **data, size_t *bytes, tsr_reader *r)
{
    if (r->taken == r->ready)
        TSR_TRY(fill(r));
    *data = r->data + r->taken;
    *bytes = r->ready - r->taken;
    return TSR_OK;
}

void tsr_reader_take(tsr_reader *r, size_t bytes)
{
    r->taken += bytes;
}

const char *tsr_reader_packing(const tsr_reader *r)
{
    static const char *const names[] = {NULL, "gzip", "Zstandard"};
    return names[r->packing];
}

const char *tsr_reader_damage(const tsr_reader *r)
{
    return r->said ? r->damage : NULL;
}

uint64_t tsr_reader_done(const tsr_reader *r)
{
    size_t ahead = r->packing == PLAIN ? r->ready - r->taken : r->end - r->at;
    return r->offset - ahead;
}
