/* What system calls do to memory, done to evicted memory. Usage: see cold.h; the scratch directory
 * for O_DIRECT is $TMPDIR or /var/tmp. */
#include "cold.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { BYTES = 8 << 20, PAGES = BYTES / PAGE };
#define AT(area, page) ((area) + (size_t)(page) * PAGE)

static sigjmp_buf after_fault;
static void on_fault(int number) { siglongjmp(after_fault, number); }

/* The signal that a read (or a write) of a byte brings; 0 for none. */
static int touch(char *byte, bool write) {
    struct sigaction action = {.sa_handler = on_fault}, segv_before, bus_before;
    sigaction(SIGSEGV, &action, &segv_before);
    sigaction(SIGBUS, &action, &bus_before);
    int number = sigsetjmp(after_fault, 1);
    if (number == 0) {
        if (write)
            *(volatile char *)byte = 1;
        else
            (void)*(volatile char *)byte;
    }
    sigaction(SIGSEGV, &segv_before, NULL);
    sigaction(SIGBUS, &bus_before, NULL);
    return number;
}

static void discarded_pages_are_zeros(void) {
    for (int kind = 0; kind < 2; kind++) {
        char *area = kind ? cold_heap(BYTES, 1) : cold_mapping(BYTES, 1);
        MUST(madvise(AT(area, 100), 700 * PAGE, MADV_DONTNEED) == 0);
        check_zeros(AT(area, 100), 700 * PAGE);
        check_pages(area, 0, 100, 1);
        check_pages(area, 800, PAGES, 1);
        /* Written, evicted and discarded again and again, page by page and unevenly. */
        for (int round = 0; round < 5; round++) {
            fill(area, BYTES, (uint64_t)round);
            evict(area, BYTES);
            for (int p = 0; p < PAGES; p++)
                if (mix((uint64_t)p * 7 + (uint64_t)round) % 3 == 0)
                    MUST(madvise(AT(area, p), PAGE, MADV_DONTNEED) == 0);
            for (int p = 0; p < PAGES; p++)
                if (mix((uint64_t)p * 7 + (uint64_t)round) % 3 == 0)
                    check_zeros(AT(area, p), PAGE);
                else
                    check_pages(area, (size_t)p, (size_t)p + 1, (uint64_t)round);
        }
    }
}

/* A thread that waits until a page reads as zeros, because it was discarded, and writes to it: that
 * is not discarded. */
static _Atomic uint64_t *handed_over;
static atomic_int discards, answers;

static void *answers_each_discard(void *unused) {
    for (int round = 1;; round++) {
        int begun;
        while ((begun = atomic_load(&discards)) != -1 && begun < round)
            ;
        if (begun == -1)
            return unused;
        while (atomic_load(handed_over) != 0)
            ;
        atomic_store(handed_over, 42);
        atomic_store(&answers, round);
    }
}

static void discarded_pages_that_are_written_at_once(void) {
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    MUST(self >= 0);
    char *area = cold_mapping(BYTES, 1);
    handed_over = (_Atomic uint64_t *)AT(area, 3);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, answers_each_discard, NULL) == 0);
    bool by_descriptor = true;
    for (int round = 1; round <= 40; round++) {
        fill(area, BYTES, (uint64_t)round);
        evict(area, BYTES);
        /* It is there, and all around it is out. */
        atomic_store(handed_over, 7);
        atomic_store(&discards, round);
        struct iovec part = {area, BYTES};
        if (round % 2 == 0 && by_descriptor)
            by_descriptor = syscall(SYS_process_madvise, self, &part, 1UL, MADV_DONTNEED, 0UL) == BYTES;
        if (round % 2 == 1 || !by_descriptor)
            MUST(madvise(area, BYTES, MADV_DONTNEED) == 0);
        while (atomic_load(&answers) != round)
            ;
        MUST(atomic_load(handed_over) == 42);
        check_zeros(area, 3 * PAGE);
        check_zeros(AT(area, 4), BYTES - 4 * PAGE);
    }
    atomic_store(&discards, -1);
    MUST(pthread_join(thread, NULL) == 0 && close(self) == 0);
}

