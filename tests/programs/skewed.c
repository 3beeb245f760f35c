/* Allocates MEGABYTES of data that compress (or not: "random") in blocks of exact sizes. Then for
 * SECONDS it reads most often what lies near the front, and changes some of it. Checks what it
 * reads. Prints how many bytes it allocated and in how many seconds.
 *
 *   skewed MEGABYTES SECONDS [random]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* A word of a page: of 64 values per page if it is to compress, else of all. */
static uint64_t word_of(uint64_t page, uint64_t version, unsigned i, int random)
{
    uint64_t x = page * 0x9e3779b97f4a7c15 + version * 0xbf58476d1ce4e5b9 + (random ? i : i * 2654435761u % 64);
    x ^= x >> 31;
    x *= 0x94d049bb133111eb;
    x ^= x >> 29;
    return random ? x * 0x9e3779b97f4a7c15 : x & 0xffffff;
}

static void fill(uint64_t *words, uint64_t page, uint64_t version, int random)
{
    words[0] = version;
    for (unsigned i = 1; i < PAGE / 8; i++)
        words[i] = word_of(page, version, i, random);
}

static void check(const uint64_t *words, uint64_t page, int random)
{
    /* Some words suffice: a page that comes back wrong is wrong all over. */
    for (unsigned i = 1; i < PAGE / 8; i += 37)
        if (words[i] != word_of(page, words[0], i, random)) {
            printf("page %lu holds something else at word %u\n", page, i);
            exit(1);
        }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    size_t pages = strtoul(argv[1], NULL, 10) << 20 >> 12;
    double seconds = atof(argv[2]);
    int random = argc > 3 && !strcmp(argv[3], "random");
    double start = now();
    uint64_t **page = malloc(pages * sizeof *page);
    if (!page)
        return 3;
    size_t allocated = pages * sizeof *page;

    /* A quarter in one mapping; the rest from malloc, in sizes that the allocator does not round up. */
    size_t done = pages / 4;
    char *mapping = mmap(NULL, done * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return 3;
    allocated += done * PAGE;
    for (size_t i = 0; i < done; i++)
        page[i] = (uint64_t *)(mapping + i * PAGE);
    static const unsigned sizes[] = {1, 2, 4, 8, 16, 32};
    for (unsigned kind = 0; done < pages; kind++) {
        size_t count = sizes[kind % 6] < pages - done ? sizes[kind % 6] : 1;
        char *block = aligned_alloc(PAGE, count * PAGE);
        if (!block)
            return 3;
        allocated += count * PAGE;
        for (size_t i = 0; i < count; i++)
            page[done++] = (uint64_t *)(block + i * PAGE);
    }
    for (size_t i = 0; i < pages; i++)
        fill(page[i], i, 0, random);
    printf("allocated %zu\nfilled %.3f\n", allocated, now() - start);
    fflush(stdout);

    double end = now() + seconds;
    uint64_t reads = 0;
    while (now() < end)
        for (int i = 0; i < 100; i++, reads++) {
            /* Nine of ten accesses go to the first tenth; where all is random, all pages are equal. */
            uint64_t choice = next() >> 11;
            size_t among = !random && choice % 10 ? pages / 10 : pages;
            size_t n = choice / 16 % among;
            check(page[n], n, random);
            if (choice / 16 % 8 == 0)
                fill(page[n], n, reads, random);
        }
    for (size_t i = 0; i < pages; i++)
        check(page[i], i, random);
    printf("%lu reads\n", reads);
    return 0;
}
