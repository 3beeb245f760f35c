/* A preloaded library that is not Terrace's: counts what passes through it on its way to the next
 * definition. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_int forks, mappings;
static void *block;

__attribute__((constructor)) static void begin(void) { memset(block = malloc(100000), 1, 100000); }
__attribute__((destructor)) static void end(void) { free(block); }

pid_t fork(void) {
    forks++;
    return ((pid_t(*)(void))dlsym(RTLD_NEXT, "fork"))();
}

void *mmap(void *address, size_t len, int protection, int flags, int fd, off_t offset) {
    mappings++;
    return ((void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap"))(address, len, protection, flags, fd, offset);
}

int another_preload_forks(void) { return forks; }
