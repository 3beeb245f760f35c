/* What left for want of room comes back when there is room again, untouched: given up is what took it. What the program sent out stays out.
 *
 * Usage: room_again. Says what is wrong, and ends with 1 then. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, REGION = 2 << 20, KEPT = 48 << 20, SENT = 4 << 20, GIVEN_UP = 128 << 20 };

static int pagemap;

static size_t out(const char *start, size_t len)
{
    size_t count = 0;
    for (size_t at = 0; at < len; at += PAGE) {
        uint64_t entry = 0;
        if (pread(pagemap, &entry, 8, (uintptr_t)(start + at) / PAGE * 8) != 8)
            exit(3);
        count += !(entry >> 63);
    }
    return count;
}

static char *map(size_t len)
{
    char *all = mmap(NULL, len + REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        exit(3);
    return (char *)(((uintptr_t)all + REGION - 1) / REGION * REGION);
}

static void word(char *text, size_t page)
{
    snprintf(text, 64, "page %zu, which leaves and comes back", page);
}

static void fill(char *start, size_t len)
{
    char text[64];
    for (size_t page = 0; page < len / PAGE; page++) {
        word(text, page);
        for (size_t at = 0; at + 64 <= PAGE; at += 64)
            memcpy(start + page * PAGE + at, text, 64);
    }
}

static int differs(const char *start, size_t len)
{
    char text[64];
    for (size_t page = 0; page < len / PAGE; page++) {
        word(text, page);
        for (size_t at = 0; at + 64 <= PAGE; at += 64)
            if (strcmp(start + page * PAGE + at, text))
                return 1;
    }
    return 0;
}

int main(void)
{
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    char *kept = map(KEPT), *sent = map(SENT), *given_up = map(GIVEN_UP);
    fill(kept, KEPT);
    fill(sent, SENT);
    fill(given_up, GIVEN_UP);
    /* What is kept is not touched meanwhile. */
    size_t left = 0;
    for (int round = 0; round < 100 && (left = out(kept, KEPT)) < 256; round++)
        fill(given_up, GIVEN_UP);
    if (!left)
        return puts("nothing left for want of room"), 1;
    madvise(sent, SENT, MADV_PAGEOUT);
    munmap(given_up, GIVEN_UP);
    size_t stays = 0;
    for (int wait = 0; wait < 600; wait++) {
        usleep(100000);
        stays = out(sent, SENT);
        if (!out(kept, KEPT)) {
            if (stays < SENT / PAGE * 9 / 10)
                return printf("only %zu pages that were sent out are out\n", stays), 1;
            if (differs(kept, KEPT) || differs(sent, SENT))
                return puts("memory has changed"), 1;
            return printf("%zu pages came back, %zu stayed out\n", left, stays), 0;
        }
    }
    return printf("%zu pages that had left are still out\n", out(kept, KEPT)), 1;
}
