/* An object's text without one of its members. */
#include "io/json.h"

#include <string.h>

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && strchr(" \t\r\n", *p))
        p++;
    return p;
}

/* Behind a string, which begins at p. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        p += *p == '\\' && p + 1 < end;
    return p < end ? p + 1 : end;
}

/* Behind a member, which begins at p: at its comma, or the brace that ends the object. */
static const char *skip_member(const char *p, const char *end)
{
    int depth = 0;
    while (p < end && (depth > 0 || (*p != ',' && *p != '}'))) {
        if (*p == '"') {
            p = skip_string(p, end);
            continue;
        }
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        p++;
    }
    return p;
}

static bool is_key(const char *p, const char *end, const char *key)
{
    size_t length = strlen(key);
    return (size_t)(end - p) > length + 1 && *p == '"' && !memcmp(p + 1, key, length) &&
           p[length + 1] == '"';
}

tsr_status tsr_json_without(tsr_text *out, const char *text, size_t length, const char *key,
                            const char *place)
{
    json_error_t error = {.text = "not an object"};
    json_t *root =
        json_loadb(text, length, JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES, &error);
    bool object = json_is_object(root);
    json_decref(root);
    if (!object)
        return tsr_fail(json_error_code(&error) == json_error_out_of_memory ? TSR_ENOMEM
                                                                            : TSR_EDATA,
                        "%s: expected an object of JSON: %s", place, error.text);
    const char *end = text + length, *brace = skip_space(text, end) + 1, *rest = brace;
    bool first = true;
    tsr_text_append(out, text, (size_t)(brace - text));
    /* A member has the white space before it; that behind the last one belongs to the closing brace. */
    for (const char *p = brace; p < end && *p != '}';) {
        const char *next = skip_member(p, end), *name = skip_space(p, next);
        rest = next;
        while (rest > name && strchr(" \t\r\n", rest[-1]))
            rest--;
        if (name < next && !is_key(name, next, key)) {
            tsr_text_puts(out, first ? "" : ",");
            tsr_text_append(out, p, (size_t)((*next == ',' ? next : rest) - p));
            first = false;
        }
        p = *next == ',' ? next + 1 : next;
    }
    tsr_text_append(out, rest, (size_t)(end - rest));
    return out->failed ? tsr_fail(TSR_ENOMEM, "%s: no memory for its text", place) : TSR_OK;
}
