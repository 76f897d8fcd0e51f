/*
 * Checkpoints cannot be lost. Whatever call of the system fails while one is written, it is said,
 * and the one before is whole; wherever the machine stops, one of the two is there and whole, and
 * never a mixture.
 */
#include "job/faulty_system.h"
#include "job/fixture.h"
#include "support/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define OUTPUT "run"

/* ---- what is on the disk ---- */

/* The newest checkpoint, every byte of which is compared with its manifest; -1: none. */
static int64_t newest_whole(const char *output)
{
    int64_t step;
    char name[TSR_SNAPSHOT_NAME_BYTES];
    tsr_snapshot *snapshot;
    tsr_folder *folder = open_folder(output);
    assert_int_equal(tsr_snapshot_newest(&step, folder), TSR_OK);
    tsr_snapshot_name(name, step);
    if (step >= 0 && tsr_snapshot_open_in(&snapshot, folder, name) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    tsr_folder_close(folder);
    if (step < 0)
        return -1;
    for (int i = 0; i < tsr_snapshot_file_count(snapshot); i++)
        if (tsr_snapshot_verify(snapshot, i) != TSR_OK)
            fail_msg("%s", tsr_last_error());
    assert_int_equal(tsr_snapshot_step(snapshot), step);
    assert_int_equal(tsr_snapshot_file_count(snapshot), 4);
    tsr_snapshot_close(snapshot);
    return step;
}

/* ---- a job that is about to write checkpoint-2, with checkpoint-1 on the disk ---- */

static tsr_job *start_job(void)
{
    static const char *const keys[] = {"model_name_or_path=" JOB_MODEL,
                                       "lora_r=2",
                                       "max_steps=3",
                                       "lora_target_modules=[q_proj]",
                                       "layers_to_transform=[5]",
                                       "save_strategy=steps",
                                       "save_steps=1",
                                       "save_total_limit=1",
                                       "overwrite_output_dir=true"};
    const char *overrides[11];
    char output[600], dataset[600];
    tsr_job *job = NULL;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    memcpy(overrides, keys, sizeof keys);
    snprintf(output, sizeof output, "output_dir=%s", scratch_path(OUTPUT));
    snprintf(dataset, sizeof dataset, "dataset=%s", scratch_path("train.jsonl"));
    overrides[9] = output;
    overrides[10] = dataset;
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .overrides = overrides,
                               .override_count = 11,
                               .threads = 1};
    if (tsr_job_create(&job, &options) != 0 || tsr_job_start(job) != 0 ||
        tsr_job_step(job, &report) != 0 || tsr_job_checkpoint(job) != 0 ||
        tsr_job_step(job, &report) != 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(report.save, 1);
    return job;
}

/* Back to where start_job left it: a failed job may try again here alone. */
static void put_back(tsr_job *job)
{
    char command[1400];
    snprintf(command, sizeof command,
             "cd '%s' && rm -rf checkpoint-* .checkpoint-* && cp -r ../old checkpoint-1",
             scratch_path(OUTPUT));
    assert_int_equal(system(command), 0);
    job->state = TSR_JOB_STARTED;
    job->saved = 1;
}

static void keep_old(void)
{
    char command[1400];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s/checkpoint-1' '%s'",
             scratch_path("old"), scratch_path(OUTPUT), scratch_path("old"));
    assert_int_equal(system(command), 0);
}

/* ---- failing calls ---- */

static const int errors[] = {ENOSPC, EIO, EROFS, EDQUOT, EACCES};

static void check_message(system_kind kind, int nth, int error)
{
    const char *message = tsr_last_error();
    if (kind == SYSTEM_MALLOC) {
        if (!strstr(message, "memory"))
            fail_msg("malloc %d: %s", nth, message);
    } else if (!strstr(message, scratch_path(OUTPUT)) || !strstr(message, strerror(error))) {
        fail_msg("%s %d: expected the path and '%s' in: %s", system_names[kind], nth,
                 strerror(error), message);
    }
}

/* Byte for byte what an attempt without a fault wrote. */
static void assert_as_ever(void)
{
    char command[1400];
    snprintf(command, sizeof command, "diff -r '%s' '%s/checkpoint-2'", scratch_path("ever"),
             scratch_path(OUTPUT));
    assert_int_equal(system(command), 0);
}

/* Every call of the kind fails once. Without effect are allocations that libc and jansson can do
 * without. */
