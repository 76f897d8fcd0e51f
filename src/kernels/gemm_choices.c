/*
 * gemm_choices.c: the chosen algorithms of matmuls as text: for the other ranks, the run's directory
 * and a cache. The cache has those that were timed; the others the heuristic's first, too, of what is
 * worth timing and was not timed, so that a run that finds its own text chooses nothing anew.
 *
 * A head line that names device and library, then a line a shape: its seven key fields and the eight
 * words of cuBLASLt's description, in hex. The words mean something to that version of the library
 * only, which is why the head has it.
 */
#include "kernels/gemm_cublaslt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEY_FIELDS 7
#define WORDS      (sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t))
#define FIELDS     (KEY_FIELDS + WORDS)

/* ---- out ---- */

static void print_choice(tsr_text *out, const tsr_matmul_choice *choice)
{
    const tsr_matmul_key *k = &choice->key;
    tsr_text_printf(out, "%x %x %x %x %x %x %x", (unsigned)k->m, (unsigned)k->n, (unsigned)k->k,
                    (unsigned)k->lda, (unsigned)k->ldb, (unsigned)k->ldc, k->flags);
    for (size_t i = 0; i < WORDS; i++)
        tsr_text_printf(out, " %" PRIx64, choice->algo.data[i]);
    tsr_text_puts(out, "\n");
}

static void print_from(tsr_text *out, const tsr_blas *blas, tsr_matmul_origin least)
{
    const tsr_matmul_table *table = blas->table[blas->turn];
    for (int i = 0; i < TSR_BLAS_TABLE; i++)
        if (table->choice[i].origin >= least)
            print_choice(out, &table->choice[i]);
}

void tsr_blas_export(tsr_text *out, const tsr_blas *blas)
{
    tsr_text_printf(out, "%s\n", blas->made_for);
    print_from(out, blas, TSR_MATMUL_SETTLED);
}

/* ---- in ---- */

/* One line; false: not a choice. */
static bool parse_choice(tsr_matmul_choice *out, const char *line)
{
    uint64_t value[FIELDS];
    for (size_t i = 0; i < FIELDS; i++) {
        char *stop, after = i + 1 < FIELDS ? ' ' : '\n';
        if (!((*line >= '0' && *line <= '9') || (*line >= 'a' && *line <= 'f')))
            return false;
        value[i] = strtoull(line, &stop, 16);
        if (*stop != after || (i < 6 && (value[i] == 0 || value[i] > INT32_MAX)) ||
            (i == 6 && value[i] > UINT32_MAX))
            return false;
        line = stop + 1;
    }
    *out = (tsr_matmul_choice){.key = {(int32_t)value[0], (int32_t)value[1], (int32_t)value[2],
                                       (int32_t)value[3], (int32_t)value[4], (int32_t)value[5],
                                       (uint32_t)value[6]}};
    memcpy(out->algo.data, value + KEY_FIELDS, sizeof out->algo.data);
    return true;
}

static const char *line_after(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

static bool is_head(const tsr_blas *blas, const char *line)
{
    size_t length = strlen(blas->made_for);
    return strncmp(line, blas->made_for, length) == 0 && line[length] == '\n';
}

tsr_status tsr_blas_import(tsr_blas *blas, const char *text)
{
    if (!is_head(blas, text))
        return tsr_fail(TSR_EDATA, "choices of matmuls are for \"%.*s\", this is \"%s\"",
                        (int)(strcspn(text, "\n") < 300 ? strcspn(text, "\n") : 300), text,
                        blas->made_for);
    for (int pass = 0; pass < 2; pass++) {
        int number = 2;
        for (const char *line = line_after(text); *line; line = line_after(line), number++) {
            tsr_matmul_choice choice;
            if (!parse_choice(&choice, line) || !tsr_matmul_runs(blas, &choice))
                return tsr_fail(TSR_EDATA, "choices of matmuls: line %d is wrong", number);
            if (pass == 1)
                tsr_matmul_keep(blas, &choice.key, &choice.algo, TSR_MATMUL_SETTLED);
        }
    }
    return TSR_OK;
}

void tsr_blas_recall(tsr_blas *blas, const char *text, const tsr_gemm_args *shape, int count,
                     bool timed)
{
    if (!text || !is_head(blas, text))
        return;
    for (const char *line = line_after(text); *line; line = line_after(line)) {
        tsr_matmul_choice choice;
        if (!parse_choice(&choice, line) || !tsr_matmul_listed(shape, count, &choice.key))
            continue;
        const tsr_matmul_choice *place = tsr_matmul_find(blas, &choice.key);
        if (place && place->origin < TSR_MATMUL_SETTLED && tsr_matmul_runs(blas, &choice))
            tsr_matmul_keep(blas, &choice.key, &choice.algo,
                            timed ? TSR_MATMUL_TIMED : TSR_MATMUL_SETTLED);
    }
}

void tsr_blas_merge(tsr_text *out, tsr_blas *blas, const char *text)
{
    tsr_text_printf(out, "%s\n", blas->made_for);
    bool ours = text && is_head(blas, text);
    for (const char *line = ours ? line_after(text) : ""; *line; line = line_after(line)) {
        tsr_matmul_choice choice;
        if (!parse_choice(&choice, line))
            continue;
        const tsr_matmul_choice *place = tsr_matmul_find(blas, &choice.key);
        if (!place || place->origin < TSR_MATMUL_TIMED)
            print_choice(out, &choice);
    }
    print_from(out, blas, TSR_MATMUL_TIMED);
}
