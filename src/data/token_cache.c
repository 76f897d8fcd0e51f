#include "data/token_cache.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/regex.h"
#include "base/unicode.h"
#include "base/version.h"
#include "io/file.h"
#include "io/user_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MOST_BYTES   ((uint64_t)10 << 30)
#define BLOCK_BYTES  64 /* sections begin at multiples */
#define BUFFER_BYTES ((uint64_t)1 << 20)
#define RACY_SECONDS 2 /* a file that was written so lately could change without a new time */

/* What decides whether a file of rows is as it was. */
typedef struct {
    int64_t bytes, modified_s, modified_ns, changed_s, changed_ns;
    uint64_t device, inode, hash;
} record;

enum { WORDS, SAMPLES, REST, KEY, FILES, SECTIONS };

typedef struct {
    char magic[16];
    uint64_t bytes[SECTIONS], hash;
} footer;

static const char magic[16] = "tessera tokens\n3";
_Static_assert(sizeof(footer) == BLOCK_BYTES, "the last block of a file");

/* A hash of blocks: eight sums side by side, so that it is as fast as memory. */
typedef struct {
    uint64_t lane[8];
} sums;

struct tsr_token_cache {
    const tsr_dataset_options *options;
    tsr_folder *folder;
    tsr_text key;
    record *files; /* as they were before they were read */
    char name[64], path[PATH_MAX];
    int fd; /* of what is mapped, for its lock; -1: none */
    void *map;
    uint64_t map_bytes;
    /* of what is written */
    tsr_file *file;
    char *buffer;
    uint64_t used, at; /* bytes in the buffer, and in the file */
    sums sums;
    footer end;
};

/* ---- hash ---- */

static void add_blocks(sums *s, const void *data, uint64_t bytes)
{
    const char *at = data;
    for (; bytes >= BLOCK_BYTES; bytes -= BLOCK_BYTES, at += BLOCK_BYTES) {
        uint64_t word[8];
        memcpy(word, at, sizeof word);
        for (int i = 0; i < 8; i++) { /* each step can be undone: no change of a word is lost */
            uint64_t x = (s->lane[i] ^ word[i]) * 0x9e3779b97f4a7c15u;
            s->lane[i] = x ^ x >> 29;
        }
    }
}

static uint64_t sum_up(const sums *s, const footer *end)
{
    uint64_t hash = tsr_hash(TSR_HASH_START, s->lane, sizeof s->lane);
    return tsr_hash(hash, end->bytes, sizeof end->bytes);
}

/* Of bytes [0, bytes) of a file; the last block is filled with zeros. */
static tsr_status hash_file(sums *s, int fd, uint64_t bytes, const char *path)
{
    char *buffer = malloc(BUFFER_BYTES);
    tsr_status status = buffer ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory to read %s", path);
    *s = (sums){{0}};
    for (uint64_t at = 0, got; at < bytes && status == TSR_OK; at += got) {
        uint64_t want = bytes - at < BUFFER_BYTES ? bytes - at : BUFFER_BYTES;
        for (got = 0; got < want;) {
            ssize_t more = pread(fd, buffer + got, want - got, (off_t)(at + got));
            if (more < 0 && errno == EINTR)
                continue;
            if (more <= 0) {
                status = tsr_fail(TSR_EIO, "%s: reading failed: %s", path,
                                  more ? strerror(errno) : "it became shorter");
                break;
            }
            got += (uint64_t)more;
        }
        uint64_t full = (got + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
        memset(buffer + got, 0, full - got);
        add_blocks(s, buffer, full);
    }
    free(buffer);
    return status;
}

/* ---- the files of rows ---- */

static bool look_at(record *out, const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0)
        return false;
    *out = (record){.bytes = s.st_size,
                    .modified_s = s.st_mtim.tv_sec,
                    .modified_ns = s.st_mtim.tv_nsec,
                    .changed_s = s.st_ctim.tv_sec,
                    .changed_ns = s.st_ctim.tv_nsec,
                    .device = (uint64_t)s.st_dev,
                    .inode = (uint64_t)s.st_ino};
    return true;
}

static bool same_look(const record *a, const record *b)
{
    return !memcmp(a, b, offsetof(record, hash));
}

static tsr_status hash_rows(uint64_t *hash, const char *path)
{
    int fd;
    uint64_t bytes;
    sums s;
    TSR_TRY(tsr_folder_open_read(&fd, &bytes, NULL, path));
    tsr_status status = hash_file(&s, fd, bytes, path);
    close(fd);
    *hash = tsr_hash(tsr_hash(TSR_HASH_START, &s, sizeof s), &bytes, sizeof bytes);
    return status;
}

