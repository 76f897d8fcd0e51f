/* job.yaml: what is accepted can be written, and is read again with the same values. */
#include "base/text.h"
#include "config/config.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsr_config config, again;
    tsr_text written = {0};
    char *text = malloc(bytes + 1); /* a zero behind it is not part of the text */
    fuzz_check(text);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    tsr_config_source source = {.text = text, .text_bytes = bytes};
    fuzz_begin();
    tsr_status status = tsr_config_load(&config, &source);
    fuzz_answer(status, TSR_ECONFIG);
    free(text);
    if (status < 0)
        return 0;
    fuzz_check(tsr_config_write(&written, &config) == TSR_OK);
    source = (tsr_config_source){.text = written.data, .text_bytes = written.length};
    fuzz_check(tsr_config_load(&again, &source) == TSR_OK);
    fuzz_check(tsr_config_hash(&config) == tsr_config_hash(&again));
    tsr_config_free(&config);
    tsr_config_free(&again);
    tsr_text_free(&written);
    return 0;
}
