//! Copies to blank drives what other drives hold whole: metadata slices, code maps, and tables that are everywhere.

use bytes::Bytes;
use skytether_common::{Error, Key, Result};
use skytether_slice::Metadata;

use crate::rebuild::Rebuild;
use skytether_catalog::records::root::{RootRecord, TableRecord};
use skytether_recovery::repair_io::is;

impl Rebuild<'_> {
    /// Copies the value under the key of a partition itself to those blank drives among the holders that lack it.
    pub(crate) async fn own(
        &mut self,
        record: &RootRecord,
        key: &Key,
        holders: impl Iterator<Item = uuid::Uuid>,
        fits: &(dyn Fn(&Bytes) -> Result<()> + Send + Sync),
    ) -> Result<()> {
        let holders: Vec<usize> = holders.filter_map(|id| self.place(&id)).collect();
        let mut to = Vec::new();
        for at in holders.iter().copied().filter(|at| self.blank.contains(at)) {
            let there = self.reconstructor.ask(at, "look a value up", self.reconstructor.drives[at].stat(key)).await?;
            if there.is_none() { to.push(at) } else { self.report.kept += 1 }
        }
        if to.is_empty() {
            return Ok(());
        }
        let mut trouble = Vec::new();
        for at in holders.into_iter().filter(|at| !self.blank.contains(at) && !self.reconstructor.health.is_down(*at)) {
            let read = self.reconstructor.ask(at, "read a copy", self.reconstructor.drives[at].get(key)).await;
            match read.and_then(|bytes| fits(&bytes).map(|()| bytes)) {
                Ok(bytes) => {
                    self.report.bytes_read += bytes.len() as u64;
                    self.report.bytes_least += bytes.len() as u64;
                    for at in to {
                        self.report.rebuilt += 1;
                        self.put(at, key.clone(), bytes.clone()).await?;
                    }
                    return Ok(());
                }
                Err(e) => trouble.push(e.report()),
            }
        }
        if self.is_still(record).await? {
            self.report.leave(format!("no copy of {key} is to be had: {}", trouble.join("; ")));
        }
        Ok(())
    }

    /// Copies a table that is everywhere.
    pub(crate) async fn everywhere(&mut self, record: &RootRecord, title: &str, table: &TableRecord) -> Result<()> {
        let holders: Vec<(usize, u32)> = table.partitions.iter().filter_map(|p| Some((self.place(&p.drive)?, p.slot))).collect();
        let to: Vec<(usize, u32)> = holders.iter().copied().filter(|(at, _)| self.blank.contains(at)).collect();
        let from: Vec<usize> = holders.iter().map(|(at, _)| *at).filter(|at| !self.blank.contains(at) && !self.reconstructor.health.is_down(*at)).collect();
        for (at, slot) in to {
            let partition = record.partition(title, slot);
            let there = self.there(at, &partition).await?;
            let mut trouble = Vec::new();
            let mut metadata = None;
            for other in &from {
                let read = self.reconstructor.ask(*other, "read a copy", self.reconstructor.drives[*other].get(&partition.key()?)).await;
                match read.and_then(|bytes| Ok((Metadata::decode(&bytes)?, bytes))) {
                    Ok(found) => {
                        metadata = Some(found);
                        break;
                    }
                    Err(e) => trouble.push(e.report()),
                }
            }
            let Some((metadata, bytes)) = metadata else {
                if self.is_still(record).await? {
                    self.report.leave(format!("no copy of {} is to be had: {}", partition.key()?, trouble.join("; ")));
                }
                continue;
            };
            for (n, slice) in metadata.slices.iter().enumerate() {
                let n = u32::try_from(n).map_err(|_| Error::corrupt("a partition has too many slices"))?;
                if there.contains(&(n, slice.len, slice.crc32c)) {
                    self.report.kept += 1;
                    continue;
                }
                let key = partition.slice_key(n)?;
                let mut found = None;
                // All drives with a copy read about equally.
                for turn in 0..from.len() {
                    let other = from[(turn + n as usize) % from.len()];
                    match self.reconstructor.ask(other, "read a copy", self.reconstructor.drives[other].get(&key)).await {
                        Ok(value) if is(&value, slice.len, slice.crc32c) => {
                            found = Some(value);
                            break;
                        }
                        _ => {}
                    }
                }
                match found {
                    Some(value) => {
                        let read = value.len() as u64;
                        self.report.bytes_read += read;
                        self.report.bytes_least += read;
                        self.report.rebuilt += 1;
                        self.pace.passed(read).await;
                        self.put(at, key, value).await?;
                    }
                    None if self.is_still(record).await? => self.report.leave(format!("no whole copy of {key} is to be had")),
                    None => return Ok(()),
                }
            }
            self.report.bytes_read += bytes.len() as u64;
            self.report.bytes_least += bytes.len() as u64;
            self.put(at, partition.key()?, bytes).await?;
        }
        Ok(())
    }
}
