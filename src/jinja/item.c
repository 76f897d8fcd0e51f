/*
 * item.c: attributes, items and slices of a value.
 */
#include "jinja/jinja.h"

#include <string.h>

tsr_status tsr_jinja_defined(jinja_run *r, const value *v)
{
    return v->kind == V_UNDEFINED ? tsr_jinja_fail(r, "%s", v->text.data) : TSR_OK;
}

int tsr_jinja_shown(jinja_text name)
{
    return name.bytes < 80 ? (int)name.bytes : 80;
}

static tsr_status loop_attr(value *out, jinja_run *r, const jinja_loop *loop, jinja_text name)
{
    size_t i = loop->index, count = loop->items->count;
    const struct {
        const char *name;
        value v;
    } table[] = {{"index", tsr_jinja_int((int64_t)i + 1)},
                 {"index0", tsr_jinja_int((int64_t)i)},
                 {"revindex", tsr_jinja_int((int64_t)(count - i))},
                 {"revindex0", tsr_jinja_int((int64_t)(count - i) - 1)},
                 {"length", tsr_jinja_int((int64_t)count)},
                 {"first", tsr_jinja_bool(i == 0)},
                 {"last", tsr_jinja_bool(i + 1 == count)},
                 {"depth", tsr_jinja_int(loop->depth)},
                 {"depth0", tsr_jinja_int(loop->depth - 1)}};
    for (size_t j = 0; j < sizeof table / sizeof *table; j++) {
        if (!tsr_jinja_is_text(name, table[j].name))
            continue;
        *out = table[j].v;
        return TSR_OK;
    }
    bool previous = tsr_jinja_is_text(name, "previtem");
    if (previous || tsr_jinja_is_text(name, "nextitem")) {
        bool there = previous ? i > 0 : i + 1 < count;
        if (!there)
            return tsr_jinja_undefined(out, r, "there is no %s item",
                                       previous ? "previous" : "next");
        *out = loop->items->items[previous ? i - 1 : i + 1];
        return TSR_OK;
    }
    return tsr_jinja_fail(r, "loop.%.*s is not supported", tsr_jinja_shown(name), name.data);
}

static tsr_status no_attribute(value *out, jinja_run *r, const value *self, jinja_text name)
{
    return tsr_jinja_undefined(out, r, "'%s%s' has no attribute '%.*s'", tsr_jinja_type(self),
                               self->kind == V_NONE ? "" : " object", tsr_jinja_shown(name),
                               name.data);
}

tsr_status tsr_jinja_get_attr(value *out, jinja_run *r, value self, jinja_text name)
{
    const value *found = NULL;
    TSR_TRY(tsr_jinja_defined(r, &self));
    if (name.bytes > 1 && name.data[0] == '_' && name.data[1] == '_')
        return tsr_jinja_fail(r, "the attribute \"%.*s\" is not allowed", tsr_jinja_shown(name),
                              name.data);
    if (self.kind == V_LOOP)
        return loop_attr(out, r, self.loop, name);
    if (self.kind == V_NAMESPACE)
        TSR_TRY(tsr_jinja_dict_get(&found, r, self.dict, tsr_jinja_text(name.data, name.bytes)));
    if (!found) {
        TSR_TRY(tsr_jinja_method(out, r, &self, name));
        if (out->kind != V_ABSENT)
            return TSR_OK;
    }
    if (self.kind == V_DICT)
        TSR_TRY(tsr_jinja_dict_get(&found, r, self.dict, tsr_jinja_text(name.data, name.bytes)));
    if (!found)
        return no_attribute(out, r, &self, name);
    *out = *found;
    return TSR_OK;
}

static tsr_status no_element(value *out, jinja_run *r, const value *self, int64_t index)
{
    return tsr_jinja_undefined(out, r, "%s%s has no element %lld", tsr_jinja_type(self),
                               self->kind == V_NONE ? "" : " object", (long long)index);
}

static tsr_status list_item(value *out, jinja_run *r, const value *self, int64_t given)
{
    int64_t count = (int64_t)self->list->count, index = given + (given < 0 ? count : 0);
    if (index < 0 || index >= count)
        return no_element(out, r, self, given);
    *out = self->list->items[index];
    return TSR_OK;
}

/* The bytes of code points [begin, begin + count) of a string. */
static jinja_text text_part(jinja_text text, int64_t begin, int64_t count)
{
    size_t at = 0, start;
    for (; begin > 0 && at < text.bytes; begin--)
        for (at++; at < text.bytes && ((unsigned char)text.data[at] & 0xc0) == 0x80; at++)
            ;
    start = at;
    for (; count > 0 && at < text.bytes; count--)
        for (at++; at < text.bytes && ((unsigned char)text.data[at] & 0xc0) == 0x80; at++)
            ;
    return (jinja_text){text.data + start, at - start};
}

static tsr_status text_item(value *out, jinja_run *r, const value *self, int64_t given)
{
    size_t characters;
    TSR_TRY(tsr_jinja_length(&characters, r, self));
    int64_t count = (int64_t)characters, index = given + (given < 0 ? count : 0);
    if (index < 0 || index >= count)
        return no_element(out, r, self, given);
    jinja_text part = text_part(self->text, index, 1);
    *out = tsr_jinja_text(part.data, part.bytes);
    return TSR_OK;
}

