/*
 * environment.c: what this machine and this build are good for: `tessera env`.
 */
#include "base/aside.h"
#include "base/auto.h"
#include "base/phase.h"
#include "base/regex.h"
#include "base/unicode.h"
#include "base/version.h"
#include "comm/comm.h"
#include "config/yaml.h"
#include "device/topology.h"
#include "job/sized.h"
#include "kernels/gemm_block.h"
#include "kernels/kernels.h"
#include "kernels/roofs.h"
#include "planner/speeds.h"
#include "report/report.h"
#include "tessera.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MEASURE_S   1.0                   /* of each figure */
#define CPU_BYTES   ((uint64_t)512 << 20) /* half of it is copied: more than caches hold */
#define CUDA_BYTES  ((uint64_t)2 << 30)
#define PATH_LENGTH 4096

/* What was found on the way, for the list of what is missing. */
typedef struct {
    json_t *report;
    json_t *missing;
    int gpu_count;
} survey;

static void miss(survey *s, const char *what, const char *needed_for, const char *what_to_do)
{
    json_t *row = tsr_report_row(s->missing);
    tsr_report_string(row, "what", what);
    tsr_report_string(row, "needed_for", needed_for);
    tsr_report_string(row, "what_to_do", what_to_do);
}

/* ---- backends and devices ---- */

static void add_backends(survey *s)
{
    json_t *rows = tsr_report_array(s->report, "backends"), *row = tsr_report_row(rows);
    tsr_report_string(row, "name", "cpu");
    tsr_report_bool(row, "built", true);
    tsr_report_bool(row, "usable", true);
    tsr_report_string(row, "computes_in", "float32");
    bool built = tsr_device_cuda_built();
    tsr_status status = tsr_device_cuda_count(&s->gpu_count);
    if (status < 0)
        s->gpu_count = 0;
    row = tsr_report_row(rows);
    tsr_report_string(row, "name", "cuda");
    tsr_report_bool(row, "built", built);
    tsr_report_bool(row, "usable", s->gpu_count > 0);
    tsr_report_string(row, "computes_in", "bfloat16, float32");
    if (!built)
        miss(s, "CUDA backend", "training on GPUs",
             "build where CMake finds nvcc (CUDA 12.4 or newer), cublasLt.h and nccl.h");
    else if (s->gpu_count == 0)
        miss(s, "a GPU", "backend: cuda",
             status < 0 ? tsr_last_error()
                        : "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES");
}

/* Each card is opened for its name and memory. */
static void add_gpus(survey *s)
{
    json_t *rows = tsr_report_array(s->report, "gpus");
    for (int i = 0; i < s->gpu_count; i++) {
        const tsr_device_options options = {.local_rank = i, .local_rank_count = s->gpu_count};
        json_t *row = tsr_report_row(rows);
        tsr_device *device;
        uint64_t free_bytes = 0, total = 0;
        tsr_report_int(row, "index", (uint64_t)i);
        if (tsr_device_create_cuda(&device, &options) < 0) {
            tsr_report_string(row, "device", tsr_last_error());
            continue;
        }
        tsr_report_string(row, "device", tsr_device_description(device));
        if (tsr_device_memory(&free_bytes, &total, device) == TSR_OK) {
            tsr_report_int(row, "memory_bytes", total);
            tsr_report_int(row, "memory_free_bytes", free_bytes);
        }
        if (tsr_kernels_fp8_supported(device) == TSR_OK)
            tsr_report_string(row, "base_compute", "dtype, fp8");
        else /* why not fp8 */
            tsr_report_string(row, "base_compute", tsr_last_error());
        tsr_device_destroy(device);
    }
}

static void add_vectors(json_t *cpu)
{
    json_t *sets = tsr_report_array(cpu, "vector_extensions");
#if defined(__x86_64__)
#define SET(name)                                                                                  \
    if (__builtin_cpu_supports(name) && sets)                                                      \
        json_array_append_new(sets, json_string(name));
    __builtin_cpu_init();
    SET("sse4.2")
    SET("avx")
    SET("avx2")
    SET("fma")
    SET("avx512f")
    SET("avx512bw")
    SET("avx512vl")
    SET("avx512vnni")
    SET("avx512bf16")
#undef SET
#elif defined(__aarch64__)
    if (sets)
        json_array_append_new(sets, json_string("neon"));
#endif
}

static tsr_status add_cpu(survey *s)
{
    tsr_topology *topology;
    tsr_topology_facts facts;
    TSR_TRY(tsr_topology_create(&topology, 0, 1, NULL));
    tsr_topology_describe(&facts, topology);
    json_t *cpu = tsr_report_object(s->report, "cpu");
    tsr_report_string(cpu, "model", tsr_topology_model(topology));
    tsr_report_int(cpu, "cores_usable", (uint64_t)tsr_topology_core_count(topology));
    add_vectors(cpu);
    tsr_report_string(cpu, "kernels", tsr_kernels_cpu_set());
    tsr_report_int(cpu, "memory_bytes", facts.memory_bytes);
    tsr_report_int(cpu, "memory_free_bytes", facts.memory_free_bytes);
    if (facts.memory_limit_bytes)
        tsr_report_int(cpu, "memory_limit_bytes", facts.memory_limit_bytes);
    json_t *t = tsr_report_object(s->report, "topology");
    tsr_report_int(t, "packages", (uint64_t)facts.packages);
    tsr_report_int(t, "numa_nodes", (uint64_t)facts.numa_nodes);
    tsr_report_int(t, "cores", (uint64_t)facts.cores);
    tsr_report_int(t, "hardware_threads", (uint64_t)facts.threads);
    tsr_report_int(t, "last_level_cache_bytes", facts.last_level_cache_bytes);
    tsr_topology_destroy(topology);
    return TSR_OK;
}

