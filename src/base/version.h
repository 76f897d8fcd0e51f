/*
 * base/version.h: which Tessera this is.
 */
#ifndef TSR_BASE_VERSION_H
#define TSR_BASE_VERSION_H

/* "0.2.0", and the commit that was built ("unknown" outside git). */
const char *tsr_build_version(void);
const char *tsr_build_commit(void);

#endif
