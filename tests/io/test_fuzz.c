/*
 * Seeded mutations of right inputs: every reader answers TSR_OK or TSR_EDATA with a message, and
 * whatever it accepts can be read. A failing round names its seed and round.
 */
#include "support/scratch.h"

#include "base/clock.h"
#include "base/philox.h"
#include "io/checkpoint.h"
#include "io/peft.h"
#include "model/arch/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS_EACH  0.45 /* four targets in under two seconds */
#define LEAST_ROUNDS  200  /* also on a slow machine or under a sanitizer */
#define MOST_ROUNDS   20000
#define MOST_MUTATION 4
#define SEED          20240229u

/* Overwrites, swaps, removes or repeats bytes within the first `range`. Returns the new length;
 * `data` has room for one byte more per mutation. */
static uint64_t mutate(char *data, uint64_t bytes, uint64_t range, uint32_t target, uint32_t round)
{
    static const char tokens[] = "{}[]\",:0123456789-.e\\ \x80\xff\x00ntf";
    for (uint32_t i = 0; i <= round % MOST_MUTATION && bytes > 1; i++) {
        tsr_philox random = tsr_philox_at(SEED, (uint64_t)target << 32 | round, i);
        uint64_t reach = range < bytes ? range : bytes;
        uint64_t at = random.word[0] % reach;
        switch (random.word[1] % 6) {
        case 0: /* any byte */
            data[at] = (char)random.word[2];
            break;
        case 1: /* one bit */
            data[at] = (char)(data[at] ^ (1 << random.word[2] % 8));
            break;
        case 2:
            data[at] = tokens[random.word[2] % (sizeof tokens - 1)];
            break;
        case 3:
            data[at] = data[random.word[2] % reach];
            break;
        case 4:
            memmove(data + at, data + at + 1, bytes - at - 1);
            bytes--;
            break;
        default:
            memmove(data + at + 1, data + at, bytes - at);
            bytes++;
        }
    }
    return bytes;
}

static void check_answer(const char *target, uint32_t round, tsr_status status)
{
    if (status == TSR_OK || (status == TSR_EDATA && tsr_last_error()[0]))
        return;
    fail_msg("%s, seed %u, round %u: %s, message '%s'", target, SEED, round,
             tsr_status_name(status), tsr_last_error());
}

/* Runs `once` on mutations of `data` until time is up. */
static void fuzz(const char *target, uint32_t number, const char *data, uint64_t bytes,
                 uint64_t range, tsr_status (*once)(const char *data, uint64_t bytes))
{
    double start = tsr_now();
    uint32_t accepted = 0, round = 0;
    char *copy = malloc(bytes + MOST_MUTATION + 1);
    assert_non_null(copy);
    for (; round < MOST_ROUNDS && (round < LEAST_ROUNDS || tsr_now() - start < SECONDS_EACH);
         round++) {
        memcpy(copy, data, bytes);
        uint64_t length = mutate(copy, bytes, range, number, round);
        tsr_fail(TSR_EINTERNAL, "%s", ""); /* so that an old message cannot pass for a new one */
        tsr_status status = once(copy, length);
        check_answer(target, round, status);
        accepted += status == TSR_OK;
    }
    free(copy);
    /* Both answers must occur, or the mutations test nothing. */
    assert_true(accepted > 0 && accepted < round);
}

/* Opens a checkpoint of that one file and reads all of it. */
static tsr_status open_checkpoint(const char *data, uint64_t bytes)
{
    const char *path = scratch_path("model.safetensors");
    tsr_checkpoint *checkpoint;
    write_bytes(path, data, bytes);
    *strrchr(path, '/') = 0;
    TSR_TRY(tsr_checkpoint_open(&checkpoint, path));
    tsr_status worst = TSR_OK;
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(checkpoint, i);
        tsr_weight weight;
        char *all = malloc(tensor->bytes + 1);
        assert_non_null(all);
        assert_true(tensor->bytes <= bytes);
        assert_int_equal(tsr_safetensors_read(all, tensor, 0, tensor->bytes), TSR_OK);
        free(all);
        tsr_status status = tsr_checkpoint_weight(&weight, checkpoint, tensor->name);
        check_answer(tensor->name, 0, status);
        if (status < 0 && !strcmp(tensor->name, "m.weight"))
            worst = status;
    }
    tsr_checkpoint_close(checkpoint);
    return worst;
}

static void test_safetensors(void **state)
{
    (void)state;
    static const unsigned char zeros[1024];
    static const char stored[] =
        "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[6,32],"
        "\"nested_blocksize\":256,\"nested_dtype\":\"float32\",\"nested_offset\":0.25}";
    const tsr_tensor_source sources[] = {
        {"m.weight", TSR_U8, 2, {96, 1}, zeros},
        {"m.weight.absmax", TSR_U8, 1, {3}, zeros},
        {"m.weight.quant_map", TSR_F32, 1, {16}, zeros},
        {"m.weight.nested_absmax", TSR_F32, 1, {1}, zeros},
        {"m.weight.nested_quant_map", TSR_F32, 1, {256}, zeros},
        {"m.weight.quant_state.bitsandbytes__nf4", TSR_U8, 1, {sizeof stored - 1}, stored},
    };
    uint64_t bytes, header;
    assert_int_equal(tsr_safetensors_write(scratch_path("good"), sources, 6), TSR_OK);
    char *data = read_whole(&bytes, scratch_path("good"));
    memcpy(&header, data, sizeof header);
    fuzz("safetensors header", 1, data, bytes, 8 + header, open_checkpoint);
    /* The state is stored last, all data before it are zeros. */
    fuzz("quant_state", 2, data, bytes, bytes, open_checkpoint);
    free(data);
}

static tsr_status parse_model(const char *data, uint64_t bytes)
{
    tsr_model_config config;
    TSR_TRY(tsr_model_config_parse(&config, data, bytes, "config.json"));
    assert_true(config.kv_head_count > 0 && config.head_count % config.kv_head_count == 0);
    assert_true(config.head_dim > 0 && config.layer_count > 0 && config.vocab_size > 0);
    assert_true(config.eos_count >= 0 && config.eos_count <= TSR_MODEL_MAX_EOS);
    return TSR_OK;
}

static void test_model_config(void **state)
{
    (void)state;
    uint64_t bytes;
    char *data =
        read_whole(&bytes, TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama/config.json");
    fuzz("config.json", 3, data, bytes, bytes, parse_model);
    free(data);
}

static tsr_status parse_adapter(const char *data, uint64_t bytes)
{
    tsr_peft_config config;
    char *text;
    TSR_TRY(tsr_peft_config_parse(&config, data, bytes, "adapter_config.json"));
    assert_int_equal(tsr_peft_config_format(&text, &config), TSR_OK);
    free(text);
    tsr_peft_config_free(&config);
    return TSR_OK;
}

static void test_adapter_config(void **state)
{
    (void)state;
    uint64_t bytes;
    char *data = read_whole(&bytes, TSR_SOURCE_DIR
                            "/tests/golden/traces/init/dora_patterns/adapter_config.json");
    fuzz("adapter_config.json", 4, data, bytes, bytes, parse_adapter);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_safetensors, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_model_config),
        cmocka_unit_test(test_adapter_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
