#include "data/adapter_schedule_parts.h"

#ifdef TSR_HAVE_CBC

#include "base/library.h"

#include <Cbc_C_Interface.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* CBC is loaded when a schedule first asks for it, and not linked: it brings LAPACK and with it a second OpenBLAS. Beside
 * the one in the program these two would take each other's functions, and the program would not start where CBC is not. */

#define FUNCTIONS(X)                                                                               \
    X(getVersion)                                                                                  \
    X(newModel)                                                                                    \
    X(deleteModel)                                                                                 \
    X(setLogLevel)                                                                                 \
    X(setParameter)                                                                                \
    X(loadProblem)                                                                                 \
    X(setInteger)                                                                                  \
    X(solve)                                                                                       \
    X(bestSolution)

static struct {
#define FIELD(name) __typeof__(Cbc_##name) *name;
    FUNCTIONS(FIELD)
} cbc;

#define NAME(name) "Cbc_" #name,
static const char *const names[] = {FUNCTIONS(NAME)};

static tsr_library_version parse(const char *text)
{
    tsr_library_version v = {0};
    if (sscanf(text, "%d.%d.%d", &v.major, &v.minor, &v.patch) < 2)
        v = (tsr_library_version){0};
    return v;
}

static tsr_library_version version(void)
{
    return parse(cbc.getVersion());
}

