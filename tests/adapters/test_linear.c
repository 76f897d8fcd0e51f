/*
 * test_linear.c: one linear with a bias and its adapter, forward and backward, as PEFT computes it
 * (tests/golden/adapter_linear): LoRA, DoRA, and DoRA with dropout under PEFT's recorded mask. What
 * the consumer of a linear does, y = g z + bias and its backward, is written out here.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "adapters/linear.h"
#include "support/golden.h"

#define T         24
#define IN        64
#define OUT       48
#define R         4
#define SCALE     1.5
#define P         0.25
#define TOLERANCE 5e-6 /* of the largest value, as the golden files' README measured */

typedef struct {
    tsr_device *device;
    tsr_stream *stream;
    tsr_safetensors *file;
    tsr_kernels kernels;
    float *x, *dy, *weight, *bias, *a, *b, *m;
    tsr_linear linear;
    tsr_linear_context context;
    float squares[OUT], n[OUT], g[OUT], z[T * OUT], y[T * OUT], dx[T * IN], da[R * IN], db[OUT * R],
        dm[OUT], low[T * R];
    float memory[OUT * IN + 4 * T * (IN + OUT)], norm_memory[2 * OUT * R + R * R];
} fixture;

static uint8_t recorded_mask[T * IN];

/* In place of the counter-based mask: the recorded one. */
static tsr_status recorded_dropout_run(void *arguments, tsr_pool *pool)
{
    const tsr_dropout_args *args = arguments;
    float *out = args->out;
    const float *x = args->x;
    (void)pool;
    for (int i = 0; i < T * IN; i++) {
        float kept = recorded_mask[i] ? x[i] / (float)(1 - P) : 0;
        out[i] = args->add ? out[i] + kept : kept;
    }
    return TSR_OK;
}

