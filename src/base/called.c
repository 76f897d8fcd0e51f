#include "base/called.h"

#include <string.h>

static const char *program = "tessera";

const char *tsr_called(void)
{
    return program;
}

void tsr_called_set(const char *name)
{
    program = name;
}

void tsr_shell_quote(tsr_text *out, const char *word)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "_-./=+,:@%";
    if (*word && strspn(word, safe) == strlen(word)) {
        tsr_text_puts(out, word);
        return;
    }
    tsr_text_puts(out, "'");
    for (const char *p = word; *p; p++)
        if (*p == '\'')
            tsr_text_puts(out, "'\\''");
        else
            tsr_text_append(out, p, 1);
    tsr_text_puts(out, "'");
}
