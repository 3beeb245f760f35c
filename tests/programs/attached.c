// A program that is attached to while it works: it checks all that it reads. Two threads own pages
// and mappings of their own, which they write, move, resize, discard and map again. A third thread
// forks children that check everything, and begins other programs.
// attached SECONDS [idle|stress|told]: "stress" forks and executes all the time, and ends when its
// input does, SECONDS at the latest. "told" does too, and forks from the first byte of its input
// on; without a word that is the second half of its time. It says "ready", then at its end "checks
// N wrong N children N", and has status 1 if anything was wrong.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 16384, WORKERS = 2, MAPS = 12, MOST = 96, BSS = 4096, HEAP = 2048 };

static uint64_t *pages;
// Memory that is written once: of the program's file, and by brk.
static uint64_t bss[BSS * WORDS];
static uint64_t *heap;
static uint32_t versions[PAGES];
static volatile int stop;
static uint64_t checks[WORKERS + 1], wrong[WORKERS + 1];
static pthread_rwlock_t still = PTHREAD_RWLOCK_INITIALIZER;

static uint64_t random_of(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void fails(int line) {
    fprintf(stderr, "line %d: %m\n", line);
    abort();
}

static void fill(uint64_t *page, uint64_t value) {
    for (int i = 0; i < WORDS; i++) page[i] = value ^ (i & 7);
}

static int is(const uint64_t *page, uint64_t value) {
    for (int i = 0; i < WORDS; i++)
        if (page[i] != (value ^ (i & 7))) return 0;
    return 1;
}

static uint64_t value_of(uint64_t index) { return (index + 1) << 32 | versions[index]; }

// Once a part was mapped over, it may be several mappings, which mremap does not move as one.
struct map { uint64_t *at; int pages, is_several; uint64_t value[MOST]; };

// A value of 0: the page was never written, or discarded.
static int map_is(const struct map *map, int page) {
    const uint64_t *at = map->at + page * WORDS;
    if (map->value[page]) return is(at, map->value[page]);
    for (int i = 0; i < WORDS; i++)
        if (at[i]) return 0;
    return 1;
}

static void *mapped(void *at, int count) {
    void *got = mmap(at, (size_t)count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    if (got == MAP_FAILED) fails(__LINE__);
    return got;
}

static void change(struct map *map, uint64_t *state, int worker) {
    int count = 1 + random_of(state) % (MOST / 2), from = random_of(state) % MOST;
    if (!map->at) {
        map->pages = count;
        map->is_several = 0;
        map->at = mapped(NULL, count);
        memset(map->value, 0, sizeof map->value);
    }
    switch (random_of(state) % 8) {
    case 0: // Discards a part.
        for (int i = from; i < from + count && i < map->pages; i++) map->value[i] = 0;
        if (from < map->pages) madvise(map->at + from * WORDS, (size_t)(from + count < map->pages ? count : map->pages - from) * PAGE, MADV_DONTNEED);
        break;
    case 1: // Moves it, or resizes it.
        if (map->is_several) break;
        if (count < map->pages) count = map->pages;
        map->at = mremap(map->at, (size_t)map->pages * PAGE, (size_t)count * PAGE, MREMAP_MAYMOVE);
        if (map->at == MAP_FAILED) fails(__LINE__);
        for (int i = map->pages; i < count; i++) map->value[i] = 0;
        map->pages = count;
        break;
    case 2: { // Moves it over another mapping.
        if (map->is_several) break;
        void *place = mapped(NULL, map->pages);
        memset(place, 1, PAGE);
        map->at = mremap(map->at, (size_t)map->pages * PAGE, (size_t)map->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (map->at == MAP_FAILED) fails(__LINE__);
        break;
    }
    case 3: // Unmaps it, and maps it again at the same place.
        munmap(map->at, (size_t)map->pages * PAGE);
        memset(map->value, 0, sizeof map->value);
        if (mmap(map->at, (size_t)map->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != map->at) {
            // Another thread was faster.
            map->at = NULL;
            return;
        }
        map->is_several = 0;
        break;
    case 4: // Maps over a part.
        if (from < map->pages) {
            mapped(map->at + from * WORDS, 1);
            map->value[from] = 0;
            map->is_several = 1;
        }
        break;
    case 5:
        munmap(map->at, (size_t)map->pages * PAGE);
        map->at = NULL;
        return;
    default:
        for (int i = 0; i < map->pages; i++)
            if (random_of(state) % 2) {
                map->value[i] = random_of(state) << 8 | 1;
                fill(map->at + i * WORDS, map->value[i]);
            }
    }
    for (int i = 0; i < map->pages; i++) {
        checks[worker]++;
        wrong[worker] += !map_is(map, i);
    }
}

static void *work(void *argument) {
    int worker = (int)(intptr_t)argument;
    uint64_t state = worker + 1;
    struct map maps[MAPS] = {0};
    while (!stop) {
        pthread_rwlock_rdlock(&still);
        for (int i = 0; i < 64; i++) {
            // Mostly a few pages, sometimes any.
            uint64_t which = random_of(&state) % (random_of(&state) % 8 ? PAGES / 16 : PAGES);
            uint64_t index = which / WORKERS * WORKERS + worker;
            checks[worker]++;
            wrong[worker] += !is(pages + index * WORDS, value_of(index));
            if (random_of(&state) % 4 == 0) {
                versions[index]++;
                fill(pages + index * WORDS, value_of(index));
            }
        }
        struct map *map = &maps[random_of(&state) % MAPS];
        for (int i = 0; map->at && i < map->pages; i++) {
            checks[worker]++;
            wrong[worker] += !map_is(map, i);
        }
        change(map, &state, worker);
        pthread_rwlock_unlock(&still);
        usleep(500);
    }
    return NULL;
}

static uint64_t wrong_pages(uint64_t step, uint64_t from) {
    uint64_t count = 0;
    for (uint64_t i = from; i < PAGES; i += step) count += !is(pages + i * WORDS, value_of(i));
    for (uint64_t i = from; i < BSS; i += step) count += !is(bss + i * WORDS, i + 1);
    for (uint64_t i = from; i < HEAP; i += step) count += !is(heap + i * WORDS, i + 1);
    return count;
}

// A child writes too, checks what it wrote, and may have a child of its own.
static int child(uint64_t number) {
    uint64_t from = number % 7;
    if (number % 5 == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(wrong_pages(7, from) != 0);
        int status = 1;
        if (waitpid(grandchild, &status, 0) != grandchild || status) return 1;
    }
    for (uint64_t i = from; i < PAGES; i += 31) {
        if (!is(pages + i * WORDS, value_of(i))) return 1;
        versions[i] += 1000;
        fill(pages + i * WORDS, value_of(i));
    }
    usleep(20000);
    return wrong_pages(7, from) != 0;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    const char *word = count > 2 ? arguments[2] : "";
    int is_idle = !strcmp(word, "idle"), is_stress = !strcmp(word, "stress"), is_told = !strcmp(word, "told"), forks = 0;
    time_t end = time(NULL) + atoi(arguments[1]);
    pages = mapped(NULL, PAGES);
    heap = sbrk((HEAP + 1) * PAGE);
    // musl has none.
    if (heap == (void *)-1) heap = mapped(NULL, HEAP + 1);
    heap = (uint64_t *)(((uintptr_t)heap + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    for (uint64_t i = 0; i < PAGES; i++) fill(pages + i * WORDS, value_of(i));
    for (uint64_t i = 0; i < BSS; i++) fill(bss + i * WORDS, i + 1);
    for (uint64_t i = 0; i < HEAP; i++) fill(heap + i * WORDS, i + 1);
    pthread_t workers[WORKERS];
    for (intptr_t i = 0; i < WORKERS && !is_idle; i++) pthread_create(&workers[i], NULL, work, (void *)i);
    puts("ready");
    fflush(stdout);
    uint64_t children = 0;
    extern char **environ;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (time(NULL) < end && !(is_stress && poll(&input, 1, 0))) {
        usleep(is_stress ? 20000 : 300000);
        if (is_stress) {
            pid_t made;
            int status = 1;
            char *command[] = {"true", NULL};
            if (posix_spawnp(&made, "true", NULL, NULL, command, environ) || waitpid(made, &status, 0) != made || status) wrong[WORKERS]++;
            pthread_rwlock_wrlock(&still);
            made = fork();
            if (made == 0) _exit(child(children));
            pthread_rwlock_unlock(&still);
            if (waitpid(made, &status, 0) != made || status) wrong[WORKERS]++;
            children++;
            continue;
        }
        char byte;
        if (is_told && poll(&input, 1, 0)) {
            if (read(0, &byte, 1) != 1) break;
            forks = 1;
        }
        // What is shared with a child is not evicted until it is written, so the first part is without.
        if (!is_told) forks = !is_idle && end - time(NULL) <= atoi(arguments[1]) / 2;
        if (!forks) continue;
        // No thread writes while the memory is copied: a child checks versions against pages.
        pthread_rwlock_wrlock(&still);
        pid_t made = fork();
        if (made == 0) _exit(child(children));
        pthread_rwlock_unlock(&still);
        int status = 1;
        if (waitpid(made, &status, 0) != made || status) wrong[WORKERS]++;
        children++;
        pthread_rwlock_wrlock(&still);
        for (uint64_t i = children % 2; i < PAGES; i += 2) {
            checks[WORKERS]++;
            wrong[WORKERS] += !is(pages + i * WORDS, value_of(i));
            versions[i]++;
            fill(pages + i * WORDS, value_of(i));
        }
        pthread_rwlock_unlock(&still);
        if (children % 4 == 0) {
            char *command[] = {"true", NULL};
            if (posix_spawnp(&made, "true", NULL, NULL, command, environ) == 0) waitpid(made, &status, 0);
        }
    }
    stop = 1;
    for (int i = 0; i < WORKERS && !is_idle; i++) pthread_join(workers[i], NULL);
    uint64_t all = PAGES, bad = wrong_pages(1, 0);
    for (int i = 0; i <= WORKERS; i++) all += checks[i], bad += wrong[i];
    printf("checks %lu wrong %lu children %lu\n", (unsigned long)all, (unsigned long)bad, (unsigned long)children);
    return bad != 0;
}
