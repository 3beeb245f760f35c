/* fork in all its forms while pages are evicted. Usage: see cold.h; `arguments SEED WORD...` is what cases execute. */
#include "cold.h"
#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { BYTES = 8 << 20, PAGES = BYTES / PAGE };

void atfork_library_evict(void);
int atfork_library_calls(void);
extern char **environ;

static char *heap, *map;

static void make_cold(void) {
    heap = cold_heap(BYTES, 1);
    map = cold_mapping(BYTES, 2);
}

static void check_all(void) {
    check(heap, BYTES, 1);
    check(map, BYTES, 2);
}

/* A forked child that may not look at its own page map brings back what is out and evicts nothing. */
static bool restores_only;

static void evict_all(void) {
    if (restores_only)
        return;
    evict(heap, BYTES);
    evict(map, BYTES);
}

/* A child: everything is there, it can write, evict, allocate, and have a child in turn. */
static void live(int generations) {
    alarm(60);
    check_pages(map, PAGES / 2, PAGES, 2);
    if (generations > 0) {
        pid_t child = fork();
        if (child == 0) {
            live(generations - 1);
            _exit(0);
        }
        wait_for(child);
    }
    check_all();
    fill(heap, BYTES, 11);
    char *own = mapping(BYTES);
    fill(own, BYTES, 12);
    if (!restores_only) {
        evict(own, BYTES);
        evict(heap, BYTES);
    }
    check(own, BYTES, 12);
    check(heap, BYTES, 11);
    check(map, BYTES, 2);
    free(malloc(3 * MIB));
}

static void live_as_child(int generations) {
    live(generations);
    _exit(0);
}

static void children_and_grandchildren(void) {
    make_cold();
    for (int n = 0; n < 3; n++) {
        pid_t child = fork();
        if (child == 0)
            live_as_child(2);
        wait_for(child);
        check_pages(heap, 0, PAGES / 4, 1);
    }
    check_all();
}

static void several_children_at_a_time(void) {
    make_cold();
    pid_t children[8];
    for (size_t n = 0; n < COUNT(children); n++) {
        children[n] = fork();
        if (children[n] == 0)
            live_as_child(0);
        check_pages(heap, n * 64, n * 64 + 64, 1);
    }
    fill(map, BYTES, 3);
    for (size_t n = 0; n < COUNT(children); n++)
        wait_for(children[n]);
    check(heap, BYTES, 1);
    check(map, BYTES, 3);
}

static atomic_bool stop;
static char *shared_area, *own_areas;
enum { FAULTERS = 4, SHARED_PAGES = 4096, OWN_BYTES = 2 << 20 };

static void *faulter(void *argument) {
    size_t me = (size_t)(uintptr_t)argument;
    char *own = own_areas + me * OWN_BYTES;
    uint64_t state = me + 1;
    for (uint64_t round = 1; !stop; round++) {
        for (int n = 0; n < 200; n++) {
            size_t page = (state = mix(state * 31 + 7)) % SHARED_PAGES;
            check_pages(shared_area, page, page + 1, 5);
        }
        size_t page = state % (OWN_BYTES / PAGE);
        check_pages(own, page, page + 1, 6);
        memset(own + page * PAGE, 0, PAGE);
        for (size_t w = 0; w < 512; w++)
            ((uint64_t *)own)[page * 512 + w] = word_of(6, page, w);
        free(malloc(state % 20000));
    }
    return NULL;
}

static void threads_fault_while_one_forks(void) {
    shared_area = cold_mapping(SHARED_PAGES * PAGE, 5);
    own_areas = mapping(FAULTERS * OWN_BYTES);
    for (size_t n = 0; n < FAULTERS; n++)
        fill(own_areas + n * OWN_BYTES, OWN_BYTES, 6);
    pthread_t threads[FAULTERS];
    for (size_t n = 0; n < FAULTERS; n++)
        MUST(pthread_create(&threads[n], NULL, faulter, (void *)n) == 0);
    for (int n = 0; n < 25; n++) {
        if (evicts())
            MUST(madvise(shared_area, SHARED_PAGES * PAGE, MADV_PAGEOUT) == 0);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            check(shared_area, SHARED_PAGES * PAGE, 5);
            _exit(0);
        }
        if (n % 2)
            wait_for(child);
        else
            MUST(child > 0);
    }
    for (int status; wait(&status) > 0;)
        MUST(status == 0);
    stop = true;
    for (size_t n = 0; n < FAULTERS; n++)
        pthread_join(threads[n], NULL);
}

