/*
 * Memory calls of all kinds in random order, beside a model that knows what every page must hold.
 *
 * Each thread has an area of its own. The model, in .bss, knows of each page:
 *
 * - whether it is mapped, its protection, and whether it is locked;
 * - the number that its contents are made of (0: zeros);
 * - what a child gets of it.
 *
 * A thread writes and reads pages, alone and through the kernel. It gives them up, moves, replaces,
 * protects and locks them, and advises whatever there is. It also forks: a child has the model as
 * it was, and goes on in it. Beside the area are blocks of the heap that are resized. What one
 * thread does to its area, the others' areas must not feel.
 *
 * Usage: calls_in_any_order SECONDS [SEED [THREADS]]
 */
#include "cold.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <terrace.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum {
    THREADS_MOST = 8,
    PAGES = 2560,            /* 10 MiB an area, which begins anywhere in a region */
    RENEWED_AFTER = 3000,    /* operations: small mappings in its place are not managed, so the area comes anew */
    CHILD_OPERATIONS = 300,
    CHILDREN_MOST = 2,       /* of a thread, at a time */
    BLOCKS = 48,             /* of the heap */
    BLOCK_MOST = 1 << 20,
    MESSAGE_PAGES = 8,       /* that go through the kernel at a time */
};

enum state { HOLE, NONE, READABLE, WRITABLE };

struct page {
    uint8_t state;
    bool locked;
    bool absent, wiped; /* in children */
    uint64_t number;
};

struct block {
    uint64_t *words;
    size_t count;
    uint64_t number;
};

struct thread {
    pthread_t id;
    uint64_t state, serial;
    char *area;
    struct page pages[PAGES];
    struct block blocks[BLOCKS];
    pid_t children[CHILDREN_MOST];
    int pair[2];
    unsigned long operations, forks;
};

static struct thread threads[THREADS_MOST];
/* A thread's first area is static data, as the program finds it. */
static char first_areas[THREADS_MOST][PAGES * PAGE] __attribute__((aligned(4096)));
static atomic_bool stop;
static uint64_t seed;

static uint64_t next_random(struct thread *t) {
    uint64_t x = t->state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return t->state = x;
}

static size_t below(struct thread *t, size_t limit) { return (next_random(t) >> 11) % limit; }

/* Pages compress differently, some not at all, and some are all alike. */
static uint64_t content(uint64_t number, size_t k) {
    if (number == 0)
        return 0;
    switch (number % 4) {
    case 0: return number;
    case 1: return number + k / 8;
    case 2: return number << 20 ^ k;
    default: return mix(number << 12 ^ k);
    }
}

static void put(void *page, uint64_t number) {
    for (size_t k = 0; k < PAGE / 8; k++)
        ((uint64_t *)page)[k] = content(number, k);
}

static void wrong(struct thread *t, const char *what, const void *at, uint64_t found, uint64_t wanted) {
    dprintf(2, "FAILED %s at %p in process %d, thread %d, operation %lu: %#lx instead of %#lx (seed %lu)\n", what, at, getpid(),
            (int)(t - threads), t->operations, found, wanted, seed);
    _exit(1);
}

static void look(struct thread *t, const char *what, const void *page, uint64_t number) {
    const uint64_t *words = (const uint64_t *)page;
    for (size_t k = 0; k < PAGE / 8; k++)
        if (words[k] != content(number, k))
            wrong(t, what, &words[k], words[k], content(number, k));
}

static char *at(struct thread *t, size_t p) { return t->area + p * PAGE; }

static bool all(struct thread *t, size_t p, size_t n, bool (*is)(const struct page *)) {
    for (size_t i = p; i < p + n; i++)
        if (!is(&t->pages[i]))
            return false;
    return true;
}

static bool is_mapped(const struct page *page) { return page->state != HOLE; }
static bool is_readable(const struct page *page) { return page->state >= READABLE; }
static bool is_writable(const struct page *page) { return page->state == WRITABLE; }
static bool is_unlocked(const struct page *page) { return !page->locked; }
static bool is_hole(const struct page *page) { return page->state == HOLE; }

static void now_is(struct thread *t, size_t p, size_t n, enum state state) {
    for (size_t i = p; i < p + n; i++)
        t->pages[i] = (struct page){.state = state};
}

/* A run of pages: mostly few, sometimes a region's worth and more. */
static size_t a_run(struct thread *t, size_t *n) {
    *n = next_random(t) % 16 ? 1 + below(t, 12) : 256 + below(t, 512);
    return below(t, PAGES - *n);
}

