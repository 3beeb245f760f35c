/* Tiers in files: what becomes of the files, and of data when they fail. Usage: see cold.h. */
#include "cold.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { BYTES = 8 << 20 };


/* The directory in TERRACE_TIERS, which ends with it. */
static const char *directory(void) {
    const char *tiers = getenv("TERRACE_TIERS"), *at = tiers ? strstr(tiers, "@file:") : NULL;
    MUST(at);
    return at + strlen("@file:");
}

/* Bytes on disk of all files without a name that Terrace's process beside this one holds there. */
static size_t file_bytes(void) {
    ino_t seen[64];
    size_t count = 0, bytes = 0, prefix = strlen(directory());
    pid_t companion = companion_of_this();
    char all[64];
    snprintf(all, sizeof all, "/proc/%d/task", companion);
    DIR *tasks = opendir(all);
    MUST(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[PATH_MAX], file[PATH_MAX], target[PATH_MAX];
        snprintf(path, sizeof path, "/proc/%d/task/%s/fd", companion, task->d_name);
        DIR *fds = task->d_name[0] == '.' ? NULL : opendir(path);
        for (struct dirent *fd; fds && (fd = readdir(fds));) {
            MUST((size_t)snprintf(file, sizeof file, "/proc/%d/task/%s/fd/%s", companion, task->d_name, fd->d_name) < sizeof file);
            ssize_t len = readlink(file, target, sizeof target - 1);
            struct stat stat_;
            if (len < (ssize_t)prefix || strncmp(target, directory(), prefix) != 0 || stat(file, &stat_) != 0)
                continue;
            target[len] = 0;
            bool known = !S_ISREG(stat_.st_mode) || !strstr(target, "(deleted)");
            for (size_t n = 0; n < count; n++)
                known |= seen[n] == stat_.st_ino;
            if (known)
                continue;
            MUST(count < COUNT(seen));
            seen[count++] = stat_.st_ino;
            bytes += (size_t)stat_.st_blocks * 512;
        }
        if (fds)
            closedir(fds);
    }
    closedir(tasks);
    return bytes;
}

/* Within 20 s the files are down to this many bytes. */
static void shrinks_to(size_t bytes) {
    double deadline = seconds_now() + 20;
    while (evicts() && file_bytes() > bytes) {
        if (seconds_now() > deadline) {
            dprintf(2, "FAILED in %d: the files still have %zu bytes, not %zu\n", getpid(), file_bytes(), bytes);
            _exit(1);
        }
        usleep(10000);
    }
}

/* Pages that compress to three quarters, different in all of them. */
static uint64_t noise_of(uint64_t seed, size_t w) { return w % 512 < 384 ? mix(seed << 40 ^ (w + 1)) : seed; }

static void fill_with_noise(char *memory, size_t bytes, uint64_t seed) {
    for (size_t w = 0; w < bytes / 8; w++)
        ((uint64_t *)memory)[w] = noise_of(seed, w);
}

static void check_noise(const char *memory, size_t bytes, uint64_t seed) {
    for (size_t w = 0; w < bytes / 8; w++)
        if (((const uint64_t *)memory)[w] != noise_of(seed, w)) {
            dprintf(2, "FAILED in %d: word %zu of page %zu of noise %lu is wrong\n", getpid(), w % 512, w / 512, (unsigned long)seed);
            _exit(1);
        }
}

/* Has as much evicted as can be, and that is something: at first Terrace's threads may not run yet. */
static void try_to_evict(void *memory, size_t bytes) {
    for (double deadline = seconds_now() + 10; evicts() && absent_pages(memory, bytes) == 0 && seconds_now() < deadline; usleep(1000))
        MUST(madvise(memory, bytes, MADV_PAGEOUT) == 0);
    for (int n = 0; n < 5 && evicts(); n++)
        MUST(madvise(memory, bytes, MADV_PAGEOUT) == 0);
}

/* Says that pages are out and waits for SIGUSR1: the test looks at the file meanwhile, or damages it. */
static void holds(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    char *noise = mapping(BYTES), *map = cold_mapping(BYTES, 1);
    fill_with_noise(noise, BYTES, 2);
    evict(noise, BYTES);
    dprintf(1, "holds\n");
    int got;
    MUST(sigwait(&set, &got) == 0);
    check(map, BYTES, 1);
    check_noise(noise, BYTES, 2);
    dprintf(1, "checked\n");
}

