#include "report/data_report.h"

#include "base/auto.h"
#include "base/escape.h"
#include "data/pack.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define BINS      10
#define BAR_WIDTH 40

static const char trained_colour[] = "\033[1;32m", end_colour[] = "\033[0m";
static const char between[] = "\xc2\xb7";                                      /* tokens, U+00B7 */
static const char open_mark[] = "\xe2\x9f\xa6", close_mark[] = "\xe2\x9f\xa7"; /* U+27E6, U+27E7 */

/* One data set and its figures. */
typedef struct {
    const tsr_dataset *data;
    const tsr_dataset_stats *stats;
    const tsr_config *config;
    const tsr_config_data *files;
    const char *name;
    const tsr_tokenizer *tokenizer;
    const tsr_inputs *inputs;
    const char *lacking; /* the template's tokens that are none here: then tokens are shown apart */
    const char *date;    /* that the chat template asked for; NULL: none */
    int32_t shortest, median, longest;
    double mean;
    int32_t bin_width;
    int bin_count;
    int64_t bins[BINS];
    int64_t rows; /* packed; 0: not packed */
    double fill;
} figures;

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Rows that the samples are packed into: their number does not depend on the order. */
static tsr_status count_rows(figures *f, const int32_t *lengths, int64_t count)
{
    tsr_pack *pack;
    int32_t most = (int32_t)f->config->max_length;
    TSR_AUTO_FREE int32_t *order = malloc(2 * (size_t)count * sizeof *order);
    if (!order)
        return tsr_fail(TSR_ENOMEM, "out of memory: packing");
    tsr_status status = tsr_pack_create(&pack, count, most);
    for (int64_t i = 0; i < count; i++)
        order[i] = (int32_t)i;
    if (status >= 0) {
        f->rows = tsr_pack_run(order + count, pack, lengths, order);
        f->fill = (double)f->stats->tokens / ((double)f->rows * most);
        tsr_pack_destroy(pack);
    }
    return status;
}

static tsr_status measure(figures *f, bool packing)
{
    int64_t count = f->stats->samples;
    TSR_AUTO_FREE int32_t *lengths = malloc((size_t)count * sizeof *lengths);
    if (!lengths)
        return tsr_fail(TSR_ENOMEM, "out of memory: lengths of samples");
    for (int64_t i = 0; i < count; i++)
        lengths[i] = tsr_dataset_sample(f->data, i).token_count;
    tsr_status status = packing ? count_rows(f, lengths, count) : TSR_OK;
    qsort(lengths, (size_t)count, sizeof *lengths, ascending);
    f->shortest = lengths[0];
    f->median = lengths[count / 2];
    f->longest = lengths[count - 1];
    f->mean = (double)f->stats->tokens / (double)count;
    f->bin_width = (f->longest - f->shortest) / BINS + 1;
    f->bin_count = (f->longest - f->shortest) / f->bin_width + 1;
    for (int64_t i = 0; i < count; i++)
        f->bins[(lengths[i] - f->shortest) / f->bin_width]++;
    return status;
}

/* ---- examples ---- */

/* The first token after `from` whose state or document is another; *trained: the state. */
static int32_t run_end(bool *trained, const tsr_sample *s, int32_t from, int32_t document_end)
{
    int32_t at = from;
    *trained = s->labels[from] != TSR_LABEL_IGNORED;
    while (at < document_end && (s->labels[at] != TSR_LABEL_IGNORED) == *trained)
        at++;
    return at;
}

/* The text of tokens [begin, end), or their ids where there is no tokenizer. */
static tsr_status run_text(tsr_text *out, const figures *f, const tsr_sample *s, int32_t begin,
                           int32_t end)
{
    tsr_text_clear(out);
    if (f->tokenizer)
        return tsr_tokenizer_decode(out, f->tokenizer, s->ids + begin, (size_t)(end - begin),
                                    false);
    for (int32_t i = begin; i < end; i++)
        tsr_text_printf(out, "%d ", s->ids[i]);
    return TSR_OK;
}

/* The text that tokens [at, end) add to the token before them. */
static tsr_status piece_text(tsr_text *out, const figures *f, const tsr_sample *s, int32_t begin,
                             int32_t at, int32_t end)
{
    tsr_auto_text before = {0};
    int32_t from = at > begin ? at - 1 : at;
    TSR_TRY(run_text(out, f, s, from, end));
    tsr_status status = from < at ? run_text(&before, f, s, from, at) : TSR_OK;
    if (status >= 0 && before.length <= out->length && before.length &&
        !memcmp(before.data, out->data, before.length)) {
        out->length -= before.length;
        memmove(out->data, out->data + before.length, out->length + 1);
    }
    return status;
}

