/*
 * Keys reach what they are about: in a whole job, each of them at a value that is not its default.
 */
#include "support/job.h"
#include "support/kept_gradient.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MODEL TSR_SOURCE_DIR "/examples/tiny-llama"
#define ROWS  12
#define STEPS 4

static void begin(job_spec *spec)
{
    *spec = (job_spec){.purpose = TSR_JOB_TRAIN};
    job_set(spec, "model_name_or_path=%s", MODEL);
    job_set(spec, "dataset=%s", scratch_path("rows.jsonl"));
    job_set(spec, "output_dir=%s", scratch_path("output"));
    job_set(spec, "overwrite_output_dir=true");
    job_set(spec, "per_device_train_batch_size=2");
    job_set(spec, "max_steps=%d", STEPS);
    job_set(spec, "lora_r=8");
}

/* ---- the optimizer ---- */

/* After `steps` steps, and the gradients of the next one. */
typedef struct {
    int steps;
    uint64_t count;
    float *master, *m, *v;
    double *gradient;
    bool *is_a; /* the elements of A, of all linears */
} snapshot;

static tsr_status mark_a(void *user, const tsr_job_part *part)
{
    void **context = user;
    const tsr_job *job = context[0];
    snapshot *s = context[1];
    tsr_trainable_span span = tsr_job_trainable(job, part->unit, part->segment);
    for (uint64_t i = 0; i < span.count; i++)
        s->is_a[span.begin + i] = part->part == TSR_PEFT_A;
    return TSR_OK;
}

static tsr_status look(tsr_job *job, void *user)
{
    snapshot *s = user;
    const tsr_trainable *t = &job->decision.store.trainable;
    for (int i = 0; i < s->steps; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
    }
    TSR_TRY(tsr_streams_synchronize(tsr_job_streams(job)));
    s->count = t->count;
    s->master = malloc(s->count * sizeof *s->master);
    s->m = malloc(s->count * sizeof *s->m);
    s->v = malloc(s->count * sizeof *s->v);
    s->gradient = malloc(s->count * sizeof *s->gradient);
    s->is_a = calloc(s->count, sizeof *s->is_a);
    TSR_TRY(tsr_job_each_part(job, NULL, mark_a, (void *[]){job, s}));
    memcpy(s->master, t->master, s->count * sizeof *s->master);
    memcpy(s->m, t->m, s->count * sizeof *s->m);
    memcpy(s->v, t->v, s->count * sizeof *s->v);
    if (job->staged_ahead)
        TSR_TRY(tsr_model_unstage(job->model));
    TSR_TRY(job_micro_batches(job, true, s->steps, NULL, NULL));
    for (uint64_t i = 0; i < s->count; i++)
        s->gradient[i] = kept_gradient(t, i);
    return TSR_OK;
}

static void forget(snapshot *s)
{
    free(s->master);
    free(s->m);
    free(s->v);
    free(s->gradient);
    free(s->is_a);
}

static void assert_near(double got, double want, double scale, const char *what, uint64_t index)
{
    if (!(fabs(got - want) <= 2e-6 * scale + 1e-5 * fabs(want)))
        fail_msg("%s[%llu] is %.9g, expected %.9g", what, (unsigned long long)index, got, want);
}

/* Two steps, against torch.optim.AdamW's rule in double with the gradients that the job had. ratio: LoRA+'s, of all
 * that is not A. */
