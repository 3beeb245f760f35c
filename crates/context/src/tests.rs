use super::*;
use std::arch::naked_asm;
use std::cell::RefCell;
use std::hint::black_box;

/// Fills in where it was called from, as the public names of the malloc family do.
#[unsafe(naked)]
unsafe extern "C" fn where_from(caller: *mut Caller) {
    naked_asm!(
        "mov rax, [rsp]",
        "mov [rdi], rax",
        "lea rax, [rsp + 8]",
        "mov [rdi + 8], rax",
        "mov [rdi + 16], rbp",
        "ret"
    )
}

/// Calls with nonsense in `rbp`, as code without frame pointers does.
#[unsafe(naked)]
extern "C" fn with_nonsense(call: extern "C" fn()) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, -24",
        "call rdi",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc"
    )
}

/// Calls with `bytes` bytes, a multiple of 16, taken from the stack, as `alloca` does. Where the
/// frame began only the frame pointer tells.
#[unsafe(naked)]
extern "C" fn with_room(call: extern "C" fn(), bytes: usize) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, rsi",
        "call rdi",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc"
    )
}

/// Calls from code without unwind information, as code made at run time is.
#[unsafe(naked)]
extern "C" fn from_nowhere(call: extern "C" fn()) {
    naked_asm!("push rbp", "call rdi", "pop rbp", "ret")
}

type Seen = (ContextId, Vec<usize>, Vec<usize>);

/// The depth is the process's: a test that sets it runs alone.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

thread_local! {
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// The context, its frames after the innermost, and as many by libgcc's unwinder.
#[inline(never)]
fn look() -> Seen {
    unwind::find_objects();
    learn_stacks();
    let mut caller = Caller { return_address: 0, frame: 0, frame_pointer: 0 };
    // SAFETY: fills it in; it is three words in this order.
    unsafe { where_from(&mut caller) };
    let stack = Stack::of_this_thread();
    let mut ours = [0; DEPTH_MAX];
    let len = frames(&stack, caller, &mut ours);
    let mut theirs = [std::ptr::null_mut(); DEPTH_MAX];
    // SAFETY: writes at most as many.
    let known = unsafe { libc::backtrace(theirs.as_mut_ptr(), DEPTH_MAX as i32) } as usize;
    (
        id(&stack, caller),
        ours[1..len].to_vec(),
        theirs[1..known].iter().map(|address| *address as usize).collect(),
    )
}

extern "C" fn look_and_keep() {
    let seen = look();
    SEEN.with(|kept| *kept.borrow_mut() = Some(seen));
}

fn kept() -> Seen {
    SEEN.with(|kept| kept.borrow_mut().take()).expect("somebody looked")
}

#[inline(never)]
fn recurse(times: usize, then: &dyn Fn() -> Seen) -> Seen {
    let seen = if times == 0 { then() } else { recurse(times - 1, then) };
    black_box(seen)
}

fn with_depth<T>(depth: usize, what: impl FnOnce() -> T) -> T {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    set_depth(depth);
    what()
}

/// All frames but the innermost, in which the two are called at different places, up to the depth.
fn agree((_, ours, theirs): &Seen, depth: usize) {
    assert_eq!(ours.len(), theirs.len().min(depth - 1), "{ours:x?} {theirs:x?}");
    assert_eq!(ours[..], theirs[..ours.len()]);
}

#[test]
fn frames_are_those_that_libgcc_finds() {
    for depth in [2, 4, 16] {
        with_depth(depth, || {
            agree(&look(), depth);
            agree(&recurse(3, &look), depth);
            agree(&recurse(100, &look), depth);
        });
    }
}

#[test]
fn they_are_in_threads_too() {
    with_depth(16, || {
        std::thread::spawn(|| agree(&recurse(2, &look), 16)).join().expect("they agree")
    });
}

#[test]
fn nonsense_in_the_frame_pointer_does_no_harm() {
    with_depth(8, || {
        with_nonsense(look_and_keep);
        agree(&kept(), 8);
    });
}

#[test]
fn frames_that_grow_are_one_context() {
    with_depth(8, || {
        // From one place: unrolled, they would be several.
        let mut ids = Vec::new();
        for n in 0..black_box(4) {
            with_room(look_and_keep, 16 * n * n * n * n);
            let seen = kept();
            agree(&seen, 8);
            ids.push(seen.0);
        }
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:x?}");
    });
}

#[test]
fn where_there_is_no_rule_the_height_tells_contexts_apart() {
    with_depth(8, || {
        let at = |depth| {
            recurse(depth, &|| {
                from_nowhere(look_and_keep);
                kept()
            })
        };
        let (low, high) = (at(1), at(5));
        assert!(low.1.len() < 4 && low.1 == high.1, "{:x?} {:x?}", low.1, high.1);
        assert_ne!(low.0, high.0);
        assert_eq!(low.0, at(1).0);
    });
}

#[inline(never)]
fn by_one_way() -> ContextId {
    black_box(look()).0
}

#[inline(never)]
fn by_another_way() -> ContextId {
    black_box(look()).0 | black_box(0)
}

#[test]
fn contexts_are_equal_where_frames_are() {
    for depth in [0, 2, 4, 16] {
        with_depth(depth, || {
            let mut ids = [Vec::new(), Vec::new()];
            for _ in 0..black_box(3) {
                ids[0].push(by_one_way());
                ids[1].push(by_another_way());
            }
            for ids in &ids {
                assert!(ids.iter().all(|id| *id == ids[0]), "{ids:x?}");
            }
            // With the innermost address and the height only, they may look the same: here the
            // frames are of one size.
            assert!(depth == 0 || ids[0][0] != ids[1][0]);
        });
    }
}

/// On a stack of the program's own making the height is not known.
#[test]
fn on_a_foreign_stack_the_innermost_frame_is_all() {
    let mut caller = Caller { return_address: 0, frame: 0, frame_pointer: 0 };
    // SAFETY: as in `look`.
    unsafe { where_from(&mut caller) };
    let mut found = [0; DEPTH_MAX];
    assert_eq!(frames(&Stack { low: 0x1000, high: 0x2000 }, caller, &mut found), 1);
    assert_eq!(found[0], caller.return_address);
    assert_eq!(frames(&Stack::default(), caller, &mut found), 1);
}

extern "C" fn on_signal(_: i32) {
    look_and_keep();
}

/// The trampoline's rule is an expression, which ours cannot say: the context ends there, and
/// nothing else happens.
#[test]
fn in_a_signal_handler_frames_up_to_the_trampoline_are_found() {
    with_depth(16, || {
        // SAFETY: a handler for a signal that only this test raises, in this thread.
        unsafe {
            libc::signal(libc::SIGUSR2, on_signal as extern "C" fn(i32) as libc::sighandler_t);
            libc::raise(libc::SIGUSR2);
        }
        let (_, ours, theirs) = kept();
        assert!(!ours.is_empty() && theirs.starts_with(&ours), "{ours:x?} {theirs:x?}");
    });
}

/// A library that is loaded at the place of another has other frames.
#[test]
fn rules_of_an_unloaded_library_are_forgotten() {
    with_depth(4, || {
        let ids: Vec<_> = (0..black_box(3))
            .map(|_| {
                unwind::forget();
                by_one_way()
            })
            .collect();
        assert!(ids[0] == ids[1] && ids[1] == ids[2], "the rules are found again: {ids:x?}");
    });
}
