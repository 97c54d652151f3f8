//! Kept results: what a CSE delivered for a sub-plan and keeps as a value, to answer the same sub-plan again.
//!
//! A kept result is the value of a partition of the table `kept/<id>/<table>`: it has the generation and slot of a
//! partition that it was made from, and so is visible, replaced and collected with it. The id follows from all that
//! the result depends on: the program, the partitions that the sub-plan may see (with their generations) and the
//! version of the software. A kept result is never brought up to date: it is found by its id, or not at all.
//!
//! See also `docs/internals/kept-results.md`.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use skytether_common::{Error, Key, PartitionName, Result};

use crate::program::Program;
use crate::subplan::SubPlan;

/// The tables of kept results begin with this.
pub const KEPT: &str = "kept/";

/// Counts up where the meaning of a kept result changes: its bytes, or what operators put into a state.
const FORMAT: u32 = 2;

/// The longest header, in bytes.
pub const MAX_HEADER: usize = 1 << 16;

/// The longest program that a header holds, in bytes. Longer ones name cells one by one, and are seldom asked again.
const MAX_PROGRAM: usize = 24 << 10;

/// The partition that holds the kept result `id` of a partition.
#[must_use]
pub fn partition(of: &PartitionName, id: &str) -> PartitionName {
    PartitionName { table: format!("{KEPT}{id}/{}", of.table), ..of.clone() }
}

/// The partition that a kept result lies with; `None` for partitions of other tables.
#[must_use]
pub fn of_partition(kept: &PartitionName) -> Option<PartitionName> {
    let (id, table) = kept.table.strip_prefix(KEPT)?.split_once('/')?;
    let is_id = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| PartitionName { table: table.to_owned(), ..kept.clone() })
}

/// What identifies the result of a sub-plan, and what it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// 32 hexadecimal digits.
    pub id: String,
    /// The partitions that the sub-plan may see, in the order of their keys.
    pub partitions: Vec<PartitionName>,
    /// The program, by which the result can be made again of other partitions. None where it is long, or reads several
    /// data sets.
    pub program: Option<Bytes>,
}

impl Identity {
    /// The identity of what `plan` gives. `None` if it should not be kept: the host did not ask for it, or it depends
    /// on data that travel with the plan.
    ///
    /// # Errors
    /// Invalid where a name makes a key too long.
    pub fn of(plan: &SubPlan) -> Result<Option<Self>> {
        let Program::Substrait(program) = &plan.program else { return Ok(None) };
        if !plan.keep || !plan.filters.is_empty() || !plan.tables.is_empty() {
            return Ok(None);
        }
        let mut partitions: Vec<PartitionName> = plan.datasets().flat_map(|(_, partitions)| partitions.values().cloned()).collect();
        partitions.sort_by_cached_key(|partition| partition.key().map(String::from).unwrap_or_default());
        if partitions.is_empty() {
            return Ok(None);
        }
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(&FORMAT.to_le_bytes());
        part(env!("CARGO_PKG_VERSION").as_bytes());
        part(plan.rung.as_str().as_bytes());
        for (dataset, tables) in plan.datasets() {
            part(dataset.to_string().as_bytes());
            for (table, partition) in tables {
                part(table.as_bytes());
                part(partition.key()?.as_str().as_bytes());
            }
        }
        part(program);
        let id = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let again = plan.with.is_empty() && program.len() <= MAX_PROGRAM;
        Ok(Some(Self { id, partitions, program: again.then(|| program.clone()) }))
    }

    /// Where its result is kept.
    ///
    /// # Errors
    /// Invalid where the table's name makes the key too long; Internal where there is no partition.
    pub fn key(&self) -> Result<Key> {
        let first = self.partitions.first().ok_or_else(|| Error::internal("a kept result of no partition"))?;
        partition(first, &self.id).key()
    }
}

/// What stands before the rows of a kept result, as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    format: u32,
    /// The identity's id.
    pub id: String,
    /// The keys of the partitions that it was made from.
    pub made_from: Vec<Key>,
    /// Slices of the tables of the sub-plan.
    pub slices_total: Option<u64>,
    /// The identity's program, in Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<String>,
}

