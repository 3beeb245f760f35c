//! From an interrupted instruction to the address that it waited for.
//!
//! An interrupt is taken between instructions, mostly when one that waited for memory has just
//! retired. So the access is the one *before* the interrupted instruction. (Of a hash table's
//! samples, an address was found at or after it in 1 %, before it in 91 %.) Its address is computed
//! from the registers of now. It is refused if one of those has been written since, as in `mov rax,
//! [rax]`.
//!
//! What was executed before an instruction that is branched to is not known: it may be the one
//! above, or any of the branches. Three things narrow it down:
//! - A conditional branch was taken or not as the *flags* of now say, if nothing has changed them
//!   since.
//! - The nearest access counts, since it is the one that just retired.
//! - Where several are left that are as near, each is given, so that no one of them is favoured.
//!
//! Not seen: accesses through fs and gs (thread-local), gathers and scatters (many addresses at a
//! time), the kernel's.

use crate::Access;
use crate::text::Text;
use iced_x86::{
    ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    UsedMemory,
};

/// Instructions looked back, branches included.
const STEPS_MAX: u32 = 6;
/// Most ways back that are followed.
const PATHS_MAX: usize = 32;

/// General registers and flags of an interrupted thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// General registers by their numbers in machine code: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi,
    /// r8 … r15.
    pub general: [u64; 16],
    /// `rflags`.
    pub flags: u64,
}

impl Registers {
    /// `sample_regs_user` that asks for these registers, ip included: bits of `enum
    /// perf_event_x86_regs`.
    pub const PERF_MASK: u64 = 0xFF_03FF;
    /// Number of registers in [`Registers::PERF_MASK`].
    pub const PERF_COUNT: usize = Registers::PERF_MASK.count_ones() as usize;

    /// Makes them from a sample's registers, in the kernel's order: ax, bx, cx, dx, si, di, bp, sp,
    /// ip, flags, r8 … r15. With them the ip.
    pub fn from_perf(perf: &[u64; Registers::PERF_COUNT]) -> (u64, Registers) {
        let [ax, bx, cx, dx, si, di, bp, sp, ip, flags, extended @ ..] = perf;
        let mut general = [*ax, *cx, *dx, *bx, *sp, *bp, *si, *di, 0, 0, 0, 0, 0, 0, 0, 0];
        general[8..].copy_from_slice(extended);
        (*ip, Registers { general, flags: *flags })
    }

    /// Makes them from a signal's context, in the order of `ucontext_t`: r8 … r15, di, si, bp, bx,
    /// dx, ax, cx, sp; and flags.
    pub fn from_context(context: &[u64; 16], flags: u64) -> Registers {
        let [extended @ .., di, si, bp, bx, dx, ax, cx, sp] = context;
        let mut general = [*ax, *cx, *dx, *bx, *sp, *bp, *si, *di, 0, 0, 0, 0, 0, 0, 0, 0];
        general[8..].copy_from_slice(extended);
        Registers { general, flags }
    }

    /// The value of a register of any width; `None` if it is not a general one.
    fn value(&self, register: Register) -> Option<u64> {
        let value = self.general[number(register)?];
        Some(if register.size() == 4 { value & 0xFFFF_FFFF } else { value })
    }

    /// Whether a condition holds; `None` if the flags do not say.
    fn holds(&self, condition: ConditionCode) -> Option<bool> {
        let flag = |bit: u32| self.flags >> bit & 1 != 0;
        let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
        Some(match condition {
            ConditionCode::o => overflow,
            ConditionCode::no => !overflow,
            ConditionCode::b => carry,
            ConditionCode::ae => !carry,
            ConditionCode::e => zero,
            ConditionCode::ne => !zero,
            ConditionCode::be => carry || zero,
            ConditionCode::a => !carry && !zero,
            ConditionCode::s => sign,
            ConditionCode::ns => !sign,
            ConditionCode::p => parity,
            ConditionCode::np => !parity,
            ConditionCode::l => sign != overflow,
            ConditionCode::ge => sign == overflow,
            ConditionCode::le => zero || sign != overflow,
            ConditionCode::g => !zero && sign == overflow,
            _ => return None,
        })
    }
}

