/*
 * comm_mpi_start.c: the ranks of mpirun come together, and part when the process exits.
 *
 * MPI_Init waits for ever for a rank that never starts, and so does whatever asks mpirun while that
 * stands still. No thread of the library can end such a wait: the program's watchdog does, and asks
 * tsr_comm_mpi_stage. Once MPI has started, all waits here are polled against the deadline; the first
 * thing that the ranks do is to greet each other, so that who is missing has a name.
 */
#include "base/clock.h"
#include "comm/launcher.h"
#include "comm/mpi_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGE_BYTES    (1u << 30) /* longest message: MPI counts in int */
#define SCRATCH_BYTES    (8u << 20) /* for all peers' contributions to a sum */
#define LEAST_ELEMENTS   4096       /* of it for one peer */
#define FAREWELL_SECONDS 2          /* a dead job's ranks wait this long for each other's output */
#define GREETING_TAG     4711
#define MOST_HEARD       4096 /* ranks beyond are not named */
#define MOST_NAMED       8

/* MPI can be initialised once in a process, so it is finalized when the process exits. */
static struct {
    bool ours, dead;   /* dead: some communicator was, or creation failed half-way */
    _Atomic bool used; /* by a root that is not destroyed */
    tsr_board *board;  /* of the dead one */
    int local_size;
} process;

static struct {
    _Atomic tsr_mpi_stage stage;
    _Atomic int size, rank;
    _Atomic bool heard[MOST_HEARD];
} start;

tsr_status tsr_mpi_check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return TSR_OK;
    MPI_Error_string(code, text, &length);
    return tsr_fail(TSR_ECOMM, "MPI: %s: %.*s", what, length, text);
}

/* ---- for the watchdog ---- */

tsr_mpi_stage tsr_comm_mpi_stage(void)
{
    return atomic_load(&start.stage);
}

void tsr_comm_mpi_missing(char *text, size_t bytes)
{
    int size = atomic_load(&start.size), missing = 0;
    size_t used = 0;
    *text = 0;
    for (int i = 0; i < size && i < MOST_HEARD; i++) {
        if (atomic_load(&start.heard[i]))
            continue;
        missing++;
        if (missing <= MOST_NAMED && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%srank %d", used ? ", " : "", i);
    }
    if (missing > MOST_NAMED && used < bytes)
        snprintf(text + used, bytes - used, " and %d more", missing - MOST_NAMED);
}

/* ---- the end ---- */

void tsr_mpi_closed(const tsr_comm *root)
{
    if (tsr_board_is_dead(root->gate.board)) {
        process.dead = true;
        process.board = root->gate.board; /* until the process ends, see at_exit */
        process.local_size = root->local_size;
    }
    atomic_store(&process.used, false);
}

/* mpirun stops all ranks as soon as one has ended with an error: so that none is stopped before it
 * has printed its own, the ranks of a dead job wait a little for each other. */
static void at_exit(void)
{
    int finalized = 0;
    if (process.dead && process.board) {
        double end = tsr_now() + FAREWELL_SECONDS;
        tsr_board_leave(process.board);
        while (tsr_board_left(process.board) < process.local_size && tsr_now() < end)
            tsr_board_sleep(process.board, tsr_board_bell(process.board), end - tsr_now());
    }
    if (process.dead || atomic_load(&process.used))
        return;
    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Finalize();
}

/* ---- the library ---- */

/* One that believes to be alone would train all, into the output_dir of the others. */
static tsr_status check_alone(const tsr_launched *launched)
{
    char library[TSR_MPI_LIBRARY_BYTES];
    if (!launched->claims)
        return TSR_OK;
    tsr_comm_mpi_library(library);
    return tsr_fail(TSR_ECONFIG,
                    "%s=%d says that this process is one of several ranks, but MPI knows of one "
                    "rank only: start the ranks with the mpirun of the MPI that this program was "
                    "built with (%.*s), or with srun --mpi=pmix; or, to run one rank, unset %s",
                    launched->claims, launched->claimed, (int)strcspn(library, ","), library,
                    launched->claims);
}

static tsr_status start_library(void)
{
    int provided = MPI_THREAD_SINGLE, initialized = 0, finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized)
        return tsr_fail(TSR_EINVAL, "MPI has been finalized already in this process");
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Query_thread(&provided);
    else {
        atomic_store(&start.stage, TSR_MPI_STARTING);
        TSR_TRY(
            tsr_mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "start"));
        process.ours = true;
        atexit(at_exit);
    }
    if (provided < MPI_THREAD_SERIALIZED)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "the MPI library gives thread level %d, and %d (MPI_THREAD_SERIALIZED) is "
                        "needed%s",
                        provided, MPI_THREAD_SERIALIZED,
                        initialized ? "; the program must ask for it in MPI_Init_thread" : "");
    return TSR_OK;
}

