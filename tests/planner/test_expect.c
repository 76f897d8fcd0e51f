/*
 * The expected time of a step against the steps measured on 1, 2 and 4 H200, from the roofs of the same
 * file. A table of all goes to stdout (docs/time.md). Efficiencies and slowdowns come from
 * other measurements, but where speeds.c says so.
 */
#include "planner/expect.h"
#include "support/llama.h"
#include "support/scratch.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RESULTS     TSR_SOURCE_DIR "/bench/results/"
#define MOST_ERROR  0.04 /* of any row */
#define MOST_MEAN   0.02 /* of all, without their signs */
#define MOST_OTHERS 6    /* layers of a plan whose activations go elsewhere than they did */
#define LEAST       1024 /* tokens of a micro-batch; of fewer the model says up to 7 % too little */

static const struct {
    const char *name;
    int d, f, heads, kv_heads, head_dim, vocabulary;
} shapes[] = {{"llama3-8b", 4096, 14336, 32, 8, 128, 128256},
              {"llama2-7b", 4096, 11008, 32, 32, 128, 32000},
              {"llama3-70b", 8192, 28672, 64, 8, 128, 128256},
              {"llama3.2-1b", 2048, 8192, 32, 8, 64, 128256}};

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key)
{
    const char *found = json_string_value(json_object_get(object, key));
    return found ? found : "";
}

/* A model of examples/shapes with another number of layers. */
static void write_example(const char *shape, int layers)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, "%s/examples/shapes/%s/config.json", TSR_SOURCE_DIR, shape);
    json_t *config = json_load_file(path, 0, &error);
    assert_non_null(config);
    json_object_set_new(config, "num_hidden_layers", json_integer(layers));
    assert_int_equal(json_dump_file(config, scratch_path("config.json"), 0), 0);
    json_decref(config);
}

static void write_model(const char *shape, int layers)
{
    char text[1024];
    size_t k = 0, count = sizeof shapes / sizeof *shapes;
    while (k < count && strcmp(shapes[k].name, shape) != 0)
        k++;
    if (k == count) {
        write_example(shape, layers);
        return;
    }
    snprintf(
        text, sizeof text,
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":%d,"
        "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
        "\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,"
        "\"max_position_embeddings\":8192,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"
        "\"rope_theta\":500000.0,\"tie_word_embeddings\":false,\"attention_bias\":false,"
        "\"torch_dtype\":\"bfloat16\"}",
        shapes[k].d, shapes[k].f, layers, shapes[k].heads, shapes[k].kv_heads, shapes[k].head_dim,
        shapes[k].vocabulary);
    write_text(scratch_path("config.json"), text);
}

/* The decision of a job of this text, in bf16 on `ranks` ranks. */
static void decide_on(tsr_decision *out, tsr_inputs *inputs, const char *text, int ranks, int node,
                      uint64_t budget, const tsr_speeds *speeds)
{
    const tsr_topology_view view = {ranks, 0, node};
    const tsr_config_source source = {
        .text = text, .use = TSR_CONFIG_PLAN, .has_cuda = tsr_device_cuda_built()};
    if (tsr_inputs_read_config(inputs, &source) < 0 ||
        tsr_inputs_read_model(inputs, true, true) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_inputs_assume_data(inputs);
    const tsr_room room = {.free = budget};
    if (tsr_decide(out, inputs, &view, true, &room, speeds) < 0)
        fail_msg("%s", tsr_last_error());
}

/* The same, without what belongs to the inputs. */
static tsr_decision decide(const char *text, int ranks, const tsr_speeds *speeds)
{
    tsr_inputs inputs = {.compute = TSR_BF16};
    tsr_decision decision, out;
    decide_on(&decision, &inputs, text, ranks, ranks, TSR_BUDGET_UNKNOWN, speeds);
    out = decision;
    tsr_decision_free(&decision);
    tsr_inputs_close(&inputs);
    return out;
}

/* Keys of a run, one a line, as bench_model was given them: key=value. */
static void add_overrides(char *text, size_t size, const json_t *run)
{
    const json_t *list = json_object_get(run, "overrides");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *pair = json_string_value(json_array_get(list, i)), *value = strchr(pair, '=');
        size_t length = strlen(text);
        snprintf(text + length, size - length, "%.*s: %s\n", (int)(value - pair), pair, value + 1);
    }
}

