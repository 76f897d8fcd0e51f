/*
 * test_matmuls.c: the list of a run's matmuls is what its steps then do, and choices about them
 * reach all ranks, the run's directory and the cache. The kernels are the CPU's, with a prepare of
 * this test's.
 */
#include "job/fixture.h"

#include "base/hash.h"
#include "model/model_parts.h"
#include "planner/cache.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* ---- lists of matmuls ---- */

enum { MOST = 512 };

typedef struct {
    tsr_gemm_args item[MOST];
    bool found[MOST];
    int count;
} gemm_list;

static gemm_list listed, done;
static tsr_kernels noting; /* the CPU's, which also notes */

static bool same(const tsr_gemm_args *a, const tsr_gemm_args *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->trans_a == b->trans_a && a->trans_b == b->trans_b &&
           (a->beta != 0) == (b->beta != 0) && a->dtype == b->dtype && a->c_dtype == b->c_dtype &&
           a->fast == b->fast;
}

static int find(const gemm_list *list, const tsr_gemm_args *args)
{
    for (int i = 0; i < list->count; i++)
        if (same(&list->item[i], args))
            return i;
    return -1;
}

static void note(gemm_list *list, const tsr_gemm_args *args)
{
    if (find(list, args) >= 0)
        return;
    assert_true(list->count < MOST);
    list->item[list->count++] = *args;
}

static tsr_status noting_gemm(tsr_stream *stream, const tsr_gemm_args *args)
{
    note(&done, args);
    return tsr_kernels_cpu()->gemm(stream, args);
}

static tsr_status noting_fp8_gemm(tsr_stream *stream, const tsr_fp8_gemm_args *args)
{
    tsr_gemm_args shape = tsr_fp8_gemm_shape(args);
    note(&done, &shape);
    return tsr_kernels_cpu()->fp8_gemm(stream, args);
}

/* On the CPU it is two matmuls. */
static tsr_status noting_low_rank_backward(tsr_stream *stream,
                                           const tsr_low_rank_backward_args *args)
{
    tsr_gemm_args product[2];
    tsr_low_rank_backward_products(product, args);
    note(&done, &product[0]);
    note(&done, &product[1]);
    return tsr_kernels_cpu()->low_rank_backward(stream, args);
}

static tsr_status noting_prepare(tsr_device *device, const tsr_prepare_args *args)
{
    (void)device;
    if (!args->stream) { /* what are choices for? */
        tsr_text_puts(args->chosen, "a device\n");
        return TSR_OK;
    }
    assert_non_null(args->scratch);
    assert_true(args->scratch_bytes > 0);
    for (int i = 0; i < args->gemm_count; i++) {
        assert_int_equal(find(&listed, &args->gemm[i]), -1); /* each once */
        note(&listed, &args->gemm[i]);
    }
    assert_true(args->head_count > 0);
    for (int i = 0; i < args->head_count; i++) {
        assert_int_equal(args->head[i].d, 256);
        assert_true(args->head[i].rows > 0 && args->head[i].chunk > 0);
    }
    return TSR_OK;
}

#define EXTRAS 3 /* at most; NULL from the first that is not there */

static tsr_job *start_job(const char *const extra[EXTRAS])
{
    const char *overrides[] = {"model_name_or_path=" JOB_SHALLOW,
                               "dataset=" JOB_TRACES "/padded.jsonl",
                               "eval_dataset=" JOB_TRACES "/packed.jsonl",
                               "eval_packing=false",
                               "total_batch_size=4",
                               "max_steps=2",
                               "shuffle=false",
                               "overwrite_output_dir=true",
                               NULL,
                               extra[0],
                               extra[1],
                               extra[2]};
    char output[512];
    int count = 10;
    tsr_job *job = NULL;
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("matmuls"));
    overrides[8] = output;
    for (int i = 1; i < EXTRAS && extra[i]; i++)
        count++;
    tsr_job_options options = {
        .size = sizeof(tsr_job_options), .overrides = overrides, .override_count = count};
    if (tsr_job_create(&job, &options) != 0 || tsr_job_start(job) != 0)
        fail_msg("%s: %s", extra[0], tsr_last_error());
    return job;
}

