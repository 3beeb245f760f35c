/* Pages in the kernel's swap, put there by Terrace. Usage: see cold.h. */
#include "cold.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { BYTES = 32 << 20 };

/* Says that pages are out and waits for SIGUSR1: the test looks from outside meanwhile, or takes the swap away. */
static void holds(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    char *map = cold_mapping(BYTES, 1);
    dprintf(1, "holds\n");
    int got;
    MUST(sigwait(&set, &got) == 0);
    check(map, BYTES, 1);
    dprintf(1, "checked\n");
}

/* Writes and checks more than the budget until SIGUSR1. */
static atomic_bool stop;
static void on_signal(int signal) {
    (void)signal;
    stop = true;
}

static void keeps_changing(void) {
    MUST(signal(SIGUSR1, on_signal) != SIG_ERR);
    size_t pages = BYTES / PAGE;
    char *map = mapping(BYTES);
    uint64_t seed = 1, state = 88172645463325252ULL;
    static uint64_t seeds[BYTES / PAGE];
    for (size_t p = 0; p < pages; p++)
        fill(map + p * PAGE, PAGE, seeds[p] = seed++);
    dprintf(1, "changes\n");
    while (!stop) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t p = state % pages;
        check(map + p * PAGE, PAGE, seeds[p]);
        if (state >> 60 == 0)
            fill(map + p * PAGE, PAGE, seeds[p] = seed++);
    }
    for (size_t p = 0; p < pages; p++)
        check(map + p * PAGE, PAGE, seeds[p]);
    dprintf(1, "checked\n");
}

/* What is given up, moved, protected, locked and shared while it is swapped is what it would be without. */
static void memory_calls_on_swapped_pages(void) {
    char *map = cold_mapping(BYTES, 2);
    size_t half = BYTES / 2, quarter = BYTES / 4;
    MUST(madvise(map, quarter, MADV_DONTNEED) == 0);
    check_zeros(map, quarter);
    check_pages(map, quarter / PAGE, BYTES / PAGE, 2);
    evict(map + quarter, BYTES - quarter);
    char *moved = mremap(map + half, half, 2 * half, MREMAP_MAYMOVE);
    MUST(moved != MAP_FAILED);
    for (size_t p = 0; p < half / PAGE; p++) {
        uint64_t *page = (uint64_t *)(moved + p * PAGE);
        for (size_t k = 0; k < 512; k++)
            MUST(page[k] == word_of(2, half / PAGE + p, k));
    }
    check_zeros(moved + half, half);
    MUST(mprotect(map + quarter, quarter, PROT_READ) == 0);
    check_pages(map, quarter / PAGE, half / PAGE, 2);
    MUST(mprotect(map + quarter, quarter, PROT_READ | PROT_WRITE) == 0);
    evict(map + quarter, quarter);
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (limit.rlim_cur > half) {
        MUST(mlock(map, half) == 0);
        MUST(absent_pages(map, half) == 0);
        usleep(50000);
        check_zeros(map, quarter);
        check_pages(map, quarter / PAGE, half / PAGE, 2);
        MUST(munlock(map, half) == 0);
    }
    MUST(munmap(map, half) == 0);
    char *again = mmap(map, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(again == map);
    check_zeros(map, half);
}

/* Children and grandchildren read, write and page out what was swapped when they were forked. */
static void forks_while_swapped(void) {
    char *map = cold_mapping(BYTES, 3);
    for (int n = 0; n < 3; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(100);
            pid_t grandchild = n == 1 ? fork() : -1;
            check(map, BYTES, 3);
            fill(map, BYTES / 2, 4);
            if (evicts())
                MUST(madvise(map, BYTES, MADV_PAGEOUT) == 0);
            check(map, BYTES / 2, 4);
            check_pages(map, BYTES / 2 / PAGE, BYTES / PAGE, 3);
            if (grandchild > 0)
                wait_for(grandchild);
            _exit(0);
        }
        if (n == 2)
            fill(map, BYTES, 5);
        wait_for(child);
        check(map, BYTES, n == 2 ? 5 : 3);
        evict(map, BYTES);
    }
    check(map, BYTES, 5);
}

/* Threads touch the same swapped pages at once. */
static char *shared;
static void *touches(void *argument) {
    (void)argument;
    for (int n = 0; n < 3; n++)
        check(shared, BYTES, 6);
    return NULL;
}

static void threads_touch_swapped_pages(void) {
    shared = cold_mapping(BYTES, 6);
    pthread_t threads[4];
    for (size_t n = 0; n < COUNT(threads); n++)
        MUST(pthread_create(&threads[n], NULL, touches, NULL) == 0);
    for (int n = 0; n < 3; n++) {
        if (evicts())
            MUST(madvise(shared, BYTES, MADV_PAGEOUT) == 0);
        usleep(10000);
    }
    for (size_t n = 0; n < COUNT(threads); n++)
        MUST(pthread_join(threads[n], NULL) == 0);
    check(shared, BYTES, 6);
}

/* Pages that came back from swap leave again when the program asks for that. */
static void leaves_when_asked_again(void) {
    char *map = cold_mapping(BYTES, 4);
    for (int round = 0; round < 6; round++) {
        check(map, BYTES, 4);
        usleep(100000);
        MUST(madvise(map, BYTES, MADV_PAGEOUT) == 0);
        MUST(absent_pages(map, BYTES) >= BYTES / PAGE * 9 / 10);
    }
    check(map, BYTES, 4);
}

static const struct a_case CASES[] = {
    CASE(holds),
    CASE(keeps_changing),
    CASE(memory_calls_on_swapped_pages),
    CASE(forks_while_swapped),
    CASE(threads_touch_swapped_pages),
    CASE(leaves_when_asked_again),
};

int main(int count, char **words) { return run_case(count, words, CASES, COUNT(CASES)); }