static void check_optimizer(double ratio)
{
    const double rate = 1e-2, beta1 = 0.8, beta2 = 0.95, epsilon = 1e-3, decay = 0.3;
    snapshot s[3] = {{.steps = 0}, {.steps = 1}, {.steps = 2}};
    job_spec spec;
    uint64_t moved = 0;
    begin(&spec);
    job_set(&spec, "learning_rate=%g", rate);
    job_set(&spec, "lr_scheduler_type=constant");
    job_set(&spec, "adam_beta1=%g", beta1);
    job_set(&spec, "adam_beta2=%g", beta2);
    job_set(&spec, "adam_epsilon=%g", epsilon);
    job_set(&spec, "weight_decay=%g", decay);
    job_set(&spec, "max_grad_norm=0");
    job_set(&spec, "use_dora=true");
    if (ratio != 1)
        job_set(&spec, "loraplus_lr_ratio=%g", ratio);
    for (int i = 0; i < 3; i++)
        job_run(&spec, look, &s[i]);
    for (uint64_t i = 0; i < s[0].count; i++) {
        double p = (double)s[0].master[i], m = 0, v = 0;
        for (int t = 1; t <= 2; t++) {
            double g = s[t - 1].gradient[i];
            m = beta1 * m + (1 - beta1) * g;
            v = beta2 * v + (1 - beta2) * g * g;
            double mean = m / (1 - pow(beta1, t)), square = v / (1 - pow(beta2, t));
            double own = s[0].is_a[i] ? rate : ratio * rate;
            p = p * (1 - own * decay) - own * mean / (sqrt(square) + epsilon);
            assert_near((double)s[t].m[i], m, fabs(g), "m", i);
            assert_near((double)s[t].v[i], v, g * g, "v", i);
            assert_near((double)s[t].master[i], p, 1e-1, "master", i);
        }
        moved += p != (double)s[0].master[i];
    }
    assert_true(moved > s[0].count / 2);
    for (int i = 0; i < 3; i++)
        forget(&s[i]);
}

static void test_optimizer(void **state)
{
    (void)state;
    check_optimizer(1);
    check_optimizer(16);
}

/* ---- the order of the data ---- */

typedef struct {
    int64_t label_tokens[STEPS];
    double loss[STEPS];
} course;

static tsr_status train(tsr_job *job, void *user)
{
    course *c = user;
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        c->label_tokens[i] = report.label_tokens;
        c->loss[i] = report.loss;
    }
    return TSR_OK;
}

static course with_seeds(int seed, int data_seed)
{
    course c;
    job_spec spec;
    begin(&spec);
    job_set(&spec, "seed=%d", seed);
    job_set(&spec, "data_seed=%d", data_seed);
    job_run(&spec, train, &c);
    return c;
}

/* data_seed alone decides which rows a step has; seed what the adapter begins with. */
static void test_data_seed(void **state)
{
    (void)state;
    course a = with_seeds(1, 1), b = with_seeds(1, 2), c = with_seeds(2, 1);
    assert_int_not_equal(a.label_tokens[0], b.label_tokens[0]);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(a.label_tokens[i], c.label_tokens[i]);
    assert_true(a.loss[0] == c.loss[0]); /* B is 0 */
    assert_true(a.loss[STEPS - 1] != c.loss[STEPS - 1]);
}

/* ---- evaluation ---- */

typedef struct {
    tsr_batch_run train, evaluation;
    int64_t rows; /* as the evaluation says */
} runs;

static tsr_status evaluate(tsr_job *job, void *user)
{
    runs *r = user;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    TSR_TRY(tsr_job_evaluate(job, &evaluation));
    r->train = *tsr_batch_run_of(job->inputs.batch);
    r->evaluation = *tsr_batch_run_of(job->inputs.eval_batch);
    r->rows = evaluation.rows;
    return TSR_OK;
}

static runs with_eval(const char *first, const char *second, const char *third)
{
    runs r;
    job_spec spec;
    begin(&spec);
    job_set(&spec, "eval_dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "%s", first);
    if (second)
        job_set(&spec, "%s", second);
    if (third)
        job_set(&spec, "%s", third);
    job_run(&spec, evaluate, &r);
    return r;
}

static void test_eval_batch_size(void **state)
{
    (void)state;
    runs r = with_eval("per_device_eval_batch_size=5", NULL, NULL);
    assert_int_equal(r.train.most_documents, 2);
    assert_int_equal(r.evaluation.most_documents, 5);
    assert_int_equal(r.evaluation.rounds, 3); /* 5, 5, 2 */
    assert_int_equal(r.rows, ROWS);
}

static void test_eval_packing(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        runs r = with_eval(i ? "packing=true" : "packing=false",
                           i ? "eval_packing=false" : "eval_packing=true", "max_length=160");
        assert_int_equal(r.rows, r.evaluation.units);
        if (i) {
            assert_true(r.train.units < ROWS);
            assert_int_equal(r.rows, ROWS);
        } else {
            assert_int_equal(r.train.units, ROWS);
            assert_true(r.rows < ROWS);
        }
    }
}

