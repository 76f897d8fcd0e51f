/*
 * test_library_callbacks.c: rows that the caller gives instead of files, and the adapter that it is given.
 */
#include "library/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void read_file(char **text, size_t *bytes, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", library_directory, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    *text = malloc(*bytes + 1);
    assert_non_null(*text);
    assert_int_equal(fread(*text, 1, *bytes, file), *bytes);
    (*text)[*bytes] = 0;
    fclose(file);
}

/* ---- rows ---- */

/* Two sets of rows by name. */
typedef struct {
    char *train, *held_out; /* texts of lines */
    char *given;            /* the row that was asked for last */
    int64_t next, begun, fail_at;
} rows;

static int give_row(void *user, const char *name, int64_t index, const char **row, size_t *bytes)
{
    rows *r = user;
    const char *at = !strcmp(name, "team/questions") ? r->train
                     : !strcmp(name, "held out")     ? r->held_out
                                                     : NULL;
    free(r->given); /* nobody may read it any more */
    r->given = NULL;
    if (!at || (index && index != r->next) || (r->fail_at && index == r->fail_at))
        return 5;
    r->begun += index == 0;
    r->next = index + 1;
    for (int64_t i = 0; i < index && *at; i++)
        at = strchr(at, '\n') + 1;
    if (!*at)
        return 0;
    *bytes = (size_t)(strchr(at, '\n') - at);
    r->given = malloc(*bytes); /* no byte more: what reads behind it is found by a sanitizer */
    *row = memcpy(r->given, at, *bytes);
    return 0;
}

static void open_rows(rows *r)
{
    size_t bytes;
    *r = (rows){0};
    read_file(&r->train, &bytes, "train.jsonl");
    read_file(&r->held_out, &bytes, "eval.jsonl");
}

static void close_rows(rows *r)
{
    free(r->train);
    free(r->held_out);
    free(r->given);
}

static const char *const named[] = {"lora_r=4", "dataset=team/questions", "eval_dataset=held out"};

static tsr_job_options options_of(rows *r)
{
    tsr_job_options options = library_options(library_config);
    options.overrides = named;
    options.override_count = 3;
    options.row = give_row;
    options.user = r;
    return options;
}

static void rows_are_those_of_a_file(void **state)
{
    rows r;
    library_result given, read;
    char *from_rows, *from_file;
    size_t bytes[2];
    (void)state;
    open_rows(&r);
    tsr_job_options options = options_of(&r), file = library_options(library_config);
    library_run(&given, &options);
    library_trained(&given);
    assert_true(r.begun >= 4); /* both sets, each begun again */
    read_file(&from_rows, &bytes[0], "out/adapter_model.safetensors");
    library_run(&read, &file);
    library_trained(&read);
    read_file(&from_file, &bytes[1], "out/adapter_model.safetensors");
    assert_memory_equal(given.loss, read.loss, sizeof read.loss);
    assert_true(given.eval_loss == read.eval_loss);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(from_rows, from_file, bytes[0]);
    free(from_rows);
    free(from_file);
    close_rows(&r);
}

static void refused(rows *r, tsr_status expected, const char *message)
{
    tsr_job *job = NULL;
    tsr_job_options options = options_of(r);
    assert_int_equal(tsr_job_create(&job, &options), expected);
    if (!strstr(tsr_last_error(), message))
        fail_msg("'%s' is not in: %s", message, tsr_last_error());
}

/* As of a file, under the name that it was asked for. */
static void bad_rows_are_named(void **state)
{
    rows r;
    (void)state;
    open_rows(&r);
    r.fail_at = 3;
    refused(&r, TSR_EIO, "team/questions:4: the row callback failed (5)");
    r.fail_at = 0;
    *strstr(strchr(r.train, '\n'), "messages") = 'M';
    refused(&r, TSR_EDATA, "team/questions:2: a row of the format messages");
    *strstr(strchr(r.train, '\n'), "Messages") = 'm';
    *r.held_out = 0;
    refused(&r, TSR_EDATA, "eval_dataset: held out has no row");
    *r.train = '[';
    refused(&r, TSR_EDATA, "team/questions:1:");
    close_rows(&r);
}

/* Ranks that are given other rows. */
typedef struct {
    library_seat seat;
    rows rows;
    int status;
    char message[512];
} rank;

