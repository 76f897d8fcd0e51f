#include "table/table.h"

#include "io/lfs.h"
#include "io/missing.h"
#include "table/parquet.h"
#include "table/table_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* One of `parquet` and `format` is set. */
struct tsr_table {
    char *path;
    uint64_t bytes; /* of the file */
    tsr_parquet *parquet;
    const tsr_table_format *format;
    tsr_table_text text;
    void *state;
    char place[TSR_TABLE_PLACE_BYTES];
};

static tsr_status cannot_open(const char *path, const char *key)
{
    char hint[TSR_MISSING_BYTES];
    int error = errno;
    return tsr_fail(tsr_status_of_open(error), "%s: %s: %s%s", key, path, strerror(error),
                    tsr_missing_hint(hint, path, error));
}

/* Looked at before it is opened: opening a pipe would wait. */
static tsr_status open_file(int *fd, uint64_t *bytes, const char *path, const char *key)
{
    struct stat about;
    if (stat(path, &about) < 0)
        return cannot_open(path, key);
    if (!S_ISREG(about.st_mode))
        return tsr_fail(TSR_EDATA, "%s: %s is %s, expected a file of rows", key, path,
                        S_ISDIR(about.st_mode) ? "a directory" : "not a regular file");
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return cannot_open(path, key);
    *bytes = (uint64_t)about.st_size;
    return TSR_OK;
}

/* Formats that are recognised by their first bytes, and not read. */
static tsr_status refuse_known(const char *path, const char *data, size_t bytes)
{
    static const struct {
        const char *magic;
        size_t bytes;
        const char *what;
    } known[] = {
        {"PAR1\x15", 5,
         "Parquet inside another packing; unpack it first; Parquet packs its own pages"},
        {"ARROW1", 6, "an Arrow file; write it as Parquet or JSON lines"},
        {"\xFF\xFF\xFF\xFF", 4,
         "an Arrow stream (what datasets' save_to_disk writes); write it with to_parquet or "
         "to_json"},
        {"BZh91AY&SY", 10, "packed by bzip2; unpack it first, or pack it by gzip or Zstandard"},
        {"\xFD\x37zXZ", 5, "packed by xz; unpack it first, or pack it by gzip or Zstandard"},
        {"\x04\x22\x4D\x18", 4, "packed by LZ4; unpack it first, or pack it by gzip or Zstandard"},
        {"PK\x03\x04", 4, "a ZIP archive; unpack it first"},
        {"\x1F\x8B", 2, "packed twice; unpack it first"},
        {"\x28\xB5\x2F\xFD", 4, "packed twice; unpack it first"},
        {"\x89HDF", 4, "an HDF5 file; write it as Parquet or JSON lines"},
        {"SQLite format 3", 15, "an SQLite database; write it as Parquet or JSON lines"},
        {"Obj\x01", 4, "an Avro file; write it as Parquet or JSON lines"},
        {"\xFF\xFE", 2, "text in UTF-16; write it in UTF-8"},
        {"\xFE\xFF", 2, "text in UTF-16; write it in UTF-8"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (bytes >= known[i].bytes && !memcmp(data, known[i].magic, known[i].bytes))
            return tsr_fail(TSR_EDATA, "%s: the file is %s", path, known[i].what);
    return tsr_lfs_refuse(path, data, bytes);
}

/* What the ending of a name says; no format: the first bytes do. */
static const struct {
    const char *ending;
    const tsr_table_format *format;
} endings[] = {
    {".csv", &tsr_table_csv}, {".tsv", &tsr_table_tsv}, {".txt", &tsr_table_plain},
    {".jsonl", NULL},         {".ndjson", NULL},        {".json", NULL},
    {".parquet", NULL},
};

static bool ends_with(const char *name, size_t length, const char *ending)
{
    size_t bytes = strlen(ending);
    return length > bytes && !strncasecmp(name + length - bytes, ending, bytes);
}

/* Which of the endings a name has; -1: none. */
static int find_ending(const char *name)
{
    size_t length = strlen(name);
    if (ends_with(name, length, ".gz"))
        length -= strlen(".gz");
    else if (ends_with(name, length, ".zst"))
        length -= strlen(".zst");
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, length, endings[i].ending))
            return (int)i;
    return -1;
}

bool tsr_table_known_name(const char *name)
{
    return find_ending(name) >= 0;
}

