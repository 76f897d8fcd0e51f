/*
 * pages.c: pages TEMPLATES SHARE: writes man pages and completions of shells below SHARE, as they are installed.
 */
#include "cli/pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int fail(const char *path)
{
    fprintf(stderr, "pages: %s: %s\n", path, strerror(errno));
    return 1;
}

/* A file and its directories; `text` is freed. */
static int put_file(const char *share, const char *name, tsr_text *text, tsr_status status)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", share, name);
    for (char *p = path; (p = strchr(p + 1, '/')) != NULL; *p = '/') {
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return fail(path);
    }
    FILE *file = status == TSR_OK ? fopen(path, "w") : NULL;
    if (!file || fwrite(text->data, 1, text->length, file) != text->length)
        return fail(path);
    tsr_text_free(text);
    return fclose(file) == 0 ? 0 : fail(path);
}

static int put_completion(const char *share, const char *name, const char *templates,
                          const char *template)
{
    char path[4096], pattern[65536];
    snprintf(path, sizeof path, "%s/%s", templates, template);
    FILE *file = fopen(path, "r");
    if (!file)
        return fail(path);
    size_t length = fread(pattern, 1, sizeof pattern - 1, file);
    pattern[length] = 0;
    fclose(file);
    tsr_text text = {0};
    tsr_status status = tsr_pages_completion(&text, pattern, strstr(template, ".fish") != NULL);
    return put_file(share, name, &text, status);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: pages TEMPLATES SHARE\n");
        return 64;
    }
    const char *templates = argv[1], *share = argv[2];
    const tsr_usage_verb *verb;
    tsr_text text = {0};
    tsr_status status = tsr_pages_overview(&text);
    int bad = put_file(share, "man/man1/tessera.1", &text, status);
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++) {
        char name[64];
        snprintf(name, sizeof name, "man/man1/tessera-%s.1", verb->name);
        status = tsr_pages_verb(&text, verb);
        bad |= put_file(share, name, &text, status);
    }
    status = tsr_pages_job(&text);
    bad |= put_file(share, "man/man5/tessera-job.5", &text, status);
    bad |=
        put_completion(share, "bash-completion/completions/tessera", templates, "tessera.bash.in");
    bad |= put_completion(share, "zsh/site-functions/_tessera", templates, "_tessera.in");
    bad |= put_completion(share, "fish/vendor_completions.d/tessera.fish", templates,
                          "tessera.fish.in");
    return bad;
}
