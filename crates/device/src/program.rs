//! What a drive can run: programs of several kinds. A host's sub-plans are one kind.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

/// A kind of program. A drive names those that it runs in its [`Capabilities`](crate::Capabilities).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProgramKind {
    /// [`Program::Substrait`].
    Substrait,
    /// [`Program::Native`].
    Native,
}

impl std::fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Substrait => "substrait",
            Self::Native => "native",
        })
    }
}

/// A program. Its inputs are the rest of the [`SubPlan`](crate::SubPlan) that it travels in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Program {
    /// A Substrait `Plan` message. Tables are named `[domain, dataset, table]`.
    Substrait(Bytes),
    /// A program that is built into the drive.
    Native {
        /// By which the drive knows it.
        name: String,
        /// In a form that the program defines.
        arguments: Bytes,
    },
}

/// No plan: what a ticket's header is read into, before the program's bytes.
impl Default for Program {
    fn default() -> Self {
        Self::Substrait(Bytes::new())
    }
}

impl Program {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ProgramKind {
        match self {
            Self::Substrait(_) => ProgramKind::Substrait,
            Self::Native { .. } => ProgramKind::Native,
        }
    }

    /// The bytes of the plan, or of the arguments.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Substrait(plan) => plan,
            Self::Native { arguments, .. } => arguments,
        }
    }

    /// The plan, for an engine that runs nothing else.
    ///
    /// # Errors
    /// Unsupported for a program of another kind.
    pub fn substrait(&self) -> Result<&Bytes> {
        match self {
            Self::Substrait(plan) => Ok(plan),
            other => Err(Error::unsupported(format!("a program of kind {}: this engine runs Substrait plans; ask a CSE that runs that kind", other.kind()))),
        }
    }
}