/* Whether a file is what it was when `then` was made. */
static bool unchanged(const record *now, const record *then, const char *path)
{
    uint64_t hash;
    if (now->bytes != then->bytes)
        return false;
    return same_look(now, then) || (hash_rows(&hash, path) == TSR_OK && hash == then->hash);
}

/* Completes the records once the files were read. */
static tsr_status finish_records(tsr_token_cache *cache)
{
    const tsr_dataset_options *o = cache->options;
    for (int i = 0; i < o->file_count; i++) {
        record now, *then = &cache->files[i];
        TSR_TRY(hash_rows(&then->hash, o->files[i]));
        if (!look_at(&now, o->files[i]) || !same_look(&now, then))
            return tsr_fail(TSR_EIO, "%s has changed while it was read", o->files[i]);
        int64_t latest = then->modified_s > then->changed_s ? then->modified_s : then->changed_s;
        if (latest + RACY_SECONDS >= (int64_t)time(NULL))
            then->modified_ns = -1; /* which no file has: its content decides */
    }
    return TSR_OK;
}

/* ---- the key ---- */

static void put_renames(tsr_text *out, const char *what, const tsr_rename *renames, int count)
{
    for (int i = 0; i < count; i++)
        tsr_text_printf(out, "%s %s to %s %d\n", what, renames[i].from, renames[i].to,
                        renames[i].optional);
}

static void put_columns(tsr_text *out, const tsr_columns *c)
{
    put_renames(out, "column", c->columns, c->column_count);
    put_renames(out, "member", c->members, c->member_count);
    put_renames(out, "role", c->roles, c->role_count);
    tsr_text_printf(out, "list %s role %s chat %d pairs %d %d %d %d %d %d\n",
                    c->list ? c->list : "", c->role ? c->role : "", c->chat, c->pairs, c->asks,
                    c->names_prompt, c->names_system, c->names_input, c->names_history);
}

static void put_key(tsr_text *out, tsr_data_format format, const tsr_dataset_options *o)
{
    const tsr_tokenizer *tokenizer = o->chat ? tsr_chat_tokenizer(o->chat) : o->tokenizer;
    tsr_text_printf(out, "tessera %s %s %s %s\n", tsr_build_version(), tsr_build_commit(),
                    tsr_regex_library(), tsr_unicode_library());
    tsr_text_printf(out, "format %d text %s loss %d %d\n", format,
                    o->text_field ? o->text_field : "text", o->assistant_only, o->completion_only);
    tsr_text_printf(out, "pairs %d %d begin %s\n", o->pairs, o->bare_conversations,
                    o->answer_begin ? o->answer_begin : "");
    tsr_text_printf(out, "roles %u ends %d drop %d\n", o->training.roles, o->training.ends,
                    o->drop_system);
    tsr_text_printf(out, "system %d %s response %d %s\n", o->default_system != NULL,
                    o->default_system ? o->default_system : "", o->response_template != NULL,
                    o->response_template ? o->response_template : "");
    tsr_text_printf(out, "length %lld %d vocabulary %lld rows %lld %lld\n",
                    (long long)o->max_length, o->truncation, (long long)o->vocab_size,
                    (long long)o->skip_rows, (long long)o->max_rows);
    if (o->columns)
        put_columns(out, o->columns);
    tsr_text_printf(out, "tokenizer %016" PRIx64 " eos %d pad %d chat %016" PRIx64 "\n",
                    tokenizer ? tsr_tokenizer_hash(tokenizer) : 0, o->eos_id, o->pad,
                    o->chat ? tsr_chat_hash(o->chat) : 0);
    for (int i = 0; i < o->file_count; i++) {
        char *path = realpath(o->files[i], NULL);
        tsr_text_puts(out, path ? path : o->files[i]);
        tsr_text_append(out, "", 1);
        free(path);
    }
}

/* ---- life ---- */

void tsr_token_cache_give_up(const tsr_dataset_options *options)
{
    tsr_log(TSR_LOG_WARNING,
            "dataset_cache: %s; the data are tokenized anew at each start (name a directory for "
            "the cache, or write dataset_cache: false)",
            tsr_last_error());
    options->cache->failed = true;
}

static tsr_status open_folder(tsr_folder **out, const char *directory)
{
    if (!*directory)
        return tsr_fail(TSR_EIO, "neither XDG_CACHE_HOME nor HOME is the path of a directory");
    tsr_user_cache_make(directory);
    TSR_TRY(tsr_folder_open(out, directory));
    return *out ? TSR_OK : tsr_fail(TSR_EIO, "%s cannot be made", directory);
}

