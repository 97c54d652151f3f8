//! Blank drives in the places of lost ones, by the membership record: which drives were replaced, which are blank, and
//! which join.

use crate::records::membership::BLANK;
use crate::records::membership::stranger;
use bytes::Bytes;
use skytether_common::{Key, Kind, Result};
use skytether_store::{Expect, Op};
use uuid::Uuid;

use crate::records::membership::{MEMBERSHIP_KEY, Membership, REPLACED_FORMAT};
use crate::records::membership::{newest, no_record};
use crate::root_store::Catalog;
use skytether_runtime::within;

impl Catalog {
    /// Takes drives that are blank, or were replaced, for lost: whatever is not on them is not nowhere.
    pub(crate) fn lose_strangers(&self, newest: &Membership, told: &[Result<Option<Membership>>]) {
        if newest.homes < 2 {
            return;
        }
        for (at, told) in told.iter().enumerate() {
            if let Some(why) = stranger(newest, &self.drives()[at].info().id, told) {
                self.health().set_down_reason(at, why);
            }
        }
    }

    /// Whether drive `at` does not know its fleet; it is not used then.
    pub(crate) async fn is_blank(&self, at: usize) -> bool {
        let (drive, Ok(key)) = (&self.drives()[at], Key::new(MEMBERSHIP_KEY)) else { return false };
        let blank = self.health().is_redundant()
            && matches!(within(self.deadline(), &drive.info().name, "name its fleet", drive.get(&key)).await, Err(e) if e.kind() == Kind::NotFound);
        if blank {
            self.health().mark_down(at, BLANK);
        }
        blank
    }

    /// The drives that answer and are blank.
    pub async fn blank(&self) -> Result<Vec<usize>> {
        let told = self.read_memberships(self.deadline()).await?;
        let Some(newest) = newest(&told) else { return Err(no_record(&told)) };
        self.lose_strangers(newest, &told);
        self.check_presence()?;
        Ok((0..told.len()).filter(|at| matches!(told[*at], Ok(None))).collect())
    }

    /// Notes that the drives of these ids are replaced: the old drives are not used again.
    ///
    /// # Errors
    /// As [`Self::change_membership`].
    pub async fn fence(&self, ids: &[Uuid]) -> Result<()> {
        self.change_membership(|membership| {
            for id in ids {
                membership.drives.iter_mut().filter(|member| member.id == *id).for_each(|member| member.incarnation += 1);
                if !membership.absent.contains(id) {
                    membership.absent.push(*id);
                }
            }
            membership.format = membership.format.max(REPLACED_FORMAT);
            true
        })
        .await?;
        self.health().add_absent(ids);
        Ok(())
    }

    /// Takes the drives of these ids in, on which all is that belongs there.
    ///
    /// # Errors
    /// What the drives say.
    pub async fn admit(&self, ids: &[Uuid]) -> Result<()> {
        let key = Key::new(MEMBERSHIP_KEY)?;
        {
            let _turn = self.health().membership_lock().await;
            let told = self.read_memberships(self.deadline()).await?;
            let value: Bytes = newest(&told).ok_or_else(|| no_record(&told))?.encode()?;
            for drive in self.drives().iter().filter(|drive| ids.contains(&drive.info().id)) {
                let put = Op::Put { key: key.clone(), value: value.clone(), expect: Expect::Absent };
                match within(self.deadline(), &drive.info().name, "note its fleet", drive.apply(vec![put])).await {
                    Err(e) if e.kind() == Kind::Conflict => {}
                    done => drop(done?),
                }
            }
        }
        // From now on it counts as a drive that was away: it gets root records, and is then used.
        self.rejoin(self.deadline()).await
    }
}
