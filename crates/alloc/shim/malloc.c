/*
 * The malloc family's entry points and the one thread-local variable. They are in C, because stable
 * Rust cannot place a variable in the initial-exec TLS model. Without that, a first access could
 * itself call malloc.
 *
 * A thread allocates from managed memory (jemalloc arenas over a zone), unless it is one of ours,
 * or is inside code of ours (`depth`). Then it allocates from the unmanaged allocator. The address
 * of a pointer tells where it came from. The names here begin with terrace_; the runtime exports
 * them under their public names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* jemalloc, private and prefixed. */
void *_rjem_malloc(size_t);
void *_rjem_calloc(size_t, size_t);
void *_rjem_realloc(void *, size_t);
void _rjem_free(void *);
int _rjem_posix_memalign(void **, size_t, size_t);
void *_rjem_aligned_alloc(size_t, size_t);
size_t _rjem_malloc_usable_size(void *);
void *_rjem_mallocx(size_t, int);
void *_rjem_rallocx(void *, size_t, int);
size_t _rjem_xallocx(void *, size_t, size_t, int);
size_t _rjem_sallocx(const void *, int);
void _rjem_dallocx(void *, int);
void _rjem_sdallocx(void *, size_t, int);
size_t _rjem_nallocx(size_t, int);
int _rjem_mallctl(const char *, void *, size_t *, void *, size_t);
int _rjem_mallctlnametomib(const char *, size_t *, size_t *);
int _rjem_mallctlbymib(const size_t *, size_t, void *, size_t *, void *, size_t);
void _rjem_malloc_stats_print(void (*)(void *, const char *), void *, const char *);

/*
 * Where a call came from: its return address, its stack pointer before the call, the frame pointer
 * register. The public names, which jump here, put these behind the call's own arguments, of which
 * there are at most three.
 */
#define CALLER uintptr_t return_address, uintptr_t frame, uintptr_t frame_pointer
#define THE_CALLER return_address, frame, frame_pointer
#define UNUSED __attribute__((unused))
#define TWO_MORE UNUSED uintptr_t unused_b, UNUSED uintptr_t unused_c
#define ONE_MORE UNUSED uintptr_t unused_c

/* Rust's side. */
void *terrace_unmanaged_malloc(size_t size, size_t align, int zero);
void terrace_unmanaged_free(void *);
size_t terrace_unmanaged_size(const void *);
int terrace_bind_thread(void);
int terrace_large_flags(void);
void terrace_poll(void);
void terrace_poll_start(void);
struct cache;
struct cache *terrace_cache_create(void);
void terrace_cache_end(struct cache *);
void *terrace_grouped_malloc(size_t size, CALLER, struct cache *);
void terrace_grouped_free(void *, struct cache *);
size_t terrace_grouped_usable(const void *);
size_t terrace_grouped_size(size_t size, size_t align);
void terrace_large_born(void *, size_t bytes, CALLER, struct cache *);
void terrace_large_lives(void *, size_t bytes, uint16_t site);
uint16_t terrace_large_dies(void *);
void *terrace_placed_malloc(size_t size, size_t align, uintptr_t kind, uintptr_t what);
void terrace_placed_free(void *);
void terrace_placed_misaligned(size_t align);
void terrace_not_allocated(const void *);
size_t terrace_placed_usable(const void *);
_Bool terrace_placed_resize(void *, size_t);

/*
 * Zone 0, in which all but a few of jemalloc's objects lie. Set before the first of them is handed
 * out.
 */
uintptr_t terrace_heap_start;
uintptr_t terrace_heap_len;
/*
 * The zones of groups; set before the first object of theirs is handed out. Every object that lies
 * there is a grouped one.
 */
uintptr_t terrace_grouped_start;
uintptr_t terrace_grouped_len;
/* The zones of placed objects; set before the first object of theirs is handed out. */
uintptr_t terrace_placed_start;
uintptr_t terrace_placed_len;
/* The unmanaged allocator's address range; set before its first allocation is handed out. */
uintptr_t terrace_unmanaged_start;
uintptr_t terrace_unmanaged_len;
/* Set when terrace_poll has something to do (calls.rs). Here it is only loaded. */
unsigned terrace_pending;
#define pending() __atomic_load_n(&terrace_pending, __ATOMIC_RELAXED)
/* Whether the allocation sites of objects too large to be grouped are recorded. */
int terrace_watching;

