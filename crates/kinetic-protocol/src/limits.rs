//! What a drive accepts: two profiles that clients know, and a check for each limit.
//!
//! No single profile serves all clients: the Java client's tests compare limits with those of its simulator, and
//! `kctl` with those of a real drive.
//!
//! A limit that is absent, 0 or -1 (4,294,967,295) is not told, and not checked. Real drives send 0 for what they do
//! not tell, and the Java simulator -1.

use crate::kinds::StatusCode;
use crate::log::Limits;
use crate::status::Refusal;

impl Limits {
    /// The limits of the Java simulator. It tells neither tags and messages nor connections and queues.
    pub const JAVA: Limits = Limits {
        max_key_size: Some(4096),
        max_value_size: Some(1 << 20),
        max_version_size: Some(2048),
        max_tag_size: None,
        max_connections: None,
        max_outstanding_read_requests: None,
        max_outstanding_write_requests: None,
        max_message_size: None,
        max_key_range_count: Some(200),
        max_identity_count: None,
        max_pin_size: None,
        max_operation_count_per_batch: Some(15),
        max_batch_count_per_device: Some(5),
        max_batch_size: None,
        max_deletes_per_batch: None,
    };

    /// The limits of a real drive.
    pub const DRIVE: Limits = Limits {
        max_key_size: Some(1024),
        max_value_size: Some(1 << 20),
        max_version_size: Some(2048),
        max_tag_size: Some(128),
        max_connections: Some(100),
        max_outstanding_read_requests: Some(30),
        max_outstanding_write_requests: Some(20),
        max_message_size: Some(1 << 20),
        max_key_range_count: Some(800),
        max_identity_count: Some(1000),
        max_pin_size: Some(32),
        max_operation_count_per_batch: Some(0),
        max_batch_count_per_device: Some(0),
        max_batch_size: Some(64 << 20),
        max_deletes_per_batch: Some(24_000),
    };

    /// The profile of that name: `java` or `drive`.
    #[must_use]
    pub fn profile(name: &str) -> Option<Limits> {
        match name {
            "java" => Some(Limits::JAVA),
            "drive" => Some(Limits::DRIVE),
            _ => None,
        }
    }

    /// Checks the length of a key.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if it is too long.
    pub fn check_key(&self, key: &[u8]) -> Result<(), Refusal> {
        at_most("the key", key.len() as u64, "bytes", self.max_key_size)
    }

    /// Checks the length of a value, in bytes.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if it is too long.
    pub fn check_value(&self, bytes: u64) -> Result<(), Refusal> {
        at_most("the value", bytes, "bytes", self.max_value_size)
    }

    /// Checks the length of a version.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if it is too long.
    pub fn check_version(&self, version: &[u8]) -> Result<(), Refusal> {
        at_most("the version", version.len() as u64, "bytes", self.max_version_size)
    }

    /// Checks the length of a tag.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if it is too long.
    pub fn check_tag(&self, tag: &[u8]) -> Result<(), Refusal> {
        at_most("the tag", tag.len() as u64, "bytes", self.max_tag_size)
    }

    /// Checks the length of a PIN.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if it is too long.
    pub fn check_pin(&self, pin: &[u8]) -> Result<(), Refusal> {
        at_most("the PIN", pin.len() as u64, "bytes", self.max_pin_size)
    }

    /// Checks how many keys a range shall return.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if they are too many, [`StatusCode::InternalError`] if they are none: clients
    /// expect the simulator's code.
    pub fn check_range_count(&self, keys: u32) -> Result<(), Refusal> {
        if keys == 0 {
            return Err(Refusal::new(StatusCode::InternalError, "the range asks for 0 keys; ask for 1 or more"));
        }
        at_most("the range", u64::from(keys), "keys", self.max_key_range_count)
    }

    /// Checks how many identities there are.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if they are too many.
    pub fn check_identities(&self, identities: u64) -> Result<(), Refusal> {
        at_most("the drive", identities, "identities", self.max_identity_count)
    }

    /// Checks how many batches are open.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if they are too many: close the connection.
    pub fn check_batches(&self, batches: u64) -> Result<(), Refusal> {
        at_most("the drive", batches, "open batches", self.max_batch_count_per_device)
    }

    /// Checks a batch: how many operations it has, how many of them are deletes, and the bytes of its values.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if one of them is too many: close the connection.
    pub fn check_batch(&self, operations: u64, deletes: u64, bytes: u64) -> Result<(), Refusal> {
        at_most("the batch", operations, "operations", self.max_operation_count_per_batch)?;
        at_most("the batch", deletes, "deletes", self.max_deletes_per_batch)?;
        at_most("the batch", bytes, "bytes", self.max_batch_size)
    }
}

