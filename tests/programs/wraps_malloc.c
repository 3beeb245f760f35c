/* A program that brings its own malloc family and finds the real one with dlsym, which may itself allocate. */
#include "cold.h"
#include <dlfcn.h>
#include <stdatomic.h>

static void *(*real_malloc)(size_t), *(*real_calloc)(size_t, size_t), *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);
static char early[64 << 10] __attribute__((aligned(16)));
static atomic_size_t early_used;
static atomic_ulong allocated, freed;
static __thread int finding;

static void find(void) {
    finding++;
    real_calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    real_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    real_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    finding--;
}
static void *from_early(size_t size) {
    size_t at = atomic_fetch_add(&early_used, (size + 15) & ~(size_t)15);
    return at + size <= sizeof early ? early + at : NULL;
}
static int is_early(void *p) { return (char *)p >= early && (char *)p < early + sizeof early; }

void *malloc(size_t size) {
    if (!real_malloc && !finding)
        find();
    allocated++;
    return real_malloc ? real_malloc(size) : from_early(size);
}
void *calloc(size_t count, size_t size) {
    if (!real_calloc && !finding)
        find();
    allocated++;
    return real_calloc ? real_calloc(count, size) : from_early(count * size);
}
void *realloc(void *p, size_t size) {
    if (is_early(p)) {
        void *to = malloc(size);
        memcpy(to, p, size < 1000 ? size : 1000);
        return to;
    }
    if (!real_realloc && !finding)
        find();
    return real_realloc(p, size);
}
void free(void *p) {
    freed++;
    if (!is_early(p) && p)
        real_free(p);
}

__attribute__((constructor)) static void begin(void) {
    /* One that does not exist: the message is allocated. */
    MUST(dlsym(RTLD_DEFAULT, "there_is_no_such_symbol") == NULL && dlerror() != NULL);
    MUST(dlsym(RTLD_NEXT, "calloc") != NULL);
    char *zeros = calloc(1000, 10);
    for (int i = 0; i < 10000; i++)
        MUST(zeros[i] == 0);
    free(zeros);
}

static void works(void) {
    unsigned long before = allocated;
    char *blocks[1000];
    for (int n = 0; n < 1000; n++) {
        blocks[n] = malloc((size_t)n * 50 + 8);
        memset(blocks[n], n, (size_t)n * 50 + 8);
    }
    char *area = NULL;
    for (size_t size = 1000; size < 8 * MIB; size *= 2) {
        area = realloc(area, size);
        memset(area + size / 2, 3, size / 2);
    }
    for (int n = 0; n < 1000; n++) {
        MUST(blocks[n][n * 50] == (char)n);
        free(blocks[n]);
    }
    for (size_t i = 1000; i < 4 * MIB; i += 1000)
        MUST(area[i] == 3);
    free(area);
    MUST(allocated >= before + 1000);
    MUST(freed >= 1000);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {CASE(works)};
    return run_case(count, words, cases, COUNT(cases));
}
