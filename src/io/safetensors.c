#include "io/safetensors.h"

#include "io/fp8_blocks.h"

#include "base/auto.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/text.h"
#include "io/json.h"
#include "io/lfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH_BYTES  8
#define MOST_PER_CALL (1u << 30)
#define WIDEN_COUNT   4096 /* elements converted at a time: a stack buffer of 8 KiB */

struct tsr_safetensors {
    char *path;
    int fd;
    tsr_tensor *tensors; /* sorted by name once open */
    uint64_t count;
    json_t *metadata; /* NULL: none */
    uint64_t file_bytes, data_offset;
    _Atomic uint64_t bytes_read;
};

/* Reads exactly `bytes` at `offset`. */
static tsr_status read_at(const tsr_safetensors *file, void *dst, uint64_t offset, uint64_t bytes)
{
    char *next = dst;
    while (bytes > 0) {
        ssize_t got =
            pread(file->fd, next, bytes < MOST_PER_CALL ? bytes : MOST_PER_CALL, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tsr_fail(TSR_EIO, "%s: reading %" PRIu64 " bytes at %" PRIu64 " failed: %s",
                            file->path, bytes, offset, strerror(errno));
        if (got == 0)
            return tsr_fail(TSR_EDATA,
                            "%s: the file ends at byte %" PRIu64 ", but %" PRIu64
                            " more were there when it was opened: something is changing it",
                            file->path, offset, bytes);
        next += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return TSR_OK;
}

/* A list of `count` integers >= 0; `what` and place are for the message. */
static tsr_status read_sizes(uint64_t *out, const json_t *list, size_t count, const char *what,
                             const char *place)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        char found[TSR_JSON_SHOW_BYTES];
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return tsr_fail(TSR_EDATA, "%s: %s holds %s, expected integers from 0", place, what,
                            tsr_json_show(found, value));
        out[i] = (uint64_t)json_integer_value(value);
    }
    return TSR_OK;
}

static tsr_status read_shape(tsr_tensor *tensor, const json_t *entry, const char *place)
{
    json_t *shape;
    char shown[TSR_SHAPE_TEXT_BYTES];
    TSR_TRY(tsr_json_array(&shape, entry, "shape", place));
    if (json_array_size(shape) > TSR_TENSOR_MAX_DIMS)
        return tsr_fail(TSR_EDATA, "%s: shape has %zu dimensions, at most %d are supported", place,
                        json_array_size(shape), TSR_TENSOR_MAX_DIMS);
    tensor->ndim = (int)json_array_size(shape);
    TSR_TRY(read_sizes(tensor->shape, shape, json_array_size(shape), "shape", place));
    tensor->element_count = 1;
    for (int i = 0; i < tensor->ndim; i++)
        if (!tsr_mul_u64(&tensor->element_count, tensor->element_count, tensor->shape[i]))
            return tsr_fail(TSR_EDATA, "%s: the product of shape %s overflows 64 bits", place,
                            tsr_shape_text(shown, tensor->shape, tensor->ndim));
    if (!tsr_mul_u64(&tensor->bytes, tensor->element_count, tsr_dtype_bytes(tensor->dtype)))
        return tsr_fail(TSR_EDATA, "%s: shape %s of %s overflows 64 bits", place,
                        tsr_shape_text(shown, tensor->shape, tensor->ndim),
                        tsr_dtype_name(tensor->dtype));
    return TSR_OK;
}

static tsr_status read_offsets(tsr_tensor *tensor, const json_t *entry, const char *place)
{
    json_t *list;
    uint64_t range[2];
    char shown[TSR_SHAPE_TEXT_BYTES];
    uint64_t data_bytes = tensor->file->file_bytes - tensor->file->data_offset;
    TSR_TRY(tsr_json_array(&list, entry, "data_offsets", place));
    if (json_array_size(list) != 2)
        return tsr_fail(TSR_EDATA, "%s: data_offsets has %zu entries, expected [begin, end]", place,
                        json_array_size(list));
    TSR_TRY(read_sizes(range, list, 2, "data_offsets", place));
    if (range[1] < range[0])
        return tsr_fail(TSR_EDATA,
                        "%s: data_offsets end %" PRIu64 " before they begin, at %" PRIu64, place,
                        range[1], range[0]);
    if (range[1] - range[0] != tensor->bytes)
        return tsr_fail(TSR_EDATA,
                        "%s: data_offsets [%" PRIu64 ", %" PRIu64 "] hold %" PRIu64
                        " bytes, but shape %s of %s needs %" PRIu64,
                        place, range[0], range[1], range[1] - range[0],
                        tsr_shape_text(shown, tensor->shape, tensor->ndim),
                        tsr_dtype_name(tensor->dtype), tensor->bytes);
    if (range[1] > data_bytes)
        return tsr_fail(TSR_EDATA,
                        "%s: its data end at byte %" PRIu64 " of the data, but the file holds only "
                        "%" PRIu64 ": it is cut off, copy it again",
                        place, range[1], data_bytes);
    tensor->file_offset = tensor->file->data_offset + range[0];
    return TSR_OK;
}

