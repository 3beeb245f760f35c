/* A program with an allocator of its own, whose lock is held over a fork, as browsers' and databases'
 * are. It forks while much of its memory may be out, and the child finds all of it. With an argument
 * it maps its heap while it holds that lock.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HEAP = 256 << 20, BLOCKS = 1600, BLOCK = 1 << 16, FORKS = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char first[1 << 20] __attribute__((aligned(4096)));
static char *heap = first;
static size_t used, end = sizeof first;
static int maps_locked;

static char *map_heap(void)
{
    return mmap(NULL, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void *take(size_t size, size_t align)
{
    if (align < 16)
        align = 16;
    pthread_mutex_lock(&lock);
    if (maps_locked) {
        maps_locked = 0;
        heap = map_heap(), used = 0, end = heap == MAP_FAILED ? 0 : HEAP;
    }
    size_t start = (used + 16 + align - 1) / align * align;
    void *block = NULL;
    if (size <= end && start <= end - size) {
        block = heap + start;
        memcpy(heap + start - sizeof size, &size, sizeof size);
        used = start + size;
    }
    pthread_mutex_unlock(&lock);
    return block;
}

void *malloc(size_t size) { return take(size, 16); }
void *memalign(size_t align, size_t size) { return take(size, align); }
void *aligned_alloc(size_t align, size_t size) { return take(size, align); }
int posix_memalign(void **block, size_t align, size_t size) { return (*block = take(size, align)) == NULL; }
void free(void *block) { (void)block; }

void *calloc(size_t count, size_t size)
{
    return take(count * size, 16);
}

void *realloc(void *block, size_t size)
{
    size_t before = 0;
    void *grown = take(size, 16);
    if (block != NULL && grown != NULL) {
        memcpy(&before, (char *)block - sizeof before, sizeof before);
        memcpy(grown, block, before < size ? before : size);
    }
    return grown;
}

static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }

static char *blocks[BLOCKS];

static int wrong(void)
{
    int wrong = 0;
    for (int block = 0; block < BLOCKS; block++)
        for (int at = 0; at < BLOCK; at += 64)
            wrong += *(uint32_t *)(blocks[block] + at) != (uint32_t)(block * 31 + at);
    return wrong;
}

int main(int count, char **words)
{
    (void)words;
    if (count > 1) {
        maps_locked = 1;
    } else {
        char *mapped = map_heap();
        if (mapped == MAP_FAILED)
            return 2;
        pthread_mutex_lock(&lock);
        heap = mapped, used = 0, end = HEAP;
        pthread_mutex_unlock(&lock);
    }
    pthread_atfork(hold, let_go, let_go);
    for (int block = 0; block < BLOCKS; block++) {
        if ((blocks[block] = malloc(BLOCK)) == NULL)
            return 2;
        for (int at = 0; at < BLOCK; at += 64)
            *(uint32_t *)(blocks[block] + at) = block * 31 + at;
    }
    int failed = 0;
    for (int time = 0; time < FORKS; time++) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        pid_t child = fork();
        if (child == 0)
            _exit(wrong() != 0);
        int status = -1;
        failed |= child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    printf("%d wrong, %s\n", wrong(), failed ? "a child failed" : "children found theirs");
    return 0;
}
