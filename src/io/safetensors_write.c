#include "io/safetensors.h"

#include "base/checked.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/file.h"
#include "io/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_ALIGNMENT 8

/* The Rust library's order of dtypes, least aligned first; files have the last first. */
static const uint8_t dtype_order[TSR_DTYPE_COUNT] = {
    [TSR_BOOL] = 0, [TSR_U8] = 1,   [TSR_I8] = 2,   [TSR_F8_E5M2] = 3, [TSR_F8_E4M3] = 4,
    [TSR_I16] = 5,  [TSR_U16] = 6,  [TSR_F16] = 7,  [TSR_BF16] = 8,    [TSR_I32] = 9,
    [TSR_U32] = 10, [TSR_F32] = 11, [TSR_F64] = 12, [TSR_I64] = 13,    [TSR_U64] = 14,
};

static int in_file_order(const void *a, const void *b)
{
    const tsr_tensor_source *x = *(const tsr_tensor_source *const *)a,
                            *y = *(const tsr_tensor_source *const *)b;
    if (x->dtype != y->dtype)
        return (int)dtype_order[y->dtype] - (int)dtype_order[x->dtype];
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const tsr_tensor_source *const *)a)->name,
                  (*(const tsr_tensor_source *const *)b)->name);
}

tsr_status tsr_tensor_source_bytes(uint64_t *out, const tsr_tensor_source *source, const char *path)
{
    if (!source->name || !source->name[0] || (unsigned)source->dtype >= TSR_DTYPE_COUNT ||
        source->ndim < 0 || source->ndim > TSR_TENSOR_MAX_DIMS)
        return tsr_fail(TSR_EINVAL, "%s: tensor '%s': no name, dtype %d or %d dimensions", path,
                        source->name ? source->name : "", (int)source->dtype, source->ndim);
    uint64_t bytes = tsr_dtype_bytes(source->dtype);
    for (int i = 0; i < source->ndim; i++)
        if (!tsr_mul_u64(&bytes, bytes, source->shape[i]))
            return tsr_fail(TSR_EINVAL, "%s: tensor '%s': its bytes overflow", path, source->name);
    if (bytes && !source->data && !source->next)
        return tsr_fail(TSR_EINVAL, "%s: tensor '%s': no data", path, source->name);
    *out = bytes;
    return TSR_OK;
}

static tsr_status check_sources(const tsr_tensor_source **sorted, uint64_t count, const char *path)
{
    uint64_t bytes;
    for (uint64_t i = 0; i < count; i++)
        TSR_TRY(tsr_tensor_source_bytes(&bytes, sorted[i], path));
    qsort(sorted, count, sizeof *sorted, by_name);
    for (uint64_t i = 1; i < count; i++)
        if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
            return tsr_fail(TSR_EINVAL, "%s: two tensors are called '%s'", path, sorted[i]->name);
    qsort(sorted, count, sizeof *sorted, in_file_order);
    return TSR_OK;
}

static tsr_status append_name(tsr_text *header, const char *name, const char *path)
{
    char *quoted, what[4200];
    snprintf(what, sizeof what, "%s: a tensor's name", path);
    TSR_TRY(tsr_json_quote(&quoted, name, what));
    tsr_text_puts(header, quoted);
    free(quoted);
    return TSR_OK;
}

static tsr_status make_header(tsr_text *header, const tsr_tensor_source **sorted, uint64_t count,
                              const char *path)
{
    uint64_t offset = 0, bytes;
    tsr_text_puts(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint64_t i = 0; i < count; i++) {
        TSR_TRY(tsr_tensor_source_bytes(&bytes, sorted[i], path));
        tsr_text_puts(header, ",");
        TSR_TRY(append_name(header, sorted[i]->name, path));
        tsr_text_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", tsr_dtype_name(sorted[i]->dtype));
        for (int d = 0; d < sorted[i]->ndim; d++)
            tsr_text_printf(header, "%s%" PRIu64, d ? "," : "", sorted[i]->shape[d]);
        tsr_text_printf(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset,
                        offset + bytes);
        if (!tsr_add_u64(&offset, offset, bytes))
            return tsr_fail(TSR_EINVAL, "%s: the sum of its tensors overflows", path);
    }
    tsr_text_puts(header, "}");
    while (!header->failed && header->length % HEADER_ALIGNMENT)
        tsr_text_puts(header, " ");
    if (header->failed)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its header", path);
    if (header->length > TSR_SAFETENSORS_HEADER_BYTES)
        return tsr_fail(TSR_EINVAL, "%s: its header would have %zu bytes, at most %llu are allowed",
                        path, header->length, TSR_SAFETENSORS_HEADER_BYTES);
    return TSR_OK;
}

