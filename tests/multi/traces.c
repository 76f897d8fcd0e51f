#include "traces.h"

#include "io/json.h"
#include "support/golden.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const int trace_moment[TRACE_MOMENTS] = {1, 2, 20};

/* For what the README gives no number of its own: Adam's m is a mean of gradients, v one of their
 * squares; both get what a whole gradient gets at step 20. */
#define ADAM_TOLERANCE 1e-2

/* What rounding alone leaves of a gradient, as a share of the tensor's largest: PyTorch's own mean
 * error in fp32 is 7e-7 of it. */
#define NOISE 1e-6

static const trace_case cases[] = {
    {"a_lora", "a_lora", "padded.jsonl", 4, {"init_adapter=" TRACES "/init/lora_r8"}},
    {"b_rslora", "b_rslora", "padded.jsonl", 4, {"init_adapter=" TRACES "/init/rslora_r16"}},
    {"c0_dora",
     "c0_dora",
     "padded.jsonl",
     4,
     {"init_adapter=" TRACES "/init/lora_r8", "use_dora=true"}},
    {"c1_dora", "c1_dora", "padded.jsonl", 4, {"init_adapter=" TRACES "/init/dora_r8"}},
    {"d_dora_patterns",
     "d_dora_patterns",
     "padded.jsonl",
     4,
     {"init_adapter=" TRACES "/init/dora_patterns"}},
    {"e_lora_accumulated",
     "e_lora_accumulated",
     "accumulated.jsonl",
     8,
     {"init_adapter=" TRACES "/init/lora_r8"}},
    {"f_dora_decay_clip_cosine",
     "f_dora_decay_clip_cosine",
     "padded.jsonl",
     4,
     {"init_adapter=" TRACES "/init/dora_r8", "weight_decay=0.1", "max_grad_norm=0.5",
      "lr_scheduler_type=cosine"}},
    {"g_lora_packed_rows",
     "g_lora_packed",
     NULL,
     1,
     {"init_adapter=" TRACES "/init/lora_r4_attention"}},
    {"g_lora_packed_unpacked",
     "g_lora_packed",
     "packed.jsonl",
     2,
     {"init_adapter=" TRACES "/init/lora_r4_attention"}},
};

const trace_case *trace_find(const char *name)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, name))
            return &cases[i];
    fail_msg("no trace is called %s", name);
    return NULL;
}

/* ---- how it is run ---- */

/* Two chats in a row, as documents. */
static void write_packed_rows(const char *path)
{
    tsr_safetensors *file = golden_open(TRACES "/batches.safetensors");
    test_data data;
    test_data_begin(&data, path);
    for (int step = 0; step < 5; step++) {
        uint64_t ends;
        int32_t lengths[8];
        int32_t *ids = golden_i32(NULL, file, "packed.step%d.micro0.input_ids", step);
        int32_t *labels = golden_i32(NULL, file, "packed.step%d.micro0.labels", step);
        int32_t *cu = golden_i32(&ends, file, "packed.step%d.micro0.cu_seqlens", step);
        for (uint64_t i = 0; i + 1 < ends; i++)
            lengths[i] = cu[i + 1] - cu[i];
        test_data_row(&data, ids, labels, lengths, (int)ends - 1, false);
        free(ids);
        free(labels);
        free(cu);
    }
    test_data_end(&data);
    tsr_safetensors_close(file);
}

void trace_configure(job_spec *spec, const trace_case *run, const char *output_dir)
{
    const char *rows = scratch_path("packed_rows.jsonl");
    job_set(spec, "model_name_or_path=%s", TRACE_MODEL);
    if (run->data) {
        job_set(spec, "dataset=%s/%s", TRACES, run->data);
    } else {
        write_packed_rows(rows);
        job_set(spec, "dataset=%s", rows);
    }
    job_set(spec, "resident_units=0"); /* on GPUs too everything passes through slots */
    job_set(spec, "dtype=float32");
    job_set(spec, "shuffle=false");
    job_set(spec, "per_device_train_batch_size=1");
    job_set(spec, "total_batch_size=%d", run->total_batch_size);
    job_set(spec, "max_steps=%d", TRACE_STEPS);
    job_set(spec, "learning_rate=2e-3");
    job_set(spec, "max_grad_norm=0");
    job_set(spec, "lr_scheduler_type=constant");
    for (size_t i = 0; i < sizeof run->keys / sizeof *run->keys && run->keys[i]; i++)
        job_set(spec, "%s", run->keys[i]);
    if (!strcmp(run->name, "f_dora_decay_clip_cosine"))
        job_set(spec, "warmup_steps=4");
    job_set(spec, "output_dir=%s", output_dir);
}