/* Several threads fork at the same time. */
static void *forker(void *argument) {
    for (int n = 0; n < 8; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            check_all();
            _exit(0);
        }
        wait_for(child);
    }
    return NULL;
}

static void threads_fork_at_the_same_time(void) {
    make_cold();
    pthread_t threads[3];
    for (size_t n = 0; n < COUNT(threads); n++)
        MUST(pthread_create(&threads[n], NULL, forker, NULL) == 0);
    for (size_t n = 0; n < COUNT(threads); n++)
        pthread_join(threads[n], NULL);
    check_all();
}

/* Executed again, so that the process that becomes a daemon is one that Terrace was in from its beginning. */
static void become_daemon(void) {
    make_cold();
    MUST(daemon(1, 0) == 0);
    /* 9 is the pipe to the process that waits. */
    check_pages(heap, 0, PAGES / 2, 1);
    MUST(write(9, "h", 1) == 1);
    pid_t child = fork();
    if (child == 0)
        live_as_child(1);
    wait_for(child);
    evict_all();
    check_all();
    MUST(write(9, "d", 1) == 1);
    _exit(0);
}

static void daemons(void) {
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 9);
        close_range(3, 8, 0);
        close_range(10, ~0u, 0);
        execl("/proc/self/exe", "daemon", "become_daemon", NULL);
        _exit(127);
    }
    close(ends[1]);
    wait_for(child);
    char got[3] = "";
    size_t have = 0;
    for (ssize_t n; have < 2 && (n = read(ends[0], got + have, 2 - have)) > 0;)
        have += (size_t)n;
    MUST(strcmp(got, "hd") == 0);
}

static void everything_closed(void) {
    make_cold();
    MUST(close_range(3, ~0u, 0) == 0);
    check_pages(heap, 0, PAGES / 2, 1);
    for (int fd = 3; fd < 2000; fd++)
        close(fd);
    closefrom(3);
    check_all();
    evict_all();
    pid_t child = fork();
    if (child == 0)
        live_as_child(1);
    wait_for(child);
    /* Also in a table of its own, and marked instead of closed. */
    MUST(close_range(3, ~0u, CLOSE_RANGE_UNSHARE) == 0);
    MUST(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
    check_all();
    evict_all();
    child = fork();
    if (child == 0) {
        close_range(0, ~0u, 0);
        live_as_child(1);
    }
    wait_for(child);
    check_all();
}

/* The numbers of descriptors are the program's own business. */
static void descriptor_numbers_are_the_programs(void) {
    int first = open("/dev/null", O_RDONLY);
    close(first);
    make_cold();
    int second = open("/dev/null", O_RDONLY);
    MUST(first == second);
    close(second);
    pid_t child = fork();
    if (child == 0) {
        int third = open("/dev/null", O_RDONLY);
        MUST(first == third);
        check_all();
        _exit(0);
    }
    wait_for(child);
}

static void privileges_dropped_between(void) {
    if (geteuid() != 0)
        cannot_check("needs root to have privileges to drop");
    make_cold();
    kept_pagemap = open("/proc/self/pagemap", O_RDONLY);
    MUST(setgid(65534) == 0 && setuid(65534) == 0);
    pid_t child = fork();
    if (child == 0) {
        restores_only = true;
        live_as_child(2);
    }
    check_pages(heap, 0, PAGES / 2, 1);
    wait_for(child);
    evict_all();
    check_all();
    evict_all();
    close_range(3, ~0u, 0);
    child = fork();
    if (child == 0) {
        restores_only = true;
        live_as_child(2);
    }
    wait_for(child);
    check_all();
}

/* In a new root without /proc and /dev, and without privileges. */
static void jailed_between(void) {
    if (geteuid() != 0)
        cannot_check("needs root for chroot");
    make_cold();
    MUST(chdir("/var/empty") == 0 || chdir("/usr/share") == 0);
    MUST(chroot(".") == 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        check_all();
        _exit(0);
    }
    wait_for(child);
    check_all();
    make_cold();
    MUST(setgid(65534) == 0 && setuid(65534) == 0);
    child = fork();
    if (child == 0) {
        alarm(60);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            alarm(60);
            check_all();
            _exit(0);
        }
        wait_for(grandchild);
        check_all();
        _exit(0);
    }
    wait_for(child);
    check_all();
}

