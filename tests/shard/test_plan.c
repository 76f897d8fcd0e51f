/*
 * The plan: its order on small cases, its closure, what it refuses, and agreement between ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/random_plan.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static tsr_plan *compile(const random_model *model)
{
    tsr_plan *plan;
    if (tsr_plan_compile(&plan, &model->options) < 0)
        fail_msg("%s", tsr_last_error());
    return plan;
}

/* The order of a program: "G1 T1 NF0 F0 ..." */
static void order(char *out, size_t bytes, const tsr_program *program)
{
    static const char *const name[TSR_OP_COUNT] = {
        [TSR_OP_H2D] = "C",          [TSR_OP_GATHER] = "G",      [TSR_OP_GATHER_T] = "T",
        [TSR_OP_NORM] = "N",         [TSR_OP_COMPUTE] = "",      [TSR_OP_REDUCE] = "R",
        [TSR_OP_GRAD_NORM] = "norm", [TSR_OP_TALLY] = "tally",   [TSR_OP_CONTROL] = "control",
        [TSR_OP_OPTIM] = "optim",    [TSR_OP_WORD] = "word",     [TSR_OP_SAVE] = "S",
        [TSR_OP_LOAD] = "L",         [TSR_OP_LOAD_STATE] = "in", [TSR_OP_SAVE_STATE] = "out"};
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < program->op_count; i++) {
        const tsr_plan_op *op = &program->op[i];
        const char *phase = op->kind == TSR_OP_COMPUTE
                                ? (const char *[]){"F", "H", "A", "B"}[op->phase]
                                : name[op->kind];
        n += (size_t)snprintf(out + n, bytes - n,
                              op->unit >= 0 || op->chunk >= 0 ? "%s%s%d" : "%s%s", i ? " " : "",
                              phase, op->unit >= 0 ? op->unit : op->chunk);
    }
}

static void expect(const tsr_plan *plan, int *state, tsr_program_kind kind, const char *expected)
{
    char found[1024];
    const tsr_program *program = tsr_plan_program(plan, *state, kind);
    assert_non_null(program);
    order(found, sizeof found, program);
    assert_string_equal(found, expected);
    *state = program->exit;
}

/* The first GATHER_T of a unit waits for this part of the update; -1: for none, since an earlier one has. */
static void expect_part(const tsr_program *program, int unit, int part)
{
    const tsr_plan_op *op = program->op;
    while (op->kind != TSR_OP_GATHER_T || op->unit != unit)
        op++;
    int found = -1;
    for (int i = 0; i < op->wait_count; i++)
        if (op->wait[i].event >= TSR_EVENT_OPTIMIZED && op->wait[i].event < TSR_EVENT_WORDED)
            found = op->wait[i].event - TSR_EVENT_OPTIMIZED;
    assert_int_equal(found, part);
}

static void test_sharded(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 3, 2, 2, TSR_HOME_SHARDED);
    tsr_plan *plan = compile(&model);
    int state = 0;
    expect(plan, &state, TSR_PROGRAM_PROLOGUE, "G0 T0");
    /* Both turnarounds find their unit in a slot: H4 stays beside unit 2, F0 is there at the end. */
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST,
           "G1 T1 N0 F0 G2 T2 N1 F1 G3 N2 F2 G4 H3 G2 T2 H4 G1 T1 B2 R2 G0 T0 B1 R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_TRAIN_NEXT,
           "F0 G2 T2 F1 G3 F2 G4 H3 G2 T2 H4 G1 T1 B2 R2 G0 T0 B1 R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_STEP_END, "norm control word optim T0 T1");
    expect(plan, &state, TSR_PROGRAM_EVAL_FIRST, "N0 F0 G2 T2 N1 F1 G3 N2 F2 G4 H3 G0 T0 H4");
    expect(plan, &state, TSR_PROGRAM_EVAL_NEXT, "G1 T1 F0 G2 T2 F1 G3 F2 G4 H3 G0 T0 H4");
    expect(plan, &state, TSR_PROGRAM_EVAL_END, "tally control word");
    expect(plan, &state, TSR_PROGRAM_TRAIN_NEXT,
           "G1 T1 F0 G2 T2 F1 G3 F2 G4 H3 G2 T2 H4 G1 T1 B2 R2 G0 T0 B1 R1 B0 R0");
    tsr_plan_destroy(plan);
}

