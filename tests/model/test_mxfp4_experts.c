/*
 * test_mxfp4_experts.c: matmuls of experts whose weights are MXFP4, with adapters and without, some experts at a time, with
 * x A^T kept and made again: the bits of those on the same values in fp32, both ways.
 */
#include "kernels/kernels.h"
#include "model/expert_parts.h"
#include "quant/mxfp4.h"

#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EXPERTS = 5, OUT = 12, IN = 96, PARTS = 2, TOKENS = 7, K = 2, R = 8 };

#define MATRIX   (OUT / PARTS * IN) /* 576 elements, in a granule of 1024 */
#define MATRICES (EXPERTS * PARTS)
#define ROWS     (TOKENS * K)
#define FACTORS  (EXPERTS * R * (IN + OUT)) /* elements */

typedef struct {
    tsr_device *device;
    tsr_stream *stream;
    uint8_t codes[MATRICES * TSR_MXFP4_GRANULE_CODE_BYTES];
    uint8_t scales[MATRICES * TSR_MXFP4_GRANULE_SCALE_BYTES];
    float plain[EXPERTS * OUT * IN], a[EXPERTS * R * IN], b[EXPERTS * OUT * R];
    float bias[EXPERTS * OUT], x[TOKENS * IN], dz[ROWS * OUT];
    int32_t routes[3 * ROWS + EXPERTS + 1];
} rig;

static void fill(float *out, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        out[i] = 2 * tsr_philox_uniform(tsr_philox_at(seed, 7, i).word[0]) - 1;
}

/* Expert 3 has no token, expert 1 has most. */
static void make_routes(rig *r)
{
    static const int32_t chosen[TOKENS][K] = {{1, 0}, {1, 2}, {4, 1}, {1, 0},
                                              {2, 1}, {0, 4}, {1, 4}};
    tsr_routes routes = tsr_routes_at(r->routes, TOKENS, K, EXPERTS);
    int32_t rows = 0;
    for (int e = 0; e < EXPERTS; e++) {
        routes.offset[e] = rows;
        for (int slot = 0; slot < ROWS; slot++)
            if (chosen[slot / K][slot % K] == e) {
                routes.slot[rows] = slot;
                routes.row[slot] = rows++;
                routes.id[slot] = e;
            }
    }
    routes.offset[EXPERTS] = rows;
}

static int setup(void **state)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    *state = r;
    for (size_t i = 0; i < sizeof r->codes; i++)
        r->codes[i] = (uint8_t)tsr_mix(i + 9);
    for (size_t i = 0; i < sizeof r->scales; i++)
        r->scales[i] = (uint8_t)(122 + tsr_mix(i + 99) % 6);
    for (int m = 0; m < MATRICES; m++)
        assert_int_equal(tsr_mxfp4_dequantize(r->plain + m * MATRIX, TSR_F32,
                                              r->codes + m * TSR_MXFP4_GRANULE_CODE_BYTES,
                                              r->scales + m * TSR_MXFP4_GRANULE_SCALE_BYTES, 0,
                                              MATRIX),
                         TSR_OK);
    fill(r->a, sizeof r->a / sizeof *r->a, 1);
    fill(r->b, sizeof r->b / sizeof *r->b, 2);
    fill(r->bias, sizeof r->bias / sizeof *r->bias, 3);
    fill(r->x, sizeof r->x / sizeof *r->x, 4);
    fill(r->dz, sizeof r->dz / sizeof *r->dz, 5);
    make_routes(r);
    const tsr_device_options options = {.thread_count = 2, .no_pinning = true};
    assert_int_equal(tsr_device_create_cpu(&r->device, &options), TSR_OK);
    return tsr_stream_create(&r->stream, r->device, "compute");
}

static int teardown(void **state)
{
    rig *r = *state;
    tsr_stream_destroy(r->stream);
    tsr_device_destroy(r->device);
    free(r);
    return 0;
}

/* z [ROWS, OUT] of x, then dx [ROWS, IN] of dz, and what there is of the gradients of A and B. */
static void multiply(float *z, rig *r, bool mxfp4, bool adapters, int64_t group)
{
    static const tsr_stack shape = {
        .experts = EXPERTS, .out = OUT, .in = IN, .parts = PARTS, .bias = true};
    float *weights = malloc(EXPERTS * OUT * IN * sizeof *weights);
    float *da = z + ROWS * (OUT + IN), low[3][ROWS * R];
    tsr_layer_gradients gradients[TSR_BLOCK_WEIGHTS] = {
        [TSR_BLOCK_MATRICES] = {.a = da, .b = da + EXPERTS * R * IN}};
    assert_non_null(weights);
    const tsr_linear_context context = {
        .kernels = tsr_kernels_cpu(), .stream = r->stream, .dtype = TSR_F32, .tokens = TOKENS};
    const tsr_pass pass = {.context = &context, .workspace = weights, .gradients = gradients};
    const tsr_node node = {.spec.experts = {.experts = EXPERTS, .chosen = K, .out = OUT, .in = IN}};
    tsr_expert_stack stack = {.bias = {r->bias, TSR_F32}, .mxfp4 = mxfp4, .scale = 0.75};
    if (mxfp4) {
        stack.codes = r->codes;
        stack.absmax = r->scales;
    } else {
        stack.plain = (tsr_frozen){r->plain, TSR_F32};
    }
    if (adapters) {
        stack.r = R;
        stack.a = r->a;
        stack.b = r->b;
    }
    const tsr_expert_work work = {.pass = &pass,
                                  .node = &node,
                                  .shape = &shape,
                                  .stack = &stack,
                                  .routes = tsr_routes_at(r->routes, TOKENS, K, EXPERTS),
                                  .group = group,
                                  .low = low[0],
                                  .kept = group == 1 ? low[2] : NULL,
                                  .rest = (char *)low[1]};
    assert_int_equal(tsr_expert_forward(&work, z, r->x, NULL), TSR_OK);
    if (adapters)
        assert_int_equal(tsr_expert_adapters(&work, r->x, r->dz, NULL), TSR_OK);
    assert_int_equal(tsr_expert_backward(&work, z + ROWS * OUT, r->dz, false), TSR_OK);
    assert_int_equal(tsr_stream_synchronize(r->stream), TSR_OK);
    free(weights);
}

static void bits_are_those_of_the_values(void **state)
{
    rig *r = *state;
    enum { COUNT = ROWS * (OUT + IN) + FACTORS };
    static float want[2][COUNT], got[COUNT];
    for (int adapters = 0; adapters < 2; adapters++) {
        memset(want[adapters], 0xff, sizeof got);
        multiply(want[adapters], r, false, adapters, EXPERTS);
        for (int64_t group = 1; group <= EXPERTS; group += 2) {
            memset(got, 0xff, sizeof got);
            multiply(got, r, true, adapters, group);
            assert_memory_equal(got, want[adapters], sizeof got);
        }
    }
    assert_memory_not_equal(want[0], want[1], sizeof got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bits_are_those_of_the_values, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
