/*
 * For programs that need evicted pages for certain: memory of known contents, and its eviction by
 * MADV_PAGEOUT.
 *
 * Such a program is started as `PROGRAM CASE`. It ends with status 0 if everything that the case
 * checks holds, or with CANNOT_CHECK and a reason on standard error. Alone, or with --observe,
 * nothing is evicted, and everything must hold just the same. A failed MUST ends its process with
 * status 1 and tells where. cold.h is for C and C++.
 */
#ifndef COLD_H
#define COLD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, CANNOT_CHECK = 77 };
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define COUNT(array) (sizeof(array) / sizeof *(array))

#define MUST(promise)                                                                                                     \
    do {                                                                                                                  \
        if (!(promise)) {                                                                                                 \
            int error = errno;                                                                                            \
            dprintf(2, "FAILED %s:%d in %d: %s (errno %d: %s)\n", __FILE__, __LINE__, getpid(), #promise, error, strerror(error)); \
            _exit(1);                                                                                                     \
        }                                                                                                                 \
    } while (0)

/* How many times longer than usual things take where this runs. */
__attribute__((unused)) static unsigned slowness(void) {
    const char *told = getenv("TERRACE_TEST_SLOW");
    return told && atoi(told) > 1 ? (unsigned)atoi(told) : 1;
}
#define alarm(seconds) (alarm)((seconds) * slowness())

__attribute__((unused)) static void cannot_check(const char *reason) {
    dprintf(2, "cannot check: %s\n", reason);
    _exit(CANNOT_CHECK);
}

/* An unlinked file for O_DIRECT. */
__attribute__((unused)) static int direct_file(void) {
    const char *directory = getenv("TMPDIR");
    char path[1000];
    snprintf(path, sizeof path, "%s/terrace-direct-XXXXXX", directory ? directory : "/var/tmp");
    int file = mkostemp(path, O_DIRECT);
    if (file < 0)
        cannot_check("no O_DIRECT in the temporary directory");
    unlink(path);
    static char page[PAGE] __attribute__((aligned(4096)));
    if (pwrite(file, page, PAGE, 0) == -1 && errno == EINVAL)
        cannot_check("no O_DIRECT in the temporary directory");
    return file;
}

/* Whether Terrace is in this process and moves pages. */
__attribute__((unused)) static bool evicts(void) {
    const char *observe = getenv("TERRACE_OBSERVE");
    return getenv("TERRACE_RUN_DIR") && !(observe && strcmp(observe, "1") == 0);
}

/* The process in which Terrace moves this one's pages: it shares its memory. 0 if there is none. */
__attribute__((unused)) static pid_t companion_of_this(void) {
    enum { KCMP_SHARED_MEMORY = 1 };
    DIR *processes = opendir("/proc");
    MUST(processes);
    pid_t found = 0;
    for (struct dirent *entry; (entry = readdir(processes));) {
        pid_t process = atoi(entry->d_name);
        if (process > 0 && process != getpid() && syscall(SYS_kcmp, getpid(), process, KCMP_SHARED_MEMORY, 0, 0) == 0)
            found = process;
    }
    closedir(processes);
    return found;
}

__attribute__((unused)) static void await_main_threads_end(void) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    while (state != 'Z') {
        FILE *stat = fopen(path, "r");
        MUST(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
    }
}

__attribute__((unused)) static uint64_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33;
    return x;
}

/* What word k of page p of an area must be: never 0, different in all pages, and compressible. */
static inline uint64_t word_of(uint64_t seed, size_t p, size_t k) { return (mix(seed << 32 ^ (p + 1)) | 1) + k / 32; }

__attribute__((unused)) static void fill(void *memory, size_t bytes, uint64_t seed) {
    uint64_t *words = (uint64_t *)memory;
    for (size_t w = 0; w < bytes / 8; w++)
        words[w] = word_of(seed, w / 512, w % 512);
}

