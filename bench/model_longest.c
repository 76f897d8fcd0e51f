/*
 * model_longest.c: the longest row that plan names for a run's own job. Its files are what is asked about, with all of the
 * run's keys: a length that is named for another job, with its base in host memory say, may not fit this one.
 */
#include "model.h"

#include <inttypes.h>
#include <stdio.h>

int bench_longest_ask(bench_run *run)
{
    char path[BENCH_PATH_BYTES], *text = NULL;
    snprintf(path, sizeof path, "%s/job.yaml", run->directory);
    const tsr_job_options options = {.size = sizeof options,
                                     .config_path = path,
                                     .overrides = run->overrides,
                                     .override_count = run->override_count,
                                     .purpose = TSR_JOB_PLAN,
                                     .plan_ranks = run->ranks};
    if (tsr_plan_longest(&options, TSR_PLAN_JSON, &text) < 0) {
        fprintf(stderr, "bench_model: the longest row: %s\n", tsr_last_error());
        return -1;
    }
    json_t *found = json_loads(text, 0, NULL);
    run->longest = json_integer_value(json_object_get(found, "max_length"));
    json_decref(found);
    tsr_free(text);
    return run->longest > 0 ? 0 : -1;
}

int bench_longest_take(bench_run *run)
{
    run->length = run->longest / run->part;
    if (run->length >= 2)
        return bench_rows_make(run);
    fprintf(stderr, "bench_model: --longest %" PRId64 " leaves no row of %" PRId64 " tokens\n",
            run->part, run->longest);
    return -1;
}

int bench_longest_check(const bench_run *run, const bench_result *r)
{
    uint64_t used = r->cuda ? r->total - r->free_last : r->arena_used;
    if (!run->part || (r->arena_used == r->arena_planned && used <= r->budget))
        return 0;
    fprintf(stderr, "bench_model: %" PRIu64 " bytes were used of a budget of %" PRIu64 "\n", used,
            r->budget);
    return -1;
}
