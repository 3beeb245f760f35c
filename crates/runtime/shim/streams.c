/*
 * In a forked child the C library resets the lock of every open stream before any fork handler runs. A FILE on an evicted page would
 * then be overwritten with zeros. So all are touched before the fork, while nothing is evicted. In C because the list's layout is
 * declared in C's headers only.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>

extern struct _IO_FILE *_IO_list_all;
void _IO_list_lock(void);
void _IO_list_unlock(void);

void terrace_touch_streams(void) {
    _IO_list_lock();
    for (struct _IO_FILE *stream = _IO_list_all; stream; stream = stream->_chain) {
        /* The stream, its lock and its wide half lie in one block of less than a page: its ends are on all its pages. */
        volatile const char *block = (const char *)stream;
        (void)block[0];
        (void)block[sizeof *stream];
        if (stream->_lock)
            (void)*(volatile const char *)stream->_lock;
    }
    _IO_list_unlock();
}