/*
 * narenas:1               jemalloc's own. Threads use ours, and each new one would have it make
 *                         another.
 * oversize_threshold:0    Very large allocations stay in our arenas too (see LARGE).
 * metadata_thp:disabled   Metadata is small and must not round up to 2 MiB.
 * dirty_decay_ms:1000     What is free for a second goes back to the system (see purge_soon). It
 *                         would be compressed as if it were data.
 * slab_sizes              Four pages where jemalloc has one or two: each slab costs 128 bytes that
 *                         are never evicted (for objects of 1 KiB, 3 %).
 * muzzy_decay_ms:0        Freed pages are discarded for good. Lazily freed ones would be
 *                         compressed as if they were data.
 */
const char *_rjem_malloc_conf =
    "narenas:1,oversize_threshold:0,metadata_thp:disabled,dirty_decay_ms:1000,slab_sizes:512-512:4|1024-1024:4|2048-2048:4,muzzy_decay_ms:0,retain:true,percpu_arena:disabled";

/*
 * From this size on (jemalloc's own threshold), allocations have an arena of their own. It gives
 * freed memory back at once: otherwise a table that grows would leave all its former copies behind.
 */
#define LARGE ((size_t)8 << 20)
#define ZERO 0x40 /* MALLOCX_ZERO */
/* Below this size, bytes, threads mostly have free blocks of their own at hand. */
#define SMALL ((size_t)32 << 10)

/* A kind of placement (placement/mod.rs). */
#define NEXT_TO 1

/* Larger objects are not grouped (GROUPED_MAX of grouped/classes.rs). */
#define GROUPED_MAX ((size_t)3584)

struct thread {
    unsigned char fast;  /* bound, depth == 0, nothing grouped; the exported malloc reads it too */
    unsigned char bound; /* jemalloc knows which arena this thread uses */
    unsigned short depth;
    struct cache *cache;
    struct cache *grouped; /* the cache while depth == 0 */
};
__thread struct thread terrace_self __attribute__((tls_model("initial-exec")));
#define self terrace_self
/*
 * The kernel's struct rseq, for C libraries that have none of their own (os/src/task.rs). Its
 * second word is the thread's CPU.
 */
static __thread uint32_t rseq_area[8] __attribute__((tls_model("initial-exec"), aligned(32))) = {0, (uint32_t)-1};
uint32_t *terrace_rseq_area(void) { return rseq_area; }
/* Whether threads get caches; and (next) the key whose destructor ends a thread's cache. */
static int grouping;
static pthread_key_t cache_key;

void terrace_enter_internal(void) {
    self.depth++;
    self.fast = 0;
    self.grouped = NULL;
}

void terrace_leave_internal(void) {
    if (--self.depth == 0) {
        self.fast = self.bound && !self.cache && !terrace_watching;
        self.grouped = self.cache;
    }
}

/*
 * With TERRACE_ALLOCATOR=system the program keeps its own allocator. All calls but those of ours
 * are passed on to the definitions behind these.
 */
static int passing;
static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*memalign)(size_t, size_t);
    size_t (*malloc_usable_size)(void *);
    int (*malloc_trim)(size_t);
    int (*mallopt)(int, int);
    void (*malloc_stats)(void);
    void *mallinfo, *mallinfo2;
    void *(*mallocx)(size_t, int);
    void *(*rallocx)(void *, size_t, int);
    size_t (*xallocx)(void *, size_t, size_t, int);
    size_t (*sallocx)(const void *, int);
    void (*dallocx)(void *, int);
    void (*sdallocx)(void *, size_t, int);
    size_t (*nallocx)(size_t, int);
    int (*mallctl)(const char *, void *, size_t *, void *, size_t);
    int (*mallctlnametomib)(const char *, size_t *, size_t *);
    int (*mallctlbymib)(const size_t *, size_t, void *, size_t *, void *, size_t);
    void (*malloc_stats_print)(void (*)(void *, const char *), void *, const char *);
} next;
/*
 * In the order of the structure. The names from mallocx on exist only where the program brings
 * jemalloc.
 */
