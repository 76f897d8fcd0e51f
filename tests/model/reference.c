#include "model/reference.h"

#include "kernels/dropout.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One document on its way through the model. */
typedef struct {
    const random_model *model;
    const reference_batch *batch;
    const reference_document *document;
    int tokens;
} pass;

static double *new_rows(int tokens, uint64_t columns)
{
    double *out = calloc((size_t)tokens * columns + 1, sizeof *out);
    assert_non_null(out);
    return out;
}

static double dot(const double *a, const double *b, uint64_t count)
{
    double sum[4] = {0};
    uint64_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += a[i + (uint64_t)k] * b[i + (uint64_t)k];
    for (; i < count; i++)
        sum[0] += a[i] * b[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* y [tokens, out] = x w^T */
static void multiply(double *y, const double *x, const double *w, int tokens, uint64_t out,
                     uint64_t in)
{
    for (int t = 0; t < tokens; t++)
        for (uint64_t j = 0; j < out; j++)
            y[(uint64_t)t * out + j] = dot(x + (uint64_t)t * in, w + j * in, in);
}

static double *dropped(const pass *p, const model_linear *l, const double *x)
{
    double *out = new_rows(p->tokens, l->in);
    tsr_dropout dropout =
        tsr_dropout_make(p->batch->dropout, p->batch->seed, p->batch->epoch, l->key);
    double kept =
        1 - round(p->batch->dropout * 65536) / 65536; /* kernels/dropout.h: p in 16 bits */
    uint8_t *mask = malloc(l->in);
    for (int t = 0; t < p->tokens; t++) {
        tsr_dropout_mask_row(mask, l->in, &dropout, p->document->sample,
                             (uint32_t)(p->document->first_position + t));
        for (uint64_t i = 0; i < l->in; i++)
            out[(uint64_t)t * l->in + i] = mask[i] ? x[(uint64_t)t * l->in + i] / kept : 0;
    }
    free(mask);
    return out;
}

/* y = W x + bias; LoRA: + s B A drop(x); DoRA: + (g - 1) W drop(x) + g s B A drop(x). */
static double *linear(const pass *p, const model_linear *l, const double *x)
{
    double *y = new_rows(p->tokens, l->out), *base = NULL;
    uint64_t r = (uint64_t)p->model->spec.r, all = (uint64_t)p->tokens * l->out;
    multiply(y, x, l->w->data, p->tokens, l->out, l->in);
    if (l->a) {
        double *xd = p->batch->dropout > 0 ? dropped(p, l, x) : NULL;
        const double *input = xd ? xd : x;
        double *low = new_rows(p->tokens, r);
        double *up = new_rows(p->tokens, l->out);
        multiply(low, input, l->a->data, p->tokens, r, l->in);
        multiply(up, low, l->b->data, p->tokens, l->out, r);
        if (l->m) {
            base = new_rows(p->tokens, l->out);
            multiply(base, input, l->w->data, p->tokens, l->out, l->in);
        }
        for (uint64_t i = 0; i < all; i++) {
            double g = l->m ? l->m->data[i % l->out] / l->n[i % l->out] : 1;
            y[i] += g * l->scale * up[i] + (base ? (g - 1) * base[i] : 0);
        }
        free(xd);
        free(low);
        free(up);
        free(base);
    }
    for (uint64_t i = 0; l->bias && i < all; i++)
        y[i] += l->bias->data[i % l->out];
    return y;
}

/* In place or not: out = w x / rms(x), over groups of `width`. */
static void rms_norm(double *out, const double *x, const double *w, uint64_t groups, uint64_t width,
                     double eps)
{
    for (uint64_t g = 0; g < groups; g++) {
        const double *in = x + g * width;
        double scale = 1 / sqrt(dot(in, in, width) / (double)width + eps);
        for (uint64_t i = 0; i < width; i++)
            out[g * width + i] = in[i] * scale * w[i];
    }
}

static double frequency(const model_spec *s, int i)
{
    double f = pow(s->theta, -2.0 * i / s->head_dim);
    if (s->rope == ROPE_LINEAR)
        return f / 4;
    if (s->rope == ROPE_DEFAULT)
        return f;
    double wavelength = 2 * 3.14159265358979323846 / f;
    double low = 32.0 / 1, high = 32.0 / 4; /* wavelengths: original / low_freq_factor, / high */
    if (wavelength > low)
        return f / 8;
    if (wavelength < high)
        return f;
    double smooth = (32 / wavelength - 1) / (4 - 1);
    return (1 - smooth) * f / 8 + smooth * f;
}

static void rotate(const model_spec *s, double *x, int tokens, int heads)
{
    int half = s->head_dim / 2;
    for (int t = 0; t < tokens; t++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < half; i++) {
                double *a = &x[(t * heads + h) * s->head_dim + i], *b = a + half;
                double angle = t * frequency(s, i), c = cos(angle), n = sin(angle);
                double first = *a * c - *b * n, second = *b * c + *a * n;
                *a = first;
                *b = second;
            }
}

static double *attend(const model_spec *s, const double *q, const double *k, const double *v,
                      int tokens)
{
    int hd = s->head_dim, group = s->heads / s->kv_heads;
    double *o = new_rows(tokens, (uint64_t)(s->heads * hd));
    double *score = new_rows(tokens, 1);
    for (int h = 0; h < s->heads; h++)
        for (int t = 0; t < tokens; t++) {
            int first = s->window && t - s->window + 1 > 0 ? t - s->window + 1 : 0;
            double most = -INFINITY, sum = 0;
            for (int j = first; j <= t; j++) {
                score[j] = dot(q + (t * s->heads + h) * hd, k + (j * s->kv_heads + h / group) * hd,
                               (uint64_t)hd) /
                           sqrt(hd);
                most = fmax(most, score[j]);
            }
            for (int j = first; j <= t; j++)
                sum += score[j] = exp(score[j] - most);
            for (int j = first; j <= t; j++)
                for (int i = 0; i < hd; i++)
                    o[(t * s->heads + h) * hd + i] +=
                        score[j] / sum * v[(j * s->kv_heads + h / group) * hd + i];
        }
    free(score);
    return o;
}

static void add_to(double *x, double *y, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] += y[i];
    free(y);
}

static void layer(const pass *p, int index, double *x)
{
    const random_model *m = p->model;
    const model_spec *s = &m->spec;
    const model_linear *l = m->linear[index];
    uint64_t d = (uint64_t)s->d, t = (uint64_t)p->tokens, hd = (uint64_t)s->head_dim;
    double *h = new_rows(p->tokens, d);
    rms_norm(h, x, m->input_norm[index]->data, t, d, s->eps);
    double *q = linear(p, &l[LLAMA_Q], h), *k = linear(p, &l[LLAMA_K], h);
    double *v = linear(p, &l[LLAMA_V], h);
    if (m->q_norm[index]) {
        rms_norm(q, q, m->q_norm[index]->data, t * (uint64_t)s->heads, hd, s->eps);
        rms_norm(k, k, m->k_norm[index]->data, t * (uint64_t)s->kv_heads, hd, s->eps);
    }
    rotate(s, q, p->tokens, s->heads);
    rotate(s, k, p->tokens, s->kv_heads);
    double *o = attend(s, q, k, v, p->tokens);
    add_to(x, linear(p, &l[LLAMA_O], o), t * d);
    rms_norm(h, x, m->post_norm[index]->data, t, d, s->eps);
    double *gate = linear(p, &l[LLAMA_GATE], h), *up = linear(p, &l[LLAMA_UP], h);
    for (uint64_t i = 0; i < t * (uint64_t)s->f; i++)
        up[i] *= gate[i] / (1 + exp(-gate[i]));
    add_to(x, linear(p, &l[LLAMA_DOWN], up), t * d);
    free(h);
    free(q);
    free(k);
    free(v);
    free(o);
    free(gate);
    free(up);
}

static double token_loss(const random_model *m, const double *h, int32_t label)
{
    uint64_t d = (uint64_t)m->spec.d;
    double *logit = new_rows(m->spec.vocab, 1), most = -INFINITY, sum = 0;
    multiply(logit, h, m->head->data, 1, (uint64_t)m->spec.vocab, d);
    for (int v = 0; v < m->spec.vocab; v++)
        most = fmax(most, logit[v]);
    for (int v = 0; v < m->spec.vocab; v++)
        sum += exp(logit[v] - most);
    double loss = most + log(sum) - logit[label];
    free(logit);
    return loss;
}

double reference_loss(const random_model *model, const reference_batch *batch, double *nll,
                      double *hidden)
{
    uint64_t d = (uint64_t)model->spec.d, labels = 0;
    double total = 0;
    for (int i = 0; i < batch->count; i++) {
        const reference_document *document = &batch->document[i];
        pass p = {model, batch, document, document->length};
        double *x = new_rows(p.tokens, d);
        for (int t = 0; t < p.tokens; t++)
            memcpy(x + (uint64_t)t * d, model->embedding->data + (uint64_t)document->ids[t] * d,
                   d * sizeof *x);
        for (int l = 0; l < model->spec.layers; l++)
            layer(&p, l, x);
        rms_norm(x, x, model->final_norm->data, (uint64_t)p.tokens, d, model->spec.eps);
        for (int t = 0; t < p.tokens; t++) {
            if (document->label[t] < 0)
                continue;
            double loss = token_loss(model, x + (uint64_t)t * d, document->label[t]);
            total += loss;
            if (nll)
                nll[labels] = loss;
            if (hidden)
                memcpy(hidden + labels * d, x + (uint64_t)t * d, d * sizeof *x);
            labels++;
        }
        free(x);
    }
    return total;
}
