#include "support/folder.h"

#include "base/log.h"
#include "io/safetensors.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void test_read(void **state)
{
    (void)state;
    char *data;
    uint64_t bytes;
    write_bytes(scratch_path("f"), "a\0b", 3);
    assert_int_equal(tsr_file_read(&data, &bytes, scratch_path("f"), 3), TSR_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(data, "a\0b", 4);
    free(data);
    check_error("too large", tsr_file_read(&data, &bytes, scratch_path("f"), 2), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/f", "3 bytes", "at most 2"});
    check_error("absent", tsr_file_read(&data, &bytes, scratch_path("g"), 2), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/g", "No such file"});
    write_text(scratch_path("f"),
               "version https://git-lfs.github.com/spec/v1\noid sha256:01\nsize 9\n");
    check_error("pointer", tsr_file_read(&data, &bytes, scratch_path("f"), 200), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/f: this is a Git LFS pointer", "git lfs pull"});
    check_error("directory", tsr_file_read(&data, &bytes, *state, 2), TSR_EDATA,
                (const char *const[MOST_WORDS]){"not a regular file"});
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    check_error("pipe", tsr_file_read(&data, &bytes, scratch_path("pipe"), 2), TSR_EDATA,
                (const char *const[MOST_WORDS]){"pipe", "not a regular file"});
}

/* What another path or permission mends is the data's (65); what the system runs out of is not (71).
 * All readers judge alike. */
static void refuse_alike(const char *name, tsr_status expected, const char *reason)
{
    char *data;
    uint64_t bytes;
    tsr_safetensors *file;
    const char *const words[MOST_WORDS] = {name, reason};
    check_error(reason, tsr_file_read(&data, &bytes, scratch_path(name), 2), expected, words);
    check_error(reason, tsr_safetensors_open(&file, scratch_path(name)), expected, words);
}

static void test_whose_fault(void **state)
{
    struct rlimit old, none = {0};
    refuse_alike("absent", TSR_EDATA, "No such file");
    assert_int_equal(symlink("nowhere", scratch_path("dangling")), 0);
    refuse_alike("dangling", TSR_EDATA, "No such file");
    assert_int_equal(symlink("loop", scratch_path("loop")), 0);
    refuse_alike("loop", TSR_EDATA, "Too many levels of symbolic links");
    write_text(scratch_path("f"), "x");
    refuse_alike("f/g", TSR_EDATA, "Not a directory");
    assert_int_equal(mkdir(scratch_path("d"), 0700), 0);
    refuse_alike("d", TSR_EDATA, "not a regular file");
    assert_int_equal(chmod(*state, 0711),
                     0); /* for another user than root, who may read anything */
    assert_int_equal(chmod(scratch_path("f"), 0), 0);
    bool root = geteuid() == 0;
    assert_true(!root || seteuid(65534) == 0);
    refuse_alike("f", TSR_EDATA, "Permission denied");
    assert_true(!root || seteuid(0) == 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    refuse_alike("f", TSR_EIO, "Too many open files");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(tsr_status_of_open(EIO), TSR_EIO);
    assert_int_equal(tsr_status_of_open(ENFILE), TSR_EIO);
    assert_int_equal(tsr_status_of_open(ENOMEM), TSR_ENOMEM);
}

static void test_appears_only_when_published(void **state)
{
    tsr_folder *folder = open_folder(*state);
    tsr_file *file;
    uint64_t bytes;
    assert_int_equal(tsr_file_stage(&file, folder, "out"), TSR_OK);
    assert_int_equal(tsr_file_append(file, "abc", 3), TSR_OK);
    assert_int_equal(access(scratch_path("out"), F_OK), -1);
    assert_int_equal(tsr_file_finish(file), TSR_OK);
    assert_int_equal(access(scratch_path("out"), F_OK), -1);
    assert_int_equal(tsr_file_append(file, "d", 1), TSR_EINVAL);
    assert_int_equal(tsr_file_publish(file), TSR_OK);
    tsr_file_discard(file);
    char *data = read_whole(&bytes, scratch_path("out"));
    assert_string_equal(data, "abc");
    free(data);
    tsr_folder_close(folder);
    assert_int_equal(count_entries(*state), 1);
}

static void test_discard_leaves_the_old_file(void **state)
{
    tsr_folder *folder = open_folder(*state);
    tsr_file *file;
    uint64_t bytes;
    write_text(scratch_path("out"), "old");
    assert_int_equal(tsr_file_stage(&file, folder, "out"), TSR_OK);
    assert_int_equal(tsr_file_append(file, "new", 3), TSR_OK);
    tsr_file_discard(file);
    tsr_file_discard(NULL);
    tsr_folder_close(folder);
    char *data = read_whole(&bytes, scratch_path("out"));
    assert_string_equal(data, "old");
    free(data);
    assert_int_equal(count_entries(*state), 1);
    assert_int_equal(tsr_file_write(scratch_path("out"), "newer", 5), TSR_OK);
    data = read_whole(&bytes, scratch_path("out"));
    assert_string_equal(data, "newer");
    free(data);
}

static void test_two_at_once(void **state)
{
    tsr_folder *folder = open_folder(*state);
    tsr_file *a, *b;
    assert_int_equal(tsr_file_stage(&a, folder, "out"), TSR_OK);
    assert_int_equal(tsr_file_stage(&b, folder, "out"), TSR_OK);
    assert_int_equal(count_entries(*state), 2);
    tsr_file_discard(a);
    tsr_file_discard(b);
    tsr_folder_close(folder);
    assert_int_equal(count_entries(*state), 0);
}

/* ---- whose temporary files are ---- */

/* What comes before the next call of flock, once; and what it fails with. */
static void (*before_lock)(void);
static int lock_error;

__attribute__((visibility("default"))) int flock(int fd, int operation)
{
    void (*call)(void) = before_lock;
    before_lock = NULL;
    if (call)
        call();
    errno = lock_error;
    return lock_error ? -1 : (int)syscall(SYS_flock, fd, operation);
}

static mode_t outs(const char *name)
{
    return strcmp(name, "out") ? 0 : S_IFREG;
}

static void tidy(void)
{
    tsr_folder *folder = open_folder(scratch_path(""));
    assert_int_equal(tsr_file_tidy(folder, outs), TSR_OK);
    tsr_folder_close(folder);
}

static bool is_there(const char *name)
{
    return access(scratch_path(name), F_OK) == 0;
}

/* What a name says of a process means nothing: it may be of another machine, or another one by now. */
static void test_tidy(void **state)
{
    tsr_folder *folder = open_folder(*state);
    tsr_file *file;
    char own[64];
    snprintf(own, sizeof own, ".out.%ld.0.tmp", (long)getpid());
    write_text(scratch_path(own), "left by a process of the same number");
    write_text(scratch_path(".out.1.0.tmp"), "left, though there is a process of the number");
    write_text(scratch_path(".in.1.0.tmp"), "somebody else's");
    write_text(scratch_path("out"), "out");
    assert_int_equal(tsr_file_stage(&file, folder, "out"), TSR_OK);
    assert_int_equal(tsr_file_append(file, "new", 3), TSR_OK);
    assert_int_equal(count_entries(*state), 5);
    tidy();
    assert_false(is_there(own) || is_there(".out.1.0.tmp"));
    assert_int_equal(count_entries(*state), 3); /* the staged one too */
    assert_int_equal(tsr_file_finish(file), TSR_OK);
    tidy();
    assert_int_equal(tsr_file_publish(file), TSR_OK);
    tsr_file_discard(file);
    tidy();
    assert_int_equal(count_entries(*state), 2);
    assert_true(is_there(".in.1.0.tmp"));
    assert_int_equal(tsr_file_write(scratch_path("in"), "x", 1), TSR_OK);
    assert_false(is_there(".in.1.0.tmp"));
    tsr_folder_close(folder);
}

/* Between its creation and its lock it is anybody's: whoever loses it takes another name. */
static void test_tidy_comes_between(void **state)
{
    tsr_folder *folder = open_folder(*state);
    tsr_file *file;
    uint64_t bytes;
    before_lock = tidy;
    assert_int_equal(tsr_file_stage(&file, folder, "out"), TSR_OK);
    assert_null(before_lock);
    assert_int_equal(count_entries(*state), 1);
    tidy();
    assert_int_equal(tsr_file_append(file, "abc", 3), TSR_OK);
    assert_int_equal(tsr_file_publish(file), TSR_OK);
    tsr_file_discard(file);
    char *data = read_whole(&bytes, scratch_path("out"));
    assert_string_equal(data, "abc");
    free(data);
    tsr_folder_close(folder);
}

static char warning[4096];

static void keep_warning(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    if (level == TSR_LOG_WARNING)
        snprintf(warning, sizeof warning, "%s", line);
}

static void test_no_locks(void **state)
{
    (void)state;
    write_text(scratch_path(".out.1.0.tmp"), "who knows whose");
    lock_error = ENOLCK;
    tsr_log_set(keep_warning, NULL, TSR_LOG_WARNING);
    tidy();
    tsr_log_set(NULL, NULL, TSR_LOG_ERROR);
    assert_int_equal(tsr_file_write(scratch_path("out"), "abc", 3), TSR_OK);
    lock_error = 0;
    assert_true(is_there(".out.1.0.tmp") && is_there("out"));
    assert_non_null(strstr(warning, ".out.1.0.tmp: perhaps left"));
}

/* Nothing takes the place of what is no file, under its own name or another. */
static void test_no_file(void **state)
{
    struct stat about;
    (void)state;
    char *pipe = strdup(scratch_path("pipe")), *name = strdup(scratch_path("name"));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink(pipe, name), 0);
    assert_int_equal(tsr_file_write(pipe, "text", 4), TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "pipe is a device, a pipe"));
    assert_int_equal(tsr_file_write(name, "text", 4), TSR_ECONFIG);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(symlink("/proc/self/fd/1", name), 0); /* as /dev/stdout is */
    assert_int_equal(tsr_file_write(name, "text", 4), TSR_ECONFIG);
    assert_int_equal(lstat(pipe, &about), 0);
    assert_true(S_ISFIFO(about.st_mode));
    assert_int_equal(lstat(name, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    free(pipe);
    free(name);
}

static void test_temporary_names(void **state)
{
    static const char *const others[] = {"out",
                                         ".out",
                                         ".out.tmp",
                                         ".out.1.tmp",
                                         ".1.2.tmp",
                                         "..1.2.tmp",
                                         ".out.1.2.tmp2",
                                         "out.1.2.tmp",
                                         ".out.x.2.tmp",
                                         ".out.1..tmp",
                                         ".out.-1.2.tmp",
                                         ".tmp",
                                         ""};
    char final[NAME_MAX + 1];
    (void)state;
    assert_true(tsr_file_is_temporary(final, ".out.1234.0.tmp"));
    assert_string_equal(final, "out");
    assert_true(tsr_file_is_temporary(final, ".model.safetensors.index.json.1.99.tmp"));
    assert_string_equal(final, "model.safetensors.index.json");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (tsr_file_is_temporary(final, others[i]))
            fail_msg("%s is taken for the temporary file of %s", others[i], final);
}

static void test_failures(void **state)
{
    check_error("no directory", tsr_file_write(scratch_path("none/out"), "x", 1), TSR_EIO,
                (const char *const[MOST_WORDS]){"none/out", "No such file"});

    /* A full disk, as far as a test can have one. */
    struct rlimit old, small = {.rlim_cur = 1024, .rlim_max = RLIM_INFINITY};
    char block[4096] = {0};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    tsr_status status = tsr_file_write(scratch_path("out"), block, sizeof block);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    check_error("full", status, TSR_EIO, (const char *const[MOST_WORDS]){"out", "writing failed"});
    assert_int_equal(count_entries(*state), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_whose_fault, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_appears_only_when_published, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_discard_leaves_the_old_file, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_two_at_once, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_no_file, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_temporary_names),
        cmocka_unit_test_setup_teardown(test_tidy, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_tidy_comes_between, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_no_locks, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_failures, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
