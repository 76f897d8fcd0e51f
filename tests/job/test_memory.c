/*
 * The memory plan of whole jobs: what is decided for a memory_budget, what `plan` says beforehand,
 * and what a refusal advises.
 */
#include "job/fixture.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *config_text(const char *dataset, const char *more)
{
    static char text[4096];
    snprintf(text, sizeof text,
             "model_name_or_path: " JOB_MODEL "\nlora_r: 4\nuse_dora: true\nmax_steps: 2\n"
             "total_batch_size: 4\ndataset: %s\n%s",
             scratch_path(dataset), more);
    return text;
}

static tsr_job_options plan_options(int ranks, const char *config)
{
    return (tsr_job_options){.size = sizeof(tsr_job_options),
                             .config_text = config,
                             .purpose = TSR_JOB_PLAN,
                             .plan_ranks = ranks,
                             .threads = 1};
}

/* What `plan` says for `ranks` ranks. Returns the status; its message is tsr_last_error's. No
 * weight is read, whatever comes of it. */
static int plan_only(tsr_job_plan_info *info, int ranks, const char *config)
{
    tsr_job_options options = plan_options(ranks, config);
    tsr_job *job;
    int status = tsr_job_create(&job, &options);
    if (status < 0)
        return status;
    status = tsr_job_plan(job, info);
    assert_int_equal(tsr_checkpoint_bytes_read(job->inputs.checkpoint), 0);
    tsr_job_destroy(job);
    return status;
}

static uint64_t peak(int ranks, const char *dataset, const char *more)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    if (plan_only(&info, ranks, config_text(dataset, more)) < 0)
        fail_msg("%s", tsr_last_error());
    return info.device_peak_bytes;
}

static void budget_line(char *out, size_t bytes, const char *more, uint64_t budget)
{
    snprintf(out, bytes, "%smemory_budget: %" PRIu64 "B\n", more, budget);
}

static void remove_files(void)
{
    static const char *const names[] = {"adapter_model.safetensors",
                                        "adapter_config.json",
                                        "README.md",
                                        "metrics.jsonl",
                                        "job.yaml",
                                        "plan.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja"};
    char name[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "output/%s", names[i]);
        remove(scratch_path(name));
    }
    remove(scratch_path("output"));
}

/* ---- what is decided ---- */

/* Runs with the budget and without: the same bits, inside the budget. */
static void run_inside(job_result *out, int ranks, const char *more, uint64_t budget)
{
    char line[512], what[64];
    job_result free_run;
    snprintf(what, sizeof what, "a budget of %" PRIu64 " bytes", budget);
    job_run(&free_run, ranks, config_text("long.jsonl", more));
    if (free_run.status != 0)
        fail_msg("%s", free_run.message);
    budget_line(line, sizeof line, more, budget);
    job_run(out, ranks, config_text("long.jsonl", line));
    if (out->status != 0)
        fail_msg("%s: %s", what, out->message);
    job_assert_plan(out, ranks, what);
    job_assert_same(&free_run, out, what);
    for (int i = 0; i < ranks; i++)
        assert_in_range(out->memory[i].device_high, 1, budget);
    job_result_free(&free_run);
}

/* Everything stays on the device: the less there is of it, the more layers recompute, one after the other. */
static void test_layers_degrade_one_by_one(void **state)
{
    (void)state;
    static const char here[] =
        "offload: none\nactivation_offloading: false\noptimizer_offload: false\n";
    enum { BUDGETS = 60 };
    uint64_t none = peak(2, "long.jsonl", "gradient_checkpointing: false\n");
    uint64_t full = peak(2, "long.jsonl", "gradient_checkpointing: true\n");
    uint64_t in_part = 0, in_full = 0;
    tsr_job_plan_info before = {0};
    job_result result;
    for (uint64_t i = 0; i <= BUDGETS; i++) {
        uint64_t budget = none - (none - full) * i / BUDGETS;
        char line[512];
        tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
        budget_line(line, sizeof line, here, budget);
        assert_int_equal(plan_only(&info, 2, config_text("long.jsonl", line)), 0);
        int some = info.recompute_selective_count + info.recompute_full_count;
        assert_true(info.device_peak_bytes <= budget);
        assert_true(some >= before.recompute_selective_count + before.recompute_full_count);
        assert_true(info.recompute_full_count >= before.recompute_full_count);
        in_part = some > 0 && some < 6 ? budget : in_part;
        in_full = info.recompute_full_count > 0 && info.recompute_full_count < 6 ? budget : in_full;
        before = info;
    }
    assert_true(in_full > 0 && in_full < in_part);
    run_inside(&result, 2, here, in_part);
    job_result_free(&result);
    run_inside(&result, 2, here, in_full);
    job_result_free(&result);

    /* To the byte. */
    char all[256];
    snprintf(all, sizeof all, "%sgradient_checkpointing: true\nresident_units: 0\n", here);
    run_inside(&result, 2, all, full);
    assert_int_equal(result.memory[0].device_high, full);
    job_result_free(&result);
}

