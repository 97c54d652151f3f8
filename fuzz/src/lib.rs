//! Every parser of bytes from outside as a function of any bytes: it must return, whatever they are (I15).
//!
//! A target panics where its result is neither an error of the right kind nor a value that keeps its promises. A panic
//! of a third-party parser that our code catches is no finding. Too much memory is one, see [`Bounded`].
//!
//! | module | subject |
//! |---|---|
//! | `cells` | sums per cell: states and literals |
//! | `ceph` | requests to the object class in an OSD, and its responses |
//! | `codes` | code maps and digests of redundant data sets |
//! | `ebpf` | eBPF programs: object files, instructions |
//! | `exec_client` | striped files, extents of files, URLs; what targets answer to EXEC |
//! | `files` | table files that are ingested |
//! | `indexes` | heads, pages and definitions of indexes |
//! | `iscsi` | logins, and units of sessions, of iSCSI initiators |
//! | `kinetic` | frames, messages and commands of Kinetic drives; what identities may do |
//! | `stored` | values in stores, and files that are ingested |
//! | `offload` | descriptors and results of EXEC |
//! | `minio` | `xl.meta` of MinIO's drives |
//! | `nbd` | options and requests of NBD clients |
//! | `native` | native programs: which files are taken |
//! | `nvme` | units and commands of NVMe/TCP hosts |
//! | `plans` | sub-plans, expressions, plans of other producers |
//! | `scsi` | commands and parameter lists of SCSI |
//! | `volume` | segments and journals, header records, names of volumes |
//! | `wasm` | WebAssembly programs: modules |
//! | `wire` | tickets, broadcast tables, streams of rows, deliveries, sessions, details of errors |

use std::alloc::{GlobalAlloc, Layout, System};

mod cells;
mod ceph;
mod codes;
mod ebpf;
mod exec_client;
mod files;
mod indexes;
mod iscsi;
mod kinetic;
mod minio;
mod native;
mod nbd;
mod nvme;
mod offload;
mod plans;
mod scsi;
mod stored;
mod volume;
mod waiting;
mod wasm;
mod wire;

