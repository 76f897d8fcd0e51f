#include "report/data_parts.h"

#include "base/auto.h"
#include "base/escape.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define BAR_WIDTH  40
#define MOST_FILES 12 /* of which the figures are printed */

static const char trained_colour[] = "\033[1;32m", end_colour[] = "\033[0m";
static const char between[] = "\xc2\xb7";                                      /* tokens, U+00B7 */
static const char open_mark[] = "\xe2\x9f\xa6", close_mark[] = "\xe2\x9f\xa7"; /* U+27E6, U+27E7 */

/* ---- examples ---- */

/* The text that tokens [at, end) add to the token before them. */
static tsr_status piece_text(tsr_text *out, const tsr_data_figures *f, const tsr_sample *s,
                             int32_t begin, int32_t at, int32_t end)
{
    tsr_auto_text before = {0};
    int32_t from = at > begin ? at - 1 : at;
    TSR_TRY(tsr_data_run_text(out, f, s, from, end));
    tsr_status status = from < at ? tsr_data_run_text(&before, f, s, from, at) : TSR_OK;
    if (status >= 0 && before.length <= out->length && before.length &&
        !memcmp(before.data, out->data, before.length)) {
        out->length -= before.length;
        memmove(out->data, out->data + before.length, out->length + 1);
    }
    return status;
}

/* Tokens [begin, end), each apart but for those that share a character. */
static tsr_status put_pieces(tsr_text *out, const tsr_data_figures *f, const tsr_sample *s,
                             int32_t begin, int32_t end)
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

static tsr_status put_tokens(tsr_text *out, const tsr_data_figures *f, const tsr_sample *s,
                             bool colour)
{
    tsr_auto_text part = {0};
    tsr_status status = TSR_OK;
    for (int32_t d = 0, at = 0; d < s->document_count; d++) {
        int32_t document_end = at + s->lengths[d];
        char room[24];
        const char *name = tsr_data_document_name(room, f, s, d);
        if (name)
            tsr_text_printf(out, "%s-- %s\n", d ? "\n" : "", name);
        while (at < document_end && status >= 0) {
            bool trained;
            int32_t end = tsr_data_run_end(&trained, s, at, document_end);
            tsr_text_puts(out, !trained ? "" : colour ? trained_colour : open_mark);
            if (*f->lacking)
                status = put_pieces(out, f, s, at, end);
            else if ((status = tsr_data_run_text(&part, f, s, at, end)) >= 0)
                tsr_text_escape(out, tsr_text_string(&part), part.length, TSR_ESCAPE_LINES);
            tsr_text_puts(out, !trained ? "" : colour ? end_colour : close_mark);
            at = end;
        }
    }
    out->failed |= part.failed;
    return status;
}

/* "train.jsonl:7", "train.jsonl:7 (part 2)" */
static void put_place(tsr_text *out, const tsr_data_figures *f, int64_t sample)
{
    tsr_sample s = tsr_dataset_sample(f->data, sample);
    tsr_text_name(out, tsr_dataset_file(f->data, s.file));
    tsr_text_printf(out, ":%lld", (long long)s.line);
    if (s.part)
        tsr_text_printf(out, " (part %d)", s.part);
}

static tsr_status put_examples(tsr_text *out, const tsr_data_figures *f, int64_t show, bool colour)
{
    int64_t count = show < f->stats->samples ? show : f->stats->samples;
    for (int64_t i = 0; i < count; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, i);
        tsr_text_puts(out, "\n-- ");
        put_place(out, f, i);
        tsr_text_printf(out, ": %d tokens, %d trained%s%s%s%s%s\n", s.token_count, s.label_count,
                        colour ? " (in " : " (between ", colour ? trained_colour : open_mark,
                        colour ? "colour" : " and ", colour ? end_colour : close_mark, ")");
        if (*f->lacking)
            tsr_text_printf(out, "-- tokens are apart by %s\n", between);
        TSR_TRY(put_tokens(out, f, &s, colour));
        tsr_text_puts(out, "\n");
    }
    return TSR_OK;
}

/* ---- figures ---- */

