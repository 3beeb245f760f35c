/* Objects placed by the program: include/terrace.h. Started alone, without Terrace, mnalloc is malloc. */
#include "cold.h"
#include "terrace.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

static bool placed(void) { return mnalloc != NULL; }

static bool same_page(const void *a, const void *b) { return (uintptr_t)a / PAGE == (uintptr_t)b / PAGE; }

static uint64_t random_of(uint64_t *state) { return *state += 0x9e3779b97f4a7c15ULL, mix(*state); }

/* Every byte of an object tells its number. */
static void mark(unsigned char *object, size_t bytes, uint64_t number) {
    for (size_t at = 0; at < bytes; at++)
        object[at] = (unsigned char)(mix(number) + at);
}

static bool is_marked(const unsigned char *object, size_t bytes, uint64_t number) {
    for (size_t at = 0; at < bytes; at++)
        if (object[at] != (unsigned char)(mix(number) + at))
            return false;
    return true;
}

static void neighbours(void) {
    for (int round = 0; round < 2000; round++) {
        terrace_arena arena = TERRACE_ARENA_CREATE(TERRACE_DEFAULT);
        char *node = TERRACE_MNALLOC(32, terrace_in(arena)), *key = TERRACE_MNALLOC(20, terrace_next_to(node));
        char *value = TERRACE_MNALLOC(300, terrace_next_to(key)), *other = TERRACE_MNALLOC(300, TERRACE_DEFAULT);
        MUST(node && key && value && other && malloc_usable_size(value) >= 300);
        mark((unsigned char *)value, 300, round);
        if (placed()) {
            terrace_arena_figures figures;
            MUST(arena && same_page(node, key) && same_page(key, value) && !same_page(value, other));
            MUST(terrace_arena_of(node) == arena && terrace_arena_of(value + 299) == arena && !terrace_arena_of(other) && !terrace_arena_of(&arena));
            MUST(terrace_arena_query(arena, &figures) == 0 && figures.objects == 3 && figures.pages == 1 && figures.bytes == 32 + 32 + 304);
        }
        MUST(is_marked((unsigned char *)value, 300, round));
        free(other);
        free(key);
        if (round % 2) {
            free(node);
            free(value);
        }
        TERRACE_ARENA_DESTROY(arena);
    }
}

static void apart(void) {
    size_t region = 2 * MIB;
    char *hot = TERRACE_MNALLOC(100, TERRACE_HOT), *cold = TERRACE_MNALLOC(100, TERRACE_COLD), *mild = TERRACE_MNALLOC(100, terrace_next_to(NULL));
    char *large = TERRACE_MNALLOC(3 * MIB, TERRACE_COLD), *aligned = TERRACE_MNALLOC_ALIGNED(1024, 2048, TERRACE_HOT);
    MUST(hot && cold && mild && large && aligned && (uintptr_t)aligned % 1024 == 0);
    if (placed())
        MUST((uintptr_t)hot / region != (uintptr_t)cold / region && (uintptr_t)hot / region != (uintptr_t)mild / region);
    memset(large, 1, 3 * MIB);
    MUST(large[3 * MIB - 1] == 1);
    free(hot), free(cold), free(mild), free(large), free(aligned);
}

static void reallocated(void) {
    terrace_arena arena = TERRACE_ARENA_CREATE(TERRACE_COLD);
    uint64_t random = 1;
    for (int round = 0; round < 300; round++) {
        size_t bytes = 1 + random_of(&random) % 200;
        unsigned char *object = TERRACE_MNALLOC(bytes, terrace_in(arena));
        mark(object, bytes, round);
        for (int step = 0; step < 20; step++) {
            size_t to = 1 + random_of(&random) % (step % 7 ? 500 : 20000);
            object = realloc(object, to);
            MUST(object && is_marked(object, to < bytes ? to : bytes, round));
            MUST(!placed() || terrace_arena_of(object) == arena);
            mark(object, to, round);
            bytes = to;
        }
        if (round % 2)
            free(object);
        else
            MUST(realloc(object, 0) == NULL);
    }
    if (placed()) {
        terrace_arena_figures figures;
        MUST(terrace_arena_query(arena, &figures) == 0 && figures.objects == 0 && figures.bytes == 0 && figures.pages == 0);
        MUST(terrace_arena_destroy(arena) == 0 && terrace_arena_destroy(arena) == -1 && errno == EINVAL);
    }
}

