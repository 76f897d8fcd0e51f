/* Best-fit-decreasing packing against the plain O(n^2) definition, and what must hold for any data.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"
#include "data/pack.h"

#include <stdlib.h>
#include <string.h>

#define MOST 400

typedef struct {
    int32_t lengths[MOST], order[MOST], row_of[MOST], room[MOST];
    int64_t count, rows;
    int32_t max_length;
} packing;

static uint64_t next_random(uint64_t *state)
{
    return *state = tsr_mix(*state);
}

static void draw(packing *p, uint64_t seed)
{
    uint64_t state = seed;
    const int32_t sizes[] = {1, 2, 63, 64, 65, 100, 4095, 4096, 4097, 300000};
    p->count = (int64_t)(next_random(&state) % MOST) + 1;
    p->max_length = sizes[next_random(&state) % 10];
    int32_t most = next_random(&state) % 2 ? p->max_length : p->max_length / 3 + 1;
    for (int64_t i = 0; i < p->count; i++) {
        p->lengths[i] = (int32_t)(next_random(&state) % (uint64_t)most) + 1;
        p->order[i] = (int32_t)i;
    }
    for (int64_t i = p->count - 1; i > 0; i--) {
        int64_t j = (int64_t)(next_random(&state) % (uint64_t)(i + 1));
        int32_t item = p->order[i];
        p->order[i] = p->order[j];
        p->order[j] = item;
    }
}

static void run(packing *p)
{
    tsr_pack *pack;
    assert_int_equal(tsr_pack_create(&pack, p->count, p->max_length), TSR_OK);
    p->rows = tsr_pack_run(p->row_of, pack, p->lengths, p->order);
    /* Again with the same memory: nothing is left over from the first time. */
    int32_t again[MOST];
    assert_int_equal(tsr_pack_run(again, pack, p->lengths, p->order), p->rows);
    assert_memory_equal(again, p->row_of, (size_t)p->count * sizeof *again);
    tsr_pack_destroy(pack);
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The room left in each row, ascending. */
static void rooms(packing *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        p->room[i] = p->max_length;
    for (int64_t i = 0; i < p->count; i++)
        p->room[p->row_of[i]] -= p->lengths[i];
    qsort(p->room, (size_t)p->rows, sizeof *p->room, by_value);
}

/* Rows and what is left in them, by the definition: the longest first, into the fullest row. */
static int64_t plain(int32_t *room, const packing *p)
{
    int32_t sorted[MOST];
    int64_t rows = 0;
    memcpy(sorted, p->lengths, sizeof sorted);
    qsort(sorted, (size_t)p->count, sizeof *sorted, by_value);
    for (int64_t i = p->count - 1; i >= 0; i--) {
        int64_t best = -1;
        for (int64_t r = 0; r < rows; r++)
            if (room[r] >= sorted[i] && (best < 0 || room[r] < room[best]))
                best = r;
        if (best < 0)
            room[best = rows++] = p->max_length;
        room[best] -= sorted[i];
    }
    qsort(room, (size_t)rows, sizeof *room, by_value);
    return rows;
}

static void equals_the_definition(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        packing p;
        int32_t expected[MOST];
        draw(&p, seed);
        run(&p);
        for (int64_t i = 0; i < p.count; i++)
            assert_in_range(p.row_of[i], 0, p.rows - 1);
        rooms(&p);
        assert_true(p.room[0] >= 0);
        assert_true(p.room[p.rows - 1] < p.max_length); /* no row is empty */
        assert_int_equal(plain(expected, &p), p.rows);
        assert_memory_equal(expected, p.room, (size_t)p.rows * sizeof *expected);
    }
}

/* Another order of the samples: other rows, but as many, and equally full. */
static void order_changes_rows_not_their_lengths(void **state)
{
    (void)state;
    packing a = {.count = MOST, .max_length = 50}, b;
    for (int i = 0; i < MOST; i++) {
        a.lengths[i] = i % 30 + 1;
        a.order[i] = i;
    }
    b = a;
    for (int i = 0; i < MOST; i++)
        b.order[i] = MOST - 1 - i;
    run(&a);
    run(&b);
    assert_int_equal(a.rows, b.rows);
    assert_int_not_equal(memcmp(a.row_of, b.row_of, sizeof a.row_of), 0);
    rooms(&a);
    rooms(&b);
    assert_memory_equal(a.room, b.room, (size_t)a.rows * sizeof *a.room);
}

static void refuses_bad_sizes(void **state)
{
    (void)state;
    tsr_pack *pack = NULL;
    assert_int_equal(tsr_pack_create(&pack, -1, 8), TSR_EINVAL);
    assert_int_equal(tsr_pack_create(&pack, 8, 0), TSR_EINVAL);
    assert_null(pack);
    tsr_pack_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_definition),
        cmocka_unit_test(order_changes_rows_not_their_lengths),
        cmocka_unit_test(refuses_bad_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
