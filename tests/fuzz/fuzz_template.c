/* A chat template, rendered with a conversation that has everything templates look for. It ends within its steps, and
 * these within their time (run ends a target that takes much memory). */
#include "fuzz/fuzz.h"
#include "jinja/template.h"

#include <string.h>
#include <time.h>

#define STEPS       1000000
#define STEP_SECOND 4e-6 /* under the sanitizers */
#define SLACK       0.5

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
    if (!json_object_get(variables, "s")) {
        char text[1 << 14];
        memset(text, 'a', sizeof text);
        fuzz_check(json_object_set_new(variables, "s", json_stringn(text, sizeof text)) == 0);
    }
    fuzz_begin();
    tsr_status status = tsr_template_parse(&t, "input", (const char *)data, bytes);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    fuzz_begin();
    int64_t steps = STEPS;
    clock_t begin = clock();
    status = tsr_template_render(&got, t, variables, 86400, &steps);
    fuzz_answer(status, TSR_EDATA);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    fuzz_check(seconds < SLACK + (double)(STEPS - steps) * STEP_SECOND);
    fuzz_check(status < 0 || steps >= 0);
    for (size_t i = 0; status == TSR_OK && i < got.span_count; i++) {
        fuzz_check(got.spans[i].begin <= got.spans[i].end);
        fuzz_check((size_t)got.spans[i].end <= got.text.length);
    }
    tsr_rendering_free(&got);
    tsr_template_destroy(t);
    return 0;
}
