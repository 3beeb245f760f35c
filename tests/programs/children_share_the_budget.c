/* Families of processes with memory of known contents. See cold.h for how a case is run; beside
 * that, children_share_the_budget takes:
 *
 *   many COUNT MEGABYTES SECONDS: COUNT children, each with MEGABYTES of its own
 *   executed COUNT MEGABYTES SECONDS: the same, each executed
 *   alone MEGABYTES SECONDS: one such process
 *   come_and_go MEGABYTES SECONDS: a parent with MEGABYTES, and children with as much, which end in
 *     all ways
 *   same_pages MEGABYTES SECONDS: a parent and a child with the same memory, which both only read
 *   cold_with_child MEGABYTES: what a child finds evicted comes back in it
 *   busy_children MEGABYTES: a parent that evicts and touches nothing more, and children that do
 *     all kinds of things
 */
#include "cold.h"
#include <signal.h>
#include <sys/resource.h>

static char **words;

static size_t number(int i) { return strtoul(words[i], NULL, 10); }

/* Holds memory, and looks at all of it again and again. */
static void hold(size_t megabytes, double seconds, uint64_t seed) {
    size_t bytes = megabytes * MIB;
    char *heap = malloc(bytes / 2);
    char *area = mapping(bytes / 2);
    MUST(heap);
    /* malloc's block need not begin on a page; its contents are the same. */
    fill(heap, bytes / 2, seed);
    fill(area, bytes / 2, seed + 1);
    double end = seconds_now() + seconds;
    do {
        check(heap, bytes / 2, seed);
        check(area, bytes / 2, seed + 1);
        usleep(100000);
    } while (seconds_now() < end);
    /* Changes are kept, too. */
    fill(area, bytes / 2, seed + 2);
    check(area, bytes / 2, seed + 2);
}

static void many(void) {
    size_t count = number(2);
    pid_t children[64];
    MUST(count <= COUNT(children));
    for (size_t i = 0; i < count; i++) {
        MUST((children[i] = fork()) >= 0);
        if (children[i] == 0) {
            hold(number(3), (double)number(4), 10 + i * 3);
            _exit(0);
        }
    }
    for (size_t i = 0; i < count; i++)
        wait_for(children[i]);
}

static void executed(void) {
    size_t count = number(2);
    pid_t children[64];
    MUST(count <= COUNT(children));
    for (size_t i = 0; i < count; i++) {
        MUST((children[i] = fork()) >= 0);
        if (children[i] == 0) {
            execl("/proc/self/exe", "executed", "alone", words[3], words[4], NULL);
            _exit(127);
        }
    }
    for (size_t i = 0; i < count; i++)
        wait_for(children[i]);
}

static void alone(void) { hold(number(2), (double)number(3), 7); }

/* Pages that are neither in memory nor in the kernel's swap: evicted by Terrace. */
static size_t evicted_pages(char *memory, size_t bytes) {
    FILE *pagemap = fopen("/proc/self/pagemap", "r");
    MUST(pagemap && fseek(pagemap, (long)((uintptr_t)memory / PAGE * 8), SEEK_SET) == 0);
    size_t evicted = 0;
    uint64_t entry;
    for (size_t p = 0; p < bytes / PAGE; p++) {
        MUST(fread(&entry, 8, 1, pagemap) == 1);
        evicted += entry >> 62 == 0;
    }
    fclose(pagemap);
    return evicted;
}

static void come_and_go(void) {
    size_t bytes = number(2) * MIB;
    char *own = mapping(bytes);
    fill(own, bytes, 1);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            hold(number(2), 1, 20 + (uint64_t)round);
            check(own, bytes, 1);
            if (round == 1)
                raise(SIGKILL);
            _exit(0);
        }
        int status;
        check(own, bytes, 1);
        MUST(waitpid(child, &status, 0) == child);
        MUST(round == 1 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0);
    }
    /* Alone again, with all of the budget. A page that was shared can be evicted only after it was written. */
    double end = seconds_now() + (double)number(3);
    fill(own, bytes, 2);
    do {
        check(own, bytes, 2);
        usleep(100000);
    } while (seconds_now() < end);
    printf("evicted %zu of %zu\n", evicted_pages(own, bytes), bytes / PAGE);
}

