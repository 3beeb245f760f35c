/* What this program was given: its arguments, and what is to be preloaded into it. */
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    const char *preload = getenv("LD_PRELOAD");
    for (int i = 1; i < count; i++)
        printf("%s ", arguments[i]);
    printf("preload=%s\n", preload ? preload : "none");
    return 7;
}
