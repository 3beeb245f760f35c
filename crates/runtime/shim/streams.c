/*
 * In a forked child the C library resets the lock of every open stream before any fork handler runs. A FILE on an evicted page would
 * then be overwritten with zeros. So all are touched before the fork, while nothing is evicted. In C because the list's layout is
 * declared in C's headers only.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <stdio.h>

extern struct _IO_FILE *_IO_list_all;
void _IO_list_lock(void);
void _IO_list_unlock(void);

/* Reads our own memory through the kernel: harmless where nothing is mapped. */
int terrace_peek(const void *address, void *buffer, size_t bytes);

/* glibc's struct link_map is some 1.2 KiB; its declared head is the beginning of it. */
#define LINK_MAP_BYTES 1280

/*
 * In the child, making our threads reads the descriptions of all loaded libraries (for their thread-local variables), before the child's
 * memory is registered. Those of libraries loaded with dlopen lie in the managed heap. No lock: a thread inside dlopen may hold it and
 * wait for an allocator's lock that this fork holds; a description that goes meanwhile is read for nothing.
 */
static void touch_libraries(void) {
    const struct link_map *library = _r_debug.r_map;
    for (int n = 0; library && n < 100000; n++) {
        struct link_map head;
        char end;
        if (!terrace_peek(library, &head, sizeof head))
            return;
        terrace_peek((const char *)library + LINK_MAP_BYTES, &end, 1);
        library = head.l_next;
    }
}

void terrace_touch_streams(void) {
    touch_libraries();
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
