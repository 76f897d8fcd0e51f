/*
 * tests/model/family_runs.h: what the tests of a golden family share (docs/testing.md, "Golden families"): its files, its
 * rows, evaluations of them.
 */
#ifndef TSR_TESTS_MODEL_FAMILY_RUNS_H
#define TSR_TESTS_MODEL_FAMILY_RUNS_H

#include "support/golden.h"
#include "support/head.h"
#include "support/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>

#define MOST_TOKENS 128
#define ROWS        2

/* Golden logits and hidden states are of tokens 6, 13, 20, .. */
#define FIRST_TOKEN  6
#define TOKEN_STRIDE 7

extern const char *family, *backend; /* "cpu" or "cuda" */

typedef struct {
    int32_t id[MOST_TOKENS], label[MOST_TOKENS], length;
} row;

/* A path below the family's directory; the last four stay. */
const char *golden(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool golden_has(const char *name);
json_t *load(const char *path);

int setup(void **state);
int teardown(void **state);

bool on_gpu(void);

/* The rows of forward.jsonl. */
void read_rows(row rows[ROWS]);

/* How many tokens of a row have golden logits and hidden states. */
uint64_t golden_tokens(int32_t length);

/* An evaluation of the data in rows.jsonl, on the base "plain" or "nf4". */
job_spec evaluation(const char *base, const char *model);

/* The evaluation of `count` rows as documents of one row. */
test_evaluated evaluate(const row *rows, int count, const char *base, const char *model);

/* rows.jsonl becomes one row, each of whose tokens is followed by a label. */
void write_whole(const row *one);

/* family_traces.c: the golden trainings. */
void test_lora(void **state);
void test_second(void **state);
void test_auxiliary(void **state);
void test_bf16(void **state);

/* family_codes.c: the codes of quantized weights. */
void test_codes(void **state);

/* family_routes.c: which experts tokens go to; of a family that has some. */
void test_routes(void **state);

#endif
