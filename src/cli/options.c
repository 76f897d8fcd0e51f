#include "cli/options.h"

#include <stdio.h>
#include <string.h>

#define INDENT 4 /* of a line that begins an option */

static size_t indent_of(const char *line)
{
    return strspn(line, " ");
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

bool tsr_option_next(tsr_option *out, const char **line)
{
    const char *at = *line ? *line : "";
    *out = (tsr_option){0};
    if (indent_of(at) != INDENT) {
        *line = at + strspn(at, "\n");
        return false;
    }
    const char *text = strstr(at + INDENT, "  "); /* two spaces end the name and its argument */
    int head = (int)(text - at - INDENT);
    char both[64], *space;
    snprintf(both, sizeof both, "%.*s", head, at + INDENT);
    space = strchr(both, ' ');
    snprintf(out->argument, sizeof out->argument, "%s", space ? space + 1 : "");
    snprintf(out->name, sizeof out->name, "%.*s", (int)strcspn(both, " "), both);
    do {
        text += indent_of(text);
        tsr_text_puts(&out->what, out->what.length ? " " : "");
        tsr_text_append(&out->what, text, strcspn(text, "\n"));
        text = at = next_line(text);
    } while (indent_of(at) > INDENT);
    *line = at;
    return true;
}
