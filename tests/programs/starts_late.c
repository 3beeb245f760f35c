// A preloaded library that keeps `sleep` busy for two to three seconds before its start goes on,
// as a machine with too little CPU time or a slow disk does.
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h>

__attribute__((constructor)) static void delay(void) {
    if (strcmp(program_invocation_short_name, "sleep") != 0)
        return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (time_t end = now.tv_sec + 2; now.tv_sec <= end;)
        clock_gettime(CLOCK_MONOTONIC, &now);
}