static void *create_rank(void *user)
{
    rank *r = user;
    tsr_job *job = NULL;
    tsr_job_options options = options_of(&r->rows);
    options.bootstrap =
        (tsr_job_bootstrap){r->seat.rank, LIBRARY_RANKS, library_all_gather, &r->seat};
    r->status = tsr_job_create(&job, &options);
    snprintf(r->message, sizeof r->message, "%s", tsr_last_error());
    tsr_job_destroy(r->status < 0 ? NULL : job);
    return NULL;
}

static void ranks_must_be_given_the_same_rows(void **state)
{
    static rank ranks[LIBRARY_RANKS];
    pthread_t threads[LIBRARY_RANKS];
    library_meeting m = {.fail_at = 0};
    (void)state;
    pthread_barrier_init(&m.barrier, NULL, LIBRARY_RANKS);
    for (int i = 0; i < LIBRARY_RANKS; i++) {
        ranks[i].seat = (library_seat){&m, i};
        open_rows(&ranks[i].rows);
        if (i == 1)
            *strstr(ranks[i].rows.train, "What") = 'w';
        pthread_create(&threads[i], NULL, create_rank, &ranks[i]);
    }
    for (int i = 0; i < LIBRARY_RANKS; i++) {
        pthread_join(threads[i], NULL);
        close_rows(&ranks[i].rows);
    }
    pthread_barrier_destroy(&m.barrier);
    for (int i = 0; i < LIBRARY_RANKS; i++) {
        assert_int_equal(ranks[i].status, TSR_ERANKS);
        assert_non_null(strstr(ranks[i].message, "the data of dataset"));
    }
}

/* ---- the adapter ---- */

typedef struct {
    const char *name;
    char *data;
    size_t bytes;
    int ended;
} taken;

typedef struct {
    taken files[3];
    int pieces, fails;
} taker;

static int take(void *user, const char *name, const void *data, size_t bytes, int last)
{
    taker *t = user;
    t->pieces++;
    for (int i = 0; i < 3; i++) {
        taken *file = &t->files[i];
        if (i && !t->files[i - 1].ended) /* in order, one at a time */
            return 2;
        if (strcmp(name, file->name) || file->ended)
            continue;
        file->data = realloc(file->data, file->bytes + bytes);
        memcpy(file->data + file->bytes, data, bytes);
        file->bytes += bytes;
        file->ended = last;
        return t->fails;
    }
    return 3;
}

static const taker nothing = {
    .files = {{"README.md"}, {"adapter_config.json"}, {"adapter_model.safetensors"}}};

static void the_adapter_is_that_of_the_files(void **state)
{
    taker t = nothing;
    library_result result;
    (void)state;
    tsr_job_options options = library_options(library_config);
    options.adapter = take;
    options.user = &t;
    library_run(&result, &options);
    library_trained(&result);
    assert_true(t.pieces > 3); /* the weights came in several */
    for (int i = 0; i < 3; i++) {
        char name[100], *written;
        size_t bytes;
        snprintf(name, sizeof name, "out/%s", t.files[i].name);
        read_file(&written, &bytes, name);
        assert_true(t.files[i].ended && bytes > 0);
        assert_int_equal(t.files[i].bytes, bytes);
        assert_memory_equal(t.files[i].data, written, bytes);
        free(t.files[i].data);
        free(written);
    }
}

static void an_adapter_may_be_turned_down(void **state)
{
    taker t = nothing;
    library_result result;
    (void)state;
    t.fails = 9;
    tsr_job_options options = library_options(library_config);
    options.adapter = take;
    options.user = &t;
    assert_int_equal(library_run(&result, &options), TSR_EIO);
    assert_int_equal(t.pieces, 1);
    assert_non_null(strstr(tsr_last_error(), "README.md: the adapter callback failed (9)"));
    free(t.files[0].data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_of_a_file),
        cmocka_unit_test(bad_rows_are_named),
        cmocka_unit_test(ranks_must_be_given_the_same_rows),
        cmocka_unit_test(the_adapter_is_that_of_the_files),
        cmocka_unit_test(an_adapter_may_be_turned_down),
    };
    return cmocka_run_group_tests(tests, library_set_up, library_tear_down);
}