static void test_base_moves_to_the_host(void **state)
{
    (void)state;
    uint64_t here = peak(2, "long.jsonl", "gradient_checkpointing: true\noffload: none\n");
    uint64_t there = peak(2, "long.jsonl", "gradient_checkpointing: true\noffload: sharded\n");
    job_result result;
    assert_true(there < here);
    run_inside(&result, 2, "", (here + there) / 2);
    assert_true(result.memory[0].host_high > there / 100);
    job_result_free(&result);
}

/* ---- what offload moves, to the byte ---- */

/* The arenas of rank 0 of a plan, and how many layers' activations go to host memory. */
typedef struct {
    uint64_t device, host, layer, lowest, owned, offloaded;
} plan_bytes;

/* layer, lowest: what the plan has on the device of buffers whose names begin "layer 1 ", "layer 0 "; owned:
 * trainable elements. */
static plan_bytes bytes_of(int ranks, const char *more)
{
    char config[4096];
    snprintf(config, sizeof config, "%s", config_text("long.jsonl", more));
    tsr_job_options options = plan_options(ranks, config);
    tsr_job *job;
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    assert_int_equal(tsr_job_create(&job, &options), 0);
    if (tsr_job_plan(job, &info) < 0)
        fail_msg("%s: %s", more, tsr_last_error());
    const tsr_memory_plan *memory = &job->decision.memory;
    plan_bytes out = {.device = memory->total[TSR_PLACE_DEVICE],
                      .host = memory->total[TSR_PLACE_HOST],
                      .owned = job->decision.store.trainable.count,
                      .offloaded = (uint64_t)job->decision.offloaded_count};
    for (int i = 0; i < memory->count; i++) {
        const tsr_buffer *b = &memory->buffer[i];
        uint64_t bytes = b->place == TSR_PLACE_DEVICE ? tsr_align_up(b->bytes, TSR_ALIGNMENT) : 0;
        out.layer += strncmp(b->name, "layer 1 ", 8) ? 0 : bytes;
        out.lowest += strncmp(b->name, "layer 0 ", 8) ? 0 : bytes;
    }
    tsr_job_destroy(job);
    return out;
}

/* Runs what moves activations or the optimizer's state, in the memory of its plan. */
static void run_as(int ranks, const char *more, const plan_bytes *plan)
{
    job_result result;
    job_run(&result, ranks, config_text("long.jsonl", more));
    if (result.status != 0)
        fail_msg("%s", result.message);
    job_assert_plan(&result, ranks, more);
    assert_int_equal(result.memory[0].device_high, plan->device);
    assert_int_equal(result.memory[0].host_high, plan->host);
    assert_int_equal(result.memory[0].info.activations_offloaded, plan->offloaded > 0);
    assert_int_equal(result.memory[0].info.optimizer_offloaded, plan->offloaded == 0);
    job_result_free(&result);
    remove_files();
}

/* Of six layers two are left on the device, and four have a place in host memory: all but the two whose backward
 * comes first. The lowest one needs no gradient of its input, and keeps less for it. */
