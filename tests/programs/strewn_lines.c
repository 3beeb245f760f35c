/* Maps PAGES of 4096 bytes, and reads words at random in LINES of each page's 64 lines of 64 bytes,
 * for MILLISECONDS of its CPU time. What it has read leaves the caches at once, so that each read
 * waits for memory. Both numbers are powers of two.
 *
 *   strewn_lines PAGES LINES MILLISECONDS
 */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    uint64_t pages = strtoull(argv[1], 0, 10), lines = strtoull(argv[2], 0, 10);
    double until = now() + strtod(argv[3], 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    uint64_t *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    uint64_t sum = 0, state = 88172645463325252, apart = 512 / lines;
    while (now() < until) {
        for (int i = 0; i < 2000; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            uint64_t page = state >> 20 & (pages - 1), line = state & (lines - 1);
            const uint64_t *word = memory + page * 512 + line * apart;
            sum += *word;
#ifdef __x86_64__
            __builtin_ia32_clflush(word);
#endif
        }
    }
    return sum == 42 ? 3 : 0;
}
