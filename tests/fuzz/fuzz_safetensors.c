/*
 * A safetensors file. The first bytes of an input may say "len ": then what follows is the header and the data,
 * and the length of the header, up to its last brace, is put before it, so that a mutation of the header
 * does not have to mend the length too. The reader's verdict and its tensors are compared with those of
 * plain_safetensors.c.
 */
#include "fuzz/fuzz.h"
#include "fuzz/plain_safetensors.h"
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void compare(const tsr_safetensors *file, const plain_safetensors *plain)
{
    fuzz_check(tsr_safetensors_count(file) == (uint64_t)plain->count);
    for (int i = 0; i < plain->count; i++) {
        const plain_tensor *p = &plain->tensor[i];
        const tsr_tensor *t = tsr_safetensors_find(file, p->name);
        fuzz_check(t && !strcmp(tsr_dtype_name(t->dtype), p->dtype) && t->ndim == p->ndim);
        fuzz_check(memcmp(t->shape, p->shape, (size_t)p->ndim * sizeof *p->shape) == 0);
        fuzz_check(t->file_offset == plain->data_offset + p->begin);
        fuzz_check(t->bytes == p->end - p->begin);
    }
}

static void once(const uint8_t *data, size_t bytes)
{
    static plain_safetensors plain;
    tsr_safetensors *file;
    fuzz_begin();
    tsr_status status = tsr_safetensors_open(&file, fuzz_file(data, bytes));
    fuzz_answer(status, TSR_EDATA);
    bool right = plain_safetensors_read(&plain, data, bytes);
    if (!plain.too_large)
        fuzz_check(right == (status == TSR_OK));
    if (status == TSR_OK && !plain.too_large)
        compare(file, &plain);
    if (status == TSR_OK)
        tsr_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 4 || memcmp(data, "len ", 4) != 0) {
        once(data, bytes);
        return 0;
    }
    size_t length = bytes - 4;
    while (length > 0 && data[4 + length - 1] != '}')
        length--;
    uint8_t *framed = malloc(bytes + 4);
    fuzz_check(framed);
    for (int i = 0; i < 8; i++)
        framed[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(framed + 8, data + 4, bytes - 4);
    once(framed, bytes + 4);
    free(framed);
    return 0;
}
