/*
 * The program may have no more memory: its own calls say ENOMEM, as they would alone, and what it has stays as it is.
 */
#include "cold.h"
#include <dlfcn.h>
#include <sys/resource.h>

/* A limit of this process, and of Terrace's process beside it, which has limits of its own. */
static int limit_both(int resource, const struct rlimit *limit) {
    pid_t companion = companion_of_this();
    if (companion > 0)
        MUST(syscall(SYS_prlimit64, companion, resource, limit, NULL) == 0);
    return setrlimit(resource, limit);
}


enum { AREA_MIB = 96, CHANGES = 8 };

static size_t kib_of(const char *name) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    MUST(status);
    size_t kib = 0;
    while (fgets(line, sizeof line, status))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtoul(line + strlen(name), NULL, 10);
    fclose(status);
    MUST(kib > 0);
    return kib;
}

static void limit(int resource, size_t bytes) {
    struct rlimit limits;
    MUST(getrlimit(resource, &limits) == 0);
    limits.rlim_cur = bytes;
    MUST(limit_both(resource, &limits) == 0);
}

/* Goes through everything again and again while pages leave and come back, in a forked child too. */
static void use_everything(char *area, char **blocks, size_t count, size_t block) {
    for (int round = 0; round < CHANGES; round++) {
        /* As much as there is room for. */
        MUST(madvise(area + (size_t)round % 4 * 24 * MIB, 4 * MIB, MADV_PAGEOUT) == 0 || !evicts());
        check(area, AREA_MIB * MIB, 1);
        for (size_t b = 0; b < count; b++)
            check(blocks[b], block, b);
        if (round % 16 == 3) {
            pid_t child = fork();
            if (child == 0) {
                check(area, AREA_MIB * MIB, 1);
                _exit(0);
            }
            /* Without memory a fork may fail, too. */
            MUST(child > 0 || errno == ENOMEM);
            if (child > 0)
                wait_for(child);
        }
    }
}

static void limited(int resource, const char *name, bool heap) {
    enum { BLOCKS = 1000 };
    static char *blocks[BLOCKS];
    const size_t block = 64 * KIB;
    char *area = cold_mapping(AREA_MIB * MIB, 1);
    /* Some data is left for what alone would need it too; of addresses nothing. */
    limit(resource, kib_of(name) * KIB + (resource == RLIMIT_AS ? 0 : 8 * MIB));
    MUST(mmap(NULL, 256 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    size_t count = 0;
    while (count < BLOCKS && (blocks[count] = (char *)aligned_alloc(PAGE, block)) != NULL) {
        fill(blocks[count], block, count);
        count++;
    }
    MUST(!heap || (count < BLOCKS && errno == ENOMEM));
    use_everything(area, blocks, count, block);
    for (size_t b = 0; b < count; b++)
        free(blocks[b]);
    limit(resource, RLIM_INFINITY);
    char *more = cold_mapping(32 * MIB, 9);
    check(more, 32 * MIB, 9);
    check(area, AREA_MIB * MIB, 1);
}

static void no_more_data(void) { limited(RLIMIT_DATA, "VmData:", true); }

/* The heap has its address space already under Terrace: there it may grow on. */
static void no_more_addresses(void) { limited(RLIMIT_AS, "VmSize:", false); }

/* Evicts little before the limit: then there is a table of pages, but nothing to store them in. */
static void no_data_for_more_extents(void) {
    char *area = (char *)mapping(AREA_MIB * MIB);
    char *little = cold_mapping(4 * MIB, 2);
    limit(RLIMIT_DATA, kib_of("VmData:") * KIB);
    fill(area, AREA_MIB * MIB, 1);
    for (int round = 0; round < CHANGES; round++) {
        MUST(madvise(area, AREA_MIB * MIB, MADV_PAGEOUT) == 0);
        check(area, AREA_MIB * MIB, 1);
        check(little, 4 * MIB, 2);
    }
}

/* Has the region recorded in the table of pages, and nothing stored of it. */
static void expect_use(char *region, size_t bytes) {
    enum { NORMAL = 0 };
    int (*advise)(const void *, size_t, int) = (int (*)(const void *, size_t, int))dlsym(RTLD_DEFAULT, "terrace_advise");
    MUST(!advise || advise(region, bytes, NORMAL) == 0);
}

/* The table of pages grows by 256 regions of 2 MiB, for which it needs more than 1 MiB. A region is
 * in it once something is said of it. */
static void no_data_for_the_table(void) {
    enum { REGION = 2 << 20, MOST = 600, BEFORE = 200, BEYOND = 100 };
    char *little = cold_mapping(4 * MIB, 2), *wide = (char *)mapping((size_t)MOST * REGION), *next = wide;
    size_t before = kib_of("VmData:");
    while (kib_of("VmData:") < before + 1024) {
        MUST(next < wide + (size_t)(MOST - BEFORE - BEYOND) * REGION);
        expect_use(next, REGION);
        next += REGION;
    }
    for (int n = 0; n < BEFORE + BEYOND; n++, next += REGION) {
        if (n == BEFORE)
            limit(RLIMIT_DATA, (kib_of("VmData:") + 512) * KIB);
        expect_use(next, REGION);
    }
    char *last = next - REGION;
    fill(last, REGION, 1);
    /* The second is served when what came of the first has been said: once, and not by the child. */
    for (int n = 0; n < 2; n++)
        MUST(madvise(last, REGION, MADV_PAGEOUT) == 0);
    MUST(absent_pages(last, REGION) == 0);
    pid_t child = fork();
    if (child == 0) {
        check(last, REGION, 1);
        check(little, 4 * MIB, 2);
        _exit(0);
    }
    wait_for(child);
    check(last, REGION, 1);
    limit(RLIMIT_DATA, RLIM_INFINITY);
    evict(last, REGION);
    check(last, REGION, 1);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {CASE(no_more_data), CASE(no_more_addresses), CASE(no_data_for_more_extents), CASE(no_data_for_the_table)};
    return run_case(count, words, cases, COUNT(cases));
}
