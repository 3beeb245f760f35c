/* Maps MEGABYTES, touches all of it once, and then reads scattered words: MILLISECONDS in the first
 * half, then as long in the second. Prints the mapping's address. "child" does so in a forked
 * child.
 *
 *   hot_parts MEGABYTES MILLISECONDS [child]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static uint64_t read_scattered(const uint64_t *words, uint64_t count, double until)
{
    uint64_t sum = 0, state = 88172645463325252;
    while (now() < until) {
        for (int i = 0; i < 2000; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            sum += words[state % count];
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    uint64_t bytes = strtoull(argv[1], 0, 10) << 20, words = bytes / 8;
    double ms = strtod(argv[2], 0);
    uint64_t *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    for (uint64_t i = 0; i < words; i += 512)
        memory[i] = i;
    printf("%llu\n", (unsigned long long)(uintptr_t)memory);
    fflush(stdout);
    if (argc > 3 && !strcmp(argv[3], "child")) {
        pid_t child = fork();
        if (child) {
            int status = 1;
            waitpid(child, &status, 0);
            return !WIFEXITED(status) || WEXITSTATUS(status);
        }
    }
    double start = now();
    uint64_t sum = read_scattered(memory, words / 2, start + ms);
    sum += read_scattered(memory + words / 2, words / 2, start + 2 * ms);
    return sum == 42 ? 3 : 0;
}
