/* System calls with buffers in memory that is evicted, half evicted, or being evicted at that
 * moment. Usage: see cold.h; the scratch directory for O_DIRECT is $TMPDIR or /var/tmp. */
#include "cold.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/errqueue.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <termios.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#define MSG_ZEROCOPY 0x4000000
#endif

enum { BYTES = 4 << 20, PAGES = BYTES / PAGE };
#define AT(area, page) ((area) + (size_t)(page) * PAGE)

/* Pages an area out for as long as a case runs, so that its pages are met in every state. */
static struct mover {
    char *area;
    size_t bytes;
    atomic_bool ends;
    pthread_t thread;
} movers[2];

static void *keep_moving(void *argument) {
    struct mover *mover = argument;
    const struct timespec moment = {0, 100000};
    while (!mover->ends)
        for (size_t from = 0; from < mover->bytes && !mover->ends; from += MIB) {
            madvise(mover->area + from, MIB, MADV_PAGEOUT);
            /* Two threads that wake each other without a pause can keep the kernel's own from the
             * processor (docs/known-problems.md). */
            nanosleep(&moment, NULL);
        }
    return NULL;
}

static void start_moving(struct mover *mover, char *area, size_t bytes) {
    *mover = (struct mover){.area = area, .bytes = bytes};
    if (evicts())
        MUST(pthread_create(&mover->thread, NULL, keep_moving, mover) == 0);
}

static void stop_moving(struct mover *mover) {
    mover->ends = true;
    if (evicts())
        pthread_join(mover->thread, NULL);
}

static void page_out(char *area, size_t bytes) {
    if (evicts())
        MUST(madvise(area, bytes, MADV_PAGEOUT) == 0);
}

/* What a buffer's pages from one on hold, if `source`'s from another on were copied there. */
static void check_copied(const char *copy, size_t page, size_t source_page, size_t pages, uint64_t seed) {
    for (size_t p = 0; p < pages; p++)
        for (size_t w = 0; w < 512; w++)
            MUST(((const uint64_t *)AT(copy, page + p))[w] == word_of(seed, source_page + p, w));
}

static void vectors(void) {
    char *area = cold_mapping(BYTES, 1), *target = cold_heap(BYTES, 2);
    int ends[2];
    MUST(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, MIB) > 0);
    start_moving(&movers[0], area, BYTES), start_moving(&movers[1], target, BYTES);
    for (size_t round = 0; round < 30; round++) {
        struct iovec *parts = (struct iovec *)AT(target, PAGES - 1 - round % 3);
        for (size_t n = 0; n < 30; n++)
            parts[n] = (struct iovec){AT(area, round * 30 + n * 2), PAGE + n * 8};
        page_out(AT(target, PAGES - 3), 3 * PAGE);
        ssize_t bytes = 30 * PAGE + 29 * 30 / 2 * 8;
        MUST(writev(ends[1], parts, 30) == bytes);
        for (size_t n = 0; n < 30; n++)
            parts[n].iov_base = AT(target, round * 30 + n * 2);
        page_out(AT(target, PAGES - 3), 3 * PAGE);
        MUST(readv(ends[0], parts, 30) == bytes);
        for (size_t n = 0; n < 30; n++)
            MUST(memcmp(AT(area, round * 30 + n * 2), AT(target, round * 30 + n * 2), PAGE + n * 8) == 0);
    }
    stop_moving(&movers[0]), stop_moving(&movers[1]);
    check(area, BYTES, 1);
}

/* Messages that are peeked at, truncated, gathered: none lost, none doubled. */
static void messages(void) {
    char *area = cold_mapping(BYTES, 1), *target = cold_mapping(BYTES, 2);
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    start_moving(&movers[0], area, BYTES), start_moving(&movers[1], target, BYTES);
    for (size_t n = 0; n < 100; n++) {
        size_t page = n * 10;
        MUST(send(pair[0], AT(area, page), 5 * PAGE, 0) == 5 * PAGE);
        MUST(recv(pair[1], AT(target, page), 2 * PAGE, MSG_PEEK) == 2 * PAGE);
        check_copied(target, page, page, 2, 1);
        MUST(recv(pair[1], AT(target, page + 2), PAGE, MSG_PEEK | MSG_TRUNC) == 5 * PAGE);
        check_copied(target, page + 2, page, 1, 1);
        MUST(recv(pair[1], AT(target, page + 3), 5 * PAGE, 0) == 5 * PAGE);
        check_copied(target, page + 3, page, 5, 1);
        MUST(recv(pair[1], AT(target, page), PAGE, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    /* Four at a time, their headers in evicted memory too, and a descriptor beside each. */
    struct mmsghdr *batch = (struct mmsghdr *)AT(target, PAGES - 4);
    struct iovec *parts = (struct iovec *)AT(target, PAGES - 3);
    char *control = AT(target, PAGES - 2);
    for (size_t n = 0; n < 50; n++) {
        for (size_t sending = 2; sending-- > 0;) {
            memset(batch, 0, 4 * sizeof *batch);
            memset(control, 0, PAGE);
            for (size_t i = 0; i < 4; i++) {
                parts[i] = (struct iovec){AT(sending ? area : target, (n * 4 + i) * 5), 3 * PAGE};
                batch[i].msg_hdr.msg_iov = &parts[i], batch[i].msg_hdr.msg_iovlen = 1;
                batch[i].msg_hdr.msg_control = control + i * 512, batch[i].msg_hdr.msg_controllen = CMSG_SPACE(sizeof(int));
                struct cmsghdr *header = CMSG_FIRSTHDR(&batch[i].msg_hdr);
                header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(header), &pair[0], sizeof(int));
            }
            page_out(AT(target, PAGES - 4), 4 * PAGE);
            MUST((sending ? sendmmsg(pair[0], batch, 4, 0) : recvmmsg(pair[1], batch, 4, 0, NULL)) == 4);
        }
        for (size_t i = 0; i < 4; i++) {
            MUST(batch[i].msg_len == 3 * PAGE);
            check_copied(target, (n * 4 + i) * 5, (n * 4 + i) * 5, 3, 1);
            int received;
            memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&batch[i].msg_hdr)), sizeof received);
            MUST(close(received) == 0);
        }
    }
    stop_moving(&movers[0]), stop_moving(&movers[1]);
    check(area, BYTES, 1);
}

