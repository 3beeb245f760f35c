/* A program that brings a malloc of its own: what mnalloc gives it has to be that. */
#include "cold.h"
#include "terrace.h"

static char heap[64 << 20] __attribute__((aligned(16)));
static size_t used;
static unsigned long freed;

static bool is_own(void *p) { return (char *)p >= heap && (char *)p < heap + sizeof heap; }

void *malloc(size_t size) {
    size_t at = __atomic_fetch_add(&used, (size + 31) & ~(size_t)15, __ATOMIC_RELAXED) + 16;
    ((size_t *)(heap + at))[-2] = size;
    return heap + at;
}
void free(void *p) {
    MUST(!p || is_own(p));
    freed++;
}
void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }
void *realloc(void *p, size_t size) { return p ? memcpy(malloc(size), p, ((size_t *)p)[-2] < size ? ((size_t *)p)[-2] : size) : malloc(size); }
void *aligned_alloc(size_t align, size_t size) { return (void *)(((uintptr_t)malloc(size + align) + align - 1) & ~(align - 1)); }

int main(void) {
    terrace_arena arena = TERRACE_ARENA_CREATE(TERRACE_DEFAULT);
    MUST(!arena);
    terrace_placement placements[] = {TERRACE_DEFAULT, TERRACE_HOT, TERRACE_COLD, terrace_in(arena), terrace_next_to(NULL)};
    for (size_t at = 0; at < COUNT(placements); at++) {
        void *object = TERRACE_MNALLOC(100, placements[at]), *aligned = TERRACE_MNALLOC_ALIGNED(256, 512, placements[at]);
        MUST(is_own(object) && is_own(aligned) && (uintptr_t)aligned % 256 == 0);
        free(object);
    }
    MUST(freed >= COUNT(placements));
    return 0;
}
