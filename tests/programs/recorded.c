/* What the recorder should see of a program, counted by the program itself. */
#include "cold.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

void terrace_record_start(void) __attribute__((weak));
void terrace_record_stop(void) __attribute__((weak));

static void start(void) {
    if (terrace_record_start)
        terrace_record_start();
}
static void stop(void) {
    if (terrace_record_stop)
        terrace_record_stop();
}

__attribute__((noinline)) static long *numbers(size_t count) { return malloc(count * sizeof(long)); }
__attribute__((noinline)) static long *made_here(size_t count) { return numbers(count); }
__attribute__((noinline)) static long *made_there(size_t count) { return numbers(count + 1); }

/* 1000 writes, 1000 reads; then 800 bytes copied: 13 lines read and 13 written; then one forked
 * child's accesses, which do not count. */
static int known(void) {
    long *a = aligned_alloc(64, 8000), *b = aligned_alloc(64, 8000), sum = 0;
    long *here = made_here(10), *there = made_there(10);
    for (int at = 0; at < 1000; at++)
        b[at] = 1;
    start();
    for (int at = 0; at < 1000; at++)
        ((volatile long *)a)[at] = at;
    for (int at = 0; at < 1000; at++)
        sum += ((volatile long *)a)[at];
    memcpy(b, a, 800);
    here[3] = there[4] = 5;
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < 1000; at++)
            ((volatile long *)b)[at] = 7;
        _exit(0);
    }
    MUST(child > 0 && waitpid(child, NULL, 0) == child);
    free(there);
    here = realloc(here, 88);
    here = realloc(here, 1 << 20);
    here[1000] = 1;
    stop();
    ((volatile long *)a)[0] = 1;
    MUST(sum == 499500 && b[99] == 99 && b[100] == 1 && here[3] == 5);
    free(a);
    return 0;
}

/* Pages 4 KiB apart, one of which is read 16 times as often as the others; through a cache of 2 KiB nothing stays. */
static int skewed(void) {
    char *pages = aligned_alloc(4096, 64 * 4096);
    memset(pages, 1, 64 * 4096);
    start();
    long sum = 0;
    for (int round = 0; round < 100; round++)
        for (int page = 0; page < 64; page++)
            for (int line = 0; line < (page == 40 ? 64 : 4); line++)
                sum += ((volatile char *)pages)[page * 4096 + line * 64];
    stop();
    MUST(sum == 100 * (63 * 4 + 64));
    return 0;
}

/* Objects of 48 bytes, one in 64 of which is read, all over again. */
__attribute__((noinline)) static char *small_object(void) { return malloc(48); }
static int sparse(void) {
    static char *objects[4096];
    for (int at = 0; at < 4096; at++)
        MUST(objects[at] = small_object());
    start();
    long sum = 0;
    for (int round = 0; round < 100; round++)
        for (int at = 0; at < 4096; at += 64)
            sum += ((volatile char *)objects[at])[8] == 0;
    stop();
    MUST(sum <= 6400);
    return 0;
}

static atomic_long total;
static __int128 wide;
static void *adds(void *objects) {
    for (int at = 0; at < 10000; at++) {
        errno = at;
        atomic_fetch_add(&total, 1);
        MUST(errno == at);
        char **object = (char **)objects + at % 16;
        char *mine = malloc(24);
        mine[0] = 1;
        free(__atomic_exchange_n(object, mine, __ATOMIC_ACQ_REL));
    }
    return NULL;
}

/* Atomic operations are what they say, and threads that allocate and free each other's objects do
 * not disturb the recorder. */
static int threads(void) {
    static char *objects[16];
    pthread_t thread[4];
    start();
    for (int at = 0; at < 4; at++)
        MUST(!pthread_create(thread + at, NULL, adds, objects));
    for (int at = 0; at < 4; at++)
        pthread_join(thread[at], NULL);
    unsigned char byte = 7;
    unsigned short word = 1;
    unsigned expected = 5, number = 5;
    MUST(total == 40000);
    MUST(__atomic_fetch_nand(&byte, 5, __ATOMIC_SEQ_CST) == 7 && byte == 0xfa);
    MUST(__atomic_sub_fetch(&word, 2, __ATOMIC_SEQ_CST) == 0xffff);
    MUST(!__atomic_compare_exchange_n(&number, &(unsigned){4}, 9, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && number == 5);
    MUST(__atomic_compare_exchange_n(&number, &expected, 9, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && number == 9);
    __sync_fetch_and_add(&wide, (__int128)1 << 100);
    MUST(__sync_val_compare_and_swap(&wide, (__int128)1 << 100, 3) == (__int128)1 << 100 && wide == 3);
    return 0;
}

static jmp_buf back;
__attribute__((noinline)) static void deeper(int levels) {
    if (levels == 0)
        longjmp(back, 1);
    deeper(levels - 1);
    asm volatile("");
}
__attribute__((noinline)) static void *after_jumps(int times) {
    for (int at = 0; at < times; at++)
        if (!setjmp(back))
            deeper(20);
    return malloc(40);
}
/* A context is the same however often the program jumped out of calls before. */
static int jumps(void) {
    for (int at = 0; at < 50; at++)
        MUST(after_jumps(at));
    return 0;
}

static volatile sig_atomic_t signals;
static void handler(int number) {
    char some[32];
    signals++;
    for (volatile size_t at = 0; at < sizeof some; at++)
        some[at] = (char)number;
}
/* Signal handlers come in while the recorder is at work; the second SIGUSR2 ends the recording, not the program. */
static int signalled(void) {
    signal(SIGALRM, handler);
    long *a = malloc(80000);
    kill(getpid(), SIGUSR2);
    for (int round = 0; round < 200; round++) {
        raise(SIGALRM);
        for (int at = 0; at < 10000; at++)
            ((volatile long *)a)[at] = at;
    }
    kill(getpid(), SIGUSR2);
    ((volatile long *)a)[0] = signals;
    kill(getpid(), SIGKILL);
    return 0;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    int status = !strcmp(what, "known") ? known() : !strcmp(what, "skewed") ? skewed() : !strcmp(what, "sparse") ? sparse() : !strcmp(what, "threads") ? threads() : !strcmp(what, "jumps") ? jumps()
                : !strcmp(what, "signalled")                                                                                                        ? signalled()
                                                                                                                                                    : 2;
    puts("done");
    fflush(stdout);
    _exit(status);
}
