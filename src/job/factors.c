/*
 * factors.c: PiSSA's first A and B of all adapters (model/factors.h), before the base is loaded without
 * them: found from the weights, or of the checkpoint that a run goes on from, whose adapter holds them.
 *
 * They lie in memory that the ranks of a node share. The ranks of a node divide the weights among them;
 * every node finds them all, which costs less to arrange than to send them, and takes no longer where
 * nodes are alike. A and B of a weight are found by one rank, with bits that do not depend on its
 * threads: so they are the same for any number of ranks.
 */
#include "job/parts.h"

#include "base/auto.h"
#include "base/hash.h"
#include "model/factors.h"

#include <stdlib.h>
#include <string.h>

/* A linear with an adapter. */
typedef struct {
    int unit, linear, number;
    double work;
} item;

/* What takes longest first, so that the ranks have about as much to do in each round. */
static int by_work(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->work != b->work)
        return a->work > b->work ? -1 : 1;
    return a->number - b->number;
}

/* *out is the caller's. */
static tsr_status list_items(item **out, int *count, const tsr_layout *layout)
{
    int most = 0;
    for (int unit = 0; unit < layout->unit_count; unit++)
        most += tsr_layout_linears(&layout->unit[unit]);
    item *items = calloc((size_t)most + 1, sizeof *items);
    if (!items)
        return tsr_fail(TSR_ENOMEM, "out of memory for the list of adapters");
    *count = 0;
    for (int unit = 0; unit < layout->unit_count; unit++)
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++)
            if (layout->unit[unit].linear[i].r) {
                items[*count] = (item){unit, i, *count, tsr_factors_work(layout, unit, i)};
                ++*count;
            }
    qsort(items, (size_t)*count, sizeof *items, by_work);
    *out = items;
    return TSR_OK;
}

static tsr_status find(const tsr_job *job, const item *of)
{
    const tsr_layout *layout = &job->inputs.layout;
    const tsr_factors_options options = {.rounds = job->inputs.adapter.start_rounds,
                                         .seed = (uint64_t)job->inputs.config.seed,
                                         .dtype = job->inputs.compute};
    tsr_factors at = tsr_factors_at(job->factors, layout, of->unit, of->linear);
    return tsr_factors_find(at, layout, of->unit, of->linear, &options, tsr_device_pool(job->host));
}

/* ---- of a checkpoint: A below, -B beside the trained ones (adapter.c) ---- */

static tsr_status find_tensor(const tsr_tensor **out, const tsr_safetensors *file, const char *path,
                              tsr_peft_part part, const uint64_t shape[2])
{
    TSR_AUTO_FREE char *name = NULL;
    char shown[TSR_SHAPE_TEXT_BYTES];
    TSR_TRY(tsr_peft_tensor_name(&name, path, part));
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    if (!tensor || tensor->dtype != TSR_F32 || tensor->ndim != 2 || tensor->shape[0] != shape[0] ||
        tensor->shape[1] != shape[1])
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is %s, expected F32 %s: the trained one and the one that "
                        "the run began with (init_lora_weights: pissa)",
                        tsr_safetensors_path(file), name, tensor ? "another" : "missing",
                        tsr_shape_text(shown, shape, 2));
    *out = tensor;
    return TSR_OK;
}

static tsr_status read_stored(const tsr_job *job, const tsr_safetensors *file, const item *of)
{
    const tsr_layout *layout = &job->inputs.layout;
    const tsr_layout_linear *l = &layout->unit[of->unit].linear[of->linear];
    uint64_t r = tsr_factors_rank(&layout->unit[of->unit], of->linear);
    tsr_factors out = tsr_factors_at(job->factors, layout, of->unit, of->linear);
    const tsr_tensor *a, *b;
    TSR_TRY(find_tensor(&a, file, l->path, TSR_PEFT_A, (uint64_t[]){2 * r, l->in}));
    TSR_TRY(find_tensor(&b, file, l->path, TSR_PEFT_B, (uint64_t[]){l->out, 2 * r}));
    TSR_AUTO_FREE float *both = malloc(2 * r * l->out * sizeof *both);
    if (!both)
        return tsr_fail(TSR_ENOMEM, "out of memory while reading the adapter of %s", l->path);
    TSR_TRY(tsr_safetensors_read_f32(out.a, a, r * l->in, r * l->in));
    TSR_TRY(tsr_safetensors_read_f32(both, b, 0, 2 * r * l->out));
    for (uint64_t i = 0; i < l->out; i++)
        for (uint64_t k = 0; k < r; k++)
            out.b[i * r + k] = -both[i * 2 * r + r + k];
    return TSR_OK;
}

/* ---- all of them ---- */

static tsr_status open_stored(tsr_safetensors **out, const tsr_job *job)
{
    return job->resume ? tsr_safetensors_open_in(out, tsr_snapshot_folder(job->resume),
                                                 TSR_PEFT_WEIGHTS_FILE)
                       : TSR_OK;
}

/* Rounds in which each rank of a node does one: the same number on all, whatever their node has. */
static tsr_status count_rounds(int64_t *rounds, tsr_job *job, int count)
{
    int local = tsr_comm_local_size(job->world);
    *rounds = (count + local - 1) / local;
    TSR_TRY(tsr_comm_all_reduce(job->world, job->control, rounds, 1, TSR_MAX));
    return tsr_stream_synchronize(job->control);
}

/* Each round ends with an agreement: nobody waits for another longer than one weight takes. */
static tsr_status fill_rounds(tsr_job *job, const item *items, int count,
                              const tsr_safetensors *file)
{
    int local = tsr_comm_local_size(job->world), rank = tsr_comm_local_rank(job->world);
    int64_t rounds;
    TSR_TRY(count_rounds(&rounds, job, count));
    for (int64_t round = 0; round < rounds; round++) {
        int64_t at = round * local + rank, done = (round + 1) * local;
        tsr_status status = TSR_OK;
        if (at < count)
            status = file ? read_stored(job, file, &items[at]) : find(job, &items[at]);
        TSR_TRY(tsr_job_agree(job, status));
        tsr_phase_at(file ? "reading the first adapter" : "decomposing weights (pissa)",
                     (double)(done < count ? done : count), count);
    }
    return TSR_OK;
}

/* Nodes found them apart. */
static tsr_status compare_nodes(tsr_job *job)
{
    uint64_t bytes = tsr_factors_count(&job->inputs.layout) * sizeof *job->factors;
    if (tsr_comm_node_count(job->world) == 1)
        return TSR_OK;
    return tsr_comm_check_same(job->world, job->control,
                               tsr_hash(TSR_HASH_START, job->factors, bytes),
                               "the principal parts of the weights (init_lora_weights)",
                               "use machines with processors of one kind, or init_lora_weights: "
                               "true");
}

tsr_status tsr_job_make_factors(tsr_job *job)
{
    item *items = NULL;
    tsr_safetensors *file = NULL;
    void *memory = NULL;
    int count = 0;
    if (!tsr_train_adapter_is_principal(&job->inputs.adapter) || job->fill)
        return TSR_OK;
    uint64_t floats = tsr_factors_count(&job->inputs.layout);
    TSR_TRY(tsr_comm_share(&memory, job->world, job->control, floats * sizeof(float)));
    job->factors = memory;
    tsr_status status = list_items(&items, &count, &job->inputs.layout);
    if (status == TSR_OK)
        status = open_stored(&file, job);
    status = tsr_job_agree(job, status);
    if (status == TSR_OK)
        status = fill_rounds(job, items, count, file);
    tsr_safetensors_close(file);
    free(items);
    return status == TSR_OK ? compare_nodes(job) : status;
}
