/*
 * test_library_load.c LIBRARY: loading libtessera starts no thread, sets no variable, changes no signal's action, the rounding, the
 * locale nor the working directory, and opens no file that stays open. OpenBLAS' own set-up, which is inside, is held to that too.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fenv.h>
#include <locale.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

#define MOST 65536

typedef struct {
    int threads, files, rounding;
    char variables[MOST], directory[4096], locale[256];
    void (*action[65])(int);
} surroundings;

static int entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void look_around(surroundings *s)
{
    size_t used = 0;
    memset(s, 0, sizeof *s);
    s->threads = entries("/proc/self/task");
    s->files = entries("/proc/self/fd");
    s->rounding = fegetround();
    for (char **variable = environ; *variable && used < MOST; variable++)
        used += (size_t)snprintf(s->variables + used, MOST - used, "%s\n", *variable);
    assert_true(used < MOST);
    assert_non_null(getcwd(s->directory, sizeof s->directory));
    snprintf(s->locale, sizeof s->locale, "%s", setlocale(LC_ALL, NULL));
    for (int number = 1; number <= 64; number++) {
        struct sigaction action = {0};
        s->action[number] = sigaction(number, NULL, &action) == 0 ? action.sa_handler : NULL;
    }
}

static const char *path;

static void loading_changes_nothing(void **state)
{
    static surroundings before, after;
    (void)state;
    look_around(&before);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    assert_non_null(dlsym(library, "tsr_job_create"));
    look_around(&after);
    assert_string_equal(before.variables, after.variables);
    assert_string_equal(before.directory, after.directory);
    assert_string_equal(before.locale, after.locale);
    assert_int_equal(before.threads, after.threads);
    assert_int_equal(before.files, after.files);
    assert_int_equal(before.rounding, after.rounding);
    assert_memory_equal(before.action, after.action, sizeof before.action);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loading_changes_nothing)};
    if (argc != 2)
        return 64;
    path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
