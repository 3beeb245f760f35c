/*
 * Objects that move: hot ones share pages, and so do cold ones.
 *
 * A program allocates its small objects here, says when they are used, and gives a function that copies one object and changes the references to it. The
 * library calls it in slices of time, so that what is hot comes to lie together. Works over any tiering beneath, by pages. What the function must and must
 * not do is in docs/moving-objects.md; the short form is below.
 *
 * Link with libterrace_objects.a: cc program.c -lterrace_objects -lpthread -ldl -lm
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
 * Where the reference to an object leads now, found by the copy's key: asked of each copy while callbacks are checked, so that a reference which still names
 * the old copy is told. NULL where that cannot be said. `context` is that of the step.
 */
typedef void *terrace_objects_reference(void *context, const void *copy);

/* Which segments are emptied first. The first is the default; the others are the paper's, for comparison. */
enum terrace_objects_choice { TERRACE_OBJECTS_COST_BENEFIT, TERRACE_OBJECTS_GREEDY, TERRACE_OBJECTS_RANDOM_MIXED };

/* Zero stands for the default. */
struct terrace_objects_settings {
    size_t capacity;      /* most bytes of objects; address space is reserved, memory is not (1 GiB) */
    size_t segment_bytes; /* a power of two: 64 KiB over compressed memory or swap (default), 2 MiB over NUMA nodes */
    uint64_t hot_bytes;   /* what the fast memory has room for (what is in memory; where all is, only dead memory is gathered: say it over NUMA nodes) */
    uint64_t bytes_per_s; /* most bytes moved in a second (64 MiB) */
    double cpu_share;     /* most of the time between steps, 0 to 1 (0.02) */
    int check_callbacks;  /* a breach of the contract ends the program and is told by name */
    terrace_objects_reference *reference; /* for that, of programs that use terrace_objects_step */
    int choice;           /* of the segments to empty: enum terrace_objects_choice */
};

/* NULL with errno EINVAL for settings that cannot work, ENOMEM without address space. */
terrace_objects *terrace_objects_create(const struct terrace_objects_settings *settings);
void terrace_objects_destroy(terrace_objects *objects);

/* Room aligned to 16 bytes; NULL with ENOMEM if all is taken, or for more than a quarter of a segment. It stays where it is until it is ready. */
void *terrace_objects_alloc(terrace_objects *objects, size_t bytes);
/* It is written: from now on it may move. Before a reference to it can be found. */
void terrace_objects_ready(terrace_objects *objects, void *object);
/* No reference to it is left; or it was never ready, and is given up. Threads that read it may go on until they leave. */
void terrace_objects_free(terrace_objects *objects, void *object);

/* It was used; or, for programs that rank objects themselves, how hot it is, 0 to 3 (hot). A rank stands until the next one, whatever is touched. */
void terrace_objects_touch(terrace_objects *objects, const void *object);
void terrace_objects_rank(terrace_objects *objects, const void *object, uint8_t heat);

/* Threads that read while another one calls the step do so inside. One reader a thread. */
terrace_objects_reader_state *terrace_objects_reader(terrace_objects *objects);
void terrace_objects_reader_end(terrace_objects_reader_state *reader);
void terrace_objects_enter(terrace_objects_reader_state *reader);
void terrace_objects_leave(terrace_objects_reader_state *reader);
/* Inside: keeps the bytes of an object as they are also after leaving, until unpinned. */
void terrace_objects_pin(terrace_objects *objects, terrace_objects_reader_state *reader, const void *object);
void terrace_objects_unpin(terrace_objects *objects, const void *object);

enum terrace_objects_result {
    TERRACE_OBJECTS_MOVED,    /* copied, and every reference names the copy; `used` is its size */
    TERRACE_OBJECTS_NO_SPACE, /* nothing changed; `used` is what it needs: it is asked once more */
    TERRACE_OBJECTS_BUSY,     /* nothing changed; somebody has it or its lock */
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

/* Copies the object into the room and changes its references, or says why not. It must not free, allocate or wait. The old copy is the library's to free. */
typedef int terrace_objects_relocate(void *context, struct terrace_objects_move *move);
/* That of ObjecTier's paper: false is TERRACE_OBJECTS_BUSY. */
typedef bool terrace_objects_relocate_simple(void *object, char *room, size_t bytes);

/* WORKING: there is more to do; WAITING: its share of time is used up; RESTING: it pauses between two rounds. */
enum terrace_objects_progress { TERRACE_OBJECTS_WORKING, TERRACE_OBJECTS_WAITING, TERRACE_OBJECTS_RESTING };

/* Works for about so long, 200,000 to 500,000 ns where requests wait meanwhile; returns at once where nothing is to be done. One thread at a time. */
int terrace_objects_step(terrace_objects *objects, terrace_objects_relocate *relocate, void *context, uint64_t budget_ns);
int terrace_objects_step_simple(terrace_objects *objects, terrace_objects_relocate_simple *relocate, uint64_t budget_ns);
/* Begins a round now, also of what rests as it could not be moved: after a change of what is hot that the program knows of. */
void terrace_objects_wake(terrace_objects *objects);
/* Whether the step's time is over, for functions that do more than one copy. Some nanoseconds. */
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
