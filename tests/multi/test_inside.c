/*
 * A golden trace inside the library, on one rank and on three (threads): gradients before clipping
 * at steps 1, 2 and 20, Adam's state, first magnitudes and trained tensors; and the same bits of all
 * of them on three ranks.
 *
 * Where an element of noise (traces.h) got the other sign than in the golden trace, the norm of the
 * gradient that hangs on it is left out at step 2, and a second run, whose AdamW is given the golden
 * gradient of such elements, is judged in all.
 *
 *     test_multi_inside TRACE
 *     test_multi_inside TRACE offload      on 1, 2 and 3 ranks with activations and optimizer state in
 *                                          host memory, some steps: the same bits as on one rank without
 */
#include "support/golden.h"
#include "support/kept_gradient.h"
#include "support/scratch.h"
#include "traces.h"

#include "io/peft.h"
#include "support/llama.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const trace_case *run;
static int run_steps = TRACE_STEPS;

#define OFFLOADED_STEPS 5

/* What a run leaves; every rank writes the elements it owns. */
typedef struct {
    const trace_golden *golden;
    bool settled; /* elements of noise take the golden step */
    double *gradient[TRACE_MOMENTS];
    float *start, *final, *m, *v;
    trace_step step[TRACE_STEPS];
    int step_count;
} record;

static uint64_t element_count(const record *r)
{
    return r->golden->begin[r->golden->tensor_count];
}

/* Arrays of NaN: an element that no rank owns is found. */
static float *floats(uint64_t count)
{
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = NAN;
    return values;
}

static void make_record(record *out, const trace_golden *golden, bool settled)
{
    *out = (record){.golden = golden, .settled = settled};
    uint64_t count = element_count(out);
    for (int k = 0; k < TRACE_MOMENTS; k++) {
        out->gradient[k] = malloc(count * sizeof(double));
        assert_non_null(out->gradient[k]);
        for (uint64_t i = 0; i < count; i++)
            out->gradient[k][i] = NAN;
    }
    out->start = floats(count);
    out->final = floats(count);
    out->m = floats(count);
    out->v = floats(count);
}

static void free_record(record *r)
{
    for (int k = 0; k < TRACE_MOMENTS; k++)
        free(r->gradient[k]);
    free(r->start);
    free(r->final);
    free(r->m);
    free(r->v);
}

/* ---- on the ranks ---- */

typedef enum { START, GRADIENT, SETTLE, FINAL } task;

/* The owned part of one tensor: `count` elements, from `from` on in the rank's arrays, from `to` on
 * in those of the record. */
typedef struct {
    const tsr_trainable *trainable;
    int tensor;
    uint64_t from, to, count;
} owned;

static void take_gradient(record *r, const owned *o, int moment)
{
    for (uint64_t i = 0; i < o->count; i++)
        r->gradient[moment][o->to + i] = kept_gradient(o->trainable, o->from + i);
}

/* The golden trace's gradient where it is noise. */
static void settle(const record *r, const owned *o)
{
    for (uint64_t i = 0; i < r->golden->noise_count; i++) {
        const trace_noise *noise = &r->golden->noise[i];
        uint64_t at = r->golden->begin[o->tensor] + noise->element;
        if (noise->tensor == o->tensor && at >= o->to && at < o->to + o->count)
            keep_gradient(o->trainable, o->from + at - o->to, noise->gradient);
    }
}

static void do_task(record *r, const owned *o, task what, int moment)
{
    const tsr_trainable *t = o->trainable;
    size_t bytes = o->count * sizeof(float);
    if (what == START)
        memcpy(r->start + o->to, t->master + o->from, bytes);
    if (what == GRADIENT)
        take_gradient(r, o, moment);
    if (what == SETTLE)
        settle(r, o);
    if (what != FINAL)
        return;
    memcpy(r->final + o->to, t->master + o->from, bytes);
    memcpy(r->m + o->to, (const float *)(void *)t->m + o->from, bytes);
    memcpy(r->v + o->to, (const float *)(void *)t->v + o->from, bytes);
}