/* The shapes of both data sets; few enough samples are used for each count to be one. */
static int shapes_of(tsr_batch_shape *out, const tsr_job *job)
{
    const tsr_batch *batches[2] = {job->inputs.batch, job->inputs.eval_batch};
    int count = 0;
    for (int i = 0; i < 2; i++) {
        const tsr_batch_run *run = tsr_batch_run_of(batches[i]);
        for (int j = 0; j < run->bucket_count; j++)
            out[count++] =
                (tsr_batch_shape){run->bucket[j].tokens, run->bucket[j].label_rows, i == 0};
    }
    return count;
}

static void print_gemm(const char *what, const char *extra, const tsr_gemm_args *a)
{
    print_message("%s: %s: [%lld, %lld] by %lld, transposed %d %d, beta %g\n", extra, what,
                  (long long)a->m, (long long)a->n, (long long)a->k, a->trans_a, a->trans_b,
                  (double)a->beta);
}

/* What is listed does not depend on how it is built: under sanitizers a few are enough. */
#ifdef TSR_SANITIZED
#define STRIDE 16
#else
#define STRIDE 1
#endif

/* With them B1 and B3 of a large rank are both in doubt for k and v. */
#define TWO_ROWS "per_device_train_batch_size=2"

static void test_list(void **state)
{
    static const char *const extras[][EXTRAS] = {{"use_dora=true"},
                                                 {"use_dora=false"},
                                                 {"lora_dropout=0.1"},
                                                 {"use_dora=true", "lora_dropout=0.1"},
                                                 {"use_dora=true", "gradient_checkpointing=full"},
                                                 {"packing=true"},
                                                 {"layers_to_transform=[1]", "use_dora=true"},
                                                 {"lora_target_modules=[v_proj, up_proj]"},
                                                 {"load_in_4bit=false"},
                                                 {"lora_r=128", "use_dora=true", TWO_ROWS},
                                                 {"lora_r=128", "lora_dropout=0.1", TWO_ROWS},
                                                 {"lora_r=128", "lora_graph=flops", TWO_ROWS},
                                                 {"lora_r=128", "lora_graph=fixed", TWO_ROWS},
                                                 {"base_compute=fp8", "use_dora=true"},
                                                 {"base_compute=fp8_fast", "lora_dropout=0.1"}};
    (void)state;
    noting = *tsr_kernels_cpu();
    noting.gemm = noting_gemm;
    noting.fp8_gemm = noting_fp8_gemm;
    noting.low_rank_backward = noting_low_rank_backward;
    noting.prepare = noting_prepare;
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i += STRIDE) {
        tsr_batch_shape shapes[2 * TSR_BATCH_BUCKETS];
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
        tsr_job *job = start_job(extras[i]);
        memset(&listed, 0, sizeof listed);
        memset(&done, 0, sizeof done);
        job->model->options.kernels = &noting;
        tsr_text chosen = {0}; /* asked for, graphs are timed: all their candidates are done */
        bool times = strncmp(extras[i][0], "lora_r", 6) == 0 && !strstr(extras[i][1], "lora_graph");
        if (times) /* shapes as small as these are not, by themselves */
            job->model->options.graph_rule = TSR_GRAPHS_TIMED;
        if (tsr_model_prepare(job->model, shapes, shapes_of(shapes, job),
                              &(tsr_prepare_args){.chosen = times ? &chosen : NULL}) != TSR_OK)
            fail_msg("%s", tsr_last_error());
        assert_int_equal(job->model->graphs.count > 0, times);
        tsr_text_free(&chosen);
        int status = 0;
        for (int step = 0; step < 2 && status >= 0; step++)
            status = tsr_job_step(job, &report);
        if (status >= 0)
            status = tsr_job_evaluate(job, &evaluation);
        assert_true(status >= 0);
        assert_true(done.count > 0);
        int missing = 0, idle = 0;
        for (int j = 0; j < done.count; j++)
            if (find(&listed, &done.item[j]) < 0) {
                print_gemm("not listed", extras[i][0], &done.item[j]);
                missing++;
            }
        for (int j = 0; j < listed.count; j++)
            if (find(&done, &listed.item[j]) < 0) {
                print_gemm("never done", extras[i][0], &listed.item[j]);
                idle++;
            }
        print_message("%s: %d matmuls\n", extras[i][0], listed.count);
        assert_int_equal(missing, 0);
        assert_int_equal(idle, 0);
        tsr_job_destroy(job);
    }
}