static tsr_status read_entry(tsr_tensor *tensor, const json_t *entry, const char *place)
{
    const char *dtype, *key;
    json_t *value;
    if (!json_is_object(entry))
        return tsr_fail(TSR_EDATA, "%s: its header entry is %s, expected an object", place,
                        tsr_json_kind(entry));
    json_object_foreach(
        (json_t *)entry, key,
        value) if (strcmp(key, "dtype") && strcmp(key, "shape") &&
                   strcmp(key,
                          "data_offsets")) return tsr_fail(TSR_EDATA,
                                                           "%s: its header entry has an unknown "
                                                           "key '%s', expected dtype, shape "
                                                           "and data_offsets",
                                                           place, key);
    TSR_TRY(tsr_json_string(&dtype, entry, "dtype", place));
    if (!tsr_dtype_parse(&tensor->dtype, dtype))
        return tsr_fail(TSR_EDATA, "%s: unknown dtype '%s'", place, dtype);
    TSR_TRY(read_shape(tensor, entry, place));
    return read_offsets(tensor, entry, place);
}

static tsr_status check_metadata(const json_t *metadata, const char *path)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return tsr_fail(TSR_EDATA, "%s: __metadata__ is %s, expected an object of strings", path,
                        tsr_json_kind(metadata));
    json_object_foreach((json_t *)metadata, key, value) if (!json_is_string(value)) return tsr_fail(
        TSR_EDATA, "%s: __metadata__ '%s' is %s, expected a string", path, key,
        tsr_json_kind(value));
    return TSR_OK;
}

static tsr_status read_entries(tsr_safetensors *file, const json_t *root)
{
    const char *name;
    json_t *entry;
    tsr_auto_text place = {0};
    tsr_status status = TSR_OK;
    file->tensors = calloc(json_object_size(root) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its %zu tensors", file->path,
                        json_object_size(root));
    json_object_foreach((json_t *)root, name, entry)
    {
        if (!strcmp(name, "__metadata__")) {
            status = check_metadata(entry, file->path);
            file->metadata = json_incref(entry);
        } else {
            tsr_tensor *tensor = &file->tensors[file->count++];
            tensor->file = file;
            tensor->name = strdup(name);
            tsr_text_clear(&place);
            tsr_text_printf(&place, "%s: tensor '%s'", file->path, name);
            status = tensor->name && !place.failed
                         ? read_entry(tensor, entry, tsr_text_string(&place))
                         : tsr_fail(TSR_ENOMEM, "%s: no memory for its header", file->path);
        }
        if (status < 0)
            break;
    }
    return status;
}

static int by_offset(const void *a, const void *b)
{
    const tsr_tensor *x = a, *y = b;
    if (x->file_offset != y->file_offset)
        return x->file_offset < y->file_offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tsr_tensor *)a)->name, ((const tsr_tensor *)b)->name);
}