typedef struct {
    record *record;
    const tsr_job *job;
    task what;
    int moment;
} walk;

static tsr_status visit(const walk *w, int unit, const char *path, tsr_peft_part part, int segment)
{
    const trace_golden *golden = w->record->golden;
    char *name = NULL;
    TSR_TRY(tsr_peft_tensor_name(&name, path, part));
    owned o = {.trainable = &w->job->decision.store.trainable,
               .tensor = trace_tensor(golden, name)};
    free(name);
    if (o.tensor < 0)
        return tsr_fail(TSR_EINTERNAL, "%s is trained, but not in the golden trace", path);
    tsr_trainable_span span = tsr_trainable_at(o.trainable, unit, segment);
    const tsr_layout_segment *s = &w->job->inputs.layout.unit[unit].trainable[segment];
    for (tsr_stored_run piece = {0};
         tsr_stored_next(&piece, s, span.first, span.first + span.real);) {
        o.from = span.begin + piece.memory - span.first;
        o.to = golden->begin[o.tensor] + piece.stored;
        o.count = piece.count;
        do_task(w->record, &o, w->what, w->moment);
    }
    return TSR_OK;
}

static tsr_status visit_all(const walk *w)
{
    const tsr_layout *layout = &w->job->inputs.layout;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            const tsr_layout_linear *l = &layout->unit[unit].linear[kind];
            if (!l->r)
                continue;
            TSR_TRY(visit(w, unit, l->path, TSR_PEFT_A, l->a));
            TSR_TRY(visit(w, unit, l->path, TSR_PEFT_B, l->b));
            if (l->dora)
                TSR_TRY(visit(w, unit, l->path, TSR_PEFT_MAGNITUDE, l->m));
        }
    return TSR_OK;
}

static tsr_status take(record *r, tsr_job *job, task what, int moment)
{
    TSR_TRY(tsr_streams_synchronize(&job->streams));
    return visit_all(&(walk){r, job, what, moment});
}

/* The AdamW of the first step, given the golden gradient of elements of noise. */
static _Thread_local walk first_step;

static tsr_status run_settle(void *args, tsr_pool *pool)
{
    (void)pool;
    return visit_all(args);
}

static tsr_status settled_adamw(tsr_stream *stream, const tsr_adamw_args *args)
{
    TSR_TRY(tsr_stream_call(stream, run_settle, &first_step, sizeof first_step));
    return tsr_kernels_cpu()->adamw(stream, args);
}

static tsr_status step(tsr_job *job, record *r, int index)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    TSR_TRY(tsr_job_step(job, &report));
    if (tsr_job_rank(job) == 0) {
        r->step[index] =
            (trace_step){report.loss, report.grad_norm, report.learning_rate, report.label_tokens};
        r->step_count++;
    }
    for (int k = 0; k < TRACE_MOMENTS; k++)
        if (report.step == trace_moment[k])
            TSR_TRY(take(r, job, GRADIENT, k));
    if (report.last != (index + 1 == run_steps))
        return tsr_fail(TSR_EINTERNAL, "the last step is not step %d", run_steps);
    return TSR_OK;
}

/* The whole training; a step's gradient is kept until the next one overwrites it. */
static tsr_status train(tsr_job *job, void *user)
{
    record *r = user;
    tsr_kernels kernels = *tsr_kernels_cpu();
    kernels.adamw = settled_adamw;
    first_step = (walk){r, job, SETTLE, 0};
    TSR_TRY(take(r, job, START, 0));
    for (int i = 0; i < run_steps; i++) {
        job->decision.model.kernels = i == 0 && r->settled ? &kernels : tsr_kernels_cpu();
        TSR_TRY(step(job, r, i));
    }
    return take(r, job, FINAL, 0);
}

/* ---- the test ---- */

/* keys: more "key=value" with spaces between them. */
static void run_on(record *out, const trace_golden *golden, int ranks, bool settled,
                   const char *keys)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    make_record(out, golden, settled);
    trace_configure(&spec, run, scratch_path("out"));
    job_set(&spec, "overwrite_output_dir=true");
    job_set(&spec, "max_steps=%d", run_steps);
    for (int length; *keys; keys += length + (keys[length] == ' ')) {
        length = (int)strcspn(keys, " ");
        job_set(&spec, "%.*s", length, keys);
    }
    job_run(&spec, train, out);
    assert_int_equal(out->step_count, run_steps);
}

