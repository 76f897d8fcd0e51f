/*
 * Ranks that are no multiple of 8 are rounded up in memory and nowhere else: what is drawn, trained
 * and written is of the true rank on any number of ranks, the padding is 0 from the first values on,
 * and an adapter that was written is read back to the bit. (That the numbers are right: test_gradients
 * has such ranks against the model in double.)
 */
#include "adapters/init.h"
#include "support/job.h"
#include "support/kept_gradient.h"
#include "support/llama.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <stdlib.h>
#include <string.h>

#define MODEL TSR_SOURCE_DIR "/examples/tiny-llama"
#define STEPS 3
#define TRY(condition)                                                                             \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return tsr_fail(TSR_EINTERNAL, "%s:%d: %s", s->name, __LINE__, #condition);            \
    } while (0)

/* What a job is to be. */
typedef struct {
    uint64_t r;
    bool dora;
    const char *from; /* the adapter that it begins with, or NULL */
    bool train;
} expectation;

typedef tsr_status check(const expectation *e, const tsr_job *job, const tsr_layout_segment *s,
                         const tsr_layout_linear *l, const tsr_trainable_span *span);

static tsr_status each_segment(check *what, const expectation *e, const tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            const tsr_layout_linear *l = &layout->unit[unit].linear[kind];
            const int segment[3] = {l->a, l->b, l->m};
            for (int part = 0; part < (e->dora ? 3 : 2); part++) {
                const tsr_layout_segment *s = &layout->unit[unit].trainable[segment[part]];
                tsr_trainable_span span =
                    tsr_trainable_at(&job->decision.store.trainable, unit, segment[part]);
                TSR_TRY(what(e, job, s, l, &span));
            }
        }
    return TSR_OK;
}

/* Shapes, and zeros wherever a file has nothing: in bits, a -0 would be none. */
static tsr_status check_padding(const expectation *e, const tsr_job *job,
                                const tsr_layout_segment *s, const tsr_layout_linear *l,
                                const tsr_trainable_span *span)
{
    const tsr_trainable *t = &job->decision.store.trainable;
    uint64_t rows = s->element_count / s->columns, zeros = 0, stored = 0;
    const uint32_t *work = span->work;
    TRY(l->r == (e->r + 7) / 8 * 8 && rows >= s->stored_rows && s->columns >= s->stored_columns);
    TRY(s->stored_rows == e->r ? rows == l->r && s->columns == l->in : rows == l->out);
    bool *padding = malloc(span->count);
    TRY(padding);
    memset(padding, true, span->count);
    for (tsr_stored_run run = {0};
         tsr_stored_next(&run, s, span->first, span->first + span->real);) {
        memset(padding + run.memory - span->first, false, run.count);
        stored += run.count;
    }
    for (uint64_t i = 0; i < span->count; i++) {
        uint64_t at = span->begin + i;
        uint32_t bits[4];
        memcpy(bits, t->master + at, 4);
        memcpy(bits + 1, t->m + 4 * at, 4);
        memcpy(bits + 2, t->v + 4 * at, 4);
        bits[3] = work[i];
        zeros +=
            padding[i] && !bits[0] && !bits[1] && !bits[2] && !bits[3] && kept_gradient(t, at) == 0;
    }
    free(padding);
    TRY(zeros == span->count - stored);
    return TSR_OK;
}

/* The first values, one by one: those of the file, or those drawn for [r, in] as if r were as it is. */
static tsr_status check_first(const expectation *e, const tsr_job *job, const tsr_layout_segment *s,
                              const tsr_layout_linear *l, const tsr_trainable_span *span)
{
    const float *master = job->decision.store.trainable.master + span->begin;
    const tsr_peft_module *module = NULL;
    bool is_a = s->stored_rows == e->r, is_m = s->stored_columns == 1;
    if (job->inputs.adapter.init)
        module = tsr_peft_module_find(job->inputs.adapter.init, l->path);
    TRY(!e->from == !module);
    for (tsr_stored_run run = {0}; tsr_stored_next(&run, s, span->first, span->first + span->real);)
        for (uint64_t i = 0; i < run.count; i++) {
            float want = 0, got = master[run.memory - span->first + i];
            if (module)
                TSR_TRY(tsr_safetensors_read_f32(&want,
                                                 is_a   ? module->a
                                                 : is_m ? module->magnitude
                                                        : module->b,
                                                 run.stored + i, 1));
            else if (is_a)
                tsr_adapter_init_a(&want, run.stored + i, 1, l->in,
                                   (uint64_t)job->inputs.config.seed, l->module_key);
            TRY(got == want || (is_m && !module && got > 0));
        }
    return TSR_OK;
}

