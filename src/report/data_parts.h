/*
 * report/data_parts.h: what the files of report/data_report.h share.
 *
 * data_figures.c  what is counted of a data set
 * data_report.c   the text, and the JSON
 * data_page.c     the page
 */
#ifndef TSR_REPORT_DATA_PARTS_H
#define TSR_REPORT_DATA_PARTS_H

#include "data/duplicates.h"
#include "report/data_report.h"

#define TSR_DATA_BINS    10
#define TSR_DATA_LONGEST 10

/* What the samples of one file come to. */
typedef struct {
    int64_t samples, tokens, trained;
} tsr_data_file;

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
    int64_t bins[TSR_DATA_BINS];
    int64_t longest_samples[TSR_DATA_LONGEST]; /* the longest first, then the first */
    int longest_count;
    tsr_duplicates duplicates;
    tsr_data_file *by_file; /* [tsr_dataset_file_count], owned */
    int64_t rows;           /* packed; 0: not packed */
    double fill;
} tsr_data_figures;

/* Fills everything behind `date`. TSR_ENOMEM. */
tsr_status tsr_data_measure(tsr_data_figures *f, bool packing);
void tsr_data_figures_free(tsr_data_figures *f);

/* The formats of the files, each once: "messages, text". */
void tsr_data_put_formats(tsr_text *out, const tsr_data_figures *f);

/* The first token after `from` whose state or document is another; *trained: the state. */
int32_t tsr_data_run_end(bool *trained, const tsr_sample *s, int32_t from, int32_t document_end);

/* The text of tokens [begin, end), or their ids where there is no tokenizer. */
tsr_status tsr_data_run_text(tsr_text *out, const tsr_data_figures *f, const tsr_sample *s,
                             int32_t begin, int32_t end);

/* What a document of a sample is: "chosen"; "document 2". Of a sample of one it is NULL where there is nothing to say. */
const char *tsr_data_document_name(char out[24], const tsr_data_figures *f, const tsr_sample *s,
                                   int32_t document);

/* The whole page (data_page.c). */
tsr_status tsr_data_put_page(tsr_text *out, const tsr_data_figures *sets, int count, int64_t show);

#endif