/* Both ends of a TCP connection over loopback. */
static void connection(int ends[2]) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    MUST(listener >= 0 && bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&address, len) == 0);
    ends[1] = accept(listener, NULL, NULL);
    MUST(ends[1] >= 0 && close(listener) == 0);
}

static void *receive_all(void *argument) {
    int socket = *(int *)argument;
    char *target = cold_mapping(BYTES, 2);
    for (int round = 0; round < 6; round++) {
        for (size_t p = 0; p < PAGES; p += 128) {
            MUST(recv(socket, AT(target, p), 128 * PAGE, MSG_WAITALL) == 128 * PAGE);
            page_out(AT(target, p), 128 * PAGE);
        }
        check(target, BYTES, 10 + (uint64_t)round);
        fill(target, BYTES, 2);
        page_out(target, BYTES);
    }
    return NULL;
}

/* The pages themselves are in flight: while they are, they are evicted; when the kernel says that
 * it is done with them, overwritten. */
static void zero_copy_sends(void) {
    int ends[2], one = 1;
    connection(ends);
    if (setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0)
        cannot_check("no SO_ZEROCOPY");
    pthread_t receiver;
    MUST(pthread_create(&receiver, NULL, receive_all, &ends[1]) == 0);
    char *area = cold_mapping(BYTES, 1);
    for (int round = 0; round < 6; round++) {
        fill(area, BYTES, 10 + (uint64_t)round);
        page_out(area, BYTES);
        uint32_t sends = 0, done = 0;
        for (size_t sent = 0; sent < BYTES;) {
            size_t part = BYTES - sent < 64 * PAGE ? BYTES - sent : 64 * PAGE;
            ssize_t now = send(ends[0], area + sent, part, MSG_ZEROCOPY);
            if (now == -1 && errno == ENOBUFS) {
                usleep(1000);
                continue;
            }
            MUST(now > 0);
            sent += (size_t)now, sends++;
            page_out(area, BYTES / 4);
        }
        while (done < sends) {
            char control[200];
            struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
            if (recvmsg(ends[0], &message, MSG_ERRQUEUE) == -1) {
                MUST(errno == EAGAIN);
                struct pollfd polled = {.fd = ends[0]};
                poll(&polled, 1, 100);
                page_out(area, BYTES);
                continue;
            }
            struct sock_extended_err *notice = (struct sock_extended_err *)CMSG_DATA(CMSG_FIRSTHDR(&message));
            MUST(notice->ee_origin == SO_EE_ORIGIN_ZEROCOPY);
            done += notice->ee_data - notice->ee_info + 1;
        }
        check(area, BYTES, 10 + (uint64_t)round);
    }
    pthread_join(receiver, NULL);
}

/* ---- io_uring, by raw system calls ---- */

struct ring {
    int fd;
    struct io_uring_params params;
    char *queues;
    size_t queues_bytes;
    struct io_uring_sqe *entries;
};

