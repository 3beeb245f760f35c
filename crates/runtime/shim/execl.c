/*
 * execl, execle and execlp: their arguments as a list, which is on the stack as in the C library,
 * since a child of vfork may call them. They are in C because the functions have any number of
 * arguments. The functions that they end in are interposed.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

extern char **environ;

/* The number of arguments, the null at the end not counted. */
#define COUNT(count, first, list)                                                                                            \
    size_t count = 0;                                                                                                        \
    va_start(list, first);                                                                                                   \
    for (const char *each = first; each; each = va_arg(list, const char *))                                                  \
        count++;                                                                                                             \
    va_end(list)

#define COLLECT(all, count, first, list)                                                                                     \
    char *all[count + 1];                                                                                                    \
    va_start(list, first);                                                                                                   \
    all[0] = (char *)first;                                                                                                  \
    for (size_t i = 1; i <= count; i++)                                                                                      \
        all[i] = va_arg(list, char *)

int terrace_execl(const char *path, const char *first, ...) {
    va_list list;
    COUNT(count, first, list);
    COLLECT(all, count, first, list);
    va_end(list);
    return execv(path, all);
}

int terrace_execlp(const char *file, const char *first, ...) {
    va_list list;
    COUNT(count, first, list);
    COLLECT(all, count, first, list);
    va_end(list);
    return execvp(file, all);
}

int terrace_execle(const char *path, const char *first, ...) {
    va_list list;
    COUNT(count, first, list);
    COLLECT(all, count, first, list);
    char *const *environment = va_arg(list, char *const *);
    va_end(list);
    return execve(path, all, environment);
}
