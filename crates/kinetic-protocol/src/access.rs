//! What an identity may do: its scopes, and which sets of identities a drive accepts.
//!
//! One scope that permits an operation is enough. An identity without scopes may do nothing.

use crate::kinds::{HmacAlgorithm, Permission, Priority, StatusCode};
use crate::log::Limits;
use crate::security::{Acl, Scope};
use crate::status::Refusal;

/// What an operation touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// The whole drive: logs, setup, security, pushes, power. Only scopes without a value hold for it.
    Drive,
    /// A key.
    Key(&'a [u8]),
    /// All keys from the first to the second; each must be in a scope. An empty second key is beyond all keys.
    ///
    /// Keys between the two may be outside of all scopes: check each key that is found as well.
    Keys(&'a [u8], &'a [u8]),
}

/// Whether an identity may do this, over a connection with or without TLS.
#[must_use]
pub fn permits(acl: &Acl, permission: Permission, target: Target<'_>, tls: bool) -> bool {
    let any = |covers: &dyn Fn(&Scope) -> bool| acl.scope.iter().any(|scope| grants(scope, permission, tls) && covers(scope));
    match target {
        Target::Drive => any(&|scope| scope.value().is_empty()),
        Target::Key(key) => any(&|scope| has(scope, key)),
        Target::Keys(first, []) => any(&|scope| scope.value().is_empty() && has(scope, first)),
        // The Java client's suite has ends in different scopes.
        Target::Keys(first, last) => any(&|scope| has(scope, first)) && any(&|scope| has(scope, last)),
    }
}

/// Whether an identity may send commands of this priority.
#[must_use]
pub fn permits_priority(acl: &Acl, priority: Priority) -> bool {
    // Identities with another number are refused when they are set.
    acl.max_priority.is_none_or(|highest| Priority::new(highest).is_some_and(|highest| priority <= highest))
}

fn grants(scope: &Scope, permission: Permission, tls: bool) -> bool {
    (tls || !scope.tls_required()) && permission != Permission::Invalid && scope.permission().any(|granted| granted == permission)
}

/// Whether the key has the scope's value at its offset.
fn has(scope: &Scope, key: &[u8]) -> bool {
    let offset = usize::try_from(scope.offset()).ok();
    offset.and_then(|offset| key.get(offset..)).is_some_and(|rest| rest.starts_with(scope.value()))
}

/// Checks the identities of a command. It is refused whole if one of them is wrong.
///
/// # Errors
/// - [`StatusCode::NoSuchHmacAlgorithm`] if an algorithm is absent or unknown.
/// - [`StatusCode::InvalidRequest`] if an identity has no number, no key, no scope, a scope without permissions, an
///   unknown permission, a negative offset, or a highest priority outside of 1 to 9; or if there are more identities
///   than the limit.
pub fn check_identities(acls: &[Acl], limits: &Limits) -> Result<(), Refusal> {
    limits.check_identities(acls.len() as u64)?;
    acls.iter().try_for_each(check_identity)
}

fn check_identity(acl: &Acl) -> Result<(), Refusal> {
    let Some(identity) = acl.identity else { return Err(Refusal::invalid("an identity has no number")) };
    if acl.hmac_algorithm() != HmacAlgorithm::HmacSha1 {
        let text = format!("identity {identity} has the HMAC algorithm {:?}; use 1 (HmacSHA1)", acl.hmac_algorithm);
        return Err(Refusal::new(StatusCode::NoSuchHmacAlgorithm, text));
    }
    let wrong = |what: &str| Err(Refusal::invalid(format!("identity {identity} has {what}")));
    if acl.key().is_empty() {
        return wrong("no key, so that anybody could sign for it");
    }
    if acl.max_priority.is_some_and(|highest| Priority::new(highest).is_none()) {
        return wrong("a highest priority outside of 1 to 9");
    }
    if acl.scope.is_empty() {
        return wrong("no scope, and so no permission");
    }
    for scope in &acl.scope {
        if scope.offset() < 0 {
            return wrong("a scope with a negative offset");
        }
        if scope.permission.is_empty() {
            return wrong("a scope without a permission");
        }
        if scope.permission().count() != scope.permission.len() || scope.permission().any(|permission| permission == Permission::Invalid) {
            return wrong("a scope with an unknown permission");
        }
    }
    Ok(())
}

