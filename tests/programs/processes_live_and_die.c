/*
 * What happens to processes while pages are evicted. Usage: see cold.h; behind the case's name
 * follow the paths of tls_library and allocating_library.
 */
#include "cold.h"
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <wchar.h>
#include <wctype.h>

enum { BYTES = 8 << 20, PAGES = BYTES / PAGE };

static const char *tls_library, *allocating_library;
static char *heap, *map;

static void make_cold(void) {
    heap = cold_heap(BYTES, 1);
    map = cold_mapping(BYTES, 2);
}

static void check_all(void) {
    check(heap, BYTES, 1);
    check(map, BYTES, 2);
}

static void evict_all(void) {
    evict(heap, BYTES);
    evict(map, BYTES);
}

/*
 * Everything that Terrace manages, the memory of the C library included: what MADV_PAGEOUT means to
 * everything else does not matter. Twice, because a page that was touched a moment ago is left
 * alone. Allocates nothing.
 */
static void evict_everything(void) {
    static char maps[1 << 20];
    if (!evicts())
        return;
    for (int pass = 0; pass < 2; pass++) {
        int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
        size_t len = 0;
        for (ssize_t n; (n = read(fd, maps + len, sizeof maps - 1 - len)) > 0;)
            len += (size_t)n;
        close(fd);
        maps[len] = 0;
        for (char *line = maps; *line;) {
            unsigned long start, end;
            char rights[5];
            char *next = strchr(line, '\n');
            if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && strcmp(rights, "rw-p") == 0 && !memchr(line, '/', (size_t)(next - line)) &&
                !memchr(line, '[', (size_t)(next - line)))
                madvise((void *)start, end - start, MADV_PAGEOUT);
            line = next + 1;
        }
        usleep(2000);
    }
}

/* Small blocks of known contents of many sizes: whatever the C library allocated between them shares their pages. */
enum { BLOCKS = 20000 };
static struct {
    uint32_t *words;
    uint32_t count;
} blocks[BLOCKS];
static size_t blocks_used;

static void surround(void) {
    for (uint32_t bytes = 32; bytes <= 5120; bytes += bytes < 512 ? 16 : 64)
        for (int n = 0; n < 6; n++, blocks_used++) {
            MUST(blocks_used < BLOCKS);
            uint32_t count = bytes / 4, *words = malloc(bytes);
            MUST(words);
            for (uint32_t w = 0; w < count; w++)
                words[w] = (uint32_t)mix(blocks_used * 5000 + w) | 1;
            blocks[blocks_used].words = words;
            blocks[blocks_used].count = count;
        }
}

static void check_surroundings(void) {
    for (size_t b = 0; b < blocks_used; b++)
        for (uint32_t w = 0; w < blocks[b].count; w++)
            if (blocks[b].words[w] != ((uint32_t)mix(b * 5000 + w) | 1)) {
                dprintf(2, "FAILED in %d: block %zu of %u words at %p: word %u is %#x\n", getpid(), b, blocks[b].count, (void *)blocks[b].words, w,
                        blocks[b].words[w]);
                _exit(1);
            }
}

/* Forks with everything out; `in_child` runs in the child and in its child, before and between
 * which all surroundings are checked. */
static void fork_with_everything_out(void (*in_child)(int generation)) {
    for (int round = 0; round < 3; round++) {
        evict_everything();
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            if (in_child && round % 2)
                in_child(0);
            check_surroundings();
            if (in_child && round % 2 == 0)
                in_child(0);
            evict_everything();
            pid_t grandchild = fork();
            if (grandchild == 0) {
                alarm(60);
                check_surroundings();
                if (in_child)
                    in_child(1);
                _exit(0);
            }
            wait_for(grandchild);
            check_surroundings();
            _exit(0);
        }
        wait_for(child);
        check_surroundings();
    }
}

/* ---- What the C library itself touches in a child, before or while Terrace comes up there ---- */

enum { LIBRARIES = 150 };
static struct {
    void *handle;
    int (*check)(int);
} libraries[LIBRARIES];

/* A file of its own for each, or the loader would find that it has it already. */
static void *load_copy(const char *path) {
    int from = open(path, O_RDONLY | O_CLOEXEC);
    MUST(from >= 0);
    int to = memfd_create("library", MFD_CLOEXEC);
    MUST(to >= 0);
    char bytes[8192];
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;)
        MUST(write(to, bytes, (size_t)n) == n);
    char name[40];
    snprintf(name, sizeof name, "/proc/self/fd/%d", to);
    void *handle = dlopen(name, RTLD_NOW);
    if (!handle)
        dprintf(2, "%s\n", dlerror());
    MUST(handle);
    close(from);
    return handle; /* `to` stays open: its name must not come again */
}

