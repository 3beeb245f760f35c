/*
 * Updates of every kind on memory that is being evicted: what a slot must hold is kept in .bss, which Terrace does not manage.
 *
 * 3 writers own the slots of a heap and of a mapping, each every third; one thread has the kernel write into pages of their own
 * (read(2) from a socket pair, random sizes and offsets); one forks in a loop, and children and grandchildren check what they see.
 * Usage: no_update_is_lost SECONDS [SEED]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    WRITERS = 3,
    SLOT = 512,                   /* bytes; 8 slots a page, so that a page is shared by writers */
    SLOTS = 409600,               /* 200 MiB; the first half in small mallocs, the rest in one mapping */
    HEAP_SLOTS = SLOTS / 2,
    HEAP_BLOCK_SLOTS = 128,       /* 64 KiB */
    READ_PAGES = 4096,            /* 16 MiB that read(2) fills */
    FROZEN_WORDS = 4 << 20,       /* 32 MiB that nobody changes: children check it */
    PAGE = 4096,
};

/* A writer's slot: a counter at both ends and a filling made of it between. */
static uint32_t expected[SLOTS];
static uint32_t expected_read[READ_PAGES];
static char *heap_blocks[HEAP_SLOTS / HEAP_BLOCK_SLOTS];
static char *mapping, *read_area;
static uint64_t *frozen;
static atomic_bool stop;
static atomic_ulong lost, updates, reads, children;
static uint64_t seed;

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return *state = x;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33;
    return x;
}

static char *slot(uint32_t i) {
    if (i < HEAP_SLOTS)
        return heap_blocks[i / HEAP_BLOCK_SLOTS] + (size_t)(i % HEAP_BLOCK_SLOTS) * SLOT;
    return mapping + (size_t)(i - HEAP_SLOTS) * SLOT;
}

static void lose(const char *what, uint64_t index, const void *at, uint64_t found, uint64_t wanted) {
    if (atomic_fetch_add(&lost, 1) < 20)
        fprintf(stderr, "LOST %s %lu at %p in process %d: %#lx instead of %#lx (seed %lu)\n", what, index, at, getpid(), found, wanted, seed);
}

/* Slots compress differently: some to almost nothing, some not at all. */
static uint64_t word_of(uint32_t i, uint32_t count, unsigned k) {
    switch (i / 8 % 4) {
    case 0: return count;
    case 1: return count + k / 8;
    case 2: return (uint64_t)i << 32 | (count ^ k);
    default: return mix((uint64_t)i << 32 ^ (uint64_t)count << 8 ^ k);
    }
}

static void write_slot(uint32_t i, uint32_t count) {
    uint64_t *words = (uint64_t *)slot(i);
    for (unsigned k = 0; k < SLOT / 8; k++)
        words[k] = word_of(i, count, k);
}

static void check_slot(uint32_t i, uint32_t count) {
    uint64_t *words = (uint64_t *)slot(i);
    for (unsigned k = 0; k < SLOT / 8; k++)
        if (words[k] != word_of(i, count, k)) {
            lose(i < HEAP_SLOTS ? "heap slot" : "mapped slot", i, &words[k], words[k], word_of(i, count, k));
            return;
        }
}

static void *writer(void *argument) {
    unsigned me = (unsigned)(uintptr_t)argument;
    uint64_t state = mix(seed + me) | 1;
    unsigned long done = 0;
    while (!stop) {
        /* Half the time among a few, half the time anywhere. */
        uint64_t r = next_random(&state);
        uint32_t i = (uint32_t)(r >> 20) % (r & 1 ? SLOTS : SLOTS / 16);
        i = i / WRITERS * WRITERS + me;
        if (i >= SLOTS)
            continue;
        uint64_t *words = (uint64_t *)slot(i);
        if (r & 2) {
            check_slot(i, expected[i]);
            write_slot(i, ++expected[i]);
        } else {
            /* An update of single words that reads nothing else of the slot. */
            uint32_t count = ++expected[i];
            for (unsigned k = 0; k < SLOT / 8; k++)
                words[k] = word_of(i, count, k);
        }
        done++;
    }
    updates += done;
    return NULL;
}

/* The kernel writes: 5,000 bytes or fewer at a time, across page borders, each page's bytes derived from a number. */
static void *reader(void *argument) {
    (void)argument;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
        perror("socketpair");
        exit(2);
    }
    uint64_t state = mix(seed + 99) | 1;
    static char out[PAGE]; /* unmanaged */
    unsigned long done = 0;
    while (!stop) {
        uint32_t page = (uint32_t)next_random(&state) % READ_PAGES;
        char *target = read_area + (size_t)page * PAGE;
        for (unsigned k = 0; k < PAGE / 8; k++) {
            uint64_t wanted = expected_read[page] ? mix((uint64_t)page << 32 ^ expected_read[page]) + k : 0;
            if (((uint64_t *)target)[k] != wanted) {
                lose("page filled by read", page, target + k * 8, ((uint64_t *)target)[k], wanted);
                break;
            }
        }
        uint32_t number = ++expected_read[page];
        for (unsigned k = 0; k < PAGE / 8; k++)
            ((uint64_t *)out)[k] = mix((uint64_t)page << 32 ^ number) + k;
        if (write(pair[0], out, PAGE) != PAGE)
            abort();
        for (size_t have = 0; have < PAGE;) {
            size_t want = 1 + next_random(&state) % PAGE;
            ssize_t got = read(pair[1], target + have, want < PAGE - have ? want : PAGE - have);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0) {
                fprintf(stderr, "read(2) into %p failed: %s\n", (void *)(target + have), strerror(errno));
                atomic_fetch_add(&lost, 1);
                return NULL;
            }
            have += (size_t)got;
        }
        done++;
    }
    reads += done;
    return NULL;
}

