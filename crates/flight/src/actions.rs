//! Actions that clients ask of a host, as types: see [`actions`](macro@skytether_flight_drive::actions).
//!
//! An action is the host's own ([`HostAction`]), or concerns the storage of one of its drives (`drive/<n>/...`, a
//! [`StorageAction`]). Flight SQL has its own actions, in `flight-sql`.

use arrow_flight::ActionType;
use bytes::Bytes;
use skytether_api::resize_report::ResizeOptions;
use skytether_api::scrub_report::{RepairOptions, ScrubOptions};
use skytether_api::statement::MAX_REQUEST;
use skytether_catalog::indexes::{self, NewIndex, OldIndex};
use skytether_common::{Error, Result};
use skytether_flight_drive::actions;
use skytether_flight_drive::actions::{Row, json, unknown};
use skytether_flight_drive::frames::{KeyRequest, ListRequest, RangesRequest};

use crate::protocol::{Change, CreateToken, NameRequest, QueryRequest, RevokeToken, SnapshotRequest, TableRequest, change};

actions! {
    /// An action of a host.
    pub(crate) enum HostAction {
        Info = "info", Once, "who this host is";
        List = "list", Once, "the data sets";
        Listing = "listing", Once, "the data sets that can be listed, and drives that don't tell theirs";
        Describe(NameRequest as json) = "describe", Once, "one data set's root record";
        Schema(TableRequest as json) = "schema", Once, "a table's columns";
        Drop(NameRequest as json) = "drop", Once, "removes a data set";
        Status = "status", Once, "how the drives are";
        CreateIndex(NewIndex as json) = "create_index", Once, "has the drives build an index";
        ListIndexes(indexes::ListIndexes as json) = "list_indexes", Once, "the indexes, and how far they are";
        DropIndex(OldIndex as json) = "drop_index", Once, "removes an index";
        Explain(QueryRequest as json) = "explain", Once, "a query's cut as text";
        Explanation(QueryRequest as json) = "explanation", Once, "a query's cut";
        Prepare(QueryRequest as json) = "prepare", Once, "the columns of a query's result, and its parameters";
        QuerySchema(QueryRequest as json) = "query_schema", Once, "the columns of a query's result, for values of its parameters";
        CreateToken(CreateToken as json) = "create_token", Once, "makes a token";
        ListTokens = "list_tokens", Once, "the tokens, without their texts";
        RevokeToken(RevokeToken as json) = "revoke_token", Once, "takes a token back";
        ListVolumes = "list_volumes", Once, "the volumes that this host serves, with their snapshots";
        SnapshotVolume(SnapshotRequest as json) = "snapshot_volume", Once, "keeps the present content of a volume";
        RemoveSnapshot(SnapshotRequest as json) = "remove_snapshot", Once, "removes a snapshot of a volume";
        Repair(RepairOptions as json) = "repair", Progress, "rebuilds on blank drives what was on the lost ones whose place they take";
        Resize(ResizeOptions as json) = "resize", Progress, "takes drives into the fleet, empties those that leave, and moves slices so that all have as much";
        Scrub(ScrubOptions as json) = "scrub", Progress, "has the drives verify what they hold, and mends it";
    }
}

actions! {
    /// An action on the storage of a drive, through its host.
    pub(crate) enum StorageAction {
        Apply(Change as change) = "apply", Once, "drive n of the list: a batch of changes, atomically";
        Get(KeyRequest as json) = "get", Once, "drive n of the list: a value";
        GetRanges(RangesRequest as json) = "get_ranges", Once, "drive n of the list: parts of a value";
        Stat(KeyRequest as json) = "stat", Once, "drive n of the list: what is known of a key";
        List(ListRequest as json) = "list", Once, "drive n of the list: keys by prefix";
        Usage = "usage", Once, "drive n of the list: how much is stored";
    }
}

/// An action of either table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Host(HostAction),
    /// The storage of the drive at this place of the host's list.
    Drive(usize, StorageAction),
}