static struct ring ring_of(uint32_t flags) {
    struct ring ring = {.params = {.flags = flags, .sq_thread_idle = 1000}};
    ring.fd = (int)syscall(SYS_io_uring_setup, 64, &ring.params);
    if (ring.fd < 0)
        cannot_check("io_uring is not permitted");
    MUST(ring.params.features & IORING_FEAT_SINGLE_MMAP);
    size_t submissions = ring.params.sq_off.array + ring.params.sq_entries * sizeof(uint32_t);
    size_t completions = ring.params.cq_off.cqes + ring.params.cq_entries * sizeof(struct io_uring_cqe);
    ring.queues_bytes = submissions > completions ? submissions : completions;
    ring.queues = mmap(NULL, ring.queues_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    ring.entries = mmap(NULL, 64 * sizeof *ring.entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
    MUST(ring.queues != MAP_FAILED && ring.entries != MAP_FAILED);
    return ring;
}

#define QUEUE_WORD(ring, offset) ((_Atomic uint32_t *)((ring)->queues + (ring)->params.offset))

/* Queues a transfer of whole pages; the kernel may begin at once. */
static void submit(struct ring *ring, int operation, int file, char *memory, size_t pages, size_t file_page) {
    uint32_t tail = *QUEUE_WORD(ring, sq_off.tail), index = tail & *QUEUE_WORD(ring, sq_off.ring_mask);
    ring->entries[index] = (struct io_uring_sqe){.opcode = (uint8_t)operation, .fd = file, .addr = (uintptr_t)memory,
                                                 .len = (uint32_t)(pages * PAGE), .off = file_page * PAGE, .user_data = pages * PAGE};
    QUEUE_WORD(ring, sq_off.array)[index] = index;
    atomic_store(QUEUE_WORD(ring, sq_off.tail), tail + 1);
    uint32_t flags = ring->params.flags & IORING_SETUP_SQPOLL ? IORING_ENTER_SQ_WAKEUP : 0;
    MUST(syscall(SYS_io_uring_enter, ring->fd, 1, 0, flags, NULL, 0) == 1);
}

/* Waits for this many transfers, all of which must be complete. */
static void complete(struct ring *ring, size_t count) {
    for (size_t n = 0; n < count; n++) {
        uint32_t head = *QUEUE_WORD(ring, cq_off.head);
        while (head == atomic_load(QUEUE_WORD(ring, cq_off.tail)))
            MUST(syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0 || errno == EINTR);
        struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->queues + ring->params.cq_off.cqes);
        done += head & *QUEUE_WORD(ring, cq_off.ring_mask);
        errno = -done->res;
        MUST(done->res == (int)done->user_data);
        atomic_store(QUEUE_WORD(ring, cq_off.head), head + 1);
    }
}

static void ring_transfers(int read_operation, int write_operation, bool registered, uint32_t flags, bool huge) {
    int file = direct_file();
    struct ring ring = ring_of(flags);
    char *area = mapping(BYTES);
    /* Pages of 2 MiB, if there are any to be had, pinned for as long as the ring lives. */
    if (huge)
        madvise(area, BYTES, MADV_HUGEPAGE);
    fill(area, BYTES, 1);
    if (!huge)
        page_out(area, BYTES);
    struct iovec buffer = {area, BYTES};
    if (registered && syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &buffer, 1) != 0) {
        MUST(errno == ENOMEM);
        cannot_check("RLIMIT_MEMLOCK is too low");
    }
    start_moving(&movers[0], area, BYTES);
    for (size_t round = 0; round < 5; round++) {
        fill(area, BYTES, round);
        page_out(area, BYTES);
        for (size_t n = 0; n < 32; n++)
            submit(&ring, write_operation, file, AT(area, n * 32), 32, n * 32);
        complete(&ring, 32);
        check(area, BYTES, round);
        /* Read back, the two halves exchanged. */
        fill(area, BYTES, 100);
        page_out(area, BYTES);
        for (size_t n = 0; n < 32; n++)
            submit(&ring, read_operation, file, AT(area, n * 32), 32, (n + 16) % 32 * 32);
        page_out(area, BYTES);
        complete(&ring, 32);
        page_out(area, BYTES);
        for (size_t n = 0; n < 32; n++)
            check_copied(area, n * 32, (n + 16) % 32 * 32, 32, round);
        /* Other calls on the range while it is pinned. */
        MUST(mprotect(area, BYTES, PROT_READ) == 0 && mprotect(area, BYTES, PROT_READ | PROT_WRITE) == 0);
    }
    stop_moving(&movers[0]);
    /* The ring, and with it what it pins, lives as long as its queues are mapped. */
    MUST(munmap(ring.queues, ring.queues_bytes) == 0 && munmap(ring.entries, 64 * sizeof *ring.entries) == 0 && close(ring.fd) == 0);
    evict(area, BYTES);
    for (size_t n = 0; n < 32; n++)
        check_copied(area, n * 32, (n + 16) % 32 * 32, 32, 4);
    MUST(munmap(area, BYTES) == 0);
}

static void ring_buffers(void) { ring_transfers(IORING_OP_READ, IORING_OP_WRITE, false, 0, false); }
static void ring_buffers_polled_by_the_kernel(void) { ring_transfers(IORING_OP_READ, IORING_OP_WRITE, false, IORING_SETUP_SQPOLL, false); }
static void ring_buffers_that_are_fixed(void) { ring_transfers(IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, true, 0, false); }
static void ring_buffers_that_are_fixed_and_huge(void) { ring_transfers(IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, true, 0, true); }

