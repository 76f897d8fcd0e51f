/* JSON as every reader of this tree takes it: what is accepted can be written and read again as the same, and
 * loses one member alone. */
#include "fuzz/fuzz.h"
#include "io/json.h"

#include <stdlib.h>
#include <string.h>

/* Without one member it is the same object without it; a name that is written with escapes is not found. */
static void check_without(const uint8_t *data, size_t bytes, const json_t *value)
{
    json_t *whole = json_deep_copy(value), *again = NULL;
    const char *key = json_object_iter_key(json_object_iter(whole));
    tsr_text text = {0};
    if (whole && key) {
        char *name = strdup(key);
        tsr_status status = tsr_json_without(&text, (const char *)data, bytes, name, "input");
        fuzz_answer(status, TSR_EDATA);
        if (status == TSR_OK)
            status = tsr_json_parse(&again, tsr_text_string(&text), text.length, "without");
        fuzz_check(status == TSR_OK);
        bool same = json_equal(whole, again);
        json_object_del(whole, name);
        fuzz_check(same || json_equal(whole, again));
        free(name);
    }
    tsr_text_free(&text);
    json_decref(again);
    json_decref(whole);
}

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
    check_without(data, bytes, value);
    json_decref(value);
    return 0;
}