static const char *const next_names[] = {
    "malloc", "calloc", "realloc", "free", "posix_memalign", "memalign", "malloc_usable_size",
    "malloc_trim", "mallopt", "malloc_stats", "mallinfo", "mallinfo2",
    "mallocx", "rallocx", "xallocx", "sallocx", "dallocx", "sdallocx", "nallocx",
    "mallctl", "mallctlnametomib", "mallctlbymib", "malloc_stats_print",
};
_Static_assert(sizeof(next) == sizeof(next_names), "a name for each function");

/*
 * Decides once, at the first allocation of all. The environment is read where the kernel has put
 * it, on the stack: the C library may not be ready to look it up.
 */
extern void *__libc_stack_end;
static void decide(void) {
    static int decided;
    if (decided)
        return;
    decided = 1;
    /* After argc: the arguments, NULL, the environment, NULL. */
    char **word = (char **)__libc_stack_end + 1;
    while (*word)
        word++;
    const char *allocator = NULL;
    for (word++; *word; word++)
        if (!strncmp(*word, "TERRACE_ALLOCATOR=", 18))
            allocator = *word + 18;
    if (!allocator)
        return;
    /*
     * What the kernel tells follows. A program with more rights than its caller takes no orders
     * from the environment.
     */
    for (const ElfW(auxv_t) *told = (const void *)(word + 1); told->a_type != AT_NULL; told++)
        if (told->a_type == AT_SECURE && told->a_un.a_val)
            return;
    /* Read as the other settings are: spaces around the value are allowed. */
    allocator += strspn(allocator, " \t");
    size_t len = strlen("system");
    if (strncmp(allocator, "system", len) || allocator[len + strspn(allocator + len, " \t")])
        return;
    for (size_t i = 0; i < sizeof(next_names) / sizeof(*next_names); i++)
        ((void **)&next)[i] = dlsym(RTLD_NEXT, next_names[i]);
    passing = 1;
}

/* Whether a call that allocates is passed on. */
static inline int pass(void) {
    return unlikely(passing) && !self.depth;
}

static int unmanaged(const void *p) {
    return (uintptr_t)p - terrace_unmanaged_start < terrace_unmanaged_len;
}

static int is_grouped(const void *p) {
    return (uintptr_t)p - terrace_grouped_start < terrace_grouped_len;
}

static int is_placed(const void *p) {
    return (uintptr_t)p - terrace_placed_start < terrace_placed_len;
}

/* Whether the object is neither jemalloc's nor that of the program's own allocator. */
static int is_ours(const void *p) { return unlikely(unmanaged(p) || is_grouped(p) || is_placed(p)); }

/*
 * Whether a pointer that is none of ours, and is not passed on, was never allocated. An address in
 * zone 0 is taken for jemalloc's. Outside of it, where jemalloc has only a few objects, jemalloc is
 * asked, under a lock of its own. If a foreign address were freed, a later malloc would return it.
 */
static inline int is_nobodys(void *p) {
    if (likely((uintptr_t)p - terrace_heap_start < terrace_heap_len || !terrace_heap_len))
        return 0;
    unsigned arena;
    size_t len = sizeof(arena);
    return _rjem_mallctl("arenas.lookup", &arena, &len, &p, sizeof(p)) != 0;
}

/* Ends the cache when a thread ends. What the thread allocates after this is not grouped. */
static void end_cache(void *cache) {
    terrace_enter_internal();
    self.cache = NULL;
    terrace_cache_end(cache);
    terrace_leave_internal();
}

static void make_cache(void) {
    struct cache *cache = terrace_cache_create();
    /* Without a value of the key, the end of the thread would not be noticed. */
    if (cache && pthread_setspecific(cache_key, cache)) {
        terrace_cache_end(cache);
        cache = NULL;
    }
    self.cache = cache;
}

