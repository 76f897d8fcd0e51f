/*
 * random_plan.h: units, plans and sequences of programs from a seed.
 */
#ifndef TEST_SHARD_RANDOM_PLAN_H
#define TEST_SHARD_RANDOM_PLAN_H

#include "shard/plan.h"

#define MAX_UNITS    16
#define MAX_LAYERS   40
#define MAX_SEGMENTS 4

/* A small counter-based sequence. */
typedef struct {
    uint64_t key, next;
} random_source;

uint64_t random_below(random_source *random, uint64_t bound);

typedef struct {
    tsr_unit unit[MAX_UNITS];
    tsr_segment segment[MAX_UNITS][2][MAX_SEGMENTS];
    char name[MAX_UNITS][2][MAX_SEGMENTS][40];
    uint64_t saved_bytes[MAX_LAYERS];
    tsr_layer_uses layer[MAX_LAYERS];
    tsr_layer_use use[MAX_LAYERS][2][2 * MAX_UNITS];
    tsr_plan_options options; /* points into this */
} random_model;

typedef struct {
    int max_layers, max_chunks, max_ranks, max_replicas;
    int home;    /* of every unit, -1: random */
    bool groups; /* layers of several units, and units of several layers */
} random_limits;

#define MAX_SAVED_BYTES 400

/* *out must stay where it is: the options point into it. Ranks, slots, ... are in options too. Two
 * in three plans save activations on the host, of all layers or of some, and as many have chunks of
 * optimizer state. */
void random_model_make(random_model *out, random_source *random, const random_limits *limits);

/* Norms and saved activations wherever they can be, three chunks of optimizer state: with three layers
 * and host shards a plan that has every kind of op. */
void random_model_make_full(random_model *model);

/* `layers` layers, each with a norm and one frozen and one trainable segment, and `chunks` chunks of
 * the head. */
void plain_model_make(random_model *model, int layers, int chunks, int ranks, tsr_home home);

/* The same units on other ranks, or without training. */
void random_model_set(random_model *model, int ranks, int replicas, bool train);

/* A walk through the programs: kinds[0] is the prologue. Follows the plan's own order. Returns the
 * number of programs, at most `count`; ends after a STEP_END or EVAL_END when it can. */
int random_walk(uint8_t *kinds, int count, const tsr_plan *plan, random_source *random);

/* The same, by one of the shortest ways to `program`, through it and on. */
int random_walk_through(uint8_t *kinds, int count, const tsr_plan *plan, int program,
                        random_source *random);

#endif