/// The limit, if the field tells one.
#[must_use]
pub fn told(field: Option<u32>) -> Option<u32> {
    field.filter(|limit| !matches!(*limit, 0 | u32::MAX))
}

fn at_most(what: &str, number: u64, unit: &str, limit: Option<u32>) -> Result<(), Refusal> {
    match told(limit) {
        Some(limit) if number > u64::from(limit) => Err(Refusal::invalid(format!("{what} has {number} {unit}, the limit is {limit}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn code(result: Result<(), Refusal>) -> StatusCode {
        result.map_or_else(|refusal| refusal.code, |()| StatusCode::Success)
    }

    #[test]
    fn each_check_has_its_limit_and_code() {
        use StatusCode::{InternalError, InvalidRequest, Success};
        let bytes = |length: usize| vec![0; length];
        for (limits, key, keys) in [(Limits::JAVA, 4096, 200), (Limits::DRIVE, 1024, 800)] {
            assert_eq!((code(limits.check_key(&bytes(key))), code(limits.check_key(&bytes(key + 1)))), (Success, InvalidRequest));
            assert_eq!((code(limits.check_value(1 << 20)), code(limits.check_value((1 << 20) + 1))), (Success, InvalidRequest));
            assert_eq!((code(limits.check_version(&bytes(2048))), code(limits.check_version(&bytes(2049)))), (Success, InvalidRequest));
            assert_eq!((code(limits.check_range_count(keys)), code(limits.check_range_count(keys + 1))), (Success, InvalidRequest));
            assert_eq!((code(limits.check_range_count(0)), code(limits.check_range_count(u32::MAX))), (InternalError, InvalidRequest));
        }
        let drive = Limits::DRIVE;
        assert_eq!((code(drive.check_tag(&bytes(128))), code(drive.check_tag(&bytes(129)))), (Success, InvalidRequest));
        assert_eq!((code(drive.check_pin(&bytes(32))), code(drive.check_pin(&bytes(33)))), (Success, InvalidRequest));
        assert_eq!((code(drive.check_identities(1000)), code(drive.check_identities(1001))), (Success, InvalidRequest));
        assert_eq!((code(drive.check_batch(24_000, 24_000, 64 << 20)), code(drive.check_batch(1, 24_001, 0))), (Success, InvalidRequest));
        assert_eq!(code(drive.check_batch(1, 0, (64 << 20) + 1)), InvalidRequest);
        let java = Limits::JAVA;
        assert_eq!((code(java.check_batch(15, 15, 1 << 40)), code(java.check_batch(16, 0, 0))), (Success, InvalidRequest));
        assert_eq!((code(java.check_batches(5)), code(java.check_batches(6))), (Success, InvalidRequest));
    }

    #[test]
    fn untold_limits_are_not_checked() {
        assert_eq!(Limits::JAVA.check_tag(&[0; 4000]), Ok(()));
        // 0 on the wire is not told either.
        assert_eq!(Limits::DRIVE.check_batches(1000), Ok(()));
        assert_eq!(Limits::default().check_batch(u64::MAX, u64::MAX, u64::MAX), Ok(()));
        // And so is -1.
        assert_eq!(Limits { max_value_size: Some(u32::MAX), ..Limits::JAVA }.check_value(1 << 40), Ok(()));
    }

    #[test]
    fn refusal_names_number_and_limit() {
        let refusal = Limits::DRIVE.check_key(&[0; 1025]).unwrap_err();
        assert_eq!(refusal.to_string(), "INVALID_REQUEST: the key has 1025 bytes, the limit is 1024");
    }

    #[test]
    fn profiles_are_announced_as_clients_expect() {
        // {1: 4096, 2: 1048576, 3: 2048, 9: 200, 12: 15, 13: 5}, by hand.
        let java: &[u8] = &[0x08, 0x80, 0x20, 0x10, 0x80, 0x80, 0x40, 0x18, 0x80, 0x10, 0x48, 0xc8, 0x01, 0x60, 0x0f, 0x68, 0x05];
        assert_eq!(Limits::JAVA.encode_to_vec(), java);
        assert_eq!((Limits::profile("java"), Limits::profile("drive"), Limits::profile("x")), (Some(Limits::JAVA), Some(Limits::DRIVE), None));
    }
}
