/*
 * The golden trainings of a family: eight steps in fp32, against what PEFT did; the gradient of every tensor at step 1;
 * the same bits with all recomputed, on three ranks and with other units. All of it for whole rows, and in tiles, which three
 * ranks share.
 */
#include "model/family_runs.h"

#include "io/peft.h"
#include "model/golden_trace.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_TOLERANCE     3e-5
#define GRADIENT_TOLERANCE  3e-4 /* of the tensor's largest */
#define L2_TOLERANCE        1e-4 /* relative */
#define FINAL_TOLERANCE     5e-3
#define FINAL_RMS_TOLERANCE 3e-4
#define AUX_COEFFICIENT     0.02
#define STEPS               8

static const char *dtype = "float32";

typedef struct {
    const char
        *gradients; /* the golden trace whose gradients those of step 1 must be; NULL: none */
    double loss[STEPS], grad_norm[STEPS],
        aux[STEPS]; /* aux: without its coefficient; not in loss */
    int64_t label_tokens[STEPS];
} trace;

/* The tensor of a part, as PEFT names it. Of two parameters of one module that are adapted gate_up_proj is the inner one. */
static char *tensor_of(const char *path, tsr_peft_part part)
{
    const char *experts = strstr(path, ".experts.");
    char module[300], *out;
    snprintf(module, sizeof module, "%s", path);
    if (experts)
        snprintf(module, sizeof module, "%.*s.experts%s", (int)(experts - path), path,
                 strcmp(experts, ".experts.gate_up_proj") ? "" : ".base_layer");
    assert_int_equal(tsr_peft_tensor_name(&out, module, part), TSR_OK);
    return out;
}

/* What the gradients of one run are compared with, and how far they are. */
typedef struct {
    golden_trace facts;
    const tsr_job *job;
    double worst[2];
    uint64_t compared;
} comparison;

/* B of all experts, [experts, out, r], as PEFT has it: column k experts + e is rank k of expert e; the rows of gpt_oss
 * are gate and up by turns. */
static void to_rank_major(double *values, const tsr_layout_stack *stack, uint64_t r)
{
    uint64_t out = stack->out, experts = stack->experts, half = out / 2, at = 0;
    bool by_turns = stack->files->transposed && stack->parts == 2;
    double *moved = calloc(experts * out * r, sizeof *moved);
    assert_non_null(moved);
    for (uint64_t e = 0; e < experts; e++)
        for (uint64_t i = 0; i < out; i++)
            for (uint64_t k = 0; k < r; k++) {
                uint64_t to = !by_turns ? i : i < half ? 2 * i : 2 * (i - half) + 1;
                moved[to * r * experts + k * experts + e] = values[at++];
            }
    memcpy(values, moved, at * sizeof *moved);
    free(moved);
}

static void compare(comparison *c, const char *path, tsr_peft_part part, int unit, int segment)
{
    const tsr_layout_unit *u = &c->job->inputs.layout.unit[unit];
    const tsr_layout_segment *s = &u->trainable[segment];
    uint64_t count;
    char *tensor = tensor_of(path, part);
    double *got = job_gradient(&count, c->job, unit, segment);
    if (s->of_stack && part == TSR_PEFT_B)
        to_rank_major(got, &u->stack[s->stack_index], s->stored_columns);
    golden_gradient_apart(c->worst, golden_trace_find(&c->facts, tensor), got, count);
    c->compared++;
    free(tensor);
    free(got);
}

/* Every tensor of the adapter, and no other, has the golden gradient. */
static void judge_gradients(const char *name, const tsr_job *job)
{
    comparison c = {.job = job};
    const tsr_layout *layout = &job->inputs.layout;
    golden_trace_open(&c.facts, golden("%s", name));
    for (int unit = 0; unit < layout->layer_count; unit++) {
        const tsr_layout_unit *u = &layout->unit[unit];
        for (int i = 0; i < tsr_layout_linears(u); i++) {
            const tsr_layout_linear *linear = &u->linear[i];
            const int segment[] = {linear->a, linear->b, linear->m};
            for (int part = 0; linear->r && part < 2 + linear->dora; part++)
                compare(&c, linear->path, (tsr_peft_part)part, unit, segment[part]);
        }
        for (int i = 0; i < tsr_layout_stacks(u); i++) {
            const tsr_layout_stack *stack = &u->stack[i];
            if (!stack->r)
                continue;
            compare(&c, stack->path, TSR_PEFT_A, unit, stack->a);
            compare(&c, stack->path, TSR_PEFT_B, unit, stack->b);
        }
    }
    assert_int_equal(c.compared, c.facts.count);
    judge("gradients at step 1, of a tensor's largest", c.worst[0], GRADIENT_TOLERANCE);
    judge("their norms", c.worst[1], L2_TOLERANCE);
    golden_trace_close(&c.facts);
}

