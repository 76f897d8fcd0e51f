/*
 * Adapters of the golden traces, read by init_adapter: logits, logsumexp and losses on the dense rows
 * of forward_tiny_llama, and the merged weights (m / n) (W + s B A) of layer 0 from what the job made
 * of W, A, B, m and n.
 */
#include "model/model_parts.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/llama.h"
#include "support/rows.h"
#include "support/scratch.h"
#include "traces.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOGIT_TOLERANCE  3e-4
#define MERGED_TOLERANCE 2e-6 /* of the largest */

enum { ROWS = 4, TOKENS = 96, VOCAB = 4096, COLUMNS = 16, D = 256, MERGED_ROWS = 8 };

static test_head head;
static int32_t *ids; /* [ROWS, TOKENS] */

static int setup(void **state)
{
    const int32_t length = TOKENS;
    test_data data;
    (void)state;
    scratch_make();
    test_head_load(&head, TRACE_MODEL, "lm_head.weight");
    tsr_safetensors *file =
        golden_open(TSR_SOURCE_DIR "/tests/golden/forward_tiny_llama.safetensors");
    ids = golden_i32(NULL, file, "dense.input_ids");
    tsr_safetensors_close(file);
    test_data_begin(&data, scratch_path("rows.jsonl"));
    for (int row = 0; row < ROWS; row++)
        test_data_row(&data, ids + row * TOKENS, NULL, &length, 1, true);
    test_data_end(&data);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    test_head_free(&head);
    free(ids);
    scratch_remove();
    return 0;
}

static job_spec evaluation(const char *adapter)
{
    job_spec spec = {.purpose = TSR_JOB_EVALUATE};
    job_set(&spec, "model_name_or_path=%s", TRACE_MODEL);
    job_set(&spec, "eval_dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "per_device_eval_batch_size=%d", ROWS);
    job_set(&spec, "dtype=float32");
    job_set(&spec, "init_adapter=%s/%s", TRACES, adapter);
    return spec;
}

/* ---- logits ---- */

static void check_logits(const char *trace, const char *which, const char *adapter)
{
    char path[512], name[64];
    double logits[VOCAB], logit = 0, logsumexp = 0, loss = 0;
    test_evaluated got = {0};
    snprintf(path, sizeof path, "%s/%s/trace.safetensors", TRACES, trace);
    tsr_safetensors *file = golden_open(path);
    float *at = golden_f32(NULL, file, "dense.%s.logits_at", which);
    float *columns = golden_f32(NULL, file, "dense.%s.logits_columns", which);
    float *lse = golden_f32(NULL, file, "dense.%s.logsumexp", which);
    float *nll = golden_f32(NULL, file, "dense.%s.nll", which);
    job_spec spec = evaluation(adapter);
    job_run(&spec, test_evaluate, &got);
    assert_int_equal(got.rows.count, ROWS * TOKENS);
    for (int i = 0; i < ROWS * TOKENS; i++) {
        int row = i / TOKENS, t = i % TOKENS;
        test_head_logits(logits, &head, got.rows.rows + i * D);
        double sum = test_logsumexp(logits, VOCAB);
        logsumexp = worse(fabs(sum - (double)lse[i]), logsumexp);
        for (int c = 0; c < COLUMNS; c++)
            logit =
                worse(fabs(logits[c * VOCAB / COLUMNS] - (double)columns[i * COLUMNS + c]), logit);
        for (int v = 0; t == TOKENS - 1 && v < VOCAB; v++)
            logit = worse(fabs(logits[v] - (double)at[row * VOCAB + v]), logit);
        if (t == TOKENS - 1)
            continue;
        double want = (double)nll[row * (TOKENS - 1) + t];
        loss = worse(fabs(got.rows.nll[i] - want), loss);
        loss = worse(fabs(got.rows.nll[i] - (sum - logits[ids[i + 1]])), loss);
    }
    snprintf(name, sizeof name, "%s %s logits", trace, which);
    judge(name, logit, LOGIT_TOLERANCE);
    snprintf(name, sizeof name, "%s %s logsumexp", trace, which);
    judge(name, logsumexp, LOGIT_TOLERANCE);
    snprintf(name, sizeof name, "%s %s nll", trace, which);
    judge(name, loss, LOGIT_TOLERANCE);
    test_rows_free(&got.rows);
    free(at);
    free(columns);
    free(lse);
    free(nll);
    tsr_safetensors_close(file);
}

static void test_logits_of_lora(void **state)
{
    (void)state;
    check_logits("a_lora", "final", "a_lora/final");
}

static void test_logits_of_dora(void **state)
{
    (void)state;
    check_logits("c1_dora", "init", "init/dora_r8");
    check_logits("c1_dora", "final", "c1_dora/final");
}

static void test_logits_of_patterns(void **state)
{
    (void)state;
    check_logits("d_dora_patterns", "init", "init/dora_patterns");
}

static void test_logits_of_packed(void **state)
{
    (void)state;
    check_logits("g_lora_packed", "final", "g_lora_packed/final");
}

/* ---- merged weights ---- */

/* (m / n) (W + s B A) of one linear of layer 0. */
typedef struct {
    char *path;
    uint64_t out, in;
    double *weight; /* [out, in] */
} merged;

/* W as the layer computes with it. */
static tsr_status read_weight(float *out, const tsr_job *job, int kind)
{
    const tsr_store *store = &job->decision.store;
    const tsr_layout_linear *linear = &job->inputs.layout.unit[0].linear[kind];
    const tsr_segment *segment = job->decision.units[0].frozen.segment;
    const nested_state *nested = &job->model->unit[0].nested[kind];
    const char *frozen = tsr_store_view(store, 0, -1).frozen;
    if (!linear->quantized || !linear->nested || !frozen)
        return tsr_fail(TSR_EINTERNAL, "%s is not NF4 with nested scales in memory", linear->path);
    tsr_nf4_scales scales = {true, nested->offset, nested->nested_absmax, nested->nested_map};
    tsr_nf4_view view = {(const uint8_t *)frozen + segment[linear->codes].gathered_offset,
                         frozen + segment[linear->absmax].gathered_offset, &scales};
    return tsr_nf4_dequantize(out, TSR_F32, &view, 0, linear->out * linear->in, NULL, 1);
}

static const float *working_copy(const tsr_job *job, int segment)
{
    return tsr_trainable_at(&job->decision.store.trainable, 0, segment).work;
}

static tsr_status merge(merged *out, const tsr_job *job, int kind)
{
    const tsr_layout_linear *l = &job->inputs.layout.unit[0].linear[kind];
    const float *a = working_copy(job, l->a), *b = working_copy(job, l->b);
    const float *n = tsr_model_norms(job->model, 0, (int)kind);
    float *w = malloc(l->out * l->in * sizeof *w);
    *out = (merged){strdup(l->path), l->out, l->in, calloc(l->out * l->in, sizeof(double))};
    tsr_status status = w && out->path && out->weight ? read_weight(w, job, kind) : TSR_ENOMEM;
    for (uint64_t i = 0; status == TSR_OK && i < l->out; i++) {
        double *row = out->weight + i * l->in;
        double g = l->dora ? (double)working_copy(job, l->m)[i] / (double)n[i] : 1;
        for (uint64_t k = 0; k < l->r; k++)
            for (uint64_t j = 0; j < l->in; j++)
                row[j] += (double)b[i * l->r + k] * (double)a[k * l->in + j];
        for (uint64_t j = 0; j < l->in; j++)
            row[j] = g * ((double)w[i * l->in + j] + l->scale * row[j]);
    }
    free(w);
    return status;
}

/* An evaluation first: its NORM leaves n. */
static tsr_status merge_all(tsr_job *job, void *user)
{
    merged *out = user;
    tsr_job_evaluation unused = TSR_JOB_EVALUATION_INIT;
    TSR_TRY(tsr_job_evaluate(job, &unused));
    TSR_TRY(tsr_streams_synchronize(&job->streams));
    for (int kind = 0; kind < LLAMA_LINEARS; kind++)
        TSR_TRY(merge(&out[kind], job, kind));
    return TSR_OK;
}

static double *read_f64(uint64_t count, tsr_safetensors *file, const char *path, const char *part)
{
    char name[160];
    snprintf(name, sizeof name, "merged.%s.%s", path, part);
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    double *values = malloc(count * sizeof *values);
    assert_true(tensor && values);
    assert_int_equal(tensor->dtype, TSR_F64);
    assert_int_equal(tensor->element_count, count);
    assert_int_equal(tsr_safetensors_read(values, tensor, 0, tensor->bytes), TSR_OK);
    return values;
}

/* The largest difference over the largest golden value. */
static double relative(const double *got, const double *want, uint64_t count)
{
    double difference = 0, largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        difference = worse(fabs(got[i] - want[i]), difference);
        largest = fmax(largest, fabs(want[i]));
    }
    return difference / largest;
}