static tsr_status run(tsr_job *job, void *user)
{
    const expectation *e = user;
    uint64_t count = 0;
    for (int unit = 0; unit < job->inputs.layout.layer_count; unit++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            const tsr_layout_linear *l = &job->inputs.layout.unit[unit].linear[kind];
            count += e->r * (l->in + l->out) + (e->dora ? l->out : 0);
        }
    if (count != job->inputs.layout.trainable_count)
        return tsr_fail(TSR_EINTERNAL, "trainable parameters: other than PEFT's");
    TSR_TRY(each_segment(check_first, e, job));
    TSR_TRY(each_segment(check_padding, e, job));
    for (int step = 0; e->train && step < STEPS; step++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        if (!(report.grad_norm > 0))
            return tsr_fail(TSR_EINTERNAL, "nothing was trained");
        TSR_TRY(tsr_streams_synchronize(&job->streams));
        TSR_TRY(each_segment(check_padding, e, job));
    }
    return tsr_job_save(job);
}

static void run_job(const expectation *e, int ranks, const char *output)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    job_set(&spec, "model_name_or_path=%s", MODEL);
    job_set(&spec, "dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "output_dir=%s", scratch_path(output));
    job_set(&spec, "overwrite_output_dir=true");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "total_batch_size=3");
    job_set(&spec, "learning_rate=1e-2");
    job_set(&spec, "weight_decay=0.1");
    if (e->from)
        job_set(&spec, "init_adapter=%s", scratch_path(e->from));
    else
        job_set(&spec, "lora_r=%d", (int)e->r);
    job_set(&spec, "use_dora=%s", e->dora ? "true" : "false");
    job_run(&spec, run, (void *)e);
}

static char *weights_of(uint64_t *bytes, const char *output)
{
    char name[128];
    snprintf(name, sizeof name, "%s/" TSR_PEFT_WEIGHTS_FILE, output);
    return read_whole(bytes, scratch_path(name));
}

static void check_same_file(const char *a, const char *b)
{
    uint64_t a_bytes, b_bytes;
    char *left = weights_of(&a_bytes, a), *right = weights_of(&b_bytes, b);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(left, right, a_bytes);
    free(left);
    free(right);
}

/* What is written, by PEFT's rules. */
static void check_file(const expectation *e, const char *output)
{
    tsr_peft *peft;
    assert_int_equal(tsr_peft_open(&peft, scratch_path(output)), TSR_OK);
    assert_int_equal(tsr_peft_config_of(peft)->r, e->r);
    assert_int_equal(tsr_peft_config_of(peft)->rank_pattern_count, 0);
    for (uint64_t i = 0; i < tsr_peft_module_count(peft); i++) {
        const tsr_peft_module *m = tsr_peft_module_at(peft, i);
        assert_int_equal(m->r, e->r);
        assert_int_equal(!m->magnitude, !e->dora);
        uint64_t count = m->b->element_count;
        float *b = malloc(count * sizeof *b);
        assert_int_equal(tsr_safetensors_read_f32(b, m->b, 0, count), TSR_OK);
        for (uint64_t j = 0; j < count; j++) /* no padding between the values */
            assert_true(b[j] != 0);
        free(b);
    }
    tsr_peft_close(peft);
}

static void check_rank(uint64_t r, bool dora)
{
    expectation e = {.r = r, .dora = dora, .train = true};
    run_job(&e, 1, "one");
    run_job(&e, 3, "three"); /* which cuts rows of B in two */
    check_same_file("one", "three");
    check_file(&e, "one");
    e.from = "one";
    e.train = false;
    run_job(&e, 3, "again");
    check_same_file("one", "again");
}

static void test_rank_3(void **state)
{
    (void)state;
    check_rank(3, false);
    check_rank(3, true);
}

static void test_rank_12(void **state)
{
    (void)state;
    check_rank(12, true);
}

static void test_rank_16_has_no_padding(void **state)
{
    (void)state;
    check_rank(16, false);
}

static int set_up(void **state)
{
    enum { TOKENS = 40, ROWS = 4 };
    int32_t ids[TOKENS];
    const int32_t length = TOKENS;
    test_data data;
    (void)state;
    scratch_make();
    test_data_begin(&data, scratch_path("rows.jsonl"));
    for (int row = 0; row < 3 * ROWS; row++) {
        for (int i = 0; i < TOKENS; i++)
            ids[i] = (row * 641 + i * i * 37 + i) % 4096;
        test_data_row(&data, ids, NULL, &length, 1, false);
    }
    test_data_end(&data);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_3),
        cmocka_unit_test(test_rank_12),
        cmocka_unit_test(test_rank_16_has_no_padding),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
