#include "base/auto.h"
#include "io/peft.h"

#include "base/text.h"
#include "io/file.h"
#include "io/json.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARD_BYTES (1u << 20)
#define CARD_TAG   "\n- tessera\n"

#define BIASES_NOTE                                                                                \
    "`" TSR_PEFT_ROUTER_BIAS_FILE "` holds the routers' correction biases that the adapter was "   \
    "trained with. PEFT does not load them; `tessera merge` writes them into the model, with the " \
    "adapter.\n\n"

/* The model card. A JSON string is also a YAML and, up to rare escapes, a Python one. */
static tsr_status make_card(tsr_text *card, const tsr_peft_config *config, bool tokenizer,
                            bool biases)
{
    const char *base = config->base_model_name_or_path;
    static const char what[] = TSR_PEFT_CARD_FILE ": the base model's name";
    const char *model = config->scores          ? "AutoModelForSequenceClassification"
                        : config->beside_towers ? "AutoModelForImageTextToText"
                                                : "AutoModelForCausalLM";
    char place[PATH_MAX];
    TSR_AUTO_FREE char *quoted = NULL, *found = NULL;
    TSR_TRY(tsr_json_quote(&quoted, base ? base : "", what));
    /* The code is good in the card's directory, from which another way leads to the base. */
    TSR_TRY(tsr_json_quote(&found, base && realpath(base, place) ? place : base ? base : "", what));
    tsr_text_puts(card, "---\n");
    if (base)
        tsr_text_printf(card, "base_model: %s\n", quoted);
    tsr_text_printf(card, "library_name: peft\npipeline_tag: text-%s\ntags:\n",
                    config->scores ? "classification" : "generation");
    if (base)
        tsr_text_printf(card, "- \"base_model:adapter:%s\n", quoted + 1);
    tsr_text_printf(card, "%s- lora" CARD_TAG "- transformers\n---\n\n",
                    config->use_dora ? "- dora\n" : "");
    tsr_text_printf(card, "# A %s adapter\n\n", config->use_dora ? "DoRA" : "LoRA");
    tsr_text_printf(card,
                    "Rank %" PRIu64 ", alpha %g, trained with Tessera%s%s. Load it with PEFT:\n\n",
                    config->r, config->lora_alpha, base ? " on " : "", base ? quoted : "");
    tsr_text_printf(card,
                    "```python\nfrom peft import PeftModel\n"
                    "from transformers import %s, AutoTokenizer\n\n"
                    "base = %s\nmodel = %s.from_pretrained(base%s)\n"
                    "model = PeftModel.from_pretrained(model, \".\")  # this directory\n"
                    "tokenizer = AutoTokenizer.from_pretrained(%s)\n```\n\n",
                    model, base ? found : "\"the base model's directory\"", model,
                    config->scores ? ", num_labels=1" : "", tokenizer ? "\".\"" : "base");
    if (biases)
        tsr_text_puts(card, BIASES_NOTE);
    tsr_text_puts(card, "### Framework versions\n\n- PEFT 0.21.0\n");
    return card->failed ? tsr_fail(TSR_ENOMEM, "%s: no memory to write it", TSR_PEFT_CARD_FILE)
                        : TSR_OK;
}

static tsr_status stage_text(tsr_file **out, const tsr_folder *folder, const char *name,
                             const char *text, uint64_t bytes)
{
    TSR_TRY(tsr_file_stage(out, folder, name));
    TSR_TRY(tsr_file_append(*out, text, bytes));
    return tsr_file_finish(*out);
}

static tsr_status stage_card(tsr_file **out, const tsr_folder *folder,
                             const tsr_peft_config *config, bool biases)
{
    tsr_auto_text card = {0};
    struct stat info;
    bool tokenizer = tsr_folder_stat(&info, folder, "tokenizer_config.json");
    TSR_TRY(make_card(&card, config, tokenizer, biases));
    return stage_text(out, folder, TSR_PEFT_CARD_FILE, card.data, card.length);
}

