/*
 * Seeded mutations of good files: whatever comes, a load ends with success or with a message, and
 * what was accepted can be written and read again. Bounded to two seconds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/philox.h"
#include "base/text.h"
#include "config/config.h"

#define SEED       20240607u
#define SECONDS    1.5
#define MIN_ROUNDS 200 /* also under a slow sanitizer */
#define CAPACITY   2048

static const char *const seeds[] = {
    "model_name_or_path: m\ndataset: [d.jsonl, 'e f']\noutput_dir: o\nlearning_rate: 2e-4\n"
    "rank_pattern: {layers.1.q_proj: 4, '.*v': 8}\nlora_target_modules:\n  - q_proj\n  - v_proj\n"
    "warmup_ratio: 0.03\nbf16: false\nmax_length: null\n",
    "# comment\nmodel_name_or_path: \"m\\u00e9\"\ndataset: d.jsonl\noutput_dir: >-\n  folded\n  "
    "text\n"
    "eval_dataset: e.jsonl\neval_strategy: steps\neval_steps: 0.1\nmemory_budget: 22GiB\n"
    "time_limit: 1h30m\nlr_scheduler_type: cosine_with_min_lr\n"
    "lr_scheduler_kwargs: {min_lr_rate: 0.1}\nddp_timeout: &t 3\ntf32: *t\n",
    "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\nresume_from_checkpoint: false\n"
    "layers_to_transform: [0, 1, 2]\ndefaults: trl\nreport_to: [none]\nfsdp: []\ndeepspeed: {}\n"
    "slots: 3\ntotal_batch_size: 16\ntruncation_mode: keep_start\nprogress: lines\n",
    "base_model: m\nadapter: qlora\nload_in_4bit: true\noutput_dir: o\nval_set_size: 0\n"
    "datasets:\n  - path: d.jsonl\n    type: chat_template\n    field_messages: conversations\n"
    "    message_property_mappings: {role: from, content: value}\n    data_files: [a, b]\n"
    "saves_per_epoch: 4\nnum_epochs: 2\noptimizer: adamw_8bit\nspecial_tokens: {pad_token: p}\n"
    "plugins: [liger.LigerPlugin.liger.]\nbnb_config_kwargs: {bnb_4bit_quant_type: nf4}\n",
    "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_rank: 8\nlora_target: a,b\n"
    "dataset: a.jsonl,b.jsonl\ncutoff_len: 8\ntemplate: llama3\nneat_packing: true\n"
    "pissa_init: false\nquantization_bit: 4\nplot_loss: true\noutput_dir: o\n",
    "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\nload_in_8bit: true\nadapters:\n"
    "  - name: a\n    lora_r: 4\n    dataset: [{path: e.jsonl, weight: 2}]\n  - {name: b.2, "
    "use_dora: true}\n",
};

static const char *const pieces[] = {
    "null",
    "~",
    "true",
    "-1",
    "1e999",
    "0x",
    "[",
    "]",
    "{",
    "}",
    ": ",
    "\n",
    "\n- ",
    "&a ",
    "*a",
    "\"",
    "'",
    "# ",
    "|\n ",
    "\xff",
    "\xc3\xa9",
    "\\0",
    "\t",
    "..",
    "---\n",
    ",",
    "%",
    "!!x",
    "lora_r: 8\n",
    "packing: true\n",
    "9223372036854775808",
};

static uint64_t counter;

static uint32_t next(uint32_t limit)
{
    return tsr_philox_at(SEED, 0, counter++).word[0] % limit;
}

static size_t mutate(char *text, size_t length)
{
    for (uint32_t edits = 1 + next(4); edits; edits--) {
        size_t at = length ? next((uint32_t)length) : 0;
        switch (next(4)) {
        case 0: /* one byte */
            if (length)
                text[at] = (char)next(256);
            break;
        case 1: { /* a piece goes in */
            const char *piece = pieces[next(sizeof pieces / sizeof *pieces)];
            size_t bytes = strlen(piece);
            if (length + bytes > CAPACITY)
                break;
            memmove(text + at + bytes, text + at, length - at);
            memcpy(text + at, piece, bytes);
            length += bytes;
            break;
        }
        case 2: { /* some bytes go */
            size_t bytes = 1 + next(12);
            if (at + bytes > length)
                break;
            memmove(text + at, text + at + bytes, length - at - bytes);
            length -= bytes;
            break;
        }
        default: { /* a stretch comes twice */
            size_t bytes = 1 + next(40);
            if (at + bytes > length || length + bytes > CAPACITY)
                break;
            memmove(text + at + bytes, text + at, length - at);
            length += bytes;
        }
        }
    }
    return length;
}

/* Accepted: written, read again, the same values. */
static void check_accepted(tsr_config *config, const char *text)
{
    tsr_text written = {0};
    assert_int_equal(tsr_config_write(&written, config), TSR_OK);
    tsr_config again;
    tsr_config_source source = {.text = written.data, .text_bytes = written.length};
    if (tsr_config_load(&again, &source) < 0)
        fail_msg("from\n%s\nwas written\n%s\n%s", text, written.data, tsr_last_error());
    if (tsr_config_hash(config) != tsr_config_hash(&again))
        fail_msg("from\n%s\nwas written, and read as other values\n%s", text, written.data);
    tsr_config_free(&again);
    tsr_text_free(&written);
}

static void test_mutations(void **state)
{
    (void)state;
    double end = tsr_now() + SECONDS;
    int accepted = 0, refused = 0;
    for (int round = 0; round < MIN_ROUNDS || tsr_now() < end; round++) {
        char text[CAPACITY + 1];
        const char *seed = seeds[next(3)];
        size_t length = mutate(memcpy(text, seed, strlen(seed)), strlen(seed));
        text[length] = 0;
        tsr_config config;
        tsr_config_source source = {.text = text, .text_bytes = length, .name = "job.yaml"};
        if (!length)
            continue;
        tsr_status status = tsr_config_load(&config, &source);
        if (status == TSR_OK) {
            accepted++;
            check_accepted(&config, text);
            tsr_config_free(&config);
        } else {
            refused++;
            if (status != TSR_ECONFIG || strlen(tsr_last_error()) < 10)
                fail_msg("status %d, '%s' for\n%s", status, tsr_last_error(), text);
        }
    }
    print_message("%d accepted, %d refused\n", accepted, refused);
    assert_true(accepted > 0 && refused > 0); /* else the mutations test one side alone */
}

/* The same for the text after "key=". */
static void test_overrides(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "lora_target_modules", "rank_pattern", "lora_r", "output_dir",
        "memory_budget",       "time_limit",   "bf16"};
    static const char *const values[] = {
        "[q_proj, v_proj]", "{a: 1}", "8", "'x y'", "22GiB", "1h5m"};
    double end = tsr_now() + 0.3;
    for (int round = 0; round < MIN_ROUNDS || tsr_now() < end; round++) {
        char text[CAPACITY + 64];
        int prefix = snprintf(text, 64, "%s=", keys[next(7)]);
        const char *value = values[next(6)];
        char *start = text + prefix;
        size_t length = mutate(memcpy(start, value, strlen(value)), strlen(value));
        start[length] = 0;
        const char *override = text;
        tsr_config config;
        tsr_config_source source = {.text = seeds[0], .overrides = &override, .override_count = 1};
        tsr_status status = tsr_config_load(&config, &source);
        if (status == TSR_OK) {
            check_accepted(&config, text);
            tsr_config_free(&config);
        } else {
            assert_int_equal(status, TSR_ECONFIG);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutations),
                                       cmocka_unit_test(test_overrides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
