#include "base/regex.h"

#include "base/checked.h"

#include <oniguruma.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Compiling (?i) takes time by the square, 3 seconds for this. Published patterns have two thousand at most. */
#define MOST_BYTES 65536
/* A step back takes 5 to 400 ns. Published patterns take fewer than 30 a byte, but for those that group digits from the right,
 * which look at all of a number at each of its places: hence a step for each two places of the text. */
#define STEPS_PER_BYTE 512
#define STEPS_MORE     100000
/* A search may go back so often at first, and remember so many places to go back to. If that is not enough it begins anew
 * with more: so it is known what it took, which Oniguruma does not tell, to a factor, and the clock is looked at in between. */
#define FIRST_STEPS  64
#define FIRST_PLACES 1024
#define MORE         4
/* 32 bytes each: runs of so many spaces can be matched. */
#define MOST_PLACES (1u << 24)
/* Published patterns take less than half a second for each MiB, and 6 seconds for a number of 20 thousand digits. */
#define SECONDS          20.0
#define SECONDS_PER_BYTE (4.0 / (1 << 20))
#define LOOK_EACH        256 /* searches; the clock takes as long as some of them */

struct tsr_regex {
    regex_t *compiled; /* a search only reads it */
    bool shared;       /* it is another's */
    OnigRegion *region;
    OnigMatchParam *limits;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start_oniguruma(void)
{
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
}

tsr_status tsr_regex_create(tsr_regex **out, char reason[TSR_REGEX_REASON_BYTES],
                            const char *expression, size_t bytes, tsr_regex_syntax syntax)
{
    OnigErrorInfo info;
    OnigUChar words[ONIG_MAX_ERROR_MESSAGE_LEN];
    if (bytes > MOST_BYTES) {
        snprintf(reason, TSR_REGEX_REASON_BYTES, "it has %zu bytes, at most %d are taken", bytes,
                 MOST_BYTES);
        return TSR_EDATA;
    }
    tsr_regex *regex = calloc(1, sizeof *regex);
    if (!regex)
        return tsr_fail(TSR_ENOMEM, "no memory for a regular expression");
    pthread_once(&once, start_oniguruma);
    const OnigUChar *text = (const OnigUChar *)expression;
    int code = onig_new(&regex->compiled, text, text + bytes, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                        syntax == TSR_REGEX_RUBY ? ONIG_SYNTAX_RUBY : ONIG_SYNTAX_PYTHON, &info);
    if (code == ONIG_NORMAL) {
        regex->region = onig_region_new();
        regex->limits = onig_new_match_param();
    } else {
        regex->compiled = NULL;
    }
    if (regex->region && regex->limits) {
        onig_initialize_match_param(regex->limits);
        *out = regex;
        return TSR_OK;
    }
    tsr_regex_destroy(regex);
    if (code == ONIG_NORMAL || code == ONIGERR_MEMORY)
        return tsr_fail(TSR_ENOMEM, "no memory for a regular expression");
    onig_error_code_to_str(words, code, &info);
    snprintf(reason, TSR_REGEX_REASON_BYTES, "%s", (char *)words);
    return TSR_EDATA;
}

void tsr_regex_destroy(tsr_regex *regex)
{
    if (!regex)
        return;
    if (regex->limits)
        onig_free_match_param(regex->limits);
    if (regex->region)
        onig_region_free(regex->region, 1);
    if (regex->compiled && !regex->shared)
        onig_free(regex->compiled);
    free(regex);
}

tsr_status tsr_regex_share(tsr_regex **out, const tsr_regex *origin)
{
    tsr_regex *regex = calloc(1, sizeof *regex);
    if (regex) {
        *regex = (tsr_regex){.compiled = origin->compiled,
                             .shared = true,
                             .region = onig_region_new(),
                             .limits = onig_new_match_param()};
        if (regex->region && regex->limits) {
            onig_initialize_match_param(regex->limits);
            *out = regex;
            return TSR_OK;
        }
    }
    tsr_regex_destroy(regex);
    return tsr_fail(TSR_ENOMEM, "no memory for a regular expression");
}

/* ---- budgets ---- */

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void tsr_regex_budget_begin(tsr_regex_budget *budget, size_t bytes, size_t expressions)
{
    uint64_t steps;
    if (!tsr_add_u64(&steps, bytes, STEPS_PER_BYTE) || !tsr_mul_u64(&steps, steps, bytes) ||
        !tsr_mul_u64(&steps, steps, expressions) || !tsr_add_u64(&steps, steps, STEPS_MORE))
        steps = UINT64_MAX;
    double now = processor_seconds();
    *budget = (tsr_regex_budget){.steps = steps,
                                 .seconds = SECONDS + (double)bytes * SECONDS_PER_BYTE,
                                 .begun = now,
                                 .looked = now};
}

static tsr_status used_up(tsr_regex_budget *budget, const char *what)
{
    snprintf(budget->reason, sizeof budget->reason, "%s", what);
    return TSR_EDATA;
}

/* What follows takes up to `times` as long as what was since the last look. */
static tsr_status look_at_the_clock(tsr_regex_budget *budget, double times)
{
    double now = processor_seconds(), took = now - budget->looked;
    budget->looked = now;
    if (now + times * took > budget->begun + budget->seconds)
        return used_up(budget, "it looks at the text again and again, which takes too long");
    return TSR_OK;
}

/* What one go of a search may take. */
typedef struct {
    uint64_t steps, places;
} allowance;

static const allowance first_go = {FIRST_STEPS, FIRST_PLACES};

static void allow(const tsr_regex *regex, const tsr_regex_budget *budget, allowance *go)
{
    if (go->steps > budget->steps)
        go->steps = budget->steps;
    /* To Oniguruma 0 is no limit. */
    onig_set_retry_limit_in_match_of_match_param(regex->limits, go->steps + 1);
    onig_set_retry_limit_in_search_of_match_param(regex->limits, go->steps + 1);
    onig_set_match_stack_limit_size_of_match_param(regex->limits, (unsigned)go->places);
}

/* What a go that ended with this code took; *again: there is to be another, with more. */
static tsr_status judge(bool *again, tsr_regex_budget *budget, int code, allowance *go)
{
    bool places = code == ONIGERR_MATCH_STACK_LIMIT_OVER;
    bool steps =
        code == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || code == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
    *again = places || steps;
    if (code == ONIGERR_MEMORY)
        return tsr_fail(TSR_ENOMEM, "no memory to match a regular expression");
    if (code < 0 && code != ONIG_MISMATCH && !*again) {
        OnigUChar words[ONIG_MAX_ERROR_MESSAGE_LEN];
        onig_error_code_to_str(words, code);
        return used_up(budget, (const char *)words);
    }
    if (places && go->places == MOST_PLACES)
        return used_up(budget, "it has more than 16777216 places in the text to go back to");
    if (steps && go->steps == budget->steps)
        return used_up(budget, "it goes back in the text too often (catastrophic backtracking)");
    budget->steps -= go->steps;
    go->steps *= MORE;
    go->places = go->places < MOST_PLACES / MORE ? go->places * MORE : MOST_PLACES;
    if (*again)
        return look_at_the_clock(budget, MORE);
    return ++budget->searches % LOOK_EACH ? TSR_OK : look_at_the_clock(budget, 0);
}

tsr_status tsr_regex_search(bool *found, size_t match[2], const tsr_regex *regex,
                            tsr_regex_budget *budget, const char *text, size_t begin, size_t at,
                            size_t end)
{
    const OnigUChar *u = (const OnigUChar *)text;
    allowance go = first_go;
    bool again = true;
    *found = false;
    while (again) {
        allow(regex, budget, &go);
        int code = onig_search_with_param(regex->compiled, u + begin, u + end, u + at, u + end,
                                          regex->region, ONIG_OPTION_NONE, regex->limits);
        TSR_TRY(judge(&again, budget, code, &go));
        *found = code >= 0;
    }
    if (*found) {
        match[0] = begin + (size_t)regex->region->beg[0];
        match[1] = begin + (size_t)regex->region->end[0];
    }
    return TSR_OK;
}

tsr_status tsr_regex_match(bool *found, const tsr_regex *regex, tsr_regex_budget *budget,
                           const char *text, size_t bytes)
{
    const OnigUChar *u = (const OnigUChar *)text;
    allowance go = first_go;
    bool again = true;
    *found = false;
    while (again) {
        allow(regex, budget, &go);
        int code = onig_match_with_param(regex->compiled, u, u + bytes, u, NULL, ONIG_OPTION_NONE,
                                         regex->limits);
        TSR_TRY(judge(&again, budget, code, &go));
        *found = code >= 0;
    }
    return TSR_OK;
}

const char *tsr_regex_library(void)
{
    return onig_version();
}