/* ---- meeting ---- */

static tsr_status late(double seconds)
{
    char host[64] = "", missing[128];
    gethostname(host, sizeof host - 1);
    tsr_comm_mpi_missing(missing, sizeof missing);
    return tsr_fail(TSR_ETIMEOUT,
                    "rank %d of %d on %s has waited %g s for %s after MPI started: a process "
                    "hangs, or a host cannot be reached",
                    atomic_load(&start.rank), atomic_load(&start.size), host, seconds,
                    *missing ? missing : "the other ranks");
}

/* A message of no content from everybody to everybody. The requests outlive a failure: they are MPI's then. */
static tsr_status greet(double seconds)
{
    int size = atomic_load(&start.size), rank = atomic_load(&start.rank), count = 0, left;
    MPI_Request *requests = calloc(2 * (size_t)size, sizeof *requests);
    int *places = calloc(2 * (size_t)size, sizeof *places);
    double end = tsr_now() + seconds;
    tsr_status status = TSR_OK;
    if (!requests || !places)
        status = tsr_fail(TSR_ENOMEM, "no memory to greet %d ranks", size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 2 * size && status == TSR_OK; i++) { /* from rank i, or to rank i - size */
        requests[i] = MPI_REQUEST_NULL;
        if (i % size == rank)
            continue;
        count++;
        status = tsr_mpi_check(
            i < size ? MPI_Irecv(NULL, 0, MPI_BYTE, i, GREETING_TAG, MPI_COMM_WORLD, &requests[i])
                     : MPI_Isend(NULL, 0, MPI_BYTE, i - size, GREETING_TAG, MPI_COMM_WORLD,
                                 &requests[i]),
            "greet a rank");
    }
    left = count;
    for (int polls = 0; left > 0 && status == TSR_OK; polls++) {
        int done = 0;
        status = tsr_mpi_check(MPI_Testsome(2 * size, requests, &done, places, MPI_STATUSES_IGNORE),
                               "greet a rank");
        for (int i = 0; status == TSR_OK && i < done; i++)
            if (places[i] < size && places[i] < MOST_HEARD)
                atomic_store(&start.heard[places[i]], true);
        left -= done > 0 ? done : 0;
        if (status == TSR_OK && left > 0 && tsr_now() >= end)
            status = late(seconds);
        tsr_mpi_rest(polls);
    }
    free(places);
    if (status == TSR_OK)
        free(requests);
    return status;
}

static tsr_status await(MPI_Request *request, int code, double seconds, const char *what)
{
    double end = tsr_now() + seconds;
    int done = 0;
    TSR_TRY(tsr_mpi_check(code, what));
    for (int polls = 0;; polls++) {
        TSR_TRY(tsr_mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), what));
        if (done)
            return TSR_OK;
        if (tsr_now() >= end)
            return late(seconds);
        tsr_mpi_rest(polls);
    }
}

typedef struct {
    struct mpi_world *world;
    double seconds;
    tsr_error error;
} gathering;

static int gather_plain(void *user, const void *send, void *receive, uint64_t bytes)
{
    gathering *g = user;
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallgather(send, (int)bytes, MPI_BYTE, receive, (int)bytes, MPI_BYTE,
                              g->world->control, &request);
    tsr_status status = await(&request, code, g->seconds, "gather");
    if (status < 0)
        tsr_error_take(&g->error, status);
    return status;
}

static tsr_status duplicate(MPI_Comm *out, double seconds)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Comm_idup(MPI_COMM_WORLD, out, &request);
    TSR_TRY(await(&request, code, seconds, "duplicate the world"));
    MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
    return TSR_OK;
}

