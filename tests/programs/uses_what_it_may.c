/* Needs all that Terrace needs rights for, on evicted pages: faults of its own, and faults of
 * system calls on its behalf. Both also in a forked child, which opens a userfaultfd of its own. */
#include "cold.h"
#include <sys/wait.h>

enum { BYTES = 4 << 20 };

static void pipe_through(char *from, char *into, size_t bytes) {
    int ends[2];
    MUST(pipe(ends) == 0);
    for (size_t done = 0; done < bytes; done += PAGE) {
        MUST(write(ends[1], from + done, PAGE) == PAGE);
        MUST(read(ends[0], into + done, PAGE) == PAGE);
    }
    close(ends[0]), close(ends[1]);
}

static void touch_and_call(char *touched, char *written, char *read_into, uint64_t seed) {
    check(touched, BYTES, seed);
    pipe_through(written, read_into, BYTES);
    check(read_into, BYTES, seed);
}

int main(void) {
    /* From 48 MiB on a process is managed. */
    memset(mapping(64 * MIB), 1, PAGE);
    char *touched = cold_mapping(BYTES, 1), *written = cold_heap(BYTES, 1), *read_into = cold_mapping(BYTES, 2);
    pid_t child = fork();
    if (child == 0) {
        touch_and_call(touched, written, read_into, 1);
        char *own = cold_mapping(BYTES, 3);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check(own, BYTES, 3);
            _exit(0);
        }
        wait_for(grandchild);
        check(own, BYTES, 3);
        _exit(0);
    }
    wait_for(child);
    touch_and_call(touched, written, read_into, 1);
    return 0;
}
