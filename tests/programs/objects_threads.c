/* A C program with moving objects and threads: readers that pin, and writers that replace, delete
 * and change in place. One thread calls `terrace_objects_step_simple`. All values are checked. */
#include "cold.h"
#include <pthread.h>
#include <sched.h>
#include <terrace_objects.h>

enum { SLOTS = 4096, STRIPES = 64, WRITERS = 2, READERS = 2, WORDS = 16 };
/* What happens at least: changes by each writer, and moves. */
enum { CHANGES = 20000, MOVES = 2000 };
/* Microseconds between two rounds. What a writer holds while it does not run is busy on a few
 * visits of each round. 64 such visits end the program: not before that took a second. */
enum { PAUSE_US = 100000 };

/*
 * ThreadSanitizer sees the accesses of this program only, and nothing of the library. So it is told
 * what the header promises: that what is given up comes before what is taken. What a thread did to
 * objects before it left, unpinned, freed or said ready comes before their memory is moved or used
 * again. A reader that is still inside has given nothing up, so it shows where that is not kept.
 */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define WITH_THREAD_SANITIZER
#endif
#ifdef WITH_THREAD_SANITIZER
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static char hand_over;
static void give_up(void) { __tsan_release(&hand_over); }
static void take(void) { __tsan_acquire(&hand_over); }
#else
static void give_up(void) {}
static void take(void) {}
#endif

struct item {
    uint64_t slot, version, words;
    uint64_t added; /* changed in place, under the lock of its stripe */
    uint64_t word[];
};

static terrace_objects *heap;
static struct item *slots[SLOTS];
static pthread_mutex_t locks[STRIPES];
static bool stop;
static unsigned writers_done;

struct thread {
    pthread_t thread;
    unsigned number;
    uint64_t random;
    terrace_objects_reader_state *reader;
    uint64_t pins;
};

/* Of each slot, what its writer put there: 0 for nothing. And how often it has added to it. */
static uint64_t versions[SLOTS], added[SLOTS];

static uint64_t below(struct thread *thread, uint64_t limit) {
    return mix(thread->random++) % limit;
}

static pthread_mutex_t *lock_of(size_t slot) { return &locks[slot % STRIPES]; }

static uint64_t words_of(uint64_t slot, uint64_t version) {
    return 1 + mix(slot + version) % WORDS;
}

static struct item *item_of(size_t slot) { return __atomic_load_n(&slots[slot], __ATOMIC_ACQUIRE); }

static size_t bytes_of(const struct item *item) {
    return sizeof *item + item->words * sizeof item->word[0];
}

static void check_item(const struct item *item, size_t slot) {
    MUST(item->slot == slot && item->words == words_of(slot, item->version));
    for (uint64_t at = 0; at < item->words; at++)
        MUST(item->word[at] == (mix(slot << 32 ^ item->version) ^ at));
}

static struct item *new_item(size_t slot, uint64_t version) {
    uint64_t words = words_of(slot, version);
    struct item *item = terrace_objects_alloc(heap, sizeof *item + words * sizeof item->word[0]);
    if (!item)
        return NULL;
    take();
    *item = (struct item){.slot = slot, .version = version, .words = words};
    for (uint64_t at = 0; at < words; at++)
        item->word[at] = mix(slot << 32 ^ version) ^ at;
    return item;
}

static void ready(struct item *item) {
    give_up();
    terrace_objects_ready(heap, item);
}

static void free_item(struct item *item) {
    give_up();
    terrace_objects_free(heap, item);
}

/* Puts an item, or nothing, in place of what is there. Once the item can be found it may move. */
static void put(size_t slot, struct item *item) {
    versions[slot] = item ? item->version : 0;
    added[slot] = 0;
    pthread_mutex_lock(lock_of(slot));
    struct item *before = item_of(slot);
    __atomic_store_n(&slots[slot], item, __ATOMIC_RELEASE);
    pthread_mutex_unlock(lock_of(slot));
    if (before)
        free_item(before);
}

static void add(size_t slot) {
    pthread_mutex_lock(lock_of(slot));
    struct item *item = item_of(slot);
    MUST((item ? item->version : 0) == versions[slot]);
    if (item)
        MUST(++item->added == ++added[slot]);
    pthread_mutex_unlock(lock_of(slot));
}

static void change(struct thread *thread, uint64_t version) {
    size_t slot = below(thread, SLOTS / WRITERS) * WRITERS + thread->number;
    uint64_t what = below(thread, 16);
    if (what < 8) {
        add(slot);
    } else if (what == 8) {
        put(slot, NULL);
    } else {
        /* A full heap is left as it is: the other thread makes room. */
        struct item *item = new_item(slot, version);
        if (item && what == 9) {
            free_item(item); /* given up before it is ready */
        } else if (item) {
            ready(item);
            put(slot, item);
        }
    }
}

