/*
 * base/near.h: the known name that a misspelt one was meant to be.
 */
#ifndef TSR_BASE_NEAR_H
#define TSR_BASE_NEAR_H

/* Edits (insert, delete, replace, swap neighbours) between two words of up to 64 bytes, at most `limit` + 1. */
int tsr_near_distance(const char *a, const char *b, int limit);

/* As many edits make another name of it. */
int tsr_near_too_far(const char *name);

/* Takes `candidate` as *best if it is nearer to `name` than *distance. */
void tsr_near_consider(const char **best, int *distance, const char *name, const char *candidate);

#endif