/* ---- the adapter's file ---- */

static tsr_status save_one_step(tsr_job *job, void *user)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    (void)user;
    TSR_TRY(tsr_job_step(job, &report));
    return tsr_job_save(job);
}

/* Every field of the file; those of `want` that are absent there, too. */
static void check_adapter_config(const char *want_text)
{
    const char *key;
    json_t *value;
    json_t *want = json_loads(want_text, 0, NULL);
    json_t *found = json_load_file(scratch_path("output/adapter_config.json"), 0, NULL);
    assert_non_null(want);
    assert_non_null(found);
    json_object_foreach(found, key, value)
    {
        if (json_equal(value, json_object_get(want, key)))
            continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        fail_msg("adapter_config.json: %s is %s", key, text);
    }
    assert_int_equal(json_object_size(found), json_object_size(want));
    json_decref(want);
    json_decref(found);
}

/* What PEFT 0.21 writes for the keys below; %s: exclude_modules. */
static const char adapter_config[] =
    "{\"alora_invocation_tokens\": null, \"alpha_pattern\": {\"down_proj\": 20}, \"arrow_config\": "
    "null,"
    "\"auto_mapping\": null, \"base_model_name_or_path\": \"" MODEL "\", \"bias\": \"none\","
    "\"corda_config\": null, \"ensure_weight_tying\": false, \"eva_config\": null,"
    "\"exclude_modules\": %s, \"fan_in_fan_out\": false, \"inference_mode\": true,"
    "\"init_lora_weights\": true, \"kasa_config\": null, \"layer_replication\": null,"
    "\"layers_pattern\": null, \"layers_to_transform\": [1, 4], \"loftq_config\": {},"
    "\"lora_alpha\": 12, \"lora_bias\": false, \"lora_dropout\": 0.05, \"lora_ga_config\": null,"
    "\"megatron_config\": null, \"megatron_core\": \"megatron.core\", \"modules_to_save\": null,"
    "\"monteclora_config\": null, \"peft_type\": \"LORA\", \"peft_version\": \"0.21.0\","
    "\"qalora_group_size\": 16, \"r\": 6,"
    "\"rank_pattern\": {\"layers.4.mlp.down_proj\": 5, \"q_proj\": 3}, \"revision\": null,"
    "\"target_modules\": [\"down_proj\", \"q_proj\", \"up_proj\", \"v_proj\"],"
    "\"target_parameters\": null, \"task_type\": \"CAUSAL_LM\", \"trainable_token_indices\": null,"
    "\"use_bdlora\": null, \"use_dora\": true, \"use_qalora\": false, \"use_rslora\": true,"
    "\"velora_config\": null}";

static void test_adapter_config(void **state)
{
    (void)state;
    static const char *const excluded[] = {"[\"v_proj\", \"layers.4.mlp.up_proj\"]",
                                           "\".*\\\\.(v_proj|4\\\\.mlp\\\\.up_proj)\""};
    for (int i = 0; i < 2; i++) {
        char want[4096];
        job_spec spec;
        begin(&spec);
        job_set(&spec, "max_steps=1");
        job_set(&spec, "lora_r=6");
        job_set(&spec, "lora_alpha=12");
        job_set(&spec, "lora_dropout=0.05");
        job_set(&spec, "use_rslora=true");
        job_set(&spec, "use_dora=true");
        job_set(&spec, "lora_target_modules=[q_proj, v_proj, up_proj, down_proj]");
        job_set(&spec, "exclude_modules=%s", excluded[i]);
        job_set(&spec, "layers_to_transform=[1, 4]");
        job_set(&spec, "rank_pattern={q_proj: 3, layers.4.mlp.down_proj: 5}");
        job_set(&spec, "alpha_pattern={down_proj: 20}");
        job_run(&spec, save_one_step, NULL);
        snprintf(want, sizeof want, adapter_config, excluded[i]);
        check_adapter_config(want);
    }
}

/* ---- the date of chats ---- */

#define DAY 86400