/* Asynchronous I/O as databases do it: io_submit. */
static void direct_io_in_the_background(void) {
    int file = direct_file();
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 64, &context) != 0)
        cannot_check("io_setup is not permitted");
    char *area = cold_mapping(BYTES, 1);
    struct iocb *blocks = (struct iocb *)cold_mapping(MIB, 2);
    struct io_event *events = (struct io_event *)AT((char *)blocks, 20);
    struct iocb **list = (struct iocb **)AT((char *)blocks, 40);
    start_moving(&movers[0], area, BYTES), start_moving(&movers[1], (char *)blocks, MIB);
    for (size_t round = 0; round < 5; round++) {
        fill(area, BYTES, round);
        for (int writes = 1; writes >= 0; writes--) {
            for (size_t n = 0; n < 32; n++) {
                size_t from = writes ? n : (n + 16) % 32;
                blocks[n] = (struct iocb){.aio_lio_opcode = writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD, .aio_fildes = (uint32_t)file,
                                          .aio_buf = (uintptr_t)AT(area, n * 32), .aio_nbytes = 32 * PAGE, .aio_offset = (int64_t)(from * 32 * PAGE)};
                list[n] = &blocks[n];
            }
            page_out(area, BYTES);
            MUST(syscall(SYS_io_submit, context, 32, list) == 32);
            page_out(area, BYTES);
            MUST(syscall(SYS_io_getevents, context, 32, 32, events, NULL) == 32);
            for (size_t n = 0; n < 32; n++)
                MUST(events[n].res == 32 * PAGE);
        }
        page_out(area, BYTES);
        for (size_t n = 0; n < 32; n++)
            check_copied(area, n * 32, (n + 16) % 32 * 32, 32, round);
    }
    stop_moving(&movers[0]), stop_moving(&movers[1]);
    syscall(SYS_io_destroy, context);
}

/* O_DIRECT into and out of pages that are moved all the time. */
static void direct_io_while_pages_move(void) {
    int file = direct_file();
    char *area = cold_mapping(BYTES, 1), *target = cold_mapping(BYTES, 2);
    start_moving(&movers[0], area, BYTES), start_moving(&movers[1], target, BYTES);
    for (uint64_t round = 0; round < 5; round++) {
        fill(area, BYTES, round);
        for (size_t p = 0; p < PAGES; p += 32)
            MUST(pwrite(file, AT(area, p), 32 * PAGE, (off_t)p * PAGE) == 32 * PAGE);
        for (size_t p = 0; p < PAGES; p += 32)
            MUST(pread(file, AT(target, p), 32 * PAGE, (off_t)p * PAGE) == 32 * PAGE);
        check(target, BYTES, round);
    }
    stop_moving(&movers[0]), stop_moving(&movers[1]);
}

/* Pages that are neither in memory nor swapped out. */
static size_t evicted_pages(char *area, size_t pages) {
    static uint64_t entries[PAGES];
    int pagemap = open("/proc/thread-self/pagemap", O_RDONLY);
    MUST(pagemap >= 0 && pread(pagemap, entries, pages * 8, (off_t)((uintptr_t)area / PAGE * 8)) == (ssize_t)pages * 8);
    close(pagemap);
    size_t out = 0;
    for (size_t p = 0; p < pages; p++)
        out += entries[p] >> 62 == 0;
    return out;
}

/* Under --evict wp: what a device wrote into a page that is just evicted would be lost. So nothing
 * leaves any more, soon. */
static void nothing_leaves_any_more(void) {
    /* Until Terrace has looked. Pages that were never out leave at once if any do. */
    size_t pages = 16, rounds = 8192, round = 0;
    char *fresh = mapping(rounds * pages * PAGE);
    for (size_t out = pages; out > 0; round++) {
        MUST(round < rounds);
        fill(AT(fresh, round * pages), pages * PAGE, round);
        page_out(AT(fresh, round * pages), pages * PAGE);
        out = evicted_pages(AT(fresh, round * pages), pages);
    }
    for (size_t n = 0; n < round; n++)
        check(AT(fresh, n * pages), pages * PAGE, n);
}

static void a_direct_file_is_opened(void) {
    char *area = cold_mapping(BYTES, 1);
    int file = direct_file();
    nothing_leaves_any_more();
    close(file);
    check(area, BYTES, 1);
}

static char *cold_area;
static void *goes_on_alone(void *unused) {
    await_main_threads_end();
    nothing_leaves_any_more();
    check(cold_area, BYTES, 1);
    return NULL;
}

/* Where the descriptors are that may stand for pinned pages is not known any more. */
static void the_main_thread_leaves(void) {
    cold_area = cold_mapping(BYTES, 1);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, goes_on_alone, NULL) == 0);
    pthread_exit(NULL);
}

