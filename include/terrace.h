/*
 * Terrace for programs that know their data: what belongs together, what is hot and what is cold,
 * and what they are about to touch.
 *
 * Under `terrace run`, memory that was not used for a while is kept compressed or elsewhere, by
 * pages. So a page should hold objects that are used together: mnalloc() places them so. An evicted
 * page is restored when it is touched, which costs a page fault and two switches of threads.
 * terrace_touch() restores it at about half the cost.
 *
 * There are two ways to use it:
 *
 * - Link with nothing. All functions are declared weak, and do not exist where Terrace is not
 *   there. The macros (TERRACE_MNALLOC and so on) then do what a program without Terrace would. In
 *   C, calls by the functions' own names do so, too. In C++, and through pointers, check whether
 *   they exist. In a position-dependent executable of an old linker, -Wl,-z,dynamic-undefined-weak
 *   makes them be looked up at run time. The usual PIE needs no option.
 * - Link with the library: cc $(pkg-config --cflags --libs terrace). Then the functions always
 *   exist. Placements have their effect on caches and TLBs even without `terrace run`. The whole
 *   program allocates from Terrace then.
 *
 * In debug builds (without NDEBUG) misuse is reported on standard error: foreign pointers, arenas
 * that are destroyed, objects freed twice. It corrupts nothing in either case, as far as an
 * allocator can prevent it.
 */
#ifndef TERRACE_H
#define TERRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef TERRACE_LINKED /* pkg-config says so */
#define TERRACE_WEAK
#else
#define TERRACE_WEAK __attribute__((weak))
#endif
#define TERRACE_UNUSED __attribute__((unused))

/* ---- Placement ---- */

/*
 * An arena: objects that the program wants to lie together. 0 is none. An arena takes 48 bytes, and
 * no page of its own: one for each bucket of a hash table is not too many.
 */
typedef uint64_t terrace_arena;

/*
 * Where an object is to lie: one of the placements below. A hint: it never makes an allocation
 * fail.
 */
typedef struct terrace_placement {
    uintptr_t kind, what;
} terrace_placement;

/* Wherever malloc puts it. */
static const terrace_placement TERRACE_DEFAULT TERRACE_UNUSED = {0, 0};
/* With objects that are used often, or seldom. This is expected until the memory's use is seen. */
static const terrace_placement TERRACE_HOT TERRACE_UNUSED = {2, 0};
static const terrace_placement TERRACE_COLD TERRACE_UNUSED = {3, 0};

/*
 * On the page of an object that mnalloc placed (not by default) if there is room, else on another
 * page of the same arena. If that object is in an arena, the new one is too, and ends with it.
 * Beside a null pointer: where something new begins, with room for more. Beside any other object it
 * is TERRACE_DEFAULT.
 */
static inline terrace_placement terrace_next_to(const void *object) {
    terrace_placement placement = {1, (uintptr_t)object};
    return placement;
}

/*
 * In an arena. In three cases malloc allocates the object instead, and terrace_arena_of says that
 * it is in none:
 * - the zone is full (256 GiB; less where address space is short);
 * - address space is limited (ulimit -v);
 * - more than 1 GiB is asked for.
 */
static inline terrace_placement terrace_in(terrace_arena arena) {
    terrace_placement placement = {4, (uintptr_t)arena};
    return placement;
}

/*
 * Work as malloc, and as malloc with an alignment (a power of two; else NULL and EINVAL). free,
 * realloc (which keeps the placement), malloc_usable_size and all others that take what malloc
 * returned take these objects, too. Any thread may use any object and any arena. Sizes are rounded
 * up to 16 bytes; from a page on, to pages.
 */
void *mnalloc(size_t size, terrace_placement placement) TERRACE_WEAK;
void *mnalloc_aligned(size_t alignment, size_t size, terrace_placement placement) TERRACE_WEAK;

/*
 * Makes an arena: among hot or cold memory (TERRACE_HOT, TERRACE_COLD), or as an object or another
 * arena is. Returns 0 without memory.
 */
terrace_arena terrace_arena_create(terrace_placement placement) TERRACE_WEAK;

/*
 * Frees all objects of an arena, at once and without touching them, and the arena. Returns -1 with
 * EINVAL if there is none.
 */
int terrace_arena_destroy(terrace_arena arena) TERRACE_WEAK;

/* How much an arena holds. */
typedef struct terrace_arena_figures {
    /* Number of objects; their bytes, as rounded up; pages they lie on, perhaps with others. */
    size_t objects, bytes, pages;
} terrace_arena_figures;

/* Writes how much an arena holds. Returns -1 with EINVAL if there is no such arena. */
int terrace_arena_query(terrace_arena arena, terrace_arena_figures *figures) TERRACE_WEAK;

/* The arena in which an object lies; 0 if in none. */
terrace_arena terrace_arena_of(const void *object) TERRACE_WEAK;

/* ---- Access ---- */

