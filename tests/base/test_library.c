/*
 * Libraries that are loaded when they are needed: one that works, one that is missing, one that is no
 * library, one that lacks a function, one that is too old; and threads that all want it at once.
 */
#include "base/library.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct {
    int (*version)(void);
    int (*twice)(int x);
} table;

static int asked; /* how often the version was */

static tsr_library_version version(void)
{
    int code = table.version();
    asked++;
    return (tsr_library_version){code / 100, code / 10 % 10, code % 10};
}

static const char *const names[] = {"made_up_version", "made_up_twice"};

static tsr_library library_of(const char *soname)
{
    return (tsr_library){.name = "Made-up",
                         .soname = soname,
                         .install = "package made-up",
                         .instead = "do without",
                         .oldest = {4, 2, 1},
                         .built = {4, 5, 6},
                         .names = names,
                         .count = 2,
                         .functions = &table,
                         .version = version,
                         .lock = PTHREAD_MUTEX_INITIALIZER};
}

static void loads_once(void **state)
{
    (void)state;
    tsr_library library = library_of(MADE_UP_FOLDER "/libmade_up_good.so");
    tsr_library_version found = {0};
    asked = 0;
    assert_int_equal(tsr_library_load(NULL, &library), TSR_OK);
    assert_int_equal(tsr_library_load(&found, &library), TSR_OK);
    assert_int_equal(asked, 1);
    assert_int_equal(found.major * 100 + found.minor * 10 + found.patch, 421);
    assert_int_equal(table.twice(21), 42);
}

/* The message has `what`, and what every one of them has. */
static void check_refused(const char *soname, const char *what)
{
    tsr_library library = library_of(soname);
    tsr_library_version found = {7, 7, 7};
    const char *every[] = {"Made-up",         soname,       "4.2.1 or newer",
                           "made with 4.5.6", "LD_LIBRARY", "package made-up",
                           "or do without",   what};
    for (int again = 0; again < 2; again++) {
        assert_int_equal(tsr_library_load(&found, &library), TSR_EDEVICE);
        for (size_t i = 0; i < sizeof every / sizeof *every; i++)
            if (!strstr(tsr_last_error(), every[i]))
                fail_msg("\"%s\" is not in: %s", every[i], tsr_last_error());
    }
    assert_int_equal(found.major, 7);
    print_message("%s\n", tsr_last_error());
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    check_refused("libmade_up_nowhere.so.4", "cannot open shared object file");
    check_refused(TSR_SOURCE_DIR "/tests/base/made_up_library.c", "invalid ELF header");
    check_refused(MADE_UP_FOLDER "/libmade_up_lacking.so", "has no function made_up_twice");
    check_refused(MADE_UP_FOLDER "/libmade_up_old.so", "is version 4.2.0");
}

static void *load(void *library)
{
    return (void *)(intptr_t)tsr_library_load(NULL, library);
}

static void from_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    tsr_library library = library_of(MADE_UP_FOLDER "/libmade_up_good.so");
    pthread_t thread[THREADS];
    asked = 0;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, load, &library), 0);
    for (int i = 0; i < THREADS; i++) {
        void *status;
        pthread_join(thread[i], &status);
        assert_int_equal((intptr_t)status, TSR_OK);
    }
    assert_int_equal(asked, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_once),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(from_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
