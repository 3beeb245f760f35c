/*
 * In a forked child the C library resets the lock of every open stream before any fork handler
 * runs. A FILE on an evicted page would then be overwritten with zeros. So all are touched before
 * the fork, while nothing is evicted. This is in C because the list's layout is declared in C's
 * headers only.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>

/* The C library exports all of them. One that does not has no list to be touched or locked. */
#define MAYBE __attribute__((weak))
extern struct _IO_FILE *_IO_list_all MAYBE;
void _IO_list_lock(void) MAYBE;
void _IO_list_unlock(void) MAYBE;
void _IO_list_resetlock(void) MAYBE;

static int there_is_a_list(void) { return &_IO_list_all && _IO_list_lock && _IO_list_unlock && _IO_list_resetlock; }

void terrace_lock_streams(void) {
    if (there_is_a_list())
        _IO_list_lock();
}

void terrace_unlock_streams(void) {
    if (there_is_a_list())
        _IO_list_unlock();
}

void terrace_reset_streams(void) {
    if (there_is_a_list())
        _IO_list_resetlock();
}

void terrace_touch_streams(void) {
    if (!there_is_a_list())
        return;
    _IO_list_lock();
    for (struct _IO_FILE *stream = _IO_list_all; stream; stream = stream->_chain) {
        /*
         * The stream, its lock and its wide half lie in one block of less than a page. So its ends
         * are on all its pages.
         */
        volatile const char *block = (const char *)stream;
        (void)block[0];
        (void)block[sizeof *stream];
        if (stream->_lock)
            (void)*(volatile const char *)stream->_lock;
    }
    _IO_list_unlock();
}