/* Pages `from` to `to` (not included) of an area hold what `fill` put there. */
__attribute__((unused)) static void check_pages(const void *memory, size_t from, size_t to, uint64_t seed) {
    const uint64_t *words = (const uint64_t *)memory;
    for (size_t w = from * 512; w < to * 512; w++)
        if (words[w] != word_of(seed, w / 512, w % 512)) {
            dprintf(2, "FAILED in %d: page %zu word %zu at %p is %#lx instead of %#lx\n", getpid(), w / 512, w % 512, (const void *)&words[w],
                    (unsigned long)words[w], (unsigned long)word_of(seed, w / 512, w % 512));
            _exit(1);
        }
}

__attribute__((unused)) static void check(const void *memory, size_t bytes, uint64_t seed) { check_pages(memory, 0, bytes / PAGE, seed); }

__attribute__((unused)) static void check_zeros(const void *memory, size_t bytes) {
    const uint64_t *words = (const uint64_t *)memory;
    for (size_t w = 0; w < bytes / 8; w++)
        if (words[w] != 0) {
            dprintf(2, "FAILED in %d: byte %zu at %p should be zero and is in a word %#lx\n", getpid(), w * 8, (const void *)&words[w],
                    (unsigned long)words[w]);
            _exit(1);
        }
}

/* Pages that a touch would have to bring. Uses no managed memory. */
__attribute__((unused)) static size_t absent_pages(void *memory, size_t bytes) {
    unsigned char present[4096];
    size_t absent = 0;
    for (size_t done = 0; done < bytes; done += sizeof present * PAGE) {
        size_t part = bytes - done < sizeof present * PAGE ? bytes - done : sizeof present * PAGE;
        MUST(mincore((char *)memory + done, part, present) == 0);
        for (size_t p = 0; p < part / PAGE; p++)
            absent += !(present[p] & 1);
    }
    return absent;
}

__attribute__((unused)) static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A call that nothing can interpose. */
__attribute__((unused)) static long syscall_without_the_c_library(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long result __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    register long sixth __asm__("x5") = f;
    register long call __asm__("x8") = number;
    __asm__ volatile("svc 0"
                     : "+r"(result)
                     : "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth), "r"(call)
                     : "memory");
    return result;
#endif
}

/* What the kernel says of the first pages of an area, and (to root) of the memory that they lie in,
 * as in its Documentation/admin-guide/mm/pagemap.rst. */
__attribute__((unused)) static void tell_of_pages(const void *memory, size_t pages) {
    int map = open("/proc/self/pagemap", O_RDONLY), flags = open("/proc/kpageflags", O_RDONLY);
    for (size_t p = 0; p < pages && p < 8; p++) {
        uint64_t entry = 0, flag = 0;
        ssize_t got = pread(map, &entry, 8, (off_t)((uintptr_t)memory / PAGE + p) * 8);
        if (got == 8 && entry >> 63)
            got = pread(flags, &flag, 8, (off_t)(entry & ((1ULL << 55) - 1)) * 8);
        dprintf(2, "page %zu: pagemap %#lx, kpageflags %#lx (%zd)\n", p, (unsigned long)entry, (unsigned long)flag, got);
    }
}

/* A page that was first touched on another CPU waits there, among a batch of 31, to be put on the
 * kernel's lists. Until then the kernel does not swap it: seconds, where that CPU has nothing to
 * do. This thread goes to each CPU and makes a call that empties the batch. */
__attribute__((unused)) static void empty_batches(void) {
    static char any[PAGE] __attribute__((aligned(PAGE)));
    unsigned long before[16] = {0}, one[16];
    long size = syscall(SYS_sched_getaffinity, 0, sizeof before, before);
    for (long cpu = 0; cpu < size * 8; cpu++) {
        memset(one, 0, sizeof one);
        one[cpu / 64] = before[cpu / 64] & 1UL << cpu % 64;
        if (one[cpu / 64] && syscall(SYS_sched_setaffinity, 0, sizeof one, one) == 0)
            syscall(SYS_madvise, any, sizeof any, MADV_COLD);
    }
    if (size > 0)
        syscall(SYS_sched_setaffinity, 0, sizeof before, before);
}