static void *check_libraries_in_thread(void *argument) {
    for (int n = 0; n < LIBRARIES; n++)
        MUST(libraries[n].check(0) == 0);
    return NULL;
}

static void check_libraries(int generation) {
    for (int n = 0; n < LIBRARIES; n++) {
        MUST(dlsym(libraries[n].handle, "tls_library_check") == (void *)libraries[n].check);
        MUST(libraries[n].check(1 + generation) == 0);
    }
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, check_libraries_in_thread, NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(dlsym(libraries[0].handle, "there_is_no_such_symbol") == NULL && dlerror());
}

/* More modules with thread-local variables than the loader's first table of them holds. */
static void libraries_with_thread_local_variables(void) {
    for (int n = 0; n < LIBRARIES; n++) {
        if (n % 10 == 0)
            surround();
        libraries[n].handle = load_copy(tls_library);
        libraries[n].check = (int (*)(int))dlsym(libraries[n].handle, "tls_library_check");
        MUST(libraries[n].check && libraries[n].check(0) == 0);
    }
    surround();
    fork_with_everything_out(check_libraries);
    for (int n = 0; n < LIBRARIES; n++)
        MUST(dlclose(libraries[n].handle) == 0);
}

static pthread_barrier_t barrier;
static void *wait_forever(void *argument) {
    pthread_barrier_wait(&barrier);
    for (;;)
        pause();
    return NULL;
}

/* In the child the stacks of all other threads are free, and the next thread may be given one,
 * whose thread-local storage is then cleared. */
static void small_stacks_of_other_threads(void) {
    enum { THREADS = 16 };
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int n = 0; n < THREADS; n++) {
        surround();
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        MUST(pthread_attr_setstacksize(&attributes, (size_t)(512 + 128 * n) * KIB) == 0);
        pthread_t thread;
        MUST(pthread_create(&thread, &attributes, wait_forever, NULL) == 0);
    }
    surround();
    pthread_barrier_wait(&barrier);
    fork_with_everything_out(NULL);
}

static void *is_in_the_locale(void *argument) {
    MUST(iswalpha(L'\u00e9') && towupper(L'\u00e9') == L'\u00c9' && isalpha('a') && !isalpha('1'));
    wchar_t wide;
    MUST(mbrtowc(&wide, "\xc3\xa9", 2, &(mbstate_t){0}) == 2 && wide == L'\u00e9');
    return NULL;
}

static void in_the_locale(int generation) {
    is_in_the_locale(NULL);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, is_in_the_locale, NULL) == 0);
    pthread_join(thread, NULL);
}

/* A new thread reads the locale's tables. */
static void another_locale(void) {
    surround();
    if (!setlocale(LC_ALL, "C.UTF-8"))
        cannot_check("there is no locale C.UTF-8");
    surround();
    MUST(newlocale(LC_ALL_MASK, "C.UTF-8", NULL));
    surround();
    is_in_the_locale(NULL);
    fork_with_everything_out(in_the_locale);
}

enum { KEYS = 200 };
static pthread_key_t keys[KEYS];
static void *with_many_values(void *argument) {
    for (size_t n = 0; n < KEYS; n++) {
        if (n % 32 == 0)
            surround();
        MUST(pthread_setspecific(keys[n], &keys[n]) == 0);
    }
    surround();
    return wait_forever(NULL);
}

/* In the child the C library forgets the values of all other threads. */
static void many_values_of_other_threads(void) {
    for (int n = 0; n < KEYS; n++)
        MUST(pthread_key_create(&keys[n], NULL) == 0);
    for (int n = 0; n < KEYS; n++)
        MUST(pthread_setspecific(keys[n], &blocks[n]) == 0);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    for (int n = 0; n < 3; n++) {
        MUST(pthread_create(&thread, NULL, with_many_values, NULL) == 0);
        pthread_barrier_wait(&barrier);
    }
    fork_with_everything_out(NULL);
    for (int n = 0; n < KEYS; n++)
        MUST(pthread_getspecific(keys[n]) == &blocks[n]);
}

static int prepared, in_parent, in_child;
static void at_prepare(void) { prepared++; }
static void at_parent(void) { in_parent++; }
static void at_child(void) { in_child++; }
static void handlers_ran(int generation) { MUST(in_child == 300 * (generation + 1)); }

/* More fork handlers than the C library has room for in its own memory. */
static void many_fork_handlers(void) {
    for (int n = 0; n < 300; n++) {
        if (n % 30 == 0)
            surround();
        MUST(pthread_atfork(at_prepare, at_parent, at_child) == 0);
    }
    surround();
    fork_with_everything_out(handlers_ran);
    MUST(prepared == 900 && in_parent == 900 && in_child == 0);
}

