/*
 * When DoRA's norms are made: once after an update, with the weights of the first forward where there is
 * one and the base can be merged; before it otherwise. The model of a planned job in bf16 runs with kernels
 * that only count.
 */
#include "planner/decide.h"
#include "support/llama.h"
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS  64
#define LINEARS LLAMA_LINEARS
#define MOST    512 /* buffers */

/* ---- kernels that count ---- */

static struct {
    int merged, apart, fresh; /* nf4_merge with norms; of them W apart, and without m */
    int plain, decoded, factored;
    int alone, scales; /* nf4_merge with norms alone, and the scales that they need */
} seen;

static tsr_status count_merge(tsr_stream *stream, const tsr_nf4_merge_args *args)
{
    (void)stream;
    assert_int_equal(!args->weight.out, args->e4m3_scale != NULL);
    if (args->e4m3_scale) {
        assert_true(args->norms.n && args->norms.g && args->norms.partials);
        assert_int_equal(seen.scales, seen.alone + 1);
        seen.fresh += !args->norms.m;
        seen.alone++;
        return TSR_OK;
    }
    seen.merged += args->norms.n != NULL;
    seen.apart += args->apart;
    seen.fresh += args->norms.n && !args->norms.m;
    seen.plain += !args->norms.n;
    assert_true(!args->norms.n || (args->norms.g && args->norms.partials));
    return TSR_OK;
}

static tsr_status count_decode(tsr_stream *stream, const tsr_nf4_dequant_args *args)
{
    (void)stream;
    (void)args;
    seen.decoded++;
    return TSR_OK;
}

static tsr_status count_scales(tsr_stream *stream, const tsr_fp8_decode_args *args)
{
    (void)stream;
    seen.scales += !args->weight.out;
    return TSR_OK;
}

static tsr_status count_factored(tsr_stream *stream, const tsr_dora_norm_args *args)
{
    (void)stream;
    assert_true(args->squares && args->u && args->bg);
    seen.factored++;
    return TSR_OK;
}

static tsr_status prepare(tsr_device *device, const tsr_prepare_args *args)
{
    (void)device;
    (void)args;
    return TSR_OK;
}

static tsr_kernels counting(void)
{
    tsr_kernels kernels = tsr_kernels_none;
    kernels.nf4_merge = count_merge;
    kernels.nf4_dequant = count_decode;
    kernels.fp8_decode = count_scales;
    kernels.dora_norm = count_factored;
    kernels.attention_workspace_bytes = tsr_kernels_cpu()->attention_workspace_bytes;
    kernels.head_workspace_bytes = tsr_kernels_cpu()->head_workspace_bytes;
    kernels.prepare = prepare;
    return kernels;
}

/* ---- the model ---- */

typedef struct {
    tsr_inputs inputs;
    tsr_decision decision;
    tsr_kernels kernels;
    tsr_device *device;
    tsr_stream *stream;
    tsr_model *model;
    tsr_unit_view view;
    void *buffer[MOST];
    int buffer_count;
    bool squares; /* some are kept */
} rig;

#define RUN(call)                                                                                  \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, tsr_last_error());                                           \
    } while (0)

static void *keep(rig *r, uint64_t bytes)
{
    assert_true(r->buffer_count < MOST);
    void *out = aligned_alloc(TSR_ALIGNMENT, (bytes / TSR_ALIGNMENT + 1) * TSR_ALIGNMENT);
    assert_non_null(out);
    memset(out, 0, bytes);
    return r->buffer[r->buffer_count++] = out;
}

static tsr_status take(void *user, void **out, const char *name, const char *why, tsr_array array)
{
    assert_true(*why);
    rig *r = user;
    r->squares |= strstr(name, " squares") != NULL;
    *out = keep(r, tsr_array_bytes(array));
    return TSR_OK;
}

