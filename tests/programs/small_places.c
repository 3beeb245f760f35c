/* What a program meets in small places, and with few rights: `small_places CASE [WAY]`. See cold.h for CASE. WAY is what it gives up before
 * anything else. Whatever Terrace misses there, data are kept, nobody is ended, and pages leave. */
#include "cold.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
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
    };
    if (count > 2)
        give_up(words[2]);
    return run_case(count, words, cases, COUNT(cases));
}
