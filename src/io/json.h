/*
 * io/json.h: JSON from files that may be wrong: parsing with duplicate keys and bad UTF-8 refused,
 * and typed getters that name the key, what was found and what is allowed.
 *
 * The tree is jansson's (json_t); the caller frees the root with json_decref. `place` is what a
 * message begins with: a path, a path and a line ("train.jsonl:17"), a path and an outer key
 * ("config.json: rope_parameters"). Every error about content is TSR_EDATA.
 */
#ifndef TSR_IO_JSON_H
#define TSR_IO_JSON_H

#include "base/status.h"
#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSR_JSON_FILE_BYTES (512ull << 20) /* the largest file that tsr_json_load takes */

/* Parses text[0..length), which need not end in a zero. Any value may be the root. Refused with
 * line and column: bad syntax, invalid UTF-8, a duplicate key, a number out of range, U+0000 in a
 * string, anything after the value. */
tsr_status tsr_json_parse(json_t **out, const char *text, size_t length, const char *place);

/* Loads a whole file; its path is the place. A file that does not exist is TSR_EDATA. */
tsr_status tsr_json_load(json_t **out, const char *path);

/* As tsr_json_load, and the root must be an object. */
tsr_status tsr_json_load_object(json_t **out, const char *path);

/* "a string", "an integer", "a number", "a list", "an object", "true", "false", "null"; "nothing"
 * for NULL. */
const char *tsr_json_kind(const json_t *value);

/* The value as JSON, in jansson's style (JSON_INDENT ...). `what` begins the message of TSR_ENOMEM.
 * json_dumps itself leaves things out when memory runs short. */
tsr_status tsr_json_put(tsr_text *out, const json_t *value, size_t style, const char *what);

/* `text` as a JSON string with its quotes; the caller frees. TSR_EINVAL: it is not UTF-8; the message
 * begins with `what`. */
tsr_status tsr_json_quote(char **out, const char *text, const char *what);

/* The text of an object, without one of its members; what else stands there stays as it was written, numbers
 * too that no integer holds. TSR_EDATA: it is no object. */
tsr_status tsr_json_without(tsr_text *out, const char *text, size_t length, const char *key,
                            const char *place);

/* The error of a tree that jansson did not make; errno was 0 before. */
tsr_status tsr_json_not_made(const char *what);

#define TSR_JSON_SHOW_BYTES 96
/* Writes the value's JSON, shortened, for a message ("nothing" for NULL). Returns `buffer`. */
const char *tsr_json_show(char buffer[TSR_JSON_SHOW_BYTES], const json_t *value);

/* Getters. The key must be there and not null; otherwise, or where the type is another, an error
 * and *out stays. Strings and containers are borrowed from the tree. */
tsr_status tsr_json_string(const char **out, const json_t *object, const char *key,
                           const char *place);
tsr_status tsr_json_bool(bool *out, const json_t *object, const char *key, const char *place);
tsr_status tsr_json_int(int64_t *out, const json_t *object, const char *key, int64_t least,
                        int64_t most, const char *place);
tsr_status tsr_json_number(double *out, const json_t *object, const char *key, double least,
                           double most, const char *place);
tsr_status tsr_json_array(json_t **out, const json_t *object, const char *key, const char *place);
tsr_status tsr_json_object(json_t **out, const json_t *object, const char *key, const char *place);

/* The value's text, keys in their order, each number in the fewest of 15 to 17 digits that read back
 * as it; indent 0: on one line, ", " and ": " between (Python's way). *out is the caller's (free). */
tsr_status tsr_json_format(char **out, const json_t *value, int indent);

/* True if the key is there and not null: what "optional" means everywhere here. */
bool tsr_json_has(const json_t *object, const char *key);

#endif
