/*
 * job_save.c: output_dir and what a run writes there beside the adapter and checkpoints. Rank 0.
 */
#include "train/job_parts.h"

#include "io/file.h"
#include "train/output.h"
#include "train/usage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define METRICS_FILE "metrics.jsonl"

/* What a run leaves, and overwrite_output_dir removes, with the checkpoints. The first, which appears
 * last, only a run that came to its end. */
static const char *const run_files[] = {
    TSR_PEFT_WEIGHTS_FILE, TSR_PEFT_CONFIG_FILE, TSR_PEFT_CARD_FILE, METRICS_FILE, "job.yaml",
    "plan.json",           TSR_MATMULS_FILE,     TSR_EVENTS_FILE};
#define RUN_FILES (sizeof run_files / sizeof *run_files)
#define END_FILES 1

static tsr_status join(char *out, size_t bytes, const char *directory, const char *name)
{
    if ((size_t)snprintf(out, bytes, "%s/%s", directory, name) >= bytes)
        return tsr_fail(TSR_ECONFIG, "output_dir: the path %s is too long", directory);
    return TSR_OK;
}

tsr_status tsr_job_output_path(char *out, size_t bytes, const tsr_job *job, const char *name)
{
    return join(out, bytes, job->inputs.config.output_dir, name);
}

tsr_status tsr_output_check_place(const tsr_config *config)
{
    const char *where = tsr_config_where(config, "output_dir"), *directory = config->output_dir;
    char path[PATH_MAX], last[PATH_MAX];
    struct stat info;
    TSR_TRY(join(path, sizeof path, directory, ""));
    strcpy(last, *path == '/' ? "/" : ".");
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (stat(path, &info) != 0) {
            /* Made on the way, it would lead to what has been compared with nothing. */
            if (!strncmp(p + 1, "../", 3) || strstr(p + 1, "/../"))
                return tsr_fail(TSR_ECONFIG,
                                "%s: output_dir %s: %s is not there; write the path without '..'",
                                where, directory, path);
            break;
        }
        if (!S_ISDIR(info.st_mode))
            return tsr_fail(TSR_ECONFIG, "%s: output_dir %s: %s is a file; name a directory", where,
                            directory, path);
        strcpy(last, path);
        *p = '/';
    }
    if (access(last, W_OK | X_OK) != 0)
        return tsr_fail(TSR_ECONFIG, "%s: output_dir %s: %s cannot be written to: %s", where,
                        directory, last, strerror(errno));
    return TSR_OK;
}

/* The first of the run's files that is there; NULL: none. */
static tsr_status find_run(const char **out, const char *directory, size_t files)
{
    char path[PATH_MAX];
    *out = NULL;
    for (size_t i = 0; i < files && !*out; i++) {
        if (!strcmp(run_files[i], TSR_PEFT_CARD_FILE))
            continue; /* a README alone is no run */
        TSR_TRY(join(path, sizeof path, directory, run_files[i]));
        if (access(path, F_OK) == 0)
            *out = run_files[i];
    }
    return TSR_OK;
}

/* Takes the directory for this job alone (LOCK_EX) or asks whether another has it (LOCK_SH). *out: to
 * be let go; -1 where the file system has no locks, which stops nobody. */
static tsr_status lock(int *out, const tsr_config *config, int kind)
{
    const char *directory = config->output_dir;
    *out = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out < 0 || flock(*out, kind | LOCK_NB) == 0)
        return TSR_OK;
    bool taken = errno == EWOULDBLOCK;
    close(*out);
    *out = -1;
    return taken ? tsr_fail(TSR_ECONFIG,
                            "%s: another job is writing to output_dir %s; name another directory, "
                            "or wait for that job's end",
                            tsr_config_where(config, "output_dir"), directory)
                 : TSR_OK;
}

static void unlock(int fd)
{
    if (fd < 0)
        return;
    (void)flock(fd, LOCK_UN); /* a child of the caller's may have the same file open still */
    close(fd);
}

void tsr_job_close_output(tsr_job *job)
{
    unlock(job->output_lock);
    job->output_lock = -1;
}

/* The configuration that was given may lie where the run writes the resolved one. Another run's may be
 * replaced, but not one that a person wrote. */
static tsr_status check_given(const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    const char *given = job->options.config_path;
    char path[PATH_MAX], first[sizeof TSR_CONFIG_HEADER] = "";
    struct stat x, y;
    TSR_TRY(join(path, sizeof path, config->output_dir, "job.yaml"));
    if (!given || stat(given, &x) != 0 || stat(path, &y) != 0 || x.st_dev != y.st_dev ||
        x.st_ino != y.st_ino)
        return TSR_OK;
    FILE *file = fopen(given, "re");
    bool own = file && fgets(first, sizeof first, file) && !strcmp(first, TSR_CONFIG_HEADER);
    if (file)
        fclose(file);
    return own ? TSR_OK
               : tsr_fail(TSR_ECONFIG,
                          "%s: output_dir %s: the run writes its resolved job.yaml there, over "
                          "the file that was given; give that another name, or name another "
                          "directory",
                          tsr_config_where(config, "output_dir"), config->output_dir);
}

