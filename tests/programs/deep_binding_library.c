/* A library that makes and drops blocks of the heap for the program that loads it. */
#include <stdlib.h>
#include <string.h>

void *library_makes(size_t bytes) { return memset(malloc(bytes), 7, bytes); }

void library_drops(void *block) { free(block); }
