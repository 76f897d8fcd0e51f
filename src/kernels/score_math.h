/*
 * kernels/score_math.h: from rewards to the loss, slopes and metrics of score.h, once for the CPU and for GPUs, by one thread.
 * Private to score_ref.c and score.cu.
 */
#ifndef TSR_KERNELS_SCORE_MATH_H
#define TSR_KERNELS_SCORE_MATH_H

#include "kernels/objective_math.h"
#include "kernels/score.h"

/* The loss of a pair, and its slopes. */
TSR_PREFER_INLINE tsr_prefer_slopes tsr_score_pair(const tsr_score_args *a, int64_t pair)
{
    double chosen = a->reward[2 * pair], rejected = a->reward[2 * pair + 1];
    double x = chosen - rejected - (a->margin ? (double)a->margin[pair] : 0);
    double sum = chosen + rejected, pull = 2 * a->center * sum;
    tsr_prefer_slopes out;
    out.loss = a->center * sum * sum - tsr_log_sigmoid(x);
    out.by_first = pull - tsr_sigmoid(-x);
    out.by_second = pull + tsr_sigmoid(-x);
    return out;
}

/* The words of a micro-batch followed by its loss, [TSR_SCORE_WORDS + 1]; writes the slopes. */
TSR_PREFER_INLINE void tsr_score_words(double *word, const tsr_score_args *a)
{
    double pairs = (double)(a->rows / 2);
    for (int i = 0; i <= TSR_SCORE_WORDS; i++)
        word[i] = 0;
    word[TSR_SCORE_MIN] = word[TSR_SCORE_MAX] = a->reward[0];
    for (int64_t i = 0; i < a->rows / 2; i++) {
        double chosen = a->reward[2 * i], rejected = a->reward[2 * i + 1];
        double low = chosen < rejected ? chosen : rejected;
        double high = chosen < rejected ? rejected : chosen;
        tsr_prefer_slopes one = tsr_score_pair(a, i);
        a->slope[2 * i] = a->scale * one.by_first / pairs;
        a->slope[2 * i + 1] = a->scale * one.by_second / pairs;
        word[TSR_SCORE_WORDS] += one.loss / pairs;
        word[TSR_SCORE_ACCURACY] += (chosen > rejected && !(a->tie && a->tie[i])) / pairs;
        word[TSR_SCORE_MARGIN] += (chosen - rejected) / pairs;
        word[TSR_SCORE_MEAN] += (chosen + rejected) / (2 * pairs);
        word[TSR_SCORE_MIN] = low < word[TSR_SCORE_MIN] ? low : word[TSR_SCORE_MIN];
        word[TSR_SCORE_MAX] = high > word[TSR_SCORE_MAX] ? high : word[TSR_SCORE_MAX];
    }
}

/* Adds them; or, where one of them is not finite or too large, sets loss_overflow and the slopes to 0. */
TSR_PREFER_INLINE void tsr_score_add(const tsr_score_args *a, const double *word)
{
    bool fine = true;
    for (int i = 0; i <= TSR_SCORE_WORDS; i++)
        fine = fine && word[i] < TSR_PREFER_LIMIT && word[i] > -TSR_PREFER_LIMIT;
    if (!fine) {
        *a->loss_overflow = 1;
        for (int64_t i = 0; i < a->rows; i++)
            a->slope[i] = 0;
        return;
    }
    for (int i = 0; i < TSR_SCORE_WORDS; i++)
        a->words[i] += llrint(ldexp(word[i], TSR_LOSS_SHIFT));
    *a->loss += llrint(ldexp(word[TSR_SCORE_WORDS], TSR_LOSS_SHIFT));
}

#endif
