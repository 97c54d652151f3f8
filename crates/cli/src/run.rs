//! Dispatches a command to the function that runs it.

use futures::future::LocalBoxFuture;

use crate::args::Command;
use crate::commands::{
    calibrate, ceph, describe, drive, drop, explain, export, generate, host, index, ingest, init, locate, ls, maintenance, oas, pki, program, resize, sql,
    status, token, volume,
};
use crate::context::Failure;
use crate::shutdown::{NOTHING_STORED, Stop};

/// Carries out one command.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    let stop = Stop::new(if matches!(command, Command::Ingest(_)) { NOTHING_STORED } else { "stopped" });
    let handles_signal = match &command {
        Command::Drive(_) | Command::Host(_) | Command::Ceph(ceph::CephCommand::Engine(_)) => true,
        // Ctrl-C in a shell stops the query alone.
        Command::Sql(a) => a.is_shell(),
        // Ctrl-C ends the watch at the drive first.
        Command::Program(program::ProgramCommand::Watch(_)) => true,
        _ => false,
    };
    if !handles_signal {
        stop.watch();
    }
    // Boxed one by one, so that the compiler does not merge all commands into one large future.
    let work: LocalBoxFuture<'_, Result<(), Failure>> = match command {
        Command::Init(a) => Box::pin(init::run(a)),
        Command::Drive(command) => Box::pin(drive::run(command)),
        Command::Host(command) => Box::pin(host::run(command)),
        Command::Ingest(a) => Box::pin(ingest::run(a, &stop)),
        Command::Export(a) => Box::pin(export::run(a)),
        Command::Generate(a) => Box::pin(async { tokio::task::block_in_place(|| generate::run(a)) }),
        Command::Sql(a) => Box::pin(sql::run(a)),
        Command::Describe(a) => Box::pin(describe::run(a)),
        Command::Locate(a) => Box::pin(locate::run(a)),
        Command::Explain(a) => Box::pin(explain::run(a)),
        Command::Ls(a) => Box::pin(ls::run(a)),
        Command::Status(a) => Box::pin(status::run(a)),
        Command::Drop(a) => Box::pin(drop::run(a)),
        Command::Index(command) => Box::pin(index::run(command)),
        Command::Scrub(a) => Box::pin(maintenance::scrub(a)),
        Command::Repair(a) => Box::pin(maintenance::repair(a)),
        Command::Fleet(command) => Box::pin(resize::run(command)),
        Command::Oas(c) => Box::pin(oas::run(c)),
        Command::Volume(c) => Box::pin(volume::run(c)),
        Command::Token(command) => Box::pin(token::run(command)),
        Command::Program(command) => Box::pin(program::run(command)),
        Command::Ceph(command) => Box::pin(ceph::run(command)),
        Command::Pki(command) => Box::pin(async { tokio::task::block_in_place(|| pki::run(command)) }),
        Command::Calibrate(a) => Box::pin(calibrate::run(a)),
    };
    work.await
}
