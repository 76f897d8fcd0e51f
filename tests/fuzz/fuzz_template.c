/* A chat template, rendered with a conversation that has everything templates look for. */
#include "data/template.h"
#include "fuzz/fuzz.h"

#include <string.h>

static const char variables_text[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" be brief \"},"
    "{\"role\": \"user\", \"content\": \"a<b> \\u00e9\\n\"},"
    "{\"role\": \"assistant\", \"content\": \"<think>x</think>y\", \"tool_calls\": [{\"type\": "
    "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.5}}}]},"
    "{\"role\": \"tool\", \"name\": \"f\", \"content\": \"3\"},"
    "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"z\"}]}],"
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}],"
    "\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static json_t *variables;
    tsr_template *t;
    tsr_rendering got = {0};
    if (!variables)
        variables = json_loads(variables_text, 0, NULL);
    fuzz_check(variables);
    fuzz_begin();
    tsr_status status = tsr_template_parse(&t, "input", (const char *)data, bytes);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    fuzz_begin();
    status = tsr_template_render(&got, t, variables, 86400);
    fuzz_answer(status, TSR_EDATA);
    for (size_t i = 0; status == TSR_OK && i < got.span_count; i++) {
        fuzz_check(got.spans[i].begin <= got.spans[i].end);
        fuzz_check((size_t)got.spans[i].end <= got.text.length);
    }
    tsr_rendering_free(&got);
    tsr_template_destroy(t);
    return 0;
}