static __thread uint64_t own[64];
static uint64_t *owns[5];
static char *below;
static void *on_own_stack(void *argument) {
    size_t me = (size_t)(uintptr_t)argument;
    owns[me] = own;
    for (size_t w = 0; w < COUNT(own); w++)
        own[w] = word_of(50 + me, 0, w);
    return wait_forever(NULL);
}

static void owns_are_whole(int generation) {
    for (size_t n = 0; n < COUNT(owns); n++)
        for (size_t w = 0; w < COUNT(own); w++)
            MUST(owns[n][w] == word_of(50 + n, 0, w));
    check(below, MIB / 2, 60);
}

/*
 * Threads are in a list, whose neighbours the C library changes in a child. They lie on their
 * stacks, and these in managed memory. The last one's begins and ends amid pages.
 */
static void stacks_in_managed_memory(void) {
    pthread_barrier_init(&barrier, NULL, 2);
    for (size_t n = 0; n < COUNT(owns); n++) {
        char *stack = n % 2 ? mapping(2 * MIB) : cold_heap(MIB, 3);
        size_t offset = n == COUNT(owns) - 1 ? 1008 : 0;
        if (offset)
            fill(below = stack + PAGE, MIB / 2, 60);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        MUST(pthread_attr_setstack(&attributes, stack + offset, (n % 2 ? 2 * MIB : MIB) - 2 * offset) == 0);
        pthread_t thread;
        MUST(pthread_create(&thread, &attributes, on_own_stack, (void *)n) == 0);
        pthread_barrier_wait(&barrier);
    }
    fork_with_everything_out(owns_are_whole);
    owns_are_whole(0);
}

static void *forks_without_the_main_thread(void *unused) {
    owns[0] = own;
    for (size_t w = 0; w < COUNT(own); w++)
        own[w] = word_of(50, 0, w);
    await_main_threads_end();
    /* The C library looks at open streams in the child, before anything else does. */
    FILE *streams[20];
    for (size_t n = 0; n < COUNT(streams); n++) {
        surround();
        MUST((streams[n] = fopen("/dev/null", "w")) && fputs("words", streams[n]) >= 0);
    }
    fork_with_everything_out(NULL);
    for (size_t w = 0; w < COUNT(own); w++)
        MUST(own[w] == word_of(50, 0, w));
    return NULL;
}

/* A process lives on after its main thread, also on a stack in managed memory, and forks. */
static void forks_after_the_main_thread_left(void) {
    pid_t child = fork();
    if (child == 0) {
        alarm(100);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        MUST(pthread_attr_setstack(&attributes, mapping(2 * MIB), 2 * MIB) == 0);
        pthread_t thread;
        MUST(pthread_create(&thread, &attributes, forks_without_the_main_thread, NULL) == 0);
        pthread_exit(NULL);
    }
    wait_for(child);
}

/* ---- How processes change and end ---- */

/* `execute SEED` is what cases execute: it finds its argument and the memory of a new process. */
static int executed(const char *seed) {
    char expected[5000];
    memset(expected, 'a', sizeof expected - 1);
    expected[sizeof expected - 1] = 0;
    return strcmp(seed, expected) == 0 ? 0 : 3;
}

static void executions_that_fail_and_one_that_does_not(void) {
    make_cold();
    char *words = cold_heap(64 * KIB, 3);
    char **arguments = (char **)words, *text = words + 32 * KIB, *path = words + 16 * KIB;
    for (int n = 0; n < 5; n++) {
        /* Some may have come back ahead of a reader of what lies beside, and would be shared: a
         * child cannot evict those. */
        evict(words, 64 * KIB);
        pid_t child = n < 4 ? fork() : vfork();
        if (child == 0) {
            if (n < 4)
                alarm(60);
            arguments[0] = arguments[1] = "execute";
            arguments[2] = text;
            arguments[3] = NULL;
            memset(text, 'a', 4999);
            text[4999] = 0;
            strcpy(path, "/there/is/no/such/program");
            /* Advice of a process that only shares the memory is the kernel's to follow. */
            if (n < 4)
                evict(words, 64 * KIB);
            MUST(execv(path, arguments) == -1 && errno == ENOENT);
            MUST(execv("/proc/self/maps", arguments) == -1 && errno == EACCES);
            if (n < 4)
                check_all();
            strcpy(path, "/proc/self/exe");
            if (n < 4)
                evict(words, 64 * KIB);
            execv(path, arguments);
            _exit(127);
        }
        wait_for(child);
        check_all();
        evict_all();
    }
}

