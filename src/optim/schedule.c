#include "optim/schedule.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

static const char *const shapes[] = {[TSR_SCHEDULE_BY_LINE] = "linear",
                                     [TSR_SCHEDULE_BY_COSINE] = "cosine",
                                     [TSR_SCHEDULE_BY_ROOT] = "1-sqrt",
                                     NULL};

static const struct {
    const char *name;
    double most;
    const char *const *words;
} arguments[] = {
    [TSR_SCHEDULE_NUM_CYCLES] = {"num_cycles", 1e6, NULL},
    [TSR_SCHEDULE_MIN_LR] = {"min_lr", 1e3, NULL},
    [TSR_SCHEDULE_MIN_LR_RATE] = {"min_lr_rate", 1, NULL},
    [TSR_SCHEDULE_WARMUP_LR_RATE] = {"warmup_lr_rate", 1, NULL},
    [TSR_SCHEDULE_LR_END] = {"lr_end", 1e3, NULL},
    [TSR_SCHEDULE_POWER] = {"power", 1e3, NULL},
    [TSR_SCHEDULE_TIMESCALE] = {"timescale", 1e12, NULL},
    [TSR_SCHEDULE_NUM_DECAY_STEPS] = {"num_decay_steps", 1e12, NULL},
    [TSR_SCHEDULE_NUM_STABLE_STEPS] = {"num_stable_steps", 1e12, NULL},
    [TSR_SCHEDULE_MIN_LR_RATIO] = {"min_lr_ratio", 1, NULL},
    [TSR_SCHEDULE_WARMUP_TYPE] = {"warmup_type", TSR_SCHEDULE_BY_ROOT, shapes},
    [TSR_SCHEDULE_DECAY_TYPE] = {"decay_type", TSR_SCHEDULE_BY_ROOT, shapes},
};

#define BIT(name)  (1u << TSR_SCHEDULE_##name)
#define FLOOR      (BIT(MIN_LR) | BIT(MIN_LR_RATE))
#define WSD_LENGTH (BIT(NUM_DECAY_STEPS) | BIT(NUM_STABLE_STEPS))
#define WSD_FORM   (BIT(MIN_LR_RATIO) | BIT(WARMUP_TYPE) | BIT(DECAY_TYPE) | BIT(NUM_CYCLES))

static const struct {
    const char *name;
    unsigned takes; /* a bit for each argument */
    double cycles;  /* unless num_cycles is given */
} kinds[] = {
    [TSR_SCHEDULE_LINEAR] = {"linear", 0, 0},
    [TSR_SCHEDULE_COSINE] = {"cosine", BIT(NUM_CYCLES), 0.5},
    [TSR_SCHEDULE_CONSTANT] = {"constant", 0, 0},
    [TSR_SCHEDULE_CONSTANT_WITH_WARMUP] = {"constant_with_warmup", 0, 0},
    [TSR_SCHEDULE_COSINE_WITH_MIN_LR] = {"cosine_with_min_lr", BIT(NUM_CYCLES) | FLOOR, 0.5},
    [TSR_SCHEDULE_COSINE_WITH_RESTARTS] = {"cosine_with_restarts", BIT(NUM_CYCLES), 1},
    [TSR_SCHEDULE_POLYNOMIAL] = {"polynomial", BIT(LR_END) | BIT(POWER), 0},
    [TSR_SCHEDULE_INVERSE_SQRT] = {"inverse_sqrt", BIT(TIMESCALE), 0},
    [TSR_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR] = {"cosine_warmup_with_min_lr",
                                                BIT(NUM_CYCLES) | FLOOR | BIT(WARMUP_LR_RATE), 0.5},
    [TSR_SCHEDULE_WARMUP_STABLE_DECAY] = {"warmup_stable_decay", WSD_LENGTH | WSD_FORM, 0.5},
};

const char *tsr_schedule_name(tsr_schedule_kind kind)
{
    return kinds[kind].name;
}

const char *tsr_schedule_argument_name(tsr_schedule_argument argument)
{
    return arguments[argument].name;
}

double tsr_schedule_argument_most(tsr_schedule_argument argument)
{
    return arguments[argument].most;
}

const char *const *tsr_schedule_argument_words(tsr_schedule_argument argument)
{
    return arguments[argument].words;
}

/* transformers' rule: whole steps from 1 on, else a share of the run, rounded up. */
static tsr_status find_warmup(uint64_t *out, const tsr_schedule_options *o, uint64_t total_steps)
{
    if (!(o->warmup_steps >= 0 && o->warmup_steps <= 1e15))
        return tsr_fail(TSR_ECONFIG, "warmup_steps is %g; expected 0 or more", o->warmup_steps);
    if (o->kind == TSR_SCHEDULE_CONSTANT)
        *out = 0;
    else if (o->warmup_steps >= 1)
        *out = (uint64_t)o->warmup_steps;
    else
        *out = (uint64_t)ceil((double)total_steps * o->warmup_steps);
    return TSR_OK;
}

