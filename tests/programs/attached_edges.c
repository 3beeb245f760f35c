// A program that is attached to at the edges of what threads and children may do.
// attached_edges main: the main thread ends at the first byte of input, and another one checks memory until the input ends.
// attached_edges fork: at the first byte a child is made, with half of the memory wiped. It says "forked", checks all at the next byte, says
// "checked", and touches fresh memory at the third.
// Both say "ready", and at the end "checks N wrong N", with status 1 if anything was wrong.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 16384, FRESH = 2048 };

static uint64_t *pages;
static uint64_t checks, wrong;

static void check(uint64_t page, uint64_t value) {
    checks++;
    for (int i = 0; i < WORDS; i++)
        if (pages[page * WORDS + i] != value) {
            wrong++;
            return;
        }
}

static void say(const char *what) {
    puts(what);
    fflush(stdout);
}

static void await(void) {
    char byte;
    if (read(0, &byte, 1) != 1) _exit(3);
}

static int ended(void) {
    printf("checks %lu wrong %lu\n", (unsigned long)checks, (unsigned long)wrong);
    fflush(stdout);
    return wrong != 0;
}

static void *work(void *unused) {
    (void)unused;
    uint64_t state = 1;
    struct pollfd input = {.fd = 0, .events = 0};
    // The other end's close is told without being asked for.
    while (poll(&input, 1, 0) == 0) {
        for (int i = 0; i < 16; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint64_t page = (state >> 33) % PAGES;
            check(page, page + 1);
        }
        usleep(1000);
    }
    for (uint64_t i = 0; i < PAGES; i++) check(i, i + 1);
    _exit(ended());
}

static int child(void) {
    say("forked");
    await();
    for (uint64_t i = 0; i < PAGES; i++) check(i, i < PAGES / 2 ? i + 1 : 0);
    say("checked");
    await();
    for (uint64_t i = PAGES; i < PAGES + FRESH; i++) check(i, 0);
    return wrong != 0;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    pages = mmap(NULL, (size_t)(PAGES + FRESH) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return 2;
    for (uint64_t i = 0; i < PAGES; i++)
        for (int word = 0; word < WORDS; word++) pages[i * WORDS + word] = i + 1;
    if (!strcmp(arguments[1], "main")) {
        pthread_t worker;
        if (pthread_create(&worker, NULL, work, NULL)) return 2;
        say("ready");
        await();
        pthread_exit(NULL);
    }
    if (madvise(pages + PAGES / 2 * WORDS, (size_t)PAGES / 2 * PAGE, MADV_WIPEONFORK)) return 2;
    say("ready");
    await();
    pid_t made = fork();
    if (made == 0) _exit(child());
    int status = 1;
    if (waitpid(made, &status, 0) != made || status) wrong++;
    for (uint64_t i = 0; i < PAGES; i++) check(i, i + 1);
    return ended();
}