/* This process's page table, where it was opened before the right to do so was given up. */
__attribute__((unused)) static int kept_pagemap = -1;

/* As absent_pages, but by the page table where the kernel shows it. A page in the kernel's swap
 * whose other users have it in memory counts as absent; mincore calls it present. */
__attribute__((unused)) static size_t unmapped_pages(void *memory, size_t bytes) {
    int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (map < 0)
        map = dup(kept_pagemap);
    uint64_t entries[512];
    size_t pages = bytes / PAGE, absent = 0;
    for (size_t done = 0; done < pages; done += COUNT(entries)) {
        size_t part = pages - done < COUNT(entries) ? pages - done : COUNT(entries);
        if (map < 0 || pread(map, entries, part * 8, (off_t)((uintptr_t)memory / PAGE + done) * 8) != (ssize_t)(part * 8)) {
            absent = absent_pages(memory, bytes);
            break;
        }
        for (size_t p = 0; p < part; p++)
            absent += !(entries[p] >> 63);
    }
    if (map >= 0)
        close(map);
    return absent;
}

/* Evicts whole pages; afterwards at least nine in ten are out, if Terrace evicts at all. */
__attribute__((unused)) static void evict(void *memory, size_t bytes) {
    if (!evicts())
        return;
    size_t pages = bytes / PAGE, absent = 0, tries = 0;
    double deadline = seconds_now() + 10;
    do {
        MUST(madvise(memory, bytes, MADV_PAGEOUT) == 0);
        absent = unmapped_pages(memory, bytes);
        if (absent * 10 >= pages * 9)
            return;
        usleep(1000);
        if (++tries % 100 == 0)
            empty_batches();
    } while (seconds_now() < deadline);
    dprintf(2, "FAILED in %d: only %zu of %zu pages at %p could be evicted\n", getpid(), absent, pages, memory);
    tell_of_pages(memory, pages);
    _exit(1);
}

__attribute__((unused)) static void *mapping(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    return memory;
}

/* A mapping, or a block of the heap, filled and evicted. */
__attribute__((unused)) static char *cold_mapping(size_t bytes, uint64_t seed) {
    char *memory = (char *)mapping(bytes);
    fill(memory, bytes, seed);
    evict(memory, bytes);
    return memory;
}

__attribute__((unused)) static char *cold_heap(size_t bytes, uint64_t seed) {
    void *memory = NULL;
    MUST(posix_memalign(&memory, PAGE, bytes) == 0);
    fill(memory, bytes, seed);
    evict(memory, bytes);
    return (char *)memory;
}

/* A child must end with status 0. */
__attribute__((unused)) static void wait_for(pid_t child) {
    int status = 0;
    MUST(child > 0);
    while (waitpid(child, &status, 0) != child)
        MUST(errno == EINTR);
    if (status != 0) {
        dprintf(2, "FAILED: child %d of %d ended with wait status %#x\n", child, getpid(), status);
        _exit(1);
    }
}

struct a_case {
    const char *name;
    void (*run)(void);
};
#define CASE(name) \
    { #name, name }

/* Runs the case that the first argument names. */
__attribute__((unused)) static int run_case(int count, char **words, const struct a_case *cases, size_t cases_count) {
    /* From 48 MiB on a process is managed, or observed. */
    void *ballast = mapping(64 * MIB);
    memset(ballast, 1, PAGE);
    for (size_t c = 0; c < cases_count; c++)
        if (count > 1 && strcmp(words[1], cases[c].name) == 0) {
            cases[c].run();
            return 0;
        }
    dprintf(2, "no such case: %s\n", count > 1 ? words[1] : "");
    return 2;
}
#endif
