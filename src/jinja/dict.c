/*
 * dict.c: dicts, and the tables of positions by hash that names have as well.
 */
#include "base/hash.h"
#include "jinja/jinja.h"

#include <string.h>

/* ---- positions by hash ---- */

struct jinja_slot {
    uint32_t hash, place; /* the position + 1; 0: empty */
};

/* The slot to put the hash into: an empty one. */
static struct jinja_slot *vacant(const jinja_index *index, uint32_t hash)
{
    size_t mask = index->capacity - 1, at = hash & mask;
    while (index->slots[at].place)
        at = (at + 1) & mask;
    return &index->slots[at];
}

tsr_status tsr_jinja_index_add(jinja_index *index, tsr_jinja_arena *arena, uint32_t hash,
                               size_t position)
{
    if (2 * index->count >= index->capacity) {
        jinja_index bigger = {.count = index->count,
                              .capacity = index->capacity ? 2 * index->capacity : 8};
        TSR_TRY(tsr_jinja_alloc(&bigger.slots, arena, bigger.capacity, sizeof *bigger.slots));
        for (size_t i = 0; i < index->capacity; i++)
            if (index->slots[i].place)
                *vacant(&bigger, index->slots[i].hash) = index->slots[i];
        *index = bigger;
    }
    *vacant(index, hash) = (struct jinja_slot){hash, (uint32_t)position + 1};
    index->count++;
    return TSR_OK;
}

size_t tsr_jinja_index_next(const jinja_index *index, uint32_t hash, size_t *probes)
{
    size_t mask = index->capacity - 1;
    while (index->count) {
        const struct jinja_slot *slot = &index->slots[(hash + (*probes)++) & mask];
        if (!slot->place)
            break;
        if (slot->hash == hash)
            return slot->place - 1;
    }
    return JINJA_NOWHERE;
}

/* ---- hashes of values ---- */

/* 1, 1.0 and true are one key. */
static uint64_t hash_number(const value *v)
{
    int64_t whole = v->kind == V_INT ? v->integer : v->kind == V_BOOL ? v->boolean : 0;
    if (v->kind == V_FLOAT) {
        if (!(v->real >= -0x1p63 && v->real < 0x1p63) || (double)(int64_t)v->real != v->real)
            return tsr_hash(TSR_HASH_START, &v->real, sizeof v->real);
        whole = (int64_t)v->real;
    }
    return tsr_hash(TSR_HASH_START, &whole, sizeof whole);
}

static tsr_status hash_value(uint64_t *out, jinja_run *r, const value *v, int depth)
{
    switch (v->kind) {
    case V_BOOL:
    case V_INT:
    case V_FLOAT:
        *out = hash_number(v);
        return TSR_OK;
    case V_STRING:
        TSR_TRY(tsr_jinja_scan(r, v->text.bytes));
        *out = tsr_hash(TSR_HASH_START, v->text.data, v->text.bytes);
        return TSR_OK;
    case V_LIST:
    case V_TUPLE:
        if (depth > JINJA_DEPTH)
            return tsr_jinja_fail(r, "a value is nested too deep");
        *out = tsr_mix((uint64_t)v->kind);
        for (size_t i = 0; i < v->list->count; i++) {
            uint64_t item;
            TSR_TRY(tsr_jinja_spend(r, 1));
            TSR_TRY(hash_value(&item, r, &v->list->items[i], depth + 1));
            *out = tsr_mix(*out ^ item);
        }
        return TSR_OK;
    default: /* compared one by one */
        *out = tsr_mix((uint64_t)v->kind);
        return TSR_OK;
    }
}

tsr_status tsr_jinja_hash(uint32_t *out, jinja_run *r, const value *v)
{
    uint64_t hash;
    TSR_TRY(hash_value(&hash, r, v, 0));
    *out = (uint32_t)(hash >> 32);
    return TSR_OK;
}

/* ---- dicts ---- */

tsr_status tsr_jinja_dict(value *out, jinja_run *r, tsr_jinja_kind kind)
{
    jinja_dict *dict;
    TSR_TRY(tsr_jinja_alloc(&dict, &r->arena, 1, sizeof *dict));
    *out = (value){.kind = kind, .dict = dict};
    return TSR_OK;
}

static tsr_status find(const value **out, jinja_run *r, const jinja_dict *dict, const value *key,
                       uint32_t hash)
{
    size_t probes = 0, i;
    *out = NULL;
    while (!*out && (i = tsr_jinja_index_next(&dict->index, hash, &probes)) != JINJA_NOWHERE) {
        bool same;
        TSR_TRY(tsr_jinja_equal(&same, r, &dict->keys[i], key));
        if (same)
            *out = &dict->values[i];
    }
    return tsr_jinja_spend(r, probes);
}

tsr_status tsr_jinja_dict_get(const value **out, jinja_run *r, const jinja_dict *dict, value key)
{
    uint32_t hash;
    TSR_TRY(tsr_jinja_hash(&hash, r, &key));
    return find(out, r, dict, &key, hash);
}

static tsr_status add(jinja_run *r, jinja_dict *dict, value key, value item, uint32_t hash)
{
    if (dict->count == dict->capacity) {
        size_t capacity = dict->capacity ? 2 * dict->capacity : 4;
        value *keys, *values;
        TSR_TRY(tsr_jinja_alloc(&keys, &r->arena, capacity, sizeof *keys));
        TSR_TRY(tsr_jinja_alloc(&values, &r->arena, capacity, sizeof *values));
        if (dict->count) {
            memcpy(keys, dict->keys, dict->count * sizeof *keys);
            memcpy(values, dict->values, dict->count * sizeof *values);
        }
        dict->keys = keys;
        dict->values = values;
        dict->capacity = capacity;
    }
    TSR_TRY(tsr_jinja_index_add(&dict->index, &r->arena, hash, dict->count));
    dict->keys[dict->count] = key;
    dict->values[dict->count++] = item;
    return TSR_OK;
}

tsr_status tsr_jinja_dict_add(jinja_run *r, jinja_dict *dict, value key, value item)
{
    uint32_t hash;
    TSR_TRY(tsr_jinja_hash(&hash, r, &key));
    return add(r, dict, key, item, hash);
}

tsr_status tsr_jinja_dict_set(jinja_run *r, jinja_dict *dict, value key, value item)
{
    const value *found;
    uint32_t hash;
    if (key.kind == V_LIST || key.kind == V_DICT || key.kind == V_UNDEFINED)
        return tsr_jinja_fail(r, "a %s cannot be the key of a dict", tsr_jinja_type(&key));
    TSR_TRY(tsr_jinja_hash(&hash, r, &key));
    TSR_TRY(find(&found, r, dict, &key, hash));
    if (!found)
        return add(r, dict, key, item, hash);
    dict->values[found - dict->values] = item;
    return TSR_OK;
}
