/* A program in a control group of its own, with a limit on memory. Usage: see cold.h; the (empty)
 * group's directory is $CONTROL_GROUP. */
#include "cold.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#define AT(area, page) ((area) + (size_t)(page) * PAGE)

static bool write_to_group(const char *name, const char *value) {
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", getenv("CONTROL_GROUP"), name);
    int file = open(path, O_WRONLY);
    bool done = file >= 0 && write(file, value, strlen(value)) == (ssize_t)strlen(value);
    close(file);
    return done;
}

static bool limit_to(size_t bytes) {
    char text[30];
    snprintf(text, sizeof text, "%zu", bytes);
    return write_to_group("memory.limit_in_bytes", text) || write_to_group("memory.max", text);
}

static size_t used_bytes(void) {
    char path[1000], text[30] = "";
    snprintf(path, sizeof path, "%s/memory.usage_in_bytes", getenv("CONTROL_GROUP"));
    int file = open(path, O_RDONLY);
    MUST(file >= 0 && read(file, text, sizeof text - 1) > 0);
    close(file);
    return strtoul(text, NULL, 10);
}

/* What this process touches from now on counts in the group. */
static void enter_group(size_t bytes) {
    MUST(limit_to(bytes) && write_to_group("cgroup.procs", "0"));
}

static void reclaim(void) {
    if (!write_to_group("memory.force_empty", "0"))
        write_to_group("memory.reclaim", "64M");
}

static atomic_bool ends;
static void *keep_reclaiming(void *argument) {
    while (!ends)
        reclaim();
    return NULL;
}

/* The kernel takes back what it can, all the time: page cache, and pages that were lazily freed. */
static void reclaimed_all_the_time(void) {
    enter_group(100 * MIB);
    int file = open(getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp", O_TMPFILE | O_RDWR, 0600);
    MUST(file >= 0);
    size_t bytes = 8 * MIB, pages = bytes / PAGE;
    char *area = cold_mapping(bytes, 1), *freed = mapping(bytes), *cache = mapping(MIB);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, keep_reclaiming, NULL) == 0);
    double until = seconds_now() + 2;
    for (uint64_t round = 0; seconds_now() < until; round++) {
        /* Seldom: while the kernel writes a file out, it reclaims nothing else. */
        for (size_t n = 0; n < (round % 16 ? 0 : 30); n++)
            MUST(pwrite(file, cache, MIB, (off_t)(round * 7 + n) % 200 * (off_t)MIB) == MIB);
        fill(freed, bytes, round);
        MUST(madvise(freed, bytes, MADV_FREE) == 0);
        if (evicts())
            MUST(madvise(freed, bytes, MADV_PAGEOUT) == 0);
        for (size_t p = 0; p < pages; p++)
            for (size_t w = 0, there = 1; w < 512; w++) {
                uint64_t word = *(volatile uint64_t *)(AT(freed, p) + w * 8);
                /* It may go at any moment, and then does not come back. */
                MUST(word == 0 || (there && word == word_of(round, p, w)));
                there = word != 0;
            }
        check(area, bytes, 1);
        if (evicts())
            MUST(madvise(area, bytes, MADV_PAGEOUT) == 0);
    }
    ends = true;
    pthread_join(thread, NULL);
    check(area, bytes, 1);
}

/* Twice as much as is allowed, compressible: there is room for it under Terrace only. */
static void more_than_the_limit(void) {
    enter_group(80 * MIB);
    size_t bytes = 160 * MIB;
    char *area = mapping(bytes);
    for (int round = 0; round < 2; round++) {
        for (size_t m = 0; m < bytes / MIB; m++) {
            fill(area + m * MIB, MIB, m + (uint64_t)round);
            /* First touches tell Terrace nothing: no faster than it can evict on a busy machine. */
            usleep(15000);
        }
        for (size_t m = 0; m < bytes / MIB; m++)
            check(area + m * MIB, MIB, m + (uint64_t)round);
    }
}

/* Not enough for what was evicted to come back; a thread that needs it waits until there is. */
static void no_memory_for_a_while(void) {
    if (!write_to_group("memory.oom_control", "1"))
        cannot_check("only control groups of version 1 let programs wait for memory");
    pid_t parent = getpid(), helper = fork();
    if (helper == 0) {
        /* Outside the group. */
        sleep(2);
        MUST(getppid() == parent && limit_to(GIB));
        _exit(0);
    }
    enter_group(GIB);
    char *area = cold_mapping(32 * MIB, 1);
    reclaim();
    while (!limit_to(used_bytes() + MIB))
        usleep(1000);
    double start = seconds_now();
    check(area, 32 * MIB, 1);
    /* It did not fit, or this has shown nothing. */
    MUST(!evicts() || seconds_now() - start > 0.5);
    evict(area, 32 * MIB);
    check(area, 32 * MIB, 1);
    wait_for(helper);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(reclaimed_all_the_time),
        CASE(more_than_the_limit),
        CASE(no_memory_for_a_while),
    };
    return run_case(count, words, cases, COUNT(cases));
}
