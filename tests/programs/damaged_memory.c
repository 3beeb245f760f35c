/*
 * Evicts pages, tells where one of them is and what it holds, and touches it once the file named by
 * the second argument exists. By then the test has damaged what is stored of it. Nothing here that
 * read the page may end well.
 */
#include "cold.h"
#include <signal.h>

enum { PAGES = 2048, VICTIM = 1234 };

static const char *go;
static char *area;
static size_t filled_pages;

static void tell_and_wait(uint64_t word) {
    printf("%p %zu %p %lu\n", (void *)area, (size_t)PAGES * PAGE, (void *)(area + VICTIM * PAGE), (unsigned long)word);
    fflush(stdout);
    while (access(go, F_OK) != 0)
        usleep(2000);
}

static void victim_of_words(void) {
    area = cold_mapping((size_t)PAGES * PAGE, 1);
    tell_and_wait(word_of(1, VICTIM, 0));
    /* The others are as good as before. */
    check_pages(area, 0, VICTIM, 1);
    check_pages(area, VICTIM + 1, PAGES, 1);
}

static void give_out(const char *from) {
    MUST(write(1, from, PAGE) == PAGE);
    dprintf(2, "FAILED: the page was read\n");
    _exit(1);
}

static void a_read(void) {
    victim_of_words();
    give_out(area + VICTIM * PAGE);
}

static void a_write(void) {
    victim_of_words();
    area[VICTIM * PAGE + 9] = 1;
    give_out(area + VICTIM * PAGE);
}

static void a_same_filled_page(void) {
    area = (char *)mapping((size_t)PAGES * PAGE);
    for (size_t w = 0; w < (size_t)PAGES * 512; w++)
        ((uint64_t *)area)[w] = word_of(2, w / 512, 0);
    evict(area, (size_t)PAGES * PAGE);
    tell_and_wait(word_of(2, VICTIM, 0));
    give_out(area + VICTIM * PAGE);
}

static void on_abort(int signal) {
    (void)signal;
    check(area, (size_t)filled_pages * PAGE, 1);
    _exit(0);
}

/* The program's own handler of SIGABRT, on the thread that serves faults, could touch pages that
 * are not restored any more. */
static void a_handler_of_the_end(void) {
    victim_of_words();
    evict(area, (size_t)PAGES * PAGE);
    filled_pages = VICTIM;
    signal(SIGABRT, on_abort);
    give_out(area + VICTIM * PAGE);
}

/* A page that is not wanted any more may be damaged. */
static void a_discarded_page(void) {
    victim_of_words();
    MUST(madvise(area + VICTIM * PAGE, PAGE, MADV_DONTNEED) == 0);
    check_zeros(area + VICTIM * PAGE, PAGE);
    puts("goes on");
}

int main(int count, char **words) {
    static const struct a_case cases[] = {CASE(a_read), CASE(a_write), CASE(a_same_filled_page), CASE(a_handler_of_the_end), CASE(a_discarded_page)};
    MUST(count > 2);
    go = words[2];
    return run_case(count, words, cases, COUNT(cases));
}
