/*
 * The malloc family. Every call is passed on to the next definition: that of a preloaded allocator,
 * or the C library's. The recorder is told of objects that come and go. In C, for the caller's
 * return address.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* The recorder's side (entry.rs). None of them touches errno. */
void terrace_recorder_born(void *object, size_t size, size_t usable, void *return_address);
void terrace_recorder_dies(void *object);
/* Before and after a realloc: the object is nowhere between. */
uint64_t terrace_recorder_leaves(void *object);
void terrace_recorder_arrives(uint64_t leaver, void *before, void *object, size_t size, size_t usable, void *return_address);

void terrace_recorder_begins(void);
/*
 * Whether the recorder is at work on this thread: what is allocated then is for itself, and comes
 * from its own memory (memory.rs).
 */
_Bool terrace_recorder_inside(void);
_Bool terrace_recorder_owns(const void *);
void *terrace_recorder_allocate(size_t size, size_t align);
size_t terrace_recorder_size(const void *);
void terrace_recorder_release(void *);

/* Before the constructors of the program itself, which have no priority or a later one. */
__attribute__((constructor(101))) static void begin(void) { terrace_recorder_begins(); }

/* Where the call came from; what the program jumped out of before is forgotten. */
void terrace_recorder_called(uintptr_t stack);
#define CALLER (terrace_recorder_called((uintptr_t)__builtin_dwarf_cfa()), __builtin_return_address(0))

/* Calls inside a call (operator new inside malloc, or the reverse) are the allocator's own. */
static __thread int depth;