static tsr_status train(tsr_job *job, void *user)
{
    trace *out = user;
    if (!on_gpu()) /* as every run on a GPU does: all layers with kernels that do nothing */
        TSR_TRY(tsr_model_prepare(job->model, &(tsr_batch_shape){32, 16, true}, 1,
                                  &(tsr_prepare_args){0}));
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        if (i == 0 && out->gradients)
            judge_gradients(out->gradients, job);
        if (job->view.rank)
            continue;
        out->loss[i] = report.loss;
        out->grad_norm[i] = report.grad_norm;
        out->aux[i] = report.aux_loss;
        out->label_tokens[i] = report.label_tokens;
    }
    return tsr_job_save(job);
}

/* What the golden trace was run with. */
static void set_trace(job_spec *spec, const char *name)
{
    json_t *facts = load(golden("%s/trace.json", name)),
           *settings = json_object_get(facts, "settings");
    bool nf4 = !strcmp(json_string_value(json_object_get(settings, "base")), "nf4");
    bool aux = json_is_true(json_object_get(settings, "aux"));
    /* The auxiliary loss is one of a micro-batch. */
    job_set(spec, "per_device_train_batch_size=%d", aux ? 4 : 1);
    job_set(spec, "init_adapter=%s", golden("%s/init", aux ? "a_lora_attention" : name));
    job_set(spec, "load_in_4bit=%s", nf4 ? "true" : "false");
    if (aux)
        job_set(spec, "router_aux_loss_coef=%g", AUX_COEFFICIENT);
    json_decref(facts);
}

static trace run_trace(const char *name, int ranks, const char *recompute, const char *units,
                       int tile_rows, int sharers, const char *output)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    trace out = {.gradients = ranks == 1 && !strcmp(dtype, "float32") ? name : NULL};
    job_set(&spec, "backend=%s", backend);
    job_set(&spec, "model_name_or_path=%s", golden("checkpoint"));
    job_set(&spec, "dataset=%s", golden("train.jsonl"));
    job_set(&spec, "output_dir=%s", output);
    job_set(&spec, "gradient_checkpointing=%s", recompute);
    job_set(&spec, "unit_policy=%s", units);
    job_set(&spec, "context_span=%d", tile_rows);
    job_set(&spec, "context_parallel_size=%d", sharers);
    job_set(&spec, "dtype=%s", dtype);
    job_set(&spec, "shuffle=false");
    set_trace(&spec, name);
    job_set(&spec, "total_batch_size=4");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-3");
    job_set(&spec, "max_grad_norm=0");
    job_set(&spec, "lr_scheduler_type=constant");
    job_run(&spec, train, &out);
    return out;
}

/* How far a trace may be from the golden one. */
typedef struct {
    double loss, first, later;
} nearness;

/* The auxiliary loss of step i, or 0; *apart: how far it is from the golden one at most. The golden loss has it. */
static double auxiliary(double *apart, const json_t *step, double got)
{
    const json_t *aux = json_object_get(step, "aux_loss");
    if (!aux)
        return 0;
    *apart = worse(fabs(got - json_number_value(aux)), *apart);
    return AUX_COEFFICIENT * got;
}

static void judge_steps(const char *name, const trace *got, nearness most)
{
    json_t *facts = load(golden("%s/trace.json", name)), *steps = json_object_get(facts, "steps");
    double loss = 0, first = 0, later = 0, aux = 0;
    assert_int_equal(json_array_size(steps), STEPS);
    for (int i = 0; i < STEPS; i++) {
        const json_t *step = json_array_get(steps, (size_t)i);
        double norm = json_number_value(json_object_get(step, "grad_norm"));
        double apart = fabs(got->grad_norm[i] / norm - 1);
        assert_int_equal(got->label_tokens[i],
                         json_integer_value(json_object_get(step, "label_tokens")));
        double whole = got->loss[i] + auxiliary(&aux, step, got->aux[i]);
        loss = worse(fabs(whole - json_number_value(json_object_get(step, "loss"))), loss);
        first = i == 0 ? apart : first;
        later = worse(apart, later);
    }
    judge("losses", loss, most.loss);
    if (json_object_get(json_array_get(steps, 0), "aux_loss"))
        judge("auxiliary losses", aux, most.loss);
    judge("norm of the gradient at step 1", first, most.first);
    judge("norm of the gradient", later, most.later);
    json_decref(facts);
}

static void judge_final(const char *name, const char *written)
{
    golden_trace facts;
    golden_trace_open(&facts, golden("%s", name));
    if (facts.final)
        golden_trace_judge_final(&facts, written, FINAL_TOLERANCE, FINAL_RMS_TOLERANCE);
    golden_trace_close(&facts);
}

