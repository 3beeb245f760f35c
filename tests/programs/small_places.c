/* What a program meets in small places, and with few rights: `small_places CASE [WAY]`. See cold.h
 * for CASE. WAY is what it gives up before anything else. Whatever Terrace misses there, data are
 * kept, no process is ended, and pages leave. */
#include "cold.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const size_t BYTES = 8 * MIB;

static void read_in_child(const char *memory, uint64_t seed) {
    pid_t child = fork();
    if (child == 0) {
        check(memory, BYTES, seed);
        _exit(0);
    }
    wait_for(child);
}

static void leave_in_child(char *memory, uint64_t seed) {
    pid_t child = fork();
    if (child == 0) {
        check(memory, BYTES, seed);
        fill(memory, BYTES, seed + 1);
        evict(memory, BYTES);
        check(memory, BYTES, seed + 1);
        _exit(0);
    }
    wait_for(child);
}

static void pages_leave(void) {
    char *memory = cold_mapping(BYTES, 1);
    check(memory, BYTES, 1);
    evict(memory, BYTES);
    read_in_child(memory, 1);
    check(memory, BYTES, 1);
    check(cold_heap(BYTES, 2), BYTES, 2);
}

static void children_too(void) {
    char *memory = cold_mapping(BYTES, 1);
    leave_in_child(memory, 1);
    check(memory, BYTES, 1);
}

static void each_page(void (*act)(const char *path)) {
    const char *directory = getenv("TERRACE_RUN_DIR");
    DIR *pages = directory ? opendir(directory) : NULL;
    if (!pages)
        return;
    for (struct dirent *entry; (entry = readdir(pages));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (strstr(entry->d_name, ".stats"))
            act(path);
    }
    closedir(pages);
}

static void cut(const char *path) { MUST(truncate(path, 0) == 0); }

static void and_remove(const char *path) { MUST(unlink(path) == 0); }

/* Longer than Terrace's threads leave the page alone. */
static void with_pages_that(void (*act)(const char *path)) {
    char *memory = cold_mapping(BYTES, 1);
    for (int round = 0; round < 4; round++) {
        each_page(act);
        usleep(300000);
        check(memory, BYTES, 1);
        evict(memory, BYTES);
        leave_in_child(memory, 1);
    }
    each_page(act);
}

static void pages_are_truncated(void) { with_pages_that(cut); }

static void pages_are_removed(void) { with_pages_that(and_remove); }

static void forbid(int resource) {
    struct rlimit none = {0, 0};
    MUST(setrlimit(resource, &none) == 0);
}

static void no_files_may_grow(void) {
    char *memory = cold_mapping(BYTES, 1);
    forbid(RLIMIT_FSIZE);
    leave_in_child(memory, 1);
    evict(memory, BYTES);
    check(memory, BYTES, 1);
}

/* A child can have none either, so its pages stay. */
static void no_descriptors_are_left(void) {
    char *memory = cold_mapping(BYTES, 1);
    forbid(RLIMIT_NOFILE);
    read_in_child(memory, 1);
    evict(memory, BYTES);
    check(memory, BYTES, 1);
}

static void put(const char *file, long number) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("TASK_GROUP"), file);
    int control = open(path, O_WRONLY);
    MUST(control >= 0 && dprintf(control, "%ld", number) > 0);
    close(control);
}

static void *nothing(void *argument) { return argument; }

static int ends(void *unused) {
    (void)unused;
    _exit(0);
}

static void by_fork(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    wait_for(child);
}

static void by_fork_alone(void) {
    pid_t child = _Fork();
    if (child == 0)
        _exit(0);
    wait_for(child);
}

static void by_number(void) {
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(0);
    wait_for(child);
}

static void by_clone(void) {
    static char stack[64 * KIB] __attribute__((aligned(16)));
    wait_for(clone(ends, stack + sizeof stack, SIGCHLD, NULL));
}

