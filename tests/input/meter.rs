//! What one call costs its thread: CPU time, and the most bytes it held at once. The bytes are counted by `Counting`,
//! which a test binary installs as its allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread holds.
pub struct Counting;

fn count(bytes: isize) {
    // A thread that ends frees after its counters are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

/// A layout's size; no allocation is larger than `isize::MAX`.
fn signed(size: usize) -> isize {
    size.cast_signed()
}

// SAFETY: every call goes to the system's allocator with the arguments as they came; counting allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a call cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// CPU of the thread; a busy machine does not change it.
    pub cpu: Duration,
    /// Most bytes held at once beyond what was held before.
    pub bytes: usize,
}

/// Runs a call and says what it cost this thread.
pub fn measure(call: impl FnOnce()) -> Cost {
    let before = HELD.get();
    PEAK.set(before);
    let start = cpu();
    call();
    Cost {
        cpu: cpu().saturating_sub(start),
        bytes: usize::try_from(PEAK.get() - before).unwrap_or(0),
    }
}

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("a thread may ask for its own usage");
    let spent = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(spent.unsigned_abs())
}