static void renew(struct thread *t) {
    char *next = t->area ? (char *)mapping(PAGES * PAGE) : first_areas[t - threads];
    if (t->area)
        /* In parts: where another thread's memory has come into a hole, it stays. */
        for (size_t p = 0; p < PAGES; p++)
            if (t->pages[p].state != HOLE)
                MUST(munmap(at(t, p), PAGE) == 0);
    t->area = next;
    now_is(t, 0, PAGES, WRITABLE);
    for (size_t p = 0; p < PAGES; p++)
        put(at(t, p), t->pages[p].number = ++t->serial);
}

static void look_at_all(struct thread *t, const char *what) {
    for (size_t p = 0; p < PAGES; p++)
        if (is_readable(&t->pages[p]))
            look(t, what, at(t, p), t->pages[p].number);
    for (size_t b = 0; b < BLOCKS; b++)
        for (size_t k = 0; k < t->blocks[b].count; k++)
            if (t->blocks[b].words[k] != content(t->blocks[b].number, k % 512))
                wrong(t, "block", &t->blocks[b].words[k], t->blocks[b].words[k], content(t->blocks[b].number, k % 512));
}

static void write_pages(struct thread *t) {
    size_t n, p = a_run(t, &n);
    for (size_t i = p; i < p + n; i++)
        if (is_writable(&t->pages[i]))
            put(at(t, i), t->pages[i].number = ++t->serial);
}

static void read_pages(struct thread *t) {
    size_t n, p = a_run(t, &n);
    for (size_t i = p; i < p + n; i++)
        if (is_readable(&t->pages[i]))
            look(t, "page", at(t, i), t->pages[i].number);
}

static void discard(struct thread *t) {
    size_t n, p = a_run(t, &n);
    /* (In a hole there may be another thread's memory.) */
    if (!all(t, p, n, is_unlocked) || !all(t, p, n, is_mapped))
        return;
    MUST(madvise(at(t, p), n * PAGE, MADV_DONTNEED) == 0);
    for (size_t i = p; i < p + n; i++)
        t->pages[i].number = 0;
}

static void let_go(struct thread *t) {
    size_t n, p = a_run(t, &n);
    if (!all(t, p, n, is_unlocked) || !all(t, p, n, is_writable))
        return;
    MUST(madvise(at(t, p), n * PAGE, MADV_FREE) == 0);
    for (size_t i = p; i < p + n; i++) {
        uint64_t first = *(volatile uint64_t *)at(t, i);
        if (first != 0 && first != content(t->pages[i].number, 0))
            wrong(t, "page let go", at(t, i), first, 0);
        put(at(t, i), t->pages[i].number = ++t->serial);
    }
}