/* ---- libraries and limits ---- */

/* MPI says several lines of where it was built. */
static void add_mpi(json_t *libraries)
{
    TSR_AUTO_FREE char *text = malloc(TSR_MPI_LIBRARY_BYTES);
    if (!text)
        return;
    tsr_comm_mpi_library(text);
    text[strcspn(text, ",\n")] = 0;
    tsr_report_string(libraries, "mpi", text);
}

/* One that is loaded when a job on a GPU needs it: its version, or why there is none. */
static void add_loaded(survey *s, json_t *libraries, const char *name, const char *needed_for,
                       tsr_status (*version)(tsr_library_version *out))
{
    char text[48];
    tsr_library_version v;
    if (version(&v) < 0) {
        miss(s, name, needed_for, tsr_last_error());
        return;
    }
    snprintf(text, sizeof text, "%d.%d.%d", v.major, v.minor, v.patch);
    tsr_report_string(libraries, name, text);
}

static void add_libraries(survey *s)
{
    char hwloc[32];
    json_t *l = tsr_report_object(s->report, "libraries");
    tsr_topology_library(hwloc);
    add_mpi(l);
    tsr_report_string(l, "hwloc", hwloc);
    tsr_report_string(l, "openblas", tsr_gemm_block_library());
    tsr_report_string(l, "jansson", jansson_version_str());
    tsr_report_string(l, "libyaml", tsr_yaml_library());
    tsr_report_string(l, "oniguruma", tsr_regex_library());
    tsr_report_string(l, "utf8proc", tsr_unicode_library());
    if (!tsr_device_cuda_built())
        return;
    add_loaded(s, l, "cublaslt", "training on GPUs", tsr_kernels_cublaslt_version);
    add_loaded(s, l, "nccl", "training on several GPUs", tsr_comm_nccl_version);
    add_loaded(s, l, "cudnn", "the faster attention on GPUs", tsr_kernels_cudnn_version);
}

static void add_limits(survey *s)
{
    struct rlimit limit;
    json_t *limits = tsr_report_object(s->report, "limits");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    bool unlimited = limit.rlim_cur == RLIM_INFINITY;
    if (unlimited)
        tsr_report_string(limits, "locked_memory_bytes", "unlimited");
    else
        tsr_report_int(limits, "locked_memory_bytes", limit.rlim_cur);
    if (!unlimited && tsr_device_cuda_built())
        miss(s, "locked memory (RLIMIT_MEMLOCK)", "base weights in pinned host memory (offload)",
             "ulimit -l unlimited, or memlock in /etc/security/limits.conf; only where pinning "
             "fails");
}

