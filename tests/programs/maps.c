/* Shows what is mapped. */
#include <stdio.h>

int main(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; maps && (c = getc(maps)) != EOF;)
        putchar(c);
    return !maps;
}