impl Header {
    /// The header of the result with this identity.
    ///
    /// # Errors
    /// Invalid where a name makes a key too long.
    pub fn new(of: &Identity, slices_total: Option<u64>) -> Result<Self> {
        let made_from = of.partitions.iter().map(PartitionName::key).collect::<Result<_>>()?;
        let program = of.program.as_ref().map(|program| BASE64_STANDARD.encode(program));
        Ok(Self { format: FORMAT, id: of.id.clone(), made_from, slices_total, program })
    }

    /// Whether it is that of the result with this identity.
    #[must_use]
    pub fn is_of(&self, of: &Identity) -> bool {
        let keys = of.partitions.iter().map(PartitionName::key).collect::<Result<Vec<_>>>();
        self.id == of.id && keys.is_ok_and(|keys| keys == self.made_from)
    }

    /// The program, if the header has it.
    #[must_use]
    pub fn program(&self) -> Option<Bytes> {
        self.program.as_ref().and_then(|text| BASE64_STANDARD.decode(text).ok()).map(Bytes::from)
    }

    /// The header at the beginning of a value, which may be cut short, and where it ends.
    ///
    /// # Errors
    /// Corrupt for anything else.
    pub fn decode(value: &[u8]) -> Result<(Self, usize)> {
        let torn = || Error::corrupt("this is no kept result");
        let end = value.iter().take(MAX_HEADER).position(|&b| b == b'\n').ok_or_else(torn)?;
        let header: Self = serde_json::from_slice(&value[..end]).map_err(|e| torn().with_source(e))?;
        if header.format == FORMAT { Ok((header, end + 1)) } else { Err(Error::corrupt(format!("a kept result of format {}", header.format))) }
    }
}

/// A kept result.
#[derive(Debug, Clone)]
pub struct Kept {
    /// What it is.
    pub header: Header,
    /// The columns.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
}

impl Kept {
    /// Its bytes: the header's line, then an Arrow IPC stream.
    ///
    /// # Errors
    /// Exhausted where they are more than `limit`; Internal where Arrow does not write them.
    pub fn encode(&self, limit: usize) -> Result<Bytes> {
        let failed = |e: arrow::error::ArrowError| Error::internal("cannot write a kept result").with_source(e);
        let mut bytes = serde_json::to_vec(&self.header).map_err(|e| Error::internal("cannot write a kept result").with_source(e))?;
        bytes.push(b'\n');
        if bytes.len() > MAX_HEADER {
            return Err(Error::exhausted("the header of a kept result is too long"));
        }
        let mut writer = StreamWriter::try_new(bytes, &self.schema).map_err(failed)?;
        for batch in &self.batches {
            writer.write(batch).map_err(failed)?;
            if writer.get_ref().len() > limit {
                return Err(Error::exhausted(format!("a result of more than {limit} bytes is not kept")));
            }
        }
        Ok(writer.into_inner().map_err(failed)?.into())
    }