/*
 * These functions take any address and length: null, unmapped, freed, not managed, beyond the end.
 * They never fault or crash. terrace_touch and terrace_prefetch never change errno, and may be
 * called from signal handlers, too. A thread inside these functions must not be cancelled
 * asynchronously (PTHREAD_CANCEL_ASYNCHRONOUS).
 *
 * The first call that restores something opens a descriptor for each CPU, at most 8, numbered from
 * 960 on and closed on exec. A program that closes descriptors which it did not open may close them
 * too; they are opened again.
 */

/*
 * Restores every evicted page of the range, in this thread, before it returns. A resident page
 * costs about a nanosecond, and far less where many are checked together. Consecutive pages are
 * restored together: one call for a whole record or buffer is better than one for each page. While
 * memory is over the budget it waits for room as a fault does.
 */
void terrace_touch(const void *pointer, size_t len) TERRACE_WEAK;

/*
 * Asks for the same and returns at once. A thread of Terrace's restores the pages as far as there
 * is room without evicting anything. The request is dropped when too much was asked for.
 */
void terrace_prefetch(const void *pointer, size_t len) TERRACE_WEAK;

/* How a range will be used. Advice on a few bytes applies to all of their pages. */
enum terrace_advice {
    TERRACE_ADVICE_NORMAL = 0,   /* nothing is known of the range; no longer pinned */
    TERRACE_ADVICE_HOT = 1,      /* used often: terrace_prefetch, and evicted last */
    TERRACE_ADVICE_COLD = 2,     /* used seldom: evicted first */
    TERRACE_ADVICE_WILLNEED = 3, /* used soon: terrace_prefetch */
    TERRACE_ADVICE_PIN = 4,      /* restored, and never evicted */
};

/*
 * Gives advice about a range. Returns 0, or -1 with EINVAL for an unknown advice. Hot and cold are
 * expectations: where samples and faults show otherwise, those count.
 *
 * Advice is for memory, not for objects: give TERRACE_ADVICE_NORMAL before free if the next object
 * there is not to inherit it. Advice on few, large ranges is cheap. Each pinned object in the midst
 * of others costs the kernel two mappings. Memory that the kernel has swapped out, or that is on a
 * far node, is brought back by its next use.
 */
int terrace_advise(const void *pointer, size_t len, int advice) TERRACE_WEAK;

/* Switches reports of misuse on standard error, at most 20, on (1) or off (0). */
void terrace_check(int on) TERRACE_WEAK;

#ifndef NDEBUG
__attribute__((constructor)) static void terrace_check_debug_build(void) {
#ifndef TERRACE_LINKED
    if (terrace_check)
#endif
        terrace_check(1);
}
#endif

#ifdef __cplusplus
}
#endif

#ifdef TERRACE_LINKED
#define TERRACE_CALL(function, arguments, otherwise) (function arguments)
#else
#define TERRACE_CALL(function, arguments, otherwise) ((function) ? (function) arguments : otherwise)
#endif
#define TERRACE_MNALLOC(size, placement) TERRACE_CALL(mnalloc, ((size), (placement)), malloc(size))
#define TERRACE_MNALLOC_ALIGNED(alignment, size, placement) \
    TERRACE_CALL(mnalloc_aligned, ((alignment), (size), (placement)), aligned_alloc((alignment), (size)))
/*
 * Without Terrace there are no arenas: objects of an arena have to be freed one by one.
 * TERRACE_ARENA_DESTROY then is -1.
 */
#define TERRACE_ARENA_CREATE(placement) TERRACE_CALL(terrace_arena_create, (placement), (terrace_arena)0)
#define TERRACE_ARENA_DESTROY(arena) TERRACE_CALL(terrace_arena_destroy, (arena), -1)
#define TERRACE_TOUCH(pointer, len) TERRACE_CALL(terrace_touch, ((pointer), (len)), (void)0)
#define TERRACE_PREFETCH(pointer, len) TERRACE_CALL(terrace_prefetch, ((pointer), (len)), (void)0)
#define TERRACE_ADVISE(pointer, len, advice) TERRACE_CALL(terrace_advise, ((pointer), (len), (advice)), 0)

#define TERRACE_ARENA_QUERY(arena, figures) \
    TERRACE_CALL(terrace_arena_query, ((arena), (figures)), -1)
#define TERRACE_ARENA_OF(object) TERRACE_CALL(terrace_arena_of, (object), (terrace_arena)0)

/* A call of a function that does not exist would be one of address 0. */
#if !defined TERRACE_LINKED && !defined __cplusplus
#define mnalloc(size, placement) TERRACE_MNALLOC(size, placement)
#define mnalloc_aligned(alignment, size, placement) TERRACE_MNALLOC_ALIGNED(alignment, size, placement)
#define terrace_arena_create(placement) TERRACE_ARENA_CREATE(placement)
#define terrace_arena_destroy(arena) TERRACE_ARENA_DESTROY(arena)
#define terrace_arena_query(arena, figures) TERRACE_ARENA_QUERY(arena, figures)
#define terrace_arena_of(object) TERRACE_ARENA_OF(object)
#define terrace_touch(pointer, len) TERRACE_TOUCH(pointer, len)
#define terrace_prefetch(pointer, len) TERRACE_PREFETCH(pointer, len)
#define terrace_advise(pointer, len, advice) TERRACE_ADVISE(pointer, len, advice)
#endif

#endif
