/*
 * data_page.c: the report as one page of HTML: numbers, a histogram of lengths, and samples with their trained tokens marked.
 *
 * It loads nothing and runs nothing, and says so to the browser. What comes from outside, names and rows, is text: control
 * characters are shown as escapes, and what HTML reads as its own is written as a reference.
 */
#include "report/data_parts.h"

#include "base/escape.h"

#include <string.h>

/* ---- text ---- */

static void put_html(tsr_text *out, const char *text, size_t length)
{
    tsr_auto_text clean = {0};
    tsr_text_escape(&clean, text, length, TSR_ESCAPE_LINES);
    for (size_t i = 0; i < clean.length; i++) {
        const char c = clean.data[i];
        const char *reference = c == '&'    ? "&amp;"
                                : c == '<'  ? "&lt;"
                                : c == '>'  ? "&gt;"
                                : c == '"'  ? "&quot;"
                                : c == '\'' ? "&#39;"
                                            : NULL;
        if (reference)
            tsr_text_puts(out, reference);
        else
            tsr_text_append(out, &c, 1);
    }
    out->failed |= clean.failed;
}

static void put_name(tsr_text *out, const char *name)
{
    tsr_auto_text line = {0};
    tsr_text_name(&line, name); /* its newlines too */
    put_html(out, tsr_text_string(&line), line.length);
    out->failed |= line.failed;
}

static void put_place(tsr_text *out, const tsr_data_figures *f, int64_t sample)
{
    tsr_sample s = tsr_dataset_sample(f->data, sample);
    put_name(out, tsr_dataset_file(f->data, s.file));
    tsr_text_printf(out, ":%lld", (long long)s.line);
    if (s.part)
        tsr_text_printf(out, " (part %d)", s.part);
}

/* ---- numbers ---- */

static void put_row(tsr_text *out, const char *name, int64_t value)
{
    tsr_text_printf(out, "<tr><th>%s<td>%lld\n", name, (long long)value);
}

static double share(int64_t part, int64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void put_numbers(tsr_text *out, const tsr_data_figures *f)
{
    const tsr_dataset_stats *s = f->stats;
    tsr_auto_text findings = {0};
    tsr_text_puts(out, "<table class=\"numbers\">\n<tr><th>format<td>");
    tsr_data_put_formats(out, f);
    tsr_text_puts(out, "\n");
    put_row(out, "rows", s->rows);
    put_row(out, "samples", s->samples);
    put_row(out, "tokens", s->tokens);
    tsr_text_printf(out, "<tr><th>trained<td>%lld (%.1f %%)\n", (long long)s->label_tokens,
                    share(s->label_tokens, s->tokens));
    tsr_text_printf(out, "<tr><th>length<td>%d to %d, median %d, mean %.1f\n", f->shortest,
                    f->longest, f->median, f->mean);
    tsr_text_printf(out, "<tr><th>max_length<td>%lld\n", (long long)f->config->max_length);
    put_row(out, "dropped: longer than max_length", s->too_long);
    put_row(out, "dropped: nothing to train was left", s->emptied);
    put_row(out, "cut to max_length", s->truncated);
    put_row(out, "split by max_length", s->split);
    put_row(out, "samples of these", s->parts);
    put_row(out, "dropped: parts without a token to train", s->empty_parts);
    put_row(out, "samples without a token to train", s->unlabelled);
    put_row(out, "samples with the tokens of an earlier one", f->duplicates.samples);
    if (f->rows)
        tsr_text_printf(out, "<tr><th>packed<td>%lld rows, %.1f %% filled\n", (long long)f->rows,
                        100 * f->fill);
    tsr_text_puts(out, "</table>\n");
    tsr_findings_put(&findings, f->data);
    if (findings.length) {
        tsr_text_puts(out, "<p class=\"warning\">");
        put_html(out, findings.data + 2, findings.length - 2); /* behind "; " */
        tsr_text_puts(out, "</p>\n");
    }
    out->failed |= findings.failed;
}

static void put_files(tsr_text *out, const tsr_data_figures *f)
{
    int count = tsr_dataset_file_count(f->data);
    if (count < 2)
        return;
    tsr_text_puts(out, "<h3>Files</h3>\n<table><tr><th>file<th>format<th>samples<th>tokens"
                       "<th>trained\n");
    for (int i = 0; i < count; i++) {
        const tsr_data_file *file = &f->by_file[i];
        tsr_text_puts(out, "<tr><td>");
        put_name(out, tsr_dataset_file(f->data, i));
        tsr_text_printf(out, "<td>%s<td>%lld<td>%lld<td>%.1f %%\n",
                        tsr_data_format_name(tsr_dataset_file_format(f->data, i)),
                        (long long)file->samples, (long long)file->tokens,
                        share(file->trained, file->tokens));
    }
    tsr_text_puts(out, "</table>\n");
}

static void put_longest(tsr_text *out, const tsr_data_figures *f)
{
    tsr_text_puts(out, "<h3>Longest</h3>\n<table><tr><th>row<th>tokens<th>trained\n");
    for (int i = 0; i < f->longest_count; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, f->longest_samples[i]);
        tsr_text_puts(out, "<tr><td>");
        put_place(out, f, f->longest_samples[i]);
        tsr_text_printf(out, "<td>%d<td>%d\n", s.token_count, s.label_count);
    }
    tsr_text_puts(out, "</table>\n");
}