static bool overrides(const json_t *run, const char *key)
{
    const json_t *list = json_object_get(run, "overrides");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strncmp(json_string_value(json_array_get(list, i)), key, strlen(key)))
            return true;
    return false;
}

typedef struct {
    const tsr_work_rates *rates;
    double seconds;
} work_sum;

static void add_work(void *user, const tsr_work_op *op)
{
    work_sum *sum = user;
    sum->seconds += tsr_work_seconds(sum->rates, op);
}

static tsr_work_layer layer_of(const tsr_inputs *inputs, const tsr_decision *d, int unit)
{
    tsr_work_layer layer = {.element = 2,
                            .fp8 = d->model.fp8,
                            .tokens = (double)inputs->bounds.tokens,
                            .step_micro = d->model.step_micro,
                            .program = tsr_layer_program_of(d->programs, unit)};
    tsr_work_layer_of(&layer, &inputs->layout, unit);
    for (int i = 0; i < LLAMA_LINEARS; i++)
        layer.linear[i].drops = layer.linear[i].r > 0 && d->model.dropout > 0;
    return layer;
}

/* What DoRA's norms took more in a step when all of them were factored, as those of a base without NF4 are. */
static double factored_more(const tsr_inputs *inputs, const tsr_decision *d,
                            const tsr_speeds *speeds)
{
    work_sum now = {&speeds->rates, 0}, then = now;
    for (int u = 0; u < inputs->layout.layer_count; u++) {
        tsr_work_layer layer = layer_of(inputs, d, u);
        tsr_work_norm(&layer, add_work, &now);
        for (int i = 0; i < LLAMA_LINEARS; i++)
            layer.linear[i].nf4 = false;
        tsr_work_norm(&layer, add_work, &then);
    }
    return then.seconds - now.seconds;
}

/* What a step took more when every backward made x A^T again: by B1, as they did. */
static double made_again_more(const tsr_inputs *inputs, const tsr_decision *d,
                              const tsr_speeds *speeds)
{
    static const int first[] = {LLAMA_Q, LLAMA_O, LLAMA_GATE, LLAMA_DOWN, LLAMA_LINEARS};
    work_sum now = {&speeds->rates, 0}, then = now;
    for (int u = inputs->layout.first_trained; u < inputs->layout.layer_count; u++) {
        tsr_work_layer layer = layer_of(inputs, d, u);
        for (int group = 0; group < 4; group++) {
            tsr_work_op op = {.kind = TSR_WORK_NARROW};
            double t = layer.tokens;
            bool kept = false; /* all of a group or none */
            for (int i = first[group]; i < first[group + 1]; i++) {
                const tsr_work_linear *x = &layer.linear[i];
                bool merges =
                    tsr_linear_merges(TSR_BF16, layer.fp8, x->nf4, (uint64_t)x->in, (uint64_t)x->r);
                op.here.flops += 2 * t * x->in * x->r;
                op.here.bytes += 2 * (t * x->in + x->in * x->r + t * x->r);
                kept |= x->r > 0 && tsr_graph_keeps_low(merges, x->drops, x->drops && x->dora);
            }
            if (!kept)
                continue;
            add_work(&now, &op);
            op.here = (tsr_work_amount){2 * op.here.flops, 2 * op.here.bytes};
            add_work(&then, &op);
        }
    }
    return then.seconds - now.seconds;
}

/* What a step took more when its forward waited for the whole update of the step before. */
static double updated_first_more(const tsr_inputs *inputs, const tsr_decision *d, int ranks,
                                 const tsr_speeds *speeds)
{
    const tsr_topology_view view = {ranks, 0, ranks};
    tsr_decision then = *d;
    tsr_expectation expected;
    assert_int_equal(tsr_plan_outline(&then.plan, &d->plan->options), TSR_OK);
    then.plan->optim_parts = 1;
    assert_int_equal(tsr_plan_complete(then.plan), TSR_OK);
    assert_int_equal(tsr_expect(&expected, inputs, &then, &view, speeds), TSR_OK);
    tsr_plan_destroy(then.plan);
    return expected.simulation.step - d->expected.simulation.step;
}

