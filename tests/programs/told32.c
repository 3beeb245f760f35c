/* As told.c, for 32 bits and without a C library: x86 only. */
static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

static void put(const char *text) {
    long length = 0;
    while (text[length])
        length++;
    call(4, 1, (long)text, length);
}

static const char *behind(const char *text, const char *start) {
    while (*start)
        if (*text++ != *start++)
            return 0;
    return text;
}

__attribute__((used)) void told(char **stack) {
    const char *preload = 0;
    long count = (long)stack[0];
    for (char **argument = stack + 2; *argument; argument++) {
        put(*argument);
        put(" ");
    }
    for (char **variable = stack + count + 2; *variable; variable++)
        if (!preload)
            preload = behind(*variable, "LD_PRELOAD=");
    put("preload=");
    put(preload ? preload : "none");
    put("\n");
    call(1, 7, 0, 0);
}

__asm__(".globl _start\n_start: mov %esp, %eax\npush %eax\ncall told\n");
