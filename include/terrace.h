/*
 * Terrace for programs that know their data: what belongs together, what is hot and what is cold, and what they are about to touch.
 *
 * Under `terrace run`, memory that was not used for a while is kept compressed or elsewhere, by pages. So a page should hold what is used together: mnalloc()
 * places objects so. And what was moved away comes back when it is touched, which costs a page fault and two switches of threads: terrace_touch() brings it back at about half
 * the cost.
 *
 * Two ways to use it:
 *
 *   Link with nothing. All functions are declared weak, and where Terrace is not there they do not exist; the macros (TERRACE_MNALLOC and so on) do then
 *   what a program without Terrace would. In C so do calls by the functions' own names; in C++, and through pointers, look whether they are there. (In a position-dependent executable of an old linker, -Wl,-z,dynamic-undefined-weak keeps them to be found at run time;
 *   with the usual PIE nothing is needed.)
 *
 *   Or link with the library: cc $(pkg-config --cflags --libs terrace). Then they are always there, and placements have their effect on caches and TLBs even without
 *   `terrace run`. The whole program allocates from Terrace then.
 *
 * In debug builds (without NDEBUG) misuse is told of on standard error: foreign pointers, arenas that are destroyed, objects freed twice. It corrupts nothing
 * in either case, as far as an allocator can help it.
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

/* An arena: what the program wants to lie together. 0 is none. One takes 48 bytes, and no page of its own: one for each bucket of a hash table is not too many. */
typedef uint64_t terrace_arena;

/* Where an object is to lie: one of those below. A hint: it never makes an allocation fail. */
typedef struct terrace_placement {
    uintptr_t kind, what;
} terrace_placement;

/* Wherever malloc puts it. */
static const terrace_placement TERRACE_DEFAULT TERRACE_UNUSED = {0, 0};
/* With what is often used, or seldom: what is expected of memory until it is seen how it is used. */
static const terrace_placement TERRACE_HOT TERRACE_UNUSED = {2, 0};
static const terrace_placement TERRACE_COLD TERRACE_UNUSED = {3, 0};

/*
 * On the page of an object that mnalloc placed (not by default) if there is room, else on another page of the same arena, if it is in one: with which it
 * ends. Beside a null pointer: where something new begins, with room for more. Beside any other object it is TERRACE_DEFAULT.
 */
static inline terrace_placement terrace_next_to(const void *object) {
    terrace_placement placement = {1, (uintptr_t)object};
    return placement;
}

/*
 * In an arena. Where the zone is full (256 GiB; less where address space is short), address space is limited (ulimit -v), or more than 1 GiB is asked for, malloc allocates in its
 * place, and terrace_arena_of says that it is in none.
 */
static inline terrace_placement terrace_in(terrace_arena arena) {
    terrace_placement placement = {4, (uintptr_t)arena};
    return placement;
}

/*
 * As malloc, and the same with an alignment (a power of two; else NULL and EINVAL). free, realloc (which keeps the placement), malloc_usable_size and all others that take
 * what malloc returned take this, too. Any thread may use any object and any arena. Sizes are rounded up to 16 bytes; from a page on, to pages.
 */
void *mnalloc(size_t size, terrace_placement placement) TERRACE_WEAK;
void *mnalloc_aligned(size_t alignment, size_t size, terrace_placement placement) TERRACE_WEAK;

/* Makes an arena, among what is hot, cold (TERRACE_HOT, TERRACE_COLD), or as an object or another arena is. 0 without memory. */
terrace_arena terrace_arena_create(terrace_placement placement) TERRACE_WEAK;

/* Frees all objects of an arena, at once and without touching them, and the arena. -1 and EINVAL if there is none. */
int terrace_arena_destroy(terrace_arena arena) TERRACE_WEAK;

/* How much an arena holds. */
typedef struct terrace_arena_figures {
    size_t objects, bytes /* of them, as rounded up */, pages /* that they lie on, perhaps with others */;
} terrace_arena_figures;

