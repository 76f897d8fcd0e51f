/*
 * keys_help.c: what a key takes, in words; the help text made of it.
 */
#include "config/config.h"
#include "config/config_number.h"
#include "config/keys.h"

#include <math.h>
#include <string.h>

static void put_bounds(tsr_text *out, const tsr_key *key)
{
    if (key->low == 0 && key->high == 0)
        return;
    if (key->step > 0) {
        tsr_text_puts(out, ", a multiple of ");
        tsr_number_put(out, key->step, 0);
        tsr_text_puts(out, ",");
    }
    bool above = key->flags & TSR_KEY_LOW_OPEN, below = key->flags & TSR_KEY_HIGH_OPEN;
    if (!isfinite(key->high) || key->high >= 9007199254740992.0) {
        tsr_text_puts(out, above ? " above " : ", ");
        tsr_number_put(out, key->low, 0);
        tsr_text_puts(out, above ? "" : " or more");
        return;
    }
    tsr_text_puts(out, above ? " above " : " from ");
    tsr_number_put(out, key->low, 15);
    if (above)
        tsr_text_puts(out, below ? ", below " : ", at most ");
    else
        tsr_text_puts(out, below ? " to less than " : " to ");
    tsr_number_put(out, key->high, 15);
}

static void put_words(tsr_text *out, const tsr_key *key)
{
    int usable = 0;
    for (const tsr_key_word *w = key->words; w->word; w++)
        usable += !w->refused;
    if (usable > 1)
        tsr_text_puts(out, "one of ");
    bool first = true;
    for (const tsr_key_word *w = key->words; w->word; w++) {
        if (w->refused)
            continue;
        tsr_text_printf(out, "%s%s", first ? "" : ", ", w->word);
        first = false;
    }
}

static const char *shape(const tsr_key *key)
{
    switch (key->type) {
    case TSR_KEY_BOOL:
        return "true or false";
    case TSR_KEY_INT:
        return "a whole number";
    case TSR_KEY_NUMBER:
        return "a number";
    case TSR_KEY_STEPS:
        return "a whole number, or a share below 1;";
    case TSR_KEY_DURATION:
        return "seconds, or a time such as 1h30m or 01:30:00";
    case TSR_KEY_BYTES:
        return "a size with its unit, such as 22GiB or 500MB";
    case TSR_KEY_STRING:
        return key->flags & TSR_KEY_PATH ? "a text that is not empty" : "a text";
    case TSR_KEY_STRINGS:
        return "a name or a list of names";
    case TSR_KEY_DATA:
        return "a file or a list of files, or a list of maps, each with a path";
    case TSR_KEY_NAMES:
        return key->flags & TSR_KEY_ONE_EACH ? "a map to texts from"
                                             : "a map to texts or lists of texts from";
    case TSR_KEY_UNITS:
        return "layer, a number of layers (1 or more), bytes (64MiB), or names of modules "
               "(self_attn, mlp)";
    case TSR_KEY_MODULES:
        return key->flags & TSR_KEY_ALL_LINEAR
                   ? "all-linear, all-linear-peft, a list of module names or a regular expression"
                   : "a list of module names or a regular expression";
    case TSR_KEY_INTS:
        return "a whole number or a list of them, each";
    case TSR_KEY_TOKENS:
        return "a list of whole numbers, or a map of embed_tokens and lm_head to such lists, each";
    case TSR_KEY_PATTERNS:
        return key->flags & TSR_KEY_WHOLE ? "a map of module names to whole numbers"
                                          : "a map of module names to numbers";
    default:
        return "a map with num_cycles, min_lr, min_lr_rate";
    }
}

void tsr_keys_expects(tsr_text *out, const tsr_key *key)
{
    if (key->type == TSR_KEY_WORD)
        put_words(out, key);
    else
        tsr_text_puts(out, shape(key));
    if (key->type == TSR_KEY_NAMES) {
        tsr_text_puts(out, " ");
        put_words(out, key);
    }
    if (key->type == TSR_KEY_INT || key->type == TSR_KEY_NUMBER || key->type == TSR_KEY_INTS ||
        key->type == TSR_KEY_TOKENS || key->type == TSR_KEY_PATTERNS || key->type == TSR_KEY_STEPS)
        put_bounds(out, key);
    if (key->none && key->type != TSR_KEY_WORD)
        tsr_text_printf(out, ", or %s", key->none);
}

static void put_key(tsr_text *out, const tsr_key *key)
{
    tsr_text_printf(out, "  %s [%s%s", key->name, key->derived ? "as " : "",
                    key->derived ? key->derived : key->initial);
    if (key->trl)
        tsr_text_printf(out, "; TRL: %s", key->trl);
    tsr_text_printf(out, "]  %s\n      ", key->help);
    if (key->later)
        tsr_text_printf(out, "not in this version: only %s", key->initial);
    else
        tsr_keys_expects(out, key);
    bool first = true;
    for (const tsr_key_word *w = key->words; w && w->word; w++)
        if (w->refused && w->value >= 0 && strstr(w->refused, "not in this version")) {
            tsr_text_printf(out, "%s%s", first ? "; not in this version: " : ", ", w->word);
            first = false;
        }
    tsr_text_puts(out, "\n");
}

void tsr_config_help(tsr_text *out)
{
    const char *group = "";
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        if (strcmp(group, key->group)) {
            group = key->group;
            tsr_text_printf(out, "%s%s\n", i ? "\n" : "", group);
        }
        put_key(out, key);
    }
}
