/* A program that leaves daemons behind, as daemons do it (fork, setsid, fork): `leaves_daemons
 * STATUS DIRECTORY DAEMONS`. Daemon N then does what the lines of the pipe DIRECTORY/N.in say, and
 * answers each in the file DIRECTORY/N.out when it is done. `hold MIB` gives and takes memory until
 * there is that much, and reads all of it; `end` ends. Its first answer is its number. */
#include "cold.h"
#include <signal.h>

enum { CHUNK_MIB = 4, CHUNKS = 512 };

static void hold(char *chunks[], size_t *have, size_t want) {
    for (; *have > want; --*have)
        MUST(munmap(chunks[*have - 1], CHUNK_MIB * MIB) == 0);
    for (; *have < want; ++*have) {
        char *chunk = mmap(NULL, CHUNK_MIB * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(chunk != MAP_FAILED);
        fill(chunk, CHUNK_MIB * MIB, *have);
        chunks[*have] = chunk;
    }
    for (size_t n = 0; n < *have; n++)
        check(chunks[n], CHUNK_MIB * MIB, n);
}

static int answers;

static void terminated(int signal) {
    dprintf(answers, "signal %d\n", signal);
    _exit(0);
}

static void serve(const char *directory, int number) {
    static char *chunks[CHUNKS];
    char path[4096], line[100];
    snprintf(path, sizeof path, "%s/%d.out", directory, number);
    answers = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    snprintf(path, sizeof path, "%s/%d.in", directory, number);
    FILE *commands = fopen(path, "r+");
    MUST(answers >= 0 && commands);
    signal(SIGTERM, terminated);
    dprintf(answers, "%d\n", getpid());
    size_t have = 0, mib;
    while (fgets(line, sizeof line, commands) && strcmp(line, "end\n") != 0) {
        if (sscanf(line, "hold %zu", &mib) == 1)
            hold(chunks, &have, mib / CHUNK_MIB);
        dprintf(answers, "%s", line);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    MUST(argc == 4);
    for (int number = 0; number < atoi(argv[3]); number++) {
        pid_t child = fork();
        if (child == 0) {
            MUST(setsid() > 0);
            if (fork() != 0)
                _exit(0);
            close_range(0, ~0u, 0);
            MUST(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2);
            serve(argv[2], number);
        }
        wait_for(child);
    }
    printf("the daemons are started\n");
    return atoi(argv[1]);
}
