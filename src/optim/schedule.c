#include "optim/schedule.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

static const struct {
    const char *name;
    bool warms_up, takes_cycles, takes_floor;
} kinds[] = {
    [TSR_SCHEDULE_LINEAR] = {"linear", true, false, false},
    [TSR_SCHEDULE_COSINE] = {"cosine", true, true, false},
    [TSR_SCHEDULE_CONSTANT] = {"constant", false, false, false},
    [TSR_SCHEDULE_CONSTANT_WITH_WARMUP] = {"constant_with_warmup", true, false, false},
    [TSR_SCHEDULE_COSINE_WITH_MIN_LR] = {"cosine_with_min_lr", true, true, true},
};
#define KINDS (sizeof kinds / sizeof *kinds)

const char *tsr_schedule_names(void)
{
    return "linear, cosine, constant, constant_with_warmup, cosine_with_min_lr";
}

static tsr_status find_kind(tsr_schedule_kind *out, const char *name)
{
    for (size_t i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, name)) {
            *out = (tsr_schedule_kind)i;
            return TSR_OK;
        }
    return tsr_fail(TSR_ECONFIG, "lr_scheduler_type is \"%s\"; allowed: %s", name,
                    tsr_schedule_names());
}

/* transformers' rule: whole steps from 1 on, else a share of the run, rounded up. */
static tsr_status find_warmup(uint64_t *out, const tsr_schedule_options *o, uint64_t total_steps)
{
    if (!(o->warmup_steps >= 0 && o->warmup_steps <= 1e15))
        return tsr_fail(TSR_ECONFIG, "warmup_steps is %g; expected 0 or more", o->warmup_steps);
    if (!(o->warmup_ratio >= 0 && o->warmup_ratio <= 1))
        return tsr_fail(TSR_ECONFIG, "warmup_ratio is %g; expected 0 to 1", o->warmup_ratio);
    double share = o->warmup_steps > 0 ? o->warmup_steps : o->warmup_ratio;
    if (o->warmup_steps >= 1)
        *out = (uint64_t)o->warmup_steps;
    else
        *out = (uint64_t)ceil((double)total_steps * share);
    return TSR_OK;
}

static tsr_status find_floor(double *out, const tsr_schedule_options *o)
{
    if (o->min_lr_set == o->min_lr_rate_set)
        return tsr_fail(TSR_ECONFIG,
                        "lr_scheduler_kwargs: cosine_with_min_lr needs one of min_lr and "
                        "min_lr_rate, found %s",
                        o->min_lr_set ? "both" : "neither");
    if (o->min_lr_set && !(o->min_lr >= 0 && o->min_lr <= o->learning_rate))
        return tsr_fail(TSR_ECONFIG,
                        "lr_scheduler_kwargs: min_lr is %g; expected 0 to the learning_rate, %g",
                        o->min_lr, o->learning_rate);
    if (o->min_lr_rate_set && !(o->min_lr_rate >= 0 && o->min_lr_rate <= 1))
        return tsr_fail(TSR_ECONFIG, "lr_scheduler_kwargs: min_lr_rate is %g; expected 0 to 1",
                        o->min_lr_rate);
    if (o->min_lr_rate_set)
        *out = o->min_lr_rate;
    else
        *out = o->learning_rate > 0 ? o->min_lr / o->learning_rate : 0;
    return TSR_OK;
}

tsr_status tsr_schedule_make(tsr_schedule *out, const tsr_schedule_options *options,
                             uint64_t total_steps)
{
    const char *name = options->name ? options->name : kinds[TSR_SCHEDULE_LINEAR].name;
    tsr_schedule s = {.total_steps = total_steps, .num_cycles = 0.5};
    TSR_TRY(find_kind(&s.kind, name));
    TSR_TRY(find_warmup(&s.warmup_steps, options, total_steps));
    if (!kinds[s.kind].warms_up)
        s.warmup_steps = 0;
    if (options->num_cycles_set && !kinds[s.kind].takes_cycles)
        return tsr_fail(TSR_ECONFIG, "lr_scheduler_kwargs: %s takes no num_cycles", name);
    if ((options->min_lr_set || options->min_lr_rate_set) && !kinds[s.kind].takes_floor)
        return tsr_fail(TSR_ECONFIG, "lr_scheduler_kwargs: %s takes no %s; cosine_with_min_lr does",
                        name, options->min_lr_set ? "min_lr" : "min_lr_rate");
    if (options->num_cycles_set) {
        if (!(options->num_cycles >= 0 && options->num_cycles <= 1e9))
            return tsr_fail(TSR_ECONFIG,
                            "lr_scheduler_kwargs: num_cycles is %g; expected 0 or more",
                            options->num_cycles);
        s.num_cycles = options->num_cycles;
    }
    if (kinds[s.kind].takes_floor)
        TSR_TRY(find_floor(&s.min_lr_rate, options));
    *out = s;
    return TSR_OK;
}

static double positive(double value)
{
    return value > 0 ? value : 0;
}

double tsr_schedule_multiplier(const tsr_schedule *schedule, uint64_t index)
{
    double step = (double)index, warmup = (double)schedule->warmup_steps;
    if (index < schedule->warmup_steps)
        return step / warmup;
    double total = (double)schedule->total_steps;
    double rest = total - warmup > 1 ? total - warmup : 1;
    double cosine = 0.5 * (1 + cos(PI * schedule->num_cycles * 2 * ((step - warmup) / rest)));
    switch (schedule->kind) {
    case TSR_SCHEDULE_LINEAR:
        return positive((total - step) / rest);
    case TSR_SCHEDULE_COSINE:
        return positive(cosine);
    case TSR_SCHEDULE_COSINE_WITH_MIN_LR:
        return positive(cosine * (1 - schedule->min_lr_rate) + schedule->min_lr_rate);
    case TSR_SCHEDULE_CONSTANT:
    case TSR_SCHEDULE_CONSTANT_WITH_WARMUP:
        break;
    }
    return 1;
}
