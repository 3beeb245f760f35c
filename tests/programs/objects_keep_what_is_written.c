/*
 * Objects of random sizes, made, resized, handed on and freed by threads that come and go, in every
 * way that there is, placements too. Each is filled with a pattern of its number, and looked at
 * byte by byte whenever something is done to it. What is known of them is in .bss, which Terrace
 * does not manage. So whatever loses a byte, gives two threads the same memory or takes it away too
 * early is found.
 *
 * Usage: objects_keep_what_is_written SECONDS [SEED]
 */
#include "cold.h"
#include "terrace.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    WORKERS = 4,
    SLOTS = 2500,  /* of each worker: some 50 MiB live in all */
    WAITING = 64,  /* objects that wait for a worker, at most */
    ARENAS = 6,    /* of each worker */
    SHIFT = 20000, /* steps of a thread before another takes its place */
    STEPS_LEAST = 50000,
};

struct object {
    unsigned char *at; /* NULL: there is none */
    size_t bytes;
    uint64_t number;
    terrace_arena arena; /* it ends with this one */
    const char *made;    /* the last thing that was done to it */
};

static struct worker {
    struct object objects[SLOTS];
    terrace_arena arenas[ARENAS];
    pthread_mutex_t lock; /* of what waits */
    struct object waiting[WAITING];
    size_t waiting_count;
    uint64_t random;
} workers[WORKERS];

static atomic_ulong steps, handed_on, numbers, children;
static double end;

static uint64_t random_of(struct worker *worker) { return worker->random += 0x9e3779b97f4a7c15ULL, mix(worker->random); }

/* Some compress to almost nothing, some not at all. */
static uint64_t pattern(uint64_t number, size_t word) {
    uint64_t r = mix(number * 0x9e3779b97f4a7c15ULL) | 1;
    return number % 4 == 0 ? r : number % 4 == 1 ? r + word / 16 : number % 4 == 2 ? r ^ word : mix(r + word);
}

static void write_from(struct object *object, size_t from) {
    for (size_t at = from / 8 * 8; at < object->bytes; at += 8) {
        uint64_t word = pattern(object->number, at / 8);
        size_t begin = at < from ? from - at : 0, until = object->bytes - at < 8 ? object->bytes - at : 8;
        memcpy(object->at + at + begin, (char *)&word + begin, until - begin);
    }
}

static void look_at(const struct object *object, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = pattern(object->number, at / 8), there = 0;
        size_t len = bytes - at < 8 ? bytes - at : 8;
        memcpy(&there, object->at + at, len);
        if (memcmp(&there, &word, len) != 0) {
            dprintf(2, "LOST in %d: byte %zu of %zu of object %lu (%s) at %p: %#lx instead of %#lx\n", getpid(), at, object->bytes,
                    (unsigned long)object->number, object->made, (void *)object->at, (unsigned long)there, (unsigned long)word);
            _exit(1);
        }
    }
}

/* Mostly small; one in 500 of up to 3 MiB. */
static size_t some_bytes(struct worker *worker) {
    uint64_t r = random_of(worker);
    size_t most = r % 1000 < 800 ? 600 : r % 1000 < 980 ? 20000 : r % 1000 < 998 ? 300000 : 3000000;
    return (size_t)(r >> 20) % most;
}

static terrace_placement some_placement(struct worker *worker) {
    uint64_t r = random_of(worker);
    switch (r % 5) {
    case 0: return TERRACE_HOT;
    case 1: return TERRACE_COLD;
    case 2: return terrace_next_to(worker->objects[r / 8 % SLOTS].at);
    default: return terrace_in(worker->arenas[r / 8 % ARENAS]);
    }
}

static void make(struct worker *worker, struct object *object) {
    uint64_t r = random_of(worker);
    size_t bytes = some_bytes(worker), align = (size_t)8 << r / 64 % (r % 7 ? 8 : 19);
    void *at = NULL;
    switch (r / 1024 % 10) {
    case 0:
        object->made = "calloc";
        at = calloc(1, bytes);
        for (size_t byte = 0; byte < bytes; byte++)
            MUST(((char *)at)[byte] == 0);
        break;
    case 1:
        object->made = "posix_memalign";
        MUST(posix_memalign(&at, align, bytes) == 0 && (uintptr_t)at % align == 0);
        break;
    case 2:
        object->made = r % 2 ? "aligned_alloc" : "memalign";
        at = r % 2 ? aligned_alloc(align, bytes) : memalign(align, bytes);
        MUST((uintptr_t)at % align == 0);
        break;
    case 3:
    case 4:
        object->made = "mnalloc";
        at = TERRACE_MNALLOC(bytes, some_placement(worker));
        break;
    case 5:
        object->made = "mnalloc_aligned";
        align = align > PAGE ? PAGE : align;
        at = TERRACE_MNALLOC_ALIGNED(align, bytes, some_placement(worker));
        MUST((uintptr_t)at % align == 0);
        break;
    default: object->made = "malloc"; at = malloc(bytes);
    }
    MUST(at && malloc_usable_size(at) >= bytes);
    object->at = at;
    object->bytes = bytes;
    object->number = ++numbers;
    object->arena = terrace_arena_of ? terrace_arena_of(at) : 0;
    write_from(object, 0);
}

static void release(struct object *object) {
    look_at(object, object->bytes);
    free(object->at);
    object->at = NULL;
}

