//! Enumerations of the protocol.
//!
//! Each begins with `Invalid` (-1), the value of a field that is absent or has a number that this version does not
//! know. Messages hold the numbers, so unknown ones pass through unchanged.

use std::fmt;

/// An enumeration on the wire: its variants with their numbers, and the name that the field uses for each.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $number:literal, $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
        #[repr(i32)]
        pub enum $name {
            /// Absent, or a number that this version does not know.
            Invalid = -1,
            $($(#[$about])* $variant = $number,)*
        }

        impl $name {
            /// All known values, without `Invalid`.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The value's name, as other tools for Kinetic print it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $name::Invalid => "INVALID",
                    $($name::$variant => $word,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

kinds! {
    /// How the sender of a message proves who it is.
    AuthType {
        /// By an HMAC over the command, with the key of an identity.
        Hmac = 1, "HMACAUTH";
        /// By a PIN; for PIN operations only.
        Pin = 2, "PINAUTH";
        /// Not at all: the drive speaks without a request.
        Unsolicited = 3, "UNSOLICITEDSTATUS";
    }
}

kinds! {
    /// What a command asks for or answers. A request is even, its response is the odd number below.
    MessageType {
        /// Answer to `Get`; its value is the value of the frame.
        GetResponse = 1, "GET_RESPONSE";
        /// Reads a value.
        Get = 2, "GET";
        /// Answer to `Put`.
        PutResponse = 3, "PUT_RESPONSE";
        /// Writes a value.
        Put = 4, "PUT";
        /// Answer to `Delete`.
        DeleteResponse = 5, "DELETE_RESPONSE";
        /// Deletes a key.
        Delete = 6, "DELETE";
        /// Answer to `GetNext`.
        GetNextResponse = 7, "GETNEXT_RESPONSE";
        /// Reads the first key after the given one, and its value.
        GetNext = 8, "GETNEXT";
        /// Answer to `GetPrevious`.
        GetPreviousResponse = 9, "GETPREVIOUS_RESPONSE";
        /// Reads the last key before the given one, and its value.
        GetPrevious = 10, "GETPREVIOUS";
        /// Answer to `GetKeyRange`.
        GetKeyRangeResponse = 11, "GETKEYRANGE_RESPONSE";
        /// Lists the keys of a range.
        GetKeyRange = 12, "GETKEYRANGE";
        /// Answer to `GetVersion`.
        GetVersionResponse = 15, "GETVERSION_RESPONSE";
        /// Reads the version of a key, without its value.
        GetVersion = 16, "GETVERSION";
        /// Answer to `Setup`.
        SetupResponse = 21, "SETUP_RESPONSE";
        /// Sets the cluster version, or loads firmware.
        Setup = 22, "SETUP";
        /// Answer to `GetLog`.
        GetLogResponse = 23, "GETLOG_RESPONSE";
        /// Asks for configuration, limits, statistics and other facts about the drive.
        GetLog = 24, "GETLOG";
        /// Answer to `Security`.
        SecurityResponse = 25, "SECURITY_RESPONSE";
        /// Sets identities or a PIN; over TLS only.
        Security = 26, "SECURITY";
        /// Answer to `PeerToPeerPush`.
        PeerToPeerPushResponse = 27, "PEER2PEERPUSH_RESPONSE";
        /// Copies values to another drive.
        PeerToPeerPush = 28, "PEER2PEERPUSH";
        /// Answer to `Noop`.
        NoopResponse = 29, "NOOP_RESPONSE";
        /// Does nothing but answer.
        Noop = 30, "NOOP";
        /// Answer to `FlushAllData`.
        FlushAllDataResponse = 31, "FLUSHALLDATA_RESPONSE";
        /// Makes all acknowledged writes durable.
        FlushAllData = 32, "FLUSHALLDATA";
        /// Answer to `PinOp`.
        PinOpResponse = 35, "PINOP_RESPONSE";
        /// Locks, unlocks or erases the drive; over TLS only.
        PinOp = 36, "PINOP";
        /// Answer to `MediaScan`.
        MediaScanResponse = 37, "MEDIASCAN_RESPONSE";
        /// Verifies the values of a range.
        MediaScan = 38, "MEDIASCAN";
        /// Answer to `MediaOptimize`.
        MediaOptimizeResponse = 39, "MEDIAOPTIMIZE_RESPONSE";
        /// Reorders a range on the medium.
        MediaOptimize = 40, "MEDIAOPTIMIZE";
        /// Answer to `StartBatch`.
        StartBatchResponse = 41, "START_BATCH_RESPONSE";
        /// Begins a batch.
        StartBatch = 42, "START_BATCH";
        /// Answer to `EndBatch`.
        EndBatchResponse = 43, "END_BATCH_RESPONSE";
        /// Commits a batch.
        EndBatch = 44, "END_BATCH";
        /// Answer to `AbortBatch`.
        AbortBatchResponse = 45, "ABORT_BATCH_RESPONSE";
        /// Drops a batch.
        AbortBatch = 46, "ABORT_BATCH";
        /// Answer to `SetPowerLevel`.
        SetPowerLevelResponse = 47, "SET_POWER_LEVEL_RESPONSE";
        /// Sends the drive to sleep or wakes it.
        SetPowerLevel = 48, "SET_POWER_LEVEL";
        /// Answer to `ManageApplet`.
        ManageAppletResponse = 49, "MANAGE_APPLET_RESPONSE";
        /// Runs or manages a program inside the drive.
        ManageApplet = 50, "MANAGE_APPLET";
    }
}

impl MessageType {
    /// Whether a client may send this type.
    #[must_use]
    pub fn is_request(self) -> bool {
        let number = i32::from(self);
        number > 0 && number % 2 == 0
    }

    /// The type of the response to this request; none if this is no request.
    #[must_use]
    pub fn response(self) -> Option<MessageType> {
        self.is_request().then(|| MessageType::try_from(i32::from(self) - 1).ok()).flatten()
    }
}

kinds! {
    /// How a command ended.
    StatusCode {
        /// An earlier operation failed, so this one did not begin.
        NotAttempted = 0, "NOT_ATTEMPTED";
        /// Done.
        Success = 1, "SUCCESS";
        /// The HMAC is not that of the identity's key.
        HmacFailure = 2, "HMAC_FAILURE";
        /// The identity lacks the permission, or the PIN is wrong.
        NotAuthorized = 3, "NOT_AUTHORIZED";
        /// The command's cluster version is not the drive's.
        VersionFailure = 4, "VERSION_FAILURE";
        /// The drive failed.
        InternalError = 5, "INTERNAL_ERROR";
        /// The command has no header.
        HeaderRequired = 6, "HEADER_REQUIRED";
        /// There is no such key or log.
        NotFound = 7, "NOT_FOUND";
        /// The stored version is not the one that the command names.
        VersionMismatch = 8, "VERSION_MISMATCH";
        /// Too many commands are waiting.
        ServiceBusy = 9, "SERVICE_BUSY";
        /// The command took longer than its timeout.
        Expired = 10, "EXPIRED";
        /// The medium gave other bytes than were written; a retry may succeed.
        DataError = 11, "DATA_ERROR";
        /// The medium gave other bytes than were written, for good.
        PermDataError = 12, "PERM_DATA_ERROR";
        /// The other drive of a push does not answer.
        RemoteConnectionError = 13, "REMOTE_CONNECTION_ERROR";
        /// The drive is full.
        NoSpace = 14, "NO_SPACE";
        /// The identity's HMAC algorithm is unknown.
        NoSuchHmacAlgorithm = 15, "NO_SUCH_HMAC_ALGORITHM";
        /// The command breaks a rule or a limit.
        InvalidRequest = 16, "INVALID_REQUEST";
        /// An operation within the command failed.
        NestedOperationErrors = 17, "NESTED_OPERATION_ERRORS";
        /// The drive is locked by a PIN.
        DeviceLocked = 18, "DEVICE_LOCKED";
        /// The drive is not locked.
        DeviceAlreadyUnlocked = 19, "DEVICE_ALREADY_UNLOCKED";
        /// The drive is about to close the connection.
        ConnectionTerminated = 20, "CONNECTION_TERMINATED";
        /// The batch failed or does not exist.
        InvalidBatch = 21, "INVALID_BATCH";
        /// The drive sleeps.
        Hibernate = 22, "HIBERNATE";
        /// The drive shuts down.
        Shutdown = 23, "SHUTDOWN";
        /// The program cannot run.
        InvalidExecute = 24, "INVALID_EXECUTE";
        /// A program has ended; in notifications only.
        ExecuteComplete = 25, "EXECUTE_COMPLETE";
    }
}

kinds! {
    /// When a write is acknowledged.
    Synchronization {
        /// When it is durable.
        WriteThrough = 1, "WRITETHROUGH";
        /// When it is visible.
        WriteBack = 2, "WRITEBACK";
        /// When it and all earlier writes are durable.
        Flush = 3, "FLUSH";
    }
}

kinds! {
    /// What a tag is computed with. Drives store it and do not check it.
    Algorithm {
        /// SHA-1.
        Sha1 = 1, "SHA1";
        /// SHA-2.
        Sha2 = 2, "SHA2";
        /// SHA-3.
        Sha3 = 3, "SHA3";
        /// CRC-32C. Protocol 3.0.6 calls this number CRC32.
        Crc32c = 4, "CRC32C";
        /// CRC-64.
        Crc64 = 5, "CRC64";
        /// CRC-32, since protocol 3.0.7.
        Crc32 = 6, "CRC32";
    }
}

kinds! {
    /// How the HMACs of an identity are made.
    HmacAlgorithm {
        /// HMAC with SHA-1.
        HmacSha1 = 1, "HmacSHA1";
    }
}

kinds! {
    /// What a scope allows.
    Permission {
        /// Read values and versions.
        Read = 0, "READ";
        /// Put.
        Write = 1, "WRITE";
        /// Delete.
        Delete = 2, "DELETE";
        /// List keys.
        Range = 3, "RANGE";
        /// Set the cluster version, load firmware.
        Setup = 4, "SETUP";
        /// Push values to other drives.
        PeerToPeer = 5, "P2POP";
        /// Read logs.
        GetLog = 7, "GETLOG";
        /// Set identities and PINs.
        Security = 8, "SECURITY";
        /// Set the power level.
        PowerManagement = 9, "POWER_MANAGEMENT";
        /// Run and manage programs.
        ManageApplet = 10, "MANAGE_APPLET";
    }
}

kinds! {
    /// A part of a drive's log.
    LogType {
        /// How busy the parts of the drive are.
        Utilizations = 0, "UTILIZATIONS";
        /// How warm they are.
        Temperatures = 1, "TEMPERATURES";
        /// How large and how full the drive is.
        Capacities = 2, "CAPACITIES";
        /// Who made the drive, and where it listens.
        Configuration = 3, "CONFIGURATION";
        /// How many commands of each type it served.
        Statistics = 4, "STATISTICS";
        /// The drive's own log, as text.
        Messages = 5, "MESSAGES";
        /// What the drive accepts.
        Limits = 6, "LIMITS";
        /// A log with a name, which the vendor defines.
        Device = 7, "DEVICE";
    }
}

kinds! {
    /// What a PIN operation does.
    PinOpType {
        /// Unlocks the drive.
        Unlock = 1, "UNLOCK_PINOP";
        /// Locks the drive.
        Lock = 2, "LOCK_PINOP";
        /// Deletes all data and settings.
        Erase = 3, "ERASE_PINOP";
        /// Deletes all data and settings so that the medium does not hold them any more.
        SecureErase = 4, "SECURE_ERASE_PINOP";
    }
}

kinds! {
    /// What a setup sets, since protocol 4.0.
    SetupOpType {
        /// Loads the firmware in the frame's value.
        Firmware = 1, "FIRMWARE_SETUPOP";
        /// Sets the cluster version.
        ClusterVersion = 2, "CLUSTER_VERSION_SETUPOP";
    }
}

kinds! {
    /// What a security command sets, since protocol 4.0.
    SecurityOpType {
        /// Identities.
        Acl = 1, "ACL_SECURITYOP";
        /// The PIN that permits to erase.
        ErasePin = 2, "ERASE_PIN_SECURITYOP";
        /// The PIN that permits to lock and unlock.
        LockPin = 3, "LOCK_PIN_SECURITYOP";
    }
}

kinds! {
    /// How much power a drive uses.
    PowerLevel {
        /// It works.
        Operational = 1, "OPERATIONAL";
        /// It sleeps, and answers little.
        Hibernate = 2, "HIBERNATE";
        /// It shuts down.
        Shutdown = 3, "SHUTDOWN";
        /// It has failed.
        Fail = 4, "FAIL";
    }
}

kinds! {
    /// What a command about programs does.
    AppletType {
        /// Runs a program.
        Execute = 1, "EXECUTE";
        /// Runs a program under a debugger.
        Debug = 2, "DEBUG";
        /// Ends a program that runs.
        Abort = 3, "ABORT";
        /// Lists programs that run.
        GetProcessStatus = 4, "GET_PROCESS_STATUS";
        /// Prepares a program.
        Install = 5, "INSTALL";
        /// Replaces an installed program.
        Update = 6, "UPDATE";
        /// Removes an installed program.
        Uninstall = 7, "UNINSTALL";
        /// Runs a program whenever a key of a range changes.
        Watch = 8, "WATCH";
        /// Ends a watch.
        Unwatch = 9, "UNWATCH";
    }
}

kinds! {
    /// What a program is written for.
    Language {
        /// The drive's own processor: an ELF executable.
        Native = 1, "VENDOR_DEPENDENT";
        /// LLVM bitcode.
        Llvm = 2, "LLVM_KINETIC_BITCODE";
        /// Java bytecode.
        Java = 3, "JAVA_BYTECODE";
        /// eBPF.
        Ebpf = 4, "EBPF";
        /// A sub-plan for the drive's query engine. The protocol has no number for it; this one is Skytether's.
        Substrait = 100, "SUBSTRAIT";
    }
}

kinds! {
    /// When an execution is answered.
    AcknowledgeMode {
        /// Before the program starts.
        OnReceipt = 1, "ON_RECEIPT";
        /// When the program has ended.
        OnCompletion = 2, "ON_COMPLETION";
    }
}

/// How urgent a command is: 1 (least) to 9.
///
/// A number and no enumeration: versions of the protocol give the same names to different numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// 1.
    pub const LOWEST: Priority = Priority(1);
    /// 5, that of a command that names none.
    pub const NORMAL: Priority = Priority(5);
    /// 9.
    pub const HIGHEST: Priority = Priority(9);

    /// The priority of that number; none outside of 1 to 9.
    #[must_use]
    pub fn new(number: i32) -> Option<Priority> {
        u8::try_from(number).ok().filter(|number| (1..=9).contains(number)).map(Priority)
    }

    /// The priority of a field: [`Priority::NORMAL`] if it is absent or outside of 1 to 9.
    #[must_use]
    pub fn of(field: Option<i32>) -> Priority {
        field.and_then(Priority::new).unwrap_or(Priority::NORMAL)
    }

    /// The number, 1 to 9.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

impl From<Priority> for i32 {
    fn from(priority: Priority) -> i32 {
        i32::from(priority.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_one_below_its_request() {
        assert_eq!(MessageType::Get.response(), Some(MessageType::GetResponse));
        assert_eq!(MessageType::ManageApplet.response(), Some(MessageType::ManageAppletResponse));
        assert_eq!(MessageType::Invalid.response(), None);
        for of in MessageType::ALL {
            let response = of.response();
            assert_eq!(response.is_some(), of.is_request(), "{of}");
            if let Some(response) = response {
                assert_eq!(i32::from(response) + 1, i32::from(*of));
                assert_eq!(response.name(), format!("{}_RESPONSE", of.name()));
                assert_eq!(response.response(), None);
            }
        }
        assert_eq!(MessageType::ALL.iter().filter(|of| of.is_request()).count() * 2, MessageType::ALL.len());
    }

    #[test]
    fn status_codes_have_no_gap() {
        let numbers: Vec<i32> = StatusCode::ALL.iter().map(|code| i32::from(*code)).collect();
        assert_eq!(numbers, (0..=25).collect::<Vec<_>>());
        assert_eq!(StatusCode::default(), StatusCode::Invalid);
        assert_eq!(StatusCode::VersionMismatch.to_string(), "VERSION_MISMATCH");
    }

    #[test]
    fn priority_is_a_number_from_1_to_9() {
        assert_eq!((Priority::of(None), Priority::of(Some(0)), Priority::of(Some(10))), (Priority::NORMAL, Priority::NORMAL, Priority::NORMAL));
        assert_eq!((Priority::of(Some(1)), Priority::of(Some(9))), (Priority::LOWEST, Priority::HIGHEST));
        assert!(Priority::LOWEST < Priority::NORMAL && Priority::NORMAL < Priority::HIGHEST);
        assert_eq!((Priority::new(-1), Priority::new(257), Priority::new(3).map(Priority::number)), (None, None, Some(3)));
    }
}