static void test_homes(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 2, 1, 2, TSR_HOME_RESIDENT);
    model.unit[0].home = TSR_HOME_HOST_SHARDED;
    model.unit[1].home = TSR_HOME_HOST_FULL;
    tsr_plan *plan = compile(&model);
    int state = 0;
    expect(plan, &state, TSR_PROGRAM_PROLOGUE, "C0 G0 T0");
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST, "C1 T1 N0 F0 N1 F1 H2 B1 R1 B0 R0");
    tsr_plan_destroy(plan);

    /* Everything in place: no slot, no gather. */
    plain_model_make(&model, 2, 1, 1, TSR_HOME_SHARDED);
    plan = compile(&model);
    state = 0;
    assert_int_equal(plan->slot_bytes, 0);
    assert_int_equal(plan->receive_bytes, 0);
    expect(plan, &state, TSR_PROGRAM_PROLOGUE, "");
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST, "N0 F0 N1 F1 H2 B1 R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_STEP_END, "norm control word optim");
    const tsr_program *next = tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST);
    assert_int_equal(next->op[0].wait_count, 1);
    assert_int_equal(next->op[0].wait[0].event, TSR_EVENT_OPTIMIZED);
    tsr_plan_destroy(plan);
}

/* Adapters that are kept are gathered once after OPTIM, one unit ahead, and reduced when two units (an
 * eighth) of the backward are left. */
static void test_kept(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 10, 1, 2, TSR_HOME_RESIDENT);
    for (int u = 0; u < 10; u++)
        model.unit[u].keeps_trainable = true;
    tsr_plan *plan = compile(&model);
    int state = 0;
    assert_int_equal(plan->slot_bytes, 0);
    assert_true(plan->reduces_late);
    assert_int_equal(plan->gradient_buffers, 10);
    expect(plan, &state, TSR_PROGRAM_PROLOGUE, "");
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST,
           "T0 T1 N0 F0 T2 N1 F1 T3 N2 F2 T4 N3 F3 T5 N4 F4 T6 N5 F5 T7 N6 F6 T8 N7 F7 T9 N8 F8 "
           "N9 F9 H10 B9 B8 B7 B6 B5 B4 B3 B2 R9 R8 R7 R6 R5 R4 R3 R2 B1 R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_TRAIN_NEXT,
           "F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 H10 B9 B8 B7 B6 B5 B4 B3 B2 R9 R8 R7 R6 R5 R4 R3 R2 B1 "
           "R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_STEP_END, "norm control word optim");
    expect(plan, &state, TSR_PROGRAM_EVAL_FIRST,
           "T0 T1 N0 F0 T2 N1 F1 T3 N2 F2 T4 N3 F3 T5 N4 F4 T6 N5 F5 T7 N6 F6 T8 N7 F7 T9 N8 F8 "
           "N9 F9 H10");
    tsr_plan_destroy(plan);

    /* One that is not kept needs its slot, and gradients two buffers. */
    model.unit[4].keeps_trainable = false;
    plan = compile(&model);
    assert_int_equal(plan->slot_bytes, model.unit[4].trainable.gathered_bytes);
    assert_false(plan->reduces_late);
    assert_int_equal(plan->gradient_buffers, TSR_GRADIENT_BUFFERS);
    tsr_plan_destroy(plan);
}

