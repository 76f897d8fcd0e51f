/*
 * plain_safetensors.h: a second safetensors header reader, written from the format's description alone, with a
 * JSON reader of its own and nothing of src/. It knows no messages: an input is right or it is not.
 */
#ifndef TESTS_FUZZ_PLAIN_SAFETENSORS_H
#define TESTS_FUZZ_PLAIN_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAIN_TENSORS 64
#define PLAIN_NAME    256
#define PLAIN_DIMS    8

typedef struct {
    char name[PLAIN_NAME];
    char dtype[16];
    int ndim;
    uint64_t shape[PLAIN_DIMS];
    uint64_t begin, end; /* in the data */
} plain_tensor;

typedef struct {
    plain_tensor tensor[PLAIN_TENSORS];
    int count;
    uint64_t data_offset; /* of the data, in the file */
    bool too_large;       /* for this reader: more tensors or longer names than it has room for */
} plain_safetensors;

bool plain_safetensors_read(plain_safetensors *out, const uint8_t *file, size_t bytes);

#endif
