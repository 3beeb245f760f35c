/*
 * Calls of the C library that touch much of a program's memory: counted, then passed on. The linker
 * puts these before the program's calls (--wrap, link.flags). The recorder's own calls come here
 * too; it counts nothing while it is at work.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

void terrace_recorder_reads(const void *from, size_t bytes);
void terrace_recorder_writes(void *to, size_t bytes);
void terrace_recorder_ends(void);

/* Where nothing is wrapped there is no call of these. */
#define REAL(type, name, ...)                                    \
    extern type __real_##name(__VA_ARGS__) __attribute__((weak)); \
    type __wrap_##name(__VA_ARGS__);                             \
    type __wrap_##name(__VA_ARGS__)

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

REAL(void *, memcpy, void *to, const void *from, size_t bytes) {
    terrace_recorder_reads(from, bytes);
    terrace_recorder_writes(to, bytes);
    return __real_memcpy(to, from, bytes);
}
REAL(void *, memmove, void *to, const void *from, size_t bytes) {
    terrace_recorder_reads(from, bytes);
    terrace_recorder_writes(to, bytes);
    return __real_memmove(to, from, bytes);
}
REAL(void *, memset, void *to, int byte, size_t bytes) {
    terrace_recorder_writes(to, bytes);
    return __real_memset(to, byte, bytes);
}
/* How far a comparison reads is not known without making it: up to the first difference. */
static size_t alike(const unsigned char *a, const unsigned char *b, size_t bytes, int strings) {
    size_t at = 0;
    while (at < bytes && a[at] == b[at] && !(strings && !a[at]))
        at++;
    return at < bytes ? at + 1 : at;
}
static void both(const void *a, const void *b, size_t bytes) {
    terrace_recorder_reads(a, bytes);
    terrace_recorder_reads(b, bytes);
}
REAL(int, memcmp, const void *a, const void *b, size_t bytes) {
    both(a, b, alike(a, b, bytes, 0));
    return __real_memcmp(a, b, bytes);
}
REAL(void *, memchr, const void *in, int byte, size_t bytes) {
    void *at = __real_memchr(in, byte, bytes);
    terrace_recorder_reads(in, at ? (size_t)((char *)at - (char *)in) + 1 : bytes);
    return at;
}
REAL(size_t, strlen, const char *string) {
    size_t length = __real_strlen(string);
    terrace_recorder_reads(string, length + 1);
    return length;
}
REAL(int, strcmp, const char *a, const char *b) {
    both(a, b, alike((const void *)a, (const void *)b, SIZE_MAX, 1));
    return __real_strcmp(a, b);
}
REAL(int, strncmp, const char *a, const char *b, size_t bytes) {
    both(a, b, alike((const void *)a, (const void *)b, bytes, 1));
    return __real_strncmp(a, b, bytes);
}
REAL(char *, strchr, const char *in, int byte) {
    char *at = __real_strchr(in, byte);
    terrace_recorder_reads(in, at ? (size_t)(at - in) + 1 : __real_strlen(in) + 1);
    return at;
}
REAL(char *, strcpy, char *to, const char *from) {
    size_t bytes = __real_strlen(from) + 1;
    terrace_recorder_reads(from, bytes);
    terrace_recorder_writes(to, bytes);
    return __real_strcpy(to, from);
}
REAL(ssize_t, read, int file, void *to, size_t bytes) {
    ssize_t done = __real_read(file, to, bytes);
    terrace_recorder_writes(to, done > 0 ? done : 0);
    return done;
}
REAL(ssize_t, pread, int file, void *to, size_t bytes, off_t at) {
    ssize_t done = __real_pread(file, to, bytes, at);
    terrace_recorder_writes(to, done > 0 ? done : 0);
    return done;
}
REAL(ssize_t, recv, int file, void *to, size_t bytes, int flags) {
    ssize_t done = __real_recv(file, to, bytes, flags);
    terrace_recorder_writes(to, done > 0 ? done : 0);
    return done;
}
REAL(ssize_t, write, int file, const void *from, size_t bytes) {
    ssize_t done = __real_write(file, from, bytes);
    terrace_recorder_reads(from, done > 0 ? done : 0);
    return done;
}
REAL(ssize_t, pwrite, int file, const void *from, size_t bytes, off_t at) {
    ssize_t done = __real_pwrite(file, from, bytes, at);
    terrace_recorder_reads(from, done > 0 ? done : 0);
    return done;
}
REAL(ssize_t, send, int file, const void *from, size_t bytes, int flags) {
    ssize_t done = __real_send(file, from, bytes, flags);
    terrace_recorder_reads(from, done > 0 ? done : 0);
    return done;
}
static void parts(const struct iovec *parts, int count, ssize_t done, int write) {
    for (int at = 0; at < count && done > 0; at++) {
        size_t bytes = least(parts[at].iov_len, done);
        if (write)
            terrace_recorder_writes(parts[at].iov_base, bytes);
        else
            terrace_recorder_reads(parts[at].iov_base, bytes);
        done -= bytes;
    }
}
REAL(ssize_t, readv, int file, const struct iovec *to, int count) {
    ssize_t done = __real_readv(file, to, count);
    parts(to, count, done, 1);
    return done;
}
REAL(ssize_t, writev, int file, const struct iovec *from, int count) {
    ssize_t done = __real_writev(file, from, count);
    parts(from, count, done, 0);
    return done;
}
REAL(size_t, fread, void *to, size_t bytes, size_t count, FILE *stream) {
    size_t done = __real_fread(to, bytes, count, stream);
    terrace_recorder_writes(to, done * bytes);
    return done;
}
REAL(size_t, fwrite, const void *from, size_t bytes, size_t count, FILE *stream) {
    size_t done = __real_fwrite(from, bytes, count, stream);
    terrace_recorder_reads(from, done * bytes);
    return done;
}
/* Ends without exit's handlers. */
REAL(void, _exit, int status) {
    terrace_recorder_ends();
    __real__exit(status);
    __builtin_unreachable();
}