static void protect(struct thread *t) {
    static const int prot[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
    static const enum state state[] = {NONE, READABLE, WRITABLE};
    size_t n, p = a_run(t, &n), which = next_random(t) % 2 ? 2 : below(t, 3);
    if (!all(t, p, n, is_mapped))
        return;
    MUST(mprotect(at(t, p), n * PAGE, prot[which]) == 0);
    for (size_t i = p; i < p + n; i++)
        t->pages[i].state = state[which];
}

static void replace(struct thread *t) {
    size_t n, p = a_run(t, &n);
    if (!all(t, p, n, is_mapped))
        return;
    int flags = next_random(t) % 4 ? 0 : MAP_POPULATE, prot = PROT_READ | PROT_WRITE | (next_random(t) % 8 ? 0 : PROT_EXEC);
    MUST(mmap(at(t, p), n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | flags, -1, 0) == at(t, p));
    now_is(t, p, n, WRITABLE);
}

static void cut(struct thread *t) {
    size_t n, p = a_run(t, &n);
    if (!all(t, p, n, is_mapped))
        return;
    MUST(munmap(at(t, p), n * PAGE) == 0);
    now_is(t, p, n, HOLE);
}

static void mend(struct thread *t, size_t p, size_t n) {
    /* What another thread has mapped there meanwhile is its own. */
    void *there = mmap(at(t, p), n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (there == at(t, p))
        now_is(t, p, n, WRITABLE);
}

static void mend_holes(struct thread *t) {
    for (size_t p = 0; p < PAGES;) {
        size_t n = 0;
        while (p + n < PAGES && is_hole(&t->pages[p + n]))
            n++;
        if (n > 0)
            mend(t, p, n);
        p += n + 1;
    }
}

static void move(struct thread *t) {
    size_t n, from = a_run(t, &n), to = below(t, PAGES - n);
    bool apart = to + n <= from || from + n <= to, stays = next_random(t) % 4 == 0;
    /* A hole at its target may be another thread's by now. A run of one protection may still be
     * several mappings, which older kernels do not move. */
    if (!apart || !all(t, from, n, is_writable) || !all(t, from, n, is_unlocked) || !all(t, to, n, is_mapped))
        return;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (stays ? MREMAP_DONTUNMAP : 0);
    void *moved = mremap(at(t, from), n * PAGE, n * PAGE, flags, at(t, to));
    if (moved == MAP_FAILED) {
        MUST(errno == EFAULT || errno == EINVAL);
        /* The target may be gone, or the beginning be there already: begin anew. */
        MUST(munmap(at(t, from), n * PAGE) == 0 && munmap(at(t, to), n * PAGE) == 0);
        now_is(t, from, n, HOLE), now_is(t, to, n, HOLE);
        return;
    }
    MUST(moved == at(t, to));
    memcpy(&t->pages[to], &t->pages[from], n * sizeof t->pages[0]);
    /* What stays is empty, and of its kind. */
    for (size_t i = from; i < from + n; i++)
        t->pages[i] = (struct page){.state = stays ? WRITABLE : HOLE, .absent = stays && t->pages[i].absent, .wiped = stays && t->pages[i].wiped};
    for (size_t i = to; i < to + n; i++)
        look(t, "moved page", at(t, i), t->pages[i].number);
}

static void advise(struct thread *t) {
    static const int advice[] = {MADV_PAGEOUT, MADV_PAGEOUT, MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE,
                                 MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_SEQUENTIAL, MADV_RANDOM, MADV_MERGEABLE, MADV_UNMERGEABLE};
    size_t n, p = a_run(t, &n);
    madvise(at(t, p), n * PAGE, advice[below(t, COUNT(advice))]);
}

/* Mostly taken back, so that children have something; wiped rarely, for such memory does not leave. */
static void keep_from_children(struct thread *t) {
    size_t n, p = a_run(t, &n);
    bool wipes = below(t, 16) == 0, keeps = below(t, 3) == 0;
    if (!all(t, p, n, is_mapped))
        return;
    int advice = wipes ? keeps ? MADV_WIPEONFORK : MADV_KEEPONFORK : keeps ? MADV_DONTFORK : MADV_DOFORK;
    MUST(madvise(at(t, p), n * PAGE, advice) == 0);
    for (size_t i = p; i < p + n; i++)
        *(wipes ? &t->pages[i].wiped : &t->pages[i].absent) = keeps;
}

static void lock_or_not(struct thread *t) {
    size_t n, p = a_run(t, &n);
    if (!all(t, p, n, is_readable))
        return;
    bool lock = next_random(t) % 4 == 0;
    if ((lock ? mlock : munlock)(at(t, p), n * PAGE) != 0) {
        MUST(lock && (errno == ENOMEM || errno == EPERM || errno == EAGAIN));
        return;
    }
    for (size_t i = p; i < p + n; i++)
        t->pages[i].locked = lock;
}

/* The kernel reads pages and writes them elsewhere. */
static void through_the_kernel(struct thread *t) {
    size_t n = 1 + below(t, MESSAGE_PAGES), from = below(t, PAGES - n), to = below(t, PAGES - n);
    bool apart = to + n <= from || from + n <= to;
    if (!apart)
        return;
    if (t->pages[from].state == NONE || t->pages[from].state == HOLE) {
        /* (A hole may be another thread's.) */
        if (t->pages[from].state == NONE)
            MUST(write(t->pair[0], at(t, from), 1) == -1 && errno == EFAULT);
        return;
    }
    if (!all(t, from, n, is_readable) || !all(t, to, n, is_writable))
        return;
    struct iovec parts[2] = {{at(t, from), PAGE / 2}, {at(t, from) + PAGE / 2, n * PAGE - PAGE / 2}};
    if (next_random(t) % 4 == 0) {
        struct iovec there = {at(t, to), n * PAGE};
        MUST(process_vm_readv(getpid(), &there, 1, parts, 2, 0) == (ssize_t)(n * PAGE));
    } else {
        MUST(writev(t->pair[0], parts, 2) == (ssize_t)(n * PAGE));
        for (size_t have = 0; have < n * PAGE;) {
            size_t want = 1 + below(t, n * PAGE - have);
            ssize_t got = read(t->pair[1], at(t, to) + have, want);
            MUST(got > 0);
            have += (size_t)got;
        }
    }
    for (size_t i = 0; i < n; i++)
        look(t, "page that the kernel filled", at(t, to + i), t->pages[to + i].number = t->pages[from + i].number);
}

static void touch_ahead(struct thread *t) {
    size_t n, p = a_run(t, &n);
    if (next_random(t) % 2)
        TERRACE_TOUCH(at(t, p), n * PAGE);
    else
        TERRACE_PREFETCH(at(t, p), n * PAGE);
}

static void use_heap(struct thread *t) {
    struct block *block = &t->blocks[below(t, BLOCKS)];
    for (size_t k = 0; k < block->count; k++)
        if (block->words[k] != content(block->number, k % 512))
            wrong(t, "block", &block->words[k], block->words[k], content(block->number, k % 512));
    size_t count = below(t, next_random(t) % 8 ? 2000 : BLOCK_MOST / 8);
    if (next_random(t) % 4 == 0) {
        free(block->words);
        block->words = NULL, block->count = 0;
    }
    uint64_t *words = (uint64_t *)realloc(block->words, count * 8 + 8);
    MUST(words);
    block->words = words;
    size_t kept = block->count < count ? block->count : count;
    for (size_t k = 0; k < kept; k++)
        if (words[k] != content(block->number, k % 512))
            wrong(t, "resized block", &words[k], words[k], content(block->number, k % 512));
    block->count = count, block->number = ++t->serial;
    for (size_t k = 0; k < count; k++)
        words[k] = content(block->number, k % 512);
}

static void one_operation(struct thread *t, int depth);

static void reap(struct thread *t, bool waits) {
    for (size_t c = 0; c < CHILDREN_MOST; c++) {
        int status = 0;
        if (t->children[c] == 0 || waitpid(t->children[c], &status, waits ? 0 : WNOHANG) != t->children[c])
            continue;
        if (status != 0) {
            dprintf(2, "FAILED: a child of %d ended with %#x (seed %lu)\n", getpid(), status, seed);
            _exit(1);
        }
        t->children[c] = 0;
    }
}

static void fork_on(struct thread *t, int depth) {
    reap(t, false);
    size_t c = 0;
    while (c < CHILDREN_MOST && t->children[c])
        c++;
    if (c == CHILDREN_MOST || depth >= 2)
        return;
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        memset(t->children, 0, sizeof t->children);
        /* Of its own: the parent goes on reading from the other. */
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, t->pair) == 0);
        /* Locks are not inherited, nor what was to be kept from children. */
        for (size_t p = 0; p < PAGES; p++) {
            t->pages[p].locked = false;
            if (t->pages[p].wiped)
                t->pages[p].number = 0;
            if (t->pages[p].absent)
                now_is(t, p, 1, HOLE);
        }
        if (next_random(t) % 2)
            look_at_all(t, "in a child");
        for (size_t n = 0; n < CHILD_OPERATIONS; n++)
            one_operation(t, depth + 1);
        look_at_all(t, "in a child at its end");
        reap(t, true);
        _exit(0);
    }
    MUST(child > 0);
    next_random(t);
    t->forks++;
    t->children[c] = child;
}

