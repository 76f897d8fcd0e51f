/*
 * What a plan says of itself: every buffer with its shape, its bytes and what it is for; and the largest
 * micro-batch, sequence and model that would fit, which is tried: that fits, and one more does not.
 */
#include "support/comma_locale.h"
#include "support/scratch.h"
#include "tessera.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

static const char *const places[] = {"device", "host", "node"};

/* A directory with nothing but the config.json of a small model. */
static const char *model_of(const char *type, int layers)
{
    char name[64], text[1024];
    snprintf(name, sizeof name, "%s-%d", type, layers);
    const char *directory = scratch_path(name);
    assert_true(mkdir(directory, 0777) == 0 || errno == EEXIST);
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"vocab_size\": 1000, \"hidden_size\": 64, \"head_dim\": 16,"
             "\"intermediate_size\": 160, \"num_hidden_layers\": %d, \"num_attention_heads\": 4,"
             "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\","
             "\"max_position_embeddings\": 4096, \"rope_theta\": 10000.0}",
             type, layers);
    snprintf(name, sizeof name, "%s-%d/config.json", type, layers);
    write_text(scratch_path(name), text);
    return directory;
}

/* NULL: the library was not to plan it; *status says why. */
static char *screen_of(int *status, const char *type, int layers, int ranks, const char *more,
                       const char *roofs)
{
    char config[4096], *text = NULL;
    snprintf(config, sizeof config, "model_name_or_path: %s\nbackend: cpu\n%s",
             model_of(type, layers), more);
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = config,
                               .purpose = TSR_JOB_PLAN,
                               .plan_ranks = ranks,
                               .plan_roofs = roofs,
                               .threads = 1};
    tsr_job *job;
    if (tsr_job_create(&job, &options) < 0)
        fail_msg("%s", tsr_last_error());
    *status = tsr_job_print_plan(job, TSR_PLAN_SCREEN, &text);
    tsr_job_destroy(job);
    return text;
}

static char *screen(int *status, const char *type, int layers, int ranks, const char *more)
{
    return screen_of(status, type, layers, ranks, more, NULL);
}

static char warnings[1024];

static void add_warning(void *user, int severity, const char *line)
{
    (void)user;
    if (severity == TSR_JOB_WARNING)
        strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

static char *printed(const char *type, int layers, int ranks, const char *more, int json)
{
    char config[4096], *text = NULL;
    snprintf(config, sizeof config, "model_name_or_path: %s\nbackend: cpu\n%s",
             model_of(type, layers), more);
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = config,
                               .purpose = TSR_JOB_PLAN,
                               .plan_ranks = ranks,
                               .log = add_warning,
                               .threads = 1};
    tsr_job *job;
    if (tsr_job_create(&job, &options) < 0)
        fail_msg("%s", tsr_last_error());
    if (tsr_job_print_plan(job, json, &text) < 0 && !strstr(tsr_last_error(), "memory_budget"))
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
    return text;
}

/* NULL: it does not fit. */
static json_t *plan(const char *type, int layers, int ranks, const char *more)
{
    json_error_t error;
    char *text = printed(type, layers, ranks, more, 1);
    json_t *out = text ? json_loads(text, 0, &error) : NULL;
    if (text && !out)
        fail_msg("%s in: %s", error.text, text);
    free(text);
    return out;
}

static uint64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static const char *word(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    assert_non_null(value);
    return value;
}

static uint64_t element_bytes(const char *dtype)
{
    static const char *const names[] = {"U8", "F8_E4M3", "BF16", "F32", "F64", "I64"};
    static const uint64_t bytes[] = {1, 1, 2, 4, 8, 8};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(dtype, names[i]) == 0)
            return bytes[i];
    fail_msg("dtype %s", dtype);
    return 0;
}

/* ---- buffers ---- */

