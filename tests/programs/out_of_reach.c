/*
 * A program whose memory Terrace does not manage, and one that ends being managed.
 *
 * Usage: out_of_reach KIND, where KIND is break (moved by an instruction), shared, memfd, small,
 * executable or filter. Each has 120 MiB of that for some seconds. Under `filter` that is of
 * malloc: half of it before a seccomp filter that allows everything is loaded, and half after.
 */
#include "cold.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { BYTES = 120 << 20, SMALL = 64 << 10 };

static void load_filter(void) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static char *memory_of(const char *kind) {
    int prot = PROT_READ | PROT_WRITE;
    if (strcmp(kind, "break") == 0) {
        long end = syscall_without_the_c_library(SYS_brk, 0, 0, 0, 0, 0, 0);
        MUST(syscall_without_the_c_library(SYS_brk, end + BYTES, 0, 0, 0, 0, 0) == end + BYTES);
        return (char *)end;
    }
    if (strcmp(kind, "shared") == 0)
        return (char *)mmap(NULL, BYTES, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (strcmp(kind, "executable") == 0)
        return (char *)mmap(NULL, BYTES, prot | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(strcmp(kind, "memfd") == 0);
    int file = memfd_create("memory", 0);
    MUST(file >= 0 && ftruncate(file, BYTES) == 0);
    return (char *)mmap(NULL, BYTES, prot, MAP_SHARED, file, 0);
}

int main(int count, char **words) {
    MUST(count == 2);
    const char *kind = words[1];
    if (strcmp(kind, "small") == 0) {
        for (size_t n = 0; n < BYTES / SMALL; n++) {
            /* Neighbours would be one mapping: every other one cannot be written to. */
            char *pair = (char *)mapping(2 * SMALL);
            MUST(mprotect(pair, SMALL, PROT_READ) == 0);
            fill(pair + SMALL, SMALL, n + 1);
        }
    } else if (strcmp(kind, "filter") == 0) {
        for (int half = 0; half < 2; half++) {
            char *block = (char *)malloc(BYTES / 2);
            MUST(block);
            fill(block, BYTES / 2, 1);
            usleep(500000);
            if (half == 0)
                load_filter();
        }
    } else {
        char *memory = memory_of(kind);
        MUST(memory != MAP_FAILED);
        fill(memory, BYTES, 1);
    }
    usleep(2500000);
    return 0;
}