static void put_histogram(tsr_text *out, const tsr_data_figures *f)
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

static void put_first(tsr_text *out, const tsr_data_figures *f, const tsr_found *found)
{
    tsr_text_puts(out, " (first ");
    tsr_text_name(out, tsr_dataset_file(f->data, found->file));
    tsr_text_printf(out, ":%lld)\n", (long long)found->line);
}

static void put_losses(tsr_text *out, const tsr_data_figures *f)
{
    const tsr_dataset_stats *s = f->stats;
    long long most = (long long)f->config->max_length;
    if (s->too_long) {
        tsr_text_printf(out, "  dropped    %lld rows longer than max_length %lld",
                        (long long)s->too_long, most);
        put_first(out, f, &s->first_too_long);
    }
    if (s->emptied) {
        tsr_text_printf(out, "  dropped    %lld rows that max_length %lld left nothing to train",
                        (long long)s->emptied, most);
        put_first(out, f, &s->first_emptied);
    }
    if (s->truncated) {
        tsr_text_printf(out, "  cut        %lld rows to max_length %lld", (long long)s->truncated,
                        most);
        put_first(out, f, &s->first_cut);
    }
    if (s->split) {
        tsr_text_printf(out,
                        "  split      %lld rows longer than max_length %lld, into %lld samples",
                        (long long)s->split, most, (long long)s->parts);
        put_first(out, f, &s->first_split);
    }
    if (s->empty_parts)
        tsr_text_printf(out, "  dropped    %lld parts of split rows with nothing to train\n",
                        (long long)s->empty_parts);
    if (s->unlabelled)
        tsr_text_printf(out, "  no label   %lld samples, kept\n", (long long)s->unlabelled);
    if (!s->too_long && !s->emptied && !s->truncated && !s->empty_parts)
        tsr_text_puts(out, "  dropped    nothing\n");
}

static void put_longest(tsr_text *out, const tsr_data_figures *f)
{
    for (int i = 0; i < f->longest_count; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, f->longest_samples[i]);
        tsr_text_puts(out, i ? "             " : "  longest    ");
        put_place(out, f, f->longest_samples[i]);
        tsr_text_printf(out, ", %d tokens, %d trained\n", s.token_count, s.label_count);
    }
}

static void put_duplicates(tsr_text *out, const tsr_data_figures *f)
{
    const tsr_duplicates *found = &f->duplicates;
    if (!found->samples) {
        tsr_text_puts(out, "  duplicates none\n");
        return;
    }
    tsr_text_printf(out, "  duplicates %lld samples have exactly the tokens of an earlier one\n",
                    (long long)found->samples);
    for (int i = 0; i < found->pair_count; i++) {
        tsr_text_puts(out, "             ");
        put_place(out, f, found->pairs[i].again);
        tsr_text_puts(out, " is ");
        put_place(out, f, found->pairs[i].first);
        tsr_text_puts(out, "\n");
    }
    if (found->samples > found->pair_count)
        tsr_text_printf(out, "             and %lld more\n",
                        (long long)(found->samples - found->pair_count));
}

/* Of several files, what each is and comes to. */
static void put_files(tsr_text *out, const tsr_data_figures *f)
{
    int count = tsr_dataset_file_count(f->data);
    for (int i = 0; count > 1 && i < count && i < MOST_FILES; i++) {
        const tsr_data_file *file = &f->by_file[i];
        tsr_text_puts(out, i ? "             " : "  files      ");
        tsr_text_name(out, tsr_dataset_file(f->data, i));
        tsr_text_printf(out, ": %s, %lld samples, %lld tokens, %lld trained (%.1f %%)\n",
                        tsr_data_format_name(tsr_dataset_file_format(f->data, i)),
                        (long long)file->samples, (long long)file->tokens, (long long)file->trained,
                        file->tokens ? 100.0 * (double)file->trained / (double)file->tokens : 0);
    }
    if (count > MOST_FILES)
        tsr_text_printf(out, "             and %d more\n", count - MOST_FILES);
}