/// A general register's number in machine code.
fn number(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

/// A way back from the interrupted instruction.
#[derive(Clone, Copy)]
struct Path {
    /// Address of the instruction that comes next in time.
    at: u64,
    /// Registers that were written since then, one bit each.
    written: u16,
    /// Whether the flags are as they were.
    flags_kept: bool,
    steps: u32,
}

/// What an instruction touched, as far as can be known.
enum Touched {
    /// Nothing of interest.
    Nothing,
    /// Something whose address is not known any more.
    Lost,
    /// Addresses were added.
    Found,
}

/// Finds operands. Keeps its buffers from one sample to the next.
pub struct Finder {
    info: InstructionInfoFactory,
    paths: Vec<Path>,
    found: Vec<(u64, Access)>,
}

impl Default for Finder {
    fn default() -> Self {
        Finder {
            info: InstructionInfoFactory::new(),
            paths: Vec::with_capacity(PATHS_MAX),
            found: Vec::new(),
        }
    }
}

impl Finder {
    /// The accesses that a thread interrupted before the instruction at `ip` can have waited for,
    /// of those whose addresses are `wanted`. None if it is not known, several if any of them may
    /// be it.
    pub fn accesses(
        &mut self,
        text: &Text,
        ip: u64,
        registers: &Registers,
        wanted: impl Fn(u64) -> bool,
    ) -> &[(u64, Access)] {
        self.found.clear();
        let next = text.decode(ip);
        // A string instruction that is interrupted goes on later: its registers are those of now.
        let repeats = next.is_some_and(|next| {
            next.is_string_instruction() && (next.has_rep_prefix() || next.has_repne_prefix())
        });
        let lost = !repeats && self.look_back(text, ip, registers, &wanted);
        if self.found.is_empty()
            && !lost
            && let Some(next) = next
        {
            self.touched(&next, 0, false, registers, &wanted);
        }
        self.found.sort_unstable();
        self.found.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same && later.1 != kept.1 {
                kept.1 = Access::Update;
            }
            same
        });
        &self.found
    }

    /// Follows the ways back. True if there was an access whose address is lost.
    fn look_back(
        &mut self,
        text: &Text,
        ip: u64,
        registers: &Registers,
        wanted: &impl Fn(u64) -> bool,
    ) -> bool {
        self.paths.clear();
        self.paths.push(Path { at: ip, written: 0, flags_kept: true, steps: 0 });
        let mut next = 0;
        let (mut nearest, mut lost) = (STEPS_MAX, false);
        // In the order of steps: all that are as near as the first that is found.
        while let Some(path) = self.paths.get(next).copied().filter(|path| path.steps < nearest) {
            next += 1;
            let goes = |branch: &Instruction, taken: bool| {
                !path.flags_kept
                    || registers.holds(branch.condition_code()).is_none_or(|holds| holds == taken)
            };
            for branch in text.jumps_to(path.at) {
                let conditional = branch.flow_control() == FlowControl::ConditionalBranch;
                if !conditional || goes(&branch, true) {
                    self.go_on(&branch, path);
                }
            }
            let Some(above) = text.before(path.at) else { continue };
            match above.flow_control() {
                FlowControl::Next => {
                    match self.touched(&above, path.written, true, registers, wanted) {
                        Touched::Found => nearest = path.steps + 1,
                        Touched::Nothing => self.go_on(&above, path),
                        Touched::Lost => lost = true,
                    }
                }
                FlowControl::ConditionalBranch if goes(&above, false) => self.go_on(&above, path),
                // Control does not come from there, or from a function whose end is not known.
                _ => {}
            }
        }
        lost
    }

    fn go_on(&mut self, instruction: &Instruction, path: Path) {
        if self.paths.len() < PATHS_MAX {
            let written = path.written | self.written_by(instruction);
            let flags_kept = path.flags_kept && instruction.rflags_modified() == 0;
            self.paths.push(Path {
                at: instruction.ip(),
                written,
                flags_kept,
                steps: path.steps + 1,
            });
        }
    }

    fn written_by(&mut self, instruction: &Instruction) -> u16 {
        let writes = |access| {
            !matches!(
                access,
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            )
        };
        let registers = self.info.info(instruction).used_registers();
        registers
            .iter()
            .filter(|used| writes(used.access()))
            .filter_map(|used| number(used.register()))
            .fold(0, |all, n| all | 1 << n)
    }

    /// Adds the wanted addresses that an instruction touched; its registers are those of now but
    /// for `written` ones and, if it is `done`, its own.
    fn touched(
        &mut self,
        instruction: &Instruction,
        written: u16,
        done: bool,
        registers: &Registers,
        wanted: &impl Fn(u64) -> bool,
    ) -> Touched {
        if is_hint(instruction) {
            return Touched::Nothing;
        }
        let written = written | if done { self.written_by(instruction) } else { 0 };
        let before = self.found.len();
        let mut lost = false;
        for memory in self.info.info(instruction).used_memory() {
            // The stack is not managed memory, and every function's end pops.
            if matches!(memory.access(), OpAccess::None | OpAccess::NoMemAccess)
                || memory.base() == Register::RSP
            {
                continue;
            }
            let parts = [memory.base(), memory.index()];
            if parts.iter().filter_map(|part| number(*part)).any(|n| written & 1 << n != 0) {
                lost = true;
                continue;
            }
            let kind = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => Access::Load,
                OpAccess::Write | OpAccess::CondWrite => Access::Store,
                _ => Access::Update,
            };
            self.found.extend(
                address(memory, registers)
                    .filter(|address| wanted(*address))
                    .map(|address| (address, kind)),
            );
        }
        match (self.found.len() > before, lost) {
            (true, _) => Touched::Found,
            (_, true) => Touched::Lost,
            _ => Touched::Nothing,
        }
    }
}

