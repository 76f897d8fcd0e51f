/*
 * longest.c: the longest row that fits the memory of a job, and its plan: `tessera plan --longest`.
 */
#include "base/called.h"
#include "job/parts.h"
#include "job/sized.h"

#include <inttypes.h>

/* What makes a job one of such rows; of an evaluation, too, whose micro-batches are in the same memory. */
static void put_keys(tsr_text *out, const tsr_config *config, const tsr_longest *found)
{
    tsr_text_printf(out, "max_length=%" PRId64 " per_device_train_batch_size=1", found->length);
    if (tsr_config_evaluates(config) && tsr_config_is_set(config, "per_device_eval_batch_size") &&
        config->per_device_eval_batch_size > 1)
        tsr_text_puts(out, " per_device_eval_batch_size=1");
}

/* "tessera train job.yaml key=value ..." of the job that was asked about; nothing where it is no file. */
static void put_command(tsr_text *out, const tsr_job *job, const char *keys)
{
    const tsr_job_options *o = &job->options;
    if (!o->config_path)
        return;
    if (job->view.ranks > 1)
        tsr_text_printf(out, "mpirun -n %d ", job->view.ranks);
    tsr_text_printf(out, "%s train ", tsr_called());
    tsr_shell_quote(out, o->config_path);
    for (int i = 0; i < o->override_count; i++) {
        tsr_text_puts(out, " ");
        tsr_shell_quote(out, o->overrides[i]);
    }
    tsr_text_printf(out, " %s", keys);
}

static tsr_status print(tsr_text *out, const tsr_job *job, const tsr_longest *found, int form)
{
    const tsr_largest none = {0};
    const tsr_decision *d = &job->decision;
    const tsr_inputs *inputs = &job->inputs;
    bool json = form == TSR_PLAN_JSON;
    tsr_auto_text keys = {0}, command = {0};
    put_keys(&keys, &inputs->config, found);
    put_command(&command, job, tsr_text_string(&keys));
    out->failed |= keys.failed | command.failed;
    TSR_TRY(tsr_longest_print(out, found, d, inputs, tsr_text_string(&keys),
                              command.length ? tsr_text_string(&command) : NULL, json));
    TSR_TRY(form == TSR_PLAN_SCREEN
                ? tsr_decision_screen(out, d, inputs, &job->view, &job->speeds, &none, NULL)
                : tsr_decision_print(out, d, inputs, &job->view, &job->speeds, &none, json));
    tsr_text_puts(out, json ? "}\n" : "");
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory while printing the plan") : TSR_OK;
}

static tsr_status find(tsr_text *out, tsr_job *job, int form)
{
    tsr_room room;
    tsr_longest found;
    const tsr_config *config = &job->inputs.config;
    if (config->adapter_count > 1)
        return tsr_fail(TSR_ECONFIG, "adapters: --longest is for one adapter; leave the list out");
    TSR_TRY(tsr_job_agree(job, tsr_job_backend_room(&room, job)));
    if (tsr_room_budget(config, &room) == TSR_BUDGET_UNKNOWN)
        return tsr_fail(TSR_ECONFIG,
                        "%s: how long rows may be follows from the memory of the GPU, and none is "
                        "here; write what it has, such as memory_budget: 24GiB, or give --roofs "
                        "FILE of such a machine",
                        tsr_config_where(config, "memory_budget"));
    TSR_TRY(
        tsr_decide_longest(&job->decision, &found, &job->inputs, &job->view, &room, &job->speeds));
    return print(out, job, &found, form);
}

tsr_status tsr_plan_longest(const tsr_job_options *options, int form, char **text)
{
    tsr_text out = {0};
    tsr_job_options taken;
    tsr_job *job = NULL;
    TSR_TRY(tsr_job_options_take(&taken, options));
    if (form < TSR_PLAN_BUFFERS || form > TSR_PLAN_SCREEN)
        return tsr_fail(TSR_EINVAL, "tsr_plan_longest: form %d", form);
    if (taken.purpose != TSR_JOB_PLAN)
        return tsr_fail(TSR_EINVAL, "tsr_plan_longest: the options are not those of a plan "
                                    "(TSR_JOB_PLAN)");
    TSR_TRY(tsr_job_create_without_data(&job, &taken));
    tsr_job_listen(job, true);
    tsr_status status = find(&out, job, form);
    tsr_job_listen(job, false);
    tsr_job_destroy(job);
    if (status < 0)
        tsr_text_free(&out);
    else
        *text = out.data;
    return status;
}
