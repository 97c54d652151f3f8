//! librados, opened at run time: a build needs no Ceph, and a machine without it runs everything else.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use skytether_common::{Error, Result};

/// Names another file than the loader's own: for a Ceph that is unpacked and not installed.
pub(crate) const FILE_VARIABLE: &str = "SKYTETHER_LIBRADOS";

/// The name has been the same in all releases since 2008.
const FILE: &str = "librados.so.2";

/// Opaque: `rados_t`, `rados_ioctx_t`, an operation, a completion or an iterator.
pub(crate) type Handle = *mut c_void;
type Text = *const c_char;
type Texts = *const Text;

/// A struct of the functions of a library whose names begin with the prefix.
macro_rules! symbols {
    ($(#[$meta:meta])* $library:ident $prefix:literal $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $library {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $library {
            fn resolve(handle: *mut std::ffi::c_void, file: &str) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let found = crate::library::symbol(handle, concat!($prefix, stringify!($name)), file)?;
                        // SAFETY: the library declares the function of this name with these arguments.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                    },)*
                })
            }
        }
    };
}
pub(crate) use symbols;

symbols! {
    /// The functions of librados that are used, as in `rados/librados.h`.
    Library "rados_"
    create2: fn(*mut Handle, Text, Text, u64) -> c_int;
    conf_read_file: fn(Handle, Text) -> c_int;
    conf_set: fn(Handle, Text, Text) -> c_int;
    connect: fn(Handle) -> c_int;
    shutdown: fn(Handle);
    ioctx_create: fn(Handle, Text, *mut Handle) -> c_int;
    ioctx_destroy: fn(Handle);
    ioctx_set_namespace: fn(Handle, Text);
    set_pool_full_try: fn(Handle);
    cluster_stat: fn(Handle, *mut ClusterStat) -> c_int;
    mon_command: fn(Handle, Texts, usize, Text, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
    buffer_free: fn(*mut c_char);
    create_write_op: fn() -> Handle;
    release_write_op: fn(Handle);
    write_op_create: fn(Handle, c_int, Text);
    write_op_write_full: fn(Handle, Text, usize);
    write_op_remove: fn(Handle);
    write_op_omap_cmp: fn(Handle, Text, u8, Text, usize, *mut c_int);
    write_op_omap_set: fn(Handle, Texts, Texts, *const usize, usize);
    write_op_omap_rm_keys: fn(Handle, Texts, usize);
    write_op_operate: fn(Handle, Handle, Text, *mut libc::time_t, c_int) -> c_int;
    aio_create_completion: fn(*mut c_void, *mut c_void, *mut c_void, *mut Handle) -> c_int;
    aio_write_op_operate: fn(Handle, Handle, Handle, Text, *mut libc::time_t, c_int) -> c_int;
    aio_wait_for_complete: fn(Handle) -> c_int;
    aio_get_return_value: fn(Handle) -> c_int;
    aio_release: fn(Handle);
    nobjects_list_open: fn(Handle, *mut Handle) -> c_int;
    nobjects_list_next: fn(Handle, *mut Text, *mut Text, *mut Text) -> c_int;
    nobjects_list_close: fn(Handle);
    stat: fn(Handle, Text, *mut u64, *mut libc::time_t) -> c_int;
    get_last_version: fn(Handle) -> u64;
    read_op_assert_version: fn(Handle, u64);
    create_read_op: fn() -> Handle;
    release_read_op: fn(Handle);
    read_op_read: fn(Handle, u64, usize, *mut c_char, *mut usize, *mut c_int);
    read_op_omap_get_vals2: fn(Handle, Text, Text, u64, *mut Handle, *mut u8, *mut c_int);
    read_op_omap_get_vals_by_keys: fn(Handle, Texts, usize, *mut Handle, *mut c_int);
    read_op_exec: fn(Handle, Text, Text, Text, usize, *mut *mut c_char, *mut usize, *mut c_int);
    read_op_operate: fn(Handle, Handle, Text, c_int) -> c_int;
    omap_get_next: fn(Handle, *mut *mut c_char, *mut *mut c_char, *mut usize) -> c_int;
    omap_get_end: fn(Handle);
    lock_exclusive: fn(Handle, Text, Text, Text, Text, *mut libc::timeval, u8) -> c_int;
    unlock: fn(Handle, Text, Text, Text) -> c_int;
    list_lockers: fn(Handle, Text, Text, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize) -> isize;
    break_lock: fn(Handle, Text, Text, Text, Text) -> c_int;
}

/// `struct rados_cluster_stat_t`: KiB, and a number of objects.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct ClusterStat {
    pub(crate) kb: u64,
    pub(crate) kb_used: u64,
    pub(crate) kb_avail: u64,
    pub(crate) num_objects: u64,
}

/// librados, opened by the first caller and never closed: its threads may outlive every handle.
pub(crate) fn library() -> Result<&'static Library> {
    static OPENED: OnceLock<Library> = OnceLock::new();
    if let Some(library) = OPENED.get() {
        return Ok(library);
    }
    let (handle, file) = load(FILE_VARIABLE, FILE, "librados2")?;
    let library = Library::resolve(handle, &file)?;
    Ok(OPENED.get_or_init(|| library))
}

/// Opens the library that `variable` or else `usual` names, of Debian's package `package`; its handle and its file.
pub(crate) fn load(variable: &str, usual: &str, package: &str) -> Result<(*mut c_void, String)> {
    let file = std::env::var(variable).ok().filter(|given| !given.is_empty()).unwrap_or_else(|| usual.to_owned());
    let name = CString::new(file.as_str()).map_err(|_| Error::invalid(format!("{variable} holds a zero byte: name a file")))?;
    // SAFETY: `name` is a C string. What the library runs when it is loaded is Ceph's own code.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(Error::not_found(format!("Ceph's client library can't be loaded ({}): install package {package}, or name its file in {variable}", said())));
    }
    Ok((handle, file))
}

pub(crate) fn symbol(handle: *mut c_void, name: &str, file: &str) -> Result<*mut c_void> {
    let text = CString::new(name).map_err(|e| Error::internal("a function's name holds a zero byte").with_source(e))?;
    // SAFETY: `handle` is an open library and `text` a C string.
    let found = unsafe { libc::dlsym(handle, text.as_ptr()) };
    if found.is_null() {
        return Err(Error::unsupported(format!("{file} has no function {name}: Ceph 15 (Octopus) or newer is needed")));
    }
    Ok(found)
}

/// What the loader says about its last failure.
fn said() -> String {
    // SAFETY: `dlerror` gives null or a C string that lives until the next call on this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: as above, and it is not null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