static void same_pages(void) {
    size_t bytes = number(2) * MIB;
    char *own = mapping(bytes);
    fill(own, bytes, 1);
    /* Not while it grows: what `terrace run` knows of that is some tenths of a second old. */
    sleep(1);
    pid_t child = fork();
    MUST(child >= 0);
    double end = seconds_now() + (double)number(3);
    do {
        check(own, bytes, 1);
        usleep(100000);
    } while (seconds_now() < end);
    if (child == 0)
        _exit(0);
    wait_for(child);
}

static void cold_with_child(void) {
    size_t bytes = number(2) * MIB;
    char *own = cold_mapping(bytes, 1);
    size_t evicted = evicted_pages(own, bytes);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        MUST(evicted_pages(own, bytes) >= evicted * 9 / 10);
        check(own, bytes, 1);
        /* Its own memory stays, even if it asks. */
        char *mine = mapping(bytes);
        fill(mine, bytes, 2);
        MUST(madvise(mine, bytes, MADV_PAGEOUT) == 0 || errno == EINVAL);
        printf("child: evicted %zu\n", evicted_pages(mine, bytes));
        fflush(stdout);
        pid_t grandchild = fork();
        MUST(grandchild >= 0);
        if (grandchild == 0) {
            check(own, bytes, 1);
            check(mine, bytes, 2);
            fill(own, bytes, 3);
            check(own, bytes, 3);
            _exit(0);
        }
        wait_for(grandchild);
        check(mine, bytes, 2);
        _exit(0);
    }
    wait_for(child);
    check(own, bytes, 1);
}

/* A child finds all of its parent's memory, evicts it again if it can, and ends somehow. */
static void be_busy(char *own, size_t bytes, int way) {
    alarm(60);
    check(own, bytes, 1);
    fill(own, bytes, 2);
    MUST(madvise(own, bytes, MADV_PAGEOUT) == 0 || errno == EINVAL);
    check(own, bytes, 2);
    if (way == 1)
        exit(0);
    if (way == 2)
        raise(SIGKILL);
    if (way == 3)
        abort();
    if (way == 4)
        execl("/proc/self/exe", "executed", "alone", "60", "0", NULL);
    _exit(way == 4);
}

static void busy_children(void) {
    size_t bytes = number(2) * MIB;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    char *own = cold_mapping(bytes, 1);
    const char *directory = getenv("TERRACE_RUN_DIR");
    char aside[1000];
    snprintf(aside, sizeof aside, "%s.aside", directory ? directory : "");
    for (int way = 0; way < 8; way++) {
        /* The last two can make no statistics page of their own. */
        if (way == 6 && directory)
            MUST(rename(directory, aside) == 0);
        pid_t child = way == 5 || way == 7 ? _Fork() : fork();
        if (child == 0)
            be_busy(own, bytes, way);
        int status;
        MUST(child > 0 && waitpid(child, &status, 0) == child);
        MUST(way == 2 ? WTERMSIG(status) == SIGKILL : way == 3 ? WTERMSIG(status) == SIGABRT : status == 0);
    }
    if (directory)
        MUST(rename(aside, directory) == 0);
    MUST(system("true") == 0);
    FILE *from = popen("echo words", "r");
    char line[10] = "";
    MUST(from && fgets(line, sizeof line, from) && strcmp(line, "words\n") == 0 && pclose(from) == 0);
}

int main(int argc, char **argv) {
    static const struct a_case cases[] = {
        CASE(many), CASE(executed), CASE(alone), CASE(come_and_go), CASE(same_pages), CASE(cold_with_child), CASE(busy_children),
    };
    words = argv;
    return run_case(argc, argv, cases, COUNT(cases));
}