static pid_t plain_fork_syscall(void) {
#ifdef SYS_fork
    return (pid_t)syscall(SYS_fork);
#else
    return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}
static pid_t plain_clone_syscall(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static void fork_by(pid_t (*fork_somehow)(void)) {
    make_cold();
    for (int n = 0; n < 3; n++) {
        pid_t child = fork_somehow();
        if (child == 0) {
            alarm(60);
            check_pages(heap, 0, PAGES / 2, 1);
            pid_t grandchild = fork_somehow();
            if (grandchild == 0) {
                alarm(60);
                check_all();
                _exit(0);
            }
            wait_for(grandchild);
            check_all();
            _exit(0);
        }
        MUST(child > 0);
        check_pages(map, 0, PAGES / 4, 2);
        wait_for(child);
    }
    check_all();
}

static void fork_without_handlers(void) { fork_by(_Fork); }
static void fork_by_number(void) { fork_by(plain_fork_syscall); }
static void clone_by_number(void) { fork_by(plain_clone_syscall); }

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
/* struct clone_args in its first form. */
struct clone3_arguments {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

static pid_t plain_clone3_syscall(void) {
    struct clone3_arguments arguments = {.exit_signal = SIGCHLD};
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

static void clone3_by_number(void) {
    struct clone3_arguments arguments = {.exit_signal = SIGCHLD};
    MUST(syscall(SYS_clone3, NULL, sizeof arguments) == -1 && errno == EFAULT);
    MUST(syscall(SYS_clone3, &arguments, 8UL) == -1 && errno == EINVAL);
    fork_by(plain_clone3_syscall);
}

/* The kernel writes numbers into evicted pages, in the child before anything else. */
static void clones_write_into_evicted_memory(void) {
    make_cold();
    enum { TID_PAGE = 100, PIDFD_PAGE = 200 };
    int *tid = (int *)(map + TID_PAGE * PAGE), *pidfd = (int *)(map + PIDFD_PAGE * PAGE);
    for (int kind = 0; kind < 2; kind++) {
        struct clone3_arguments arguments = {
            .flags = CLONE_CHILD_SETTID | CLONE_PIDFD,
            .pidfd = (uint64_t)(uintptr_t)pidfd,
            .child_tid = (uint64_t)(uintptr_t)tid,
            .exit_signal = SIGCHLD,
        };
        /* The address of the child's number is the fourth or the fifth argument. */
        pid_t child = (pid_t)(kind ? syscall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID, 0, 0, tid, tid)
                                   : syscall(SYS_clone3, &arguments, sizeof arguments));
        if (child == 0) {
            alarm(60);
            MUST(*tid == getpid());
            for (size_t w = 1; w < 512; w++)
                MUST(((uint64_t *)tid)[w] == word_of(2, TID_PAGE, w));
            check_pages(map, 0, TID_PAGE, 2);
            check_pages(map, TID_PAGE + 1, PIDFD_PAGE, 2);
            check_pages(map, PIDFD_PAGE + 1, PAGES, 2);
            check(heap, BYTES, 1);
            _exit(0);
        }
        MUST(child > 0);
        wait_for(child);
        if (kind == 0) {
            MUST(close(*pidfd) == 0);
            ((uint64_t *)pidfd)[0] = word_of(2, PIDFD_PAGE, 0);
        }
        check_all();
        evict_all();
    }
}

#if defined(__x86_64__)
static void returned_to_on_another_stack(void) {
    alarm(60);
    check_all();
    _exit(0);
}

/* The C library's `syscall` returns, in the child, to what lies on the stack that it was given. */
static void clones_by_number_on_another_stack(void) {
    make_cold();
    char *stack = cold_heap(256 * KIB, 3), *top = stack + 256 * KIB - 256 + 8;
    for (int kind = 0; kind < 4; kind++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            evict_all();
            ((void (**)(void))top)[-1] = returned_to_on_another_stack;
            uint64_t flags = SIGCHLD | (kind & 1 ? CLONE_VM | CLONE_VFORK : 0);
            struct clone3_arguments arguments = {
                .flags = flags & ~(uint64_t)SIGCHLD,
                .exit_signal = SIGCHLD,
                .stack = (uint64_t)(uintptr_t)stack,
                .stack_size = (uint64_t)(top - 8 - stack),
            };
            wait_for((pid_t)(kind & 2 ? syscall(SYS_clone3, &arguments, sizeof arguments) : syscall(SYS_clone, flags, top - 8, 0, 0, 0)));
            check_all();
            _exit(0);
        }
        wait_for(child);
    }
}
#else
static void clones_by_number_on_another_stack(void) { cannot_check("the child would need a frame of its caller's"); }
#endif

/* A library in a namespace of its own has a C library of its own there, and forks with that. */
static char *forking_library;

static void forks_of_another_c_library(void) {
    make_cold();
    void *library = dlmopen(LM_ID_NEWLM, forking_library, RTLD_NOW);
    MUST(library);
    pid_t (*other_fork)(void) = (pid_t(*)(void))dlsym(library, "other_fork");
    MUST(other_fork);
    MUST(madvise(map, BYTES, MADV_PAGEOUT) == 0 && madvise(heap, BYTES, MADV_PAGEOUT) == 0);
    for (int n = 0; n < 3; n++) {
        pid_t child = other_fork();
        if (child == 0) {
            alarm(60);
            check_all();
            pid_t grandchild = n ? fork() : other_fork();
            if (grandchild == 0) {
                check_all();
                munmap(map, BYTES / 2);
                _exit(0);
            }
            wait_for(grandchild);
            free(malloc(2 * MIB));
            MUST(munmap(map, BYTES) == 0);
            _exit(0);
        }
        wait_for(child);
        check_all();
    }
}

/* Memory that stays where it is, if an audit library is there. */
static void memory_stays_in_place(void) {
    heap = mapping(BYTES);
    fill(heap, BYTES, 1);
    for (int n = 0; n < 20; n++) {
        MUST(madvise(heap, BYTES, MADV_PAGEOUT) == 0);
        usleep(20000);
        MUST(absent_pages(heap, BYTES) == 0);
    }
    check(heap, BYTES, 1);
}

static char *clone_stack;
enum { STACK_BYTES = 256 << 10 };
static int clone_main(void *argument) {
    alarm(60);
    char local[20000];
    memset(local, 5, sizeof local);
    if (argument != &clone_stack)
        return 2;
    /* What the child's stack did not reach is as it was. */
    check_pages(clone_stack, 0, (STACK_BYTES - 100 * KIB) / PAGE, 3);
    check_all();
    free(malloc(2 * MIB));
    for (size_t n = 8; n < 4000; n += n / 2)
        free(malloc(n));
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    wait_for(child);
    return local[sizeof local / 2] - 5;
}

static void clone_on_another_stack(void) {
    make_cold();
    clone_stack = cold_heap(STACK_BYTES, 3);
    for (int n = 0; n < 3; n++) {
        evict(clone_stack, STACK_BYTES / 2);
        pid_t child = clone(clone_main, clone_stack + STACK_BYTES, SIGCHLD, &clone_stack);
        MUST(child > 0);
        wait_for(child);
        check_all();
        evict_all();
        fill(clone_stack, STACK_BYTES, 3);
        evict(clone_stack, STACK_BYTES);
    }
}

/* A child that shares memory: what it does to memory is done for both. */
static int sharing_main(void *argument) {
    check(heap, BYTES, (uint64_t)(uintptr_t)argument);
    check(map, BYTES, 2);
    fill(heap, BYTES, (uint64_t)(uintptr_t)argument + 1);
    void *gone = mapping(2 * MIB);
    munmap(gone, 2 * MIB);
    return 0;
}

static void clone_that_shares_memory(void) {
    make_cold();
    clone_stack = cold_heap(STACK_BYTES, 3);
    for (uintptr_t n = 1; n <= 4; n++) {
        int flags = CLONE_VM | SIGCHLD | (n % 2 ? CLONE_FILES : CLONE_VFORK);
        wait_for(clone(sharing_main, clone_stack + STACK_BYTES, flags, (void *)n));
        check(heap, BYTES, n + 1);
        evict_all();
    }
}

/* The last thread of a program leaves by the exit system call, which ends threads, not processes. */
static void the_last_thread_exits_alone(void) {
    make_cold();
    pid_t child = fork();
    if (child == 0) {
        check_all();
        syscall(SYS_exit, 0);
    }
    wait_for(child);
    check_all();
}

/* argv, its strings, the path and the environment all lie in evicted memory of their own pages. */
static char *cold_words;
static char **cold_arguments(const char *seed) {
    enum { WORDS = 64 };
    if (!cold_words)
        cold_words = mapping(4 * MIB);
    char **array = (char **)cold_words;
    char *text = cold_words + 2 * MIB;
    size_t n = 0;
    array[n++] = strcpy(text, "arguments"), text += PAGE;
    array[n++] = strcpy(text, "arguments"), text += PAGE;
    array[n++] = strcpy(text, seed), text += PAGE;
    for (int w = 0; w < WORDS; w++, text += 2 * PAGE) {
        size_t len = (size_t)(atoi(seed) * 31 + w * 97) % 6000;
        memset(text, 'a' + (w + atoi(seed)) % 26, len);
        text[len] = 0;
        array[n++] = text;
    }
    array[n] = NULL;
    strcpy(cold_words + MIB, "/proc/self/exe");
    evict(cold_words, 4 * MIB);
    return array;
}

static int check_arguments(int count, char **words) {
    int seed = atoi(words[2]);
    MUST(count == 3 + 64);
    for (int w = 0; w < 64; w++) {
        size_t len = (size_t)(seed * 31 + w * 97) % 6000;
        MUST(strlen(words[3 + w]) == len);
        for (size_t i = 0; i < len; i++)
            MUST(words[3 + w][i] == 'a' + (w + seed) % 26);
    }
    return 0;
}

static void spawned_with_evicted_arguments(void) {
    make_cold();
    for (int n = 0; n < 10; n++) {
        char seed[16];
        snprintf(seed, sizeof seed, "%d", n);
        char **arguments = cold_arguments(seed);
        pid_t child;
        MUST(posix_spawn(&child, cold_words + MIB, NULL, NULL, arguments, environ) == 0);
        wait_for(child);
        check_pages(heap, 0, PAGES / 8, 1);
    }
    check_all();
}

static void vforked_with_evicted_arguments(void) {
    make_cold();
    for (int n = 0; n < 10; n++) {
        char seed[16];
        snprintf(seed, sizeof seed, "%d", n);
        char **arguments = cold_arguments(seed);
        const char *path = cold_words + MIB;
        pid_t child = vfork();
        if (child == 0) {
            execv(path, arguments);
            _exit(127);
        }
        wait_for(child);
        check_pages(heap, 0, PAGES / 8, 1);
    }
    /* A vfork child that touches evicted memory and does not execute. */
    evict_all();
    pid_t child = vfork();
    if (child == 0)
        _exit(((volatile uint64_t *)heap)[512] != word_of(1, 1, 0) || ((volatile uint64_t *)map)[5120] != word_of(2, 10, 0));
    wait_for(child);
    check_all();
}

static void commands_through_system_and_popen(void) {
    make_cold();
    for (int n = 0; n < 5; n++) {
        MUST(system("exit 3") == 3 << 8);
        FILE *from = popen("echo some words", "r");
        char line[100] = "";
        MUST(from && fgets(line, sizeof line, from) && strcmp(line, "some words\n") == 0);
        MUST(pclose(from) == 0);
        check_pages(heap, 0, PAGES / 8, 1);
        evict(heap, BYTES);
    }
    check_all();
}

static void evict_block(void *block, size_t bytes) {
    if (!evicts())
        return;
    uintptr_t from = (uintptr_t)block & ~(uintptr_t)(PAGE - 1);
    uintptr_t to = ((uintptr_t)block + bytes + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    MUST(madvise((void *)from, to - from, MADV_PAGEOUT) == 0);
}

static void open_streams_with_buffered_data(void) {
    enum { STREAMS = 60 };
    make_cold();
    FILE *streams[STREAMS];
    static char buffers[STREAMS / 3][PAGE];
    char **cold_buffers = malloc(sizeof *cold_buffers * STREAMS);
    for (int n = 0; n < STREAMS; n++) {
        streams[n] = tmpfile();
        MUST(streams[n]);
        cold_buffers[n] = malloc(10000);
        if (n % 3 == 1)
            setvbuf(streams[n], buffers[n / 3], _IOFBF, PAGE);
        else if (n % 3 == 2)
            setvbuf(streams[n], cold_buffers[n], n % 2 ? _IOFBF : _IOLBF, 10000);
        MUST(fprintf(streams[n], "before %d ", n) > 0);
    }
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < STREAMS; n++) {
            evict_block(cold_buffers[n], 10000);
            evict_block(streams[n], 600);
        }
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            for (int n = 0; n < STREAMS; n++)
                MUST(fprintf(streams[n], "child %d %d ", round, n) > 0 && fflush(streams[n]) == 0);
            check_all();
            FILE *own = tmpfile();
            MUST(own && fprintf(own, "own") == 3 && fclose(own) == 0);
            _exit(0);
        }
        wait_for(child);
    }
    for (int n = 0; n < STREAMS; n++) {
        char expected[500], got[500] = "";
        size_t len = 0;
        for (int round = 0; round < 3; round++)
            len += (size_t)snprintf(expected + len, sizeof expected - len, "before %d child %d %d ", n, round, n);
        snprintf(expected + len, sizeof expected - len, "before %d after", n);
        MUST(fprintf(streams[n], "after") == 5 && fflush(streams[n]) == 0);
        rewind(streams[n]);
        MUST(fread(got, 1, sizeof got - 1, streams[n]) == strlen(expected));
        MUST(strcmp(got, expected) == 0);
        fclose(streams[n]);
    }
    check_all();
}

