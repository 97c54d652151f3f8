//! numpy arrays as Rust slices, without a copy.

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use skytether_common::{Error, Result};

/// A contiguous array that Python lends while this lives.
pub(crate) struct Lent<T: Element>(PyBuffer<T>);

impl<T: Element> Lent<T> {
    /// Borrows `array`; errors call it `what`.
    ///
    /// # Errors
    /// `Invalid` where it is not contiguous or not of type `T`.
    pub(crate) fn new(array: &Bound<'_, PyAny>, what: &str) -> Result<Self> {
        let buffer = PyBuffer::get(array).map_err(|e| Error::invalid(format!("{what} is no array of {}", std::any::type_name::<T>())).with_source(e))?;
        if buffer.as_slice_ptr().is_none() {
            return Err(Error::invalid(format!("{what} is not contiguous")));
        }
        Ok(Self(buffer))
    }

    /// The elements.
    pub(crate) fn slice(&self) -> &[T] {
        match self.0.as_slice_ptr() {
            // SAFETY: the buffer is exported to us, so its memory stays where it is and allocated until it is released,
            // and every bit pattern is a valid T (T is a primitive number). Python code could write to it from another
            // thread meanwhile, which numpy forbids in the same way for its own functions that release the lock.
            Some(elements) => unsafe { elements.as_ref() },
            None => &[],
        }
    }
}

/// An array of integers, as indices are.
pub(crate) enum Indices {
    I32(Lent<i32>),
    I64(Lent<i64>),
    U32(Lent<u32>),
    U64(Lent<u64>),
}

/// An array of numbers.
pub(crate) enum Numbers {
    I8(Lent<i8>),
    I16(Lent<i16>),
    I32(Lent<i32>),
    I64(Lent<i64>),
    U8(Lent<u8>),
    U16(Lent<u16>),
    U32(Lent<u32>),
    U64(Lent<u64>),
    F32(Lent<f32>),
    F64(Lent<f64>),
}

/// The kind of an array's elements: signed, unsigned, float, and their size.
fn kind(array: &Bound<'_, PyAny>, what: &str) -> Result<(char, usize, String)> {
    use pyo3::buffer::ElementType as T;
    let buffer = PyUntypedBuffer::get(array).map_err(|e| Error::invalid(format!("{what} is no array of numbers")).with_source(e))?;
    let format = buffer.format().to_string_lossy().into_owned();
    Ok(match T::from_format(buffer.format()) {
        T::SignedInteger { bytes } => ('i', bytes, format),
        T::UnsignedInteger { bytes } => ('u', bytes, format),
        T::Float { bytes } => ('f', bytes, format),
        _ => ('?', 0, format),
    })
}

impl Indices {
    /// Borrows `array`.
    ///
    /// # Errors
    /// Invalid where it is no contiguous array of 32- or 64-bit integers.
    pub(crate) fn new(array: &Bound<'_, PyAny>, what: &str) -> Result<Self> {
        Ok(match kind(array, what)? {
            ('i', 4, _) => Self::I32(Lent::new(array, what)?),
            ('i', 8, _) => Self::I64(Lent::new(array, what)?),
            ('u', 4, _) => Self::U32(Lent::new(array, what)?),
            ('u', 8, _) => Self::U64(Lent::new(array, what)?),
            (.., format) => return Err(Error::invalid(format!("{what} is of type {format:?}: give 32- or 64-bit integers"))),
        })
    }
}

impl Numbers {
    /// Borrows `array`.
    ///
    /// # Errors
    /// Invalid where it is no contiguous array of integers or floats of this machine's byte order.
    pub(crate) fn new(array: &Bound<'_, PyAny>, what: &str) -> Result<Self> {
        Ok(match kind(array, what)? {
            ('i', 1, _) => Self::I8(Lent::new(array, what)?),
            ('i', 2, _) => Self::I16(Lent::new(array, what)?),
            ('i', 4, _) => Self::I32(Lent::new(array, what)?),
            ('i', 8, _) => Self::I64(Lent::new(array, what)?),
            ('u', 1, _) => Self::U8(Lent::new(array, what)?),
            ('u', 2, _) => Self::U16(Lent::new(array, what)?),
            ('u', 4, _) => Self::U32(Lent::new(array, what)?),
            ('u', 8, _) => Self::U64(Lent::new(array, what)?),
            ('f', 4, _) => Self::F32(Lent::new(array, what)?),
            ('f', 8, _) => Self::F64(Lent::new(array, what)?),
            (.., format) => return Err(Error::invalid(format!("{what} is of type {format:?}: give integers or floats of at most 64 bits"))),
        })
    }
}

/// Calls `$body` with `$slice` bound to the elements of `$numbers`, whatever their type.
macro_rules! with_numbers {
    ($numbers:expr, $slice:ident => $body:expr) => {
        match $numbers {
            $crate::buffers::Numbers::I8(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::I16(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::I32(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::I64(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::U8(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::U16(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::U32(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::U64(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::F32(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Numbers::F64(n) => {
                let $slice = n.slice();
                $body
            }
        }
    };
}

/// Calls `$body` with `$slice` bound to the elements of `$indices`, whatever their type.
macro_rules! with_indices {
    ($indices:expr, $slice:ident => $body:expr) => {
        match $indices {
            $crate::buffers::Indices::I32(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Indices::I64(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Indices::U32(n) => {
                let $slice = n.slice();
                $body
            }
            $crate::buffers::Indices::U64(n) => {
                let $slice = n.slice();
                $body
            }
        }
    };
}

pub(crate) use {with_indices, with_numbers};
