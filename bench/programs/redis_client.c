/*
 * Loads a Redis over its socket and asks for Zipf keys: 90 % GET, 10 % SET with another size.
 * Values are of 50 to 300 bytes, every sixteenth of 1 to 4 KiB. Between the two parts, and at the
 * end, it sends the server SIGUSR2. The recorder takes that for the beginning and the end of what
 * counts.
 *
 *     redis_client SOCKET [KEYS [OPERATIONS [SEED]]]
 */
#include "random.h"
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Requests that are under way at a time. */
#define DEPTH 32

static FILE *in, *out;

static void fail(const char *what) {
    fprintf(stderr, "redis_client: %s\n", what);
    exit(1);
}

/* Reads one answer; the length of a value, or 0. */
static size_t answer(void) {
    static char line[4096];
    if (!fgets(line, sizeof line, in))
        fail("the server is gone");
    if (line[0] == '-')
        fail(line);
    if (line[0] != '$' || line[1] == '-')
        return 0;
    size_t length = strtoull(line + 1, NULL, 10), left = length + 2;
    while (left) {
        size_t part = fread(line, 1, left < sizeof line ? left : sizeof line, in);
        if (!part)
            fail("the server is gone");
        left -= part;
    }
    return length;
}

static void set(uint64_t key, uint64_t *state) {
    static char value[4096];
    size_t length = random_below(state, 16) ? 50 + random_below(state, 251) : 1024 + random_below(state, 3073);
    for (size_t at = 0; at < length; at++)
        value[at] = "etaoin shrdlu"[(key + at * at) % 13];
    fprintf(out, "*3\r\n$3\r\nSET\r\n$16\r\nkey:%012llu\r\n$%zu\r\n", (unsigned long long)key, length);
    fwrite(value, 1, length, out);
    fputs("\r\n", out);
}

static pid_t server(void) {
    char line[256];
    pid_t found = 0;
    fputs("*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n", out);
    fflush(out);
    if (!fgets(line, sizeof line, in) || line[0] != '$')
        fail("no INFO");
    long left = strtol(line + 1, NULL, 10) + 2;
    while (left > 0 && fgets(line, sizeof line, in)) {
        left -= (long)strlen(line);
        if (!strncmp(line, "process_id:", 11))
            found = atoi(line + 11);
    }
    return found ? found : (fail("INFO names no process"), 0);
}

int main(int count, char **words) {
    if (count < 2)
        fail("which socket?");
    uint64_t keys = argument(count, words, 2, 200000), operations = argument(count, words, 3, 1000000), state = argument(count, words, 4, 1);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", words[1]);
    int socket_ = -1;
    for (int tries = 0; socket_ < 0 && tries < 300; tries++) {
        socket_ = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(socket_, (struct sockaddr *)&address, sizeof address) < 0) {
            close(socket_);
            socket_ = -1;
            usleep(100000);
        }
    }
    if (socket_ < 0)
        fail("no server there after 30 s");
    in = fdopen(socket_, "r");
    out = fdopen(dup(socket_), "w");
    pid_t pid = server();
    struct zipf zipf = zipf_of(keys, 0.99);
    uint64_t found = 0, bytes = 0;
    for (uint64_t at = 0; at < keys + operations; at += DEPTH) {
        /* A quarter fills the cache. */
        if (at / DEPTH == (keys + operations / 4) / DEPTH) {
            kill(pid, SIGUSR2);
            usleep(300000);
        }
        for (uint64_t one = at; one < at + DEPTH; one++) {
            if (one < keys) {
                set(one * 7919 % keys, &state);
            } else {
                uint64_t key = scattered(zipf_next(&zipf, &state), keys);
                if (random_below(&state, 10))
                    fprintf(out, "*2\r\n$3\r\nGET\r\n$16\r\nkey:%012llu\r\n", (unsigned long long)key);
                else
                    set(key, &state);
            }
        }
        fflush(out);
        for (uint64_t one = 0; one < DEPTH; one++) {
            size_t length = answer();
            found += length > 0;
            bytes += length;
        }
    }
    kill(pid, SIGUSR2);
    usleep(300000);
    fputs("*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n", out);
    fflush(out);
    fgetc(in);
    printf("%llu found, %llu bytes\n", (unsigned long long)found, (unsigned long long)bytes);
    return 0;
}
