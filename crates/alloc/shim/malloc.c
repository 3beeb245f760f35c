/*
 * The malloc family's entry points and the one thread-local variable: in C, because stable Rust cannot place a variable in the
 * initial-exec TLS model, without which a first access could itself call malloc.
 *
 * A thread allocates from managed memory (jemalloc arenas over a zone) unless it is one of ours, or is inside code of ours
 * (`depth`): then from the unmanaged allocator. Every pointer tells by its address where it came from.
 * The names here begin with terrace_; the runtime exports them under their public names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

/* Rust's side. */
void *terrace_unmanaged_malloc(size_t size, size_t align, int zero);
void terrace_unmanaged_free(void *);
size_t terrace_unmanaged_size(const void *);
int terrace_bind_thread(void);
int terrace_large_flags(void);
void terrace_poll(void);

/* The unmanaged allocator's address range; set before its first allocation is handed out. */
uintptr_t terrace_unmanaged_start;
uintptr_t terrace_unmanaged_len;
/* Set when terrace_poll has something to do. */
int terrace_pending;

/*
 * narenas:1               of its own; threads use ours, and each new one would have it make another
 * oversize_threshold:0    very large allocations stay in our arenas too (see LARGE)
 * metadata_thp:disabled   metadata is small and must not round up to 2 MiB
 * dirty_decay_ms:1000     what is free for a second goes back to the system (see tidy_soon): it would be compressed as if it were data
 * slab_sizes              four pages where jemalloc has one or two: each slab costs 128 bytes that are never evicted (for objects of 1 KiB, 3 %)
 * muzzy_decay_ms:0        freed pages are discarded for good: lazily freed ones would be compressed as if they were data
 */
const char *_rjem_malloc_conf =
    "narenas:1,oversize_threshold:0,metadata_thp:disabled,dirty_decay_ms:1000,slab_sizes:512-512:4|1024-1024:4|2048-2048:4,muzzy_decay_ms:0,retain:true,percpu_arena:disabled";

/*
 * From this size on, jemalloc's own threshold, allocations have an arena of their own, which gives what is freed back at once: a table that
 * grows would leave all its former selves behind.
 */
#define LARGE ((size_t)8 << 20)
#define ZERO 0x40 /* MALLOCX_ZERO */
/* Below this size threads have free blocks of their own at hand, mostly. */
#define SMALL ((size_t)32 << 10)

struct thread {
    unsigned char fast;  /* bound and depth == 0 */
    unsigned char bound; /* jemalloc knows which arena this thread uses */
    unsigned short depth;
};
static __thread struct thread self __attribute__((tls_model("initial-exec")));

void terrace_enter_internal(void) {
    self.depth++;
    self.fast = 0;
}

void terrace_leave_internal(void) {
    self.depth--;
    self.fast = self.bound && self.depth == 0;
}

static int unmanaged(const void *p) {
    return (uintptr_t)p - terrace_unmanaged_start < terrace_unmanaged_len;
}

/* Whether this thread allocates managed memory; gets it ready to. Keeps errno. */
static __attribute__((noinline)) int ready_slow(void) {
    if (self.depth)
        return 0;
    int saved = errno;
    terrace_enter_internal();
    self.bound = terrace_bind_thread();
    terrace_leave_internal();
    errno = saved;
    return self.bound;
}

static inline int ready(void) {
    return likely(self.fast) || ready_slow();
}

static __attribute__((noinline)) void poll_slow(void) {
    if (self.depth)
        return;
    int saved = errno;
    terrace_enter_internal();
    terrace_poll();
    terrace_leave_internal();
    errno = saved;
}

/* After an allocation, when no lock is held: what the allocation gave reason for. */
static inline void *done(void *p) {
    if (unlikely(terrace_pending))
        poll_slow();
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

/* The flags name the arena; 0: there is none, the thread's serves. */
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
    void *to = p ? _rjem_rallocx(p, size, large_flags()) : _rjem_mallocx(size, large_flags());
    return done(to ? to : no_memory());
}

static __attribute__((noinline)) void *malloc_slow(size_t size) {
    if (!ready())
        return own(size, 16, 0);
    return size >= LARGE ? large(size, 0) : done(_rjem_malloc(size));
}

/* What a small allocation gives reason for has time until the next one: so this is one jump. */
void *terrace_malloc(size_t size) {
    return likely(size < SMALL && self.fast && !terrace_pending) ? _rjem_malloc(size) : malloc_slow(size);
}

void *terrace_calloc(size_t count, size_t size) {
    size_t bytes;
    if (unlikely(__builtin_mul_overflow(count, size, &bytes)))
        return no_memory();
    if (unlikely(!ready()))
        return own(bytes, 16, 1);
    return unlikely(bytes >= LARGE) ? large(bytes, ZERO) : done(_rjem_calloc(count, size));
}