    /// Reads [`Kept::encode`]'s bytes back, which the store has verified.
    ///
    /// # Errors
    /// Corrupt for anything else.
    pub fn decode(value: &[u8]) -> Result<Self> {
        let torn = |e: arrow::error::ArrowError| Error::corrupt("the rows of a kept result are damaged").with_source(e);
        let (header, start) = Header::decode(value)?;
        let reader = StreamReader::try_new(&value[start..], None).map_err(torn)?;
        let schema = reader.schema();
        let batches = reader.collect::<std::result::Result<Vec<_>, _>>().map_err(torn)?;
        Ok(Self { header, schema, batches })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::UInt32Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use skytether_common::{Generation, Kind};
    use skytether_scheduler::message::PushdownLevel;
    use uuid::Uuid;

    use super::*;

    fn plan() -> SubPlan {
        let dataset: skytether_common::DatasetName = "a.b".parse().unwrap();
        let partition = |table: &str| PartitionName { dataset: dataset.clone(), generation: Generation(7), table: table.into(), slot: 1 };
        SubPlan {
            query: Uuid::from_u128(1),
            partitions: ["x", "obs"].into_iter().map(|table| (table.to_owned(), partition(table))).collect(),
            dataset: dataset.clone(),
            with: BTreeMap::new(),
            rung: PushdownLevel::Full,
            program: Program::Substrait(Bytes::from_static(b"plan")),
            filters: BTreeMap::new(),
            tables: BTreeMap::new(),
            batch_rows: 0,
            keep: true,
        }
    }

    #[test]
    fn identity_follows_from_plan_and_generations_alone() {
        let of = |change: &dyn Fn(&mut SubPlan)| {
            let mut plan = plan();
            change(&mut plan);
            Identity::of(&plan).unwrap().map(|identity| identity.id)
        };
        let same = of(&|_| ());
        assert!(same.is_some());
        assert_eq!(of(&|p| (p.query, p.batch_rows) = (Uuid::from_u128(2), 99)), same);
        let others: [&dyn Fn(&mut SubPlan); 5] = [
            &|p| p.program = Program::Substrait(Bytes::from_static(b"other")),
            &|p| p.rung = PushdownLevel::Filter,
            &|p| p.partitions.get_mut("obs").unwrap().generation = Generation(8),
            &|p| p.partitions.get_mut("x").unwrap().slot = 2,
            &|p| drop(p.partitions.remove("obs")),
        ];
        for change in others {
            let other = of(change);
            assert!(other.is_some() && other != same);
        }
        assert_eq!(of(&|p| p.keep = false), None);
        assert_eq!(of(&|p| drop(p.tables.insert("t".into(), Bytes::new()))), None);
        assert_eq!(of(&|p| drop(p.filters.insert("f".into(), Bytes::new()))), None);
        assert_eq!(of(&|p| p.partitions.clear()), None);
        let mut long = plan();
        long.program = Program::Substrait(vec![0; MAX_PROGRAM + 1].into());
        assert_eq!(Identity::of(&long).unwrap().unwrap().program, None);
    }

    #[test]
    fn names_lead_back_to_their_partition() {
        let identity = Identity::of(&plan()).unwrap().unwrap();
        let (name, slice) = PartitionName::parse(&identity.key().unwrap()).unwrap();
        assert_eq!((of_partition(&name).as_ref(), slice), (identity.partitions.first(), None));
        for other in ["x", "kept/", "kept/x", "kept/0123456789abcdef0123456789abcdeg/x", "kept/0/x"] {
            assert_eq!(of_partition(&PartitionName { table: other.into(), ..name.clone() }), None, "{other}");
        }
    }

    #[test]
    fn kept_results_survive_and_damaged_ones_are_errors() {
        let schema = Arc::new(Schema::new(vec![Field::new("gene_id", DataType::UInt32, false)]));
        let batch = |values: Vec<u32>| RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(UInt32Array::from(values))]).unwrap();
        let identity = Identity::of(&plan()).unwrap().unwrap();
        let kept = Kept { header: Header::new(&identity, Some(9)).unwrap(), schema: Arc::clone(&schema), batches: vec![batch(vec![1, 2]), batch(vec![])] };
        let bytes = kept.encode(1 << 20).unwrap();
        let back = Kept::decode(&bytes).unwrap();
        assert_eq!((&back.header, &back.schema, &back.batches), (&kept.header, &kept.schema, &kept.batches));
        assert_eq!(Header::decode(&bytes).unwrap().0, kept.header);
        assert!(kept.header.is_of(&identity) && kept.header.program() == Some(Bytes::from_static(b"plan")));
        assert!(!kept.header.is_of(&Identity { partitions: identity.partitions.iter().take(1).cloned().collect(), ..identity.clone() }));
        // A version before this one wrote no program.
        let older = String::from_utf8(serde_json::to_vec(&kept.header).unwrap()).unwrap().replace(r#","program":"cGxhbg==""#, "") + "\n";
        assert_eq!(Header::decode(older.as_bytes()).unwrap().0.program(), None);
        assert_eq!(kept.encode(64).unwrap_err().kind(), Kind::Exhausted);
        for n in 0..bytes.len() {
            // A stream that ends between two batches is whole for Arrow; the store's checksum finds that.
            if let Err(error) = Kept::decode(&bytes[..n]) {
                assert_eq!(error.kind(), Kind::Corrupt);
            }
        }
        assert_eq!(Header::decode(b"{}\n").unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(Header::decode(&vec![b' '; MAX_HEADER + 9]).unwrap_err().kind(), Kind::Corrupt);
    }
}