/// A parser and bytes that it takes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, by which FUZZ_TARGET selects it.
    pub name: &'static str,
    /// Gives it bytes; whether it took them.
    pub run: fn(&[u8]) -> bool,
    /// Bytes that it takes, or nearly so.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How many changes of the seeds every run of the tests tries: fewer where each takes long.
    pub rounds: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "slice_decode", run: stored::slice_decode, seeds: stored::slices, rounds: 20000 },
    Target { name: "pieces_decode", run: stored::pieces_decode, seeds: stored::pieces, rounds: 20000 },
    Target { name: "sparse_decode", run: stored::sparse_decode, seeds: stored::sparse_slices, rounds: 20000 },
    Target { name: "metadata_decode", run: stored::metadata_decode, seeds: stored::metadata, rounds: 20000 },
    Target { name: "mtx_read", run: stored::mtx_read, seeds: stored::matrices, rounds: 20000 },
    Target { name: "vpic_read", run: stored::vpic_read, seeds: stored::dumps, rounds: 20000 },
    Target { name: "footer_read", run: stored::footer_read, seeds: stored::footers, rounds: 20000 },
    Target { name: "tsv_read", run: stored::tsv_read, seeds: stored::names, rounds: 20000 },
    Target { name: "moments_merge", run: stored::moments_merge, seeds: stored::moments, rounds: 20000 },
    Target { name: "ranks_merge", run: stored::ranks_merge, seeds: stored::ranks, rounds: 20000 },
    Target { name: "spec_read", run: stored::spec_read, seeds: stored::specs, rounds: 20000 },
    Target { name: "cell_sums_merge", run: cells::sums_merge, seeds: cells::sums, rounds: 20000 },
    Target { name: "cell_specs_read", run: cells::spec_read, seeds: cells::specs, rounds: 20000 },
    Target { name: "parquet_read", run: files::parquet_read, seeds: files::parquets, rounds: 3000 },
    Target { name: "arrow_read", run: files::arrow_read, seeds: files::arrows, rounds: 3000 },
    Target { name: "csv_read", run: files::csv_read, seeds: files::separated, rounds: 3000 },
    Target { name: "json_read", run: files::json_read, seeds: files::objects, rounds: 3000 },
    Target { name: "code_map_read", run: codes::code_map_read, seeds: codes::code_maps, rounds: 20000 },
    Target { name: "digest_read", run: codes::digest_read, seeds: codes::digests, rounds: 20000 },
    Target { name: "index_read", run: indexes::index_read, seeds: indexes::indexes, rounds: 20000 },
    Target { name: "kinetic_stream_decode", run: kinetic::stream_decode, seeds: kinetic::streams, rounds: 20000 },
    Target { name: "kinetic_command_decode", run: kinetic::command_decode, seeds: kinetic::commands, rounds: 20000 },
    Target { name: "kinetic_access_check", run: kinetic::access_check, seeds: kinetic::identities, rounds: 20000 },
    Target { name: "ebpf_object_load", run: ebpf::object_load, seeds: ebpf::objects, rounds: 12000 },
    Target { name: "ebpf_instructions_load", run: ebpf::instructions_load, seeds: ebpf::instructions, rounds: 12000 },
    Target { name: "wasm_module_load", run: wasm::module_load, seeds: wasm::modules, rounds: 12000 },
    Target { name: "native_program_check", run: native::program_check, seeds: native::programs, rounds: 20000 },
    Target { name: "exec_descriptor_decode", run: offload::descriptor_decode, seeds: offload::descriptors, rounds: 100_000 },
    Target { name: "exec_result_decode", run: offload::result_decode, seeds: offload::results, rounds: 100_000 },
    Target { name: "nbd_negotiate", run: nbd::negotiate, seeds: nbd::dialogues, rounds: 100_000 },
    Target { name: "nvme_units_read", run: nvme::units_read, seeds: nvme::streams, rounds: 100_000 },
    Target { name: "exec_capabilities_decode", run: exec_client::capabilities_decode, seeds: exec_client::capabilities, rounds: 100_000 },
    Target { name: "exec_answers_read", run: exec_client::answers_read, seeds: exec_client::answers, rounds: 100_000 },
    Target { name: "striped_layout_read", run: exec_client::layout_read, seeds: exec_client::layouts, rounds: 100_000 },
    Target { name: "file_extents_read", run: exec_client::map_read, seeds: exec_client::maps, rounds: 100_000 },
    Target { name: "target_url_read", run: exec_client::url_read, seeds: exec_client::urls, rounds: 100_000 },
    Target { name: "iscsi_login_read", run: iscsi::login_read, seeds: iscsi::logins, rounds: 100_000 },
    Target { name: "iscsi_session_serve", run: iscsi::session_serve, seeds: iscsi::sessions, rounds: 100_000 },
    Target { name: "scsi_commands_run", run: scsi::commands_run, seeds: scsi::commands, rounds: 100_000 },
    Target { name: "volume_segment_read", run: volume::segment_read, seeds: volume::segments, rounds: 100_000 },
    Target { name: "volume_journal_open", run: volume::journal_open, seeds: volume::journals, rounds: 6000 },
    Target { name: "volume_header_decode", run: volume::header_decode, seeds: volume::headers, rounds: 100_000 },
    Target { name: "volume_spec_read", run: volume::spec_read, seeds: volume::specs, rounds: 100_000 },
    Target { name: "xl_meta_read", run: minio::xl_meta_read, seeds: minio::files, rounds: 100_000 },
    Target { name: "xl_meta_versions_read", run: minio::versions_read, seeds: minio::metadata, rounds: 100_000 },
    Target { name: "ceph_request_decode", run: ceph::request_decode, seeds: ceph::requests, rounds: 100_000 },
    Target { name: "ceph_response_decode", run: ceph::response_decode, seeds: ceph::responses, rounds: 100_000 },
    Target { name: "plan_read", run: plans::plan_read, seeds: plans::foreign, rounds: 1600 },
    Target { name: "sub_plan_decode", run: plans::sub_plan_decode, seeds: plans::sub_plans, rounds: 6000 },
    Target { name: "expressions_decode", run: plans::expressions_decode, seeds: plans::expressions, rounds: 12000 },
    Target { name: "ticket_decode", run: wire::ticket_decode, seeds: wire::tickets, rounds: 20000 },
    Target { name: "arrow_stream_read", run: wire::stream_read, seeds: wire::streams, rounds: 12000 },
    Target { name: "shipped_read", run: wire::shipped_read, seeds: wire::tables, rounds: 12000 },
    Target { name: "values_decode", run: wire::values_decode, seeds: wire::rows, rounds: 12000 },
    Target { name: "keys_read", run: wire::keys_read, seeds: wire::keys, rounds: 20000 },
    Target { name: "delivery_decode", run: wire::delivery_decode, seeds: wire::deliveries, rounds: 20000 },
    Target { name: "session_decode", run: wire::session_decode, seeds: wire::sessions, rounds: 20000 },
    Target { name: "order_decode", run: wire::order_decode, seeds: wire::orders, rounds: 20000 },
    Target { name: "detail_decode", run: wire::detail_decode, seeds: wire::details, rounds: 20000 },
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|t| t.name == name)
}

/// The system's allocator with a limit of [`Bounded::MOST`] per allocation. A parser that requests more believed a
/// length that its input claimed. The process then ends, as it would on a machine without that memory.
#[derive(Debug)]
pub struct Bounded;

impl Bounded {
    /// Far more than any target needs for a few kilobytes.
    pub const MOST: usize = 1 << 30;
}

// SAFETY: all calls go to the system's allocator unchanged, or return null, which means that there is no memory.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > Self::MOST {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > Self::MOST {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > Self::MOST {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}
