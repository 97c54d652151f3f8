//! Aggregates over frames that slide, without taking values away again.
//!
//! DataFusion subtracts what leaves a frame. That is wrong for floats: NaN and infinity stay for ever, and a large
//! value takes the digits of small ones with it. Here a queue of two stacks keeps the parts that the frame is made of.
//! Values enter at the back. They leave at the front, where each part holds all that is behind it in the stack. So
//! every value is joined twice at most.

/// A part of an aggregate; the default is that of no value.
pub(super) trait Part: Copy + Default {
    /// The part of the values of both.
    fn joined(self, other: Self) -> Self;
}

/// The values of a frame, first in, first out.
#[derive(Debug, Default)]
pub(super) struct Queue<P> {
    /// The oldest value comes last. Each entry is joined with those before it, which are younger.
    front: Vec<P>,
    back: Vec<P>,
    /// All of `back`.
    behind: P,
}

impl<P: Part> Queue<P> {
    pub(super) fn push(&mut self, part: P) {
        self.back.push(part);
        self.behind = self.behind.joined(part);
    }

    /// Takes the oldest value away; nothing happens where there is none.
    pub(super) fn pop(&mut self) {
        if self.front.is_empty() {
            let mut all = P::default();
            self.front.extend(self.back.drain(..).rev().map(|part| {
                all = part.joined(all);
                all
            }));
            self.behind = P::default();
        }
        self.front.pop();
    }

    pub(super) fn total(&self) -> P {
        match self.front.last() {
            Some(older) => older.joined(self.behind),
            None => self.behind,
        }
    }

    /// Bytes on the heap.
    pub(super) fn size(&self) -> usize {
        (self.front.capacity() + self.back.capacity()) * size_of::<P>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first and the last of some values, and how many they are: joining is not commutative.
    #[derive(Debug, Clone, Copy, Default, PartialEq)]
    struct Ends(Option<(u32, u32)>, usize);

    impl Part for Ends {
        fn joined(self, other: Self) -> Self {
            let ends = match (self.0, other.0) {
                (Some((first, _)), Some((_, last))) => Some((first, last)),
                (one, other) => one.or(other),
            };
            Self(ends, self.1 + other.1)
        }
    }

    proptest! {
        #[test]
        fn total_is_that_of_the_values_within(pushes in prop::collection::vec(any::<bool>(), 0..60)) {
            let (mut queue, mut model) = (Queue::<Ends>::default(), std::collections::VecDeque::new());
            for (at, push) in (0u32..).zip(pushes) {
                if push {
                    queue.push(Ends(Some((at, at)), 1));
                    model.push_back(at);
                } else {
                    queue.pop();
                    model.pop_front();
                }
                let ends = model.front().zip(model.back()).map(|(first, last)| (*first, *last));
                prop_assert_eq!(queue.total(), Ends(ends, model.len()));
            }
        }
    }
}
