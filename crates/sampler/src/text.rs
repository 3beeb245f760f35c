//! Instruction boundaries and direct branches of a stretch of code, which is what walking backwards
//! needs: x86 instructions have no end mark.
//!
//! A linear sweep finds them. Compilers put no data between instructions of ELF text; where
//! something else does, a sweep is in step again after a few instructions.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

/// A branch that leads to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Jump {
    /// Offsets of the branch's target and of the branch itself.
    to: u32,
    from: u32,
}

/// Code at its address. One bit a byte, and 8 bytes a direct branch.
#[derive(Debug)]
pub struct Text {
    address: u64,
    code: Vec<u8>,
    /// Whether an instruction starts at a byte.
    starts: Vec<u64>,
    /// Branches, in the order of their targets.
    jumps: Vec<Jump>,
}

impl Text {
    /// The most code that a text can hold, bytes.
    pub const CODE_MAX: usize = u32::MAX as usize;
    /// The longest instruction, bytes (Intel SDM vol. 2, §2.3.11).
    pub const INSTRUCTION_MAX: usize = 15;

    /// Sweeps over code that lies at `address` and starts with an instruction. Some 10 ms a MiB.
    ///
    /// # Panics
    /// If there is more than [`Text::CODE_MAX`].
    pub fn sweep(address: u64, code: Vec<u8>) -> Text {
        assert!(code.len() <= Text::CODE_MAX, "code of {} bytes", code.len());
        let mut starts = vec![0u64; code.len().div_ceil(64)];
        let mut jumps = Vec::new();
        let mut decoder = Decoder::with_ip(64, &code, address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let at = decoder.position();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                // Data, or cut off: the next byte may be an instruction.
                let next = at + 1;
                if decoder.set_position(next).is_err() {
                    break;
                }
                decoder.set_ip(address + next as u64);
                continue;
            }
            starts[at / 64] |= 1 << (at % 64);
            let direct = matches!(
                instruction.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            );
            let to = instruction.near_branch_target().wrapping_sub(address);
            if direct && to < code.len() as u64 {
                jumps.push(Jump { to: to as u32, from: at as u32 });
            }
        }
        jumps.sort_unstable();
        jumps.shrink_to_fit();
        Text { address, code, starts, jumps }
    }

    /// Whether the address is inside.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.address) < self.code.len() as u64
    }

    /// Whether `bytes` are the text's from `address` on.
    pub fn is_at(&self, address: u64, bytes: &[u8]) -> bool {
        let offset = usize::try_from(address.wrapping_sub(self.address)).unwrap_or(usize::MAX);
        offset.checked_add(bytes.len()).and_then(|end| self.code.get(offset..end)) == Some(bytes)
    }

    /// Whether an instruction starts at the address.
    pub fn starts_at(&self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.address);
        offset < self.code.len() as u64
            && self.starts[offset as usize / 64] & 1 << (offset % 64) != 0
    }

    /// The instruction at an address inside.
    pub fn decode(&self, address: u64) -> Option<Instruction> {
        let code = self.code.get(usize::try_from(address.checked_sub(self.address)?).ok()?..)?;
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// The instruction that ends where the one at `address` starts.
    pub fn before(&self, address: u64) -> Option<Instruction> {
        let nearest = (1..=Text::INSTRUCTION_MAX as u64)
            .map(|length| address.wrapping_sub(length))
            .find(|start| self.starts_at(*start))?;
        self.decode(nearest).filter(|instruction| instruction.next_ip() == address)
    }

    /// Direct branches that lead to the address.
    pub fn jumps_to(&self, address: u64) -> impl Iterator<Item = Instruction> {
        let offset = address.wrapping_sub(self.address);
        let first = self.jumps.partition_point(|jump| u64::from(jump.to) < offset);
        let jumps = self.jumps[first..].iter().take_while(move |jump| u64::from(jump.to) == offset);
        jumps.filter_map(|jump| self.decode(self.address + u64::from(jump.from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    #[test]
    fn a_sweep_finds_instructions_and_branches() {
        let mut assembler = CodeAssembler::new(64).unwrap();
        let (mut top, mut out) = (assembler.create_label(), assembler.create_label());
        assembler.xor(eax, eax).unwrap();
        assembler.set_label(&mut top).unwrap();
        assembler.add(rax, qword_ptr(rdi + rcx * 8)).unwrap();
        assembler.dec(rcx).unwrap();
        assembler.je(out).unwrap();
        assembler.jmp(top).unwrap();
        assembler.set_label(&mut out).unwrap();
        assembler.ret().unwrap();
        let code = assembler.assemble(0x1000).unwrap();
        let text = Text::sweep(0x1000, code.clone());
        let starts: Vec<u64> = (0x1000..0x1000 + code.len() as u64)
            .filter(|address| text.starts_at(*address))
            .collect();
        assert_eq!(starts, [0x1000, 0x1002, 0x1006, 0x1009, 0x100B, 0x100D]);
        assert_eq!(text.before(0x1006).unwrap().ip(), 0x1002);
        assert!(text.before(0x1000).is_none() && text.before(0x1007).is_none());
        let jumps = |to| text.jumps_to(to).map(|jump| jump.ip()).collect::<Vec<_>>();
        assert_eq!(
            (jumps(0x1002), jumps(0x100D), jumps(0x1006)),
            (vec![0x100B], vec![0x1009], vec![])
        );
        assert!(text.contains(0x100D) && !text.contains(0x100E) && !text.contains(0xFFF));
    }

    #[test]
    fn a_sweep_is_in_step_again_after_data() {
        // An invalid byte (06 does not exist in 64-bit mode), then nops.
        let text = Text::sweep(0, vec![0x06, 0x90, 0x90, 0xC3]);
        assert!(!text.starts_at(0) && text.starts_at(1) && text.starts_at(2) && text.starts_at(3));
    }
}