/* Makes this thread, and all that have not allocated yet, group their objects from now on. */
void terrace_group_threads(void) {
    if (pthread_key_create(&cache_key, end_cache))
        return;
    grouping = 1;
    if (self.bound)
        make_cache();
}

/* Whether this thread allocates managed memory; prepares it for that. Keeps errno. */
static __attribute__((noinline)) int ready_slow(void) {
    if (self.depth)
        return 0;
    int saved = errno;
    terrace_enter_internal();
    decide();
    if (!self.bound && !passing) { /* so a thread gets one cache in its life */
        self.bound = terrace_bind_thread();
        if (grouping)
            make_cache();
    }
    terrace_leave_internal();
    errno = saved;
    return self.bound;
}

static inline int ready(void) {
    return likely(self.fast) || likely(self.grouped != NULL) || ready_slow();
}

/* A grouped object, or NULL where nothing is grouped, or its zone is full. */
static inline void *grouped(size_t size, CALLER) {
    return size <= GROUPED_MAX && self.grouped ? terrace_grouped_malloc(size, THE_CALLER, self.grouped) : NULL;
}

/* Records a new object of jemalloc's, which is not grouped. */
static inline void *born(void *p, CALLER) {
    if (unlikely(terrace_watching) && p && self.grouped)
        terrace_large_born(p, _rjem_malloc_usable_size(p), THE_CALLER, self.grouped);
    return p;
}

/* Forgets an object that is about to be freed or moved. Returns its site. */
static inline uint16_t dies(void *p) { return unlikely(terrace_watching) ? terrace_large_dies(p) : 0; }

/* Records an object again that was not freed or moved after all. */
static inline void lives(void *p, uint16_t site) {
    if (unlikely(site))
        terrace_large_lives(p, _rjem_malloc_usable_size(p), site);
}

/* Records the result of moving `from`: it is at `to` now, or still in place if that is NULL. */
static inline void *moved(void *from, void *to, uint16_t site, CALLER) {
    if (!to)
        lives(from, site);
    return born(to, THE_CALLER);
}

static __attribute__((noinline)) void poll_slow(void (*poll)(void)) {
    if (self.depth)
        return;
    int saved = errno;
    terrace_enter_internal();
    poll();
    terrace_leave_internal();
    errno = saved;
}

/* Ends an allocation, when no lock is held: does what was asked for meanwhile. */
static inline void *done(void *p) {
    if (unlikely(pending()))
        poll_slow(terrace_poll);
    return p;
}

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

static void *own(size_t size, size_t align, int zero) {
    void *p = terrace_unmanaged_malloc(size, align, zero);
    return p ? p : no_memory();
}

/*
 * Allocates from the large arena. The flags name the arena; if they are 0 there is none, and the
 * thread's own is used.
 */
static __attribute__((noinline)) int large_flags(void) {
    int saved = errno;
    terrace_enter_internal();
    int flags = terrace_large_flags();
    terrace_leave_internal();
    errno = saved;
    return flags;
}

static __attribute__((noinline)) void *large(size_t size, int flags) {
    void *p = _rjem_mallocx(size, large_flags() | flags);
    return done(p ? p : no_memory());
}

static __attribute__((noinline)) void *large_realloc(void *p, size_t size) {
    void *to = _rjem_rallocx(p, size, large_flags());
    return done(to ? to : no_memory());
}

static __attribute__((noinline)) void *malloc_slow(size_t size, CALLER) {
    if (pass())
        return done(next.malloc(size));
    if (!ready()) /* which may just have decided to pass on */
        return pass() ? next.malloc(size) : own(size, 16, 0);
    if (size >= LARGE)
        return born(large(size, 0), THE_CALLER);
    void *p = grouped(size, THE_CALLER);
    return done(p ? p : born(_rjem_malloc(size), THE_CALLER));
}

static __attribute__((noinline)) void *grouped_or_slow(size_t size, CALLER) {
    void *p = likely(!pending()) ? grouped(size, THE_CALLER) : NULL;
    return likely(p != NULL) ? p : malloc_slow(size, THE_CALLER);
}

