//! Tests of the client of EXEC.

mod c_program;
mod end_to_end;
mod hostile;
mod minio;
mod mounted;
mod places;
mod striping;
mod target;
mod tools;
