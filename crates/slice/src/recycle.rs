//! Buffers of decoded values that are used again.
//!
//! A slice of 1 MiB decodes into some 4 MB of indices and 2 MB of values that live for milliseconds. Fresh memory of that size comes from the kernel, which
//! clears it page by page: that costs more than the decoding, and what an allocator keeps instead grows with the number of threads. A few buffers of each
//! type are kept here and shared by all threads: at most [`KEPT`] of at most [`LARGEST`] values.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::ArrowNativeType;

/// Buffers kept per type.
const KEPT: usize = 4;
/// Values that a new buffer has room for at least: nearly every sparse slice of the default size fits, so that one size serves all. Memory that is not
/// written to is only address space.
const ROOM: usize = 1 << 20;
/// Larger buffers are not kept.
const LARGEST: usize = 2 << 20;

/// A type whose buffers are kept.
pub(crate) trait Recycled: ArrowNativeType + std::panic::RefUnwindSafe {
    /// The buffers that wait for use.
    fn spare() -> &'static Mutex<Vec<Vec<Self>>>;
}

macro_rules! recycled {
    ($($type:ty),*) => {$(
        impl Recycled for $type {
            fn spare() -> &'static Mutex<Vec<Vec<Self>>> {
                static SPARE: Mutex<Vec<Vec<$type>>> = Mutex::new(Vec::new());
                &SPARE
            }
        }
    )*};
}
recycled!(u16, u32);

/// An empty vector with room for `capacity` values.
pub(crate) fn take<T: Recycled>(capacity: usize) -> Vec<T> {
    // What is small is cheap to allocate, and should not occupy a large buffer.
    if capacity < ROOM / 64 {
        return Vec::with_capacity(capacity);
    }
    let mut spare = T::spare().lock().unwrap_or_else(PoisonError::into_inner);
    match spare.iter().rposition(|v| v.capacity() >= capacity) {
        Some(at) => spare.swap_remove(at),
        None => Vec::with_capacity(capacity.max(ROOM)),
    }
}

/// `values` as an Arrow buffer, whose memory comes back here when the last array lets go of it.
pub(crate) fn buffer<T: Recycled>(values: Vec<T>) -> ScalarBuffer<T> {
    let len = values.len();
    if values.capacity() < ROOM {
        return ScalarBuffer::from(values);
    }
    let start = NonNull::from(values.as_slice()).cast::<u8>();
    // SAFETY: `start` points to `len` initialised values of the vector's allocation, which neither moves nor is written to while `Lent` owns the vector.
    let buffer = unsafe { Buffer::from_custom_allocation(start, len * size_of::<T>(), Arc::new(Lent(values))) };
    ScalarBuffer::new(buffer, 0, len)
}

/// A vector on loan to Arrow.
struct Lent<T: Recycled>(Vec<T>);

impl<T: Recycled> Drop for Lent<T> {
    fn drop(&mut self) {
        let mut values = std::mem::take(&mut self.0);
        if values.capacity() > LARGEST {
            return;
        }
        values.clear();
        let mut spare = T::spare().lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < KEPT {
            spare.push(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_the_last_array_lets_go() {
        let mut values = take::<u32>(ROOM);
        values.extend(0..1000);
        let held = buffer(values);
        let clone = held.slice(10, 5);
        drop(held);
        assert_eq!(&*clone, &[10, 11, 12, 13, 14], "a slice keeps the memory");
        drop(clone);
        let kept = u32::spare().lock().unwrap().len();
        assert!((1..=KEPT).contains(&kept));
        let again = take::<u32>(ROOM);
        assert!(again.is_empty() && again.capacity() >= ROOM);
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        drop(buffer(Vec::<u16>::with_capacity(LARGEST + 1)));
        assert!(u16::spare().lock().unwrap().iter().all(|v| v.capacity() <= LARGEST));
    }

    #[test]
    fn small_columns_are_ordinary_vectors() {
        assert!(take::<u32>(100).capacity() < ROOM);
        let small = Vec::<u32>::from([1, 2, 3]);
        assert_eq!(&*buffer(small), &[1, 2, 3]);
    }
}
