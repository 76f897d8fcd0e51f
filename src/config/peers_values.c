/*
 * peers_values.c: what converted rows are made of: values, and keys that several peers share.
 */
#include "config/config_number.h"
#include "config/peers.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const tsr_config_entry *tsr_peers_find(const tsr_peers_work *work, const char *name)
{
    const tsr_config_entry *found = NULL;
    for (int i = 0; i < work->theirs->count; i++)
        if (!strcmp(work->theirs->items[i].name, name)) /* an override comes later */
            found = &work->theirs->items[i];
    return found && !tsr_yaml_is_null(&found->value) ? found : NULL;
}

void tsr_peers_give(tsr_peers_work *work, const tsr_config_entry *from, const char *key,
                    tsr_yaml_value value)
{
    tsr_config_entry entry = *from;
    entry.name = key;
    entry.value = value;
    tsr_config_add_entry(&work->out->ours, work->store, entry);
}

void tsr_peers_give_text(tsr_peers_work *work, const tsr_config_entry *from, const char *key,
                         const char *text)
{
    tsr_peers_give(work, from, key, tsr_peers_text(work, text));
}

void tsr_peers_idle(tsr_peers_work *work, const tsr_config_entry *from, const char *why)
{
    tsr_config_entry entry = *from;
    entry.why = why;
    tsr_config_add_entry(&work->out->idle, work->store, entry);
}

void tsr_peers_refuse(tsr_peers_work *work, const tsr_config_entry *from,
                      const tsr_yaml_value *value, const char *format, ...)
{
    char because[512];
    tsr_text found = {0}, where = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(because, sizeof because, format, args);
    va_end(args);
    tsr_config_found(&found, value);
    /* Of a value inside a list or map the place is its own line. */
    const char *colon = strrchr(from->where, ':');
    bool inside = from->layer >= TSR_LAYER_FILE && from->layer < TSR_LAYER_OVERRIDE && colon &&
                  value->line > 0;
    tsr_text_append(&where, from->where,
                    inside ? (size_t)(colon - from->where) : strlen(from->where));
    if (inside)
        tsr_text_printf(&where, ":%d", value->line);
    tsr_config_error(work->errors, tsr_text_string(&where), "%s: found %s; %s", from->spelled,
                     tsr_text_string(&found), because);
    work->store->failed |= found.failed | where.failed;
    tsr_text_free(&found);
    tsr_text_free(&where);
}

void tsr_peers_remark(tsr_peers_work *work, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    tsr_text *remarks = &work->out->remarks;
    if (strstr(tsr_text_string(remarks), line)) /* of a second data set */
        return;
    tsr_text_printf(remarks, "%s%s", remarks->length ? "; " : "", line);
}

/* Without memory an empty text: the store remembers. */
tsr_yaml_value tsr_peers_text(const tsr_peers_work *work, const char *text)
{
    const char *copy = tsr_config_store_copy(work->store, text);
    return (tsr_yaml_value){.kind = TSR_YAML_SCALAR, .text = copy ? copy : "", .line = 1};
}

tsr_yaml_value tsr_peers_room(const tsr_peers_work *work, tsr_yaml_kind kind, int room)
{
    tsr_yaml_value value = {.kind = kind, .line = 1};
    size_t bytes = (size_t)(room ? room : 1) * sizeof *value.items;
    value.items = tsr_config_store_allocate(work->store, bytes);
    if (kind == TSR_YAML_MAP)
        value.keys = tsr_config_store_allocate(work->store, bytes);
    return value;
}

void tsr_peers_push(tsr_yaml_value *list, tsr_yaml_value value)
{
    if (list->items)
        list->items[list->count++] = value;
}

void tsr_peers_put(const tsr_peers_work *work, tsr_yaml_value *map, const char *key,
                   tsr_yaml_value value)
{
    if (!map->items || !map->keys)
        return;
    map->keys[map->count] = tsr_peers_text(work, key);
    map->items[map->count++] = value;
}