/* What a file's steps did that none does now. */
#define FACTORED      1 /* DoRA's norms */
#define MADE_AGAIN    2 /* x A^T, by every backward */
#define UPDATED_FIRST 4 /* the whole optimizer state, where it is in host memory */

static bool has_budget(const json_t *run)
{
    return *word(run, "memory_budget") && strcmp(word(run, "memory_budget"), "auto") != 0;
}

/* Of a budget what the arena took: there is nothing beside it on a CPU. Without one nothing else went to host memory. */
static void add_budget(char *text, size_t size, const json_t *run)
{
    size_t length = strlen(text);
    text += length;
    size -= length;
    if (has_budget(run))
        snprintf(text, size, "memory_budget: %.0fB\n",
                 number(json_object_get(run, "memory"), "arena_planned_bytes"));
    else
        snprintf(text, size, "%s%s",
                 overrides(run, "activation_offloading") ? "" : "activation_offloading: false\n",
                 overrides(run, "optimizer_offload") ? "" : "optimizer_offload: false\n");
}

/* Within a budget what layers keep, and where, is chosen again, for the workspaces of a CPU: almost as it was. */
static void check_plan(const tsr_decision *d, const json_t *plan)
{
    assert_int_equal(d->resident_count, (int)number(plan, "resident_units"));
    assert_int_equal(d->selective_count, (int)number(plan, "selective_layers"));
    assert_int_equal(d->full_count, (int)number(plan, "full_layers"));
    assert_true(fabs(d->offloaded_count - number(plan, "offloaded_layers")) <= MOST_OTHERS);
}

static double expect_run(const json_t *run, const tsr_speeds *speeds, int then)
{
    char text[1024];
    tsr_inputs inputs = {.compute = TSR_BF16};
    tsr_decision decision;
    const char *recompute = word(run, "recompute");
    int ranks = (int)number(run, "ranks");
    write_model(word(run, "shape"), (int)number(run, "layers"));
    snprintf(text, sizeof text,
             "model_name_or_path: %s\noutput_dir: out\nbackend: cpu\nlora_r: %d\nuse_dora: %s\n"
             "per_device_train_batch_size: %d\nmax_length: %d\ngradient_checkpointing: %s\n"
             "offload: %s\nresident_units: %d\n%sdecoded_layers: %d\n",
             scratch_path(""), (int)number(run, "r"),
             strcmp(word(run, "adapter"), "dora") ? "false" : "true", (int)number(run, "batch"),
             (int)number(run, "length"),
             !strcmp(recompute, "none")   ? "false"
             : !strcmp(recompute, "full") ? "true"
                                          : recompute,
             word(run, "offload"), (int)number(json_object_get(run, "plan"), "resident_units"),
             overrides(run, "decoded_layers") ? "# " : "",
             (int)number(json_object_get(run, "plan"), "decoded_layers"));
    add_budget(text, sizeof text, run);
    add_overrides(text, sizeof text, run);
    decide_on(&decision, &inputs, text, ranks, ranks, TSR_BUDGET_UNKNOWN, speeds);
    if (has_budget(run))
        check_plan(&decision, json_object_get(run, "plan"));
    double seconds = decision.expected.simulation.step;
    if (then & FACTORED)
        seconds += factored_more(&inputs, &decision, speeds);
    if (then & MADE_AGAIN)
        seconds += made_again_more(&inputs, &decision, speeds);
    if (then & UPDATED_FIRST)
        seconds += updated_first_more(&inputs, &decision, ranks, speeds);
    tsr_decision_free(&decision);
    tsr_inputs_close(&inputs);
    return 1e3 * seconds;
}