/* Names of the schedules that take an argument, or of the arguments that a schedule takes. */
static void put_takers(tsr_text *out, int argument)
{
    for (int i = 0; i < TSR_SCHEDULE_KINDS; i++)
        if (kinds[i].takes & 1u << argument)
            tsr_text_printf(out, "%s%s", out->length ? ", " : "", kinds[i].name);
}

static tsr_status check_taken(const tsr_schedule_options *o)
{
    for (int i = 0; i < TSR_SCHEDULE_ARGUMENTS; i++) {
        double value = o->arguments.value[i];
        if (isnan(value))
            continue;
        if (!(kinds[o->kind].takes & 1u << i)) {
            tsr_text takers = {0};
            put_takers(&takers, i);
            tsr_status status = tsr_fail(
                TSR_ECONFIG, "lr_scheduler_kwargs: lr_scheduler_type %s takes no %s; these do: %s",
                kinds[o->kind].name, arguments[i].name, tsr_text_string(&takers));
            tsr_text_free(&takers);
            return status;
        }
        if (!(value >= 0 && value <= arguments[i].most))
            return tsr_fail(TSR_ECONFIG, "lr_scheduler_kwargs: %s is %g; expected 0 to %g",
                            arguments[i].name, value, arguments[i].most);
    }
    return TSR_OK;
}

static tsr_status below_peak(const tsr_schedule_options *o, tsr_schedule_argument argument)
{
    double value = o->arguments.value[argument];
    if (value <= o->learning_rate)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "lr_scheduler_kwargs: %s %g is above the learning_rate, %g",
                    arguments[argument].name, value, o->learning_rate);
}

/* min_lr as min_lr_rate. */
static tsr_status find_floor(double *value, const tsr_schedule_options *o)
{
    const char *name = kinds[o->kind].name;
    bool min = !isnan(value[TSR_SCHEDULE_MIN_LR]), rate = !isnan(value[TSR_SCHEDULE_MIN_LR_RATE]);
    if (min && rate)
        return tsr_fail(TSR_ECONFIG, "lr_scheduler_kwargs: min_lr and min_lr_rate say the same; "
                                     "leave out one");
    if (!min && !rate)
        return tsr_fail(TSR_ECONFIG,
                        "lr_scheduler_type: %s needs min_lr or min_lr_rate in "
                        "lr_scheduler_kwargs, such as {min_lr_rate: 0.1}",
                        name);
    if (!min)
        return TSR_OK;
    TSR_TRY(below_peak(o, TSR_SCHEDULE_MIN_LR));
    value[TSR_SCHEDULE_MIN_LR_RATE] =
        o->learning_rate > 0 ? value[TSR_SCHEDULE_MIN_LR] / o->learning_rate : 0;
    return TSR_OK;
}

/* lr_end over the learning rate; transformers wants it below that. */
static tsr_status find_end(double *value, const tsr_schedule_options *o)
{
    double end = isnan(value[TSR_SCHEDULE_LR_END]) ? 1e-7 : value[TSR_SCHEDULE_LR_END];
    if (end >= o->learning_rate)
        return tsr_fail(TSR_ECONFIG,
                        "lr_scheduler_type: polynomial falls to lr_end %g (lr_scheduler_kwargs), "
                        "which must be below the learning_rate, %g",
                        end, o->learning_rate);
    value[TSR_SCHEDULE_LR_END] = end / o->learning_rate;
    return TSR_OK;
}

static void give_default(double *value, double initial)
{
    if (isnan(*value))
        *value = initial;
}

static tsr_status find_stages(double *value, const tsr_schedule *s)
{
    if (isnan(value[TSR_SCHEDULE_NUM_DECAY_STEPS]))
        return tsr_fail(TSR_ECONFIG, "lr_scheduler_type: warmup_stable_decay needs num_decay_steps "
                                     "in lr_scheduler_kwargs, such as {num_decay_steps: 100}");
    give_default(&value[TSR_SCHEDULE_NUM_STABLE_STEPS], (double)s->total_steps -
                                                            (double)s->warmup_steps -
                                                            value[TSR_SCHEDULE_NUM_DECAY_STEPS]);
    give_default(&value[TSR_SCHEDULE_MIN_LR_RATIO], 0);
    give_default(&value[TSR_SCHEDULE_WARMUP_TYPE], TSR_SCHEDULE_BY_LINE);
    give_default(&value[TSR_SCHEDULE_DECAY_TYPE], TSR_SCHEDULE_BY_COSINE);
    return TSR_OK;
}

