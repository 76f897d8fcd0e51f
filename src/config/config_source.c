/*
 * config_source.c: the keys of a file and of overrides as they were written.
 */
#include "base/utf8.h"
#include "config/config_store.h"
#include "io/missing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_FILE_BYTES (1 << 20)

typedef struct {
    tsr_config_entries *out;
    struct tsr_config_store *store;
    tsr_config_errors *errors;
} collector;

static const char *format_where(const collector *c, const char *format, const char *name, int line)
{
    tsr_text where = {0};
    tsr_text_printf(&where, format, name, line); /* one of two literals in this file */
    const char *copy = tsr_config_store_copy(c->store, tsr_text_string(&where));
    tsr_text_free(&where);
    return copy ? copy : name;
}

static tsr_status collect_text(const collector *c, const char *text, size_t bytes, const char *name,
                               int entry)
{
    const tsr_yaml_value *root;
    TSR_TRY(tsr_config_store_parse(&root, c->store, text, bytes, name));
    if (root->kind != TSR_YAML_MAP && !tsr_yaml_is_null(root))
        return tsr_fail(TSR_ECONFIG, "%s:%d: expected lines of `key: value`", name, root->line);
    for (int i = 0; i < root->count; i++) {
        const tsr_yaml_value *key = &root->keys[i];
        const char *where = format_where(c, "%s:%d", name, key->line);
        int earlier = 0;
        while (earlier < i && strcmp(root->keys[earlier].text, key->text))
            earlier++;
        if (earlier < i)
            tsr_config_error(c->errors, where,
                             "%.64s: appears twice, in line %d and line %d; keep one", key->text,
                             root->keys[earlier].line, key->line);
        else if (!strcmp(key->text, "adapters"))
            tsr_config_collect_adapter(c->out, &root->items[i], entry,
                                       &(tsr_config_place){c->store, c->errors, where, "adapters"},
                                       name);
        else
            tsr_config_add_entry(c->out, c->store,
                                 (tsr_config_entry){.name = key->text,
                                                    .spelled = key->text,
                                                    .value = root->items[i],
                                                    .where = where,
                                                    .layer = TSR_LAYER_FILE});
    }
    return TSR_OK;
}

/* Of a key that is given twice the last one counts. */
static void drop_earlier(tsr_config_entries *list, const char *key)
{
    int kept = 0;
    for (int i = 0; i < list->count; i++)
        if (list->items[i].layer != TSR_LAYER_OVERRIDE || strcmp(list->items[i].name, key) != 0)
            list->items[kept++] = list->items[i];
    list->count = kept;
}

/* Lists, maps and quoted texts are YAML; anything else is the text itself. */
static void collect_override(const collector *c, const char *override)
{
    const char *where = format_where(c, "override %s", override, 0);
    const char *equals = strchr(override, '=');
    size_t dashes = strspn(override, "-"), length = equals ? (size_t)(equals - override) : 0;
    if (!length || dashes) {
        tsr_config_error(c->errors, where, "expected key=value%s%s", dashes ? ", such as " : "",
                         dashes ? (equals ? override + dashes : "lora_r=8") : "");
        return;
    }
    tsr_text name = {0};
    tsr_text_append(&name, override, length);
    const char *key = tsr_config_store_copy(c->store, tsr_text_string(&name));
    c->store->failed |= name.failed;
    tsr_text_free(&name);
    if (!key)
        return;
    size_t bad;
    const char *text = equals + 1;
    const tsr_yaml_value plain = {.kind = TSR_YAML_SCALAR, .text = text, .line = 1},
                         *value = &plain;
    if (*text && strchr("[{\"'", *text)) {
        if (tsr_config_store_parse(&value, c->store, text, strlen(text), key) < 0) {
            tsr_config_error(c->errors, where, "%s", tsr_last_error());
            return;
        }
    } else if (!tsr_utf8_check(text, strlen(text), &bad)) {
        tsr_config_error(c->errors, where, "%s: the value is not UTF-8", key);
        return;
    }
    drop_earlier(c->out, key);
    tsr_config_add_entry(c->out, c->store,
                         (tsr_config_entry){.name = key,
                                            .spelled = key,
                                            .value = *value,
                                            .where = where,
                                            .layer = TSR_LAYER_OVERRIDE});
}

tsr_status tsr_config_read_file(tsr_text *out, const char *path)
{
    char buffer[4096], reason[128], hint[TSR_MISSING_BYTES];
    FILE *file = fopen(path, "rbe");
    if (!file) {
        int opened = errno;
        return tsr_fail(tsr_status_of_open(opened) == TSR_EDATA ? TSR_ECONFIG : TSR_EIO, "%s: %s%s",
                        path, strerror_r(opened, reason, sizeof reason),
                        tsr_missing_hint(hint, path, opened));
    }
    size_t got;
    while ((got = fread(buffer, 1, sizeof buffer, file)) > 0 && out->length <= MAX_FILE_BYTES)
        tsr_text_append(out, buffer, got);
    bool bad = ferror(file);
    int error = errno;
    fclose(file);
    if (bad)
        return tsr_fail(error == EISDIR ? TSR_ECONFIG : TSR_EIO, "%s: cannot be read: %s", path,
                        strerror_r(error, reason, sizeof reason));
    if (out->length > MAX_FILE_BYTES)
        return tsr_fail(TSR_ECONFIG,
                        "%s: larger than 1 MiB; expected a job.yaml, lines of `key: value`", path);
    return out->failed ? tsr_fail(TSR_ENOMEM, "%s: out of memory while reading", path) : TSR_OK;
}

const char *tsr_config_source_name(const tsr_config_source *source)
{
    return source->name ? source->name : source->path ? source->path : "configuration";
}

tsr_status tsr_config_collect(tsr_config_entries *out, struct tsr_config_store *store,
                              tsr_config_errors *errors, const tsr_config_source *source,
                              const char *name)
{
    const collector c = {out, store, errors};
    tsr_text file = {0};
    tsr_status status = TSR_OK;
    if (source->path) {
        status = tsr_config_read_file(&file, source->path);
        if (status == TSR_OK)
            status = collect_text(&c, tsr_text_string(&file), file.length, name, source->entry);
    } else if (source->text) {
        status = collect_text(&c, source->text,
                              source->text_bytes ? source->text_bytes : strlen(source->text), name,
                              source->entry);
    }
    tsr_text_free(&file);
    TSR_TRY(status);
    for (int i = 0; i < source->override_count; i++)
        collect_override(&c, source->overrides[i]);
    return store->failed ? tsr_fail(TSR_ENOMEM, "%s: out of memory", name) : TSR_OK;
}