static int check_file(double *sum, const char *name, int then)
{
    char path[512];
    snprintf(path, sizeof path, RESULTS "%s", name);
    json_t *file = json_load_file(path, 0, NULL);
    const json_t *runs = json_object_get(file, "runs");
    tsr_speeds speeds;
    int count = 0, wrong = 0;
    double sum_here = 0, least = 1, most = -1;
    if (tsr_speeds_read(&speeds, path, true, TSR_BF16) < 0)
        fail_msg("%s", tsr_last_error());
    printf("%s\n", name);
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *run = json_object_get(json_array_get(runs, i), "result");
        if (strcmp(word(run, "bench"), "model") != 0 || !json_object_get(run, "step_ms") ||
            number(run, "batch") * number(run, "length") < LEAST || *word(run, "documents"))
            continue; /* documents come from the data, which is not here */
        double found = expect_run(run, &speeds, then);
        double measured = number(run, "step_ms");
        double off = found / measured - 1;
        printf("| %d | %s, %d layers | %d x %d | %s r %d | %s | %s | %.1f | %.1f | %+.1f %% |\n",
               (int)number(run, "ranks"), word(run, "shape"), (int)number(run, "layers"),
               (int)number(run, "batch"), (int)number(run, "length"), word(run, "adapter"),
               (int)number(run, "r"), word(run, "recompute"), word(run, "offload"), measured, found,
               100 * off);
        wrong += !(fabs(off) < MOST_ERROR);
        sum_here += fabs(off);
        least = fmin(least, off);
        most = fmax(most, off);
        count++;
    }
    printf("%d steps, mean error %.1f %%, %+.1f to %+.1f %%\n", count, 100 * sum_here / count,
           100 * least, 100 * most);
    *sum += sum_here;
    json_decref(file);
    assert_int_equal(wrong, 0);
    return count;
}

static void test_measured_steps(void **state)
{
    static const char *const later[] = {
        "h200_taxes.json",   "h200_timeline.json", "h200_fp8.json",    "h200_sweep.json",
        "h200_experts.json", "h200_decoded.json",  "h200_gpt_oss.json"};
    (void)state;
    double sum = 0;
    int count = check_file(&sum, "h200_one_gpu.json", FACTORED | MADE_AGAIN | UPDATED_FIRST);
    count += check_file(&sum, "h200_offload.json", UPDATED_FIRST);
    count += check_file(&sum, "h200x2_scale.json", FACTORED | MADE_AGAIN);
    count += check_file(&sum, "h200x2_llama2.json", FACTORED | MADE_AGAIN);
    count += check_file(&sum, "h200x4_tokens_offload.json", FACTORED | MADE_AGAIN);
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        count += check_file(&sum, later[i], 0);
    assert_int_equal(count, 183);
    printf("mean error %.1f %%\n", 100 * sum / count);
    assert_true(sum / count < MOST_MEAN);
}

/* ---- what is chosen ---- */

static const char *config(const char *more)
{
    static char text[1024];
    snprintf(text, sizeof text,
             "model_name_or_path: %s\noutput_dir: out\nper_device_train_batch_size: 4\n"
             "max_length: 2048\n%s",
             scratch_path(""), more);
    return text;
}

static const tsr_alternative *chosen(const tsr_decision *d)
{
    const tsr_alternative *found = NULL;
    for (int i = 0; i < d->alternative_count; i++)
        if (d->alternative[i].chosen) {
            assert_null(found);
            found = &d->alternative[i];
        }
    assert_non_null(found);
    return found;
}

/* None that fits is more than 1 % faster; the chosen one is what the decision holds. */
static void check_fastest(const tsr_decision *d)
{
    const tsr_alternative *best = chosen(d);
    for (int i = 0; i < d->alternative_count; i++) {
        const tsr_alternative *a = &d->alternative[i];
        assert_true(a->fits == (a->device_bytes <= d->budget));
        assert_true(a->fits == (a->seconds > 0));
        assert_true(!a->fits || a->price >= 0.98 * best->price);
    }
    assert_true(best->fits && best->resident_count == d->resident_count);
    assert_true(best->full_count == d->full_count && best->state == d->state_offloaded);
    assert_true(fabs(best->seconds / d->expected.simulation.step - 1) < 1e-9);
}

/* A base on the host costs little on a fast link and spares recomputation; on a slow one the card computes
 * again instead. */
