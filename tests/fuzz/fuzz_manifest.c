/*
 * A checkpoint's manifest. Where the input is an object it gets the hash that fits its content, as only then the
 * rest of it is looked at; the only file beside it is an empty one, `f`.
 */
#include "base/hash.h"
#include "fuzz/fuzz.h"
#include "io/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[] = "/tmp/tsr_fuzz_XXXXXX", manifest[64], empty[64];

static void remove_directory(void)
{
    unlink(manifest);
    unlink(empty);
    rmdir(directory);
}

/* The file's bytes are those of `path`, whatever they are by then. */
static void make_directory(const char *path)
{
    fuzz_check(mkdtemp(directory));
    snprintf(manifest, sizeof manifest, "%s/" TSR_SNAPSHOT_MANIFEST, directory);
    snprintf(empty, sizeof empty, "%s/f", directory);
    fuzz_check(symlink(path, manifest) == 0);
    FILE *file = fopen(empty, "w");
    fuzz_check(file && fclose(file) == 0);
    atexit(remove_directory);
}

/* With the hash that fits; NULL: the input is no object. */
static char *with_hash(const uint8_t *data, size_t bytes)
{
    char hash[24];
    json_t *object;
    if (tsr_json_parse(&object, (const char *)data, bytes, "input") < 0)
        return NULL;
    json_object_del(object, "hash");
    char *text = json_is_object(object) ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (text) {
        snprintf(hash, sizeof hash, "%016llx",
                 (unsigned long long)tsr_hash(TSR_HASH_START, text, strlen(text)));
        json_object_set_new(object, "hash", json_string(hash));
        free(text);
        text = json_dumps(object, 0);
    }
    json_decref(object);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsr_snapshot *snapshot;
    char *text = with_hash(data, bytes);
    const char *path =
        text ? fuzz_file((const uint8_t *)text, strlen(text)) : fuzz_file(data, bytes);
    if (!*manifest)
        make_directory(path);
    fuzz_begin();
    tsr_status status = tsr_snapshot_open(&snapshot, directory);
    fuzz_answer(status, TSR_EDATA);
    for (int i = 0; status == TSR_OK && i < tsr_snapshot_file_count(snapshot); i++) {
        fuzz_begin();
        fuzz_answer(tsr_snapshot_verify(snapshot, i), TSR_EDATA);
    }
    if (status == TSR_OK) {
        fuzz_check(tsr_snapshot_step(snapshot) >= 0);
        fuzz_check(json_is_object(tsr_snapshot_state(snapshot)));
        tsr_snapshot_close(snapshot);
    }
    free(text);
    return 0;
}
