/*
 * Terrace for programs that know what they are about to touch.
 *
 * Under `terrace run`, memory that was not used for a while is kept compressed and comes back when it is touched, which costs a page fault
 * and two switches of threads. These calls bring it back without a fault, at about half the cost. They are hints: nothing depends on them.
 *
 * Link with nothing. The functions are declared weak: where Terrace is not there they do not exist, and the macros TERRACE_TOUCH and
 * TERRACE_PREFETCH do nothing. (In a position-dependent executable of an old linker, -Wl,-z,dynamic-undefined-weak keeps them to be found at run
 * time; with the usual PIE nothing is needed.)
 *
 * Both may be given any address and length: null, unmapped, freed, not managed, beyond the end. They never fail, fault, crash or change errno, and
 * may be called from any thread and from signal handlers. Whoever cancels threads asynchronously (PTHREAD_CANCEL_ASYNCHRONOUS) must not
 * while they are in here.
 *
 * The first call that restores something opens a descriptor for each CPU, at most 8, numbered from 960 on and closed on exec. A program that
 * closes descriptors which it did not open may close them too; they are opened again.
 */
#ifndef TERRACE_H
#define TERRACE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Brings every page of the range that is out back, in this thread, before it returns. What is resident costs about a nanosecond a page, and
 * far less where much of it is looked at together. Pages that follow one another come back together: one call for a whole record or
 * buffer is better than one for each page. While memory is over the budget it waits for room as a fault does.
 */
void terrace_touch(const void *pointer, size_t len) __attribute__((weak));

/*
 * Asks for the same and returns at once: a thread of Terrace's brings the pages back as far as there is room without evicting anything.
 * Dropped when too much was asked for.
 */
void terrace_prefetch(const void *pointer, size_t len) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#define TERRACE_TOUCH(pointer, len) (terrace_touch ? terrace_touch((pointer), (len)) : (void)0)
#define TERRACE_PREFETCH(pointer, len) (terrace_prefetch ? terrace_prefetch((pointer), (len)) : (void)0)

#endif
