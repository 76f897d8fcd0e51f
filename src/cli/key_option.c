#include "cli/key_option.h"

#include "config/keys.h"

#include <ctype.h>
#include <string.h>

/* --learning-rate=1 as learning_rate. */
static void put_name(tsr_text *out, const char *arg)
{
    const char *p = arg + strspn(arg, "-");
    for (size_t i = 0; p[i] && p[i] != '='; i++)
        tsr_text_append(out, p[i] == '-' ? "_" : &p[i], 1);
}

/* --no_shuffle, --no_remove_unused_columns: what it turns off; NULL: nothing. */
static const char *turned_off(const char *name)
{
    const char *flag = !strncmp(name, "no_", 3) ? name + 3 : NULL;
    if (!flag || tsr_keys_known(name) || !tsr_keys_known(flag) || tsr_keys_needs_value(flag))
        return NULL;
    return flag;
}

bool tsr_key_option_known(const char *arg)
{
    tsr_text name = {0};
    if (strncmp(arg, "--", 2) != 0 || !isalpha((unsigned char)arg[2]))
        return false;
    put_name(&name, arg);
    const char *text = tsr_text_string(&name);
    bool known = tsr_keys_known(text) || turned_off(text);
    tsr_text_free(&name);
    return known;
}

/* How a flag's value may be written; NULL: the word is none. */
static const char *flag_word(const char *text)
{
    static const char *const yes[] = {"true", "True", "yes", "y", "t", "1"};
    static const char *const no[] = {"false", "False", "no", "n", "f", "0"};
    for (int i = 0; i < 6; i++) {
        if (!strcmp(text, yes[i]))
            return "true";
        if (!strcmp(text, no[i]))
            return "false";
    }
    return NULL;
}

static bool is_option(const char *arg)
{
    return arg[0] == '-' && !isdigit((unsigned char)arg[1]) && arg[1] != '.';
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), n = strlen(end);
    return length > n && !strcmp(text + length - n, end);
}

/* Whether the word may be a value: no option, no key=value, no job.yaml that is still missing. */
static bool is_value(const char *arg, bool has_job)
{
    size_t key = strcspn(arg, "=");
    tsr_text name = {0};
    if (is_option(arg) || (!has_job && (ends_with(arg, ".yaml") || ends_with(arg, ".yml"))))
        return false;
    tsr_text_append(&name, arg, key);
    bool override = arg[key] && tsr_keys_known(tsr_text_string(&name));
    tsr_text_free(&name);
    return !override;
}

static void put_quoted(tsr_text *out, const char *text)
{
    tsr_text_puts(out, "\"");
    for (const char *p = text; *p; p++)
        tsr_text_printf(out, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
    tsr_text_puts(out, "\"");
}

/* How many words behind the option are its value. */
static int count_values(const char *key, char *const *args, int count, bool has_job)
{
    const char *next = count ? args[0] : NULL;
    int taken = 1;
    if (!next)
        return 0;
    if (tsr_keys_is_flag(key))
        return flag_word(next) || tsr_keys_takes_word(key, next);
    if (tsr_keys_needs_value(key) ? is_option(next) : !is_value(next, has_job))
        return 0;
    while (tsr_keys_is_list(key) && taken < count && is_value(args[taken], has_job))
        taken++;
    return taken;
}

/* Without a value a flag is true. */
static void put_value(tsr_text *out, const char *key, char *const *values, int count)
{
    const char *word = count && tsr_keys_is_flag(key) ? flag_word(values[0]) : NULL;
    if (count < 2) {
        tsr_text_puts(out, word ? word : count ? values[0] : "true");
        return;
    }
    for (int i = 0; i < count; i++) {
        tsr_text_puts(out, i ? ", " : "[");
        put_quoted(out, values[i]);
    }
    tsr_text_puts(out, "]");
}

tsr_status tsr_key_option_parse(tsr_text *out, char *const *args, int count, int *index,
                                bool has_job)
{
    char *const *values = args + *index + 1;
    const char *arg = args[*index], *equals = strchr(arg, '=');
    tsr_text name = {0};
    tsr_status status = TSR_OK;
    put_name(&name, arg);
    const char *key = tsr_text_string(&name), *off = turned_off(key);
    int taken = equals || off ? 0 : count_values(key, values, count - *index - 1, has_job);
    tsr_text_printf(out, "%s=", off ? off : key);
    if (equals) {
        char *value = (char *)equals + 1;
        put_value(out, key, &value, 1);
    } else if (off) {
        tsr_text_puts(out, "false");
    } else if (!taken && tsr_keys_needs_value(key)) {
        status =
            tsr_fail(TSR_EUSAGE, "%s: the value is missing: %s VALUE, or %s=VALUE", arg, arg, key);
    } else {
        put_value(out, key, values, taken);
    }
    if (status == TSR_OK && (out->failed || name.failed))
        status = tsr_fail(TSR_ENOMEM, "out of memory: command line");
    *index += taken;
    tsr_text_free(&name);
    return status;
}
