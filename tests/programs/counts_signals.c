/* Counts signals: says which it got, and how many of each when SIGRTMAX tells it to end. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int counts[65];

static void name(int signal, char *text, size_t size) {
    const char *known = sigabbrev_np(signal);
    if (known)
        snprintf(text, size, "%s", known);
    else
        snprintf(text, size, "RT%d", signal - SIGRTMIN);
}

static void got(int signal) {
    counts[signal]++;
    char text[40];
    name(signal, text, sizeof text);
    strcat(text, "\n");
    (void)!write(1, text, strlen(text));
}

int main(int count, char **arguments) {
    int all[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP, SIGRTMIN, SIGRTMIN + 1, SIGRTMAX};
    struct sigaction action = {.sa_handler = got};
    /* One at a time, the lowest first. */
    sigfillset(&action.sa_mask);
    sigset_t none;
    sigprocmask(SIG_BLOCK, &action.sa_mask, NULL);
    for (size_t s = 0; s < sizeof all / sizeof *all; s++)
        /* With an argument it is stopped by the terminal. */
        if (all[s] != SIGTSTP || count == 1)
            sigaction(all[s], &action, NULL);
    sigfillset(&none);
    for (size_t s = 0; s < sizeof all / sizeof *all; s++)
        sigdelset(&none, all[s]);
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (!counts[SIGRTMAX])
        sigsuspend(&none);
    for (size_t s = 0; s < sizeof all / sizeof *all; s++) {
        char text[40];
        name(all[s], text, sizeof text);
        if (counts[all[s]])
            printf("%s=%d ", text, counts[all[s]]);
    }
    printf("%s\n", arguments[0] ? "all" : "");
    return 0;
}
