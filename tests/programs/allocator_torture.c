/* What programs expect of malloc and its family, from C. Usage: see cold.h; the second argument is
 * the library to load and unload. */
#include "cold.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

static const char *library;
/* The compiler must not see that sizes are senseless. */
static volatile size_t huge = SIZE_MAX / 2, zero;

static void filled(char *block, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size; i += i < 64 ? 1 : 509)
        block[i] = (char)(seed + i);
    if (size)
        block[size - 1] = (char)(seed + size - 1);
}
static void still_filled(const char *block, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size; i += i < 64 ? 1 : 509)
        MUST(block[i] == (char)(seed + i));
    MUST(size == 0 || block[size - 1] == (char)(seed + size - 1));
}

/* Sizes as programs have them: mostly small, some large. */
static size_t some_size(uint64_t *state) {
    uint64_t r = *state = mix(*state * 6364136223846793005ULL + 1442695040888963407ULL);
    size_t limit = r % 100 < 80 ? 500 : r % 100 < 98 ? 20000 : r % 100 < 99 ? 300000 : 3000000;
    return (size_t)(r >> 20) % limit;
}

enum { SHARED_SLOTS = 512 };
struct slot {
    pthread_mutex_t lock;
    char *block;
    size_t size;
    uint64_t seed;
};
static struct slot slots[SHARED_SLOTS];

/* Blocks change hands: each is checked and replaced by any thread that comes along. */
static void *replace_blocks(void *argument) {
    uint64_t state = (uint64_t)(uintptr_t)argument * 77 + 3;
    for (int n = 0; n < 15000; n++) {
        size_t size = some_size(&state);
        struct slot *slot = &slots[state % SHARED_SLOTS];
        pthread_mutex_lock(&slot->lock);
        if (slot->block)
            still_filled(slot->block, slot->size, slot->seed);
        if (slot->block && state >> 60 < 5) {
            slot->block = realloc(slot->block, size + 1);
            MUST(slot->block);
            still_filled(slot->block, slot->size < size ? (slot->size < 64 ? slot->size : 64) : (size < 64 ? size : 64), slot->seed);
            size++;
        } else {
            free(slot->block);
            if (state >> 60 < 8) {
                slot->block = calloc(1, size + 1);
                for (size_t i = 0; i <= size; i += 61)
                    MUST(slot->block[i] == 0);
            } else if (state >> 60 < 10) {
                MUST(posix_memalign((void **)&slot->block, 64, size) == 0);
            } else {
                slot->block = malloc(size);
            }
            MUST(slot->block);
        }
        slot->size = size;
        slot->seed = state;
        filled(slot->block, size, state);
        pthread_mutex_unlock(&slot->lock);
    }
    return NULL;
}

static void threads_share_blocks(void) {
    for (int n = 0; n < SHARED_SLOTS; n++)
        pthread_mutex_init(&slots[n].lock, NULL);
    pthread_t threads[4];
    for (size_t n = 0; n < COUNT(threads); n++)
        MUST(pthread_create(&threads[n], NULL, replace_blocks, (void *)n) == 0);
    for (size_t n = 0; n < COUNT(threads); n++)
        pthread_join(threads[n], NULL);
    for (int n = 0; n < SHARED_SLOTS; n++) {
        if (slots[n].block)
            still_filled(slots[n].block, slots[n].size, slots[n].seed);
        free(slots[n].block);
    }
}

static pthread_key_t keys[3];
static atomic_int destroyed;
static void destroy(void *value) {
    void *other = malloc(3000);
    still_filled(value, 1000, 5);
    free(value);
    free(other);
    /* A destructor may set its key again: it is called again. */
    if (destroyed++ % 5 == 0) {
        char *again = malloc(1000);
        filled(again, 1000, 5);
        pthread_setspecific(keys[0], again);
    }
}
static void *use_keys(void *argument) {
    for (int k = 0; k < 3; k++) {
        char *value = malloc(1000);
        filled(value, 1000, 5);
        pthread_setspecific(keys[k], value);
    }
    void *blocks[64];
    for (int round = 0; round < 20; round++) {
        for (int n = 0; n < 64; n++)
            memset(blocks[n] = malloc((size_t)(1 + (n * 37 + round) % 3000)), 1, (size_t)(1 + (n * 37 + round) % 3000));
        for (int n = 0; n < 64; n++)
            free(blocks[n]);
    }
    return strdup("from a thread");
}

