#include "data/chat_parts.h"
#include "io/json.h"

const char *const tsr_chat_thoughts[] = {"reasoning_content", "thinking", "reasoning"};

static tsr_status check_message(const json_t *message, size_t index)
{
    if (!json_is_object(message))
        return tsr_fail(TSR_EDATA, "messages[%zu] is not an object {\"role\", \"content\"}", index);
    const json_t *role = json_object_get(message, "role");
    const json_t *content = json_object_get(message, "content");
    if (!json_is_string(role))
        return tsr_fail(TSR_EDATA,
                        "messages[%zu]: \"role\" is %s, expected a string such as \"user\"", index,
                        role ? tsr_json_kind(role) : "missing");
    bool calls = json_is_array(json_object_get(message, "tool_calls"));
    if (json_is_string(content) || (calls && (!content || json_is_null(content))))
        return TSR_OK;
    return tsr_fail(TSR_EDATA, "messages[%zu] (role \"%s\"): \"content\" is %s, expected a string",
                    index, json_string_value(role), content ? tsr_json_kind(content) : "missing");
}

/* ---- what a message says about its training ---- */

/* 0 or 1 as `key` of a message says it, else -1: absent, null or not understood. OpenAI's files write
 * "weight": 0, axolotl's data "train" or "training": false. */
static int read_flag(const json_t *message, const char *key, bool is_number)
{
    const json_t *value = json_object_get(message, key);
    if (!is_number)
        return json_is_boolean(value) ? json_is_true(value) : -1;
    double number = json_is_number(value) ? json_number_value(value) : -1;
    return number == 0 || number == 1 ? (int)number : -1;
}

const char *const tsr_chat_training_keys[] = {"weight",       "train",           "training",
                                              "train_detail", "training_detail", NULL};

#define FLAGS 3 /* the first of them is a number; the last two name parts of a message */

int tsr_chat_asks_training(const json_t *message)
{
    int asked = -1;
    for (int i = 0; i < FLAGS && asked < 0; i++)
        asked = read_flag(message, tsr_chat_training_keys[i], i == 0);
    return asked;
}

static tsr_status check_training(const json_t *message, size_t index)
{
    int asked = tsr_chat_asks_training(message);
    char show[TSR_JSON_SHOW_BYTES];
    for (int i = 0; tsr_chat_training_keys[i]; i++) {
        const char *key = tsr_chat_training_keys[i];
        const json_t *value = json_object_get(message, key);
        int flag = read_flag(message, key, i == 0);
        if (!tsr_json_has(message, key))
            continue;
        if (i >= FLAGS)
            return tsr_fail(TSR_EDATA,
                            "messages[%zu]: \"%s\" is not supported: a message is trained whole or "
                            "not at all; write \"train\": true or false",
                            index, key);
        if (flag < 0)
            return tsr_fail(TSR_EDATA, "messages[%zu]: \"%s\" is %s, expected %s", index, key,
                            tsr_json_show(show, value),
                            i == 0 ? "0 (not trained) or 1" : "true or false");
        if (flag != asked)
            return tsr_fail(TSR_EDATA,
                            "messages[%zu]: \"weight\", \"train\" and \"training\" disagree about "
                            "whether it is trained; keep one of them",
                            index);
    }
    return TSR_OK;
}

tsr_status tsr_chat_check_messages(const json_t *messages)
{
    if (!json_is_array(messages))
        return tsr_fail(TSR_EDATA, "\"messages\" is not a list");
    if (!json_array_size(messages))
        return tsr_fail(TSR_EDATA, "\"messages\" is empty");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        TSR_TRY(check_message(json_array_get(messages, i), i));
        TSR_TRY(check_training(json_array_get(messages, i), i));
    }
    return TSR_OK;
}

/* Adds `message` to `list` as a template sees it, under `role`; false: no memory. */
static bool add_seen(json_t *list, const json_t *message, const char *role)
{
    json_t *seen = json_object(), *thought = NULL, *value;
    const char *key;
    bool failed = json_array_append_new(list, seen) != 0;
    for (int i = 0; i < TSR_CHAT_THOUGHTS && (!thought || json_is_null(thought)); i++)
        thought = json_object_get(message, tsr_chat_thoughts[i]);
    thought = json_is_null(thought) ? NULL : thought;
    if (thought)
        failed = failed || json_object_set(seen, "thinking", thought);
    json_object_foreach((json_t *)(uintptr_t)message, key, value) failed =
        failed || (!json_is_null(value) && json_object_set(seen, key, value));
    if (thought)
        failed = failed || json_object_set(seen, "reasoning_content", thought);
    return !failed && !json_object_set_new(seen, "role", json_string(role));
}

static tsr_status unknown_role(const char *role, size_t index)
{
    char show[TSR_JSON_SHOW_BYTES];
    tsr_auto_text others = {0};
    json_auto_t *word = json_string(role);
    tsr_chat_put_roles(&others);
    return tsr_fail(
        TSR_EDATA,
        "messages[%zu]: \"role\" is %s, expected system, user, assistant or tool, a data set's "
        "word for one of them (%s), or a role that the chat template has of its own",
        index, tsr_json_show(show, word), tsr_text_string(&others));
}

tsr_status tsr_chat_see(json_t **out, tsr_chat *chat, const json_t *messages)
{
    json_t *seen = json_array();
    tsr_status status = seen ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for messages");
    for (size_t i = 0; i < json_array_size(messages) && status == TSR_OK; i++) {
        const json_t *message = json_array_get(messages, i);
        const char *word = json_string_value(json_object_get(message, "role")), *role;
        status = tsr_chat_role(&role, chat, word);
        if (status == TSR_OK && !role)
            status = unknown_role(word, i);
        else if (status == TSR_OK && !add_seen(seen, message, role))
            status = tsr_fail(TSR_ENOMEM, "no memory for messages");
    }
    if (status < 0)
        json_decref(seen);
    else
        *out = seen;
    return status;
}