/* Refuses a directory with a run that is neither gone on with nor to be replaced. */
static tsr_status check_free(const tsr_job *job, int64_t checkpoint)
{
    const tsr_config *config = &job->inputs.config;
    const char *directory = config->output_dir, *where = tsr_config_where(config, "output_dir");
    const char *found;
    if (config->overwrite_output_dir || (job->continues && job->resume))
        return TSR_OK;
    TSR_TRY(find_run(&found, directory, job->continues ? END_FILES : RUN_FILES));
    if (found && job->continues)
        return tsr_fail(TSR_ECONFIG,
                        "%s: output_dir %s holds a run that has ended (%s) and no checkpoint to go "
                        "on from; name another directory, or leave out resume_from_checkpoint and "
                        "set overwrite_output_dir: true to replace it",
                        where, directory, found);
    if (found || checkpoint >= 0)
        return tsr_fail(TSR_ECONFIG,
                        "%s: output_dir %s holds a run already (%s); name another directory, set "
                        "resume_from_checkpoint: true to go on with it, or overwrite_output_dir: "
                        "true to replace it",
                        where, directory, found ? found : "a checkpoint");
    return TSR_OK;
}

tsr_status tsr_job_open_output(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    int asked;
    TSR_TRY(tsr_output_check_place(config));
    TSR_TRY(check_given(job));
    TSR_TRY(lock(&asked, config, LOCK_SH));
    unlock(asked);
    TSR_TRY(tsr_snapshot_newest(&job->newest, config->output_dir));
    return check_free(job, job->newest);
}

/* From here on the directory is this job's. Since it was created another may have come and gone:
 * what that left is not this job's to remove. */
static tsr_status take_output(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    int64_t newest;
    TSR_TRY(tsr_output_make_directory(config->output_dir));
    if (job->output_lock < 0)
        TSR_TRY(lock(&job->output_lock, config, LOCK_EX));
    TSR_TRY(tsr_snapshot_newest(&newest, config->output_dir));
    if (job->continues && newest != job->newest)
        return tsr_fail(TSR_ECONFIG,
                        "%s: the checkpoints in output_dir %s are not those that were there when "
                        "this job was created: another job has gone on with the run; start again "
                        "to go on from its newest",
                        tsr_config_where(config, "output_dir"), config->output_dir);
    return check_free(job, newest);
}

tsr_status tsr_output_make_directory(const char *directory)
{
    char path[PATH_MAX];
    TSR_TRY(join(path, sizeof path, directory, ""));
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return tsr_fail(TSR_EIO, "output_dir: cannot make the directory %s: %s", path,
                            strerror(errno));
        *p = '/';
    }
    return TSR_OK;
}

static tsr_status write_text(const char *directory, const char *name, const tsr_text *text)
{
    char path[PATH_MAX];
    TSR_TRY(join(path, sizeof path, directory, name));
    return tsr_file_write(path, tsr_text_string(text), text->length);
}

static tsr_status start_metrics(tsr_job *job, const char *directory)
{
    char path[PATH_MAX];
    bool appends = job->resume && job->continues;
    TSR_TRY(join(path, sizeof path, directory, METRICS_FILE));
    if (appends)
        TSR_TRY(tsr_metrics_cut(path, job->metrics_bytes));
    TSR_TRY(tsr_metrics_create(&job->metrics, path, appends));
    tsr_metrics_start start = {.version = tsr_usage_version(),
                               .commit = tsr_usage_commit(),
                               .ranks = job->view.ranks,
                               .device = tsr_device_description(job->device),
                               .plan_hash = job->decision.plan->hash,
                               .config_hash = tsr_config_hash(&job->inputs.config),
                               .model = job->inputs.config.model_name_or_path,
                               .total_steps = job->total_steps,
                               .resumed_step = job->resumed,
                               .trainable_count = (int64_t)job->inputs.layout.trainable_count};
    TSR_TRY(tsr_metrics_write_start(job->metrics, &start));
    if (job->inputs.config.report_to != TSR_CONFIG_REPORT_TENSORBOARD)
        return TSR_OK;
    TSR_TRY(join(path, sizeof path, directory, TSR_EVENTS_DIRECTORY));
    TSR_TRY(tsr_output_make_directory(path));
    TSR_TRY(join(path, sizeof path, directory, TSR_EVENTS_FILE));
    return tsr_events_create(&job->events, path, appends ? job->resumed : 0, job->evaluated);
}

typedef struct {
    const char *tag;
    double value;
} scalar;

static tsr_status write_events(tsr_job *job, int64_t step, const scalar *scalars, int count)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall_time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    for (int i = 0; job->events && i < count; i++)
        TSR_TRY(tsr_events_write(job->events, wall_time, step, scalars[i].tag, scalars[i].value));
    return TSR_OK;
}

