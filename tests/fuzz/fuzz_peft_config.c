/* adapter_config.json: what is accepted can be written, and is read again as the same file. */
#include "fuzz/fuzz.h"
#include "io/peft.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsr_peft_config config, again;
    char *first, *second;
    fuzz_begin();
    tsr_status status =
        tsr_peft_config_parse(&config, (const char *)data, bytes, TSR_PEFT_CONFIG_FILE);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    fuzz_check(config.r >= 1 && config.r <= TSR_PEFT_MAX_RANK);
    fuzz_check(tsr_peft_config_format(&first, &config) == TSR_OK);
    fuzz_check(tsr_peft_config_parse(&again, first, strlen(first), "again") == TSR_OK);
    fuzz_check(tsr_peft_config_format(&second, &again) == TSR_OK);
    fuzz_check(strcmp(first, second) == 0);
    free(first);
    free(second);
    tsr_peft_config_free(&config);
    tsr_peft_config_free(&again);
    return 0;
}
