#include "model/reference_experts.h"

#include <math.h>
#include <stddef.h>

#define MOST_EXPERTS 1024

void reference_router(double *logits, const double *x, const double *w, const double *bias,
                      int tokens, int width, int experts)
{
    for (int t = 0; t < tokens; t++)
        for (int e = 0; e < experts; e++) {
            double sum = bias ? bias[e] : 0;
            for (int i = 0; i < width; i++)
                sum += x[t * width + i] * w[e * width + i];
            logits[t * experts + e] = sum;
        }
}

static void softmax(double *out, const double *s, int count)
{
    double most = s[0], sum = 0;
    for (int i = 1; i < count; i++)
        most = fmax(most, s[i]);
    for (int i = 0; i < count; i++)
        sum += out[i] = exp(s[i] - most);
    for (int i = 0; i < count; i++)
        out[i] /= sum;
}

/* The index of the largest that is not -infinity; of equals the first. */
static int best_of(const double *values, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

/* Those outside of the best groups are not chosen. A group's score: its two largest. */
static void leave_groups(double *choice, const reference_routing *how)
{
    int size = how->experts / how->n_group;
    double score[MOST_EXPERTS];
    bool stays[MOST_EXPERTS] = {false};
    for (int g = 0; g < how->n_group; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (int i = 0; i < size; i++) {
            double c = choice[g * size + i];
            second = fmax(second, fmin(first, c));
            first = fmax(first, c);
        }
        score[g] = first + second;
    }
    for (int n = 0; n < how->topk_group; n++) {
        int best = best_of(score, how->n_group);
        stays[best] = true;
        score[best] = -INFINITY;
    }
    for (int e = 0; e < how->experts; e++)
        if (!stays[e / size])
            choice[e] = -INFINITY;
}

/* One token's experts and weights. */
static void choose(int32_t *id, double *p, const double *s, const reference_routing *how)
{
    double score[MOST_EXPERTS], choice[MOST_EXPERTS], sum = 0;
    if (how->scoring == REFERENCE_SOFTMAX)
        softmax(score, s, how->experts);
    for (int e = 0; e < how->experts; e++) {
        if (how->scoring == REFERENCE_SIGMOID)
            score[e] = 1 / (1 + exp(-s[e]));
        else if (how->scoring == REFERENCE_CHOSEN)
            score[e] = s[e];
        choice[e] = score[e] + (how->correction ? how->correction[e] : 0);
    }
    if (how->n_group > 1)
        leave_groups(choice, how);
    for (int j = 0; j < how->k; j++) {
        id[j] = best_of(choice, how->experts);
        choice[id[j]] = -INFINITY;
        p[j] = score[id[j]];
    }
    if (how->scoring == REFERENCE_CHOSEN)
        softmax(p, p, how->k);
    for (int j = 0; j < how->k; j++)
        sum += p[j];
    for (int j = 0; j < how->k; j++) {
        if (how->normalise)
            p[j] /= sum + (how->scoring == REFERENCE_SIGMOID ? 1e-20 : 0);
        p[j] *= how->scale != 0 ? how->scale : 1;
        p[j] *= how->expert_scale ? how->expert_scale[id[j]] : 1;
    }
}

/* Rows that an expert has of a tile at most. */
static int capacity_of(const reference_routing *how, int tokens)
{
    double most = how->capacity_factor * tokens * how->k / how->experts;
    if (how->capacity)
        return how->capacity;
    return !(how->capacity_factor > 0) || most >= tokens ? tokens : most > 1 ? (int)ceil(most) : 1;
}

/* The rows of expert e of tokens [first, end). */
static int take_rows(const reference_routes *out, const reference_routing *how, int e, int first,
                     int end, int rows)
{
    int most = rows + capacity_of(how, end - first);
    for (int i = first * how->k; i < end * how->k; i++) {
        if (out->id[i] != e || rows == most)
            continue;
        out->row[i] = rows;
        out->slot[rows++] = i;
    }
    return rows;
}

void reference_route(const reference_routes *out, const double *logits,
                     const reference_routing *how, int tokens)
{
    int slots = tokens * how->k, rows = 0;
    for (int t = 0; t < tokens; t++)
        choose(out->id + t * how->k, out->p + t * how->k, logits + t * how->experts, how);
    for (int i = 0; i < slots; i++)
        out->row[i] = out->slot[i] = -1;
    for (int e = 0; e < how->experts; e++) {
        out->offset[e] = rows;
        int tile = how->tile_rows ? how->tile_rows : tokens;
        for (int first = 0; first < tokens; first += tile)
            rows =
                take_rows(out, how, e, first, first + tile < tokens ? first + tile : tokens, rows);
    }
    out->offset[how->experts] = rows;
}

/* One row of one expert. */
static void multiply(double *y, const double *x, const reference_expert_linear *l, int e)
{
    const double *w = l->w + (ptrdiff_t)e * l->out * l->in;
    for (int o = 0; o < l->out; o++) {
        y[o] = l->bias ? l->bias[e * l->out + o] : 0;
        for (int i = 0; i < l->in; i++)
            y[o] += w[o * l->in + i] * x[i];
    }
    for (int j = 0; j < l->r; j++) {
        const double *a = l->a + (ptrdiff_t)(e * l->r + j) * l->in;
        const double *b = l->b + (ptrdiff_t)e * l->out * l->r;
        double low = 0;
        for (int i = 0; i < l->in; i++)
            low += a[i] * x[i];
        for (int o = 0; o < l->out; o++)
            y[o] += l->scale * b[o * l->r + j] * low;
    }
}

void reference_experts(double *y, const double *x, bool gather, const reference_expert_linear *l,
                       const reference_routes *routes, const reference_routing *how, int tokens)
{
    for (int i = 0; i < tokens * how->k * l->out; i++)
        y[i] = 0;
    for (int e = 0; e < how->experts; e++)
        for (int i = routes->offset[e]; i < routes->offset[e + 1]; i++) {
            int from = gather ? routes->slot[i] / how->k : i;
            multiply(y + (ptrdiff_t)i * l->out, x + (ptrdiff_t)from * l->in, l, e);
        }
}

void reference_combine(double *y, const double *z, const reference_routes *routes,
                       const reference_routing *how, int tokens, int width)
{
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < width; i++) {
            y[t * width + i] = 0;
            for (int j = 0; j < how->k; j++) {
                int slot = t * how->k + j, row = routes->row[slot];
                y[t * width + i] += row < 0 ? 0 : routes->p[slot] * z[row * width + i];
            }
        }
}

void reference_shared(double *y, const double *z, const double *gate, int tokens, int width)
{
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < width; i++)
            y[t * width + i] += (gate ? 1 / (1 + exp(-gate[t])) : 1) * z[t * width + i];
}

double reference_auxiliary(const int32_t *ids, const double *logits, int64_t tokens, int k,
                           int experts)
{
    double share[MOST_EXPERTS] = {0}, mean[MOST_EXPERTS] = {0}, one[MOST_EXPERTS], sum = 0;
    for (int64_t t = 0; t < tokens; t++) {
        softmax(one, logits + t * experts, experts);
        for (int e = 0; e < experts; e++)
            mean[e] += one[e] / (double)tokens;
        for (int j = 0; j < k; j++)
            share[ids[t * k + j]] += 1 / (double)tokens;
    }
    for (int e = 0; e < experts; e++)
        sum += experts * share[e] * mean[e];
    return sum;
}