/* Structures that the kernel fills in or reads, each at the border of two evicted pages. */
static void structures(void) {
    char *area = cold_mapping(MIB, 1), path[PAGE];
    char *border = AT(area, 11) - 8;
#define EVICTED(call) (evict(AT(area, 10), 2 * PAGE), (call))
    int ends[2], pty = open("/dev/ptmx", O_RDWR | O_NOCTTY), here = open("/", O_RDONLY | O_DIRECTORY);
    MUST(pipe(ends) == 0 && here >= 0 && write(ends[1], path, 77) == 77);
    for (int round = 0; round < 8; round++) {
        fill(area, MIB, 1);
        int *number = (int *)(AT(area, 11) - 2);
        MUST(EVICTED(ioctl(ends[0], FIONREAD, number)) == 0);
        int said;
        memcpy(&said, number, sizeof said);
        MUST(said == 77);
        if (pty >= 0) {
            struct winsize size = {.ws_row = 40, .ws_col = 132}, got;
            memcpy(AT(area, 11) - 3, &size, sizeof size);
            MUST(EVICTED(ioctl(pty, TIOCSWINSZ, AT(area, 11) - 3)) == 0);
            memset(AT(area, 11) - 3, 0, sizeof size);
            MUST(EVICTED(ioctl(pty, TIOCGWINSZ, AT(area, 11) - 3)) == 0);
            memcpy(&got, AT(area, 11) - 3, sizeof got);
            MUST(got.ws_row == 40 && got.ws_col == 132);
        }
        /* A structure that points to another. */
        struct ifconf *interfaces = (struct ifconf *)border;
        *interfaces = (struct ifconf){.ifc_len = 10 * sizeof(struct ifreq), .ifc_buf = AT(area, 12) - 40};
        MUST(EVICTED(ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCGIFCONF, interfaces)) == 0);
        MUST(interfaces->ifc_len >= 0 && interfaces->ifc_len % sizeof(struct ifreq) == 0);
        fd_set *set = (fd_set *)border;
        FD_ZERO(set);
        FD_SET(ends[0], set);
        struct timeval none = {0, 0};
        MUST(EVICTED(select(ends[0] + 1, set, NULL, NULL, &none)) == 1 && FD_ISSET(ends[0], set));
        memset(border, 0, 64);
        MUST(EVICTED(getrandom(border, 64, 0)) == 64 && *(uint64_t *)border != 0 && *(uint64_t *)(border + 8) != 0);
        MUST(EVICTED(syscall(SYS_getdents64, here, AT(area, 11) - 100, 8 * PAGE)) > 0);
        MUST(lseek(here, 0, SEEK_SET) == 0 && ((struct dirent *)(AT(area, 11) - 100))->d_reclen > 0);
        struct sigaction *action = (struct sigaction *)border;
        memset(action, 0, sizeof *action);
        action->sa_handler = SIG_IGN;
        MUST(EVICTED(sigaction(SIGUSR2, action, NULL)) == 0);
        memset(action, 0, sizeof *action);
        MUST(EVICTED(sigaction(SIGUSR2, NULL, action)) == 0 && action->sa_handler == SIG_IGN);
        struct timespec *moment = (struct timespec *)border;
        *moment = (struct timespec){0, 1000};
        MUST(EVICTED(nanosleep(moment, NULL)) == 0);
        strcpy(border, "/proc/self/status");
        int status = EVICTED(open(border, O_RDONLY));
        MUST(status >= 0 && EVICTED(read(status, border, 2000)) > 100 && memcmp(border, "Name:", 5) == 0);
        close(status);
        check_pages(area, 0, 10, 1);
        check_pages(area, 30, MIB / PAGE, 1);
    }
}

/* A buffer that ends where memory does: as much is transferred as without Terrace, and what is
 * there stays what it was. */
static void buffers_that_run_off(void) {
    char *area = cold_mapping(BYTES, 1);
    int ends[2], file = memfd_create("file", 0), pair[2];
    MUST(pipe(ends) == 0 && file >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    MUST(munmap(AT(area, 600), 10 * PAGE) == 0);
    MUST(mprotect(AT(area, 1000), 10 * PAGE, PROT_NONE) == 0);
    for (size_t end = 600; end <= 1000; end += 400)
        for (int round = 0; round < 10; round++) {
            char *from = AT(area, end - 3);
            page_out(AT(area, 500), 100 * PAGE), page_out(AT(area, 900), 100 * PAGE);
            MUST(pwrite(file, from, 5 * PAGE, 0) == 3 * PAGE);
            MUST(write(ends[1], from, 5 * PAGE) == 3 * PAGE);
            MUST(read(ends[0], AT(area, 100), 5 * PAGE) == 3 * PAGE);
            check_copied(area, 100, end - 3, 3, 1);
            MUST(send(pair[0], from, 5 * PAGE, 0) == -1 && errno == EFAULT);
            page_out(AT(area, 500), 100 * PAGE), page_out(AT(area, 900), 100 * PAGE);
            MUST(pread(file, from, 3 * PAGE, 0) == 3 * PAGE);
            check_pages(area, end - 10, end, 1);
            page_out(AT(area, 500), 100 * PAGE), page_out(AT(area, 900), 100 * PAGE);
            MUST(ftruncate(file, 5 * PAGE) == 0 && pread(file, from, 5 * PAGE, 0) == 3 * PAGE);
            check_pages(area, end - 10, end, 1);
            MUST(ftruncate(file, 0) == 0);
        }
    MUST(mprotect(AT(area, 1000), 10 * PAGE, PROT_READ | PROT_WRITE) == 0);
    check_pages(area, 900, PAGES, 1);
}

/* ---- futexes ---- */

static struct shared {
    pthread_mutex_t plain, inheriting, robust;
    pthread_cond_t condition;
    pthread_barrier_t barrier;
    pthread_rwlock_t lock;
    long counter, turn;
} *shared;

static void *count_up(void *argument) {
    long own = (long)(intptr_t)argument;
    for (int n = 0; n < 300; n++) {
        MUST(pthread_mutex_lock(&shared->plain) == 0);
        while (shared->turn % 3 != own)
            MUST(pthread_cond_wait(&shared->condition, &shared->plain) == 0);
        shared->turn++;
        MUST(pthread_cond_broadcast(&shared->condition) == 0);
        MUST(pthread_mutex_unlock(&shared->plain) == 0);
        MUST(pthread_mutex_lock(&shared->inheriting) == 0);
        shared->counter++;
        MUST(pthread_mutex_unlock(&shared->inheriting) == 0);
        if (n % 10 == 0)
            pthread_barrier_wait(&shared->barrier);
        MUST(n % 3 ? pthread_rwlock_rdlock(&shared->lock) == 0 : pthread_rwlock_wrlock(&shared->lock) == 0);
        MUST(pthread_rwlock_unlock(&shared->lock) == 0);
    }
    return NULL;
}

static void locks_in_evicted_memory(void) {
    char *area = cold_heap(MIB, 1);
    shared = (struct shared *)AT(area, 100);
    memset(shared, 0, sizeof *shared);
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    MUST(pthread_mutex_init(&shared->plain, NULL) == 0 && pthread_cond_init(&shared->condition, NULL) == 0);
    MUST(pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT) == 0 && pthread_mutex_init(&shared->inheriting, &kind) == 0);
    MUST(pthread_barrier_init(&shared->barrier, NULL, 3) == 0 && pthread_rwlock_init(&shared->lock, NULL) == 0);
    start_moving(&movers[0], area, MIB);
    pthread_t threads[3];
    for (intptr_t n = 0; n < 3; n++)
        MUST(pthread_create(&threads[n], NULL, count_up, (void *)n) == 0);
    for (int n = 0; n < 3; n++)
        pthread_join(threads[n], NULL);
    stop_moving(&movers[0]);
    MUST(shared->counter == 900 && shared->turn == 900);
    check_pages(area, 0, 100, 1);
    check_pages(area, 101, MIB / PAGE, 1);
}

