/*
 * Two callers of one function allocate in turn. One of them allocates little, which is then read at
 * random for six seconds; what the other has is not touched again. Beside them are large objects,
 * of which one has been reallocated, and objects that the program places.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../../include/terrace.h"

/* Few enough that all are looked at several times in what Terrace takes of a CPU for that. */
enum { HOT = 25000, COLD_FOR_EACH = 8, BYTES = 480 };
struct object {
    struct object *next;
    char text[BYTES - sizeof(struct object *)];
};
static struct object *hot[HOT], *cold[HOT * COLD_FOR_EACH];

static __attribute__((noinline)) struct object *make(uint64_t seed) {
    struct object *object = malloc(sizeof *object);
    if (!object)
        abort();
    object->next = NULL;
    for (size_t i = 0; i < sizeof object->text; i++)
        object->text[i] = (char)('a' + (seed = seed * 6364136223846793005ULL + 1442695040888963407ULL) / ((uint64_t)1 << 60));
    return object;
}
static __attribute__((noinline)) struct object *make_hot(uint64_t seed) {
    struct object *object = make(seed);
    object->text[0] = 'h';
    return object;
}
static __attribute__((noinline)) struct object *make_cold(uint64_t seed) {
    struct object *object = make(seed);
    object->text[0] = 'c';
    return object;
}
enum { LARGE = 40, LARGE_BYTES = 100000, PLACED = 20000 };
static char *large[LARGE];
static __attribute__((noinline)) char *make_large(void) {
    char *object = malloc(LARGE_BYTES);
    if (!object)
        abort();
    memset(object, 'l', LARGE_BYTES);
    return object;
}
static __attribute__((noinline)) char *make_larger(char *object) {
    object = realloc(object, 50 * LARGE_BYTES);
    if (!object)
        abort();
    memset(object, 'r', 50 * LARGE_BYTES);
    return object;
}
static __attribute__((noinline)) void make_placed(void) {
    for (int n = 0; n < PLACED; n++) {
        char *object = mnalloc(100, TERRACE_COLD);
        if (!object)
            abort();
        memset(object, 'p', 100);
    }
}

int main(void) {
    for (int n = 0; n < LARGE; n++)
        large[n] = make_large();
    large[0] = make_larger(large[0]);
    make_placed();
    for (int n = 0; n < HOT; n++) {
        hot[n] = make_hot((uint64_t)n);
        for (int m = 0; m < COLD_FOR_EACH; m++)
            cold[n * COLD_FOR_EACH + m] = make_cold((uint64_t)(n * COLD_FOR_EACH + m));
    }
    for (int n = 0; n < HOT; n++)
        hot[n]->next = hot[(n * 7919LL + 1) % HOT];
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t sum = 0;
    struct object *at = hot[0];
    do {
        for (int n = 0; n < 200000; n++) {
            sum += (uint64_t)at->text[(unsigned)n % sizeof at->text];
            at = at->next;
            if (n % 16 == 0)
                sum += (uint64_t)large[0][(unsigned)n * 6007u % (50 * LARGE_BYTES)];
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec < 6);
    for (int n = 0; n < HOT * COLD_FOR_EACH; n++)
        if (cold[n]->text[0] != 'c')
            return 1;
    printf("%c\n", sum ? 'y' : 'n');
    return 0;
}