/*
 * For a small allocation, pending requests have time until the next one. So this is one jump, and
 * nothing is saved for what comes after it.
 */
static inline void *allocate(size_t size, CALLER) {
    return likely(!pending() && size < SMALL && self.fast) ? _rjem_malloc(size) : grouped_or_slow(size, THE_CALLER);
}

void *terrace_malloc(size_t size, TWO_MORE, CALLER) { return allocate(size, THE_CALLER); }

void *terrace_calloc(size_t count, size_t size, ONE_MORE, CALLER) {
    size_t bytes;
    if (unlikely(__builtin_mul_overflow(count, size, &bytes)))
        return no_memory();
    if (pass())
        return done(next.calloc(count, size));
    if (unlikely(!ready()))
        return pass() ? next.calloc(count, size) : own(bytes, 16, 1);
    void *p = grouped(bytes, THE_CALLER);
    if (p)
        return done(memset(p, 0, bytes));
    return born(unlikely(bytes >= LARGE) ? large(bytes, ZERO) : done(_rjem_calloc(count, size)), THE_CALLER);
}

static __attribute__((noinline)) void free_slow(void *p) {
    if (unlikely(unmanaged(p)))
        terrace_unmanaged_free(p);
    else if (is_grouped(p))
        terrace_grouped_free(p, self.grouped);
    else if (unlikely(is_placed(p)))
        terrace_placed_free(p);
    else if (likely(p != NULL)) {
        if (unlikely(passing)) {
            next.free(p);
            return;
        }
        ready();
        if (unlikely(is_nobodys(p))) {
            terrace_not_allocated(p);
            return;
        }
        dies(p);
        _rjem_free(p);
    }
}

void terrace_free(void *p) {
    /* On a thread that is fast nothing of jemalloc's is watched (terrace_leave_internal). */
    if (likely((uintptr_t)p - terrace_heap_start < terrace_heap_len && self.fast))
        _rjem_free(p);
    else if (is_grouped(p))
        terrace_grouped_free(p, self.grouped);
    else
        free_slow(p);
}

static size_t usable_size(void *p) {
    if (unlikely(unmanaged(p)))
        return terrace_unmanaged_size(p);
    if (is_grouped(p))
        return terrace_grouped_usable(p);
    if (unlikely(is_placed(p)))
        return terrace_placed_usable(p);
    if (unlikely(passing))
        return next.malloc_usable_size(p);
    return unlikely(is_nobodys(p)) ? 0 : _rjem_malloc_usable_size(p);
}

/*
 * Moves an object to memory allocated for it (NULL if there is none), by another allocator or of
 * another class.
 */
static void *move(void *p, void *to, size_t size) {
    if (to) {
        size_t old = usable_size(p);
        memcpy(to, p, old < size ? old : size);
        terrace_free(p);
    }
    return to;
}

static void *reallocate(void *p, size_t size, CALLER) {
    if (!p)
        return allocate(size, THE_CALLER);
    if (unlikely(size == 0) && is_ours(p)) { /* as jemalloc and glibc */
        terrace_free(p);
        return NULL;
    }
    if (is_grouped(p)) {
        size_t old = terrace_grouped_usable(p);
        return size <= old && size > old / 2 ? p : move(p, allocate(size, THE_CALLER), size);
    }
    if (unlikely(is_placed(p))) {
        if (terrace_placed_resize(p, size))
            return p;
        void *to = terrace_placed_malloc(size, 16, NEXT_TO, (uintptr_t)p);
        return done(move(p, to ? to : allocate(size, THE_CALLER), size));
    }
    if (likely(!unmanaged(p))) {
        if (unlikely(passing))
            return done(next.realloc(p, size));
        ready();
        if (unlikely(is_nobodys(p))) {
            terrace_not_allocated(p);
            errno = EINVAL;
            return NULL;
        }
        uint16_t site = dies(p);
        void *to = unlikely(size >= LARGE) ? large_realloc(p, size) : done(_rjem_realloc(p, size));
        return size ? moved(p, to, site, THE_CALLER) : to;
    }
    return move(p, allocate(size, THE_CALLER), size);
}

