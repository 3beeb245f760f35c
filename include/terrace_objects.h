/*
 * Objects that move: hot ones share pages, and so do cold ones.
 *
 * A program allocates its small objects here and says when they are used. It gives a function that
 * copies one object and changes the references to it. The library calls that in slices of time, and
 * so brings hot objects together. It works over any tiering beneath, by pages. The contract of the
 * function is in docs/moving-objects.md; the short form is below.
 *
 * Link with libterrace_objects.a. For use in production:
 *
 *     cc -O2 -DNDEBUG program.c $(pkg-config --cflags --libs terrace_objects)
 *
 * In debug builds (without NDEBUG) callbacks are checked: a breach of the contract is reported by
 * name and ends the program. So does an object that is busy on 64 visits, though the program may be
 * right: a thread may sleep with a lock that the callback tries. The settings of a heap may say
 * otherwise.
 */
#ifndef TERRACE_OBJECTS_H
#define TERRACE_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct terrace_objects terrace_objects;
typedef struct terrace_objects_reader_state terrace_objects_reader_state;
typedef struct terrace_objects_slice terrace_objects_slice;

/*
 * Returns where the reference to an object leads now, found by the copy's key. It is called for
 * each copy while callbacks are checked, to find a reference that still names the old copy. NULL
 * where that is not known. `context` is that of the step.
 */
typedef void *terrace_objects_reference(void *context, const void *copy);

/*
 * Which segments are emptied first. The first is the default; the others are the paper's, for
 * comparison.
 */
enum terrace_objects_choice { TERRACE_OBJECTS_COST_BENEFIT, TERRACE_OBJECTS_GREEDY, TERRACE_OBJECTS_RANDOM_MIXED };

/* Settings of a heap. Zero stands for the default. */
struct terrace_objects_settings {
    /* Maximum bytes of objects; address space is reserved, memory is not (1 GiB). */
    size_t capacity;
    /* A power of two: 64 KiB over compressed memory or swap (default), 2 MiB over NUMA nodes. */
    size_t segment_bytes;
    /*
     * Bytes of objects that the fast memory has room for (default: those in memory). Where all are
     * in memory, only dead memory is collected, so set it over NUMA nodes.
     */
    uint64_t hot_bytes;
    uint64_t bytes_per_s; /* maximum bytes moved in a second (64 MiB) */
    double cpu_share;     /* maximum share of the time between steps, 0 to 1 (0.02) */
    int check_callbacks;  /* 1: callbacks are checked, -1: they are not (debug builds: they are) */
    terrace_objects_reference *reference; /* for that, if the program uses terrace_objects_step */
    int choice; /* of the segments to empty: enum terrace_objects_choice */
};

/*
 * Has callbacks checked (1) or not (0) in heaps made from now on whose settings do not say. Debug
 * builds switch it on before main. It is weak: a program that makes no heap needs no library.
 */
__attribute__((weak)) void terrace_objects_check(int on);

#ifndef NDEBUG
__attribute__((constructor)) static void terrace_objects_check_debug_build(void) {
    if (terrace_objects_check)
        terrace_objects_check(1);
}
#endif

/*
 * Makes a heap. NULL with errno EINVAL for settings that cannot work, ENOMEM without address space.
 */
terrace_objects *terrace_objects_create(const struct terrace_objects_settings *settings);
void terrace_objects_destroy(terrace_objects *objects);

/*
 * Allocates an object aligned to 16 bytes. NULL with ENOMEM if the heap is full, or for more than a
 * quarter of a segment. It does not move until it is ready.
 */
void *terrace_objects_alloc(terrace_objects *objects, size_t bytes);
/*
 * Tells that an object is written: from now on it may move. Call it before a reference to the
 * object can be found.
 */
void terrace_objects_ready(terrace_objects *objects, void *object);
/*
 * Frees an object to which no reference is left, or one that was never ready. Threads that read it
 * may go on until they leave.
 */
void terrace_objects_free(terrace_objects *objects, void *object);

/*
 * Tells that an object was used; or, for programs that rank objects themselves, how hot it is, 0 to
 * 3 (hot). A rank stays until the next one, whatever is touched.
 */
