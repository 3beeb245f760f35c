/*
 * Updates of every kind on memory that is being evicted: what a slot must hold is kept in .bss,
 * which Terrace does not manage.
 *
 * - 3 writers own the slots of a heap and of a mapping, each every third.
 * - One thread has the kernel write into pages of their own (read(2) from a socket pair, random
 *   sizes and offsets).
 * - One has a device write (O_DIRECT; not with --evict wp, which that would end).
 * - One gives contents up (MADV_DONTNEED) and out (MADV_PAGEOUT, MADV_COLD).
 * - One moves, grows, shrinks and cuts a mapping.
 * - One forks in a loop, and children and grandchildren check what they see.
 *
 * Usage: no_update_is_lost SECONDS [SEED]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
    FROZEN_WORDS = 4 << 20,       /* 32 MiB that no thread changes: children check it */
    PAGE = 4096,
    FILE_PAGES = 64,              /* of the file that is read directly */
    DIRECT_PAGES = 2048,          /* 8 MiB into which it is read */
    GIVEN_PAGES = 2048,           /* 8 MiB that are given up now and then */
    REMAPPED_PAGES = 1024,        /* 4 MiB that move about */
    KINDS = 4,                    /* of threads besides the writers and the forker */
};

/* A writer's slot: a counter at both ends and a filling made of it between. */
static uint32_t expected[SLOTS];
static uint32_t expected_read[READ_PAGES];
static char *heap_blocks[HEAP_SLOTS / HEAP_BLOCK_SLOTS];
static char *mapping, *read_area;
static uint64_t *frozen;
static atomic_bool stop;
static atomic_ulong lost, updates, reads, direct_reads, advices, remappings, children;
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

/* Pages of an area: word k of page p, when it was last given `number`; 0 stands for zeros. */
static uint64_t area_word(uint32_t p, uint32_t number, unsigned k) {
    return number ? mix((uint64_t)p << 32 ^ number) + k / 16 : 0;
}

static void fill_page(char *page, uint32_t p, uint32_t number) {
    for (unsigned k = 0; k < PAGE / 8; k++)
        ((uint64_t *)page)[k] = area_word(p, number, k);
}

static void check_page(const char *what, char *page, uint32_t p, uint32_t number) {
    uint64_t *words = (uint64_t *)page;
    for (unsigned k = 0; k < PAGE / 8; k++)
        if (words[k] != area_word(p, number, k)) {
            lose(what, p, &words[k], words[k], area_word(p, number, k));
            return;
        }
}

static char *new_area(size_t pages) {
    char *area = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return area;
}

/* A device writes: page q of a file, whose contents are known, into any page of the area, whose
 * contents are known too. */
static void *direct_reader(void *argument) {
    (void)argument;
    const char *way = getenv("TERRACE_EVICT");
    if (way && strcmp(way, "wp") == 0)
        return NULL;
    char name[] = "./no_update_is_lost.XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0) {
        perror("mkstemp");
        exit(2);
    }
    static char out[PAGE];
    for (uint32_t q = 0; q < FILE_PAGES; q++) {
        fill_page(out, q, 1);
        if (pwrite(fd, out, PAGE, (off_t)q * PAGE) != PAGE)
            abort();
    }
    fsync(fd);
    int direct = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    if (direct < 0) {
        fprintf(stderr, "no O_DIRECT here: %s\n", strerror(errno));
        return NULL;
    }
    static uint32_t held[DIRECT_PAGES]; /* 1 + the page of the file */
    char *area = new_area(DIRECT_PAGES);
    uint64_t state = mix(seed + 11) | 1;
    unsigned long done = 0;
    while (!stop) {
        uint32_t p = (uint32_t)next_random(&state) % (DIRECT_PAGES - 8);
        uint32_t q = (uint32_t)next_random(&state) % (FILE_PAGES - 8), pages = 1 + (uint32_t)(state >> 40) % 8;
        for (uint32_t i = 0; i < pages; i++)
            check_page("page filled by a device", area + (size_t)(p + i) * PAGE, held[p + i] ? held[p + i] - 1 : 0, held[p + i] != 0);
        if (pread(direct, area + (size_t)p * PAGE, (size_t)pages * PAGE, (off_t)q * PAGE) != (ssize_t)pages * PAGE) {
            fprintf(stderr, "O_DIRECT into %p failed: %s\n", (void *)(area + (size_t)p * PAGE), strerror(errno));
            atomic_fetch_add(&lost, 1);
            return NULL;
        }
        for (uint32_t i = 0; i < pages; i++) {
            held[p + i] = 1 + q + i;
            check_page("page just filled by a device", area + (size_t)(p + i) * PAGE, q + i, 1);
        }
        done += pages;
    }
    for (uint32_t p = 0; p < DIRECT_PAGES; p++)
        check_page("page filled by a device", area + (size_t)p * PAGE, held[p] ? held[p] - 1 : 0, held[p] != 0);
    direct_reads += done;
    return NULL;
}