void *terrace_realloc(void *p, size_t size, ONE_MORE, CALLER) { return reallocate(p, size, THE_CALLER); }

void *terrace_reallocarray(void *p, size_t count, size_t size, CALLER) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? no_memory() : reallocate(p, bytes, THE_CALLER);
}

/* A grouped object at a multiple of `align`, a power of two; or NULL. */
static void *grouped_aligned(size_t size, size_t align, CALLER) {
    size_t bytes = self.grouped ? terrace_grouped_size(size, align) : 0;
    return bytes ? grouped(bytes, THE_CALLER) : NULL;
}

int terrace_posix_memalign(void **p, size_t align, size_t size, CALLER) {
    if (likely(ready())) {
        int error;
        int valid = align >= sizeof(void *) && !(align & (align - 1));
        void *q = valid ? grouped_aligned(size, align, THE_CALLER) : NULL;
        if (q) {
            *p = q;
            done(NULL);
            return 0;
        }
        if (unlikely(size >= LARGE) && valid) {
            q = _rjem_mallocx(size, large_flags() | __builtin_ctzl(align));
            error = q ? 0 : ENOMEM;
        } else
            error = _rjem_posix_memalign(&q, align, size);
        if (!error)
            *p = born(q, THE_CALLER);
        done(NULL);
        return error;
    }
    if (pass()) {
        int error = next.posix_memalign(p, align, size);
        done(NULL);
        return error;
    }
    if (align < sizeof(void *) || (align & (align - 1)))
        return EINVAL;
    void *q = terrace_unmanaged_malloc(size, align, 0);
    if (!q)
        return ENOMEM;
    *p = q;
    return 0;
}

/* As glibc: any alignment is rounded up to a power of two, any size will do. */
static void *allocate_aligned(size_t align, size_t size, CALLER) {
    if (align > SIZE_MAX / 2 + 1) {
        errno = EINVAL;
        return NULL;
    }
    size_t power = sizeof(void *);
    while (power < align)
        power <<= 1;
    void *p = NULL;
    int error = terrace_posix_memalign(&p, power, size, THE_CALLER);
    if (error)
        errno = error;
    return error ? NULL : p;
}

void *terrace_memalign(size_t align, size_t size, ONE_MORE, CALLER) { return allocate_aligned(align, size, THE_CALLER); }

void *terrace_valloc(size_t size, TWO_MORE, CALLER) { return allocate_aligned(4096, size, THE_CALLER); }

void *terrace_pvalloc(size_t size, TWO_MORE, CALLER) {
    size_t pages;
    return __builtin_add_overflow(size, 4095, &pages) ? no_memory() : allocate_aligned(4096, pages & ~(size_t)4095, THE_CALLER);
}

/*
 * Whether the executable brings a malloc and free of its own, which come before ours. Then what
 * mnalloc returns has to be theirs, and there are no arenas. `known`: 1 if it does, -1 if not.
 * Called without a lock in hand: the loader has its own.
 */
int terrace_brings_malloc(void) {
    static int known;
    int is = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (unlikely(!is)) {
        Dl_info theirs, ours;
        void *their_free = dlsym(RTLD_DEFAULT, "free");
        is = their_free && dladdr(their_free, &theirs) && dladdr((void *)terrace_brings_malloc, &ours) && theirs.dli_fbase != ours.dli_fbase ? 1 : -1;
        __atomic_store_n(&known, is, __ATOMIC_RELAXED);
    }
    return is > 0;
}

/*
 * mnalloc of terrace.h. malloc decides where a placement means nothing: it is the default one,
 * nothing that was placed is there, its arena is gone, or memory is out.
 */
