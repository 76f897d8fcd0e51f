#include "report/plot.h"

#include "base/escape.h"
#include "config/config_number.h"

#include <math.h>

#define WIDTH   900
#define HEIGHT  600
#define MORE    156 /* with the load of experts */
#define LEFT    90  /* room for the numbers of the vertical axes */
#define RIGHT   20
#define COLUMNS (WIDTH - LEFT - RIGHT)
#define TICKS   6 /* about so many on an axis */
#define HUGEST  1e300

#define LOSS_COLOR "#1f5fa8"
#define EVAL_COLOR "#c4501b"
#define RATE_COLOR "#3a7d34"
#define LOAD_COLOR "#7a4fa3"

typedef struct {
    double low, high;
} range;

typedef struct {
    double top, bottom; /* pixels */
    range x, y;
} panel;

/* One value of a curve: (step, value). */
typedef double curve_value(const tsr_run_metrics *metrics, uint64_t index, double *step);

static double loss_at(const tsr_run_metrics *m, uint64_t i, double *step)
{
    *step = (double)m->steps[i].step;
    return m->steps[i].loss;
}

static double rate_at(const tsr_run_metrics *m, uint64_t i, double *step)
{
    *step = (double)m->steps[i].step;
    return m->steps[i].learning_rate;
}

static double load_at(const tsr_run_metrics *m, uint64_t i, double *step)
{
    *step = (double)m->steps[i].step;
    return m->steps[i].expert_load_over_mean;
}

static double evaluation_at(const tsr_run_metrics *m, uint64_t i, double *step)
{
    *step = (double)m->evaluations[i].step;
    return m->evaluations[i].loss;
}

/* ---- text ---- */

static void put(tsr_text *out, double pixels)
{
    tsr_number_put_fixed(out, pixels, 1);
}

static void put_escaped(tsr_text *out, const char *text)
{
    tsr_auto_text clean = {0}; /* XML has no control characters, not even as references */
    tsr_text_name(&clean, text);
    for (const char *p = tsr_text_string(&clean); *p; p++)
        switch (*p) {
        case '&':
            tsr_text_puts(out, "&amp;");
            break;
        case '<':
            tsr_text_puts(out, "&lt;");
            break;
        case '>':
            tsr_text_puts(out, "&gt;");
            break;
        case '"':
            tsr_text_puts(out, "&quot;");
            break;
        default:
            tsr_text_append(out, p, 1);
        }
    out->failed |= clean.failed;
}

static void put_text(tsr_text *out, double x, double y, const char *attributes, const char *text)
{
    tsr_text_puts(out, "<text x=\"");
    put(out, x);
    tsr_text_puts(out, "\" y=\"");
    put(out, y);
    tsr_text_printf(out, "\"%s>", attributes);
    put_escaped(out, text);
    tsr_text_puts(out, "</text>\n");
}

static void put_line(tsr_text *out, double x1, double y1, double x2, double y2, const char *class)
{
    const double values[] = {x1, y1, x2, y2};
    static const char *const names[] = {"<line x1=\"", "\" y1=\"", "\" x2=\"", "\" y2=\""};
    for (int i = 0; i < 4; i++) {
        tsr_text_puts(out, names[i]);
        put(out, values[i]);
    }
    tsr_text_printf(out, "\" class=\"%s\"/>\n", class);
}

/* ---- axes ---- */

static double x_of(const panel *p, double step)
{
    return LEFT + COLUMNS * (step - p->x.low) / (p->x.high - p->x.low);
}

static double y_of(const panel *p, double value)
{
    return p->bottom - (p->bottom - p->top) * (value - p->y.low) / (p->y.high - p->y.low);
}

/* What is larger would be infinite in a sum; null is NaN. */
static bool is_drawn(double value)
{
    return fabs(value) <= HUGEST;
}

static void widen(range *r, double value)
{
    if (!is_drawn(value))
        return;
    r->low = !(r->low <= value) ? value : r->low;
    r->high = !(r->high >= value) ? value : r->high;
}

/* Some room around, and a range that is not empty, nor nearly beside the size of its ends: then a
 * tick's sum would not change. */
static range padded(range r, double share)
{
    if (!isfinite(r.low))
        return (range){0, 1};
    double size = fmax(fabs(r.low), fabs(r.high)), room = share * (r.high - r.low);
    if (r.high - r.low <= 1e-9 * size + 1 / HUGEST)
        room = size > 1 / HUGEST ? 0.1 * size : 1;
    return (range){r.low - room, r.high + room};
}

