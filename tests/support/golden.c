#include "support/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tsr_safetensors *golden_open(const char *path)
{
    tsr_safetensors *file = NULL;
    if (tsr_safetensors_open(&file, path) < 0)
        fail_msg("%s", tsr_last_error());
    return file;
}

static const tsr_tensor *find(const tsr_safetensors *file, const char *format, va_list args)
{
    char name[160];
    vsnprintf(name, sizeof name, format, args);
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    if (!tensor)
        fail_msg("%s has no tensor %s", tsr_safetensors_path(file), name);
    return tensor;
}

float *golden_f32(uint64_t *count, tsr_safetensors *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const tsr_tensor *tensor = find(file, format, args);
    va_end(args);
    float *values = malloc(tensor->element_count * sizeof *values);
    assert_non_null(values);
    if (tsr_safetensors_read_f32(values, tensor, 0, tensor->element_count) < 0)
        fail_msg("%s", tsr_last_error());
    if (count)
        *count = tensor->element_count;
    return values;
}

int32_t *golden_i32(uint64_t *count, tsr_safetensors *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const tsr_tensor *tensor = find(file, format, args);
    va_end(args);
    assert_int_equal(tensor->dtype, TSR_I32);
    int32_t *values = malloc(tensor->bytes);
    assert_non_null(values);
    if (tsr_safetensors_read(values, tensor, 0, tensor->bytes) < 0)
        fail_msg("%s", tsr_last_error());
    if (count)
        *count = tensor->element_count;
    return values;
}

const char *golden_name(char out[GOLDEN_NAME_BYTES], const char *name)
{
    static const char inner[] = "language_model.";
    const char *at = strstr(name, inner);
    int before = at ? (int)(at - name) : 0;
    snprintf(out, GOLDEN_NAME_BYTES, "%.*s%s", before, name, at ? at + sizeof inner - 1 : name);
    return out;
}

double worse(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

void judge(const char *what, double measured, double allowed)
{
    print_message("    %-44s %.2g (%.1g)\n", what, measured, allowed);
    if (!(measured <= allowed))
        fail_msg("%s: %g, allowed is %g", what, measured, allowed);
}