/* Of a wide unit's gradient an element has 8 bytes. Buffers hold the largest, which has fewer elements here. */
static void test_wide(void **unused)
{
    (void)unused;
    enum { GRANULE = TSR_GRANULE_ELEMENTS };
    random_model model;
    plain_model_make(&model, 2, 1, 2, TSR_HOME_SHARDED);
    model.options.replicas = 2;
    model.unit[0].trainable.segment[0].granule_count = 9;
    model.unit[1].wide = true;
    assert_int_equal(tsr_unit_lay_out(&model.unit[0], 2), TSR_OK);
    tsr_plan *plan = compile(&model);
    assert_int_equal(plan->gradient_bytes, 2 * 3 * GRANULE * 8);
    assert_int_equal(plan->receive_bytes, 3 * GRANULE * 8);
    assert_int_equal(plan->partial_bytes, 5 * GRANULE * 8);
    int state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
    const tsr_program *train = tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST);
    const uint64_t bytes[] = {2 * 5 * GRANULE * 4, 2 * 3 * GRANULE * 8};
    for (int i = 0; i < train->op_count; i++)
        if (train->op[i].kind == TSR_OP_REDUCE)
            assert_int_equal(train->op[i].bytes, bytes[train->op[i].unit]);
    tsr_plan_destroy(plan);
    model.options.mixed = true;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINTERNAL);
    model.options.mixed = model.options.train = false;
    plan = compile(&model);
    assert_int_equal(plan->gradient_bytes + plan->receive_bytes, 0);
    assert_false(plan->wide);
    tsr_plan_destroy(plan);
}

/* The device holds two layers' activations; the last two layers' stay. Two chunks of the optimizer's
 * state are on their way before the backward begins. */
static void test_offload(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 4, 1, 2, TSR_HOME_HOST_SHARDED);
    for (int u = 0; u < 4; u++)
        model.saved_bytes[u] = 1000 + (uint64_t)u;
    model.options.chunk_elements = 4 * TSR_GRANULE_ELEMENTS; /* of 4 x 3 granules */
    model.options.state_buffers = 2;
    tsr_plan *plan = compile(&model);
    int state = 0;
    assert_int_equal(plan->saved_bytes, 1003);
    assert_int_equal(plan->chunk_count, 3);
    assert_int_equal(plan->state_bytes, 3 * 4 * TSR_GRANULE_ELEMENTS * 4);
    expect(plan, &state, TSR_PROGRAM_PROLOGUE, "C0 G0 T0");
    expect(
        plan, &state, TSR_PROGRAM_TRAIN_FIRST,
        "C1 G1 T1 N0 F0 S0 C2 G2 T2 N1 F1 S1 C3 G3 T3 N2 F2 C4 G4 N3 F3 H4 in0 in1 C2 G2 T2 B3 R3 "
        "C1 G1 T1 L1 B2 R2 C0 G0 T0 L0 B1 R1 B0 R0");
    int step_end = state;
    expect(plan, &state, TSR_PROGRAM_STEP_END,
           "norm control word optim0 out0 in2 optim1 out1 optim2 out2 T0 T1");
    /* A gather waits for the part of the update that its unit is in: of four times three granules in chunks of four. */
    expect_part(tsr_plan_program(plan, step_end, TSR_PROGRAM_STEP_END), 0, 0);
    expect_part(tsr_plan_program(plan, step_end, TSR_PROGRAM_STEP_END), 1, 1);
    expect_part(tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST), 2, 2);
    expect_part(tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST), 3, -1);
    expect(plan, &state, TSR_PROGRAM_EVAL_FIRST,
           "N0 F0 C2 G2 T2 N1 F1 C3 G3 T3 N2 F2 C4 G4 N3 F3 C0 G0 T0 H4");
    tsr_plan_destroy(plan);

    /* What no backward reads is not saved; a chunk is made of granules. */
    model.unit[0].trainable.segment_count = 0;
    assert_int_equal(tsr_unit_lay_out(&model.unit[0], 2), TSR_OK);
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    model.saved_bytes[0] = 0;
    model.options.chunk_elements = 100;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
}

/* Where some layers save, they take turns in the regions, and what one saved comes back while the next of them is in its
 * backward: not sooner, or it would delay the frozen parts that are wanted in between. */
