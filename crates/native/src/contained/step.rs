//! What is done to contain a program. A child names the step that failed by its number.

/// The steps, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    Plan,
    NameSpaces,
    Identity,
    Session,
    Groups,
    Users,
    Files,
    HostName,
    Privileges,
    Landlock,
    Capabilities,
    Second,
    Descriptors,
    Limits,
    Filter,
    /// The program itself: the step that is not about containment.
    Execute,
    /// The first process.
    First,
}

impl Step {
    /// All of them.
    const ALL: [Step; 17] = [
        Step::Plan,
        Step::NameSpaces,
        Step::Identity,
        Step::Session,
        Step::Groups,
        Step::Users,
        Step::Files,
        Step::HostName,
        Step::Privileges,
        Step::Landlock,
        Step::Capabilities,
        Step::Second,
        Step::Descriptors,
        Step::Limits,
        Step::Filter,
        Step::Execute,
        Step::First,
    ];

    /// The step of that number.
    pub(super) fn of(number: u8) -> Option<Step> {
        Self::ALL.into_iter().find(|step| *step as u8 == number)
    }

    /// The step's name, as the object of a sentence.
    pub(super) fn name(self) -> &'static str {
        match self {
            Step::Plan => "pipes, memory files, or a Landlock rule set",
            Step::NameSpaces => "new name spaces (clone with CLONE_NEWUSER and others; see user.max_user_namespaces)",
            Step::Identity => "another user in the new name space (writing uid_map and gid_map)",
            Step::Session => "a new session",
            Step::Groups => "to leave groups (setgroups, setresgid)",
            Step::Users => "to become another user (setresuid)",
            Step::Files => "an empty file system (mount, pivot_root)",
            Step::HostName => "another host name",
            Step::Privileges => "to give up new privileges (PR_SET_NO_NEW_PRIVS)",
            Step::Landlock => "Landlock (landlock_restrict_self)",
            Step::Capabilities => "to drop capabilities",
            Step::Second => "a second process",
            Step::Descriptors => "to pass and close file descriptors",
            Step::Limits => "limits of resources (setrlimit)",
            Step::Filter => "a filter of system calls (seccomp)",
            Step::Execute => "to execute the program",
            Step::First => "to execute the first process",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_the_numbers_of_their_order() {
        for (n, step) in Step::ALL.into_iter().enumerate() {
            assert_eq!((step as usize, Step::of(step as u8)), (n, Some(step)));
        }
        assert_eq!(Step::of(17), None);
    }
}