/// The identity of a new drive: number 1, key `asdfasdf`, all permissions on all keys.
#[must_use]
pub fn default_identity() -> Acl {
    let scope = Scope { permission: Permission::ALL.iter().map(|permission| i32::from(*permission)).collect(), ..Scope::default() };
    Acl {
        identity: Some(1),
        key: Some(bytes::Bytes::from_static(b"asdfasdf")),
        hmac_algorithm: Some(HmacAlgorithm::HmacSha1.into()),
        scope: vec![scope],
        max_priority: Some(Priority::HIGHEST.into()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn scope(offset: i64, value: &'static [u8], permission: &[Permission]) -> Scope {
        let permission = permission.iter().map(|permission| i32::from(*permission)).collect();
        Scope { offset: Some(offset), value: Some(Bytes::from_static(value)), permission, tls_required: None }
    }

    fn acl(scope: Vec<Scope>) -> Acl {
        Acl { scope, ..default_identity() }
    }

    #[test]
    fn scope_matches_its_value_at_its_offset() {
        let acl = acl(vec![scope(2, b"ab", &[Permission::Read])]);
        let read = |key: &[u8]| permits(&acl, Permission::Read, Target::Key(key), false);
        for key in [&b"xxab"[..], b"xxabc", b"\0\xffab"] {
            assert!(read(key), "{key:?}");
        }
        for key in [&b""[..], b"x", b"xx", b"xxa", b"abab"[1..].as_ref(), b"abxx", b"xxxab"] {
            assert!(!read(key), "{key:?}");
        }
        assert!(!permits(&acl, Permission::Write, Target::Key(b"xxab"), false));
    }

    #[test]
    fn one_matching_scope_is_enough() {
        let acl = acl(vec![scope(0, b"longer than the key", &[Permission::Read]), scope(0, b"k", &[Permission::Write]), scope(0, b"ke", &[Permission::Read])]);
        assert!(permits(&acl, Permission::Read, Target::Key(b"key"), false) && permits(&acl, Permission::Write, Target::Key(b"key"), false));
        // A permission of one scope does not reach into another.
        assert!(!permits(&acl, Permission::Read, Target::Key(b"kz"), false));
    }

    #[test]
    fn drive_needs_a_scope_without_a_value() {
        let narrow = acl(vec![scope(0, b"a", &[Permission::GetLog, Permission::Security])]);
        assert!(!permits(&narrow, Permission::GetLog, Target::Drive, true));
        let wide = acl(vec![scope(0, b"a", &[Permission::Read]), scope(0, b"", &[Permission::GetLog])]);
        assert!(permits(&wide, Permission::GetLog, Target::Drive, false) && !permits(&wide, Permission::Read, Target::Drive, false));
        assert!(permits(&default_identity(), Permission::ManageApplet, Target::Drive, false));
    }

    #[test]
    fn each_end_of_a_range_is_in_a_scope() {
        let acl = acl(vec![scope(0, b"a", &[Permission::Range]), scope(0, b"b", &[Permission::Range])]);
        let range = |first: &'static [u8], last: &'static [u8]| permits(&acl, Permission::Range, Target::Keys(first, last), false);
        assert!(range(b"a", b"az") && range(b"b1", b"b2") && range(b"a", b"b"));
        assert!(!range(b"", b"a") && !range(b"a", b"c"));
        // Without an upper end only a scope of all keys is wide enough.
        assert!(!range(b"a", b"") && permits(&default_identity(), Permission::Range, Target::Keys(b"a", b""), false));
    }

    #[test]
    fn tls_scope_holds_over_tls_only() {
        let acl = acl(vec![Scope { tls_required: Some(true), ..scope(0, b"", &[Permission::Read]) }]);
        for target in [Target::Key(b"k"), Target::Drive, Target::Keys(b"a", b"b")] {
            assert!(permits(&acl, Permission::Read, target, true) && !permits(&acl, Permission::Read, target, false), "{target:?}");
        }
    }

    #[test]
    fn odd_scopes_permit_nothing() {
        let odd = [scope(-1, b"", &[Permission::Read]), scope(i64::MIN, b"", &[Permission::Read]), scope(i64::MAX, b"", &[Permission::Read])];
        let unknown = Scope { permission: vec![-1, 6, 99], ..scope(0, b"", &[]) };
        for scope in odd.into_iter().chain([unknown]) {
            let acl = acl(vec![scope]);
            assert!(!permits(&acl, Permission::Read, Target::Key(b"key"), true), "{acl:?}");
            assert!(!permits(&acl, Permission::Invalid, Target::Key(b"key"), true), "{acl:?}");
        }
        assert!(!permits(&acl(vec![]), Permission::Read, Target::Key(b"key"), true));
    }

    #[test]
    fn priority_is_bounded_by_the_identity() {
        let acl = |max_priority| Acl { max_priority, ..default_identity() };
        assert!(permits_priority(&acl(Some(5)), Priority::NORMAL) && !permits_priority(&acl(Some(4)), Priority::NORMAL));
        assert!(permits_priority(&acl(None), Priority::HIGHEST) && !permits_priority(&acl(Some(99)), Priority::LOWEST));
    }

    #[test]
    fn set_with_one_wrong_identity_is_refused_whole() {
        let code = |wrong: Acl| check_identities(&[default_identity(), wrong], &Limits::DRIVE).unwrap_err().code;
        let all = &[Permission::Read][..];
        assert_eq!(check_identities(&[default_identity(), acl(vec![scope(3, b"x", all)])], &Limits::DRIVE), Ok(()));
        assert_eq!(code(acl(vec![scope(0, b"", all), scope(0, b"", &[])])), StatusCode::InvalidRequest);
        assert_eq!(code(acl(vec![])), StatusCode::InvalidRequest);
        assert_eq!(code(acl(vec![scope(-1, b"", all)])), StatusCode::InvalidRequest);
        for number in [-1, 6, 11] {
            assert_eq!(code(acl(vec![Scope { permission: vec![0, number], ..scope(0, b"", &[]) }])), StatusCode::InvalidRequest, "{number}");
        }
        assert_eq!(code(Acl { identity: None, ..default_identity() }), StatusCode::InvalidRequest);
        for key in [None, Some(Bytes::new())] {
            assert_eq!(code(Acl { key, ..default_identity() }), StatusCode::InvalidRequest);
        }
        for algorithm in [None, Some(-1), Some(0), Some(2)] {
            assert_eq!(code(Acl { hmac_algorithm: algorithm, ..default_identity() }), StatusCode::NoSuchHmacAlgorithm, "{algorithm:?}");
        }
    }

    #[test]
    fn identities_are_counted() {
        let acls = vec![default_identity(); 1001];
        assert_eq!(check_identities(&acls, &Limits::DRIVE).unwrap_err().code, StatusCode::InvalidRequest);
        assert_eq!(check_identities(&acls[..1000], &Limits::DRIVE), Ok(()));
        assert_eq!(check_identities(&acls, &Limits::JAVA), Ok(()));
    }
}