tsr_yaml_value tsr_peers_split(const tsr_peers_work *work, const tsr_yaml_value *value)
{
    if (value->kind != TSR_YAML_SCALAR || !strchr(value->text, ','))
        return *value;
    int count = 1;
    for (const char *p = value->text; (p = strchr(p, ',')); p++)
        count++;
    tsr_yaml_value list = tsr_peers_room(work, TSR_YAML_LIST, count);
    for (const char *p = value->text, *end; p; p = *end ? end + 1 : NULL) {
        p += strspn(p, " ");
        end = p + strcspn(p, ",");
        size_t length = (size_t)(end - p);
        while (length && p[length - 1] == ' ')
            length--;
        tsr_text word = {0};
        tsr_text_append(&word, p, length);
        tsr_yaml_value item = tsr_peers_text(work, tsr_text_string(&word));
        item.line = value->line;
        if (length)
            tsr_peers_push(&list, item);
        work->store->failed |= word.failed;
        tsr_text_free(&word);
    }
    return list;
}

const tsr_yaml_value *tsr_peers_member(const tsr_yaml_value *map, const char *key)
{
    for (int i = 0; map->kind == TSR_YAML_MAP && i < map->count; i++)
        if (!strcmp(map->keys[i].text, key))
            return tsr_yaml_is_null(&map->items[i]) ? NULL : &map->items[i];
    return NULL;
}

double tsr_peers_number(const tsr_peers_work *work, const char *name, double otherwise)
{
    const tsr_config_entry *entry = tsr_peers_find(work, name);
    double number;
    return entry && entry->value.kind == TSR_YAML_SCALAR &&
                   tsr_number_parse(&number, entry->value.text)
               ? number
               : otherwise;
}

bool tsr_peers_is_true(const tsr_yaml_value *value)
{
    const char *word = tsr_config_bool_word(value);
    return word && *word == 't';
}

bool tsr_peers_is_one_of(const tsr_yaml_value *value, const char *words)
{
    const char *text = tsr_config_bool_word(value);
    double number;
    if (!text)
        text = value->kind == TSR_YAML_LIST  ? (value->count ? "a list" : "[]")
               : value->kind == TSR_YAML_MAP ? (value->count ? "a map" : "{}")
               : tsr_yaml_is_null(value)     ? "null"
               : !*value->text               ? "null"
               : tsr_number_parse(&number, value->text) && !number ? "0"
                                                                   : value->text;
    size_t length = strlen(text);
    for (const char *word = words; *word;) {
        size_t n = strcspn(word, " ");
        if (n == length && !strncmp(word, text, n))
            return true;
        word += n + (word[n] == ' ');
    }
    return false;
}

static bool same_text(const tsr_yaml_value *a, const tsr_yaml_value *b)
{
    return a && b && a->kind == TSR_YAML_SCALAR && b->kind == TSR_YAML_SCALAR &&
           !strcmp(a->text, b->text);
}

/* The member, where every map of the list has the same or none has it: true. */
static bool in_common(const tsr_yaml_value **out, const tsr_yaml_value *list, const char *key)
{
    *out = tsr_peers_member(&list->items[0], key);
    for (int i = 1; i < list->count; i++) {
        const tsr_yaml_value *other = tsr_peers_member(&list->items[i], key);
        if (*out ? !same_text(*out, other) : other != NULL)
            return false;
    }
    return true;
}

/* Whether files, a format and a number of rows say it all. */
static bool is_plain(const tsr_yaml_value *list)
{
    static const char *const plain[] = {"path", "format", "text_field", "samples"};
    for (int i = 0; i < list->count; i++)
        for (int m = 0; m < list->items[i].count; m++) {
            int known = 0;
            while (known < 4 && strcmp(plain[known], list->items[i].keys[m].text))
                known++;
            if (known == 4 || (known == 3 && list->count > 1))
                return false;
        }
    return true;
}

/* Whether the format of the other data set is another one: dataset_format counts for both. */
static bool format_differs(const tsr_peers_work *work, const tsr_yaml_value *format)
{
    const tsr_config_entries *ours = &work->out->ours;
    for (int i = 0; i < ours->count; i++)
        if (!strcmp(ours->items[i].name, "dataset_format"))
            return !same_text(&ours->items[i].value, format);
    return false;
}