/* 1, 2 or 5 times a power of ten. */
static double tick_distance(range r)
{
    double raw = (r.high - r.low) / TICKS, unit = pow(10, floor(log10(raw)));
    double share = raw / unit;
    return unit * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

static void put_number_at(tsr_text *out, double x, double y, const char *attributes, double value,
                          double distance)
{
    tsr_auto_text text = {0};
    if (fabs(value) < distance * 1e-6)
        value = 0; /* what is left of a sum of steps */
    tsr_number_put(&text, value, 6);
    put_text(out, x, y, attributes, tsr_text_string(&text));
    out->failed |= text.failed;
}

static void put_vertical_axis(tsr_text *out, const panel *p, const char *label)
{
    double distance = tick_distance(p->y);
    for (double v = ceil(p->y.low / distance) * distance; v <= p->y.high; v += distance) {
        put_line(out, LEFT, y_of(p, v), WIDTH - RIGHT, y_of(p, v), "grid");
        put_number_at(out, LEFT - 8, y_of(p, v) + 4, " text-anchor=\"end\"", v, distance);
    }
    tsr_text_puts(out, "<g transform=\"translate(16,");
    put(out, (p->top + p->bottom) / 2);
    tsr_text_puts(out, ") rotate(-90)\">");
    put_text(out, 0, 0, " text-anchor=\"middle\"", label);
    tsr_text_puts(out, "</g>\n");
}

static void put_horizontal_axis(tsr_text *out, const panel *p, bool label)
{
    double distance = fmax(tick_distance(p->x), 1);
    for (double v = ceil(p->x.low / distance) * distance; v <= p->x.high; v += distance) {
        put_line(out, x_of(p, v), p->top, x_of(p, v), p->bottom, "grid");
        put_number_at(out, x_of(p, v), p->bottom + 18, " text-anchor=\"middle\"", v, distance);
    }
    put_line(out, LEFT, p->bottom, WIDTH - RIGHT, p->bottom, "axis");
    put_line(out, LEFT, p->top, LEFT, p->bottom, "axis");
    if (label)
        put_text(out, LEFT + COLUMNS / 2, p->bottom + 40, " text-anchor=\"middle\"",
                 "optimizer step");
}

/* ---- curves ---- */

/* What falls on one column of pixels. */
typedef struct {
    int column;
    int count;
    struct {
        double x, y;
    } first, low, high, last;
} bucket;

static void put_point(tsr_text *out, bool *open, double x, double y)
{
    tsr_text_puts(out, *open ? " L" : " M");
    put(out, x);
    tsr_text_puts(out, " ");
    put(out, y);
    *open = true;
}

static void flush(tsr_text *out, bool *open, bucket *b)
{
    if (b->count > 0)
        put_point(out, open, b->first.x, b->first.y);
    if (b->count > 3) {
        bool low_first = b->low.x < b->high.x;
        put_point(out, open, low_first ? b->low.x : b->high.x, low_first ? b->low.y : b->high.y);
        put_point(out, open, low_first ? b->high.x : b->low.x, low_first ? b->high.y : b->low.y);
    } else if (b->count == 3) {
        put_point(out, open, b->low.x, b->low.y); /* the middle one: see add */
    }
    if (b->count > 1)
        put_point(out, open, b->last.x, b->last.y);
    b->count = 0;
}

static void add(bucket *b, double x, double y)
{
    if (b->count == 0)
        b->first.x = x, b->first.y = y;
    if (b->count == 1) /* low and high are of what lies between first and last */
        b->low.x = b->high.x = x, b->low.y = b->high.y = y;
    if (b->count > 1 && b->last.y < b->low.y)
        b->low.x = b->last.x, b->low.y = b->last.y;
    if (b->count > 1 && b->last.y > b->high.y)
        b->high.x = b->last.x, b->high.y = b->last.y;
    b->last.x = x, b->last.y = y;
    b->count++;
}

static void put_curve(tsr_text *out, const panel *p, const tsr_run_metrics *m, uint64_t count,
                      curve_value *value, const char *class)
{
    bucket b = {0};
    bool open = false;
    tsr_text_printf(out, "<path class=\"%s\" d=\"", class);
    for (uint64_t i = 0; i < count; i++) {
        double step, v = value(m, i, &step), x = x_of(p, step);
        bool gap = !is_drawn(v);
        if (gap || (b.count && (int)x != b.column))
            flush(out, &open, &b);
        open = open && !gap;
        b.column = (int)x;
        if (!gap)
            add(&b, x, y_of(p, v));
    }
    flush(out, &open, &b);
    tsr_text_puts(out, "\"/>\n");
}

static void put_dots(tsr_text *out, const panel *p, const tsr_run_metrics *m)
{
    for (uint64_t i = 0; i < m->evaluation_count && m->evaluation_count <= COLUMNS / 8; i++) {
        double step, v = evaluation_at(m, i, &step);
        if (!is_drawn(v))
            continue;
        tsr_text_puts(out, "<circle r=\"3\" class=\"dot\" cx=\"");
        put(out, x_of(p, step));
        tsr_text_puts(out, "\" cy=\"");
        put(out, y_of(p, v));
        tsr_text_puts(out, "\"/>\n");
    }
}

/* ---- the picture ---- */

static void put_head(tsr_text *out, const char *title, bool experts)
{
    int height = experts ? HEIGHT + MORE : HEIGHT;
    tsr_text_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
        "<style>.grid{stroke:#ddd}.axis{stroke:#222}path{fill:none;stroke-width:1.5}"
        ".loss{stroke:" LOSS_COLOR "}.eval{stroke:" EVAL_COLOR "}.dot{fill:" EVAL_COLOR
        "}.rate{stroke:" RATE_COLOR "}%s</style>\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
        WIDTH, height, WIDTH, height, experts ? ".load{stroke:" LOAD_COLOR "}" : "", WIDTH, height);
    put_text(out, LEFT, 24, " font-size=\"15\"", title);
}