static void test_offload_some(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 6, 1, 1, TSR_HOME_RESIDENT);
    model.saved_bytes[0] = model.saved_bytes[1] = model.saved_bytes[3] = model.saved_bytes[5] = 8;
    tsr_plan *plan = compile(&model);
    int state = 0;
    expect(plan, &state, TSR_PROGRAM_PROLOGUE, "");
    expect(
        plan, &state, TSR_PROGRAM_TRAIN_FIRST,
        "N0 F0 S0 N1 F1 S1 N2 F2 N3 F3 N4 F4 N5 F5 H6 B5 R5 B4 R4 L1 B3 R3 B2 R2 L0 B1 R1 B0 R0");
    const tsr_program *program = tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_NEXT);
    for (int i = 0; i < program->op_count; i++)
        if (program->op[i].kind == TSR_OP_LOAD) {
            int region = program->op[i].region;
            assert_int_equal(region, program->op[i].layer); /* of layers 0, 3 and 1, 5 */
            assert_int_equal(program->op[i].wait_count, 1);
            assert_int_equal(program->op[i].wait[0].event, TSR_EVENT_USED + region);
            assert_int_equal(program->op[i].wait[0].count, 3); /* F, F and B above it */
        }
    tsr_plan_destroy(plan);
}

static bool is_of(int event, int first, int count)
{
    return event >= first && event < first + count;
}

/* An op on the way of the optimizer's state waits for what it moves, and for its buffer, and for nothing else. */
static void expect_state_waits(const tsr_plan *plan, const tsr_plan_op *op)
{
    int buffer = op->chunk < 0 ? -1 : op->chunk % plan->state_buffers;
    bool in = op->kind == TSR_OP_LOAD_STATE, out = op->kind == TSR_OP_SAVE_STATE;
    assert_int_equal(op->stream == TSR_STREAM_STATE_IN, in);
    assert_int_equal(op->stream == TSR_STREAM_STATE_OUT, out);
    for (int i = 0; i < op->wait_count; i++) {
        int event = op->wait[i].event;
        if (in)
            assert_int_equal(event, TSR_EVENT_STORED + buffer);
        else if (out)
            assert_int_equal(event, TSR_EVENT_UPDATED + buffer);
        else if (op->kind == TSR_OP_OPTIM)
            assert_true(event == TSR_EVENT_CONTROLLED || event == TSR_EVENT_FETCHED + buffer);
        else
            assert_false(is_of(event, TSR_EVENT_FETCHED, 3 * TSR_STATE_BUFFERS));
    }
}

/* Optimizer state on its way: both directions have streams of their own, on which nothing else waits behind it; the
 * first chunks are under way before a backward begins, also where that is not the first micro-batch after the
 * update; and of the next forward each unit waits for its own part alone. */
