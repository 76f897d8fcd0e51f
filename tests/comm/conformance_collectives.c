/* The collectives: what they bring, at all sizes. */
#include "comm/conformance_parts.h"

#include <string.h>
#include <unistd.h>

static void *allocate(tsr_case_rank *me, uint64_t bytes)
{
    void *memory = malloc(bytes + 1);
    CHECK(memory);
    return memory;
}

/* Puts host data, which it frees, into new device memory. */
static void *new_from(tsr_case_rank *me, void *host, uint64_t bytes)
{
    void *device = tsr_case_new(me, bytes);
    tsr_case_put(me, device, host, bytes);
    free(host);
    return device;
}

/* The other way round; the caller frees it. */
static void *read_back(tsr_case_rank *me, const void *device, uint64_t bytes)
{
    void *host = allocate(me, bytes);
    tsr_case_get(me, host, device, bytes);
    return host;
}

static int64_t word_of(tsr_case_rank *me, const int64_t *word)
{
    int64_t value;
    tsr_case_get(me, &value, word, sizeof value);
    return value;
}

static unsigned char byte_of(int rank, int range, uint64_t i)
{
    return (unsigned char)((uint64_t)rank * 57 + (uint64_t)range * 13 + i * 7 + (i >> 8));
}

/* ---- collectives ---- */

void tsr_case_place(tsr_case_rank *me)
{
    int nodes = tsr_comm_node_count(me->comm), local = tsr_comm_local_size(me->comm);
    CHECK(me->rank >= 0 && me->rank < me->size);
    CHECK(tsr_comm_node(me->comm) >= 0 && tsr_comm_node(me->comm) < nodes);
    CHECK(tsr_comm_local_rank(me->comm) >= 0 && tsr_comm_local_rank(me->comm) < local);
    CHECK(nodes > 1 || local == me->size);
    CHECK(strlen(tsr_comm_name(me->comm)) > 0);
    CHECK(tsr_comm_rank(me->comm) == tsr_comm_rank(me->host));
    CHECK(tsr_comm_size(me->comm) == tsr_comm_size(me->host));
}

static const uint64_t range_bytes[] = {1, 0, 7, 4096, 1000003, 256, 33, 300000};
#define RANGES ((int)(sizeof range_bytes / sizeof *range_bytes))

static void put_bytes(tsr_case_rank *me, void *device, int i)
{
    unsigned char *send = allocate(me, range_bytes[i]);
    for (uint64_t k = 0; k < range_bytes[i]; k++)
        send[k] = byte_of(me->rank, i, k);
    tsr_case_put(me, device, send, range_bytes[i]);
    free(send);
}

/* Where a range is received; at odd addresses too. */
static void *new_receive(tsr_case_rank *me, int i)
{
    uint64_t all = range_bytes[i] * (uint64_t)me->size + 4;
    unsigned char *empty = allocate(me, all);
    memset(empty, 0xee, all);
    return (char *)new_from(me, empty, all) + i % 3;
}

static void fill_range(tsr_case_rank *me, tsr_gather_range *range, int i, bool in_place)
{
    uint64_t bytes = range_bytes[i];
    char *receive = new_receive(me, i);
    char *send = in_place ? receive + (uint64_t)me->rank * bytes
                          : (char *)tsr_case_new(me, bytes + 2) + i % 2;
    put_bytes(me, send, i);
    *range = (tsr_gather_range){send, receive, bytes};
}

static void check_range(tsr_case_rank *me, const tsr_gather_range *range, int i)
{
    uint64_t bytes = range->bytes, all = bytes * (uint64_t)me->size;
    unsigned char *receive = read_back(me, range->receive, all + 1);
    for (int r = 0; r < me->size; r++)
        for (uint64_t k = 0; k < bytes; k++)
            CHECK(receive[(uint64_t)r * bytes + k] == byte_of(r, i, k));
    CHECK(receive[all] == 0xee);
    free(receive);
}