static struct {
    void *(*malloc)(size_t), *(*calloc)(size_t, size_t), *(*realloc)(void *, size_t), *(*memalign)(size_t, size_t);
    void *(*aligned_alloc)(size_t, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    void (*free)(void *);
    size_t (*usable)(void *);
} next;

/* What dlsym itself allocates while the next definitions are looked for; never given back. */
static char early[16 << 10] __attribute__((aligned(16)));
static atomic_size_t early_used;
static __thread int finding;

static void *from_early(size_t size) {
    size_t at = atomic_fetch_add(&early_used, (size + 15) & ~(size_t)15);
    return at + size <= sizeof early ? early + at : NULL;
}
static int is_early(void *p) { return (char *)p >= early && (char *)p < early + sizeof early; }

static void find(void) {
    finding++;
    next.calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    next.realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    next.memalign = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "memalign");
    next.aligned_alloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    next.posix_memalign = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    next.free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next.usable = (size_t (*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    /* Last: a thread that finds it set finds all of them. */
    atomic_signal_fence(memory_order_seq_cst);
    next.malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    finding--;
}
static int found(void) {
    if (!next.malloc && !finding)
        find();
    return next.malloc && !finding;
}

static void *born(void *object, size_t size, void *return_address) {
    if (object && !depth)
        terrace_recorder_born(object, size, next.usable(object), return_address);
    return object;
}

/* The outermost call is recorded. */
#define PASS(result, call) \
    do {                   \
        depth++;           \
        result = call;     \
        depth--;           \
    } while (0)

void *malloc(size_t size) {
    void *object;
    if (terrace_recorder_inside())
        return terrace_recorder_allocate(size, 16);
    if (!found())
        return from_early(size);
    PASS(object, next.malloc(size));
    return born(object, size, CALLER);
}
void *calloc(size_t count, size_t size) {
    void *object;
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    if (terrace_recorder_inside())
        return terrace_recorder_allocate(bytes, 16);
    if (!found())
        return from_early(bytes);
    PASS(object, next.calloc(count, size));
    return born(object, bytes, CALLER);
}
void free(void *object) {
    if (terrace_recorder_owns(object)) {
        terrace_recorder_release(object);
        return;
    }
    if (!object || is_early(object) || !found())
        return;
    if (!depth)
        terrace_recorder_dies(object);
    depth++;
    next.free(object);
    depth--;
}
static void *resize(void *object, size_t size, void *return_address) {
    void *moved;
    int is_own = terrace_recorder_owns(object);
    if (is_own || is_early(object) || (!object && terrace_recorder_inside())) {
        size_t room = is_own ? terrace_recorder_size(object) : object ? (size_t)(early + sizeof early - (char *)object) : 0;
        moved = malloc(size);
        for (size_t at = 0; moved && at < size && at < room; at++)
            ((char *)moved)[at] = ((char *)object)[at];
        if (moved)
            free(object);
        return moved;
    }
    if (!found())
        return NULL;
    if (!object) {
        PASS(moved, next.malloc(size));
        return born(moved, size, return_address);
    }
    if (depth) {
        PASS(moved, next.realloc(object, size));
        return moved;
    }
    size_t usable = next.usable(object);
    uint64_t leaver = terrace_recorder_leaves(object);
    PASS(moved, next.realloc(object, size));
    if (moved)
        terrace_recorder_arrives(leaver, object, moved, size, next.usable(moved), return_address);
    else if (size) /* It could not grow, and is as it was. */
        terrace_recorder_arrives(leaver, object, object, usable, usable, return_address);
    else
        terrace_recorder_arrives(leaver, object, NULL, 0, 0, return_address);
    return moved;
}
void *realloc(void *object, size_t size) { return resize(object, size, CALLER); }
void *reallocarray(void *object, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return resize(object, bytes, CALLER);
}
void *memalign(size_t align, size_t size) {
    void *object;
    if (terrace_recorder_inside())
        return terrace_recorder_allocate(size, align);
    if (!found())
        return NULL;
    PASS(object, next.memalign(align, size));
    return born(object, size, CALLER);
}
void *aligned_alloc(size_t align, size_t size) {
    void *object;
    if (terrace_recorder_inside())
        return terrace_recorder_allocate(size, align);
    if (!found())
        return NULL;
    PASS(object, next.aligned_alloc(align, size));
    return born(object, size, CALLER);
}
int posix_memalign(void **to, size_t align, size_t size) {
    int error;
    if (terrace_recorder_inside()) {
        *to = terrace_recorder_allocate(size, align);
        return *to ? 0 : ENOMEM;
    }
    if (!found())
        return ENOMEM;
    PASS(error, next.posix_memalign(to, align, size));
    if (!error)
        born(*to, size, CALLER);
    return error;
}
void *valloc(size_t size) { return memalign(4096, size); }
void *pvalloc(size_t size) { return memalign(4096, (size + 4095) & ~(size_t)4095); }
size_t malloc_usable_size(void *object) {
    if (terrace_recorder_owns(object))
        return terrace_recorder_size(object);
    return object && !is_early(object) && found() ? next.usable(object) : 0;
}

/*
 * C++'s operators. A preloaded allocator may bring its own, which do not call malloc: calls are
 * passed on to those as well. Weak, so that a program may bring its own.
 */
/* A thrown bad_alloc passes through here: the depth is put right by the clean-up. */
static void restore(int *before) { depth = *before; }
#define ENTER                                                  \
    __attribute__((cleanup(restore))) int before = depth;      \
    depth = before + 1

#define NEW(name, parameters, arguments)                       \
    static void *call_##name parameters {                      \
        static void *(*real) parameters;                       \
        if (!real)                                             \
            real = (void *(*) parameters)dlsym(RTLD_NEXT, #name); \
        ENTER;                                                 \
        return real arguments;                                 \
    }                                                          \
    __attribute__((weak)) void *name parameters {              \
        void *object = call_##name arguments;                  \
        return born(object, size, CALLER);                     \
    }
#define DELETE(name, parameters, arguments)                    \
    __attribute__((weak)) void name parameters {               \
        static void (*real) parameters;                        \
        if (!real)                                             \
            real = (void (*) parameters)dlsym(RTLD_NEXT, #name); \
        if (object && !depth)                                  \
            terrace_recorder_dies(object);                     \
        ENTER;                                                 \
        real arguments;                                        \
    }
NEW(_Znwm, (size_t size), (size))
NEW(_Znam, (size_t size), (size))
NEW(_ZnwmRKSt9nothrow_t, (size_t size, const void *tag), (size, tag))
NEW(_ZnamRKSt9nothrow_t, (size_t size, const void *tag), (size, tag))
NEW(_ZnwmSt11align_val_t, (size_t size, size_t align), (size, align))
NEW(_ZnamSt11align_val_t, (size_t size, size_t align), (size, align))
NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, (size_t size, size_t align, const void *tag), (size, align, tag))
NEW(_ZnamSt11align_val_tRKSt9nothrow_t, (size_t size, size_t align, const void *tag), (size, align, tag))
DELETE(_ZdlPv, (void *object), (object))
DELETE(_ZdaPv, (void *object), (object))
DELETE(_ZdlPvm, (void *object, size_t size), (object, size))
DELETE(_ZdaPvm, (void *object, size_t size), (object, size))
DELETE(_ZdlPvRKSt9nothrow_t, (void *object, const void *tag), (object, tag))
DELETE(_ZdaPvRKSt9nothrow_t, (void *object, const void *tag), (object, tag))
DELETE(_ZdlPvSt11align_val_t, (void *object, size_t align), (object, align))
DELETE(_ZdaPvSt11align_val_t, (void *object, size_t align), (object, align))
DELETE(_ZdlPvmSt11align_val_t, (void *object, size_t size, size_t align), (object, size, align))
DELETE(_ZdaPvmSt11align_val_t, (void *object, size_t size, size_t align), (object, size, align))
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t, (void *object, size_t align, const void *tag), (object, align, tag))
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t, (void *object, size_t align, const void *tag), (object, align, tag))
