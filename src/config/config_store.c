#include "config/config_store.h"

#include "base/escape.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ERRORS 40 /* in one message; the others are counted */

struct tsr_config_block {
    struct tsr_config_block *next;
    max_align_t data[];
};

void *tsr_config_store_allocate(struct tsr_config_store *store, size_t bytes)
{
    struct tsr_config_block *block = calloc(1, sizeof *block + bytes);
    if (!block) {
        store->failed = true;
        return NULL;
    }
    block->next = store->blocks;
    store->blocks = block;
    return block->data;
}

const char *tsr_config_store_copy(struct tsr_config_store *store, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = tsr_config_store_allocate(store, bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

struct tsr_config_tree {
    struct tsr_config_tree *next;
    tsr_yaml_tree yaml;
};

tsr_status tsr_config_store_parse(const tsr_yaml_value **root, struct tsr_config_store *store,
                                  const char *text, size_t bytes, const char *name)
{
    struct tsr_config_tree *tree = tsr_config_store_allocate(store, sizeof *tree);
    if (!tree)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory while reading", name);
    tsr_status status = tsr_yaml_parse(&tree->yaml, text, bytes, name);
    store->failed |= status == TSR_ENOMEM;
    if (status < 0)
        return status;
    tree->next = store->trees;
    store->trees = tree;
    *root = &tree->yaml.root;
    return TSR_OK;
}

void tsr_config_add_entry(tsr_config_entries *list, struct tsr_config_store *store,
                          tsr_config_entry entry)
{
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        tsr_config_entry *items =
            tsr_config_store_allocate(store, (size_t)capacity * sizeof *items);
        if (!items)
            return;
        if (list->count)
            memcpy(items, list->items, (size_t)list->count * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = entry;
}

void tsr_config_store_free(struct tsr_config_store *store)
{
    if (!store)
        return;
    for (struct tsr_config_tree *tree = store->trees; tree; tree = tree->next)
        tsr_yaml_free(&tree->yaml);
    struct tsr_config_block *block = store->blocks;
    while (block) {
        struct tsr_config_block *next = block->next;
        free(block);
        block = next;
    }
    free(store);
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

bool tsr_config_same_letters(const char *a, const char *b, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (lower(a[i]) != lower(b[i]) || !a[i])
            return false;
    return true;
}

void tsr_config_error(tsr_config_errors *errors, const char *where, const char *format, ...)
{
    if (++errors->count > MAX_ERRORS) {
        if (errors->count == MAX_ERRORS + 1)
            tsr_text_puts(&errors->text, "\n  and more");
        return;
    }
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    tsr_text_puts(&errors->text, "\n  ");
    tsr_text_name(&errors->text, where);
    tsr_text_puts(&errors->text, ": ");
    tsr_text_name(&errors->text, line);
}

tsr_status tsr_config_all_errors(const tsr_config_errors *errors)
{
    if (!errors->count)
        return TSR_OK;
    if (errors->count == 1) /* without the indentation */
        return tsr_fail_lines(TSR_ECONFIG, "%s", tsr_text_string(&errors->text) + 3);
    return tsr_fail_lines(TSR_ECONFIG, "%d errors in the configuration:%s", errors->count,
                          tsr_text_string(&errors->text));
}

void tsr_config_note(tsr_config *config, const char *line)
{
    int count = config->notes.count;
    const char **items =
        tsr_config_store_allocate(config->store, (size_t)(count + 1) * sizeof *items);
    const char *copy = tsr_config_store_copy(config->store, line);
    if (!items || !copy)
        return;
    if (count)
        memcpy(items, config->notes.items, (size_t)count * sizeof *items);
    items[count] = copy;
    config->notes = (tsr_config_strings){items, count + 1};
}

void tsr_config_free(tsr_config *config)
{
    tsr_config_store_free(config->store);
    *config = (tsr_config){0};
}

bool tsr_config_is_set(const tsr_config *config, const char *key)
{
    int index = tsr_keys_find(key);
    return index >= 0 && config->store && config->store->origin[index].layer >= TSR_LAYER_FILE;
}

const char *tsr_config_where(const tsr_config *config, const char *key)
{
    int index = tsr_keys_find(key);
    if (index < 0 || !config->store)
        return "default";
    return config->store->origin[index].where;
}
