/* A 32-bit program that waits for a signal, without a C library: x86 only. */
__asm__(".globl _start\n_start: mov $29, %eax\nint $0x80\njmp _start\n");