/* Sums per place: as they are, and each rounded up. */
static void check_buffers(const json_t *buffers, uint64_t exact[3], uint64_t rounded[3])
{
    size_t i;
    const json_t *buffer;
    json_array_foreach(buffers, i, buffer)
    {
        size_t place = 0, d;
        uint64_t bytes = element_bytes(word(buffer, "dtype"));
        const json_t *size;
        while (strcmp(places[place], word(buffer, "place")) != 0)
            assert_true(++place < 3);
        json_array_foreach(json_object_get(buffer, "shape"), d, size) bytes *=
            (uint64_t)json_integer_value(size);
        if (bytes != number(buffer, "bytes"))
            fail_msg("%s: its shape has %" PRIu64 " bytes", word(buffer, "name"), bytes);
        if (!word(buffer, "why")[0])
            fail_msg("nothing says what %s is for", word(buffer, "name"));
        exact[place] += bytes;
        rounded[place] += (bytes + 255) / 256 * 256;
    }
}

/* The lines for people have the same bytes, those of a kind together. */
static void check_lines(const char *text, const uint64_t exact[3], size_t buffers)
{
    uint64_t sum[3] = {0};
    size_t lines = 0;
    for (const char *line = strchr(text, '\n') + 1; *line != '\n'; line = strchr(line, '\n') + 1) {
        char place[16];
        uint64_t bytes;
        assert_int_equal(sscanf(line, "%15s %" SCNu64, place, &bytes), 2);
        assert_true(memchr(line, ':', strcspn(line, "\n")) != NULL);
        for (int i = 0; i < 3; i++)
            sum[i] += strcmp(place, places[i]) == 0 ? bytes : 0;
        lines++;
    }
    assert_memory_equal(sum, exact, sizeof sum);
    assert_true(lines < buffers);
}

static bool has_buffer(const json_t *buffers, const char *name)
{
    size_t i;
    const json_t *buffer;
    json_array_foreach(buffers, i, buffer) if (!strcmp(word(buffer, "name"), name)) return true;
    return false;
}

/* What each layer keeps has a buffer of its own, unless it travels; with full recomputation it is one. */
static void check_kept(const json_t *p)
{
    size_t layer, i, layers = 0, offloaded = 0;
    const json_t *unit, *kept;
    json_array_foreach(json_object_get(p, "units"), layer, unit)
    {
        const json_t *keeps = json_object_get(unit, "keeps");
        if (!keeps)
            continue;
        bool stays = number(unit, "saved_bytes") == 0;
        offloaded += !stays;
        assert_true(json_array_size(keeps) > 0);
        assert_int_equal(json_array_size(keeps) == 1, !strcmp(word(unit, "recompute"), "full"));
        json_array_foreach(keeps, i, kept)
        {
            char name[128];
            snprintf(name, sizeof name, "layer %d %s", (int)layer, json_string_value(kept));
            assert_int_equal(has_buffer(json_object_get(p, "buffers"), name), stays);
        }
        layers++;
    }
    assert_int_equal(layers, 6);
    assert_int_equal(number(p, "offloaded_layers"), offloaded);
    assert_int_equal(json_is_true(json_object_get(p, "activation_offloading")), offloaded > 0);
}