void terrace_free(void *p) {
    if (unlikely(unmanaged(p)))
        terrace_unmanaged_free(p);
    else if (likely(p != NULL)) {
        ready();
        _rjem_free(p);
    }
}

void *terrace_realloc(void *p, size_t size) {
    if (likely(!unmanaged(p))) {
        if (likely(ready()) || p)
            return unlikely(size >= LARGE) ? large_realloc(p, size) : done(_rjem_realloc(p, size));
        return own(size, 16, 0);
    }
    if (size == 0) {
        terrace_unmanaged_free(p);
        return NULL;
    }
    void *to = terrace_malloc(size);
    if (to) {
        size_t old = terrace_unmanaged_size(p);
        memcpy(to, p, old < size ? old : size);
        terrace_unmanaged_free(p);
    }
    return to;
}

void *terrace_reallocarray(void *p, size_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? no_memory() : terrace_realloc(p, bytes);
}

int terrace_posix_memalign(void **p, size_t align, size_t size) {
    if (likely(ready())) {
        int error;
        if (unlikely(size >= LARGE) && align >= sizeof(void *) && !(align & (align - 1))) {
            void *q = _rjem_mallocx(size, large_flags() | __builtin_ctzl(align));
            error = q ? 0 : ENOMEM;
            if (q)
                *p = q;
        } else
            error = _rjem_posix_memalign(p, align, size);
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
void *terrace_memalign(size_t align, size_t size) {
    if (align > SIZE_MAX / 2 + 1) {
        errno = EINVAL;
        return NULL;
    }
    size_t power = sizeof(void *);
    while (power < align)
        power <<= 1;
    void *p = NULL;
    int error = terrace_posix_memalign(&p, power, size);
    if (error)
        errno = error;
    return error ? NULL : p;
}

void *terrace_valloc(size_t size) { return terrace_memalign(4096, size); }

void *terrace_pvalloc(size_t size) {
    size_t pages;
    return __builtin_add_overflow(size, 4095, &pages) ? no_memory() : terrace_memalign(4096, pages & ~(size_t)4095);
}

size_t terrace_malloc_usable_size(void *p) {
    return unlikely(unmanaged(p)) ? terrace_unmanaged_size(p) : _rjem_malloc_usable_size(p);
}

/* The same for the interposed mmap. */
void terrace_after_mapping(void) { done(NULL); }

/* jemalloc's own interface, for programs that bring jemalloc. All of it or none: half would mix two allocators. */
void *terrace_mallocx(size_t size, int flags) {
    ready();
    return done(_rjem_mallocx(size, flags));
}
void *terrace_rallocx(void *p, size_t size, int flags) {
    ready();
    return unlikely(unmanaged(p)) ? terrace_realloc(p, size) : done(_rjem_rallocx(p, size, flags));
}
size_t terrace_xallocx(void *p, size_t size, size_t extra, int flags) {
    return unlikely(unmanaged(p)) ? terrace_unmanaged_size(p) : _rjem_xallocx(p, size, extra, flags);
}
size_t terrace_sallocx(const void *p, int flags) {
    return unlikely(unmanaged(p)) ? terrace_unmanaged_size(p) : _rjem_sallocx(p, flags);
}
void terrace_dallocx(void *p, int flags) {
    if (unlikely(unmanaged(p)))
        terrace_unmanaged_free(p);
    else
        _rjem_dallocx(p, flags);
}
void terrace_sdallocx(void *p, size_t size, int flags) {
    if (unlikely(unmanaged(p)))
        terrace_unmanaged_free(p);
    else
        _rjem_sdallocx(p, size, flags);
}
size_t terrace_nallocx(size_t size, int flags) { return _rjem_nallocx(size, flags); }

/*
 * C++ operator new. When memory is out, the C++ library's own operator takes over: it calls the new-handler and throws,
 * which C cannot.
 */
#define FALL_BACK(name, type, ...)                           \
    __typeof__(type) real = (type)dlsym(RTLD_NEXT, name);    \
    return real ? real(__VA_ARGS__) : NULL

void *terrace_new(size_t size) {
    void *p = terrace_malloc(size);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_Znwm", void *(*)(size_t), size);
}
void *terrace_new_nothrow(size_t size, const void *tag) {
    void *p = terrace_malloc(size);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_ZnwmRKSt9nothrow_t", void *(*)(size_t, const void *), size, tag);
}
void *terrace_new_aligned(size_t size, size_t align) {
    void *p = terrace_memalign(align, size);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_ZnwmSt11align_val_t", void *(*)(size_t, size_t), size, align);
}
void *terrace_new_aligned_nothrow(size_t size, size_t align, const void *tag) {
    void *p = terrace_memalign(align, size);
    if (likely(p != NULL))
        return p;
    FALL_BACK("_ZnwmSt11align_val_tRKSt9nothrow_t", void *(*)(size_t, size_t, const void *), size, align, tag);
}