static unsigned long check_as_child(uint64_t state) {
    atomic_store(&lost, 0);
    for (int n = 0; n < 3000; n++) {
        uint64_t k = next_random(&state) % FROZEN_WORDS;
        if (frozen[k] != k * 3)
            lose("word in a child", k, &frozen[k], frozen[k], k * 3);
    }
    /* Writers were stopped at any point of a slot: only what nobody was writing can be judged. All count at least once, so a page
     * of zeros is always wrong. */
    for (int n = 0; n < 500; n++) {
        uint32_t i = (uint32_t)next_random(&state) % SLOTS;
        uint64_t first = ((uint64_t *)slot(i))[SLOT / 8 - 1];
        if (i / 8 % 4 < 2 && first == 0)
            lose("slot in a child", i, slot(i), first, expected[i]);
    }
    /* And a child may write. */
    for (int n = 0; n < 300; n++) {
        uint64_t k = next_random(&state) % FROZEN_WORDS;
        frozen[k] = k * 3;
    }
    return atomic_load(&lost);
}

static void *forker(void *argument) {
    (void)argument;
    uint64_t state = mix(seed + 7) | 1;
    while (!stop) {
        next_random(&state);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            unsigned long wrong = check_as_child(state);
            if (state & 1) {
                pid_t grandchild = fork();
                if (grandchild == 0) {
                    alarm(60);
                    _exit(check_as_child(state * 31 | 1) != 0);
                }
                int status = 0;
                if (grandchild < 0 || waitpid(grandchild, &status, 0) != grandchild || status != 0) {
                    fprintf(stderr, "grandchild: status %#x (seed %lu)\n", status, seed);
                    wrong++;
                }
            }
            _exit(wrong != 0);
        }
        int status = 0;
        if (child < 0) {
            perror("fork");
            atomic_fetch_add(&lost, 1);
            return NULL;
        }
        if (waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "child: status %#x (seed %lu)\n", status, seed);
            atomic_fetch_add(&lost, 1);
        }
        atomic_fetch_add(&children, 1);
        usleep(5000 + state % 20000);
    }
    return NULL;
}

int main(int count, char **words) {
    long seconds = count > 1 ? atol(words[1]) : 10;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = count > 2 ? strtoull(words[2], NULL, 10) : (uint64_t)now.tv_nsec * 1000003u + (uint64_t)now.tv_sec;
    fprintf(stderr, "seed %lu\n", seed);
    for (int b = 0; b < HEAP_SLOTS / HEAP_BLOCK_SLOTS; b++)
        heap_blocks[b] = malloc(HEAP_BLOCK_SLOTS * SLOT);
    mapping = mmap(NULL, (size_t)(SLOTS - HEAP_SLOTS) * SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    read_area = mmap(NULL, (size_t)READ_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    frozen = malloc((size_t)FROZEN_WORDS * 8);
    for (uint64_t k = 0; k < FROZEN_WORDS; k++)
        frozen[k] = k * 3;
    for (uint32_t i = 0; i < SLOTS; i++)
        write_slot(i, expected[i] = 1);

    pthread_t threads[WRITERS + 2];
    for (unsigned w = 0; w < WRITERS; w++)
        pthread_create(&threads[w], NULL, writer, (void *)(uintptr_t)w);
    pthread_create(&threads[WRITERS], NULL, reader, NULL);
    pthread_create(&threads[WRITERS + 1], NULL, forker, NULL);
    sleep((unsigned)seconds);
    stop = true;
    for (int t = 0; t < WRITERS + 2; t++)
        pthread_join(threads[t], NULL);

    for (uint32_t i = 0; i < SLOTS; i++)
        check_slot(i, expected[i]);
    for (uint64_t k = 0; k < FROZEN_WORDS; k++)
        if (frozen[k] != k * 3)
            lose("word", k, &frozen[k], frozen[k], k * 3);
    for (uint32_t page = 0; page < READ_PAGES; page++)
        for (unsigned k = 0; k < PAGE / 8; k++) {
            uint64_t *word = (uint64_t *)(read_area + (size_t)page * PAGE) + k;
            uint64_t wanted = expected_read[page] ? mix((uint64_t)page << 32 ^ expected_read[page]) + k : 0;
            if (*word != wanted) {
                lose("page filled by read", page, word, *word, wanted);
                break;
            }
        }
    printf("%lu updates, %lu pages read into, %lu children, %lu lost\n", updates, reads, children, lost);
    return lost != 0;
}