void tsr_peers_give_data(tsr_peers_work *work, const tsr_config_entry *from, const char *key,
                         const tsr_yaml_value *list)
{
    bool eval = !strcmp(key, "eval_dataset");
    const tsr_yaml_value *format, *field;
    if (!list->count)
        return;
    if (!is_plain(list) || !in_common(&format, list, "format") ||
        !in_common(&field, list, "text_field") || format_differs(work, format)) {
        tsr_peers_give(work, from, key, *list);
        return;
    }
    const tsr_yaml_value *rows = tsr_peers_member(&list->items[0], "samples");
    tsr_yaml_value paths = tsr_peers_room(work, TSR_YAML_LIST, list->count);
    for (int i = 0; i < list->count; i++) {
        const tsr_yaml_value *path = tsr_peers_member(&list->items[i], "path");
        tsr_peers_push(&paths, path ? *path : tsr_peers_text(work, ""));
    }
    tsr_peers_give(work, from, key, paths.count == 1 ? paths.items[0] : paths);
    if (format)
        tsr_peers_give(work, from, "dataset_format", *format);
    if (field)
        tsr_peers_give(work, from, "dataset_text_field", *field);
    if (rows)
        tsr_peers_give(work, from, eval ? "max_eval_samples" : "max_train_samples", *rows);
}

void tsr_peers_give_times(tsr_peers_work *work, const tsr_config_entry *entry, const char *steps,
                          const char *strategy, double epochs)
{
    double times;
    tsr_text share = {0};
    if (entry->value.kind != TSR_YAML_SCALAR || !tsr_number_parse(&times, entry->value.text) ||
        times < 0) {
        tsr_peers_refuse(work, entry, &entry->value, "expected a number");
        return;
    }
    if (times * epochs <= 1) {
        tsr_peers_give_text(work, entry, strategy,
                            times > 0 && times * epochs == 1 ? "epoch" : "no");
        return;
    }
    tsr_number_put(&share, 1 / (times * epochs), 0);
    tsr_peers_give_text(work, entry, strategy, "steps");
    tsr_peers_give_text(work, entry, steps, tsr_text_string(&share));
    work->store->failed |= share.failed;
    tsr_text_free(&share);
}

void tsr_peers_convert_share(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (!tsr_peers_is_one_of(&entry->value, "0"))
        tsr_peers_give(work, entry, "validation_split", entry->value);
}

void tsr_peers_convert_cache(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (tsr_keys_find("dataset_cache") < 0)
        tsr_peers_idle(work, entry, NULL);
    else
        tsr_peers_give(work, entry, "dataset_cache", entry->value);
}

void tsr_peers_convert_processes(tsr_peers_work *work, const tsr_config_entry *entry)
{
    tsr_peers_idle(work, entry, NULL);
    if (!tsr_peers_is_one_of(&entry->value, "1"))
        tsr_peers_remark(work, "ranks are started by launch/run -n %s",
                         entry->value.kind == TSR_YAML_SCALAR ? entry->value.text : "N");
}

/* AdamW by other names. */
static const struct {
    const char *name, *state; /* NULL: 32 bits there too */
} adamw[] = {
    {"adamw_hf", NULL},         {"adamw_torch_xla", NULL},
    {"adamw_apex_fused", NULL}, {"adamw_torch_npu_fused", NULL},
    {"paged_adamw", NULL},      {"paged_adamw_32bit", NULL},
    {"adamw_torch_8bit", "8"},  {"ao_adamw_8bit", "8"},
    {"ao_adamw_fp8", "8"},      {"adamw_torch_4bit", "4"},
    {"ao_adamw_4bit", "4"},     {"adamw_anyprecision", "16"},
    {"optimi_adamw", "16"},
};

void tsr_peers_convert_optimizer(tsr_peers_work *work, const tsr_config_entry *entry)
{
    for (size_t i = 0; entry->value.kind == TSR_YAML_SCALAR && i < sizeof adamw / sizeof *adamw;
         i++) {
        if (strcmp(adamw[i].name, entry->value.text) != 0)
            continue;
        tsr_peers_give_text(work, entry, "optim", "adamw_torch");
        if (adamw[i].state)
            tsr_peers_remark(work,
                             "%s is AdamW with 32-bit state here, not %s-bit: sharded over the "
                             "ranks, and in host memory where the plan needs it",
                             adamw[i].name, adamw[i].state);
        return;
    }
    tsr_peers_give(work, entry, "optim", entry->value);
}
