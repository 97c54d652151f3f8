//! Emulation of a device: a drive as slow as that device, with as much memory.
//!
//! Each drive has one object of each kind, shared by all that runs on it:
//! - the cores ([`skytether_emulation::Processor`]), around planning, around the root of each sub-plan's rows, and
//!   around reads;
//! - the disk ([`SlowDisk`]), around the store;
//! - the link ([`linked`] in process; over a network the server has it).
//!
//! The memory pool limits memory. A drive without a profile has none of them.

mod device;
mod disk;
mod link;

pub use device::Device;
pub use disk::SlowDisk;
pub use link::linked;

use futures::StreamExt;
use skytether_device::{Annotation, DeliveryStream, ResultMessage};

/// `stream`, whose annotation says that it ran on a device like `device`.
pub(crate) fn tag_device(device: &str, stream: DeliveryStream) -> DeliveryStream {
    let (DeliveryStream { schema, messages }, device) = (stream, device.to_owned());
    let messages = messages.map(move |message| {
        message.map(|delivery| match delivery {
            ResultMessage::Done(annotation) => ResultMessage::Done(Annotation { profile: Some(device.clone()), ..annotation }),
            other => other,
        })
    });
    DeliveryStream { schema, messages: Box::pin(messages) }
}