static void destructors_of_thread_values_allocate(void) {
    for (int k = 0; k < 3; k++)
        pthread_key_create(&keys[k], destroy);
    for (int round = 0; round < 40; round++) {
        pthread_t threads[6];
        for (size_t n = 0; n < COUNT(threads); n++)
            MUST(pthread_create(&threads[n], NULL, use_keys, NULL) == 0);
        for (size_t n = 0; n < COUNT(threads); n++) {
            void *text;
            pthread_join(threads[n], &text);
            MUST(strcmp(text, "from a thread") == 0);
            free(text);
        }
    }
    MUST(destroyed >= 40 * 6 * 3);
}

static atomic_bool stop;
static void *allocate_until_stopped(void *argument) {
    uint64_t state = (uint64_t)(uintptr_t)argument + 1;
    char *blocks[100] = {0};
    size_t sizes[100];
    while (!stop) {
        size_t n = state % 100, size = some_size(&state);
        if (blocks[n])
            still_filled(blocks[n], sizes[n], n);
        free(blocks[n]);
        blocks[n] = malloc(size);
        sizes[n] = size;
        filled(blocks[n], size, n);
    }
    for (int n = 0; n < 100; n++)
        free(blocks[n]);
    return NULL;
}

static void children_allocate_whatever_threads_held(void) {
    pthread_t threads[4];
    for (size_t n = 0; n < COUNT(threads); n++)
        MUST(pthread_create(&threads[n], NULL, allocate_until_stopped, (void *)n) == 0);
    for (int round = 0; round < 12; round++) {
        char *block = malloc(100000);
        filled(block, 100000, (uint64_t)round);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            still_filled(block, 100000, (uint64_t)round);
            uint64_t state = (uint64_t)round;
            for (int n = 0; n < 2000; n++) {
                size_t size = some_size(&state);
                char *own = malloc(size);
                filled(own, size, state);
                free(own);
            }
            pthread_t thread;
            stop = true;
            MUST(pthread_create(&thread, NULL, allocate_until_stopped, NULL) == 0);
            pthread_join(thread, NULL);
            free(block);
            if (round % 2)
                exit(0);
            _exit(0);
        }
        wait_for(child);
        free(block);
    }
    stop = true;
    for (size_t n = 0; n < COUNT(threads); n++)
        pthread_join(threads[n], NULL);
}

