/*
 * A Parquet file. An input that begins with "par " is put into the frame of one: the two bytes behind that are the
 * length of the footer at its end, so that a mutation has neither the length nor the marks to mend. The first rows are read.
 */
#include "fuzz/fuzz.h"
#include "table/table.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 200 /* a few bytes may say billions of nulls */

static void once(const uint8_t *data, size_t bytes)
{
    tsr_table *table;
    json_t *row;
    int64_t rows = 0;
    fuzz_begin();
    tsr_status status = tsr_table_open(&table, fuzz_file(data, bytes), "fuzz");
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return;
    do {
        fuzz_begin();
        status = tsr_table_next(&row, table);
        fuzz_answer(status, TSR_EDATA);
        fuzz_check(status == TSR_OK || !row);
        rows += row != NULL;
        fuzz_check(!row || json_is_object(row));
        /* Text may have blank lines. */
        fuzz_check(tsr_table_rows(table) < 0 || !row || tsr_table_number(table) == rows);
        fuzz_check(tsr_table_done(table) >= 0 && *tsr_table_place(table));
        json_decref(row);
    } while (row && rows < ROWS);
    if (status == TSR_OK && !row && tsr_table_rows(table) >= 0)
        fuzz_check(tsr_table_rows(table) == rows);
    tsr_table_close(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 6 || memcmp(data, "par ", 4) != 0) {
        once(data, bytes);
        return 0;
    }
    size_t body = bytes - 6, footer = data[4] | (size_t)data[5] << 8;
    uint8_t *framed = malloc(body + 12);
    fuzz_check(framed);
    memcpy(framed, "PAR1", 4);
    memcpy(framed + 4, data + 6, body);
    for (int i = 0; i < 4; i++)
        framed[4 + body + (size_t)i] = (uint8_t)((footer < body ? footer : body) >> (8 * i));
    memcpy(framed + 8 + body, "PAR1", 4);
    once(framed, body + 12);
    free(framed);
    return 0;
}
