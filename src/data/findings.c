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
};

const char *tsr_finding_name(tsr_finding finding)
{
    return findings[finding].name;
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

void tsr_findings_put(tsr_text *out, const tsr_dataset *data, const char *separator)
{
    for (tsr_finding i = 0; i < TSR_FINDING_COUNT; i++)
        if (tsr_dataset_stats_of(data)->found[i].rows) {
            tsr_text_puts(out, separator);
            put(out, data, i);
        }
}

void tsr_findings_warn(const tsr_dataset *data, const char *key)
{
    tsr_text text = {0};
    for (tsr_finding i = 0; i < TSR_FINDING_COUNT; i++) {
        if (!tsr_dataset_stats_of(data)->found[i].rows)
            continue;
        tsr_text_clear(&text);
        put(&text, data, i);
        tsr_log(TSR_LOG_WARNING, "%s: %s", key, tsr_text_string(&text));
    }
    tsr_text_free(&text);
}