/// Whether an instruction names an address and need not touch it.
fn is_hint(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Prefetch
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetchw
            | Mnemonic::Nop
            | Mnemonic::Lea
    )
}

fn address(memory: &UsedMemory, registers: &Registers) -> Option<u64> {
    // Element 0: a vector register as index has no value here, nor have fs and gs.
    memory.virtual_address(0, |register, _, _| match register {
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        _ => registers.value(register),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;
    use proptest::prelude::*;

    const HEAP: u64 = 0x7000_0000_0000;
    const CODE: u64 = 0x40_1000;

    /// Registers far apart, each an address in the heap.
    fn registers() -> Registers {
        Registers { general: std::array::from_fn(|n| HEAP + 0x10_0000 * n as u64), flags: 0 }
    }

    fn in_heap(address: u64) -> bool {
        (HEAP..HEAP + 0x1000_0000).contains(&address)
    }

    /// What is found when a thread is interrupted before the instruction number `at`.
    fn accesses_with(
        assemble: impl FnOnce(&mut CodeAssembler),
        at: usize,
        registers: &Registers,
    ) -> Vec<(u64, Access)> {
        let mut assembler = CodeAssembler::new(64).unwrap();
        assemble(&mut assembler);
        let text = Text::sweep(CODE, assembler.assemble(CODE).unwrap());
        let ip = (CODE..).filter(|address| text.starts_at(*address)).nth(at).unwrap();
        Finder::default().accesses(&text, ip, registers, in_heap).to_vec()
    }

    fn found_with(
        assemble: impl FnOnce(&mut CodeAssembler),
        at: usize,
        registers: &Registers,
    ) -> Vec<u64> {
        accesses_with(assemble, at, registers).iter().map(|(address, _)| *address).collect()
    }

    fn found(assemble: impl FnOnce(&mut CodeAssembler), at: usize) -> Vec<u64> {
        found_with(assemble, at, &registers())
    }

    const RDX: u64 = HEAP + 0x20_0000;
    const RBX: u64 = HEAP + 0x30_0000;
    const RSI: u64 = HEAP + 0x60_0000;
    const RDI: u64 = HEAP + 0x70_0000;
    const R13: u64 = HEAP + 0xD0_0000;

    #[test]
    fn every_addressing_mode() {
        let one = |assemble: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
            found(
                |a| {
                    assemble(a).unwrap();
                    a.nop().unwrap();
                },
                1,
            )
        };
        assert_eq!(one(|a| a.mov(rax, qword_ptr(rdx))), [RDX]);
        assert_eq!(one(|a| a.mov(rax, qword_ptr(rbx - 24))), [RBX - 24]);
        assert_eq!(one(|a| a.mov(eax, dword_ptr(r13 + 0x1234))), [R13 + 0x1234]);
        assert_eq!(one(|a| a.movsd_2(xmm0, qword_ptr(rdi))), [RDI]);
        assert_eq!(one(|a| a.mov(qword_ptr(rsi), rax)), [RSI], "stores");
        assert_eq!(one(|a| a.add(dword_ptr(rsi + 4), 1)), [RSI + 4], "both");
        assert_eq!(one(|a| a.cmp(byte_ptr(rdx + 1), 7)), [RDX + 1]);
        // An index that is a number, not an address.
        let mut with_index = registers();
        with_index.general[1] = 5;
        let scaled = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdx + rcx * 8 + 16)).unwrap();
            a.nop().unwrap();
        };
        assert_eq!(found_with(scaled, 1, &with_index), [RDX + 56]);
        // With 32-bit addresses the upper halves of registers do not count.
        let mut low = registers();
        low.general[2] = HEAP << 32 | 0x1000;
        let narrow = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(edx)).unwrap();
            a.nop().unwrap();
        };
        assert_eq!(found_with(narrow, 1, &low), [] as [u64; 0], "0x1000 is not in the heap");
        // Relative to the instruction, as static data is.
        let bytes = [0x48, 0x8B, 0x05, 0x10, 0, 0, 0, 0x90];
        let text = Text::sweep(HEAP, bytes.to_vec());
        assert_eq!(
            Finder::default().accesses(&text, HEAP + 7, &registers(), in_heap),
            [(HEAP + 0x17, Access::Load)]
        );
    }

    #[test]
    fn loads_and_stores_are_told_apart() {
        let one = |assemble: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
            let code = |a: &mut CodeAssembler| {
                assemble(a).unwrap();
                a.nop().unwrap();
            };
            accesses_with(code, 1, &registers())
        };
        assert_eq!(one(|a| a.mov(rax, qword_ptr(rdx))), [(RDX, Access::Load)]);
        assert_eq!(one(|a| a.cmp(byte_ptr(rdx), 7)), [(RDX, Access::Load)]);
        assert_eq!(one(|a| a.mov(qword_ptr(rsi), rax)), [(RSI, Access::Store)]);
        assert_eq!(one(|a| a.add(dword_ptr(rsi), 1)), [(RSI, Access::Update)]);
        assert_eq!(one(|a| a.lock().cmpxchg(qword_ptr(rsi), rdx)), [(RSI, Access::Update)]);
        let copy = |a: &mut CodeAssembler| a.rep().movsb().unwrap();
        assert_eq!(
            accesses_with(copy, 0, &registers()),
            [(RSI, Access::Load), (RDI, Access::Store)]
        );
        // The same place by both ways that lead here, read by one and written by the other.
        let either = |a: &mut CodeAssembler| {
            let mut join = a.create_label();
            a.mov(rcx, qword_ptr(rdx)).unwrap();
            a.jmp(join).unwrap();
            a.nop().unwrap();
            a.mov(qword_ptr(rdx), rcx).unwrap();
            a.nop().unwrap();
            a.set_label(&mut join).unwrap();
            a.nop().unwrap();
        };
        assert_eq!(accesses_with(either, 5, &registers()), [(RDX, Access::Update)]);
    }

    #[test]
    fn thread_local_memory_and_gathers_are_not_guessed() {
        let thread_local = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdx).fs()).unwrap();
            a.mov(rax, qword_ptr(rdx).gs()).unwrap();
            a.nop().unwrap();
        };
        assert!(found(thread_local, 2).is_empty());
        let gather = |a: &mut CodeAssembler| {
            a.vpgatherdd(ymm1.k1(), dword_ptr(rdx + ymm2 * 4)).unwrap();
            a.nop().unwrap();
        };
        assert!(found(gather, 1).is_empty());
        let hints = |a: &mut CodeAssembler| {
            a.prefetcht0(byte_ptr(rdx)).unwrap();
            a.lea(rax, qword_ptr(rsi + 8)).unwrap();
            a.nop().unwrap();
        };
        assert!(found(hints, 2).is_empty());
    }

    #[test]
    fn overwritten_registers_are_refused() {
        let chase = |a: &mut CodeAssembler| {
            a.mov(rbx, qword_ptr(rsi)).unwrap();
            a.mov(rdx, qword_ptr(rdx)).unwrap();
            a.nop().unwrap();
        };
        // Not the one further back either: it is not the one that was waited for.
        assert!(found(chase, 2).is_empty());
        let list = |a: &mut CodeAssembler| {
            a.mov(rdx, qword_ptr(rdx)).unwrap();
            a.mov(rcx, qword_ptr(rdx + 8)).unwrap();
        };
        assert!(found(list, 1).is_empty(), "the next node was not touched yet");
        let later = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdx)).unwrap();
            a.inc(rdx).unwrap();
            a.nop().unwrap();
        };
        assert!(found(later, 2).is_empty());
        let narrow = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdx)).unwrap();
            a.mov(dl, 1).unwrap();
            a.nop().unwrap();
        };
        assert!(found(narrow, 2).is_empty(), "a part of a register is the register");
    }

    #[test]
    fn the_nearest_access_counts_and_the_stack_does_not() {
        let code = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdx)).unwrap();
            a.mov(rcx, qword_ptr(rsi)).unwrap();
            a.add(rax, rcx).unwrap();
            a.push(rax).unwrap();
            a.pop(r8).unwrap();
            a.nop().unwrap();
        };
        assert_eq!(found(code, 1), [RDX]);
        assert_eq!(found(code, 2), [RSI]);
        assert_eq!(found(code, 5), [RSI]);
    }

    #[test]
    fn a_call_hides_what_was_before_and_the_interrupted_instruction_is_the_last_resort() {
        let code = |a: &mut CodeAssembler| {
            let mut function = a.create_label();
            a.mov(rax, qword_ptr(rdx)).unwrap();
            a.call(function).unwrap();
            a.nop().unwrap();
            a.set_label(&mut function).unwrap();
            a.mov(rbx, qword_ptr(rdi)).unwrap();
            a.ret().unwrap();
        };
        assert!(found(code, 2).is_empty());
        // Above the function's first instruction is not what was executed before it.
        assert_eq!(found(|a| code(a), 4), [RDI]);
        let at_entry = |a: &mut CodeAssembler| {
            a.ret().unwrap();
            a.mov(rbx, qword_ptr(rdi)).unwrap();
        };
        assert_eq!(found(at_entry, 1), [RDI]);
    }

    #[test]
    fn repeated_string_instructions_are_interrupted_within() {
        let code = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdx)).unwrap();
            a.rep().movsb().unwrap();
            a.nop().unwrap();
        };
        assert_eq!(found(code, 1), [RSI, RDI]);
        assert!(found(code, 2).is_empty(), "its registers have moved on");
    }

    /// `if (a) x = *rdx else x = *rsi; join: …`
    fn diamond(a: &mut CodeAssembler) {
        let (mut other, mut join) = (a.create_label(), a.create_label());
        a.test(rax, rax).unwrap();
        a.je(other).unwrap();
        a.mov(rcx, qword_ptr(rdx)).unwrap();
        a.jmp(join).unwrap();
        a.set_label(&mut other).unwrap();
        a.mov(rcx, qword_ptr(rsi)).unwrap();
        a.set_label(&mut join).unwrap();
        a.nop().unwrap();
    }

    #[test]
    fn where_ways_meet_the_nearest_counts() {
        // The load above is one step away; the one behind the jump is two.
        assert_eq!(found(diamond, 5), [RSI]);
        // Interrupted at the jump it is plain.
        assert_eq!(found(diamond, 3), [RDX]);
    }

    /// A loop whose top is reached from above and from below: `top: add rax, [rdx]; …; mov rcx,
    /// [rsi]; cmp; jne top`.
    fn two_ways(a: &mut CodeAssembler) {
        let mut top = a.create_label();
        a.mov(rcx, qword_ptr(rdi)).unwrap();
        a.cmp(rcx, r8).unwrap();
        a.nop().unwrap();
        a.set_label(&mut top).unwrap();
        a.nop_1::<AsmRegister64>(r9).unwrap();
        a.mov(rcx, qword_ptr(rsi)).unwrap();
        a.cmp(rcx, r8).unwrap();
        a.jne(top).unwrap();
        a.ret().unwrap();
    }

    #[test]
    fn flags_tell_which_way_was_taken() {
        let with = |zero: bool| {
            found_with(two_ways, 3, &Registers { flags: u64::from(zero) << 6, ..registers() })
        };
        // Equal: the branch back was not taken, so it came from above.
        assert_eq!(with(true), [RDI]);
        // Not equal: either.
        assert_eq!(with(false), [RSI, RDI]);
    }

    #[test]
    fn registers_come_in_the_kernels_order() {
        let perf: [u64; Registers::PERF_COUNT] = std::array::from_fn(|n| n as u64);
        let (ip, registers) = Registers::from_perf(&perf);
        assert_eq!((ip, registers.flags), (8, 9));
        // ax cx dx bx sp bp si di
        assert_eq!(registers.general, [0, 2, 3, 1, 7, 6, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17]);
    }

    proptest! {
        /// Whatever bytes are executed, nothing is read beyond them and nothing panics.
        #[test]
        fn any_bytes_will_do(
            code in proptest::collection::vec(any::<u8>(), 1..200), at in 0usize..200, flags: u64
        ) {
            let text = Text::sweep(CODE, code);
            let registers = Registers { flags, ..registers() };
            let found =
                Finder::default().accesses(&text, CODE + at as u64, &registers, in_heap).to_vec();
            prop_assert!(found.iter().all(|(address, _)| in_heap(*address)));
        }
    }
}
