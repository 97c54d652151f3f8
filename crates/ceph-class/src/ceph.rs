//! The functions of `ceph-osd` that the class uses, as `rados/objclass.h` has them. They are found when the class is
//! loaded: a build needs no Ceph, and tests link without an OSD.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

/// A method of a class.
pub(crate) type Method = unsafe extern "C" fn(*mut c_void, *mut c_char, c_int, *mut *mut c_char, *mut c_int) -> c_int;

/// A method that reads (`CLS_METHOD_RD`).
const READS: c_int = 1;

/// The OSD's functions.
#[derive(Clone, Copy)]
pub(crate) struct Ceph {
    register: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
    register_method: unsafe extern "C" fn(*mut c_void, *const c_char, c_int, Method, *mut *mut c_void) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, c_int, c_int, *mut *mut c_char, *mut c_int) -> c_int,
    alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

fn symbol(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string; the default handle looks in the program that loaded this library.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl Ceph {
    /// The functions of this process; `None` where it is no OSD.
    pub(crate) fn find() -> Option<Self> {
        let (register, register_method) = (symbol("cls_register")?, symbol("cls_register_method")?);
        let (read, alloc, free) = (symbol("cls_read")?, symbol("cls_alloc")?, symbol("cls_free")?);
        // SAFETY: Ceph declares the functions of these names with these arguments, unchanged since 2011.
        unsafe {
            Some(Self {
                register: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int>(register),
                register_method: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *const c_char, c_int, Method, *mut *mut c_void) -> c_int>(
                    register_method,
                ),
                read: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, c_int, c_int, *mut *mut c_char, *mut c_int) -> c_int>(read),
                alloc: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(alloc),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free),
            })
        }
    }

    /// Registers a class with its methods.
    pub(crate) fn register(&self, class: &str, methods: &[(&str, Method)]) {
        let Ok(class) = CString::new(class) else { return };
        let mut handle = ptr::null_mut();
        // SAFETY: the OSD copies the name; the out pointer is valid during the call.
        if unsafe { (self.register)(class.as_ptr(), &raw mut handle) } < 0 {
            return;
        }
        for (name, method) in methods {
            let Ok(name) = CString::new(*name) else { continue };
            let mut handle_of_method = ptr::null_mut();
            // SAFETY: as above. The functions live as long as the library, which an OSD never unloads.
            unsafe { (self.register_method)(handle, name.as_ptr(), READS, *method, &raw mut handle_of_method) };
        }
    }

    /// Gives `bytes` to the OSD as a method's output; whether there was memory for them.
    pub(crate) fn hand_over(&self, bytes: &[u8], output: *mut *mut c_char, length: *mut c_int) -> bool {
        let Ok(count) = c_int::try_from(bytes.len()) else { return false };
        // SAFETY: any size may be asked for. The OSD frees the block.
        let block = unsafe { (self.alloc)(bytes.len().max(1)) };
        if block.is_null() || output.is_null() || length.is_null() {
            return false;
        }
        // SAFETY: the block has as many bytes, and the OSD gave both out pointers.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), block.cast::<u8>(), bytes.len());
            *output = block.cast();
            *length = count;
        }
        true
    }
}

/// A call of a method.
pub(crate) struct Call<'a> {
    pub(crate) ceph: &'a Ceph,
    pub(crate) context: *mut c_void,
}

impl Call<'_> {
    /// Bytes of the object, fewer at its end; or Ceph's error as a negative number.
    pub(crate) fn read(&self, at: u64, len: u32) -> Result<Vec<u8>, i32> {
        // Positions have 31 bits here; objects have at most 128 MiB.
        let (Ok(at), Ok(len)) = (c_int::try_from(at), c_int::try_from(len)) else { return Ok(Vec::new()) };
        let (mut bytes, mut count): (*mut c_char, c_int) = (ptr::null_mut(), 0);
        // SAFETY: the context is that of the running call, and the out pointers are valid during it.
        let code = unsafe { (self.ceph.read)(self.context, at, len, &raw mut bytes, &raw mut count) };
        if code < 0 {
            return Err(code);
        }
        if bytes.is_null() {
            return Ok(Vec::new());
        }
        let own = usize::try_from(count).map_or_else(
            |_| Vec::new(),
            |count| {
                // SAFETY: the OSD gave a block of that many bytes.
                unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), count) }.to_vec()
            },
        );
        // SAFETY: the block is the caller's, and nothing refers to it any more.
        unsafe { (self.ceph.free)(bytes.cast()) };
        Ok(own)
    }
}
