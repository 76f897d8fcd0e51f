/*
 * scale_backward_ref.c: contract scale_backward.h. With dm a task owns 64 columns of all tokens.
 */
#include "kernels/scale_backward.h"

#include "kernels/loops.h"

tsr_status tsr_scale_backward_check(const tsr_scale_backward_args *args)
{
    TSR_TRY(tsr_expect_dtype("scale_backward", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->d > 0, "scale_backward", "tokens < 0 or d < 1");
    TSR_EXPECT(args->dz || args->dm, "scale_backward", "nothing to compute");
    TSR_EXPECT(!args->dm || args->n, "scale_backward", "dm needs n");
    TSR_EXPECT(args->tokens == 0 || (args->dy && (!args->dm || args->z)), "scale_backward",
               "dy, or z for dm, is NULL");
    return TSR_OK;
}

TSR_INLINE void run_tile(const tsr_scale_backward_args *args, tsr_tile tile)
{
    float g_buffer[TSR_STRIP];
    const float *g = tsr_vector_load(g_buffer, args->g, tile.column, tile.columns, 1.0f);
    tsr_strip_sum sum = {.held = 0};
    for (int64_t t = tile.token; t < tile.token_end; t++) {
        const float *dy = (const float *)args->dy + t * args->d + tile.column;
        if (args->dm) {
            const float *z = (const float *)args->z + t * args->d + tile.column;
            for (int64_t i = 0; i < tile.columns; i++)
                sum.part[i] += dy[i] * z[i];
            tsr_strip_next(&sum);
        }
        if (args->dz) {
            float *dz = (float *)args->dz + t * args->d + tile.column;
            for (int64_t i = 0; i < tile.columns; i++)
                dz[i] = g[i] * dy[i];
        }
    }
    if (args->dm)
        tsr_strip_divide(args->dm + tile.column, &sum, args->n + tile.column, tile.columns);
}

TSR_CLONES static void run_task(void *context, int task)
{
    const tsr_scale_backward_args *args = context;
    bool whole = args->dm != NULL;
    for (int strip = 0; strip < tsr_task_strips(args->d, whole); strip++)
        run_tile(args, tsr_tile_at(task, strip, args->tokens, args->d, whole));
}

tsr_status tsr_scale_backward_ref(const tsr_scale_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_scale_backward_check(args));
    TSR_TRY(tsr_expect_f32("scale_backward", args->dtype));
    tsr_pool_run(pool, tsr_tile_tasks(args->tokens, args->d, args->dm != NULL), run_task,
                 (void *)args);
    return TSR_OK;
}
