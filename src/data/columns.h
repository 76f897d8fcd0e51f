/*
 * data/columns.h: rows whose columns, members of messages and roles have other names than the formats give them.
 *
 * A row is renamed once, before its reader sees it. What is moved is gone under its old name, and what stood under the new
 * one too. Rows of instruction and output can become chats, as LLaMA-Factory reads them, and so can rows of preferences
 * (columns_pairs.c).
 */
#ifndef TSR_DATA_COLUMNS_H
#define TSR_DATA_COLUMNS_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>

typedef enum {
    TSR_DATA_AUTO,
    TSR_DATA_MESSAGES,
    TSR_DATA_PRETOKENIZED,
    TSR_DATA_SHAREGPT,
    TSR_DATA_ALPACA,
    TSR_DATA_PROMPT_COMPLETION,
    TSR_DATA_INPUT_OUTPUT,
    TSR_DATA_TEXT,
    TSR_DATA_PREFERENCE, /* this and what follows: of objectives over preferences */
    TSR_DATA_PREFERENCE_IDS,
    TSR_DATA_UNPAIRED
} tsr_data_format;

/* Whether its rows are token ids, which need no tokenizer. */
static inline bool tsr_data_has_ids(tsr_data_format format)
{
    return format == TSR_DATA_PRETOKENIZED || format == TSR_DATA_PREFERENCE_IDS;
}

/* `key` is the configuration's, for messages. */
typedef struct {
    const char *from, *to, *key;
    bool optional; /* a row may lack it */
} tsr_rename;

#define TSR_COLUMNS_MOST 12

/* All borrowed. */
typedef struct {
    tsr_rename columns[TSR_COLUMNS_MOST], members[TSR_COLUMNS_MOST];
    int column_count, member_count;
    const tsr_rename *roles; /* words of the rows, and the roles that they are */
    int role_count;
    const char *list; /* of messages, by its new name: "messages" or "conversations" */
    const char *role; /* in these, by its new name: "role" or "from" */
    bool chat;        /* {instruction, input, output, system, history} becomes {messages} */
    /* Rows of preferences: their messages have these names, and with `chat` texts become messages. */
    bool pairs;
    bool asks; /* {instruction, input, history} is the prompt */
    /* Columns that are not named do not count. */
    bool names_prompt, names_system, names_input, names_history;
} tsr_columns;

/* Puts a renamed copy in the place of *row, which is given back. TSR_EDATA, *row is NULL: a column or member is missing or is
 * of another kind; `place` begins the message. */
tsr_status tsr_columns_map(json_t **row, const tsr_columns *columns, const char *place);

#endif
