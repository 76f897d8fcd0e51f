/*
 * tests/support/rows.h: pretokenized data that a test writes.
 */
#ifndef TSR_TESTS_SUPPORT_ROWS_H
#define TSR_TESTS_SUPPORT_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A data set being written: rows of documents. */
typedef struct {
    FILE *file;
} test_data;

void test_data_begin(test_data *data, const char *path);

/* One row: `documents` documents, `lengths[i]` tokens each, their ids one after the other. extra:
 * every document gets one more token (id 0), so that each of its own tokens predicts a label.
 * labels: NULL, all tokens; else [tokens] (without extra). */
void test_data_row(test_data *data, const int32_t *ids, const int32_t *labels,
                   const int32_t *lengths, int documents, bool extra);
void test_data_end(test_data *data);

#endif