static tsr_status open_cache(tsr_token_cache *cache, tsr_data_format format)
{
    const tsr_dataset_options *o = cache->options;
    put_key(&cache->key, format, o);
    if (cache->key.failed)
        return tsr_fail(TSR_ENOMEM, "no memory for a data set's key");
    snprintf(cache->name, sizeof cache->name, "tokens-%016" PRIx64 ".bin",
             tsr_hash(TSR_HASH_START, cache->key.data, cache->key.length));
    TSR_TRY(open_folder(&cache->folder, o->cache->directory));
    tsr_folder_show(cache->path, cache->folder, cache->name);
    return TSR_OK;
}

/* Whether the data are worth it. */
static bool enough(record *files, const tsr_dataset_options *o)
{
    uint64_t bytes = 0;
    for (int i = 0; i < o->file_count; i++) {
        if (!look_at(&files[i], o->files[i]))
            return false; /* opening it says why */
        bytes += (uint64_t)files[i].bytes;
    }
    return bytes >= o->cache->least_bytes;
}

tsr_status tsr_token_cache_open(tsr_token_cache **out, tsr_data_format format,
                                const tsr_dataset_options *options)
{
    *out = NULL;
    if (!options->cache || options->cache->failed || options->rows.next)
        return TSR_OK;
    tsr_token_cache *cache = calloc(1, sizeof *cache);
    record *files = calloc((size_t)options->file_count, sizeof *files);
    if (!cache || !files) {
        free(cache);
        free(files);
        return tsr_fail(TSR_ENOMEM, "no memory for a data set's cache");
    }
    *cache = (tsr_token_cache){.options = options, .files = files, .fd = -1};
    bool wanted = enough(files, options);
    tsr_status status = wanted ? open_cache(cache, format) : TSR_OK;
    if (status < 0 && status != TSR_ENOMEM)
        tsr_token_cache_give_up(options);
    if (wanted && status == TSR_OK) {
        *out = cache;
        return TSR_OK;
    }
    tsr_token_cache_close(cache);
    return status == TSR_ENOMEM ? status : TSR_OK;
}

static void unmap(tsr_token_cache *cache)
{
    if (cache->map)
        munmap(cache->map, cache->map_bytes);
    if (cache->fd >= 0)
        close(cache->fd);
    cache->map = NULL;
    cache->fd = -1;
}

/* What is written is dropped. */
static void stop_writing(tsr_token_cache *cache)
{
    tsr_file_discard(cache->file);
    free(cache->buffer);
    cache->file = NULL;
    cache->buffer = NULL;
}

void tsr_token_cache_close(tsr_token_cache *cache)
{
    if (!cache)
        return;
    stop_writing(cache);
    unmap(cache);
    tsr_folder_close(cache->folder);
    tsr_text_free(&cache->key);
    free(cache->files);
    free(cache);
}

const char *tsr_token_cache_path(const tsr_token_cache *cache)
{
    return cache->path;
}

/* ---- reading ---- */