static void put_duplicates(tsr_text *out, const tsr_data_figures *f)
{
    const tsr_duplicates *found = &f->duplicates;
    if (!found->samples)
        return;
    tsr_text_puts(out, "<h3>Duplicates</h3>\n<table><tr><th>row<th>has the tokens of\n");
    for (int i = 0; i < found->pair_count; i++) {
        tsr_text_puts(out, "<tr><td>");
        put_place(out, f, found->pairs[i].again);
        tsr_text_puts(out, "<td>");
        put_place(out, f, found->pairs[i].first);
        tsr_text_puts(out, "\n");
    }
    tsr_text_puts(out, "</table>\n");
}

/* ---- histogram ---- */

#define BAR_HEIGHT 22
#define BARS_LEFT  150
#define BARS_WIDTH 450

static void put_histogram(tsr_text *out, const tsr_data_figures *f)
{
    int64_t most = 1;
    int height = f->bin_count * BAR_HEIGHT;
    for (int i = 0; i < f->bin_count; i++)
        most = f->bins[i] > most ? f->bins[i] : most;
    tsr_text_printf(out,
                    "<h3>Lengths</h3>\n<svg width=\"%d\" height=\"%d\" role=\"img\" "
                    "aria-label=\"samples by number of tokens\">\n",
                    BARS_LEFT + BARS_WIDTH + 100, height);
    for (int i = 0; i < f->bin_count; i++) {
        int32_t from = f->shortest + i * f->bin_width, to = from + f->bin_width - 1;
        int width = (int)((f->bins[i] * BARS_WIDTH + most - 1) / most), y = i * BAR_HEIGHT;
        tsr_text_printf(out,
                        "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d to %d</text>"
                        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                        "<text x=\"%d\" y=\"%d\">%lld</text>\n",
                        BARS_LEFT - 8, y + BAR_HEIGHT - 7, from, to, BARS_LEFT, y + 2, width,
                        BAR_HEIGHT - 4, BARS_LEFT + width + 6, y + BAR_HEIGHT - 7,
                        (long long)f->bins[i]);
    }
    tsr_text_puts(out, "</svg>\n");
}

/* ---- samples ---- */

static tsr_status put_sample(tsr_text *out, const tsr_data_figures *f, int64_t index)
{
    tsr_auto_text part = {0};
    tsr_sample s = tsr_dataset_sample(f->data, index);
    tsr_status status = TSR_OK;
    tsr_text_puts(out, "<h4>");
    put_place(out, f, index);
    tsr_text_printf(out, ": %d tokens, %d trained</h4>\n<pre>\n", s.token_count, s.label_count);
    for (int32_t d = 0, at = 0; d < s.document_count && status >= 0; d++) {
        int32_t end = at + s.lengths[d];
        char room[24];
        const char *name = tsr_data_document_name(room, f, &s, d);
        if (name)
            tsr_text_printf(out, "%s-- %s\n", d ? "\n" : "", name);
        while (at < end && status >= 0) {
            bool trained;
            int32_t stop = tsr_data_run_end(&trained, &s, at, end);
            status = tsr_data_run_text(&part, f, &s, at, stop);
            tsr_text_puts(out, trained ? "<mark>" : "");
            put_html(out, tsr_text_string(&part), part.length);
            tsr_text_puts(out, trained ? "</mark>" : "");
            at = stop;
        }
    }
    tsr_text_puts(out, "</pre>\n");
    out->failed |= part.failed;
    return status;
}

static tsr_status put_set(tsr_text *out, const tsr_data_figures *f, int64_t show)
{
    tsr_text_printf(out, "<h2>%s: ", f->name);
    for (int i = 0; i < f->files->count; i++) {
        tsr_text_puts(out, i ? ", " : "");
        put_name(out, f->files->items[i]);
    }
    tsr_text_puts(out, "</h2>\n");
    put_numbers(out, f);
    put_histogram(out, f);
    put_files(out, f);
    put_longest(out, f);
    put_duplicates(out, f);
    tsr_text_puts(out, show ? "<h3>Samples, with <mark>what is trained</mark></h3>\n" : "");
    for (int64_t i = 0; i < show && i < f->stats->samples; i++)
        TSR_TRY(put_sample(out, f, i));
    return TSR_OK;
}

tsr_status tsr_data_put_page(tsr_text *out, const tsr_data_figures *sets, int count, int64_t show)
{
    tsr_text_puts(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\">\n<title>Data</title>\n<style>\n"
        "body{font:15px/1.4 sans-serif;color:#222;max-width:60em;margin:2em auto;padding:0 1em}\n"
        "table{border-collapse:collapse}th{text-align:left;font-weight:normal;color:#555}\n"
        "th,td{padding:.1em 1em .1em 0;vertical-align:top}svg{font-size:13px}rect{fill:#4477aa}\n"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f6f6;padding:.6em;"
        "color:#666}\nmark{background:#cdeccd;color:#111}.warning{color:#a03000}\n"
        "</style>\n</head>\n<body>\n");
    for (int i = 0; i < count; i++)
        TSR_TRY(put_set(out, &sets[i], show));
    tsr_text_puts(out, "</body>\n</html>\n");
    return TSR_OK;
}