static void one_operation(struct thread *t, int depth) {
    static void (*const kinds[])(struct thread *) = {
        write_pages, write_pages, write_pages, read_pages, read_pages, read_pages, discard, let_go, protect, protect, replace, cut, mend_holes,
        move,        move,        advise,      advise,     advise,     lock_or_not, through_the_kernel, through_the_kernel, touch_ahead, use_heap, use_heap,
        keep_from_children,
    };
    t->operations++;
    if (next_random(t) % 400 == 0)
        fork_on(t, depth);
    kinds[below(t, COUNT(kinds))](t);
}

static void *work(void *argument) {
    struct thread *t = (struct thread *)argument;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, t->pair) == 0);
    while (!stop) {
        if (t->operations % RENEWED_AFTER == 0)
            renew(t);
        one_operation(t, 0);
        if (t->operations % 500 == 0)
            look_at_all(t, "now and then");
    }
    look_at_all(t, "at the end");
    reap(t, true);
    return NULL;
}

int main(int count, char **words) {
    long seconds = count > 1 ? atol(words[1]) : 5;
    seed = count > 2 ? strtoull(words[2], NULL, 10) : 1;
    size_t working = count > 3 ? strtoull(words[3], NULL, 10) : 3;
    MUST(working >= 1 && working <= THREADS_MOST);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < working; i++) {
        threads[i].state = mix(seed * 1000 + i) | 1;
        threads[i].serial = i << 32;
        MUST(pthread_create(&threads[i].id, NULL, work, &threads[i]) == 0);
    }
    sleep((unsigned)seconds);
    stop = true;
    unsigned long operations = 0, forks = 0;
    for (size_t i = 0; i < working; i++) {
        MUST(pthread_join(threads[i].id, NULL) == 0);
        operations += threads[i].operations, forks += threads[i].forks;
    }
    printf("%lu operations, %lu children, nothing lost\n", operations, forks);
    return 0;
}