static void *touch_for_ever(void *argument) {
    for (uint64_t n = 1;; n++) {
        size_t page = mix(n + (uint64_t)(uintptr_t)argument) % PAGES;
        check_pages(map, page, page + 1, 2);
        if (n % 50 == 0 && evicts())
            madvise(map, BYTES, MADV_PAGEOUT);
    }
    return NULL;
}

/* A process of several threads is replaced, ended or killed while these fault. */
static void ended_while_threads_fault(void) {
    make_cold();
    for (int n = 0; n < 12; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            pthread_t thread;
            for (uintptr_t t = 0; t < 3; t++)
                MUST(pthread_create(&thread, NULL, touch_for_ever, (void *)(t * 1000)) == 0);
            usleep(3000 * n);
            char text[5000];
            memset(text, 'a', sizeof text - 1);
            text[sizeof text - 1] = 0;
            if (n % 4 == 0)
                execl("/proc/self/exe", "execute", "execute", text, NULL);
            else if (n % 4 == 1)
                _exit(0);
            else if (n % 4 == 2)
                syscall(SYS_exit_group, 0);
            pause();
        }
        if (n % 4 == 3) {
            usleep(20000);
            kill(child, SIGKILL);
            int status;
            MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        } else {
            wait_for(child);
        }
        check_pages(heap, 0, PAGES / 8, 1);
    }
    check_all();
}

static void stopped_and_continued(void) {
    make_cold();
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (int n = 0; n < 5; n++) {
            evict_all();
            raise(SIGSTOP);
            check_all();
        }
        _exit(0);
    }
    for (int n = 0; n < 5; n++) {
        int status;
        MUST(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
        /* Its parent forks, evicts and reads meanwhile. */
        check_all();
        pid_t other = fork();
        if (other == 0) {
            check_all();
            _exit(0);
        }
        wait_for(other);
        MUST(kill(child, SIGCONT) == 0);
    }
    wait_for(child);
    /* Also amid faults. */
    child = fork();
    if (child == 0) {
        alarm(60);
        pthread_t thread;
        for (uintptr_t t = 0; t < 3; t++)
            MUST(pthread_create(&thread, NULL, touch_for_ever, (void *)(t * 1000)) == 0);
        sleep(1);
        check_all();
        _exit(0);
    }
    int status;
    for (;;) {
        usleep(10000);
        kill(child, SIGSTOP);
        MUST(waitpid(child, &status, WUNTRACED) == child);
        if (!WIFSTOPPED(status))
            break;
        usleep(1000);
        kill(child, SIGCONT);
    }
    MUST(status == 0);
    check_all();
}

/*
 * A core file holds what is resident. What is evicted is a hole in it, that is zeros: the kernel
 * asks no userfaultfd while it writes one. The compressed copies are in it too.
 */
static void core_files(void) {
    char pattern[10] = "";
    int fd = open("/proc/sys/kernel/core_pattern", O_RDONLY);
    MUST(read(fd, pattern, sizeof pattern - 1) > 0);
    close(fd);
    if (pattern[0] == '|' || pattern[0] == '/')
        cannot_check("/proc/sys/kernel/core_pattern sends core files elsewhere");
    char directory[] = "/tmp/terrace-test-XXXXXX";
    MUST(mkdtemp(directory) && chdir(directory) == 0);
    enum { RESIDENT = 16 };
    make_cold();
    struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &unlimited) != 0)
        cannot_check("core files are forbidden here (ulimit -c)");
    pid_t child = fork();
    if (child == 0) {
        /* Private mappings only, and none of them whole reservations. */
        evict_all();
        check_pages(heap, 0, RESIDENT, 1);
        abort();
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && WCOREDUMP(status));
    char name[32];
    snprintf(name, sizeof name, "core.%d", child);
    int core = open("core", O_RDONLY);
    if (core < 0)
        core = open(name, O_RDONLY);
    MUST(core >= 0);
    Elf64_Ehdr header;
    MUST(read(core, &header, sizeof header) == sizeof header && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0);
    uint64_t words[512];
    size_t right = 0, zeros = 0, seen = 0;
    for (size_t page = 0; page < PAGES; page++)
        for (int p = 0; p < header.e_phnum; p++) {
            Elf64_Phdr segment;
            MUST(pread(core, &segment, sizeof segment, (off_t)(header.e_phoff + (size_t)p * sizeof segment)) == sizeof segment);
            uintptr_t address = (uintptr_t)heap + page * PAGE;
            if (segment.p_type != PT_LOAD || address < segment.p_vaddr || address >= segment.p_vaddr + segment.p_filesz)
                continue;
            MUST(pread(core, words, PAGE, (off_t)(segment.p_offset + address - segment.p_vaddr)) == PAGE);
            seen++;
            bool is_right = words[0] == word_of(1, page, 0) && words[511] == word_of(1, page, 511);
            right += is_right;
            zeros += words[0] == 0 && words[511] == 0;
            if (page < RESIDENT && !getenv("TERRACE_STRESS"))
                MUST(is_right);
            break;
        }
    MUST(seen == PAGES && right + zeros == PAGES);
    MUST(evicts() ? zeros > PAGES / 2 : right == PAGES);
    MUST(unlink("core") == 0 || unlink(name) == 0);
    MUST(chdir("/") == 0 && rmdir(directory) == 0);
    check_all();
}