/* Mutexes whose words the kernel itself changes. There it does not wait for a page (a limit of its own). */
static void *lock_and_die(void *argument) {
    MUST(pthread_mutex_lock(&shared->robust) == 0);
    /* Until the next page is out, which was touched at the same time: the mutex's own is not. */
    char *next = (char *)shared + PAGE;
    *next = 1;
    for (double deadline = seconds_now() + 10; evicts() && absent_pages(next, PAGE) == 0;) {
        MUST(seconds_now() < deadline);
        page_out((char *)shared, 2 * PAGE);
    }
    MUST(absent_pages(shared, PAGE) == 0);
    return NULL;
}

static void *contend(void *argument) {
    for (int n = 0; n < 1500; n++) {
        MUST(pthread_mutex_lock(&shared->inheriting) == 0);
        long before = shared->counter;
        sched_yield();
        shared->counter = before + 1;
        MUST(pthread_mutex_unlock(&shared->inheriting) == 0);
    }
    return NULL;
}

static void mutexes_that_the_kernel_changes(void) {
    char *area = cold_heap(MIB, 1);
    shared = (struct shared *)AT(area, 100);
    memset(shared, 0, sizeof *shared);
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    MUST(pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 && pthread_mutex_init(&shared->robust, &kind) == 0);
    pthread_mutexattr_init(&kind);
    MUST(pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT) == 0 && pthread_mutex_init(&shared->inheriting, &kind) == 0);
    /* Its owner dies: the next one is told. */
    for (int round = 0; round < 20; round++) {
        pthread_t owner;
        MUST(pthread_create(&owner, NULL, lock_and_die, NULL) == 0 && pthread_join(owner, NULL) == 0);
        struct timespec late;
        clock_gettime(CLOCK_REALTIME, &late);
        late.tv_sec += 5;
        MUST(pthread_mutex_timedlock(&shared->robust, &late) == EOWNERDEAD);
        MUST(pthread_mutex_consistent(&shared->robust) == 0 && pthread_mutex_unlock(&shared->robust) == 0);
    }
    start_moving(&movers[0], AT(area, 96), 8 * PAGE);
    pthread_t threads[4];
    for (size_t n = 0; n < COUNT(threads); n++)
        MUST(pthread_create(&threads[n], NULL, contend, NULL) == 0);
    for (size_t n = 0; n < COUNT(threads); n++)
        pthread_join(threads[n], NULL);
    stop_moving(&movers[0]);
    MUST(shared->counter == 6000);
    check_pages(area, 0, 100, 1);
}

/* A page that is out when a thread ends costs a thread in some thousands: hence none may be. */
static void *leave_at_once(void *argument) {
    page_out(argument, MIB);
    MUST(absent_pages((char *)argument + MIB - 16 * PAGE, 16 * PAGE) == 0);
    return NULL;
}

/* When a thread is gone, the kernel clears a word in its stack, for which others wait. */
static void threads_end_on_stacks_of_the_programs_own(void) {
    /* Not aligned to pages, as malloc gives it: its end is in the last page. */
    char *stack = cold_heap(MIB, 1);
    start_moving(&movers[0], stack, MIB);
    for (int n = 0; n < 300; n++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        MUST(pthread_attr_setstack(&attributes, stack, MIB - PAGE / 2) == 0);
        pthread_t thread;
        MUST(pthread_create(&thread, &attributes, leave_at_once, stack) == 0);
        MUST(pthread_join(thread, NULL) == 0);
    }
    stop_moving(&movers[0]);
}