static void parent_writes_while_child_reads(void) {
    make_cold();
    for (uint64_t round = 0; round < 4; round++) {
        int ends[2];
        MUST(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            char byte;
            if (round % 2) /* after the parent is done, or at the same time */
                MUST(read(ends[0], &byte, 1) == 1);
            check(heap, BYTES, round == 0 ? 1 : 100 + round - 1);
            check(map, BYTES, round == 0 ? 2 : 200 + round - 1);
            _exit(0);
        }
        fill(heap, BYTES, 100 + round);
        fill(map, BYTES / 2, 200 + round);
        if (evicts())
            MUST(madvise(heap, BYTES, MADV_PAGEOUT) == 0);
        fill(map, BYTES, 200 + round);
        MUST(write(ends[1], "x", 1) == 1);
        wait_for(child);
        close(ends[0]), close(ends[1]);
        check(heap, BYTES, 100 + round);
        check(map, BYTES, 200 + round);
        evict_all();
    }
}

static atomic_int stage; /* 0 not there yet, 1 may be evicted, 2 go on */
static char *thread_stack;
/* So large that `evict` succeeds again where part of it has been kept in DRAM. */
enum { THREAD_STACK_BYTES = 8 << 20, DEPTH = 200 };

/* `DEPTH` frames of 4 KiB, filled before the fork and checked by parent and child on their way out. */
static __attribute__((noinline)) pid_t fork_below(int depth) {
    volatile uint64_t frame[512];
    for (int w = 0; w < 512; w++)
        frame[w] = word_of(9, (size_t)depth, (size_t)w);
    pid_t child;
    if (depth > 0) {
        child = fork_below(depth - 1);
    } else {
        if (stage == 0)
            stage = 1;
        while (stage == 1)
            ;
        child = fork();
        if (child == 0)
            alarm(60);
    }
    for (int w = 0; w < 512; w++)
        MUST(frame[w] == word_of(9, (size_t)depth, (size_t)w));
    return child;
}