static void assert_same(const record *a, const record *b)
{
    uint64_t count = element_count(a);
    assert_memory_equal(a->step, b->step, sizeof a->step);
    for (int k = 0; k < TRACE_MOMENTS; k++)
        assert_memory_equal(a->gradient[k], b->gradient[k], count * sizeof(double));
    assert_memory_equal(a->start, b->start, count * sizeof(float));
    assert_memory_equal(a->m, b->m, count * sizeof(float));
    assert_memory_equal(a->v, b->v, count * sizeof(float));
    assert_memory_equal(a->final, b->final, count * sizeof(float));
}

/* Marks the A beside every B with an element of noise of the other sign; returns how many. */
static int mark_turned(bool *turned, const record *r)
{
    int count = 0;
    for (uint64_t i = 0; i < r->golden->noise_count; i++) {
        const trace_noise *noise = &r->golden->noise[i];
        double have = r->gradient[0][r->golden->begin[noise->tensor] + noise->element];
        if ((have < 0) == (noise->gradient < 0))
            continue;
        print_message("  %s, element %llu: %.2g at step 1, golden %.2g\n",
                      r->golden->tensor[noise->tensor], (unsigned long long)noise->element, have,
                      noise->gradient);
        count += !turned[noise->a];
        turned[noise->a] = true;
    }
    return count;
}

static void judge_all(const record *r, const bool *except)
{
    trace_judge_steps(r->golden, r->step);
    trace_judge_magnitudes(r->golden, r->start);
    for (int k = 0; k < TRACE_MOMENTS; k++)
        trace_judge_gradients(r->golden, k, r->gradient[k], trace_moment[k] == 2 ? except : NULL);
    trace_judge_adam(r->golden, r->m, r->v);
    trace_judge_final(r->golden, r->final);
}

static void test_trace(void **state)
{
    (void)state;
    trace_golden golden;
    record one, three;
    trace_open(&golden, run);
    bool *turned = calloc((size_t)golden.tensor_count, sizeof *turned);
    assert_non_null(turned);
    run_on(&one, &golden, 1, false, "");
    int count = mark_turned(turned, &one);
    print_message("  %s inside, 1 rank (norms left out at step 2: %d):\n", run->name, count);
    judge_all(&one, turned);
    run_on(&three, &golden, 3, false, "");
    assert_same(&one, &three);
    print_message("  3 ranks: the same bits\n");
    free_record(&three);
    free_record(&one);
    if (count) {
        print_message("  elements of noise as in the golden trace:\n");
        run_on(&one, &golden, 1, true, "");
        judge_all(&one, NULL);
        free_record(&one);
    }
    free(turned);
    trace_close(&golden);
}

static void test_offload(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "activation_offloading=true optimizer_offload=true gradient_checkpointing=none",
        "activation_offloading=true optimizer_offload=true gradient_checkpointing=selective "
        "offload=sharded",
        "activation_offloading=true optimizer_offload=true gradient_checkpointing=full"};
    trace_golden golden;
    record plain, offloaded;
    run_steps = OFFLOADED_STEPS;
    trace_open(&golden, run);
    run_on(&plain, &golden, 1, false, "");
    for (int i = 0; i < 3; i++) {
        run_on(&offloaded, &golden, i + 1, false, keys[i]);
        assert_same(&plain, &offloaded);
        print_message("  %d ranks, %s: the same bits\n", i + 1, keys[i]);
        free_record(&offloaded);
    }
    free_record(&plain);
    trace_close(&golden);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace)};
    const struct CMUnitTest offload_tests[] = {cmocka_unit_test(test_offload)};
    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "offload")))
        return 64;
    run = trace_find(argv[1]);
    if (argc == 3)
        return cmocka_run_group_tests(offload_tests, scratch_setup, scratch_teardown);
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