static tsr_status recorded_dropout(tsr_stream *stream, const tsr_dropout_args *args)
{
    return tsr_stream_call(stream, recorded_dropout_run, args, sizeof *args);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    tsr_device_options options = {.thread_count = 2, .no_pinning = true};
    assert_int_equal(tsr_device_create_cpu(&f->device, &options), TSR_OK);
    assert_int_equal(tsr_stream_create(&f->stream, f->device, "compute"), TSR_OK);
    f->file = golden_open(TSR_SOURCE_DIR "/tests/golden/adapter_linear.safetensors");
    float **tensors[] = {&f->x, &f->dy, &f->weight, &f->bias, &f->a, &f->b, &f->m};
    const char *names[] = {"x", "dy", "weight", "bias", "lora_A", "lora_B", "magnitude"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        *tensors[i] = golden_f32(NULL, f->file, "%s", names[i]);
    const tsr_tensor *mask = tsr_safetensors_find(f->file, "dropout_mask");
    assert_int_equal(tsr_safetensors_read(recorded_mask, mask, 0, sizeof recorded_mask), TSR_OK);
    f->kernels = *tsr_kernels_cpu();
    f->kernels.dropout = recorded_dropout;
    float *at = f->memory;
    f->context = (tsr_linear_context){
        .kernels = &f->kernels, .stream = f->stream, .dtype = TSR_F32, .tokens = T};
    f->context.weight = at;
    f->context.low = at += OUT * IN;
    f->context.d_low = at += T * R;
    f->context.dropped = at += T * R;
    f->context.d_dropped = at += T * IN;
    f->context.lora = at + T * IN;
    f->linear = (tsr_linear){.out = OUT,
                             .in = IN,
                             .weight = {.data = f->weight, .dtype = TSR_F32},
                             .bias = {f->bias, TSR_F32},
                             .r = R,
                             .scale = SCALE,
                             .a = f->a,
                             .b = f->b};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    float *tensors[] = {f->x, f->dy, f->weight, f->bias, f->a, f->b, f->m};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        free(tensors[i]);
    tsr_safetensors_close(f->file);
    tsr_stream_destroy(f->stream);
    tsr_device_destroy(f->device);
    free(f);
    return 0;
}

static void make_dora(fixture *f)
{
    tsr_linear_norm_args norm = {.squares = f->squares,
                                 .m = f->m,
                                 .n = f->n,
                                 .g = f->g,
                                 .u = f->norm_memory,
                                 .bg = f->norm_memory + OUT * R,
                                 .gram = f->norm_memory + 2 * OUT * R};
    assert_int_equal(tsr_linear_norm(&f->context, &f->linear, &norm), TSR_OK);
    f->linear.g = f->g;
    f->linear.n = f->n;
}

/* y = g z + bias, and in the backward dz = g dy with dm = sum(dy z) / n. */
static void consume(fixture *f)
{
    for (int i = 0; i < T * OUT; i++)
        f->y[i] = (f->linear.g ? f->g[i % OUT] : 1) * f->z[i] + f->bias[i % OUT];
}

static void consume_backward(fixture *f, float *dz)
{
    for (int j = 0; j < OUT; j++) {
        double sum = 0;
        for (int t = 0; t < T; t++) {
            sum += (double)f->dy[t * OUT + j] * (double)f->z[t * OUT + j];
            dz[t * OUT + j] = (f->linear.g ? f->g[j] : 1) * f->dy[t * OUT + j];
        }
        f->dm[j] = f->linear.g ? (float)(sum / (double)f->n[j]) : 0;
    }
}

static void compare(fixture *f, const char *name, const char *what, const float *ours)
{
    uint64_t count;
    char label[64];
    double largest = 0, difference = 0;
    float *theirs = golden_f32(&count, f->file, "%s.%s", name, what);
    for (uint64_t i = 0; i < count; i++) {
        largest = worse(largest, fabs((double)theirs[i]));
        difference = worse(difference, fabs((double)ours[i] - (double)theirs[i]));
    }
    snprintf(label, sizeof label, "%s %s", name, what);
    judge(label, difference / largest, TOLERANCE);
    free(theirs);
}

/* Forward, consumer and backward. `keep`: what the forward makes of X A^T is the backward's, which makes
 * none: its scratch is not written. */
static void pass(fixture *f, bool keep)
{
    bool composes = tsr_linear_composes(&f->linear);
    float dz[T * OUT], nothing[T * R];
    memcpy(dz, f->dy, sizeof dz);
    memset(nothing, 0xff, sizeof nothing); /* NaN */
    memset(f->low, 0xff, sizeof f->low);
    assert_int_equal(tsr_linear_forward(&f->context, &f->linear, f->x, f->z, composes ? f->y : NULL,
                                        keep ? f->low : NULL),
                     TSR_OK);
    assert_int_equal(tsr_stream_synchronize(f->stream), TSR_OK);
    memcpy(f->context.low, nothing, sizeof nothing);
    if (!composes) {
        consume(f);
        consume_backward(f, dz);
    }
    tsr_linear_gradients gradients = {.x = f->x,
                                      .low = keep ? f->low : NULL,
                                      .dz = dz,
                                      .z = f->z,
                                      .dx = f->dx,
                                      .da = f->da,
                                      .db = f->db,
                                      .dm = composes ? f->dm : NULL};
    assert_int_equal(tsr_linear_backward(&f->context, &f->linear, &gradients), TSR_OK);
    assert_int_equal(tsr_stream_synchronize(f->stream), TSR_OK);
    if (keep)
        assert_memory_equal(f->context.low, nothing, sizeof nothing);
}

/* Kept, the same bits. */
static void run_both(fixture *f)
{
    float z[T * OUT], dx[T * IN], da[R * IN], db[OUT * R];
    pass(f, false);
    memcpy(z, f->z, sizeof z);
    memcpy(dx, f->dx, sizeof dx);
    memcpy(da, f->da, sizeof da);
    memcpy(db, f->db, sizeof db);
    pass(f, true);
    assert_memory_equal(z, f->z, sizeof z);
    assert_memory_equal(dx, f->dx, sizeof dx);
    assert_memory_equal(da, f->da, sizeof da);
    assert_memory_equal(db, f->db, sizeof db);
}

static void run_once(fixture *f, const char *name)
{
    run_both(f);
    compare(f, name, "y", f->y);
    compare(f, name, "dx", f->dx);
    compare(f, name, "dlora_A", f->da);
    compare(f, name, "dlora_B", f->db);
    if (f->linear.g)
        compare(f, name, "dmagnitude", f->dm);
}

/* By B1 and by B3, the two that a plain base and dropout allow. */
static void run(fixture *f, const char *name)
{
    tsr_graph_book book = {0};
    tsr_graph_shape shape = tsr_linear_graph_shape(&f->context, &f->linear, true);
    const tsr_graph_id graphs[2] = {TSR_B1, TSR_B3};
    for (int i = 0; i < 2; i++) {
        tsr_graph_keep(&book, &shape, (tsr_graph_choice){graphs[i], false});
        f->context.graphs = &book;
        run_once(f, name);
    }
    f->context.graphs = NULL;
}

static void test_lora(void **state)
{
    run(*state, "lora");
}

static void test_dora(void **state)
{
    make_dora(*state);
    run(*state, "dora");
}

static void test_dora_dropout(void **state)
{
    fixture *f = *state;
    make_dora(f);
    f->linear.drops = true;
    assert_true(tsr_linear_composes(&f->linear));
    run(f, "dora_dropout");
}

/* Without a magnitude dropout has no golden case here (tests/model has): what is kept is of the dropped x. */
static void test_lora_dropout(void **state)
{
    fixture *f = *state;
    double largest = 0;
    f->linear.drops = true;
    run_both(f);
    for (int t = 0; t < T; t++)
        for (int j = 0; j < R; j++) {
            double sum = 0;
            for (int i = 0; i < IN; i++)
                sum += recorded_mask[t * IN + i] * (double)f->x[t * IN + i] *
                       (double)f->a[j * IN + i] / (1 - P);
            largest = worse(largest, fabs((double)f->low[t * R + j] - sum) / (1 + fabs(sum)));
        }
    judge("X A^T of the dropped x", largest, TOLERANCE);
}

/* dx is added to where that is asked for, and not computed where it is not wanted. */
static void test_dx(void **state)
{
    fixture *f = *state;
    float first[T * IN], dz[T * OUT];
    memcpy(dz, f->dy, sizeof dz);
    tsr_linear_gradients gradients = {.x = f->x, .dz = dz, .dx = f->dx, .da = f->da, .db = f->db};
    assert_int_equal(tsr_linear_backward(&f->context, &f->linear, &gradients), TSR_OK);
    assert_int_equal(tsr_stream_synchronize(f->stream), TSR_OK);
    memcpy(first, f->dx, sizeof first);
    gradients.add = true;
    assert_int_equal(tsr_linear_backward(&f->context, &f->linear, &gradients), TSR_OK);
    gradients.dx = NULL;
    assert_int_equal(tsr_linear_backward(&f->context, &f->linear, &gradients), TSR_OK);
    assert_int_equal(tsr_stream_synchronize(f->stream), TSR_OK);
    for (int i = 0; i < T * IN; i++)
        assert_true(fabsf(f->dx[i] - 2 * first[i]) <= 1e-5f * (1 + fabsf(first[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lora, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dora, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dora_dropout, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lora_dropout, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dx, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