/* Tells that. -1 and EINVAL if there is no such arena. */
int terrace_arena_query(terrace_arena arena, terrace_arena_figures *figures) TERRACE_WEAK;

/* The arena in which an object lies; 0 if in none. */
terrace_arena terrace_arena_of(const void *object) TERRACE_WEAK;

/* ---- Access ---- */

/*
 * These may be given any address and length: null, unmapped, freed, not managed, beyond the end. They never fault or crash. terrace_touch and terrace_prefetch
 * never change errno and may be called from signal handlers, too. Whoever cancels threads asynchronously (PTHREAD_CANCEL_ASYNCHRONOUS) must not while they are in here.
 *
 * The first call that restores something opens a descriptor for each CPU, at most 8, numbered from 960 on and closed on exec. A program that
 * closes descriptors which it did not open may close them too; they are opened again.
 */

/*
 * Brings every page of the range that is out back, in this thread, before it returns. What is resident costs about a nanosecond a page, and
 * far less where much of it is looked at together. Pages that follow one another come back together: one call for a whole record or
 * buffer is better than one for each page. While memory is over the budget it waits for room as a fault does.
 */
void terrace_touch(const void *pointer, size_t len) TERRACE_WEAK;

/*
 * Asks for the same and returns at once: a thread of Terrace's brings the pages back as far as there is room without evicting anything.
 * Dropped when too much was asked for.
 */
void terrace_prefetch(const void *pointer, size_t len) TERRACE_WEAK;

/* How a range will be used. What is advised of a few bytes goes for all of their pages. */
enum terrace_advice {
    TERRACE_ADVICE_NORMAL = 0,   /* as nothing is known of it; no longer pinned */
    TERRACE_ADVICE_HOT = 1,      /* often: terrace_prefetch, and it leaves last */
    TERRACE_ADVICE_COLD = 2,     /* seldom: it leaves first */
    TERRACE_ADVICE_WILLNEED = 3, /* soon: terrace_prefetch */
    TERRACE_ADVICE_PIN = 4,      /* it is brought back, and does not leave at all */
};

/*
 * Says so: 0, or -1 and EINVAL for what is no advice. Hot and cold are expectations: where samples and faults tell otherwise, they are believed. Advice is for memory, not for
 * objects: give TERRACE_ADVICE_NORMAL before free what comes there next is not to inherit. Of few, large ranges it is cheap; each pinned object in the midst of others costs
 * the kernel two mappings. What the kernel has swapped out, or is on a far node, is brought back by its next use.
 */
int terrace_advise(const void *pointer, size_t len, int advice) TERRACE_WEAK;

/* Whether misuse is told of on standard error, up to 20 times: 1 or 0. */
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
/* Without Terrace there are no arenas: what would be in one has to be freed one by one. TERRACE_ARENA_DESTROY then is -1. */
#define TERRACE_ARENA_CREATE(placement) TERRACE_CALL(terrace_arena_create, (placement), (terrace_arena)0)
#define TERRACE_ARENA_DESTROY(arena) TERRACE_CALL(terrace_arena_destroy, (arena), -1)
#define TERRACE_TOUCH(pointer, len) TERRACE_CALL(terrace_touch, ((pointer), (len)), (void)0)
#define TERRACE_PREFETCH(pointer, len) TERRACE_CALL(terrace_prefetch, ((pointer), (len)), (void)0)
#define TERRACE_ADVISE(pointer, len, advice) TERRACE_CALL(terrace_advise, ((pointer), (len), (advice)), 0)

#define TERRACE_ARENA_QUERY(arena, figures) \
    TERRACE_CALL(terrace_arena_query, ((arena), (figures)), -1)
#define TERRACE_ARENA_OF(object) TERRACE_CALL(terrace_arena_of, (object), (terrace_arena)0)

/* A call of a function that is not there would be one of address 0. */
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
