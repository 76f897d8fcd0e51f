/*
 * model/arch/composite.h: classes of models that have other towers (vision, audio) beside a text decoder.
 *
 * The decoder is one of the families of arch.h; its keys are in text_config, or at the top of an older file, and
 * config.json itself holds a few that are of the whole model. A class is one entry of the list in composite.c.
 */
#ifndef TSR_MODEL_ARCH_COMPOSITE_H
#define TSR_MODEL_ARCH_COMPOSITE_H

#include "io/json.h"

typedef struct {
    const char *model_type;   /* of config.json itself: "gemma3" */
    const char *architecture; /* the class in Transformers: "Gemma3ForConditionalGeneration" */
    const char *models;       /* published ones that have it */
    /* The model types of text_config, up to a NULL; the first where it has none. */
    const char *const *text;
    const char *const *towers; /* the modules beside the decoder, up to a NULL */
    /* Keys of config.json itself that say nothing of the decoder, up to a NULL; beside those of every class. */
    const char *const *keys;
    const char
        *defaults; /* JSON: what text_config means by keys it lacks, beside the family's; or NULL */
    bool flat;     /* without text_config the decoder's keys are at the top */
    bool text_ties; /* tie_word_embeddings true in text_config holds, whatever stands outside */
} tsr_composite;

/* The classes in alphabetical order; NULL from the last on. */
const tsr_composite *tsr_composite_at(int index);

/* Of a plain model *out and *text are NULL. Else *text holds what its family reads as its own config.json, the caller's
 * (json_decref); *nested: it comes from text_config. `place` is the file's name. TSR_EDATA: text_config is missing, or
 * its model_type is not one of the class, or a key outside it is not understood. */
tsr_status tsr_composite_read(const tsr_composite **out, json_t **text, bool *nested,
                              const json_t *root, const char *place);

/* What the names of the decoder's modules begin with in Transformers 5: "model.language_model.", of a plain model
 * (NULL) "model.". */
const char *tsr_composite_prefix(const tsr_composite *composite);

/* What they begin with in files, newest first: tensors of a checkpoint, modules of an adapter. NULL from the last on. */
const char *tsr_composite_spelling(const tsr_composite *composite, int index);

/* Whether a tensor is another tower's; its module's name is then written to *tower, borrowed. */
bool tsr_composite_is_tower(const char **tower, const tsr_composite *composite, const char *tensor);

#endif