/* Takes the place of the system's: noon of another day at every call, on whatever rank. */
time_t __wrap_time(time_t *out);
time_t __wrap_time(time_t *out)
{
    static atomic_int days;
    time_t now = 2000000000 / DAY * DAY + DAY / 2 + DAY * (time_t)atomic_fetch_add(&days, 1);
    if (out)
        *out = now;
    return now;
}

typedef struct {
    char date[2][32]; /* of each rank */
} dates;

/* The date that this rank's chats have, and a checkpoint. */
static tsr_status see_date(tsr_job *job, void *user)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    dates *d = user;
    const char *date = job->inputs.config.chat_template_date;
    snprintf(d->date[job->view.rank], sizeof d->date[0], "%s", date ? date : "none");
    TSR_TRY(tsr_job_step(job, &report));
    return tsr_job_checkpoint(job);
}

static void begin_dated(job_spec *spec, const char *date)
{
    begin(spec);
    spec->ranks = 2;
    job_set(spec, "dataset=%s", scratch_path("chats.jsonl"));
    job_set(spec, "chat_template_path=%s", scratch_path("dated.jinja"));
    job_set(spec, "overwrite_output_dir=%s", date ? "false" : "true");
    if (date)
        job_set(spec, "resume_from_checkpoint=true");
}

/* A template that asks for the date gets rank 0's day; job.yaml has it, and a run that goes on on another day too. */
static void test_date(void **state)
{
    (void)state;
    dates first, then;
    job_spec spec;
    char line[64];
    const char *row = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                      "\"assistant\",\"content\":\"b\"}]}\n";
    tsr_text rows = {0};
    for (int i = 0; i < ROWS; i++)
        tsr_text_puts(&rows, row);
    write_text(scratch_path("chats.jsonl"), tsr_text_string(&rows));
    tsr_text_free(&rows);
    write_text(scratch_path("dated.jinja"),
               "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
               "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
    begin_dated(&spec, NULL);
    job_run(&spec, see_date, &first);
    assert_int_equal(strlen(first.date[0]), 10);
    assert_string_equal(first.date[0], first.date[1]);
    assert_true(!strncmp(first.date[0], "2033-", 5));
    snprintf(line, sizeof line, "chat_template_date: %s  # resolved\n", first.date[0]);
    uint64_t bytes;
    char *yaml = read_whole(&bytes, scratch_path("output/job.yaml"));
    assert_non_null(memmem(yaml, bytes, line, strlen(line)));
    free(yaml);
    begin_dated(&spec, first.date[0]);
    job_run(&spec, see_date, &then);
    assert_string_equal(then.date[0], first.date[0]);
    assert_string_equal(then.date[1], first.date[0]);
    /* A date that is given stands; one that nobody asks for is not made up. */
    begin_dated(&spec, NULL);
    job_set(&spec, "chat_template_date=2024-07-26T12:30:00");
    job_run(&spec, see_date, &first);
    assert_string_equal(first.date[0], "2024-07-26T12:30:00");
    begin_dated(&spec, first.date[0]);
    job_run(&spec, see_date, &then);
    assert_string_equal(then.date[1], first.date[0]);
    begin_dated(&spec, NULL);
    job_set(&spec, "chat_template_path=null");
    job_run(&spec, see_date, &first);
    assert_string_equal(first.date[0], "none");
}

/* Of other lengths each, so that a step's label tokens say which rows it has. */
static int set_up(void **state)
{
    enum { MOST = 5 + ROWS * ROWS };
    int32_t ids[MOST];
    test_data data;
    (void)state;
    scratch_make();
    test_data_begin(&data, scratch_path("rows.jsonl"));
    for (int32_t row = 0; row < ROWS; row++) {
        int32_t length = 5 + row * row;
        for (int32_t i = 0; i < length; i++)
            ids[i] = (row * 641 + i * i * 37 + i) % 4096;
        test_data_row(&data, ids, NULL, &length, 1, false);
    }
    test_data_end(&data);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer),       cmocka_unit_test(test_data_seed),
        cmocka_unit_test(test_eval_batch_size), cmocka_unit_test(test_eval_packing),
        cmocka_unit_test(test_adapter_config),  cmocka_unit_test(test_date),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
