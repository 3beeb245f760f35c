// A program that forks a child which stays. attached_family: prints "ready", forks when it may read
// a byte, and ends when its input does. Both check what they wrote. It prints "checks N wrong N",
// and has status 1 if anything was wrong.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 5 << 20 };

static uint64_t fill(volatile uint64_t *data, uint64_t from) {
    for (uint64_t i = 0; i < WORDS; i++) data[i] = from + i / 64;
    return WORDS;
}

static uint64_t wrong(volatile uint64_t *data, uint64_t from) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < WORDS; i++) count += data[i] != from + i / 64;
    return count;
}

int main(void) {
    volatile uint64_t *data = malloc(WORDS * sizeof *data);
    char byte;
    if (!data) return 2;
    fill(data, 1);
    puts("ready");
    fflush(stdout);
    if (read(0, &byte, 1) != 1) return 2;
    pid_t child = fork();
    if (child == 0) {
        if (wrong(data, 1)) _exit(1);
        fill(data, 1000000);
        printf("%d\n", getpid());
        fflush(stdout);
        while (read(0, &byte, 1) == 1) {}
        _exit(wrong(data, 1000000) != 0);
    }
    while (read(0, &byte, 1) == 1) {}
    int status = 1;
    uint64_t bad = waitpid(child, &status, 0) != child || status;
    bad += wrong(data, 1);
    printf("checks %d wrong %lu\n", WORDS, (unsigned long)bad);
    return bad != 0;
}