/* No overlap, no hole, nothing left over. Leaves the tensors in order of their data. */
static tsr_status check_cover(tsr_safetensors *file)
{
    uint64_t cursor = file->data_offset;
    const char *previous = NULL;
    qsort(file->tensors, file->count, sizeof *file->tensors, by_offset);
    for (uint64_t i = 0; i < file->count; i++) {
        const tsr_tensor *tensor = &file->tensors[i];
        if (tensor->file_offset < cursor)
            return tsr_fail(TSR_EDATA,
                            "%s: tensor '%s' begins at byte %" PRIu64 " of the data and overlaps "
                            "tensor '%s', which ends at %" PRIu64,
                            file->path, tensor->name, tensor->file_offset - file->data_offset,
                            previous, cursor - file->data_offset);
        if (tensor->file_offset > cursor)
            return tsr_fail(TSR_EDATA,
                            "%s: a hole in the data: tensor '%s' begins at byte %" PRIu64
                            ", but what is before it ends at %" PRIu64 "; copy the file again",
                            file->path, tensor->name, tensor->file_offset - file->data_offset,
                            cursor - file->data_offset);
        cursor = tensor->file_offset + tensor->bytes;
        previous = tensor->name;
    }
    if (cursor != file->file_bytes)
        return tsr_fail(TSR_EDATA,
                        "%s: the tensors cover %" PRIu64
                        " bytes of data, but the file holds %" PRIu64 ": %" PRIu64
                        " bytes belong to no tensor; copy it again",
                        file->path, cursor - file->data_offset,
                        file->file_bytes - file->data_offset, file->file_bytes - cursor);
    return TSR_OK;
}

static tsr_status parse_header(tsr_safetensors *file, const char *text, uint64_t bytes)
{
    json_auto_t *root = NULL;
    tsr_auto_text place = {0};
    tsr_status status;
    tsr_text_printf(&place, "%s: header", file->path);
    if (bytes > 0 && text[0] != '{')
        status = tsr_fail(TSR_EDATA, "%s: the header begins with byte 0x%02x, expected '{'",
                          file->path, (unsigned char)text[0]);
    else
        status = tsr_json_parse(&root, text, bytes, tsr_text_string(&place));
    if (status == TSR_OK && !json_is_object(root))
        status = tsr_fail(TSR_EDATA, "%s: the header is %s, expected an object", file->path,
                          tsr_json_kind(root));
    if (status == TSR_OK)
        status = read_entries(file, root);
    if (status == TSR_OK)
        status = check_cover(file);
    if (status == TSR_OK)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    return status;
}

static tsr_status check_pointer(const tsr_safetensors *file)
{
    char start[TSR_LFS_BYTES];
    uint64_t bytes = file->file_bytes < sizeof start ? file->file_bytes : sizeof start;
    TSR_TRY(read_at(file, start, 0, bytes));
    return tsr_lfs_refuse(file->path, start, bytes);
}

/* Mostly it is another kind of file, and then its first characters tell more than the number that they make. */
static tsr_status refuse_length(const tsr_safetensors *file,
                                const unsigned char length[LENGTH_BYTES], uint64_t bytes)
{
    int printed = 0;
    while (printed < LENGTH_BYTES && isprint(length[printed]))
        printed++;
    if (printed == LENGTH_BYTES)
        return tsr_fail(TSR_EDATA,
                        "%s: not a safetensors file: it starts with '%.*s'; name a .safetensors "
                        "file, or download it again",
                        file->path, printed, (const char *)length);
    return tsr_fail(TSR_EDATA,
                    "%s: not a safetensors file, or damaged: its header would have %" PRIu64
                    " bytes, and at most %llu are allowed; download it again",
                    file->path, bytes, TSR_SAFETENSORS_HEADER_BYTES);
}

static tsr_status read_header(tsr_safetensors *file)
{
    unsigned char length[LENGTH_BYTES];
    uint64_t bytes = 0;
    TSR_TRY(check_pointer(file));
    if (file->file_bytes < LENGTH_BYTES)
        return tsr_fail(TSR_EDATA,
                        "%s: the file has %" PRIu64 " bytes, too few for a safetensors file",
                        file->path, file->file_bytes);
    TSR_TRY(read_at(file, length, 0, LENGTH_BYTES));
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        bytes = bytes << 8 | length[i];
    if (bytes > TSR_SAFETENSORS_HEADER_BYTES)
        return refuse_length(file, length, bytes);
    if (bytes > file->file_bytes - LENGTH_BYTES)
        return tsr_fail(TSR_EDATA,
                        "%s: the header's length says %" PRIu64 " bytes, but the file has only "
                        "%" PRIu64 ": it is cut off, copy it again",
                        file->path, bytes, file->file_bytes);
    file->data_offset = LENGTH_BYTES + bytes;
    TSR_AUTO_FREE char *text = malloc(bytes + 1);
    if (!text)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its header of %" PRIu64 " bytes", file->path,
                        bytes);
    TSR_TRY(read_at(file, text, LENGTH_BYTES, bytes));
    return parse_header(file, text, bytes);
}

