/*
 * Published configurations of axolotl, LLaMA-Factory and TRL. Each file of configs/ has the keys and the forms of values of
 * the published one that its first comment names; model and data are small ones of this tree.
 *
 * A file is loaded, or it waits for keys of `awaited` that are not here yet, or it is refused for exactly what its second
 * comment says ("# refused: a, b"). What loads has the same values when it is translated first. An .args file is a command
 * line, a word a line.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/usage.h"
#include "config/config.h"
#include "config/keys.h"

#define CONFIGS   TSR_SOURCE_DIR "/tests/first_hour/configs"
#define MAX_WORDS 64

/* Keys that a file may wait for, until they are here. */
static const char *const awaited[] = {
    "validation_split",  "max_train_samples", "max_eval_samples",        "special_tokens",
    "loraplus_lr_ratio", "init_lora_weights", "early_stopping_patience", "dataset_mixing",
};

#define AWAITED (sizeof awaited / sizeof *awaited)

typedef struct {
    int runs, waits, refused;
    int waiting[AWAITED];
} tally;

typedef struct {
    char name[256];
    char *text;             /* the file */
    char refused[256];      /* its second comment; "" */
    char *words[MAX_WORDS]; /* of an .args file */
    tsr_usage usage;
    tsr_config_source source;
} published;

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    size_t got = fread(text, 1, (1 << 16) - 1, file);
    assert_true(got > 0);
    fclose(file);
    return text;
}

/* The words behind the comments, as the program's arguments. */
static void read_args(published *p, char *text)
{
    int count = 0;
    p->words[count++] = (char *)"tessera";
    for (char *line; (line = strsep(&text, "\n"));)
        if (*line && *line != '#') {
            assert_true(count < MAX_WORDS);
            p->words[count++] = line;
        }
    if (tsr_usage_parse(&p->usage, count, p->words) < 0)
        fail_msg("%s: %s", p->name, tsr_last_error());
    assert_int_equal(p->usage.command, TSR_COMMAND_TRAIN);
    p->source.overrides = p->usage.overrides;
    p->source.override_count = p->usage.override_count;
}

static void open_published(published *p, const char *folder, const char *name)
{
    static const char mark[] = "# refused: ";
    char path[1024];
    *p = (published){.source = {.use = TSR_CONFIG_TRAIN}};
    snprintf(p->name, sizeof p->name, "%s/%s", folder, name);
    snprintf(path, sizeof path, CONFIGS "/%s", p->name);
    p->text = read_text(path);
    if (strncmp(p->text, "# axolotl, examples/", 20) != 0 &&
        strncmp(p->text, "# LLaMA-Factory, examples/", 26) != 0 &&
        strncmp(p->text, "# TRL, ", 7) != 0)
        fail_msg("%s: the first comment does not name a published file", p->name);
    const char *second = strchr(p->text, '\n') + 1;
    if (!strncmp(second, mark, sizeof mark - 1))
        snprintf(p->refused, sizeof p->refused, "%.*s",
                 (int)strcspn(second + sizeof mark - 1, "\n"), second + sizeof mark - 1);
    if (strstr(name, ".args")) {
        read_args(p, p->text);
    } else {
        p->source.text = p->text;
        p->source.name = p->name;
    }
}

static void close_published(published *p)
{
    tsr_usage_free(&p->usage);
    free(p->text);
}

/* Whether a line says that a key is not here yet; counts it. */
static bool waits(tally *t, const char *line)
{
    for (size_t i = 0; i < AWAITED; i++) {
        char words[80];
        snprintf(words, sizeof words, "no key '%s' in this version", awaited[i]);
        if (strstr(line, words) && tsr_keys_find(awaited[i]) < 0) {
            t->waiting[i]++;
            return true;
        }
    }
    return false;
}

/* The reason of `list`, "a, b", that is in the line, as a bit; 0: none. */
static unsigned reason_of(const char *list, const char *line)
{
    char copy[256], *rest = copy;
    unsigned bit = 1;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *word; (word = strsep(&rest, ",")); bit <<= 1) {
        word += strspn(word, " ");
        if (*word && strstr(line, word))
            return bit;
    }
    return 0;
}