static void test_buffers(void **state)
{
    static const struct {
        const char *type, *keys;
        int ranks;
    } cases[] = {
        {"llama", "lora_r: 4\n", 1},
        {"qwen3", "use_dora: true\nlora_dropout: 0.1\n", 2},
        {"llama", "use_dora: true\nlora_dropout: 0.1\ngradient_checkpointing: full\n", 1},
        {"llama", "offload: sharded\nactivation_offloading: true\noptimizer_offload: true\n", 2},
        {"llama", "offload: full\nresident_units: 2\ngradient_checkpointing: selective\n", 2},
        {"llama", "shard_group_size: 2\nuse_dora: true\n", 4},
        {"llama", "base_compute: fp8\nuse_dora: true\nlora_dropout: 0.1\n", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t exact[3] = {0}, rounded[3] = {0};
        json_t *p = plan(cases[i].type, 6, cases[i].ranks, cases[i].keys);
        const json_t *buffers = json_object_get(p, "buffers");
        check_buffers(buffers, exact, rounded);
        check_kept(p);
        assert_int_equal(rounded[0], number(p, "device_peak_bytes"));
        assert_int_equal(rounded[1], number(p, "host_peak_bytes"));
        assert_int_equal(rounded[2], number(p, "node_bytes"));
        char *text = printed(cases[i].type, 6, cases[i].ranks, cases[i].keys, 0);
        check_lines(text, exact, json_array_size(buffers));
        free(text);
        json_decref(p);
    }
}

/* ---- one screen ---- */

/* Lines of 24 and columns of 80 at most; of memory, eleven at most, whose shares are all of it. */
static void check_screen(const char *text, const json_t *buffers)
{
    int lines = 0, shown = 0;
    double percent = 0, share;
    for (const char *line = text, *end; *line; line = end + 1) {
        char words[128];
        size_t i;
        const json_t *buffer;
        end = strchr(line, '\n');
        assert_non_null(end);
        if (end - line > 80)
            fail_msg("a line of %d columns: %s", (int)(end - line), text);
        lines++;
        const char *sign = memchr(line, '%', (size_t)(end - line));
        if (!sign)
            continue;
        assert_int_equal(sscanf(sign - 6, "%lf %% %127[^\n]", &share, words), 2);
        percent += share;
        shown++;
        json_array_foreach(buffers, i, buffer) if (!strcmp(word(buffer, "why"), words))
            fail_msg("no user's words for %s: %s", word(buffer, "name"), words);
    }
    if (lines > 24 || shown > 11 || percent < 99.3 || percent > 100.7)
        fail_msg("%d lines, %d purposes, %.1f %%: %s", lines, shown, percent, text);
    assert_null(strstr(text, "scratch"));
}

static void test_screen(void **state)
{
    static const struct {
        const char *keys;
        int ranks;
        const char *chosen;
    } cases[] = {
        {"lora_r: 4\n", 1, "chosen   no recomputation; base on the device"},
        {"use_dora: true\nlora_dropout: 0.1\ngradient_checkpointing: full\n", 1,
         "all 6 layers recompute all of their forward"},
        {"gradient_checkpointing: sqrt\n", 1, "keeps its input"},
        {"offload: sharded\nactivation_offloading: true\noptimizer_offload: true\n", 2,
         "base in host memory over 2 ranks; activations of 6 layers in host memory; "},
        {"offload: full\nresident_units: 2\nshard_group_size: 2\n", 4,
         "base in host memory, a copy a node, 2 of 7 units kept gathered"},
        {"context_span: 32\ncontext_parallel_size: 2\n", 4,
         "context  2 ranks share each micro-batch of more than 32 tokens, span by span: of 128 "
         "tokens each has at most 64"},
        {"memory_budget: 8MiB\nactivation_offloading: false\n", 8,
         "8.00 MiB of memory_budget on the CPU, for each of 8 ranks"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[256], flat[8192];
        int status;
        snprintf(keys, sizeof keys, "max_length: 128\n%s", cases[i].keys);
        char *text = screen(&status, "llama", 6, cases[i].ranks, keys);
        json_t *p = plan("llama", 6, cases[i].ranks, keys);
        if (status < 0)
            fail_msg("%s", tsr_last_error());
        check_screen(text, json_object_get(p, "buffers"));
        assert_memory_equal(text, "fits     peak ", 14);
        assert_non_null(strstr(text, "%  base weights\n"));
        size_t used = 0;
        for (const char *t = text; *t && used + 1 < sizeof flat; t++) { /* as one line */
            bool broken = *t == '\n' && !strncmp(t + 1, "         ", 9);
            flat[used++] = broken ? ' ' : *t;
            t += broken ? 9 : 0;
        }
        flat[used] = 0;
        if (!strstr(flat, cases[i].chosen))
            fail_msg("no '%s' in: %s", cases[i].chosen, flat);
        json_decref(p);
        free(text);
    }
}

/* Of three spans one rank has two; micro-batches that are no longer than a span are nobody's but one's. */
static void test_context(void **state)
{
    static const struct {
        int span, ranks, tokens, groups;
        const char *line, *warning;
    } cases[] = {
        {48, 2, 80, 1, /* a key head each */
         "2 ranks share each micro-batch of more than 48 tokens, span by span: of 128 tokens each "
         "has at most 80 (context_parallel_size)",
         NULL},
        {64, 2, 64, 1, "for attention each rank has all rows of key heads of its own", NULL},
        {16, 3, 48, 2, "attention runs in 2 groups of key heads", NULL},
        {128, 2, 128, 1, "of more than 128 tokens, but none has more than 128 (",
         "configuration:5: context_parallel_size is 2, but no micro-batch has more than "
         "context_span "
         "tokens, 128: of each 2 ranks one computes and the others wait; write "
         "context_parallel_size: 1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[256];
        snprintf(keys, sizeof keys,
                 "max_length: 128\ncontext_span: %d\ncontext_parallel_size: %d\n", cases[i].span,
                 cases[i].ranks);
        warnings[0] = 0;
        char *text = printed("llama", 6, cases[i].ranks, keys, TSR_PLAN_BUFFERS);
        json_t *p = plan("llama", 6, cases[i].ranks, keys);
        if (!strstr(text, cases[i].line))
            fail_msg("no '%s' in: %s", cases[i].line, text);
        assert_int_equal(number(p, "context_parallel_size"), cases[i].ranks);
        assert_int_equal(number(p, "rank_tokens"), cases[i].tokens);
        assert_int_equal(number(p, "head_groups"), cases[i].groups);
        assert_true(json_is_true(json_object_get(p, "heads_of_ranks")) ==
                    (strstr(text, "heads of its own") != NULL));
        if (cases[i].warning ? !strstr(warnings, cases[i].warning) : warnings[0])
            fail_msg("%s: '%s'", keys, warnings);
        json_decref(p);
        free(text);
    }
    json_t *alone = plan("llama", 6, 2, "max_length: 128\n");
    assert_int_equal(number(alone, "context_parallel_size"), 1);
    assert_int_equal(number(alone, "rank_tokens"), 128);
    json_decref(alone);
}

/* The time of a step, where the machine is known. */
static void test_screen_time(void **state)
{
    int status;
    double seconds = 0, per_s = 0;
    (void)state;
    write_text(scratch_path("roofs.json"),
               "{\"roofs\":[{\"device\":\"CPU\",\"copy_bytes_per_s\":1e10,"
               "\"matmul_float32_flops_per_s\":1e11}]}");
    char *text = screen_of(&status, "llama", 6, 1, "max_length: 128\n", scratch_path("roofs.json"));
    const char *step = strstr(text, "\nstep     128 tokens in an expected ");
    assert_int_equal(status, 0);
    if (!step || sscanf(step, "\nstep 128 tokens in an expected %lf ms, %lf tokens/s", &seconds,
                        &per_s) != 2)
        fail_msg("%s", text);
    assert_true(seconds > 0 && seconds * 1e-3 * per_s > 127 && seconds * 1e-3 * per_s < 129);
    free(text);
    text = screen(&status, "llama", 6, 1, "max_length: 128\n");
    assert_non_null(strstr(text, "; time unknown: run `tessera env --measure`"));
    free(text);
}

/* Of what does not fit: what it needs, by how much, and what would fit; the refusal is the error still. */
static void test_screen_refused(void **state)
{
    int status;
    (void)state;
    char *text = screen(&status, "llama", 6, 1, "max_length: 128\nmemory_budget: 1MiB\n");
    assert_int_equal(status, TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "memory_budget allows 1.00 MiB"));
    assert_non_null(text);
    json_t *none = json_array();
    check_screen(text, none);
    json_decref(none);
    assert_memory_equal(text, "too big  needs at least ", 24);
    assert_non_null(strstr(text, " on the CPU; there are 1.00 MiB of memory_budget\n"));
    uint64_t mib = 0;
    const char *change = strstr(text, "memory_budget: ");
    assert_true(change && sscanf(change, "memory_budget: %" SCNu64 "MiB", &mib) == 1);
    assert_null(strstr(text, "\nchosen"));
    free(text);
    char keys[128];
    snprintf(keys, sizeof keys, "max_length: 128\nmemory_budget: %" PRIu64 "MiB\n", mib);
    text = screen(&status, "llama", 6, 1, keys);
    assert_int_equal(status, 0);
    assert_memory_equal(text, "fits", 4);
    free(text);
    text = screen(&status, "llama", 6, 1,
                  "gradient_checkpointing: sqrt\nactivation_offloading: true\n");
    assert_int_equal(status, TSR_ECONFIG);
    assert_null(text); /* another reason */
}

/* Said by the plan: that the base runs in e4m3, and that its matmuls' speed is not a measured one. */
static void test_fp8(void **state)
{
    static const char *const words[] = {"dtype", "fp8"};
    (void)state;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        char keys[64];
        snprintf(keys, sizeof keys, "base_compute: %s\n", words[fp8]);
        json_t *p = plan("llama", 6, 1, keys);
        const json_t *name, *roofs = json_object_get(json_object_get(p, "expected"), "roofs");
        const json_t *built_in = json_object_get(roofs, "built_in");
        size_t i;
        int found = 0;
        assert_string_equal(word(p, "base_compute"), words[fp8]);
        assert_true(json_array_size(built_in) > 0);
        json_array_foreach(built_in, i, name) found +=
            !strcmp(json_string_value(name), "matmul_fp8_flops_per_s");
        assert_int_equal(found, fp8);
        char *text = printed("llama", 6, 1, keys, 0);
        assert_int_equal(strstr(text, "base_compute: fp8") != NULL, fp8);
        free(text);
        json_decref(p);
    }
}

/* A line for each graph that an adapter takes, with what takes it; the same in JSON. */
static void test_graphs(void **state)
{
    static const char keys[] = "max_length: 64\nlora_target_modules: [q_proj, k_proj, "
                               "up_proj]\nrank_pattern: {k_proj: 96}\n";
    (void)state;
    char *text = printed("llama", 2, 1, keys, 0);
    json_t *p = plan("llama", 2, 1, keys);
    const json_t *graph, *graphs = json_object_get(p, "graphs");
    uint64_t tokens = 0;
    size_t i;
    int told = 0;
    assert_non_null(strstr(text, "\nadapters forward by F1: q_proj k_proj up_proj at "));
    assert_non_null(strstr(text, "\nadapters backward by B1: q_proj up_proj at "));
    assert_null(strstr(text, "by B2"));
    json_array_foreach(graphs, i, graph)
    {
        char line[128];
        const json_t *name, *range = json_object_get(graph, "tokens");
        size_t j;
        tokens = (uint64_t)json_integer_value(json_array_get(range, 1));
        assert_true(json_array_size(range) == 2 && tokens > 0);
        int length = snprintf(line, sizeof line, "\nadapters %s by %s:", word(graph, "direction"),
                              word(graph, "graph"));
        json_array_foreach(json_object_get(graph, "linears"), j, name)
        {
            length += snprintf(line + length, sizeof line - (size_t)length, " %s",
                               json_string_value(name));
            told++;
        }
        snprintf(line + length, sizeof line - (size_t)length, " at %" PRIu64 " tokens\n", tokens);
        if (!strstr(text, line))
            fail_msg("no line%s in: %s", line, text);
    }
    assert_int_equal(told, 2 * 3);
    json_decref(p);
    free(text);
}

/* Fixed graphs are PEFT's for every linear; by FLOPs the CPU chooses anyhow, and by time it cannot. */
static void test_graph_rules(void **state)
{
    static const char targets[] =
        "max_length: 64\nlora_target_modules: [q_proj, up_proj]\nlora_r: 4\n";
    char keys[256];
    (void)state;
    snprintf(keys, sizeof keys, "%slora_graph: fixed\n", targets);
    char *fixed = printed("llama", 2, 1, keys, 0);
    assert_non_null(strstr(fixed, "\nadapters forward by F1: q_proj up_proj at 64 tokens"));
    assert_non_null(strstr(fixed, "\nadapters backward by B1: q_proj up_proj at 64 tokens"));
    free(fixed);
    snprintf(keys, sizeof keys, "%slora_graph: flops\n", targets);
    char *flops = printed("llama", 2, 1, keys, 0), *automatic = printed("llama", 2, 1, targets, 0);
    assert_string_equal(flops, automatic);
    free(flops);
    free(automatic);
    snprintf(keys, sizeof keys, "model_name_or_path: %s\nbackend: cpu\nlora_graph: time\n",
             model_of("llama", 2));
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = keys,
                               .purpose = TSR_JOB_PLAN,
                               .plan_ranks = 1,
                               .threads = 1};
    tsr_job *job;
    assert_int_equal(tsr_job_create(&job, &options), TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "lora_graph: found time"));
    assert_non_null(strstr(tsr_last_error(), "write lora_graph: flops"));
}