void tsr_case_all_gather(tsr_case_rank *me)
{
    tsr_gather_range ranges[RANGES];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < RANGES; i++)
            fill_range(me, &ranges[i], i, (round + i) % 2);
        OK(tsr_comm_all_gather(me->comm, me->stream, ranges, RANGES));
        OK(tsr_comm_all_gather(me->comm, me->stream, ranges, 0));
        tsr_case_wait(me);
        for (int i = 0; i < RANGES; i++)
            check_range(me, &ranges[i], i);
        tsr_case_free(me);
    }
}

/* From exposed memory, and from memory that is not: the same bytes as an all-gather. */
void tsr_case_pull(tsr_case_rank *me)
{
    tsr_gather_range ranges[RANGES], gathered[RANGES];
    uint64_t bytes = 4096, at = 1000;
    for (int i = 0; i < RANGES; i++)
        bytes += range_bytes[i] + 64;
    char *exposed = tsr_case_new(me, bytes), *hidden = tsr_case_new(me, bytes);
    char *receive[RANGES], *expected[RANGES];
    for (int i = 0; i < RANGES; i++) {
        receive[i] = new_receive(me, i);
        expected[i] = new_receive(me, i);
    }
    OK(tsr_comm_expose(me->comm, me->host_stream, exposed, bytes));
    for (int round = 0; round < 4; round++) {
        char *base = round == 3 ? hidden : exposed;
        at = 1000 + (uint64_t)round;
        for (int i = 0; i < RANGES; at += range_bytes[i++] + 64) {
            put_bytes(me, base + at, i);
            tsr_case_put(me, receive[i], &(char){0}, range_bytes[i] != 0);
            ranges[i] = (tsr_gather_range){base + at, receive[i], range_bytes[i]};
            gathered[i] = (tsr_gather_range){base + at, expected[i], range_bytes[i]};
        }
        OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL)); /* all have written */
        OK(tsr_comm_pull(me->comm, me->stream, ranges, RANGES));
        OK(tsr_comm_pull(me->comm, me->stream, ranges, 0));
        tsr_case_wait(me);
        OK(tsr_comm_all_gather(me->comm, me->stream, gathered, RANGES));
        tsr_case_wait(me);
        OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL)); /* all have read */
        for (int i = 0; i < RANGES; i++) {
            check_range(me, &ranges[i], i);
            check_range(me, &gathered[i], i);
        }
    }
}

static int64_t value_of(int rank, uint64_t i)
{
    return (int64_t)(i * 1000003) * (rank % 2 ? -1 : 1) + rank * 17 - (int64_t)(i % 5);
}

