#include "cli/directory.h"

#include "base/called.h"
#include "inputs/kind.h"
#include "io/peft.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tsr_status keep(char **out, tsr_text *text)
{
    if (!text->data || text->failed) {
        tsr_text_free(text);
        return tsr_fail(TSR_ENOMEM, "out of memory: command line");
    }
    *out = text->data;
    return TSR_OK;
}

static tsr_status add_key(tsr_directory_job *job, const char *key, const char *value,
                          const char *end)
{
    tsr_text text = {0};
    tsr_text_printf(&text, "%s=%s%s", key, value, end);
    TSR_TRY(keep(&job->keys[job->key_count], &text));
    job->key_count++;
    return TSR_OK;
}

/* Whether the directory has a job.yaml, which then is the job's. */
static tsr_status find_file(tsr_directory_job *job, const char *directory)
{
    tsr_text path = {0};
    tsr_text_printf(&path, "%s/job.yaml", directory);
    TSR_TRY(keep(&job->job, &path));
    if (access(job->job, F_OK) == 0)
        return TSR_OK;
    free(job->job);
    job->job = NULL;
    return TSR_OK;
}

static tsr_status resume(tsr_directory_job *job, const char *run, const char *from)
{
    TSR_TRY(add_key(job, "resume_from_checkpoint", from, ""));
    TSR_TRY(add_key(job, "overwrite_output_dir", "false", ""));
    return add_key(job, "output_dir", run, ""); /* it may have been moved */
}

static tsr_status take_checkpoint(tsr_directory_job *job, const char *directory,
                                  tsr_command command, bool resumes)
{
    char run[PATH_MAX];
    const char *slash = strrchr(directory, '/');
    snprintf(run, sizeof run, "%.*s", slash ? (int)(slash - directory) : 1,
             slash ? directory : ".");
    TSR_TRY(find_file(job, run));
    if (!job->job)
        return tsr_fail(TSR_EUSAGE,
                        "%s: a checkpoint, but the run's job.yaml is not beside it; name the "
                        "job.yaml, with init_adapter=%s",
                        directory, directory);
    if (resumes)
        return resume(job, run, directory);
    if (command == TSR_COMMAND_TRAIN)
        return tsr_fail(TSR_EUSAGE,
                        "%s: a run's checkpoint; to continue from it: %s resume %s; to start a new "
                        "run from its adapter: %s train job.yaml init_adapter=%s",
                        directory, tsr_called(), directory, tsr_called(), directory);
    return command == TSR_COMMAND_EVAL || command == TSR_COMMAND_MERGE
               ? add_key(job, "init_adapter", directory, "")
               : TSR_OK;
}

static tsr_status take_adapter(tsr_directory_job *job, const char *directory, tsr_command command)
{
    char path[PATH_MAX + sizeof TSR_PEFT_CONFIG_FILE];
    tsr_peft_config config;
    snprintf(path, sizeof path, "%s/%s", directory, TSR_PEFT_CONFIG_FILE);
    TSR_TRY(tsr_peft_config_load(&config, path));
    tsr_status status = add_key(job, "init_adapter", directory, "");
    if (status == TSR_OK && config.base_model_name_or_path)
        status = add_key(job, "model_name_or_path", config.base_model_name_or_path, "");
    if (status == TSR_OK && config.scores && command == TSR_COMMAND_EVAL)
        status = add_key(job, "objective", "reward", "");
    tsr_peft_config_free(&config);
    if (status == TSR_OK && command == TSR_COMMAND_MERGE)
        status = add_key(job, "output_dir", directory, "-merged");
    return status;
}

static tsr_status refuse_resume(const char *directory, tsr_kind kind)
{
    const char *article = kind == TSR_KIND_ADAPTER ? "an" : "a";
    return tsr_fail(TSR_EUSAGE,
                    "%s: %s %s, not a run; resume takes a run's output_dir, or one of its "
                    "checkpoints",
                    directory, article, tsr_kind_name(kind));
}

static tsr_status find(tsr_directory_job *job, const char *directory, tsr_command command,
                       bool resumes)
{
    tsr_kind kind = tsr_kind_of(directory);
    if (kind == TSR_KIND_CHECKPOINT)
        return take_checkpoint(job, directory, command, resumes);
    TSR_TRY(find_file(job, directory));
    if (resumes && kind == TSR_KIND_UNKNOWN) /* a job.yaml of a run to come, beside runs perhaps */
        return tsr_kind_refuse(TSR_EUSAGE, directory);
    if (job->job)
        return resumes ? resume(job, directory, "true") : TSR_OK;
    if (kind == TSR_KIND_UNKNOWN)
        return tsr_kind_refuse(TSR_EUSAGE, directory);
    if (kind == TSR_KIND_RUN)
        return tsr_fail(TSR_EUSAGE, "%s: a run without its job.yaml; name the file that it had",
                        directory);
    if (resumes)
        return refuse_resume(directory, kind);
    return kind == TSR_KIND_ADAPTER ? take_adapter(job, directory, command)
                                    : add_key(job, "model_name_or_path", directory, "");
}

tsr_status tsr_directory_job_find(tsr_directory_job *out, const char *directory,
                                  tsr_command command, bool resumes)
{
    char path[PATH_MAX];
    tsr_directory_job job = {0};
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/')
        length--;
    if (length > PATH_MAX - sizeof "/job.yaml")
        return tsr_fail(TSR_EUSAGE, "%s: the path is too long", directory);
    snprintf(path, sizeof path, "%.*s", (int)length, directory);
    tsr_status status = find(&job, path, command, resumes);
    if (status < 0)
        tsr_directory_job_free(&job);
    else
        *out = job;
    return status;
}

void tsr_directory_job_free(tsr_directory_job *job)
{
    free(job->job);
    for (int i = 0; i < job->key_count; i++)
        free(job->keys[i]);
    *job = (tsr_directory_job){0};
}
