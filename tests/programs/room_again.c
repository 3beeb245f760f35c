/* What left for want of room comes back when there is room again, untouched: given up is what took
 * it. What the program sent out stays out.
 *
 * Says how many pages had left; ends with 1, and says why, where something does not hold. */
#include "cold.h"

enum { REGION = 2 << 20, KEPT = 48 << 20, SENT = 4 << 20, GIVEN_UP = 128 << 20 };

/* In regions of its own. */
static char *area(size_t bytes, uint64_t seed) {
    char *memory = (char *)(((uintptr_t)mapping(bytes + REGION) + REGION - 1) / REGION * REGION);
    fill(memory, bytes, seed);
    return memory;
}

int main(void) {
    char *kept = area(KEPT, 1), *sent = area(SENT, 2), *given_up = area(GIVEN_UP, 3);
    /* What is kept is not touched meanwhile. */
    size_t left = 0;
    for (int round = 0; round < 100 && (left = absent_pages(kept, KEPT)) < 256; round++)
        fill(given_up, GIVEN_UP, 3);
    MUST(left > 0);
    evict(sent, SENT);
    MUST(munmap(given_up, GIVEN_UP) == 0);
    double deadline = seconds_now() + 60;
    while (absent_pages(kept, KEPT) > 0) {
        MUST(seconds_now() < deadline);
        usleep(100000);
    }
    size_t out = absent_pages(sent, SENT);
    MUST(out * 10 >= SENT / PAGE * 9);
    check(kept, KEPT, 1);
    check(sent, SENT, 2);
    printf("%zu pages came back, %zu stayed out\n", left, out);
}