static void resize(struct worker *worker, struct object *object) {
    /* All that is usable belongs to the program, and is kept. */
    if (random_of(worker) % 2) {
        size_t had = object->bytes;
        object->bytes = malloc_usable_size(object->at);
        MUST(object->bytes >= had);
        write_from(object, had);
    }
    look_at(object, object->bytes);
    size_t had = object->bytes, bytes = random_of(worker) % 3 ? had / 2 + random_of(worker) % (had + 64) : some_bytes(worker);
    bytes += bytes == 0; /* which would free it */
    object->at = realloc(object->at, bytes);
    MUST(object->at && malloc_usable_size(object->at) >= bytes);
    object->bytes = bytes;
    object->made = "realloc";
    object->arena = terrace_arena_of ? terrace_arena_of(object->at) : 0;
    look_at(object, had < bytes ? had : bytes);
    if (bytes > had)
        write_from(object, had);
}

static void renew_an_arena(struct worker *worker) {
    terrace_arena *arena = &worker->arenas[random_of(worker) % ARENAS];
    for (int slot = 0; *arena && slot < SLOTS; slot++) {
        struct object *object = &worker->objects[slot];
        if (object->at && object->arena == *arena) {
            look_at(object, object->bytes);
            object->at = NULL;
        }
    }
    TERRACE_ARENA_DESTROY(*arena);
    *arena = TERRACE_ARENA_CREATE(random_of(worker) % 2 ? TERRACE_DEFAULT : TERRACE_COLD);
}

static void hand_on(struct worker *worker, struct object *object) {
    struct worker *other = &workers[random_of(worker) % WORKERS];
    pthread_mutex_lock(&other->lock);
    if (other->waiting_count < WAITING) {
        other->waiting[other->waiting_count++] = *object;
        object->at = NULL;
        handed_on++;
    }
    pthread_mutex_unlock(&other->lock);
}

/* A worker whose slot is not free frees what another thread made. */
static void receive(struct worker *worker, struct object *object) {
    struct object received = {0};
    pthread_mutex_lock(&worker->lock);
    if (worker->waiting_count > 0)
        received = worker->waiting[--worker->waiting_count];
    pthread_mutex_unlock(&worker->lock);
    if (!received.at)
        return;
    if (object->at)
        release(&received);
    else
        *object = received;
}

static void step(struct worker *worker, bool alone) {
    uint64_t r = random_of(worker);
    struct object *object = &worker->objects[r / 1024 % SLOTS];
    if (r % 4000 == 0)
        renew_an_arena(worker);
    else if (r % 16 < 3 && !alone)
        receive(worker, object);
    else if (!object->at)
        make(worker, object);
    else if (r % 16 < 6 && !alone && !object->arena)
        hand_on(worker, object);
    else if (r % 16 < 9)
        resize(worker, object);
    else if (r % 16 < 11)
        look_at(object, object->bytes);
    else
        release(object);
}

/* A child has what the thread that made it has, and goes on with it. */
static void have_a_child(struct worker *worker) {
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        for (int slot = 0; slot < SLOTS; slot += 5)
            if (worker->objects[slot].at)
                look_at(&worker->objects[slot], worker->objects[slot].bytes);
        for (int n = 0; n < 500; n++)
            step(worker, true);
        _exit(0);
    }
    wait_for(child);
    children++;
}

/* Until the time is over, and on a slow machine until enough was done. */
static bool goes_on(void) { return seconds_now() < end || steps < STEPS_LEAST; }

static void *shift(void *argument) {
    struct worker *worker = argument;
    if (random_of(worker) % 4 == 0)
        have_a_child(worker);
    for (int n = 0; n < SHIFT && goes_on(); n++, steps++)
        step(worker, false);
    return NULL;
}

/* One thread after the other. */
static void *work(void *argument) {
    while (goes_on()) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, shift, argument) == 0);
        MUST(pthread_join(thread, NULL) == 0);
    }
    return NULL;
}

int main(int count, char **words) {
    MUST(count > 1);
    uint64_t seed = count > 2 ? strtoull(words[2], NULL, 0) : 1;
    end = seconds_now() + strtod(words[1], NULL);
    pthread_t threads[WORKERS];
    for (int n = 0; n < WORKERS; n++) {
        workers[n].random = mix(seed * WORKERS + (uint64_t)n + 1);
        pthread_mutex_init(&workers[n].lock, NULL);
        for (int arena = 0; arena < ARENAS; arena++)
            renew_an_arena(&workers[n]);
    }
    for (int n = 0; n < WORKERS; n++)
        MUST(pthread_create(&threads[n], NULL, work, &workers[n]) == 0);
    for (int n = 0; n < WORKERS; n++)
        MUST(pthread_join(threads[n], NULL) == 0);
    /* What is left, all of it by this thread. */
    size_t bytes = 0;
    for (int n = 0; n < WORKERS; n++) {
        for (int slot = 0; slot < SLOTS; slot++)
            if (workers[n].objects[slot].at) {
                bytes += workers[n].objects[slot].bytes;
                release(&workers[n].objects[slot]);
            }
        for (size_t at = 0; at < workers[n].waiting_count; at++)
            release(&workers[n].waiting[at]);
        for (int arena = 0; arena < ARENAS; arena++)
            TERRACE_ARENA_DESTROY(workers[n].arenas[arena]);
    }
    printf("seed %lu: %lu steps, %lu objects, %lu handed on, %lu children, %zu MiB at the end, nothing lost\n", (unsigned long)seed, (unsigned long)steps,
           (unsigned long)numbers, (unsigned long)handed_on, (unsigned long)children, bytes / MIB);
    return 0;
}
