/*
 * A file of rows, of any format, read as a job reads it. The first byte chooses what is trained, what happens to long
 * rows, the chat template, and whether roles and ends of turns are chosen: '0' is every default; from LABELS on it chooses
 * what reads preferences. What is loaded holds together.
 */
#include "data/dataset.h"
#include "fuzz/fuzz.h"

#define MODEL  TSR_SOURCE_DIR "/examples/tiny-llama"
#define MARKED TSR_SOURCE_DIR "/tests/golden/templates/generation.jinja"
#define SHORT  24  /* tokens: longer rows are cut, dropped, split or refused */
#define LABELS 216 /* choices of what reads rows with labels */

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

/* most: tokens of a row with labels, or of a document of a pair; 0: any number. */
static void check_sample(const tsr_sample *s, const tsr_dataset_options *options, int64_t most)
{
    int64_t tokens = 0, labels = 0, once = options->pairs ? 0 : most;
    fuzz_check(s->token_count > 0 && s->line > 0 && s->file == 0);
    fuzz_check(!once || s->token_count <= once);
    for (int32_t d = 0; d < s->document_count; tokens += s->lengths[d++]) {
        fuzz_check(s->lengths[d] > 0 && tokens + s->lengths[d] <= s->token_count);
        fuzz_check(s->labels[tokens] == TSR_LABEL_IGNORED);
        fuzz_check(!most || s->lengths[d] <= most);
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
    bool later = options->pairs == TSR_PAIRS_KTO; /* documents are cut once they are in twos */
    fuzz_check(stats->rows + stats->parts ==
               stats->samples + stats->split + stats->too_long + stats->emptied);
    for (int64_t i = 0; i < stats->samples; i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        fuzz_check(!options->pairs || later || s.document_count == 2);
        check_sample(&s, options, later ? 0 : options->max_length);
        tokens += s.token_count;
        labels += s.label_count;
    }
    fuzz_check(tokens == stats->tokens && labels == stats->label_tokens);
}

/* What reads rows with labels; *asks: whether a format may not have what is asked for. */
static void choose_labels(tsr_dataset_options *options, tsr_chat **chat, bool *asks, unsigned bits)
{
    static const struct {
        tsr_truncation how;
        int64_t most;
    } lengths[] = {{TSR_TRUNCATE_ERROR, 0},     {TSR_TRUNCATE_SPLIT, SHORT},
                   {TSR_TRUNCATE_SPLIT, 2},     {TSR_TRUNCATE_ERROR, SHORT},
                   {TSR_TRUNCATE_RIGHT, SHORT}, {TSR_TRUNCATE_DROP, SHORT}};
    int length = choose(&bits, 6);
    options->truncation = lengths[length].how;
    options->max_length = lengths[length].most;
    options->completion_only = (tsr_loss_choice)choose(&bits, 3);
    options->assistant_only = (tsr_loss_choice)choose(&bits, 3);
    *chat = chats[choose(&bits, 2)];
    bool chosen = choose(&bits, 2);
    *asks = options->completion_only == TSR_LOSS_YES || options->assistant_only == TSR_LOSS_YES ||
            chosen;
    if (chosen) { /* roles, ends of turns and a system prompt */
        options->training.roles =
            TSR_CHAT_ROLES_CHOSEN | TSR_CHAT_SYSTEM | TSR_CHAT_USER | TSR_CHAT_TOOL;
        options->training.ends = TSR_CHAT_ENDS_ALL;
        options->default_system = "Be brief.";
    }
}

static void choose_pairs(tsr_dataset_options *options, tsr_chat **chat, unsigned bits)
{
    options->pairs = (tsr_pairs)(TSR_PAIRS_DPO + choose(&bits, 3));
    options->bare_conversations = choose(&bits, 2);
    options->answer_begin = options->bare_conversations ? "A:" : NULL;
    options->max_length = choose(&bits, 2) ? SHORT : 0;
    options->truncation = options->max_length ? TSR_TRUNCATE_RIGHT : TSR_TRUNCATE_ERROR;
    *chat = chats[choose(&bits, 2)];
}

/* KTO's documents of an answer to another prompt, in twos. */
static void check_mismatch(tsr_dataset **data, const tsr_dataset_options *options)
{
    fuzz_check(tsr_dataset_mismatch(data, 2, options->max_length) == TSR_OK);
    for (int64_t i = 0; i < tsr_dataset_sample_count(*data); i++) {
        tsr_sample s = tsr_dataset_sample(*data, i);
        fuzz_check(s.document_count == 2);
        check_sample(&s, options, options->max_length);
    }
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
    tsr_chat *chat;
    bool is_chat, asks = false;
    if (bits < LABELS)
        choose_labels(&options, &chat, &asks, bits);
    else
        choose_pairs(&options, &chat, bits - LABELS);
    tsr_dataset *dataset;
    fuzz_begin();
    tsr_status status = tsr_dataset_detect(&options.format, &is_chat, &options);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    if (is_chat)
        options.chat = chat;
    else if (!tsr_data_has_ids(options.format))
        options.tokenizer = tokenizer;
    options.eos_id = tsr_tokenizer_eos(tokenizer);
    fuzz_begin();
    status = tsr_dataset_load(&dataset, &options);
    fuzz_answer(status, status == TSR_ECONFIG && asks ? TSR_ECONFIG : TSR_EDATA);
    if (status == TSR_OK) {
        check_dataset(dataset, &options);
        if (options.pairs == TSR_PAIRS_KTO)
            check_mismatch(&dataset, &options);
        tsr_dataset_destroy(dataset);
    }
    return 0;
}
