/*
 * Eight callers allocate in turn; how many pairs of them share a page, and how many pages have
 * objects of one caller only? Says so, and what malloc gives for 24 bytes.
 * Usage: by_context BYTES
 */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLERS = 8, EACH = 20000 };
static void *objects[CALLERS][EACH];

/* All allocations go through here, as through a library's own function: the innermost return
 * address is one and the same. */
static __attribute__((noinline)) void *through(size_t bytes) {
    void *object = malloc(bytes);
    if (!object)
        abort();
    __asm__ volatile("" : "+r"(object));
    return object;
}

#define CALLER(n)                                                       \
    static __attribute__((noinline)) void *caller##n(size_t bytes) {    \
        void *object = through(bytes);                                  \
        __asm__ volatile("nop #" #n : "+r"(object));                    \
        return object;                                                  \
    }
CALLER(0) CALLER(1) CALLER(2) CALLER(3) CALLER(4) CALLER(5) CALLER(6) CALLER(7)

static void *(*const callers[CALLERS])(size_t) = {caller0, caller1, caller2, caller3, caller4, caller5, caller6, caller7};

struct place {
    uintptr_t page;
    int caller;
};
static struct place places[CALLERS * EACH];

static int by_page(const void *a, const void *b) {
    uintptr_t x = ((const struct place *)a)->page, y = ((const struct place *)b)->page;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? (size_t)atol(argv[1]) : 64;
    for (int n = 0; n < EACH; n++)
        for (int c = 0; c < CALLERS; c++)
            memset(objects[c][n] = callers[c](bytes), c + 1, bytes);
    size_t len = 0;
    for (int c = 0; c < CALLERS; c++)
        for (int n = 0; n < EACH; n++)
            places[len++] = (struct place){(uintptr_t)objects[c][n] >> 12, c};
    qsort(places, len, sizeof *places, by_page);
    static int shared[CALLERS][CALLERS];
    for (size_t from = 0, to; from < len; from = to) {
        int seen = 0;
        for (to = from; to < len && places[to].page == places[from].page; to++)
            seen |= 1 << places[to].caller;
        for (int a = 0; a < CALLERS; a++)
            for (int b = a + 1; b < CALLERS; b++)
                shared[a][b] |= seen >> a & seen >> b & 1;
    }
    int pairs = 0;
    for (int a = 0; a < CALLERS; a++)
        for (int b = a + 1; b < CALLERS; b++)
            pairs += shared[a][b];
    printf("pairs %d usable %zu\n", pairs, malloc_usable_size(malloc(24)));
    for (int c = 0; c < CALLERS; c++)
        for (int n = 0; n < EACH; n++) {
            for (size_t i = 0; i < bytes; i++)
                if (((char *)objects[c][n])[i] != c + 1)
                    return 1;
            free(objects[c][n]);
        }
    return 0;
}