static void edges_of_sizes(void) {
    char *one = malloc(zero), *two = malloc(zero);
    MUST(one && two && one != two);
    free(one), free(two), free(NULL);
    one = calloc(zero, 8), two = calloc(8, zero);
    MUST(one && two);
    free(one), free(two);
    one = realloc(NULL, 10);
    MUST(one);
    one = realloc(one, zero); /* frees, or makes the smallest block: both are seen */
    free(one);
    MUST(realloc(malloc(10), zero) == NULL && realloc(malloc(100000), zero) == NULL);
    errno = 0;
    MUST(malloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    MUST(malloc(huge * 2) == NULL && errno == ENOMEM);
    errno = 0;
    MUST(calloc(huge, 4) == NULL && errno == ENOMEM);
    errno = 0;
    MUST(calloc(huge, 1) == NULL && errno == ENOMEM);
    errno = 0;
    MUST(reallocarray(NULL, huge, 8) == NULL && errno == ENOMEM);
    one = malloc(100);
    filled(one, 100, 1);
    errno = 0;
    MUST(realloc(one, huge) == NULL && errno == ENOMEM);
    MUST(reallocarray(one, huge, 8) == NULL);
    still_filled(one, 100, 1);
    one = reallocarray(one, 100, 100);
    MUST(one);
    still_filled(one, 64, 1);
    free(one);
    errno = 0;
    MUST(memalign(64, huge) == NULL && errno == ENOMEM);
    errno = 0;
    MUST(aligned_alloc(64, huge & ~(size_t)63) == NULL && errno == ENOMEM);
    void *untouched = &one;
    MUST(posix_memalign(&untouched, 64, huge) == ENOMEM && untouched == &one);
    MUST(posix_memalign(&untouched, 3, 8) == EINVAL && posix_memalign(&untouched, 4, 8) == EINVAL && untouched == &one);
    errno = 0;
    MUST(valloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    MUST(pvalloc(huge * 2) == NULL && errno == ENOMEM);
    /* Rounded up, these come out at next to nothing. */
    size_t all = huge * 2 + 1;
    for (size_t less = 0; less < 5000; less += less < 64 ? 1 : 97) {
        errno = 0;
        MUST(malloc(all - less) == NULL && errno == ENOMEM);
        errno = 0;
        MUST(calloc(1, all - less) == NULL && errno == ENOMEM);
        errno = 0;
        MUST(realloc(NULL, all - less) == NULL && errno == ENOMEM);
        errno = 0;
        MUST(memalign(2 * MIB, all - less) == NULL && errno == ENOMEM);
        errno = 0;
        MUST(pvalloc(all - less) == NULL && errno == ENOMEM);
        MUST(posix_memalign(&untouched, 2 * MIB, all - less) == ENOMEM && untouched == &one);
    }
}

static pthread_key_t errno_key;
static void free_and_keep_errno(void *value) {
    errno = 5;
    free(value);
    free(malloc(100));
    MUST(errno == 5);
}
static void *first_calls(void *frees_first) {
    errno = 5;
    if (frees_first)
        free(NULL);
    char *block = frees_first ? calloc(100, 100) : malloc(3000);
    MUST(errno == 5);
    pthread_setspecific(errno_key, malloc(200));
    MUST(errno == 5);
    return block;
}

static void errno_is_kept(void) {
    uint64_t state = 1;
    for (int n = 0; n < 5000; n++) {
        errno = 5;
        char *block = malloc(some_size(&state) * (n % 100 == 0 ? 20 : 1));
        MUST(errno == 5);
        block = realloc(block, some_size(&state) + 1);
        MUST(errno == 5);
        free(block);
        MUST(errno == 5);
        void *aligned;
        MUST(posix_memalign(&aligned, 256, 1000) == 0 && errno == 5);
        free(aligned);
        free(calloc(10, 10));
        MUST(errno == 5);
    }
    void *untouched;
    errno = 5;
    MUST(posix_memalign(&untouched, 64, huge) == ENOMEM);
    /* Large ones are mapped and given back. */
    for (int n = 0; n < 20; n++) {
        errno = 5;
        char *block = calloc(20, MIB);
        block[n * MIB] = 1;
        MUST(errno == 5);
        block = realloc(block, (size_t)(1 + n * 2) * MIB);
        MUST(errno == 5 && malloc_usable_size(block) >= MIB && errno == 5);
        free(block);
        free(NULL);
        MUST(errno == 5);
        errno = 5;
        free(memalign(2 * MIB, 3 * MIB));
        free(pvalloc(10));
        MUST(errno == 5);
    }
    /* A thread's first calls make what it needs, its last ones take that away; and another has freed what it made. */
    for (int n = 0; n < 40; n++) {
        pthread_t thread;
        void *left;
        MUST(pthread_key_create(&errno_key, free_and_keep_errno) == 0);
        MUST(pthread_create(&thread, NULL, first_calls, (void *)(uintptr_t)(n % 2)) == 0);
        MUST(pthread_join(thread, &left) == 0);
        errno = 5;
        free(left);
        MUST(errno == 5);
        pthread_key_delete(errno_key);
    }
}

static void alignments(void) {
    for (size_t alignment = 8; alignment <= 2 * MIB; alignment *= 2)
        for (int n = 0; n < 8; n++) {
            size_t size = n == 0 ? 1 : n == 1 ? alignment : (size_t)n * 1777;
            char *blocks[4];
            void *block;
            MUST(posix_memalign(&block, alignment, size) == 0);
            blocks[0] = block;
            blocks[1] = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
            blocks[2] = memalign(alignment, size);
            blocks[3] = n % 2 ? valloc(size) : pvalloc(size);
            for (int b = 0; b < 4; b++) {
                MUST(blocks[b] && ((uintptr_t)blocks[b] & ((b < 3 ? alignment : PAGE) - 1)) == 0);
                MUST(malloc_usable_size(blocks[b]) >= size);
                filled(blocks[b], size, (uint64_t)b);
            }
            MUST(n % 2 || malloc_usable_size(blocks[3]) >= PAGE);
            for (int b = 0; b < 4; b++) {
                still_filled(blocks[b], size, (uint64_t)b);
                blocks[b] = realloc(blocks[b], size + 5000);
                still_filled(blocks[b], size < 64 ? size : 64, (uint64_t)b);
                free(blocks[b]);
            }
        }
    for (size_t size = 1; size < 5000; size += 7) {
        char *block = malloc(size);
        MUST(((uintptr_t)block & (size < 16 ? 7 : 15)) == 0);
        free(block);
    }
}

static void usable_size_is_usable(void) {
    MUST(malloc_usable_size(NULL) == 0);
    char *blocks[600];
    for (size_t n = 0; n < 600; n++) {
        size_t size = n * n * 3;
        blocks[n] = malloc(size);
        MUST(malloc_usable_size(blocks[n]) >= size);
        memset(blocks[n], (int)n, malloc_usable_size(blocks[n]));
    }
    for (size_t n = 0; n < 600; n++) {
        size_t usable = malloc_usable_size(blocks[n]);
        for (size_t i = 0; i < usable; i += 101)
            MUST(blocks[n][i] == (char)n);
        MUST(blocks[n][usable - 1] == (char)n);
        free(blocks[n]);
    }
}

/* Programs write to all that malloc_usable_size tells of (systemd does), and expect realloc to keep it. */
static void realloc_keeps_all_that_is_usable(void) {
    for (size_t size = 0; size < 5 * MIB; size += size / 5 + 1)
        for (int way = 0; way < 5; way++)
            for (int to = 0; to < 4; to++) {
                char *block = way == 0   ? malloc(size)
                              : way == 1 ? calloc(1, size)
                              : way == 2 ? realloc(malloc(size / 2 + 1), size + 1)
                              : way == 3 ? memalign(256, size)
                                         : aligned_alloc(PAGE, size);
                size_t usable = malloc_usable_size(block);
                MUST(block && usable >= size);
                filled(block, usable, size);
                MUST(malloc_usable_size(block) == usable);
                size_t next = to == 0 ? usable : to == 1 ? usable + 1 : to == 2 ? usable * 2 + 100 : usable / 2 + 1;
                block = realloc(block, next);
                MUST(block && malloc_usable_size(block) >= next);
                for (size_t i = 0; i < usable && i < next; i += i < 64 ? 1 : 509)
                    MUST(block[i] == (char)(size + i));
                MUST(next < usable || block[usable - 1] == (char)(size + usable - 1));
                free(block);
            }
    /* A text that grows so, a byte more than is usable each time. */
    char *text = NULL;
    size_t have = 0;
    while (have < 3 * MIB) {
        text = realloc(text, have + 1);
        for (size_t i = 0; i < have; i += 1 + have / 500)
            MUST(text[i] == (char)(i * 3));
        size_t usable = malloc_usable_size(text);
        MUST(usable > have);
        for (size_t i = have; i < usable; i++)
            text[i] = (char)(i * 3);
        have = usable < 64 * KIB ? usable : usable + usable / 4;
        if (have > usable) {
            text = realloc(text, have);
            for (size_t i = usable; i < have; i++)
                text[i] = (char)(i * 3);
        }
    }
    free(text);
}

static void calloc_gives_zeros_and_realloc_keeps(void) {
    for (int round = 0; round < 6; round++) {
        char *dirty[300], *clean[300];
        for (size_t n = 0; n < 300; n++) {
            size_t size = n < 290 ? n * 113 + 1 : n * 10000;
            dirty[n] = malloc(size);
            memset(dirty[n], 0xab, size);
        }
        for (size_t n = 0; n < 300; n++)
            free(dirty[n]);
        for (size_t n = 0; n < 300; n++) {
            size_t size = n < 290 ? n * 113 + 1 : n * 10000;
            clean[n] = calloc(n % 2 ? size : 1, n % 2 ? 1 : size);
            for (size_t i = 0; i < size; i++)
                MUST(clean[n][i] == 0);
        }
        for (size_t n = 0; n < 300; n++)
            free(clean[n]);
    }
    char *block = NULL;
    size_t have = 0;
    for (size_t size = 1; size < 30 * MIB; size += size / 3 + 1) {
        block = realloc(block, size);
        for (size_t i = 0; i < have; i += 1 + have / 1000)
            MUST(block[i] == (char)(i * 7));
        for (size_t i = 0; i < size; i++)
            block[i] = (char)(i * 7);
        have = size;
    }
    for (size_t size = have; size > 0; size = size * 2 / 3) {
        block = realloc(block, size);
        for (size_t i = 0; i < size; i += 1 + size / 1000)
            MUST(block[i] == (char)(i * 7));
    }
    free(block);
}

static size_t resident(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    MUST(file && fscanf(file, "%*s %zu", &pages) == 1);
    fclose(file);
    return pages * PAGE;
}

/* Of many MiB: a table that grows leaves nothing of its former selves in memory. */
static void *grow_large_blocks(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    char *block = NULL;
    size_t have = 0;
    for (size_t size = 5 * MIB; size < 60 * MIB; size += size / 8) {
        block = realloc(block, size);
        MUST(block);
        for (size_t at = 0; at < have; at += PAGE)
            MUST(block[at] == (char)(seed + at / PAGE));
        for (size_t at = have; at < size; at += PAGE)
            block[at] = (char)(seed + at / PAGE);
        have = (size + PAGE - 1) / PAGE * PAGE;
    }
    return block;
}

static void large_blocks_are_given_back(void) {
    size_t before = resident();
    char *table = grow_large_blocks((void *)1);
    MUST(resident() - before < 100 * MIB);
    free(table);
    for (int round = 0; round < 4; round++) {
        char *dirty = malloc(20 * MIB);
        memset(dirty, 0xab, 20 * MIB);
        free(dirty);
        char *clean = calloc(5, 4 * MIB);
        for (size_t i = 0; i < 20 * MIB; i += 61)
            MUST(clean[i] == 0);
        char *aligned = NULL;
        MUST(posix_memalign((void **)&aligned, 4 * MIB, 9 * MIB) == 0 && (uintptr_t)aligned % (4 * MIB) == 0);
        MUST(posix_memalign((void **)&clean[0], sizeof(void *) / 2, 9 * MIB) == EINVAL);
        filled(aligned, 9 * MIB, 5);
        aligned = realloc(aligned, 3 * MIB);
        for (size_t i = 0; i < 3 * MIB; i += i < 64 ? 1 : 509)
            MUST(aligned[i] == (char)(5 + i));
        MUST(malloc_usable_size(clean) >= 20 * MIB);
        free(aligned), free(clean);
    }
    pthread_t threads[4];
    for (size_t n = 0; n < COUNT(threads); n++)
        pthread_create(&threads[n], NULL, grow_large_blocks, (void *)(n + 7));
    for (size_t n = 0; n < COUNT(threads); n++) {
        void *block;
        pthread_join(threads[n], &block);
        free(block);
    }
}

static void statistics_and_trimming(void) {
    struct mallinfo2 before = mallinfo2();
    char *blocks[100];
    for (int n = 0; n < 100; n++)
        memset(blocks[n] = malloc(MIB), 1, MIB);
    struct mallinfo2 during = mallinfo2();
    MUST(during.uordblks + during.hblkhd >= before.uordblks + before.hblkhd + 90 * MIB);
    MUST(during.arena + during.hblkhd >= during.uordblks);
    for (int n = 0; n < 100; n++)
        free(blocks[n]);
    int trimmed = malloc_trim(0);
    MUST(trimmed == 0 || trimmed == 1);
    struct mallinfo2 after = mallinfo2();
    MUST(after.uordblks + after.hblkhd + 90 * MIB <= during.uordblks + during.hblkhd);
    MUST(mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1 && mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    malloc_stats();
}

static void heard(void *argument, const char *text) { *(size_t *)argument += strlen(text); }

static void jemallocs_own_interface(void) {
    void *(*p_mallocx)(size_t, int) = dlsym(RTLD_DEFAULT, "mallocx");
    if (!p_mallocx) {
        /* All of it or none; and with Terrace, all of it. */
        MUST(!getenv("TERRACE_RUN_DIR") && !dlsym(RTLD_DEFAULT, "sdallocx") && !dlsym(RTLD_DEFAULT, "mallctl"));
        return;
    }
#define FIND(type, name, ...) type (*p_##name)(__VA_ARGS__) = (type(*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, #name); MUST(p_##name)
    FIND(void *, rallocx, void *, size_t, int);
    FIND(size_t, xallocx, void *, size_t, size_t, int);
    FIND(size_t, sallocx, const void *, int);
    FIND(void, dallocx, void *, int);
    FIND(void, sdallocx, void *, size_t, int);
    FIND(size_t, nallocx, size_t, int);
    FIND(int, mallctl, const char *, void *, size_t *, void *, size_t);
    FIND(int, mallctlnametomib, const char *, size_t *, size_t *);
    FIND(int, mallctlbymib, const size_t *, size_t, void *, size_t *, void *, size_t);
    FIND(void, malloc_stats_print, void (*)(void *, const char *), void *, const char *);
    enum { ZERO = 0x40 };
    for (int lg = 3; lg < 22; lg++)
        for (size_t size = 1; size < 200000; size = size * 5 + 3) {
            char *block = p_mallocx(size, lg | ZERO);
            MUST(block && ((uintptr_t)block & (((uintptr_t)1 << lg) - 1)) == 0);
            for (size_t i = 0; i < size; i++)
                MUST(block[i] == 0);
            MUST(p_sallocx(block, lg) == p_nallocx(size, lg));
            MUST(p_sallocx(block, lg) >= size && malloc_usable_size(block) == p_sallocx(block, lg));
            filled(block, size, 3);
            MUST(p_xallocx(block, size, 100, lg) >= size);
            still_filled(block, size, 3);
            block = p_rallocx(block, size * 2, lg);
            MUST(block);
            still_filled(block, size < 64 ? size : 64, 3);
            if (lg % 2)
                p_sdallocx(block, size * 2, lg);
            else
                p_dallocx(block, lg);
        }
    /* The two interfaces are one allocator. */
    for (int n = 0; n < 200; n++)
        p_dallocx(memset(p_mallocx(112, 0), 7, 112), 0);
    char *grown = p_rallocx(p_mallocx(100, ZERO), 112, ZERO);
    MUST(grown);
    for (int i = 0; i < 112; i++)
        MUST(grown[i] == 0);
    free(grown);
    free(p_mallocx(1000, 0));
    p_dallocx(malloc(1000), 0);
    p_sdallocx(malloc(1000), 1000, 0);
    char *block = p_rallocx(realloc(p_mallocx(10, 0), 100000), 30, 0);
    free(block);
    const char *version = NULL;
    size_t len = sizeof version;
    MUST(p_mallctl("version", &version, &len, NULL, 0) == 0 && version && strlen(version) > 3);
    uint64_t epoch = 1;
    len = sizeof epoch;
    MUST(p_mallctl("epoch", &epoch, &len, &epoch, len) == 0);
    size_t mib[4], mib_len = 4, allocated = 0;
    MUST(p_mallctlnametomib("stats.allocated", mib, &mib_len) == 0 && mib_len == 2);
    len = sizeof allocated;
    MUST(p_mallctlbymib(mib, mib_len, &allocated, &len, NULL, 0) == 0);
    MUST(p_mallctl("there.is.none", NULL, NULL, NULL, 0) == ENOENT);
    /* What redis asks for. */
    unsigned arena = 9;
    len = sizeof arena;
    MUST(p_mallctl("thread.arena", &arena, &len, NULL, 0) == 0);
    MUST(p_mallctl("thread.tcache.flush", NULL, NULL, NULL, 0) == 0);
    size_t said = 0;
    p_malloc_stats_print(heard, &said, NULL);
    MUST(said > 1000);
}

/* The loader's own memory: the text of an error is the thread's, made by calloc or malloc within
 * dlsym. The thread has made nothing itself before that. */
static void *look_up_what_is_not_there(void *argument) {
    for (int n = 0; n < 200; n++) {
        char name[64];
        snprintf(name, sizeof name, "there_is_no_such_symbol_%d", n);
        MUST(dlsym(n % 2 ? RTLD_DEFAULT : RTLD_NEXT, name) == NULL);
        char *error = dlerror();
        MUST(error && strstr(error, name) && dlerror() == NULL);
        MUST(dlopen("/there/is/no/such/library.so", RTLD_LAZY) == NULL);
        if (n % 3)
            MUST(dlerror());
        MUST(dlsym(RTLD_DEFAULT, "calloc") != NULL);
        free(calloc(n % 10 + 1, 50));
    }
    dlsym(RTLD_DEFAULT, "an_error_that_nobody_asks_for");
    return argument;
}

static void lookups_allocate(void) {
    for (int k = 0; k < 3; k++)
        pthread_key_create(&keys[k], destroy);
    for (int round = 0; round < 10; round++) {
        pthread_t threads[6];
        for (size_t n = 0; n < COUNT(threads); n++)
            MUST(pthread_create(&threads[n], NULL, n % 3 ? look_up_what_is_not_there : use_keys, NULL) == 0);
        for (size_t n = 0; n < COUNT(threads); n++) {
            void *text;
            pthread_join(threads[n], &text);
            free(text);
        }
    }
}

static void *come_and_go(void *argument) {
    while (!stop) {
        pthread_t threads[3];
        for (size_t n = 0; n < COUNT(threads); n++)
            MUST(pthread_create(&threads[n], NULL, use_keys, NULL) == 0);
        for (size_t n = 0; n < COUNT(threads); n++) {
            void *text;
            pthread_join(threads[n], &text);
            free(text);
        }
    }
    return argument;
}

/* Threads are made and taken apart, allocating in their destructors, at any moment that a fork may find. */
static void children_come_while_threads_die(void) {
    for (int k = 0; k < 3; k++)
        pthread_key_create(&keys[k], destroy);
    pthread_t spawners[2];
    for (size_t n = 0; n < COUNT(spawners); n++)
        MUST(pthread_create(&spawners[n], NULL, come_and_go, NULL) == 0);
    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            void *text = use_keys(NULL);
            free(text);
            pthread_t thread;
            MUST(pthread_create(&thread, NULL, use_keys, NULL) == 0);
            MUST(pthread_join(thread, &text) == 0 && strcmp(text, "from a thread") == 0);
            free(text);
            _exit(0);
        }
        wait_for(child);
    }
    stop = true;
    for (size_t n = 0; n < COUNT(spawners); n++)
        pthread_join(spawners[n], NULL);
}

static void *use_library(void *argument) {
    for (int n = 0; n < 30; n++) {
        void *handle = dlopen(library, n % 2 ? RTLD_NOW : RTLD_LAZY);
        if (!handle)
            dprintf(2, "%s\n", dlerror());
        MUST(handle);
        int (*check_it)(void) = (int (*)(void))dlsym(handle, "allocating_library_check");
        MUST(check_it && check_it() == 0);
        MUST(dlsym(handle, "there_is_no_such_symbol") == NULL && dlerror());
        MUST(dlopen("/there/is/no/such/library.so", RTLD_NOW) == NULL && dlerror());
        MUST(dlclose(handle) == 0);
    }
    return NULL;
}

static void libraries_come_and_go(void) {
    use_library(NULL);
    for (int round = 0; round < 5; round++) {
        pthread_t threads[4];
        for (size_t n = 0; n < COUNT(threads); n++)
            MUST(pthread_create(&threads[n], NULL, use_library, NULL) == 0);
        for (size_t n = 0; n < COUNT(threads); n++)
            pthread_join(threads[n], NULL);
    }
}

/* The C library allocates in here while it holds a lock of the thread's: as Rust's programs do it,
 * before anything else. */
static void *ask_for_the_stack(void *argument) {
    pthread_attr_t attributes;
    MUST(pthread_getattr_np(pthread_self(), &attributes) == 0);
    void *start;
    size_t size;
    MUST(pthread_attr_getstack(&attributes, &start, &size) == 0 && size > 0);
    pthread_attr_destroy(&attributes);
    free(malloc(100));
    return argument;
}

static void the_first_allocation_is_the_c_librarys(void) {
    for (int n = 0; n < 20; n++) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, ask_for_the_stack, NULL) == 0);
        MUST(pthread_join(thread, NULL) == 0);
    }
    ask_for_the_stack(NULL);
}