static void space_comes_back(void) {
    char *noise = mapping(BYTES), *map = mapping(BYTES);
    for (int round = 0; round < 3; round++) {
        fill_with_noise(noise, BYTES, 3);
        fill(map, BYTES, 4);
        evict(noise, BYTES);
        evict(map, BYTES);
        MUST(!evicts() || file_bytes() > BYTES / 2);
        if (round == 1)
            MUST(madvise(noise, BYTES, MADV_DONTNEED) == 0);
        else
            check_noise(noise, BYTES, 3);
        check(map, BYTES, 4);
        shrinks_to(2 * MIB);
    }
}

/* A child that was kept from all that its parent has in a file has files of its own, whatever
 * number the parent's had. */
static void a_child_has_nothing_in_its_parents_file(void) {
    char *map = cold_mapping(BYTES, 5);
    MUST(madvise(map, BYTES, MADV_DONTFORK) == 0);
    for (int descriptors = 0; descriptors < 14; descriptors++) {
        evict(map, BYTES);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            char *own = mapping(BYTES / 8);
            for (uint64_t round = 0; round < 2; round++) {
                fill(own, BYTES / 8, round);
                evict(own, BYTES / 8);
                /* What is needed no more is closed now and then. */
                usleep(120000);
                check(own, BYTES / 8, round);
            }
            _exit(0);
        }
        wait_for(child);
        MUST(open("/dev/null", O_RDONLY) >= 0);
    }
    check(map, BYTES, 5);
}

/* A child is forked while pages are out, and closes every descriptor. The parent gives all of them
 * up and evicts as many others. What it frees must not be used for those before the child is done,
 * which looks last. Nor may it be kept after that. */
static void a_child_reads_what_its_parent_gave_up(void) {
    char *map = cold_mapping(BYTES, 5), *noise = mapping(BYTES);
    fill_with_noise(noise, BYTES, 6);
    evict(noise, BYTES);
    volatile int *turn = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST((void *)turn != MAP_FAILED);
    for (int generations = 1; generations <= 2; generations++) {
        *turn = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(100);
            syscall(SYS_close_range, 3, ~0u, 0);
            if (generations == 2 && fork() != 0)
                /* Its own child is the one that lives. */
                _exit(0);
            if (generations == 2)
                setsid();
            while (*turn == 0)
                usleep(1000);
            check(map, BYTES, 5);
            check_noise(noise, BYTES, 6);
            /* And it has memory of its own. */
            char *own = cold_mapping(BYTES / 4, 7);
            check(own, BYTES / 4, 7);
            *turn = 2;
            _exit(0);
        }
        if (generations == 2)
            wait_for(child);
        check(map, BYTES, 5);
        MUST(madvise(noise, BYTES, MADV_DONTNEED) == 0);
        usleep(300000);
        char *others = mapping(2 * BYTES);
        for (int n = 0; n < 2; n++) {
            fill_with_noise(others, 2 * BYTES, 20 + n);
            try_to_evict(others, 2 * BYTES);
        }
        *turn = 1;
        if (generations == 1)
            wait_for(child);
        double deadline = seconds_now() + 60;
        while (*turn != 2) {
            MUST(seconds_now() < deadline);
            usleep(1000);
        }
        check_noise(others, 2 * BYTES, 21);
        munmap(others, 2 * BYTES);
        shrinks_to(2 * MIB);
        fill_with_noise(noise, BYTES, 6);
        evict(noise, BYTES);
        evict(map, BYTES);
    }
    check(map, BYTES, 5);
}

/* A child that executes another program needs its parent's pages no more, however long that runs. */
static void a_child_executes_another_program(void) {
    char *noise = mapping(BYTES);
    fill_with_noise(noise, BYTES, 8);
    evict(noise, BYTES);
    int fds[2];
    MUST(pipe(fds) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(fds[1]);
        MUST(dup2(fds[0], 0) == 0);
        execl("/bin/cat", "cat", NULL);
        _exit(1);
    }
    close(fds[0]);
    check_noise(noise, BYTES, 8);
    shrinks_to(2 * MIB);
    MUST(waitpid(child, NULL, WNOHANG) == 0);
    close(fds[1]);
    wait_for(child);
}