void *terrace_mnalloc(size_t size, uintptr_t kind, uintptr_t what, CALLER) {
    if (unlikely(terrace_brings_malloc())) {
        void *(*theirs)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");
        return theirs(size);
    }
    void *p = kind && !self.depth ? terrace_placed_malloc(size, 16, kind, what) : NULL;
    return p ? done(p) : allocate(size, THE_CALLER);
}
void *terrace_mnalloc_aligned(size_t align, size_t size, uintptr_t kind, uintptr_t what) {
    if (!align || align & (align - 1)) {
        terrace_placed_misaligned(align);
        errno = EINVAL;
        return NULL;
    }
    if (unlikely(terrace_brings_malloc())) {
        void *(*theirs)(size_t, size_t) = (void *(*)(size_t, size_t))dlsym(RTLD_DEFAULT, "aligned_alloc");
        size_t rounded;
        return theirs && !__builtin_add_overflow(size, align - 1, &rounded) ? theirs(align, rounded & ~(align - 1)) : no_memory();
    }
    void *p = kind && !self.depth ? terrace_placed_malloc(size, align, kind, what) : NULL;
    if (p)
        return done(p);
    /* Its name is a plain jump, as it has four arguments: so this is its caller's frame. */
#if defined(__x86_64__)
    uintptr_t *saved = __builtin_frame_address(0), frame = (uintptr_t)(saved + 2), frame_pointer = *saved;
#else
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0), frame_pointer = 0;
#endif
    return allocate_aligned(align, size, (uintptr_t)__builtin_return_address(0), frame, frame_pointer);
}

size_t terrace_malloc_usable_size(void *p) { return usable_size(p); }

/*
 * Does the same for the interposed mmap, which signal handlers call too: only what is safe there.
 */
void terrace_after_mapping(void) {
    if (unlikely(pending()))
        poll_slow(terrace_poll_start);
}

/*
 * jemalloc's own interface, for programs that bring jemalloc. It has all of it, as half would mix
 * two allocators. Allocations that name an arena or a cache are not grouped.
 */
#define ALIGN_OF(flags) ((size_t)1 << ((flags)&0x3f))
#define ALIGN_AND_ZERO 0x7f

/* The program's jemalloc, if it keeps its own allocator and that is one. */
#define PASS(name, ...)                  \
    if (unlikely(passing) && next.name)  \
        return next.name(__VA_ARGS__)

/* Passes a call about an object to the program's jemalloc, unless the object is ours. */
#define PASS_OBJECT(name, p, ...)                       \
    if (unlikely(passing) && next.name && !is_ours(p)) \
        return next.name(p, __VA_ARGS__)

/* Whether an object is not jemalloc's. */
static int is_foreign(const void *p) { return unlikely(passing || is_ours(p)); }

void *terrace_mallocx(size_t size, int flags, ONE_MORE, CALLER) {
    ready(); /* the first allocation of all decides */
    PASS(mallocx, size, flags);
    if (pass()) {
        void *p = next.memalign(ALIGN_OF(flags), size);
        return p && flags & ZERO ? memset(p, 0, usable_size(p)) : p;
    }
    void *p = flags & ~ALIGN_AND_ZERO ? NULL : grouped_aligned(size, ALIGN_OF(flags), THE_CALLER);
    if (p)
        /* All of it: rallocx goes by that. */
        return done(flags & ZERO ? memset(p, 0, usable_size(p)) : p);
    return done(born(_rjem_mallocx(size, flags), THE_CALLER));
}
void *terrace_rallocx(void *p, size_t size, int flags, CALLER) {
    PASS_OBJECT(rallocx, p, size, flags);
    ready();
    if (likely(!is_foreign(p))) {
        uint16_t site = dies(p);
        return done(moved(p, _rjem_rallocx(p, size, flags), site, THE_CALLER));
    }
    size_t old = usable_size(p);
    if (size <= old && !((uintptr_t)p & (ALIGN_OF(flags) - 1)))
        return p;
    return move(p, terrace_mallocx(size, flags, 0, THE_CALLER), size);
}

