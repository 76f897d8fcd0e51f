/*
 * tests/model/family.h: a checkpoint of each family of docs/models.md.
 */
#ifndef TSR_TESTS_MODEL_FAMILY_H
#define TSR_TESTS_MODEL_FAMILY_H

#include <stdbool.h>

#define FAMILY_GOLDEN TSR_SOURCE_DIR "/tests/golden/families"

/* The directory of tests/golden/families/<name>/checkpoint; where there is none (llama, mistral, qwen2, qwen3) of
 * a random model, written into the scratch directory. Tokens are below 256. True: it is golden. */
bool family_checkpoint(char out[512], const char *name);

#endif