/* ---- Rights that go away ---- */

static void check_in_child_and_grandchild(void) {
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        check_pages(heap, 0, PAGES / 2, 1);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            alarm(60);
            check_all();
            _exit(0);
        }
        wait_for(grandchild);
        check_all();
        fill(heap, BYTES, 4);
        check(heap, BYTES, 4);
        _exit(0);
    }
    wait_for(child);
    check_all();
}

/* By the real user id, group ids and capabilities, for a while and for good. */
static void user_ids_change(void) {
    if (geteuid() != 0)
        cannot_check("needs root to change user ids");
    make_cold();
    for (int n = 0; n < 3; n++) {
        MUST(n % 2 ? setresuid(65534, 65534, 0) == 0 : seteuid(65534) == 0);
        check_in_child_and_grandchild();
        if (evicts())
            madvise(heap, BYTES, MADV_PAGEOUT);
        MUST(setresuid(0, 0, 0) == 0);
        check_in_child_and_grandchild();
        if (evicts())
            madvise(heap, BYTES, MADV_PAGEOUT);
    }
    MUST(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    check_in_child_and_grandchild();
    if (evicts())
        madvise(map, BYTES, MADV_PAGEOUT);
    check_in_child_and_grandchild();
}

/* Before there is anything to evict: run before the ballast (see main). */
static void user_ids_change_at_once(void) {
    if (geteuid() != 0)
        cannot_check("needs root to change user ids");
    MUST(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    memset(mapping(64 * MIB), 1, PAGE);
    heap = mapping(BYTES), map = mapping(BYTES);
    fill(heap, BYTES, 1);
    fill(map, BYTES, 2);
    if (evicts()) {
        madvise(heap, BYTES, MADV_PAGEOUT);
        madvise(map, BYTES, MADV_PAGEOUT);
    }
    check_in_child_and_grandchild();
}

/* No process may look into this one any more, /proc included. */
static void not_dumpable(void) {
    make_cold();
    for (int n = 0; n < 3; n++) {
        MUST(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
        check_in_child_and_grandchild();
        if (evicts())
            madvise(heap, BYTES, MADV_PAGEOUT);
        if (n == 1)
            MUST(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    }
    if (geteuid() == 0) {
        MUST(setgid(65534) == 0 && setuid(65534) == 0);
        MUST(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
        check_in_child_and_grandchild();
    }
    check_all();
}

/* What a sandbox allows that knows nothing of Terrace: anything else ends the process. */
static void load_filter(bool by_number) {
    static const int allowed[] = {SYS_read,  SYS_write,          SYS_exit,  SYS_exit_group, SYS_futex, SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_brk,
                                  SYS_mmap,  SYS_munmap,         SYS_mremap, SYS_mprotect,   SYS_madvise, SYS_clone,        SYS_clone3,         SYS_wait4,
                                  SYS_getpid, SYS_set_robust_list, SYS_rseq,  SYS_gettid,     SYS_close, SYS_clock_nanosleep};
    struct sock_filter code[2 * COUNT(allowed) + 2];
    size_t n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t a = 0; a < COUNT(allowed); a++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[a], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {(unsigned short)n, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_number)
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    else
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

static void sandboxed(bool by_number) {
    make_cold();
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        load_filter(by_number);
        check_all();
        fill(heap, BYTES, 5);
        char *own_mapping = mapping(BYTES);
        fill(own_mapping, BYTES, 6);
        free(malloc(3 * MIB));
        check(own_mapping, BYTES, 6);
        check(heap, BYTES, 5);
        MUST(munmap(own_mapping, BYTES) == 0);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check(map, BYTES, 2);
            fill(map, BYTES, 7);
            _exit(0);
        }
        wait_for(grandchild);
        check(map, BYTES, 2);
        _exit(0);
    }
    wait_for(child);
    check_all();
    evict_all();
    load_filter(by_number);
    check_all();
    fill(map, BYTES, 7);
    check(map, BYTES, 7);
}

/* A program that asks whether filters are possible loads none, and its memory still leaves and
 * comes back. */
static void asking_for_filters(void) {
    make_cold();
    unsigned action = SECCOMP_RET_KILL_PROCESS;
    uint16_t sizes[3];
    MUST(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0);
    MUST(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, sizes) == 0);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT);
    MUST(prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0);
    for (int round = 0; round < 3; round++) {
        check_all();
        evict(map, BYTES);
    }
    check_all();
}

static void sandboxed_by_prctl(void) { sandboxed(false); }
static void sandboxed_by_seccomp(void) { sandboxed(true); }

/* Only read, write, exit and sigreturn. */
static void sandboxed_strictly(void) {
    make_cold();
    pid_t child = fork();
    if (child == 0) {
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0);
        check_all();
        fill(heap, BYTES, 5);
        check(heap, BYTES, 5);
        syscall(SYS_exit, 0);
    }
    wait_for(child);
    check_all();
}

static void *goes_on_sandboxed(void *unused) {
    /* The main thread's end takes system calls that the filter forbids. */
    await_main_threads_end();
    load_filter(true);
    check_all();
    fill(heap, BYTES, 5);
    check(heap, BYTES, 5);
    return NULL;
}

/* The process ends with its last thread, which is not the main thread. */
static void sandboxed_and_left_by_the_main_thread(void) {
    make_cold();
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, goes_on_sandboxed, NULL) == 0);
        pthread_exit(NULL);
    }
    wait_for(child);
    check_all();
}