static void compare_merged(double worst[3], const merged *m, tsr_safetensors *file)
{
    uint64_t count;
    float *rows = golden_f32(&count, file, "merged.%s.rows", m->path);
    double *norm = read_f64(m->out, file, m->path, "row_l2");
    double *sum = read_f64(m->in, file, m->path, "column_sum");
    double *wide = malloc(count * sizeof *wide), *mine = calloc(m->out + m->in, sizeof *mine);
    assert_true(wide && mine);
    assert_int_equal(count, MERGED_ROWS * m->in);
    for (uint64_t i = 0; i < count; i++)
        wide[i] = (double)rows[i];
    for (uint64_t i = 0; i < m->out * m->in; i++) {
        mine[i / m->in] += m->weight[i] * m->weight[i];
        mine[m->out + i % m->in] += m->weight[i];
    }
    for (uint64_t i = 0; i < m->out; i++)
        mine[i] = sqrt(mine[i]);
    worst[0] = worse(relative(m->weight, wide, count), worst[0]);
    worst[1] = worse(relative(mine, norm, m->out), worst[1]);
    worst[2] = worse(relative(mine + m->out, sum, m->in), worst[2]);
    free(rows);
    free(norm);
    free(sum);
    free(wide);
    free(mine);
}

static void check_merged(const char *trace)
{
    static const char *const parts[3] = {"rows", "row norms", "column sums"};
    char path[512];
    merged all[LLAMA_LINEARS] = {{0}};
    double worst[3] = {0};
    snprintf(path, sizeof path, "%s/final", trace);
    job_spec spec = evaluation(path);
    job_run(&spec, merge_all, all);
    snprintf(path, sizeof path, "%s/%s/trace.safetensors", TRACES, trace);
    tsr_safetensors *file = golden_open(path);
    for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
        compare_merged(worst, &all[kind], file);
        free(all[kind].path);
        free(all[kind].weight);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s merged %s / largest", trace, parts[i]);
        judge(path, worst[i], MERGED_TOLERANCE);
    }
    tsr_safetensors_close(file);
}

static void test_merged_lora(void **state)
{
    (void)state;
    check_merged("a_lora");
}

static void test_merged_dora(void **state)
{
    (void)state;
    check_merged("c1_dora");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_of_lora),     cmocka_unit_test(test_logits_of_dora),
        cmocka_unit_test(test_logits_of_patterns), cmocka_unit_test(test_logits_of_packed),
        cmocka_unit_test(test_merged_lora),        cmocka_unit_test(test_merged_dora),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
