//! The functions that `include/terrace_objects.h` declares.

use crate::epoch::Reader;
use crate::heap::{Heap, HeapError, Settings};
use crate::policy::Choice;
use crate::relocate::{Misuse, Object, Outcome, Paper, Relocate};
use crate::slice::Slice;
use crate::{Consolidator, Counters, Progress, Rules};
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Whether callbacks of heaps made from now on are checked, where their settings do not say.
static CHECKS: AtomicBool = AtomicBool::new(cfg!(debug_assertions));

/// A heap and its consolidator.
pub struct Objects {
    heap: Arc<Heap>,
    consolidator: Mutex<Consolidator>,
    reference: Option<CReference>,
}

/// `struct terrace_objects_settings`: zero stands for the default.
#[repr(C)]
pub struct CSettings {
    capacity: usize,
    segment_bytes: usize,
    hot_bytes: u64,
    bytes_per_s: u64,
    cpu_share: f64,
    check_callbacks: c_int,
    reference: Option<CReference>,
    choice: c_int,
}

/// `struct terrace_objects_move`.
#[repr(C)]
pub struct CMove {
    object: *mut c_void,
    bytes: usize,
    room: *mut c_void,
    room_bytes: usize,
    used: usize,
    slice: *const Slice,
}

type CRelocate = unsafe extern "C" fn(*mut c_void, *mut CMove) -> c_int;
type CReference = unsafe extern "C" fn(*mut c_void, *const c_void) -> *mut c_void;
type CPaper = unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> bool;

/// A callback in C, and how often it returned a value that is no result.
struct Callback {
    relocate: CRelocate,
    reference: Option<CReference>,
    context: *mut c_void,
    no_results: u64,
}

// SAFETY: a callback of the program, which promised this to `terrace_objects_step`.
unsafe impl Relocate for Callback {
    unsafe fn relocate(&mut self, object: Object, room: Object, slice: &Slice) -> Outcome {
        let mut asked = CMove {
            object: object.start.as_ptr().cast(),
            bytes: object.bytes,
            room: room.start.as_ptr().cast(),
            room_bytes: room.bytes,
            used: object.bytes,
            slice,
        };
        // SAFETY: the program's function, as `terrace_objects_step` was promised; `asked` lives
        // until it returns.
        match unsafe { (self.relocate)(self.context, &mut asked) } {
            0 => Outcome::Moved { used: asked.used },
            1 => Outcome::NoSpace { need: asked.used },
            2 => Outcome::Busy,
            3 => Outcome::Dead,
            4 => Outcome::Immovable,
            _ => {
                self.no_results += 1;
                Outcome::Immovable
            }
        }
    }

    unsafe fn reference(&mut self, copy: Object) -> Option<NonNull<u8>> {
        let reference = self.reference?;
        // SAFETY: the program's function, as the settings promised; the copy was just written.
        let leads = unsafe { reference(self.context, copy.start.as_ptr().cast()) };
        NonNull::new(leads.cast())
    }
}

fn fail<T>(error: c_int) -> *mut T {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    null_mut()
}

fn or_default<T: PartialEq + Default>(value: T, default: T) -> T {
    if value == T::default() { default } else { value }
}

/// Checks callbacks, or does not, in heaps made from now on whose settings do not say.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_objects_check(on: c_int) {
    CHECKS.store(on != 0, Relaxed);
}

/// Makes a heap. NULL with EINVAL where a setting cannot work, ENOMEM without address space.
///
/// # Safety
/// `settings` is NULL or points to settings, whose `reference` is NULL or keeps the contract of the
/// header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_create(settings: *const CSettings) -> *mut Objects {
    let (mut made, mut rules, mut reference) = (Settings::default(), Rules::default(), None);
    made.check_callbacks = CHECKS.load(Relaxed);
    // SAFETY: as promised.
    if let Some(wanted) = unsafe { settings.as_ref() } {
        made.capacity = or_default(wanted.capacity, made.capacity);
        made.segment_bytes = or_default(wanted.segment_bytes, made.segment_bytes);
        if wanted.check_callbacks != 0 {
            made.check_callbacks = wanted.check_callbacks > 0;
        }
        reference = wanted.reference;
        rules.hot_bytes = Some(wanted.hot_bytes).filter(|bytes| *bytes > 0);
        rules.bytes_per_s = or_default(wanted.bytes_per_s, rules.bytes_per_s);
        rules.cpu_share = or_default(wanted.cpu_share, rules.cpu_share);
        rules.choice = match wanted.choice {
            0 => Choice::CostBenefit,
            1 => Choice::Greedy,
            2 => Choice::RandomMixed,
            _ => return fail(libc::EINVAL),
        };
    }
    if !(0.0..=1.0).contains(&rules.cpu_share) {
        return fail(libc::EINVAL);
    }
    let heap = match Heap::new(made) {
        Ok(heap) => Arc::new(heap),
        Err(HeapError::Memory { .. }) => return fail(libc::ENOMEM),
        Err(_) => return fail(libc::EINVAL),
    };
    let consolidator = Mutex::new(Consolidator::new(heap.clone(), rules));
    Box::into_raw(Box::new(Objects { heap, consolidator, reference }))
}

/// Ends a heap and all its objects.
///
/// # Safety
/// NULL, or made by `terrace_objects_create` and not used any more, nor its readers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_destroy(objects: *mut Objects) {
    if !objects.is_null() {
        // SAFETY: made by `Box`, and the caller has the last pointer.
        drop(unsafe { Box::from_raw(objects) });
    }
}

