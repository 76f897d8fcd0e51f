#include "model/arch/arch.h"

#include "base/text.h"
#include "model/arch/families.h"

#include <string.h>

static const tsr_arch *const families[] = {
    &tsr_arch_deepseek_v3, &tsr_arch_gemma2,     &tsr_arch_gemma3,  &tsr_arch_gemma4,
    &tsr_arch_glm4,        &tsr_arch_glm4_moe,   &tsr_arch_gpt_oss, &tsr_arch_granite,
    &tsr_arch_llama,       &tsr_arch_ministral3, &tsr_arch_mistral, &tsr_arch_mixtral,
    &tsr_arch_olmo2,       &tsr_arch_olmo3,      &tsr_arch_phi3,    &tsr_arch_qwen2,
    &tsr_arch_qwen2_5_vl,  &tsr_arch_qwen3,      &tsr_arch_qwen3_5, &tsr_arch_qwen3_5_moe,
    &tsr_arch_qwen3_moe,   &tsr_arch_qwen3_vl,   &tsr_arch_smollm3};
enum { FAMILIES = sizeof families / sizeof *families };

/* Known, and why they are not read. */
static const struct {
    const char *model_type, *why;
} refused[] = {
    {"llama4", "it uses chunked attention, which is not supported"},
    {"llama4_text", "it uses chunked attention, which is not supported"},
};

/* What the model_type of a config.json may be, one after the other; NULL: no more. */
static const char *next_name(int *index)
{
    for (; *index < FAMILIES; ++*index)
        if (families[*index]->architecture)
            return families[(*index)++]->model_type;
    const tsr_composite *composite = tsr_composite_at((*index)++ - FAMILIES);
    return composite ? composite->model_type : NULL;
}

/* "a, b or c" */
static void put_names(tsr_text *out)
{
    int index = 0;
    const char *name = next_name(&index), *next;
    for (bool first = true; name; name = next, first = false) {
        next = next_name(&index);
        tsr_text_printf(out, "%s%s", first ? "" : next ? ", " : " or ", name);
    }
}

tsr_status tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place)
{
    const char *why = NULL;
    tsr_auto_text names = {0};
    for (int i = 0; i < FAMILIES; i++)
        if (!strcmp(model_type, families[i]->model_type)) {
            *out = families[i];
            return TSR_OK;
        }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(model_type, refused[i].model_type))
            why = refused[i].why;
    put_names(&names);
    return tsr_fail(TSR_EDATA, "%s: model_type '%s' is not supported%s%s, expected %s", place,
                    model_type, why ? ": " : "", why ? why : "", tsr_text_string(&names));
}

const tsr_arch *tsr_arch_at(int index)
{
    return index < FAMILIES ? families[index] : NULL;
}

tsr_status tsr_arch_block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return config->arch->block(out, config, layer);
}
