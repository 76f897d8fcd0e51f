/*
 * gemm_core.c: contract gemm_core.h.
 *
 * For a processor newer than it, OpenBLAS takes kernels of SSE3 ("Prescott": 0.3.21 does so on Emerald
 * Rapids, where they reach a fifth of its AVX-512 ones). It can be told better by a variable of the
 * environment alone, which is not a library's to set; so the build lets it ask here instead
 * (cmake/tessera.cmake), and it is told when it starts again.
 */
#include "kernels/gemm_core.h"

#include <cblas.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "OPENBLAS_CORETYPE"

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static _Atomic bool small;

#ifdef TSR_OPENBLAS_CHOICE
void gotoblas_dynamic_init(void);
void gotoblas_dynamic_quit(void);
const char *tsr_gemm_core_getenv(const char *name);

static _Thread_local const char *wanted; /* while OpenBLAS starts again */

const char *tsr_gemm_core_getenv(const char *name)
{
    return wanted && !strcmp(name, VARIABLE) ? wanted : getenv(name);
}

static bool start_again(const char *core)
{
    wanted = core;
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    wanted = NULL;
    return !strcmp(openblas_get_corename(), core);
}
#else
static bool start_again(const char *core)
{
    return !strcmp(openblas_get_corename(), core);
}
#endif

/* What each asks of a processor is more than what the one before asks. */
enum { UNKNOWN, SSE3, SSE42, AVX, AVX2, AVX512, AVX512_BF16 };

static const char *const of_level[] = {
    [SSE3] = "Prescott", [SSE42] = "Nehalem",   [AVX] = "Sandybridge",
    [AVX2] = "Haswell",  [AVX512] = "SkylakeX", [AVX512_BF16] = "Cooperlake"};

static int level_of(const char *core)
{
    static const struct {
        const char *core;
        int level;
    } others[] = {{"Core2", SSE3},      {"Penryn", SSE3},
                  {"Dunnington", SSE3}, {"Atom", SSE3},
                  {"Nano", SSE3},       {"Opteron_SSE3", SSE3},
                  {"Barcelona", SSE3},  {"Bobcat", SSE3},
                  {"Bulldozer", AVX},   {"Piledriver", AVX},
                  {"Steamroller", AVX}, {"Excavator", AVX2},
                  {"Zen", AVX2},        {"SapphireRapids", AVX512_BF16}};
    for (int level = SSE3; level <= AVX512_BF16; level++)
        if (!strcmp(of_level[level], core))
            return level;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(others[i].core, core))
            return others[i].level;
    return UNKNOWN;
}

const char *tsr_gemm_core_common(const char *a, const char *b)
{
    int first = level_of(a), second = level_of(b);
    if (!strcmp(a, b))
        return a;
    return of_level[first < second ? first : second];
}

static int level_of_processor(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init(); /* single features: clang 14 knows no x86-64-v4 */
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                __builtin_cpu_supports("fma");
    bool sse42 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    return avx512 && __builtin_cpu_supports("avx512bf16") ? AVX512_BF16
           : avx512                                       ? AVX512
           : avx2                                         ? AVX2
           : __builtin_cpu_supports("avx")                ? AVX
           : sse42                                        ? SSE42
                                                          : SSE3;
#else
    return UNKNOWN;
#endif
}

static void note(void)
{
    atomic_store_explicit(&small, level_of(openblas_get_corename()) >= AVX512,
                          memory_order_relaxed);
}

static void look(void)
{
    int level = level_of_processor();
    if (level >= AVX2 && !getenv(VARIABLE) && !strcmp(openblas_get_corename(), of_level[SSE3]))
        (void)start_again(of_level[level < AVX512 ? level : AVX512]);
    note();
}

const char *tsr_gemm_core(void)
{
    pthread_once(&looked, look);
    return openblas_get_corename();
}

bool tsr_gemm_core_is_small(void)
{
    pthread_once(&looked, look);
    return atomic_load_explicit(&small, memory_order_relaxed);
}

tsr_status tsr_gemm_core_check(void)
{
    const char *core = tsr_gemm_core();
    int level = level_of_processor();
    if (level_of(core) <= level)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    VARIABLE " asks for OpenBLAS' kernels for %s, which this processor cannot run; "
                             "unset it, or write " VARIABLE "=%s",
                    core, of_level[level]);
}

tsr_status tsr_gemm_core_take(const char *core)
{
    bool took = !strcmp(tsr_gemm_core(), core) || start_again(core);
    note();
    if (took)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED, "this OpenBLAS has no kernels for %s, only for %s", core,
                    openblas_get_corename());
}