/* ---- Threads ---- */

static void *touch_until_cancelled(void *argument) {
    int before;
    pthread_setcanceltype(argument ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, &before);
    pthread_barrier_wait(&barrier);
    for (uint64_t n = 1;; n++) {
        volatile uint64_t *page = (volatile uint64_t *)map + mix(n) % PAGES * 512;
        page[n % 512] = page[n % 512];
        if (!argument)
            pthread_testcancel();
    }
    return NULL;
}

static int cleaned;
static void clean_up(void *argument) {
    check_pages(argument, 0, 4, 8);
    free(argument);
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST);
}

static void *wait_until_cancelled(void *argument) {
    int ends[2];
    char byte;
    char *block = cold_heap(16 * KIB, 8);
    pthread_cleanup_push(clean_up, block);
    MUST(pipe(ends) == 0);
    pthread_barrier_wait(&barrier);
    MUST(read(ends[0], &byte, 1) == 1);
    pthread_cleanup_pop(1);
    return NULL;
}

static void threads_are_cancelled(void) {
    make_cold();
    pthread_barrier_init(&barrier, NULL, 4);
    for (int round = 0; round < 60; round++) {
        pthread_t threads[3];
        if (round % 4 == 0)
            evict(map, BYTES);
        MUST(pthread_create(&threads[0], NULL, touch_until_cancelled, NULL) == 0);
        MUST(pthread_create(&threads[1], NULL, touch_until_cancelled, &threads) == 0);
        MUST(pthread_create(&threads[2], NULL, wait_until_cancelled, NULL) == 0);
        pthread_barrier_wait(&barrier);
        usleep((unsigned)round * 50);
        for (size_t n = 0; n < COUNT(threads); n++) {
            void *result;
            MUST(pthread_cancel(threads[n]) == 0);
            MUST(pthread_join(threads[n], &result) == 0 && result == PTHREAD_CANCELED);
        }
    }
    MUST(cleaned == 60);
    check_all();
    check_in_child_and_grandchild();
}

/* Threads of all kinds of stacks come and go while others do, and children are forked amid. */
static void *short_lived(void *argument) {
    size_t page = (size_t)(uintptr_t)argument * 7 % PAGES;
    check_pages(heap, page, page + 1, 1);
    char *block = malloc(3000);
    memset(block, 1, 3000);
    pthread_setspecific(keys[KEYS - 1], block);
    return NULL;
}

/* Calls in which Terrace allocates for itself: a child that inherited its heap amid a change could do nothing more. */
static atomic_bool stop;
static void *changes_mappings(void *argument) {
    char *area = mapping(2 * MIB);
    for (int n = 0; !stop; n++)
        MUST(mprotect(area, MIB, n % 2 ? PROT_READ | PROT_WRITE : PROT_READ) == 0);
    return NULL;
}

