/*
 * chat_names.c: chat templates that a model without one can be given by name.
 *
 * The names are those of axolotl and LLaMA-Factory, the formats those that their publishers describe. Tools have no
 * place in them. A newline right behind a statement is no text, as in transformers.
 */
#include "base/near.h"
#include "data/chat_parts.h"
#include "io/file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The parts of a template stand under one another. */
/* clang-format off */

#define RAISE                                                                                      \
    "{% else %}{{ raise_exception('this chat template has no role ' + m.role) }}{% endif %}"
#define PROMPT(text) "{% if add_generation_prompt %}" text "{% endif %}"

/* A system prompt that the next question takes in, under `head` and `foot`. */
#define KEEP_SYSTEM(head, foot)                                                                    \
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"        \
    "{% set ns.system = ns.system + '" head "' + m.content + '" foot "' %}"                         \
    "{% elif m.role == 'user' %}"
#define ASKED "{% set ns.system = '' %}{% elif m.role == 'assistant' %}"
#define END   RAISE "{% endfor %}"

#define CHATML                                                                                     \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"     \
    PROMPT("<|im_start|>assistant\n")
#define NO_SYSTEM(text) "{% if messages[0].role != 'system' %}" text "{% endif %}"
#define THREE_ROLES                                                                                \
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"

static const tsr_chat_named templates[] = {
    /* OpenAI's ChatML (chatml.md in github.com/openai/openai-python, 2023). */
    {"chatml", "<|im_end|>", "", CHATML},
    /* Qwen2.5's: ChatML with a system prompt of its own (its model cards). */
    {"qwen_25 qwen qwen2.5", "<|im_end|>", "",
     NO_SYSTEM("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. "
               "You are a helpful assistant.<|im_end|>\n") CHATML},
    /* Meta's Llama 3 (llama.com, "Model Cards and Prompt formats"). */
    {"llama3", "<|eot_id|>", "",
     "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
     "{{ m.content | trim }}<|eot_id|>{% endfor %}"
     PROMPT("<|start_header_id|>assistant<|end_header_id|>\n\n")},
    /* Meta's Llama 2 (the same place). */
    {"llama2", NULL, "",
     KEEP_SYSTEM("<<SYS>>\\n", "\\n<</SYS>>\\n\\n")
     "{{ bos_token }}[INST] {{ (ns.system + m.content) | trim }} [/INST]"
     ASKED " {{ m.content | trim }} {{ eos_token }}" END},
    /* Mistral's, by version of its tokenizer (chat_templates.md in github.com/mistralai/cookbook).
     * There a system prompt goes into the last question from version 2 on; here into the next one,
     * so that a chat is trained as it is asked. */
    {"mistral mistral_v3 mistral_v2v3", NULL, "[INST] [/INST]",
     "{{ bos_token }}" KEEP_SYSTEM("", "\\n\\n") "[INST] {{ ns.system + m.content }}[/INST]"
     ASKED " {{ m.content | trim }}{{ eos_token }}" END},
    {"mistral_v1", NULL, "",
     "{{ bos_token }}" KEEP_SYSTEM("", "\\n\\n") " [INST] {{ ns.system + m.content }} [/INST]"
     ASKED " {{ m.content }}{{ eos_token }}" END},
    {"mistral_v3_tekken", NULL, "[INST] [/INST]",
     "{{ bos_token }}" KEEP_SYSTEM("", "\\n\\n") "[INST]{{ ns.system + m.content }}[/INST]"
     ASKED "{{ m.content }}{{ eos_token }}" END},
    {"mistral_v7_tekken mistral_v7", NULL, "[INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]",
     "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]"
     "{{ m.content }}[/SYSTEM_PROMPT]{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]"
     "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}" END},
    /* Google's Gemma (ai.google.dev/gemma, "Formatting and system instructions"). */
    {"gemma gemma2 gemma3", "<end_of_turn>", "",
     "{{ bos_token }}" KEEP_SYSTEM("", "\\n\\n")
     "<start_of_turn>user\n{{ ns.system + m.content | trim }}<end_of_turn>\n"
     ASKED "<start_of_turn>model\n{{ m.content | trim }}<end_of_turn>\n" END
     PROMPT("<start_of_turn>model\n")},
    /* Microsoft's Phi-3 and Phi-3.5 (their model cards). */
    {"phi_3 phi3 phi_35 phi", "<|end|>", "",
     THREE_ROLES "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n" END PROMPT("<|assistant|>\n")},
    /* Microsoft's Phi-4 (its model card). */
    {"phi_4 phi4", "<|im_end|>", "",
     "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>"
     "{% endfor %}" PROMPT("<|im_start|>assistant<|im_sep|>")},
    /* Hugging Face's Zephyr (zephyr-7b-beta's model card). */
    {"zephyr", NULL, "",
     THREE_ROLES "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n" END
     PROMPT("<|assistant|>\n")},
    /* LMSYS' Vicuna 1.1 (vicuna_weights_version.md in github.com/lm-sys/FastChat). */
    {"vicuna", NULL, "",
     "{{ bos_token }}"
     NO_SYSTEM("A chat between a curious user and an artificial intelligence assistant. The "
               "assistant gives helpful, detailed, and polite answers to the user's questions. ")
     "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }} "
     "{% elif m.role == 'user' %}USER: {{ m.content }} "
     "{% elif m.role == 'assistant' %}ASSISTANT: {{ m.content }}{{ eos_token }}" END
     PROMPT("ASSISTANT:")},
    /* Stanford's Alpaca (github.com/tatsu-lab/stanford_alpaca), question after question; the newline
     * before an answer is axolotl's and LLaMA-Factory's. */
    {"alpaca", NULL, "",
     "{{ bos_token }}"
     NO_SYSTEM("Below is an instruction that describes a task. Write a response that "
               "appropriately completes the request.\n\n")
     "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
     "{% elif m.role == 'user' %}### Instruction:\n{{ m.content }}"
     "{% elif m.role == 'assistant' %}### Response:\n{{ m.content }}{{ eos_token }}"
     RAISE "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}"
     PROMPT("{{ '\\n\\n' }}### Response:\n")},
};