static void test_activations_move(void **state)
{
    (void)state;
    static const char *const modes[] = {"false", "selective", "true"};
    for (int i = 0; i < 3; i++) {
        char more[256];
        snprintf(more, sizeof more, "gradient_checkpointing: %s\n", modes[i]);
        plan_bytes here = bytes_of(2, more);
        strcat(more, "activation_offloading: true\n");
        plan_bytes there = bytes_of(2, more);
        assert_int_equal(there.layer, 0);
        assert_true(here.lowest <= here.layer);
        assert_int_equal(here.device - there.device, 3 * here.layer + here.lowest);
        assert_int_equal(there.host - here.host, 3 * here.layer + here.lowest);
        if (i == 2) /* its input alone: 200 tokens of 256 fp32 elements */
            assert_int_equal(here.layer, 200 * 256 * 4);
        run_as(2, more, &there);
    }
}

/* A budget that lacks some layers' activations: theirs go, but for two, the others' stay, and the bits are the same. */
static void test_some_activations_move(void **state)
{
    (void)state;
    static const char kept[] = "gradient_checkpointing: false\noffload: none\n"
                               "optimizer_offload: false\nresident_units: 0\n";
    plan_bytes here = bytes_of(2, kept);
    for (uint64_t i = 1; i <= 2; i++) {
        job_result result;
        char more[512];
        budget_line(more, sizeof more, kept, here.device - i * here.layer);
        plan_bytes there = bytes_of(2, more);
        assert_int_equal(there.offloaded, i + 2);
        assert_int_equal(here.device - there.device, i * here.layer);
        assert_int_equal(there.host - here.host, i * here.layer);
        run_inside(&result, 2, kept, there.device);
        job_result_free(&result);
    }
}

/* Masters and moments leave; buffers for a quarter of their chunks of 16384 elements stay, two at least. */
static void test_state_moves(void **state)
{
    (void)state;
    const char *more = "optimizer_offload: true\n";
    for (int ranks = 1; ranks <= 3; ranks++) {
        plan_bytes here = bytes_of(ranks, ""), there = bytes_of(ranks, more);
        uint64_t all = 3 * tsr_align_up(here.owned * sizeof(float), TSR_ALIGNMENT);
        assert_true(here.owned > 2 * 16384);
        uint64_t buffers = tsr_ceil_div(here.owned, 16384) / 4;
        buffers = buffers > 2 ? buffers : 2;
        assert_int_equal(here.device - there.device, all - buffers * 3 * 16384 * sizeof(float));
        assert_int_equal(there.host - here.host, all);
        run_as(ranks, more, &there);
    }
}

/* auto: whatever a budget asks for moves, and no more than the keys allow; of the activations the layers' inputs alone
 * where nothing else fits. */
static void test_a_budget_moves_more(void **state)
{
    (void)state;
    static const char frugal[] = "gradient_checkpointing: true\noffload: sharded\n";
    static const char activations[] = "activation_offloading: true\n";
    static const char optimizer[] = "optimizer_offload: true\n";
    static const char *const allowed[] = {
        "activation_offloading: false\noptimizer_offload: false\n", "optimizer_offload: false\n",
        ""};
    char more[256];
    uint64_t budget[3] = {peak(2, "long.jsonl", frugal)};
    snprintf(more, sizeof more, "%s%s", frugal, activations);
    budget[1] = peak(2, "long.jsonl", more);
    snprintf(more, sizeof more, "%s%s%s", frugal, activations, optimizer);
    budget[2] = peak(2, "long.jsonl", more);
    assert_true(budget[2] < budget[1] && budget[1] < budget[0]);
    for (int i = 0; i < 3; i++) {
        job_result result;
        run_inside(&result, 2, allowed[i], budget[i]);
        const tsr_job_plan_info *info = &result.memory[0].info;
        assert_int_equal(info->activations_offloaded, i > 0);
        assert_int_equal(info->optimizer_offloaded, i > 1);
        assert_int_equal(info->recompute_full_count, 6);
        job_result_free(&result);
        remove_files();
    }
}