/* ---- what was chosen ---- */

#define DEVICE "a device\n"

/* What a rank's kernels were given. */
typedef struct {
    char known[64], cached[64], agreed[64];
    int asked; /* with matmuls */
} rank_choices;

typedef struct {
    tsr_comm *comm;
    const char *output, *resume; /* output NULL: "matmuls" */
    const char *known;           /* in output's matmuls.txt before; NULL: "before" */
    const char *key[2];          /* more keys of the job, or NULL */
    bool automatic;              /* graphs of small shapes are not asked to be timed */
    bool saves;                  /* a step, and a checkpoint */
    int rank;
    tsr_status status;
    char message[512];
    rank_choices got;
    tsr_graph_book graphs; /* in the end */
} rank_run;

static _Thread_local rank_run *running;

static tsr_status choosing_prepare(tsr_device *device, const tsr_prepare_args *args)
{
    rank_choices *got = &running->got;
    (void)device;
#ifdef __SANITIZE_ADDRESS__ /* Graphs are timed across its buffers, between which an arena on the host forbids bytes. */
    __asan_unpoison_memory_region(args->scratch, args->scratch_bytes);
#endif
    if (args->agreed)
        snprintf(got->agreed, sizeof got->agreed, "%s", args->agreed);
    if (args->known)
        snprintf(got->known, sizeof got->known, "%s", args->known);
    if (args->cached)
        snprintf(got->cached, sizeof got->cached, "%s", args->cached);
    if (args->chosen)
        tsr_text_puts(args->chosen, DEVICE);
    got->asked += args->gemm_count > 0;
    if (args->gemm_count)
        tsr_text_puts(args->chosen, "mine\n");
    if (args->cache)
        tsr_text_puts(args->cache, DEVICE "mine\nothers\n");
    return TSR_OK;
}

/* A job of the CPU, whose kernels get a word in after the start. */
static tsr_status choose(rank_run *run)
{
    const char *overrides[] = {"model_name_or_path=" JOB_SHALLOW,
                               "dataset=" JOB_TRACES "/padded.jsonl",
                               "total_batch_size=4",
                               "max_steps=2",
                               "overwrite_output_dir=true",
                               NULL,
                               NULL,
                               NULL,
                               NULL};
    char output[512], resume[512], known[600];
    int count = 6;
    tsr_job *job = NULL;
    tsr_kernels choosing = *tsr_kernels_cpu();
    snprintf(output, sizeof output, "output_dir=%s",
             scratch_path(run->output ? run->output : "matmuls"));
    snprintf(known, sizeof known, "%s/matmuls.txt", output + strlen("output_dir="));
    overrides[5] = output;
    for (int i = 0; i < 2 && run->key[i]; i++)
        overrides[count++] = run->key[i];
    if (run->resume) {
        overrides[count++] = resume;
        snprintf(resume, sizeof resume, "resume_from_checkpoint=%s", scratch_path(run->resume));
    }
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .overrides = overrides,
                               .override_count = count,
                               .threads = 1};
    TSR_TRY(tsr_job_create_on(&job, &options, run->comm));
    tsr_status status = tsr_job_start(job);
    if (status == TSR_OK) {
        if (run->rank == 0) /* of the run that this one replaces */
            write_text(known, run->known ? run->known : "before\n");
        choosing.prepare = choosing_prepare;
        job->kernels = job->model->options.kernels = &choosing;
        job->model->options.graph_rule = run->automatic ? TSR_GRAPHS_AUTO : TSR_GRAPHS_TIMED;
        status = tsr_job_choose_matmuls(job);
        run->graphs = job->model->graphs;
    }
    if (status == TSR_OK && run->rank == 0) { /* again: in a real run the choices come first */
        tsr_metrics_destroy(job->metrics);
        job->metrics = NULL;
        tsr_job_close_output(job);
        status = tsr_job_write_output(job);
    }
    if (status == TSR_OK && run->saves)
        status = tsr_job_step(job, &(tsr_job_report)TSR_JOB_REPORT_INIT);
    if (status == TSR_OK && run->saves)
        status = tsr_job_checkpoint(job);
    tsr_error error;
    tsr_error_take(&error, status);
    tsr_job_destroy(job);
    return tsr_error_put(&error);
}