/// Allocates room for an object. Returns NULL with ENOMEM if there is none.
///
/// # Safety
/// `objects` is a heap; this holds for all functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_alloc(objects: &Objects, bytes: usize) -> *mut c_void {
    match objects.heap.allocate(bytes) {
        Some(object) => object.as_ptr().cast(),
        None => fail(libc::ENOMEM),
    }
}

/// Tells that an object is written and may be moved.
///
/// # Safety
/// `objects` is a heap, and `object` is NULL or from `terrace_objects_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_ready(objects: &Objects, object: *mut c_void) {
    if let Some(object) = NonNull::new(object.cast()) {
        // SAFETY: as promised.
        unsafe { objects.heap.ready(object) };
    }
}

/// Ends an object to which no reference is left, also one that was never ready.
///
/// # Safety
/// `objects` is a heap, and every thread that found the object before is inside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_free(objects: &Objects, object: *mut c_void) {
    if let Some(object) = NonNull::new(object.cast()) {
        // SAFETY: as promised.
        unsafe { objects.heap.free(object) };
    }
}

/// Counts a use of an object.
///
/// # Safety
/// `objects` is a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_touch(objects: &Objects, object: *const c_void) {
    if let Some(object) = NonNull::new(object.cast_mut().cast()) {
        objects.heap.touch(object);
    }
}

/// Sets how hot an object is, 0 to 3.
///
/// # Safety
/// `objects` is a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_rank(objects: &Objects, object: *const c_void, heat: u8) {
    if let Some(object) = NonNull::new(object.cast_mut().cast()) {
        objects.heap.rank(object, heat);
    }
}

/// Makes a reader, for one thread.
///
/// # Safety
/// `objects` is a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_reader(objects: &Objects) -> *mut Reader {
    Box::into_raw(Box::new(objects.heap.reader()))
}

/// Ends a reader.
///
/// # Safety
/// NULL, or made by `terrace_objects_reader` and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_reader_end(reader: *mut Reader) {
    if !reader.is_null() {
        // SAFETY: made by `Box`, and the caller has the last pointer.
        drop(unsafe { Box::from_raw(reader) });
    }
}

/// Begins to read.
///
/// # Safety
/// `reader` is this thread's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_enter(reader: &Reader) {
    std::mem::forget(reader.enter());
}

/// Ends what `terrace_objects_enter` began.
///
/// # Safety
/// `reader` is this thread's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_leave(reader: &Reader) {
    reader.leave();
}

/// Keeps an object's memory as it is after the reader has left.
///
/// # Safety
/// `reader` is this thread's, which is inside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_pin(
    objects: &Objects,
    reader: &Reader,
    object: *const c_void,
) {
    if let Some(object) = NonNull::new(object.cast_mut().cast()) {
        objects.heap.pin(object, &objects.heap.enter(reader));
    }
}

/// Ends a pin.
///
/// # Safety
/// `objects` is a heap, and the pin is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_unpin(objects: &Objects, object: *const c_void) {
    if let Some(object) = NonNull::new(object.cast_mut().cast()) {
        // SAFETY: as promised.
        unsafe { objects.heap.unpin(object) };
    }
}

fn step(objects: &Objects, relocate: &mut dyn Relocate, budget_ns: u64) -> c_int {
    // Another thread is at it.
    let Ok(mut consolidator) = objects.consolidator.try_lock() else { return 1 };
    match consolidator.step(relocate, Duration::from_nanos(budget_ns)) {
        Progress::Working => 0,
        Progress::Waiting => 1,
        Progress::Resting => 2,
    }
}

/// Works for about `budget_ns`.
///
/// # Safety
/// `relocate` keeps the contract of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_step(
    objects: &Objects,
    relocate: CRelocate,
    context: *mut c_void,
    budget_ns: u64,
) -> c_int {
    let reference = objects.reference;
    let mut callback = Callback { relocate, reference, context, no_results: 0 };
    let progress = step(objects, &mut callback, budget_ns);
    if callback.no_results > 0
        && let Ok(mut consolidator) = objects.consolidator.try_lock()
    {
        (0..callback.no_results).for_each(|_| consolidator.breach(Misuse::NoResult));
    }
    progress
}

/// Works like `terrace_objects_step`, with the callback of the paper.
///
/// # Safety
/// `objects` is a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_step_simple(
    objects: &Objects,
    relocate: CPaper,
    budget_ns: u64,
) -> c_int {
    let call = |object: NonNull<u8>, room: NonNull<u8>, bytes| {
        // SAFETY: the program's function, as promised.
        unsafe { relocate(object.as_ptr().cast(), room.as_ptr(), bytes) }
    };
    // SAFETY: the program's callback keeps the contract, as promised.
    step(objects, &mut unsafe { Paper::new(call) }, budget_ns)
}

/// Begins a round now; waits for a step under way.
///
/// # Safety
/// `objects` is a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_wake(objects: &Objects) {
    if let Ok(mut consolidator) = objects.consolidator.lock() {
        consolidator.wake();
    }
}

/// Whether the time of a step is over.
///
/// # Safety
/// `slice` is that of the callback's move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_should_stop(slice: &Slice) -> bool {
    slice.should_stop()
}

/// What happened so far; zeros while another thread is in a step.
///
/// # Safety
/// `objects` is a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_counters(objects: &Objects) -> Counters {
    objects.consolidator.try_lock().map_or_else(|_| Counters::default(), |one| *one.counters())
}

/// Hot bytes ÷ bytes of hot pages, where hot is a heat of at least `least`.
///
/// # Safety
/// `objects` is a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_objects_utilisation(objects: &Objects, least: u8) -> f64 {
    objects.heap.utilisation(least.max(1)).share()
}