/* What a given budget leaves is used for units that need no copy; without one, none stays. */
static void test_a_budget_keeps_units(void **state)
{
    (void)state;
    uint64_t four =
        peak(2, "long.jsonl", "gradient_checkpointing: true\noffload: full\nresident_units: 4\n");
    uint64_t none = peak(2, "long.jsonl", "gradient_checkpointing: true\noffload: full\n");
    job_result result;
    run_inside(&result, 2, "gradient_checkpointing: true\noffload: full\n",
               four > none ? four : none);
    assert_in_range(result.memory[0].info.resident_count, 4, 7);
    job_result_free(&result);
    job_run(&result, 2, config_text("long.jsonl", "offload: full\n"));
    assert_int_equal(result.memory[0].info.resident_count, 0);
    job_result_free(&result);
}

/* ---- what plan says ---- */

static void test_plan_is_what_a_run_takes(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        const char *more;
    } cases[] = {
        {1, ""},
        {1, "offload: full\n"},
        {2, "gradient_checkpointing: true\nslots: 3\n"},
        {3, "offload: sharded\nresident_units: 2\n"},
        {4, "shard_group_size: 2\nuse_bnb_nested_quant: false\n"},
        {8, "gradient_checkpointing: selective\nload_in_4bit: false\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *config = config_text("short.jsonl", cases[i].more);
        tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
        job_result result;
        if (plan_only(&info, cases[i].ranks, config) < 0)
            fail_msg("%s", tsr_last_error());
        job_run(&result, cases[i].ranks, config);
        if (result.status != 0)
            fail_msg("%s", result.message);
        job_assert_plan(&result, cases[i].ranks, cases[i].more);
        const job_rank_memory *m = &result.memory[0];
        assert_int_equal(info.device_peak_bytes, m->device_high);
        assert_int_equal(info.host_peak_bytes, m->host_high + m->node);
        assert_int_equal(info.plan_hash, m->info.plan_hash);
        assert_int_equal(info.trainable_count, m->info.trainable_count);
        job_result_free(&result);
    }
}

/* A plan needs no data set, and one for many ranks no such machine. */
static void test_plan_without_data(void **state)
{
    (void)state;
    static const char config[] = "model_name_or_path: " JOB_MODEL "\nmax_length: 512\n";
    tsr_job_plan_info one = TSR_JOB_PLAN_INFO_INIT, many = one;
    assert_int_equal(plan_only(&one, 1, config), 0);
    assert_int_equal(plan_only(&many, 64, config), 0);
    assert_int_equal(one.parameter_count, many.parameter_count);
    assert_true(many.device_peak_bytes < one.device_peak_bytes);
}

static char *printed_plan(int json, const char *config)
{
    tsr_job_options options = plan_options(2, config);
    tsr_job *job;
    char *text;
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_int_equal(tsr_job_print_plan(job, json, &text), 0);
    tsr_job_destroy(job);
    return text;
}

static void assert_printed(int json, const char *config, const char *wanted)
{
    char *text = printed_plan(json, config);
    if (!strstr(text, wanted))
        fail_msg("no %s in: %s", wanted, text);
    free(text);
}

/* One document of the long set is one micro-batch: their lengths, and a label less than tokens. */
static void test_plan_lists_shapes(void **state)
{
    (void)state;
    static const char shapes[] = "[[20,19],[22,21],[23,22],[24,23],[26,25],[27,26],[200,199]]";
    char wanted[256], more[512];
    const char *config = config_text("long.jsonl", "per_device_train_batch_size: 1\n");
    snprintf(wanted, sizeof wanted, "\"shapes\":%s", shapes);
    assert_printed(1, config, wanted);
    assert_printed(0, config, "training in 7 shapes: 20 to 200 tokens, 19 to 199 of them labels\n");
    snprintf(more, sizeof more,
             "per_device_train_batch_size: 1\nper_device_eval_batch_size: 8\neval_dataset: %s\n",
             scratch_path("long.jsonl"));
    assert_printed(1, config_text("long.jsonl", more), "\"eval_shapes\":[[542,534]]");
    assert_printed(
        1, "model_name_or_path: " JOB_MODEL "\nmax_length: 512\nper_device_train_batch_size: 2\n",
        "\"shapes\":[[1024,1024]]");
}

/* ---- what a refusal advises ---- */