impl Call {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Host(action) => action.name().to_owned(),
            Self::Drive(n, action) => format!("drive/{n}/{}", action.name()),
        }
    }

    pub(crate) fn encode(&self) -> Result<Bytes> {
        match self {
            Self::Host(action) => action.encode(),
            Self::Drive(_, action) => action.encode(),
        }
    }

    /// The call of this name.
    ///
    /// # Errors
    /// Unsupported for a name of neither table; Invalid for a body of another form or more than [`MAX_REQUEST`] bytes.
    pub(crate) fn parse(name: &str, body: &Bytes) -> Result<Self> {
        let not_known = |table| unknown("a host", name, table);
        if let Some(rest) = name.strip_prefix("drive/") {
            let (n, what) = rest.split_once('/').ok_or_else(|| not_known(HostAction::TABLE))?;
            let n = n.parse().map_err(|_| Error::invalid(format!("there is no drive {n}: write its place in the host's list")))?;
            return Ok(Self::Drive(n, StorageAction::parse(what, body)?.ok_or_else(|| not_known(StorageAction::TABLE))?));
        }
        if body.len() > MAX_REQUEST {
            return Err(Error::invalid(format!("a request of {} bytes is too long: at most {MAX_REQUEST}", body.len())));
        }
        Ok(Self::Host(HostAction::parse(name, body)?.ok_or_else(|| not_known(HostAction::TABLE))?))
    }

    /// All actions as `ListActions` shows them.
    pub(crate) fn list() -> impl Iterator<Item = ActionType> {
        let own = HostAction::TABLE.iter().map(|row| row.listed(row.name.to_owned()));
        own.chain(StorageAction::TABLE.iter().map(|row: &Row| row.listed(format!("drive/<n>/{}", row.name))))
    }
}