static void test_state_travels(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 4, 1, 1, TSR_HOME_HOST_FULL); /* each unit has two chunks */
    model.options.chunk_elements = 3 * TSR_GRANULE_ELEMENTS;
    model.options.state_buffers = 3;
    for (int u = 0; u < 4; u++)
        model.saved_bytes[u] = 1000;
    tsr_plan *plan = compile(&model);
    assert_int_equal(plan->chunk_count, 8);
    assert_int_equal(plan->state_buffers, 3);
    for (int i = 0; i < plan->program_count; i++)
        for (int k = 0; k < plan->program[i].op_count; k++)
            expect_state_waits(plan, &plan->program[i].op[k]);
    int state = 0;
    expect(plan, &state, TSR_PROGRAM_PROLOGUE, "C0");
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST,
           "C1 N0 F0 S0 C2 N1 F1 S1 C3 N2 F2 C4 N3 F3 H4 in0 in1 in2 C2 B3 R3 C1 L1 B2 R2 C0 L0 "
           "B1 R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_TRAIN_NEXT,
           "F0 S0 C2 F1 S1 C3 F2 C4 F3 H4 C2 B3 R3 C1 L1 B2 R2 C0 L0 B1 R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_STEP_END,
           "norm control word optim0 out0 in3 optim1 out1 in4 optim2 out2 in5 optim3 out3 in6 "
           "optim4 out4 in7 optim5 out5 optim6 out6 optim7 out7");
    int updated = state, uses = 0;
    const tsr_program *next = tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST);
    for (int k = 0; k < next->op_count; k++) {
        const tsr_plan_op *op = &next->op[k];
        for (int i = 0; i < op->wait_count; i++)
            if (is_of(op->wait[i].event, TSR_EVENT_OPTIMIZED, TSR_OPTIM_PARTS)) {
                assert_int_equal(op->wait[i].event - TSR_EVENT_OPTIMIZED, 2 * op->unit + 1);
                uses++;
            }
    }
    assert_int_equal(uses, 4);
    expect(plan, &updated, TSR_PROGRAM_EVAL_FIRST, "N0 F0 C2 N1 F1 C3 N2 F2 C4 N3 F3 C0 H4");
    expect(plan, &updated, TSR_PROGRAM_EVAL_END, "tally control word");
    expect(plan, &updated, TSR_PROGRAM_TRAIN_NEXT,
           "C1 F0 S0 C2 F1 S1 C3 F2 C4 F3 H4 in0 in1 in2 C2 B3 R3 C1 L1 B2 R2 C0 L0 B1 R1 B0 R0");
    tsr_plan_destroy(plan);
    model.options.state_buffers = TSR_STATE_BUFFERS + 1;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
}

/* A backward ends at the lowest unit that trains. */
static void test_lowest_backward(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 4, 1, 1, TSR_HOME_SHARDED);
    model.unit[0].trainable.segment_count = model.unit[2].trainable.segment_count = 0;
    model.unit[0].has_norm = model.unit[2].has_norm = false;
    for (int u = 0; u < 4; u++)
        assert_int_equal(tsr_unit_lay_out(&model.unit[u], 1), TSR_OK);
    tsr_plan *plan = compile(&model);
    int state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST, "F0 N1 F1 F2 N3 F3 H4 B3 R3 B2 B1 R1");
    tsr_plan_destroy(plan);
}

/* Where every second layer keeps its input, the forward of a span runs again but for its last layer. */
static void test_stride(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 5, 1, 1, TSR_HOME_RESIDENT);
    model.options.stride = 2;
    tsr_plan *plan = compile(&model);
    int state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST,
           "N0 F0 N1 F1 N2 F2 N3 F3 N4 F4 H5 B4 R4 A2 B3 R3 B2 R2 A0 B1 R1 B0 R0");
    expect(plan, &state, TSR_PROGRAM_STEP_END, "norm control word optim");
    expect(plan, &state, TSR_PROGRAM_EVAL_FIRST, "N0 F0 N1 F1 N2 F2 N3 F3 N4 F4 H5");
    tsr_plan_destroy(plan);
    /* The top span's inputs are there; what is gathered for a forward again stays for a backward that is next. */
    plain_model_make(&model, 4, 1, 2, TSR_HOME_SHARDED);
    model.options.stride = 3;
    plan = compile(&model);
    state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST,
           "G1 T1 N0 F0 G2 T2 N1 F1 G3 T3 N2 F2 G4 N3 F3 H4 G0 T0 B3 R3 "
           "G1 T1 A0 G2 T2 A1 B2 R2 G0 T0 B1 R1 B0 R0");
    tsr_plan_destroy(plan);
    model.saved_bytes[1] = 8;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    model.saved_bytes[1] = 0;
    model.options.stride = 5;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
}

/* More slots look further ahead; a plan needs few states whatever its size. */
/* Two layers of two units each: what a backward makes again uses the lower one first, and a gradient is reduced after
 * the use that adds to it. */
