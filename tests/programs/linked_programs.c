/* Programs that say what they are about to touch: include/terrace.h. */
#include "cold.h"
#include "terrace.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { COPIES = 960 };

/* Nothing but what the program does itself moves pages. */
static bool quiet(void) { return evicts() && !getenv("TERRACE_STRESS"); }

static long swapped_kib(void) {
    char line[200];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    MUST(status);
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmSwap: %ld", &kib);
    fclose(status);
    return kib;
}

/* Until its mover is at work, MADV_PAGEOUT is the kernel's: where there is swap, pages go there,
 * and are not Terrace's to bring back. */
static void await_terrace(void) {
    mapping(64 * MIB);
    char *area = mapping(2 * MIB);
    long before;
    do {
        before = swapped_kib();
        fill(area, 2 * MIB, 99);
        evict(area, 2 * MIB);
    } while (evicts() && swapped_kib() > before);
    munmap(area, 2 * MIB);
}

/* Of any kind: the kernel counts one that a handler serves as minor or as major, by where it came from. */
static long faults_so_far(void) {
    struct rusage usage;
    MUST(getrusage(RUSAGE_THREAD, &usage) == 0);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Touches a range that is out. Where nothing else is at work, it comes back without faults (but for
 * a few of Terrace's own memory). */
static void touch_without_faults(char *memory, size_t bytes) {
    /* What a first call needs is there. */
    TERRACE_TOUCH(memory, PAGE);
    size_t out = absent_pages(memory, bytes);
    MUST(!quiet() || out * 10 >= bytes / PAGE * 9);
    long before = faults_so_far();
    TERRACE_TOUCH(memory, bytes);
    long faults = faults_so_far() - before;
    if (quiet()) {
        MUST(absent_pages(memory, bytes) == 0);
        dprintf(2, "%ld faults for %zu pages\n", faults, out);
        MUST((size_t)faults < out / 20);
    }
}

static void without_faults(void) {
    char *memory = cold_mapping(9 * MIB, 1);
    touch_without_faults(memory, 9 * MIB);
    check(memory, 9 * MIB, 1);
    char *heap = cold_heap(3 * MIB, 2);
    touch_without_faults(heap, 3 * MIB);
    check(heap, 3 * MIB, 2);
    for (int round = 0; round < 20; round++) {
        evict(memory, 9 * MIB);
        for (size_t page = 0; page < 9 * MIB / PAGE; page += 7) {
            TERRACE_TOUCH(memory + page * PAGE + 4000, 200);
            check_pages(memory, page, page + 1, 1);
        }
    }
    check(memory, 9 * MIB, 1);
}

static void parts_of_pages(void) {
    char *memory = cold_mapping(4 * MIB, 3);
    size_t pages = 4 * MIB / PAGE, out = absent_pages(memory, 4 * MIB);
    TERRACE_TOUCH(memory + 100 * PAGE + 4095, 0);
    MUST(!quiet() || absent_pages(memory, 4 * MIB) == out);
    TERRACE_TOUCH(memory + 100 * PAGE + 4095, 1);
    TERRACE_TOUCH(memory + 200 * PAGE + 4095, 2);
    if (quiet())
        MUST(absent_pages(memory + 100 * PAGE, PAGE) == 0 && absent_pages(memory + 200 * PAGE, 2 * PAGE) == 0);
    MUST(!quiet() || absent_pages(memory, 4 * MIB) >= out - 3);
    check(memory, pages * PAGE, 3);
}

static void any_pointer(void) {
    char *memory = cold_mapping(2 * MIB, 4);
    /* volatile: the compiler knows what has been freed. */
    void *volatile freed = malloc(100), *volatile large = malloc(5 * MIB), *unmapped = mapping(2 * MIB);
    memset(large, 3, 5 * MIB);
    free(freed), free(large), munmap(unmapped, 2 * MIB);
    char *forbidden = cold_mapping(2 * MIB, 5), on_stack[100];
    MUST(mprotect(forbidden, 2 * MIB, PROT_NONE) == 0);
    char *file = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, open("/proc/self/exe", O_RDONLY), 0);
    MUST(file != MAP_FAILED);
    void *pointers[] = {NULL, (void *)1, (void *)-1, (void *)-4096, (void *)(1UL << 47), (void *)((1UL << 47) - 1), freed, large, unmapped,
                        forbidden, on_stack, (void *)any_pointer, stdout, file, memory + 1, "text"};
    size_t lens[] = {0, 1, 4095, 4096, 4097, 2 * MIB + 1, 1UL << 40, (size_t)-1, (size_t)-4096};
    for (size_t p = 0; p < COUNT(pointers); p++)
        for (size_t l = 0; l < COUNT(lens); l++) {
            errno = 1000 + (int)l;
            TERRACE_TOUCH(pointers[p], lens[l]);
            TERRACE_PREFETCH(pointers[p], lens[l]);
            MUST(errno == 1000 + (int)l);
        }
    MUST(mprotect(forbidden, 2 * MIB, PROT_READ | PROT_WRITE) == 0);
    check(forbidden, 2 * MIB, 5);
    check(memory, 2 * MIB, 4);
}

static void prefetched(void) {
    char *memory = cold_mapping(6 * MIB, 6);
    double deadline = seconds_now() + 20;
    TERRACE_PREFETCH(memory + PAGE, 6 * MIB - PAGE);
    while (quiet() && absent_pages(memory + PAGE, 6 * MIB - PAGE) > 0) {
        MUST(seconds_now() < deadline);
        usleep(1000);
        /* What is asked for too often is dropped, no more. */
        TERRACE_PREFETCH(memory + PAGE, 6 * MIB - PAGE);
    }
    check(memory, 6 * MIB, 6);
    for (int round = 0; round < 200; round++)
        TERRACE_PREFETCH(memory + round * PAGE, MIB);
    check(memory, 6 * MIB, 6);
}

static bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

/* The program closes descriptors that it did not open, and has others with their numbers. */
static void closed_descriptors(void) {
    char *memory = cold_mapping(4 * MIB, 7);
    for (int round = 0; round < 40; round++) {
        evict(memory, 4 * MIB);
        TERRACE_TOUCH(memory, MIB);
        for (int fd = COPIES; fd < COPIES + 16; fd++)
            MUST(!is_open(fd) || (fcntl(fd, F_GETFD) & FD_CLOEXEC));
        syscall(SYS_close_range, 3, ~0u, 0);
        int other = open(round % 2 ? "/dev/null" : "/proc/self/maps", O_RDONLY);
        MUST(other >= 0);
        if (round % 3)
            for (int fd = COPIES; fd < COPIES + 16; fd++)
                MUST(dup2(other, fd) == fd);
        TERRACE_TOUCH(memory + MIB, 3 * MIB);
        check(memory, 4 * MIB, 7);
        /* What is the program's stays. */
        MUST(is_open(other));
        for (int fd = COPIES; round % 3 && fd < COPIES + 16; fd++)
            MUST(is_open(fd) && close(fd) == 0);
    }
}

static void no_descriptor_is_free(void) {
    struct rlimit none = {3, 3};
    char *memory = cold_mapping(2 * MIB, 8);
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    while (dup(0) >= 0)
        ;
    TERRACE_TOUCH(memory, 2 * MIB);
    MUST(!quiet() || absent_pages(memory, 2 * MIB) == 0);
    check(memory, 2 * MIB, 8);
}

static void forked_children(void) {
    char *memory = cold_mapping(4 * MIB, 9);
    TERRACE_TOUCH(memory, PAGE * 4);
    for (int round = 0; round < 10; round++) {
        evict(memory, 4 * MIB);
        pid_t child = fork();
        if (child == 0) {
            for (int fd = COPIES; fd < COPIES + 16; fd++)
                MUST(!is_open(fd));
            TERRACE_TOUCH(memory + round * PAGE, 2 * MIB);
            check(memory, 4 * MIB, 9);
            fill(memory, 4 * MIB, 10);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                TERRACE_TOUCH(memory, 4 * MIB);
                check(memory, 4 * MIB, 10);
                _exit(0);
            }
            wait_for(grandchild);
            TERRACE_TOUCH(memory, 4 * MIB);
            check(memory, 4 * MIB, 10);
            _exit(0);
        }
        TERRACE_TOUCH(memory, 2 * MIB);
        check(memory, 4 * MIB, 9);
        wait_for(child);
        fill(memory, 4 * MIB, 9);
    }
}