/* Waiting with a mask, woken elsewhere, waited for by physical page (no FUTEX_PRIVATE_FLAG), several at a time. */
static void *futex_waiter(void *argument) {
    int *words = argument;
    while (atomic_load((atomic_int *)&words[0]) == 1) {
        errno = 0;
        MUST(syscall(SYS_futex, &words[0], FUTEX_WAIT_BITSET, 1, NULL, NULL, 2) == 0 || errno == EAGAIN || errno == EINTR);
    }
    return NULL;
}

static void futexes(void) {
    char *area = cold_mapping(MIB, 1);
    int *words = (int *)AT(area, 50);
    for (int round = 0; round < 15; round++) {
        words[0] = 1, words[1024] = 5;
        evict(AT(area, 50), 2 * PAGE);
        pthread_t threads[2];
        for (int n = 0; n < 2; n++)
            MUST(pthread_create(&threads[n], NULL, futex_waiter, words) == 0);
        usleep(2000);
        page_out(area, MIB);
        MUST(syscall(SYS_futex, &words[0], FUTEX_WAKE_BITSET, 10, NULL, NULL, 1) == 0);
        /* One is woken (and waits again), the other sent to the next page. */
        page_out(area, MIB);
        syscall(SYS_futex, &words[0], FUTEX_CMP_REQUEUE, 1, 10L, &words[1024], 1);
        page_out(area, MIB);
        atomic_store((atomic_int *)&words[0], 2);
        page_out(area, MIB);
        for (int n = 0; n < 3; n++) {
            syscall(SYS_futex, &words[0], FUTEX_WAKE, 10, NULL, NULL, 0);
            syscall(SYS_futex, &words[1024], FUTEX_WAKE, 10, NULL, NULL, 0);
            page_out(area, MIB);
        }
        for (int n = 0; n < 2; n++)
            MUST(pthread_join(threads[n], NULL) == 0);
        /* A wake-up that changes another word, and a lock that the kernel takes and gives back. */
        for (int private = 0; private <= FUTEX_PRIVATE_FLAG; private += FUTEX_PRIVATE_FLAG) {
            words[1024] = 5;
            evict(AT(area, 50), 2 * PAGE);
            MUST(syscall(SYS_futex, &words[0], FUTEX_WAKE_OP | private, 1, 1L, &words[1024], FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 5)) == 0);
            MUST(words[1024] == 8);
            words[1024] = 0;
            evict(AT(area, 50), 2 * PAGE);
            MUST(syscall(SYS_futex, &words[1024], FUTEX_LOCK_PI | private, 0, NULL, NULL, 0) == 0 && words[1024] == getpid());
            evict(AT(area, 50), 2 * PAGE);
            MUST(syscall(SYS_futex, &words[1024], FUTEX_UNLOCK_PI | private, 0, NULL, NULL, 0) == 0 && words[1024] == 0);
        }
    }
    /* What is wrong stays wrong. */
    MUST(mprotect(AT(area, 51), PAGE, PROT_READ) == 0);
    MUST(syscall(SYS_futex, &words[0], FUTEX_WAKE_OP_PRIVATE, 1, 1L, &words[1024], FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 5)) == -1);
    MUST(errno == EFAULT);
    check_pages(area, 0, 50, 1);
    check_pages(area, 52, MIB / PAGE, 1);
}

static atomic_int interruptions;
static void on_interruption(int number) { interruptions++; }

static pthread_t interrupted;
static atomic_bool transferred;
static void *interrupt(void *argument) {
    while (!transferred) {
        pthread_kill(interrupted, SIGUSR1);
        usleep(50);
    }
    return NULL;
}

