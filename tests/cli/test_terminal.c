/*
 * A training on a terminal of 80 columns, alone and behind mpirun: the bar with the time left, what is announced at once,
 * and a stop that is answered at once. The terminal is a pty.
 */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/text.h"
#include "support/scratch.h"

#define MOST_SECONDS 100
#define CLEAR_LINE   "\r\033[K"

typedef struct {
    pid_t child;
    int terminal, code; /* of the program; -1: it has not ended */
    tsr_text seen;
} session;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* `words` in a shell whose terminal has 80 columns. */
static void start(session *s, const char *words)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 80};
    *s = (session){.code = -1};
    s->child = forkpty(&s->terminal, NULL, NULL, &size);
    assert_true(s->child >= 0);
    if (s->child == 0) {
        execl("/bin/sh", "sh", "-c", words, (char *)NULL);
        _exit(127);
    }
}

/* Reads until `text` is there (NULL: to the end). */
static bool read_until(session *s, const char *text)
{
    double end = now() + MOST_SECONDS;
    while (!text || !strstr(tsr_text_string(&s->seen), text)) {
        char part[4096];
        struct pollfd ready = {.fd = s->terminal, .events = POLLIN};
        if (now() > end)
            return false;
        if (poll(&ready, 1, 100) <= 0)
            continue;
        ssize_t got = read(s->terminal, part, sizeof part);
        if (got > 0)
            tsr_text_append(&s->seen, part, (size_t)got);
        else if (got == 0 || errno != EINTR)
            return text == NULL; /* EIO: nobody has the terminal any more */
    }
    return true;
}

static void expect(session *s, const char *text)
{
    if (!read_until(s, text))
        fail_msg("no '%s' in: %s", text, tsr_text_string(&s->seen));
}

static void finish(session *s)
{
    int status;
    bool ended = read_until(s, NULL);
    if (!ended)
        kill(s->child, SIGKILL);
    assert_int_equal(waitpid(s->child, &status, 0), s->child);
    s->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    close(s->terminal);
    if (!ended)
        fail_msg("it did not end: %s", tsr_text_string(&s->seen));
}

static void command(char *out, size_t bytes, const char *launch, const char *more)
{
    snprintf(out, bytes,
             "exec %s '%s' train /dev/null model_name_or_path=%s/examples/tiny-llama backend=cpu "
             "dataset=%s/examples/data/gsm8k_eval.jsonl output_dir=%s total_batch_size=2 "
             "overwrite_output_dir=true max_length=1024 %s",
             launch, TSR_PROGRAM, TSR_SOURCE_DIR, TSR_SOURCE_DIR, scratch_path("run"), more);
}

/* Every bar fits the terminal and has the time left, but for the last step's. At least `least` of them. */
static void check_bars(const char *text, int least)
{
    int bars = 0;
    for (const char *p = text; (p = strstr(p, CLEAR_LINE "step ")) != NULL;) {
        char line[256];
        p += strlen(CLEAR_LINE);
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\r\n"), p);
        bool last = strstr(line, "100%") != NULL, bar = strchr(line, '[') != NULL;
        if (strlen(line) >= 80 || (bar && !last && !strstr(line, " left")))
            fail_msg("'%s' in: %s", line, text);
        bars += bar;
    }
    if (bars < least)
        fail_msg("%d bars in: %s", bars, text);
}

static void test_alone(void **state)
{
    char words[2048];
    session s;
    (void)state;
    command(words, sizeof words, "", "max_steps=3 save_strategy=steps save_steps=2");
    start(&s, words);
    finish(&s);
    if (s.code != 0)
        fail_msg("%d: %s", s.code, s.seen.data);
    check_bars(s.seen.data, 2);
    assert_non_null(strstr(s.seen.data, CLEAR_LINE "step 2/3  saving checkpoint-2" CLEAR_LINE));
    assert_null(strstr(s.seen.data, "\nsaving")); /* not a line of its own */
    tsr_text_free(&s.seen);
}

