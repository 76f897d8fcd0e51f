/*
 * io/tokenizer_files.h: the files of a tokenizer that stand beside a model or an adapter: those of the model it came
 * from, but for a chat template that was used instead of the model's.
 *
 * The template goes where save_pretrained of Transformers 5 puts it: into chat_template.jinja. What else would name
 * one is then left out: the member of tokenizer_config.json, chat_template.json, the template for tools.
 */
#ifndef TSR_IO_TOKENIZER_FILES_H
#define TSR_IO_TOKENIZER_FILES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define TSR_TEMPLATE_FILE "chat_template.jinja"

typedef struct {
    const char *model;         /* its directory */
    const char *chat_template; /* NULL: the model's own */
    uint64_t template_bytes;
} tsr_tokenizer_origin;

/* Whether there is a file of this name, below the model's directory. */
bool tsr_tokenizer_has(const tsr_tokenizer_origin *origin, const char *name);

/* What it holds, the caller's (free); *data NULL: there is none. Other files of the model are as they are.
 * TSR_EDATA: tokenizer_config.json is no JSON. */
tsr_status tsr_tokenizer_read(char **data, uint64_t *bytes, const tsr_tokenizer_origin *origin,
                              const char *name);

#endif