/* Tokens [begin, end), each apart but for those that share a character. */
static tsr_status put_pieces(tsr_text *out, const figures *f, const tsr_sample *s, int32_t begin,
                             int32_t end)
{
    static const char broken[] = "\xef\xbf\xbd"; /* U+FFFD */
    tsr_auto_text part = {0};
    tsr_status status = TSR_OK;
    for (int32_t at = begin, stop; at < end && status >= 0; at = stop) {
        stop = at;
        do
            status = piece_text(&part, f, s, begin, at, ++stop);
        while (status >= 0 && stop < end && stop - at < 4 &&
               strstr(tsr_text_string(&part), broken));
        tsr_text_puts(out, at > begin ? between : "");
        tsr_text_escape(out, tsr_text_string(&part), part.length, TSR_ESCAPE_LINES);
    }
    out->failed |= part.failed;
    return status;
}

static tsr_status put_tokens(tsr_text *out, const figures *f, const tsr_sample *s, bool colour)
{
    tsr_auto_text part = {0};
    tsr_status status = TSR_OK;
    for (int32_t d = 0, at = 0; d < s->document_count; d++) {
        int32_t document_end = at + s->lengths[d];
        if (d)
            tsr_text_printf(out, "\n-- document %d\n", d + 1);
        while (at < document_end && status >= 0) {
            bool trained;
            int32_t end = run_end(&trained, s, at, document_end);
            tsr_text_puts(out, !trained ? "" : colour ? trained_colour : open_mark);
            if (*f->lacking)
                status = put_pieces(out, f, s, at, end);
            else if ((status = run_text(&part, f, s, at, end)) >= 0)
                tsr_text_escape(out, tsr_text_string(&part), part.length, TSR_ESCAPE_LINES);
            tsr_text_puts(out, !trained ? "" : colour ? end_colour : close_mark);
            at = end;
        }
    }
    out->failed |= part.failed;
    return status;
}

static tsr_status put_examples(tsr_text *out, const figures *f, int64_t show, bool colour)
{
    int64_t count = show < f->stats->samples ? show : f->stats->samples;
    for (int64_t i = 0; i < count; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, i);
        tsr_text_puts(out, "\n-- ");
        tsr_text_name(out, tsr_dataset_file(f->data, s.file));
        tsr_text_printf(out, ":%lld: %d tokens, %d trained%s%s%s%s%s\n", (long long)s.line,
                        s.token_count, s.label_count, colour ? " (in " : " (between ",
                        colour ? trained_colour : open_mark, colour ? "colour" : " and ",
                        colour ? end_colour : close_mark, ")");
        if (*f->lacking)
            tsr_text_printf(out, "-- tokens are apart by %s\n", between);
        TSR_TRY(put_tokens(out, f, &s, colour));
        tsr_text_puts(out, "\n");
    }
    return TSR_OK;
}

/* ---- figures ---- */

static void put_histogram(tsr_text *out, const figures *f)
{
    int64_t most = 1;
    for (int i = 0; i < f->bin_count; i++)
        most = f->bins[i] > most ? f->bins[i] : most;
    for (int i = 0; i < f->bin_count; i++) {
        int32_t from = f->shortest + i * f->bin_width, to = from + f->bin_width - 1;
        int width = (int)((f->bins[i] * BAR_WIDTH + most - 1) / most);
        tsr_text_printf(out, "    %7d to %-7d %-*.*s %lld\n", from, to, BAR_WIDTH, width,
                        "########################################", (long long)f->bins[i]);
    }
}

static void put_losses(tsr_text *out, const figures *f)
{
    const tsr_dataset_stats *s = f->stats;
    long long most = (long long)f->config->max_length;
    if (s->too_long)
        tsr_text_printf(out, "  dropped    %lld rows longer than max_length %lld\n",
                        (long long)s->too_long, most);
    if (s->emptied)
        tsr_text_printf(out, "  dropped    %lld rows that max_length %lld left nothing to train\n",
                        (long long)s->emptied, most);
    if (s->truncated)
        tsr_text_printf(out, "  cut        %lld rows to max_length %lld\n", (long long)s->truncated,
                        most);
    if (s->unlabelled)
        tsr_text_printf(out, "  no label   %lld samples, kept\n", (long long)s->unlabelled);
    if (!s->too_long && !s->emptied && !s->truncated)
        tsr_text_puts(out, "  dropped    nothing\n");
}

