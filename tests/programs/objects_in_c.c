/* C programs with moving objects: callbacks that break the contract, and what Terrace is told of
 * segments. `objects_in_c CASE CHECKED`, where CHECKED is 1, -1, or 0 for as it was built. */
#include "cold.h"
#include <terrace_objects.h>

enum { OBJECTS = 4000, BYTES = 128, SEGMENT = 64 << 10, SEGMENTS = 1024 };

static void *references[OBJECTS];
static const char *what;
static char *base;
static int said[SEGMENTS], hot, cold, again;

/* In place of Terrace's, where this is linked with -rdynamic. */
int terrace_advise(const void *pointer, size_t len, int advice) {
    size_t segment = (size_t)((const char *)pointer - base) / SEGMENT;
    MUST(len == SEGMENT && segment < SEGMENTS && advice >= 0 && advice <= 2);
    again += said[segment] == advice;
    hot += advice == 1;
    cold += advice == 2;
    said[segment] = advice;
    return 0;
}

static size_t number_of(const void *object) {
    size_t number;
    memcpy(&number, object, sizeof number);
    MUST(number < OBJECTS);
    return number;
}

static int relocate(void *context, struct terrace_objects_move *move) {
    MUST(context == references);
    if (!strcmp(what, "no_result"))
        return 7;
    size_t number = number_of(move->object);
    if (references[number] != move->object)
        return TERRACE_OBJECTS_DEAD;
    memcpy(move->room, move->object, move->bytes);
    if (strcmp(what, "kept_reference"))
        references[number] = move->room;
    return TERRACE_OBJECTS_MOVED;
}

static void *reference(void *context, const void *copy) {
    MUST(context == references);
    return references[number_of(copy)];
}

int main(int count, char **words) {
    MUST(count == 3);
    what = words[1];
    struct terrace_objects_settings settings = {
        .capacity = (size_t)SEGMENTS * SEGMENT,
        .hot_bytes = OBJECTS * BYTES / 5,
        .bytes_per_s = UINT64_MAX,
        .cpu_share = 1,
        .check_callbacks = atoi(words[2]),
        .reference = reference,
    };
    terrace_objects *heap = terrace_objects_create(&settings);
    MUST(heap);
    void *given_up = terrace_objects_alloc(heap, BYTES);
    base = given_up;
    terrace_objects_free(heap, given_up);
    for (size_t number = 0; number < OBJECTS; number++) {
        MUST(references[number] = terrace_objects_alloc(heap, BYTES));
        memcpy(references[number], &number, sizeof number);
        terrace_objects_ready(heap, references[number]);
        terrace_objects_rank(heap, references[number], number % 6 ? 0 : 3);
    }
    /* What is just placed may yet change. */
    usleep(300000);
    while (terrace_objects_step(heap, relocate, references, 1000000) != TERRACE_OBJECTS_RESTING)
        ;
    for (size_t number = 0; number < OBJECTS; number++)
        MUST(number_of(references[number]) == number);
    struct terrace_objects_counters told = terrace_objects_counters(heap);
    printf("moved %d, misused %d, immovable %d; hot %d, cold %d, again %d\n", told.moved > 100, told.misused > 0, told.immovable > 100, hot > 0, cold > 5, again);
    terrace_objects_destroy(heap);
    return 0;
}