void terrace_objects_touch(terrace_objects *objects, const void *object);
void terrace_objects_rank(terrace_objects *objects, const void *object, uint8_t heat);

/*
 * A thread that reads while another one calls the step must do so inside. Each thread has a reader.
 */
terrace_objects_reader_state *terrace_objects_reader(terrace_objects *objects);
void terrace_objects_reader_end(terrace_objects_reader_state *reader);
void terrace_objects_enter(terrace_objects_reader_state *reader);
void terrace_objects_leave(terrace_objects_reader_state *reader);
/* Keeps the bytes of an object as they are, even after leaving, until unpinned. Call it inside. */
void terrace_objects_pin(terrace_objects *objects, terrace_objects_reader_state *reader, const void *object);
void terrace_objects_unpin(terrace_objects *objects, const void *object);

enum terrace_objects_result {
    TERRACE_OBJECTS_MOVED,    /* copied, and every reference names the copy; `used` is its size */
    TERRACE_OBJECTS_NO_SPACE, /* nothing changed; `used` is what it needs: it is asked once more */
    TERRACE_OBJECTS_BUSY,     /* nothing changed; a thread has the object or its lock */
    TERRACE_OBJECTS_DEAD,     /* no reference names it */
    TERRACE_OBJECTS_IMMOVABLE /* it cannot move */
};

struct terrace_objects_move {
    void *object;      /* what is to move */
    size_t bytes;      /* its size, rounded up to 16 */
    void *room;        /* where to */
    size_t room_bytes; /* what is there */
    size_t used;       /* what the copy takes; `bytes` unless the function says otherwise */
    const terrace_objects_slice *slice;
};

/*
 * Copies the object into the room and changes its references, or says why not. It must not free,
 * allocate or wait. The library frees the old copy.
 */
typedef int terrace_objects_relocate(void *context, struct terrace_objects_move *move);
/* The callback of ObjecTier's paper: false is TERRACE_OBJECTS_BUSY. */
typedef bool terrace_objects_relocate_simple(void *object, char *room, size_t bytes);

/*
 * WORKING: more work is left. WAITING: the share of time is used up. RESTING: it pauses between two
 * rounds.
 */
enum terrace_objects_progress { TERRACE_OBJECTS_WORKING, TERRACE_OBJECTS_WAITING, TERRACE_OBJECTS_RESTING };

/*
 * Works for about budget_ns: 200,000 to 500,000 where requests wait meanwhile. Returns at once
 * where nothing is to be done. One thread at a time.
 */
int terrace_objects_step(terrace_objects *objects, terrace_objects_relocate *relocate, void *context, uint64_t budget_ns);
int terrace_objects_step_simple(terrace_objects *objects, terrace_objects_relocate_simple *relocate, uint64_t budget_ns);
/*
 * Begins a round now, including segments that rest because objects could not be moved. For use
 * after a change of hot objects that the program knows of. Waits for a step under way: the
 * function that moves objects must not call it.
 */
void terrace_objects_wake(terrace_objects *objects);
/*
 * Whether the step's time is over, for functions that do more than one copy. Takes some
 * nanoseconds.
 */
bool terrace_objects_should_stop(const terrace_objects_slice *slice);

struct terrace_objects_counters {
    uint64_t moved, moved_bytes, no_space, busy, dead, immovable;
    uint64_t not_resident;     /* left alone, as their page is not in memory */
    uint64_t no_segment;       /* no room for a copy */
    uint64_t misused;          /* breaches of the contract that were seen */
    uint64_t emptied_segments; /* given back */
    uint64_t sorted_segments;  /* of which only what is hot, or what is cold, was taken */
    uint64_t scans, steps, live_bytes;
};
struct terrace_objects_counters terrace_objects_counters(terrace_objects *objects);
/* Hot bytes / bytes of hot pages, where hot is a heat of at least `least`, 1 to 3. */
double terrace_objects_utilisation(terrace_objects *objects, uint8_t least);

#ifdef __cplusplus
}
#endif
#endif