static void put_figures(tsr_text *out, const figures *f)
{
    const tsr_dataset_stats *s = f->stats;
    tsr_text_printf(out, "%s: ", f->name);
    for (int i = 0; i < f->files->count; i++) {
        tsr_text_puts(out, i ? ", " : "");
        tsr_text_name(out, f->files->items[i]);
    }
    tsr_text_printf(out, "\n  format     %s", tsr_data_format_name(tsr_dataset_format(f->data)));
    tsr_inputs_put_chat(out, f->inputs);
    tsr_text_printf(out, "\n  samples    %lld of %lld rows", (long long)s->samples,
                    (long long)s->rows);
    if (s->documents != s->samples)
        tsr_text_printf(out, ", %lld documents", (long long)s->documents);
    tsr_findings_put(out, f->data);
    tsr_text_printf(out, "\n  tokens     %lld, %lld trained (%.1f %%)\n", (long long)s->tokens,
                    (long long)s->label_tokens,
                    100.0 * (double)s->label_tokens / (double)s->tokens);
    tsr_text_printf(out, "  length     %d to %d, median %d, mean %.1f\n", f->shortest, f->longest,
                    f->median, f->mean);
    put_histogram(out, f);
    put_losses(out, f);
    if (f->rows)
        tsr_text_printf(out, "  packing    %lld rows of %lld tokens, %.1f %% filled\n",
                        (long long)f->rows, (long long)f->config->max_length, 100 * f->fill);
}

/* ---- JSON ---- */

/* Appends an item that was just made; what could not be made is remembered. */
static void push(json_t *list, json_t *item, bool *failed)
{
    if (json_array_append_new(list, item))
        *failed = true;
}

static json_t *integers(const int32_t *values, int32_t count, bool *failed)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++)
        push(list, json_integer(values[i]), failed);
    return list;
}

static json_t *json_histogram(const figures *f, bool *failed)
{
    json_t *list = json_array();
    for (int i = 0; i < f->bin_count; i++) {
        json_int_t from = f->shortest + i * f->bin_width;
        push(list,
             json_pack("{s:I, s:I, s:I}", "from", from, "to", from + f->bin_width - 1, "samples",
                       (json_int_t)f->bins[i]),
             failed);
    }
    return list;
}

/* The text of one sample in pieces, each trained or not. */
static json_t *json_pieces(const figures *f, const tsr_sample *s, bool *failed)
{
    json_t *list = json_array();
    tsr_auto_text part = {0};
    for (int32_t at = 0; at < s->token_count && f->tokenizer;) {
        bool trained;
        int32_t end = run_end(&trained, s, at, s->token_count);
        if (run_text(&part, f, s, at, end) < 0)
            *failed = true;
        push(list,
             json_pack("{s:o, s:b}", "text", json_stringn(tsr_text_string(&part), part.length),
                       "trained", trained),
             failed);
        at = end;
    }
    return list;
}

static json_t *json_examples(const figures *f, int64_t show, bool *failed)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < show && i < f->stats->samples; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, i);
        push(list,
             json_pack("{s:s, s:I, s:i, s:o, s:o, s:o, s:o}", "file",
                       tsr_dataset_file(f->data, s.file), "line", (json_int_t)s.line,
                       "trained_tokens", s.label_count, "pieces", json_pieces(f, &s, failed),
                       "input_ids", integers(s.ids, s.token_count, failed), "labels",
                       integers(s.labels, s.token_count, failed), "seq_lengths",
                       integers(s.lengths, s.document_count, failed)),
             failed);
    }
    return list;
}

static json_t *json_findings(const figures *f, bool *failed)
{
    json_t *list = json_object();
    for (tsr_finding i = 0; i < TSR_FINDING_COUNT; i++) {
        const tsr_found *found = &f->stats->found[i];
        if (found->rows &&
            json_object_set_new(list, tsr_finding_name(i),
                                json_pack("{s:I, s:s, s:I}", "rows", (json_int_t)found->rows,
                                          "file", tsr_dataset_file(f->data, found->file), "line",
                                          (json_int_t)found->line)))
            *failed = true;
    }
    return list;
}