static void threads_come_and_go_while_one_forks(void) {
    make_cold();
    pthread_t changing[2];
    for (size_t n = 0; n < COUNT(changing); n++)
        MUST(pthread_create(&changing[n], NULL, changes_mappings, NULL) == 0);
    for (int n = 0; n < 30; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            check_pages(heap, (size_t)n, (size_t)n + 1, 1);
            _exit(0);
        }
        wait_for(child);
    }
    stop = true;
    for (size_t n = 0; n < COUNT(changing); n++)
        MUST(pthread_join(changing[n], NULL) == 0);
    for (int n = 0; n < KEYS; n++)
        MUST(pthread_key_create(&keys[n], free) == 0);
    for (uintptr_t n = 0; n < 1000; n += 10) {
        pthread_t threads[10];
        for (uintptr_t t = 0; t < 10; t++) {
            pthread_attr_t attributes;
            pthread_attr_init(&attributes);
            MUST(pthread_attr_setstacksize(&attributes, (size_t)(64 << t % 6) * KIB) == 0);
            MUST(pthread_create(&threads[t], &attributes, short_lived, (void *)(n + t)) == 0);
        }
        if (n % 100 == 0) {
            if (evicts())
                madvise(heap, BYTES, MADV_PAGEOUT);
            pid_t child = fork();
            if (child == 0) {
                alarm(60);
                check_all();
                pthread_t thread;
                MUST(pthread_create(&thread, NULL, short_lived, NULL) == 0);
                MUST(pthread_join(thread, NULL) == 0);
                _exit(0);
            }
            wait_for(child);
        }
        for (size_t t = 0; t < 10; t++)
            MUST(pthread_join(threads[t], NULL) == 0);
    }
    check_all();
}

/* ---- Signals ---- */

static volatile sig_atomic_t handled;
static sigjmp_buf back;

static void on_cold_stack(int number) {
    char here[30000];
    memset(here, 3, sizeof here);
    size_t page = (size_t)handled * 31 % PAGES;
    check_pages(map, page, page + 1, 2);
    handled++;
    MUST(here[(size_t)handled % sizeof here] == 3);
}

static void on_segv(int number, siginfo_t *info, void *context) {
    check_pages(map, 0, 8, 2);
    handled++;
    siglongjmp(back, 1);
}

/* Handlers that run on an evicted stack, that touch evicted memory, or that arrive when it is
 * touched with all signals blocked. */
static void signals_and_evicted_memory(void) {
    make_cold();
    char *stack = cold_heap(64 * KIB, 3);
    stack_t alternate = {.ss_sp = stack, .ss_size = 64 * KIB};
    MUST(sigaltstack(&alternate, NULL) == 0);
    struct sigaction action = {.sa_handler = on_cold_stack, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int n = 0; n < 50; n++) {
        evict(stack, 64 * KIB);
        if (n % 10 == 0)
            evict(map, BYTES);
        raise(SIGUSR1);
    }
    MUST(handled == 50);
    /* In a child the stack is out too. */
    evict(stack, 64 * KIB);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        raise(SIGUSR1);
        MUST(handled == 51);
        _exit(0);
    }
    wait_for(child);
    /* A fault of the program's own reaches its handler, evicted memory in the same moment or not. */
    struct sigaction fatal = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    MUST(sigaction(SIGSEGV, &fatal, NULL) == 0);
    char *forbidden = cold_mapping(2 * MIB, 9);
    handled = 0;
    for (int n = 0; n < 20; n++) {
        evict(stack, 64 * KIB);
        MUST(mprotect(forbidden, 2 * MIB, PROT_NONE) == 0);
        if (sigsetjmp(back, 1) == 0) {
            (void)*(volatile char *)(forbidden + n * PAGE);
            MUST(!"a forbidden page can be read");
        }
        MUST(mprotect(forbidden, 2 * MIB, PROT_READ | PROT_WRITE) == 0);
    }
    MUST(handled == 20);
    check(forbidden, 2 * MIB, 9);
    sigset_t all, before;
    sigfillset(&all);
    MUST(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    evict_all();
    check_all();
    MUST(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    MUST(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL) == 0);
    check_all();
}

/*
 * The handler touches evicted memory, allocates in Terrace's own heap and forks. What it interrupts
 * does nothing but calls that allocate there (mmap family, thread-local tables, fork handlers).
 */