static void *write_all(void *argument) {
    struct thread *thread = argument;
    uint64_t version = 0;
    while (version < CHANGES || !__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        change(thread, ++version);
        if (version == CHANGES)
            __atomic_add_fetch(&writers_done, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Reads mostly the same few items, and keeps one now and then beyond `leave`. */
static void *read_all(void *argument) {
    struct thread *thread = argument;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        const struct item *pinned = NULL;
        size_t pinned_slot = 0;
        uint64_t version = 0;
        terrace_objects_enter(thread->reader);
        for (int reads = 0; reads < 16; reads++) {
            size_t slot = below(thread, 8) ? below(thread, SLOTS / 8) * 8 : below(thread, SLOTS);
            const struct item *item = item_of(slot);
            if (!item)
                continue;
            check_item(item, slot);
            terrace_objects_touch(heap, item);
            if (!pinned && below(thread, 64) == 0) {
                terrace_objects_pin(heap, thread->reader, item);
                pinned = item, pinned_slot = slot, version = item->version;
            }
        }
        give_up();
        terrace_objects_leave(thread->reader);
        if (pinned) {
            for (int times = 0; times < 8; times++) {
                sched_yield();
                check_item(pinned, pinned_slot);
                MUST(pinned->version == version);
            }
            thread->pins++;
            give_up();
            terrace_objects_unpin(heap, pinned);
        }
    }
    return NULL;
}

/* The callback of ObjecTier's paper: false where the lock is taken, or the item was replaced. */
static bool relocate(void *object, char *room, size_t bytes) {
    take();
    const struct item *item = object;
    size_t slot = item->slot;
    MUST(slot < SLOTS && bytes_of(item) <= bytes);
    if (pthread_mutex_trylock(lock_of(slot)) != 0)
        return false;
    bool is_there = item_of(slot) == item;
    if (is_there) {
        memcpy(room, item, bytes_of(item));
        __atomic_store_n(&slots[slot], (struct item *)(void *)room, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(lock_of(slot));
    give_up();
    return is_there;
}

static void step_until_it_rests(void) {
    while (terrace_objects_step_simple(heap, relocate, 1000000) != TERRACE_OBJECTS_RESTING)
        ;
}

static uint64_t scans(void) { return terrace_objects_counters(heap).scans; }

/* A round begins when it is asked for, and not before within its pause of a second. If this thread
 * did not run for so long that the pause was over, it tries again. */
static void wake_begins_a_round(void) {
    double begun;
    uint64_t before;
    do {
        begun = seconds_now();
        terrace_objects_wake(heap);
        step_until_it_rests();
        before = scans();
        step_until_it_rests();
    } while (scans() != before && seconds_now() - begun > 0.99);
    MUST(scans() == before);
    terrace_objects_wake(heap);
    step_until_it_rests();
    MUST(scans() > before);
}

int main(void) {
    struct terrace_objects_settings settings = {
        .capacity = 16 * MIB,
        .segment_bytes = 16 * KIB,
        .hot_bytes = SLOTS * sizeof(struct item) / 4,
        .bytes_per_s = UINT64_MAX,
        .cpu_share = 1,
        .check_callbacks = 1,
        .choice = TERRACE_OBJECTS_RANDOM_MIXED,
    };
    heap = terrace_objects_create(&settings);
    MUST(heap);
    for (size_t stripe = 0; stripe < STRIPES; stripe++)
        MUST(pthread_mutex_init(&locks[stripe], NULL) == 0);
    wake_begins_a_round();
    static struct thread threads[WRITERS + READERS];
    for (unsigned number = 0; number < COUNT(threads); number++) {
        struct thread *thread = &threads[number];
        *thread = (struct thread){.number = number, .random = (uint64_t)number << 40};
        if (number >= WRITERS)
            MUST(thread->reader = terrace_objects_reader(heap));
        void *(*work)(void *) = number < WRITERS ? write_all : read_all;
        MUST(pthread_create(&thread->thread, NULL, work, thread) == 0);
    }
    double deadline = seconds_now() + 60 * slowness();
    while (__atomic_load_n(&writers_done, __ATOMIC_ACQUIRE) < WRITERS ||
           terrace_objects_counters(heap).moved < MOVES) {
        int progress = terrace_objects_step_simple(heap, relocate, 300000);
        if (progress == TERRACE_OBJECTS_RESTING) {
            usleep(PAUSE_US * slowness());
            terrace_objects_wake(heap);
        } else if (progress == TERRACE_OBJECTS_WAITING) {
            usleep(100);
        }
        MUST(seconds_now() < deadline);
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    uint64_t pins = 0;
    for (unsigned number = 0; number < COUNT(threads); number++) {
        MUST(pthread_join(threads[number].thread, NULL) == 0);
        terrace_objects_reader_end(threads[number].reader);
        pins += threads[number].pins;
    }
    for (size_t slot = 0; slot < SLOTS; slot++) {
        struct item *item = item_of(slot);
        MUST((item ? item->version : 0) == versions[slot]);
        if (item) {
            check_item(item, slot);
            MUST(item->added == added[slot]);
            put(slot, NULL);
        }
    }
    struct terrace_objects_counters told = terrace_objects_counters(heap);
    MUST(told.misused == 0 && pins > 0);
    printf("%lu moved, %lu busy, %lu pins\n", (unsigned long)told.moved, (unsigned long)told.busy,
           (unsigned long)pins);
    terrace_objects_destroy(heap);
    return 0;
}
