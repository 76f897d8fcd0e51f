/*
 * A file of rows, of any format, read as a job reads it. The first byte chooses what is trained, what happens to long
 * rows, the chat template, and whether roles and ends of turns are chosen: '0' is every default. What is loaded holds together.
 */
#include "data/dataset.h"
#include "fuzz/fuzz.h"

#define MODEL  TSR_SOURCE_DIR "/examples/tiny-llama"
#define MARKED TSR_SOURCE_DIR "/tests/golden/templates/generation.jinja"
#define SHORT  24 /* tokens: longer rows are cut, dropped or refused */

static tsr_tokenizer *tokenizer;
static tsr_chat *chats[2]; /* turns found by rendering, and marked in the template */

static void open_all(void)
{
    const tsr_chat_options marked = {.template = MARKED};
    if (tokenizer)
        return;
    fuzz_check(tsr_tokenizer_open(&tokenizer, MODEL, false) == TSR_OK);
    fuzz_check(tsr_chat_create(&chats[0], tokenizer, NULL) == TSR_OK);
    fuzz_check(tsr_chat_create(&chats[1], tokenizer, &marked) == TSR_OK);
}

/* The next of `count` choices out of *bits. */
static int choose(unsigned *bits, unsigned count)
{
    unsigned choice = *bits % count;
    *bits /= count;
    return (int)choice;
}

static void check_sample(const tsr_sample *s, const tsr_dataset_options *options)
{
    int64_t tokens = 0, labels = 0;
    fuzz_check(s->token_count > 0 && s->line > 0 && s->file == 0);
    fuzz_check(!options->max_length || s->token_count <= options->max_length);
    for (int32_t d = 0; d < s->document_count; tokens += s->lengths[d++]) {
        fuzz_check(s->lengths[d] > 0 && tokens + s->lengths[d] <= s->token_count);
        fuzz_check(s->labels[tokens] == TSR_LABEL_IGNORED);
    }
    fuzz_check(tokens == s->token_count);
    for (int32_t i = 0; i < s->token_count; i++) {
        fuzz_check(s->ids[i] >= 0 && s->ids[i] < options->vocab_size);
        fuzz_check(s->labels[i] < options->vocab_size &&
                   (s->labels[i] >= 0 || s->labels[i] == TSR_LABEL_IGNORED));
        labels += s->labels[i] != TSR_LABEL_IGNORED;
    }
    fuzz_check(labels == s->label_count);
}

static void check_dataset(const tsr_dataset *data, const tsr_dataset_options *options)
{
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    int64_t tokens = 0, labels = 0;
    fuzz_check(tsr_dataset_format(data) == options->format && stats->label_tokens > 0);
    fuzz_check(stats->rows == stats->samples + stats->too_long + stats->emptied);
    for (int64_t i = 0; i < stats->samples; i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        check_sample(&s, options);
        tokens += s.token_count;
        labels += s.label_count;
    }
    fuzz_check(tokens == stats->tokens && labels == stats->label_tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes)
        return 0;
    open_all();
    const char *path = fuzz_file(data + 1, bytes - 1);
    unsigned bits = (uint8_t)(data[0] - '0');
    tsr_dataset_options options = {
        .files = &path, .file_count = 1, .vocab_size = tsr_tokenizer_vocab_count(tokenizer)};
    options.truncation = (tsr_truncation)choose(&bits, 3);
    options.max_length = choose(&bits, 2) ? SHORT : 0;
    options.completion_only = (tsr_loss_choice)choose(&bits, 3);
    options.assistant_only = (tsr_loss_choice)choose(&bits, 3);
    tsr_chat *chat = chats[choose(&bits, 2)];
    bool chosen = choose(&bits, 2);
    bool is_chat, asks = options.completion_only == TSR_LOSS_YES ||
                         options.assistant_only == TSR_LOSS_YES || chosen;
    if (chosen) { /* roles, ends of turns and a system prompt */
        options.training.roles =
            TSR_CHAT_ROLES_CHOSEN | TSR_CHAT_SYSTEM | TSR_CHAT_USER | TSR_CHAT_TOOL;
        options.training.ends = TSR_CHAT_ENDS_ALL;
        options.default_system = "Be brief.";
    }
    tsr_dataset *dataset;
    fuzz_begin();
    tsr_status status = tsr_dataset_detect(&options.format, &is_chat, &options);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    if (is_chat) {
        options.chat = chat;
    } else if (options.format != TSR_DATA_PRETOKENIZED) {
        options.tokenizer = tokenizer;
        options.eos_id = tsr_tokenizer_eos(tokenizer);
    }
    fuzz_begin();
    status = tsr_dataset_load(&dataset, &options);
    fuzz_answer(status, status == TSR_ECONFIG && asks ? TSR_ECONFIG : TSR_EDATA);
    if (status == TSR_OK) {
        check_dataset(dataset, &options);
        tsr_dataset_destroy(dataset);
    }
    return 0;
}
