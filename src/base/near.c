#include "base/near.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST 64

static int min(int a, int b)
{
    return a < b ? a : b;
}

int tsr_near_distance(const char *a, const char *b, int limit)
{
    int rows[3][LONGEST + 1];
    int m = (int)strnlen(a, LONGEST + 1), n = (int)strnlen(b, LONGEST + 1);
    if (m > LONGEST || n > LONGEST || abs(m - n) > limit)
        return limit + 1;
    for (int j = 0; j <= n; j++)
        rows[0][j] = j;
    for (int i = 1; i <= m; i++) {
        int *now = rows[i % 3];
        const int *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        int least = now[0] = i;
        for (int j = 1; j <= n; j++) {
            now[j] = min(min(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
            least = min(least, now[j]);
        }
        /* Later rows have no less: a swap adds 1 to the row before, which has least - 1 or more. */
        if (least > limit)
            return limit + 1;
    }
    int distance = rows[m % 3][n];
    return distance > limit ? limit + 1 : distance;
}

int tsr_near_too_far(const char *name)
{
    size_t length = strnlen(name, LONGEST + 1);
    return 1 + (length < 4 ? 1 : length < 9 ? 2 : (int)length / 3);
}

void tsr_near_consider(const char **best, int *distance, const char *name, const char *candidate)
{
    int d = tsr_near_distance(name, candidate, *distance - 1);
    if (d < *distance) {
        *distance = d;
        *best = candidate;
    }
}
