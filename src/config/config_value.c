/*
 * config_value.c: one value of the file into one field, as its key says.
 */
#include "base/escape.h"
#include "config/config_number.h"
#include "config/config_store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHOWN 60 /* characters of a wrong value in a message */

void tsr_config_found(tsr_text *out, const tsr_yaml_value *value)
{
    if (value->kind != TSR_YAML_SCALAR)
        tsr_text_puts(out, value->kind == TSR_YAML_LIST ? "a list" : "a map");
    else if (tsr_yaml_is_null(value))
        tsr_text_puts(out, *value->text ? "null" : "nothing");
    else {
        size_t length = strlen(value->text), shown = length;
        if (shown > SHOWN) /* not inside a character */
            for (shown = SHOWN; shown && ((unsigned char)value->text[shown] & 0xc0) == 0x80;)
                shown--;
        tsr_text_puts(out, "'");
        tsr_text_escape(out, value->text, shown, TSR_ESCAPE_LINE);
        tsr_text_puts(out, shown < length ? "...'" : "'");
    }
}

static bool refuse_because(const tsr_config_place *place, const tsr_yaml_value *value,
                           const char *because)
{
    tsr_auto_text found = {0};
    tsr_config_found(&found, value);
    tsr_config_error(place->errors, place->where, "%s: found %s; %s", place->spelled,
                     tsr_text_string(&found), because);
    return false;
}

bool tsr_config_refuse(const tsr_config_place *place, const tsr_key *key,
                       const tsr_yaml_value *value)
{
    tsr_auto_text expected = {0};
    tsr_text_puts(&expected, "expected ");
    tsr_keys_expects(&expected, key);
    refuse_because(place, value, tsr_text_string(&expected));
    return false;
}

bool tsr_config_fits(const tsr_key *key, double number)
{
    if (key->low == 0 && key->high == 0)
        return true;
    if (number < key->low || number > key->high || !isfinite(number))
        return false;
    if (key->step > 0 && fmod(number, key->step) != 0)
        return false;
    return !((key->flags & TSR_KEY_LOW_OPEN && number == key->low) ||
             (key->flags & TSR_KEY_HIGH_OPEN && number == key->high));
}

const char *tsr_config_bool_word(const tsr_yaml_value *value)
{
    static const char *const yes[] = {"true", "yes", "on"}, *const no[] = {"false", "no", "off"};
    if (value->kind != TSR_YAML_SCALAR)
        return NULL;
    size_t length = strlen(value->text);
    for (int i = 0; i < 3; i++) {
        if (length == strlen(yes[i]) && tsr_config_same_letters(value->text, yes[i], length))
            return "true";
        if (length == strlen(no[i]) && tsr_config_same_letters(value->text, no[i], length))
            return "false";
    }
    return NULL;
}

static bool read_bool(bool *out, const tsr_key *key, const tsr_yaml_value *value,
                      const tsr_config_place *place)
{
    const char *word = tsr_config_bool_word(value);
    if (!word)
        return tsr_config_refuse(place, key, value);
    *out = *word == 't';
    return true;
}

static const tsr_key_word *find_word(const tsr_key *key, const char *text)
{
    for (const tsr_key_word *w = key->words; w->word; w++)
        if (!strcmp(w->word, text))
            return w;
    return NULL;
}

static bool read_word(int *out, const tsr_key *key, const tsr_yaml_value *value,
                      const tsr_config_place *place)
{
    if (value->kind == TSR_YAML_LIST && value->count == 1 && key->flags & TSR_KEY_LIST_OF_ONE)
        value = &value->items[0];
    if (value->kind == TSR_YAML_LIST && !value->count && key->flags & TSR_KEY_LIST_OF_ONE) {
        *out = (int)key->none_value;
        return true;
    }
    if (value->kind != TSR_YAML_SCALAR || tsr_yaml_is_null(value))
        return tsr_config_refuse(place, key, value);
    const tsr_key_word *found = find_word(key, value->text);
    const char *word = tsr_config_bool_word(value);
    if (!found && word)
        found = find_word(key, word);
    if (found && !found->refused) {
        *out = found->value;
        return true;
    }
    if (!found)
        return tsr_config_refuse(place, key, value);
    tsr_auto_text because = {0};
    tsr_text_printf(&because, "it %s; expected ", found->refused);
    tsr_keys_expects(&because, key);
    refuse_because(place, value, tsr_text_string(&because));
    return false;
}

