#include "inputs/same.h"

#include "base/auto.h"
#include "base/hash.h"
#include "config/config_store.h"
#include "config/keys.h"

#include <stdlib.h>

/* A value and its complement: the greatest of both over the ranks are complements of one another
 * only where all have the same. */
static void put_pair(int64_t *pair, uint64_t value)
{
    pair[0] = (int64_t)value;
    pair[1] = ~(int64_t)value;
}

static tsr_status out_of_memory(void)
{
    return tsr_fail(TSR_ENOMEM, "out of memory while comparing the ranks' configurations");
}

/* Two words for each key's value. */
static tsr_status put_pairs(int64_t **out, tsr_text *text, const tsr_config *config)
{
    int count = tsr_keys_count();
    int64_t *pair = *out = calloc(2 * (size_t)count, sizeof *pair);
    if (!pair)
        return out_of_memory();
    for (int i = 0; i < count; i++) {
        tsr_text_clear(text);
        tsr_config_put(text, config, tsr_keys_at(i));
        put_pair(&pair[2 * i], tsr_hash(TSR_HASH_START, tsr_text_string(text), text->length));
    }
    return text->failed ? out_of_memory() : TSR_OK;
}

static tsr_status find_difference(const tsr_config *config, int64_t *pair, tsr_text *text,
                                  tsr_comm *world, tsr_stream *stream)
{
    int count = tsr_keys_count();
    TSR_TRY(tsr_comm_all_reduce(world, stream, pair, 2 * (uint64_t)count, TSR_MAX));
    TSR_TRY(tsr_stream_synchronize(stream));
    for (int i = 0; i < count; i++) {
        if (pair[2 * i] == ~pair[2 * i + 1])
            continue;
        tsr_text_clear(text);
        tsr_config_put(text, config, tsr_keys_at(i));
        return tsr_fail(TSR_ERANKS,
                        "%s differs between the ranks: this one has %s; give every rank the "
                        "same job.yaml and overrides",
                        tsr_keys_at(i)->name, tsr_text_string(text));
    }
    return TSR_OK;
}

/* A rank without memory for its values has none to compare: it does not differ. */
tsr_status tsr_same_config(const tsr_config *config, tsr_comm *world, tsr_stream *stream)
{
    TSR_AUTO_FREE int64_t *pair = NULL;
    tsr_auto_text text = {0};
    TSR_TRY(tsr_comm_agree(world, stream, put_pairs(&pair, &text, config), NULL));
    return find_difference(config, pair, &text, world, stream);
}

tsr_status tsr_same_inputs(const tsr_inputs *inputs, tsr_comm *world, tsr_stream *stream)
{
    static const char advice[] = "every rank must see the same files at the same paths";
    const tsr_dataset *sets[] = {inputs->dataset, inputs->eval_dataset};
    const char *names[] = {"the data of dataset", "the data of eval_dataset"};
    TSR_TRY(tsr_comm_check_same(world, stream, tsr_inputs_model_hash(inputs),
                                "the model or the adapter it starts from", advice));
    TSR_TRY(tsr_comm_check_same(world, stream, inputs->weights,
                                "the content of the model (model_name_or_path)", advice));
    TSR_TRY(tsr_comm_check_same(world, stream, inputs->adapter_weights,
                                "the content of init_adapter", advice));
    for (int i = 0; i < 2; i++)
        TSR_TRY(tsr_comm_check_same(world, stream, sets[i] ? tsr_dataset_hash(sets[i]) : 0,
                                    names[i], advice));
    uint64_t order = inputs->batch ? tsr_batch_run_of(inputs->batch)->hash : 0;
    return tsr_comm_check_same(world, stream, order, "the order of the samples", advice);
}