static void decide(rig *r, const char *more)
{
    static const tsr_topology_view view = {1, 0, 1};
    char text[1024];
    write_text(
        scratch_path("config.json"),
        "{\"model_type\": \"llama\", \"vocab_size\": 100, \"hidden_size\": 64, \"head_dim\": 16,"
        "\"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
        "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\","
        "\"max_position_embeddings\": 64, \"rope_theta\": 10000.0}");
    snprintf(text, sizeof text,
             "model_name_or_path: %s\noutput_dir: out\nbackend: cpu\nuse_dora: true\nlora_r: 8\n"
             "per_device_train_batch_size: 1\nmax_length: %d\n%s",
             scratch_path(""), TOKENS, more);
    const tsr_config_source source = {.text = text, .use = TSR_CONFIG_PLAN};
    r->inputs.compute = TSR_BF16;
    RUN(tsr_inputs_read_config(&r->inputs, &source));
    RUN(tsr_inputs_read_model(&r->inputs, true, true));
    tsr_inputs_assume_data(&r->inputs);
    tsr_speeds speeds;
    tsr_speeds_default(&speeds, false, TSR_BF16);
    const tsr_room room = {.free = TSR_BUDGET_UNKNOWN};
    RUN(tsr_decide(&r->decision, &r->inputs, &view, true, &room, &speeds));
}

/* A job of this text. A unit's parts lie nowhere: only kernels would read them. */
static rig *begin(const char *more)
{
    static const char part[1];
    static uint16_t embedding[100 * 64];
    const tsr_device_options options = {.thread_count = 1, .no_pinning = true};
    rig *r = calloc(1, sizeof *r);
    void *sums;
    assert_non_null(r);
    decide(r, more);
    r->kernels = counting();
    r->decision.model.kernels = &r->kernels;
    RUN(tsr_device_create_cpu(&r->device, &options));
    RUN(tsr_stream_create(&r->stream, r->device, "compute"));
    RUN(tsr_model_create(&r->model, &r->decision.model));
    RUN(tsr_model_walk(r->model, &r->decision.model, take, take, r));
    RUN(tsr_model_walk_scratch(r->model, &r->decision.model, take, take, r));
    sums = keep(r, 64);
    RUN(tsr_model_start(r->model, r->stream, r->stream,
                        &(tsr_host_tables){.embedding = {embedding, TSR_BF16}},
                        (tsr_model_sums){.loss = sums, .loss_overflow = sums}));
    r->view = (tsr_unit_view){.frozen = part, .trainable = part};
    return r;
}

static void end(rig *r)
{
    RUN(tsr_stream_synchronize(r->stream));
    tsr_model_destroy(r->model);
    tsr_stream_destroy(r->stream);
    tsr_device_destroy(r->device);
    for (int i = 0; i < r->buffer_count; i++)
        free(r->buffer[i]);
    tsr_decision_free(&r->decision);
    tsr_inputs_close(&r->inputs);
    free(r);
}

static void stage(rig *r, int64_t tokens, bool train)
{
    static const int32_t zeros[TOKENS];
    static const int64_t sample[1];
    const int32_t bounds[2] = {0, (int32_t)tokens};
    RUN(tsr_model_stage(r->model, &(tsr_model_batch){.tokens = tokens,
                                                     .documents = tokens > 0,
                                                     .label_rows = tokens > 0,
                                                     .ids = zeros,
                                                     .positions = zeros,
                                                     .cu_seqlens = bounds,
                                                     .label_row = zeros,
                                                     .label = zeros,
                                                     .sample = sample,
                                                     .first_position = zeros,
                                                     .label_tokens = 1,
                                                     .train = train}));
    memset(&seen, 0, sizeof seen);
}

static void norm(rig *r)
{
    RUN(tsr_model_norm(r->model, 0, &r->view));
}

static void forward(rig *r)
{
    RUN(tsr_model_compute(r->model, TSR_USE_FORWARD, 0, 0, &r->view, NULL));
}

static void backward(rig *r)
{
    const tsr_unit_part *part = &r->decision.model.units[0].trainable;
    RUN(tsr_model_compute(r->model, TSR_USE_BACKWARD, 0, 0, &r->view,
                          keep(r, part->gradient_count * sizeof(float))));
}

/* ---- cases ---- */