static void *fork_on_own_stack(void *argument) {
    pid_t child = fork_below(DEPTH);
    if (child == 0) {
        check_all();
        pid_t grandchild = fork_below(DEPTH / 2);
        if (grandchild == 0) {
            check_all();
            _exit(0);
        }
        wait_for(grandchild);
        _exit(0);
    }
    return (void *)(uintptr_t)child;
}

static void a_thread_forks_whose_stack_was_evicted(void) {
    make_cold();
    for (int n = 0; n < 5; n++) {
        thread_stack = cold_heap(THREAD_STACK_BYTES, 3);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        MUST(pthread_attr_setstack(&attributes, thread_stack, THREAD_STACK_BYTES) == 0);
        pthread_t thread;
        stage = 0;
        MUST(pthread_create(&thread, &attributes, fork_on_own_stack, NULL) == 0);
        while (stage == 0)
            usleep(100);
        /* Its thread-local storage too, which lies at the top. */
        if (evicts())
            MUST(madvise(thread_stack, THREAD_STACK_BYTES, MADV_PAGEOUT) == 0);
        stage = 2;
        void *child;
        pthread_join(thread, &child);
        wait_for((pid_t)(uintptr_t)child);
        free(thread_stack);
        check_all();
        evict_all();
    }
}

static pthread_t forking_thread;

