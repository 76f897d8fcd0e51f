/*
 * columns_pairs.c: rows of preferences that are chats in another shape.
 *
 * An answer may be a message, or with a chat template a text. Beside a prompt that is a text, or is made of an instruction, a
 * list of messages repeats the prompt, and its last message is the answer (argilla's sets, UltraFeedback). A completion
 * without a prompt is a conversation, and the last message is the answer (KTO sets of LLaMA-Factory).
 */
#include "data/columns_parts.h"

#include "io/json.h"

#include <string.h>

static const char *const answers[] = {"chosen", "rejected", "completion"};

#define ANSWERS (sizeof answers / sizeof *answers)

static tsr_status put(json_t *row, const char *key, json_t *value, const char *place)
{
    return json_object_set_new(row, key, value) ? tsr_columns_no_memory(place) : TSR_OK;
}

static bool has_list(const json_t *row)
{
    for (size_t i = 0; i < ANSWERS; i++)
        if (json_array_size(json_object_get(row, answers[i])))
            return true;
    return false;
}

/* As in LLaMA-Factory. */
static void drop_unnamed(json_t *row, const tsr_columns *columns)
{
    if (!columns->names_system)
        json_object_del(row, "system");
    if (!columns->names_input)
        json_object_del(row, "input");
    if (!columns->names_history)
        json_object_del(row, "history");
}

/* The prompt as messages, of an instruction or of a text; *made: it was none before. */
static tsr_status make_prompt(bool *made, json_t *row, const tsr_columns *columns,
                              const char *place)
{
    const json_t *prompt = json_object_get(row, "prompt");
    *made = false;
    if (!columns->chat || (!columns->asks && !json_is_string(prompt)))
        return TSR_OK;
    if (!columns->asks && !columns->names_prompt && has_list(row)) { /* the answers have it */
        json_object_del(row, "prompt");
        return TSR_OK;
    }
    if (columns->asks)
        drop_unnamed(row, columns);
    json_t *list = json_array();
    tsr_status status = !list ? tsr_columns_no_memory(place)
                        : columns->asks
                            ? tsr_columns_add_question(list, row, place)
                            : tsr_columns_add_turn(list, "user", json_string_value(prompt), place);
    if (status >= 0 && json_object_set(row, "prompt", list))
        status = tsr_columns_no_memory(place);
    json_decref(list);
    *made = status >= 0;
    return status;
}

/* A text, or the last of several messages, as a list of one. */
static tsr_status make_answer(json_t *row, const char *key, const tsr_columns *columns, bool made,
                              const char *place)
{
    json_t *answer = json_object_get(row, key);
    size_t count = json_array_size(answer);
    if (made && count > 1)
        return put(row, key, json_pack("[O]", json_array_get(answer, count - 1)), place);
    if (!columns->chat || !json_is_string(answer))
        return TSR_OK;
    return put(row, key, json_pack("[{s:s, s:O}]", "role", "assistant", "content", answer), place);
}

/* Where the completion is the whole conversation. */
static tsr_status divide(json_t *row, const char *place)
{
    json_t *whole = json_object_get(row, "completion");
    size_t count = json_array_size(whole);
    if (json_object_get(row, "prompt") || count < 2)
        return TSR_OK;
    json_t *prompt = json_copy(whole);
    json_t *answer = json_pack("[O]", json_array_get(whole, count - 1));
    if (prompt)
        json_array_remove(prompt, count - 1);
    tsr_status status = put(row, "completion", answer, place);
    if (status < 0) {
        json_decref(prompt);
        return status;
    }
    return put(row, "prompt", prompt, place);
}

/* Puts the system prompt before a list that does not begin with one. */
static tsr_status begin_with(json_t *row, const char *key, const char *system, const char *place)
{
    json_t *list = json_object_get(row, key);
    const char *role = json_string_value(json_object_get(json_array_get(list, 0), "role"));
    if (!json_array_size(list) || (role && !strcmp(role, "system")))
        return TSR_OK;
    json_t *longer = json_pack("[{s:s, s:s}]", "role", "system", "content", system);
    if (!longer || json_array_extend(longer, list)) {
        json_decref(longer);
        return tsr_columns_no_memory(place);
    }
    return put(row, key, longer, place);
}

static tsr_status add_system(json_t *row, const tsr_columns *columns, const char *place)
{
    const char *system;
    if (!columns->names_system || columns->asks) /* which has it */
        return TSR_OK;
    TSR_TRY(tsr_columns_optional_text(&system, row, "system", place));
    if (!*system)
        return TSR_OK;
    if (json_object_get(row, "prompt"))
        return begin_with(row, "prompt", system, place);
    for (size_t i = 0; i < ANSWERS; i++)
        TSR_TRY(begin_with(row, answers[i], system, place));
    return TSR_OK;
}

static tsr_status rename_list(json_t *row, const char *key, const tsr_columns *columns,
                              const char *place)
{
    if ((!columns->member_count && !columns->role_count) ||
        !json_is_array(json_object_get(row, key)))
        return TSR_OK;
    return tsr_columns_rename_messages(row, key, columns, place);
}

tsr_status tsr_columns_pair(json_t *row, const tsr_columns *columns, const char *place)
{
    bool made;
    for (size_t i = 0; i < ANSWERS; i++) {
        json_t *answer = json_object_get(row, answers[i]);
        if (json_is_object(answer))
            TSR_TRY(put(row, answers[i], json_pack("[O]", answer), place));
        TSR_TRY(rename_list(row, answers[i], columns, place));
    }
    TSR_TRY(rename_list(row, "prompt", columns, place));
    TSR_TRY(make_prompt(&made, row, columns, place));
    for (size_t i = 0; i < ANSWERS; i++)
        TSR_TRY(make_answer(row, answers[i], columns, made, place));
    TSR_TRY(divide(row, place));
    return add_system(row, columns, place);
}
