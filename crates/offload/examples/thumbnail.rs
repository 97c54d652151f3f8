//! An operation that others add: thumbnails of JPEG images. It runs over images that this program draws on a device in
//! memory, and prints how many bytes went and came.
//!
//! ```sh
//! cargo run -p skytether-offload --example thumbnail
//! ```

use std::io::Cursor;
use std::sync::Arc;

use jpeg_encoder::{ColorType, Encoder};
use skytether_common::{Error, Result};
use skytether_offload::codes::{opcode, tag};
use skytether_offload::job::Input;
use skytether_offload::output::Sink;
use skytether_offload::{Arguments, Descriptor, ExecResult, Extent, Item, Object, ObjectWork, Offload, Operation, Options, Plan, operations};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Durability, Exec};
use tokio_util::sync::CancellationToken;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

const THUMBNAIL: u16 = opcode::OTHERS;
const EDGE: u16 = tag::OTHERS;

/// A JPEG of at most `EDGE` pixels in width and height, of each JPEG. Values: width, height.
#[derive(Debug)]
struct Thumbnail;

struct Work {
    edge: usize,
}

impl Operation for Thumbnail {
    fn opcode(&self) -> u16 {
        THUMBNAIL
    }

    fn name(&self) -> &'static str {
        "thumbnail"
    }

    fn plan(&self, arguments: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        Ok(Plan::Objects(Box::new(Work { edge: arguments.length(EDGE, 1024)? as usize })))
    }
}

/// Pixels of three bytes: red, green, blue.
struct Image {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Image {
    fn decode(bytes: &[u8], memory: u64) -> Result<Self> {
        let wrong = |error: zune_jpeg::errors::DecodeErrors| Error::corrupt("the object is no JPEG").with_source(format!("{error:?}"));
        let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
        decoder.decode_headers().map_err(wrong)?;
        let (width, height) = decoder.dimensions().unwrap_or_default();
        if width * height * 3 > memory as usize {
            return Err(Error::exhausted(format!("an image of {width} x {height} takes more than {memory} bytes; make its thumbnail elsewhere")));
        }
        Ok(Self { width, height, pixels: decoder.decode().map_err(wrong)? })
    }

    /// Each pixel of the result is the mean of those that it covers.
    fn shrink(&self, edge: usize) -> Self {
        let most = self.width.max(self.height).max(edge);
        let scale = |length: usize| (length * edge / most).max(1);
        let (width, height) = (scale(self.width), scale(self.height));
        let mut pixels = Vec::with_capacity(width * height * 3);
        for y in 0..height {
            let rows = y * self.height / height..((y + 1) * self.height / height).max(y * self.height / height + 1);
            for x in 0..width {
                let columns = x * self.width / width..((x + 1) * self.width / width).max(x * self.width / width + 1);
                for color in 0..3 {
                    let covered = rows.clone().flat_map(|row| columns.clone().map(move |column| (row, column)));
                    let (mut sum, mut count) = (0, 0);
                    for (row, column) in covered {
                        sum += usize::from(self.pixels[(row * self.width + column) * 3 + color]);
                        count += 1;
                    }
                    pixels.push((sum / count) as u8);
                }
            }
        }
        Self { width, height, pixels }
    }

    fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let encoded = Encoder::new(&mut bytes, 85).encode(&self.pixels, self.width as u16, self.height as u16, ColorType::Rgb);
        encoded.map_err(|error| Error::internal("an image can't be written").with_source(error))?;
        Ok(bytes)
    }
}

impl ObjectWork for Work {
    fn run(&mut self, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Item> {
        let memory = input.limits().memory / 2;
        let mut bytes = Vec::new();
        while let Some(block) = input.next_block()? {
            if (bytes.len() + block.len()) as u64 > memory {
                return Err(Error::exhausted(format!("an image of more than {memory} bytes; make its thumbnail elsewhere")));
            }
            bytes.extend_from_slice(&block);
        }
        let small = Image::decode(&bytes, memory)?.shrink(self.edge);
        sink.write(&small.encode()?)?;
        Ok(Item::of_values(&[small.width as u64, small.height as u64]))
    }
}

/// Bands of red that grow to the right, and of blue that grow downwards.
fn drawn(width: usize, height: usize) -> Image {
    let pixel = |at: usize| [(at % width * 255 / width) as u8, 128, (at / width * 255 / height) as u8];
    Image { width, height, pixels: (0..width * height).flat_map(pixel).collect() }
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let mut registry = operations::registry(None)?;
    registry.add(Arc::new(Thumbnail))?;
    let exec = Offload::new(registry, Options::default())?;
    let device = Arc::new(MemoryDevice::new("images", 64 << 20));
    let mut ask = Descriptor::new(THUMBNAIL).number(EDGE, 64);
    let (mut at, mut stored) = (0, 0);
    for (width, height) in [(640, 480), (300, 900)] {
        let mut bytes = drawn(width, height).encode()?;
        let length = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        let extent = Extent::new(at, bytes.len() as u64);
        device.write(at, bytes.into(), Durability::Cached).await?;
        ask = ask.input(Object::new(length, vec![extent]));
        at += extent.length;
        stored += length;
    }
    let answer = exec.run(device, ask.encode()?, CancellationToken::new()).await?;
    for (item, expected) in ExecResult::decode(&answer)?.done()?.iter().zip([drawn(64, 48), drawn(21, 64)]) {
        let item = item.done()?;
        let found = Image::decode(&item.data, 1 << 20)?;
        println!("{} x {}: {} bytes", item.values[0], item.values[1], item.data.len());
        assert_eq!((found.width, found.height), (expected.width, expected.height));
        let differs = found.pixels.iter().zip(&expected.pixels).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(differs < Some(16), "a pixel differs by {differs:?}");
    }
    println!("{} bytes came for {stored} stored ones", answer.len());
    Ok(())
}
