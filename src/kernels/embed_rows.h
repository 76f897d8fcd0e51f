/*
 * kernels/embed_rows.h: out[t, :] = table[ids[t], :].
 *
 * An id outside [0, vocabulary) is TSR_EINTERNAL when the op runs (the data was checked long
 * before).
 *
 * Cost     2 tokens d elements moved.
 */
#ifndef TSR_KERNELS_EMBED_ROWS_H
#define TSR_KERNELS_EMBED_ROWS_H

#include "kernels/types.h"

typedef struct {
    void *out;          /* [tokens, d] */
    tsr_frozen table;   /* [vocabulary, d] */
    const int32_t *ids; /* [tokens] */
    int64_t tokens, d, vocabulary;
    tsr_dtype dtype; /* of out */
} tsr_embed_rows_args;

tsr_status tsr_embed_rows_check(const tsr_embed_rows_args *args);
tsr_status tsr_embed_rows_ref(const tsr_embed_rows_args *args, tsr_pool *pool);

#endif