/* ---- what it must give ---- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void read_steps(trace_golden *out, const json_t *root)
{
    const json_t *steps = json_object_get(root, "steps");
    assert_int_equal(json_array_size(steps), TRACE_STEPS);
    for (size_t i = 0; i < TRACE_STEPS; i++) {
        const json_t *step = json_array_get(steps, i);
        out->step[i] = (trace_step){number(step, "loss"), number(step, "grad_norm"),
                                    number(step, "lr"), (int64_t)number(step, "label_tokens")};
    }
}

/* A tensor's elements, from the adapter the trace starts from: a magnitude has one for each row of
 * its module's B. */
static uint64_t count_elements(const tsr_safetensors *init, const char *name)
{
    static const char magnitude[] = "lora_magnitude_vector";
    char b[256];
    const char *end = strstr(name, magnitude);
    if (!end) {
        const tsr_tensor *tensor = tsr_safetensors_find(init, name);
        assert_non_null(tensor);
        return tensor->element_count;
    }
    snprintf(b, sizeof b, "%.*slora_B.weight", (int)(end - name), name);
    const tsr_tensor *tensor = tsr_safetensors_find(init, b);
    assert_non_null(tensor);
    return tensor->shape[0];
}

static void read_tensors(trace_golden *out, const json_t *root)
{
    char path[512];
    const json_t *names = json_object_get(root, "tensors");
    const char *init = strchr(out->run->keys[0], '=') + 1;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", init);
    tsr_safetensors *file = golden_open(path);
    out->tensor_count = (int)json_array_size(names);
    assert_true(out->tensor_count > 0);
    out->tensor = calloc((size_t)out->tensor_count, sizeof *out->tensor);
    out->begin = calloc((size_t)out->tensor_count + 1, sizeof *out->begin);
    assert_true(out->tensor && out->begin);
    for (int i = 0; i < out->tensor_count; i++) {
        out->tensor[i] = strdup(json_string_value(json_array_get(names, (size_t)i)));
        assert_non_null(out->tensor[i]);
        out->begin[i + 1] = out->begin[i] + count_elements(file, out->tensor[i]);
    }
    tsr_safetensors_close(file);
}

static float *whole(const trace_golden *golden, const char *prefix, int tensor);
static double *read_f64(tsr_safetensors *file, const char *name, uint64_t count);

/* The index of the A beside a B whose gradient is known; -1: not a B, or A has a gradient too. */
static int idle_a(const trace_golden *golden, const double *norms, int b)
{
    char name[256];
    snprintf(name, sizeof name, "%s", golden->tensor[b]);
    char *part = strstr(name, "lora_B");
    if (!part)
        return -1;
    part[5] = 'A';
    int a = trace_tensor(golden, name);
    assert_true(a >= 0);
    return norms[a] == 0 ? a : -1;
}

static void find_noise(trace_golden *out)
{
    uint64_t room = 0, tensors = (uint64_t)out->tensor_count;
    double *norms = read_f64(out->file, "grad_l2", TRACE_MOMENTS * tensors);
    for (int i = 0; i < out->tensor_count; i++) {
        int a = idle_a(out, norms, i);
        float *g = a < 0 ? NULL : whole(out, "grad.step1", i);
        uint64_t count = g ? out->begin[i + 1] - out->begin[i] : 0;
        double largest = 0;
        for (uint64_t j = 0; j < count; j++)
            largest = fmax(largest, fabs((double)g[j]));
        for (uint64_t j = 0; j < count; j++) {
            if (fabs((double)g[j]) >= NOISE * largest)
                continue;
            if (out->noise_count == room)
                out->noise = realloc(out->noise, (room = 2 * room + 8) * sizeof *out->noise);
            assert_non_null(out->noise);
            out->noise[out->noise_count++] = (trace_noise){i, a, j, (double)g[j]};
        }
        free(g);
    }
    free(norms);
}

void trace_open(trace_golden *out, const trace_case *run)
{
    char path[512];
    json_t *root = NULL;
    *out = (trace_golden){.run = run};
    snprintf(path, sizeof path, "%s/%s/trace.json", TRACES, run->directory);
    if (tsr_json_load_object(&root, path) < 0)
        fail_msg("%s", tsr_last_error());
    read_steps(out, root);
    read_tensors(out, root);
    json_decref(root);
    snprintf(path, sizeof path, "%s/%s/trace.safetensors", TRACES, run->directory);
    out->file = golden_open(path);
    find_noise(out);
}

