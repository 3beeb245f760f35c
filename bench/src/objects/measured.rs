//! What a measured structure must be able to do.

/// Something with objects in which keys are looked up.
pub trait Measured {
    /// Looks a key up, and tells of each object that it touches; false if it is not there.
    fn look_up(&self, key: u64, touched: &mut impl FnMut(u64, usize)) -> bool;
    /// Tells of every object: its address and size.
    fn objects(&self, each: &mut impl FnMut(u64, usize));
}