/* clang-format on */

#define TEMPLATES (sizeof templates / sizeof *templates)

static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word), step;
    for (; *words; words += step + (words[step] == ' ')) {
        step = strcspn(words, " ");
        if (step == length && !memcmp(words, word, length))
            return true;
    }
    return false;
}

const tsr_chat_named *tsr_chat_find_named(const char *name)
{
    for (size_t i = 0; i < TEMPLATES; i++)
        if (has_word(templates[i].names, name))
            return &templates[i];
    return NULL;
}

/* ---- where a template comes from ---- */

#define FILE_BYTES ((uint64_t)16 << 20)

static const char own[] = "tokenizer_default", fallback[] = "tokenizer_default_fallback_";

bool tsr_chat_is_own(const tsr_tokenizer *tokenizer, const char *choice)
{
    size_t bytes;
    const char *name;
    bool asked = !choice || !strcmp(choice, own) || !strncmp(choice, fallback, sizeof fallback - 1);
    return asked && tsr_tokenizer_template(tokenizer, false, &bytes, &name);
}

static tsr_status copy_text(char **out, uint64_t *out_bytes, const char *text, size_t bytes)
{
    *out_bytes = bytes;
    *out = strndup(text, bytes);
    return *out ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for a chat template");
}

/* What may be written: "chatml, qwen_25, ..."; *near: what a misspelt choice was meant to be, or NULL. */
static void list_names(tsr_text *names, char near[32], const char *choice)
{
    char name[32];
    int distance = choice ? tsr_near_too_far(choice) : 0;
    *near = 0;
    for (size_t i = 0; i < TEMPLATES; i++) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(templates[i].names, " "),
                 templates[i].names);
        tsr_text_printf(names, "%s%s", i ? ", " : "", name);
        int d = distance ? tsr_near_distance(choice, name, distance - 1) : 1;
        if (d < distance) {
            distance = d;
            strcpy(near, name);
        }
    }
}

static tsr_status unknown(const char *choice)
{
    char near[32];
    tsr_auto_text names = {0};
    list_names(&names, near, choice);
    return choice ? tsr_fail(TSR_ECONFIG,
                             "chat_template: found '%s', which is no file and no name of a "
                             "template%s%s%s; write a Jinja file or one of %s",
                             choice, *near ? "; did you mean " : "", near, *near ? "?" : "",
                             tsr_text_string(&names))
                  : tsr_fail(TSR_ECONFIG,
                             "chat_template: the model has no chat template of its own "
                             "(chat_template.jinja, or chat_template in tokenizer_config.json; of "
                             "several the one named default); add a name, such as chat_template: "
                             "chatml, or a Jinja file; the names are %s",
                             tsr_text_string(&names));
}

tsr_status tsr_chat_template_text(char **text, uint64_t *bytes, const char **name,
                                  const tsr_tokenizer *tokenizer, const char *choice)
{
    size_t own_bytes;
    if (tsr_chat_is_own(tokenizer, choice)) {
        const char *source = tsr_tokenizer_template(tokenizer, false, &own_bytes, name);
        return copy_text(text, bytes, source, own_bytes);
    }
    if (!choice || !strcmp(choice, own))
        return unknown(NULL);
    if (!strncmp(choice, fallback, sizeof fallback - 1))
        choice += sizeof fallback - 1;
    const tsr_chat_named *named = tsr_chat_find_named(choice);
    *name = choice;
    if (named)
        return copy_text(text, bytes, named->text, strlen(named->text));
    if (access(choice, F_OK) != 0)
        return unknown(choice);
    tsr_status status = tsr_file_read(text, bytes, choice, FILE_BYTES);
    return status < 0 ? tsr_fail(status, "chat_template: %s", tsr_last_error()) : status;
}