void trace_close(trace_golden *golden)
{
    for (int i = 0; i < golden->tensor_count; i++)
        free(golden->tensor[i]);
    free(golden->tensor);
    free(golden->begin);
    free(golden->noise);
    tsr_safetensors_close(golden->file);
    *golden = (trace_golden){0};
}

int trace_tensor(const trace_golden *golden, const char *name)
{
    for (int i = 0; i < golden->tensor_count; i++)
        if (!strcmp(golden->tensor[i], name))
            return i;
    return -1;
}

/* ---- judging ---- */

void trace_judge_steps(const trace_golden *golden, const trace_step *got)
{
    double loss = 0, relative = 0, rate = 0, first = 0, later = 0;
    for (int i = 0; i < TRACE_STEPS; i++) {
        const trace_step *want = &golden->step[i], *have = &got[i];
        double difference = fabs(have->loss - want->loss);
        double norm = fabs(have->grad_norm - want->grad_norm) / want->grad_norm;
        if (have->label_tokens != want->label_tokens)
            fail_msg("step %d: %lld label tokens, golden has %lld", i + 1,
                     (long long)have->label_tokens, (long long)want->label_tokens);
        loss = worse(difference, loss);
        relative = worse(difference / want->loss, relative);
        rate = worse(fabs(have->learning_rate - want->learning_rate) /
                         (want->learning_rate > 0 ? want->learning_rate : 1),
                     rate);
        *(i ? &later : &first) = worse(norm, i ? later : first);
    }
    judge("loss", loss, 1e-4);
    judge("loss / loss", relative, 1e-4);
    judge("learning rate / rate", rate, 1e-8);
    judge("grad_norm / norm at step 1", first, 1e-5);
    judge("grad_norm / norm later", later, 2e-3);
}

/* sqrt of the sum of squares. */
static double l2(const double *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += values[i] * values[i];
    return sqrt(sum);
}

/* The largest difference over the largest golden value. */
static double relative_to_largest(const double *got, const float *want, uint64_t count)
{
    double difference = 0, largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        difference = worse(fabs(got[i] - (double)want[i]), difference);
        largest = fmax(largest, fabs((double)want[i]));
    }
    return difference / largest;
}

static double *read_f64(tsr_safetensors *file, const char *name, uint64_t count)
{
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, TSR_F64);
    assert_int_equal(tensor->element_count, count);
    double *values = malloc(count * sizeof *values);
    assert_non_null(values);
    assert_int_equal(tsr_safetensors_read(values, tensor, 0, tensor->bytes), TSR_OK);
    return values;
}

/* The gradient that the golden file has in whole, [count]; NULL where it has none. */
static float *whole(const trace_golden *golden, const char *prefix, int tensor)
{
    char name[256];
    uint64_t count;
    snprintf(name, sizeof name, "%s.%s", prefix, golden->tensor[tensor]);
    if (!tsr_safetensors_find(golden->file, name))
        return NULL;
    float *values = golden_f32(&count, golden->file, "%s", name);
    assert_int_equal(count, golden->begin[tensor + 1] - golden->begin[tensor]);
    return values;
}

static void judge_at(const char *what, int step, double measured, double allowed)
{
    char text[64];
    snprintf(text, sizeof text, "%s at step %d", what, step);
    judge(text, measured, allowed);
}

void trace_judge_gradients(const trace_golden *golden, int moment, const double *all,
                           const bool *except)
{
    int step = trace_moment[moment], whole_count = 0;
    uint64_t tensors = (uint64_t)golden->tensor_count;
    double norm = 0, sample = 0, element = 0;
    char prefix[32];
    double *norms = read_f64(golden->file, "grad_l2", TRACE_MOMENTS * tensors);
    float *samples = golden_f32(NULL, golden->file, "grad_samples.step%d", step);
    snprintf(prefix, sizeof prefix, "grad.step%d", step);
    for (int i = 0; i < golden->tensor_count; i++) {
        const double *g = all + golden->begin[i];
        uint64_t count = golden->begin[i + 1] - golden->begin[i];
        double want = norms[(uint64_t)moment * tensors + (uint64_t)i], have = l2(g, count);
        if (want == 0) { /* A while B is 0 */
            assert_true(have == 0);
            continue;
        }
        if (!except || !except[i])
            norm = worse(fabs(have - want) / want, norm);
        for (uint64_t j = 0; j < 32; j++) {
            double picked = (double)samples[(uint64_t)i * 32 + j];
            sample = worse(fabs(g[j * count / 32] - picked) / (want / sqrt((double)count)), sample);
        }
        float *full = whole(golden, prefix, i);
        if (full) {
            element = worse(relative_to_largest(g, full, count), element);
            whole_count++;
        }
        free(full);
    }
    assert_true(whole_count > 0);
    judge_at("grad_l2 / norm", step, norm, step == 1 ? 3e-5 : 5e-3);
    judge_at("grad_samples / rms", step, sample, step == 1 ? 1e-3 : 0.1);
    judge_at("whole gradients / largest", step, element, step == 1 ? 1e-4 : 1e-2);
    free(norms);
    free(samples);
}