static tsr_status open_file(tsr_safetensors **out, const tsr_folder *folder, const char *name)
{
    char path[PATH_MAX];
    tsr_safetensors *file = calloc(1, sizeof *file);
    tsr_folder_show(path, folder, name);
    if (!file)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to open it", path);
    file->fd = -1;
    file->path = strdup(path);
    tsr_status status = file->path
                            ? tsr_folder_open_read(&file->fd, &file->file_bytes, folder, name)
                            : tsr_fail(TSR_ENOMEM, "%s: no memory to open it", path);
    if (status == TSR_OK)
        status = read_header(file);
    if (status < 0) {
        tsr_safetensors_close(file);
        return status;
    }
    *out = file;
    return TSR_OK;
}

tsr_status tsr_safetensors_open(tsr_safetensors **out, const char *path)
{
    return open_file(out, NULL, path);
}

tsr_status tsr_safetensors_open_in(tsr_safetensors **out, const tsr_folder *folder,
                                   const char *name)
{
    return open_file(out, folder, name);
}

void tsr_safetensors_close(tsr_safetensors *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    for (uint64_t i = 0; i < file->count; i++)
        free((char *)file->tensors[i].name);
    free(file->tensors);
    json_decref(file->metadata);
    free(file->path);
    free(file);
}

const char *tsr_safetensors_path(const tsr_safetensors *file)
{
    return file->path;
}

uint64_t tsr_safetensors_count(const tsr_safetensors *file)
{
    return file->count;
}

const tsr_tensor *tsr_safetensors_at(const tsr_safetensors *file, uint64_t index)
{
    return index < file->count ? &file->tensors[index] : NULL;
}

const tsr_tensor *tsr_safetensors_find(const tsr_safetensors *file, const char *name)
{
    tsr_tensor wanted = {.name = name};
    return bsearch(&wanted, file->tensors, file->count, sizeof wanted, by_name);
}

