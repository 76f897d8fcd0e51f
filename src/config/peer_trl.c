/*
 * peer_trl.c: keys of TRL and Transformers whose value depends on more than itself. Their other keys are in
 * keys_peers.c, which counts for every file.
 */
#include "config/peers.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Loggers that are not written to: metrics.jsonl has it all. */
static void convert_report_to(tsr_peers_work *work, const tsr_config_entry *entry)
{
    static const char others[] =
        "all wandb trackio mlflow swanlab comet_ml clearml neptune dvclive codecarbon azure_ml "
        "dagshub flyte";
    const tsr_yaml_value *list = &entry->value;
    bool one = list->kind == TSR_YAML_SCALAR;
    tsr_yaml_value kept = tsr_peers_room(work, TSR_YAML_LIST, one ? 1 : list->count);
    if (list->kind == TSR_YAML_MAP) {
        tsr_peers_give(work, entry, "report_to", *list);
        return;
    }
    for (int i = 0; i < (one ? 1 : list->count); i++) {
        const tsr_yaml_value *item = one ? list : &list->items[i];
        if (tsr_peers_is_one_of(item, others))
            tsr_peers_remark(work, "%s is not written to; metrics.jsonl has every step",
                             !strcmp(item->text, "all") ? "report_to: all" : item->text);
        else
            tsr_peers_push(&kept, *item);
    }
    if (kept.count == (one ? 1 : list->count))
        tsr_peers_give(work, entry, "report_to", *list);
    else if (kept.count)
        tsr_peers_give(work, entry, "report_to", kept);
    else
        tsr_peers_give_text(work, entry, "report_to", "none");
}

/* A mixture: TRL's DatasetConfig, a map each. */
static void convert_datasets(tsr_peers_work *work, const tsr_config_entry *entry)
{
    static const struct {
        const char *name, *here, *why; /* without either: of no meaning here */
    } members[] = {{"path", "path", NULL},
                   {"name", "name", NULL},
                   {"split", "split", NULL},
                   {"fraction", "weight", NULL},
                   {"columns", NULL, NULL},
                   {"data_files", NULL, "name the file as path"},
                   {"data_dir", NULL, "name the directory as path"}};
    const tsr_yaml_value *sets = &entry->value;
    tsr_config_entry bad = *entry;
    int errors = work->errors->count;
    bad.bad = true;
    tsr_yaml_value list =
        tsr_peers_room(work, TSR_YAML_LIST, sets->kind == TSR_YAML_LIST ? sets->count : 0);
    for (int i = 0; sets->kind == TSR_YAML_LIST && i < sets->count; i++) {
        const tsr_yaml_value *set = &sets->items[i];
        tsr_yaml_value out = tsr_peers_room(work, TSR_YAML_MAP, set->count);
        if (!tsr_peers_member(set, "path"))
            tsr_peers_refuse(work, entry, set, "expected a path in each data set");
        for (int k = 0; set->kind == TSR_YAML_MAP && k < set->count; k++) {
            size_t m = 0;
            while (m < COUNT(members) && strcmp(members[m].name, set->keys[k].text) != 0)
                m++;
            if (tsr_yaml_is_null(&set->items[k]))
                continue;
            if (m == COUNT(members))
                tsr_peers_refuse(work, entry, &set->keys[k], "a data set has no such member here");
            else if (members[m].why)
                tsr_peers_refuse(work, entry, &set->keys[k], "%s", members[m].why);
            else if (members[m].here && (strcmp(members[m].name, "split") != 0 ||
                                         !tsr_peers_is_one_of(&set->items[k], "train")))
                tsr_peers_put(work, &out, members[m].here, set->items[k]);
        }
        tsr_peers_push(&list, out);
    }
    if (!list.count)
        tsr_peers_refuse(work, entry, sets, "expected a list of maps, each with a path");
    if (work->errors->count > errors)
        tsr_peers_give(work, &bad, "dataset", *sets);
    else
        tsr_peers_give_data(work, entry, "dataset", &list);
}

/* Accelerate's ParallelismConfig, of which accelerate's own files give the members a prefix: of all that ranks can divide here
 * it is rows that a key has to ask for. */
static void convert_parallelism(tsr_peers_work *work, const tsr_config_entry *entry)
{
    static const char prefix[] = "parallelism_config_";
    const tsr_yaml_value *map = &entry->value, *sharers = NULL;
    if (map->kind != TSR_YAML_MAP)
        tsr_peers_refuse(work, entry, map, "expected a map: cp_size and the like");
    for (int i = 0; map->kind == TSR_YAML_MAP && i < map->count; i++) {
        const char *name = map->keys[i].text, *end = strstr(name, "_size");
        name += strncmp(name, prefix, sizeof prefix - 1) ? 0 : sizeof prefix - 1;
        if (!end || end[5] || !strncmp(name, "dp_", 3) ||
            tsr_peers_is_one_of(&map->items[i], "1 null"))
            continue;
        if (strncmp(name, "cp_", 3) != 0 && strncmp(name, "sp_", 3) != 0)
            tsr_peers_refuse(work, entry, &map->keys[i],
                             "linears are not divided among ranks: sharding is built in");
        else if (sharers)
            tsr_peers_refuse(work, entry, &map->keys[i],
                             "only one of cp_size and sp_size may be above 1");
        else
            sharers = &map->items[i];
    }
    if (sharers)
        tsr_peers_give(work, entry, "context_parallel_size", *sharers);
    else
        tsr_peers_idle(work, entry, "sharding is built in");
}

static const tsr_peer_converted converted[] = {
    {"datasets", "dataset", convert_datasets, "a map each: path, name, split, fraction (weight)"},
    {"test_split_size", "validation_split", tsr_peers_convert_share, ""},
    {"optim", "optim", tsr_peers_convert_optimizer,
     "bitsandbytes' 8-bit AdamW: the same; any other AdamW: adamw_torch, 32-bit state"},
    {"report_to", "report_to", convert_report_to, "others than tensorboard are not written to"},
    {"num_processes", NULL, tsr_peers_convert_processes, "start as many ranks"},
    {"parallelism_config", "context_parallel_size", convert_parallelism,
     "its `cp_size` or `sp_size`; `dp_*` is built in, `tp_size` above 1 refused"},
    {0},
};

static const tsr_peer_default defaults[] = {
    {"output_dir", "output_dir", "trainer_output"},
    {0},
};

const tsr_peer tsr_peer_trl = {
    .name = "TRL",
    .marks = "dataset_name datasets",
    .least = 1,
    .converted = converted,
    .defaults = defaults,
};