static void test_fine_units(void **unused)
{
    (void)unused;
    static const tsr_layer_use uses[2][5] = {{{0}, {1}, {0}, {1, true}, {0, true}},
                                             {{2}, {3}, {2}, {3, true}, {2, true}}};
    const tsr_layer_uses layers[2] = {{uses[0], uses[0] + 2, 2, 3}, {uses[1], uses[1] + 2, 2, 3}};
    random_model model;
    plain_model_make(&model, 4, 1, 2, TSR_HOME_SHARDED);
    model.options.layer_count = 2;
    model.options.head_unit = 4;
    model.options.layers = layers;
    tsr_plan *plan = compile(&model);
    int state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST,
           "G1 T1 N0 F0 G2 T2 N1 F1 G3 T3 N2 F2 G4 N3 F3 G2 T2 H4 G3 T3 B2 B3 R3 G0 T0 B2 R2 "
           "G1 T1 B0 B1 R1 B0 R0");
    char label[TSR_OP_LABEL_BYTES];
    const tsr_program *program = tsr_plan_program(
        plan, tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit, TSR_PROGRAM_TRAIN_FIRST);
    tsr_op_label(label, plan, &program->op[program->op_count - 2]);
    assert_string_equal(label, "COMPUTE B layer 0 unit 0");
    tsr_op_label(label, plan, &program->op[0]);
    assert_string_equal(label, "GATHER unit 1");
    tsr_plan_destroy(plan);

    /* Every gradient is of some use, and the last one of the last. */
    model.options.layers =
        (const tsr_layer_uses[]){{uses[0], uses[0] + 2, 2, 2}, {uses[1], uses[1] + 2, 2, 3}};
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "unit 0 has a trainable part, but no use trains it"));
}

/* Four layers in two units: one gather for two forwards, one reduction for two backwards; the lowest layer has
 * none. */
static void test_coarse_units(void **unused)
{
    (void)unused;
    static const tsr_layer_use first = {0, true}, second = {1, true};
    const tsr_layer_uses layers[4] = {{&first, NULL, 1, 0},
                                      {&first, &first, 1, 1},
                                      {&second, &second, 1, 1},
                                      {&second, &second, 1, 1}};
    random_model model;
    plain_model_make(&model, 2, 2, 2, TSR_HOME_SHARDED);
    model.options.layer_count = 4;
    model.options.head_unit = 2;
    model.options.layers = layers;
    tsr_plan *plan = compile(&model);
    int state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
    assert_int_equal(plan->lowest_backward, 1);
    expect(plan, &state, TSR_PROGRAM_TRAIN_FIRST,
           "G1 T1 N0 F0 N0 F0 G2 N1 F1 N1 F1 G3 H2 G1 T1 H3 G0 T0 B1 B1 R1 B0 R0");
    tsr_plan_destroy(plan);
}

static void test_slots(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 12, 4, 4, TSR_HOME_SHARDED);
    for (int slots = 2; slots <= 6; slots++) {
        model.options.slots = slots;
        tsr_plan *plan = compile(&model);
        assert_in_range(plan->state_count, 3, 200);
        int state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
        const tsr_program *program = tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST);
        int before = 0;
        while (program->op[before].kind != TSR_OP_NORM)
            before++;
        assert_int_equal(before, 2 * (slots - 1));
        tsr_plan_destroy(plan);
    }
}

static void test_order_of_programs(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 2, 1, 2, TSR_HOME_SHARDED);
    tsr_plan *plan = compile(&model);
    assert_null(tsr_plan_program(plan, 0, TSR_PROGRAM_TRAIN_FIRST));
    int state = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE)->exit;
    assert_null(tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_NEXT));
    assert_null(tsr_plan_program(plan, state, TSR_PROGRAM_STEP_END));
    state = tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST)->exit;
    assert_null(tsr_plan_program(plan, state, TSR_PROGRAM_EVAL_NEXT));
    assert_null(tsr_plan_program(plan, state, TSR_PROGRAM_TRAIN_FIRST));
    tsr_plan_destroy(plan);
}

