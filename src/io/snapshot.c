#include "io/snapshot.h"

#include "base/hash.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FORMAT         "tessera-checkpoint"
#define VERSION        1
#define MANIFEST_BYTES (64u << 20)
#define BUFFER_BYTES   (1u << 16) /* a multiple of 8, as the hash wants */
#define CANONICAL      (JSON_SORT_KEYS | JSON_COMPACT)

struct tsr_snapshot {
    json_t *manifest;
    tsr_snapshot_file *file;
    int file_count;
    int64_t step;
    tsr_folder *folder;
};

/* ---- files ---- */

/* `total` tells how far it has come, no more. */
static tsr_status hash_file(uint64_t *bytes, uint64_t *hash, int fd, uint64_t total,
                            const char *path)
{
    char buffer[BUFFER_BYTES];
    *bytes = 0;
    *hash = TSR_HASH_START;
    for (size_t used = 0;;) {
        ssize_t got = read(fd, buffer + used, sizeof buffer - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tsr_fail(TSR_EIO, "%s: reading failed: %s", path, strerror(errno));
        used += (size_t)got;
        if (got > 0 && used < sizeof buffer)
            continue;
        *hash = tsr_hash(*hash, buffer, used);
        *bytes += used;
        tsr_phase_at("hashing", (double)*bytes, (double)total);
        if (got == 0)
            return TSR_OK;
        used = 0;
    }
}

static tsr_status hash_named(uint64_t *bytes, uint64_t *hash, const tsr_folder *folder,
                             const char *name)
{
    char path[PATH_MAX];
    int fd;
    uint64_t total;
    TSR_TRY(tsr_folder_open_read(&fd, &total, folder, name));
    tsr_status status = hash_file(bytes, hash, fd, total, tsr_folder_show(path, folder, name));
    close(fd);
    return status;
}

tsr_status tsr_snapshot_measure(tsr_snapshot_file *out, const tsr_folder *folder, const char *name)
{
    tsr_snapshot_file file = {0};
    if ((size_t)snprintf(file.name, sizeof file.name, "%s", name) >= sizeof file.name)
        return tsr_fail(TSR_EINVAL, "%s: a longer name than a checkpoint's file can have", name);
    tsr_status status = hash_named(&file.bytes, &file.hash, folder, name);
    if (status == TSR_OK)
        *out = file;
    return status == TSR_EDATA ? TSR_EIO : status; /* it was written just now */
}

/* ---- the manifest ---- */

static void put_hex(char out[17], uint64_t value)
{
    snprintf(out, 17, "%016" PRIx64, value);
}

/* Of a manifest without its "hash". */
static tsr_status hash_manifest(uint64_t *out, const json_t *manifest, const char *path)
{
    tsr_auto_text text = {0};
    tsr_status status = tsr_json_put(&text, manifest, CANONICAL, path);
    if (status == TSR_OK)
        *out = tsr_hash(TSR_HASH_START, text.data, text.length);
    return status;
}

static json_t *list_files(const tsr_snapshot_file *files, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        char hash[17];
        put_hex(hash, files[i].hash);
        json_t *entry = json_pack("{s:s, s:I, s:s}", "name", files[i].name, "bytes",
                                  (json_int_t)files[i].bytes, "hash", hash);
        if (json_array_append_new(list, entry) != 0) { /* NULL of either is an error too */
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static tsr_status make_manifest(tsr_text *out, int64_t step, const json_t *state,
                                const tsr_snapshot_file *files, int count, const char *path)
{
    char text[17];
    uint64_t hash = 0;
    json_t *list = list_files(files, count);
    json_auto_t *manifest =
        list ? json_pack("{s:s, s:i, s:I, s:o, s:O}", "format", FORMAT, "version", VERSION, "step",
                         (json_int_t)step, "files", list, "state", (json_t *)state)
             : NULL;
    if (manifest) {
        TSR_TRY(hash_manifest(&hash, manifest, path));
        put_hex(text, hash);
    }
    if (!manifest || json_object_set_new(manifest, "hash", json_string(text)) != 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for it", path);
    return tsr_json_put(out, manifest, JSON_INDENT(1), path);
}

static tsr_status write_manifest(const tsr_folder *folder, int64_t step, const json_t *state,
                                 const tsr_snapshot_file *files, int count)
{
    char path[PATH_MAX];
    tsr_auto_text text = {0};
    tsr_folder_show(path, folder, TSR_SNAPSHOT_MANIFEST);
    TSR_TRY(make_manifest(&text, step, state, files, count, path));
    return tsr_file_write_in(folder, TSR_SNAPSHOT_MANIFEST, text.data, text.length);
}

tsr_status tsr_snapshot_commit(const tsr_folder *parent, int64_t step, const json_t *state,
                               const tsr_snapshot_file *files, int count)
{
    char from[TSR_SNAPSHOT_NAME_BYTES], to[TSR_SNAPSHOT_NAME_BYTES];
    tsr_folder *folder;
    tsr_snapshot_staged_name(from, step);
    tsr_snapshot_name(to, step);
    TSR_TRY(tsr_snapshot_enter(&folder, parent, step));
    tsr_status status = write_manifest(folder, step, state, files, count); /* and all names in it */
    tsr_folder_close(folder);
    TSR_TRY(status);
    TSR_TRY(tsr_folder_rename(parent, from, to));
    return tsr_folder_sync(parent);
}

/* ---- reading ---- */

static bool read_hex(uint64_t *out, const char *text)
{
    char *end = NULL;
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *out = strtoull(text, &end, 16);
    return true;
}

static tsr_status damaged(const char *path, const char *what)
{
    return tsr_fail(
        TSR_EDATA, "%s: %s; this checkpoint is damaged; name another one in resume_from_checkpoint",
        path, what);
}

static tsr_status check_manifest(tsr_snapshot *snapshot, const char *path)
{
    json_t *manifest = snapshot->manifest;
    const char *format;
    int64_t version;
    uint64_t hash = 0, stored;
    TSR_TRY(tsr_json_string(&format, manifest, "format", path));
    TSR_TRY(tsr_json_int(&version, manifest, "version", 0, INT64_MAX, path));
    if (strcmp(format, FORMAT) != 0 || version != VERSION)
        return tsr_fail(TSR_EDATA,
                        "%s: found format '%s' version %" PRId64 ", this program reads '%s' "
                        "version %d",
                        path, format, version, FORMAT, VERSION);
    if (!read_hex(&stored, json_string_value(json_object_get(manifest, "hash"))))
        return damaged(path, "it has no hash of 16 digits");
    json_object_del(manifest, "hash");
    TSR_TRY(hash_manifest(&hash, manifest, path));
    if (hash != stored)
        return damaged(path, "its content does not match its own hash");
    TSR_TRY(tsr_json_int(&snapshot->step, manifest, "step", 0, INT64_MAX, path));
    json_t *state;
    return tsr_json_object(&state, manifest, "state", path);
}

static tsr_status read_file_entry(tsr_snapshot_file *out, const json_t *entry,
                                  const tsr_snapshot *snapshot, const char *place)
{
    const char *name;
    char path[PATH_MAX], what[128];
    int64_t bytes;
    struct stat info;
    TSR_TRY(tsr_json_string(&name, entry, "name", place));
    TSR_TRY(tsr_json_int(&bytes, entry, "bytes", 0, INT64_MAX, place));
    if (!read_hex(&out->hash, json_string_value(json_object_get(entry, "hash"))) ||
        strchr(name, '/') || !*name || strlen(name) >= sizeof out->name)
        return damaged(place, "a file name or hash in it is invalid");
    strcpy(out->name, name);
    out->bytes = (uint64_t)bytes;
    tsr_folder_show(path, snapshot->folder, name);
    if (!tsr_folder_stat(&info, snapshot->folder, name))
        return damaged(path, "the file is missing");
    if (!S_ISREG(info.st_mode))
        return damaged(path, "it is no file");
    if ((uint64_t)info.st_size == out->bytes)
        return TSR_OK;
    snprintf(what, sizeof what, "it has %lld bytes, its manifest says %lld",
             (long long)info.st_size, (long long)bytes);
    return damaged(path, what);
}

static tsr_status read_manifest(tsr_snapshot *snapshot)
{
    char path[PATH_MAX], *text;
    uint64_t bytes;
    json_t *list;
    struct stat info;
    tsr_folder_show(path, snapshot->folder, TSR_SNAPSHOT_MANIFEST);
    if (!tsr_folder_stat(&info, snapshot->folder, TSR_SNAPSHOT_MANIFEST))
        return tsr_fail(TSR_EDATA,
                        "%s: No such file: %s is not a checkpoint; name the directory "
                        "checkpoint-<step> of a run",
                        path, tsr_snapshot_directory(snapshot));
    TSR_TRY(
        tsr_file_read_in(&text, &bytes, snapshot->folder, TSR_SNAPSHOT_MANIFEST, MANIFEST_BYTES));
    tsr_status status = tsr_json_parse(&snapshot->manifest, text, bytes, path);
    free(text);
    TSR_TRY(status);
    if (!json_is_object(snapshot->manifest))
        return damaged(path, "it is no object");
    TSR_TRY(check_manifest(snapshot, path));
    TSR_TRY(tsr_json_array(&list, snapshot->manifest, "files", path));
    snapshot->file = calloc(json_array_size(list) + 1, sizeof *snapshot->file);
    if (!snapshot->file)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its %zu files", path, json_array_size(list));
    snapshot->file_count = (int)json_array_size(list);
    for (int i = 0; i < snapshot->file_count; i++)
        TSR_TRY(
            read_file_entry(&snapshot->file[i], json_array_get(list, (size_t)i), snapshot, path));
    return TSR_OK;
}

/* Takes the folder; NULL: nothing has the name. */
static tsr_status open_folder(tsr_snapshot **out, tsr_folder *folder, const char *name)
{
    if (!folder)
        return tsr_fail(TSR_EDATA,
                        "%s: No such file or directory; name the directory checkpoint-<step> of a "
                        "run",
                        name);
    tsr_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot) {
        tsr_folder_close(folder);
        return tsr_fail(TSR_ENOMEM, "%s: no memory to open it", name);
    }
    snapshot->folder = folder;
    tsr_status status = read_manifest(snapshot);
    if (status < 0) {
        tsr_snapshot_close(snapshot);
        return status;
    }
    *out = snapshot;
    return TSR_OK;
}

tsr_status tsr_snapshot_open(tsr_snapshot **out, const char *path)
{
    tsr_folder *folder;
    TSR_TRY(tsr_folder_open(&folder, path));
    return open_folder(out, folder, path);
}

tsr_status tsr_snapshot_open_in(tsr_snapshot **out, const tsr_folder *parent, const char *name)
{
    tsr_folder *folder;
    TSR_TRY(tsr_folder_enter(&folder, parent, name));
    return open_folder(out, folder, name);
}

void tsr_snapshot_close(tsr_snapshot *snapshot)
{
    if (!snapshot)
        return;
    json_decref(snapshot->manifest);
    tsr_folder_close(snapshot->folder);
    free(snapshot->file);
    free(snapshot);
}

const tsr_folder *tsr_snapshot_folder(const tsr_snapshot *snapshot)
{
    return snapshot->folder;
}

const char *tsr_snapshot_directory(const tsr_snapshot *snapshot)
{
    return tsr_folder_path(snapshot->folder);
}

int64_t tsr_snapshot_step(const tsr_snapshot *snapshot)
{
    return snapshot->step;
}

const json_t *tsr_snapshot_state(const tsr_snapshot *snapshot)
{
    return json_object_get(snapshot->manifest, "state");
}

int tsr_snapshot_file_count(const tsr_snapshot *snapshot)
{
    return snapshot->file_count;
}

const tsr_snapshot_file *tsr_snapshot_file_at(const tsr_snapshot *snapshot, int index)
{
    return &snapshot->file[index];
}

tsr_status tsr_snapshot_verify(const tsr_snapshot *snapshot, int index)
{
    const tsr_snapshot_file *file = &snapshot->file[index];
    uint64_t bytes, hash = 0;
    char path[PATH_MAX], what[128];
    TSR_TRY(hash_named(&bytes, &hash, snapshot->folder, file->name));
    if (bytes == file->bytes && hash == file->hash)
        return TSR_OK;
    snprintf(what, sizeof what,
             "the hash of its content is %016" PRIx64 ", its manifest says %016" PRIx64, hash,
             file->hash);
    return damaged(tsr_folder_show(path, snapshot->folder, file->name), what);
}
