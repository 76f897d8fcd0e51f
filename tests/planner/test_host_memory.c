/*
 * Host memory beside a GPU: what host_memory_budget and the machine allow bounds the plans, and what does not fit is
 * refused with a figure that does.
 */
#include "planner/parts.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHAPES TSR_SOURCE_DIR "/examples/shapes/"
#define GIB    (1ull << 30)
#define MIB    (1ull << 20)

static uint64_t machine_shows;
static int rank;

typedef struct {
    tsr_inputs inputs;
    tsr_decision decision;
    tsr_status status;
} planned;

/* On a device whose machine has `host` bytes for each rank; 0: not known. */
static planned *plan(const char *shape, int length, const char *more, uint64_t host, int ranks)
{
    char text[1024];
    snprintf(text, sizeof text,
             "model_name_or_path: " SHAPES "%s\noutput_dir: out\nbackend: cpu\nmax_length: %d\n"
             "per_device_train_batch_size: 1\n%s",
             shape, length, more);
    const tsr_config_source source = {.text = text, .use = TSR_CONFIG_PLAN};
    const tsr_topology_view view = {ranks, rank, ranks};
    const tsr_room room = {.free = TSR_BUDGET_UNKNOWN, .host = host, .host_shown = machine_shows};
    tsr_speeds speeds;
    planned *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->inputs.compute = TSR_BF16;
    if (tsr_inputs_read_config(&p->inputs, &source) < 0 ||
        tsr_inputs_read_model(&p->inputs, true, true) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_inputs_assume_data(&p->inputs);
    tsr_speeds_default(&speeds, true, TSR_BF16);
    p->status = tsr_decide(&p->decision, &p->inputs, &view, true, &room, &speeds);
    return p;
}

static void release(planned *p)
{
    if (p->status == TSR_OK)
        tsr_decision_free(&p->decision);
    tsr_inputs_close(&p->inputs);
    free(p);
}

/* The figure of "host_memory_budget: 1234MiB" in a refusal. */
static uint64_t suggested(void)
{
    uint64_t mib = 0;
    const char *last = NULL;
    for (const char *at = tsr_last_error(); (at = strstr(at, "host_memory_budget: ")); at++)
        last = at;
    if (!last || sscanf(last, "host_memory_budget: %" SCNu64 "MiB", &mib) != 1)
        fail_msg("no figure in: %s", tsr_last_error());
    return mib;
}

static uint64_t refused(const char *shape, int length, const char *more, uint64_t host)
{
    planned *p = plan(shape, length, more, host, 1);
    assert_int_equal(p->status, TSR_ECONFIG);
    if (!strstr(tsr_last_error(), "host_memory_budget allows") ||
        !strstr(tsr_last_error(), "of host memory: "))
        fail_msg("%s", tsr_last_error());
    uint64_t mib = suggested();
    release(p);
    return mib;
}

static planned *accepted(const char *shape, int length, const char *more, uint64_t host)
{
    planned *p = plan(shape, length, more, host, 1);
    if (p->status < 0)
        fail_msg("%" PRIu64 " MiB: %s", host / MIB, tsr_last_error());
    if (host)
        assert_in_range(tsr_decide_host_bytes(&p->decision), 1, host);
    assert_true(tsr_decide_is_within(&p->decision));
    return p;
}

/* Layers' values of a long row go to host memory, if it holds them; of fewer layers, if it does not hold all. */
static void test_activations(void **state)
{
    (void)state;
    static const char budget[] = "memory_budget: 14GiB\n";
    planned *p = accepted("llama3.1-8b", 108000, budget, 0);
    assert_true(p->decision.offloaded_count > 0);
    release(p);
    uint64_t mib = refused("llama3.1-8b", 108000, budget, 8 * GIB);
    assert_non_null(strstr(tsr_last_error(), "activations kept for the backward"));
    assert_non_null(strstr(tsr_last_error(), "micro-batches of at most "));
    p = accepted("llama3.1-8b", 108000, budget, mib * MIB);
    assert_in_range(p->decision.offloaded_count, 1, 31);
    release(p);
    assert_true(refused("llama3.1-8b", 108000, budget, (mib - 2) * MIB) <= mib);
}

/* Units of a base in host memory that the host does not hold stay on the device, as far as that has room. */
static void test_base(void **state)
{
    (void)state;
    static const char budget[] = "memory_budget: 22GiB\n";
    uint64_t mib = refused("llama3-70b", 2048, budget, 20 * GIB);
    assert_non_null(strstr(tsr_last_error(), "base weights"));
    planned *p = accepted("llama3-70b", 2048, budget, mib * MIB);
    assert_true(p->decision.resident_count > 0);
    release(p);
    assert_int_equal(refused("llama3-70b", 2048, budget, (mib - 1) * MIB), mib);
}

/* What a machine shows is kept to where it can be, and not believed where nothing fits. */
static void test_shown(void **state)
{
    (void)state;
    static const char budget[] = "memory_budget: 22GiB\n";
    static const uint64_t shown[] = {30 * GIB, 20 * GIB};
    planned *free = accepted("llama3-70b", 2048, budget, 0);
    for (int i = 0; i < 2; i++) {
        machine_shows = shown[i];
        planned *p = accepted("llama3-70b", 2048, budget, 0);
        machine_shows = 0;
        uint64_t needed = tsr_decide_host_bytes(&p->decision);
        assert_true(i ? needed > shown[i] : needed <= shown[i]);
        assert_int_equal(p->decision.plan->hash == free->decision.plan->hash,
                         needed == tsr_decide_host_bytes(&free->decision));
        release(p);
    }
    release(free);
}

/* A limit that is not reached changes nothing. */
static void test_plenty(void **state)
{
    (void)state;
    static const char budget[] = "memory_budget: 24GiB\n";
    planned *alone = accepted("llama3.1-8b", 32768, budget, 0);
    planned *bounded = accepted("llama3.1-8b", 32768, budget, 900 * GIB);
    assert_int_equal(alone->decision.plan->hash, bounded->decision.plan->hash);
    release(alone);
    release(bounded);
}

/* What a node has once counts in parts. */
static void test_ranks(void **state)
{
    (void)state;
    planned *one = plan("llama3.1-8b", 2048, "memory_budget: 24GiB\n", 0, 1);
    planned *two = plan("llama3.1-8b", 2048, "memory_budget: 24GiB\n", 0, 2);
    assert_int_equal(one->status, TSR_OK);
    assert_int_equal(two->status, TSR_OK);
    uint64_t node = two->decision.memory.total[TSR_PLACE_NODE];
    assert_true(node > 0);
    assert_int_equal(tsr_decide_host_bytes(&two->decision),
                     two->decision.memory.total[TSR_PLACE_HOST] + node / 2);
    assert_int_equal(tsr_decide_host_bytes(&one->decision),
                     one->decision.memory.total[TSR_PLACE_HOST] +
                         one->decision.memory.total[TSR_PLACE_NODE]);
    release(one);
    release(two);
}

/* Rank 0, which writes the adapter, has less host memory for what moves. All choose what suits it. */
static void test_ranks_agree(void **state)
{
    (void)state;
    for (uint64_t gib = 6; gib <= 10; gib += 2) {
        planned *of[2];
        for (rank = 0; rank < 2; rank++) {
            of[rank] = plan("llama3-8b", 8192, "memory_budget: 9GiB\n", gib * GIB, 2);
            assert_int_equal(of[rank]->status, TSR_OK);
        }
        rank = 0;
        uint64_t host[] = {tsr_decide_host_bytes(&of[0]->decision),
                           tsr_decide_host_bytes(&of[1]->decision)};
        assert_true(host[1] < host[0] && host[0] <= gib * GIB);
        assert_true(of[0]->decision.offloaded_count > 0);
        assert_int_equal(of[0]->decision.plan->hash, of[1]->decision.plan->hash);
        release(of[0]);
        release(of[1]);
    }
}

/* On the CPU all memory is the device's. */
static void test_cpu(void **state)
{
    (void)state;
    planned *p = plan("llama3.1-8b", 2048, "host_memory_budget: 2GiB\n", 0, 1);
    assert_int_equal(p->status, TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "host_memory_budget is for jobs on a GPU"));
    release(p);
}

