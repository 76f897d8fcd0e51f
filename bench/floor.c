#include "floor.h"

double tsr_floor_step(tsr_floor_term term[TSR_FLOOR_TERMS], const tsr_floor_shape *s)
{
    double tokens = s->rows * s->row_count;
    double q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    double qkv = s->d * (q + 2 * kv);
    double weights = qkv + q * s->d + 3 * s->d * s->f;
    double sides = 3 * s->d + q + 2 * kv + (q + s->d) + 3 * (s->d + s->f); /* in + out of all */
    double pairs = s->row_count * s->rows * (s->rows + 1) / 2;             /* query and key */
    double scores = 2 * pairs * q; /* one matmul of all heads: scores, or weights times values */
    double linear = 2 * tokens * s->layers * weights;
    double adapter = 2 * tokens * s->layers * s->r * sides;
    double head = 2 * tokens * s->d * s->vocabulary;
    const tsr_floor_term all[TSR_FLOOR_TERMS] = {
        {"linears forward", linear},
        /* nothing below the first layer is trained: its q, k and v need no dX */
        {"linears backward", linear - 2 * tokens * qkv},
        {"adapters forward", adapter},
        {"adapters backward", 2 * adapter},
        {"attention forward", 2 * s->layers * scores},
        {"attention backward", 5 * s->layers * scores},
        {"head forward", head},
        {"head backward", head},
    };
    double sum = 0;
    for (int i = 0; i < TSR_FLOOR_TERMS; i++) {
        term[i] = all[i];
        sum += all[i].flops;
    }
    return sum;
}