const char *tsr_safetensors_metadata(const tsr_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

void tsr_safetensors_each_metadata(const tsr_safetensors *file,
                                   void (*visit)(void *user, const char *key, const char *value),
                                   void *user)
{
    const char *key;
    json_t *value;
    json_object_foreach(file->metadata, key, value) visit(user, key, json_string_value(value));
}

tsr_status tsr_safetensors_read(void *dst, const tsr_tensor *tensor, uint64_t byte_offset,
                                uint64_t bytes)
{
    tsr_safetensors *file = tensor->file;
    if (byte_offset > tensor->bytes || bytes > tensor->bytes - byte_offset)
        return tsr_fail(TSR_EINVAL,
                        "%s: tensor '%s' has %" PRIu64 " bytes, asked for %" PRIu64 " at %" PRIu64,
                        file->path, tensor->name, tensor->bytes, bytes, byte_offset);
    if (tensor->codes)
        return tsr_fp8_view_read(dst, tensor, byte_offset, bytes);
    TSR_TRY(read_at(file, dst, tensor->file_offset + byte_offset, bytes));
    atomic_fetch_add_explicit(&file->bytes_read, bytes, memory_order_relaxed);
    return TSR_OK;
}

tsr_status tsr_safetensors_read_finite(void *dst, const tsr_tensor *tensor, uint64_t first,
                                       uint64_t count)
{
    uint64_t element_bytes = tsr_dtype_bytes(tensor->dtype);
    TSR_TRY(tsr_safetensors_read(dst, tensor, first * element_bytes, count * element_bytes));
    uint64_t bad = tsr_first_not_finite(dst, tensor->dtype, count);
    if (bad == count)
        return TSR_OK;
    float value = NAN; /* which is all that e4m3 has */
    tsr_widen_f32(&value, (char *)dst + bad * element_bytes, tensor->dtype, 1);
    return tsr_fail(
        TSR_EDATA,
        "%s: tensor '%s': element %" PRIu64
        " is %s, and every value must be finite: the file is damaged, or a training that "
        "had diverged wrote it; copy it again, or use an earlier checkpoint",
        tensor->file->path, tensor->name, first + bad,
        isnan(value) ? "nan"
        : value > 0  ? "inf"
                     : "-inf");
}

tsr_status tsr_safetensors_read_f32(float *dst, const tsr_tensor *tensor, uint64_t first,
                                    uint64_t count)
{
    uint16_t narrow[WIDEN_COUNT];
    if (tensor->dtype != TSR_F32 && tensor->dtype != TSR_BF16 && tensor->dtype != TSR_F16)
        return tsr_fail(TSR_EDATA, "%s: tensor '%s' is %s, expected F32, BF16 or F16",
                        tensor->file->path, tensor->name, tsr_dtype_name(tensor->dtype));
    if (first > tensor->element_count || count > tensor->element_count - first)
        return tsr_fail(TSR_EINVAL,
                        "%s: tensor '%s' has %" PRIu64 " elements, asked for %" PRIu64
                        " at %" PRIu64,
                        tensor->file->path, tensor->name, tensor->element_count, count, first);
    if (tensor->dtype == TSR_F32)
        return tsr_safetensors_read_finite(dst, tensor, first, count);
    for (uint64_t done = 0; done < count;) {
        uint64_t some = count - done < WIDEN_COUNT ? count - done : WIDEN_COUNT;
        TSR_TRY(tsr_safetensors_read_finite(narrow, tensor, first + done, some));
        tsr_widen_f32(dst + done, narrow, tensor->dtype, some);
        done += some;
    }
    return TSR_OK;
}

/* Where the parts of a sample begin, and how long each is. */
static int sample_parts(uint64_t begin[3], uint64_t *bytes, const tsr_tensor *tensor)
{
    const uint64_t part = TSR_TENSOR_SAMPLE_BYTES;
    begin[0] = 0;
    *bytes = tensor->bytes;
    if (tensor->bytes <= 3 * part)
        return 1;
    begin[1] = (tensor->bytes - part) / 2;
    begin[2] = tensor->bytes - part;
    *bytes = part;
    return 3;
}

void tsr_safetensors_sample_ahead(const tsr_tensor *tensor)
{
    uint64_t begin[3], bytes;
    if (tensor->codes) {
        tsr_safetensors_sample_ahead(tensor->codes);
        tsr_safetensors_sample_ahead(tensor->scales);
        return;
    }
    int count = sample_parts(begin, &bytes, tensor);
    for (int i = 0; i < count && bytes > 0; i++) /* advice: where it fails, reading takes longer */
        posix_fadvise(tensor->file->fd, (off_t)(tensor->file_offset + begin[i]), (off_t)bytes,
                      POSIX_FADV_WILLNEED);
}

tsr_status tsr_safetensors_sample(uint64_t *hash, const tsr_tensor *tensor)
{
    char part[3 * TSR_TENSOR_SAMPLE_BYTES];
    uint64_t begin[3], bytes;
    if (tensor->codes) {
        TSR_TRY(tsr_safetensors_sample(hash, tensor->codes));
        return tsr_safetensors_sample(hash, tensor->scales);
    }
    int count = sample_parts(begin, &bytes, tensor);
    *hash = tsr_hash(*hash, &tensor->bytes, sizeof tensor->bytes);
    for (int i = 0; i < count; i++) {
        TSR_TRY(read_at(tensor->file, part, tensor->file_offset + begin[i], bytes));
        *hash = tsr_hash(*hash, part, bytes);
    }
    return TSR_OK;
}

uint64_t tsr_safetensors_bytes_read(const tsr_safetensors *file)
{
    return atomic_load_explicit(&file->bytes_read, memory_order_relaxed);
}

const char *tsr_shape_text(char buffer[TSR_SHAPE_TEXT_BYTES], const uint64_t *shape, int ndim)
{
    size_t used = (size_t)snprintf(buffer, TSR_SHAPE_TEXT_BYTES, "[");
    for (int i = 0; i < ndim && i < TSR_TENSOR_MAX_DIMS; i++)
        used += (size_t)snprintf(buffer + used, TSR_SHAPE_TEXT_BYTES - used, "%s%" PRIu64,
                                 i ? ", " : "", shape[i]);
    snprintf(buffer + used, TSR_SHAPE_TEXT_BYTES - used, "]");
    return buffer;
}