#ifdef __x86_64__
/* A child of which neither the C library nor Terrace is told. */
static pid_t fork_behind_every_back(void) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_fork) : "rcx", "r11", "memory");
    return (pid_t)result;
}

/* It has its parent's descriptors, and must not reach its parent's memory by them. */
static void a_child_made_without_the_c_library(void) {
    char *memory = cold_mapping(4 * MIB, 11);
    TERRACE_TOUCH(memory, MIB);
    evict(memory, 4 * MIB);
    size_t out = absent_pages(memory, 4 * MIB);
    pid_t child = fork_behind_every_back();
    if (child == 0) {
        TERRACE_TOUCH(memory, 4 * MIB);
        syscall(SYS_exit_group, 0);
    }
    wait_for(child);
    MUST(!quiet() || absent_pages(memory, 4 * MIB) == out);
    check(memory, 4 * MIB, 11);
}
#endif

/* Its numbers may come to mean another process's memory, where the same addresses are out too. */
static void descriptors_of_another_process(void) {
    char *memory = cold_mapping(4 * MIB, 16);
    TERRACE_TOUCH(memory, MIB);
    evict(memory, 4 * MIB);
    int parent = (int)syscall(SYS_pidfd_open, getpid(), 0);
    MUST(parent >= 0);
    pid_t child = fork();
    if (child == 0) {
        TERRACE_TOUCH(memory, MIB);
        for (int fd = COPIES; fd < COPIES + 16; fd++) {
            int other = is_open(fd) ? (int)syscall(SYS_pidfd_getfd, parent, fd, 0) : -1;
            if (other >= 0)
                MUST(dup2(other, fd) == fd);
        }
        TERRACE_TOUCH(memory, 4 * MIB);
        check(memory, 4 * MIB, 16);
        _exit(0);
    }
    wait_for(child);
    check(memory, 4 * MIB, 16);
}