static void by_thread(void) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void by_spawning(void) {
    pid_t child = 0;
    MUST(posix_spawn(&child, "/bin/true", NULL, NULL, (char *[]){"true", NULL}, environ) == 0);
    wait_for(child);
}

/* Every way to a task, each in a process of its own. The group allows as many tasks as this process
 * and Terrace's beside it have, and none more. */
static void tasks_are_few(void) {
    static void (*const ways[])(void) = {by_fork, by_fork_alone, by_number, by_clone, by_thread, by_spawning};
    if (!getenv("TASK_GROUP"))
        cannot_check("no control group of tasks (pids)");
    for (size_t way = 0; way < COUNT(ways); way++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            char *memory = cold_mapping(BYTES, way);
            pid_t companion = companion_of_this();
            MUST(!evicts() || companion > 0);
            put("cgroup.procs", getpid());
            if (companion > 0)
                put("cgroup.procs", companion);
            char path[4096], text[32] = {0};
            snprintf(path, sizeof path, "%s/pids.current", getenv("TASK_GROUP"));
            int current = open(path, O_RDONLY);
            MUST(current >= 0 && read(current, text, sizeof text - 1) > 0);
            close(current);
            long tasks = atol(text);
            MUST(!evicts() || tasks > 2);
            put("pids.max", companion > 0 ? tasks : tasks + 1);
            ways[way]();
            check(memory, BYTES, way);
            fill(memory, BYTES, way + 1);
            ways[way]();
            check(memory, BYTES, way + 1);
            put("pids.max", 1000);
            _exit(0);
        }
        wait_for(child);
    }
}

/* Some children at a time, in a group that allows few tasks. */
static void children_at_a_time(void) {
    enum { CHILDREN = 8 };
    char *memory = mapping(BYTES);
    fill(memory, BYTES, 1);
    madvise(memory, BYTES, MADV_PAGEOUT);
    usleep(300000);
    pid_t children[CHILDREN];
    int ends[2];
    MUST(pipe(ends) == 0);
    for (int c = 0; c < CHILDREN; c++) {
        MUST((children[c] = fork()) >= 0);
        if (children[c] == 0) {
            char byte;
            close(ends[1]);
            check(memory, BYTES, 1);
            MUST(read(ends[0], &byte, 1) == 0);
            _exit(0);
        }
    }
    close(ends[1]);
    for (int c = 0; c < CHILDREN; c++)
        wait_for(children[c]);
    check(memory, BYTES, 1);
}

static void give_up(const char *what) {
    enum { NOBODY = 65534 };
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    if (geteuid() != 0)
        cannot_check("only root has rights to give up");
    if (strcmp(what, "setuid") == 0)
        MUST(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    else if (strcmp(what, "setresuid") == 0)
        MUST(setresuid(NOBODY, NOBODY, NOBODY) == 0);
    else if (strcmp(what, "seteuid") == 0)
        MUST(seteuid(NOBODY) == 0);
    else if (strcmp(what, "number") == 0)
        MUST(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0);
    else if (strcmp(what, "capset") == 0)
        MUST(syscall(SYS_capset, &header, none) == 0 && setresuid(0, 0, 0) == 0);
    else if (strcmp(what, "chroot") == 0)
        MUST(chroot("/var") == 0 && chdir("/") == 0);
    else if (strcmp(what, "unshare") == 0)
        MUST(unshare(CLONE_NEWUSER) == 0 || errno == EPERM || errno == ENOSPC);
    else if (strcmp(what, "namespaces") == 0)
        MUST(unshare(CLONE_NEWPID | CLONE_NEWNS) == 0);
    else if (strcmp(what, "dumps") == 0)
        MUST(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    else
        cannot_check("no such way");
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(pages_leave),           CASE(children_too),       CASE(pages_are_truncated),
        CASE(pages_are_removed),     CASE(no_files_may_grow),  CASE(no_descriptors_are_left),
        CASE(tasks_are_few),         CASE(children_at_a_time),
    };
    if (count > 2)
        give_up(words[2]);
    return run_case(count, words, cases, COUNT(cases));
}
