#include "adapters/regex.h"

#include "adapters/set.h"

#include "base/text.h"

#include <oniguruma.h>
#include <stdlib.h>
#include <string.h>

struct tsr_path_regex {
    regex_t *compiled;
    const char *key;
    char *expression;
};

static tsr_status compile(tsr_path_regex *regex, const char *pattern)
{
    OnigEncoding encoding = ONIG_ENCODING_UTF8;
    OnigErrorInfo info;
    onig_initialize(&encoding, 1);
    const OnigUChar *begin = (const OnigUChar *)pattern;
    int code = onig_new(&regex->compiled, begin, begin + strlen(pattern), ONIG_OPTION_NONE,
                        encoding, ONIG_SYNTAX_PYTHON, &info);
    if (code == ONIG_NORMAL)
        return TSR_OK;
    regex->compiled = NULL;
    OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
    onig_error_code_to_str(reason, code, &info);
    return tsr_fail(TSR_ECONFIG, "%s: \"%s\" is not a regular expression: %s", regex->key,
                    regex->expression, (const char *)reason);
}

tsr_status tsr_path_regex_create(tsr_path_regex **out, const char *key, const char *expression,
                                 bool any_parent)
{
    tsr_status status = TSR_OK;
    tsr_text pattern = {0};
    tsr_path_regex *regex = calloc(1, sizeof *regex);
    /* A group that captures moves the numbers of back references; PEFT's does for pattern keys. */
    tsr_text_printf(&pattern, any_parent ? "(.*\\.)?(%s)$" : "(?:%s)$", expression);
    if (regex)
        regex->expression = strdup(expression);
    if (!regex || !regex->expression || pattern.failed) {
        status = tsr_fail(TSR_ENOMEM, "no memory for the expression %s", key);
        goto out;
    }
    regex->key = key;
    status = compile(regex, pattern.data);
out:
    tsr_text_free(&pattern);
    if (status < 0)
        tsr_path_regex_free(regex);
    else
        *out = regex;
    return status;
}

tsr_status tsr_path_regex_match(bool *out, const tsr_path_regex *regex, const char *path)
{
    const OnigUChar *begin = (const OnigUChar *)path, *end = begin + strlen(path);
    int code = onig_match(regex->compiled, begin, end, begin, NULL, ONIG_OPTION_NONE);
    if (code < 0 && code != ONIG_MISMATCH) {
        OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
        onig_error_code_to_str(reason, code);
        return tsr_fail(TSR_ECONFIG, "%s: matching \"%s\" against %s failed: %s", regex->key,
                        regex->expression, path, (const char *)reason);
    }
    *out = code >= 0;
    return TSR_OK;
}

void tsr_path_regex_free(tsr_path_regex *regex)
{
    if (!regex)
        return;
    if (regex->compiled)
        onig_free(regex->compiled);
    free(regex->expression);
    free(regex);
}

const char *tsr_adapter_regex_library(void)
{
    return onig_version();
}
