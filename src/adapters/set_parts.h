/*
 * adapters/set_parts.h: what set.c and set_experts.c share. Inside src/adapters only.
 */
#ifndef TSR_ADAPTERS_SET_PARTS_H
#define TSR_ADAPTERS_SET_PARTS_H

#include "adapters/regex.h"
#include "adapters/set.h"

typedef unsigned long long ull; /* for %llu */

/* What a configuration's target calls itself in messages. */
#define TARGET_KEY      "lora_target_modules"
#define EXCLUDE_KEY     "exclude_modules"
#define PARAMETER_KEY   "lora_target_parameters"
#define EXPERT_RANK_KEY "rank of experts"

/* One call's work. `chosen` and `used` are owned, the rest borrowed. */
typedef struct {
    const tsr_adapter_spec *spec;
    const tsr_adapter_module *module;
    uint64_t module_count;
    bool all_linear;
    bool were_linears;                /* the experts of the model */
    tsr_path_regex *target, *exclude; /* where they are regular expressions */
    tsr_regex_budget *budget;         /* of all expressions together */
    bool *chosen;                     /* [module_count] */
    bool *used;                       /* [target.count] target names that matched a linear */
    bool *parameter_used;             /* [parameter_count] likewise */
    bool *excludes; /* [exclude.count, 1 of a regular expression] those that take something away */
} selection;

/* Sorts names and drops repeated ones; returns how many are left. */
uint64_t tsr_set_sort_names(const char **names, uint64_t count);

/* ---- set_experts.c ---- */

void tsr_set_look_for_linears(selection *s);

/* Whether PEFT's all-linear leaves the module out: if experts once were linears, PEFT expands all-linear to names that it takes
 * for theirs, and finds no linear by them. */
bool tsr_set_peft_leaves_out(const selection *s, const tsr_adapter_module *module);

/* Whether target_parameters names a parameter; the second also if all-linear includes it. */
bool tsr_set_names_parameter(const selection *s, const tsr_adapter_module *module);
tsr_status tsr_set_is_parameter(bool *out, const selection *s, const tsr_adapter_module *module);

/* Refuse what cannot be combined with an adapter on a parameter, and a router among target_parameters. */
tsr_status tsr_set_check_parameter(const selection *s, const tsr_adapter_module *module);
tsr_status tsr_set_check_routers(const selection *s);

/* The factor from the experts' rank and alpha to those of a parameter. */
double tsr_set_factor(const selection *s, const tsr_adapter_module *module);

/* A pattern for the values of experts' adapters that nothing else gives; owned keys. */
tsr_status tsr_set_build_patterns(tsr_adapter_pattern **out, uint64_t *count, const selection *s,
                                  const double *value, const bool *said);

/* target_parameters of adapter_config.json. */
tsr_status tsr_set_build_parameters(tsr_adapter_set *set, const selection *s);

#endif
