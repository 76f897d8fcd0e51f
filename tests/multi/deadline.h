/*
 * multi/deadline.h: how long peer.c's ranks wait for each other, in seconds. AddressSanitizer's programs take longer to start than
 * others: with other tests beside them ranks were more than 3 seconds apart before any had stopped.
 */
#ifndef TSR_TESTS_MULTI_DEADLINE_H
#define TSR_TESTS_MULTI_DEADLINE_H

#ifdef __SANITIZE_ADDRESS__
#define DEADLINE 8
#else
#define DEADLINE 3
#endif

#endif
