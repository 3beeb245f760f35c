/* A library whose constructor registers fork handlers that touch its memory, before the program's main has run. */
#include "cold.h"
#include <pthread.h>

enum { PAGES = 512 };
static char *memory;
static int calls;

static void prepare(void) { check_pages(memory, 0, 8, 77); }
static void parent(void) { check_pages(memory, 8, 16, 77); }
static void child(void) {
    calls++;
    check(memory, PAGES * PAGE, 77);
    free(malloc(100000));
}

__attribute__((constructor)) static void begin(void) {
    memory = malloc(PAGES * PAGE + PAGE);
    memory = (char *)(((uintptr_t)memory + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    fill(memory, PAGES * PAGE, 77);
    pthread_atfork(prepare, parent, child);
}

void atfork_library_evict(void) { evict(memory, PAGES * PAGE); }
int atfork_library_calls(void) { return calls; }