/* All that is usable is the object's, at any alignment. */
static void usable_and_aligned(void) {
    terrace_arena arena = TERRACE_ARENA_CREATE(TERRACE_DEFAULT);
    terrace_placement placements[] = {TERRACE_DEFAULT, TERRACE_HOT, TERRACE_COLD, terrace_in(arena), terrace_next_to(NULL)};
    for (size_t align = 8; align <= 2 * MIB; align *= 2)
        for (size_t where = 0; where < COUNT(placements); where++)
            for (size_t bytes = 0; bytes < 20000; bytes = bytes * 3 + 1) {
                unsigned char *object = TERRACE_MNALLOC_ALIGNED(align, bytes, placements[where]), *other = TERRACE_MNALLOC(bytes, placements[where]);
                MUST(object && other && (uintptr_t)object % align == 0 && (uintptr_t)other % 8 == 0);
                size_t usable = malloc_usable_size(object), others = malloc_usable_size(other);
                MUST(usable >= bytes && others >= bytes);
                errno = 5;
                mark(object, usable, bytes);
                mark(other, others, bytes + 1);
                MUST(is_marked(object, usable, bytes));
                object = realloc(object, usable + 100);
                other = realloc(other, others / 2 + 1);
                MUST(object && other && errno == 5);
                MUST(is_marked(object, usable, bytes) && is_marked(other, others < others / 2 + 1 ? others : others / 2 + 1, bytes + 1));
                free(object);
                free(other);
                MUST(errno == 5);
            }
    TERRACE_ARENA_DESTROY(arena);
    errno = 0;
    MUST(TERRACE_MNALLOC(SIZE_MAX / 2, TERRACE_HOT) == NULL && errno == ENOMEM);
}

/*
 * Threads that allocate in each other's arenas, free each other's objects, destroy arenas and make
 * new ones, beside forks: against what each remembers.
 */
enum { ARENAS = 64, EACH = 40, THREADS = 4 };
static struct group {
    pthread_mutex_t lock;
    terrace_arena arena;
    unsigned count;
    struct {
        unsigned char *object;
        size_t bytes;
        uint64_t number;
    } of[EACH];
} groups[ARENAS];
static atomic_bool stop;

static void check_group(struct group *group) {
    for (unsigned at = 0; at < group->count; at++)
        MUST(is_marked(group->of[at].object, group->of[at].bytes, group->of[at].number));
}

static void step(struct group *group, uint64_t *random) {
    uint64_t number = random_of(random);
    if (number % 50 == 0) {
        check_group(group);
        if (TERRACE_ARENA_DESTROY(group->arena) != 0)
            for (unsigned at = 0; at < group->count; at++)
                free(group->of[at].object);
        group->count = 0;
        group->arena = TERRACE_ARENA_CREATE(number % 3 ? TERRACE_DEFAULT : TERRACE_HOT);
    } else if (group->count == EACH || (group->count > 0 && number % 3 == 0)) {
        unsigned at = number / 3 % group->count;
        MUST(is_marked(group->of[at].object, group->of[at].bytes, group->of[at].number));
        free(group->of[at].object);
        group->of[at] = group->of[--group->count];
    } else {
        size_t bytes = number / 1024 % 20 ? number / 4096 % 400 : number / 4096 % 9000;
        terrace_placement where = group->count > 0 && number % 2 ? terrace_next_to(group->of[0].object) : terrace_in(group->arena);
        unsigned char *object = TERRACE_MNALLOC(bytes, where);
        MUST(object && (!placed() || terrace_arena_of(object) == group->arena));
        mark(object, bytes, number);
        group->of[group->count].object = object;
        group->of[group->count].bytes = bytes;
        group->of[group->count++].number = number;
    }
}

static void *worker(void *seed) {
    uint64_t random = (uintptr_t)seed;
    while (!stop) {
        struct group *group = &groups[random_of(&random) % ARENAS];
        MUST(pthread_mutex_lock(&group->lock) == 0);
        step(group, &random);
        MUST(pthread_mutex_unlock(&group->lock) == 0);
    }
    return NULL;
}