/* In `fork`, before Terrace's own handler: evicts all frames of this thread but those of the last page or two. */
static __attribute__((noinline)) void evict_frames(void) {
    volatile char below[PAGE];
    below[0] = 1;
    char *page = (char *)((uintptr_t)(below + sizeof below) / PAGE * PAGE + PAGE);
    if (evicts())
        MUST(madvise(page, (size_t)(thread_stack + THREAD_STACK_BYTES - page), MADV_PAGEOUT) == 0);
}

static void evict_forking_frames(void) {
    if (pthread_equal(pthread_self(), forking_thread))
        evict_frames();
}

static __attribute__((noinline)) void fork_below_so_much(size_t bytes) {
    volatile char *room = alloca(bytes);
    room[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        MUST(room[0] == 1);
        check_pages(map, 0, 1, 2);
        _exit(0);
    }
    wait_for(child);
}

static void *fork_at_every_place(void *unused) {
    forking_thread = pthread_self();
    for (size_t n = 0; n < PAGE / 32; n++)
        fork_below_so_much(n * (2 * PAGE + 32) + 1);
    return unused;
}

/* Wherever a page of the stack ends in the frames of `fork`, with all but the last frames evicted amid it. */
static void a_thread_forks_at_every_place_of_its_stack(void) {
    make_cold();
    thread_stack = cold_heap(THREAD_STACK_BYTES, 3);
    MUST(pthread_atfork(evict_forking_frames, NULL, NULL) == 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    MUST(pthread_attr_setstack(&attributes, thread_stack, THREAD_STACK_BYTES) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, &attributes, fork_at_every_place, NULL) == 0);
    pthread_join(thread, NULL);
}