/* Where the caller has started MPI, his messages are not to be mixed with greetings. */
static tsr_status make_world(struct mpi_world **out, double seconds)
{
    int rank = 0, size = 0;
    struct mpi_world *world = calloc(1, sizeof *world);
    if (!world)
        return tsr_fail(TSR_ENOMEM, "no memory for an MPI communicator");
    *out = world;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    atomic_store(&start.rank, rank);
    atomic_store(&start.size, size);
    for (int i = 0; i < MOST_HEARD; i++) /* those who greet nobody are not missed */
        atomic_store(&start.heard[i], i == rank || !process.ours);
    atomic_store(&start.stage, TSR_MPI_MEETING);
    if (process.ours && size > 1)
        TSR_TRY(greet(seconds));
    TSR_TRY(duplicate(&world->data, seconds));
    TSR_TRY(duplicate(&world->control, seconds));
    uint64_t peers = size > 1 ? (uint64_t)size - 1 : 1;
    world->slot_elements = SCRATCH_BYTES / sizeof *world->scratch / peers;
    if (world->slot_elements > SCRATCH_BYTES / 32)
        world->slot_elements = SCRATCH_BYTES / 32;
    if (world->slot_elements < LEAST_ELEMENTS)
        world->slot_elements = LEAST_ELEMENTS;
    world->scratch = malloc(world->slot_elements * peers * sizeof *world->scratch);
    return world->scratch ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for sums over %d ranks", size);
}

/* Nodes, the board, and the communicator on both. */
static tsr_status make_comm(tsr_comm **out, tsr_board **board, struct mpi_world *world,
                            double seconds, int ranks_per_node)
{
    int size = atomic_load(&start.size), rank = atomic_load(&start.rank);
    gathering g = {.world = world, .seconds = seconds};
    const tsr_bootstrap all = {rank, size, gather_plain, &g};
    int *nodes = calloc(2 * (size_t)size, sizeof *nodes);
    if (!nodes)
        return tsr_fail(TSR_ENOMEM, "no memory for an MPI communicator of %d ranks", size);
    tsr_status status = tsr_share_find_nodes(nodes, &all);
    for (int i = 0; i < size; i++) {
        nodes[size + i] = i; /* the members */
        if (ranks_per_node)
            nodes[i] = i / ranks_per_node;
    }
    if (status == TSR_OK)
        status = tsr_share_board(board, &all, nodes);
    if (status < 0 && g.error.status < 0)
        status = tsr_error_put(&g.error);
    if (status == TSR_OK)
        status = tsr_comm_new(out, &tsr_mpi_ops, world, *board, NULL, 0, rank, size, nodes + size,
                              nodes, seconds);
    free(nodes);
    return status;
}

tsr_status tsr_comm_create_mpi_with(tsr_comm **out, double timeout_seconds,
                                    const tsr_comm_mpi_options *options)
{
    int initialized = 0;
    double seconds = timeout_seconds > 0 ? timeout_seconds : 300;
    struct mpi_world *world = NULL;
    tsr_board *board = NULL;
    tsr_launched launched = tsr_launcher_look();
    MPI_Initialized(&initialized);
    if (!initialized && !launched.of_mpi) {
        TSR_TRY(check_alone(&launched));
        return tsr_comm_create_self(out);
    }
    if (atomic_exchange(&process.used, true))
        return tsr_fail(TSR_EINVAL,
                        "another job of this process has the ranks of MPI_COMM_WORLD; MPI serves "
                        "one at a time: destroy that job first");
    tsr_status status = start_library();
    if (status == TSR_OK)
        status = make_world(&world, seconds);
    if (status == TSR_OK && atomic_load(&start.size) == 1)
        status = check_alone(&launched);
    if (status == TSR_OK) {
        world->message_bytes = options->message_bytes ? options->message_bytes : MESSAGE_BYTES;
        status = make_comm(out, &board, world, seconds, options->ranks_per_node);
    }
    atomic_store(&start.stage, TSR_MPI_TOGETHER);
    if (status == TSR_OK)
        return TSR_OK;
    process.dead = true; /* the other ranks may still be in there */
    if (board)
        tsr_share_leave_board(
            board,
            &(tsr_bootstrap){.rank = atomic_load(&start.rank), .size = atomic_load(&start.size)},
            status);
    if (world)
        free(world->scratch);
    free(world);
    atomic_store(&process.used, false);
    return status;
}

tsr_status tsr_comm_create_mpi(tsr_comm **out, double timeout_seconds)
{
    return tsr_comm_create_mpi_with(out, timeout_seconds, &(tsr_comm_mpi_options){0});
}

_Static_assert(MPI_MAX_LIBRARY_VERSION_STRING <= TSR_MPI_LIBRARY_BYTES, "room for its version");

void tsr_comm_mpi_library(char text[TSR_MPI_LIBRARY_BYTES])
{
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        length = 0;
    text[length] = 0;
}
