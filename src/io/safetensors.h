/*
 * io/safetensors.h: the safetensors format (8-byte header length, JSON header, data), in and out.
 *
 * Read with pread, never mapped: a file that shrinks is an error and not a signal. Opening checks
 * the whole header: its length (100 MB at most), UTF-8, duplicate keys, dtypes, shapes, and that
 * the tensors cover the data exactly, without overlap or hole. Each error names the file, the
 * tensor and the numbers, and is TSR_EDATA; TSR_EIO where the system failed.
 *
 * Threads  An open file is read-only: reads may run at the same time.
 */
#ifndef TSR_IO_SAFETENSORS_H
#define TSR_IO_SAFETENSORS_H

#include "base/dtype.h"
#include "base/status.h"
#include "io/file.h"

#include <stdint.h>

#define TSR_TENSOR_MAX_DIMS          8
#define TSR_SAFETENSORS_HEADER_BYTES 100000000ull /* longest header, as the format's authors */

typedef struct tsr_safetensors tsr_safetensors;

/* A tensor of an open file; borrowed from it. */
typedef struct tsr_tensor {
    const char *name;
    tsr_dtype dtype;
    int ndim; /* 0: one element */
    uint64_t shape[TSR_TENSOR_MAX_DIMS];
    uint64_t element_count;
    uint64_t bytes;
    uint64_t file_offset; /* of its first byte, in the file */
    tsr_safetensors *file;
    /* Of a view (io/fp8_blocks.h), whose values are made as they are read: what it is made of. NULL: no view. */
    const struct tsr_tensor *codes, *scales;
} tsr_tensor;

/* On success *out is the caller's, to be closed; on failure untouched. A path that does not exist
 * is TSR_EDATA. */
tsr_status tsr_safetensors_open(tsr_safetensors **out, const char *path);
tsr_status tsr_safetensors_open_in(tsr_safetensors **out, const tsr_folder *folder,
                                   const char *name);
void tsr_safetensors_close(tsr_safetensors *file);

const char *tsr_safetensors_path(const tsr_safetensors *file);

/* Tensors 0 .. count - 1, sorted by name. */
uint64_t tsr_safetensors_count(const tsr_safetensors *file);
const tsr_tensor *tsr_safetensors_at(const tsr_safetensors *file, uint64_t index);

/* NULL: no tensor has this name. */
const tsr_tensor *tsr_safetensors_find(const tsr_safetensors *file, const char *name);

/* A value of the header's __metadata__; NULL if there is none. */
const char *tsr_safetensors_metadata(const tsr_safetensors *file, const char *key);

/* Calls visit for each pair of __metadata__, in the file's order. */
void tsr_safetensors_each_metadata(const tsr_safetensors *file,
                                   void (*visit)(void *user, const char *key, const char *value),
                                   void *user);

/* Copies `bytes` bytes of the tensor, from byte_offset on, to dst. Beyond the tensor: TSR_EINVAL.
 * A file that has become shorter: TSR_EDATA. */
tsr_status tsr_safetensors_read(void *dst, const tsr_tensor *tensor, uint64_t byte_offset,
                                uint64_t bytes);

/* Elements [first, first + count) as they are stored, of which none may be NaN or infinite:
 * TSR_EDATA names the first that is. Of other dtypes than F32, BF16, F16 and F8_E4M3 every value is fine. */
tsr_status tsr_safetensors_read_finite(void *dst, const tsr_tensor *tensor, uint64_t first,
                                       uint64_t count);

/* The same as fp32, of an F32, BF16 or F16 tensor; another dtype is TSR_EDATA. */
tsr_status tsr_safetensors_read_f32(float *dst, const tsr_tensor *tensor, uint64_t first,
                                    uint64_t count);

/* Folds a sample of the tensor's content into *hash (base/hash.h): how many bytes it has, the first,
 * the middle and the last TSR_TENSOR_SAMPLE_BYTES of them, all of a small one. What was trained further
 * differs in each of its tensors, so that nobody need read them whole to tell. */
#define TSR_TENSOR_SAMPLE_BYTES 4096
tsr_status tsr_safetensors_sample(uint64_t *hash, const tsr_tensor *tensor);

/* Tells the system which bytes that will read: those of many tensors are waited for together. */
void tsr_safetensors_sample_ahead(const tsr_tensor *tensor);

/* Bytes of tensor data that reads, but not samples, have delivered since the file was opened. */
uint64_t tsr_safetensors_bytes_read(const tsr_safetensors *file);

/* "[256, 704]" for a message, into `buffer`; returned. */
#define TSR_SHAPE_TEXT_BYTES 192
const char *tsr_shape_text(char buffer[TSR_SHAPE_TEXT_BYTES], const uint64_t *shape, int ndim);

/* What is written: everything is borrowed during the call. */
typedef struct {
    const char *name;
    tsr_dtype dtype;
    int ndim;
    uint64_t shape[TSR_TENSOR_MAX_DIMS];
    const void *data; /* row-major; may be NULL if it has no element */
    /* Instead of data, for tensors that are made while they are written: the next bytes, at least
     * one, of the row-major data, from byte `offset` on; they stay until the next call. */
    tsr_status (*next)(const void **data, uint64_t *bytes, void *user, uint64_t offset);
    void *user;
} tsr_tensor_source;

/* The tensor's bytes. TSR_EINVAL, naming `path` and the tensor: no name, a dtype or shape that does
 * not exist, bytes that overflow. */
tsr_status tsr_tensor_source_bytes(uint64_t *out, const tsr_tensor_source *source,
                                   const char *path);

/* Writes a file as the Python library does, byte for byte: metadata {"format":"pt"}, tensors by
 * dtype (widest alignment first) then name, the header padded with spaces to 8 bytes. The order of
 * the list does not matter. The file appears under its name only when it is complete and on the
 * disk. TSR_EINVAL: two of one name, an empty name, too many dimensions. */
tsr_status tsr_safetensors_write(const char *path, const tsr_tensor_source *tensors,
                                 uint64_t count);
tsr_status tsr_safetensors_write_in(const tsr_folder *folder, const char *name,
                                    const tsr_tensor_source *tensors, uint64_t count);

/* The same up to the last step: the complete file is on the disk under a temporary name, to be
 * published or discarded by the caller (io/file.h). */
tsr_status tsr_safetensors_stage(tsr_file **out, const tsr_folder *folder, const char *name,
                                 const tsr_tensor_source *tensors, uint64_t count);

#endif