/* Signals while the kernel waits for an evicted buffer: a call is done once, and wholly. */
static void signals_arrive_while_the_kernel_waits(void) {
    struct sigaction action = {.sa_handler = on_interruption, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    char *area = cold_mapping(BYTES, 1), *target = cold_mapping(BYTES, 2);
    int pair[2], file = memfd_create("file", 0);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    interrupted = pthread_self();
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, interrupt, NULL) == 0);
    for (uint64_t round = 0; round < 6 || interruptions == 0; round++) {
        page_out(area, BYTES), page_out(target, BYTES);
        for (size_t p = 0; p + 8 <= PAGES; p += 8) {
            MUST(send(pair[0], AT(area, p), 8 * PAGE, 0) == 8 * PAGE);
            MUST(recv(pair[1], AT(target, p), 8 * PAGE, 0) == 8 * PAGE);
        }
        MUST(recv(pair[1], target, PAGE, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        check(target, BYTES, 1);
        page_out(area, BYTES);
        MUST(pwrite(file, area, BYTES, 0) == BYTES);
        fill(target, BYTES, 2);
        page_out(target, BYTES);
        MUST(pread(file, target, BYTES, 0) == BYTES);
        check(target, BYTES, 1);
    }
    transferred = true;
    pthread_join(thread, NULL);
}

/* Debuggers' ways in. The kernel does not let these wait for a page (a limit that docs/safety.md
 * states). They fail or give what is there, never anything else, and a page that was touched is
 * theirs to see. */
static void memory_as_a_file(void) {
    char *area = cold_mapping(BYTES, 1);
    int memory = open("/proc/self/mem", O_RDWR);
    if (memory < 0)
        cannot_check("no /proc/self/mem");
    static uint64_t page[512];
    size_t failed = 0;
    for (size_t p = 0; p < PAGES; p += 7) {
        ssize_t got = pread(memory, page, PAGE, (off_t)(uintptr_t)AT(area, p));
        if (got == PAGE)
            for (size_t w = 0; w < 512; w++)
                MUST(page[w] == word_of(1, p, w));
        else {
            MUST(got == -1 && errno == EIO);
            failed++;
        }
    }
    MUST(evicts() || failed == 0);
    /* A write is refused or seen. */
    for (size_t p = 1; p < PAGES; p += 7) {
        uint64_t value = p + 12345;
        ssize_t put = pwrite(memory, &value, sizeof value, (off_t)(uintptr_t)AT(area, p));
        if (put == sizeof value) {
            MUST(*(uint64_t *)AT(area, p) == value);
            *(uint64_t *)AT(area, p) = word_of(1, p, 0);
        } else
            MUST(put == -1 && errno == EIO);
    }
    check(area, BYTES, 1);
    /* From the evicted page's other side: the buffer, not the object, is out. */
    char *target = cold_mapping(MIB, 2);
    fill(target, MIB, 3);
    memset(page, 7, sizeof page);
    evict(target, MIB);
    MUST(pread(memory, AT(target, 5), PAGE, (off_t)(uintptr_t)page) == PAGE);
    MUST(memcmp(AT(target, 5), page, PAGE) == 0);
}

static void traced(void) {
    char *area = cold_mapping(MIB, 1);
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t parent = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        char byte;
        MUST(read(ends[0], &byte, 1) == 1);
        if (ptrace(PTRACE_ATTACH, parent, NULL, NULL) != 0)
            cannot_check("ptrace is not permitted");
        MUST(waitpid(parent, NULL, __WALL) == parent);
        for (size_t p = 0; p < MIB / PAGE; p++) {
            errno = 0;
            long word = ptrace(PTRACE_PEEKDATA, parent, AT(area, p), NULL);
            MUST(errno == EIO || (errno == 0 && (uint64_t)word == word_of(1, p, 0)));
            /* Nothing keeps a tracer from reading it this way. */
            uint64_t value;
            struct iovec here = {&value, 8}, there = {AT(area, p), 8};
            MUST(process_vm_readv(parent, &here, 1, &there, 1, 0) == 8 && value == word_of(1, p, 0));
        }
        MUST(ptrace(PTRACE_DETACH, parent, NULL, NULL) == 0);
        _exit(0);
    }
    page_out(area, MIB);
    MUST(write(ends[1], "x", 1) == 1);
    int status;
    while (waitpid(child, &status, 0) != child)
        MUST(errno == EINTR);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_CHECK)
        _exit(CANNOT_CHECK);
    MUST(status == 0);
    check(area, MIB, 1);
}

/* Another process copies out of and into memory whose pages move. */
static void other_processes_while_pages_move(void) {
    char *area = cold_mapping(BYTES, 1);
    static uint64_t page[8 * 512];
    pid_t parent = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (size_t n = 0; n < 1500; n++) {
            size_t p = n * 8 % PAGES;
            struct iovec here = {page, sizeof page}, there = {AT(area, p), sizeof page};
            ssize_t got = process_vm_readv(parent, &here, 1, &there, 1, 0);
            if (got == -1 && errno == EPERM)
                cannot_check("process_vm_readv is not permitted");
            MUST(got == sizeof page);
            for (size_t w = 0; w < 8 * 512; w++)
                MUST(page[w] == word_of(n * 8 / PAGES + 1, p + w / 512, w % 512));
            for (size_t w = 0; w < 8 * 512; w++)
                page[w] = word_of(n * 8 / PAGES + 2, p + w / 512, w % 512);
            MUST(process_vm_writev(parent, &here, 1, &there, 1, 0) == sizeof page);
        }
        _exit(0);
    }
    start_moving(&movers[0], area, BYTES);
    int status;
    while (waitpid(child, &status, 0) != child)
        MUST(errno == EINTR);
    stop_moving(&movers[0]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_CHECK)
        _exit(CANNOT_CHECK);
    MUST(status == 0);
    size_t whole = 1500 * 8 / PAGES, rest = 1500 * 8 % PAGES;
    check_pages(area, 0, rest, whole + 2);
    check_pages(area, rest, PAGES, whole + 1);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(vectors),
        CASE(messages),
        CASE(zero_copy_sends),
        CASE(ring_buffers),
        CASE(ring_buffers_polled_by_the_kernel),
        CASE(ring_buffers_that_are_fixed),
        CASE(ring_buffers_that_are_fixed_and_huge),
        CASE(direct_io_in_the_background),
        CASE(direct_io_while_pages_move),
        CASE(a_direct_file_is_opened),
        CASE(the_main_thread_leaves),
        CASE(structures),
        CASE(buffers_that_run_off),
        CASE(locks_in_evicted_memory),
        CASE(mutexes_that_the_kernel_changes),
        CASE(threads_end_on_stacks_of_the_programs_own),
        CASE(futexes),
        CASE(signals_arrive_while_the_kernel_waits),
        CASE(memory_as_a_file),
        CASE(traced),
        CASE(other_processes_while_pages_move),
    };
    return run_case(count, words, cases, COUNT(cases));
}
