/*
 * base/phase.h: how far long work has come. Whoever does such work says so as it goes, whatever layer it
 * is on; whoever called the library hears it, or nobody does. Each thread has its own listener, as it
 * has its own log (base/log.h): a call of the library sets it for as long as it runs.
 */
#ifndef TSR_BASE_PHASE_H
#define TSR_BASE_PHASE_H

/* Out of `total`, in whatever unit; done == total ends the phase. A phase may say how fast it is, in parentheses behind its
 * name: "reading (120 rows/s)". */
typedef void tsr_phase_sink(void *user, const char *phase, double done, double total);

/* For this thread. `sink` NULL: nobody hears. */
void tsr_phase_set(tsr_phase_sink *sink, void *user);

/* What is set for this thread, for a call to put back at its end. */
typedef struct {
    tsr_phase_sink *sink;
    void *user;
} tsr_phase_listener;

tsr_phase_listener tsr_phase_get(void);

/* Cheap enough for every row or tensor. */
void tsr_phase_at(const char *phase, double done, double total);

#endif
