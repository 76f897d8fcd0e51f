#include "cli/progress.h"

#include "base/escape.h"
#include "config/config_number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS    80
#define BAR_CELLS  16
#define REDRAW_S   0.1 /* a terminal is not flooded by short steps */
#define LINE_S     5.0 /* between lines of a phase */
#define REMEMBERED 0.9 /* weight of the past in the mean time of a step */
#define CLEAR_LINE "\r\033[K"

#define PHASE_BYTES 64

struct tsr_progress {
    tsr_progress_options options;
    tsr_config_progress mode; /* never AUTO */
    tsr_text text;
    bool bar_shown;
    double mean_step_s, since_drawn_s;
    tsr_job_report last;
    int64_t total_steps, logging_steps;
    bool first_step;
    char phase[PHASE_BYTES]; /* "": none */
    bool phase_shown;        /* on the terminal */
    double phase_begun, phase_said;
};

tsr_status tsr_progress_create(tsr_progress **out, const tsr_progress_options *options)
{
    tsr_progress *p = calloc(1, sizeof *p);
    if (!p)
        return tsr_fail(TSR_ENOMEM, "out of memory: progress");
    p->options = *options;
    p->mode = options->mode;
    if (p->mode == TSR_CONFIG_PROGRESS_AUTO)
        p->mode = options->terminal ? TSR_CONFIG_PROGRESS_BAR : TSR_CONFIG_PROGRESS_LINES;
    if (p->options.columns <= 0)
        p->options.columns = COLUMNS;
    p->logging_steps = 1;
    *out = p;
    return TSR_OK;
}

void tsr_progress_expect(tsr_progress *p, int64_t total_steps, int64_t logging_steps,
                         bool first_step)
{
    p->total_steps = total_steps;
    p->logging_steps = logging_steps > 0 ? logging_steps : 1;
    p->first_step = first_step;
}

static void emit(tsr_progress *p)
{
    if (p->options.write && p->text.length && !p->text.failed)
        p->options.write(p->options.user, p->text.data, p->text.length);
    tsr_text_clear(&p->text);
    p->text.failed = false;
}

