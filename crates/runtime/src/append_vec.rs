//! A list that grows while others read it, and never shrinks: its elements stay where they are.
//!
//! Not `boxcar::Vec`: that has several pieces, and `Host::drives` returns one slice (`&[Arc<dyn Cse>]`).

use std::ops::Deref;
use std::sync::OnceLock;

/// A list. What was read of it stays valid, and is as long as it was then.
#[derive(Debug)]
pub struct AppendVec<T> {
    items: Vec<T>,
    /// The same with one more.
    next: OnceLock<Box<AppendVec<T>>>,
}

impl<T> AppendVec<T> {
    /// These items so far.
    pub fn new(items: Vec<T>) -> Self {
        Self { items, next: OnceLock::new() }
    }

    fn newest(&self) -> &Self {
        let mut at = self;
        while let Some(next) = at.next.get() {
            at = next;
        }
        at
    }
}

impl<T: Clone> AppendVec<T> {
    /// Adds `item` at the end.
    pub fn push(&self, item: T) {
        let mut more = Some(item);
        while let Some(item) = more.take() {
            let newest = self.newest();
            let mut items = newest.items.clone();
            items.push(item);
            // Another thread may have been faster.
            if let Err(mut refused) = newest.next.set(Box::new(Self::new(items))) {
                more = refused.items.pop();
            }
        }
    }
}

impl<T> Deref for AppendVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.newest().items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_stay_valid_and_no_item_is_lost() {
        let list = AppendVec::new(vec![0]);
        let before: &[i32] = &list;
        std::thread::scope(|scope| {
            (1..5).for_each(|n| {
                drop(scope.spawn({
                    let list = &list;
                    move || (0..20).for_each(|i| list.push(n * 100 + i))
                }))
            })
        });
        assert_eq!(before, [0]);
        assert_eq!(list.len(), 81);
        for n in 1..5 {
            let of: Vec<i32> = list.iter().copied().filter(|i| i / 100 == n).collect();
            assert_eq!(of, (0..20).map(|i| n * 100 + i).collect::<Vec<_>>());
        }
    }
}
