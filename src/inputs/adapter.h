/*
 * inputs/adapter.h: which adapter a job trains: from its own keys, or from init_adapter's
 * adapter_config.json, with which explicit keys must agree; and the first values of A, B and m.
 */
#ifndef TSR_INPUTS_ADAPTER_H
#define TSR_INPUTS_ADAPTER_H

#include "adapters/set.h"
#include "config/config.h"
#include "io/peft.h"
#include "model/layout.h"

typedef struct {
    tsr_peft *init; /* open init_adapter, or NULL */
    tsr_adapter_spec spec;
    tsr_adapter_set set;
    bool trains_head, trains_embedding; /* whole: modules_to_save */
    bool trains_score; /* in the head's place: a reward model's, with objective: reward */
    tsr_layout_rows embedding_rows, head_rows; /* trainable_token_indices; the configuration's */
    bool present;                  /* false: the plain base (evaluation without init_adapter) */
    bool each_named;               /* set.target is the whole name of each module */
    tsr_adapter_start start;       /* without init: the first A and B */
    int64_t start_rounds;          /* of TSR_START_PRINCIPAL */
    bool fresh_magnitudes;         /* DoRA, and no magnitudes are stored: they start as row norms */
    tsr_adapter_pattern *patterns; /* private: rank_pattern's, then alpha_pattern's */
    /* Patterns of adapter_config.json for linears that it names by their weight (adapter_linears.h); owned keys. */
    tsr_adapter_pattern *linear_r, *linear_alpha;
    uint64_t linear_r_count, linear_alpha_count;
} tsr_train_adapter;

/* Opens init_adapter if there is one and resolves the set over `modules`, of the text decoder of `composite` (NULL: of
 * a plain model), whose older spellings init_adapter may have. tied: its head may be its embedding. `needed`: without
 * init_adapter the keys of the configuration make one. Writes what init_adapter decided into
 * *config. TSR_ECONFIG: an explicit key differs from the adapter, a target or pattern is wrong;
 * TSR_EDATA: the adapter does not fit the model. On success free with tsr_train_adapter_close. */
tsr_status tsr_train_adapter_open(tsr_train_adapter *out, tsr_config *config, bool needed,
                                  const tsr_adapter_module *modules, uint64_t module_count,
                                  const tsr_composite *composite, bool tied);
void tsr_train_adapter_close(tsr_train_adapter *adapter);

/* PiSSA: the base is without the adapter's first B A, and what is saved is an adapter of twice the rank
 * that takes them out of the whole base again (tsr_train_adapter_config). */
bool tsr_train_adapter_is_principal(const tsr_train_adapter *adapter);

/* The adapters of the same linears on a model of more or fewer layers; as tsr_adapter_set_make. */
tsr_status tsr_train_adapter_like(tsr_adapter_set *out, const tsr_train_adapter *adapter,
                                  const tsr_adapter_module *modules, uint64_t module_count);

/* The adapter_config.json of what is trained; borrowed pointers, nothing to free but `*patterns`
 * (free). */
tsr_status tsr_train_adapter_config(tsr_peft_config *out, const tsr_train_adapter *adapter,
                                    const tsr_config *config);

#endif
