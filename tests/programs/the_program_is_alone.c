/*
 * Nothing of Terrace's is in the program's process: no thread, no child, no privilege that it gave
 * up. Whatever happens to the process beside it that moves its pages, no byte is wrong.
 */
#include "cold.h"
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/utsname.h>

enum { BYTES = 32 << 20, PAGES = BYTES / PAGE };
static char *map;

enum { SEED = 77 };

static void make_cold(void) {
    map = cold_mapping(BYTES, SEED);
}

static void check_all(void) { check(map, BYTES, SEED); }

/* Writes some pages of the area as `fill` does. */
static void refill(size_t from, size_t pages) {
    uint64_t *words = (uint64_t *)map;
    for (size_t w = from * 512; w < (from + pages) * 512; w++)
        words[w] = word_of(SEED, w / 512, w % 512);
}

static size_t tasks(pid_t process) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *directory = opendir(path);
    MUST(directory);
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void one_thread_and_no_child(void) {
    make_cold();
    MUST(tasks(getpid()) == 1);
    errno = 0;
    MUST(wait4(-1, NULL, WNOHANG | __WALL, NULL) == -1 && errno == ECHILD);
    check_all();
}

static void in_child(void (*act)(void)) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        alarm(120);
        act();
        check_all();
        _exit(0);
    }
    wait_for(child);
}

static void enter_user_namespace(void) {
    if (unshare(CLONE_NEWUSER) != 0 && errno != EPERM && errno != ENOSPC && errno != EUSERS)
        MUST(!"a process of one thread may enter a user namespace");
}

static void enter_mount_namespace(void) {
    int own = open("/proc/self/ns/mnt", O_RDONLY);
    MUST(own >= 0);
    if (setns(own, CLONE_NEWNS) != 0 && errno != EPERM)
        MUST(!"a process of one thread may enter a mount namespace");
}

static void nothing(void) {}

/* Of the forking process, and of a child that does it first of all. */
static void namespaces_are_open(void) {
    make_cold();
    in_child(enter_mount_namespace);
    in_child(enter_user_namespace);
    enter_mount_namespace();
    enter_user_namespace();
    evict(map, BYTES);
    in_child(nothing);
    check_all();
}

/* What the program gives up, no thread of its process has. */
static void privileges_are_given_up(void) {
    make_cold();
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{0}};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(syscall(SYS_capset, &header, sets) == 0);
    MUST(tasks(getpid()) == 1);
    evict(map, BYTES);
    check_all();
}

