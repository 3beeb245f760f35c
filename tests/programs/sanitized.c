/* For sanitizers: allocates, has a thread and a child, and ends well. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *allocate(void *argument) {
    for (size_t n = 1; n < 2000; n++) {
        char *block = malloc(n * 100);
        memset(block, 1, n * 100);
        free(block);
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, allocate, NULL) != 0)
        return 1;
    allocate(NULL);
    pthread_join(thread, NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status = 1;
    waitpid(child, &status, 0);
    puts("done");
    return status != 0;
}
