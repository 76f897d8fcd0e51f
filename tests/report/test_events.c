/*
 * TensorBoard's event file: the bytes of tensorboard 2.21's own RecordWriter, and going on with a file.
 */
#include "support/folder.h"

#include "report/events.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION_BYTES (16 + 9 + 15) /* frame, wall_time, "brain.Event:2" */

/* Event(wall_time=1700000000.5, step=7, summary=Summary(value=[Value(tag="train/loss", simple_value=2.25)])),
 * and the same of (1700000001.25, 300, "eval/loss", nan). */
static const char loss_7[] = "\x20\x00\x00\x00\x00\x00\x00\x00\x29\xed\xa9\x50\x09\x00\x00\x20\x40"
                             "\xfc\x54\xd9\x41\x10\x07\x2a"
                             "\x13\x0a\x11\x0a\x0a\x74\x72\x61\x69\x6e\x2f\x6c\x6f\x73\x73\x15\x00"
                             "\x00\x10\x40\x5a\x0d\x65\xdc";
static const char eval_300[] =
    "\x20\x00\x00\x00\x00\x00\x00\x00\x29\xed\xa9\x50\x09\x00\x00\x50\x40\xfc\x54\xd9\x41\x10\xac"
    "\x02"
    "\x2a\x12\x0a\x10\x0a\x09\x65\x76\x61\x6c\x2f\x6c\x6f\x73\x73\x15\x00\x00\xc0\x7f\x03\x60\xad"
    "\x05";

static const char *path;
static tsr_folder *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = open_folder(scratch_make());
    path = strdup(scratch_path(TSR_EVENTS_FILE));
    return 0;
}

static int remove_folder(void **state)
{
    tsr_folder_close(folder);
    free((char *)path);
    return scratch_teardown(state);
}

/* What the file holds behind its first record. */
static void expect_tail(const char *expected, size_t bytes)
{
    char buffer[4096];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t got = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    assert_int_equal(got, VERSION_BYTES + bytes);
    assert_memory_equal(buffer + VERSION_BYTES - 4 - 13, "brain.Event:2", 13);
    assert_memory_equal(buffer + VERSION_BYTES, expected, bytes);
}

static void write_both(int64_t last_step)
{
    tsr_events *events;
    assert_int_equal(tsr_events_create(&events, folder, last_step, true), TSR_OK);
    assert_int_equal(tsr_events_write(events, 1700000000.5, 7, "train/loss", 2.25), TSR_OK);
    assert_int_equal(tsr_events_write(events, 1700000001.25, 300, "eval/loss", (double)NAN),
                     TSR_OK);
    tsr_events_destroy(events);
}

static void go_on(int64_t last_step)
{
    tsr_events *events;
    assert_int_equal(tsr_events_create(&events, folder, last_step, true), TSR_OK);
    tsr_events_destroy(events);
}

static void test_bytes(void **state)
{
    (void)state;
    char both[2 * 48];
    memcpy(both, loss_7, 48);
    memcpy(both + 48, eval_300, 48);
    write_both(0);
    expect_tail(both, sizeof both);
    write_both(0); /* replaced, not added to */
    expect_tail(both, sizeof both);
}

static void test_going_on(void **state)
{
    (void)state;
    write_both(0);
    go_on(299); /* step 300 is not there yet */
    expect_tail(loss_7, 48);
    write_both(6);
    go_on(7);
    expect_tail(loss_7, 48);
    go_on(6);
    expect_tail("", 0);
    /* the evaluation of the step is to come again */
    tsr_events *events;
    char both[2 * 48];
    memcpy(both, loss_7, 48);
    memcpy(both + 48, eval_300, 48);
    write_both(0);
    go_on(300);
    expect_tail(both, sizeof both);
    assert_int_equal(tsr_events_create(&events, folder, 300, false), TSR_OK);
    tsr_events_destroy(events);
    expect_tail(loss_7, 48);
    assert_int_equal(tsr_events_create(&events, folder, 7, false), TSR_OK);
    tsr_events_destroy(events);
    expect_tail(loss_7, 48);
}

static void test_damaged(void **state)
{
    (void)state;
    write_both(0);
    assert_int_equal(truncate(path, VERSION_BYTES + 48 + 47), 0); /* cut off while it was written */
    go_on(1000);
    expect_tail(loss_7, 48);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, VERSION_BYTES + 20, SEEK_SET), 0);
    fputc('x', file);
    fclose(file);
    go_on(1000);
    expect_tail("", 0);
}

static void test_errors(void **state)
{
    (void)state;
    tsr_events *events;
    unlink(path);
    assert_int_equal(symlink("elsewhere", path), 0);
    assert_int_equal(tsr_events_create(&events, folder, 0, true), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), path));
    assert_int_equal(access(scratch_path("elsewhere"), F_OK), -1);
    assert_int_equal(unlink(path), 0);
}

/* A run goes on in a file of its own. */
static void test_other_names(void **state)
{
    (void)state;
    struct stat info;
    write_both(0);
    assert_int_equal(link(path, scratch_path("kept")), 0);
    go_on(1000);
    write_both(1000);
    assert_int_equal(stat(scratch_path("kept"), &info), 0);
    assert_int_equal(info.st_size, VERSION_BYTES + 2 * 48);
    assert_int_equal(info.st_nlink, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),       cmocka_unit_test(test_going_on),
        cmocka_unit_test(test_damaged),     cmocka_unit_test(test_errors),
        cmocka_unit_test(test_other_names),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