static void test_refused(void **unused)
{
    (void)unused;
    random_model model;
    tsr_plan *plan;
    plain_model_make(&model, 2, 1, 2, TSR_HOME_SHARDED);
    model.options.slots = 1;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    model.options.slots = TSR_SLOTS_MAX + 1;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    model.options.slots = 0;
    model.options.layer_count = 3;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    model.options.layer_count = 1; /* unit 1 trains, and would be of the head */
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    model.options.layer_count = 2;
    for (int u = 0; u < 2; u++) {
        model.unit[u].trainable.segment_count = 0;
        assert_int_equal(tsr_unit_lay_out(&model.unit[u], 2), TSR_OK);
    }
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_EINVAL);
    model.options.train = false;
    assert_int_equal(tsr_plan_compile(&plan, &model.options), TSR_OK);
    tsr_plan_destroy(plan);
}

static void test_print(void **unused)
{
    (void)unused;
    random_model model;
    plain_model_make(&model, 2, 1, 2, TSR_HOME_HOST_SHARDED);
    tsr_plan *plan = compile(&model);
    tsr_text text = {0};
    tsr_plan_print(&text, plan);
    assert_non_null(strstr(tsr_text_string(&text),
                           "  comm    GATHER unit 0 slot 0 stage 0 3072 bytes over shards; waits "
                           "freed[0] +0, filled[0] +1; records drained[0]\n"));
    assert_non_null(strstr(tsr_text_string(&text), "optim   OPTIM; waits controlled +1"));
    tsr_text_free(&text);
    tsr_plan_destroy(plan);
}

/* ---- agreement ---- */

typedef struct {
    pthread_t thread;
    tsr_comm *comm;
    const random_model *model;
    tsr_status status;
    char message[512];
} checking_rank;

static void *check_rank(void *argument)
{
    checking_rank *r = argument;
    tsr_device *device;
    tsr_streams streams;
    tsr_plan *plan;
    if (tsr_device_create_cpu(&device,
                              &(tsr_device_options){.thread_count = 1, .no_pinning = true}) < 0 ||
        tsr_streams_create(&streams, device, NULL) < 0 ||
        tsr_plan_compile(&plan, &r->model->options) < 0)
        abort();
    r->status = tsr_plan_check_ranks(plan, r->comm, streams.stream[TSR_STREAM_COMM]);
    snprintf(r->message, sizeof r->message, "%.500s", r->status < 0 ? tsr_last_error() : "");
    tsr_plan_destroy(plan);
    tsr_comm_destroy(r->comm);
    tsr_streams_destroy(&streams);
    tsr_device_destroy(device);
    return NULL;
}

