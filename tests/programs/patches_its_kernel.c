/* Makes the kernel change its scheduler's code TIMES times on one CPU, while threads switch on the
 * other. As root. The test that calls it looks whether the kernel survives.
 *
 *   patches_its_kernel TIMES
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int there[2], back[2];

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        perror("sched_setaffinity"), exit(2);
}

/* Two threads pass a byte to and fro: each pass is a switch of threads. */
static void *answers(void *unused)
{
    char byte;
    stay_on(1);
    while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
        ;
    return unused;
}

static void *asks(void *unused)
{
    char byte = 0;
    stay_on(1);
    while (write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1)
        ;
    return unused;
}

int main(int count, char **arguments)
{
    long times = count > 1 ? atol(arguments[1]) : 100;
    /* Turns the scheduler's statistics on and off. They are behind a static key: code is patched. */
    int key = open("/proc/sys/kernel/sched_schedstats", O_WRONLY);
    pthread_t thread;
    if (key < 0 || pipe(there) != 0 || pipe(back) != 0 ||
        pthread_create(&thread, NULL, answers, NULL) != 0 ||
        pthread_create(&thread, NULL, asks, NULL) != 0)
        perror("patches_its_kernel"), exit(2);
    stay_on(0);
    for (long i = 0; i < times; i++)
        if (pwrite(key, i % 2 == 0 ? "1" : "0", 1, 0) != 1)
            perror("sched_schedstats"), exit(2);
    printf("patched %ld times\n", times);
    return 0;
}