bool tsr_peft_card_is_foreign(const tsr_folder *folder)
{
    TSR_AUTO_FREE char *text = NULL;
    uint64_t bytes;
    struct stat info;
    if (!tsr_folder_stat(&info, folder, TSR_PEFT_CARD_FILE))
        return false;
    if (tsr_file_read_in(&text, &bytes, folder, TSR_PEFT_CARD_FILE, CARD_BYTES) < 0)
        return true;
    bool own = strstr(text, CARD_TAG);
    return !own;
}

static tsr_status stage_config(tsr_file **out, const tsr_folder *folder,
                               const tsr_peft_config *config)
{
    TSR_AUTO_FREE char *text = NULL;
    TSR_TRY(tsr_peft_config_format(&text, config));
    return stage_text(out, folder, TSR_PEFT_CONFIG_FILE, text, strlen(text));
}

static tsr_status stage_weights(tsr_file **out, const tsr_folder *folder,
                                const tsr_peft_tensor *tensors, uint64_t count)
{
    TSR_AUTO_FREE tsr_tensor_source *sources = calloc(count + 1, sizeof *sources);
    tsr_status status = TSR_OK;
    if (!sources)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to write it", TSR_PEFT_WEIGHTS_FILE);
    for (uint64_t i = 0; i < count && status == TSR_OK; i++) {
        if (tensors[i].ndim < 1 || tensors[i].ndim > 2)
            status = tsr_fail(TSR_EINVAL, "%s: tensor '%s' has %d dimensions, expected 1 or 2",
                              TSR_PEFT_WEIGHTS_FILE, tensors[i].name, tensors[i].ndim);
        sources[i] = (tsr_tensor_source){.name = tensors[i].name,
                                         .dtype = TSR_F32,
                                         .ndim = tensors[i].ndim,
                                         .shape = {tensors[i].shape[0], tensors[i].shape[1]},
                                         .data = tensors[i].data};
    }
    if (status == TSR_OK)
        status = tsr_safetensors_stage(out, folder, TSR_PEFT_WEIGHTS_FILE, sources, count);
    return status;
}

/* In the order in which they appear: who sees the weights sees the rest too. */
enum { CARD, BIASES, CONFIG, WEIGHTS, FILES };

static tsr_status stage_all(tsr_file *files[FILES], const tsr_folder *folder,
                            const tsr_peft_config *config, const tsr_peft_tensor *tensors,
                            uint64_t count, const tsr_peft_beside *beside)
{
    static const char *const names[FILES] = {TSR_PEFT_CARD_FILE, TSR_PEFT_ROUTER_BIAS_FILE,
                                             TSR_PEFT_CONFIG_FILE, TSR_PEFT_WEIGHTS_FILE};
    const bool wanted[FILES] = {!tsr_peft_card_is_foreign(folder), beside->bias_count, true, true};
    /* Before anything appears: publishing the last of them must not be what finds this out. */
    for (int i = 0; i < FILES; i++)
        if (wanted[i])
            TSR_TRY(tsr_folder_expect(folder, names[i], S_IFREG, TSR_EIO));
    TSR_TRY(stage_weights(&files[WEIGHTS], folder, tensors, count));
    TSR_TRY(stage_config(&files[CONFIG], folder, config));
    if (wanted[BIASES])
        TSR_TRY(tsr_safetensors_stage(&files[BIASES], folder, names[BIASES], beside->biases,
                                      beside->bias_count));
    return wanted[CARD] ? stage_card(&files[CARD], folder, config, wanted[BIASES]) : TSR_OK;
}

tsr_status tsr_peft_write_with(const tsr_folder *folder, const tsr_peft_config *config,
                               const tsr_peft_tensor *tensors, uint64_t count,
                               const tsr_peft_beside *beside)
{
    tsr_file *files[FILES] = {0};
    tsr_status status = stage_all(files, folder, config, tensors, count, beside);
    for (int i = 0; i < FILES && status == TSR_OK; i++)
        if (files[i])
            status = tsr_file_publish(files[i]);
    for (int i = 0; i < FILES; i++)
        tsr_file_discard(files[i]);
    return status;
}

tsr_status tsr_peft_write(const tsr_folder *folder, const tsr_peft_config *config,
                          const tsr_peft_tensor *tensors, uint64_t count)
{
    return tsr_peft_write_with(folder, config, tensors, count, &(tsr_peft_beside){0});
}