static void test_the_fastest_is_chosen(void **state)
{
    (void)state;
    tsr_speeds speeds;
    const char *text = config("memory_budget: 15GiB\nactivation_offloading: false\n");
    write_model("llama3-8b", 32);
    tsr_speeds_default(&speeds, true, TSR_BF16);
    tsr_decision fast = decide(text, 1, &speeds);
    check_fastest(&fast);
    assert_int_equal(chosen(&fast)->offload, TSR_CONFIG_OFFLOAD_SHARDED);
    speeds.value[TSR_SPEED_TO_DEVICE] = speeds.value[TSR_SPEED_TO_HOST] = 3e9;
    tsr_decision slow = decide(text, 1, &speeds);
    check_fastest(&slow);
    assert_int_equal(chosen(&slow)->offload, TSR_CONFIG_OFFLOAD_NONE);
    assert_true(slow.expected.step_flops > 1.01 * fast.expected.step_flops);
    /* What was compared does not depend on who won: the same rows with the keys that they stand for. */
    int compared = 0;
    for (int i = 0; i < fast.alternative_count; i++) {
        const tsr_alternative *a = &fast.alternative[i];
        char more[512];
        if (!a->fits || a->full_count != 32)
            continue;
        snprintf(
            more, sizeof more,
            "memory_budget: 15GiB\ngradient_checkpointing: true\nactivation_offloading: false\n"
            "optimizer_offload: %s\noffload: %s\nresident_units: %d\n",
            a->state ? "true" : "false", a->offload == TSR_CONFIG_OFFLOAD_NONE ? "none" : "sharded",
            a->resident_count);
        tsr_speeds_default(&speeds, true, TSR_BF16);
        tsr_decision explicit = decide(config(more), 1, &speeds);
        assert_true(fabs(explicit.expected.simulation.step / a->seconds - 1) < 1e-9);
        compared++;
    }
    assert_true(compared > 0);
}

/* How many units stay on one of two GPUs with so much free, and whether the adapter does too. */
static int residents(const tsr_speeds *speeds, uint64_t free_bytes, uint64_t memory_budget,
                     bool *reduces_late)
{
    tsr_inputs inputs = {.compute = TSR_BF16, .cuda = true};
    tsr_decision d;
    char more[64] = "backend: cuda\n";
    if (memory_budget)
        snprintf(more, sizeof more, "backend: cuda\nmemory_budget: %" PRIu64 "MiB\n",
                 memory_budget >> 20);
    decide_on(&d, &inputs, config(more), 2, 2, free_bytes, speeds);
    check_fastest(&d);
    assert_true(chosen(&d)->device_bytes <= free_bytes / 16 * 15);
    int count = d.resident_count;
    *reduces_late = d.plan->reduces_late;
    tsr_decision_free(&d);
    tsr_inputs_close(&inputs);
    return count;
}

/* Needs the CUDA backend, but no GPU. On one units stay as far as what is free allows, less a sixteenth; on an unknown card none does.
 * Where all stay and the adapter fits as well, it is kept, and gradients are reduced late; with less memory than that it is the
 * first to go. */
static void test_units_stay_on_gpus(void **state)
{
    (void)state;
    tsr_speeds speeds;
    bool late;
    write_model("llama3-8b", 32);
    tsr_speeds_default(&speeds, true, TSR_BF16);
    assert_in_range(residents(&speeds, 43ull << 30, 0, &late), 1, 39);
    assert_false(late);
    assert_int_equal(residents(&speeds, TSR_BUDGET_UNKNOWN, 0, &late), 0);
    assert_false(late);
    assert_int_equal(residents(&speeds, 140ull << 30, 0, &late), 40);
    assert_true(late);
    uint64_t budget = 42ull << 30, step = 64ull << 20;
    assert_int_equal(residents(&speeds, 140ull << 30, budget, &late), 40);
    assert_true(late);
    while (late) {
        budget -= step;
        assert_int_equal(residents(&speeds, 140ull << 30, budget, &late), 40);
    }
}