static bool read_int(int64_t *out, const tsr_key *key, const tsr_yaml_value *value,
                     const tsr_config_place *place)
{
    int64_t number;
    if (value->kind != TSR_YAML_SCALAR || !tsr_number_parse_whole(&number, value->text) ||
        !tsr_config_fits(key, (double)number))
        return tsr_config_refuse(place, key, value);
    *out = number;
    return true;
}

bool tsr_config_read_number(double *out, const tsr_key *key, const tsr_yaml_value *value,
                            const tsr_config_place *place)
{
    double number;
    if (value->kind != TSR_YAML_SCALAR || !tsr_number_parse(&number, value->text) ||
        !tsr_config_fits(key, number))
        return tsr_config_refuse(place, key, value);
    if (key->type == TSR_KEY_STEPS && number >= 1 && number != floor(number))
        return tsr_config_refuse(place, key, value);
    if (key->flags & TSR_KEY_WHOLE && number != floor(number))
        return tsr_config_refuse(place, key, value);
    *out = number == 0 ? 0 : number; /* no negative zero */
    return true;
}

/* `text` up to *end is a number, what follows a unit of `units`: its factor. */
typedef struct {
    const char *name;
    double factor;
} unit;

static bool read_amount(double *out, const char **text, const unit *units)
{
    char digits[64];
    size_t length = strspn(*text, "0123456789.");
    if (!length || length >= sizeof digits)
        return false;
    memcpy(digits, *text, length);
    digits[length] = 0;
    double number;
    if (!tsr_number_parse(&number, digits))
        return false;
    const char *p = *text + length;
    p += strspn(p, " ");
    size_t letters = strcspn(p, "0123456789. ");
    for (const unit *u = units; u->name; u++)
        if (strlen(u->name) == letters && tsr_config_same_letters(u->name, p, letters)) {
            *out = number * u->factor;
            *text = p + letters;
            return true;
        }
    return false;
}