static void put_duration(tsr_text *out, double seconds)
{
    long long s = (long long)(seconds + 0.5);
    if (s >= 3600)
        tsr_text_printf(out, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        tsr_text_printf(out, "%lld:%02lld", s / 60, s % 60);
}

static void put_memory(tsr_text *out, uint64_t bytes)
{
    bool large = bytes >= (uint64_t)1 << 30;
    tsr_number_put_fixed(out, (double)bytes / (large ? 0x1p30 : 0x1p20), large ? 2 : 0);
    tsr_text_puts(out, large ? " GiB" : " MiB");
}

static double seconds_left(const tsr_progress *p)
{
    return p->mean_step_s * (double)(p->total_steps - p->last.step);
}

/* What is left out of a line that is too long, each with all before it. The step and the time left stay. */
enum { WITH_ALL, NO_MEMORY, NO_RATE, SHORT_BAR, NO_SPEED, NO_BAR, NO_LOSS, NO_PERCENT, NO_TOTAL };

/* "  loss 2.3457  lr 0.0002  3100 tokens/s  123 MiB  0:42 left" */
static void put_facts(tsr_progress *p, int without)
{
    const tsr_job_report *s = &p->last;
    tsr_text *t = &p->text;
    if (without < NO_LOSS) {
        tsr_text_puts(t, "  loss ");
        tsr_number_put_fixed(t, s->loss, 4);
    }
    if (without < NO_RATE) {
        tsr_text_puts(t, "  lr ");
        tsr_number_put(t, s->learning_rate, 3);
    }
    if (without < NO_SPEED) {
        tsr_text_puts(t, "  ");
        tsr_number_put_fixed(t, s->tokens_per_s, 0);
        tsr_text_puts(t, " tokens/s");
    }
    if (without < NO_MEMORY) {
        tsr_text_puts(t, "  ");
        put_memory(t, s->device_bytes);
    }
    if (p->total_steps > s->step) {
        tsr_text_puts(t, "  ");
        put_duration(t, seconds_left(p));
        tsr_text_puts(t, " left");
    }
}

static void put_label(const tsr_progress *p, tsr_text *out)
{
    if (p->options.label)
        tsr_text_printf(out, "%s ", p->options.label);
}

static void put_step(tsr_progress *p, int without)
{
    put_label(p, &p->text);
    tsr_text_printf(&p->text, "step %lld", (long long)p->last.step);
    if (p->total_steps && without < NO_TOTAL)
        tsr_text_printf(&p->text, "/%lld", (long long)p->total_steps);
}

/* " [====>           ]  25%" */
static void put_bar(tsr_text *out, double share, int without)
{
    int cells = without < SHORT_BAR ? BAR_CELLS : BAR_CELLS / 2;
    int full = share < 1 ? (int)(share * cells) : cells;
    if (without < NO_BAR) {
        tsr_text_puts(out, " [");
        for (int i = 0; i < cells; i++)
            tsr_text_puts(out, i < full ? "=" : i == full ? ">" : " ");
        tsr_text_puts(out, "]");
    }
    if (without < NO_PERCENT)
        tsr_text_printf(out, " %3d%%", (int)(share * 100));
}

/* Columns of a line; a full last one would wrap. */
static size_t width_of(const tsr_progress *p)
{
    return (size_t)p->options.columns - 1;
}

/* What stands behind `start` is the terminal's line. */
static void fit(tsr_progress *p, size_t start)
{
    size_t width = width_of(p);
    if (!p->text.failed && p->text.length - start > width) {
        p->text.length = start + width; /* all of it is ASCII */
        p->text.data[p->text.length] = 0;
    }
}

static void draw_bar(tsr_progress *p)
{
    tsr_text_puts(&p->text, CLEAR_LINE);
    size_t start = p->text.length;
    for (int without = WITH_ALL; without <= NO_TOTAL; without++) {
        p->text.length = p->text.failed ? 0 : start;
        put_step(p, without);
        if (p->total_steps)
            put_bar(&p->text, (double)p->last.step / (double)p->total_steps, without);
        put_facts(p, without);
        if (p->text.length - start <= width_of(p))
            break;
    }
    fit(p, start);
    p->bar_shown = true;
    p->phase_shown = false;
    p->since_drawn_s = 0;
    emit(p);
}

/* ---- long work ---- */

static void put_left(tsr_progress *p, double share, double now)
{
    if (share <= 0)
        return;
    tsr_text_puts(&p->text, "  ");
    put_duration(&p->text, (now - p->phase_begun) * (1 - share) / share);
    tsr_text_puts(&p->text, " left");
}

static void draw_phase(tsr_progress *p, double share, double now)
{
    tsr_text_puts(&p->text, CLEAR_LINE);
    size_t start = p->text.length;
    for (int without = WITH_ALL; without <= NO_TOTAL; without++) {
        p->text.length = p->text.failed ? 0 : start;
        tsr_text_puts(&p->text, p->phase);
        put_bar(&p->text, share, without);
        put_left(p, share, now);
        if (p->text.length - start <= width_of(p))
            break;
    }
    fit(p, start);
    p->phase_shown = true;
    emit(p);
}

/* The line is free for what comes; the bar, if there was one, comes back. */
static void end_phase(tsr_progress *p)
{
    p->phase[0] = 0;
    if (!p->phase_shown)
        return;
    p->phase_shown = false;
    if (p->bar_shown) {
        draw_bar(p);
        return;
    }
    tsr_text_puts(&p->text, CLEAR_LINE);
    emit(p);
}

/* Bytes of a phase's name, without what is in parentheses behind it. */
static size_t name_bytes(const char *phase)
{
    const char *more = strstr(phase, " (");
    return more ? (size_t)(more - phase) : strlen(phase);
}

static bool is_same_phase(const char *a, const char *b)
{
    size_t bytes = name_bytes(a);
    return bytes && bytes == name_bytes(b) && !strncmp(a, b, bytes);
}

void tsr_progress_phase(tsr_progress *p, const char *phase, double done, double total, double now)
{
    if (p->mode == TSR_CONFIG_PROGRESS_NONE)
        return;
    if (!(done < total)) {
        end_phase(p);
        return;
    }
    if (!is_same_phase(p->phase, phase))
        p->phase_begun = p->phase_said = now;
    snprintf(p->phase, PHASE_BYTES, "%s", phase);
    bool bar = p->mode == TSR_CONFIG_PROGRESS_BAR;
    if (now - p->phase_said < (bar ? REDRAW_S : LINE_S))
        return;
    p->phase_said = now;
    if (bar) {
        draw_phase(p, done / total, now);
        return;
    }
    tsr_text_printf(&p->text, "%s  %d%%", phase, (int)(100 * done / total));
    put_left(p, done / total, now);
    tsr_text_puts(&p->text, "\n");
    emit(p);
}

/* ---- steps ---- */

static void put_experts(tsr_progress *p, const tsr_job_report *step)
{
    if (!step->has_experts)
        return;
    tsr_text_puts(&p->text, "  expert_load ");
    tsr_number_put(&p->text, step->expert_load_over_mean, 3);
    if (isnan(step->aux_loss))
        return;
    tsr_text_puts(&p->text, "  aux_loss ");
    tsr_number_put(&p->text, step->aux_loss, 4);
}

/* Of preferences: the mean margin of rewards, and the share of pairs with a positive one. */
static void put_preference(tsr_progress *p, const tsr_job_preference *preference)
{
    const struct {
        const char *name;
        double value;
    } values[] = {{"  margin ", preference->reward_margin},
                  {"  accuracy ", preference->reward_accuracy},
                  {"  kl ", preference->kl}};
    for (size_t i = 0; preference->present && i < sizeof values / sizeof *values; i++) {
        if (isnan(values[i].value))
            continue;
        tsr_text_puts(&p->text, values[i].name);
        tsr_number_put(&p->text, values[i].value, 4);
    }
}

void tsr_progress_step(tsr_progress *p, const tsr_job_report *step)
{
    bool first = p->last.step == 0;
    p->last = *step;
    p->mean_step_s =
        first ? step->step_s : REMEMBERED * p->mean_step_s + (1 - REMEMBERED) * step->step_s;
    p->since_drawn_s += step->step_s;
    bool end = step->step == p->total_steps;
    if (p->mode == TSR_CONFIG_PROGRESS_BAR && (first || end || p->since_drawn_s >= REDRAW_S))
        draw_bar(p);
    if (p->mode != TSR_CONFIG_PROGRESS_LINES)
        return;
    if (step->step % p->logging_steps && !end && !(p->first_step && step->step == 1))
        return;
    put_step(p, WITH_ALL);
    tsr_text_puts(&p->text, "  epoch ");
    tsr_number_put_fixed(&p->text, step->epoch, 2);
    put_facts(p, WITH_ALL);
    tsr_text_puts(&p->text, "  grad_norm ");
    tsr_number_put(&p->text, step->grad_norm, 4);
    put_experts(p, step);
    put_preference(p, &step->preference);
    tsr_text_puts(&p->text, "\n");
    emit(p);
}

void tsr_progress_announce(tsr_progress *p, const char *what)
{
    if (p->mode == TSR_CONFIG_PROGRESS_NONE)
        return;
    if (p->mode == TSR_CONFIG_PROGRESS_LINES) {
        put_label(p, &p->text);
        tsr_text_printf(&p->text, "%s\n", what);
        emit(p);
        return;
    }
    tsr_text_puts(&p->text, CLEAR_LINE);
    size_t start = p->text.length;
    if (p->last.step)
        put_step(p, WITH_ALL);
    tsr_text_printf(&p->text, "%s%s", p->last.step ? "  " : "", what);
    fit(p, start);
    p->phase_shown = true; /* the next phase, step or line has its place */
    emit(p);
}

void tsr_progress_announced(tsr_progress *p)
{
    end_phase(p);
}

void tsr_progress_resize(tsr_progress *p, int columns)
{
    if (columns > 0)
        p->options.columns = columns;
}

bool tsr_progress_is_bar(const tsr_progress *p)
{
    return p->mode == TSR_CONFIG_PROGRESS_BAR;
}

void tsr_progress_line(tsr_progress *p, const char *line)
{
    tsr_text_puts(&p->text, p->bar_shown || p->phase_shown ? CLEAR_LINE : "");
    tsr_text_name(&p->text, line);
    tsr_text_puts(&p->text, "\n");
    bool again = p->bar_shown;
    p->bar_shown = p->phase_shown = false;
    emit(p);
    if (again)
        draw_bar(p);
}

void tsr_progress_eval(tsr_progress *p, int64_t step, double eval_loss, int64_t eval_label_tokens)
{
    if (p->mode == TSR_CONFIG_PROGRESS_NONE)
        return;
    tsr_auto_text line = {0};
    put_label(p, &line);
    tsr_text_printf(&line, "step %lld  eval_loss ", (long long)step);
    tsr_number_put_fixed(&line, eval_loss, 4);
    tsr_text_printf(&line, " over %lld label tokens", (long long)eval_label_tokens);
    tsr_progress_line(p, tsr_text_string(&line));
}

void tsr_progress_finish(tsr_progress *p)
{
    end_phase(p);
    if (!p->bar_shown)
        return;
    draw_bar(p);
    tsr_text_puts(&p->text, "\n");
    p->bar_shown = false;
    emit(p);
}

void tsr_progress_destroy(tsr_progress *p)
{
    if (!p)
        return;
    tsr_progress_finish(p);
    tsr_text_free(&p->text);
    free(p);
}
