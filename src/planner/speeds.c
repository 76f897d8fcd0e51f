#include "planner/speeds.h"

#include "base/called.h"
#include "io/json.h"
#include "kernels/kernels.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A figure: its key, what bench_roofs calls it and in which unit, and what is built in: a value, or a
 * share of another figure.
 *
 * CUDA, bench/results: matmul, copies and attention of h200_one_gpu.json (4 x 2048, 440.5 and 324.1 of
 * 684.5 TFLOP/s); link of h200x2_two_slots.json (half of a layer's 112.5 MB in 0.363 ms). Assumed, not
 * measured in bench/results: that the host feeds eight cards 4.3 times as fast as one, 400 Gbit/s of
 * network for each card, latencies, and a 14th of bf16's rate in fp32. e4m3: h200_ops.json, 1223 of 687 TFLOP/s.
 * CPU: matmul of cpu_tiny-llama.json; everything else is assumed: a copy of memory, on two cores. */
typedef struct {
    const char *key, *bench;
    double unit, cuda, cpu;
    int of; /* cuda and cpu are shares of this figure; -1: values */
} figure;

static const figure figures[TSR_SPEED_COUNT] = {
    [TSR_SPEED_MATMUL] = {"matmul_bfloat16_flops_per_s", "gemm_tflop_s", 1e12, 684.5e12, 216e9, -1},
    [TSR_SPEED_MATMUL_FP8] = {"matmul_fp8_flops_per_s", "fp8_gemm_tflop_s", 1e12, 1.78, 0.3,
                              TSR_SPEED_MATMUL},
    [TSR_SPEED_COPY] = {"copy_bytes_per_s", "copy_gb_s", 1e9, 4192e9, 20e9, -1},
    [TSR_SPEED_ATTENTION_FORWARD] = {"attention_forward_flops_per_s", NULL, 0, 440.5 / 684.5, 1,
                                     TSR_SPEED_MATMUL},
    [TSR_SPEED_ATTENTION_BACKWARD] = {"attention_backward_flops_per_s", NULL, 0, 324.1 / 684.5, 1,
                                      TSR_SPEED_MATMUL},
    [TSR_SPEED_TO_DEVICE] = {"host_to_device_bytes_per_s", "h2d_gb_s", 1e9, 55.4 / 4192, 0.5,
                             TSR_SPEED_COPY},
    [TSR_SPEED_TO_HOST] = {"device_to_host_bytes_per_s", "d2h_gb_s", 1e9, 1, 1,
                           TSR_SPEED_TO_DEVICE},
    [TSR_SPEED_NODE_TO_DEVICE] = {"node_to_device_bytes_per_s", NULL, 0, 4.3, 1,
                                  TSR_SPEED_TO_DEVICE},
    [TSR_SPEED_LINK] = {"link_bytes_per_s", NULL, 0, 155e9, 5e9, -1},
    [TSR_SPEED_NETWORK] = {"network_bytes_per_s", NULL, 0, 50e9, 1e9, -1},
    [TSR_LATENCY_LINK] = {"link_latency_s", NULL, 0, 3e-6, 5e-6, -1},
    [TSR_LATENCY_NETWORK] = {"network_latency_s", NULL, 0, 8e-6, 50e-6, -1},
};

#define FP32_SHARE (1.0 / 14)

/* Shares of the roofs that kernels reach, weighted by what a layer of an 8B model calls: bench_ops in
 * h200_one_gpu.json. Decoding: 4096 x 14336 and 4096 x 4096. Streaming: RMSNorm, RoPE and SwiGLU, both
 * ways. Added: h B^T and dS A onto a matrix. Narrow: dY B, dB, x A^T, dA, 0.65 at r 16 and 0.86 at r 384.
 * Merged: nf4_merge less nf4_dequant, 0.79 and 0.90 at r 384.
 *
 * Grouped: with the same number of rows for each expert, a layer's four matmuls reach 0.87 of bf16's roof (h200_peers.json)
 * and 0.68 of e4m3's (h200_experts_fp8.json). In a step experts have 63 to 1573 rows: its timeline there shows 0.75 and
 * 0.57, and 0.55 fits the steps in e4m3 better. In bf16 sums of 2880 reach 0.88 in the steps of gpt-oss-20b, where those of
 * 768 to 2048 reach 0.75: 1.06, with 600 summands for a tile's begin and end (model/node_experts.c), fits both
 * (h200_decoded.json).
 *
 * Ends: half a wave of a matmul's tiles, fitted to h200_sweep.json and h200x4_tokens_offload.json, 512 to 4096 tokens.
 *
 * attention_ends: of 8192 tokens as 16 x 512 to 1 x 8192 and of 1 x 16384, cuDNN reaches forward 274, 466 (4 x 2048), 534,
 * 575 and 617 TFLOP/s, backward with the most workspace 189, 334, 392, 424 and 418 (h200_attention.json): as if each
 * token saw 385 others more. Our own backward reaches 203 to 514 there.
 *
 * slows: h200x4_tokens_offload.json, 16 layers: gathers of 32 x 0.36 (2 ranks) and 0.54 ms (4) make steps of 1024 to
 * 8192 tokens 0.6 to 2.3 ms longer than those whose units all stay; 0.12 of their time. h200_one_gpu.json, 16
 * layers: copies of 83.9 ms made 251.6 ms last 254.7. host_reached: steps of gpt-oss-20b within 14
 * GiB wait 12 ms of 329 for copies that take 298 alone (h200_gpt_oss.json). */
static const tsr_speeds cuda_costs = {.rates = {.reached = {[TSR_WORK_MATMUL] = 1,
                                                            [TSR_WORK_MATMUL_FP8] = 1,
                                                            [TSR_WORK_GROUPED] = 1.06,
                                                            [TSR_WORK_GROUPED_FP8] = 0.55,
                                                            [TSR_WORK_NARROW] = 0.70,
                                                            [TSR_WORK_ADDED] = 0.55,
                                                            [TSR_WORK_MERGED] = 0.87,
                                                            [TSR_WORK_ATTEND] = 1,
                                                            [TSR_WORK_ATTEND_BACK] = 1,
                                                            [TSR_WORK_STREAM] = 0.89,
                                                            [TSR_WORK_DECODE] = 0.82},
                                                .ends_s = {[TSR_WORK_MATMUL] = 20e-6,
                                                           [TSR_WORK_MATMUL_FP8] = 20e-6,
                                                           [TSR_WORK_GROUPED] = 20e-6,
                                                           [TSR_WORK_GROUPED_FP8] = 20e-6,
                                                           [TSR_WORK_NARROW] = 6e-6,
                                                           [TSR_WORK_ADDED] = 6e-6,
                                                           [TSR_WORK_MERGED] = 6e-6,
                                                           [TSR_WORK_ATTEND] = 6e-6,
                                                           [TSR_WORK_ATTEND_BACK] = 6e-6,
                                                           [TSR_WORK_STREAM] = 6e-6,
                                                           [TSR_WORK_DECODE] = 6e-6}},
                                      .attention_ends = 385,
                                      .link_slows = 0.12,
                                      .host_slows = 0.037,
                                      .host_reached = 0.93};

/* The step of cpu_tiny-llama.json takes 1.40 times its FLOPs at the rate of a matmul. */
#define CPU_SHARE 0.71

/* ---- values ---- */

const char *tsr_speed_name(tsr_speed speed, tsr_dtype compute)
{
    if (speed == TSR_SPEED_MATMUL && compute == TSR_F32)
        return "matmul_float32_flops_per_s";
    return figures[speed].key;
}

/* Everything that is not known, from what is. */
static void complete(tsr_speeds *s)
{
    for (int i = 0; i < TSR_SPEED_COUNT; i++) {
        double value = s->cuda ? figures[i].cuda : figures[i].cpu;
        if (s->known[i])
            continue;
        if (figures[i].of >= 0)
            value *= s->value[figures[i].of];
        if (i == TSR_SPEED_MATMUL && s->cuda && s->compute == TSR_F32)
            value *= FP32_SHARE;
        if (i == TSR_SPEED_MATMUL_FP8 && s->cuda && s->compute == TSR_F32)
            value /= FP32_SHARE;
        s->value[i] = value;
    }
    s->measured = s->known[TSR_SPEED_MATMUL] && s->known[TSR_SPEED_COPY];
    s->rates = cuda_costs.rates;
    s->attention_ends = s->cuda ? cuda_costs.attention_ends : 0;
    s->link_slows = s->cuda ? cuda_costs.link_slows : 0;
    s->host_slows = s->cuda ? cuda_costs.host_slows : 0;
    s->host_reached = s->cuda ? cuda_costs.host_reached : 1;
    for (int i = 0; !s->cuda && i < TSR_WORK_KINDS; i++) {
        s->rates.reached[i] = CPU_SHARE;
        s->rates.ends_s[i] = 0;
    }
    s->rates.matmul = s->value[TSR_SPEED_MATMUL];
    s->rates.matmul_fp8 = s->value[TSR_SPEED_MATMUL_FP8];
    s->rates.copy = s->value[TSR_SPEED_COPY];
    s->rates.attention_forward = s->value[TSR_SPEED_ATTENTION_FORWARD];
    s->rates.attention_backward = s->value[TSR_SPEED_ATTENTION_BACKWARD];
}

void tsr_speeds_default(tsr_speeds *out, bool cuda, tsr_dtype compute)
{
    *out = (tsr_speeds){.cuda = cuda, .compute = compute};
    complete(out);
}

/* ---- files ---- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = key ? json_object_get(object, key) : NULL;
    return json_number_value(value) > 0 ? json_number_value(value) : 0;
}

/* What no machine sustains would only make the times of a plan infinite, which its simulation does not survive. */
static bool is_plausible(tsr_speed speed, double value)
{
    bool latency = speed == TSR_LATENCY_LINK || speed == TSR_LATENCY_NETWORK;
    return latency ? value >= 1e-9 && value <= 60 : value >= 1e3 && value <= 1e24;
}

/* *odd: the key of a figure that cannot be; NULL: there is none. */
static void take(tsr_speeds *out, const char **odd, const json_t *roofs)
{
    *odd = NULL;
    for (tsr_speed i = 0; i < TSR_SPEED_COUNT; i++) {
        double value = number(roofs, tsr_speed_name(i, out->compute));
        bool benched = value <= 0 && (i != TSR_SPEED_MATMUL || out->compute == TSR_BF16);
        if (benched)
            value = figures[i].unit * number(roofs, figures[i].bench);
        out->known[i] = value > 0;
        out->value[i] = value;
        if (out->known[i] && !is_plausible(i, value))
            *odd = benched ? figures[i].bench : tsr_speed_name(i, out->compute);
    }
    const char *device = json_string_value(json_object_get(roofs, "device"));
    snprintf(out->device, sizeof out->device, "%s", device ? device : "a device without a name");
    double memory = number(roofs, "memory_bytes");
    if (memory > 0x1p60)
        *odd = "memory_bytes";
    out->memory_bytes = *odd ? 0 : (uint64_t)memory;
    complete(out);
}

/* The object with the figures: the file's own, its "roofs", or of several the one that has them. */
static bool take_file(tsr_speeds *out, const char **odd, const json_t *file, bool cuda,
                      tsr_dtype compute)
{
    const json_t *roofs = json_object_get(file, "roofs");
    size_t count = json_array_size(roofs), last = count > 0 ? count - 1 : 0;
    if (!roofs)
        roofs = file;
    if (json_is_array(roofs)) /* of env: the CPU's, then a GPU's */
        roofs = json_array_get(roofs, cuda ? last : 0);
    *out = (tsr_speeds){.cuda = cuda, .compute = compute};
    take(out, odd, roofs);
    return out->measured && (!cuda || count != 1);
}

tsr_status tsr_speeds_read(tsr_speeds *out, const char *path, bool cuda, tsr_dtype compute)
{
    json_t *file;
    const char *odd;
    TSR_TRY(tsr_json_load(&file, path));
    bool found = take_file(out, &odd, file, cuda, compute);
    json_decref(file);
    if (!found)
        return tsr_fail(TSR_EDATA,
                        "--roofs %s: there are no figures of a %s; expected %s and "
                        "copy_bytes_per_s, as `%s env --measure --json` prints them, or a result "
                        "of bench/run_gpu",
                        path, cuda ? "GPU" : "CPU", tsr_speed_name(TSR_SPEED_MATMUL, compute),
                        tsr_called());
    if (odd)
        return tsr_fail(TSR_EDATA,
                        "--roofs %s: %s is of no machine; expected 1e3 to 1e24 a second, latencies "
                        "from 1e-9 to 60 "
                        "seconds, at most 2^60 bytes of memory",
                        path, odd);
    snprintf(out->source, sizeof out->source, "%s", path);
    return TSR_OK;
}

/* ---- the cache ---- */

static bool find_place(tsr_cache_place *out, const tsr_device *device)
{
    tsr_text key = {0};
    tsr_library_version v = {0, 0, 0};
    bool cuda = tsr_device_kind_of(device) != TSR_DEVICE_CPU;
    if (cuda)
        (void)tsr_kernels_cublaslt_version(&v);
    /* Of a CPU the model and its cores, not the threads that this rank has of it. */
    const char *name = tsr_device_description(device), *end = strchr(name, ')');
    tsr_text_append(&key, name, !cuda && end ? (size_t)(end - name) : strlen(name));
    tsr_text_printf(&key, "; %s; %d.%d.%d", cuda ? "cublaslt" : tsr_kernels_cpu_set(), v.major,
                    v.minor, v.patch);
    bool found = !key.failed && tsr_cache_find(out, "roofs", &key, "json");
    tsr_text_free(&key);
    return found;
}

void tsr_speeds_find(tsr_speeds *out, const tsr_device *device, tsr_dtype compute)
{
    tsr_cache_place place;
    bool cuda = tsr_device_kind_of(device) != TSR_DEVICE_CPU;
    char *text = find_place(&place, device) ? tsr_cache_read(place.file) : NULL;
    json_t *file = text ? json_loads(text, 0, NULL) : NULL;
    const char *odd = NULL;
    if (!file || !take_file(out, &odd, file, cuda, compute) || odd)
        tsr_speeds_default(out, cuda, compute);
    else
        snprintf(out->source, sizeof out->source, "%s", place.file);
    json_decref(file);
    free(text);
}

void tsr_speeds_save(const tsr_device *device, const char *text)
{
    tsr_cache_place place;
    if (find_place(&place, device))
        tsr_cache_write(&place, text, strlen(text));
}