/* The C library's own are beside them, further from the end of a thread's stack than its
 * description. A child needs those at once. */
enum { VARIABLES_BYTES = 600 << 10 };
static __thread char variables[VARIABLES_BYTES] __attribute__((aligned(16)));
static char *forking_variables;

static void *fork_with_own_variables(void *unused) {
    fill(forking_variables = variables, VARIABLES_BYTES, 4);
    stage = 1;
    while (stage == 1)
        ;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        check(variables, VARIABLES_BYTES, 4);
        _exit(0);
    }
    wait_for(child);
    return unused;
}

static void a_thread_forks_whose_variables_are_in_managed_memory(void) {
    make_cold();
    thread_stack = mapping(THREAD_STACK_BYTES);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    MUST(pthread_attr_setstack(&attributes, thread_stack, THREAD_STACK_BYTES) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, &attributes, fork_with_own_variables, NULL) == 0);
    while (stage != 1)
        usleep(100);
    if (evicts()) {
        char *page = forking_variables - (uintptr_t)forking_variables % PAGE;
        MUST(madvise(page, VARIABLES_BYTES, MADV_PAGEOUT) == 0);
        MUST(absent_pages(page, VARIABLES_BYTES) == 0);
    }
    stage = 2;
    pthread_join(thread, NULL);
}

static void fork_handlers_of_a_library_touch_evicted_memory(void) {
    make_cold();
    for (int n = 1; n <= 3; n++) {
        atfork_library_evict();
        pid_t child = fork();
        if (child == 0) {
            MUST(atfork_library_calls() == 1);
            live_as_child(1);
        }
        wait_for(child);
        MUST(atfork_library_calls() == 0);
    }
    check_all();
}

/* Terrace's threads were made while the pipe was open, and must not hold it. */
static void a_closed_pipe_ends(void) {
    make_cold();
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        /* This process's threads are made now. */
        check_all();
        close(ends[0]), close(ends[1]);
        sleep(600);
        _exit(0);
    }
    close(ends[1]);
    alarm(60);
    char byte;
    MUST(read(ends[0], &byte, 1) == 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    check_all();
}

