//! The images from which a recovery starts, or a salvage: the newest one with those that it builds on, put together; or, for a salvage, the newest
//! that can be read.

use super::Known;
use crate::by_page::ByPage;
use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::flush_buffer::MARKS;
use crate::fragments::PackedFragments;
use crate::image::{
    ImagePage, ImageStart, ImageWriter, image_name, image_number, is_unfinished_image, read_image,
    read_image_start,
};
use crate::images::Images;
use crate::options::Options;
use crate::page_id::PageId;
use crate::salvage::ImagedPage;
use crate::segments::{Segments, segment_index};
use deuteron_device::{Directory, Loss, OverlayDirectory, with_causes};
use std::sync::Arc;

/// No fragment takes less. So a store has written that much at least for each page that was ever flushed.
pub(super) const FRAGMENT_BYTES_MIN: u64 = 48;
/// So many pages may have had identifiers and not been flushed: more than there was ever memory for.
pub(super) const UNFLUSHED_PAGES_MAX: u64 = 1 << 26;

/// The places of pages that are new to the images take at most this share of the budget.
const PLACES_SHARE: u64 = 32;

/// What the newest image says, with those that it builds on.
pub(super) struct Found {
    pub(super) start: ImageStart,
    pub(super) pages: ByPage<Known>,
    pub(super) next_page: PageId,
    pub(super) images: Images,
}

/// Reads the images from the newest back to the last whole one, made if the store is new.
pub(super) fn newest_image(directory: &Arc<dyn Directory>, options: &Options) -> Result<Found, LlamaError> {
    let names = directory.list().map_err(LlamaError::Device)?;
    let newest = match names.iter().filter_map(|name| image_number(name)).max() {
        Some(newest) => newest,
        None => create(directory, options, &names)?,
    };
    // An image gets its name when it is durable, so one that is damaged was sound once; and what only older ones refer to may
    // have been removed.
    let (mut numbers, mut number, mut count) = (Vec::new(), newest, 0);
    loop {
        let (start, most) = match read_image_start(&**directory, number, options.direct) {
            Err(LlamaError::Device(error)) if error.is_not_found() && number != newest => {
                return Err(LlamaError::Corrupt {
                    file: image_name(number),
                    offset: 0,
                    expected: format!("the image that {} builds on", image_name(newest)),
                    found: "no such file".to_owned(),
                });
            }
            read => read?,
        };
        numbers.push(number);
        count = most.max(count);
        number = start.previous;
        if start.is_whole() {
            break;
        }
    }
    let mut pages = ByPage::expecting(count);
    let mut row: Option<Images> = None;
    let mut last = None;
    for number in numbers.into_iter().rev() {
        let image = read_image(&**directory, number, options.direct, |said| put(&mut pages, said, number))?;
        match &mut row {
            None => row = Some(Images::new(number, image.written, options.memory_bytes / PLACES_SHARE)),
            Some(row) => row.build_on(number, image.written),
        }
        last = Some(image);
    }
    let (Some(row), Some(last)) = (row, last) else { unreachable!("one at least was read") };
    let (start, next_page) = (last.start, last.next_page);
    for name in names.iter().filter(|name| is_unfinished_image(name)) {
        match directory.remove(name) {
            // It has been finished: that of a new store.
            Err(error) if error.is_not_found() => {}
            removed => removed.map_err(LlamaError::Device)?,
        }
    }
    let written = start.start.offsets.iter().sum::<u64>() / FRAGMENT_BYTES_MIN;
    if next_page.0 > written + UNFLUSHED_PAGES_MAX {
        return Err(LlamaError::Corrupt {
            file: image_name(newest),
            offset: 0,
            expected: format!(
                "fewer than {} identifiers, by what has been written",
                written + UNFLUSHED_PAGES_MAX
            ),
            found: format!("{} of them", next_page.0),
        });
    }
    Ok(Found { start, pages, next_page, images: row })
}

/// Puts what image `number` says of a page over what those before it have said.
fn put(pages: &mut ByPage<Known>, said: ImagePage, number: u64) -> Result<(), LlamaError> {
    if said.fragments.len() == 0 {
        pages.remove(said.page);
        return Ok(());
    }
    let fragments = PackedFragments::from(&said.fragments);
    match (said.place, pages.get_mut(said.page)) {
        (Some((tree, low_key)), _) => {
            pages.insert(said.page, Known { fragments, counts: true, ..Known::new(tree, low_key) });
        }
        (None, Some(known)) => known.fragments = fragments,
        (None, None) => {
            return Err(LlamaError::Corrupt {
                file: image_name(number),
                offset: 0,
                expected: format!("{}, as an image before says where it belongs", said.page),
                found: "none that does".to_owned(),
            });
        }
    }
    Ok(())
}

/// What an image says, for a salvage.
pub(crate) struct ReadableImage {
    pub(crate) user_data: Vec<u8>,
    pub(crate) is_newest: bool,
    pub(crate) pages: Vec<ImagedPage>,
}

/// The newest image that can be read, with those that it builds on; the others are losses.
pub(crate) fn readable_image(
    directory: &Arc<dyn Directory>,
    losses: &mut Vec<Loss>,
) -> Option<ReadableImage> {
    // Reading images removes unfinished ones: above the files.
    let overlay: Arc<dyn Directory> = Arc::new(OverlayDirectory::new(Arc::clone(directory)));
    let options = Options { direct: false, ..Options::default() };
    let mut is_newest = true;
    loop {
        let newest = overlay.list().ok()?.iter().filter_map(|name| image_number(name)).max()?;
        let error = match newest_image(&overlay, &options) {
            Ok(found) => {
                let described = found.pages.iter().map(|(page, known)| ImagedPage {
                    page,
                    tree: known.tree,
                    low_key: known.low_key.clone(),
                    fragments: known.fragments.unpack().iter().map(FlashAddress::offset).collect(),
                });
                let pages = described.collect();
                return Some(ReadableImage { user_data: found.start.user_data, is_newest, pages });
            }
            Err(error) => error,
        };
        is_newest = false;
        losses.push(match error {
            LlamaError::Corrupt { file, offset, expected, found } => {
                Loss { file, offset, bytes: 0, reason: format!("expected {expected}, found {found}") }
            }
            other => Loss { file: image_name(newest), offset: 0, bytes: 0, reason: with_causes(&other) },
        });
        overlay.remove(&image_name(newest)).ok()?;
    }
}

/// Makes a new store: an image without pages; its number. The first segment comes with the first flush.
fn create(directory: &Arc<dyn Directory>, options: &Options, names: &[String]) -> Result<u64, LlamaError> {
    if let Some(segment) = names.iter().find(|name| segment_index(name).is_some()) {
        return Err(LlamaError::Corrupt {
            file: segment.clone(),
            offset: 0,
            expected: "an image of its store beside it".to_owned(),
            found: "none".to_owned(),
        });
    }
    // Two stores on one machine must differ, so that files that got mixed up are noticed; no more is asked.
    let store = directory.identifier();
    let segments = Segments::new(Arc::clone(directory), store, options.segment_bytes, options.direct);
    let start = ImageStart {
        store,
        number: 0,
        start: segments.origin(),
        incarnation: 0,
        segment_bytes: options.segment_bytes,
        previous: 0,
        marks: [0; MARKS],
        user_data: Vec::new(),
    };
    let mut writer = ImageWriter::create(directory, options.direct, &start).map_err(LlamaError::Device)?;
    writer.finish(PageId(1)).map_err(LlamaError::Device)?;
    writer.publish().map_err(LlamaError::Device)?;
    Ok(start.number)
}