static const char *advice(const char *message)
{
    const char *found = strstr(message, "smallest change that fits: ");
    if (!found)
        fail_msg("no advice in: %s", message ? message : "");
    return found ? found + strlen("smallest change that fits: ") : message;
}

/* Refuses the configuration as a plan and as a run, before any weight is read, with one message. */
static const char *refusal(int ranks, const char *dataset, const char *more)
{
    static char message[4096];
    const char *config = config_text(dataset, more);
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    job_result result;
    assert_int_equal(plan_only(&info, ranks, config), TSR_ECONFIG);
    snprintf(message, sizeof message, "%s", tsr_last_error());
    assert_non_null(strstr(message, "memory_budget allows "));
    assert_non_null(strstr(message, "but this job needs at least "));
    job_run(&result, ranks, config);
    assert_int_equal(result.status, TSR_ECONFIG);
    assert_non_null(strstr(result.message, advice(message)));
    assert_int_equal(access(scratch_path("output"), F_OK), -1);
    assert_int_equal(tsr_status_exit_code(TSR_ECONFIG), 78);
    return message;
}

static void fits(int ranks, const char *dataset, const char *more)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    if (plan_only(&info, ranks, config_text(dataset, more)) < 0)
        fail_msg("{%s} was advised, but: %s", more, tsr_last_error());
}

#define KEEP "activation_offloading: false\noptimizer_offload: false\n"

static void test_advice_recompute(void **state)
{
    (void)state;
    char line[256];
    uint64_t none = peak(2, "long.jsonl", "gradient_checkpointing: false\n");
    budget_line(line, sizeof line, KEEP "gradient_checkpointing: false\noffload: none\n", none - 1);
    const char *message = refusal(2, "long.jsonl", line);
    if (strncmp(advice(message), "gradient_checkpointing: auto", 29))
        fail_msg("%s", message);
    budget_line(line, sizeof line, KEEP "gradient_checkpointing: auto\noffload: none\n", none - 1);
    fits(2, "long.jsonl", line);
}

static void test_advice_offload(void **state)
{
    (void)state;
    char line[256];
    uint64_t here = peak(2, "long.jsonl", "gradient_checkpointing: sqrt\noffload: none\n");
    budget_line(line, sizeof line, KEEP "gradient_checkpointing: false\noffload: none\n", here - 1);
    const char *message = refusal(2, "long.jsonl", line);
    if (strncmp(advice(message), "offload: auto with gradient_checkpointing: auto", 48))
        fail_msg("%s", message);
    budget_line(line, sizeof line, KEEP, here - 1);
    fits(2, "long.jsonl", line);
}

/* Each key is named when its turn comes, and what is named fits. */
static void test_advice_activations_and_state(void **state)
{
    (void)state;
    char line[256];
    uint64_t least = peak(2, "long.jsonl", "gradient_checkpointing: sqrt\noffload: sharded\n");
    budget_line(line, sizeof line, KEEP, least - 1);
    const char *message = refusal(2, "long.jsonl", line);
    const char *wanted =
        "activation_offloading: auto with offload: auto and gradient_checkpointing: auto";
    if (strncmp(advice(message), wanted, strlen(wanted)))
        fail_msg("%s", message);
    budget_line(line, sizeof line, "optimizer_offload: false\n", least - 1);
    fits(2, "long.jsonl", line);

    least = peak(2, "long.jsonl",
                 "gradient_checkpointing: true\noffload: sharded\nactivation_offloading: true\n");
    budget_line(line, sizeof line, KEEP, least - 1);
    message = refusal(2, "long.jsonl", line);
    wanted = "optimizer_offload: auto with offload, activation_offloading and "
             "gradient_checkpointing: auto";
    if (strncmp(advice(message), wanted, strlen(wanted)))
        fail_msg("%s", message);
    budget_line(line, sizeof line, "", least - 1);
    fits(2, "long.jsonl", line);
}