static uint64_t padded(uint64_t bytes)
{
    return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

/* Where section `which` begins; SECTIONS: the footer. False: the sizes are none of a file of `bytes`. */
static bool find_section(uint64_t *at, const footer *end, int which, uint64_t bytes)
{
    *at = 0;
    for (int i = 0; i < which; i++) {
        if (end->bytes[i] > bytes || *at > bytes)
            return false;
        *at += padded(end->bytes[i]);
    }
    return *at <= bytes;
}

static tsr_status damaged(const char *what)
{
    return tsr_fail(TSR_EDATA, "%s", what);
}

static tsr_status map_file(tsr_token_cache *cache, int fd, uint64_t bytes)
{
    void *map = bytes ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (map == MAP_FAILED)
        return tsr_fail(TSR_EIO, "%s cannot be mapped: %s", cache->path,
                        bytes ? strerror(errno) : "it is empty");
    cache->map = map;
    cache->map_bytes = bytes;
    return TSR_OK;
}

/* A file that is open: its length and its hash. */
static tsr_status check_file(tsr_token_cache *cache, uint64_t bytes)
{
    footer *end = &cache->end;
    uint64_t at;
    sums s;
    if (bytes < sizeof *end || bytes % BLOCK_BYTES ||
        pread(cache->fd, end, sizeof *end, (off_t)(bytes - sizeof *end)) != sizeof *end ||
        memcmp(end->magic, magic, sizeof magic) != 0)
        return damaged("it does not end as it was written");
    if (!find_section(&at, end, SECTIONS, bytes - sizeof *end) || at != bytes - sizeof *end)
        return damaged("its length is not that of its parts");
    TSR_TRY(hash_file(&s, cache->fd, at, cache->path));
    return sum_up(&s, end) == end->hash ? TSR_OK : damaged("its hash is another");
}

static const void *section(const tsr_token_cache *cache, int which)
{
    uint64_t at;
    find_section(&at, &cache->end, which, cache->map_bytes);
    return (const char *)cache->map + at;
}

/* Whether what is mapped is of these rows. */
static bool is_current(const tsr_token_cache *cache)
{
    const tsr_dataset_options *o = cache->options;
    const uint64_t *bytes = cache->end.bytes;
    const record *files = section(cache, FILES);
    if (bytes[KEY] != cache->key.length ||
        memcmp(section(cache, KEY), cache->key.data, cache->key.length) != 0 ||
        bytes[FILES] != (uint64_t)o->file_count * sizeof *files)
        return false;
    for (int i = 0; i < o->file_count; i++)
        if (!unchanged(&cache->files[i], &files[i], o->files[i])) {
            tsr_log(TSR_LOG_INFO, "%s has changed since it was tokenized: it is done anew",
                    o->files[i]);
            return false;
        }
    return true;
}

static void describe(tsr_token_parts *out, const tsr_token_cache *cache)
{
    *out = (tsr_token_parts){.words = section(cache, WORDS),
                             .samples = section(cache, SAMPLES),
                             .rest = section(cache, REST),
                             .word_count = cache->end.bytes[WORDS] / sizeof *out->words,
                             .sample_bytes = cache->end.bytes[SAMPLES],
                             .rest_bytes = cache->end.bytes[REST],
                             .file_bytes = cache->map_bytes};
}

bool tsr_token_cache_read(tsr_token_parts *out, tsr_token_cache *cache)
{
    struct stat info;
    uint64_t bytes;
    if (!tsr_folder_stat(&info, cache->folder, cache->name) || !S_ISREG(info.st_mode) ||
        info.st_uid != geteuid() ||
        tsr_folder_open_read(&cache->fd, &bytes, cache->folder, cache->name) < 0)
        return false;
    flock(cache->fd, LOCK_SH | LOCK_NB); /* not removed while it is used */
    tsr_status status = check_file(cache, bytes);
    if (status == TSR_OK)
        status = map_file(cache, cache->fd, bytes);
    if (status == TSR_OK && is_current(cache)) {
        describe(out, cache);
        futimens(cache->fd, NULL); /* used last */
        return true;
    }
    if (status < 0)
        tsr_log(TSR_LOG_WARNING, "%s: %s; it is made anew", cache->path, tsr_last_error());
    if (status == TSR_EDATA)
        (void)tsr_folder_remove(cache->folder, cache->name);
    unmap(cache);
    return false;
}

/* ---- writing ---- */

static mode_t type_of(const char *name)
{
    unsigned long long hash;
    int length = 0;
    return sscanf(name, "tokens-%16llx.bin%n", &hash, &length) == 1 && length && !name[length]
               ? S_IFREG
               : 0;
}

tsr_status tsr_token_cache_begin(tsr_token_cache *cache)
{
    cache->buffer = malloc(BUFFER_BYTES);
    if (!cache->buffer)
        return tsr_fail(TSR_ENOMEM, "no memory to write %s", cache->path);
    cache->used = cache->at = 0;
    cache->sums = (sums){{0}};
    memcpy(cache->end.magic, magic, sizeof magic);
    (void)tsr_file_tidy(cache->folder, type_of);
    return tsr_file_stage(&cache->file, cache->folder, cache->name);
}

/* What all caches of the directory may take. */
static uint64_t most_bytes(const tsr_token_cache *cache)
{
    uint64_t most = cache->options->cache->most_bytes;
    return most ? most : MOST_BYTES;
}

static tsr_status flush(tsr_token_cache *cache)
{
    if (cache->at > most_bytes(cache))
        return tsr_fail(TSR_EIO, "the tokens take more than the cache's %.4g GiB",
                        (double)most_bytes(cache) / 0x1p30);
    add_blocks(&cache->sums, cache->buffer, cache->used);
    TSR_TRY(tsr_file_append(cache->file, cache->buffer, cache->used));
    cache->used = 0;
    return TSR_OK;
}

static tsr_status put(tsr_token_cache *cache, const void *data, uint64_t bytes)
{
    const char *from = data;
    while (bytes) {
        uint64_t room = BUFFER_BYTES - cache->used, part = bytes < room ? bytes : room;
        memcpy(cache->buffer + cache->used, from, part);
        cache->used += part;
        cache->at += part;
        from += part;
        bytes -= part;
        if (cache->used == BUFFER_BYTES)
            TSR_TRY(flush(cache));
    }
    return TSR_OK;
}

static tsr_status end_section(tsr_token_cache *cache, int which, uint64_t bytes)
{
    static const char zeros[BLOCK_BYTES];
    cache->end.bytes[which] = bytes;
    return put(cache, zeros, padded(bytes) - bytes);
}

static tsr_status put_section(tsr_token_cache *cache, int which, const void *data, uint64_t bytes)
{
    TSR_TRY(put(cache, data, bytes));
    return end_section(cache, which, bytes);
}

tsr_status tsr_token_cache_append(tsr_token_cache *cache, const int32_t *words, uint64_t count)
{
    return put(cache, words, count * sizeof *words);
}

tsr_status tsr_token_cache_look(tsr_token_parts *out, tsr_token_cache *cache, const void *samples,
                                uint64_t bytes)
{
    TSR_TRY(end_section(cache, WORDS, cache->at));
    TSR_TRY(put_section(cache, SAMPLES, samples, bytes));
    TSR_TRY(flush(cache));
    cache->end.bytes[REST] = 0;
    TSR_TRY(map_file(cache, tsr_file_descriptor(cache->file), cache->at));
    describe(out, cache);
    return TSR_OK;
}

/* Removes a file unless somebody has it mapped. */
static bool remove_unused(const tsr_folder *folder, const char *name)
{
    int fd = tsr_folder_reach(folder, name);
    tsr_hold hold = fd < 0 ? TSR_LOST : tsr_folder_hold(folder, name, fd);
    bool removed =
        (hold == TSR_HELD || hold == TSR_UNLOCKED) && tsr_folder_remove(folder, name) == TSR_OK;
    if (fd >= 0)
        close(fd);
    return removed;
}

static bool is_older(const struct stat *a, const struct stat *b)
{
    return a->st_mtim.tv_sec != b->st_mtim.tv_sec ? a->st_mtim.tv_sec < b->st_mtim.tv_sec
                                                  : a->st_mtim.tv_nsec < b->st_mtim.tv_nsec;
}

/* The oldest of those that are younger than *after, and what all take together. */
static bool find_oldest(char name[NAME_MAX + 1], struct stat *after, uint64_t *total,
                        const tsr_token_cache *cache)
{
    tsr_auto_dir *entries = NULL;
    struct stat info, oldest;
    bool found = false;
    *total = 0;
    if (tsr_folder_list(&entries, cache->folder) < 0)
        return false;
    for (const char *entry; (entry = tsr_folder_next(entries));) {
        if (!type_of(entry) || !tsr_folder_stat(&info, cache->folder, entry))
            continue;
        *total += (uint64_t)info.st_size;
        if (!strcmp(entry, cache->name) || !is_older(after, &info) ||
            (found && !is_older(&info, &oldest)))
            continue;
        found = true;
        oldest = info;
        snprintf(name, NAME_MAX + 1, "%s", entry);
    }
    if (found)
        *after = oldest;
    return found;
}

static void make_room(const tsr_token_cache *cache)
{
    char name[NAME_MAX + 1];
    uint64_t total;
    struct stat after = {0};
    while (find_oldest(name, &after, &total, cache) && total > most_bytes(cache))
        (void)remove_unused(cache->folder, name);
}

static tsr_status publish(tsr_token_cache *cache, const void *rest, uint64_t bytes)
{
    TSR_TRY(finish_records(cache));
    TSR_TRY(put_section(cache, REST, rest, bytes));
    TSR_TRY(put_section(cache, KEY, cache->key.data, cache->key.length));
    TSR_TRY(put_section(cache, FILES, cache->files,
                        (uint64_t)cache->options->file_count * sizeof *cache->files));
    TSR_TRY(flush(cache));
    cache->end.hash = sum_up(&cache->sums, &cache->end);
    TSR_TRY(tsr_file_append(cache->file, &cache->end, sizeof cache->end));
    return tsr_file_publish(cache->file);
}

tsr_status tsr_token_cache_publish(tsr_token_cache *cache, const void *rest, uint64_t bytes)
{
    unmap(cache);
    tsr_status status = publish(cache, rest, bytes);
    stop_writing(cache);
    if (status == TSR_OK)
        make_room(cache);
    return status;
}