/* `count` values and 42. */
static int64_t *new_values(tsr_case_rank *me, uint64_t count)
{
    int64_t *values = allocate(me, (count + 1) * sizeof *values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = value_of(me->rank, i);
    values[count] = 42;
    return new_from(me, values, (count + 1) * sizeof *values);
}

static const uint64_t counts[] = {0, 1, 2, 3, 5, 1000, 4096, 5003, 600001};
#define COUNTS ((int)(sizeof counts / sizeof *counts))

static unsigned char piece_byte(int from, int to, int range, uint64_t i)
{
    return (unsigned char)(byte_of(from, range, i) ^ (to * 101 + 3));
}

/* A piece for each rank, at odd addresses too, and where the others' go. */
static void fill_pieces(tsr_case_rank *me, tsr_exchange_range *range, int i)
{
    uint64_t bytes = range_bytes[i], all = bytes * (uint64_t)me->size;
    unsigned char *send = allocate(me, all);
    for (uint64_t k = 0; k < all; k++)
        send[k] = piece_byte(me->rank, (int)(k / bytes), i, k % bytes);
    char *device = (char *)tsr_case_new(me, all + 2) + i % 2;
    tsr_case_put(me, device, send, all);
    free(send);
    *range = (tsr_exchange_range){device, new_receive(me, i), bytes};
}

static void check_pieces(tsr_case_rank *me, const tsr_exchange_range *range, int i)
{
    uint64_t bytes = range->bytes, others = (uint64_t)me->size - 1;
    unsigned char *receive = read_back(me, range->receive, others * bytes + 1);
    unsigned char *send = read_back(me, range->send, (others + 1) * bytes);
    for (uint64_t p = 0; p < others; p++)
        for (uint64_t k = 0; k < bytes; k++)
            CHECK(receive[p * bytes + k] ==
                  piece_byte((int)p + ((int)p >= me->rank), me->rank, i, k));
    CHECK(receive[others * bytes] == 0xee);
    for (uint64_t k = 0; k < (others + 1) * bytes; k++)
        CHECK(send[k] == piece_byte(me->rank, (int)(k / bytes), i, k % bytes));
    free(receive);
    free(send);
}

void tsr_case_exchange(tsr_case_rank *me)
{
    tsr_exchange_range ranges[RANGES];
    for (int i = 0; i < RANGES; i++)
        fill_pieces(me, &ranges[i], i);
    for (int round = 0; round < 3; round++) {
        OK(tsr_comm_exchange(me->comm, me->stream, ranges, RANGES));
        OK(tsr_comm_exchange(me->comm, me->stream, ranges, 0));
        tsr_case_wait(me);
        for (int i = 0; i < RANGES; i++)
            check_pieces(me, &ranges[i], i);
    }
    tsr_case_free(me);
    CHECK(tsr_comm_exchange(me->comm, me->stream, NULL, -1) == TSR_EINVAL);
}

/* ---- deals ---- */

enum { DEALT = 2, DEALT_BYTES = DEALT * 5 * 4096 }; /* ranges, and bytes of all for a rank */

typedef struct {
    int64_t rounds;
    uint64_t bytes, last_bytes;
} deal_size;

static unsigned char dealt_byte(int from, int to, int64_t round, int range, uint64_t i)
{
    return (unsigned char)(from * 67 + to * 29 + round * 11 + range * 5 + (int)(i % 113) + 1);
}

static uint64_t bytes_in(const deal_size *d, int64_t round)
{
    return round + 1 < d->rounds ? d->bytes : d->last_bytes;
}

/* Where the piece of a round lies: of `rank` among the pieces, or its place. */
static uint64_t piece_at(const deal_size *d, int rank, int64_t round)
{
    uint64_t all = (uint64_t)(d->rounds - 1) * d->bytes + d->last_bytes;
    return (uint64_t)rank * all + (uint64_t)round * d->bytes;
}

static uint64_t place_at(const deal_size *d, int size, int rank, int64_t round)
{
    int turn = round % 2 ? size - 1 - rank : rank;
    return (uint64_t)round * d->bytes * (uint64_t)size + (uint64_t)turn * bytes_in(d, round);
}

/* Pieces as a rank has them before a deal, or places as it has them before one back; or, of the others, what then arrives. */
static void fill_dealt(unsigned char *out, const deal_size *d, const tsr_case_rank *me, int range,
                       bool places, bool arrived)
{
    for (int64_t round = 0; round < d->rounds; round++)
        for (int r = 0; r < me->size; r++) {
            uint64_t at = places ? place_at(d, me->size, r, round) : piece_at(d, r, round);
            if (arrived && r == me->rank)
                continue;
            for (uint64_t i = 0; i < bytes_in(d, round); i++)
                out[at + i] = arrived ? dealt_byte(r, me->rank, round, range, i)
                                      : dealt_byte(me->rank, r, round, range, i);
        }
}

static void check_deal(tsr_case_rank *me, char *sent, char *received, const deal_size *d, bool back)
{
    uint64_t all = piece_at(d, me->size, 0);
    tsr_deal_range ranges[DEALT];
    unsigned char *wanted = allocate(me, all), *filled = allocate(me, all);
    for (int i = 0; i < DEALT; i++) {
        char *from = sent + (uint64_t)i * all, *to = received + (uint64_t)i * all;
        fill_dealt(filled, d, me, i, back, false);
        tsr_case_put(me, from, filled, all);
        OK(tsr_stream_fill(me->stream, to, 0xee, all));
        ranges[i] = (tsr_deal_range){back ? to : from, back ? from : to, d->bytes, d->last_bytes};
    }
    OK(tsr_comm_deal(me->comm, me->stream, ranges, DEALT, d->rounds, back));
    memset(ranges, 0xff, sizeof ranges); /* they were copied */
    tsr_case_wait(me);
    for (int i = 0; i < DEALT; i++) {
        unsigned char *got = read_back(me, received + (uint64_t)i * all, all);
        memset(wanted, 0xee, all);
        fill_dealt(wanted, d, me, i, !back, true);
        CHECK(memcmp(got, wanted, all) == 0);
        free(got);
    }
    free(wanted);
    free(filled);
}

/* More rounds than go in one exchange; a last one that is short, or the only one. */
static void check_deals(tsr_case_rank *me, char *sent, char *received)
{
    static const deal_size sizes[] = {{70, 40, 24}, {5, 4096, 4096}, {2, 640, 1}, {1, 512, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int back = 0; back < 2; back++)
            check_deal(me, sent, received, &sizes[i], back);
}

void tsr_case_deal(tsr_case_rank *me)
{
    uint64_t bytes = DEALT_BYTES * (uint64_t)me->size;
    check_deals(me, tsr_case_new(me, bytes), tsr_case_new(me, bytes));
    tsr_case_free(me);
    OK(tsr_comm_deal(me->comm, me->stream, NULL, 0, 3, false));
    CHECK(tsr_comm_deal(me->comm, me->stream, NULL, TSR_DEAL_RANGES + 1, 1, false) == TSR_EINVAL);
    CHECK(tsr_comm_deal(me->comm, me->stream, NULL, 1, -1, false) == TSR_EINVAL);
}

/* What changes: each rank writes its memory anew in every round, on the stream, as soon as the call
 * before it lets it. What arrives is right only if nobody reads too early or writes too soon. */
enum { CHANGES = 20 };

static unsigned char changed(int round, int from, int to)
{
    return (unsigned char)(round * 7 + from * 16 + to);
}

static bool all_are(const unsigned char *bytes, uint64_t count, unsigned char value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0;
}

static void exchange_changes(tsr_case_rank *me, char *sent, char *received, uint64_t bytes)
{
    tsr_exchange_range piece[CHANGES];
    uint64_t others = (uint64_t)(me->size - 1) * bytes;
    for (int round = 0; round < CHANGES; round++) {
        for (int r = 0; r < me->size; r++)
            OK(tsr_stream_fill(me->stream, sent + (uint64_t)r * bytes, changed(round, me->rank, r),
                               bytes));
        piece[round] = (tsr_exchange_range){sent, received + (uint64_t)round * others, bytes};
        OK(tsr_comm_exchange(me->comm, me->stream, &piece[round], 1));
    }
    tsr_case_wait(me);
    unsigned char *got = read_back(me, received, CHANGES * others);
    for (int i = 0; i < CHANGES * (me->size - 1); i++) {
        int k = i % (me->size - 1), from = k + (k >= me->rank);
        CHECK(
            all_are(got + (uint64_t)i * bytes, bytes, changed(i / (me->size - 1), from, me->rank)));
    }
    free(got);
}

static void gather_changes(tsr_case_rank *me, char *sent, char *received, uint64_t bytes)
{
    tsr_gather_range range[CHANGES];
    uint64_t all = (uint64_t)me->size * bytes;
    for (int round = 0; round < CHANGES; round++) {
        OK(tsr_stream_fill(me->stream, sent, changed(round, me->rank, 0), bytes));
        range[round] = (tsr_gather_range){sent, received + (uint64_t)round * all, bytes};
        OK(tsr_comm_all_gather(me->comm, me->stream, &range[round], 1));
    }
    tsr_case_wait(me);
    unsigned char *got = read_back(me, received, CHANGES * all);
    for (int i = 0; i < CHANGES * me->size; i++)
        CHECK(all_are(got + (uint64_t)i * bytes, bytes, changed(i / me->size, i % me->size, 0)));
    free(got);
}

void tsr_case_exposed_changes(tsr_case_rank *me)
{
    uint64_t size = (uint64_t)me->size, bytes = 2000000 / size, dealt = 2 * DEALT_BYTES * size;
    char *sent = tsr_case_new(me, size * bytes), *both = tsr_case_new(me, dealt);
    char *received = tsr_case_new(me, CHANGES * size * bytes);
    OK(tsr_comm_expose(me->comm, me->host_stream, sent, size * bytes));
    OK(tsr_comm_expose(me->comm, me->host_stream, both, dealt));
    exchange_changes(me, sent, received, bytes);
    gather_changes(me, sent, received, bytes);
    check_deals(me, both, both + dealt / 2);
}

static int64_t sum_of_halves(int64_t a, int64_t b)
{
    int32_t x[2], y[2];
    int64_t sum;
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 2; i++)
        x[i] = (int32_t)((uint32_t)x[i] + (uint32_t)y[i]);
    memcpy(&sum, x, sizeof sum);
    return sum;
}

static int64_t reduced(int size, uint64_t i, tsr_reduce_op op)
{
    int64_t result = value_of(0, i);
    for (int r = 1; r < size; r++) {
        int64_t value = value_of(r, i);
        result = op == TSR_SUM          ? result + value
                 : op == TSR_SUM_HALVES ? sum_of_halves(result, value)
                 : op == TSR_MIN        ? (value < result ? value : result)
                                        : (value > result ? value : result);
    }
    return result;
}

void tsr_case_all_reduce(tsr_case_rank *me)
{
    for (int c = 0; c < COUNTS; c++)
        for (tsr_reduce_op op = TSR_SUM; op <= TSR_SUM_HALVES; op++) {
            int64_t *data = new_values(me, counts[c]);
            OK(tsr_comm_all_reduce(me->comm, me->stream, data, counts[c], op));
            tsr_case_wait(me);
            int64_t *result = read_back(me, data, (counts[c] + 1) * 8);
            for (uint64_t i = 0; i < counts[c]; i++)
                CHECK(result[i] == reduced(me->size, i, op));
            CHECK(result[counts[c]] == 42);
            free(result);
            tsr_case_free(me);
        }
    CHECK(tsr_comm_all_reduce(me->comm, me->stream, NULL, 0, (tsr_reduce_op)7) == TSR_EINVAL);
}

void tsr_case_broadcast(tsr_case_rank *me)
{
    static const uint64_t sizes[] = {0, 1, 999, 1000001};
    for (int root = 0; root < me->size; root++)
        for (int s = 0; s < 4; s++) {
            unsigned char *data = allocate(me, sizes[s]);
            memset(data, 0xee, sizes[s] + 1);
            for (uint64_t i = 0; me->rank == root && i < sizes[s]; i++)
                data[i] = byte_of(root, s, i);
            void *device = new_from(me, data, sizes[s] + 1);
            OK(tsr_comm_broadcast(me->comm, me->stream, device, sizes[s], root));
            tsr_case_wait(me);
            data = read_back(me, device, sizes[s] + 1);
            for (uint64_t i = 0; i < sizes[s]; i++)
                CHECK(data[i] == byte_of(root, s, i));
            CHECK(data[sizes[s]] == 0xee);
            free(data);
            tsr_case_free(me);
        }
    CHECK(tsr_comm_broadcast(me->comm, me->stream, NULL, 0, me->size) == TSR_EINVAL);
    CHECK(tsr_comm_broadcast(me->comm, me->stream, NULL, 0, -1) == TSR_EINVAL);
}

/* Each rank has pieces of its own in every second place, one of them of no bytes, and all have all after one group; with
 * what comes before and after. */
void tsr_case_group(tsr_case_rank *me)
{
    int pieces = 2 * me->size;
    int64_t *sum = tsr_case_word(me, me->rank);
    for (int round = 0; round < 3; round++) {
        uint64_t each = round == 0 ? 1 : 777 * (uint64_t)round, bytes = each * (uint64_t)pieces;
        unsigned char *data = allocate(me, bytes);
        memset(data, 0xee, bytes);
        for (uint64_t i = 0; i < bytes; i++)
            if ((int)(i / each) % me->size == me->rank)
                data[i] = byte_of(me->rank, round, i);
        unsigned char *device = new_from(me, data, bytes);
        OK(tsr_comm_all_reduce(me->comm, me->stream, sum, 1, TSR_MAX));
        OK(tsr_comm_group_begin(me->comm, me->stream));
        for (int p = 0; p < pieces; p++)
            OK(tsr_comm_broadcast(me->comm, me->stream, device + (uint64_t)p * each, each,
                                  p % me->size));
        OK(tsr_comm_broadcast(me->comm, me->stream, device, 0, 0));
        OK(tsr_comm_group_end(me->comm, me->stream));
        OK(tsr_comm_all_reduce(me->comm, me->stream, sum, 1, TSR_MAX));
        tsr_case_wait(me);
        data = read_back(me, device, bytes);
        for (uint64_t i = 0; i < bytes; i++)
            CHECK(data[i] == byte_of((int)(i / each) % me->size, round, i));
        free(data);
    }
    CHECK(word_of(me, sum) == me->size - 1);
}

/* Nobody leaves a barrier before the slowest has come. */
void tsr_case_barrier(tsr_case_rank *me)
{
    int64_t *flags;
    void *shared;
    OK(tsr_comm_share(&shared, me->host, me->host_stream, sizeof(int64_t) * (uint64_t)me->size));
    flags = shared;
    for (int round = 0; round < 30; round++) {
        if (round % me->size == me->rank)
            usleep(2000);
        __atomic_store_n(&flags[me->rank], round + 1, __ATOMIC_SEQ_CST);
        OK(tsr_comm_barrier(me->comm, me->stream));
        tsr_case_wait(me);
        if (tsr_comm_node_count(me->comm) == 1)
            for (int r = 0; r < me->size; r++)
                CHECK(__atomic_load_n(&flags[r], __ATOMIC_SEQ_CST) > round);
    }
}

/* Many collectives in a row without waiting on the host. */
void tsr_case_pipeline(tsr_case_rank *me)
{
    int steps = me->comm == me->host ? 300 : 1500; /* more than a device's are watched at once */
    int64_t *first = allocate(me, (uint64_t)steps * 8);
    tsr_gather_range *range = allocate(me, (uint64_t)steps * sizeof *range);
    for (int i = 0; i < steps; i++)
        first[i] = me->rank + i;
    int64_t *sums = new_from(me, first, (uint64_t)steps * 8);
    int64_t *all = tsr_case_new(me, (uint64_t)me->size * (uint64_t)steps * 8);
    for (int i = 0; i < steps; i++) {
        range[i] = (tsr_gather_range){&sums[i], &all[i * me->size], sizeof(int64_t)};
        OK(tsr_comm_all_reduce(me->comm, me->stream, &sums[i], 1, TSR_SUM));
        OK(tsr_comm_all_gather(me->comm, me->stream, &range[i], 1));
    }
    tsr_case_wait(me);
    int64_t *result = read_back(me, all, (uint64_t)me->size * (uint64_t)steps * 8);
    for (int i = 0; i < steps; i++)
        for (int r = 0; r < me->size; r++)
            CHECK(result[i * me->size + r] ==
                  (int64_t)me->size * (me->size - 1) / 2 + me->size * i);
    free(result);
    free(range);
}

void tsr_case_share(tsr_case_rank *me)
{
    for (int round = 0; round < 3; round++) {
        void *memory;
        uint64_t bytes = round == 0 ? 1 : round == 1 ? 100000 : 0;
        OK(tsr_comm_share(&memory, me->comm, me->stream, bytes));
        CHECK(memory != NULL);
        char *text = memory;
        for (uint64_t i = 0; i < bytes; i++)
            CHECK(text[i] == 0);
        OK(tsr_comm_barrier(me->comm, me->stream));
        tsr_case_wait(me);
        if (bytes && tsr_comm_local_rank(me->comm) == 0)
            text[bytes - 1] = 'x';
        OK(tsr_comm_barrier(me->comm, me->stream));
        tsr_case_wait(me);
        CHECK(!bytes || text[bytes - 1] == 'x');
    }
}

/* A part of a communicator, of hosts and, if so, of devices. */
struct part {
    tsr_comm *host, *comm;
};

static struct part split_part(tsr_case_rank *me, tsr_comm *parent, int color)
{
    struct part part;
    OK(tsr_comm_split(&part.host, parent, me->host_stream, color));
    part.comm = part.host;
    if (me->comm != me->host)
        OK(tsr_comm_create_nccl(&part.comm, part.host, me->host_stream, me->device));
    return part;
}

static void destroy_part(struct part *part)
{
    if (part->comm != part->host)
        tsr_comm_destroy(part->comm);
    tsr_comm_destroy(part->host);
}

/* Collectives of a part and of the whole, in turns. */
static void use_half(tsr_case_rank *me, const struct part *half, int size)
{
    uint64_t count = me->rank % 2 ? 3 : 70001;
    int64_t *data = tsr_case_new(me, count * 8), *all = tsr_case_new(me, 8 * (uint64_t)me->size);
    for (int round = 0; round < 5; round++) {
        int64_t *values = allocate(me, count * 8);
        for (uint64_t i = 0; i < count; i++)
            values[i] = me->rank + (int64_t)i;
        tsr_case_put(me, data, values, count * 8);
        free(values);
        OK(tsr_comm_all_reduce(half->comm, me->stream, data, count, TSR_SUM));
        tsr_gather_range range = {tsr_case_word(me, me->rank), all, 8};
        OK(tsr_comm_all_gather(me->comm, me->stream, &range, 1));
        tsr_case_wait(me);
        int64_t members = (int64_t)size * (size - 1) + (int64_t)size * (me->rank % 2);
        values = read_back(me, data, count * 8);
        for (uint64_t i = 0; i < count; i++)
            CHECK(values[i] == members + size * (int64_t)i);
        free(values);
        values = read_back(me, all, 8 * (uint64_t)me->size);
        for (int r = 0; r < me->size; r++)
            CHECK(values[r] == r);
        free(values);
    }
}

/* Odd and even ranks apart, each with collectives of other sizes; then a split of the split. */
void tsr_case_split(tsr_case_rank *me)
{
    struct part half = split_part(me, me->host, me->rank % 2);
    int size = (me->size + 1 - me->rank % 2) / 2;
    CHECK(tsr_comm_size(half.comm) == size && tsr_comm_rank(half.comm) == me->rank / 2);
    CHECK(tsr_comm_local_rank(half.comm) < tsr_comm_local_size(half.comm));
    use_half(me, &half, size);
    struct part pair = split_part(me, half.host, tsr_comm_rank(half.host) / 2);
    int64_t *lowest = tsr_case_word(me, me->rank);
    OK(tsr_comm_all_reduce(pair.comm, me->stream, lowest, 1, TSR_MIN));
    tsr_case_wait(me);
    CHECK(word_of(me, lowest) == me->rank - 2 * tsr_comm_rank(pair.comm));
    int first;
    OK(tsr_comm_agree(pair.host, me->host_stream, TSR_OK, &first));
    destroy_part(&pair);
    destroy_part(&half);
}

/* What blocks is the host communicator's. */
void tsr_case_refuse_to_block(tsr_case_rank *me)
{
    tsr_comm *part;
    void *memory;
    bool host = me->comm == me->host;
    if (host)
        return;
    CHECK(tsr_comm_agree(me->comm, me->host_stream, TSR_OK, NULL) == TSR_EINVAL);
    CHECK(tsr_comm_check_same(me->comm, me->host_stream, 1, "x", "") == TSR_EINVAL);
    CHECK(tsr_comm_split(&part, me->comm, me->host_stream, 0) == TSR_EINVAL);
    CHECK(tsr_comm_share(&memory, me->comm, me->host_stream, 1) == TSR_EINVAL);
    CHECK(tsr_comm_create_nccl(&part, me->comm, me->host_stream, me->device) == TSR_EINVAL);
    CHECK(tsr_comm_create_nccl(&part, me->host, me->host_stream, me->host_device) == TSR_EINVAL);
    CHECK(tsr_comm_barrier(me->host, me->stream) == TSR_EINVAL);
    CHECK(tsr_comm_barrier(me->comm, me->host_stream) == TSR_EINVAL);
    OK(tsr_comm_barrier(me->comm, me->stream));
    tsr_case_wait(me);
}