/* What is made anew in a backward has the norms already; so has the next micro-batch. */
static void norms_come_of_the_first_forward(void **state)
{
    (void)state;
    rig *r = begin("gradient_checkpointing: true\nactivation_offloading: false\n");
    stage(r, TOKENS, true);
    norm(r);
    assert_int_equal(seen.merged, 0);
    forward(r);
    assert_int_equal(seen.merged, LINEARS);
    assert_int_equal(seen.fresh, 0);
    assert_int_equal(seen.plain + seen.apart + seen.decoded, seen.apart);
    backward(r);
    assert_int_equal(seen.merged, LINEARS);
    assert_true(seen.plain + seen.decoded >= 2 * LINEARS - 3);
    RUN(tsr_model_release(r->model));
    stage(r, TOKENS / 2, false);
    forward(r);
    assert_int_equal(seen.merged, 0);
    assert_int_equal(seen.plain + seen.decoded, LINEARS);
    norm(r); /* after the next update */
    forward(r);
    assert_int_equal(seen.merged, LINEARS);
    assert_int_equal(seen.factored, 0);
    assert_false(r->squares);
    end(r);
}

/* All linears by F1. */
static void stay_apart(rig *r)
{
    static const int sides[][2] = {{64, 64}, {64, 32}, {64, 128}, {128, 64}};
    char text[512] = "";
    for (int i = 0; i < 4; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "graph BF16 merges composes %d %d %d 8 norms/%d F1\n", TOKENS, sides[i][0],
                 sides[i][1], (int)r->decision.model.step_micro);
    RUN(tsr_model_agree(r->model, text));
}

/* With dropout W + s B A is multiplied with what was kept and W, decoded for it, with the rest; or the weight
 * stays apart, and only its norms are of W + s B A. */
static void norms_come_of_a_forward_with_dropout(void **state)
{
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        rig *r = begin("lora_dropout: 0.1\n");
        if (apart)
            stay_apart(r);
        stage(r, TOKENS, true);
        norm(r);
        forward(r);
        assert_int_equal(seen.merged, LINEARS);
        assert_int_equal(seen.apart, apart ? LINEARS : 0);
        assert_int_equal(seen.decoded, apart ? 0 : LINEARS);
        end(r);
    }
}

/* Fresh magnitudes come of a micro-batch of nothing; a rank may have one in a step, too. */
static void norms_without_a_forward(void **state)
{
    (void)state;
    rig *r = begin("");
    tsr_model_set_fresh(r->model, true);
    stage(r, 0, false);
    norm(r);
    forward(r);
    assert_int_equal(seen.merged, LINEARS);
    assert_int_equal(seen.fresh, LINEARS);
    tsr_model_set_fresh(r->model, false);
    RUN(tsr_model_release(r->model));
    stage(r, 0, true);
    norm(r);
    forward(r);
    assert_int_equal(seen.merged, LINEARS);
    assert_int_equal(seen.fresh, 0);
    RUN(tsr_model_release(r->model));
    stage(r, TOKENS, true);
    forward(r);
    assert_int_equal(seen.merged, 0);
    end(r);
}

/* A base that cannot be merged: before the forward, as ever. */
static void norms_of_another_base(void **state)
{
    (void)state;
    rig *r = begin("load_in_4bit: false\n");
    stage(r, TOKENS, true);
    norm(r);
    assert_int_equal(seen.factored, LINEARS);
    forward(r);
    assert_int_equal(seen.factored, LINEARS);
    assert_int_equal(seen.merged, 0);
    assert_true(r->squares);
    end(r);
}

/* The same where it could, but is multiplied with in e4m3: by the kernel that merges, with no weight made. */
static void norms_of_an_fp8_base(void **state)
{
    (void)state;
    rig *r = begin("base_compute: fp8\n");
    tsr_model_set_fresh(r->model, true);
    stage(r, 0, false);
    norm(r);
    forward(r);
    assert_int_equal(seen.alone, LINEARS);
    assert_int_equal(seen.fresh, LINEARS);
    tsr_model_set_fresh(r->model, false);
    RUN(tsr_model_release(r->model));
    stage(r, TOKENS, true);
    norm(r);
    assert_int_equal(seen.alone, LINEARS);
    assert_int_equal(seen.fresh, 0);
    forward(r);
    assert_int_equal(seen.alone, LINEARS);
    assert_int_equal(seen.merged + seen.plain + seen.factored, 0);
    assert_false(r->squares);
    end(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_come_of_the_first_forward),
        cmocka_unit_test(norms_come_of_a_forward_with_dropout),
        cmocka_unit_test(norms_without_a_forward),
        cmocka_unit_test(norms_of_another_base),
        cmocka_unit_test(norms_of_an_fp8_base),
    };
    return cmocka_run_group_tests_name("norms", tests, scratch_setup, scratch_teardown);
}
