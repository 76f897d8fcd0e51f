#include "data/findings.h"

#include "base/log.h"
#include "data/dataset.h"

static const struct {
    const char *name, *words;
} findings[TSR_FINDING_COUNT] = {
    [TSR_FINDING_KEYS] = {"unread_keys",
                          "have keys that seem to say what is trained, and are not read"},
    [TSR_FINDING_IN_VAIN] =
        {"asked_in_vain", "ask to train a message that is not the assistant's, or is a prompt's"},
    [TSR_FINDING_BARE] = {"bare_turns", "train an empty turn or completion: what ends it alone"},
    [TSR_FINDING_HOLLOW] = {"hollow_rows", NULL},
    [TSR_FINDING_CALLS] = {"unseen_calls", "have tool_calls that the chat template leaves out"},
    [TSR_FINDING_THINKING] = {"unseen_thinking",
                              "have thinking in trained turns that the chat template leaves out"},
    [TSR_FINDING_UNPROMPTED] = {"unprompted_turns",
                                "train turns that do not begin with all of the chat template's "
                                "generation prompt"},
    [TSR_FINDING_UNMARKED] = {"without_response_template",
                              "have no response_template in their text, and train nothing"},
};

const char *tsr_finding_name(tsr_finding finding)
{
    return findings[finding].name;
}

static bool is_said(const tsr_dataset *data, tsr_finding finding)
{
    return tsr_dataset_stats_of(data)->found[finding].rows && findings[finding].words;
}

static void put(tsr_text *out, const tsr_dataset *data, tsr_finding finding)
{
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    const tsr_found *found = &stats->found[finding];
    tsr_text_printf(out, "%lld of %lld rows %s", (long long)found->rows, (long long)stats->samples,
                    findings[finding].words);
    if (finding == TSR_FINDING_KEYS)
        tsr_text_printf(out, ": %s", tsr_dataset_unread_keys(data));
    tsr_text_printf(out, " (first %s:%lld)", tsr_dataset_file(data, found->file),
                    (long long)found->line);
}

void tsr_findings_put(tsr_text *out, const tsr_dataset *data)
{
    for (tsr_finding i = 0; i < TSR_FINDING_COUNT; i++)
        if (is_said(data, i)) {
            tsr_text_puts(out, "; ");
            put(out, data, i);
        }
}

void tsr_findings_warn(const tsr_dataset *data, const char *key)
{
    tsr_auto_text text = {0};
    for (tsr_finding i = 0; i < TSR_FINDING_COUNT; i++) {
        if (!is_said(data, i))
            continue;
        tsr_text_clear(&text);
        put(&text, data, i);
        tsr_log(TSR_LOG_WARNING, "%s: %s", key, tsr_text_string(&text));
    }
}

tsr_status tsr_findings_check(const tsr_dataset *data, const char *key)
{
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    const tsr_found *hollow = &stats->found[TSR_FINDING_HOLLOW];
    const char *lost = stats->found[TSR_FINDING_CALLS].rows      ? "tool_calls"
                       : stats->found[TSR_FINDING_THINKING].rows ? "thinking"
                                                                 : NULL;
    if (hollow->rows + stats->unlabelled < stats->samples)
        return TSR_OK;
    return tsr_fail(
        TSR_EDATA,
        "%s: every row (%s:%lld and on) has only empty turns or completions to train%s%s%s", key,
        tsr_dataset_file(data, hollow->file), (long long)hollow->line,
        lost ? ", since the chat template leaves out their " : "", lost ? lost : "",
        lost ? "; give one that renders them with chat_template"
             : ": what ends them is all that would be learned");
}