/* Signals arrive while the parent forks and the child brings pages back. */
static atomic_long signals;
static void on_signal(int number) {
    int saved = errno;
    size_t page = (size_t)(signals++ * 37 % PAGES);
    check_pages(map, page, page + 1, 2);
    errno = saved;
}

static void signals_while_forking(void) {
    make_cold();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pid_t parent = getpid();
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t sender = fork();
    if (sender == 0) {
        signal(SIGUSR1, SIG_IGN);
        while (getppid() == parent) {
            kill(parent, SIGUSR1);
            usleep(300);
        }
        _exit(0);
    }
    for (int n = 0; n < 20; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            raise(SIGUSR1);
            check(heap, BYTES, 1);
            _exit(0);
        }
        wait_for(child);
        if (evicts())
            MUST(madvise(map, BYTES, MADV_PAGEOUT) == 0);
    }
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
    check_all();
}

/* _Fork is for signal handlers: whatever they interrupt. */
static atomic_int forked;
static void fork_in_handler(int number) {
    int saved = errno;
    pid_t child = _Fork();
    if (child == 0) {
        alarm(60);
        check_pages(map, 0, 20, 2);
        _exit(0);
    }
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    forked++;
    errno = saved;
}

static void signal_handlers_fork(void) {
    make_cold();
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pid_t parent = getpid();
    pid_t sender = fork();
    if (sender == 0) {
        signal(SIGUSR1, SIG_IGN);
        while (getppid() == parent) {
            kill(parent, SIGUSR1);
            /* Longer than a fork takes: the handler must not be all that runs. */
            usleep(20000);
        }
        _exit(0);
    }
    while (forked < 50) {
        void *block = malloc(100000), *map = mapping(2 * MIB);
        memset(block, 1, 100000);
        memset(map, 1, MIB);
        MUST(madvise(map, MIB, MADV_DONTNEED) == 0);
        MUST(mprotect(map, MIB, PROT_READ) == 0);
        MUST(munmap(map, 2 * MIB) == 0);
        free(block);
    }
    signal(SIGUSR1, SIG_IGN);
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
    check_all();
}

/* For the test that reads its standard output: closes it and lives on. */
static void closes_its_output(void) {
    make_cold();
    MUST(write(1, "said\n", 5) == 5);
    close(1);
    close(2);
    close(0);
    sleep(600);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(children_and_grandchildren),
        CASE(several_children_at_a_time),
        CASE(threads_fault_while_one_forks),
        CASE(threads_fork_at_the_same_time),
        CASE(become_daemon),
        CASE(daemons),
        CASE(everything_closed),
        CASE(descriptor_numbers_are_the_programs),
        CASE(privileges_dropped_between),
        CASE(jailed_between),
        CASE(fork_without_handlers),
        CASE(fork_by_number),
        CASE(clone_by_number),
        CASE(clone3_by_number),
        CASE(clones_write_into_evicted_memory),
        CASE(clones_by_number_on_another_stack),
        CASE(forks_of_another_c_library),
        CASE(clone_on_another_stack),
        CASE(clone_that_shares_memory),
        CASE(the_last_thread_exits_alone),
        CASE(spawned_with_evicted_arguments),
        CASE(vforked_with_evicted_arguments),
        CASE(commands_through_system_and_popen),
        CASE(open_streams_with_buffered_data),
        CASE(parent_writes_while_child_reads),
        CASE(a_thread_forks_whose_stack_was_evicted),
        CASE(a_thread_forks_at_every_place_of_its_stack),
        CASE(a_thread_forks_whose_variables_are_in_managed_memory),
        CASE(fork_handlers_of_a_library_touch_evicted_memory),
        CASE(a_closed_pipe_ends),
        CASE(signals_while_forking),
        CASE(signal_handlers_fork),
        CASE(closes_its_output),
        CASE(memory_stays_in_place),
    };
    if (count > 2 && strcmp(words[1], "arguments") == 0)
        return check_arguments(count, words);
    forking_library = count > 2 ? words[2] : "";
    return run_case(count, words, cases, COUNT(cases));
}