static tsr_status json_figures(json_t *sets, const figures *f, int64_t show)
{
    const tsr_dataset_stats *s = f->stats;
    json_t *files = json_array();
    bool failed = false;
    for (int i = 0; i < f->files->count; i++)
        push(files, json_string(f->files->items[i]), &failed);
    json_t *packing = f->rows
                          ? json_pack("{s:I, s:f}", "rows", (json_int_t)f->rows, "fill", f->fill)
                          : json_null();
    json_t *set =
        json_pack("{s:s, s:o, s:s, s:s?, s:I, s:I, s:I, s:I, s:I}", "name", f->name, "files", files,
                  "format", tsr_data_format_name(tsr_dataset_format(f->data)), "chat_template_date",
                  f->date, "rows", (json_int_t)s->rows, "samples", (json_int_t)s->samples,
                  "documents", (json_int_t)s->documents, "tokens", (json_int_t)s->tokens,
                  "trained_tokens", (json_int_t)s->label_tokens);
    json_auto_t *rest = json_pack(
        "{s:{s:i, s:i, s:i, s:f, s:o}, s:I, s:{s:I, s:I}, s:I, s:I, s:o, s:o, s:o}", "length",
        "shortest", f->shortest, "longest", f->longest, "median", f->median, "mean", f->mean,
        "histogram", json_histogram(f, &failed), "max_length", (json_int_t)f->config->max_length,
        "dropped", "too_long", (json_int_t)s->too_long, "emptied", (json_int_t)s->emptied, "cut",
        (json_int_t)s->truncated, "without_labels", (json_int_t)s->unlabelled, "findings",
        json_findings(f, &failed), "packing", packing, "examples", json_examples(f, show, &failed));
    failed |= json_object_update(set, rest) != 0;
    push(sets, set, &failed);
    return failed ? tsr_fail(TSR_ENOMEM, "out of memory: data report") : TSR_OK;
}

/* ---- all of it ---- */

static tsr_status put_json(tsr_text *out, const figures *sets, int count, int64_t show)
{
    json_t *list = json_array();
    tsr_status status = TSR_OK;
    for (int i = 0; i < count && status >= 0; i++)
        status = json_figures(list, &sets[i], show);
    json_auto_t *root = json_pack("{s:o}", "datasets", list);
    TSR_AUTO_FREE char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (status >= 0 && !text)
        status = tsr_fail(TSR_ENOMEM, "out of memory: data report");
    if (status >= 0)
        tsr_text_printf(out, "%s\n", text);
    return status;
}

tsr_status tsr_data_report(tsr_text *out, const tsr_inputs *inputs, int64_t show,
                           tsr_report_form form)
{
    const tsr_config *config = &inputs->config;
    bool splits = config->validation_split > 0;
    const struct {
        const char *name;
        const tsr_dataset *data;
        const tsr_config_data *files;
        bool packing;
    } given[] = {{"dataset", inputs->dataset, &config->dataset, config->packing},
                 {splits ? "validation_split" : "eval_dataset", inputs->eval_dataset,
                  splits ? &config->dataset : &config->eval_dataset,
                  config->eval_packing == TSR_CONFIG_CHOICE_YES}};
    bool dated = inputs->chat && tsr_chat_dated(inputs->chat);
    figures sets[2];
    int count = 0;
    for (int i = 0; i < 2; i++) {
        if (!given[i].data)
            continue;
        sets[count] =
            (figures){.data = given[i].data,
                      .inputs = inputs,
                      .stats = tsr_dataset_stats_of(given[i].data),
                      .config = config,
                      .files = given[i].files,
                      .name = given[i].name,
                      .tokenizer = inputs->tokenizer,
                      .lacking = inputs->chat ? tsr_chat_lacking_tokens(inputs->chat) : "",
                      .date = dated ? config->chat_template_date : NULL};
        TSR_TRY(measure(&sets[count++], given[i].packing));
    }
    if (form == TSR_REPORT_JSON)
        TSR_TRY(put_json(out, sets, count, show));
    for (int i = 0; i < count && form != TSR_REPORT_JSON; i++) {
        put_figures(out, &sets[i]);
        TSR_TRY(put_examples(out, &sets[i], show, form == TSR_REPORT_COLOUR));
    }
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory: data report") : TSR_OK;
}
