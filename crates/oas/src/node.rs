//! A disk of the kernel's: commands go through its device node (SG_IO).

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use tokio::time::Instant;

use crate::scsi::{Command, Reply, Scsi};

const SG_IO: libc::c_ulong = 0x2285;
const TO_DEVICE: i32 = -2;
const FROM_DEVICE: i32 = -3;
const NO_DATA: i32 = -1;

/// The most data of a command: what any driver takes, and what we ask for at most, in KiB.
const LEAST_KIB: usize = 128;
const MOST_KIB: usize = 1024;

/// What Linux passes on.
const SENSE: usize = 96;

/// `struct sg_io_hdr` (`scsi/sg.h`).
#[repr(C)]
struct Request {
    interface: i32,
    direction: i32,
    cdb_length: u8,
    sense_most: u8,
    pieces: u16,
    data_length: u32,
    data: *mut libc::c_void,
    cdb: *mut u8,
    sense: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: i32,
    user: *mut libc::c_void,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_length: u8,
    host_status: u16,
    driver_status: u16,
    residual: i32,
    duration: u32,
    info: u32,
}

/// A SCSI disk of the kernel's.
#[derive(Debug)]
pub struct Node {
    path: PathBuf,
    file: Arc<File>,
    most: usize,
}

impl Node {
    /// Opens the device node. Vendor commands need the right to write to it, or `CAP_SYS_RAWIO`.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: PathBuf) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|cause| Error::io("open", &path, cause))?;
        let name = path.file_name().map(std::ffi::OsStr::to_os_string).unwrap_or_default();
        let limit = std::fs::read_to_string(PathBuf::from("/sys/block").join(name).join("queue/max_hw_sectors_kb"));
        let kib = limit.ok().and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(LEAST_KIB);
        // Larger ones need memory in one piece, which the kernel may not have.
        Ok(Self { path, file: Arc::new(file), most: kib.clamp(4, MOST_KIB) << 10 })
    }
}

/// Carries out a command; blocks until it is over.
fn carry_out(file: &File, command: &Command, milliseconds: u32) -> std::io::Result<Reply> {
    let mut cdb = command.cdb;
    let mut sense = [0u8; SENSE];
    let write = !command.out.is_empty();
    let mut data = if write { command.out.to_vec() } else { vec![0; command.most_in as usize] };
    let direction = match (write, command.most_in) {
        (true, _) => TO_DEVICE,
        (false, 0) => NO_DATA,
        (false, _) => FROM_DEVICE,
    };
    let mut request = Request {
        interface: i32::from(b'S'),
        direction,
        cdb_length: command.length,
        sense_most: SENSE as u8,
        pieces: 0,
        data_length: data.len() as u32,
        data: data.as_mut_ptr().cast(),
        cdb: cdb.as_mut_ptr(),
        sense: sense.as_mut_ptr(),
        timeout: milliseconds,
        flags: 0,
        pack_id: 0,
        user: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_length: 0,
        host_status: 0,
        driver_status: 0,
        residual: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: the request is a `struct sg_io_hdr` whose pointers are to buffers of the lengths that it says, which live
    // until the call is over.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(file.as_raw_fd(), SG_IO as _, &raw mut request) };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if request.host_status != 0 {
        return Err(std::io::Error::other(format!("the kernel could not carry out the command, host status {:#x}", request.host_status)));
    }
    if !write {
        let missing = usize::try_from(request.residual).unwrap_or(0);
        data.truncate(data.len().saturating_sub(missing));
    }
    let sense = Bytes::copy_from_slice(&sense[..usize::from(request.sense_length).min(SENSE)]);
    Ok(Reply { status: request.status, sense, data: if write { Bytes::new() } else { data.into() } })
}

impl Scsi for Node {
    fn execute(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Reply>> {
        async move {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis().clamp(1, u32::MAX.into()) as u32;
            let file = self.file.clone();
            // The kernel ends the command at its deadline: the thread is not lost.
            let done = tokio::task::spawn_blocking(move || carry_out(&file, &command, left)).await;
            let failed = |cause: std::io::Error| match cause.raw_os_error() {
                Some(libc::ENOTTY | libc::EINVAL) => Error::unsupported(format!("{} takes no SCSI commands", self.path.display())).with_source(cause),
                Some(libc::EPERM) => Error::invalid(format!("{}: vendor commands need CAP_SYS_RAWIO", self.path.display())).with_source(cause),
                _ => Error::unavailable(format!("{}: a command failed", self.path.display())).with_source(cause),
            };
            done.map_err(|cause| Error::internal("a command ended badly").with_source(cause))?.map_err(failed)
        }
        .boxed()
    }

    fn most_data(&self) -> usize {
        self.most
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}