/* Where the last eighth of a backward does not hide what ranks have to say, they say it layer by layer. */
static void test_slow_links(void **state)
{
    (void)state;
    write_model("llama3-8b", 32);
    for (int i = 0; i < 4; i++) {
        tsr_inputs inputs = {.compute = TSR_BF16, .cuda = true};
        tsr_speeds speeds;
        tsr_decision d;
        char more[64];
        bool slow = i & 1, large = i & 2;
        tsr_speeds_default(&speeds, true, TSR_BF16);
        if (slow)
            speeds.value[TSR_SPEED_LINK] = 12e9; /* PCIe */
        snprintf(more, sizeof more, "backend: cuda\nlora_r: %d\n", large ? 384 : 16);
        decide_on(&d, &inputs, config(more), 2, 2, 140ull << 30, &speeds);
        assert_int_equal(d.resident_count, 40);
        assert_int_equal(d.plan->reduces_late, !slow || !large);
        tsr_decision_free(&d);
        tsr_inputs_close(&inputs);
    }
}

/* Where cuDNN runs attention, atomics need less than the scores that a repeatable dq is made of. */
static void test_atomics_need_less(void **state)
{
    (void)state;
    tsr_speeds speeds;
    uint64_t bytes[2], workspace[2];
    write_model("llama3-8b", 8);
    tsr_speeds_default(&speeds, true, TSR_BF16);
    for (int i = 0; i < 2; i++) {
        tsr_inputs inputs = {.compute = TSR_BF16, .cuda = true};
        tsr_decision d;
        decide_on(&d, &inputs,
                  config(i ? "backend: cuda\ndeterministic: false\n" : "backend: cuda\n"), 1, 1,
                  140ull << 30, &speeds);
        tsr_attention_bounds bounds = {.tokens = 4 * 2048,
                                       .documents = 4,
                                       .longest = 2048,
                                       .q_heads = 32,
                                       .kv_heads = 8,
                                       .head_dim = 128,
                                       .dtype = TSR_BF16,
                                       .train = true,
                                       .atomics = d.model.atomics};
        assert_int_equal(d.model.atomics, i);
        workspace[i] = d.model.kernels->attention_workspace_bytes(&bounds);
        bytes[i] = chosen(&d)->device_bytes;
        tsr_decision_free(&d);
        tsr_inputs_close(&inputs);
    }
    assert_int_equal(bytes[0] > bytes[1], workspace[0] > workspace[1]);
    assert_true(bytes[0] >= bytes[1]);
}

/* Memory that is left makes the launches of attention's backward over long documents wider, as far as it goes. */
static void test_room_for_attention(void **state)
{
    (void)state;
    tsr_speeds speeds;
    uint64_t bytes[4], budget[] = {0, 0, 0, 0};
    int wider[4];
    write_model("llama3.2-1b", 8); /* heads of 64: cuDNN's backward */
    tsr_speeds_default(&speeds, true, TSR_BF16);
    for (int i = 0; i < 4; i++) {
        tsr_inputs inputs = {.compute = TSR_BF16, .cuda = true};
        tsr_decision d;
        char text[512];
        int length = snprintf(text, sizeof text,
                              "model_name_or_path: %s\noutput_dir: out\nmax_length: 8192\n"
                              "per_device_train_batch_size: 1\nbackend: cuda\n",
                              scratch_path(""));
        if (i > 1)
            snprintf(text + length, sizeof text - (size_t)length, "memory_budget: %lluB\n",
                     (unsigned long long)budget[i]);
        decide_on(&d, &inputs, text, 1, 1, i ? 140ull << 30 : TSR_BUDGET_UNKNOWN, &speeds);
        bytes[i] = chosen(&d)->device_bytes;
        wider[i] = d.model.wider;
        budget[2] = bytes[0] + 1;
        budget[3] = (bytes[0] + bytes[1]) / 2;
        tsr_decision_free(&d);
        tsr_inputs_close(&inputs);
    }
    assert_true(wider[0] == 0 && wider[2] == 0);
    assert_int_equal(bytes[0], bytes[2]);
    bool cut = tsr_kernels_cudnn_version(&(tsr_library_version){0}) != TSR_EUNSUPPORTED;
    assert_true(wider[1] == (cut ? 2 : 0) && wider[3] == (cut ? 1 : 0));
    assert_true(bytes[3] <= budget[3] && bytes[3] >= bytes[0] && bytes[1] >= bytes[3]);
}

