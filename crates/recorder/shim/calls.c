/*
 * Each thread's call stack, as the hooks at the beginning and end of every function tell it. With
 * each return address is the stack pointer of the function that will return there, so that what
 * longjmp leaves behind is found and forgotten. In C, for that stack pointer.
 */
#include <stddef.h>
#include <stdint.h>

/* Frames that are kept; what is deeper is counted only. */
#define FRAMES 1024

static __thread struct {
    size_t depth;
    struct {
        void *returns_to;
        uintptr_t stack;
    } frames[FRAMES];
} calls;

/*
 * The caller's stack pointer: the same at the beginning and at the end of a function, unless the
 * function made room there.
 */
#define STACK ((uintptr_t)__builtin_dwarf_cfa())

void __tsan_func_entry(void *returns_to) {
    uintptr_t stack = STACK;
    /* A caller is further up. */
    while (calls.depth && calls.depth <= FRAMES && calls.frames[calls.depth - 1].stack <= stack)
        calls.depth--;
    if (calls.depth < FRAMES) {
        calls.frames[calls.depth].returns_to = returns_to;
        calls.frames[calls.depth].stack = stack;
    }
    calls.depth++;
}

void __tsan_func_exit(void) {
    uintptr_t stack = STACK;
    while (calls.depth && calls.depth <= FRAMES && calls.frames[calls.depth - 1].stack < stack)
        calls.depth--;
    if (calls.depth)
        calls.depth--;
}

/* A call that is not instrumented was made from here: what lies below it on the stack is gone. */
void terrace_recorder_called(uintptr_t stack) {
    while (calls.depth && calls.depth <= FRAMES && calls.frames[calls.depth - 1].stack < stack)
        calls.depth--;
}

/* The innermost return addresses, the innermost first; how many there are. */
size_t terrace_recorder_calls(void **to, size_t most) {
    size_t depth = calls.depth < FRAMES ? calls.depth : FRAMES, count = depth < most ? depth : most;
    for (size_t at = 0; at < count; at++)
        to[at] = calls.frames[depth - 1 - at].returns_to;
    return count;
}