static void unmapped_addresses_are_zeros_when_mapped_again(void) {
    char *area = cold_mapping(BYTES, 1);
    for (int round = 0; round < 3; round++) {
        MUST(munmap(AT(area, 512), 512 * PAGE) == 0);
        MUST(touch(AT(area, 600), false) == SIGSEGV);
        char *again = mmap(AT(area, 512), 512 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(again == AT(area, 512));
        check_zeros(again, 512 * PAGE);
        fill(again, 512 * PAGE, 2);
        evict(again, 512 * PAGE);
        check(again, 512 * PAGE, 2);
        evict(again, 512 * PAGE);
        check_pages(area, 0, 512, 1);
        check_pages(area, 1024, PAGES, 1);
        evict(area, BYTES);
    }
    /* A small one, which is not managed, in evicted memory's place. */
    MUST(munmap(AT(area, 10), 3 * PAGE) == 0);
    MUST(mmap(AT(area, 10), 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == AT(area, 10));
    check_zeros(AT(area, 10), 3 * PAGE);
    check_pages(area, 0, 10, 1);
    check_pages(area, 13, 512, 1);
    MUST(munmap(area, BYTES) == 0);
}

static void mapped_over_evicted_memory(void) {
    char *area = cold_mapping(BYTES, 1);
    MUST(mmap(AT(area, 300), 400 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == AT(area, 300));
    check_zeros(AT(area, 300), 400 * PAGE);
    check_pages(area, 0, 300, 1);
    check_pages(area, 700, PAGES, 1);
    fill(area, BYTES, 2);
    evict(area, BYTES);
    /* A file, a shared mapping, and no access, over evicted pages. */
    int file = memfd_create("file", 0);
    MUST(file >= 0 && ftruncate(file, 64 * PAGE) == 0);
    MUST(pwrite(file, "from the file", 13, 5 * PAGE) == 13);
    MUST(mmap(AT(area, 100), 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == AT(area, 100));
    MUST(memcmp(AT(area, 105), "from the file", 13) == 0);
    AT(area, 106)[0] = 'x';
    MUST(mmap(AT(area, 200), 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == AT(area, 200));
    MUST(memcmp(AT(area, 205), "from the file", 13) == 0 && AT(area, 206)[0] == 0);
    MUST(mmap(AT(area, 300), 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == AT(area, 300));
    MUST(touch(AT(area, 310), false) == SIGSEGV);
    check_pages(area, 0, 100, 2);
    check_pages(area, 164, 200, 2);
    check_pages(area, 264, 300, 2);
    check_pages(area, 364, PAGES, 2);
    MUST(mmap(area, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
    MUST(errno == EEXIST);
    check_pages(area, 364, PAGES, 2);
    /* A refused one leaves everything as it was. */
    evict(AT(area, 1024), 512 * PAGE);
    MUST(mmap(AT(area, 1024), PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EBADF);
    MUST(munmap(AT(area, 1024) + 1, PAGE) == -1 && errno == EINVAL);
    check_pages(area, 364, PAGES, 2);
}

static void remapped_memory_keeps_its_contents(void) {
    char *area = cold_mapping(BYTES, 1);
    area = mremap(area, BYTES, 3 * BYTES, MREMAP_MAYMOVE);
    MUST(area != MAP_FAILED);
    check(area, BYTES, 1);
    check_zeros(area + BYTES, 2 * BYTES);
    fill(area, 3 * BYTES, 2);
    evict(area, 3 * BYTES);
    /* Shrunk: the tail is gone. */
    MUST(mremap(area, 3 * BYTES, BYTES, 0) == area);
    MUST(touch(area + BYTES + PAGE, false) == SIGSEGV);
    check(area, BYTES, 2);
    evict(area, BYTES);
    /* Grown at its place. */
    MUST(mremap(area, BYTES, 2 * BYTES, 0) == area);
    check_zeros(area + BYTES, BYTES);
    check(area, BYTES, 2);
    fill(area, 2 * BYTES, 3);
    evict(area, 2 * BYTES);
    /* Moved onto other evicted memory, whose contents go. */
    char *target = cold_mapping(BYTES, 4);
    MUST(mremap(area, BYTES / 2, BYTES / 2, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    check_pages(target, 0, PAGES / 2, 3);
    check_pages(target, PAGES / 2, PAGES, 4);
    MUST(touch(area, false) == SIGSEGV);
    check_pages(area, PAGES / 2, 2 * PAGES, 3);
    evict(target, BYTES);
    /* Refused ones: not from or to a page, and source and target overlap. */
    MUST(mremap(target + 1, BYTES / 2, BYTES, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    MUST(mremap(target, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target + BYTES / 2 + 1) == MAP_FAILED && errno == EINVAL);
    MUST(mremap(target, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, target + BYTES / 2) == MAP_FAILED && errno == EINVAL);
    check_pages(target, 0, PAGES / 2, 3);
    check_pages(target, PAGES / 2, PAGES, 4);
    /* What was moved is evictable again. */
    evict(target, BYTES);
    check_pages(target, PAGES / 2, PAGES, 4);
    MUST(munmap(target, BYTES) == 0);
}

/* Terrace may treat parts of a mapping differently; mremap takes it as one all the same. */
static void partly_evicted_memory_is_remapped(void) {
    for (size_t n = 0; n < 6; n++) {
        size_t bytes = n % 2 ? 160 * MIB : BYTES;
        size_t from = n / 2 == 0 ? 0 : bytes / 4, part = n / 2 == 2 ? bytes / 4 : bytes / 2;
        char *area = mapping(bytes);
        for (size_t m = 0; m < bytes / MIB; m++)
            fill(area + m * MIB, MIB, m + 1);
        evict(area + from, part);
        area = mremap(area, bytes, bytes + 8 * MIB, MREMAP_MAYMOVE);
        MUST(area != MAP_FAILED);
        for (size_t m = 0; m < bytes / MIB; m++)
            check(area + m * MIB, MIB, m + 1);
        check_zeros(area + bytes, 8 * MIB);
        if (evicts())
            MUST(madvise(area + part, part, MADV_PAGEOUT) == 0);
        MUST(mremap(area, bytes + 8 * MIB, bytes / 2, 0) == area);
        for (size_t m = 0; m < bytes / MIB / 2; m++)
            check(area + m * MIB, MIB, m + 1);
        MUST(munmap(area, bytes / 2) == 0);
    }
}

static void remapped_memory_can_stay_mapped(void) {
    char *area = cold_mapping(BYTES, 1);
    char *moved = mremap(area, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (moved == MAP_FAILED && errno == EINVAL)
        cannot_check("this kernel has no MREMAP_DONTUNMAP");
    MUST(moved != MAP_FAILED);
    check(moved, BYTES, 1);
    check_zeros(area, BYTES);
    fill(area, BYTES, 2);
    if (evicts()) {
        madvise(area, BYTES, MADV_PAGEOUT);
        madvise(moved, BYTES, MADV_PAGEOUT);
    }
    check(moved, BYTES, 1);
    check(area, BYTES, 2);
}

static void protection_comes_and_goes(void) {
    char *area = cold_mapping(BYTES, 1);
    int pair[2];
    MUST(pipe(pair) == 0);
    for (int round = 0; round < 3; round++) {
        MUST(mprotect(AT(area, 100), 800 * PAGE, PROT_NONE) == 0);
        MUST(touch(AT(area, 150), false) == SIGSEGV);
        MUST(write(pair[1], AT(area, 151), 100) == -1 && errno == EFAULT);
        check_pages(area, 0, 100, 1);
        MUST(mprotect(AT(area, 100), 800 * PAGE, PROT_READ) == 0);
        check_pages(area, 100, 500, 1);
        MUST(touch(AT(area, 600), true) == SIGSEGV);
        MUST(touch(AT(area, 120), true) == SIGSEGV);
        MUST(mprotect(AT(area, 100), 800 * PAGE, PROT_READ | PROT_WRITE) == 0);
        MUST(touch(AT(area, 600) + 8, false) == 0);
        check(area, BYTES, 1);
        fill(area, BYTES, 1);
        evict(area, BYTES);
    }
    /* Evicted, protected as a whole, page by page opened by a handler's hand: what garbage collectors do. */
    MUST(mprotect(area, BYTES, PROT_NONE) == 0);
    for (int p = 0; p < PAGES; p += 17) {
        MUST(touch(AT(area, p), true) == SIGSEGV);
        MUST(mprotect(AT(area, p), PAGE, PROT_READ | PROT_WRITE) == 0);
        check_pages(area, (size_t)p, (size_t)p + 1, 1);
    }
    MUST(mprotect(area, BYTES, PROT_READ | PROT_WRITE) == 0);
    check(area, BYTES, 1);
    MUST(mprotect(AT(area, 3) + 1, PAGE, PROT_READ) == -1 && errno == EINVAL);
}

static void lazily_freed_pages_are_old_or_zero(void) {
    char *area = cold_mapping(BYTES, 1);
    MUST(madvise(AT(area, 100), 1000 * PAGE, MADV_FREE) == 0);
    for (int p = 100; p < 1100; p++) {
        uint64_t first = *(uint64_t *)AT(area, p);
        if (first)
            check_pages(area, (size_t)p, (size_t)p + 1, 1);
        else
            check_zeros(AT(area, p), PAGE);
    }
    fill(area, BYTES, 2);
    MUST(madvise(area, BYTES, MADV_FREE) == 0);
    fill(area, BYTES, 3);
    evict(area, BYTES);
    check(area, BYTES, 3);
}

static int status_of_child(void (*run)(char *), char *area) {
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        signal(SIGSEGV, SIG_DFL);
        run(area);
        _exit(0);
    }
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}
static void read_part(char *area) { check_pages(area, 200, 210, 1); }
static void rest_is_there(char *area) {
    check_pages(area, 0, 100, 1);
    check_pages(area, 1100, PAGES, 1);
}
static void part_is_zeros(char *area) {
    check_zeros(AT(area, 100), 1000 * PAGE);
    rest_is_there(area);
    fill(area, BYTES, 2);
    check(area, BYTES, 2);
}
static void all_is_there(char *area) { check(area, BYTES, 1); }

static void children_get_what_they_may(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    char *area = cold_mapping(BYTES, 1);
    MUST(madvise(AT(area, 100), 1000 * PAGE, MADV_DONTFORK) == 0);
    MUST(status_of_child(read_part, area) == SIGSEGV);
    MUST(status_of_child(rest_is_there, area) == 0);
    check(area, BYTES, 1);
    MUST(madvise(AT(area, 100), 1000 * PAGE, MADV_DOFORK) == 0);
    if (evicts())
        madvise(area, BYTES, MADV_PAGEOUT);
    MUST(status_of_child(all_is_there, area) == 0);
    MUST(madvise(AT(area, 100), 1000 * PAGE, MADV_WIPEONFORK) == 0);
    MUST(status_of_child(part_is_zeros, area) == 0);
    check(area, BYTES, 1);
    MUST(madvise(AT(area, 100), 1000 * PAGE, MADV_KEEPONFORK) == 0);
    MUST(status_of_child(all_is_there, area) == 0);
    check(area, BYTES, 1);
    /* All of an area, while its pages are out. */
    char *wiped = cold_mapping(BYTES, 3), *kept = cold_mapping(BYTES, 1);
    MUST(madvise(wiped, BYTES, MADV_WIPEONFORK) == 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        check_zeros(wiped, BYTES);
        check(kept, BYTES, 1);
        _exit(0);
    }
    wait_for(child);
    check(wiped, BYTES, 3);
}

static void child_has_none_of_it(char *area) {
    MUST(touch(AT(area, 500), false) == SIGSEGV && touch(AT(area, 799), true) == SIGSEGV && touch(AT(area, 1499), false) == SIGSEGV);
    check_pages(area, 0, 500, 1);
    check_pages(area, 800, 900, 1);
    check_pages(area, 1500, PAGES, 1);
    /* What comes there is new, and leaves and comes back like all else. */
    for (int n = 0; n < 2; n++) {
        char *place = AT(area, n ? 900 : 500);
        size_t bytes = (n ? 600 : 300) * PAGE;
        MUST(mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place);
        check_zeros(place, bytes);
        fill(place, bytes, 2);
        evict(place, bytes);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            alarm(60);
            check(place, bytes, 2);
            check_pages(area, 0, 500, 1);
            _exit(0);
        }
        wait_for(grandchild);
        check(place, bytes, 2);
    }
}

/* Advice on what children get is no reason to keep memory in DRAM: it leaves as before, and they get what they may. */
static void memory_kept_from_children_leaves_too(void) {
    for (int kind = 0; kind < 2; kind++) {
        char *area = cold_mapping(BYTES, 1);
        MUST((kind ? (int)syscall(SYS_madvise, AT(area, 500), 1000 * PAGE, MADV_DONTFORK) : madvise(AT(area, 500), 1000 * PAGE, MADV_DONTFORK)) == 0);
        MUST(madvise(AT(area, 800), 100 * PAGE, MADV_DOFORK) == 0);
        check(area, BYTES, 1);
        evict(area, BYTES);
        evict(AT(area, 900), 600 * PAGE);
        /* With pages out, with some back, and with all of it written again. */
        for (int round = 0; round < 3; round++) {
            MUST(status_of_child(child_has_none_of_it, area) == 0);
            if (round == 0)
                check_pages(area, 400, 700, 1);
            else if (round == 1)
                fill(area, BYTES, 1);
        }
        check(area, BYTES, 1);
        /* (What a child had too cannot leave before it is written.) */
        fill(area, BYTES, 1);
        evict(area, BYTES);
        /* It goes along to another address. */
        char *target = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(target != MAP_FAILED);
        static const size_t parts[] = {0, 500, 800, 900, 1500, PAGES};
        for (size_t n = 0; n + 1 < COUNT(parts); n++) {
            size_t bytes = (parts[n + 1] - parts[n]) * PAGE;
            MUST(mremap(AT(area, parts[n]), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, AT(target, parts[n])) == AT(target, parts[n]));
        }
        evict(target, BYTES);
        MUST(status_of_child(child_has_none_of_it, target) == 0);
        /* Taken back, a child has all of it. */
        MUST(madvise(target, BYTES, MADV_DOFORK) == 0);
        fill(target, BYTES, 1);
        evict(target, BYTES);
        MUST(status_of_child(all_is_there, target) == 0);
        check(target, BYTES, 1);
        MUST(munmap(target, BYTES) == 0);
    }
}

/* Chunks as JavaScript engines map them: reserved a little too large, kept from children, cut, and opened. */
static void small_chunks_kept_from_children(void) {
    enum { CHUNK = 256 << 10, CHUNKS = 60 };
    static char *chunks[CHUNKS];
    for (size_t n = 0; n < CHUNKS; n++) {
        size_t reserved = 2 * CHUNK - PAGE;
        char *start = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(start != MAP_FAILED && madvise(start, reserved, MADV_DONTFORK) == 0);
        char *chunk = (char *)(((uintptr_t)start + CHUNK - 1) / CHUNK * CHUNK), *end = start + reserved;
        if (chunk > start)
            MUST(munmap(start, (size_t)(chunk - start)) == 0);
        if (chunk + CHUNK < end)
            MUST(munmap(chunk + CHUNK, (size_t)(end - chunk - CHUNK)) == 0);
        MUST(mprotect(chunk, CHUNK, PROT_READ | PROT_WRITE) == 0);
        fill(chunk, CHUNK, n + 1);
        chunks[n] = chunk;
    }
    for (int round = 0; round < 2; round++) {
        for (size_t n = 0; n < CHUNKS; n++)
            evict(chunks[n], CHUNK);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            MUST(touch(chunks[CHUNKS - 1], false) == SIGSEGV && touch(chunks[0] + CHUNK - 1, true) == SIGSEGV);
            char *own = cold_mapping(CHUNK, 7);
            check(own, CHUNK, 7);
            _exit(0);
        }
        wait_for(child);
        for (size_t n = 0; n < CHUNKS; n++)
            check(chunks[n], CHUNK, n + 1);
    }
    for (size_t n = 0; n < CHUNKS; n += 2)
        MUST(munmap(chunks[n], CHUNK) == 0);
    for (size_t n = 1; n < CHUNKS; n += 2)
        check(chunks[n], CHUNK, n + 1);
}

static void locked_pages_are_resident(void) {
    char *area = cold_mapping(BYTES, 1);
    if (mlock(AT(area, 100), 1000 * PAGE) != 0)
        cannot_check("RLIMIT_MEMLOCK is too low");
    MUST(absent_pages(AT(area, 100), 1000 * PAGE) == 0);
    check(area, BYTES, 1);
    MUST(absent_pages(AT(area, 100), 1000 * PAGE) == 0);
    if (evicts())
        madvise(area, BYTES, MADV_PAGEOUT);
    MUST(absent_pages(AT(area, 100), 1000 * PAGE) == 0);
    MUST(madvise(AT(area, 200), PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    check(area, BYTES, 1);
    MUST(munlock(area, BYTES) == 0);
    evict(area, BYTES);
    check(area, BYTES, 1);
    evict(area, BYTES);
    if (syscall(SYS_mlock2, area, BYTES, 1 /* MLOCK_ONFAULT */) == 0) {
        check(area, BYTES, 1);
        MUST(munlock(area, BYTES) == 0);
    }
    char *locked = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
    MUST(locked != MAP_FAILED);
    fill(locked, 2 * MIB, 5);
    if (evicts())
        madvise(locked, 2 * MIB, MADV_PAGEOUT);
    MUST(absent_pages(locked, 2 * MIB) == 0);
    check(locked, 2 * MIB, 5);
}

/* Bytes of writable private memory that mlockall(MCL_CURRENT) would make resident. */
static size_t writable_bytes(void) {
    static char line[1000];
    size_t bytes = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char access[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3 && strcmp(access, "rw-p") == 0)
            bytes += to - from;
    }
    fclose(maps);
    return bytes;
}

static void everything_locked(void) {
    char *area = cold_mapping(BYTES, 1);
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY)
        cannot_check("RLIMIT_MEMLOCK is too low");
    /* Terrace's tables are large and nearly empty: they must not become resident. */
    size_t bytes = writable_bytes();
    dprintf(2, "mlockall would make %zu MiB resident\n", bytes / MIB);
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0);
    check(area, BYTES, 1);
    char *later = mapping(4 * MIB);
    fill(later, 4 * MIB, 2);
    if (evicts())
        madvise(later, 4 * MIB, MADV_PAGEOUT);
    check(later, 4 * MIB, 2);
    char *block = malloc(3 * MIB);
    memset(block, 3, 3 * MIB);
    free(block);
    MUST(munlockall() == 0);
    evict(area, BYTES);
    MUST(bytes < 256 * MIB);
    MUST(mlockall(MCL_CURRENT) == 0);
    MUST(absent_pages(area, BYTES) == 0);
    check(area, BYTES, 1);
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    later = mapping(4 * MIB);
    MUST(absent_pages(later, 4 * MIB) == 0);
    fill(later, 4 * MIB, 2);
    block = malloc(30 * MIB);
    memset(block, 3, 30 * MIB);
    free(block);
    check(later, 4 * MIB, 2);
    MUST(munlockall() == 0);
    evict(area, BYTES);
    check(area, BYTES, 1);
}

static void mincore_works(void) {
    char *area = cold_mapping(BYTES, 1);
    size_t absent = absent_pages(area, BYTES);
    MUST(evicts() ? absent > PAGES * 8 / 10 : absent == 0);
    check(area, BYTES / 2, 1);
    unsigned char present[PAGES];
    MUST(mincore(area + 1, PAGE, present) == -1 && errno == EINVAL);
    MUST(munmap(AT(area, 20), PAGE) == 0);
    MUST(mincore(area, BYTES, present) == -1 && errno == ENOMEM);
}

static atomic_int woken;
static void *waiter(void *word) {
    while (*(volatile int *)word == 7)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 7, NULL, NULL, 0);
    woken = 1;
    return NULL;
}

static void system_calls_take_evicted_buffers(void) {
    char *area = cold_mapping(BYTES, 1), *target = cold_mapping(BYTES, 2);
    int ends[2], pair[2], file = memfd_create("file", 0);
    MUST(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    /* write and read, across page borders. */
    for (int n = 0; n < 20; n++) {
        size_t len = 30000, from = (size_t)n * 50000 + 77;
        MUST(write(ends[1], area + from, len) == (ssize_t)len);
        for (size_t have = 0; have < len;) {
            ssize_t got = read(ends[0], target + from + have, len - have);
            MUST(got > 0);
            have += (size_t)got;
        }
        MUST(memcmp(area + from, target + from, len) == 0);
    }
    evict(area, BYTES), evict(target, BYTES);
    /* pwrite and pread of 4 MiB at once. */
    MUST(pwrite(file, area, 4 * MIB, 0) == 4 * (ssize_t)MIB);
    MUST(pread(file, target, 4 * MIB, 0) == 4 * (ssize_t)MIB);
    check(target, 4 * MIB, 1);
    fill(target, BYTES, 2);
    evict(area, BYTES), evict(target, BYTES);
    /* Datagrams: one that is lost or doubled would show. The message header and vectors are evicted too. */
    struct msghdr *message = (struct msghdr *)AT(target, 1500);
    struct iovec *parts = (struct iovec *)AT(target, 1501);
    for (int n = 0; n < 50; n++) {
        memset(message, 0, sizeof *message);
        for (int i = 0; i < 4; i++)
            parts[i] = (struct iovec){AT(area, n * 8 + i * 2) + 100, 6000};
        message->msg_iov = parts, message->msg_iovlen = 4;
        evict(AT(target, 1500), 2 * PAGE);
        MUST(sendmsg(pair[0], message, 0) == 24000);
        for (int i = 0; i < 4; i++)
            parts[i].iov_base = AT(target, n * 8 + i * 2) + 100;
        evict(AT(target, 1500), 2 * PAGE);
        MUST(recvmsg(pair[1], message, 0) == 24000);
        for (int i = 0; i < 4; i++)
            MUST(memcmp(AT(area, n * 8 + i * 2) + 100, AT(target, n * 8 + i * 2) + 100, 6000) == 0);
        MUST(recv(pair[1], AT(target, 900), 100, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    fill(target, BYTES, 2);
    evict(area, BYTES), evict(target, BYTES);
    struct iovec vector[8];
    for (int i = 0; i < 8; i++)
        vector[i] = (struct iovec){AT(area, i * 9), PAGE + 5};
    MUST(pwritev(file, vector, 8, 0) == 8 * (PAGE + 5));
    for (int i = 0; i < 8; i++)
        vector[i].iov_base = AT(target, i * 9);
    MUST(preadv(file, vector, 8, 0) == 8 * (PAGE + 5));
    for (int i = 0; i < 8; i++)
        MUST(memcmp(AT(area, i * 9), AT(target, i * 9), PAGE + 5) == 0);
    /* A futex. */
    int *word = (int *)AT(area, 1000);
    *word = 7;
    evict(area, BYTES);
    MUST(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 8, NULL, NULL, 0) == -1 && errno == EAGAIN);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, waiter, word) == 0);
    for (int n = 0; n < 20; n++) {
        usleep(1000);
        evict(AT(area, 999), 3 * PAGE);
    }
    *word = 9;
    evict(AT(area, 999), 3 * PAGE);
    while (!woken) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        usleep(1000);
    }
    pthread_join(thread, NULL);
    /* Structures of all kinds, and paths. */
    evict(area, BYTES), evict(target, BYTES);
    strcpy(AT(area, 3), "/proc/self/exe");
    evict(area, BYTES);
    MUST(access(AT(area, 3), X_OK) == 0 && readlink(AT(area, 3), AT(target, 3), PAGE) > 0);
    evict(area, BYTES), evict(target, BYTES);
    MUST(stat(AT(area, 3), (struct stat *)AT(target, 4)) == 0);
    MUST(getcwd(AT(target, 5), PAGE) != NULL && clock_gettime(CLOCK_MONOTONIC, (struct timespec *)AT(target, 6)) == 0);
    struct pollfd *polled = (struct pollfd *)AT(target, 7);
    *polled = (struct pollfd){.fd = ends[1], .events = POLLOUT};
    evict(target, BYTES);
    MUST(poll(polled, 1, 1000) == 1 && polled->revents == POLLOUT);
    int epoll = epoll_create1(0);
    struct epoll_event *event = (struct epoll_event *)AT(target, 8);
    event->events = EPOLLOUT, event->data.u64 = 42;
    evict(target, BYTES);
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], event) == 0);
    event->data.u64 = 0;
    evict(target, BYTES);
    MUST(epoll_wait(epoll, event, 1, 1000) == 1 && event->data.u64 == 42);
}

/* A pipe holds pages of the buffer itself. */
static void spliced_pages_keep_their_contents(void) {
    char *area = cold_mapping(MIB, 1), *target = cold_mapping(MIB, 2);
    int ends[2];
    MUST(pipe(ends) == 0);
    for (int round = 0; round < 5; round++) {
        struct iovec part = {AT(area, round * 8), 8 * PAGE};
        MUST(vmsplice(ends[1], &part, 1, 0) == 8 * PAGE);
        if (evicts())
            MUST(madvise(area, MIB, MADV_PAGEOUT) == 0);
        /* Overwritten or not, the reader gets one of the two; here not. */
        MUST(read(ends[0], AT(target, round * 8), 8 * PAGE) == 8 * PAGE);
        MUST(memcmp(AT(area, round * 8), AT(target, round * 8), 8 * PAGE) == 0);
        evict(area, MIB), evict(target, MIB);
    }
    check(area, MIB, 1);
}

static void other_processes_read_and_write(void) {
    char *area = cold_mapping(BYTES, 1), *copy = mapping(BYTES);
    pid_t parent = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        char byte;
        MUST(read(ends[0], &byte, 1) == 1);
        struct iovec here = {copy, BYTES}, there = {area, BYTES};
        ssize_t got = process_vm_readv(parent, &here, 1, &there, 1, 0);
        if (got == -1 && errno == EPERM)
            cannot_check("process_vm_readv is not permitted");
        MUST(got == BYTES);
        check(copy, BYTES, 3);
        fill(copy, BYTES, 4);
        MUST(process_vm_writev(parent, &here, 1, &there, 1, 0) == BYTES);
        /* This process's own stay what they were. */
        check(area, BYTES, 1);
        _exit(0);
    }
    fill(area, BYTES, 3);
    if (evicts())
        madvise(area, BYTES, MADV_PAGEOUT);
    MUST(write(ends[1], "x", 1) == 1);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_CHECK)
        _exit(CANNOT_CHECK);
    MUST(status == 0);
    check(area, BYTES, 4);
    /* And itself. */
    evict(area, BYTES), evict(copy, BYTES);
    struct iovec here = {copy, BYTES}, there = {area, BYTES};
    MUST(process_vm_readv(parent, &here, 1, &there, 1, 0) == BYTES);
    check(copy, BYTES, 4);
}

static void direct_io_uses_evicted_pages(void) {
    int file = direct_file();
    char *area = cold_mapping(BYTES, 1), *target = cold_mapping(BYTES, 2);
    for (int round = 0; round < 4; round++) {
        MUST(pwrite(file, area, BYTES, 0) == BYTES);
        if (evicts())
            madvise(target, BYTES, MADV_PAGEOUT);
        for (int p = 0; p < PAGES; p += 64)
            MUST(pread(file, AT(target, p), 64 * PAGE, (off_t)p * PAGE) == 64 * PAGE);
        check(target, BYTES, round ? 2 + (uint64_t)round : 1);
        fill(area, BYTES, 3 + (uint64_t)round);
        fill(target, BYTES, 2);
        if (evicts())
            madvise(area, BYTES, MADV_PAGEOUT);
    }
    check(area, BYTES, 6);
}

static void reallocated_memory_keeps_its_contents(void) {
    char *block = NULL;
    size_t have = 0;
    for (size_t step = 0; step < 40; step++) {
        size_t want = step < 20 ? (step + 1) * 1500 * KIB : (41 - step) * 700 * KIB;
        block = realloc(block, want);
        MUST(block);
        size_t kept = have < want ? have : want;
        for (size_t w = 0; w < kept / 8; w += 61)
            MUST(((uint64_t *)block)[w] == mix(w) >> 40);
        for (size_t w = kept / 8; w < want / 8; w++)
            ((uint64_t *)block)[w] = mix(w) >> 40;
        have = want;
        uintptr_t from = ((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
        if (evicts())
            MUST(madvise((void *)from, (have - PAGE) & ~(size_t)(PAGE - 1), MADV_PAGEOUT) == 0);
    }
    for (size_t w = 0; w < have / 8; w++)
        MUST(((uint64_t *)block)[w] == mix(w) >> 40);
    free(block);
}

static char *signal_stack;
static volatile int handled;
enum { SIGNAL_STACK_BYTES = 1 << 20 };
static void on_signal(int number) {
    char frame[50000];
    memset(frame, number, sizeof frame);
    MUST(frame > signal_stack && frame < signal_stack + SIGNAL_STACK_BYTES);
    handled += frame[sizeof frame / 2] == number;
}

static void signal_handlers_run_on_evicted_stacks(void) {
    signal_stack = cold_heap(SIGNAL_STACK_BYTES, 1);
    stack_t stack = {.ss_sp = signal_stack, .ss_size = SIGNAL_STACK_BYTES};
    MUST(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int n = 1; n <= 30; n++) {
        fill(signal_stack, SIGNAL_STACK_BYTES, 1);
        evict(signal_stack, SIGNAL_STACK_BYTES);
        MUST(raise(SIGUSR1) == 0);
        MUST(handled == n);
        check_pages(signal_stack, 0, (SIGNAL_STACK_BYTES - 100 * KIB) / PAGE, 1);
    }
}

static void reservations_are_opened_in_parts(void) {
    char *reserved = mmap(NULL, GIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(reserved != MAP_FAILED);
    enum { PART = 300 << 10, PARTS = 40 };
    size_t part_bytes = PART / PAGE * PAGE;
    for (int round = 0; round < 2; round++) {
        for (size_t n = 0; n < PARTS; n++) {
            char *part = reserved + n * 20 * MIB + 5 * PAGE;
            MUST(mprotect(part, part_bytes, PROT_READ | PROT_WRITE) == 0);
            check_zeros(part, part_bytes);
            fill(part, part_bytes, n + 1);
            evict(part, part_bytes);
        }
        for (size_t n = 0; n < PARTS; n++) {
            char *part = reserved + n * 20 * MIB + 5 * PAGE;
            check(part, part_bytes, n + 1);
            MUST(touch(part - PAGE, false) == SIGSEGV);
            evict(part, part_bytes);
            /* Given back as heaps do it: no access, and discarded. */
            MUST(n % 2 ? mprotect(part, part_bytes, PROT_NONE) == 0 && madvise(part, part_bytes, MADV_DONTNEED) == 0
                       : madvise(part, part_bytes, MADV_DONTNEED) == 0 && mprotect(part, part_bytes, PROT_NONE) == 0);
        }
    }
    MUST(munmap(reserved, GIB) == 0);
}

static void populated_pages_keep_their_contents(void) {
    char *area = cold_mapping(BYTES, 1);
    if (madvise(area, BYTES, MADV_POPULATE_READ) != 0 && errno == EINVAL)
        cannot_check("this kernel has no MADV_POPULATE_READ");
    /* Under stress, pages leave again at once. */
    bool stays = getenv("TERRACE_STRESS") == NULL;
    MUST(!stays || absent_pages(area, BYTES) < PAGES / 2);
    check(area, BYTES, 1);
    evict(area, BYTES);
    MUST(madvise(area, BYTES, MADV_POPULATE_WRITE) == 0);
    MUST(!stays || absent_pages(area, BYTES) < PAGES / 2);
    check(area, BYTES, 1);
    evict(area, BYTES);
    char *populated = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    MUST(populated != MAP_FAILED);
    check_zeros(populated, BYTES);
    fill(populated, BYTES, 2);
    evict(populated, BYTES);
    check(populated, BYTES, 2);
    check(area, BYTES, 1);
}

static void other_advice_changes_nothing(void) {
    static const int advice[] = {MADV_NORMAL,     MADV_RANDOM,   MADV_SEQUENTIAL, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
                                 MADV_COLLAPSE,   MADV_DONTDUMP, MADV_DODUMP,     MADV_COLD,     MADV_MERGEABLE, MADV_UNMERGEABLE};
    char *area = cold_mapping(BYTES, 1);
    for (size_t n = 0; n < COUNT(advice); n++) {
        madvise(area, BYTES, advice[n]);
        check(area, BYTES, 1);
        fill(area, BYTES, 1);
        if (evicts())
            madvise(area, BYTES, MADV_PAGEOUT);
    }
    check(area, BYTES, 1);
    MUST(madvise(area, BYTES, 12345) == -1 && errno == EINVAL);
    /* Of files only. */
    MUST(madvise(area, BYTES, MADV_REMOVE) == -1 && errno == EINVAL);
    check(area, BYTES, 1);
    area = cold_mapping(BYTES, 1);
    MUST(madvise(area + 1, BYTES, MADV_DONTNEED) == -1 && errno == EINVAL);
    check(area, BYTES, 1);
    if (madvise(AT(area, 500), 100 * PAGE, MADV_GUARD_INSTALL) == 0) {
        MUST(touch(AT(area, 550), false) == SIGSEGV);
        MUST(madvise(AT(area, 500), 100 * PAGE, MADV_GUARD_REMOVE) == 0);
        check_zeros(AT(area, 500), 100 * PAGE);
        check_pages(area, 0, 500, 1);
        check_pages(area, 600, PAGES, 1);
    }
}

static void calls_by_number(void) {
    char *area = cold_mapping(BYTES, 1);
    MUST(syscall(SYS_madvise, AT(area, 100), 100 * PAGE, MADV_DONTNEED) == 0);
    check_zeros(AT(area, 100), 100 * PAGE);
    check_pages(area, 0, 100, 1);
    MUST(syscall(SYS_munmap, AT(area, 200), 100 * PAGE) == 0);
    MUST(syscall(SYS_mmap, AT(area, 200), 50 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L) == (long)AT(area, 200));
    check_zeros(AT(area, 200), 50 * PAGE);
    MUST(syscall(SYS_mmap, AT(area, 250), 150 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L) ==
         (long)AT(area, 250));
    check_zeros(AT(area, 250), 150 * PAGE);
    check_pages(area, 400, 1000, 1);
    MUST(syscall(SYS_mprotect, AT(area, 1000), 200 * PAGE, PROT_NONE) == 0);
    MUST(touch(AT(area, 1100), false) == SIGSEGV);
    MUST(syscall(SYS_mprotect, AT(area, 1000), 200 * PAGE, PROT_READ | PROT_WRITE) == 0);
    check_pages(area, 1000, 1500, 1);
    long moved = syscall(SYS_mremap, AT(area, 1024), 512 * PAGE, 1024 * PAGE, MREMAP_MAYMOVE, 0L);
    MUST(moved != -1);
    for (size_t p = 0; p < 512; p++)
        for (size_t w = 0; w < 512; w++)
            MUST(((uint64_t *)moved)[p * 512 + w] == word_of(1, p + 1024, w));
    check_zeros((char *)moved + 512 * PAGE, 512 * PAGE);
    check_pages(area, 1536, PAGES, 1);
    MUST(syscall(SYS_madvise, area, 77 * PAGE, 999) == -1 && errno == EINVAL);
}

static size_t resident_bytes(void) {
    char text[200] = "";
    int file = open("/proc/self/statm", O_RDONLY);
    MUST(file >= 0 && read(file, text, sizeof text - 1) > 0);
    close(file);
    return strtoul(strchr(text, ' '), NULL, 10) * PAGE;
}

static void sparse_reservations_cost_little(void) {
    mapping(2 * MIB);
    size_t before = resident_bytes();
    char *none = mmap(NULL, 1024 * GIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *sparse = mmap(NULL, 64 * GIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(none != MAP_FAILED && sparse != MAP_FAILED);
    for (int round = 0; round < 3; round++) {
        for (size_t n = 0; n < 64; n++)
            if (round)
                check_pages(sparse + n * GIB, 0, 4, n);
            else
                fill(sparse + n * GIB, 4 * PAGE, n);
        if (evicts())
            for (size_t n = 0; n < 64; n++)
                MUST(madvise(sparse + n * GIB, 4 * PAGE, MADV_PAGEOUT) == 0);
    }
    MUST(mprotect(none + 512 * GIB, 4 * MIB, PROT_READ | PROT_WRITE) == 0);
    fill(none + 512 * GIB, 4 * MIB, 99);
    evict(none + 512 * GIB, 4 * MIB);
    /* The mover has looked around meanwhile. */
    usleep(300000);
    size_t after = resident_bytes();
    dprintf(2, "resident %zu KiB, %zu KiB with the reservations\n", before / KIB, after / KIB);
    MUST(after < before + 40 * MIB);
    check(none + 512 * GIB, 4 * MIB, 99);
    MUST(madvise(sparse, 64 * GIB, MADV_DONTNEED) == 0);
    check_zeros(sparse + 7 * GIB, 4 * PAGE);
    MUST(mprotect(sparse, 64 * GIB, PROT_NONE) == 0);
    MUST(munmap(sparse, 64 * GIB) == 0 && munmap(none, 1024 * GIB) == 0);
}

static void *come_and_go(void *argument) {
    uint64_t state = (uint64_t)(uintptr_t)argument + 1;
    for (int n = 0; n < 60; n++) {
        state = mix(state * 31 + 7);
        size_t bytes = (1 + state % 4) * MIB;
        char *area = mapping(bytes);
        check_zeros(area, bytes);
        fill(area, bytes, state % 100);
        if (evicts())
            MUST(madvise(area, bytes, MADV_PAGEOUT) == 0);
        if (state & 1024) {
            MUST(munmap(area + bytes / 2, bytes / 2) == 0);
            bytes /= 2;
        } else if (state & 2048) {
            area = mremap(area, bytes, bytes, MREMAP_MAYMOVE);
            MUST(area != MAP_FAILED);
        }
        check(area, bytes, state % 100);
        MUST(munmap(area, bytes) == 0);
    }
    return NULL;
}

/* Reservations larger than the machine, changed in all ways and given up. They leave nothing
 * behind: what comes afterwards can be evicted. */
static void large_reservations_are_given_up(void) {
    enum { TIMES = 4 };
    const size_t huge = (size_t)1 << 40;
    char *first = cold_mapping(BYTES, 1);
    for (int n = 0; n < TIMES; n++) {
        char *reserved = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved == MAP_FAILED)
            cannot_check("no address space for a large reservation");
        char *used = reserved + (huge >> 2) + 5 * PAGE;
        fill(used, 64 * PAGE, (uint64_t)n);
        MUST(madvise(reserved, huge, MADV_PAGEOUT) == 0);
        check(used, 64 * PAGE, (uint64_t)n);
        MUST(mprotect(reserved, huge, PROT_READ) == 0 && mprotect(reserved, huge, PROT_READ | PROT_WRITE) == 0);
        check(used, 64 * PAGE, (uint64_t)n);
        MUST(madvise(reserved, huge, n % 2 ? MADV_FREE : MADV_DONTNEED) == 0);
        if (n % 2 == 0 || evicts())
            check_zeros(used, 64 * PAGE);
        MUST(mremap(reserved, huge, huge / 2, 0) == reserved);
        MUST(munmap(reserved, huge / 2) == 0);
    }
    check(first, BYTES, 1);
    evict(first, BYTES);
    char *second = cold_mapping(BYTES, 2);
    check(first, BYTES, 1);
    check(second, BYTES, 2);
}

static void mappings_come_and_go_in_threads(void) {
    pthread_t threads[4];
    for (size_t n = 0; n < COUNT(threads); n++)
        MUST(pthread_create(&threads[n], NULL, come_and_go, (void *)n) == 0);
    for (size_t n = 0; n < COUNT(threads); n++)
        pthread_join(threads[n], NULL);
}

/* A handler that may interrupt any of the calls touches evicted memory. */
static char *touched_by_handler;
static atomic_long ticks;
static void on_tick(int number) {
    int saved = errno;
    size_t page = (size_t)(ticks++ * 37 % PAGES);
    check_pages(touched_by_handler, page, page + 1, 1);
    errno = saved;
}

static void signals_arrive_during_memory_calls(void) {
    touched_by_handler = cold_mapping(BYTES, 1);
    char *area = mapping(BYTES);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pid_t parent = getpid(), sender = fork();
    if (sender == 0) {
        signal(SIGUSR1, SIG_IGN);
        while (getppid() == parent) {
            kill(parent, SIGUSR1);
            usleep(200);
        }
        _exit(0);
    }
    for (int round = 0; round < 40; round++) {
        fill(area, BYTES, (uint64_t)round);
        if (evicts()) {
            MUST(madvise(area, BYTES, MADV_PAGEOUT) == 0);
            MUST(madvise(touched_by_handler, BYTES, MADV_PAGEOUT) == 0);
        }
        MUST(mprotect(area, BYTES, PROT_READ) == 0 && mprotect(area, BYTES, PROT_READ | PROT_WRITE) == 0);
        MUST(madvise(area, BYTES / 2, MADV_DONTNEED) == 0);
        check_zeros(area, BYTES / 2);
        area = mremap(area, BYTES, BYTES + BYTES / 2 * (round % 2), MREMAP_MAYMOVE);
        MUST(area != MAP_FAILED);
        check_pages(area, PAGES / 2, PAGES, (uint64_t)round);
        MUST(munmap(area, BYTES + BYTES / 2 * (size_t)(round % 2)) == 0);
        area = mapping(BYTES);
    }
    signal(SIGUSR1, SIG_IGN);
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
    check(touched_by_handler, BYTES, 1);
}

/* The handler needs what the interrupted call is just at work on. */
static void on_tick_touch_even_pages(int number) {
    int saved = errno;
    for (int n = 0; n < 4; n++) {
        size_t page = (size_t)(ticks++ * 74 % PAGES);
        check_pages(touched_by_handler, page, page + 1, 1);
    }
    errno = saved;
}

static void signal_handlers_touch_neighbours_of_discarded_pages(void) {
    char *area = touched_by_handler = cold_mapping(BYTES, 1);
    struct sigaction action = {.sa_handler = on_tick_touch_even_pages, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pid_t parent = getpid(), sender = fork();
    if (sender == 0) {
        signal(SIGUSR1, SIG_IGN);
        while (getppid() == parent) {
            kill(parent, SIGUSR1);
            usleep(50);
        }
        _exit(0);
    }
    double until = seconds_now() + 3;
    while (seconds_now() < until) {
        for (int p = 1; p < PAGES; p += 2)
            for (size_t w = 0; w < 512; w++)
                ((uint64_t *)AT(area, p))[w] = word_of(1, (size_t)p, w);
        if (evicts())
            MUST(madvise(area, BYTES, MADV_PAGEOUT) == 0);
        for (int p = 1; p < PAGES; p += 2)
            MUST(madvise(AT(area, p), PAGE, MADV_DONTNEED) == 0);
        for (int p = 1; p < PAGES; p += 2)
            check_zeros(AT(area, p), PAGE);
    }
    signal(SIGUSR1, SIG_IGN);
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
    for (size_t p = 0; p < PAGES; p += 2)
        check_pages(area, p, p + 1, 1);
}

/* The kernel refuses to discard locked memory, and what it refuses must not have happened.
 * MLOCK_ONFAULT brings nothing back: pages are out. */
static void refused_discards_keep_contents(void) {
    static const int advice[] = {MADV_DONTNEED, MADV_FREE};
    for (size_t n = 0; n < COUNT(advice); n++) {
        char *area = cold_mapping(BYTES, 1);
        if (syscall(SYS_mlock2, area, BYTES, 1 /* MLOCK_ONFAULT */) != 0)
            cannot_check("RLIMIT_MEMLOCK is too low");
        MUST(!evicts() || absent_pages(area, BYTES) > PAGES / 2);
        MUST(madvise(area, BYTES, advice[n]) == -1 && errno == EINVAL);
        MUST(madvise(AT(area, 600), 3 * PAGE, advice[n]) == -1 && errno == EINVAL);
        check(area, BYTES, 1);
        MUST(munlock(area, BYTES) == 0);
        evict(area, BYTES);
        /* Half locked: the kernel discards up to there, refuses, and leaves the rest. */
        MUST(syscall(SYS_mlock2, AT(area, 700), 600 * PAGE, 1) == 0);
        MUST(madvise(area, BYTES, advice[n]) == -1 && errno == EINVAL);
        check_pages(area, 700, PAGES, 1);
        if (advice[n] == MADV_DONTNEED)
            check_zeros(area, 700 * PAGE);
        MUST(munlock(area, BYTES) == 0);
        fill(area, BYTES, 2);
        evict(area, BYTES);
        /* Holes are not refusals. */
        MUST(munmap(AT(area, 100), PAGE) == 0);
        MUST(madvise(area, BYTES, MADV_DONTNEED) == -1 && errno == ENOMEM);
        check_zeros(area, 100 * PAGE), check_zeros(AT(area, 101), (PAGES - 101) * PAGE);
        MUST(munmap(area, BYTES) == 0);
    }
    /* Locked memory is discarded when that is asked for by name. */
    char *area = cold_mapping(BYTES, 1);
    MUST(syscall(SYS_mlock2, area, BYTES, 1) == 0);
    if (madvise(AT(area, 100), 1000 * PAGE, 24 /* MADV_DONTNEED_LOCKED */) == 0)
        check_zeros(AT(area, 100), 1000 * PAGE);
    check_pages(area, 0, 100, 1);
    check_pages(area, 1100, PAGES, 1);
}

/* What is moved or shrunk remains what it was: partly read-only, partly kept from children. */
static void remapped_memory_keeps_its_kind(void) {
    for (int moved = 0; moved < 2; moved++) {
        char *area = cold_mapping(BYTES, 1);
        MUST(mprotect(AT(area, 512), 512 * PAGE, PROT_READ) == 0);
        MUST(madvise(AT(area, 1024), 512 * PAGE, MADV_WIPEONFORK) == 0);
        if (moved) {
            char *target = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            for (size_t p = 0; p < 1536; p += 512)
                MUST(mremap(AT(area, p), 512 * PAGE, 512 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, AT(target, p)) == AT(target, p));
            area = target;
        } else {
            MUST(mremap(area, BYTES, 1536 * PAGE, 0) == area);
        }
        MUST(touch(AT(area, 600), true) == SIGSEGV);
        if (evicts())
            madvise(area, 1536 * PAGE, MADV_PAGEOUT);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            check_zeros(AT(area, 1024), 512 * PAGE);
            check_pages(area, 0, 1024, 1);
            _exit(0);
        }
        wait_for(child);
        check_pages(area, 0, 1536, 1);
        MUST(mprotect(AT(area, 512), 512 * PAGE, PROT_READ | PROT_WRITE) == 0);
        evict(area, 1024 * PAGE);
        check_pages(area, 0, 1536, 1);
    }
}

/* A mapping that fails half-way may leave a hole. What comes there next is new. */
static void failed_mappings_leave_no_old_contents(void) {
    int file = memfd_create("file", MFD_ALLOW_SEALING);
    MUST(file >= 0 && ftruncate(file, BYTES) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    char *area = cold_mapping(BYTES, 1);
    /* The file itself refuses, when the kernel has already made room for it. */
    MUST(mmap(AT(area, 512), 1024 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED && errno == EPERM);
    if (touch(AT(area, 600), false) == 0) {
        check(area, BYTES, 1);
        /* It is what it was before, evictable included. */
        evict(AT(area, 512), 1024 * PAGE);
    } else {
        MUST(mmap(AT(area, 512), 1024 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == AT(area, 512));
        /* Every other page is written; pages between them were never touched and are zeros, however
         * often their neighbours leave. */
        for (int round = 0; round < 3; round++) {
            for (size_t p = 512; p < 1536; p += 2)
                for (size_t w = 0; w < 512; w++)
                    ((uint64_t *)AT(area, p))[w] = word_of(2, p, w);
            if (evicts())
                MUST(madvise(AT(area, 512), 1024 * PAGE, MADV_PAGEOUT) == 0);
            for (size_t p = 512; p < 1536; p += 2) {
                check_zeros(AT(area, p + 1), PAGE);
                check_pages(area, p, p + 1, 2);
            }
        }
    }
    check_pages(area, 0, 512, 1);
    check_pages(area, 1536, PAGES, 1);
}

static long call_without_the_c_library(long number, void *address, size_t bytes) {
    return syscall_without_the_c_library(number, (long)address, (long)bytes, 0, 0, 0, 0);
}

static long advise_without_the_c_library(void *address, size_t bytes, int advice) {
    return syscall_without_the_c_library(SYS_madvise, (long)address, (long)bytes, advice, 0, 0, 0);
}

/* Removed by a call that nothing can interpose, and mapped anew: nothing of what was there comes back. */
static void memory_removed_behind_the_c_library(void) {
    char *area = cold_mapping(BYTES, 1);
    for (int round = 0; round < 3; round++) {
        MUST(call_without_the_c_library(SYS_munmap, AT(area, 512), 1024 * PAGE) == 0);
        MUST(mmap(AT(area, 512), 1024 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == AT(area, 512));
        for (size_t p = 512; p < 1536; p += 2)
            for (size_t w = 0; w < 512; w++)
                ((uint64_t *)AT(area, p))[w] = word_of(2, p, w);
        evict(AT(area, 512), PAGE);
        if (evicts())
            MUST(madvise(AT(area, 512), 1024 * PAGE, MADV_PAGEOUT) == 0);
        for (size_t p = 512; p < 1536; p += 2) {
            check_zeros(AT(area, p + 1), PAGE);
            check_pages(area, p, p + 1, 2);
        }
        check_pages(area, 0, 512, 1);
        check_pages(area, 1536, PAGES, 1);
        fill(AT(area, 512), 1024 * PAGE, 3);
        evict(area, BYTES);
    }
}

/* Variables that begin as zeros are memory as any other. */
static char variables[4 * BYTES] __attribute__((aligned(4096)));

static void static_data_leaves_too(void) {
    /* What lies at the beginning of them all stays. */
    char *area = AT(variables, BYTES / PAGE);
    for (uint64_t round = 0; round < 3; round++) {
        check_zeros(AT(area, 1000), 24 * PAGE);
        fill(area, 1000 * PAGE, round);
        evict(area, 1000 * PAGE);
        pid_t child = fork();
        if (child == 0) {
            check(area, 1000 * PAGE, round);
            fill(area, 1000 * PAGE, 9);
            evict(area, 1000 * PAGE);
            check(area, 1000 * PAGE, 9);
            _exit(0);
        }
        wait_for(child);
        check(area, 1000 * PAGE, round);
        evict(area, 1000 * PAGE);
        int pipes[2];
        MUST(pipe(pipes) == 0 && write(pipes[1], AT(area, 7), PAGE) == PAGE && read(pipes[0], AT(area, 8), PAGE) == PAGE);
        MUST(memcmp(AT(area, 7), AT(area, 8), PAGE) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
        MUST(madvise(AT(area, 500), 100 * PAGE, MADV_DONTNEED) == 0);
        check_zeros(AT(area, 500), 100 * PAGE);
        check_pages(area, 600, 1000, round);
    }
}

static void *break_by_number(void *end) { return (void *)syscall(SYS_brk, end); }

static void the_break_moves(void) {
    char *before = sbrk(0);
    MUST(break_by_number(NULL) == before && sbrk(0) == before);
    size_t odd = (size_t)(PAGE - (uintptr_t)before % PAGE) % PAGE;
    /* Not from a page on, and not to one. */
    MUST(sbrk((intptr_t)odd + 100) == before);
    char *area = before + odd;
    MUST(sbrk(BYTES) == area + 100);
    for (uint64_t round = 0; round < 4; round++) {
        fill(area, BYTES, round);
        evict(area, BYTES);
        pid_t child = fork();
        if (child == 0) {
            check(area, BYTES, round);
            MUST(brk(AT(area, 10)) == 0 && touch(AT(area, 10), false) == SIGSEGV && sbrk(BYTES) == AT(area, 10));
            check_zeros(AT(area, 10), BYTES);
            check_pages(area, 0, 10, round);
            _exit(0);
        }
        wait_for(child);
        check(area, BYTES, round);
        evict(area, BYTES);
        /* What is given up and taken again is zeros; the rest stays. */
        char *to = AT(area, 1000);
        switch (round) {
        case 0:
            MUST(sbrk(to - (char *)sbrk(0)) == AT(area, PAGES) + 100);
            break;
        case 1:
            MUST(brk(to) == 0);
            break;
        case 2:
            MUST(break_by_number(to) == to);
            break;
        default:
            MUST(call_without_the_c_library(SYS_brk, to, 0) == (long)to);
        }
        MUST(touch(to, false) == SIGSEGV);
        MUST(break_by_number(AT(area, PAGES) + 100) == AT(area, PAGES) + 100 && brk(AT(area, PAGES) + 100) == 0);
        check_zeros(to, (PAGES - 1000) * PAGE);
        check_pages(area, 0, 1000, round);
    }
    /* Refused: nothing has changed. */
    fill(area, BYTES, 5);
    evict(area, BYTES);
    struct rlimit limit = {BYTES, RLIM_INFINITY};
    MUST(setrlimit(RLIMIT_DATA, &limit) == 0);
    MUST(sbrk(64 * BYTES) == (void *)-1 && errno == ENOMEM && brk(AT(area, 64 * PAGES)) == -1 && errno == ENOMEM);
    MUST(break_by_number(AT(area, 64 * PAGES)) == AT(area, PAGES) + 100);
    /* To the C library this is high enough. */
    MUST(brk((void *)PAGE) == 0 && break_by_number((void *)PAGE) == AT(area, PAGES) + 100);
    check(area, BYTES, 5);
    evict(area, BYTES);
    MUST(brk(before) == 0 && sbrk(0) == before && touch(AT(area, 1), false) == SIGSEGV);
}

/* What came where managed memory was, and is not managed: every other page holds what was written,
 * the others are zeros. */
static void fill_every_other_page(char *area, size_t pages, uint64_t seed) {
    for (size_t p = 0; p < pages; p += 2)
        for (size_t w = 0; w < 512; w++)
            ((uint64_t *)AT(area, p))[w] = word_of(seed, p, w);
}

static void check_every_other_page(char *area, size_t pages, uint64_t seed) {
    for (size_t p = 0; p < pages; p++)
        if (p % 2)
            check_zeros(AT(area, p), PAGE);
        else
            check_pages(area, p, p + 1, seed);
}

/* The thread that evicts has its chance, and is asked to. */
static void hold_every_other_page(char *area, size_t pages, uint64_t seed) {
    for (int round = 0; round < 4; round++) {
        MUST(madvise(area, pages * PAGE, MADV_PAGEOUT) == 0);
        check_every_other_page(area, pages, seed);
        usleep(20000);
    }
    pid_t child = fork();
    if (child == 0) {
        check_every_other_page(area, pages, seed);
        fill_every_other_page(area, pages, seed + 1);
        MUST(madvise(area, pages * PAGE, MADV_PAGEOUT) == 0);
        check_every_other_page(area, pages, seed + 1);
        _exit(0);
    }
    wait_for(child);
    check_every_other_page(area, pages, seed);
}

enum { SMALL = 32 };

static char *small_mapping_at(char *place, bool past_the_c_library) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (past_the_c_library) {
        long at = syscall_without_the_c_library(SYS_mmap, (long)place, SMALL * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        MUST(at == (long)place);
    } else {
        MUST(mmap(place, SMALL * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == place);
    }
    return place;
}

/* Advice on children that is given, and taken back, by instructions of the program's own. */
static void advice_on_children_behind_the_c_library(void) {
    char *area = cold_mapping(BYTES, 1);
    MUST(madvise(AT(area, 500), 1000 * PAGE, MADV_DONTFORK) == 0);
    MUST(advise_without_the_c_library(AT(area, 500), 1000 * PAGE, MADV_DOFORK) == 0);
    MUST(status_of_child(all_is_there, area) == 0);
    check(area, BYTES, 1);
    fill(area, BYTES, 1);
    evict(area, BYTES);
    MUST(advise_without_the_c_library(AT(area, 500), 1000 * PAGE, MADV_DONTFORK) == 0);
    MUST(advise_without_the_c_library(AT(area, 800), 100 * PAGE, MADV_DOFORK) == 0);
    MUST(status_of_child(child_has_none_of_it, area) == 0);
    check(area, BYTES, 1);
    fill(area, BYTES, 1);
    MUST(madvise(AT(area, 0), 400 * PAGE, MADV_DONTFORK) == 0);
    MUST(advise_without_the_c_library(AT(area, 100), 1300 * PAGE, MADV_DOFORK) == 0);
    evict(area, BYTES);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        check_pages(area, 100, 1400, 1);
        _exit(0);
    }
    wait_for(child);
    check(area, BYTES, 1);
}

/* Removed as a collector's or a JIT's own system call removes it. What comes there is small, by the
 * C library's mmap or as it maps itself (stacks of threads, libraries). Pages that were out then,
 * and pages that were back. */
static void small_mappings_where_memory_was_removed(void) {
    for (int kind = 0; kind < 4; kind++) {
        char *area = cold_mapping(BYTES, 1), *place = AT(area, 512);
        if (kind & 1)
            check(area, BYTES, 1);
        MUST(call_without_the_c_library(SYS_munmap, place, 1024 * PAGE) == 0);
        for (int n = 0; n < 8; n++)
            fill_every_other_page(small_mapping_at(AT(place, n * SMALL), kind & 2), SMALL, (uint64_t)n + 2);
        for (int n = 0; n < 8; n++)
            hold_every_other_page(AT(place, n * SMALL), SMALL, (uint64_t)n + 2);
        check_pages(area, 0, 512, 1);
        check_pages(area, 1536, PAGES, 1);
        /* And managed again. */
        for (int n = 0; n < 8; n++)
            MUST(call_without_the_c_library(SYS_munmap, AT(place, n * SMALL), SMALL * PAGE) == 0);
        MUST(mmap(place, 1024 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place);
        check_zeros(place, 1024 * PAGE);
        fill(place, 1024 * PAGE, 5);
        evict(place, 1024 * PAGE);
        check(place, 1024 * PAGE, 5);
        MUST(munmap(area, BYTES) == 0);
    }
}

/* shmat with SHM_REMAP replaces what is mapped, and shmdt leaves room. */
static void shared_segments_replace_memory(void) {
    for (int kind = 0; kind < 4; kind++) {
        char *area = cold_mapping(BYTES, 1), *place = AT(area, 512);
        if (kind & 1)
            check(area, BYTES, 1);
        int id = shmget(IPC_PRIVATE, 1024 * PAGE - 100, IPC_CREAT | 0600);
        MUST(id >= 0);
        MUST(shmat(id, place, 0) == (void *)-1 && errno == EINVAL);
        check_pages(area, 500, 700, 1);
        void *attached = kind & 2 ? (void *)syscall(SYS_shmat, id, place, SHM_REMAP) : shmat(id, place + 5, SHM_REMAP | SHM_RND);
        MUST(attached == place && shmctl(id, IPC_RMID, NULL) == 0);
        check_zeros(place, 1024 * PAGE);
        fill(place, 1024 * PAGE, 3);
        MUST(madvise(place, 1024 * PAGE, MADV_PAGEOUT) == 0 || errno == EINVAL);
        check(place, 1024 * PAGE, 3);
        MUST(shmdt(place) == 0);
        for (int n = 0; n < 8; n++)
            fill_every_other_page(small_mapping_at(AT(place, n * SMALL), true), SMALL, (uint64_t)n + 2);
        for (int n = 0; n < 8; n++)
            hold_every_other_page(AT(place, n * SMALL), SMALL, (uint64_t)n + 2);
        check_pages(area, 0, 512, 1);
        check_pages(area, 1536, PAGES, 1);
        MUST(munmap(area, BYTES) == 0);
    }
}

/* madvise for another process, which is this one: newer allocators' way to discard many ranges at once. */
static void advice_through_a_process_descriptor(void) {
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    MUST(self >= 0);
    char *area = cold_mapping(BYTES, 1);
    struct iovec parts[] = {{AT(area, 100), 300 * PAGE}, {AT(area, 1000), 100 * PAGE}};
    ssize_t done = syscall(SYS_process_madvise, self, parts, 2UL, MADV_DONTNEED, 0UL);
    if (done == -1) {
        /* Before Linux 6.13. */
        MUST(errno == EINVAL || errno == EPERM || errno == ENOSYS);
        check(area, BYTES, 1);
    } else {
        MUST(done == 400 * PAGE);
        check_zeros(AT(area, 100), 300 * PAGE), check_zeros(AT(area, 1000), 100 * PAGE);
        check_pages(area, 0, 100, 1), check_pages(area, 400, 1000, 1), check_pages(area, 1100, PAGES, 1);
        fill(area, BYTES, 1);
        evict(area, BYTES);
        /* Up to the first that is refused. */
        MUST(syscall(SYS_mlock2, AT(area, 1050), PAGE, 1) == 0);
        done = syscall(SYS_process_madvise, self, parts, 2UL, MADV_DONTNEED, 0UL);
        MUST(done == 300 * PAGE);
        check_zeros(AT(area, 100), 300 * PAGE);
        check_pages(area, 1050, PAGES, 1);
        MUST(munlock(area, BYTES) == 0);
    }
    fill(area, BYTES, 1);
    syscall(SYS_process_madvise, self, parts, 2UL, MADV_PAGEOUT, 0UL);
    check(area, BYTES, 1);
    /* Really another's: not ours to change here. */
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        MUST(read(ends[0], &byte, 1) == 1);
        check(area, BYTES, 1);
        _exit(0);
    }
    int other = (int)syscall(SYS_pidfd_open, child, 0);
    if (evicts())
        madvise(area, BYTES, MADV_PAGEOUT);
    MUST(syscall(SYS_process_madvise, other, parts, 2UL, MADV_DONTNEED, 0UL) == -1);
    syscall(SYS_process_madvise, other, parts, 2UL, MADV_COLD, 0UL);
    check(area, BYTES, 1);
    MUST(write(ends[1], "x", 1) == 1);
    wait_for(child);
    MUST(syscall(SYS_process_madvise, -1, parts, 2UL, MADV_DONTNEED, 0UL) == -1 && errno == EBADF);
    check(area, BYTES, 1);
}

/* Readers without a lock see the old contents or the new ones, and are never left waiting for what was there. */
static char *replaced;
static atomic_bool replacing_ends;
static atomic_size_t reads_done[2];
static void *read_replaced(void *argument) {
    for (size_t n = 0; !replacing_ends; n++, (*(atomic_size_t *)argument)++) {
        size_t page = n * 37 % 512;
        uint64_t word = *(volatile uint64_t *)AT(replaced, page);
        MUST(word == 0 || word == word_of(7, page, 0));
        if (n % 64 == 0)
            usleep(20);
    }
    return NULL;
}

/* Before anything else is done to the memory: that could wake a reader that waits in vain. */
static void all_readers_get_on(void) {
    for (size_t n = 0; n < COUNT(reads_done); n++) {
        size_t before = reads_done[n];
        double deadline = seconds_now() + 20;
        /* One read may have been over when the memory was replaced. */
        while (reads_done[n] < before + 2)
            MUST(seconds_now() < deadline);
    }
}

static void memory_is_replaced_while_it_is_read(void) {
    replaced = cold_mapping(2 * MIB, 7);
    pthread_t readers[2];
    for (size_t n = 0; n < COUNT(readers); n++)
        MUST(pthread_create(&readers[n], NULL, read_replaced, &reads_done[n]) == 0);
    char *fresh = mapping(2 * MIB);
    for (int round = 0; round < 60; round++) {
        /* At another point of a restore each time. */
        usleep((useconds_t)(round * 20));
        switch (round % 3) {
        case 0:
            MUST(mmap(replaced, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == replaced);
            break;
        case 1:
            MUST(madvise(replaced, 2 * MIB, MADV_DONTNEED) == 0);
            break;
        default:
            fill(fresh, 2 * MIB, 7);
            MUST(mremap(fresh, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, replaced) == replaced);
            fresh = mapping(2 * MIB);
        }
        all_readers_get_on();
        fill(replaced, 2 * MIB, 7);
        if (evicts())
            MUST(madvise(replaced, 2 * MIB, MADV_PAGEOUT) == 0);
        check(replaced, 2 * MIB, 7);
        if (evicts())
            MUST(madvise(replaced, 2 * MIB, MADV_PAGEOUT) == 0);
    }
    replacing_ends = true;
    for (size_t n = 0; n < COUNT(readers); n++)
        pthread_join(readers[n], NULL);
    check(replaced, 2 * MIB, 7);
}

/* A thread that waits for an evicted page when its mapping goes gets the signal that it would get without Terrace. */
static void *read_until_gone(void *argument) {
    char *area = argument;
    for (size_t p = 0;; p = (p + 1) % 512)
        if (touch(AT(area, p), false) == SIGSEGV)
            return NULL;
}

static void memory_goes_while_it_is_read(void) {
    for (int round = 0; round < 40; round++) {
        char *area = cold_mapping(2 * MIB, 1);
        pthread_t reader;
        MUST(pthread_create(&reader, NULL, read_until_gone, area) == 0);
        usleep((useconds_t)(round * 20));
        MUST(round % 2 ? munmap(area, 2 * MIB) == 0 : mprotect(area, 2 * MIB, PROT_NONE) == 0);
        pthread_join(reader, NULL);
        if (round % 2 == 0) {
            MUST(mprotect(area, 2 * MIB, PROT_READ | PROT_WRITE) == 0);
            check(area, 2 * MIB, 1);
        }
    }
}

/* ---- userfaultfd, used by the program itself ---- */

static int own_uffd(void) {
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0)
        cannot_check("userfaultfd is not permitted");
    struct uffdio_api api = {.api = UFFD_API};
    MUST(ioctl(uffd, UFFDIO_API, &api) == 0);
    return uffd;
}

static char *served;
static void *serve_own_faults(void *argument) {
    int uffd = (int)(intptr_t)argument;
    static _Alignas(PAGE) uint64_t page[512];
    for (;;) {
        struct pollfd polled = {.fd = uffd, .events = POLLIN};
        struct uffd_msg message;
        if (poll(&polled, 1, 100) < 1 || read(uffd, &message, sizeof message) != sizeof message) {
            if (!served)
                return NULL;
            continue;
        }
        char *address = (char *)(uintptr_t)(message.arg.pagefault.address & ~(uint64_t)(PAGE - 1));
        size_t p = (size_t)(address - served) / PAGE;
        for (size_t w = 0; w < 512; w++)
            page[w] = word_of(5, p, w);
        struct uffdio_copy copy = {.dst = (uintptr_t)address, .src = (uintptr_t)page, .len = PAGE};
        MUST(ioctl(uffd, UFFDIO_COPY, &copy) == 0 || errno == EEXIST);
    }
}

static void a_userfaultfd_of_the_programs_own(void) {
    int uffd = own_uffd();
    char *area = cold_mapping(BYTES, 1);
    MUST(madvise(AT(area, 512), 1024 * PAGE, MADV_DONTNEED) == 0);
    served = area;
    pthread_t server;
    MUST(pthread_create(&server, NULL, serve_own_faults, (void *)(intptr_t)uffd) == 0);
    /* A part that was touched and evicted, and a part that is missing, which is what the program
     * wants to be asked for. */
    struct uffdio_register wanted = {.range = {(uintptr_t)AT(area, 256), 1280 * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    MUST(ioctl(uffd, UFFDIO_REGISTER, &wanted) == 0);
    for (int round = 0; round < 3; round++) {
        if (evicts())
            MUST(madvise(area, BYTES, MADV_PAGEOUT) == 0);
        check_pages(area, 0, 512, 1);
        check_pages(area, 512, 1536, 5);
        check_pages(area, 1536, PAGES, 1);
        MUST(madvise(AT(area, 512), 1024 * PAGE, MADV_DONTNEED) == 0);
    }
    /* Given back to the kernel, then zeros again where nothing is. */
    MUST(ioctl(uffd, UFFDIO_UNREGISTER, &wanted.range) == 0);
    check_zeros(AT(area, 512), 1024 * PAGE);
    check_pages(area, 0, 512, 1);
    /* Asked for more than is its own: what that does is the kernel's business (Linux 6.15 on
     * refuses), but nothing is lost by it. */
    evict(area, 256 * PAGE), evict(AT(area, 1536), 512 * PAGE);
    struct uffdio_range crooked = {(uintptr_t)area + 1, PAGE}, all = {(uintptr_t)area, BYTES};
    MUST(ioctl(uffd, UFFDIO_UNREGISTER, &crooked) == -1 && errno == EINVAL);
    ioctl(uffd, UFFDIO_UNREGISTER, &all);
    check_pages(area, 0, 512, 1);
    check_pages(area, 1536, PAGES, 1);
    served = NULL;
    pthread_join(server, NULL);
    close(uffd);
}

#ifndef UFFDIO_MOVE
struct uffdio_move {
    uint64_t dst, src, len, mode;
    int64_t move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

/* The program moves pages itself: out of evicted memory as well. */
static void pages_the_program_moves_itself(void) {
    int uffd = own_uffd();
    char *area = cold_mapping(BYTES, 1);
    char *target = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(target != MAP_FAILED);
    struct uffdio_register wanted = {.range = {(uintptr_t)target, BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    MUST(syscall(SYS_ioctl, uffd, UFFDIO_REGISTER, &wanted) == 0);
    for (uint64_t mode = 0; mode < 2; mode++) {
        struct uffdio_move move = {.dst = (uintptr_t)AT(target, 512 * mode), .src = (uintptr_t)AT(area, 512 * mode), .len = 512 * PAGE, .mode = mode << 1 /* holes are allowed */};
        int done;
        while ((done = ioctl(uffd, UFFDIO_MOVE, &move)) == -1 && errno == EAGAIN && move.move > 0)
            move.dst += (uint64_t)move.move, move.src += (uint64_t)move.move, move.len -= (uint64_t)move.move;
        if (done == -1 && errno == EINVAL && mode == 0)
            cannot_check("this kernel has no UFFDIO_MOVE");
        MUST(done == 0);
        check_pages(target, 512 * mode, 512 * mode + 512, 1);
    }
    check_pages(area, 1024, PAGES, 1);
    MUST(ioctl(uffd, UFFDIO_UNREGISTER, &wanted.range) == 0);
    check_zeros(area, 1024 * PAGE);
    close(uffd);
}

/* ---- many mappings ---- */

/* Every other page of a large area is read-only, so that each page is a mapping of the kernel's, up
 * to near its limit. */
static void mappings_near_the_limit(void) {
    size_t most = 0;
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    MUST(limit && fscanf(limit, "%zu", &most) == 1);
    fclose(limit);
    size_t pages = most > 70000 ? 70000 : most - 3000;
    char *area = mapping(pages * PAGE), *rest = cold_mapping(BYTES, 3);
    for (size_t p = 0; p < pages; p++)
        *(uint64_t *)AT(area, p) = mix(p);
    for (int round = 0; round < 2; round++) {
        if (evicts())
            MUST(madvise(area, pages * PAGE, MADV_PAGEOUT) == 0);
        for (size_t p = 0; p < pages; p += 2)
            MUST(mprotect(AT(area, p), PAGE, PROT_READ) == 0);
        if (evicts())
            MUST(madvise(area, pages * PAGE, MADV_PAGEOUT) == 0 && madvise(rest, BYTES, MADV_PAGEOUT) == 0);
        check(rest, BYTES, 3);
        for (size_t p = 0; p < pages; p++)
            MUST(*(uint64_t *)AT(area, p) == mix(p));
        for (size_t p = 1; p < pages; p += 2)
            *(uint64_t *)AT(area, p) = mix(p);
        /* New memory, discarded memory and removed memory among many others. */
        char *more = cold_heap(MIB, 4);
        check(more, MIB, 4);
        free(more);
        MUST(madvise(AT(area, 101), PAGE, MADV_DONTNEED) == 0);
        check_zeros(AT(area, 101), PAGE);
        *(uint64_t *)AT(area, 101) = mix(101);
        MUST(mprotect(area, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
        for (size_t p = 0; p < pages; p++)
            MUST(*(uint64_t *)AT(area, p) == mix(p));
    }
    MUST(munmap(area, pages * PAGE) == 0);
    check(rest, BYTES, 3);
}

static size_t mappings(void) {
    static char text[1 << 16];
    size_t lines = 0;
    int maps = open("/proc/self/maps", O_RDONLY);
    MUST(maps >= 0);
    for (ssize_t got; (got = read(maps, text, sizeof text)) > 0;)
        for (ssize_t n = 0; n < got; n++)
            lines += text[n] == '\n';
    close(maps);
    return lines;
}

/* Evictions here and there in a large area leave the program the mappings that it needs itself. */
static void few_mappings_are_left(void) {
    size_t most = 0;
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    MUST(limit && fscanf(limit, "%zu", &most) == 1);
    fclose(limit);
    if (most > 100000)
        cannot_check("vm.max_map_count is too large to come near it");
    enum { REGIONS = 2048, LEFT = 1000, NEEDED = 600 };
    size_t region = 2 * MIB, pages = most + 100;
    char *area = mapping(REGIONS * region), *stripes = mapping(pages * PAGE), *needed = mapping(BYTES);
    area = (char *)(((uintptr_t)area + region - 1) / region * region);
    size_t p = 0;
    for (size_t wanted = most - LEFT, have = mappings(); have < wanted; have = mappings())
        for (size_t end = p + (wanted - have + 1) / 2 * 2; p < end; p += 2)
            MUST(mprotect(AT(stripes, p), PAGE, PROT_NONE) == 0);
    for (size_t n = 0; n + 1 < REGIONS; n += 2)
        *(uint64_t *)(area + n * region) = mix(n);
    for (size_t n = 0; n + 1 < REGIONS && evicts(); n += 2)
        MUST(madvise(area + n * region, PAGE, MADV_PAGEOUT) == 0);
    for (size_t n = 0; n < NEEDED; n += 2)
        MUST(mprotect(AT(needed, n), PAGE, PROT_NONE) == 0);
    for (size_t n = 0; n + 1 < REGIONS; n++)
        MUST(*(uint64_t *)(area + n * region) == (n % 2 ? 0 : mix(n)));
}

/* Untouched pages beside evicted ones, in an area that is registered in long runs because mappings are many. */
static void untouched_pages_among_many_mappings(void) {
    enum { STRIPES = 20000 };
    char *stripes = mapping(STRIPES * (size_t)PAGE);
    for (size_t p = 0; p < STRIPES; p += 2)
        MUST(mprotect(AT(stripes, p), PAGE, PROT_NONE) == 0);
    char *area = mapping(128 * MIB);
    size_t pages = 128 * MIB / PAGE;
    for (int round = 0; round < 3; round++) {
        /* One region in three, then its neighbours, in which pages between are never touched. */
        for (size_t p = (size_t)round * 512; p < pages; p += 3 * 512)
            for (size_t q = p; q < p + 512; q += 3)
                *(uint64_t *)AT(area, q) = mix(q);
        for (size_t p = (size_t)round * 512; p < pages; p += 3 * 512)
            if (evicts())
                MUST(madvise(AT(area, p), 512 * PAGE, MADV_PAGEOUT) == 0);
        for (size_t p = 0; p < pages; p += 5)
            MUST(*(uint64_t *)AT(area, p) == (p % 512 % 3 == 0 && p / 512 % 3 <= (size_t)round ? mix(p) : 0));
        /* Discarded and written again: what was evicted there before must not come back. */
        MUST(madvise(AT(area, 600), 1000 * PAGE, MADV_DONTNEED) == 0);
        check_zeros(AT(area, 600), 1000 * PAGE);
        for (size_t p = 600; p < 1600; p++)
            if (p % 512 % 3 == 0 && p / 512 % 3 <= (size_t)round)
                *(uint64_t *)AT(area, p) = mix(p);
    }
    MUST(munmap(area, 128 * MIB) == 0 && munmap(stripes, STRIPES * (size_t)PAGE) == 0);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(discarded_pages_are_zeros),
        CASE(discarded_pages_that_are_written_at_once),
        CASE(unmapped_addresses_are_zeros_when_mapped_again),
        CASE(mapped_over_evicted_memory),
        CASE(remapped_memory_keeps_its_contents),
        CASE(partly_evicted_memory_is_remapped),
        CASE(remapped_memory_can_stay_mapped),
        CASE(protection_comes_and_goes),
        CASE(lazily_freed_pages_are_old_or_zero),
        CASE(children_get_what_they_may),
        CASE(memory_kept_from_children_leaves_too),
        CASE(small_chunks_kept_from_children),
        CASE(locked_pages_are_resident),
        CASE(everything_locked),
        CASE(mincore_works),
        CASE(system_calls_take_evicted_buffers),
        CASE(spliced_pages_keep_their_contents),
        CASE(other_processes_read_and_write),
        CASE(direct_io_uses_evicted_pages),
        CASE(reallocated_memory_keeps_its_contents),
        CASE(signal_handlers_run_on_evicted_stacks),
        CASE(reservations_are_opened_in_parts),
        CASE(populated_pages_keep_their_contents),
        CASE(other_advice_changes_nothing),
        CASE(calls_by_number),
        CASE(sparse_reservations_cost_little),
        CASE(large_reservations_are_given_up),
        CASE(mappings_come_and_go_in_threads),
        CASE(signals_arrive_during_memory_calls),
        CASE(signal_handlers_touch_neighbours_of_discarded_pages),
        CASE(refused_discards_keep_contents),
        CASE(remapped_memory_keeps_its_kind),
        CASE(failed_mappings_leave_no_old_contents),
        CASE(static_data_leaves_too),
        CASE(the_break_moves),
        CASE(memory_removed_behind_the_c_library),
        CASE(advice_on_children_behind_the_c_library),
        CASE(small_mappings_where_memory_was_removed),
        CASE(shared_segments_replace_memory),
        CASE(advice_through_a_process_descriptor),
        CASE(memory_is_replaced_while_it_is_read),
        CASE(memory_goes_while_it_is_read),
        CASE(a_userfaultfd_of_the_programs_own),
        CASE(pages_the_program_moves_itself),
        CASE(mappings_near_the_limit),
        CASE(untouched_pages_among_many_mappings),
        CASE(few_mappings_are_left),
    };
    return run_case(count, words, cases, COUNT(cases));
}