static void *keep_a_block(void *argument) {
    char *block = malloc(5000 + (size_t)(uintptr_t)argument);
    filled(block, 5000, (uint64_t)(uintptr_t)argument);
    free(malloc(100));
    return block;
}

static void a_thousand_threads_come_and_go(void) {
    static char *blocks[1000];
    for (size_t n = 0; n < 1000; n += 50) {
        pthread_t threads[50];
        for (size_t t = 0; t < 50; t++)
            MUST(pthread_create(&threads[t], NULL, keep_a_block, (void *)(n + t)) == 0);
        for (size_t t = 0; t < 50; t++) {
            void *block;
            pthread_join(threads[t], &block);
            blocks[n + t] = block;
        }
    }
    /* What they left behind lives on. */
    for (size_t n = 0; n < 1000; n++) {
        still_filled(blocks[n], 5000, n);
        free(blocks[n]);
    }
}

static atomic_long ticks;
static char *touched;
static void on_tick(int number) {
    int saved = errno;
    ticks++;
    check_pages(touched, (size_t)ticks % 2048, (size_t)ticks % 2048 + 1, 1);
    errno = saved;
}

static void signals_arrive_during_malloc(void) {
    touched = cold_mapping(8 * MIB, 1);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 300}, {0, 300}};
    MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
    uint64_t state = 1;
    char *blocks[200] = {0};
    size_t sizes[200];
    double until = seconds_now() + 1.5;
    while (seconds_now() < until)
        for (int k = 0; k < 100; k++) {
            size_t n = state % 200, size = some_size(&state);
            if (blocks[n])
                still_filled(blocks[n], sizes[n], n);
            free(blocks[n]);
            filled(blocks[n] = malloc(size), sizes[n] = size, n);
            if (evicts() && state % 301 == 0)
                MUST(madvise(touched, 8 * MIB, MADV_PAGEOUT) == 0);
        }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    MUST(ticks > 10);
    for (int n = 0; n < 200; n++)
        free(blocks[n]);
}

