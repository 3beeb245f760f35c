/*
 * Evicted memory that is read page after page, so that pages come back before they are touched.
 *
 * - `up_and_down`: by one thread.
 * - `beside_changes`: between the pages of a walker lie those of another thread. It gives them up,
 *   replaces, protects and writes them all the time, and must never find again what it gave up. A
 *   third thread forks, and children walk too.
 */
#include "cold.h"
#include <pthread.h>
#include <stdatomic.h>

/* Pages of a block: fewer than are restored ahead. Even blocks are the walker's, odd ones the changer's. */
enum { BLOCK = 8, BLOCKS = 512, CHANGES = 6000 };
#define BLOCK_BYTES ((size_t)BLOCK * PAGE)
#define BYTES (BLOCKS * BLOCK_BYTES)

static char *memory;
static atomic_bool stop;

static void map_memory(void) {
    /* Enough for Terrace to manage the process; never touched. */
    MUST(mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    fill(memory, BYTES, 1);
}

static void up_and_down(void) {
    map_memory();
    for (int walk = 0; walk < 4; walk++) {
        evict(memory, BYTES);
        for (size_t n = 0; n < BYTES / PAGE; n++) {
            size_t page = walk % 2 ? BYTES / PAGE - 1 - n : n;
            check_pages(memory, page, page + 1, 1);
        }
    }
    /* For the statistics. */
    sleep(1);
}

static void walk(bool up) {
    for (size_t n = 0; n < BLOCKS; n += 2)
        for (size_t i = 0; i < BLOCK; i++) {
            size_t page = n * BLOCK + i;
            if (!up)
                page = (BLOCKS - 2 - n) * BLOCK + BLOCK - 1 - i;
            check_pages(memory, page, page + 1, 1);
        }
}

static void *walker(void *argument) {
    (void)argument;
    for (bool up = true; !stop; up = !up) {
        /* Some of it has just been touched, and stays. */
        madvise(memory, BYTES, MADV_PAGEOUT);
        walk(up);
    }
    return NULL;
}

static void *changer(void *argument) {
    (void)argument;
    static uint64_t held[BLOCKS];
    for (size_t turn = 1; turn <= CHANGES; turn++) {
        size_t block = turn * 7919 % (BLOCKS / 2) * 2 + 1;
        char *start = memory + block * BLOCK_BYTES;
        if (held[block])
            check(start, BLOCK_BYTES, held[block]);
        switch (turn % 3) {
        case 0:
            MUST(madvise(start, BLOCK_BYTES, MADV_DONTNEED) == 0);
            break;
        case 1:
            MUST(mmap(start, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
            break;
        default:
            MUST(mprotect(start, BLOCK_BYTES, PROT_READ) == 0);
            check_pages(start, 0, held[block] ? BLOCK : 0, held[block]);
            MUST(mprotect(start, BLOCK_BYTES, PROT_READ | PROT_WRITE) == 0);
            MUST(madvise(start, BLOCK_BYTES, MADV_DONTNEED) == 0);
        }
        check_zeros(start, BLOCK_BYTES);
        held[block] = turn;
        fill(start, BLOCK_BYTES, turn);
    }
    stop = true;
    return NULL;
}

static void *forker(void *argument) {
    (void)argument;
    for (int n = 0; !stop; n++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            walk(n % 2);
            _exit(0);
        }
        int status = 0;
        MUST(waitpid(child, &status, 0) == child && status == 0);
        usleep(20000);
    }
    return NULL;
}

static void beside_changes(void) {
    map_memory();
    evict(memory, BYTES);
    void *(*roles[])(void *) = {walker, changer, forker};
    pthread_t threads[COUNT(roles)];
    for (size_t n = 0; n < COUNT(roles); n++)
        MUST(pthread_create(&threads[n], NULL, roles[n], NULL) == 0);
    for (size_t n = 0; n < COUNT(roles); n++)
        MUST(pthread_join(threads[n], NULL) == 0);
}

int main(int count, char **words) {
    MUST(count == 2);
    if (strcmp(words[1], "up_and_down") == 0)
        up_and_down();
    else if (strcmp(words[1], "beside_changes") == 0)
        beside_changes();
    else
        MUST(!"a known case");
    return 0;
}
