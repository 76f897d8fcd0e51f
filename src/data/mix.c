#include "data/mix.h"

#include "base/philox.h"
#include "data/batch_order.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    tsr_dataset *const *parts;
    int count;
    const tsr_mix_options *options;
    tsr_sample_ref *refs; /* NULL: they are only counted */
    int64_t ref_count;
} mixer;

static double weight_of(const mixer *m, int part)
{
    return m->options->weights[part] > 0 ? m->options->weights[part] : 1;
}

static void add(mixer *m, int part, int64_t sample)
{
    if (m->refs)
        m->refs[m->ref_count] = (tsr_sample_ref){part, sample};
    m->ref_count++;
}

static bool is_full(const mixer *m)
{
    return m->options->most && m->ref_count >= m->options->most;
}

static void concatenate(mixer *m)
{
    for (int p = 0; p < m->count; p++) {
        int64_t samples = tsr_dataset_sample_count(m->parts[p]);
        int64_t wanted = llround(weight_of(m, p) * (double)samples);
        for (int64_t i = 0; i < wanted && !is_full(m); i++)
            add(m, p, i % samples);
    }
}

/* The set of draw `index`: where the number falls among the weights. */
static int draw(const mixer *m, int64_t index)
{
    tsr_philox random = tsr_philox_at(tsr_mix(m->options->seed), TSR_PERMUTE_MIX, (uint64_t)index);
    double all = 0;
    for (int p = 0; p < m->count; p++)
        all += weight_of(m, p);
    double at = ((double)random.word[0] + 0.5) * 0x1p-32 * all;
    int part = 0;
    while (part < m->count - 1 && (at -= weight_of(m, part)) >= 0)
        part++;
    return part;
}

/* As many rounds as the smallest set has samples. */
static void take_turns(mixer *m)
{
    int64_t rounds = INT64_MAX;
    for (int p = 0; p < m->count; p++) {
        int64_t samples = tsr_dataset_sample_count(m->parts[p]);
        rounds = samples < rounds ? samples : rounds;
    }
    for (int64_t i = 0; i < rounds; i++)
        for (int p = 0; p < m->count && !is_full(m); p++)
            add(m, p, i);
}

static bool is_weighed(const mixer *m)
{
    bool weighed = false;
    for (int p = 0; p < m->count; p++)
        weighed |= m->options->weights[p] > 0;
    return weighed;
}

static void interleave(mixer *m, int64_t *used)
{
    bool ended = false;
    for (int p = 0; p < m->count; p++)
        used[p] = 0;
    for (int64_t i = 0; !ended && !is_full(m); i++) {
        int part = draw(m, i);
        add(m, part, used[part]++);
        ended = used[part] == tsr_dataset_sample_count(m->parts[part]);
    }
}

tsr_status tsr_dataset_mix(tsr_dataset **out, tsr_dataset *const *parts, int count,
                           const tsr_mix_options *options)
{
    mixer m = {parts, count, options, NULL, 0};
    int64_t *used = calloc((size_t)count, sizeof *used);
    tsr_status status = used ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for the mix");
    for (int pass = 0; pass < 2 && status >= 0; pass++) { /* counts, then fills */
        m.ref_count = 0;
        if (!options->interleave)
            concatenate(&m);
        else if (is_weighed(&m))
            interleave(&m, used);
        else
            take_turns(&m);
        if (!m.ref_count)
            status = tsr_fail(TSR_ECONFIG, "dataset: the weights leave no sample; raise one");
        else if (!pass && !(m.refs = malloc((size_t)m.ref_count * sizeof *m.refs)))
            status = tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)m.ref_count);
    }
    if (status >= 0)
        status = tsr_dataset_join(out, parts, count, m.refs, m.ref_count);
    free(m.refs);
    free(used);
    return status;
}
