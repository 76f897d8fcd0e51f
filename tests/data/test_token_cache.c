/* Tokens kept in a file: the same data with a cache and without, on any number of threads, whatever happens to the file. */
#include "support/scratch.h"

#include "base/log.h"
#include "base/text.h"
#include "data/dataset.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROWS 700

static tsr_tokenizer *tokenizer;
static tsr_chat *chat;
static tsr_token_place place;
static tsr_text said;

static void hear(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    if (level <= TSR_LOG_INFO)
        tsr_text_printf(&said, "%s\n", line);
}

static int setup(void **state)
{
    (void)state;
    scratch_make();
    tsr_log_set(hear, NULL, TSR_LOG_INFO);
    assert_int_equal(tsr_tokenizer_open(&tokenizer, TSR_SOURCE_DIR "/examples/tiny-llama", false),
                     TSR_OK);
    return tsr_chat_create(&chat, tokenizer, NULL);
}

static int teardown(void **state)
{
    (void)state;
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(tokenizer);
    tsr_text_free(&said);
    scratch_remove();
    return 0;
}

/* Rows of many lengths, some of which max_length cuts or empties. */
static void write_rows(int bad)
{
    tsr_auto_text text = {0};
    for (int i = 0; i < ROWS; i++) {
        if (bad && i % bad == bad - 1) {
            tsr_text_printf(&text, "{\"messages\":%d}\n", i);
            continue;
        }
        tsr_text_printf(&text, "{\"messages\":[{\"role\":\"user\",\"content\":\"What is %d?", i);
        for (int j = 0; j < i % 40; j++)
            tsr_text_printf(&text, " and %d", i * j);
        tsr_text_printf(&text, "\"},{\"role\":\"assistant\",\"content\":\"It is %d.\"%s}]}\n",
                        i * i, i % 100 == 7 ? ",\"loss_weight\":1" : "");
    }
    write_text(scratch_path("rows.jsonl"), tsr_text_string(&text));
}

static tsr_status load(tsr_dataset **out, int threads, bool cached, int64_t max_length)
{
    const char *path = scratch_path("rows.jsonl");
    tsr_dataset_options options = {.files = &path,
                                   .file_count = 1,
                                   .chat = chat,
                                   .max_length = max_length,
                                   .truncation = TSR_TRUNCATE_RIGHT,
                                   .threads = threads,
                                   .cache = cached ? &place : NULL};
    *out = NULL;
    tsr_text_clear(&said);
    return tsr_dataset_load(out, &options);
}

static void use_folder(const char *name)
{
    place = (tsr_token_place){.failed = false};
    snprintf(place.directory, sizeof place.directory, "%s", scratch_path(name));
}

static void check_same(const tsr_dataset *a, const tsr_dataset *b)
{
    assert_int_equal(tsr_dataset_sample_count(a), tsr_dataset_sample_count(b));
    assert_true(tsr_dataset_hash(a) == tsr_dataset_hash(b));
    assert_memory_equal(tsr_dataset_stats_of(a), tsr_dataset_stats_of(b),
                        sizeof(tsr_dataset_stats));
    assert_string_equal(tsr_dataset_unread_keys(a), tsr_dataset_unread_keys(b));
    for (int64_t i = 0; i < tsr_dataset_sample_count(a); i++) {
        tsr_sample x = tsr_dataset_sample(a, i), y = tsr_dataset_sample(b, i);
        assert_int_equal(x.token_count, y.token_count);
        assert_int_equal(x.line, y.line);
        assert_memory_equal(x.ids, y.ids, 4 * (size_t)x.token_count);
        assert_memory_equal(x.labels, y.labels, 4 * (size_t)x.token_count);
        assert_memory_equal(x.lengths, y.lengths, 4 * (size_t)x.document_count);
    }
}

static bool heard(const char *text)
{
    return strstr(tsr_text_string(&said), text) != NULL;
}

/* Loads with the cache, and compares with what is made without. */
static void check_load(const char *expected, int64_t max_length)
{
    tsr_dataset *plain, *data;
    assert_int_equal(load(&plain, 1, false, max_length), TSR_OK);
    if (load(&data, 3, true, max_length) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    if (!heard(expected))
        fail_msg("expected \"%s\" in: %s", expected, tsr_text_string(&said));
    check_same(plain, data);
    tsr_dataset_destroy(plain);
    tsr_dataset_destroy(data);
}

static int count_files(char path[4096])
{
    int count = 0;
    char folder[4096];
    tsr_text_join(folder, sizeof folder, place.directory, "/");
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries && (e = readdir(entries));)
        if (*e->d_name != '.' && ++count)
            tsr_text_join(path, 4096, folder, e->d_name);
    if (entries)
        closedir(entries);
    return count;
}