static void put_figures(tsr_text *out, const tsr_data_figures *f)
{
    const tsr_dataset_stats *s = f->stats;
    tsr_text_printf(out, "%s: ", f->name);
    for (int i = 0; i < f->files->count; i++) {
        tsr_text_puts(out, i ? ", " : "");
        tsr_text_name(out, f->files->items[i]);
    }
    tsr_text_puts(out, "\n  format     ");
    tsr_data_put_formats(out, f);
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
    put_longest(out, f);
    put_duplicates(out, f);
    put_files(out, f);
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

static json_t *json_histogram(const tsr_data_figures *f, bool *failed)
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
static json_t *json_pieces(const tsr_data_figures *f, const tsr_sample *s, bool *failed)
{
    json_t *list = json_array();
    tsr_auto_text part = {0};
    for (int32_t at = 0; at < s->token_count && f->tokenizer;) {
        bool trained;
        int32_t end = tsr_data_run_end(&trained, s, at, s->token_count);
        if (tsr_data_run_text(&part, f, s, at, end) < 0)
            *failed = true;
        push(list,
             json_pack("{s:o, s:b}", "text", json_stringn(tsr_text_string(&part), part.length),
                       "trained", trained),
             failed);
        at = end;
    }
    return list;
}

/* "chosen", "rejected", "good" or "bad"; null: a document of sft. */
static json_t *json_documents(const tsr_data_figures *f, const tsr_sample *s, bool *failed)
{
    json_t *list = json_array();
    for (int32_t d = 0; d < s->document_count; d++) {
        char room[24];
        const char *name = tsr_data_document_name(room, f, s, d);
        push(list, name && name != room ? json_string(name) : json_null(), failed);
    }
    return list;
}

static json_t *json_examples(const tsr_data_figures *f, int64_t show, bool *failed)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < show && i < f->stats->samples; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, i);
        push(list,
             json_pack("{s:s, s:I, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "file",
                       tsr_dataset_file(f->data, s.file), "line", (json_int_t)s.line, "part",
                       s.part, "trained_tokens", s.label_count, "pieces",
                       json_pieces(f, &s, failed), "input_ids",
                       integers(s.ids, s.token_count, failed), "labels",
                       integers(s.labels, s.token_count, failed), "seq_lengths",
                       integers(s.lengths, s.document_count, failed), "documents",
                       json_documents(f, &s, failed)),
             failed);
    }
    return list;
}

static json_t *json_findings(const tsr_data_figures *f, bool *failed)
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

static json_t *json_place(const tsr_data_figures *f, int64_t sample)
{
    tsr_sample s = tsr_dataset_sample(f->data, sample);
    return json_pack("{s:s, s:I, s:i}", "file", tsr_dataset_file(f->data, s.file), "line",
                     (json_int_t)s.line, "part", s.part);
}

/* null: none */
static json_t *json_found(const tsr_data_figures *f, const tsr_found *found)
{
    return found->rows ? json_pack("{s:s, s:I}", "file", tsr_dataset_file(f->data, found->file),
                                   "line", (json_int_t)found->line)
                       : json_null();
}

static json_t *json_longest(const tsr_data_figures *f, bool *failed)
{
    json_t *list = json_array();
    for (int i = 0; i < f->longest_count; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, f->longest_samples[i]);
        push(list,
             json_pack("{s:s, s:I, s:i, s:i, s:i}", "file", tsr_dataset_file(f->data, s.file),
                       "line", (json_int_t)s.line, "part", s.part, "tokens", s.token_count,
                       "trained_tokens", s.label_count),
             failed);
    }
    return list;
}

static json_t *json_duplicates(const tsr_data_figures *f, bool *failed)
{
    const tsr_duplicates *found = &f->duplicates;
    json_t *list = json_array();
    for (int i = 0; i < found->pair_count; i++)
        push(list,
             json_pack("{s:o, s:o}", "first", json_place(f, found->pairs[i].first), "again",
                       json_place(f, found->pairs[i].again)),
             failed);
    return json_pack("{s:I, s:o}", "samples", (json_int_t)found->samples, "pairs", list);
}

