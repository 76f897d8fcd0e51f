/*
 * A file packed by gzip or Zstandard, unpacked as a stream. What zlib and Zstandard unpack at once is the same.
 */
#include "base/text.h"
#include "fuzz/fuzz.h"
#include "table/reader.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define MOST_BYTES (4 << 20) /* that are unpacked of an input */

/* Zstandard's own verdict on all frames together. */
static void compare(const tsr_text *found, const uint8_t *data, size_t bytes)
{
    char *plain = malloc(MOST_BYTES);
    fuzz_check(plain);
    size_t count = ZSTD_decompress(plain, MOST_BYTES, data, bytes);
    fuzz_check(!ZSTD_isError(count));
    size_t mark = count >= 3 && !memcmp(plain, "\xEF\xBB\xBF", 3) ? 3 : 0;
    fuzz_check(count - mark == found->length);
    fuzz_check(!found->length || !memcmp(plain + mark, found->data, found->length));
    free(plain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *path = fuzz_file(data, bytes), *part;
    tsr_reader *reader;
    tsr_text all = {0};
    size_t count = 0;
    fuzz_begin();
    tsr_status status = tsr_reader_open(&reader, open(path, O_RDONLY | O_CLOEXEC), path);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    do {
        fuzz_begin();
        status = tsr_reader_look(&part, &count, reader);
        fuzz_answer(status, TSR_EDATA);
        if (status == TSR_OK && count) {
            tsr_text_append(&all, part, count);
            tsr_reader_take(reader, count);
        }
        fuzz_check(tsr_reader_done(reader) <= bytes);
    } while (status == TSR_OK && count && all.length < MOST_BYTES);
    if (status == TSR_OK && !count) {
        const char *packing = tsr_reader_packing(reader);
        fuzz_check(tsr_reader_done(reader) == bytes);
        if (packing && !strcmp(packing, "Zstandard"))
            compare(&all, data, bytes);
    }
    tsr_reader_close(reader);
    tsr_text_free(&all);
    return 0;
}