static tsr_status write_tensor(tsr_file *file, const tsr_tensor_source *source, const char *path)
{
    uint64_t bytes;
    TSR_TRY(tsr_tensor_source_bytes(&bytes, source, path));
    if (!source->next)
        return tsr_file_append(file, source->data, bytes);
    for (uint64_t done = 0; done < bytes;) {
        const void *data = NULL;
        uint64_t some = 0;
        TSR_TRY(source->next(&data, &some, source->user, done));
        if (some == 0 || some > bytes - done)
            return tsr_fail(TSR_EINTERNAL,
                            "%s: tensor '%s': %" PRIu64 " bytes were made at %" PRIu64
                            " of %" PRIu64,
                            path, source->name, some, done, bytes);
        TSR_TRY(tsr_file_append(file, data, some));
        done += some;
    }
    return TSR_OK;
}

static tsr_status write_all(tsr_file *file, const tsr_text *header,
                            const tsr_tensor_source **sorted, uint64_t count, const char *path)
{
    unsigned char length[8];
    uint64_t done = 0, total = 0, bytes;
    for (uint64_t i = 0; i < count; i++) {
        TSR_TRY(tsr_tensor_source_bytes(&bytes, sorted[i], path));
        total += bytes;
    }
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header->length >> (8 * i));
    TSR_TRY(tsr_file_append(file, length, sizeof length));
    TSR_TRY(tsr_file_append(file, header->data, header->length));
    for (uint64_t i = 0; i < count; i++) {
        tsr_phase_at("writing", (double)done, (double)total);
        TSR_TRY(tsr_tensor_source_bytes(&bytes, sorted[i], path));
        TSR_TRY(write_tensor(file, sorted[i], path));
        done += bytes;
    }
    TSR_TRY(tsr_file_finish(file)); /* which may take as long as the writes */
    tsr_phase_at("writing", (double)total, (double)total);
    return TSR_OK;
}

tsr_status tsr_safetensors_stage(tsr_file **out, const tsr_folder *folder, const char *name,
                                 const tsr_tensor_source *tensors, uint64_t count)
{
    char path[PATH_MAX];
    tsr_text header = {0};
    tsr_file *file = NULL;
    tsr_status status;
    const tsr_tensor_source **sorted = calloc(count + 1, sizeof *sorted);
    tsr_folder_show(path, folder, name);
    if (!sorted)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for %" PRIu64 " tensors", path, count);
    for (uint64_t i = 0; i < count; i++)
        sorted[i] = &tensors[i];
    status = check_sources(sorted, count, path);
    if (status == TSR_OK)
        status = make_header(&header, sorted, count, path);
    if (status == TSR_OK)
        status = tsr_file_stage(&file, folder, name);
    if (status == TSR_OK)
        status = write_all(file, &header, sorted, count, path);
    if (status == TSR_OK) {
        *out = file;
        file = NULL;
    }
    tsr_file_discard(file);
    tsr_text_free(&header);
    free(sorted);
    return status;
}

tsr_status tsr_safetensors_write_in(const tsr_folder *folder, const char *name,
                                    const tsr_tensor_source *tensors, uint64_t count)
{
    tsr_file *file;
    TSR_TRY(tsr_safetensors_stage(&file, folder, name, tensors, count));
    tsr_status status = tsr_file_publish(file);
    tsr_file_discard(file);
    return status;
}

tsr_status tsr_safetensors_write(const char *path, const tsr_tensor_source *tensors, uint64_t count)
{
    tsr_auto_folder *folder = NULL;
    const char *name;
    TSR_TRY(tsr_folder_open_parent(&folder, &name, path));
    return tsr_safetensors_write_in(folder, name, tensors, count);
}