static void threads(void **state)
{
    (void)state;
    tsr_dataset *one, *many;
    write_rows(0);
    assert_int_equal(load(&one, 1, false, 200), TSR_OK);
    assert_true(tsr_dataset_stats_of(one)->truncated > 0);
    assert_string_equal(tsr_dataset_unread_keys(one), "\"loss_weight\"");
    for (int n = 2; n <= 7; n += 5) {
        assert_int_equal(load(&many, n, false, 200), TSR_OK);
        check_same(one, many);
        tsr_dataset_destroy(many);
    }
    tsr_dataset_destroy(one);
}

/* The first bad row is the first in the file, with the same message. */
static void bad_rows(void **state)
{
    (void)state;
    char first[1024];
    tsr_dataset *data;
    write_rows(50);
    assert_int_equal(load(&data, 1, false, 0), TSR_EDATA);
    snprintf(first, sizeof first, "%s", tsr_last_error());
    assert_non_null(strstr(first, "rows.jsonl:50: "));
    assert_non_null(strstr(first, "13 more bad rows"));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(load(&data, 4, false, 0), TSR_EDATA);
        assert_string_equal(tsr_last_error(), first);
    }
    use_folder("bad");
    char path[4096];
    assert_int_equal(load(&data, 4, true, 0), TSR_EDATA);
    assert_string_equal(tsr_last_error(), first);
    assert_int_equal(count_files(path), 0);
}

static void again(void **state)
{
    (void)state;
    char path[4096];
    write_rows(0);
    use_folder("again");
    check_load("tokens are kept in", 200);
    check_load("tokenized before", 200);
    check_load("tokens are kept in", 100); /* another key, another file */
    check_load("tokenized before", 100);
    check_load("tokenized before", 200);
    assert_int_equal(count_files(path), 2);
    write_rows(0); /* the same content at another time */
    check_load("tokenized before", 200);
}

/* What decides about tokens or labels makes another file, and each is found again. */
static void options_apart(void **state)
{
    (void)state;
    char path[4096];
    const char *rows = scratch_path("rows.jsonl");
    const tsr_dataset_options options[] = {
        {0},
        {.drop_system = true},
        {.training.ends = TSR_CHAT_ENDS_LAST},
        {.training.roles = TSR_CHAT_ROLES_CHOSEN | TSR_CHAT_USER},
        {.default_system = "a"},
        {.default_system = "b"},
        {.response_template = "It is"},
        {.response_template = "It"},
    };
    write_rows(0);
    use_folder("options");
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            tsr_dataset_options o = options[i];
            tsr_dataset *data;
            o.files = &rows;
            o.file_count = 1;
            o.chat = chat;
            o.cache = &place;
            tsr_text_clear(&said);
            assert_int_equal(tsr_dataset_load(&data, &o), TSR_OK);
            assert_true(heard(pass ? "tokenized before" : "tokens are kept in"));
            tsr_dataset_destroy(data);
        }
    assert_int_equal(count_files(path), sizeof options / sizeof *options);
}

static void changed(void **state)
{
    (void)state;
    struct stat before;
    write_rows(0);
    use_folder("changed");
    check_load("tokens are kept in", 0);
    const char *rows = scratch_path("rows.jsonl");
    assert_int_equal(stat(rows, &before), 0);
    int fd = open(rows, O_WRONLY); /* one digit: the size stays, and the time is put back */
    char text[64];
    int in = open(rows, O_RDONLY);
    assert_int_equal(pread(in, text, sizeof text, 0), sizeof text);
    close(in);
    text[63] = 0;
    char *digit = strstr(text, "is 0?");
    assert_non_null(digit);
    assert_int_equal(pwrite(fd, "7", 1, digit + 3 - text), 1);
    assert_int_equal(futimens(fd, (struct timespec[]){before.st_atim, before.st_mtim}), 0);
    close(fd);
    check_load("has changed since", 0);
    check_load("tokenized before", 0);
}

static void damage(const char *path, off_t at, off_t length)
{
    char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    if (length >= 0)
        assert_int_equal(ftruncate(fd, length), 0);
    else {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

static void damaged(void **state)
{
    (void)state;
    char path[4096];
    struct stat info;
    write_rows(0);
    use_folder("damaged");
    check_load("tokens are kept in", 0);
    assert_int_equal(count_files(path), 1);
    assert_int_equal(stat(path, &info), 0);
    const off_t places[] = {0, info.st_size / 2, info.st_size - 70, info.st_size - 60,
                            info.st_size - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        damage(path, places[i], -1);
        check_load("it is made anew", 0);
        check_load("tokenized before", 0);
    }
    const off_t lengths[] = {0, 63, 64, info.st_size / 2, info.st_size - 64};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        damage(path, 0, lengths[i]);
        check_load("it is made anew", 0);
        check_load("tokenized before", 0);
    }
}

/* A link under the name is not followed: what it leads to stays as it is. */
static void linked(void **state)
{
    (void)state;
    char path[4096], kept[4096];
    write_rows(0);
    use_folder("linked");
    check_load("tokens are kept in", 0);
    assert_int_equal(count_files(path), 1);
    snprintf(kept, sizeof kept, "%s", scratch_path("elsewhere"));
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(symlink(kept, path), 0);
    damage(kept, 0, 64);
    check_load("tokens are kept in", 0);
    struct stat info;
    assert_int_equal(stat(kept, &info), 0);
    assert_int_equal(info.st_size, 64);
}

static void racing(void **state)
{
    (void)state;
    char path[4096];
    write_rows(0);
    use_folder("racing");
    pid_t child[4];
    for (int i = 0; i < 4; i++)
        if (!(child[i] = fork())) {
            tsr_dataset *data;
            tsr_status status = load(&data, 2, true, 0);
            _exit(status == TSR_OK ? 0 : 1);
        }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_files(path), 1);
    check_load("tokenized before", 0);
}