static void put_legend(tsr_text *out, bool evaluated)
{
    put_text(out, WIDTH - RIGHT, 24, " text-anchor=\"end\" fill=\"" LOSS_COLOR "\"",
             "training loss");
    if (evaluated)
        put_text(out, WIDTH - RIGHT - 95, 24, " text-anchor=\"end\" fill=\"" EVAL_COLOR "\"",
                 "evaluation loss");
}

/* A smaller panel from 0 on; the lowest of all has the label. */
static void put_lower(tsr_text *out, panel p, const tsr_run_metrics *m, curve_value *value,
                      const char *class, const char *label, bool lowest)
{
    double step;
    p.y = (range){NAN, NAN};
    for (uint64_t i = 0; i < m->step_count; i++)
        widen(&p.y, value(m, i, &step));
    widen(&p.y, 0);
    p.y = padded(p.y, 0);
    p.y.high += 0.05 * (p.y.high - p.y.low);
    put_vertical_axis(out, &p, label);
    put_horizontal_axis(out, &p, lowest);
    put_curve(out, &p, m, m->step_count, value, class);
}

static bool has_experts(const tsr_run_metrics *m)
{
    double step;
    bool found = false;
    for (uint64_t i = 0; i < m->step_count; i++)
        found |= is_drawn(load_at(m, i, &step));
    return found;
}

tsr_status tsr_plot_run(tsr_text *svg, const tsr_run_metrics *m, const char *title)
{
    const range nothing = {NAN, NAN};
    range steps = nothing, loss = nothing;
    double step;
    if (!m->step_count)
        return tsr_fail(TSR_EDATA, "%s: metrics.jsonl has no step to draw", title);
    for (uint64_t i = 0; i < m->step_count; i++) {
        widen(&loss, loss_at(m, i, &step));
        widen(&steps, step);
    }
    for (uint64_t i = 0; i < m->evaluation_count; i++) {
        widen(&loss, evaluation_at(m, i, &step));
        widen(&steps, step);
    }
    bool experts = has_experts(m);
    const panel above = {44, 390, padded(steps, 0), padded(loss, 0.05)};
    const panel below = {424, 546, above.x, nothing};
    const panel lowest = {below.top + MORE, below.bottom + MORE, above.x, nothing};
    put_head(svg, title, experts);
    put_legend(svg, m->evaluation_count > 0);
    put_vertical_axis(svg, &above, "loss (nats per label token)");
    put_horizontal_axis(svg, &above, false);
    put_curve(svg, &above, m, m->step_count, loss_at, "loss");
    put_curve(svg, &above, m, m->evaluation_count, evaluation_at, "eval");
    put_dots(svg, &above, m);
    put_lower(svg, below, m, rate_at, "rate", "learning rate", !experts);
    if (experts)
        put_lower(svg, lowest, m, load_at, "load", "largest expert load / mean", true);
    tsr_text_puts(svg, "</svg>\n");
    return svg->failed ? tsr_fail(TSR_ENOMEM, "out of memory for a plot") : TSR_OK;
}
