/* A library that allocates while it is loaded and frees while it is unloaded, on every thread that used it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void *blocks[200];
static pthread_key_t key;
static __thread char own[10000];

__attribute__((constructor)) static void begin(void) {
    for (int n = 0; n < 200; n++) {
        blocks[n] = malloc((size_t)n * 97 + 1);
        memset(blocks[n], n, (size_t)n * 97 + 1);
    }
    pthread_key_create(&key, free);
}

__attribute__((destructor)) static void end(void) {
    for (int n = 0; n < 200; n++)
        free(blocks[n]);
    pthread_key_delete(key);
}

int allocating_library_check(void) {
    own[5000] = 1;
    pthread_setspecific(key, malloc(100));
    for (int n = 0; n < 200; n++)
        for (int i = 0; i <= n * 97; i++)
            if (((unsigned char *)blocks[n])[i] != n)
                return 1;
    void *mine = pthread_getspecific(key);
    pthread_setspecific(key, NULL);
    free(mine);
    return own[5000] - 1;
}