static char *shared_area;
enum { AREA = 4 << 20 };

static void from_handler(int signal) {
    (void)signal;
    static atomic_uint turn;
    TERRACE_TOUCH(shared_area + turn++ % 64 * 16 * PAGE, 16 * PAGE);
    TERRACE_PREFETCH(shared_area + turn % 64 * 16 * PAGE, 16 * PAGE);
}

static void in_signal_handlers(void) {
    shared_area = cold_mapping(AREA, 12);
    struct sigaction action = {.sa_handler = from_handler, .sa_flags = SA_RESTART | SA_ONSTACK};
    /* On a stack that may be evicted itself. */
    stack_t stack = {.ss_sp = malloc(256 * KIB), .ss_size = 256 * KIB};
    MUST(sigaltstack(&stack, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (double until = seconds_now() + 2; seconds_now() < until;) {
        if (evicts())
            MUST(madvise(shared_area, AREA, MADV_PAGEOUT) == 0);
        void *some = malloc(100 * KIB), *more = malloc(2 * MIB);
        memset(some, 1, 100 * KIB), memset(more, 1, 2 * MIB);
        TERRACE_TOUCH(shared_area, AREA / 2);
        check(shared_area, AREA, 12);
        free(some), free(more);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    check(shared_area, AREA, 12);
}

/* With this much of the stack in use, and what lies below evicted: at some depth the border is
 * anywhere within what the call uses. */
__attribute__((noinline)) static void touch_at_depth(char *stack, size_t depth) {
    volatile char *used = __builtin_alloca(depth);
    used[0] = 1;
    if (evicts())
        MUST(madvise(stack, 512 * KIB, MADV_PAGEOUT) == 0);
    TERRACE_TOUCH(stack, 16 * PAGE);
    used[depth - 1] = 1;
}

static void *touches_on_its_stack(void *stack) {
    /* Below what is never evicted of it; each time where nothing came back just now, for that would stay. */
    for (size_t depth = 80 * KIB; depth < 440 * KIB; depth += 2 * PAGE + 96)
        touch_at_depth(stack, depth);
    for (int round = 0; round < 300; round++) {
        if (evicts())
            MUST(madvise(stack, 512 * KIB, MADV_PAGEOUT) == 0 && madvise(shared_area, AREA, MADV_PAGEOUT) == 0);
        TERRACE_TOUCH(shared_area, AREA);
        TERRACE_TOUCH(stack, 512 * KIB);
        TERRACE_PREFETCH(shared_area, AREA);
    }
    check(shared_area, AREA, 13);
    return NULL;
}

static void on_managed_stacks(void) {
    shared_area = cold_mapping(AREA, 13);
    pthread_t threads[3];
    for (int t = 0; t < 3; t++) {
        void *stack = NULL;
        pthread_attr_t attributes;
        MUST(posix_memalign(&stack, 2 * MIB, 512 * KIB) == 0 && pthread_attr_init(&attributes) == 0);
        memset(stack, 1, 512 * KIB);
        MUST(pthread_attr_setstack(&attributes, stack, 512 * KIB) == 0);
        MUST(pthread_create(&threads[t], &attributes, touches_on_its_stack, stack) == 0);
    }
    for (int t = 0; t < 3; t++)
        MUST(pthread_join(threads[t], NULL) == 0);
}

static void after_a_privilege_drop(void) {
    char *memory = cold_mapping(4 * MIB, 14);
    if (setresuid(65534, 65534, 65534) != 0)
        cannot_check("not root");
    touch_without_faults(memory, 4 * MIB);
    check(memory, 4 * MIB, 14);
}

/* Threads that touch, write, give up, page out and prefetch the same pages, while children come and
 * go and all descriptors are closed. */
enum { SLOTS = 2048, TOUCHERS = 3 };
static atomic_bool stop;
static _Atomic uint32_t numbers[TOUCHERS][SLOTS]; /* what each slot of a thread holds; 0 for zeros */
static char *slots_of[TOUCHERS];

static uint64_t slot_word(unsigned who, size_t slot, uint32_t number, unsigned k) {
    return number ? mix((uint64_t)who << 56 ^ slot << 32 ^ number) + k / 16 : 0;
}

static void check_slot(unsigned who, size_t slot, uint32_t number) {
    uint64_t *words = (uint64_t *)(slots_of[who] + slot * PAGE);
    for (unsigned k = 0; k < PAGE / 8; k++)
        MUST(words[k] == slot_word(who, slot, number, k));
}

static void *toucher(void *argument) {
    unsigned who = (unsigned)(uintptr_t)argument;
    uint64_t state = who + 1;
    while (!stop) {
        uint64_t r = state = mix(state * 31 + 7);
        size_t slot = r % SLOTS, count = 1 + (r >> 16) % 40;
        if (count > SLOTS - slot)
            count = SLOTS - slot;
        char *at = slots_of[who] + slot * PAGE;
        /* Another thread's too: that has no effect on what it sees. */
        TERRACE_TOUCH(slots_of[(r >> 24) % TOUCHERS] + slot * PAGE, count * PAGE);
        switch ((r >> 32) % 6) {
        case 0:
            MUST(madvise(at, count * PAGE, MADV_DONTNEED) == 0);
            for (size_t i = slot; i < slot + count; i++)
                numbers[who][i] = 0;
            break;
        case 1: madvise(at, count * PAGE, MADV_PAGEOUT); break;
        case 2: TERRACE_PREFETCH(at, count * PAGE); break;
        default:
            for (size_t i = slot; i < slot + count; i++) {
                check_slot(who, i, numbers[who][i]);
                uint32_t number = ++numbers[who][i];
                for (unsigned k = 0; k < PAGE / 8; k++)
                    ((uint64_t *)(slots_of[who] + i * PAGE))[k] = slot_word(who, i, number, k);
            }
        }
        TERRACE_TOUCH(at, count * PAGE);
        for (size_t i = slot; i < slot + count; i++)
            check_slot(who, i, numbers[who][i]);
    }
    return NULL;
}

static void *closer(void *argument) {
    (void)argument;
    for (unsigned round = 0; !stop; round++) {
        /* Often enough that fresh ones are fetched in between. */
        usleep(20000);
        syscall(SYS_close_range, 3, ~0u, 0);
        int other = open("/dev/zero", O_RDWR);
        for (int fd = COPIES; round % 4 == 0 && other >= 0 && fd < COPIES + 8; fd++)
            dup2(other, fd);
    }
    return NULL;
}

static void everything_at_once(void) {
    char *frozen = cold_mapping(2 * MIB, 15);
    pthread_t threads[TOUCHERS], closing;
    for (unsigned who = 0; who < TOUCHERS; who++)
        slots_of[who] = mapping(SLOTS * PAGE);
    for (unsigned who = 0; who < TOUCHERS; who++)
        MUST(pthread_create(&threads[who], NULL, toucher, (void *)(uintptr_t)who) == 0);
    MUST(pthread_create(&closing, NULL, closer, NULL) == 0);
    for (double until = seconds_now() + 4; seconds_now() < until; usleep(30000)) {
        pid_t child = fork();
        if (child == 0) {
            alarm(300);
            for (unsigned who = 0; who < TOUCHERS; who++)
                TERRACE_TOUCH(slots_of[who], SLOTS * PAGE);
            TERRACE_TOUCH(frozen, 2 * MIB);
            check(frozen, 2 * MIB, 15);
            _exit(0);
        }
        wait_for(child);
        TERRACE_TOUCH(frozen, 2 * MIB);
        check(frozen, 2 * MIB, 15);
        madvise(frozen, 2 * MIB, MADV_PAGEOUT);
    }
    stop = true;
    for (unsigned who = 0; who < TOUCHERS; who++) {
        MUST(pthread_join(threads[who], NULL) == 0);
        for (size_t slot = 0; slot < SLOTS; slot++)
            check_slot(who, slot, numbers[who][slot]);
    }
    MUST(pthread_join(closing, NULL) == 0);
}

/* A child's copy is taken while no page is halfway back. */
enum { FORKED = 24 << 20 };

static void *touches_all(void *area) {
    TERRACE_TOUCH(area, FORKED);
    return NULL;
}

static void forks_while_a_thread_touches(void) {
    char *area = cold_mapping(FORKED, 20);
    for (useconds_t round = 0; round < 12; round++) {
        pthread_t thread;
        evict(area, FORKED);
        MUST(pthread_create(&thread, NULL, touches_all, area) == 0);
        usleep(round * 500);
        pid_t child = fork();
        if (child == 0) {
            alarm(300);
            check(area, FORKED, 20);
            _exit(0);
        }
        MUST(pthread_join(thread, NULL) == 0);
        check(area, FORKED, 20);
        wait_for(child);
        /* What a child shared cannot leave until it is written to. */
        fill(area, FORKED, 20);
    }
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(without_faults),        CASE(parts_of_pages),     CASE(any_pointer),        CASE(prefetched),
        CASE(closed_descriptors),    CASE(no_descriptor_is_free), CASE(forked_children), CASE(in_signal_handlers),
        CASE(forks_while_a_thread_touches), CASE(on_managed_stacks),     CASE(descriptors_of_another_process), CASE(after_a_privilege_drop), CASE(everything_at_once),
#ifdef __x86_64__
        CASE(a_child_made_without_the_c_library),
#endif
    };
    await_terrace();
    return run_case(count, words, cases, COUNT(cases));
}
