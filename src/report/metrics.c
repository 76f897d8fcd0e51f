#include "report/metrics.h"

#include "base/auto.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/config_number.h"
#include "io/file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIGITS     9
#define MOST_BYTES (4ull << 30)

struct tsr_metrics {
    int file;
    tsr_text line;
    char path[];
};

static tsr_status io_error(const char *path, const char *what)
{
    char reason[128];
    return tsr_fail(TSR_EIO, "%s: cannot be %s: %s", path, what,
                    strerror_r(errno, reason, sizeof reason));
}

tsr_status tsr_metrics_create(tsr_metrics **out, const tsr_folder *folder, const char *name,
                              bool append)
{
    char path[PATH_MAX];
    size_t bytes = strlen(tsr_folder_show(path, folder, name)) + 1;
    tsr_metrics *metrics = calloc(1, sizeof *metrics + bytes);
    if (!metrics)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", path);
    memcpy(metrics->path, path, bytes);
    tsr_status status = tsr_folder_open_append(&metrics->file, folder, name, !append);
    if (status < 0) {
        free(metrics);
        return status;
    }
    *out = metrics;
    return TSR_OK;
}

static void put_name(tsr_metrics *m, const char *name)
{
    tsr_text_printf(&m->line, "%c\"%s\":", m->line.length ? ',' : '{', name);
}

static void put_number(tsr_metrics *m, const char *name, double value)
{
    put_name(m, name);
    if (isfinite(value))
        tsr_number_put(&m->line, value, DIGITS);
    else
        tsr_text_puts(&m->line, "null");
}

static void put_int(tsr_metrics *m, const char *name, int64_t value)
{
    put_name(m, name);
    tsr_text_printf(&m->line, "%lld", (long long)value);
}

static void put_string(tsr_metrics *m, const char *name, const char *value)
{
    if (!value)
        return;
    put_name(m, name);
    tsr_text_puts(&m->line, "\"");
    for (const char *p = value, *end = p + strlen(p); p < end;) {
        uint32_t code;
        size_t bytes = tsr_utf8_next(&code, p, (size_t)(end - p));
        if (!bytes)
            tsr_text_puts(&m->line, "\\ufffd");
        else if (code == '"' || code == '\\')
            tsr_text_printf(&m->line, "\\%c", (char)code);
        else if (code < 0x20)
            tsr_text_printf(&m->line, "\\u%04x", (unsigned)code);
        else
            tsr_text_append(&m->line, p, bytes);
        p += bytes ? bytes : 1;
    }
    tsr_text_puts(&m->line, "\"");
}

static void put_hash(tsr_metrics *m, const char *name, uint64_t hash)
{
    put_name(m, name);
    tsr_text_printf(&m->line, "\"%016llx\"", (unsigned long long)hash);
}

/* The part of a line that a full disk still took; what is written when there is room again is a line. */
static void take_back(const tsr_metrics *m, size_t bytes)
{
    struct stat about;
    if (bytes && fstat(m->file, &about) == 0 && S_ISREG(about.st_mode) &&
        ftruncate(m->file, about.st_size - (off_t)bytes) != 0)
        return; /* the failure to write is what is told */
}

static tsr_status write_line(tsr_metrics *m)
{
    tsr_text_puts(&m->line, "}\n");
    if (m->line.failed)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", m->path);
    const char *data = tsr_text_string(&m->line);
    size_t left = m->line.length;
    while (left) {
        ssize_t wrote = write(m->file, data, left);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            tsr_status status = io_error(m->path, "written");
            take_back(m, m->line.length - left);
            tsr_text_clear(&m->line);
            return status;
        }
        data += wrote;
        left -= (size_t)wrote;
    }
    tsr_text_clear(&m->line);
    return TSR_OK;
}

tsr_status tsr_metrics_write_start(tsr_metrics *m, const tsr_metrics_start *start)
{
    put_string(m, "event", "start");
    put_string(m, "version", start->version);
    put_string(m, "commit", start->commit);
    put_int(m, "ranks", start->ranks);
    put_string(m, "device", start->device);
    put_hash(m, "plan_hash", start->plan_hash);
    put_hash(m, "config_hash", start->config_hash);
    put_string(m, "model", start->model);
    put_int(m, "total_steps", start->total_steps);
    put_int(m, "trainable_parameters", start->trainable_count);
    if (start->resumed_step)
        put_int(m, "resumed_step", start->resumed_step);
    return write_line(m);
}

static void put_experts(tsr_metrics *m, const tsr_job_report *step)
{
    put_number(m, "expert_load_over_mean", step->expert_load_over_mean);
    put_number(m, "expert_empty_share", step->expert_empty_share);
    put_int(m, "expert_dropped", step->expert_dropped);
    if (!isnan(step->aux_loss))
        put_number(m, "aux_loss", step->aux_loss);
}

