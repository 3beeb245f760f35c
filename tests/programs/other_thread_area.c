/* A child that shares the program's memory and has zeros for a thread area, as browsers' sandboxes
 * make one. It gives up rights, by number, and touches nothing of the C library's. Prints how it
 * ended.
 */
#define _GNU_SOURCE
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static _Alignas(4096) char area[1 << 16], stack[1 << 16];

/* No canary and no errno: both are in the thread area. */
__attribute__((noinline, optimize("no-stack-protector"))) static int child(void *unused)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    (void)unused;
    long failed = syscall(SYS_capset, &header, none);
    failed |= syscall(SYS_prctl, PR_SET_KEEPCAPS, 0, 0, 0, 0);
    failed |= syscall(SYS_futex, area, 1 /* FUTEX_WAKE */, 1, 0, 0, 0);
    syscall(SYS_exit_group, failed ? 1 : 42);
    return 0;
}

int main(void)
{
    for (int time = 0; time < 2; time++) {
        int status = 0, flags = CLONE_VM | CLONE_VFORK | CLONE_SETTLS | SIGCHLD;
        memset(area, 0, sizeof area);
        int pid = clone(child, stack + sizeof stack, flags, NULL, NULL, area + sizeof area / 2, NULL);
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            return perror("clone"), 1;
        printf("status %#x\n", status);
    }
    return 0;
}