impl From<HostAction> for Call {
    fn from(action: HostAction) -> Self {
        Self::Host(action)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use skytether_api::statement::{QueryOptions, Statement};
    use skytether_api::values::Values;
    use skytether_common::{Key, Kind};
    use skytether_store::{Expect, Op};
    use uuid::Uuid;

    use super::*;

    const SQL: &str = r#"{"sql":"SELECT 1","options":{"cut":"adaptive","batch_rows":8192},"analyze":false}"#;

    fn samples() -> Vec<(Call, String)> {
        let key = || Key::new("a/b").unwrap();
        let name = || NameRequest { name: "a.b".parse().unwrap() };
        let query = || QueryRequest::new(&Statement::from("SELECT 1"), &Values::default(), &QueryOptions::default(), false).unwrap();
        let snapshot = || SnapshotRequest { volume: "disk".into(), snapshot: "monday".into() };
        let own = [
            (HostAction::Info, ""),
            (HostAction::List, ""),
            (HostAction::Listing, ""),
            (HostAction::Describe(name()), r#"{"name":"a.b"}"#),
            (HostAction::Schema(TableRequest { table: "a.b.c".into() }), r#"{"table":"a.b.c"}"#),
            (HostAction::Drop(name()), r#"{"name":"a.b"}"#),
            (HostAction::Status, ""),
            (HostAction::CreateIndex(json::decode("", &CREATE_INDEX.into()).unwrap()), CREATE_INDEX),
            (HostAction::ListIndexes(indexes::ListIndexes { dataset: None }), r#"{"dataset":null}"#),
            (HostAction::DropIndex(json::decode("", &DROP_INDEX.into()).unwrap()), DROP_INDEX),
            (HostAction::Explain(query()), SQL),
            (HostAction::Explanation(query()), SQL),
            (HostAction::Prepare(query()), SQL),
            (HostAction::QuerySchema(query()), SQL),
            (
                HostAction::CreateToken(CreateToken { name: "ci".into(), grants: vec!["read:a".into()], lifetime: Some(60) }),
                r#"{"name":"ci","grants":["read:a"],"lifetime":60}"#,
            ),
            (HostAction::ListTokens, ""),
            (HostAction::RevokeToken(RevokeToken { name: "ci".into() }), r#"{"name":"ci"}"#),
            (HostAction::ListVolumes, ""),
            (HostAction::SnapshotVolume(snapshot()), r#"{"volume":"disk","snapshot":"monday"}"#),
            (HostAction::RemoveSnapshot(snapshot()), r#"{"volume":"disk","snapshot":"monday"}"#),
            (HostAction::Repair(RepairOptions::default()), r#"{"drives":[],"address":null,"bytes_per_s":null}"#),
            (HostAction::Resize(ResizeOptions::default()), r#"{"count":0,"addresses":[],"retire":[],"bytes_per_s":null}"#),
            (HostAction::Scrub(ScrubOptions::default()), r#"{"datasets":[],"bytes_per_s":null,"check":false}"#),
        ];
        let change = Change { instance: Uuid::from_bytes(*b"0123456789abcdef"), batch: vec![Op::Delete { key: key(), expect: Expect::Any }] };
        let drive = [
            (StorageAction::Apply(change), "0123456789abcdef,\0\0\0[{\"op\":\"delete\",\"key\":\"a/b\",\"expect\":\"any\"}]"),
            (StorageAction::Get(KeyRequest { key: key() }), r#"{"key":"a/b"}"#),
            (
                StorageAction::GetRanges(RangesRequest { key: key(), ranges: vec![1..3, 5..6] }),
                r#"{"key":"a/b","ranges":[{"start":1,"end":3},{"start":5,"end":6}]}"#,
            ),
            (StorageAction::Stat(KeyRequest { key: key() }), r#"{"key":"a/b"}"#),
            (StorageAction::List(ListRequest { prefix: "a".into(), after: None, limit: 7 }), r#"{"prefix":"a","after":null,"limit":7}"#),
            (StorageAction::Usage, ""),
        ];
        let own = own.into_iter().map(|(action, body)| (Call::Host(action), body.to_owned()));
        own.chain(drive.into_iter().map(|(action, body)| (Call::Drive(3, action), body.to_owned()))).collect()
    }

    const CREATE_INDEX: &str = r#"{"dataset":"a.b","table":"data","name":null,"columns":["x"],"include":[]}"#;
    const DROP_INDEX: &str = r#"{"dataset":"a.b","name":"x"}"#;

    #[test]
    fn every_listed_action_survives_its_wire_form() {
        let samples = samples();
        for (call, bytes) in &samples {
            let body = call.encode().unwrap();
            assert_eq!(body, bytes.as_bytes(), "{}", call.name());
            assert_eq!(Call::parse(&call.name(), &body).unwrap(), *call);
        }
        let names: BTreeSet<String> = samples.iter().map(|(call, _)| call.name().replace("/3/", "/<n>/")).collect();
        let listed: Vec<String> = Call::list().map(|row| row.r#type).collect();
        assert_eq!(names, listed.iter().cloned().collect());
        assert_eq!(listed.len(), samples.len(), "a name occurs once");
        assert!(skytether_flight_sql::service::ACTIONS.iter().all(|(name, _)| !listed.iter().any(|own| own == name)), "Flight SQL has other names");
        assert!(listed.contains(&"explanation".to_owned()) && listed.contains(&"drive/<n>/apply".to_owned()));
        assert!(Call::list().all(|row| row.description.ends_with("tells how far it is") == ["repair", "resize", "scrub"].contains(&row.r#type.as_str())));
    }

    #[test]
    fn unknown_actions_and_places_are_refused_by_name() {
        for (name, known) in [("greet", "query_schema"), ("drive/0/greet", "get_ranges"), ("drive/0", "query_schema"), ("Info", "info"), ("", "query_schema")] {
            let error = Call::parse(name, &Bytes::new()).unwrap_err();
            assert_eq!(error.kind(), Kind::Unsupported, "{name}");
            assert!(error.to_string().contains(&format!("{name:?}")) && error.to_string().contains(known), "{error}");
        }
        for place in ["drive/x/usage", "drive/-1/usage", "drive//usage"] {
            assert_eq!(Call::parse(place, &Bytes::new()).unwrap_err().kind(), Kind::Invalid, "{place}");
        }
        let error = Call::parse("drop", &Bytes::from_static(b"{}")).unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains("`drop`"), "{error}");
    }
}