/* Writing ends as on a full disk; the data are there all the same, and it is said once. */
static void full(void **state)
{
    (void)state;
    char path[4096];
    struct rlimit before, small;
    write_rows(0);
    use_folder("full");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){4096, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    tsr_dataset *data, *plain;
    assert_int_equal(load(&data, 2, true, 0), TSR_OK);
    assert_true(heard("dataset_cache: ") && heard("tokenized anew at each start"));
    assert_int_equal(load(&plain, 2, true, 0), TSR_OK);
    assert_false(heard("dataset_cache"));
    setrlimit(RLIMIT_FSIZE, &before);
    check_same(data, plain);
    assert_int_equal(count_files(path), 0);
    tsr_dataset_destroy(data);
    tsr_dataset_destroy(plain);
}

/* The path of the cache that was just said to be made or used. */
static void cache_path(char path[4096])
{
    const char *at = strstr(tsr_text_string(&said), place.directory);
    assert_non_null(at);
    snprintf(path, 4096, "%.*s", (int)strcspn(at, ")\n"), at);
}

/* Loads with the cache; gives its path. */
static tsr_dataset *load_kept(char path[4096], const char *expected, int64_t max_length)
{
    tsr_dataset *data;
    assert_int_equal(load(&data, 1, true, max_length), TSR_OK);
    if (!heard(expected))
        fail_msg("expected \"%s\" in: %s", expected, tsr_text_string(&said));
    cache_path(path);
    return data;
}

static void keep(char path[4096], const char *expected, int64_t max_length)
{
    tsr_dataset_destroy(load_kept(path, expected, max_length));
}

/* Sets the time at which a cache was used last. */
static void used_at(const char *path, time_t when)
{
    const struct timespec times[] = {{when, 0}, {when, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Beyond the limit those that were used longest ago go, but neither the newest nor one that is mapped. */
static void limit(void **state)
{
    (void)state;
    char a[4096], b[4096], c[4096], d[4096];
    struct stat info;
    write_rows(0);
    use_folder("limit");
    keep(a, "tokens are kept in", 201);
    assert_int_equal(stat(a, &info), 0);
    place.most_bytes = (uint64_t)(info.st_size * 5 / 2); /* room for two */
    keep(b, "tokens are kept in", 200);
    assert_true(is_there(a) && is_there(b));
    used_at(a, 1000);
    used_at(b, 2000);
    keep(c, "tokens are kept in", 199);
    assert_true(!is_there(a) && is_there(b) && is_there(c));
    used_at(c, 1000);
    keep(c, "tokenized before", 199); /* which is a use */
    keep(d, "tokens are kept in", 198);
    assert_true(!is_there(b) && is_there(c) && is_there(d));
    tsr_dataset *mapped = load_kept(c, "tokenized before", 199);
    used_at(c, 500);
    used_at(d, 600);
    keep(a, "tokens are kept in", 201);
    assert_true(is_there(c) && !is_there(d) && is_there(a));
    tsr_dataset_destroy(mapped);
    keep(b, "tokens are kept in", 200);
    assert_true(!is_there(c) && is_there(a) && is_there(b));
    /* What has no room even alone is not kept, which is said. */
    place.most_bytes = (uint64_t)info.st_size / 4;
    check_load("the tokens take more than the cache's", 196);
    assert_true(is_there(a) && is_there(b));
}

static void no_place(void **state)
{
    (void)state;
    write_rows(0);
    use_folder("absent/deep/deeper");
    check_load("dataset_cache: ", 0);
    place = (tsr_token_place){.failed = false};
    check_load("neither XDG_CACHE_HOME nor HOME", 0);
    use_folder("rows.jsonl");
    check_load("dataset_cache: ", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads),       cmocka_unit_test(bad_rows), cmocka_unit_test(again),
        cmocka_unit_test(options_apart), cmocka_unit_test(changed),  cmocka_unit_test(damaged),
        cmocka_unit_test(linked),        cmocka_unit_test(racing),   cmocka_unit_test(full),
        cmocka_unit_test(limit),         cmocka_unit_test(no_place)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
