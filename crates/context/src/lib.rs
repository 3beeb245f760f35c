//! Calling contexts: a number for the return addresses of the innermost frames of an allocation's
//! caller (Jenga §3.3, §4.1).
//!
//! Frames are found by cached unwind rules ([`unwind`]), not by frame pointers, which Debian's
//! programs lack. A walk along those saw 5 to 66 % of the contexts of four Debian programs, and
//! follows garbage.
//!
//! A frame has no rule if its code was made at run time or unwind information is missing. There,
//! and where the stack is not the thread's own, the context ends. The return addresses so far are
//! mixed with the height of the stack, if that is known.

pub mod unwind;

use crate::unwind::Base;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// Frames of a context at most.
pub const DEPTH_MAX: usize = 16;

/// Frames that make a context; 0: none, but the return address and the height of the stack.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// Sets how many frames make a context, 1 to [`DEPTH_MAX`]; 0 for the innermost return address and
/// the height of the stack instead.
pub fn set_depth(depth: usize) {
    debug_assert!(depth <= DEPTH_MAX);
    DEPTH.store(depth as u32, Relaxed);
}

/// Bounds of a thread's stack. Not known if `high` is 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stack {
    low: usize,
    high: usize,
}

unsafe extern "C" {
    /// Where the loader found the main thread's stack: all of its frames are below.
    static __libc_stack_end: usize;
}

/// How long threads' stacks are if nothing else is said, and at most the main thread's, bytes.
static THREADS_LEN: AtomicUsize = AtomicUsize::new(0);
static MAIN_LEN: AtomicUsize = AtomicUsize::new(0);
/// Greatest length of the main thread's stack, bytes: below that the kernel maps other things.
const MAIN_LEN_MAX: u64 = 128 << 20;

/// Learns how long stacks are; before that, no stack's length is known.
pub fn learn_stacks() {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut len = 0;
    // SAFETY: each fills in what it is given; the attributes are given back.
    unsafe {
        if libc::pthread_attr_init(attributes.as_mut_ptr()) == 0 {
            libc::pthread_attr_getstacksize(attributes.as_ptr(), &mut len);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
    }
    THREADS_LEN.store(len, Relaxed);
    let limit = terrace_os::limit_of(libc::RLIMIT_STACK).map_or(0, |(soft, _)| soft);
    MAIN_LEN.store(limit.min(MAIN_LEN_MAX) as usize, Relaxed);
}

/// A thread is about to be made whose stack has `len` bytes. If that is shorter than usual, no more
/// is relied on from now on.
pub fn will_have_stack(len: usize) {
    THREADS_LEN.fetch_min(len, Relaxed);
}

impl Stack {
    /// The calling thread's stack. Its description, which the C library puts at the stack's upper
    /// end, tells where it is. The C library itself (pthread_getattr_np) cannot be asked: it
    /// allocates while it holds a lock, so this may have been called by it.
    pub fn of_this_thread() -> Self {
        let here = std::ptr::from_ref(&MaybeUninit::<u8>::uninit()) as usize;
        // SAFETY: written by the loader before any code of ours runs.
        let main = unsafe { __libc_stack_end };
        // SAFETY: asks for a number.
        let description = unsafe { libc::pthread_self() } as usize;
        let ends =
            |high: usize, len: usize| Stack { low: high.saturating_sub(len), high: high & !7 };
        let main = ends(main, MAIN_LEN.load(Relaxed));
        if main.holds(here) { main } else { ends(description, THREADS_LEN.load(Relaxed)) }
    }

    #[inline]
    fn holds(&self, address: usize) -> bool {
        self.low <= address && address < self.high
    }
}

/// Where a call came from, as its first instruction finds it.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Where the call returns to.
    pub return_address: usize,
    /// The stack pointer before the call (DWARF's canonical frame address).
    pub frame: usize,
    /// The caller's frame pointer register, whatever it holds.
    pub frame_pointer: usize,
}

/// A context's number. Equal contexts have equal numbers until a library is unloaded.
pub type ContextId = u64;

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn mix(hash: u64, value: usize) -> u64 {
    (hash.rotate_left(26) ^ value as u64).wrapping_mul(MIX)
}

/// The context of a call on this stack.
#[inline]
pub fn id(stack: &Stack, caller: Caller) -> ContextId {
    let mut hash = mix(0, caller.return_address);
    walk(stack, caller, |step| {
        hash = match step {
            Step::Frame(address) => mix(hash, address),
            Step::Height(height) => mix(hash, height | 1),
        }
    });
    // The upper bits are the good ones of a product.
    hash ^ hash >> 32
}

/// Fills in the return addresses of a context, innermost first. Returns how many there are.
pub fn frames(stack: &Stack, caller: Caller, frames: &mut [usize; DEPTH_MAX]) -> usize {
    frames[0] = caller.return_address;
    let mut len = 1;
    walk(stack, caller, |step| {
        if let Step::Frame(address) = step {
            frames[len] = address;
            len += 1;
        }
    });
    len
}

enum Step {
    /// The next return address.
    Frame(usize),
    /// The last step, where there is no rule for going on: bytes from here to the end of the stack.
    Height(usize),
}

/// Greatest length of a frame, bytes: what leads further is no rule.
const FRAME_MAX: usize = 1 << 20;

/// Goes from frame to frame after the innermost. Reads nothing but the thread's own stack above
/// `caller.frame`, so a wrong rule cannot make it fault.
#[inline]
fn walk(stack: &Stack, caller: Caller, mut step: impl FnMut(Step)) {
    let Caller { return_address: mut address, mut frame, frame_pointer: mut pointer } = caller;
    if !stack.holds(frame) {
        return;
    }
    let depth = DEPTH.load(Relaxed);
    if depth == 0 {
        return step(Step::Height(stack.high - frame));
    }
    for _ in 1..depth {
        let Some(rule) = unwind::rule_after(address, frame - stack.low) else {
            return step(Step::Height(stack.high - frame));
        };
        if rule.is_last() {
            return;
        }
        let base = match rule.base() {
            Base::Stack => frame,
            Base::FramePointer => pointer,
        };
        let next = base.wrapping_add_signed(rule.frame_offset());
        // Upwards, in whole words, and not beyond the end.
        if next <= frame || next > stack.high || next - frame > FRAME_MAX || !next.is_multiple_of(8)
        {
            return step(Step::Height(stack.high - frame));
        }
        if let Some(offset) = rule.saved_pointer() {
            let place = next.wrapping_add_signed(offset);
            if place < frame || place >= next || !place.is_multiple_of(8) {
                return step(Step::Height(stack.high - frame));
            }
            // SAFETY: between the stack pointer and the end of this thread's stack, aligned.
            pointer = unsafe { *(place as *const usize) };
        }
        // SAFETY: as above: `frame <= next - 8 < high`, as both are multiples of 8.
        address = unsafe { *((next - 8) as *const usize) };
        frame = next;
        step(Step::Frame(address));
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
