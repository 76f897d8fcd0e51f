/*
 * tokenizer.c: the tokenizer's files in output_dir, as other trainers leave them there: who loads the adapter finds
 * the chat template that it was trained with. What is there of another hand stays. Which files a run wrote is known
 * by their hashes, which are in the job.yaml beside them.
 */
#include "base/auto.h"
#include "job/parts.h"

#include "base/hash.h"
#include "io/file.h"
#include "io/tokenizer_files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (512ull << 20)

const char *const tsr_job_tokenizer_files[TSR_JOB_TOKENIZER_FILES] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", TSR_TEMPLATE_FILE};

/* A line of job.yaml: a comment. */
static void put_line(tsr_text *out, const char *name, const char *data, uint64_t bytes)
{
    tsr_text_printf(out, "# wrote %s %016" PRIx64 "\n", name,
                    tsr_hash(TSR_HASH_START, data, bytes));
}

/* Removes the file if `job` says that a run wrote it as it is. */
static tsr_status clear_file(const tsr_folder *folder, const char *name, const char *job)
{
    TSR_AUTO_FREE char *data = NULL;
    uint64_t bytes;
    struct stat info;
    tsr_auto_text line = {0};
    if (!tsr_folder_stat(&info, folder, name) || !S_ISREG(info.st_mode))
        return TSR_OK;
    TSR_TRY(tsr_file_read_in(&data, &bytes, folder, name, MOST_BYTES));
    put_line(&line, name, data, bytes);
    bool own = !line.failed && strstr(job, tsr_text_string(&line));
    return own ? tsr_folder_remove(folder, name) : TSR_OK;
}

tsr_status tsr_job_tokenizer_clear(const tsr_folder *folder)
{
    static const char header[] = TSR_CONFIG_HEADER;
    TSR_AUTO_FREE char *job = NULL;
    uint64_t bytes;
    struct stat info;
    if (!tsr_folder_stat(&info, folder, TSR_JOB_CONFIG_FILE))
        return TSR_OK;
    TSR_TRY(tsr_file_read_in(&job, &bytes, folder, TSR_JOB_CONFIG_FILE, MOST_BYTES));
    bool own = !strncmp(job, header, sizeof header - 1);
    for (int i = 0; i < TSR_JOB_TOKENIZER_FILES && own; i++)
        TSR_TRY(clear_file(folder, tsr_job_tokenizer_files[i], job));
    return TSR_OK;
}

/* One that is there is somebody's: named in `foreign` unless it is the same. */
static tsr_status write_file(tsr_text *yaml, tsr_text *foreign, const tsr_folder *folder,
                             const tsr_tokenizer_origin *origin, const char *name)
{
    TSR_AUTO_FREE char *data = NULL, *there = NULL;
    uint64_t bytes, there_bytes;
    struct stat info;
    TSR_TRY(tsr_tokenizer_read(&data, &bytes, origin, name));
    bool taken = tsr_folder_stat(&info, folder, name);
    tsr_status status = TSR_OK;
    if (data && !taken) {
        put_line(yaml, name, data, bytes);
        status = tsr_file_write_in(folder, name, data, bytes);
    } else if (taken) {
        bool same = data &&
                    tsr_file_read_in(&there, &there_bytes, folder, name, MOST_BYTES) == TSR_OK &&
                    there_bytes == bytes && !memcmp(there, data, bytes);
        if (!same)
            tsr_text_printf(foreign, "%s%s", foreign->length ? ", " : "", name);
    }
    return status;
}

tsr_status tsr_job_tokenizer_write(tsr_text *yaml, tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    tsr_auto_text foreign = {0};
    TSR_AUTO_FREE char *template = NULL;
    tsr_tokenizer_origin origin = {.model = config->model_name_or_path};
    TSR_TRY(tsr_inputs_template(&template, &origin.template_bytes, &job->inputs));
    origin.chat_template = template;
    tsr_text_puts(yaml, "\n# beside the adapter, with a hash of each\n");
    for (int i = 0; i < TSR_JOB_TOKENIZER_FILES; i++)
        TSR_TRY(write_file(yaml, &foreign, job->output, &origin, tsr_job_tokenizer_files[i]));
    if (foreign.length)
        tsr_log(TSR_LOG_WARNING,
                "%s: output_dir %s has %s, which no run wrote: it is kept, so this run's tokenizer "
                "is not written there; move it elsewhere to get it",
                tsr_config_where(config, "output_dir"), config->output_dir,
                tsr_text_string(&foreign));
    return TSR_OK;
}