int tsr_metrics_preference(tsr_metrics_value out[TSR_METRICS_PREFERENCE],
                           const tsr_job_preference *p)
{
    bool scores = !isnan(p->mean_reward); /* a reward model's names are others */
    const tsr_metrics_value all[TSR_METRICS_PREFERENCE] = {
        {"rewards/chosen", p->reward_chosen},
        {"rewards/rejected", p->reward_rejected},
        {scores ? "accuracy" : "rewards/accuracies", p->reward_accuracy},
        {scores ? "margin" : "rewards/margins", p->reward_margin},
        {"logps/chosen", p->logp_chosen},
        {"logps/rejected", p->logp_rejected},
        {"nll_loss", p->nll_loss},
        {"log_odds_ratio", p->log_odds_ratio},
        {"log_odds_chosen", p->log_odds_chosen},
        {"kl", p->kl},
        {"logits/chosen", p->logit_chosen},
        {"logits/rejected", p->logit_rejected},
        {"min_reward", p->min_reward},
        {"mean_reward", p->mean_reward},
        {"max_reward", p->max_reward}};
    int count = 0;
    for (int i = 0; p->present && i < TSR_METRICS_PREFERENCE; i++)
        if (!isnan(all[i].value))
            out[count++] = all[i];
    return count;
}

/* In an evaluation with "eval_" before the names. */
static void put_preference(tsr_metrics *m, const tsr_job_preference *p, const char *before)
{
    tsr_metrics_value values[TSR_METRICS_PREFERENCE];
    int count = tsr_metrics_preference(values, p);
    for (int i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s%s", before, values[i].name);
        put_number(m, name, values[i].value);
    }
}

tsr_status tsr_metrics_write_step(tsr_metrics *m, const tsr_job_report *step)
{
    put_int(m, "step", step->step);
    put_number(m, "epoch", step->epoch);
    put_number(m, "loss", step->loss);
    put_number(m, "grad_norm", step->grad_norm);
    put_number(m, "learning_rate", step->learning_rate);
    put_int(m, "label_tokens", step->label_tokens);
    put_int(m, "input_tokens", step->input_tokens);
    put_number(m, "tokens_per_s", step->tokens_per_s);
    put_number(m, "step_s", step->step_s);
    put_int(m, "device_bytes", (int64_t)step->device_bytes);
    put_number(m, "exposed_s", step->exposed_s);
    put_number(m, "mean_token_accuracy", step->mean_token_accuracy);
    put_number(m, "entropy", step->entropy);
    if (step->has_experts)
        put_experts(m, step);
    put_preference(m, &step->preference, "");
    if (step->skipped)
        put_int(m, "skipped_steps", step->skipped_steps);
    return write_line(m);
}

tsr_status tsr_metrics_write_eval(tsr_metrics *m, int64_t step,
                                  const tsr_job_evaluation *evaluation)
{
    put_int(m, "step", step);
    put_number(m, "eval_loss", evaluation->loss);
    put_int(m, "eval_label_tokens", evaluation->label_tokens);
    put_number(m, "eval_mean_token_accuracy", evaluation->mean_token_accuracy);
    put_number(m, "eval_entropy", evaluation->entropy);
    put_preference(m, &evaluation->preference, "eval_");
    return write_line(m);
}

tsr_status tsr_metrics_write_end(tsr_metrics *m, tsr_metrics_status status)
{
    static const char *const words[] = {"done", "saved", "failed"};
    put_string(m, "event", "end");
    put_string(m, "status", words[status]);
    return write_line(m);
}

tsr_status tsr_metrics_sync(uint64_t *bytes, tsr_metrics *m)
{
    struct stat info;
    if (fsync(m->file) != 0 || fstat(m->file, &info) != 0)
        return io_error(m->path, "brought to the disk");
    *bytes = (uint64_t)info.st_size;
    return TSR_OK;
}

tsr_status tsr_metrics_cut(const tsr_folder *folder, const char *name, uint64_t bytes)
{
    TSR_AUTO_FREE char *text = NULL;
    uint64_t length;
    struct stat info;
    if (!tsr_folder_stat(&info, folder, name))
        return TSR_OK;
    TSR_TRY(tsr_file_read_in(&text, &length, folder, name, MOST_BYTES));
    uint64_t kept = bytes < length ? bytes : length;
    while (kept > 0 && text[kept - 1] != '\n')
        kept--;
    return kept == length && info.st_nlink == 1 ? TSR_OK
                                                : tsr_file_write_in(folder, name, text, kept);
}

void tsr_metrics_destroy(tsr_metrics *metrics)
{
    if (!metrics)
        return;
    close(metrics->file);
    tsr_text_free(&metrics->line);
    free(metrics);
}