/* The key comes before what the machine has, and what other adapters own is taken off. */
static void test_key(void **state)
{
    (void)state;
    uint64_t budget;
    tsr_inputs inputs = {.cuda = true};
    tsr_room room = {.host = 64 * GIB, .others_host = GIB};
    assert_int_equal(tsr_room_host(&budget, &inputs, &room), TSR_OK);
    assert_int_equal(budget, 63 * GIB);
    inputs.config.host_memory_budget = 100 * GIB;
    assert_int_equal(tsr_room_host(&budget, &inputs, &room), TSR_OK);
    assert_int_equal(budget, 99 * GIB);
    inputs.config.host_memory_budget = GIB / 2;
    assert_int_equal(tsr_room_host(&budget, &inputs, &room), TSR_OK);
    assert_int_equal(budget, 0);
    inputs.config.host_memory_budget = 0;
    room.host_shown = 32 * GIB;
    assert_int_equal(tsr_room_host(&budget, &inputs, &room), TSR_OK);
    assert_int_equal(budget, 31 * GIB);
    room.host = room.host_shown = 0;
    assert_int_equal(tsr_room_host(&budget, &inputs, &room), TSR_OK);
    assert_int_equal(budget, TSR_BUDGET_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations), cmocka_unit_test(test_base),
        cmocka_unit_test(test_plenty),      cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_ranks_agree), cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_shown),       cmocka_unit_test(test_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