/* There is less space than what is evicted: the rest stays. When there is space again, it is used. */
static void no_space(void) {
    size_t bytes = 4 * BYTES;
    char *noise = mapping(bytes);
    fill_with_noise(noise, bytes, 9);
    try_to_evict(noise, bytes);
    size_t absent = absent_pages(noise, bytes);
    MUST(!evicts() || (absent > 0 && absent < bytes / PAGE));
    check_noise(noise, bytes, 9);
    fill_with_noise(noise, bytes, 10);
    try_to_evict(noise, bytes);
    pid_t child = fork();
    if (child == 0) {
        check_noise(noise, bytes, 10);
        _exit(0);
    }
    wait_for(child);
    check_noise(noise, bytes, 10);
    MUST(munmap(noise, bytes) == 0);
    char *map = cold_mapping(2 * MIB, 11);
    check(map, 2 * MIB, 11);
}

/* Another takes all the space there is (here: in the working directory). What was promised to an
 * extent when it was begun is there for it. */
static void space_taken_by_another(void) {
    enum { REGION = 2 << 20, FIRST = 8, MORE = 64 };
    char *memory = mapping(2 * REGION);
    char *noise = memory + (REGION - (uintptr_t)memory % REGION) % REGION;
    fill_with_noise(noise, (FIRST + MORE) * PAGE, 9);
    evict(noise, FIRST * PAGE);
    static char block[64 * KIB];
    int other = open("other", O_WRONLY | O_CREAT | O_EXCL, 0600);
    MUST(other >= 0);
    for (size_t size = sizeof block; size >= PAGE; size /= 2)
        while (write(other, block, size) == (ssize_t)size)
            ;
    MUST(errno == ENOSPC && (fsync(other) == 0 || errno == ENOSPC));
    evict(noise + FIRST * PAGE, MORE * PAGE);
    check_noise(noise, (FIRST + MORE) * PAGE, 9);
}

/* Writes fail from some point on, with an error (and a signal, SIGXFSZ) other than a full disk's. */
static void writes_fail(void) {
    if (getenv("LIMITED")) {
        no_space();
        return;
    }
    /* Terrace's process beside the program has the limits that the program began with. */
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = 3 * MIB + 3 * PAGE;
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0 && setenv("LIMITED", "1", 1) == 0);
    execl("/proc/self/exe", "file_medium", "writes_fail", NULL);
    MUST(!"the program can be executed again");
}

/* A fork for which the files' descriptors cannot be provided. */
static void a_fork_without_descriptors(void) {
    char *noise = mapping(BYTES), *map = cold_mapping(BYTES, 12);
    fill_with_noise(noise, BYTES, 13);
    evict(noise, BYTES);
    int lowest = dup(0);
    MUST(lowest >= 0 && close(lowest) == 0);
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    /* Two are enough to see that a child may open a userfaultfd, and not for more. */
    struct rlimit two = {(rlim_t)lowest + 2, limit.rlim_max};
    MUST(setrlimit(RLIMIT_NOFILE, &two) == 0);
    pid_t child = fork();
    if (child == 0) {
        check(map, BYTES, 12);
        check_noise(noise, BYTES, 13);
        _exit(0);
    }
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    wait_for(child);
    check_noise(noise, BYTES, 13);
    evict(noise, BYTES);
    child = fork();
    if (child == 0) {
        check_noise(noise, BYTES, 13);
        _exit(0);
    }
    wait_for(child);
    check(map, BYTES, 12);
}

static const struct a_case cases[] = {
    CASE(a_fork_without_descriptors),
    CASE(holds),
    CASE(space_comes_back),
    CASE(a_child_has_nothing_in_its_parents_file),
    CASE(a_child_reads_what_its_parent_gave_up),
    CASE(a_child_executes_another_program),
    CASE(no_space),
    CASE(space_taken_by_another),
    CASE(writes_fail),
};

int main(int count, char **words) {
    return run_case(count, words, cases, COUNT(cases));
}