static void on_tick(int number) {
    int saved = errno;
    size_t page = (size_t)(handled * 37) % PAGES;
    check_pages(map, page, page + 1, 2);
    if (handled++ % 8 == 0) {
        pid_t child = _Fork();
        if (child == 0)
            _exit(((volatile uint64_t *)map)[page * 512] != word_of(2, page, 0));
        int status;
        MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    errno = saved;
}

static void signals_in_terraces_own_heap(void) {
    make_cold();
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    char *area = mapping(4 * MIB);
    /* One signal for each round, at any moment of it: more would leave no time for anything else. */
    for (uint64_t n = 0; n < 150 || handled < 100; n++) {
        struct itimerval once = {.it_value = {0, 20 + (suseconds_t)(mix(n) % 400)}};
        MUST(setitimer(ITIMER_REAL, &once, NULL) == 0);
        for (int k = 0; k < 40; k++)
            MUST(mprotect(area, 2 * MIB, k % 2 ? PROT_READ | PROT_WRITE : PROT_READ) == 0);
        area[0] = 1;
        MUST(madvise(area, 4 * MIB, MADV_DONTNEED) == 0);
        MUST(dlsym(RTLD_DEFAULT, "there_is_no_such_symbol") == NULL && dlerror());
        if (n % 10 == 0) {
            void *handle = dlopen(allocating_library, RTLD_NOW);
            MUST(handle && dlclose(handle) == 0);
            if (evicts())
                madvise(map, BYTES, MADV_PAGEOUT);
        }
    }
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
    check_all();
}

/* ---- Libraries ---- */

static void libraries_come_and_go_with_their_memory_out(void) {
    make_cold();
    for (int n = 0; n < 20; n++) {
        void *handle = dlopen(allocating_library, n % 2 ? RTLD_NOW : RTLD_LAZY);
        MUST(handle);
        int (*library_check)(void) = (int (*)(void))dlsym(handle, "allocating_library_check");
        if (n % 2 == 0)
            evict_everything();
        MUST(library_check && library_check() == 0);
        evict_everything();
        if (n % 5 == 0) {
            pid_t child = fork();
            if (child == 0) {
                alarm(60);
                MUST(library_check() == 0 && dlclose(handle) == 0);
                handle = dlopen(allocating_library, RTLD_NOW);
                library_check = (int (*)(void))dlsym(handle, "allocating_library_check");
                MUST(library_check && library_check() == 0 && dlclose(handle) == 0);
                check_all();
                exit(0);
            }
            wait_for(child);
        }
        MUST(dlclose(handle) == 0);
    }
    check_all();
}

/* For the tests that send signals from outside: says that it is ready and waits. */
/* Every signal that can be blocked goes to every thread of Terrace's, whatever the program's action is for it. */
static void signals_to_terraces_threads(void) {
    make_cold();
    pid_t companion = companion_of_this();
    MUST(!evicts() || companion > 0);
    if (companion <= 0)
        return;
    pid_t threads[64];
    size_t count = 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", companion);
    DIR *tasks = opendir(path);
    MUST(tasks);
    for (struct dirent *task; (task = readdir(tasks));)
        if (task->d_name[0] != '.') {
            MUST(count < COUNT(threads));
            threads[count++] = atoi(task->d_name);
        }
    closedir(tasks);
    MUST(count >= 3);
    for (size_t t = 0; t < count; t++)
        for (int number = 1; number <= 64; number++)
            if (number != SIGKILL && number != SIGSTOP)
                MUST(syscall(SYS_tgkill, companion, threads[t], number) == 0);
    check_all();
    evict(map, BYTES);
    check_all();
    for (size_t t = 0; t < count; t++)
        MUST(syscall(SYS_tgkill, companion, threads[t], 0) == 0);
}

static void waits_with_pages_out(void) {
    make_cold();
    MUST(write(1, "ready\n", 6) == 6);
    for (;;)
        pause();
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(libraries_with_thread_local_variables),
        CASE(small_stacks_of_other_threads),
        CASE(another_locale),
        CASE(many_values_of_other_threads),
        CASE(many_fork_handlers),
        CASE(stacks_in_managed_memory),
        CASE(forks_after_the_main_thread_left),
        CASE(executions_that_fail_and_one_that_does_not),
        CASE(ended_while_threads_fault),
        CASE(stopped_and_continued),
        CASE(core_files),
        CASE(user_ids_change),
        CASE(not_dumpable),
        CASE(asking_for_filters),
        CASE(sandboxed_by_prctl),
        CASE(sandboxed_by_seccomp),
        CASE(sandboxed_strictly),
        CASE(sandboxed_and_left_by_the_main_thread),
        CASE(threads_are_cancelled),
        CASE(threads_come_and_go_while_one_forks),
        CASE(signals_and_evicted_memory),
        CASE(signals_in_terraces_own_heap),
        CASE(libraries_come_and_go_with_their_memory_out),
        CASE(signals_to_terraces_threads),
        CASE(waits_with_pages_out),
    };
    if (count > 2 && strcmp(words[1], "execute") == 0)
        return executed(words[2]);
    if (count > 1 && strcmp(words[1], "user_ids_change_at_once") == 0) {
        user_ids_change_at_once();
        return 0;
    }
    tls_library = count > 2 ? words[2] : "";
    allocating_library = count > 3 ? words[3] : "";
    int status = run_case(count, words, cases, COUNT(cases));
    if (getenv("EXPECT_ANOTHER_PRELOAD")) {
        int (*forks)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "another_preload_forks");
        MUST(forks && forks() > 0);
    }
    return status;
}
