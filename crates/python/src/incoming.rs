//! [`Incoming`]: tables of other libraries by Arrow's C stream interface.
//!
//! Arrow's own reader of such streams ends in a panic for a struct within a struct or a list of fixed size that begins
//! at an offset, as slices of pyarrow's tables do: it applies the offset twice. Here these offsets are resolved before
//! arrays are made.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{ArrayData, RecordBatch, RecordBatchOptions, StructArray};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use skytether_common::Error;

use crate::errors::to_py;

const NAME: &CStr = c"arrow_array_stream";

/// A stream of batches that another library makes.
pub(crate) struct Incoming {
    stream: FFI_ArrowArrayStream,
    schema: SchemaRef,
}

/// The stream of `source`, which has `__arrow_c_stream__`. An exception of its library is the cause of ours, which says
/// `what` is read.
pub(crate) fn incoming(source: &Bound<'_, PyAny>, what: &str) -> PyResult<Incoming> {
    open(source).map_err(|cause| {
        let py = source.py();
        let ours = to_py(&Error::invalid(format!("{what}: the table that is given can't be read as an Arrow stream: {}", cause.value(py))));
        ours.set_cause(py, Some(cause));
        ours
    })
}

fn open(source: &Bound<'_, PyAny>) -> PyResult<Incoming> {
    let capsule = source.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let pointer = capsule.pointer_checked(Some(NAME))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name holds such a stream. It is moved out, and the capsule then releases nothing.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr()) };
    Incoming::new(stream).map_err(|e| PyValueError::new_err(e.to_string()))
}

impl Incoming {
    fn new(mut stream: FFI_ArrowArrayStream) -> Result<Self, ArrowError> {
        let Some(get_schema) = stream.get_schema.filter(|_| stream.release.is_some()) else {
            return Err(ArrowError::CDataInterface("the stream was read before".to_owned()));
        };
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the stream is not released, and fills the schema that it is given.
        let code = unsafe { get_schema(&raw mut stream, &raw mut schema) };
        if code != 0 {
            return Err(last_error(&mut stream));
        }
        let read = catch_unwind(AssertUnwindSafe(|| Schema::try_from(&schema)));
        let schema = read.unwrap_or_else(|_| Err(ArrowError::CDataInterface("its schema has a type that is not known".to_owned())))?;
        Ok(Self { stream, schema: Arc::new(schema) })
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let Some(get_next) = self.stream.get_next else { return Ok(None) };
        let mut array = FFI_ArrowArray::empty();
        // SAFETY: as above, for an array.
        let code = unsafe { get_next(&raw mut self.stream, &raw mut array) };
        if code != 0 {
            return Err(last_error(&mut self.stream));
        }
        if array.is_released() {
            return Ok(None);
        }
        // SAFETY: by the interface, the arrays of a stream have its schema.
        let data = unsafe { from_ffi_and_data_type(array, DataType::Struct(self.schema.fields().clone())) }?;
        let rows = RecordBatchOptions::new().with_row_count(Some(data.len()));
        let (_, columns, _) = StructArray::from(whole(&data)).into_parts();
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &rows).map(Some)
    }
}

impl Iterator for Incoming {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let gave_up = |_| Err(ArrowError::CDataInterface("a batch is not laid out as its schema says".to_owned()));
        catch_unwind(AssertUnwindSafe(|| self.batch())).unwrap_or_else(gave_up).transpose()
    }
}

fn last_error(stream: &mut FFI_ArrowArrayStream) -> ArrowError {
    let text = stream.get_last_error.and_then(|get_last_error| {
        // SAFETY: the stream is not released; the text is valid until the next call.
        let text = unsafe { get_last_error(std::ptr::from_mut(stream)) };
        // SAFETY: as above; a text ends with a zero.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    });
    ArrowError::CDataInterface(text.unwrap_or_else(|| "the stream failed without a reason".to_owned()))
}

/// The same values, with structs and lists of fixed size that begin at no offset.
fn whole(data: &ArrayData) -> ArrayData {
    match data.data_type() {
        DataType::Struct(_) | DataType::FixedSizeList(_, _) => part(data, 0, data.len()),
        of if of.is_nested() => {
            let children = data.child_data().iter().map(whole).collect();
            // SAFETY: only children change, to equal ones.
            unsafe { data.clone().into_builder().child_data(children).build_unchecked() }
        }
        _ => data.clone(),
    }
}

/// `len` values from `offset` on.
fn part(data: &ArrayData, offset: usize, len: usize) -> ArrayData {
    let each = match data.data_type() {
        DataType::Struct(_) => 1,
        DataType::FixedSizeList(_, each) => usize::try_from(*each).unwrap_or(0),
        _ => {
            let data = whole(data);
            return if offset == 0 && len == data.len() { data } else { data.slice(offset, len) };
        }
    };
    let children = data.child_data().iter().map(|child| part(child, (data.offset() + offset) * each, len * each)).collect();
    let nulls = data.nulls().map(|nulls| nulls.slice(offset, len));
    // SAFETY: the children have `each` of their values for each of the `len` values, and the nulls have `len`.
    unsafe { ArrayData::builder(data.data_type().clone()).len(len).nulls(nulls).child_data(children).build_unchecked() }
}