tsr_status tsr_jinja_get_item(value *out, jinja_run *r, value self, value key)
{
    const value *found = NULL;
    TSR_TRY(tsr_jinja_defined(r, &self));
    bool index = key.kind == V_INT || key.kind == V_BOOL;
    int64_t i = key.kind == V_INT ? key.integer : key.kind == V_BOOL ? key.boolean : 0;
    if ((self.kind == V_LIST || self.kind == V_TUPLE) && index)
        return list_item(out, r, &self, i);
    if (self.kind == V_STRING && index)
        return text_item(out, r, &self, i);
    if (self.kind == V_VIEW || self.kind == V_ITER)
        return tsr_jinja_fail(r, "an index into a %s is not supported: use the filter list",
                              tsr_jinja_type(&self));
    if (self.kind == V_DICT)
        TSR_TRY(tsr_jinja_dict_get(&found, r, self.dict, key));
    if (found) {
        *out = *found;
        return TSR_OK;
    }
    if (key.kind == V_STRING)
        return tsr_jinja_get_attr(out, r, self, key.text);
    if (key.kind == V_UNDEFINED && self.kind != V_DICT)
        return tsr_jinja_fail(r, "%s", key.text.data);
    if (key.kind == V_INT)
        return no_element(out, r, &self, key.integer);
    return tsr_jinja_undefined(out, r, "the %s has no such element", tsr_jinja_type(&self));
}

/* One bound of a slice; `given` is false for none. */
static tsr_status slice_bound(bool *given, int64_t *out, jinja_run *r, const node *n, scope *s)
{
    value v = tsr_jinja_none();
    if (n)
        TSR_TRY(tsr_jinja_eval(&v, r, n, s));
    TSR_TRY(tsr_jinja_defined(r, &v));
    *given = v.kind != V_NONE;
    if (*given && v.kind != V_INT)
        return tsr_jinja_fail(r, "the bounds of a slice are integers, not %s", tsr_jinja_type(&v));
    *out = *given ? v.integer : 0;
    return TSR_OK;
}

static int64_t clamp(int64_t i, int64_t count, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -count ? -1 : i + count;
    return i < low ? low : i > high ? high : i;
}

tsr_status tsr_jinja_slice(value *out, jinja_run *r, value self, const node *n, scope *s)
{
    int64_t bounds[3];
    bool given[3];
    TSR_TRY(tsr_jinja_defined(r, &self));
    TSR_TRY(slice_bound(&given[0], &bounds[0], r, n->a, s));
    TSR_TRY(slice_bound(&given[1], &bounds[1], r, n->b, s));
    TSR_TRY(slice_bound(&given[2], &bounds[2], r, n->c, s));
    bool is_list = self.kind == V_LIST || self.kind == V_TUPLE;
    if (!is_list && self.kind != V_STRING)
        return tsr_jinja_fail(r, "a value of type %s cannot be sliced", tsr_jinja_type(&self));
    int64_t step = given[2] ? bounds[2] : 1, count, length = 0;
    if (step == 0)
        return tsr_jinja_fail(r, "the step of a slice is 0");
    size_t elements;
    TSR_TRY(tsr_jinja_length(&elements, r, &self));
    count = (int64_t)elements;
    /* Python's rules: a negative step goes from the last element to before the first. */
    bool down = step < 0;
    int64_t low = down ? -1 : 0, high = down ? count - 1 : count;
    int64_t begin = given[0] ? clamp(bounds[0], count, low, high) : down ? high : low;
    int64_t end = given[1] ? clamp(bounds[1], count, low, high) : down ? low : high;
    step = step > count + 1 ? count + 1 : step < -count - 1 ? -count - 1 : step;
    if (down ? begin > end : begin < end)
        length = down ? (begin - end - 1) / -step + 1 : (end - begin - 1) / step + 1;
    if (self.kind == V_STRING && step == 1) {
        jinja_text part = text_part(self.text, begin, length);
        *out = tsr_jinja_text(part.data, part.bytes);
        return TSR_OK;
    }
    jinja_list *from;
    value result;
    TSR_TRY(tsr_jinja_iterate(&from, r, &self));
    TSR_TRY(tsr_jinja_list(&result, r, is_list ? self.kind : V_LIST, (size_t)length));
    for (int64_t i = 0; i < length; i++)
        result.list->items[i] = from->items[begin + i * step];
    if (is_list) {
        *out = result;
        return TSR_OK;
    }
    char *joined;
    size_t bytes = 0;
    TSR_TRY(tsr_jinja_alloc(&joined, &r->arena, self.text.bytes + 1, 1));
    for (int64_t i = 0; i < length; i++) {
        const jinja_text *c = &result.list->items[i].text;
        memcpy(joined + bytes, c->data, c->bytes);
        bytes += c->bytes;
    }
    *out = tsr_jinja_text(joined, bytes);
    return TSR_OK;
}
