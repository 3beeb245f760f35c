// A program that is attached to at the edges of what threads and children may do.
// attached_edges main: the main thread ends at the first byte of input, and another one checks
// memory until the input ends.
// attached_edges fork: at the first byte a child is made, with half of the memory wiped. It says
// "forked", checks all at the next byte, says "checked" or "wrong", and touches fresh memory at the
// third.
// attached_edges waits: waits for its input's end. SIGUSR1 has it execute itself again, SIGUSR2 is
// counted.
// attached_edges discards: one thread discards, writes and checks until the input ends.
// attached_edges many N: at the first byte N children are made, which check and stay until the next
// one. It says "checked" after that, and then checks all at each byte. A thread moves memory
// meanwhile. All in all it has 20 MiB.
// attached_edges grows: at the first byte it maps and writes as much again, says "mapped", and
// waits for its input's end.
// attached_edges shares: has 20 MiB each of a memfd, a System V segment and anonymous shared
// memory, and waits for its input's end.
// All say "ready", and at the end "checks N wrong N signals N", with status 1 if anything was
// wrong.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 16384, FRESH = 2048, FEW = 4096, MOVED = 1024, MOST = 512, SHARED = 5120 };

static uint64_t *pages;
static uint64_t checks, wrong;
static volatile sig_atomic_t signals;

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
    printf("checks %lu wrong %lu signals %d\n", (unsigned long)checks, (unsigned long)wrong, (int)signals);
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
    say(wrong ? "wrong" : "checked");
    await();
    for (uint64_t i = PAGES; i < PAGES + FRESH; i++) check(i, 0);
    return wrong != 0;
}

static void counts(int signal) {
    (void)signal;
    signals++;
}

static void executes(int signal) {
    (void)signal;
    char *words[] = {"attached_edges", "waits", NULL};
    execv("/proc/self/exe", words);
    _exit(4);
}

static int waits(void) {
    struct sigaction counted = {.sa_handler = counts, .sa_flags = SA_RESTART}, again = {.sa_handler = executes};
    char byte;
    sigaction(SIGUSR2, &counted, NULL);
    sigaction(SIGUSR1, &again, NULL);
    say("ready");
    while (read(0, &byte, 1) == 1) {}
    for (uint64_t i = 0; i < PAGES; i++) check(i, i + 1);
    return ended();
}

static int grows(void) {
    char byte;
    say("ready");
    await();
    uint64_t *more = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) return 2;
    for (uint64_t i = 0; i < PAGES; i++)
        for (int word = 0; word < WORDS; word++) more[i * WORDS + word] = i + 1000000;
    say("mapped");
    while (read(0, &byte, 1) == 1) {}
    for (uint64_t i = 0; i < PAGES; i++) check(i, i + 1);
    pages = more;
    for (uint64_t i = 0; i < PAGES; i++) check(i, i + 1000000);
    return ended();
}

static int shares(void) {
    const size_t bytes = (size_t)SHARED * PAGE;
    const int access = PROT_READ | PROT_WRITE;
    int file = memfd_create("edges", 0), segment = shmget(IPC_PRIVATE, bytes, 0600);
    if (file < 0 || ftruncate(file, bytes) || segment < 0) return 2;
    uint64_t *parts[] = {mmap(NULL, bytes, access, MAP_SHARED, file, 0), shmat(segment, NULL, 0),
                         mmap(NULL, bytes, access, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    // It goes with this process.
    shmctl(segment, IPC_RMID, NULL);
    for (int part = 0; part < 3; part++) {
        if (parts[part] == MAP_FAILED) return 2;
        for (uint64_t word = 0; word < SHARED * WORDS; word++) parts[part][word] = word / WORDS + 1000000 * (part + 1);
    }
    char byte;
    say("ready");
    while (read(0, &byte, 1) == 1) {}
    for (uint64_t i = 0; i < PAGES; i++) check(i, i + 1);
    for (int part = 0; part < 3; part++) {
        pages = parts[part];
        for (uint64_t i = 0; i < SHARED; i++) check(i, i + 1000000 * (part + 1));
    }
    return ended();
}

static int discards(void) {
    static uint64_t values[PAGES];
    struct pollfd input = {.fd = 0, .events = 0};
    for (uint64_t i = 0; i < PAGES; i++) values[i] = i + 1;
    say("ready");
    for (uint64_t state = 1; poll(&input, 1, 0) == 0;) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t at = (state >> 33) % PAGES;
        check(at, values[at]);
        if (madvise(pages + at * WORDS, PAGE, MADV_DONTNEED)) return 2;
        check(at, 0);
        values[at] = state;
        for (int word = 0; word < WORDS; word++) pages[at * WORDS + word] = state;
    }
    for (uint64_t i = 0; i < PAGES; i++) check(i, values[i]);
    return ended();
}

static volatile int stop;

// Memory that is moved to and fro, and checked each time.
static void *moves(void *unused) {
    (void)unused;
    const size_t bytes = (size_t)MOVED * PAGE;
    uint64_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), value = 0;
    if (at == MAP_FAILED) _exit(6);
    for (uint64_t round = 0; !stop; round++) {
        for (int i = 0; i < MOVED; i++) {
            if (round && at[i * WORDS] != value + i) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
            if (round % 8 == 0) at[i * WORDS] = round + 1 + i;
        }
        if (round % 8 == 0) value = round + 1;
        void *place = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) _exit(6);
        at = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (at == MAP_FAILED) _exit(6);
        usleep(2000);
    }
    return NULL;
}

static int many(int count) {
    int ends[2];
    pid_t made[MOST];
    pthread_t mover;
    char byte;
    if (count < 1 || count > MOST || madvise(pages + FEW * WORDS, (size_t)(PAGES - FEW) * PAGE, MADV_DONTNEED)) return 2;
    if (pthread_create(&mover, NULL, moves, NULL)) return 2;
    say("ready");
    await();
    if (pipe(ends)) return 2;
    for (int i = 0; i < count; i++) {
        made[i] = fork();
        if (made[i] == 0) {
            wrong = 0;
            close(ends[1]);
            for (int page = i; page < FEW; page += count) check(page, page + 1);
            if (read(ends[0], &byte, 1) != 0) _exit(5);
            for (int page = (i + 1) % count; page < FEW; page += count) check(page, page + 1);
            _exit(wrong != 0);
        }
    }
    say("forked");
    await();
    close(ends[1]);
    close(ends[0]);
    for (int i = 0; i < count; i++) {
        int status = 1;
        if (made[i] < 0 || waitpid(made[i], &status, 0) != made[i] || status) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
    }
    do {
        for (int i = 0; i < FEW; i++) check(i, i + 1);
        say("checked");
    } while (read(0, &byte, 1) == 1);
    stop = 1;
    pthread_join(mover, NULL);
    return ended();
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
    if (!strcmp(arguments[1], "waits")) return waits();
    if (!strcmp(arguments[1], "grows")) return grows();
    if (!strcmp(arguments[1], "shares")) return shares();
    if (!strcmp(arguments[1], "discards")) return discards();
    if (!strcmp(arguments[1], "many") && count > 2) return many(atoi(arguments[2]));
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
