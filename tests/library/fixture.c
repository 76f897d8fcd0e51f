#include "library/fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

char library_directory[] = "/tmp/tessera-library-XXXXXX";
char library_config[2048];

static void write_rows(const char *path, int rows)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < rows; i++)
        fprintf(file,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %d plus %d?\"}, "
                "{\"role\": \"assistant\", \"content\": \"%d and %d make %d. This is so since "
                "adding %d to %d gives %d. #### %d\"}]}\n",
                i, 2 * i, i, 2 * i, 3 * i, i, 2 * i, 3 * i, 3 * i);
    fclose(file);
}

int library_set_up(void **state)
{
    char train[64], held_out[64];
    (void)state;
    if (!mkdtemp(library_directory))
        return -1;
    snprintf(train, sizeof train, "%s/train.jsonl", library_directory);
    snprintf(held_out, sizeof held_out, "%s/eval.jsonl", library_directory);
    write_rows(train, 12);
    write_rows(held_out, 2);
    snprintf(library_config, sizeof library_config,
             "model_name_or_path: %s/examples/tiny-llama\ndataset: %s\neval_dataset: %s\n"
             "output_dir: %s/out\noverwrite_output_dir: true\nmax_steps: %d\nlearning_rate: 2e-3\n"
             "total_batch_size: 4\n",
             TSR_SOURCE_DIR, train, held_out, library_directory, LIBRARY_STEPS);
    return 0;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

int library_tear_down(void **state)
{
    (void)state;
    return nftw(library_directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int library_entries(const char *path)
{
    DIR *entries = opendir(path);
    int count = 0;
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries));)
        count += entry->d_name[0] != '.';
    closedir(entries);
    return count;
}

int library_descriptors_seen;
static int noted[64];

void library_note_descriptors(void)
{
    for (int fd = 0; fd < 64; fd++)
        noted[fd] = fcntl(fd, F_GETFD) >= 0;
}

void library_look_at_descriptors(void *user, const char *phase, double done, double total)
{
    (void)user, (void)done, (void)total;
    for (int fd = 0; fd < 64; fd++) {
        int flags = noted[fd] ? -1 : fcntl(fd, F_GETFD);
        library_descriptors_seen += flags >= 0;
        if (flags >= 0 && !(flags & FD_CLOEXEC))
            fail_msg("%s: descriptor %d is inherited by other programs", phase, fd);
    }
}

int library_all_gather(void *user, const void *send, void *receive, uint64_t bytes)
{
    library_seat *s = user;
    library_meeting *m = s->meeting;
    m->send[s->rank] = send;
    if (s->rank == 0)
        m->calls++;
    pthread_barrier_wait(&m->barrier);
    int failing = m->calls == m->fail_at;
    for (int i = 0; i < (m->ranks ? m->ranks : LIBRARY_RANKS) && !failing; i++)
        if (bytes)
            memcpy((char *)receive + (uint64_t)i * bytes, m->send[i], bytes);
    pthread_barrier_wait(&m->barrier);
    return failing ? 17 : 0;
}

/* ---- a run ---- */

static const char *overrides_none[] = {"lora_r=4"};

tsr_job_options library_options(const char *text)
{
    return (tsr_job_options){.size = sizeof(tsr_job_options),
                             .config_text = text,
                             .overrides = overrides_none,
                             .override_count = 1,
                             .threads = 1,
                             .timeout_seconds = 60};
}

int library_run(library_result *r, const tsr_job_options *options)
{
    tsr_job *job = NULL;
    tsr_job_plan_info plan = TSR_JOB_PLAN_INFO_INIT;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    *r = (library_result){0};
    int status = tsr_job_create(&job, options);
    if (status == 0)
        status = tsr_job_plan(job, &plan);
    if (status == 0)
        status = tsr_job_start(job);
    if (status == 0)
        status = tsr_job_evaluate(job, &evaluation);
    r->eval_before = evaluation.loss;
    while (status == 0 && (status = tsr_job_step(job, &report)) == 0 && r->steps < LIBRARY_STEPS)
        r->loss[r->steps++] = report.loss;
    if (status == TSR_JOB_DONE)
        status = tsr_job_evaluate(job, &evaluation);
    r->eval_loss = evaluation.loss;
    if (status == 0)
        status = tsr_job_save(job);
    if (status == 0) {
        r->planned = plan.device_peak_bytes;
        r->used = report.device_bytes;
    }
    tsr_job_destroy(job);
    return r->status = status;
}

void library_trained(const library_result *r)
{
    if (r->status != 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(r->steps, LIBRARY_STEPS);
    assert_true(r->eval_loss < r->eval_before);
    assert_int_equal(r->planned, r->used);
}
