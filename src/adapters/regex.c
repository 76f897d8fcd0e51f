#include "adapters/regex.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct tsr_path_regex {
    tsr_regex *compiled; /* NULL: a plain key of a pattern */
    const char *key;
    char *expression;
};

/* Whether a key is letters, digits, _ and dots, as the paths of modules are. */
static bool is_plain(const char *expression)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    return !expression[strspn(expression, plain)];
}

static tsr_status compile(tsr_path_regex *regex, bool any_parent)
{
    char reason[TSR_REGEX_REASON_BYTES];
    tsr_text pattern = {0};
    /* A group that captures moves the numbers of back references; PEFT's does for pattern keys. */
    tsr_text_printf(&pattern, any_parent ? "(.*\\.)?(%s)$" : "(?:%s)$", regex->expression);
    tsr_status status = pattern.failed
                            ? tsr_fail(TSR_ENOMEM, "no memory for the expression %s", regex->key)
                            : tsr_regex_create(&regex->compiled, reason, pattern.data,
                                               pattern.length, TSR_REGEX_PYTHON);
    tsr_text_free(&pattern);
    if (status == TSR_EDATA)
        return tsr_fail(TSR_ECONFIG, "%s: \"%s\" is not a regular expression: %s", regex->key,
                        regex->expression, reason);
    return status;
}

tsr_status tsr_path_regex_create(tsr_path_regex **out, const char *key, const char *expression,
                                 bool any_parent)
{
    tsr_path_regex *regex = calloc(1, sizeof *regex);
    if (regex)
        regex->expression = strdup(expression);
    if (!regex || !regex->expression) {
        tsr_path_regex_free(regex);
        return tsr_fail(TSR_ENOMEM, "no memory for the expression %s", key);
    }
    regex->key = key;
    tsr_status status = any_parent && is_plain(expression) ? TSR_OK : compile(regex, any_parent);
    if (status < 0)
        tsr_path_regex_free(regex);
    else
        *out = regex;
    return status;
}

/* What the expression does for a plain key: it is the path, or its end behind a dot. A dot in it stands for any
 * character. */
static bool match_plain(const char *key, const char *path)
{
    size_t length = strlen(key), bytes = strlen(path);
    if (length > bytes || (length < bytes && path[bytes - length - 1] != '.'))
        return false;
    for (path += bytes - length; *key; key++, path++)
        if (*key != '.' && *key != *path)
            return false;
    return true;
}

tsr_status tsr_path_regex_match(bool *out, const tsr_path_regex *regex, tsr_regex_budget *budget,
                                const char *path)
{
    if (!regex->compiled) {
        *out = match_plain(regex->expression, path);
        return TSR_OK;
    }
    tsr_status status = tsr_regex_match(out, regex->compiled, budget, path, strlen(path));
    if (status == TSR_EDATA)
        return tsr_fail(TSR_ECONFIG,
                        "%s: matching \"%s\" against %s was given up, since %s: write it in a "
                        "simpler way, without a repeat inside a repeat",
                        regex->key, regex->expression, path, budget->reason);
    return status;
}

void tsr_path_regex_free(tsr_path_regex *regex)
{
    if (!regex)
        return;
    tsr_regex_destroy(regex->compiled);
    free(regex->expression);
    free(regex);
}
