/*
 * kernels/gemm_core.h: which of its micro-kernels ("cores") OpenBLAS multiplies with: those for this
 * processor, or fewer, so that ranks on several kinds of processors get the same bits.
 *
 * OpenBLAS chooses when the process starts. What it chose is looked at when somebody first asks.
 *
 * Threads  Nothing multiplies while tsr_gemm_core_take runs; all else from any thread.
 */
#ifndef TSR_KERNELS_GEMM_CORE_H
#define TSR_KERNELS_GEMM_CORE_H

#include "base/status.h"

#include <stdbool.h>

/* The name of the cores in use: "Haswell". Borrowed. */
const char *tsr_gemm_core(void);

/* Whether they multiply a small matmul without packing. */
bool tsr_gemm_core_is_small(void);

/* Those that processors with a's and with b's cores both have: a where both are the same. NULL: none
 * that is known. Static. */
const char *tsr_gemm_core_common(const char *a, const char *b);

/* TSR_ECONFIG: OPENBLAS_CORETYPE asks for cores that this processor cannot run. */
tsr_status tsr_gemm_core_check(void);

/* Takes `core`, of tsr_gemm_core_common, for the rest of the process. TSR_EUNSUPPORTED: this OpenBLAS
 * has one kind of cores only. */
tsr_status tsr_gemm_core_take(const char *core);

#endif