tsr_status tsr_schedule_make(tsr_schedule *out, const tsr_schedule_options *options,
                             uint64_t total_steps)
{
    tsr_schedule s = {
        .kind = options->kind, .total_steps = total_steps, .arguments = options->arguments};
    double *value = s.arguments.value;
    TSR_TRY(find_warmup(&s.warmup_steps, options, total_steps));
    TSR_TRY(check_taken(options));
    give_default(&value[TSR_SCHEDULE_NUM_CYCLES], kinds[s.kind].cycles);
    give_default(&value[TSR_SCHEDULE_POWER], 1);
    give_default(&value[TSR_SCHEDULE_TIMESCALE], s.warmup_steps ? (double)s.warmup_steps : 10000);
    if (kinds[s.kind].takes & FLOOR)
        TSR_TRY(find_floor(value, options));
    if (s.kind == TSR_SCHEDULE_POLYNOMIAL)
        TSR_TRY(find_end(value, options));
    if (s.kind == TSR_SCHEDULE_WARMUP_STABLE_DECAY)
        TSR_TRY(find_stages(value, &s));
    if (s.kind == TSR_SCHEDULE_INVERSE_SQRT && !(value[TSR_SCHEDULE_TIMESCALE] > 0))
        return tsr_fail(TSR_ECONFIG, "lr_scheduler_kwargs: timescale is 0; expected more");
    *out = s;
    return TSR_OK;
}

static double positive(double value)
{
    return value > 0 ? value : 0;
}

/* From 1 down to 0 along half a wave for each half cycle. */
static double wave(const double *value, double progress)
{
    return 0.5 * (1 + cos(PI * value[TSR_SCHEDULE_NUM_CYCLES] * 2 * progress));
}

static double above(double factor, double least)
{
    return positive(factor * (1 - least) + least);
}

static double restarts(const double *value, double progress)
{
    if (progress >= 1)
        return 0;
    return positive(0.5 * (1 + cos(PI * fmod(value[TSR_SCHEDULE_NUM_CYCLES] * progress, 1))));
}

static double polynomial(const double *value, double progress)
{
    double end = value[TSR_SCHEDULE_LR_END];
    if (progress > 1)
        return end;
    return (1 - end) * pow(1 - progress, value[TSR_SCHEDULE_POWER]) + end;
}

static double inverse_sqrt(const double *value, double step, double warmup)
{
    double timescale = value[TSR_SCHEDULE_TIMESCALE];
    return 1 / sqrt((step + timescale - warmup) / timescale);
}

/* Its warm-up begins above 0, and its decay a step early. */
static double early_cosine(const double *value, double step, double warmup, double rest)
{
    double first = value[TSR_SCHEDULE_WARMUP_LR_RATE];
    if (step >= warmup)
        return above(wave(value, (step - warmup + 1) / rest), value[TSR_SCHEDULE_MIN_LR_RATE]);
    if (isnan(first))
        return (step + 1) / warmup;
    return first + (1 - first) * step / (warmup > 2 ? warmup - 1 : 1);
}

static double stages(const double *value, double step, double warmup)
{
    double least = value[TSR_SCHEDULE_MIN_LR_RATIO], decay = value[TSR_SCHEDULE_NUM_DECAY_STEPS];
    double begin = warmup + value[TSR_SCHEDULE_NUM_STABLE_STEPS];
    double progress = step < warmup ? step / warmup : (step - begin) / (decay > 1 ? decay : 1);
    if (step < warmup) {
        int shape = (int)value[TSR_SCHEDULE_WARMUP_TYPE];
        double cosine = 0.5 * (1 - cos(PI * progress)), root = 1 - sqrt(1 - progress);
        return above(shape == TSR_SCHEDULE_BY_LINE     ? progress
                     : shape == TSR_SCHEDULE_BY_COSINE ? cosine
                                                       : root,
                     least);
    }
    if (step < begin)
        return 1;
    if (step >= begin + decay)
        return least;
    int shape = (int)value[TSR_SCHEDULE_DECAY_TYPE];
    return above(shape == TSR_SCHEDULE_BY_LINE     ? 1 - progress
                 : shape == TSR_SCHEDULE_BY_COSINE ? wave(value, progress)
                                                   : 1 - sqrt(progress),
                 least);
}

double tsr_schedule_multiplier(const tsr_schedule *schedule, uint64_t index)
{
    const double *value = schedule->arguments.value;
    double step = (double)index, warmup = (double)schedule->warmup_steps;
    double total = (double)schedule->total_steps;
    double rest = total - warmup > 1 ? total - warmup : 1;
    double progress = (step - warmup) / rest;
    if (schedule->kind == TSR_SCHEDULE_WARMUP_STABLE_DECAY)
        return stages(value, step, warmup);
    if (schedule->kind == TSR_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR)
        return early_cosine(value, step, warmup, rest);
    if (index < schedule->warmup_steps)
        return step / warmup;
    switch (schedule->kind) {
    case TSR_SCHEDULE_LINEAR:
        return positive((total - step) / rest);
    case TSR_SCHEDULE_COSINE:
        return positive(wave(value, progress));
    case TSR_SCHEDULE_COSINE_WITH_MIN_LR:
        return above(wave(value, progress), value[TSR_SCHEDULE_MIN_LR_RATE]);
    case TSR_SCHEDULE_COSINE_WITH_RESTARTS:
        return restarts(value, progress);
    case TSR_SCHEDULE_POLYNOMIAL:
        return polynomial(value, progress);
    case TSR_SCHEDULE_INVERSE_SQRT:
        return inverse_sqrt(value, step, warmup);
    default:
        return 1;
    }
}
