#include "model/arch/arch.h"

#include "base/text.h"
#include "model/arch/families.h"

#include <string.h>

static const tsr_arch *const families[] = {
    &tsr_arch_gemma2, &tsr_arch_gemma3,     &tsr_arch_gemma4,  &tsr_arch_glm4,   &tsr_arch_granite,
    &tsr_arch_llama,  &tsr_arch_ministral3, &tsr_arch_mistral, &tsr_arch_olmo2,  &tsr_arch_olmo3,
    &tsr_arch_phi3,   &tsr_arch_qwen2,      &tsr_arch_qwen3,   &tsr_arch_smollm3};
enum { FAMILIES = sizeof families / sizeof *families };

tsr_status tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place)
{
    tsr_text names = {0};
    for (int i = 0; i < FAMILIES; i++) {
        if (!strcmp(model_type, families[i]->model_type)) {
            tsr_text_free(&names);
            *out = families[i];
            return TSR_OK;
        }
        tsr_text_printf(&names, "%s%s",
                        i == 0             ? ""
                        : i < FAMILIES - 1 ? ", "
                                           : " or ",
                        families[i]->model_type);
    }
    tsr_status status = tsr_fail(TSR_EDATA, "%s: model_type '%s' is not supported, expected %s",
                                 place, model_type, tsr_text_string(&names));
    tsr_text_free(&names);
    return status;
}

const tsr_arch *tsr_arch_at(int index)
{
    return index < FAMILIES ? families[index] : NULL;
}

tsr_status tsr_arch_block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return config->arch->block(out, config, layer);
}