tsr_status tsr_job_record_step(tsr_job *job, const tsr_job_report *step)
{
    const scalar scalars[] = {{"train/loss", step->loss},
                              {"train/grad_norm", step->grad_norm},
                              {"train/learning_rate", step->learning_rate},
                              {"train/epoch", step->epoch},
                              {"train/tokens_per_s", step->tokens_per_s}};
    if (!job->metrics)
        return TSR_OK;
    TSR_TRY(tsr_metrics_write_step(job->metrics, step));
    return write_events(job, step->step, scalars, sizeof scalars / sizeof *scalars);
}

tsr_status tsr_job_record_eval(tsr_job *job, double loss, int64_t label_tokens)
{
    if (!job->metrics)
        return TSR_OK;
    TSR_TRY(tsr_metrics_write_eval(job->metrics, job->done, loss, label_tokens));
    return write_events(job, job->done, &(scalar){TSR_EVENTS_EVAL, loss}, 1);
}

/* Values that were left to the runtime are written as they were decided; but not the size of a
 * shard group, so that the file is good for another number of ranks (plan.json has it). */
static void resolve_config(tsr_job *job)
{
    tsr_config *config = &job->inputs.config;
    const tsr_decision *d = &job->decision;
    bool narrow = job->inputs.compute == TSR_BF16;
    config->dtype = narrow ? TSR_CONFIG_DTYPE_BFLOAT16 : TSR_CONFIG_DTYPE_FLOAT32;
    if (config->resident_units < 0)
        config->resident_units = d->resident_count;
}

/* ".<a run's file>.<process>.<attempt>.tmp": what a process that was killed was writing. */
static bool is_leftover(const char *name)
{
    for (size_t i = 0; i < RUN_FILES; i++) {
        size_t length = strlen(run_files[i]);
        long process, attempt;
        int end = 0;
        if (*name == '.' && !strncmp(name + 1, run_files[i], length) &&
            sscanf(name + 1 + length, ".%ld.%ld.tmp%n", &process, &attempt, &end) == 2 && end &&
            !name[1 + length + (size_t)end])
            return true;
    }
    return false;
}

static tsr_status clear_leftovers(const char *directory)
{
    char path[PATH_MAX];
    tsr_status status = TSR_OK;
    DIR *entries = opendir(directory);
    if (!entries)
        return tsr_fail(TSR_EIO, "output_dir: cannot list %s: %s", directory, strerror(errno));
    for (struct dirent *entry; status == TSR_OK && (entry = readdir(entries));) {
        if (!is_leftover(entry->d_name))
            continue;
        status = join(path, sizeof path, directory, entry->d_name);
        if (status == TSR_OK && unlink(path) != 0 && errno != ENOENT)
            status = tsr_fail(TSR_EIO, "output_dir: cannot remove %s: %s", path, strerror(errno));
    }
    closedir(entries);
    return status;
}

/* The run that was there before; of one that goes on, what came after its checkpoint. */
static tsr_status clear_output(const tsr_job *job, const char *directory)
{
    char path[PATH_MAX];
    bool foreign;
    TSR_TRY(tsr_peft_card_is_foreign(&foreign, directory));
    TSR_TRY(clear_leftovers(directory));
    TSR_TRY(tsr_snapshot_tidy(directory));
    TSR_TRY(tsr_snapshot_drop_after(directory, job->resume && job->continues ? job->done : -1));
    if (job->resume && job->continues)
        return TSR_OK;
    for (size_t i = 0; i < RUN_FILES; i++) {
        if (foreign && !strcmp(run_files[i], TSR_PEFT_CARD_FILE))
            continue;
        TSR_TRY(join(path, sizeof path, directory, run_files[i]));
        if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
            return tsr_fail(TSR_EIO, "output_dir: cannot remove %s: %s", path, strerror(errno));
    }
    return TSR_OK;
}

tsr_status tsr_job_end(tsr_job *job, tsr_metrics_status status)
{
    if (!job->metrics || job->ended)
        return TSR_OK;
    job->ended = true;
    return tsr_metrics_write_end(job->metrics, status);
}

tsr_status tsr_job_write_output(tsr_job *job)
{
    const char *directory = job->inputs.config.output_dir;
    tsr_text yaml = {0}, plan = {0};
    TSR_TRY(take_output(job));
    TSR_TRY(clear_output(job, directory));
    resolve_config(job);
    tsr_status status = tsr_config_write(&yaml, &job->inputs.config);
    if (status == TSR_OK)
        status = write_text(directory, "job.yaml", &yaml);
    if (status == TSR_OK)
        status = tsr_decision_print(&plan, &job->decision, &job->inputs, &job->view, &job->speeds,
                                    &(tsr_largest){0}, true);
    if (status == TSR_OK)
        status = write_text(directory, "plan.json", &plan);
    if (status == TSR_OK && job->matmuls.length)
        status = write_text(directory, TSR_MATMULS_FILE, &job->matmuls);
    if (status == TSR_OK)
        status = start_metrics(job, directory);
    tsr_text_free(&yaml);
    tsr_text_free(&plan);
    return status;
}
