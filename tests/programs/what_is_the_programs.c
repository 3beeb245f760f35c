/*
 * Terrace keeps out of what is the program's: holes in its address space, its limits, files that
 * got a number, its signal handlers, the C library's locks.
 */
#include "cold.h"
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <dlfcn.h>
#include <malloc.h>

/* Mappings that reach into a range, each told of. */
static size_t mappings_within(const char *start, size_t bytes) {
    static char text[1 << 20];
    size_t length = 0, found = 0;
    int maps = open("/proc/self/maps", O_RDONLY);
    MUST(maps >= 0);
    for (ssize_t got; (got = read(maps, text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    close(maps);
    text[length] = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from < (uintptr_t)start + bytes && to > (uintptr_t)start) {
            dprintf(2, "in the hole at %p: %s\n", start, line);
            found++;
        }
    }
    return found;
}

static pthread_barrier_t go, gone;
/* A new thread's first allocations: they make arenas, and what the allocator knows of them. */
static void *allocate_first(void *unused) {
    static __thread char *blocks[2000];
    pthread_barrier_wait(&go);
    for (size_t b = 0; b < COUNT(blocks); b++)
        memset(blocks[b] = malloc(1000), 1, 1000);
    for (size_t b = 0; b < COUNT(blocks); b++)
        free(blocks[b]);
    pthread_barrier_wait(&gone);
    return NULL;
}

/* Alone nothing comes into the hole: the heap grows by brk, and there is one arena. */
static void holes_stay_free(void) {
    enum { THREADS = 6 };
    const size_t area_bytes = 96 * MIB, at = 32 * MIB, hole = 32 * MIB;
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    for (uint64_t round = 1; round <= 3; round++) {
        pthread_t threads[THREADS];
        pthread_barrier_init(&go, NULL, THREADS + 1);
        pthread_barrier_init(&gone, NULL, THREADS + 1);
        for (int t = 0; t < THREADS; t++)
            MUST(pthread_create(&threads[t], NULL, allocate_first, NULL) == 0);
        char *area = (char *)mapping(area_bytes);
        fill(area, area_bytes, round);
        MUST(munmap(area + at, hole) == 0);
        pthread_barrier_wait(&go);
        pthread_barrier_wait(&gone);
        char *heap = cold_heap(16 * MIB, round + 10);
        evict(area, at);
        wait_for(fork() ?: (_exit(0), 0));
        /* The mover has looked at all of the memory by then. */
        usleep(1500000);
        size_t found = mappings_within(area + at, hole);
        char *again = mmap(area + at, hole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        MUST(again == area + at);
        check_zeros(again, hole);
        fill(again, hole, round + 20);
        MUST(found == 0);
        for (int t = 0; t < THREADS; t++)
            MUST(pthread_join(threads[t], NULL) == 0);
        check(area, at, round);
        check_pages(area, (at + hole) / PAGE, area_bytes / PAGE, round);
        check(again, hole, round + 20);
        check(heap, 16 * MIB, round + 10);
        free(heap);
    }
}

/* A number of this process's status; by calls that a signal handler may make. */
static size_t status_of(const char *name) {
    static char text[8192];
    int status = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(status, text, sizeof text - 1);
    MUST(status >= 0 && length > 0);
    close(status);
    text[length] = 0;
    char *line = strstr(text, name);
    MUST(line);
    return strtoul(line + strlen(name), NULL, 10);
}

/* Alone it is some 70 MiB. */
static void little_is_reserved(void) {
    MUST(status_of("VmSize:") < (evicts() ? 1536 : 256) * 1024);
}

static void limit_locks(size_t bytes) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    MUST(syscall(SYS_capget, &header, sets) == 0);
    sets[0].effective &= ~(1u << CAP_IPC_LOCK);
    MUST(syscall(SYS_capset, &header, sets) == 0);
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (limit.rlim_max < bytes)
        cannot_check("RLIMIT_MEMLOCK is too low");
    limit.rlim_cur = bytes;
    MUST(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

/* A limit as plain users have it. The program has some 3 MiB of addresses. */
static void locked_within_a_limit(void) {
    const size_t limit = 8 * MIB, bytes = 512 * KIB, little = 128 * KIB, block_bytes = 64 * KIB;
    char *area = (char *)mapping(bytes), *heap = NULL;
    MUST(posix_memalign((void **)&heap, PAGE, little) == 0);
    fill(area, bytes, 1);
    fill(heap, little, 2);
    limit_locks(limit);
    MUST(mlockall(MCL_CURRENT) == 0);
    MUST(absent_pages(area, bytes) == 0 && absent_pages(heap, little) == 0);
    size_t locked = status_of("VmLck:") * KIB;
    dprintf(2, "%zu KiB are locked\n", locked / KIB);
    MUST(locked > 3 * MIB && locked <= limit);
    check(area, bytes, 1);
    check(heap, little, 2);
    MUST(munlockall() == 0);
    MUST(status_of("VmLck:") == 0);
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    char *later = (char *)mapping(little);
    MUST(absent_pages(later, little) == 0);
    char *block = NULL;
    MUST(posix_memalign((void **)&block, PAGE, block_bytes) == 0);
    MUST(absent_pages(block, block_bytes) == 0);
    fill(block, block_bytes, 3);
    MUST(mmap(NULL, limit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EAGAIN);
    MUST(malloc(limit) == NULL);
    MUST(status_of("VmLck:") * KIB <= limit);
    pid_t child = fork();
    if (child == 0) {
        check(area, bytes, 1);
        check(block, block_bytes, 3);
        char *more = malloc(64 * MIB);
        MUST(more);
        fill(more, 64 * MIB, 4);
        MUST(status_of("VmLck:") == 0);
        _exit(0);
    }
    wait_for(child);
    check(heap, little, 2);
    check(block, block_bytes, 3);
    MUST(munlockall() == 0);
    free(block);

    /* What the program has is too much now. */
    char *wide = (char *)mapping(limit);
    MUST(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM);
    MUST(status_of("VmLck:") == 0);
    MUST(munmap(wide, limit) == 0);
    MUST(mlockall(MCL_CURRENT | MCL_ONFAULT) == 0);
    MUST(munlockall() == 0);
    check(area, bytes, 1);
}

/* Has Terrace complain, if it is there: of a block that was never allocated. */
static void misuse(void) {
    static _Alignas(16) char nothing[64];
    void (*check_misuse)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "terrace_check");
    if (check_misuse) {
        check_misuse(1);
        void *volatile block = nothing;
        free(block);
    }
}

static void complaints_are_said(void) { misuse(); }

static void a_file_that_has_number_2(void) {
    char path[] = "/tmp/terrace-number-2-XXXXXX";
    int file = mkstemp(path), said = dup(2);
    MUST(file > 2 && unlink(path) == 0 && said > 2);
    MUST(dup2(file, 2) == 2 && write(2, "data", 4) == 4);
    misuse();
    struct stat found;
    MUST(fstat(file, &found) == 0);
    MUST(dup2(said, 2) == 2);
    MUST(found.st_size == 4);
    close(2);
    misuse();
    MUST(fstat(file, &found) == 0 && found.st_size == 4);
}

static void starts_with_2_closed(void) {
    if (!getenv("WITHOUT_2")) {
        setenv("WITHOUT_2", "1", 1);
        int said = dup(2);
        close(2);
        char *words[] = {"/proc/self/exe", "starts_with_2_closed", NULL};
        char path[300] = {0};
        MUST(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
        execv(path, words);
        MUST(dup2(said, 2) == 2 && false);
    }
    char path[] = "/tmp/terrace-number-2-XXXXXX";
    int file = mkstemp(path);
    MUST(unlink(path) == 0);
    if (file != 2)
        MUST(dup2(file, 2) == 2);
    misuse();
    struct stat found;
    if (fstat(2, &found) != 0 || found.st_size != 0)
        _exit(1);
}

static void map_and_unmap(size_t times) {
    for (size_t n = 0; n < times; n++) {
        void *memory = mapping(2 * MIB);
        MUST(munmap(memory, 2 * MIB) == 0);
    }
}

/*
 * What was freed goes back to the system in malloc, never in mmap, which a handler may call while
 * its own thread is inside malloc.
 */
static void mappings_leave_the_heap_alone(void) {
    enum { BLOCKS = 2000 };
    const size_t block = 20 * KIB;
    static char *blocks[BLOCKS];
    if (!evicts())
        cannot_check("only Terrace gives freed memory back like this");
    for (int b = 0; b < BLOCKS; b++) {
        blocks[b] = malloc(block);
        memset(blocks[b], 1, block);
    }
    char *start = blocks[0], *end = blocks[0];
    for (int b = 0; b < BLOCKS; b++) {
        start = blocks[b] < start ? blocks[b] : start;
        end = blocks[b] > end ? blocks[b] : end;
    }
    start = (char *)((uintptr_t)start / PAGE * PAGE);
    size_t bytes = ((size_t)(end - start) + block) / PAGE * PAGE;
    for (int b = 1; b < BLOCKS; b++)
        free(blocks[b]);
    size_t absent = absent_pages(start, bytes);
    for (int n = 0; n < 40; n++) {
        map_and_unmap(100);
        usleep(100000);
    }
    MUST(absent_pages(start, bytes) == absent);
    for (int n = 0; n < 200 && absent_pages(start, bytes) < absent + BLOCKS; n++) {
        free(malloc(40000));
        usleep(100000);
    }
    MUST(absent_pages(start, bytes) >= absent + BLOCKS);
}

static atomic_int handled;
static void map_in_handler(int signal) {
    map_and_unmap(1);
    /* Enough to start what manages memory: not here. */
    static char *much;
    if (!much) {
        int before = (int)status_of("Threads:");
        much = (char *)mapping(256 * MIB);
        MUST((int)status_of("Threads:") == before);
    }
    handled++;
}

/* What makes Terrace begin is mapped in a handler: its threads are made later, outside of it. */
static void nothing_starts_in_a_handler(void) {
    if (!getenv("IN_A_HANDLER")) {
        setenv("IN_A_HANDLER", "1", 1);
        char path[300] = {0};
        char *words[] = {path, "nothing_starts_in_a_handler", NULL};
        MUST(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
        execv(path, words);
        MUST(false);
    }
    MUST(signal(SIGUSR1, map_in_handler) != SIG_ERR);
    raise(SIGUSR1);
    MUST(handled == 1);
    char *more = cold_mapping(8 * MIB, 5);
    check(more, 8 * MIB, 5);
}

static ssize_t write_some(void *cookie, const char *bytes, size_t length) {
    for (size_t n = 0; n < 16; n++) {
        char *volatile copy = malloc(length + 100000 * n);
        copy[0] = bytes[0];
        free(copy);
    }
    return (ssize_t)length;
}

static atomic_bool over;
static void *flush(void *unused) {
    FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_some});
    while (!over) {
        fputs("something", stream);
        fflush(NULL);
    }
    fclose(stream);
    return unused;
}

static void *print_in_child(void *unused) {
    FILE *null = fopen("/dev/null", "w");
    MUST(null && fputs("from a thread of the child", null) >= 0 && fflush(NULL) == 0 && fclose(null) == 0);
    return unused;
}

static void *clone_stack;
static int cloned(void *unused) { return 0; }

/* Forks of all kinds while another thread holds the list of streams and allocates under it. */
static void forks_beside_flushes(void) {
    pthread_t thread;
    clone_stack = mapping(MIB);
    MUST(pthread_create(&thread, NULL, flush, NULL) == 0);
    for (int n = 0; n < 300; n++) {
        pid_t child = n % 3 == 2 ? clone(cloned, (char *)clone_stack + MIB, SIGCHLD, NULL) : n % 3 == 1 ? _Fork() : fork();
        if (child == 0) {
            /* The list is locked by no thread there: any thread may use it. */
            if (n % 30 == 0) {
                pthread_t printing;
                MUST(pthread_create(&printing, NULL, print_in_child, NULL) == 0 && pthread_join(printing, NULL) == 0);
                print_in_child(NULL);
            }
            _exit(0);
        }
        wait_for(child);
    }
    over = true;
    MUST(pthread_join(thread, NULL) == 0);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(holes_stay_free),      CASE(little_is_reserved),            CASE(complaints_are_said),   CASE(a_file_that_has_number_2),
        CASE(starts_with_2_closed), CASE(mappings_leave_the_heap_alone), CASE(forks_beside_flushes),
    };
    /* With nothing but what they have themselves. */
    static const struct a_case small[] = {CASE(nothing_starts_in_a_handler), CASE(locked_within_a_limit)};
    for (size_t c = 0; c < COUNT(small); c++)
        if (count > 1 && strcmp(words[1], small[c].name) == 0) {
            small[c].run();
            return 0;
        }
    return run_case(count, words, cases, COUNT(cases));
}
