/*
 * config_start.c: init_lora_weights, whose words are PEFT's.
 */
#include "config/config_store.h"

#include "adapters/principal.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS      "pissa_niter_"
#define MOST_DIGITS 3
#define SVD_ADVICE                                                                                 \
    "is not in this version; pissa starts from a decomposition of the weights too, and leaves "    \
    "less "                                                                                        \
    "of them to be quantized"
#define DATA_ADVICE                                                                                \
    "needs a pass over the data, and is not in this version; pissa starts from the weights alone"

static const struct {
    const char *word, *reason;
} refused[] = {
    {"olora", SVD_ADVICE},
    {"orthogonal", "is not in this version; true or gaussian start from random directions too"},
    {"loftq", SVD_ADVICE},
    {"mica", SVD_ADVICE},
    {"eva", DATA_ADVICE},
    {"corda", DATA_ADVICE},
    {"lora_ga", DATA_ADVICE},
};

static const char *reason_of(const char *text)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(text, refused[i].word))
            return refused[i].reason;
    return NULL;
}

bool tsr_config_start(tsr_adapter_start *start, int64_t *rounds, const char **reason,
                      const char *text)
{
    static const struct {
        const char *word;
        tsr_adapter_start start;
    } words[] = {{"true", TSR_START_KAIMING},
                 {"false", TSR_START_RANDOM},
                 {"gaussian", TSR_START_NORMAL},
                 {"pissa", TSR_START_PRINCIPAL}};
    *rounds = TSR_PRINCIPAL_EXACT;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(text, words[i].word)) {
            *start = words[i].start;
            return true;
        }
    size_t prefix = strlen(ROUNDS);
    if (!strncmp(text, ROUNDS, prefix)) {
        size_t digits = strspn(text + prefix, "0123456789");
        if (digits >= 1 && digits <= MOST_DIGITS && !text[prefix + digits]) {
            *start = TSR_START_PRINCIPAL;
            *rounds = strtol(text + prefix, NULL, 10);
            return true;
        }
    }
    if (reason)
        *reason = reason_of(text);
    return false;
}