static pthread_mutex_t solving = PTHREAD_MUTEX_INITIALIZER;
static tsr_library library = {
    .name = "CBC",
    .soname = "libCbcSolver.so.3", /* of all 2.10 */
    .install = "package coinor-libcbc3",
    .instead = "write adapter_schedule: greedy",
    .oldest = {2, 10, 0},
    .names = names,
    .count = sizeof names / sizeof *names,
    .functions = &cbc,
    .version = version,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

bool tsr_adapter_schedule_has_milp(void)
{
    return true;
}

tsr_status tsr_schedule_cbc_load(void)
{
    pthread_mutex_lock(&solving);
    library.built = parse(TSR_HAVE_CBC);
    pthread_mutex_unlock(&solving);
    return tsr_library_load(NULL, &library);
}

/* The matrix by columns: those to choose among, then for each kind how many of its rows are left. Rows of the matrix: for
 * each kind that all its rows are somewhere, then how many columns are chosen, then the tokens that are left. */
typedef struct {
    int columns, rows;
    CoinBigIndex *start;
    int *index;
    double *value, *low, *high, *cost, *row_low, *row_high;
} model;

static void model_free(model *m)
{
    free(m->start);
    free(m->index);
    free(m->value);
    free(m->low);
    free(m->high);
    free(m->cost);
    free(m->row_low);
    free(m->row_high);
}

static tsr_status model_alloc(model *m, const tsr_schedule_columns *c)
{
    size_t columns = (size_t)c->columns + (size_t)c->kinds, rows = (size_t)c->kinds + 2;
    size_t entries = (size_t)c->first[c->columns] + 2 * columns;
    *m = (model){.columns = (int)columns,
                 .rows = (int)rows,
                 .start = calloc(columns + 1, sizeof *m->start),
                 .index = calloc(entries, sizeof *m->index),
                 .value = calloc(entries, sizeof *m->value),
                 .low = calloc(columns, sizeof *m->low),
                 .high = calloc(columns, sizeof *m->high),
                 .cost = calloc(columns, sizeof *m->cost),
                 .row_low = calloc(rows, sizeof *m->row_low),
                 .row_high = calloc(rows, sizeof *m->row_high)};
    if (m->start && m->index && m->value && m->low && m->high && m->cost && m->row_low &&
        m->row_high)
        return TSR_OK;
    model_free(m);
    return tsr_fail(TSR_ENOMEM, "no memory for a model of %zu columns", columns);
}

static void add_entry(model *m, CoinBigIndex *at, int row, double value)
{
    m->index[*at] = row;
    m->value[(*at)++] = value;
}

/* How often a column's rows are there. */
static int32_t most_times(const tsr_schedule_columns *c, int32_t column)
{
    int32_t most = INT32_MAX, run = 0;
    for (int32_t i = c->first[column]; i < c->first[column + 1]; i++) {
        run = i > c->first[column] && c->kind[i] == c->kind[i - 1] ? run + 1 : 1;
        int32_t times = c->rows[c->kind[i]] / run;
        most = times < most ? times : most;
    }
    return most;
}

static void fill_in(model *m, const tsr_schedule_columns *c, int64_t most, int64_t least,
                    int64_t limit)
{
    CoinBigIndex at = 0;
    int chosen = c->kinds, left = c->kinds + 1;
    for (int32_t j = 0; j < c->columns; j++) {
        m->start[j] = at;
        m->high[j] = most_times(c, j);
        for (int32_t i = c->first[j]; i < c->first[j + 1]; i++) {
            if (i > c->first[j] && c->kind[i] == c->kind[i - 1])
                m->value[at - 1]++;
            else
                add_entry(m, &at, c->kind[i], 1);
        }
        add_entry(m, &at, chosen, 1);
    }
    for (int32_t k = 0; k < c->kinds; k++) {
        int j = c->columns + k;
        m->start[j] = at;
        m->high[j] = c->rows[k];
        m->cost[j] = c->tokens[k];
        add_entry(m, &at, k, 1);
        add_entry(m, &at, left, c->tokens[k]);
        m->row_low[k] = c->rows[k];
        m->row_high[k] = 1e30;
    }
    m->start[m->columns] = at;
    m->row_high[chosen] = (double)most;
    m->row_low[left] = (double)least;
    m->row_high[left] = (double)limit;
}

/* CBC takes SIGINT for a part of its work, and what it puts back is less than what it took: the handler without its flags.
 * So SIGINT waits until all is as it was; other threads of Tessera take no signals. */
static void solve_quietly(Cbc_Model *solver)
{
    struct sigaction action;
    sigset_t interrupt, mask;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &mask);
    sigaction(SIGINT, NULL, &action);
    cbc.solve(solver);
    sigaction(SIGINT, &action, NULL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

/* No clock, one thread, fixed seeds. Of what CBC does by itself the cuts and heuristics go: they cost ten times what
 * they bring to models as small as these. */
static void solve(bool *found, int32_t *times, const model *m, int choices, int nodes)
{
    char limit[16];
    snprintf(limit, sizeof limit, "%d", nodes);
    const char *const parameters[][2] = {
        {"log", "0"},
        {"threads", "0"},
        {"randomSeed", "1"},
        {"randomCbcSeed", "1"},
        {"cutsOnOff", "off"},
        {"preprocess", "off"},
        {"heuristicsOnOff", "off"},
        {"maxNodes", limit},
    };
    Cbc_Model *solver = cbc.newModel();
    cbc.setLogLevel(solver, 0);
    cbc.loadProblem(solver, m->columns, m->rows, m->start, m->index, m->value, m->low, m->high,
                    m->cost, m->row_low, m->row_high);
    for (int j = 0; j < m->columns; j++)
        cbc.setInteger(solver, j);
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        cbc.setParameter(solver, parameters[i][0], parameters[i][1]);
    solve_quietly(solver);
    const double *solution = cbc.bestSolution(solver);
    *found = solution != NULL;
    for (int j = 0; solution && j < choices; j++)
        times[j] = solution[j] > 0.5 ? (int32_t)(fmin(solution[j], m->high[j]) + 0.5) : 0;
    cbc.deleteModel(solver);
}

tsr_status tsr_schedule_cbc_choose(bool *found, int32_t *times, const tsr_schedule_columns *columns,
                                   int64_t most, int64_t least, int64_t limit, int nodes)
{
    model m;
    TSR_TRY(model_alloc(&m, columns));
    fill_in(&m, columns, most, least, limit);
    pthread_mutex_lock(&solving); /* CBC has variables of the process */
    solve(found, times, &m, columns->columns, nodes);
    pthread_mutex_unlock(&solving);
    model_free(&m);
    return TSR_OK;
}

#else

bool tsr_adapter_schedule_has_milp(void)
{
    return false;
}

tsr_status tsr_schedule_cbc_load(void)
{
    return tsr_fail(TSR_ECONFIG, "adapter_schedule: milp: this build has no CBC (package "
                                 "coinor-libcbc-dev); write adapter_schedule: greedy");
}

tsr_status tsr_schedule_cbc_choose(bool *found, int32_t *times, const tsr_schedule_columns *columns,
                                   int64_t most, int64_t least, int64_t limit, int nodes)
{
    (void)found, (void)times, (void)columns, (void)most, (void)least, (void)limit, (void)nodes;
    return tsr_schedule_cbc_load();
}

#endif