/* Every line of the message is for what is awaited or what is refused, and all that is refused is said. */
static void judge_errors(tally *t, const published *p, const char *message)
{
    char *copy = strdup(message), *rest = copy;
    unsigned said = 0, all = 0;
    assert_non_null(copy);
    for (char *line; (line = strsep(&rest, "\n"));) {
        const char *after = strstr(line, ": "); /* the place */
        unsigned reason = reason_of(p->refused, after ? after : line);
        said |= reason;
        if (!reason && !strstr(line, "errors in the configuration:") && !waits(t, line))
            fail_msg("%s: unexpected: %s", p->name, line);
    }
    free(copy);
    for (const char *word = *p->refused ? p->refused : NULL; word;
         word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL)
        all = all << 1 | 1;
    if (said != all)
        fail_msg("%s: expected all of \"%s\" in: %s", p->name, p->refused, message);
    t->refused += all != 0;
    t->waits += all == 0;
}

/* Translated, and then loaded: the same values. */
static void check_translation(const published *p, const tsr_config *config)
{
    tsr_text text = {0};
    tsr_config again;
    if (tsr_config_translate(&text, &p->source) < 0)
        fail_msg("%s: %s", p->name, tsr_last_error());
    const tsr_config_source source = {.text = tsr_text_string(&text), .name = "translated"};
    if (tsr_config_load(&again, &source) < 0)
        fail_msg("%s: %s\nin\n%s", p->name, tsr_last_error(), tsr_text_string(&text));
    if (tsr_config_hash(config) != tsr_config_hash(&again))
        fail_msg("%s: other values than those of\n%s", p->name, tsr_text_string(&text));
    tsr_config_free(&again);
    tsr_text_free(&text);
}

/* What a file is refused for, or what it waits for. */
static void print_outcome(const published *p, const tally *before, const tally *after)
{
    print_message("  %s %s", *p->refused ? "refused " : "waits   ", p->name);
    if (*p->refused)
        print_message(": %s", p->refused);
    for (size_t i = 0, count = 0; i < AWAITED && !*p->refused; i++)
        if (after->waiting[i] > before->waiting[i])
            print_message("%s%s", count++ ? ", " : ": ", awaited[i]);
    print_message("\n");
}

static void check(tally *t, const char *folder, const char *name)
{
    published p;
    tsr_config config;
    const tally before = *t;
    open_published(&p, folder, name);
    tsr_status status = tsr_config_load(&config, &p.source);
    if (status == TSR_OK) {
        if (*p.refused)
            fail_msg("%s: loaded, but it is to be refused: %s", p.name, p.refused);
        check_translation(&p, &config);
        t->runs++;
        print_message("  runs     %s\n", p.name);
        tsr_config_free(&config);
    } else {
        assert_int_equal(status, TSR_ECONFIG);
        judge_errors(t, &p, tsr_last_error());
        print_outcome(&p, &before, t);
    }
    close_published(&p);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void check_folder(tally *t, const char *folder, int expected)
{
    char path[1024], *names[128];
    int count = 0;
    snprintf(path, sizeof path, CONFIGS "/%s", folder);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (*entry->d_name != '.') {
            assert_true(count < 128);
            names[count++] = strdup(entry->d_name);
        }
    closedir(directory);
    assert_int_equal(count, expected);
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int i = 0; i < count; i++) {
        check(t, folder, names[i]);
        free(names[i]);
    }
}

static void test_published(void **state)
{
    (void)state;
    tally t = {0};
    assert_int_equal(chdir(TSR_SOURCE_DIR), 0); /* paths are from there */
    check_folder(&t, "axolotl", 67);
    check_folder(&t, "llamafactory", 17);
    check_folder(&t, "trl", 5);
    print_message("of 89 published configurations %d run, %d wait for a key, %d are refused\n",
                  t.runs, t.waits, t.refused);
    for (size_t i = 0; i < AWAITED; i++)
        if (t.waiting[i])
            print_message("  %d need %s\n", t.waiting[i], awaited[i]);
    assert_int_equal(t.runs + t.waits + t.refused, 89);
    assert_true(t.runs >= 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