static void fail_each(tsr_job *job, system_kind kind)
{
    int nth = 1, tolerated = 0;
    for (;; nth++) {
        int error = kind == SYSTEM_MALLOC ? ENOMEM : errors[nth % 5];
        bool came;
        system_fail(kind, nth, error);
        int status = tsr_job_checkpoint(job);
        came = system_clear();
        int64_t step = newest_whole(scratch_path(OUTPUT));
        if (status == 0) {
            assert_int_equal(step, 2);
            assert_as_ever();
            if (!came)
                break;
            tolerated++;
        } else {
            assert_true(came);
            if (tsr_job_exit_code(status) != 71)
                fail_msg("%s %d: %s", system_names[kind], nth, tsr_last_error());
            check_message(kind, nth, error);
            assert_in_range(step, 1, 2);
            tsr_status tidied = tsr_snapshot_tidy(job->output);
            assert_int_equal(tidied, TSR_OK);
            assert_int_equal(newest_whole(scratch_path(OUTPUT)), step);
        }
        put_back(job);
    }
    print_message("%s: each of %d calls failed once, %d without effect\n", system_names[kind],
                  nth - 1, tolerated);
    assert_true(nth > 1);
    assert_true(tolerated == 0 || kind == SYSTEM_MALLOC);
    put_back(job);
}

static void test_failing_calls(void **state)
{
    (void)state;
    tsr_job *job = start_job();
    char command[1400];
    keep_old();
    assert_int_equal(tsr_job_checkpoint(job), 0);
    snprintf(command, sizeof command, "cp -r '%s/checkpoint-2' '%s'", scratch_path(OUTPUT),
             scratch_path("ever"));
    assert_int_equal(system(command), 0);
    put_back(job);
    for (system_kind kind = 0; kind < SYSTEM_KINDS; kind++)
        fail_each(job, kind);
    /* And after all that it is still the same job. */
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    assert_int_equal(tsr_job_checkpoint(job), 0);
    assert_int_equal(tsr_job_step(job, &report), 0);
    assert_int_equal(tsr_job_checkpoint(job), 0);
    assert_int_equal(newest_whole(scratch_path(OUTPUT)), 3);
    tsr_job_destroy(job);
}

/* ---- a machine that stops ---- */

/* A disk that replays what was recorded. Data that were not brought to it by fsync may be lost. */
typedef struct {
    const char *from, *root; /* the recorded output_dir, and where it is replayed */
    bool lazy;               /* data get there with fsync alone */
    const system_op *ops;
} disk;

static void place(char out[1200], const disk *d, const char *path)
{
    size_t length = strlen(d->from);
    assert_memory_equal(path, d->from, length);
    snprintf(out, 1200, "%s%s", d->root, path + length);
}

static void append(const char *path, const uint8_t *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
}

/* All data written to the file so far, at once. */
static void flush_file(const disk *d, int until)
{
    char path[1200];
    struct stat info;
    place(path, d, d->ops[until].path);
    if (stat(path, &info) != 0 || S_ISDIR(info.st_mode))
        return;
    assert_int_equal(truncate(path, 0), 0);
    for (int i = 0; i < until; i++)
        if (d->ops[i].kind == SYSTEM_WRITE && !strcmp(d->ops[i].path, d->ops[until].path))
            append(path, d->ops[i].data, d->ops[i].bytes);
}

static void apply(const disk *d, int index)
{
    const system_op *op = &d->ops[index];
    char path[1200], to[1200];
    int fd;
    place(path, d, op->path);
    switch (op->kind) {
    case SYSTEM_OPEN:
        if (!op->creates || op->absent)
            break;
        fd = open(path, O_WRONLY | O_CREAT, 0666);
        assert_true(fd >= 0);
        close(fd);
        break;
    case SYSTEM_WRITE:
        if (!d->lazy)
            append(path, op->data, op->bytes);
        break;
    case SYSTEM_FSYNC:
        if (d->lazy)
            flush_file(d, index);
        break;
    case SYSTEM_RENAME:
        place(to, d, op->to);
        assert_int_equal(rename(path, to), 0);
        break;
    case SYSTEM_MKDIR:
        assert_int_equal(mkdir(path, 0777), 0);
        break;
    case SYSTEM_UNLINK:
        assert_int_equal(unlink(path), 0);
        break;
    default:
        assert_int_equal(rmdir(path), 0);
    }
}

static bool is_commit(const disk *d, const system_op *op)
{
    char new[1200];
    snprintf(new, sizeof new, "%s/checkpoint-2", d->from);
    return op->kind == SYSTEM_RENAME && !strcmp(op->to, new);
}

/* After every prefix, and after every torn last write. */
static void replay(const disk *d, int count)
{
    char command[1400];
    int64_t expected = 1;
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s' && cp -r '%s' '%s/checkpoint-1'",
             d->root, d->root, scratch_path("old"), d->root);
    assert_int_equal(system(command), 0);
    write_text(scratch_path("disk/metrics.jsonl"), "");
    for (int i = 0; i < count; i++) {
        const system_op *op = &d->ops[i];
        if (op->kind == SYSTEM_WRITE && !d->lazy && op->bytes > 1) {
            char path[1200];
            struct stat info;
            place(path, d, op->path);
            assert_int_equal(stat(path, &info), 0);
            append(path, op->data, op->bytes / 2);
            assert_int_equal(newest_whole(d->root), expected);
            assert_int_equal(truncate(path, info.st_size), 0);
        }
        apply(d, i);
        if (is_commit(d, op))
            expected = 2;
        assert_int_equal(newest_whole(d->root), expected);
    }
    assert_int_equal(expected, 2);
}