/* The number of tokens that is advised fits, and one more does not. */
static void test_advice_tokens(void **state)
{
    (void)state;
    char line[256], more[512];
    uint64_t least = peak(2, "long.jsonl",
                          "gradient_checkpointing: true\noffload: sharded\n"
                          "activation_offloading: true\noptimizer_offload: true\n");
    budget_line(line, sizeof line, "", least - 100000);
    const char *message = refusal(2, "long.jsonl", line);
    const char *start = "micro-batches of at most ";
    if (strncmp(advice(message), start, strlen(start)))
        fail_msg("%s", message);
    long tokens = strtol(advice(message) + strlen(start), NULL, 10);
    assert_in_range(tokens, 2, 199);
    snprintf(more, sizeof more, "%struncation: right\nmax_length: %ld\n", line, tokens);
    fits(2, "long.jsonl", more);
    snprintf(more, sizeof more, "%struncation: right\nmax_length: %ld\n", line, tokens + 1);
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    assert_int_equal(plan_only(&info, 2, config_text("long.jsonl", more)), TSR_ECONFIG);
}

/* The budget that is advised fits, and one smaller by a MiB does not. */
static void test_advice_budget(void **state)
{
    (void)state;
    char line[256];
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        const char *message = refusal(ranks, "short.jsonl", "memory_budget: 1MiB\n");
        const char *found = strstr(advice(message), "memory_budget: ");
        assert_non_null(found);
        unsigned long long mib = strtoull(found + strlen("memory_budget: "), NULL, 10);
        snprintf(line, sizeof line, "memory_budget: %lluMiB\n", mib);
        fits(ranks, "short.jsonl", line);
        snprintf(line, sizeof line, "memory_budget: %lluMiB\n", mib - 1);
        tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
        assert_int_equal(plan_only(&info, ranks, config_text("short.jsonl", line)), TSR_ECONFIG);
    }
}

/* ---- a card that others use too ---- */

#define GIB (1ull << 30)

static char warned[512];

static void take_warning(void *user, tsr_log_level level, const char *message)
{
    (void)user, (void)level;
    snprintf(warned, sizeof warned, "%s", message);
}

/* What is decided on a card made up; 0: it is refused. */
static uint64_t budget_on(const tsr_room *room, const char *more)
{
    tsr_job_options options = plan_options(0, config_text("short.jsonl", more));
    tsr_job *job;
    tsr_decision decision;
    uint64_t budget = 0;
    assert_int_equal(tsr_job_create(&job, &options), 0);
    warned[0] = 0;
    tsr_log_set(take_warning, NULL, TSR_LOG_WARNING);
    tsr_status status = tsr_decide(&decision, &job->inputs, &job->view, true, room, &job->speeds);
    tsr_log_set(NULL, NULL, TSR_LOG_INFO);
    if (status == TSR_OK) {
        budget = decision.budget;
        tsr_decision_free(&decision);
    } else if (!strstr(tsr_last_error(), "memory_budget allows "))
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
    return budget;
}

/* The screen of a plan for a card that is not here: nobody knows whether it fits, and CUDA's own memory is counted. */
static void test_screen_of_no_card(void **state)
{
    (void)state;
    const tsr_room room = {.free = TSR_BUDGET_UNKNOWN};
    const tsr_largest none = {0};
    tsr_job_options options = plan_options(0, config_text("short.jsonl", ""));
    tsr_job *job;
    tsr_decision d;
    tsr_auto_text text = {0};
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_int_equal(tsr_decide(&d, &job->inputs, &job->view, true, &room, &job->speeds), TSR_OK);
    job->inputs.cuda = true;
    d.reserve = TSR_CUDA_RESERVE_BYTES;
    assert_int_equal(
        tsr_decision_screen(&text, &d, &job->inputs, &job->view, &job->speeds, &none, NULL),
        TSR_OK);
    if (strncmp(text.data, "plan     needs 1.0", 18) != 0 ||
        !strstr(text.data, " GiB of a GPU; none is here and memory_budget"))
        fail_msg("%s", text.data);
    assert_non_null(strstr(text.data, "%  CUDA's context, modules and libraries\n"));
    job->inputs.cuda = false;
    tsr_decision_free(&d);
    tsr_job_destroy(job);
}

