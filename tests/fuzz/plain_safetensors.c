/*
 * plain_safetensors.c: see plain_safetensors.h. Recursive descent over the one shape a header may have:
 * {"name": {"dtype": string, "shape": [integer ...], "data_offsets": [integer, integer]} ...,
 * "__metadata__": {string: string ...}}.
 */
#include "fuzz/plain_safetensors.h"

#include <string.h>

typedef struct {
    const uint8_t *at, *end;
    bool too_large;
} reader;

static void space(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static bool take(reader *r, char c)
{
    space(r);
    if (r->at == r->end || *r->at != (uint8_t)c)
        return false;
    r->at++;
    return true;
}

/* ---- strings ---- */

/* The code point at r->at, from UTF-8 in its shortest form; -1: none. */
static int32_t utf8(reader *r)
{
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t c = *r->at;
    int length = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : 4;
    if ((c >= 0x80 && c < 0xC2) || c > 0xF4 || r->end - r->at < length)
        return -1;
    int32_t point = length == 1 ? c : c & (0xFF >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((r->at[i] & 0xC0) != 0x80)
            return -1;
        point = point << 6 | (r->at[i] & 0x3F);
    }
    r->at += length;
    bool fits = point >= least[length] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
    return fits ? point : -1;
}

static int32_t hex4(reader *r)
{
    int32_t value = 0;
    if (r->end - r->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", c = (char)(r->at[i] | 0x20);
        const char *found = r->at[i] ? strchr(digits, r->at[i] < 'A' ? r->at[i] : c) : NULL;
        if (!found)
            return -1;
        value = value << 4 | (int32_t)(found - digits);
    }
    r->at += 4;
    return value;
}

/* Behind a backslash. */
static int32_t escape(reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end)
        return -1;
    uint8_t c = *r->at++;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple)
        return to[simple - from];
    int32_t high = c == 'u' ? hex4(r) : -1;
    if (high < 0xD800 || high > 0xDFFF)
        return high;
    if (high > 0xDBFF || r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
        return -1;
    r->at += 2;
    int32_t low = hex4(r);
    return low < 0xDC00 || low > 0xDFFF ? -1 : 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

static size_t put_utf8(char *out, int32_t point)
{
    if (point < 0x80)
        return out[0] = (char)point, 1;
    size_t length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, point >>= 6)
        out[i] = (char)(0x80 | (point & 0x3F));
    out[0] = (char)((0xF00 >> length & 0xFF) | point);
    return length;
}

/* A zero in a string is refused: names here are C strings. */
static bool string(char *out, size_t room, reader *r)
{
    size_t length = 0;
    if (!take(r, '"'))
        return false;
    while (r->at < r->end && *r->at != '"') {
        if (*r->at < 0x20)
            return false;
        int32_t point;
        if (*r->at == '\\') {
            r->at++;
            point = escape(r);
        } else
            point = utf8(r);
        if (point <= 0)
            return false;
        if (length + 5 > room) {
            r->too_large = true;
            length = 0;
        }
        length += put_utf8(out + length, point);
    }
    out[length] = 0;
    return take(r, '"');
}

/* ---- numbers ---- */