size_t terrace_xallocx(void *p, size_t size, size_t extra, int flags) {
    PASS_OBJECT(xallocx, p, size, extra, flags);
    if (is_foreign(p))
        return usable_size(p);
    uint16_t site = dies(p);
    size_t bytes = _rjem_xallocx(p, size, extra, flags);
    lives(p, site);
    return bytes;
}
size_t terrace_sallocx(void *p, int flags) {
    PASS_OBJECT(sallocx, p, flags);
    return is_foreign(p) ? usable_size(p) : _rjem_sallocx(p, flags);
}
void terrace_dallocx(void *p, int flags) {
    PASS_OBJECT(dallocx, p, flags);
    if (is_foreign(p))
        terrace_free(p);
    else {
        dies(p);
        _rjem_dallocx(p, flags);
    }
}
void terrace_sdallocx(void *p, size_t size, int flags) {
    PASS_OBJECT(sdallocx, p, size, flags);
    if (is_foreign(p))
        terrace_free(p);
    else {
        dies(p);
        _rjem_sdallocx(p, size, flags);
    }
}
size_t terrace_nallocx(size_t size, int flags) {
    PASS(nallocx, size, flags);
    return _rjem_nallocx(size, flags);
}
int terrace_mallctl(const char *name, void *old, size_t *old_len, void *new, size_t new_len) {
    PASS(mallctl, name, old, old_len, new, new_len);
    return passing ? ENOENT : _rjem_mallctl(name, old, old_len, new, new_len);
}
int terrace_mallctlnametomib(const char *name, size_t *mib, size_t *len) {
    PASS(mallctlnametomib, name, mib, len);
    return passing ? ENOENT : _rjem_mallctlnametomib(name, mib, len);
}
int terrace_mallctlbymib(const size_t *mib, size_t len, void *old, size_t *old_len, void *new, size_t new_len) {
    PASS(mallctlbymib, mib, len, old, old_len, new, new_len);
    return passing ? ENOENT : _rjem_mallctlbymib(mib, len, old, old_len, new, new_len);
}
/* Writes text to descriptor 2, whatever that is: where the program asked for it. */
void terrace_write_error(void *opaque, const char *text) {
    (void)opaque;
    ssize_t written = write(2, text, strlen(text));
    (void)written;
}
void terrace_malloc_stats_print(void (*write)(void *, const char *), void *opaque, const char *options) {
    PASS(malloc_stats_print, write, opaque, options);
    if (!passing)
        _rjem_malloc_stats_print(write ? write : terrace_write_error, opaque, options);
}

/* The program's own, where calls are passed on; else NULL. For what Rust exports. */
int (*terrace_next_malloc_trim(void))(size_t) { return passing ? next.malloc_trim : NULL; }
int (*terrace_next_mallopt(void))(int, int) { return passing ? next.mallopt : NULL; }
void (*terrace_next_malloc_stats(void))(void) { return passing ? next.malloc_stats : NULL; }
void *terrace_next_mallinfo(void) { return passing ? next.mallinfo : NULL; }
void *terrace_next_mallinfo2(void) { return passing ? next.mallinfo2 : NULL; }

/*
 * C++ operator new. When memory is out, the C++ library's own operator takes over. It calls the
 * new-handler and throws, which C cannot.
 */
#define FALL_BACK(name, type, ...)                           \
    __typeof__(type) real = (type)dlsym(RTLD_NEXT, name);    \
    return real ? real(__VA_ARGS__) : NULL

void *terrace_new(size_t size, TWO_MORE, CALLER) {
    void *p = allocate(size, THE_CALLER);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_Znwm", void *(*)(size_t), size);
}
void *terrace_new_nothrow(size_t size, const void *tag, ONE_MORE, CALLER) {
    void *p = allocate(size, THE_CALLER);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_ZnwmRKSt9nothrow_t", void *(*)(size_t, const void *), size, tag);
}
void *terrace_new_aligned(size_t size, size_t align, ONE_MORE, CALLER) {
    void *p = allocate_aligned(align, size, THE_CALLER);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_ZnwmSt11align_val_t", void *(*)(size_t, size_t), size, align);
}
void *terrace_new_aligned_nothrow(size_t size, size_t align, const void *tag, CALLER) {
    void *p = allocate_aligned(align, size, THE_CALLER);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_ZnwmSt11align_val_tRKSt9nothrow_t", void *(*)(size_t, size_t, const void *), size, align, tag);
}
