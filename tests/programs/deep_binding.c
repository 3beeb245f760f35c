/* deep_binding LIBRARY: loads it with RTLD_DEEPBIND, as PHP loads its modules: what it calls is
 * then looked for in its own libraries first. Blocks of the heap go both ways between it and the
 * program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words) {
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", count > 1 ? dlerror() : "no library is named");
        return 1;
    }
    void *(*makes)(size_t) = (void *(*)(size_t))dlsym(library, "library_makes");
    void (*drops)(void *) = (void (*)(void *))dlsym(library, "library_drops");
    for (int round = 0; round < 1000; round++) {
        char *theirs = makes(1000);
        char *own = malloc(1000);
        memset(own, 9, 1000);
        if (theirs[999] != 7 || !(theirs = realloc(theirs, 3000)) || theirs[999] != 7)
            return 2;
        free(theirs);
        drops(own);
    }
    return 0;
}