static void threads_and_forks(void) {
    for (int at = 0; at < ARENAS; at++) {
        pthread_mutex_init(&groups[at].lock, NULL);
        groups[at].arena = TERRACE_ARENA_CREATE(TERRACE_DEFAULT);
    }
    pthread_t threads[THREADS];
    for (uintptr_t at = 0; at < THREADS; at++)
        MUST(pthread_create(&threads[at], NULL, worker, (void *)(at + 1)) == 0);
    int children = 0;
    for (double until = seconds_now() + 3; seconds_now() < until; children++) {
        usleep(20000);
        /* Groups that no thread is at: a child has those whole. */
        for (int at = 0; at < 4; at++)
            MUST(pthread_mutex_lock(&groups[at].lock) == 0);
        pid_t child = fork();
        if (child == 0) {
            alarm(100);
            uint64_t random = children;
            for (int at = 0; at < 4; at++) {
                check_group(&groups[at]);
                for (int n = 0; n < 200; n++)
                    step(&groups[at], &random);
                check_group(&groups[at]);
            }
            _exit(0);
        }
        MUST(child > 0);
        for (int at = 0; at < 4; at++)
            MUST(pthread_mutex_unlock(&groups[at].lock) == 0);
        wait_for(child);
    }
    stop = true;
    for (int at = 0; at < THREADS; at++)
        MUST(pthread_join(threads[at], NULL) == 0);
    for (int at = 0; at < ARENAS; at++)
        check_group(&groups[at]);
}

/* Freed and destroyed while it is out: nothing of it comes back for that, and what comes there next
 * is what is written. */
static void gone_while_out(void) {
    for (int round = 0; round < 5; round++) {
        terrace_arena arena = TERRACE_ARENA_CREATE(TERRACE_COLD);
        enum { OBJECTS = 3000 };
        static unsigned char *objects[OBJECTS];
        for (int at = 0; at < OBJECTS; at++) {
            objects[at] = TERRACE_MNALLOC(1000, terrace_in(arena));
            mark(objects[at], 1000, at);
        }
        for (int at = 0; at < OBJECTS; at++)
            madvise((void *)((uintptr_t)objects[at] & ~(uintptr_t)(PAGE - 1)), PAGE, MADV_PAGEOUT);
        usleep(50000);
        for (int at = 0; at < OBJECTS; at += 2)
            free(objects[at]);
        for (int at = 1; at < OBJECTS; at += 2)
            MUST(is_marked(objects[at], 1000, at));
        for (int at = 0; at < OBJECTS; at += 2) {
            objects[at] = TERRACE_MNALLOC(900, terrace_next_to(objects[at + 1]));
            mark(objects[at], 900, at);
        }
        for (int at = 0; at < OBJECTS; at++)
            MUST(is_marked(objects[at], at % 2 ? 1000 : 900, at));
        if (TERRACE_ARENA_DESTROY(arena) != 0)
            for (int at = 0; at < OBJECTS; at++)
                free(objects[at]);
    }
}

static void pinned_memory_stays(void) {
    char *area = mapping(8 * MIB);
    fill(area, 8 * MIB, 3);
    evict(area, 8 * MIB);
    MUST(TERRACE_ADVISE(area + 2 * MIB + 5, 2 * MIB, TERRACE_ADVICE_PIN) == 0);
    for (int round = 0; round < 10; round++) {
        madvise(area, 8 * MIB, MADV_PAGEOUT);
        usleep(20000);
        MUST(!evicts() || absent_pages(area + 2 * MIB, 2 * MIB) == 0);
    }
    char *moved = mremap(area, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE);
    MUST(moved != MAP_FAILED);
    madvise(moved, 8 * MIB, MADV_PAGEOUT);
    usleep(50000);
    MUST(!evicts() || absent_pages(moved + 2 * MIB, 2 * MIB) == 0);
    MUST(TERRACE_ADVISE(moved, 8 * MIB, TERRACE_ADVICE_NORMAL) == 0);
    if (evicts())
        evict(moved, 8 * MIB);
    check(moved, 8 * MIB, 3);
}