/* ---- several ranks ---- */

/* Groups of a node keep gathers inside it: over a slow network they lose less than one group of all. */
static void test_groups_and_networks(void **state)
{
    (void)state;
    tsr_speeds speeds;
    tsr_inputs inputs = {.compute = TSR_BF16};
    tsr_decision grouped, whole;
    write_model("llama3-8b", 32);
    tsr_speeds_default(&speeds, true, TSR_BF16);
    speeds.value[TSR_SPEED_NETWORK] = 5e9;
    decide_on(&grouped, &inputs, config(""), 64, 8, TSR_BUDGET_UNKNOWN, &speeds);
    tsr_inputs other = {.compute = TSR_BF16};
    decide_on(&whole, &other, config("shard_group_size: 64\n"), 64, 8, TSR_BUDGET_UNKNOWN, &speeds);
    assert_int_equal(grouped.replicas, 8);
    assert_int_equal(whole.replicas, 1);
    assert_true(grouped.expected.simulation.step < whole.expected.simulation.step);
    assert_true(grouped.memory.total[TSR_PLACE_DEVICE] > whole.memory.total[TSR_PLACE_DEVICE]);
    tsr_decision_free(&grouped);
    tsr_decision_free(&whole);
    tsr_inputs_close(&inputs);
    tsr_inputs_close(&other);
}

/* A micro-batch of one row in spans of `span`, on as many ranks as share it. */
static tsr_expectation expect_shared(int64_t tokens, int64_t span, int ranks, double link,
                                     int *groups)
{
    tsr_speeds speeds;
    tsr_inputs inputs = {.compute = TSR_BF16};
    tsr_decision d;
    char text[1024];
    snprintf(text, sizeof text,
             "model_name_or_path: %s\noutput_dir: out\nper_device_train_batch_size: 1\n"
             "max_length: %lld\ncontext_span: %lld\ncontext_parallel_size: %d\nresident_units: "
             "99\nlora_r: 1\n"
             "gradient_checkpointing: none\nlora_target_modules: [q_proj]\n",
             scratch_path(""), (long long)tokens, (long long)span, ranks);
    tsr_speeds_default(&speeds, true, TSR_BF16);
    speeds.value[TSR_SPEED_LINK] = link;
    decide_on(&d, &inputs, text, ranks, ranks, TSR_BUDGET_UNKNOWN, &speeds);
    tsr_expectation e = d.expected;
    *groups = tsr_model_most_sharing(&d.model, d.programs).groups;
    tsr_decision_free(&d);
    tsr_inputs_close(&inputs);
    return e;
}

/* A row that ranks share, and what the link between them carries of it. */
typedef struct {
    int ranks;
    int64_t tokens;
    double bytes;
} shared_row;

/* Seconds that it takes longer over such a link. */
static double wait_for(const shared_row *r, double link, double step)
{
    int groups;
    return expect_shared(r->tokens, 1024, r->ranks, link, &groups).simulation.step - step;
}

/* They wait for each other's rows: of one group of heads, and of others for what takes longer than attention. */
static void check_waits(const shared_row *r)
{
    static const double fast = 1e15, good = 2e11, slow = 1e10;
    int none, groups;
    tsr_expectation alone = expect_shared(r->tokens, 1024, 1, fast, &none);
    tsr_expectation together = expect_shared(r->tokens, 1024, r->ranks, fast, &groups);
    assert_int_equal(none, 1);
    assert_true(together.step_tokens == r->tokens && alone.step_tokens == r->tokens);
    assert_true(fabs(together.step_flops / alone.step_flops - 1) < 1e-9);
    double step = together.simulation.step, share = r->ranks * step / alone.simulation.step;
    double soon = wait_for(r, good, step), late = wait_for(r, slow, step);
    double later = wait_for(r, slow / 2, step), bytes = r->bytes;
    tsr_simulation waits = expect_shared(r->tokens, 1024, r->ranks, slow, &groups).simulation;
    print_message("    %d ranks: %.3f of the time, in %d groups rows of others %.4g s more (%.4g), "
                  "over slow links %.4g (%.4g)\n",
                  r->ranks, share, groups, soon, bytes / good / groups, late, bytes / slow);
    assert_true(share > 1 && share < 1.2);
    /* Also over a fast link a call takes a while. */
    assert_true(soon > 0.9 * bytes / good / groups && soon < 1.4 * bytes / good / groups);
    assert_true(groups == 1 ? fabs(late / bytes * slow - 1) < 0.02 : late < bytes / slow);
    assert_true(fabs((later - late) / bytes * slow - 1) < 0.02);
    assert_true(fabs(waits.exposed[TSR_CAUSE_EXCHANGE] / late - 1) < 0.02);
    assert_true(alone.simulation.exposed[TSR_CAUSE_EXCHANGE] == 0);
}