/* Of text: by the ending of the name, then by the first byte. */
static const tsr_table_format *choose_format(const char *path, const char *data, size_t bytes)
{
    int ending = find_ending(path);
    size_t i = 0;
    if (ending >= 0 && endings[ending].format)
        return endings[ending].format;
    while (i < bytes && strchr(" \t\r\n", data[i]) && data[i])
        i++;
    return i < bytes && data[i] == '[' ? &tsr_table_json_array : &tsr_table_json_lines;
}

/* Text may begin with this word too; in Parquet what follows it is Thrift. */
static bool is_parquet(int fd)
{
    char begin[5];
    return pread(fd, begin, sizeof begin, 0) == sizeof begin && !memcmp(begin, "PAR1", 4) &&
           (unsigned char)begin[4] < ' ';
}

static bool is_encrypted(int fd, uint64_t bytes)
{
    char begin[4], end[4];
    return bytes > 8 && pread(fd, begin, 4, 0) == 4 && !memcmp(begin, "PARE", 4) &&
           pread(fd, end, 4, (off_t)bytes - 4) == 4 && !memcmp(end, "PARE", 4);
}

static tsr_status start(tsr_table *t, int fd)
{
    const char *data;
    size_t bytes;
    if (is_parquet(fd))
        return tsr_parquet_open(&t->parquet, fd, t->bytes, t->path);
    t->text.path = t->path;
    bool encrypted = is_encrypted(fd, t->bytes);
    TSR_TRY(tsr_reader_open(&t->text.reader, fd, t->path));
    if (encrypted)
        return tsr_fail(TSR_EDATA, "%s: the Parquet file is encrypted; write it unencrypted",
                        t->path);
    TSR_TRY(tsr_reader_look(&data, &bytes, t->text.reader));
    TSR_TRY(refuse_known(t->path, data, bytes));
    if (ends_with(t->path, strlen(t->path), ".parquet"))
        return tsr_fail(TSR_EDATA,
                        "%s: the file is named as Parquet, but does not begin as one (PAR1): it is "
                        "cut, damaged or something else; download or write it again",
                        t->path);
    t->format = choose_format(t->path, data, bytes);
    return TSR_OK;
}

tsr_status tsr_table_open(tsr_table **out, const char *path, const char *key)
{
    int fd = -1;
    uint64_t bytes = 0;
    TSR_TRY(open_file(&fd, &bytes, path, key));
    tsr_table *t = calloc(1, sizeof *t);
    if (!t || !(t->path = strdup(path))) {
        close(fd);
        free(t);
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", key);
    }
    t->bytes = bytes;
    tsr_status status = start(t, fd);
    if (status < 0) {
        tsr_table_close(t);
        return status;
    }
    *out = t;
    return TSR_OK;
}

void tsr_table_close(tsr_table *t)
{
    if (!t)
        return;
    tsr_parquet_close(t->parquet);
    tsr_reader_close(t->text.reader);
    if (t->format && t->format->free)
        t->format->free(t->state);
    tsr_text_free(&t->text.row);
    free(t->path);
    free(t);
}

tsr_status tsr_table_next(json_t **row, tsr_table *t)
{
    *row = NULL;
    if (t->parquet)
        return tsr_parquet_next(row, t->parquet);
    if (t->text.ended)
        return TSR_OK;
    tsr_status status = t->format->next(row, &t->text, &t->state);
    if (status == TSR_EDATA && tsr_table_is_damaged(t))
        return tsr_fail(TSR_EDATA, "%s: %s", tsr_table_place(t), tsr_reader_damage(t->text.reader));
    return status;
}

bool tsr_table_is_damaged(const tsr_table *t)
{
    return t->text.reader && tsr_reader_damage(t->text.reader);
}

int64_t tsr_table_number(const tsr_table *t)
{
    return t->parquet ? tsr_parquet_row(t->parquet) : t->text.number;
}

const char *tsr_table_place(tsr_table *t)
{
    tsr_table_text text = {.path = t->path, .number = tsr_table_number(t)};
    return tsr_table_show(t->place, &text, t->format && t->format->by_line);
}

int64_t tsr_table_rows(const tsr_table *t)
{
    return t->parquet ? tsr_parquet_rows(t->parquet) : -1;
}

double tsr_table_done(const tsr_table *t)
{
    if (!t->parquet)
        return (double)tsr_reader_done(t->text.reader);
    int64_t rows = tsr_parquet_rows(t->parquet);
    return rows ? (double)t->bytes * (double)tsr_parquet_row(t->parquet) / (double)rows
                : (double)t->bytes;
}