/* An integer from 0 that a signed 64-bit number holds; no leading zero, no fraction, no exponent. */
static bool integer(uint64_t *out, reader *r)
{
    space(r);
    bool minus = r->at < r->end && *r->at == '-';
    r->at += minus;
    const uint8_t *first = r->at;
    uint64_t value = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        uint64_t digit = *r->at - (uint64_t)'0';
        if (value > (INT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (r->at == first || (r->at - first > 1 && *first == '0') || (minus && value))
        return false;
    *out = value;
    return r->at == r->end || !strchr(".eE", *r->at ? *r->at : ' ');
}

/* [integer, ...]; -1: no such list. */
static int integers(uint64_t *out, int room, reader *r)
{
    int count = 0;
    if (!take(r, '['))
        return -1;
    if (take(r, ']'))
        return 0;
    do {
        if (count == room || !integer(&out[count++], r))
            return -1;
    } while (take(r, ','));
    return take(r, ']') ? count : -1;
}

/* ---- the header ---- */

static uint64_t dtype_bytes(const char *name)
{
    static const char *const names[4] = {" U8 I8 BOOL F8_E4M3 F8_E5M2 ", " F16 BF16 I16 U16 ",
                                         " F32 I32 U32 ", " F64 I64 U64 "};
    char word[20];
    size_t length = strlen(name);
    if (!length || length > 16 || strchr(name, ' '))
        return 0;
    word[0] = ' ';
    memcpy(word + 1, name, length);
    memcpy(word + 1 + length, " ", 2);
    for (int i = 0; i < 4; i++)
        if (strstr(names[i], word))
            return 1u << i;
    return 0;
}

static bool sizes_agree(const plain_tensor *t)
{
    uint64_t bytes = 1;
    for (int i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return false;
    return !__builtin_mul_overflow(bytes, dtype_bytes(t->dtype), &bytes) && t->end >= t->begin &&
           t->end - t->begin == bytes;
}

static bool entry(plain_tensor *t, reader *r)
{
    char key[PLAIN_NAME];
    uint64_t range[2];
    int seen = 0;
    if (!take(r, '{'))
        return false;
    do {
        int bit = 0;
        if (!string(key, sizeof key, r) || !take(r, ':'))
            return false;
        if (!strcmp(key, "dtype") && string(t->dtype, sizeof t->dtype, r))
            bit = 1;
        else if (!strcmp(key, "shape") && (t->ndim = integers(t->shape, PLAIN_DIMS, r)) >= 0)
            bit = 2;
        else if (!strcmp(key, "data_offsets") && integers(range, 2, r) == 2)
            bit = 4;
        if (!bit || seen & bit)
            return false;
        seen |= bit;
    } while (take(r, ','));
    if (!take(r, '}') || seen != 7 || !dtype_bytes(t->dtype))
        return false;
    t->begin = range[0];
    t->end = range[1];
    return sizes_agree(t);
}

static bool metadata(reader *r)
{
    char keys[PLAIN_TENSORS][PLAIN_NAME], value[PLAIN_NAME];
    int count = 0;
    if (!take(r, '{'))
        return false;
    if (take(r, '}'))
        return true;
    do {
        bool large = r->too_large;
        if (count == PLAIN_TENSORS) {
            r->too_large = true;
            return false;
        }
        if (!string(keys[count], PLAIN_NAME, r) || !take(r, ':'))
            return false;
        for (int i = 0; i < count; i++)
            if (!strcmp(keys[i], keys[count]))
                return false;
        count++;
        large = r->too_large;
        if (!string(value, sizeof value, r))
            return false;
        r->too_large = large; /* how long a value is does not matter */
    } while (take(r, ','));
    return take(r, '}');
}

static bool header(plain_safetensors *out, reader *r)
{
    bool has_metadata = false;
    if (r->at == r->end || *r->at != '{')
        return false;
    r->at++;
    if (take(r, '}'))
        return true;
    do {
        if (out->count == PLAIN_TENSORS) {
            r->too_large = true;
            return false;
        }
        plain_tensor *t = &out->tensor[out->count];
        memset(t, 0, sizeof *t);
        if (!string(t->name, sizeof t->name, r) || !take(r, ':'))
            return false;
        if (!strcmp(t->name, "__metadata__")) {
            if (has_metadata || !metadata(r))
                return false;
            has_metadata = true;
            continue;
        }
        for (int i = 0; i < out->count; i++)
            if (!strcmp(out->tensor[i].name, t->name))
                return false;
        if (!entry(t, r))
            return false;
        out->count++;
    } while (take(r, ','));
    return take(r, '}');
}

/* From 0 on, each tensor with bytes begins where one ends, once; empty ones stand at such a place. */
static bool covers(const plain_safetensors *s, uint64_t data_bytes)
{
    bool used[PLAIN_TENSORS] = {0};
    uint64_t cursor = 0;
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < s->count; i++) /* the empty ones of this place */
            if (s->tensor[i].begin == cursor && s->tensor[i].end == cursor)
                used[i] = true;
        for (int i = 0; i < s->count && !more; i++)
            if (!used[i] && s->tensor[i].begin == cursor) {
                used[i] = more = true;
                cursor = s->tensor[i].end;
            }
    }
    for (int i = 0; i < s->count; i++)
        if (!used[i])
            return false;
    return cursor == data_bytes;
}

bool plain_safetensors_read(plain_safetensors *out, const uint8_t *file, size_t bytes)
{
    uint64_t length = 0;
    out->count = 0;
    out->too_large = false;
    if (bytes < 8)
        return false;
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)file[i] << (8 * i);
    if (length > 100000000 || length > bytes - 8)
        return false;
    reader r = {.at = file + 8, .end = file + 8 + length};
    bool right = header(out, &r);
    space(&r);
    out->data_offset = 8 + length;
    out->too_large = r.too_large;
    return right && r.at == r.end && covers(out, bytes - 8 - length);
}
