/* JSON as every reader of this tree takes it: what is accepted can be written and read again as the same. */
#include "fuzz/fuzz.h"
#include "io/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_t *value, *again;
    char shown[TSR_JSON_SHOW_BYTES];
    fuzz_begin();
    tsr_status status = tsr_json_parse(&value, (const char *)data, bytes, "input");
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    fuzz_check(strlen(tsr_json_show(shown, value)) < sizeof shown);
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text) {
        fuzz_check(tsr_json_parse(&again, text, strlen(text), "again") == TSR_OK);
        fuzz_check(json_equal(value, again));
        json_decref(again);
    }
    free(text);
    json_decref(value);
    return 0;
}
