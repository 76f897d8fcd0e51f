#include "support/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

void test_data_begin(test_data *data, const char *path)
{
    data->file = fopen(path, "w");
    assert_non_null(data->file);
}

static void write_tokens(FILE *file, const char *key, const int32_t *values, const int32_t *lengths,
                         int documents, bool extra)
{
    const char *comma = "";
    fprintf(file, "\"%s\": [", key);
    for (int i = 0; i < documents; i++) {
        for (int32_t t = 0; t < lengths[i]; t++, comma = ", ")
            fprintf(file, "%s%d", comma, (int)*values++);
        if (extra)
            fprintf(file, "%s0", comma);
        comma = ", ";
    }
    fputs("]", file);
}

void test_data_row(test_data *data, const int32_t *ids, const int32_t *labels,
                   const int32_t *lengths, int documents, bool extra)
{
    FILE *file = data->file;
    fputs("{", file);
    write_tokens(file, "input_ids", ids, lengths, documents, extra);
    if (labels) {
        fputs(", ", file);
        write_tokens(file, "labels", labels, lengths, documents, extra);
    }
    fputs(", \"seq_lengths\": [", file);
    for (int i = 0; i < documents; i++)
        fprintf(file, "%s%d", i ? ", " : "", (int)lengths[i] + extra);
    fputs("]}\n", file);
}

void test_data_end(test_data *data)
{
    assert_int_equal(fclose(data->file), 0);
    data->file = NULL;
}