static double *widen(const float *values, uint64_t count)
{
    double *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (uint64_t i = 0; i < count; i++)
        out[i] = (double)values[i];
    return out;
}

/* The worst of the tensors `prefix`.<name> that the golden file has; there are `least` or more. */
static double compare_prefix(const trace_golden *golden, const char *prefix, const float *all,
                             int least)
{
    double result = 0;
    int seen = 0;
    for (int i = 0; i < golden->tensor_count; i++) {
        uint64_t count = golden->begin[i + 1] - golden->begin[i];
        float *want = whole(golden, prefix, i);
        if (!want)
            continue;
        double *have = widen(all + golden->begin[i], count);
        result = worse(relative_to_largest(have, want, count), result);
        seen++;
        free(have);
        free(want);
    }
    assert_true(seen >= least);
    return result;
}

void trace_judge_adam(const trace_golden *golden, const float *m, const float *v)
{
    judge("Adam's m / largest", compare_prefix(golden, "adam_m", m, 2), ADAM_TOLERANCE);
    judge("Adam's v / largest", compare_prefix(golden, "adam_v", v, 2), ADAM_TOLERANCE);
}

void trace_judge_magnitudes(const trace_golden *golden, const float *all)
{
    double result = 0;
    if (strcmp(golden->run->directory, "c0_dora") != 0)
        return;
    for (int i = 0; i < golden->tensor_count; i++) {
        if (!strstr(golden->tensor[i], "lora_magnitude_vector"))
            continue;
        float *want = whole(golden, "init", i);
        assert_non_null(want);
        for (uint64_t j = golden->begin[i]; j < golden->begin[i + 1]; j++) {
            double w = (double)want[j - golden->begin[i]];
            result = worse(fabs((double)all[j] - w) / w, result);
        }
        free(want);
    }
    judge("first magnitudes, each / its value", result, 1e-6);
}

/* The trained tensor: from final/ where the trace has it, else from trace.safetensors; or NULL. */
static float *trained(const trace_golden *golden, tsr_safetensors *directory, int tensor)
{
    if (!directory)
        return whole(golden, "final", tensor);
    uint64_t count;
    float *values = golden_f32(&count, directory, "%s", golden->tensor[tensor]);
    assert_int_equal(count, golden->begin[tensor + 1] - golden->begin[tensor]);
    return values;
}

void trace_judge_final(const trace_golden *golden, const float *all)
{
    char path[512], first[256];
    double norm = 0, rms = 0, element = 0;
    int seen = 0;
    snprintf(first, sizeof first, "final.%s", golden->tensor[0]);
    snprintf(path, sizeof path, "%s/%s/final/adapter_model.safetensors", TRACES,
             golden->run->directory);
    bool whole_file = !tsr_safetensors_find(golden->file, first);
    tsr_safetensors *directory = whole_file ? golden_open(path) : NULL;
    double *norms = read_f64(golden->file, "final_l2", (uint64_t)golden->tensor_count);
    for (int i = 0; i < golden->tensor_count; i++) {
        uint64_t count = golden->begin[i + 1] - golden->begin[i];
        double *have = widen(all + golden->begin[i], count);
        norm = worse(fabs(l2(have, count) - norms[i]) / norms[i], norm);
        float *want = trained(golden, directory, i);
        for (uint64_t j = 0; want && j < count; j++) {
            have[j] -= (double)want[j];
            element = worse(fabs(have[j]), element);
        }
        if (want) {
            rms = worse(l2(have, count) / sqrt((double)count), rms);
            seen++;
        }
        free(want);
        free(have);
    }
    assert_true(whole_file ? seen == golden->tensor_count : seen >= 4);
    judge("trained tensors, norm / norm", norm, 1e-3);
    judge("trained tensors, rms of the difference", rms, 1e-3);
    judge("trained tensors, elements", element, 1e-2);
    free(norms);
    tsr_safetensors_close(directory);
}