/* Ctrl-C, as the terminal sends it: said before the step has ended, then a checkpoint. */
static void stop(const char *launch)
{
    char words[2048];
    session s;
    command(words, sizeof words, launch, "max_steps=10000");
    start(&s, words);
    expect(&s, CLEAR_LINE "step 1/10000 [");
    assert_int_equal(write(s.terminal, "\3", 1), 1);
    finish(&s);
    const char *answer = strstr(s.seen.data, CLEAR_LINE "stopping after this step, with a "
                                                        "checkpoint; a second time stops at once");
    if (s.code != 75 || !answer || !strstr(answer, "  saving checkpoint-") ||
        !strstr(answer, "stopped early, with a checkpoint; to continue: "))
        fail_msg("%d: %s", s.code, s.seen.data);
    tsr_text_free(&s.seen);
}

static void test_stop(void **state)
{
    (void)state;
    stop("");
    stop(TSR_SOURCE_DIR "/launch/run -n 2");
}

/* The second time nothing is waited for. */
static void test_stop_twice(void **state)
{
    char words[2048];
    session s;
    (void)state;
    command(words, sizeof words, "", "max_steps=10000 total_batch_size=400");
    start(&s, words);
    expect(&s, "\noutput ");
    kill(s.child, SIGINT);
    expect(&s, "stopping after this step");
    kill(s.child, SIGINT);
    double begun = now();
    finish(&s);
    assert_int_equal(s.code, 128 + SIGINT);
    assert_true(now() - begun < 5);
    assert_null(strstr(s.seen.data, "saving checkpoint"));
    tsr_text_free(&s.seen);
}

/* Rank 0 writes into mpirun's pipe, and has a bar nevertheless; without launch/run's word for the terminal lines. */
static void test_behind_mpirun(void **state)
{
    char words[2048];
    session s;
    (void)state;
    for (int told = 1; told >= 0; told--) {
        command(words, sizeof words,
                told ? TSR_SOURCE_DIR "/launch/run -n 2"
                     : "env TESSERA_TERMINAL= " TSR_SOURCE_DIR "/launch/run -n 2",
                "max_steps=3 save_strategy=steps save_steps=2");
        start(&s, words);
        finish(&s);
        if (s.code != 0)
            fail_msg("%d: %s", s.code, s.seen.data);
        if (told)
            check_bars(s.seen.data, 2);
        else if (strstr(s.seen.data, CLEAR_LINE) ||
                 !strstr(s.seen.data, "\nsaving checkpoint-2\r\n"))
            fail_msg("not lines: %s", s.seen.data);
        tsr_text_free(&s.seen);
    }
}

static void type(session *s, const char *keys)
{
    assert_int_equal(write(s->terminal, keys, strlen(keys)), strlen(keys));
}

/* The tabulator, in a bash that has read the installed script. */
static void test_completion(void **state)
{
    static const struct {
        const char *typed, *line;
    } cases[] = {
        {"tessera pl\t--roo\t", "tessera plan --roofs "},
        {"tessera train x lr_scheduler_type=lin\t", "tessera train x lr_scheduler_type=linear "},
        {"tessera train x lora_dr\t0.1", "tessera train x lora_dropout=0.1"},
        {"tessera data --help lora_dr\t", "tessera data --help lora_dropout "},
    };
    session s;
    (void)state;
    if (access("/bin/bash", X_OK) != 0)
        skip();
    start(&s, "exec env TERM=dumb INPUTRC=/dev/null PS1='$ ' /bin/bash --norc --noprofile -i");
    type(&s, "bind 'set enable-bracketed-paste off'; source " TSR_SHARE
             "/bash-completion/completions/tessera && echo rea''dy\r");
    expect(&s, "ready\r\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_text_clear(&s.seen);
        type(&s, cases[i].typed);
        expect(&s, cases[i].line);
        type(&s, "\25"); /* the line away */
    }
    type(&s, "exit\r");
    finish(&s);
    tsr_text_free(&s.seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),      cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_twice), cmocka_unit_test(test_behind_mpirun),
        cmocka_unit_test(test_completion),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
