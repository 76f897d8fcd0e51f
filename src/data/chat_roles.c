/*
 * chat_roles.c: what a message's role means.
 *
 * The template decides first: a role that it treats in a way of its own (gpt-oss' developer, Llama's ipython) is
 * handed to it as it is. One that it would treat like any unknown word means what data sets mean by it, and the
 * template sees the standard word. Whether a turn is the assistant's follows from the data set's meaning alone.
 */
#include "data/chat_parts.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *word, *role;
} spellings[] = {
    {"system", "system"},
    {"user", "user"},
    {"assistant", "assistant"},
    {"tool", "tool"},
    {"developer", "system"}, /* OpenAI's newer word */
    {"human", "user"},       /* ShareGPT */
    {"prompter", "user"},    /* OpenAssistant */
    {"gpt", "assistant"},    /* ShareGPT, with the next three */
    {"chatgpt", "assistant"},
    {"bing", "assistant"},
    {"bard", "assistant"},
    {"model", "assistant"}, /* Gemma, Gemini */
    {"bot", "assistant"},
    {"chatbot", "assistant"}, /* Cohere */
    {"ai", "assistant"},      /* LangChain */
    {"function", "tool"},     /* OpenAI's older word */
    {"function_response", "tool"},
    {"observation", "tool"}, /* LLaMA-Factory, GLM */
    {"ipython", "tool"},     /* Llama */
    {"tool_response", "tool"},
};

#define SPELLINGS (sizeof spellings / sizeof *spellings)
#define STANDARD  4 /* the first of them */

const char *tsr_chat_standard_role(const char *word)
{
    for (size_t i = 0; i < SPELLINGS; i++)
        if (!strcasecmp(word, spellings[i].word))
            return spellings[i].role;
    return NULL;
}

unsigned tsr_chat_role_bit(const char *word)
{
    const char *role = tsr_chat_standard_role(word);
    for (unsigned i = 0; role && i < STANDARD; i++)
        if (!strcmp(role, spellings[i].word))
            return 1u << i;
    return 0;
}

void tsr_chat_put_roles(tsr_text *out)
{
    for (size_t i = STANDARD; i < SPELLINGS; i++)
        tsr_text_printf(out, "%s%s", i == STANDARD ? "" : ", ", spellings[i].word);
}

bool tsr_chat_is_assistant(const json_t *message)
{
    const char *role = tsr_chat_standard_role(json_string_value(json_object_get(message, "role")));
    return role && !strcmp(role, "assistant");
}

/* ---- whether a template has a role of its own ---- */

#define NONSENSE "qzxjvrole"

/* What the template makes of a message of `role` before or after one of the user's, or what it says against it, in
 * small letters. */
static tsr_status probe(tsr_text *out, tsr_chat *chat, const char *role, bool first)
{
    tsr_rendering rendering = {0};
    json_t *user = json_pack("{s:s, s:s}", "role", "user", "content", "1");
    json_t *other = json_pack("{s:s, s:s}", "role", role, "content", "2");
    json_auto_t *list = json_pack("[o, o]", first ? other : user, first ? user : other);
    tsr_status status = list ? tsr_chat_render(&rendering, chat, list, 2, false)
                             : tsr_fail(TSR_ENOMEM, "no memory for messages");
    tsr_text_clear(out);
    if (status == TSR_OK)
        tsr_text_append(out, tsr_text_string(&rendering.text), rendering.text.length);
    if (status == TSR_EDATA)
        tsr_text_printf(out, "error: %s", tsr_last_error());
    for (size_t i = 0; i < out->length; i++)
        out->data[i] = (char)tolower((unsigned char)out->data[i]);
    tsr_rendering_free(&rendering);
    return status == TSR_EDATA ? TSR_OK : status;
}

/* Whether `text` is `nonsense` with the role in the place of the nonsense. */
static bool is_same(const tsr_text *text, const tsr_text *nonsense, const char *role)
{
    const char *a = tsr_text_string(text), *b = tsr_text_string(nonsense);
    size_t length = strlen(role), skip = sizeof NONSENSE - 1;
    while (*b) {
        bool here = !strncmp(b, NONSENSE, skip);
        if (here ? strncasecmp(a, role, length) != 0 : *a != *b)
            return false;
        a += here ? length : 1;
        b += here ? skip : 1;
    }
    return !*a;
}

static tsr_status ask_template(bool *known, tsr_chat *chat, const char *word)
{
    tsr_auto_text text = {0}, nonsense = {0};
    tsr_status status = tsr_chat_set_name(chat, "tools", json_null());
    *known = false;
    for (int first = 0; first < 2 && status == TSR_OK && !*known; first++) {
        status = probe(&text, chat, word, first);
        if (status == TSR_OK)
            status = probe(&nonsense, chat, NONSENSE, first);
        *known = status == TSR_OK && !is_same(&text, &nonsense, word);
    }
    return status;
}

/* As ask_template, which is asked once for a template and word. */
static tsr_status is_known(bool *known, tsr_chat *chat, const char *word)
{
    tsr_chat_known_role *role = &chat->roles[chat->role_count];
    for (int i = 0; i < chat->role_count; i++)
        if (chat->roles[i].template == chat->chosen && !strcmp(chat->roles[i].word, word)) {
            *known = chat->roles[i].known;
            return TSR_OK;
        }
    TSR_TRY(ask_template(known, chat, word));
    if (chat->role_count == TSR_CHAT_MOST_ROLES || strlen(word) >= sizeof role->word)
        return TSR_OK;
    role->template = chat->chosen;
    role->known = *known;
    strcpy(role->word, word);
    chat->role_count++;
    return TSR_OK;
}

tsr_status tsr_chat_role(const char **out, tsr_chat *chat, const char *word)
{
    bool known;
    for (int i = 0; i < STANDARD; i++)
        if (!strcmp(word, spellings[i].word)) {
            *out = word;
            return TSR_OK;
        }
    TSR_TRY(is_known(&known, chat, word));
    *out = known ? word : tsr_chat_standard_role(word);
    return TSR_OK;
}
