/* Objects that are placed cold are written in the far node at once, hot ones and malloc's are not;
 * all keep what was written. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "../../include/terrace.h"

enum { OBJECTS = 60000, BYTES = 500 };
static char *objects[3][OBJECTS];

int main(void) {
    for (int n = 0; n < OBJECTS; n++)
        for (int kind = 0; kind < 3; kind++) {
            char *object = kind == 0 ? malloc(BYTES) : mnalloc(BYTES, kind == 1 ? TERRACE_HOT : TERRACE_COLD);
            if (!object)
                return 2;
            memset(object, n % 251 + kind, BYTES);
            objects[kind][n] = object;
        }
    int far[3] = {0};
    for (int kind = 0; kind < 3; kind++)
        for (int n = 0; n < OBJECTS; n++) {
            void *page = (void *)((uintptr_t)objects[kind][n] & ~(uintptr_t)4095);
            int node = -1;
            if (syscall(SYS_move_pages, 0, 1L, &page, NULL, &node, 0))
                return 3;
            far[kind] += node == 1;
        }
    for (int kind = 0; kind < 3; kind++)
        for (int n = 0; n < OBJECTS; n++)
            for (int i = 0; i < BYTES; i++)
                if (objects[kind][n][i] != (char)(n % 251 + kind))
                    return 4;
    printf("far: %d of malloc's, %d hot, %d cold\n", far[0], far[1], far[2]);
    return far[2] > OBJECTS * 9 / 10 && far[0] < OBJECTS / 10 && far[1] < OBJECTS / 10 ? 0 : 1;
}
