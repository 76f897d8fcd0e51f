#include "model/golden_trace.h"

#include "support/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tsr_safetensors *open_in(const char *directory, const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return golden_open(path);
}

static double number(const json_t *entry, const char *key)
{
    const json_t *value = json_object_get(entry, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void read_tensor(golden_tensor *out, const char *name, const json_t *entry)
{
    const json_t *shape = json_object_get(entry, "shape");
    *out = (golden_tensor){.name = name, .count = 1};
    for (size_t i = 0; i < json_array_size(shape); i++)
        out->count *= (uint64_t)json_integer_value(json_array_get(shape, i));
    out->stride = (uint64_t)number(entry, "stride");
    assert_true(out->count > 0 && out->stride > 0);
    out->samples = (out->count + out->stride - 1) / out->stride;
    out->gradient_l2 = number(entry, "grad_l2");
    out->gradient_largest = number(entry, "grad_largest");
}

/* Gives each tensor its part of the samples, which lie one behind the other. */
static void give_samples(golden_trace *trace, tsr_safetensors *file, bool final)
{
    uint64_t gradients, finals = 0, at = 0;
    trace->gradient = golden_f32(&gradients, file, "grad.step1");
    if (final)
        trace->final = golden_f32(&finals, file, "final");
    for (uint64_t i = 0; i < trace->count; i++) {
        golden_tensor *tensor = &trace->tensor[i];
        assert_true(at + tensor->samples <= gradients);
        tensor->gradient = trace->gradient + at;
        tensor->final = final ? trace->final + at : NULL;
        at += tensor->samples;
    }
    assert_int_equal(at, gradients);
    assert_int_equal(finals, final ? gradients : 0);
}

void golden_trace_open(golden_trace *trace, const char *directory)
{
    char path[700];
    const char *name;
    json_t *entry, *tensors;
    tsr_safetensors *file = open_in(directory, "trace.safetensors");
    bool final = tsr_safetensors_count(file) == 2;
    uint64_t i = 0;
    snprintf(path, sizeof path, "%s/trace.json", directory);
    *trace = (golden_trace){.facts = json_load_file(path, 0, NULL)};
    tensors = json_object_get(trace->facts, "tensors");
    trace->count = json_object_size(tensors);
    assert_true(trace->count > 0);
    trace->tensor = calloc(trace->count, sizeof *trace->tensor);
    assert_non_null(trace->tensor);
    json_object_foreach(tensors, name, entry)
    {
        read_tensor(&trace->tensor[i], name, entry);
        if (final)
            trace->tensor[i].final_rms = number(entry, "final_rms");
        i++;
    }
    give_samples(trace, file, final);
    tsr_safetensors_close(file);
}

void golden_trace_close(golden_trace *trace)
{
    json_decref(trace->facts);
    free(trace->tensor);
    free(trace->gradient);
    free(trace->final);
    *trace = (golden_trace){0};
}

const golden_tensor *golden_trace_find(const golden_trace *trace, const char *name)
{
    char plain[GOLDEN_NAME_BYTES];
    golden_name(plain, name);
    for (uint64_t i = 0; i < trace->count; i++)
        if (!strcmp(trace->tensor[i].name, plain))
            return &trace->tensor[i];
    fail_msg("no golden tensor %s", name);
    return NULL;
}

void golden_gradient_apart(double worst[2], const golden_tensor *want, const double *got,
                           uint64_t count)
{
    double apart = 0, squares = 0;
    assert_int_equal(count, want->count);
    for (uint64_t i = 0; i < count; i++)
        squares += got[i] * got[i];
    for (uint64_t i = 0; i < want->samples; i++)
        apart = worse(fabs(got[i * want->stride] - (double)want->gradient[i]), apart);
    worst[0] = worse(apart / want->gradient_largest, worst[0]);
    worst[1] = worse(fabs(sqrt(squares) / want->gradient_l2 - 1), worst[1]);
}

void golden_trace_judge_final(const golden_trace *trace, const char *written, double element,
                              double rms)
{
    tsr_safetensors *file = open_in(written, "adapter_model.safetensors");
    double worst = 0, squares = 0, norms = 0;
    uint64_t all = 0;
    assert_int_equal(tsr_safetensors_count(file), trace->count);
    for (uint64_t i = 0; i < trace->count; i++) {
        const char *name = tsr_safetensors_at(file, i)->name;
        const golden_tensor *want = golden_trace_find(trace, name);
        uint64_t count;
        double own = 0;
        float *got = golden_f32(&count, file, "%s", name);
        assert_int_equal(count, want->count);
        assert_non_null(want->final);
        for (uint64_t j = 0; j < count; j++)
            own += (double)got[j] * (double)got[j];
        for (uint64_t j = 0; j < want->samples; j++) {
            double apart = (double)got[j * want->stride] - (double)want->final[j];
            worst = worse(fabs(apart), worst);
            squares += apart * apart;
        }
        norms = worse(fabs(sqrt(own / (double)count) - want->final_rms), norms);
        all += want->samples;
        free(got);
    }
    judge("the adapter, elements", worst, element);
    judge("the adapter, rms of the difference", sqrt(squares / (double)all), rms);
    judge("the adapter, difference of a tensor's rms", norms, rms);
    tsr_safetensors_close(file);
}

void golden_same_adapter(const char *a, const char *b)
{
    tsr_safetensors *file[2] = {open_in(a, "adapter_model.safetensors"),
                                open_in(b, "adapter_model.safetensors")};
    assert_true(tsr_safetensors_count(file[0]) > 0);
    assert_int_equal(tsr_safetensors_count(file[0]), tsr_safetensors_count(file[1]));
    for (uint64_t i = 0; i < tsr_safetensors_count(file[0]); i++) {
        uint64_t count, other;
        const char *name = tsr_safetensors_at(file[0], i)->name;
        float *x = golden_f32(&count, file[0], "%s", name),
              *y = golden_f32(&other, file[1], "%s", name);
        assert_int_equal(count, other);
        assert_memory_equal(x, y, count * sizeof *x);
        free(x);
        free(y);
    }
    tsr_safetensors_close(file[0]);
    tsr_safetensors_close(file[1]);
}
