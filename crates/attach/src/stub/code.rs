//! The stub's instructions.

std::arch::global_asm!(
    ".pushsection .rodata.terrace_attach_stub, \"a\", @progbits",
    ".globl terrace_attach_stub_begin, terrace_attach_stub_end",
    "terrace_attach_stub_begin:",
    // In the target's thread; the tracer has set the registers for clone. r12: control block,
    // r13: a stack for the stub (never used).
    "syscall",
    "test rax, rax",
    "jz 2f",
    "1: jmp 1b",
    // The intermediate process.
    "2: mov eax, 56",
    "mov edi, 0x800100", // CLONE_VM | CLONE_UNTRACED
    "mov rsi, r13",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jz 3f",
    "mov [r12 + 12], eax",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
    // The stub: away from the target's descriptors, then a socket at 0 and 1.
    "3: mov eax, 436",
    "xor edi, edi",
    "mov esi, 0xffffffff",
    "xor edx, edx",
    "syscall",
    "mov eax, 53",
    "mov edi, 1",
    "mov esi, 0x80005", // SOCK_SEQPACKET | SOCK_CLOEXEC
    "xor edx, edx",
    "mov r10, r12",
    "syscall",
    "test rax, rax",
    "mov ecx, 1",
    "cmovz eax, ecx",
    "mov [r12 + 8], eax",
    // One request after the other.
    "4: xor eax, eax",
    "mov edi, [r12]",
    "lea rsi, [r12 + 0x100]",
    "mov edx, 0x2f00",
    "syscall",
    "test rax, rax",
    "jz 7f",
    "js 4b",
    "mov r15, rax",
    "mov r14, [r12 + 0x108]",
    "lea rbx, [r12 + 0x110]",
    "5: test r14, r14",
    "jz 6f",
    "mov rax, [rbx]",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "mov [rbx + 56], rax",
    "add rbx, 64",
    "dec r14",
    "jmp 5b",
    "6: mov eax, 1",
    "mov edi, [r12]",
    "lea rsi, [r12 + 0x100]",
    "mov rdx, r15",
    "syscall",
    "jmp 4b",
    // No process is left that could ask: hold the descriptors open until the target has ended.
    "7: mov eax, 7",
    "lea rdi, [r12 + 16]",
    "mov esi, 1",
    "mov rdx, -1",
    "syscall",
    "test rax, rax",
    "js 7b",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
    "terrace_attach_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    static terrace_attach_stub_begin: u8;
    static terrace_attach_stub_end: u8;
}

/// The instructions, to be copied into the target.
pub fn code() -> &'static [u8] {
    // SAFETY: both symbols are in this program, in one section of read-only data, in this order.
    unsafe {
        let begin = &raw const terrace_attach_stub_begin;
        let end = &raw const terrace_attach_stub_end;
        std::slice::from_raw_parts(begin, end.offset_from(begin) as usize)
    }
}