static void *run_rank(void *argument)
{
    rank_run *run = argument;
    running = run;
    run->status = choose(run);
    snprintf(run->message, sizeof run->message, "%s", run->status < 0 ? tsr_last_error() : "");
    return NULL;
}

static void run_ranks(rank_run *run, int ranks)
{
    tsr_comm *comm[JOB_RANKS_MAX];
    pthread_t thread[JOB_RANKS_MAX];
    assert_int_equal(tsr_comm_create_threads(comm, ranks, 60), TSR_OK);
    for (int i = 0; i < ranks; i++) {
        run[i].comm = comm[i];
        run[i].rank = i;
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &run[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(thread[i], NULL);
}

static void read_text(char text[8192], const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("no file %s", path);
    size_t got = fread(text, 1, 8191, file);
    text[got] = 0;
    fclose(file);
}

static void expect_file(const char *path, const char *want)
{
    char text[8192];
    read_text(text, path);
    assert_string_equal(text, want);
}

static const char *cache_file(const char *folder)
{
    char name[128];
    snprintf(name, sizeof name, "%s/tessera/matmul-%016llx.txt", folder,
             (unsigned long long)tsr_hash(TSR_HASH_START, DEVICE, strlen(DEVICE)));
    return scratch_path(name);
}

static void test_choices(void **state)
{
    (void)state;
    setenv("XDG_CACHE_HOME", scratch_path("cache"), 1);
    for (int ranks = 1; ranks <= 3; ranks++) {
        rank_run run[3] = {{0}};
        run_ranks(run, ranks);
        for (int i = 0; i < ranks; i++) {
            if (run[i].status < 0)
                fail_msg("rank %d: %s", i, run[i].message);
            assert_int_equal(run[i].got.asked, i == 0);
            assert_string_equal(run[i].got.agreed, i ? DEVICE "mine\n" : "");
        }
        assert_string_equal(run[0].got.known, "before\n");
        /* The first run finds nothing; a later one what that left. */
        assert_string_equal(run[0].got.cached, ranks > 1 ? DEVICE "mine\nothers\n" : "");
        expect_file(scratch_path("matmuls/matmuls.txt"), DEVICE "mine\n");
        expect_file(cache_file("cache"), DEVICE "mine\nothers\n");
    }
}

/* While another job chooses, this one waits, and then finds what that has chosen: of two that start at once the
 * later one does not choose otherwise. */
static void test_two_at_once(void **state)
{
    (void)state;
    rank_run run = {0};
    tsr_comm *comm;
    pthread_t thread;
    tsr_cache_place place;
    tsr_text device = {0};
    setenv("XDG_CACHE_HOME", scratch_path("both"), 1);
    tsr_text_puts(&device, DEVICE);
    assert_true(tsr_cache_find(&place, "matmul", &device, "txt"));
    tsr_text_free(&device);
    int lock = tsr_cache_lock(&place);
    assert_true(lock >= 0);
    assert_int_equal(tsr_comm_create_threads(&comm, 1, 60), TSR_OK);
    run = (rank_run){.comm = comm};
    assert_int_equal(pthread_create(&thread, NULL, run_rank, &run), 0);
    usleep(700000); /* it comes to its choices within that, or the test shows nothing */
    tsr_cache_write(&place, DEVICE "theirs\n", strlen(DEVICE "theirs\n"));
    tsr_cache_unlock(lock);
    pthread_join(thread, NULL);
    if (run.status < 0)
        fail_msg("%s", run.message);
    assert_string_equal(run.got.cached, DEVICE "theirs\n");
}

/* A run that goes on elsewhere does what the one before it did, whatever lies in its own place. */
static void test_resumed(void **state)
{
    (void)state;
    rank_run first = {.output = "saved", .saves = true};
    rank_run second = {.output = "elsewhere", .resume = "saved/checkpoint-1"};
    setenv("XDG_CACHE_HOME", "", 1);
    setenv("HOME", "", 1);
    run_ranks(&first, 1);
    if (first.status < 0)
        fail_msg("%s", first.message);
    assert_string_equal(first.got.known, "before\n");
    expect_file(scratch_path("saved/checkpoint-1/matmuls.txt"), DEVICE "mine\n");
    run_ranks(&second, 1);
    if (second.status < 0)
        fail_msg("%s", second.message);
    assert_string_equal(second.got.known, DEVICE "mine\n");
}

/* A cache that cannot be: a file is in its place, or it is not wanted. */
static void test_no_cache(void **state)
{
    (void)state;
    FILE *file = fopen(scratch_path("taken"), "w");
    assert_non_null(file);
    fclose(file);
    static const char *const places[] = {"taken", ""};
    for (int i = 0; i < 2; i++) {
        rank_run run = {0};
        setenv("XDG_CACHE_HOME", i ? places[i] : scratch_path(places[i]), 1);
        setenv("HOME", "", 1);
        run_ranks(&run, 1);
        if (run.status < 0)
            fail_msg("%s", run.message);
        assert_string_equal(run.got.cached, "");
        expect_file(scratch_path("matmuls/matmuls.txt"), DEVICE "mine\n");
    }
}

/* ---- graphs of adapters ---- */

/* So large that this is so with one row, too. */
#define LARGE_RANK "lora_r=640"

static void expect_same_graphs(const rank_run *run, int ranks)
{
    tsr_text first = {0}, other = {0};
    tsr_graph_export(&first, &run[0].graphs);
    for (int i = 0; i < ranks; i++) {
        if (run[i].status < 0)
            fail_msg("rank %d: %s", i, run[i].message);
        tsr_text_clear(&other);
        tsr_graph_export(&other, &run[i].graphs);
        assert_string_equal(tsr_text_string(&other), tsr_text_string(&first));
        if (i > 0)
            assert_string_equal(run[i].got.agreed, DEVICE "mine\n"); /* of the kernels' own */
    }
    tsr_text_free(&first);
    tsr_text_free(&other);
}

static int by_b3(const tsr_graph_book *book)
{
    int count = 0;
    for (int i = 0; i < book->count; i++)
        count += book->entry[i].choice.graph == TSR_B3;
    return count;
}

/* The lines of a book as if this graph had been chosen for all. */
static void all_by(tsr_text *out, const tsr_graph_book *book, tsr_graph_id graph)
{
    tsr_graph_book changed = *book;
    for (int i = 0; i < changed.count; i++)
        changed.entry[i].choice.graph = graph;
    tsr_text_clear(out);
    tsr_graph_export(out, &changed);
}

/* What was chosen goes to all ranks and into the files. */
static void test_graphs(void **state)
{
    char first[8192];
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        static rank_run run[3];
        char want[8192];
        tsr_text lines = {0};
        setenv("XDG_CACHE_HOME", scratch_path("graphs"), 1);
        memset(run, 0, sizeof run);
        for (int i = 0; i < ranks; i++)
            run[i].key[0] = LARGE_RANK;
        run_ranks(run, ranks);
        expect_same_graphs(run, ranks);
        assert_true(run[0].graphs.count > 0);
        tsr_graph_export(&lines, &run[0].graphs);
        if (ranks == 1) /* the others find what it left */
            snprintf(first, sizeof first, "%s", tsr_text_string(&lines));
        assert_string_equal(tsr_text_string(&lines), first);
        snprintf(want, sizeof want, DEVICE "mine\n%s", tsr_text_string(&lines));
        expect_file(scratch_path("matmuls/matmuls.txt"), want);
        snprintf(want, sizeof want, DEVICE "mine\nothers\n%s", tsr_text_string(&lines));
        expect_file(cache_file("graphs"), want);
        tsr_text_free(&lines);
    }
}

/* A choice that is found is not timed again, whatever is faster; a wrong one is as none. */
static void test_known_graphs(void **state)
{
    (void)state;
    static rank_run first, again[2];
    tsr_text known = {0}, lines = {0};
    memset(&first, 0, sizeof first);
    setenv("XDG_CACHE_HOME", "", 1);
    setenv("HOME", "", 1);
    first.key[0] = LARGE_RANK;
    run_ranks(&first, 1);
    expect_same_graphs(&first, 1);
    assert_true(first.graphs.count > 0);
    for (tsr_graph_id graph = TSR_B1; graph <= TSR_B5; graph += 2) { /* B5 is not allowed in fp32 */
        for (int other = 0; other < 2; other++) { /* of another device it says nothing */
            tsr_text_clear(&known);
            all_by(&lines, &first.graphs, graph);
            tsr_text_printf(&known, "%s%s", other ? "another device\n" : DEVICE,
                            tsr_text_string(&lines));
            memset(again, 0, sizeof again);
            for (int i = 0; i < 2; i++) {
                again[i].key[0] = LARGE_RANK;
                again[i].known = tsr_text_string(&known);
            }
            run_ranks(again, 2);
            expect_same_graphs(again, 2);
            assert_int_equal(again[0].graphs.count, first.graphs.count);
            if (graph != TSR_B5 && !other)
                assert_int_equal(by_b3(&again[0].graphs), graph == TSR_B3 ? first.graphs.count : 0);
            for (int i = 0; i < again[0].graphs.count; i++)
                assert_true(tsr_graph_allowed(&again[0].graphs.entry[i].shape,
                                              again[0].graphs.entry[i].choice));
        }
    }
    tsr_text_free(&known);
    tsr_text_free(&lines);
}

/* Small shapes are not timed by themselves, nor is their choice taken from a cache, so it is the same on every
 * machine; what the run's directory has is kept. */
static void test_small_graphs(void **state)
{
    (void)state;
    static rank_run timed, automatic, again;
    tsr_text known = {0}, lines = {0};
    setenv("XDG_CACHE_HOME", scratch_path("small"), 1);
    timed = automatic = (rank_run){.key = {"lora_r=128", TWO_ROWS}};
    run_ranks(&timed, 1);
    expect_same_graphs(&timed, 1);
    assert_true(timed.graphs.count > 0);
    automatic.automatic = true;
    again = automatic;
    run_ranks(&automatic, 1);
    expect_same_graphs(&automatic, 1);
    assert_int_equal(automatic.graphs.count, 0);
    all_by(&lines, &timed.graphs, TSR_B3);
    tsr_text_printf(&known, DEVICE "%s", tsr_text_string(&lines));
    again.known = tsr_text_string(&known);
    run_ranks(&again, 1);
    expect_same_graphs(&again, 1);
    assert_int_equal(again.graphs.count, timed.graphs.count);
    assert_int_equal(by_b3(&again.graphs), timed.graphs.count);
    tsr_text_free(&known);
    tsr_text_free(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),         cmocka_unit_test(test_choices),
        cmocka_unit_test(test_resumed),      cmocka_unit_test(test_no_cache),
        cmocka_unit_test(test_graphs),       cmocka_unit_test(test_known_graphs),
        cmocka_unit_test(test_small_graphs), cmocka_unit_test(test_two_at_once),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