static void any_advice(void) {
    char *area = cold_mapping(4 * MIB, 4);
    static const int advice[] = {TERRACE_ADVICE_NORMAL, TERRACE_ADVICE_HOT, TERRACE_ADVICE_COLD, TERRACE_ADVICE_WILLNEED, TERRACE_ADVICE_PIN};
    for (size_t at = 0; at < COUNT(advice); at++) {
        const void *addresses[] = {NULL, area, area + 4 * MIB - 1, (void *)any_advice, &area, (void *)(uintptr_t)-1, (void *)0x123456789000};
        for (size_t which = 0; which < COUNT(addresses); which++)
            for (size_t len = 0; len < 5; len++) {
                static const size_t lengths[] = {0, 1, 10000, 8 * MIB, SIZE_MAX};
                MUST(TERRACE_ADVISE(addresses[which], lengths[len], advice[at]) == 0);
            }
        check(area, 4 * MIB, 4);
    }
    MUST(!placed() || (terrace_advise(area, 1, 77) == -1 && errno == EINVAL));
    TERRACE_ADVISE(area, SIZE_MAX, TERRACE_ADVICE_NORMAL);
}

/* Half of it hot, half of it cold, all of it written once: shares of their pages that are out, in percent. */
static void what_is_cold_leaves_first(void) {
    enum { OBJECTS = 160000 };
    static unsigned char *objects[OBJECTS];
    for (int at = 0; at < OBJECTS; at++) {
        objects[at] = TERRACE_MNALLOC(400, at % 2 ? TERRACE_COLD : TERRACE_HOT);
        mark(objects[at], 400, at);
    }
    sleep(2);
    size_t out[2] = {0};
    for (int at = 0; at < OBJECTS; at += 7)
        out[at % 2] += absent_pages((char *)((uintptr_t)objects[at] & ~(uintptr_t)(PAGE - 1)), PAGE);
    printf("%zu %zu\n", out[0] * 1400 / OBJECTS, out[1] * 1400 / OBJECTS);
    fflush(stdout);
    for (int at = 0; at < OBJECTS; at++)
        MUST(is_marked(objects[at], 400, at));
}

/* Whatever is done wrong is told of (this is a debug build), and nothing breaks. */
static void misuse(void) {
    terrace_arena arena = TERRACE_ARENA_CREATE(TERRACE_DEFAULT);
    char *object = TERRACE_MNALLOC(100, terrace_in(arena)), *heap = malloc(100);
    char *near = TERRACE_MNALLOC(100, terrace_next_to(heap));
    MUST(heap && near);
    free(near);
    if (!placed())
        return;
    MUST(terrace_arena_destroy(arena) == 0);
    MUST(terrace_arena_destroy(arena) == -1 && terrace_arena_destroy(77) == -1);
    char *orphan = mnalloc(100, terrace_in(arena));
    MUST(orphan && !terrace_arena_of(orphan));
    free(orphan);
    char *hot = mnalloc(100, TERRACE_HOT);
    free(hot + 16);
    free(hot);
    free(object);
    terrace_placement none = {9, 9};
    free(mnalloc(10, none));
    MUST(mnalloc_aligned(48, 100, TERRACE_HOT) == NULL && errno == EINVAL);
    char *stays = mnalloc(1000, TERRACE_HOT);
    memset(stays, 7, 1000);
    free(stays + 160);
    MUST(stays[999] == 7 && malloc_usable_size(stays) >= 1000);
    free(stays);
    /* What Terrace has not allocated: on the stack, of the program's own mapping. It would be
     * handed out if it were taken for free memory. */
    static char in_data[64];
    char on_stack[64], *mapped = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *volatile foreign[] = {on_stack, mapped, mapped + PAGE, in_data, (char *)misuse, (char *)16, (char *)(UINTPTR_MAX - 4095)};
    for (size_t at = 0; at < COUNT(foreign); at++) {
        free(foreign[at]);
        errno = 0;
        MUST(realloc(foreign[at], 100) == NULL && errno == EINVAL);
        MUST(malloc_usable_size(foreign[at]) == 0);
        for (size_t bytes = 1; bytes <= 4096; bytes *= 2) {
            char *made = malloc(bytes);
            MUST(made && made != foreign[at]);
        }
    }
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(neighbours), CASE(apart),      CASE(reallocated), CASE(usable_and_aligned), CASE(threads_and_forks), CASE(gone_while_out), CASE(pinned_memory_stays),
        CASE(any_advice), CASE(what_is_cold_leaves_first), CASE(misuse),
    };
    return run_case(count, words, cases, COUNT(cases));
}