/* Whether ranks can share its rows: without delta rules. */
static bool shares(void)
{
    return strncmp(family, "qwen3_5", 7) != 0;
}

/* In tiles of `tile_rows` tokens, where rows have more: three ranks then share each, if they can. */
static void judge_tiled(const char *name, int tile_rows)
{
    char alone[512], other[600];
    const struct {
        int ranks;
        const char *recompute, *units;
        int sharers;
    } ways[] = {{1, "full", "down_proj", 1},
                {on_gpu() ? 1 : 3, "selective", "self_attn, mlp",
                 on_gpu() || tile_rows > 16 || !shares() ? 1 : 3}};
    snprintf(alone, sizeof alone, "%s_%d", scratch_path("alone"), tile_rows);
    trace first = run_trace(name, 1, "none", "layer", tile_rows, 1, alone);
    judge_steps(name, &first, (nearness){TRACE_TOLERANCE, 2e-5, 1e-4});
    judge_final(name, alone);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(other, sizeof other, "%s_%zu", alone, i);
        trace got = run_trace(name, ways[i].ranks, ways[i].recompute, ways[i].units, tile_rows,
                              ways[i].sharers, other);
        assert_memory_equal(got.loss, first.loss, sizeof got.loss);
        assert_memory_equal(got.grad_norm, first.grad_norm, sizeof got.grad_norm);
        golden_same_adapter(alone, other);
    }
}

static void judge_trace(const char *name)
{
#ifndef TSR_SANITIZED /* tiles have all of it, and more */
    judge_tiled(name, 8192);
#endif
    judge_tiled(name, 16);
}

void test_lora(void **state)
{
    (void)state;
    judge_trace("a_lora_attention");
}

/* DoRA on all linears; of families with experts LoRA on these too. */
static const char *second(void)
{
    return golden_has("b_lora_experts") ? "b_lora_experts" : "b_dora_all_linear";
}

void test_second(void **state)
{
    (void)state;
    judge_trace(second());
}

void test_auxiliary(void **state)
{
    (void)state;
    judge_trace("c_lora_aux_loss");
}

/* Where bf16 moves norms further than elsewhere. It does so to those of Transformers and PEFT, on a CPU, with adapters in
 * bf16; with adapters in fp32; under autocast:
 *
 * qwen3_5      at step 1 1.0e-2, 3e-4, 1.1e-2 of LoRA and 3e-3, 2e-3, 4e-3 of DoRA, this at most 1.1e-2 in 16 draws
 *              each of adapters 2e-3 from these. Ours of DoRA was 1.3e-2 on an H100.
 * qwen3_5_moe  at step 1 0.13, 8e-3, 1.3e-2 of LoRA on experts; in such draws at most 0.25, 0.27, 0.25. It is a token that
 *              goes to another expert, where two are 0.025 apart: in fp32 that one change is 0.09, and with the experts of
 *              fp32 0.13 becomes 2e-3. Ours was 0.11.
 *              Losses move with it: by 1.5e-2, 4e-3, 5e-3, and by 1.7e-2 under autocast with a base in bf16. In such
 *              draws they move by at most 3.2e-2, 2.5e-2, 2.7e-2. In 16 draws each of adapters 2e-4 from these it is
 *              2.6e-2, 2.4e-2, 2.3e-2; in fp32 these are 2e-3 apart. Where the norm at step 1 stays within 5e-2, no
 *              loss of any draw moves by more than 1e-2. In fp32 that one change is 9.5e-3, and the experts that bf16
 *              takes at step 1 are 1.4e-2; with the experts of fp32 1.5e-2 becomes 3e-3. Ours was 1.6e-2 on an H200. */
static const struct {
    const char *family, *trace; /* trace NULL: both */
    nearness most;
} moved[] = {
    {"qwen3_5", NULL, {1.5e-2, 2.5e-2, 1e-1}},
    {"qwen3_5_moe", "b_lora_experts", {2e-2, 2e-1, 2e-1}},
};

static nearness nearness_of_bf16(const char *name)
{
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++)
        if (!strcmp(moved[i].family, family) && (!moved[i].trace || !strcmp(moved[i].trace, name)))
            return moved[i].most;
    return (nearness){1.5e-2, 1e-2, 1e-1};
}

/* Tensor cores, and the kernels that serve bf16 alone. */
void test_bf16(void **state)
{
    (void)state;
    const char *const names[] = {"a_lora_attention", second()};
    dtype = "bfloat16";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char output[512];
        snprintf(output, sizeof output, "%s", scratch_path(names[i]));
        trace got = run_trace(names[i], 1, "none", "layer", 8192, 1, output);
        judge_steps(names[i], &got, nearness_of_bf16(names[i]));
    }
    dtype = "float32";
}