/* Nor is what root opened within the reach of another user. */
static void descriptors_are_out_of_reach(void) {
    if (geteuid() != 0)
        cannot_check("only root can become another user");
    make_cold();
    pid_t companion = companion_of_this();
    MUST(!evicts() || companion > 0);
    MUST(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    if (companion > 0) {
        int process = (int)syscall(SYS_pidfd_open, companion, 0);
        for (int fd = 0; fd < 64; fd++)
            MUST(syscall(SYS_pidfd_getfd, process, fd, 0) == -1);
    }
    check_all();
    in_child(nothing);
    check_all();
}

/* A child for which neither a process nor a thread more is allowed, nor a userfaultfd, has its data. */
static void children_where_nothing_more_can_be_made(void) {
    make_cold();
    if (geteuid() == 0)
        MUST(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    pid_t child = -1;
    for (rlim_t tasks_allowed = 1; child < 0 && tasks_allowed < 5000; tasks_allowed++) {
        struct rlimit limit = {tasks_allowed, RLIM_INFINITY};
        MUST(getrlimit(RLIMIT_NPROC, &limit) == 0);
        limit.rlim_cur = tasks_allowed;
        MUST(setrlimit(RLIMIT_NPROC, &limit) == 0);
        /* By an instruction first: refused there, fork() would have Terrace give its own tasks back. */
        pid_t tried = (pid_t)syscall_without_the_c_library(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
        if (tried == 0)
            syscall_without_the_c_library(SYS_exit_group, 0, 0, 0, 0, 0, 0);
        if (tried < 0)
            continue;
        wait_for(tried);
        child = fork();
    }
    MUST(child >= 0);
    if (child == 0) {
        alarm(120);
        check_all();
        _exit(0);
    }
    wait_for(child);
    check_all();
}

/* The process beside the program may move pages and little else. */
static void the_companion_is_confined(void) {
    make_cold();
    pid_t companion = companion_of_this();
    MUST(!evicts() || companion > 0);
    if (companion <= 0)
        return;
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/task", companion);
    DIR *directory = opendir(path);
    MUST(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", companion, entry->d_name);
        FILE *status = fopen(path, "r");
        MUST(status);
        unsigned long long capabilities = 0, filter = 0, no_new_privileges = 0;
        while (fgets(line, sizeof line, status)) {
            sscanf(line, "CapPrm: %llx", &capabilities);
            sscanf(line, "Seccomp: %llu", &filter);
            sscanf(line, "NoNewPrivs: %llu", &no_new_privileges);
        }
        fclose(status);
        MUST(filter == 2 && no_new_privileges == 1);
        MUST((capabilities & ~(1ull << CAP_SYS_NICE | 1ull << CAP_SYS_PTRACE)) == 0);
    }
    closedir(directory);
    check_all();
}

/* Killed, it leaves a program that waits for its pages or has them: never zeros. */
static void nothing_is_wrong_when_the_companion_is_killed(void) {
    make_cold();
    pid_t companion = companion_of_this();
    MUST(!evicts() || companion > 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        /* The child has one of its own. */
        check_all();
        pid_t own = companion_of_this();
        evict(map, BYTES);
        if (own > 0)
            MUST(kill(own, SIGKILL) == 0);
        for (size_t p = 0; p < PAGES; p++)
            MUST(*(volatile uint64_t *)(map + p * PAGE) == word_of(SEED, p, 0));
        _exit(0);
    }
    int status;
    pid_t ended = 0;
    for (int wait = 0; wait < 100 && ended == 0; wait++) {
        ended = waitpid(child, &status, WNOHANG);
        usleep(20000);
    }
    if (ended == 0) {
        MUST(kill(child, SIGKILL) == 0);
        MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    } else {
        MUST(status == 0);
    }
    check_all();
}

/* A process that shares the memory outlives the one that Terrace was started in. */
static int lives_on(void *channel) {
    char byte;
    int *ends = channel;
    close(ends[1]);
    MUST(read(ends[0], &byte, 1) == 0);
    usleep(300000);
    check_all();
    MUST(write(ends[3], "r", 1) == 1);
    _exit(0);
}

static void a_sharer_outlives_the_program(void) {
    static char stack[256 << 10] __attribute__((aligned(16)));
    int ends[4];
    MUST(pipe(ends) == 0 && pipe(ends + 2) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        make_cold();
        MUST(clone(lives_on, stack + sizeof stack, CLONE_VM, ends) > 0);
        _exit(0);
    }
    close(ends[1]);
    close(ends[3]);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    char byte = 0;
    MUST(read(ends[2], &byte, 1) == 1 && byte == 'r');
}

/* A child of vfork outlives its parent, which was killed meanwhile. */
static void a_child_of_vfork_outlives_the_program(void) {
    static int ends[2];
    static volatile pid_t parent;
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        make_cold();
        parent = getpid();
        if (vfork() == 0) {
            kill(parent, SIGKILL);
            usleep(300000);
            for (size_t p = 0; p < PAGES; p++)
                if (*(volatile uint64_t *)(map + p * PAGE) != word_of(SEED, p, 0))
                    _exit(1);
            (void)!write(ends[1], "r", 1);
        }
        _exit(0);
    }
    close(ends[1]);
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    char byte = 0;
    MUST(read(ends[0], &byte, 1) == 1 && byte == 'r');
}

/* A process that shares the memory is killed in the middle of its memory calls: no thread waits for
 * it. */
static atomic_int sharer_goes_on;
static int maps_and_unmaps(void *unused) {
    (void)unused;
    while (atomic_load(&sharer_goes_on)) {
        void *memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(memory != MAP_FAILED && munmap(memory, 4 * MIB) == 0);
    }
    _exit(0);
}

static void sharers_may_be_killed(void) {
    static char stack[256 << 10] __attribute__((aligned(16)));
    make_cold();
    for (int round = 0; round < 40; round++) {
        atomic_store(&sharer_goes_on, 1);
        pid_t sharer = clone(maps_and_unmaps, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
        MUST(sharer > 0);
        usleep(3000 + (unsigned)mix((uint64_t)round) % 3000);
        int status;
        MUST(kill(sharer, SIGKILL) == 0 && waitpid(sharer, &status, 0) == sharer);
        void *memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(memory != MAP_FAILED && munmap(memory, 4 * MIB) == 0);
        in_child(nothing);
    }
    check_all();
}

/* What py-spy and strace do: another process stops all threads of this one and reads its memory through the kernel. */
static void who_traces_reads_evicted_memory(void) {
    make_cold();
    int ready[2];
    MUST(pipe(ready) == 0);
    pid_t traced = fork();
    MUST(traced >= 0);
    if (traced == 0) {
        evict(map, BYTES);
        MUST(write(ready[1], "r", 1) == 1);
        for (;;)
            pause();
    }
    char byte;
    MUST(read(ready[0], &byte, 1) == 1);
    if (ptrace(PTRACE_SEIZE, traced, 0, 0) != 0)
        cannot_check("tracing is not allowed");
    MUST(ptrace(PTRACE_INTERRUPT, traced, 0, 0) == 0);
    int status;
    MUST(waitpid(traced, &status, 0) == traced && WIFSTOPPED(status));
    for (size_t p = 0; p < PAGES; p += 7) {
        uint64_t word = 0;
        struct iovec own = {&word, sizeof word}, other = {map + p * PAGE, sizeof word};
        MUST(process_vm_readv(traced, &own, 1, &other, 1, 0) == sizeof word);
        MUST(word == word_of(SEED, p, 0));
    }
    MUST(ptrace(PTRACE_DETACH, traced, 0, 0) == 0);
    MUST(kill(traced, SIGKILL) == 0 && waitpid(traced, &status, 0) == traced);
    check_all();
}

/* The same, traced from the start with all that it makes: what strace -f and gdb do. */
static void who_is_traced_from_the_start_goes_on(void) {
    pid_t traced = fork();
    MUST(traced >= 0);
    if (traced == 0) {
        MUST(raise(SIGSTOP) == 0);
        make_cold();
        MUST(tasks(getpid()) == 1);
        in_child(nothing);
        check_all();
        _exit(0);
    }
    int status;
    MUST(waitpid(traced, &status, WUNTRACED) == traced && WIFSTOPPED(status));
    if (ptrace(PTRACE_SEIZE, traced, 0, PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK) != 0)
        cannot_check("tracing is not allowed");
    MUST(kill(traced, SIGCONT) == 0);
    for (;;) {
        pid_t stopped = waitpid(-1, &status, __WALL);
        MUST(stopped > 0);
        if (stopped == traced && (WIFEXITED(status) || WIFSIGNALED(status)))
            break;
        if (!WIFSTOPPED(status))
            continue;
        int event = status >> 16, number = WSTOPSIG(status);
        MUST(ptrace(PTRACE_CONT, stopped, 0, event != 0 || number == SIGTRAP || number == SIGSTOP ? 0 : number) == 0 || errno == ESRCH);
    }
    MUST(status == 0);
}

/* Whether the kernel tells Terrace of memory calls by instruction: it must be able to read without
 * waiting (Linux 6.10). */
static void needs_events(void) {
    struct utsname name;
    int major = 0, minor = 0;
    MUST(uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2);
    if (major < 6 || (major == 6 && minor < 10))
        cannot_check("Linux before 6.10");
    const char *evict = getenv("TERRACE_EVICT");
    if (evict && strcmp(evict, "wp") == 0)
        cannot_check("write-protecting eviction is not told of memory calls");
}

static void discarded_by_instruction(void) {
    needs_events();
    make_cold();
    for (int round = 0; round < 20; round++) {
        size_t from = mix((uint64_t)round) % (PAGES - 600), pages = 1 + mix((uint64_t)round + 100) % 500;
        MUST(syscall_without_the_c_library(SYS_madvise, (long)(map + from * PAGE), (long)(pages * PAGE), MADV_DONTNEED, 0, 0, 0) == 0);
        for (size_t p = from; p < from + pages; p++)
            MUST(*(volatile uint64_t *)(map + p * PAGE) == 0);
        /* What is written after the discard stays, and may leave again. */
        refill(from, pages);
        evict(map, BYTES);
        check_all();
    }
}

static void moved_by_instruction(void) {
    needs_events();
    make_cold();
    char *target = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(target != MAP_FAILED);
    size_t from = 512, pages = 2048;
    /* Linux moves one mapping at a time if a userfaultfd has it. What is registered in part, or
     * with two (there is one for each 64 MiB), is several mappings: see docs/known-problems.md. */
    if (((uintptr_t)map + from * PAGE) >> 26 != ((uintptr_t)map + (from + pages) * PAGE - 1) >> 26)
        from += pages;
    for (int tries = 0; evicts() && absent_pages(map + from * PAGE, pages * PAGE) < pages; tries++) {
        if (tries == 1000)
            cannot_check("not all of these pages leave");
        MUST(madvise(map, BYTES, MADV_PAGEOUT) == 0);
        usleep(10000);
    }
    long moved = syscall_without_the_c_library(SYS_mremap, (long)(map + from * PAGE), (long)(pages * PAGE), (long)(pages * PAGE),
                                MREMAP_MAYMOVE | MREMAP_FIXED, (long)target, 0);
    MUST(moved == (long)target);
    for (size_t p = 0; p < pages; p++)
        MUST(*(volatile uint64_t *)(target + p * PAGE) == word_of(SEED, from + p, 0));
    check_pages(map, 0, from, SEED);
    check_pages(map, from + pages, PAGES, SEED);
    /* Children have it where it is now. */
    pid_t child = fork();
    if (child == 0) {
        for (size_t p = 0; p < pages; p++)
            MUST(*(volatile uint64_t *)(target + p * PAGE) == word_of(SEED, from + p, 0));
        _exit(0);
    }
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    MUST(status == 0);
}

#ifdef __x86_64__
static struct {
    const char *what;
    long number, arguments[5], result;
} tried[] = {
    {"open", SYS_open, {(long)"/etc/passwd", O_RDONLY}, 0},
    {"openat", SYS_openat, {AT_FDCWD, (long)"/etc/passwd", O_RDONLY}, 0},
    {"execve", SYS_execve, {(long)"/bin/true"}, 0},
    {"kill", SYS_kill, {1, 0}, 0},
    {"tgkill", SYS_tgkill, {1, 1, 0}, 0},
    {"ptrace", SYS_ptrace, {0x4206, 1}, 0},
    {"process_vm_readv", SYS_process_vm_readv, {1}, 0},
    {"process_vm_writev", SYS_process_vm_writev, {1}, 0},
    {"pidfd_open", SYS_pidfd_open, {1}, 0},
    {"socket", SYS_socket, {1, 1}, 0},
    {"clone", SYS_clone, {SIGCHLD}, 0},
    {"fork", SYS_fork, {0}, 0},
    {"unshare", SYS_unshare, {CLONE_NEWNS}, 0},
    {"setresuid", SYS_setresuid, {0, 0, 0}, 0},
    {"capset", SYS_capset, {0}, 0},
    {"userfaultfd", SYS_userfaultfd, {0}, 0},
    {"bpf", SYS_bpf, {0}, 0},
    {"io_uring_setup", SYS_io_uring_setup, {1}, 0},
    {"memfd_create", SYS_memfd_create, {(long)"x"}, 0},
    {"unlink", SYS_unlink, {(long)"/nonexistent"}, 0},
    {"mount", SYS_mount, {0}, 0},
    {"ioctl TIOCSTI", SYS_ioctl, {0, 0x5412}, 0},
    {"prctl PR_SET_DUMPABLE", SYS_prctl, {4, 1}, 0},
};
static volatile int taken;

/* Runs on a stack of the companion's, in place of the function to which it should have returned. */
__attribute__((force_align_arg_pointer, noinline)) static void taken_over(void) {
    if (__atomic_fetch_add(&taken, 1, __ATOMIC_SEQ_CST) == 0) {
        for (size_t t = 0; t < COUNT(tried); t++) {
            long *with = tried[t].arguments;
            tried[t].result = syscall_without_the_c_library(tried[t].number, with[0], with[1], with[2], with[3], with[4], 0);
        }
        __atomic_store_n(&taken, 1000, __ATOMIC_SEQ_CST);
    }
    for (;;) {
        struct timespec second = {1, 0};
        syscall_without_the_c_library(SYS_nanosleep, (long)&second, 0, 0, 0, 0, 0);
    }
}

/* The mapping of this process that holds an address, or (without one) the code of the library. */
static bool find_mapping(uintptr_t address, uintptr_t *from, uintptr_t *to) {
    char line[512], rights[8];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    while (!found && fgets(line, sizeof line, maps)) {
        MUST(sscanf(line, "%lx-%lx %7s", from, to, rights) == 3);
        found = address ? *from <= address && address < *to : rights[2] == 'x' && strstr(line, "/libterrace.so");
    }
    fclose(maps);
    return found;
}

static int touch_now;

static void *touch_all(void *unused) {
    while (!__atomic_load_n(&touch_now, __ATOMIC_SEQ_CST))
        usleep(1000);
    check_all();
    return unused;
}

/* Where a sleeping task's stack is, by the kernel's word; 0 if it does not sleep. Touches no heap. */
static uintptr_t stack_of(pid_t process, int task) {
    char path[64], line[512] = {0};
    uintptr_t stack = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", process, task);
    /* Number, six arguments, stack pointer. */
    for (int tries = 0; stack == 0 && tries < 1000; tries++) {
        int call = open(path, O_RDONLY);
        if (call >= 0 && read(call, line, sizeof line - 1) > 0)
            sscanf(line, "%*s %*s %*s %*s %*s %*s %*s %lx", &stack);
        close(call);
        usleep(1000);
    }
    return stack;
}
#endif

/* The companion's stacks are in memory that the program can write. A program that makes it return
 * into code of its own has gained nothing by that. */
static void a_companion_that_was_taken_over_reaches_nothing(void) {
#ifdef __x86_64__
    make_cold();
    pid_t companion = companion_of_this();
    MUST(!evicts() || companion > 0);
    if (companion <= 0)
        return;
    uintptr_t code, code_end;
    MUST(find_mapping(0, &code, &code_end));
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", companion);
    DIR *directory = opendir(path);
    MUST(directory);
    enum { TASKS_MAX = 16 };
    int tasks[TASKS_MAX];
    uintptr_t ends[TASKS_MAX];
    size_t count = 0, changed = 0;
    for (struct dirent *entry; (entry = readdir(directory)) && count < TASKS_MAX;) {
        tasks[count] = atoi(entry->d_name);
        uintptr_t from, stack = tasks[count] > 0 ? stack_of(companion, tasks[count]) : 0;
        if (stack != 0 && find_mapping(stack, &from, &ends[count]))
            count++;
    }
    closedir(directory);
    pthread_t toucher;
    MUST(pthread_create(&toucher, NULL, touch_all, NULL) == 0);
    /* From here on a page of the heap that is out might not come back: it is not touched. */
    for (size_t t = 0; t < count; t++) {
        uintptr_t stack = stack_of(companion, tasks[t]);
        for (uintptr_t *word = (uintptr_t *)stack; stack != 0 && (uintptr_t)word < ends[t] && (uintptr_t)word < stack + 16 * KIB; word++)
            if (*word >= code && *word < code_end)
                *word = (uintptr_t)taken_over, changed++;
    }
    MUST(changed > 0);
    /* A fault makes a handler return. */
    __atomic_store_n(&touch_now, 1, __ATOMIC_SEQ_CST);
    for (int tries = 0; taken < 1000 && tries < 20000; tries++)
        usleep(1000);
    if (taken < 1000) {
        dprintf(2, "FAILED: %zu return addresses were changed, and no thread came\n", changed);
        _exit(1);
    }
    MUST(kill(companion, SIGKILL) == 0);
    for (size_t t = 0; t < COUNT(tried); t++)
        if (tried[t].result != -EPERM) {
            dprintf(2, "FAILED: %s gave the companion %ld\n", tried[t].what, tried[t].result);
            _exit(1);
        }
#else
    cannot_check("return addresses are looked for on x86-64 only");
#endif
}

/* A fork that the C library does not make is not seen by Terrace. Its child sees its parent's data
 * or is ended by SIGSEGV; it never reads zeros. Children of the C library's forks, before and after
 * it, have everything. */
static void forked_by_instruction(void) {
    make_cold();
    for (int round = 0; round < 3; round++) {
        evict(map, BYTES);
        int status;
        pid_t child = (pid_t)syscall_without_the_c_library(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
        if (child == 0) {
            check_pages(map, 0, PAGES, SEED);
            _exit(0);
        }
        MUST(child > 0 && waitpid(child, &status, 0) == child);
        MUST(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
        child = fork();
        if (child == 0) {
            check_pages(map, 0, PAGES, SEED);
            evict(map, BYTES);
            child = fork();
            if (child == 0) {
                check_pages(map, 0, PAGES, SEED);
                _exit(0);
            }
            MUST(child > 0 && waitpid(child, &status, 0) == child);
            _exit(status == 0 ? 0 : 1);
        }
        MUST(child > 0 && waitpid(child, &status, 0) == child);
        MUST(status == 0);
    }
    check_pages(map, 0, PAGES, SEED);
}

/* How many of the kernel's mappings a range touches. */
static int mappings_of(char *start, size_t len) {
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    int count = 0;
    unsigned long from, to;
    while (fscanf(maps, "%lx-%lx%*[^\n]\n", &from, &to) == 2)
        count += from < (unsigned long)(start + len) && to > (unsigned long)start;
    fclose(maps);
    return count;
}

/* What was evicted of the mapping that was there before has no owner: a page of zeros that moves
 * there stays one. */
static void moved_over_evicted_memory(void) {
    needs_events();
    make_cold();
    size_t at = 512, pages = 2048;
    /* Aligned to its own size, so that it crosses no multiple of 64 MiB: there it would be two mappings for ever. */
    size_t bytes = pages * PAGE;
    char *room = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(room != MAP_FAILED);
    char *source = (char *)(((uintptr_t)room + bytes - 1) / bytes * bytes);
    if (source != room)
        MUST(munmap(room, source - room) == 0);
    MUST(munmap(source + bytes, room + bytes - source) == 0);
    for (size_t p = 0; p < pages; p += 2)
        for (size_t w = 0; w < 512; w++)
            ((uint64_t *)source)[p * 512 + w] = word_of(SEED + 1, p, w);
    evict(map + at * PAGE, pages * PAGE);
    /* Where a part of it has not left, its regions are several mappings, which the kernel may move one by one only. */
    for (int tries = 0; tries < 100; tries++) {
        evict(source, pages * PAGE);
        if (mappings_of(source, pages * PAGE) == 1)
            break;
        usleep(20000);
    }
    char *target = map + at * PAGE;
    long moved = syscall_without_the_c_library(SYS_mremap, (long)source, (long)(pages * PAGE), (long)(pages * PAGE),
                                MREMAP_MAYMOVE | MREMAP_FIXED, (long)target, 0);
    if (moved == -EFAULT || moved == -EINVAL)
        cannot_check("the kernel does not move several mappings at once");
    MUST(moved == (long)target);
    for (size_t p = 0; p < pages; p++)
        for (size_t w = 0; w < 512; w += 73)
            MUST(((volatile uint64_t *)target)[p * 512 + w] == (p % 2 ? 0 : word_of(SEED + 1, p, w)));
    check_pages(map, 0, at, SEED);
    check_pages(map, at + pages, PAGES, SEED);
}

/* Pages that are staged for a moment when the program may not read them come back from there. (Once
 * the program has made a memory call by instruction, they come back by being touched, which
 * fails.) */
static void protected_while_staged(void) {
    needs_events();
    make_cold();
    char *scratch = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(scratch != MAP_FAILED);
    memset(scratch, 1, MIB);
    evict(scratch, MIB);
    MUST(syscall_without_the_c_library(SYS_madvise, (long)scratch, MIB, MADV_DONTNEED, 0, 0, 0) == 0);
    for (int round = 0; round < 60; round++) {
        check_pages(map, 0, PAGES, SEED);
        MUST(mprotect(map, BYTES, PROT_NONE) == 0);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            MUST(mprotect(map, BYTES, PROT_READ | PROT_WRITE) == 0);
            check_pages(map, 0, PAGES, SEED);
            _exit(0);
        }
        MUST(mprotect(map, BYTES, PROT_READ | PROT_WRITE) == 0);
        wait_for(child);
    }
}

static void unmapped_by_instruction(void) {
    needs_events();
    make_cold();
    size_t from = 512, pages = 2048;
    MUST(syscall_without_the_c_library(SYS_munmap, (long)(map + from * PAGE), (long)(pages * PAGE), 0, 0, 0, 0) == 0);
    char *anew = mmap(map + from * PAGE, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(anew == map + from * PAGE);
    for (size_t p = 0; p < pages; p++)
        MUST(*(volatile uint64_t *)(anew + p * PAGE) == 0);
    refill(from, pages);
    evict(map, BYTES);
    check_all();
}

/* Threads that discard by instruction, and write to what they discarded, beside evictions. Each has
 * pages of its own. */
enum { THREADS = 4, OWN = PAGES / THREADS };
static void *discards(void *number) {
    size_t first = (size_t)number * OWN;
    uint64_t random = (size_t)number + 1;
    for (int round = 0; round < 300; round++) {
        random = mix(random + 0x9E3779B97F4A7C15ULL);
        size_t from = first + random % (OWN - 40), pages = 1 + (random >> 20) % 32;
        MUST(syscall_without_the_c_library(SYS_madvise, (long)(map + from * PAGE), (long)(pages * PAGE), MADV_DONTNEED, 0, 0, 0) == 0);
        for (size_t p = from; p < from + pages; p++)
            MUST(*(volatile uint64_t *)(map + p * PAGE) == 0);
        refill(from, pages);
        if (random >> 40 & 1)
            MUST(madvise(map + from * PAGE, pages * PAGE, MADV_PAGEOUT) == 0);
        check_pages(map, from, from + pages, SEED);
    }
    return NULL;
}

static void threads_discard_by_instruction(void) {
    needs_events();
    make_cold();
    pthread_t threads[THREADS];
    for (size_t t = 0; t < THREADS; t++)
        MUST(pthread_create(&threads[t], NULL, discards, (void *)t) == 0);
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0)
            _exit(0);
        wait_for(child);
        usleep(10000);
    }
    for (size_t t = 0; t < THREADS; t++)
        MUST(pthread_join(threads[t], NULL) == 0);
    check_all();
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(one_thread_and_no_child),
        CASE(namespaces_are_open),
        CASE(privileges_are_given_up),
        CASE(descriptors_are_out_of_reach),
        CASE(children_where_nothing_more_can_be_made),
        CASE(the_companion_is_confined),
        CASE(a_companion_that_was_taken_over_reaches_nothing),
        CASE(nothing_is_wrong_when_the_companion_is_killed),
        CASE(a_sharer_outlives_the_program),
        CASE(a_child_of_vfork_outlives_the_program),
        CASE(sharers_may_be_killed),
        CASE(who_traces_reads_evicted_memory),
        CASE(who_is_traced_from_the_start_goes_on),
        CASE(discarded_by_instruction),
        CASE(forked_by_instruction),
        CASE(moved_by_instruction),
        CASE(moved_over_evicted_memory),
        CASE(protected_while_staged),
        CASE(unmapped_by_instruction),
        CASE(threads_discard_by_instruction),
    };
    return run_case(count, words, cases, COUNT(cases));
}
