/*
 * embed.c: a scheduler that runs fine-tuning jobs inside its own process with libtessera, and
 * nothing of this tree but include/tessera.h.
 *
 *   embed MODEL_DIRECTORY TRAIN.jsonl EVAL.jsonl OUTPUT_DIRECTORY
 *
 * Two tenants at a time, each on a thread of its own: a job is planned, admitted only if it fits the
 * memory that the scheduler gives it, started, stepped until its end or until it is asked to stop (by
 * SIGINT, or here when the tenant's share of steps is used up), evaluated, saved and destroyed. Ends
 * with 0, or with the exit code that the program `tessera` has for the same failure.
 *
 *   cc -I include examples/embed.c -L build -l tessera -Wl,-rpath,$PWD/build
 *   cc -I include examples/embed.c build/libtessera.a $(cat build/libtessera.link)
 */
#include <tessera.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int stop; /* all jobs' stop flag */

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

/* What the scheduler knows about a job. */
typedef struct {
    const char *name;
    const char *config;  /* the text of a job.yaml */
    int64_t share;       /* steps that the tenant may use */
    uint64_t most_bytes; /* memory that may be given to the job */
} tenant;

/* The library never prints: whatever it has to say comes here, on rank 0. */
static void on_log(void *user, int severity, const char *line)
{
    const tenant *t = user;
    if (severity <= TSR_JOB_WARNING)
        printf("[%s] %s\n", t->name, line);
}

/* Planned before any weight is read: a job that is too large is turned down at once. */
static int admit(tsr_job *job, const tenant *t)
{
    tsr_job_plan_info plan = TSR_JOB_PLAN_INFO_INIT;
    int status = tsr_job_plan(job, &plan);
    if (status < 0)
        return status;
    printf("[%s] %lld steps; %llu of %llu parameters trained; needs %.1f MiB\n", t->name,
           (long long)tsr_job_total_steps(job), (unsigned long long)plan.trainable_count,
           (unsigned long long)plan.parameter_count, (double)plan.device_peak_bytes / 0x1p20);
    return plan.device_peak_bytes + plan.host_peak_bytes <= t->most_bytes;
}

/* Steps until the job is at its end or has been told to stop, which ends it after the next step. */
static int run(tsr_job *job, const tenant *t, int64_t *stopped_after)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    int status;
    while ((status = tsr_job_step(job, &report)) == 0) {
        printf("[%s] step %lld of %lld: loss %.4f, %.0f tokens/s\n", t->name,
               (long long)report.step, (long long)report.total_steps, report.loss,
               report.tokens_per_s);
        if (report.step >= t->share)
            tsr_job_request_stop(job);
    }
    if (status == TSR_JOB_DONE && report.stopped)
        *stopped_after = report.step;
    return status < 0 ? status : 0;
}

static int evaluate(tsr_job *job, const tenant *t, double *loss)
{
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    int status = tsr_job_evaluate(job, &evaluation);
    if (status < 0)
        return status;
    *loss = evaluation.loss;
    printf("[%s] held-out loss %.4f over %lld tokens\n", t->name, evaluation.loss,
           (long long)evaluation.label_tokens);
    return 0;
}

/* A job, and what became of it. */
typedef struct {
    const tenant *t;
    char *overrides[4];
    int code; /* for exit */
    int64_t stopped_after;
    double change; /* of the held-out loss */
} service;

/* A whole job, on a thread of its own. */
static void *serve(void *user)
{
    service *s = user;
    const tenant *t = s->t;
    tsr_job_options options = TSR_JOB_OPTIONS_INIT;
    options.config_text = t->config;
    options.overrides = (const char *const *)s->overrides;
    options.override_count = 4;
    options.threads = 1;
    options.log = on_log;
    options.user = (void *)t;
    options.stop = &stop;
    tsr_job *job = NULL;
    double before = 0, after = 0;
    int status = tsr_job_create(&job, &options);
    int admitted = status < 0 ? status : admit(job, t);
    if (admitted == 0)
        printf("[%s] turned down: more than %.1f MiB\n", t->name, (double)t->most_bytes / 0x1p20);
    if (admitted > 0) {
        status = tsr_job_start(job);
        if (status == 0)
            status = evaluate(job, t, &before);
        if (status == 0)
            status = run(job, t, &s->stopped_after);
        if (status == 0)
            status = evaluate(job, t, &after);
        if (status == 0)
            status = tsr_job_save(job);
        s->change = after - before;
    } else if (admitted < 0) {
        status = admitted;
    }
    if (status < 0)
        fprintf(stderr, "[%s] %s\n", t->name, tsr_last_error());
    tsr_job_destroy(job);
    s->code = admitted == 0 ? 75 : tsr_job_exit_code(status);
    return NULL;
}

/* "key=value", as on the command line of tessera; the caller frees. */
static char * override(const char *key, const char *value, const char *separator, const char *rest)
{
    size_t bytes = strlen(key) + strlen(value) + strlen(separator) + strlen(rest) + 2;
    char *text = malloc(bytes);
    if (!text)
        exit(71);
    snprintf(text, bytes, "%s=%s%s%s", key, value, separator, rest);
    return text;
}

#define SHARED                                                                                     \
    "max_length: 512\ntruncation: right\nmax_eval_samples: 8\nlearning_rate: 2e-3\nlora_r: 4\n"    \
    "per_device_train_batch_size: 2\noverwrite_output_dir: true\n"

int main(int argc, char **argv)
{
    static const tenant tenants[] = {
        {"dora", SHARED "use_dora: true\nmax_steps: 4\n", 4, (uint64_t)4 << 30},
        {"lora", SHARED "use_dora: false\nmax_steps: 50\n", 2, (uint64_t)4 << 30}};
    static const char *const keys[] = {"model_name_or_path", "dataset", "eval_dataset"};
    service services[2];
    pthread_t threads[2];
    int code = 0;
    if (argc != 5) {
        fprintf(stderr, "usage: embed MODEL_DIRECTORY TRAIN.jsonl EVAL.jsonl OUTPUT_DIRECTORY\n");
        return 64;
    }
    signal(SIGINT, on_signal);
    printf("libtessera %s\n", tsr_version());
    for (int i = 0; i < 2; i++) {
        services[i] = (service){.t = &tenants[i]};
        for (int k = 0; k < 3; k++)
            services[i].overrides[k] = override(keys[k], argv[1 + k], "", "");
        services[i].overrides[3] = override("output_dir", argv[4], "/", tenants[i].name);
        if (pthread_create(&threads[i], NULL, serve, &services[i]) != 0)
            exit(71);
    }
    for (int i = 0; i < 2; i++) {
        service *s = &services[i];
        pthread_join(threads[i], NULL);
        if (s->stopped_after)
            printf("[%s] stopped after step %lld\n", s->t->name, (long long)s->stopped_after);
        if (s->code == 0)
            printf("[%s] adapter saved: held-out loss changed by %+.4f\n", s->t->name, s->change);
        code = code ? code : s->code;
        for (int k = 0; k < 4; k++)
            free(s->overrides[k]);
    }
    return code;
}
