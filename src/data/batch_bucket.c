#include "data/batch_bucket.h"

#include <stdlib.h>

#define CELLS TSR_BUCKET_CELLS

static void merge_pairs(tsr_bucket_histogram *h)
{
    for (int i = 0; i < CELLS; i++) {
        int a = 2 * i, b = a + 1;
        if (b >= CELLS) {
            h->cell[i].count = 0;
            h->cell[i].most_tokens = h->cell[i].most_labels = 0;
            continue;
        }
        int64_t count = h->cell[a].count + h->cell[b].count;
        int32_t tokens = h->cell[h->cell[b].most_tokens ? b : a].most_tokens;
        int32_t labels = h->cell[a].most_labels > h->cell[b].most_labels ? h->cell[a].most_labels
                                                                         : h->cell[b].most_labels;
        h->cell[i].count = count;
        h->cell[i].most_tokens = tokens;
        h->cell[i].most_labels = labels;
    }
    h->width *= 2;
}

void tsr_bucket_add(tsr_bucket_histogram *h, int32_t tokens, int32_t labels)
{
    while (tokens / h->width >= CELLS)
        merge_pairs(h);
    int64_t at = tokens / h->width;
    h->cell[at].count++;
    if (tokens > h->cell[at].most_tokens)
        h->cell[at].most_tokens = tokens;
    if (labels > h->cell[at].most_labels)
        h->cell[at].most_labels = labels;
}

/* least[k][j]: the fewest padded tokens of the first j cells in k + 1 groups; from[k][j]: where the
 * last group begins. */
typedef struct {
    double least[TSR_BATCH_BUCKETS][CELLS + 1];
    int16_t from[TSR_BATCH_BUCKETS][CELLS + 1];
    double count[CELLS + 1]; /* running sums */
    int16_t used[CELLS];     /* cells that are not empty */
} grouping;

static void group(grouping *g, const tsr_bucket_histogram *h, int used, int groups)
{
    for (int j = 1; j <= used; j++) {
        g->least[0][j] = g->count[j] * h->cell[g->used[j - 1]].most_tokens;
        g->from[0][j] = 0;
    }
    for (int k = 1; k < groups; k++)
        for (int j = k + 1; j <= used; j++) {
            double size = h->cell[g->used[j - 1]].most_tokens;
            g->least[k][j] = -1;
            for (int i = k; i < j; i++) {
                double cost = g->least[k - 1][i] + (g->count[j] - g->count[i]) * size;
                if (g->least[k][j] < 0 || cost < g->least[k][j]) {
                    g->least[k][j] = cost;
                    g->from[k][j] = (int16_t)i;
                }
            }
        }
}

tsr_status tsr_bucket_choose(tsr_batch_run *run, const tsr_bucket_histogram *h)
{
    grouping *g = calloc(1, sizeof *g);
    if (!g)
        return tsr_fail(TSR_ENOMEM, "batches: no memory to choose their shapes");
    int used = 0;
    for (int i = 0; i < CELLS; i++)
        if (h->cell[i].count) {
            g->used[used] = (int16_t)i;
            g->count[used + 1] = g->count[used] + (double)h->cell[i].count;
            used++;
        }
    int groups = used < TSR_BATCH_BUCKETS ? used : TSR_BATCH_BUCKETS;
    group(g, h, used, groups);
    run->bucket_count = groups;
    for (int k = groups - 1, end = used; k >= 0; k--) {
        int begin = g->from[k][end];
        run->bucket[k].tokens = h->cell[g->used[end - 1]].most_tokens;
        run->bucket[k].label_rows = 0;
        for (int i = begin; i < end; i++)
            if (h->cell[g->used[i]].most_labels > run->bucket[k].label_rows)
                run->bucket[k].label_rows = h->cell[g->used[i]].most_labels;
        end = begin;
    }
    free(g);
    return TSR_OK;
}

int32_t tsr_batch_bucket_of(const tsr_batch_run *run, int32_t tokens)
{
    int32_t at = 0;
    while (at + 1 < run->bucket_count && run->bucket[at].tokens < tokens)
        at++;
    return at;
}
