/*
 * model/arch/families.h: every family, for the list in arch.c. Inside src/model/arch.
 */
#ifndef TSR_MODEL_ARCH_FAMILIES_H
#define TSR_MODEL_ARCH_FAMILIES_H

#include "model/arch/arch.h"

extern const tsr_arch tsr_arch_deepseek_v3, tsr_arch_gemma2, tsr_arch_gemma3, tsr_arch_gemma4,
    tsr_arch_glm4, tsr_arch_glm4_moe, tsr_arch_gpt_oss, tsr_arch_granite, tsr_arch_llama,
    tsr_arch_ministral3, tsr_arch_mistral, tsr_arch_mixtral, tsr_arch_olmo2, tsr_arch_olmo3,
    tsr_arch_phi3, tsr_arch_qwen2, tsr_arch_qwen2_5_vl, tsr_arch_qwen3, tsr_arch_qwen3_5,
    tsr_arch_qwen3_5_moe, tsr_arch_qwen3_moe, tsr_arch_qwen3_vl, tsr_arch_smollm3;

#endif