/* How processes end: what they leave in their streams is flushed, and their status is theirs. The
 * Rust side looks at both. */
static void say_at_exit(void) { printf("at exit, "); }
static void *finish_later(void *argument) {
    void *blocks[100];
    usleep(200000);
    for (size_t n = 0; n < 100; n++)
        memset(blocks[n] = malloc(n * 1000), 1, n * 1000);
    for (size_t n = 0; n < 100; n++)
        free(blocks[n]);
    printf("finished later, ");
    return NULL;
}

static void main_leaves_before_another_thread(void) {
    atexit(say_at_exit);
    char *block = cold_heap(4 * MIB, 1);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, finish_later, NULL) == 0);
    pthread_detach(thread);
    check(block, 4 * MIB, 1);
    printf("main leaves, ");
    pthread_exit(NULL);
}

static void main_leaves_as_the_last(void) {
    atexit(say_at_exit);
    char *block = cold_heap(4 * MIB, 1);
    check(block, 4 * MIB, 1);
    printf("main leaves, ");
    pthread_exit(NULL);
}

static void *exit_from_here(void *argument) {
    free(malloc(100000));
    printf("a thread exits, ");
    exit(3);
}

static void a_thread_calls_exit(void) {
    atexit(say_at_exit);
    cold_heap(4 * MIB, 1);
    pthread_t thread, others[3];
    for (size_t n = 0; n < COUNT(others); n++)
        pthread_create(&others[n], NULL, allocate_until_stopped, (void *)n);
    MUST(pthread_create(&thread, NULL, exit_from_here, NULL) == 0);
    for (;;)
        pause();
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(threads_share_blocks),
        CASE(destructors_of_thread_values_allocate),
        CASE(children_allocate_whatever_threads_held),
        CASE(edges_of_sizes),
        CASE(errno_is_kept),
        CASE(alignments),
        CASE(usable_size_is_usable),
        CASE(realloc_keeps_all_that_is_usable),
        CASE(lookups_allocate),
        CASE(children_come_while_threads_die),
        CASE(calloc_gives_zeros_and_realloc_keeps),
        CASE(large_blocks_are_given_back),
        CASE(statistics_and_trimming),
        CASE(jemallocs_own_interface),
        CASE(libraries_come_and_go),
        CASE(the_first_allocation_is_the_c_librarys),
        CASE(a_thousand_threads_come_and_go),
        CASE(signals_arrive_during_malloc),
        CASE(main_leaves_before_another_thread),
        CASE(main_leaves_as_the_last),
        CASE(a_thread_calls_exit),
    };
    library = count > 2 ? words[2] : "";
    return run_case(count, words, cases, COUNT(cases));
}
