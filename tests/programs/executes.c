/*
 * executes FILE...: executes each file in every way that there is, and tells how it ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *file;
/* Copies on the heap, where they may be evicted. */
static char **environment;

static char *arguments[] = {"told", "one", "two", NULL};

static void by_execve(void) { execve(file, arguments, environment); }
static void by_execv(void) { execv(file, arguments); }
static void by_execvp(void) { execvp(strrchr(file, '/') + 1, arguments); }
static void by_execvpe(void) { execvpe(strrchr(file, '/') + 1, arguments, environment); }
static void by_execl(void) { execl(file, "told", "one", "two", NULL); }
static void by_execle(void) { execle(file, "told", "one", "two", NULL, environment); }
static void by_execlp(void) { execlp(strrchr(file, '/') + 1, "told", "one", "two", NULL); }
static void by_fexecve(void) { fexecve(open(file, O_RDONLY), arguments, environment); }
static void by_fexecve_of_path(void) { fexecve(open(file, O_PATH), arguments, environment); }
static void by_execveat(void) {
    char *directory = strdup(file);
    *strrchr(directory, '/') = 0;
    execveat(open(directory, O_PATH), strrchr(file, '/') + 1, arguments, environment, 0);
}
static void by_number(void) { syscall(SYS_execve, file, arguments, environment); }
static void at_by_number(void) { syscall(SYS_execveat, open(file, O_PATH), "", arguments, environment, AT_EMPTY_PATH); }
static void in_handler(int signal) { execve(file, arguments, environment); }
static void by_handler(void) {
    signal(SIGUSR1, in_handler);
    raise(SIGUSR1);
}

static pid_t forked(void (*execute)(void)) {
    pid_t child = fork();
    if (child == 0) {
        execute();
        dprintf(2, "cannot execute %s: %m\n", file);
        _exit(99);
    }
    return child;
}

static pid_t by_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        execve(file, arguments, environment);
        _exit(99);
    }
    return child;
}

static pid_t by_spawn(void) {
    pid_t child;
    return posix_spawn(&child, file, NULL, NULL, arguments, environment) == 0 ? child : -1;
}

static pid_t by_spawnp(void) {
    pid_t child;
    return posix_spawnp(&child, strrchr(file, '/') + 1, NULL, NULL, arguments, environment) == 0 ? child : -1;
}

static void ended(const char *how, int status) {
    printf("%s: %s %d\n", how, WIFSIGNALED(status) ? "killed by" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fflush(stdout);
}

static void waited(const char *how, pid_t child) {
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child)
        printf("%s: not started\n", how);
    else
        ended(how, status);
}

/* What the kernel refuses, it refuses as ever. */
static void refused(void) {
    void *volatile nonsense = (void *)8;
    int results[] = {execve(nonsense, arguments, environ), execve("/bin/true", arguments, nonsense),
                     execve("/nowhere", arguments, nonsense), execv("/", arguments), execvp("", arguments)};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        printf("refused: %d\n", results[i]);
    printf("last: %s\n", strerror(errno));
    pid_t child;
    printf("spawn: %s\n", strerror(posix_spawn(&child, "/nowhere", NULL, NULL, arguments, environ)));
}

int main(int count, char **files) {
    static const struct {
        const char *name;
        void (*execute)(void);
    } ways[] = {{"execve", by_execve},     {"execv", by_execv},       {"execvp", by_execvp},
                {"execvpe", by_execvpe},   {"execl", by_execl},       {"execle", by_execle},
                {"execlp", by_execlp},     {"fexecve", by_fexecve},   {"fexecve of a path", by_fexecve_of_path},
                {"execveat", by_execveat}, {"SYS_execve", by_number}, {"SYS_execveat", at_by_number},
                {"in a handler", by_handler}};
    size_t variables = 0;
    while (environ[variables])
        variables++;
    environment = calloc(variables + 1, sizeof *environment);
    for (size_t v = 0; v < variables; v++)
        environment[v] = strdup(environ[v]);
    for (int f = 1; f < count; f++) {
        file = files[f];
        printf("= %s\n", strrchr(file, '/') + 1);
        fflush(stdout);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            waited(ways[w].name, forked(ways[w].execute));
        waited("vfork", by_vfork());
        waited("posix_spawn", by_spawn());
        waited("posix_spawnp", by_spawnp());
        char command[4096];
        snprintf(command, sizeof command, "%s one two", file);
        ended("system", system(command));
        FILE *pipe = popen(command, "w");
        ended("popen", pclose(pipe));
    }
    refused();
    return 0;
}