/* Contents given up read as zeros, all others stay. */
static void *giver(void *argument) {
    (void)argument;
    static uint32_t number[GIVEN_PAGES];
    char *area = new_area(GIVEN_PAGES);
    uint64_t state = mix(seed + 12) | 1;
    unsigned long done = 0;
    while (!stop) {
        uint32_t p = (uint32_t)next_random(&state) % GIVEN_PAGES, pages = 1 + (uint32_t)(state >> 40) % 32;
        if (pages > GIVEN_PAGES - p)
            pages = GIVEN_PAGES - p;
        char *at = area + (size_t)p * PAGE;
        int advice[] = {MADV_DONTNEED, MADV_PAGEOUT, MADV_COLD};
        int chosen = advice[next_random(&state) % 3];
        if (madvise(at, (size_t)pages * PAGE, chosen) != 0 && chosen == MADV_DONTNEED)
            lose("madvise", p, at, (uint64_t)errno, 0);
        for (uint32_t i = p; i < p + pages; i++) {
            if (chosen == MADV_DONTNEED)
                number[i] = 0;
            check_page("page of advised memory", area + (size_t)i * PAGE, i, number[i]);
            if (next_random(&state) & 1)
                fill_page(area + (size_t)i * PAGE, i, ++number[i]);
        }
        done++;
    }
    for (uint32_t i = 0; i < GIVEN_PAGES; i++)
        check_page("page of advised memory", area + (size_t)i * PAGE, i, number[i]);
    advices += done;
    return NULL;
}

/* A mapping that moves, grows, shrinks, and loses a part. */
static void *remapper(void *argument) {
    (void)argument;
    static uint32_t number[REMAPPED_PAGES];
    const size_t bytes = (size_t)REMAPPED_PAGES * PAGE;
    char *area = new_area(REMAPPED_PAGES);
    uint64_t state = mix(seed + 13) | 1;
    unsigned long done = 0;
    bool cut = false;
    while (!stop) {
        if (cut) {
            /* In parts: mremap takes one mapping at a time. */
            char *place = new_area(REMAPPED_PAGES);
            memcpy(place, area, bytes);
            munmap(area, bytes / 2), munmap(area + bytes / 2, bytes / 2);
            area = place, cut = false;
        }
        for (int n = 0; n < 64; n++) {
            uint32_t i = (uint32_t)next_random(&state) % REMAPPED_PAGES;
            check_page("page of a mapping that moves", area + (size_t)i * PAGE, i, number[i]);
            fill_page(area + (size_t)i * PAGE, i, ++number[i]);
        }
        /* It moves too often to be met by chance. */
        if (done % 4 == 0)
            madvise(area, bytes, MADV_PAGEOUT);
        switch (next_random(&state) % 3) {
        case 0: { /* Larger, perhaps elsewhere, and back to its size. */
            area = mremap(area, bytes, bytes * 2, MREMAP_MAYMOVE);
            if (area == MAP_FAILED || mremap(area, bytes * 2, bytes, 0) != area) {
                perror("mremap");
                exit(2);
            }
            break;
        }
        case 1: { /* To a place of the program's choice. */
            char *place = new_area(REMAPPED_PAGES);
            area = mremap(area, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
            if (area != place) {
                perror("mremap");
                exit(2);
            }
            break;
        }
        default: { /* Other memory comes in a part's place. */
            uint32_t from = (uint32_t)next_random(&state) % (REMAPPED_PAGES - 64), pages = 1 + (uint32_t)(state >> 40) % 64;
            if (mmap(area + (size_t)from * PAGE, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                MAP_FAILED) {
                perror("mmap");
                exit(2);
            }
            memset(number + from, 0, pages * sizeof *number);
            cut = true;
        }
        }
        done++;
        usleep(500);
    }
    for (uint32_t i = 0; i < REMAPPED_PAGES; i++)
        check_page("page of a mapping that moves", area + (size_t)i * PAGE, i, number[i]);
    remappings += done;
    return NULL;
}

static unsigned long check_as_child(uint64_t state) {
    atomic_store(&lost, 0);
    for (int n = 0; n < 3000; n++) {
        uint64_t k = next_random(&state) % FROZEN_WORDS;
        if (frozen[k] != k * 3)
            lose("word in a child", k, &frozen[k], frozen[k], k * 3);
    }
    /* Writers were stopped at any point of a slot: only what no thread was writing can be judged.
     * All count at least once, so a page of zeros is always wrong. */
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
            alarm(300);
            unsigned long wrong = check_as_child(state);
            if (state & 1) {
                pid_t grandchild = fork();
                if (grandchild == 0) {
                    alarm(300);
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

    pthread_t threads[WRITERS + 1 + KINDS];
    for (unsigned w = 0; w < WRITERS; w++)
        pthread_create(&threads[w], NULL, writer, (void *)(uintptr_t)w);
    pthread_create(&threads[WRITERS], NULL, forker, NULL);
    void *(*kinds[KINDS])(void *) = {reader, direct_reader, giver, remapper};
    for (int kind = 0; kind < KINDS; kind++)
        pthread_create(&threads[WRITERS + 1 + kind], NULL, kinds[kind], NULL);
    sleep((unsigned)seconds);
    stop = true;
    for (int t = 0; t < WRITERS + 1 + KINDS; t++)
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
    printf("%lu updates, %lu pages read into, %lu directly, %lu advices, %lu remappings, %lu children, %lu lost\n", updates, reads,
           direct_reads, advices, remappings, children, lost);
    return lost != 0;
}