/* Ranks that share a micro-batch divide its work, as the one with the most has it. */
static void test_sharing(void **state)
{
    /* Bytes of a token's q (or o), k (or v), delta (or lse), and sums of dq. */
    const double q = 32 * 128 * 2, k = 8 * 128 * 2, delta = 32 * 4, sums = 32 * 128 * 4;
    const double forward = 2 * q + 2 * k, backward = 3 * q + 4 * k + delta;
    int none, groups;
    (void)state;
    write_model("llama3-8b", 4);
    /* Half of the heads, of the other's rows. */
    check_waits(&(shared_row){2, 8192, 4 * 4096 * (forward + backward) / 2});
    /* Of two thirds of the tokens k and v; then q, k, v, d_o, delta, lse and twice the sums of dq. */
    check_waits(&(shared_row){3, 9216, 4 * 6144 * (2 * k + 2 * q + 2 * k + 2 * delta + 2 * sums)});
    /* Of four spans one of three ranks has two, with 7 of 16 pairs. */
    double uneven = expect_shared(8192, 2048, 3, 1e15, &groups).simulation.step /
                    expect_shared(8192, 2048, 1, 1e15, &none).simulation.step;
    print_message("    two of four spans: %.3f\n", uneven);
    assert_true(uneven > 0.44 && uneven < 0.56);
}

/* Memory that nothing else needs keeps experts decoded, which saves a tenth of a step's time. */
static void test_room_for_experts(void **state)
{
    static const uint64_t free_bytes[] = {TSR_BUDGET_UNKNOWN, 100ull << 30, 140ull << 30};
    double seconds[3], layers[3];
    tsr_speeds speeds;
    (void)state;
    write_model("qwen3-30b-a3b", 48);
    tsr_speeds_default(&speeds, true, TSR_BF16);
    for (int i = 0; i < 3; i++) {
        tsr_inputs inputs = {.compute = TSR_BF16, .cuda = true};
        tsr_decision d;
        decide_on(&d, &inputs, config("backend: cuda\n"), 1, 1, free_bytes[i], &speeds);
        assert_true(chosen(&d)->device_bytes <= free_bytes[i] / 16 * 15);
        layers[i] = d.decoded_count;
        seconds[i] = d.expected.simulation.step;
        tsr_decision_free(&d);
        tsr_inputs_close(&inputs);
    }
    assert_true(layers[0] == 0 && layers[1] > 0 && layers[1] < layers[2] && layers[2] == 48);
    assert_true(seconds[2] < seconds[1] && seconds[2] < 0.95 * seconds[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured_steps), cmocka_unit_test(test_the_fastest_is_chosen),
        cmocka_unit_test(test_groups_and_networks), cmocka_unit_test(test_sharing)};
    const struct CMUnitTest cards[] = {
        cmocka_unit_test(test_units_stay_on_gpus), cmocka_unit_test(test_slow_links),
        cmocka_unit_test(test_atomics_need_less), cmocka_unit_test(test_room_for_attention),
        cmocka_unit_test(test_room_for_experts)};
    if (argc > 1 && !strcmp(argv[1], "cards"))
        return cmocka_run_group_tests(cards, scratch_setup, scratch_teardown);
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