static const unit byte_units[] = {
    {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {NULL, 0},
};

/* A number alone: 8 is hardly meant to be bytes, and 23622320128 is better said to be them. */
static bool refuse_bare(const tsr_key *key, double number, const tsr_yaml_value *value,
                        const tsr_config_place *place)
{
    tsr_auto_text because = {0};
    tsr_text_printf(&because, "the unit is missing: write %s: ", key->name);
    if (number < 0x1p20)
        tsr_text_printf(&because, "%sGiB", value->text);
    else
        tsr_text_printf(&because, "%.0fB", number);
    tsr_text_puts(&because, " (B, KiB, MiB, GiB, TiB, KB, MB, GB or TB)");
    return refuse_because(place, value, tsr_text_string(&because));
}

static bool read_bytes(uint64_t *out, const tsr_key *key, const tsr_yaml_value *value,
                       const tsr_config_place *place)
{
    double bytes = 0;
    const char *p = value->text;
    bool scalar = value->kind == TSR_YAML_SCALAR;
    if (scalar && tsr_number_parse(&bytes, p) && bytes > 0 && bytes < 0x1p63)
        return refuse_bare(key, bytes, value, place);
    if (!scalar || !read_amount(&bytes, &p, byte_units) || *p || !tsr_config_fits(key, bytes) ||
        bytes >= 0x1p63)
        return tsr_config_refuse(place, key, value);
    *out = (uint64_t)bytes;
    return true;
}

/* A number alone is of layers, one with a unit of bytes; what begins otherwise are names. */
static bool read_units(tsr_config_units *out, const tsr_key *key, const tsr_yaml_value *value,
                       const tsr_config_place *place)
{
    const char *p = value->text;
    tsr_config_units units = {0};
    double bytes = 0;
    if (value->kind != TSR_YAML_SCALAR || (*p && !strchr("0123456789.+-", *p))) {
        if (value->kind != TSR_YAML_SCALAR || strcmp(p, "layer") != 0)
            return tsr_config_read_list(out, key, value, place);
        *out = (tsr_config_units){.layers = 1};
        return true;
    }
    if (!tsr_number_parse_whole(&units.layers, p)) {
        if (!read_amount(&bytes, &p, byte_units) || *p || bytes < 1 || bytes >= 0x1p63)
            return tsr_config_refuse(place, key, value);
        units = (tsr_config_units){.bytes = (uint64_t)bytes};
    } else if (units.layers < 1)
        return tsr_config_refuse(place, key, value);
    *out = units;
    return true;
}

/* 01:30:00 */
static bool read_clock(double *out, const char *text)
{
    unsigned part[3];
    int end = 0;
    if (text[strspn(text, "0123456789:")]) /* scanf would take signs and blanks */
        return false;
    if (sscanf(text, "%4u:%2u:%2u%n", &part[0], &part[1], &part[2], &end) == 3 && end &&
        !text[end]) {
        *out = part[0] * 3600.0 + part[1] * 60.0 + part[2];
        return part[1] < 60 && part[2] < 60;
    }
    return false;
}

static bool read_duration(double *out, const tsr_key *key, const tsr_yaml_value *value,
                          const tsr_config_place *place)
{
    static const unit units[] = {{"s", 1},    {"min", 60},  {"m", 60},
                                 {"h", 3600}, {"d", 86400}, {NULL, 0}};
    double seconds = 0, amount;
    bool right = false;
    if (value->kind == TSR_YAML_SCALAR) {
        const char *p = value->text;
        right = tsr_number_parse(&seconds, p) || read_clock(&seconds, p);
        while (!right && read_amount(&amount, &p, units)) {
            seconds += amount;
            right = !*p;
        }
    }
    if (!right || !tsr_config_fits(key, seconds))
        return tsr_config_refuse(place, key, value);
    *out = seconds;
    return true;
}

static bool read_string(const char **out, const tsr_key *key, const tsr_yaml_value *value,
                        const tsr_config_place *place)
{
    if (value->kind != TSR_YAML_SCALAR || (key->flags & TSR_KEY_PATH && !*value->text))
        return tsr_config_refuse(place, key, value);
    const char *word = key->flags & TSR_KEY_TRUE_TOO ? tsr_config_bool_word(value) : NULL;
    *out = tsr_config_store_copy(place->store, word ? word : value->text);
    return *out != NULL;
}

/* null, or the word for it: the key's own value for "none". */
static bool is_none(const tsr_key *key, const tsr_yaml_value *value)
{
    if (!key->none || value->kind != TSR_YAML_SCALAR)
        return false;
    if (tsr_yaml_is_null(value))
        return true;
    /* Quotes change nothing but null, which they make a text: values are typed by their key. */
    if (!strcmp(value->text, key->none) && (!value->quoted || strcmp(key->none, "null") != 0))
        return true;
    const char *word = tsr_config_bool_word(value);
    return key->flags & TSR_KEY_FALSE_IS_NONE && word && *word == 'f';
}

static bool read_none(void *field, const tsr_key *key)
{
    switch (key->type) {
    case TSR_KEY_WORD:
        *(int *)field = (int)key->none_value;
        return true;
    case TSR_KEY_INT:
        *(int64_t *)field = (int64_t)key->none_value;
        return true;
    case TSR_KEY_NUMBER:
    case TSR_KEY_STEPS:
    case TSR_KEY_DURATION:
        *(double *)field = key->none_value;
        return true;
    case TSR_KEY_BYTES:
        *(uint64_t *)field = 0;
        return true;
    case TSR_KEY_STRING:
        *(const char **)field = NULL;
        return true;
    default:
        return false;
    }
}

bool tsr_config_read(void *fields, const tsr_key *key, const tsr_yaml_value *value,
                     const tsr_config_place *place)
{
    void *field = (char *)fields + key->offset;
    if (is_none(key, value) && read_none(field, key))
        return true;
    if (tsr_yaml_is_null(value) && !key->none)
        return tsr_config_refuse(place, key, value);
    switch (key->type) {
    case TSR_KEY_BOOL:
        return read_bool(field, key, value, place);
    case TSR_KEY_WORD:
        return read_word(field, key, value, place);
    case TSR_KEY_INT:
        return read_int(field, key, value, place);
    case TSR_KEY_NUMBER:
    case TSR_KEY_STEPS:
        return tsr_config_read_number(field, key, value, place);
    case TSR_KEY_DURATION:
        return read_duration(field, key, value, place);
    case TSR_KEY_BYTES:
        return read_bytes(field, key, value, place);
    case TSR_KEY_STRING:
        return read_string(field, key, value, place);
    case TSR_KEY_UNITS:
        return read_units(field, key, value, place);
    default:
        return tsr_config_read_list(field, key, value, place);
    }
}
