/* Runs a command with fewer rights. As root:
 *
 *   confined [--device none|MODE] [--deny|--hide|--kill WHAT]... [--user ID] -- COMMAND...
 *
 * --device: a /dev of its own, as a container has one: without /dev/userfaultfd, or with one of
 *     this octal mode. The device's group is that of --user.
 * --deny: a seccomp filter refuses WHAT with EPERM; --hide: with ENOSYS; --kill: it ends the
 *     process. WHAT is one of the system calls below, or device: the ioctl by which /dev/userfaultfd
 *     gives a descriptor.
 * --user: this user and group, no others, no capabilities.
 *
 * Nothing outside the command is changed. What cannot be set up here ends with CANNOT_CHECK.
 */
#include "cold.h"
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#define USERFAULTFD_IOC_NEW 0xAA00

static void need(bool done, const char *what) {
    if (!done) {
        dprintf(2, "cannot check: %s: %s\n", what, strerror(errno));
        _exit(CANNOT_CHECK);
    }
}

static void make_private_dev(const char *mode, gid_t group) {
    need(unshare(CLONE_NEWNS) == 0, "a mount namespace");
    need(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private mounts");
    int real = open("/dev", O_PATH | O_DIRECTORY);
    need(real >= 0 && mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755") == 0, "a private /dev");
    static const char *const names[] = {"null", "zero", "full", "random", "urandom", "shm"};
    for (size_t n = 0; n < COUNT(names); n++) {
        char from[64], to[64];
        snprintf(from, sizeof from, "/proc/self/fd/%d/%s", real, names[n]);
        snprintf(to, sizeof to, "/dev/%s", names[n]);
        bool made = strcmp(names[n], "shm") == 0 ? mkdir(to, 0755) == 0 : mknod(to, S_IFREG | 0644, 0) == 0;
        need(made && mount(from, to, NULL, MS_BIND | MS_REC, NULL) == 0, to);
    }
    if (strcmp(mode, "none") != 0) {
        struct stat device;
        need(fstatat(real, "userfaultfd", &device, 0) == 0, "/dev/userfaultfd (Linux 6.1)");
        need(mknod("/dev/userfaultfd", S_IFCHR, device.st_rdev) == 0, "a node for userfaultfd");
        need(chown("/dev/userfaultfd", 0, group) == 0 && chmod("/dev/userfaultfd", strtoul(mode, NULL, 8)) == 0, "its owner and mode");
    }
    close(real);
}

/* What is named meets `action`. */
static bool filter(const char *name, unsigned action) {
    static const struct {
        const char *name;
        unsigned call, request; /* of an ioctl, else 0 */
    } known[] = {
        {"userfaultfd", SYS_userfaultfd, 0}, {"process_vm_readv", SYS_process_vm_readv, 0}, {"unshare", SYS_unshare, 0},
        {"pidfd_getfd", SYS_pidfd_getfd, 0}, {"device", SYS_ioctl, USERFAULTFD_IOC_NEW},
    };
    for (size_t k = 0; k < COUNT(known); k++) {
        if (strcmp(name, known[k].name) != 0)
            continue;
        struct sock_filter program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, known[k].call, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])), /* its lower half: little endian */
            BPF_JUMP(BPF_JMP | (known[k].request ? BPF_JEQ : BPF_JGE) | BPF_K, known[k].request, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, action),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog filter = {COUNT(program), program};
        need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "a seccomp filter");
        return true;
    }
    return false;
}

int main(int count, char **words) {
    const char *device = NULL;
    unsigned user = 0;
    int n = 1;
    for (; n + 1 < count && strcmp(words[n], "--") != 0; n += 2) {
        if (strcmp(words[n], "--device") == 0)
            device = words[n + 1];
        else if (strcmp(words[n], "--user") == 0)
            user = (unsigned)atoi(words[n + 1]);
    }
    if (n + 1 >= count)
        return 2;
    if (device)
        make_private_dev(device, user);
    if (user)
        need(setgroups(0, NULL) == 0 && setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0, "another user");
    /* The filters come last: none of the above may be refused. */
    for (int f = 1; f < n; f += 2) {
        bool known = strcmp(words[f], "--device") == 0 || strcmp(words[f], "--user") == 0;
        if (strcmp(words[f], "--deny") == 0)
            known = filter(words[f + 1], SECCOMP_RET_ERRNO | EPERM);
        else if (strcmp(words[f], "--hide") == 0)
            known = filter(words[f + 1], SECCOMP_RET_ERRNO | ENOSYS);
        else if (strcmp(words[f], "--kill") == 0)
            known = filter(words[f + 1], SECCOMP_RET_KILL_PROCESS);
        if (!known)
            return 2;
    }
    execvp(words[n + 1], words + n + 1);
    perror(words[n + 1]);
    return 127;
}
