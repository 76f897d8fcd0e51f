#include "io/json.h"

#include "base/auto.h"
#include "io/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tsr_status tsr_json_parse(json_t **out, const char *text, size_t length, const char *place)
{
    json_error_t error;
    const char *zero = memchr(text, 0, length); /* jansson passes over one behind a number */
    if (zero)
        return tsr_fail(TSR_EDATA, "%s: byte %td is zero, which no JSON has", place, zero - text);
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!root) {
        enum json_error_code code = json_error_code(&error);
        return tsr_fail(code == json_error_out_of_memory ? TSR_ENOMEM : TSR_EDATA,
                        "%s: line %d, column %d: %s%s", place, error.line < 0 ? 1 : error.line,
                        error.column < 0 ? 0 : error.column,
                        code == json_error_invalid_utf8 ? "not valid UTF-8: " : "", error.text);
    }
    *out = root;
    return TSR_OK;
}

tsr_status tsr_json_load(json_t **out, const char *path)
{
    TSR_AUTO_FREE char *text = NULL;
    uint64_t bytes;
    TSR_TRY(tsr_file_read(&text, &bytes, path, TSR_JSON_FILE_BYTES));
    return tsr_json_parse(out, text, bytes, path);
}

tsr_status tsr_json_load_object(json_t **out, const char *path)
{
    json_t *root;
    TSR_TRY(tsr_json_load(&root, path));
    if (!json_is_object(root)) {
        tsr_status status = tsr_fail(TSR_EDATA, "%s: the file holds %s, expected an object {...}",
                                     path, tsr_json_kind(root));
        json_decref(root);
        return status;
    }
    *out = root;
    return TSR_OK;
}

const char *tsr_json_kind(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

/* Drops the bytes of a UTF-8 sequence that was cut at `length`. */
static size_t whole_characters(const char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return length;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return length - (start - 1) >= need ? length : start - 1;
}

const char *tsr_json_show(char buffer[TSR_JSON_SHOW_BYTES], const json_t *value)
{
    static const char *const cut = "...";
    size_t room = TSR_JSON_SHOW_BYTES - 1;
    size_t needed = value ? json_dumpb(value, buffer, room, JSON_ENCODE_ANY | JSON_COMPACT) : 0;
    if (needed == 0) {
        snprintf(buffer, TSR_JSON_SHOW_BYTES, "%s", tsr_json_kind(value));
    } else if (needed <= room) {
        buffer[needed] = 0;
    } else {
        /* What json_dumpb leaves in a buffer that is too small is cut between its pieces. */
        char *all = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        size_t length = room - strlen(cut);
        if (all)
            snprintf(buffer, TSR_JSON_SHOW_BYTES, "%.*s%s", (int)whole_characters(all, length), all,
                     cut);
        else
            snprintf(buffer, TSR_JSON_SHOW_BYTES, "%s", tsr_json_kind(value));
        free(all);
    }
    return buffer;
}

bool tsr_json_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

/* The error of a getter whose value is missing or of another type. */
static tsr_status wrong(const json_t *value, const char *key, const char *place,
                        const char *expected)
{
    char found[TSR_JSON_SHOW_BYTES];
    if (!value)
        return tsr_fail(TSR_EDATA, "%s: key '%s' is missing, expected %s", place, key, expected);
    return tsr_fail(TSR_EDATA, "%s: key '%s' is %s, expected %s", place, key,
                    tsr_json_show(found, value), expected);
}

static int append(const char *data, size_t bytes, void *user)
{
    tsr_text *text = user;
    tsr_text_append(text, data, bytes);
    return text->failed ? -1 : 0;
}

tsr_status tsr_json_put(tsr_text *out, const json_t *value, size_t style, const char *what)
{
    if (json_dump_callback(value, append, out, style) != 0 || out->failed)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to write it", what);
    return TSR_OK;
}

/* jansson says no more than NULL, malloc does. */
tsr_status tsr_json_not_made(const char *what)
{
    if (errno == ENOMEM)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to write it", what);
    return tsr_fail(TSR_EINVAL, "%s is not UTF-8", what);
}

tsr_status tsr_json_quote(char **out, const char *text, const char *what)
{
    errno = 0;
    json_t *string = json_string(text);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (!quoted)
        return tsr_json_not_made(what);
    *out = quoted;
    return TSR_OK;
}

tsr_status tsr_json_string(const char **out, const json_t *object, const char *key,
                           const char *place)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return wrong(value, key, place, "a string");
    *out = json_string_value(value);
    return TSR_OK;
}

tsr_status tsr_json_bool(bool *out, const json_t *object, const char *key, const char *place)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_boolean(value))
        return wrong(value, key, place, "true or false");
    *out = json_is_true(value);
    return TSR_OK;
}

tsr_status tsr_json_int(int64_t *out, const json_t *object, const char *key, int64_t least,
                        int64_t most, const char *place)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most) {
        char expected[96];
        snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, least, most);
        return wrong(value, key, place, expected);
    }
    *out = json_integer_value(value);
    return TSR_OK;
}

tsr_status tsr_json_number(double *out, const json_t *object, const char *key, double least,
                           double most, const char *place)
{
    const json_t *value = json_object_get(object, key);
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= least && number <= most)) {
        char expected[96];
        snprintf(expected, sizeof expected, "a number from %g to %g", least, most);
        return wrong(value, key, place, expected);
    }
    *out = number;
    return TSR_OK;
}

tsr_status tsr_json_array(json_t **out, const json_t *object, const char *key, const char *place)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_array(value))
        return wrong(value, key, place, "a list [...]");
    *out = value;
    return TSR_OK;
}

tsr_status tsr_json_object(json_t **out, const json_t *object, const char *key, const char *place)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_object(value))
        return wrong(value, key, place, "an object {...}");
    *out = value;
    return TSR_OK;
}

tsr_status tsr_json_format(char **out, const json_t *value, int indent)
{
    for (size_t digits = 15; digits <= 17; digits++) {
        size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits) | JSON_INDENT((size_t)indent);
        char *text = json_dumps(value, flags);
        json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool same = again && (digits == 17 || json_equal(again, value));
        json_decref(again);
        if (same) {
            *out = text;
            return TSR_OK;
        }
        free(text);
        if (!again)
            break;
    }
    return tsr_fail(TSR_ENOMEM, "no memory to write JSON");
}