static json_t *json_files(const tsr_data_figures *f, bool *failed)
{
    json_t *list = json_array();
    for (int i = 0; i < tsr_dataset_file_count(f->data); i++) {
        const tsr_data_file *file = &f->by_file[i];
        push(list,
             json_pack("{s:s, s:s, s:I, s:I, s:I}", "file", tsr_dataset_file(f->data, i), "format",
                       tsr_data_format_name(tsr_dataset_file_format(f->data, i)), "samples",
                       (json_int_t)file->samples, "tokens", (json_int_t)file->tokens,
                       "trained_tokens", (json_int_t)file->trained),
             failed);
    }
    return list;
}

static tsr_status json_figures(json_t *sets, const tsr_data_figures *f, int64_t show)
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
        "{s:{s:i, s:i, s:i, s:f, s:o}, s:I, s:{s:I, s:I, s:I}, s:I, s:{s:I, s:I}, s:I, s:o, s:o, "
        "s:o}",
        "length", "shortest", f->shortest, "longest", f->longest, "median", f->median, "mean",
        f->mean, "histogram", json_histogram(f, &failed), "max_length",
        (json_int_t)f->config->max_length, "dropped", "too_long", (json_int_t)s->too_long,
        "emptied", (json_int_t)s->emptied, "parts", (json_int_t)s->empty_parts, "cut",
        (json_int_t)s->truncated, "split", "rows", (json_int_t)s->split, "samples",
        (json_int_t)s->parts, "without_labels", (json_int_t)s->unlabelled, "findings",
        json_findings(f, &failed), "packing", packing, "examples", json_examples(f, show, &failed));
    json_t *first =
        json_pack("{s:o, s:o, s:o, s:o}", "too_long", json_found(f, &s->first_too_long), "emptied",
                  json_found(f, &s->first_emptied), "cut", json_found(f, &s->first_cut), "split",
                  json_found(f, &s->first_split));
    json_auto_t *more = json_pack("{s:o, s:o, s:o, s:o}", "first_lost", first, "longest_samples",
                                  json_longest(f, &failed), "duplicates",
                                  json_duplicates(f, &failed), "by_file", json_files(f, &failed));
    failed |= json_object_update(set, rest) != 0 || json_object_update(set, more) != 0;
    push(sets, set, &failed);
    return failed ? tsr_fail(TSR_ENOMEM, "out of memory: data report") : TSR_OK;
}

/* ---- all of it ---- */

static tsr_status put_json(tsr_text *out, const tsr_data_figures *sets, int count, int64_t show)
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

static tsr_status put_form(tsr_text *out, const tsr_data_figures *sets, int count, int64_t show,
                           tsr_report_form form)
{
    if (form == TSR_REPORT_JSON)
        return put_json(out, sets, count, show);
    if (form == TSR_REPORT_PAGE)
        return tsr_data_put_page(out, sets, count, show);
    for (int i = 0; i < count; i++) {
        put_figures(out, &sets[i]);
        TSR_TRY(put_examples(out, &sets[i], show, form == TSR_REPORT_COLOUR));
    }
    return TSR_OK;
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
    tsr_data_figures sets[2] = {0};
    tsr_status status = TSR_OK;
    int count = 0;
    for (int i = 0; i < 2 && status >= 0; i++) {
        if (!given[i].data)
            continue;
        sets[count] =
            (tsr_data_figures){.data = given[i].data,
                               .inputs = inputs,
                               .stats = tsr_dataset_stats_of(given[i].data),
                               .config = config,
                               .files = given[i].files,
                               .name = given[i].name,
                               .tokenizer = inputs->tokenizer,
                               .lacking = inputs->chat ? tsr_chat_lacking_tokens(inputs->chat) : "",
                               .date = dated ? config->chat_template_date : NULL};
        status = tsr_data_measure(&sets[count++], given[i].packing);
    }
    if (status >= 0)
        status = put_form(out, sets, count, show, form);
    for (int i = 0; i < count; i++)
        tsr_data_figures_free(&sets[i]);
    if (status < 0)
        return status;
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory: data report") : TSR_OK;
}