/* The directory of the new one is on the disk before it gets its name, and the name is before
 * anything of the old one goes. */
static void check_order(const disk *d, int count)
{
    int renamed = -1, staged = -1, named = -1, removed = -1;
    char old[1200], staging[1200];
    snprintf(old, sizeof old, "%s/checkpoint-1", d->from);
    snprintf(staging, sizeof staging, "%s/.checkpoint-2.tmp", d->from);
    for (int i = 0; i < count; i++) {
        const system_op *op = &d->ops[i];
        if (is_commit(d, op))
            renamed = i;
        if (op->kind == SYSTEM_FSYNC && !strcmp(op->path, staging) && renamed < 0)
            staged = i;
        if (op->kind == SYSTEM_FSYNC && !strcmp(op->path, d->from) && renamed >= 0 && named < 0)
            named = i;
        bool removes = op->kind == SYSTEM_UNLINK || op->kind == SYSTEM_RENAME;
        if (removes && removed < 0 && !strncmp(op->path, old, strlen(old)))
            removed = i;
    }
    assert_int_equal(staged, renamed - 1);
    assert_true(renamed > 0 && named > renamed && removed > named);
}

static void test_every_prefix(void **state)
{
    (void)state;
    int count;
    tsr_job *job = start_job();
    char from[600], root[600];
    keep_old();
    system_record();
    int status = tsr_job_checkpoint(job);
    system_op *ops = system_recorded(&count);
    if (status != 0)
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
    snprintf(from, sizeof from, "%s", scratch_path(OUTPUT));
    snprintf(root, sizeof root, "%s", scratch_path("disk"));
    disk d = {.from = from, .root = root, .ops = ops};
    check_order(&d, count);
    replay(&d, count);
    d.lazy = true;
    replay(&d, count);
    print_message("%d operations replayed\n", count);
    system_free(ops, count);
}

/* ---- a directory that is swapped for a link ---- */

static char swapped[600]; /* "": the call has to do with output_dir itself */
static bool came;

static void tree(const char *command, const char *from, const char *to)
{
    char line[1800];
    snprintf(line, sizeof line, "%s '%s' '%s'", command, scratch_path(from), scratch_path(to));
    if (system(line) != 0)
        fail_msg("%s: %s and %s are not alike", swapped, from, to);
}

/* The directory that something is about to be done in leads elsewhere, where all the names are. */
static void swap(const char *path)
{
    char away[700];
    came = true;
    snprintf(swapped, sizeof swapped, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (!strncmp(swapped, scratch_path(OUTPUT), strlen(scratch_path(OUTPUT)))) {
        snprintf(away, sizeof away, "%s.away", swapped);
        assert_int_equal(rename(swapped, away), 0);
        assert_int_equal(symlink(scratch_path("victim"), swapped), 0);
    } else {
        *swapped = 0;
    }
}

/* Whatever is moved or linked while a checkpoint is written, before whichever call: nothing outside
 * is changed, and the run that has output_dir open goes on there, wherever it is moved. */
static void test_swapped_for_links(void **state)
{
    (void)state;
    static const char *const places[] = {"", "/checkpoint-1", "/checkpoint-2", "/.checkpoint-2.tmp",
                                         "/.checkpoint-1.removed"};
    tsr_job *job = start_job();
    char away[700], place[700];
    int nth = 1, moved = 0;
    keep_old();
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(place, sizeof place, "victim%s", places[i]);
        tree("cp -r", "old", place);
    }
    tree("cp -r", "victim", "untouched");
    for (;; nth++) {
        came = false;
        *swapped = 0;
        system_before(nth, swap);
        int status = tsr_job_checkpoint(job);
        system_before(0, NULL);
        if (!came)
            break;
        snprintf(away, sizeof away, "%s.away", swapped);
        if (!strcmp(swapped, scratch_path(OUTPUT))) {
            if (status != 0)
                fail_msg("call %d: %s", nth, tsr_last_error());
            assert_int_equal(newest_whole(away), 2);
            moved++;
        }
        tree("diff -r", "victim", "untouched");
        struct stat info;
        if (*swapped && lstat(swapped, &info) == 0 && S_ISLNK(info.st_mode))
            assert_int_equal(unlink(swapped), 0);
        if (*swapped && access(away, F_OK) == 0 && access(swapped, F_OK) != 0)
            assert_int_equal(rename(away, swapped), 0);
        put_back(job);
    }
    print_message("a link in the way of each of %d calls\n", nth - 1);
    assert_true(moved > 5 && nth > 60);
    tsr_job_destroy(job);
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    system_hurry();
    job_write_documents("train.jsonl", 10, 4096, 7);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failing_calls),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_swapped_for_links),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