static bool in_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[PATH_LENGTH];
    while (path && *path) {
        size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);
        if (access(file, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* ---- roofs ---- */

static tsr_status add_copy(json_t *roofs, const char *key, tsr_roofs *rig, tsr_roof_copy kind)
{
    tsr_roof roof;
    TSR_TRY(tsr_roofs_copy(&roof, rig, kind, MEASURE_S));
    const json_t *before = json_object_get(roofs, key);
    if (!before || json_real_value(before) < roof.rate)
        tsr_report_real(roofs, key, roof.rate);
    return TSR_OK;
}

/* The faster of a layer's linear and a cube. */
static tsr_status add_matmul(json_t *roofs, const char *key, tsr_roofs *rig, tsr_dtype dtype,
                             bool large)
{
    const tsr_roofs_matmul_shape shapes[2] = {
        {large ? 8192 : 1024, large ? 14336 : 2816, large ? 4096 : 1024, true, dtype},
        {large ? 8192 : 1024, large ? 8192 : 1024, large ? 8192 : 1024, true, dtype}};
    double most = 0;
    for (int i = 0; i < 2; i++) {
        tsr_roof roof;
        TSR_TRY(tsr_roofs_matmul(&roof, rig, &shapes[i], MEASURE_S));
        most = roof.rate > most ? roof.rate : most;
    }
    tsr_report_real(roofs, key, most);
    return TSR_OK;
}

/* Of a card that has them, with a library that has them. */
static tsr_status add_matmul_fp8(json_t *roofs, tsr_roofs *rig)
{
    tsr_status status =
        add_matmul(roofs, tsr_speed_name(TSR_SPEED_MATMUL_FP8, TSR_BF16), rig, TSR_F8_E4M3, true);
    return status == TSR_EUNSUPPORTED ? TSR_OK : status;
}

/* Of an 8B model's heads; what the CPU's caches hold is enough there. */
static tsr_status add_attention(json_t *roofs, tsr_roofs *rig, bool cuda)
{
    const tsr_roofs_attention_shape shape = {cuda ? 4 : 1,    cuda ? 2048 : 512,
                                             cuda ? 32 : 8,   cuda ? 8 : 2,
                                             cuda ? 128 : 64, cuda ? TSR_BF16 : TSR_F32};
    tsr_roof forward, backward;
    TSR_TRY(tsr_roofs_attention(&forward, &backward, rig, &shape, MEASURE_S));
    tsr_report_real(roofs, "attention_forward_flops_per_s", forward.rate);
    tsr_report_real(roofs, "attention_backward_flops_per_s", backward.rate);
    return TSR_OK;
}

/* All in bytes/s and FLOP/s; copies inside a memory count what they read and write. */
static tsr_status measure_device(json_t *roofs, tsr_device *device, bool cuda)
{
    const tsr_kernels *kernels;
    tsr_roofs *rig;
    TSR_TRY(tsr_kernels_open(&kernels, device));
    TSR_TRY(tsr_roofs_open(&rig, kernels, device, cuda ? CUDA_BYTES : CPU_BYTES));
    tsr_status status = add_copy(roofs, "copy_bytes_per_s", rig, TSR_ROOF_COPY_OP);
    if (status == TSR_OK)
        status = add_copy(roofs, "copy_bytes_per_s", rig, TSR_ROOF_COPY_STREAM);
    if (status == TSR_OK && cuda)
        status = add_copy(roofs, "host_to_device_bytes_per_s", rig, TSR_ROOF_HOST_TO_DEVICE);
    if (status == TSR_OK && cuda)
        status = add_copy(roofs, "device_to_host_bytes_per_s", rig, TSR_ROOF_DEVICE_TO_HOST);
    if (status == TSR_OK && cuda)
        status = add_matmul(roofs, "matmul_bfloat16_flops_per_s", rig, TSR_BF16, true);
    if (status == TSR_OK && cuda)
        status = add_matmul_fp8(roofs, rig);
    if (status == TSR_OK)
        status = add_matmul(roofs, "matmul_float32_flops_per_s", rig, TSR_F32, cuda);
    if (status == TSR_OK)
        status = add_attention(roofs, rig, cuda);
    tsr_roofs_close(rig);
    return status;
}

/* For the plans that are made here later. */
static void keep(const tsr_device *device, const json_t *row)
{
    TSR_AUTO_FREE char *text = json_dumps(row, JSON_INDENT(1));
    if (text)
        tsr_speeds_save(device, text);
}

/* The host, and the first GPU: those of a node are alike. */
static tsr_status add_roofs(survey *s)
{
    json_t *rows = tsr_report_array(s->report, "roofs");
    for (int cuda = 0; cuda <= (s->gpu_count > 0); cuda++) {
        const tsr_device_options options = {.local_rank_count = cuda ? s->gpu_count : 1};
        tsr_device *device;
        TSR_TRY(cuda ? tsr_device_create_cuda(&device, &options)
                     : tsr_device_create_cpu(&device, &options));
        json_t *row = tsr_report_row(rows);
        tsr_report_string(row, "device", tsr_device_description(device));
        uint64_t free_bytes, total;
        if (cuda && tsr_device_memory(&free_bytes, &total, device) == TSR_OK)
            tsr_report_int(row, "memory_bytes", total);
        tsr_status status = measure_device(row, device, cuda);
        if (status == TSR_OK)
            keep(device, row);
        tsr_device_destroy(device);
        TSR_TRY(status);
    }
    return TSR_OK;
}

static tsr_status look_around(survey *s, bool measure)
{
    tsr_report_string(s->report, "version", tsr_build_version());
    tsr_report_string(s->report, "commit", tsr_build_commit());
    add_backends(s);
    TSR_TRY(add_cpu(s));
    add_gpus(s);
    add_libraries(s);
    add_limits(s);
    if (!in_path("mpirun"))
        miss(s, "mpirun", "several ranks",
             "install the package of the MPI above, or add it to PATH");
    json_object_set(s->report, "missing", s->missing);
    return measure ? add_roofs(s) : TSR_OK;
}

tsr_status tsr_environment(const tsr_job_options *options, int measure, int json, char **text)
{
    if (!text)
        return tsr_fail(TSR_EINVAL, "tsr_environment: text is NULL");
    tsr_job_options taken = TSR_JOB_OPTIONS_INIT;
    if (options)
        TSR_TRY(tsr_job_options_take(&taken, options));
    survey s = {.report = json_object(), .missing = json_array()};
    tsr_aside aside = {0};
    tsr_aside_begin(&aside);
    const tsr_phase_listener former = tsr_phase_get();
    tsr_phase_set(taken.progress, taken.user);
    tsr_status status = look_around(&s, measure);
    tsr_phase_set(former.sink, former.user);
    json_decref(s.missing);
    if (status < 0)
        json_decref(s.report);
    else
        status = tsr_report_print(text, s.report, json);
    tsr_aside_end(&aside);
    return status;
}