/* An embedder with a comma as its decimal point gets the same plan, and has its comma back. */
static void test_locale(void **state)
{
    (void)state;
    locale_t comma = comma_locale();
    if (!comma) {
        print_message("no locale with a decimal comma can be made\n");
        skip();
    }
    char *want = printed("llama", 2, 1, "max_length: 64\n", 1);
    locale_t before = uselocale(comma);
    char *got = printed("llama", 2, 1, "max_length: 64\n", 1);
    assert_true(uselocale(before) == comma);
    assert_string_equal(got, want);
    freelocale(comma);
    free(want);
    free(got);
}

/* ---- the largest that fits ---- */

#define KEYS "max_length: %d\nper_device_train_batch_size: %d\nmemory_budget: %dKiB\n%s"

static json_t *sized(int layers, int length, int rows, const char *more)
{
    char keys[1024];
    snprintf(keys, sizeof keys, KEYS, length, rows, 9000, more);
    return plan("llama", layers, 2, keys);
}

static void only_the_first_fits(json_t *fits, json_t *one_more, const char *what)
{
    if (!fits || one_more)
        fail_msg("%s: the largest %s, one more %s", what, fits ? "fits" : "does not fit",
                 one_more ? "fits too" : "does not");
    json_decref(fits);
}

static double seconds_of(int layers)
{
    char keys[64];
    snprintf(keys, sizeof keys, "memory_budget: %dMiB\nmax_length: 256\n", 8 + layers / 4);
    clock_t begin = clock();
    char *text = printed("llama", layers, 2, keys, 0);
    assert_non_null(text);
    free(text);
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

/* Hundreds of plans are tried where memory is short, each of which costs no more than its layers: with four times as many
 * of these no more than about four times as much. */
static void test_many_layers(void **state)
{
    (void)state;
    double few = seconds_of(50), many = seconds_of(200);
    if (many > 8 * few)
        fail_msg("a plan of 200 layers took %.2f s, one of 50 %.2f s", many, few);
    if (few > 8)
        fail_msg("a plan of 50 layers took %.1f s", few);
}

static void test_largest(void **state)
{
    static const char *const ways[] = {
        "offload: none\ngradient_checkpointing: false\nactivation_offloading: false\n"
        "optimizer_offload: false\n",
        "offload: none\nlayers_to_transform: [1, 3]\nuse_dora: true\n",
        "rank_pattern: {q_proj: 3}\noptimizer_offload: false\nactivation_offloading: false\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        json_t *p = sized(4, 40, 2, ways[i]);
        if (!p)
            fail_msg("%s", tsr_last_error());
        const json_t *largest = json_object_get(p, "largest");
        int rows = (int)number(largest, "micro_batch_tokens") / 40;
        int sequence = (int)number(largest, "sequence_tokens");
        int layers = (int)number(largest, "layers");
        uint64_t parameters = number(largest, "parameters");
        if (rows <= 2 || sequence <= 40 || layers <= 4 || layers >= 256)
            fail_msg("%s: %d rows, %d tokens, %d layers", ways[i], rows, sequence, layers);
        only_the_first_fits(sized(4, 40, rows, ways[i]), sized(4, 40, rows + 1, ways[i]), "rows");
        only_the_first_fits(sized(4, sequence, 1, ways[i]), sized(4, sequence + 1, 1, ways[i]),
                            "sequence");
        char here[512];
        snprintf(here, sizeof here, "%s%s",
                 strstr(ways[i], "offload: none") ? "" : "offload: none\n", ways[i]);
        json_t *deep = sized(layers, 40, 2, here);
        assert_int_equal(number(deep, "parameters"), parameters);
        only_the_first_fits(deep, sized(layers + 1, 40, 2, here), "layers");
        json_decref(p);
    }
}

/* With its base on the device this model is too deep, and a shallower one lacks the layer of the adapter. */
static void test_largest_of_the_last_layer(void **state)
{
    (void)state;
    const char *keys = "load_in_4bit: false\nlayers_to_transform: [99]\n";
    json_t *p = sized(100, 40, 2, keys);
    if (!p)
        fail_msg("%s", tsr_last_error());
    assert_string_equal(word(json_array_get(json_object_get(p, "alternatives"), 0), "offload"),
                        "none");
    const json_t *largest = json_object_get(p, "largest");
    assert_true(number(largest, "micro_batch_tokens") >= 80);
    assert_int_equal(number(largest, "layers"), 0);
    json_decref(p);
    char more[512];
    snprintf(more, sizeof more, KEYS, 40, 2, 9000, keys);
    char *text = printed("llama", 100, 2, more, 0);
    assert_non_null(strstr(text, "or one row of up to "));
    assert_null(strstr(text, "such layers"));
    free(text);
}

/* To recompute never takes more than to keep, of a model of one small layer too; what is needed at least fits. */
static void test_least_of_one_layer(void **state)
{
    static const char *const targets[] = {"k_proj", "q_proj", "o_proj", "down_proj"};
    char keys[1024], one_way[512];
    (void)state;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        snprintf(one_way, sizeof one_way,
                 "offload: none\nactivation_offloading: false\noptimizer_offload: false\n"
                 "resident_units: 0\nmax_length: 40\nlora_target_modules: [%s]\n",
                 targets[i]);
        snprintf(keys, sizeof keys, "%sgradient_checkpointing: false\n", one_way);
        json_t *kept = plan("llama", 1, 1, keys);
        snprintf(keys, sizeof keys, "%sgradient_checkpointing: true\n", one_way);
        json_t *again = plan("llama", 1, 1, keys);
        uint64_t bytes = number(again, "device_peak_bytes");
        assert_true(bytes <= number(kept, "device_peak_bytes"));
        snprintf(keys, sizeof keys, "%smemory_budget: %" PRIu64 "B\n", one_way, bytes);
        json_t *fits = plan("llama", 1, 1, keys);
        if (!fits)
            fail_msg("%s", tsr_last_error());
        assert_true(number(fits, "device_peak_bytes") <= bytes);
        assert_in_range(number(json_object_get(fits, "largest"), "micro_batch_tokens"), 40, 100);
        json_decref(kept), json_decref(again), json_decref(fits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_buffers),
                                       cmocka_unit_test(test_screen),
                                       cmocka_unit_test(test_context),
                                       cmocka_unit_test(test_screen_time),
                                       cmocka_unit_test(test_screen_refused),
                                       cmocka_unit_test(test_fp8),
                                       cmocka_unit_test(test_graphs),
                                       cmocka_unit_test(test_locale),
                                       cmocka_unit_test(test_graph_rules),
                                       cmocka_unit_test(test_many_layers),
                                       cmocka_unit_test(test_largest),
                                       cmocka_unit_test(test_largest_of_the_last_layer),
                                       cmocka_unit_test(test_least_of_one_layer)};
    setenv("XDG_CACHE_HOME", "/nonexistent",
           1); /* what this machine was measured to do is not asked for */
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
