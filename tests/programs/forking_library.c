/* For a link-map namespace of its own, where it has a C library of its own: by dlmopen, or as LD_AUDIT. */
#define _GNU_SOURCE
#include <link.h>
#include <unistd.h>

pid_t other_fork(void) { return fork(); }

unsigned int la_version(unsigned int version) { return version; }
