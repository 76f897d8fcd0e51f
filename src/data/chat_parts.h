/*
 * data/chat_parts.h: what the files of data/chat.h share.
 *
 * chat.c           the template, rendering, the mask
 * chat_messages.c  messages: what they must have, what they say about training, as a template sees them
 */
#ifndef TSR_DATA_CHAT_PARTS_H
#define TSR_DATA_CHAT_PARTS_H

#include "data/chat.h"

/* What an assistant thought, as rows and templates name it; the first that is there counts. */
#define TSR_CHAT_THOUGHTS 3
extern const char *const tsr_chat_thoughts[TSR_CHAT_THOUGHTS];

/* TSR_EDATA: the first message that cannot be rendered, or that says of its training what is not understood. */
tsr_status tsr_chat_check_messages(const json_t *messages);

/* Whether a checked message says that it is to be trained (1) or not (0); -1: it says nothing. */
int tsr_chat_asks_training(const json_t *message);

bool tsr_chat_is_assistant(const json_t *message);

/* Adds `message` to `list` as transformers hands it to a template: without its keys that are null, which rows
 * of a table have for what other rows say; and what was thought, under either name that templates read. False:
 * no memory. */
bool tsr_chat_add_message(json_t *list, const json_t *message);

#endif