/* What is not there is neither planned with nor advised; what is advised fits. */
static void test_others_on_the_card(void **state)
{
    (void)state;
    static const char *const asked[] = {"", "memory_budget: 6GiB\n"};
    tsr_room room = {.free = 2 * GIB, .total = 8 * GIB, .rank = 3, .card = 1};
    assert_int_equal(budget_on(&room, ""), room.free);
    assert_string_equal(warned, "");
    assert_int_equal(budget_on(&room, asked[1]), room.free);
    if (!strstr(warned, "memory_budget is more than there is: the plan has 2.00 GiB (other "))
        fail_msg("%s", warned);
    for (int i = 0; i < 2; i++) {
        room.free = 1 << 20;
        assert_int_equal(budget_on(&room, asked[i]), 0);
        if (!strstr(tsr_last_error(), "allows 1.00 MiB a rank (other processes and this one's CUDA "
                                      "context hold 8.00 GiB of the 8.00 GiB of rank 3's GPU 1)") ||
            strstr(advice(tsr_last_error()), "memory_budget: "))
            fail_msg("%s", tsr_last_error());
        const char *found =
            strstr(advice(tsr_last_error()), "end what else runs on rank 3's GPU 1");
        assert_non_null(found);
        unsigned long long mib = strtoull(strstr(found, "with ") + 5, NULL, 10);
        room.free = mib << 20;
        assert_int_equal(budget_on(&room, asked[i]), room.free);
    }
    /* What is in use may be this process' own context: then the configuration is believed, but no card has more than all. */
    room.free = 8 * GIB - GIB / 2;
    assert_int_equal(budget_on(&room, "memory_budget: 7936MiB\n"), 7936ull << 20);
    assert_string_equal(warned, "");
    assert_int_equal(budget_on(&room, "memory_budget: 9GiB\n"), room.total);
    room = (tsr_room){.free = 1 << 20, .total = 2 << 20};
    assert_int_equal(budget_on(&room, ""), 0);
    assert_non_null(strstr(advice(tsr_last_error()), "a GPU with "));
}

static void test_what_does_not_go_together(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"shard_group_size: 3\n", "shard_group_size is 3, but the job has 4 ranks"},
        {"activation_offloading: true\ngradient_checkpointing: sqrt\n",
         "gradient_checkpointing: sqrt most have none"}};
    for (int i = 0; i < 2; i++) {
        tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
        assert_int_equal(plan_only(&info, 4, config_text("short.jsonl", cases[i][0])), TSR_ECONFIG);
        assert_non_null(strstr(tsr_last_error(), cases[i][1]));
    }
}

/* ---- the data ---- */

/* Rows of 200 tokens at most, each one document. */
static void write_long(void)
{
    FILE *file = fopen(scratch_path("long.jsonl"), "w");
    for (int i = 0; file && i < 8; i++) {
        fputs("{\"input_ids\": [1", file);
        for (int j = 1; j < (i % 4 == 1 ? 200 : 20 + i); j++)
            fprintf(file, ", %d", (i * 37 + j * 11) % 4096);
        fputs("]}\n", file);
    }
    if (!file || fclose(file) != 0)
        fail_msg("cannot write the data");
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("short.jsonl", 10, 4096, 5);
    write_long();
    return 0;
}

static int remove_output(void **state)
{
    (void)state;
    remove_files();
    return 0;
}

#define TEST(function) cmocka_unit_test_teardown(function, remove_output)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_layers_degrade_one_by_one),
        TEST(test_base_moves_to_the_host),
        TEST(test_activations_move),
        TEST(test_some_activations_move),
        TEST(test_state_moves),
        TEST(test_a_budget_moves_more),
        TEST(test_a_budget_keeps_units),
        TEST(test_plan_is_what_a_run_takes),
        TEST(test_plan_without_data),
        TEST(test_plan_lists_shapes),
        TEST(test_advice_recompute),
        TEST(test_advice_offload),
        TEST(test_advice_activations_and_state),
        TEST(test_advice_tokens),
        TEST(test_advice_budget),
        TEST(test_screen_of_no_card),
        TEST(test_others_on_the_card),
        TEST(test_what_does_not_go_together),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