/* Rank 1 of three has another model. All ranks say the same. */
static void expect_difference(const random_model *usual, const random_model *other,
                              const char *expected)
{
    checking_rank rank[3];
    tsr_comm *comm[3];
    assert_int_equal(tsr_comm_create_threads(comm, 3, 30), TSR_OK);
    for (int i = 0; i < 3; i++) {
        rank[i] = (checking_rank){.comm = comm[i], .model = i == 1 ? other : usual};
        assert_int_equal(pthread_create(&rank[i].thread, NULL, check_rank, &rank[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(rank[i].thread, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rank[i].status, expected ? TSR_ERANKS : TSR_OK);
        if (expected && (!strstr(rank[i].message, expected) || !strstr(rank[i].message, "rank 1")))
            fail_msg("rank %d says '%s', not '%s'", i, rank[i].message, expected);
    }
}

static void test_ranks_agree(void **unused)
{
    (void)unused;
    random_model usual, other;
    plain_model_make(&usual, 3, 1, 3, TSR_HOME_SHARDED);
    plain_model_make(&other, 3, 1, 3, TSR_HOME_SHARDED);
    expect_difference(&usual, &other, NULL);
    other.options.slots = 3;
    expect_difference(&usual, &other, "op 2 of TRAIN_FIRST");
    other.options.slots = 2;
    other.segment[1][0][0].granule_count = 9;
    assert_int_equal(tsr_unit_lay_out(&other.unit[1], 3), TSR_OK);
    expect_difference(&usual, &other, "unit 1, frozen tensor w");
    plain_model_make(&other, 3, 1, 3, TSR_HOME_SHARDED);
    other.options.chunk_elements = TSR_GRANULE_ELEMENTS;
    expect_difference(&usual, &other, "of TRAIN_FIRST"); /* which fetches the first chunks */
    other.options.chunk_elements = 0;
    for (int u = 0; u < 3; u++)
        other.saved_bytes[u] = 100;
    expect_difference(&usual, &other, "of TRAIN_FIRST");
    plain_model_make(&other, 3, 1, 3, TSR_HOME_SHARDED);
    other.unit[1].wide = true;
    expect_difference(&usual, &other, "unit 1, frozen tensor w"); /* the first of the unit */
    plain_model_make(&other, 4, 1, 3, TSR_HOME_SHARDED);
    expect_difference(&usual, &other, "unit 3");
}

/* Seconds of the processor to compile a plan of so many layers: for each home, on one rank and on three, kept and not,
 * with activations that travel and without. */
static double seconds_of(int layers)
{
    tsr_unit *units = calloc((size_t)layers + 1, sizeof *units);
    tsr_segment *segments = calloc(2 * (size_t)layers + 2, sizeof *segments);
    uint64_t *saved = calloc((size_t)layers, sizeof *saved);
    assert_true(units && segments && saved);
    for (int l = 0; l < layers; l++)
        saved[l] = 8;
    clock_t begin = clock();
    for (int way = 0; way < 24; way++) {
        int ranks = way % 2 ? 3 : 1;
        for (int u = 0; u <= layers; u++) {
            tsr_segment *s = &segments[2 * u];
            s[0] = (tsr_segment){
                .name = "w", .dtype = TSR_U8, .granule_bytes = 512, .granule_count = 6};
            s[1] = (tsr_segment){.name = "a",
                                 .dtype = TSR_F32,
                                 .granule_bytes = 4 * TSR_GRANULE_ELEMENTS,
                                 .granule_count = 6};
            units[u] = (tsr_unit){.id = u,
                                  .home = (tsr_home)(way / 2 % 4),
                                  .has_norm = u < layers,
                                  .keeps_trainable = way >= 16 && u < layers,
                                  .frozen = {.segment = s, .segment_count = 1},
                                  .trainable = {.segment = s + 1, .segment_count = u < layers}};
            assert_int_equal(tsr_unit_lay_out(&units[u], ranks), TSR_OK);
        }
        tsr_plan_options options = {.units = units,
                                    .unit_count = layers + 1,
                                    .layer_count = layers,
                                    .ranks = ranks,
                                    .saved_bytes = way >= 8 ? saved : NULL,
                                    .train = true};
        tsr_plan *plan;
        assert_int_equal(tsr_plan_compile(&plan, &options), TSR_OK);
        tsr_plan_destroy(plan);
    }
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    free(units);
    free(segments);
    free(saved);
    return seconds;
}

/* Eight times the layers take eight times as long. */
static void test_many_layers(void **unused)
{
    (void)unused;
    double few = seconds_of(100), many = seconds_of(800);
    if (many > 0.2 + 20 * few)
        fail_msg("100 layers take %.3f s, 800 take %.3f s", few, many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sharded),
                                       cmocka_unit_test(test_many_layers),
                                       cmocka_unit_test(test_homes),
                                       cmocka_unit_test(test_kept),
                                       cmocka_unit_test(test_wide),
                                       cmocka_unit_test(test_offload),
                                       cmocka_unit_test(test_offload_some),
                                       cmocka_unit_test(test_state_travels),
                                       cmocka_unit_test(test_lowest_backward),
                                       cmocka_unit_test(test_stride),
                                       cmocka_unit_test(test_fine_units),
                                       cmocka_unit_test(test_coarse_units),
                                       cmocka_unit_test(test_slots),
                                       cmocka_unit_test(test_order_of_programs),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_print),
                                       cmocka_unit_test(test_ranks_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
