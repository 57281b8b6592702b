//! Reading fragments: those that lie close together at once, into memory that is used again, and each given on as soon as it is there.
//!
//! Where a fragment lies is all that is known of it here; what it is of, and which others are wanted with it, is the business of [`page_reader`](crate::page_reader).

use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::fragment::{Defect, Fragment, Layout};
use crate::read_buffer::{READ_BYTES_MAX, ReadBuffer};
use crate::segments::{Segments, segment_name};
use deuteron_device::{BLOCK_BYTES, DeviceError, File, ReadRequest, Reads};
use std::ops::Range;
use std::sync::Arc;
use std::{mem, slice, vec};

/// Bytes between two fragments that are read along with them: about what a device reads in the time of one more read.
const GAP_BYTES_MAX: u64 = 2 * BLOCK_BYTES as u64;
/// The longest read of several fragments.
const STRETCH_BYTES_MAX: u64 = 64 * BLOCK_BYTES as u64;
/// Reads that nobody waits for, in flight at once, and their bytes: beside 192 KiB another read takes twice as long as alone, beside 3 MiB twenty times;
/// and a device that does 1.6 GB/s with those does 1.0 with these.
const FEW_READS: usize = 8;
const FEW_BYTES: usize = 192 << 10;

/// How much is in flight at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    /// As much as the device takes: somebody waits for all of it.
    Many,
    /// Little: what others read meanwhile would wait behind it.
    Few,
}

impl InFlight {
    /// How many of `reads` are begun together, the first of them at least.
    fn count(self, reads: &[ReadRequest<'_>]) -> usize {
        let InFlight::Few = self else { return reads.len() };
        let ends = reads.iter().scan(0, |bytes, read| {
            *bytes += read.buffer.len();
            Some(*bytes)
        });
        ends.take(FEW_READS).take_while(|&bytes| bytes <= FEW_BYTES).count().max(1).min(reads.len())
    }
}

/// A fragment's bytes as read.
pub(crate) struct ReadFragment<'b> {
    bytes: &'b [u8],
    address: FlashAddress,
    /// Known once the fragment has been checked.
    layout: Option<Layout>,
    /// Its payloads, if they are compressed.
    unpacked: Option<Vec<u8>>,
}

impl ReadFragment<'_> {
    pub(crate) fn address(&self) -> FlashAddress {
        self.address
    }

    /// Checks the fragment, and returns it.
    pub(crate) fn check(&mut self) -> Result<Fragment<'_>, Defect> {
        let fragment = Fragment::decode(self.bytes, self.address.offset())?;
        if fragment.address() != self.address {
            let found = format!("{} bytes", fragment.address().length());
            return Err(Defect::new(8, format_args!("{} bytes", self.address.length()), found));
        }
        (self.layout, self.unpacked) = (Some(fragment.layout()), fragment.unpack()?);
        Ok(self.fragment())
    }

    /// The payloads of the fragment, which has been checked, newest first.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.fragment().payloads(self.unpacked.as_deref())
    }

    /// The fragment, which has been checked.
    ///
    /// # Panics
    /// If it has not.
    pub(crate) fn fragment(&self) -> Fragment<'_> {
        Fragment::checked(self.bytes, self.layout.expect("checked when it was read"))
    }
}

/// Blocks that are read at once, and the fragments in them.
struct Stretch {
    from: u64,
    to: u64,
    /// Which they are, in the order of their addresses.
    fragments: Range<usize>,
}

impl Stretch {
    fn bytes(&self) -> usize {
        (self.to - self.from) as usize
    }

    /// Whether blocks behind it, of the same segment, are read along with it.
    fn takes(&self, from: u64, to: u64) -> bool {
        from <= self.to + GAP_BYTES_MAX && to.max(self.to) - self.from <= STRETCH_BYTES_MAX
    }
}

/// Who reads fragments: which they are besides the first, and who takes them.
pub(crate) trait FragmentReads<'b> {
    /// Where those lie that are read besides the first. Asked for while these are being read.
    fn more(&mut self) -> Vec<FlashAddress>;

    /// Takes a fragment that has been read, which is not checked yet, by its place among those that were asked for.
    fn take(&mut self, index: usize, read: Result<ReadFragment<'b>, LlamaError>);
}

/// Memory that fragments are read into, which were asked for together.
pub(crate) struct Room {
    /// In the order of their addresses, each with its place among all that were asked for.
    fragments: Vec<(FlashAddress, usize)>,
    stretches: Vec<Stretch>,
    files: Vec<Option<Arc<dyn File>>>,
    /// Of the stretches one after the other, as many in each as fit.
    buffers: Vec<ReadBuffer>,
}

/// Reads of fragments.
struct Reading<'b, 't> {
    segments: &'b Segments,
    in_flight: InFlight,
    rooms: slice::IterMut<'b, Option<Room>>,
    /// How many fragments have been asked for.
    wanted: usize,
    /// What has not been begun yet.
    prepared: vec::IntoIter<ReadRequest<'b>>,
    /// What each read is of.
    asked: Vec<(&'b Stretch, &'b [(FlashAddress, usize)])>,
    /// Of these so many were done by calls of the device before this one.
    done_before: usize,
    reads: &'t mut dyn FragmentReads<'b>,
}

impl<'b> Reading<'b, '_> {
    /// Prepares to read the fragments at `addresses`.
    fn prepare(&mut self, addresses: &[FlashAddress]) {
        let Some(room) = self.rooms.next() else { return };
        let Room { fragments, stretches, files, buffers } =
            room.insert(self.segments.room(addresses.iter().copied().zip(self.wanted..)));
        self.wanted += addresses.len();
        let mut prepared = Vec::with_capacity(stretches.len());
        let mut buffers = buffers.iter_mut();
        let mut left: &mut [u8] = &mut [];
        for (stretch, file) in stretches.iter().zip(files.iter()) {
            if left.is_empty() {
                left = buffers.next().expect("there is room for each stretch");
            }
            let buffer;
            (buffer, left) = left.split_at_mut(stretch.bytes());
            let fragments = &fragments[stretch.fragments.clone()];
            match file {
                Some(file) => {
                    let within = stretch.from % self.segments.segment_bytes;
                    prepared.push(ReadRequest::new(&**file, within, buffer));
                    self.asked.push((stretch, fragments));
                }
                None => fragments.iter().for_each(|&(address, index)| {
                    self.reads.take(index, Err(self.segments.missing_segment(address)))
                }),
            }
        }
        self.prepared = prepared.into_iter();
    }
}

impl<'b> Reads<'b> for Reading<'b, '_> {
    fn next(&mut self, reads: &mut Vec<ReadRequest<'b>>) -> bool {
        if self.prepared.as_slice().is_empty() && self.rooms.len() > 0 {
            let more = self.reads.more();
            self.prepare(&more);
        }
        let count = self.in_flight.count(self.prepared.as_slice());
        reads.extend(self.prepared.by_ref().take(count));
        self.in_flight == InFlight::Many && self.rooms.len() > 0
    }

    fn done(&mut self, index: usize, read: &mut ReadRequest<'b>) {
        let (stretch, fragments) = self.asked[self.done_before + index];
        let (file, buffer) = (read.file, mem::take(&mut read.buffer));
        let outcome = mem::replace(&mut read.outcome, Ok(()));
        let reads = &mut *self.reads;
        self.segments
            .take(stretch, fragments, file, buffer, outcome, &mut |index, read| reads.take(index, read));
    }
}

/// The blocks in which the fragment at `address` lies.
fn blocks_of(address: FlashAddress) -> (u64, u64) {
    let block = BLOCK_BYTES as u64;
    (address.offset() / block * block, (address.offset() + address.length()).next_multiple_of(block))
}

impl Segments {
    /// Reads the fragments at `addresses`, and then, if there are two `rooms`, those that `reads` asks for besides; and gives each to `reads` as soon as it is there. Blocks
    /// on the device.
    pub(crate) fn read<'b>(
        &'b self,
        rooms: &'b mut [Option<Room>],
        addresses: &[FlashAddress],
        in_flight: InFlight,
        reads: &mut dyn FragmentReads<'b>,
    ) {
        let (prepared, asked) = (Vec::new().into_iter(), Vec::with_capacity(addresses.len()));
        let rooms = rooms.iter_mut();
        let mut reading =
            Reading { segments: self, in_flight, rooms, wanted: 0, prepared, asked, done_before: 0, reads };
        reading.prepare(addresses);
        loop {
            self.directory.read_each(&mut reading);
            if reading.prepared.as_slice().is_empty() && reading.rooms.len() == 0 {
                return;
            }
            reading.done_before = reading.asked.len() - reading.prepared.len();
        }
    }

    /// Reads the fragment at `address` alone, and what `check` makes of it. Blocks on the device.
    pub(crate) fn read_one<T>(
        &self,
        address: FlashAddress,
        mut check: impl FnMut(&mut ReadFragment<'_>) -> Result<T, Defect>,
    ) -> Result<T, LlamaError> {
        let file = self.file(self.index(address.offset())).ok_or_else(|| self.missing_segment(address))?;
        let (from, to) = blocks_of(address);
        let mut buffer = ReadBuffer::new((to - from) as usize);
        file.read_at(&mut buffer, from % self.segment_bytes).map_err(LlamaError::Device)?;
        let bytes = &buffer[(address.offset() - from) as usize..][..address.length() as usize];
        let mut read = ReadFragment { bytes, address, layout: None, unpacked: None };
        check(&mut read).map_err(|defect| self.corrupt(address.offset(), defect))
    }

    /// Room for the fragments at these addresses: one aligned read for those that lie close together.
    fn room(&self, addresses: impl Iterator<Item = (FlashAddress, usize)>) -> Room {
        let mut fragments: Vec<_> = addresses.collect();
        fragments.sort_unstable_by_key(|(address, _)| address.offset());
        let mut stretches: Vec<Stretch> = Vec::with_capacity(fragments.len());
        for (at, &(address, _)) in fragments.iter().enumerate() {
            let (from, to) = blocks_of(address);
            match stretches.last_mut() {
                Some(last) if last.takes(from, to) && self.index(last.from) == self.index(from) => {
                    last.to = last.to.max(to);
                    last.fragments.end = at + 1;
                }
                _ => stretches.push(Stretch { from, to, fragments: at..at + 1 }),
            }
        }
        let mut lengths: Vec<usize> = Vec::new();
        for bytes in stretches.iter().map(Stretch::bytes) {
            match lengths.last_mut() {
                Some(length) if *length + bytes <= READ_BYTES_MAX => *length += bytes,
                _ => lengths.push(bytes),
            }
        }
        self.reads.add(stretches.len() as u64);
        self.bytes_of_reads.add(lengths.iter().sum::<usize>() as u64);
        let buffers = lengths.into_iter().map(ReadBuffer::new).collect();
        let files = stretches.iter().map(|stretch| self.file(self.index(stretch.from))).collect();
        Room { fragments, stretches, files, buffers }
    }

    /// Gives the fragments of a stretch that was read to `taken`.
    fn take<'b>(
        &self,
        stretch: &Stretch,
        fragments: &[(FlashAddress, usize)],
        file: &(dyn File + 'static),
        buffer: &'b mut [u8],
        outcome: Result<(), DeviceError>,
        taken: &mut dyn FnMut(usize, Result<ReadFragment<'b>, LlamaError>),
    ) {
        let mut errors = match outcome {
            Ok(()) => Vec::new(),
            Err(error) if fragments.len() == 1 => vec![Some(error)],
            // Perhaps only one of them cannot be read, and it was a guess.
            Err(_) => self.read_blocks(stretch, fragments, file, buffer),
        }
        .into_iter();
        let buffer: &[u8] = buffer;
        for &(address, index) in fragments {
            let start = (address.offset() - stretch.from) as usize;
            let bytes = &buffer[start..start + address.length() as usize];
            taken(
                index,
                match errors.next().flatten() {
                    Some(error) => Err(LlamaError::Device(error)),
                    None => Ok(ReadFragment { bytes, address, layout: None, unpacked: None }),
                },
            );
        }
    }

    /// Reads the blocks of a stretch one by one; of each of its fragments, why it could not be read.
    fn read_blocks(
        &self,
        stretch: &Stretch,
        fragments: &[(FlashAddress, usize)],
        file: &(dyn File + 'static),
        buffer: &mut [u8],
    ) -> Vec<Option<DeviceError>> {
        let block_bytes = BLOCK_BYTES as u64;
        // One that was read is not read again: one that cannot be is arbitrary.
        let mut is_read = vec![false; buffer.len() / BLOCK_BYTES];
        let mut read = |block: u64| {
            let index = ((block - stretch.from) / block_bytes) as usize;
            if !is_read[index] {
                let bytes = &mut buffer[index * BLOCK_BYTES..][..BLOCK_BYTES];
                file.read_at(bytes, block % self.segment_bytes)?;
                is_read[index] = true;
            }
            Ok(())
        };
        let mut read_fragment = |address| {
            let (from, to) = blocks_of(address);
            (from..to).step_by(BLOCK_BYTES).try_for_each(&mut read).err()
        };
        fragments.iter().map(|&(address, _)| read_fragment(address)).collect()
    }

    fn missing_segment(&self, address: FlashAddress) -> LlamaError {
        LlamaError::Corrupt {
            file: segment_name(self.index(address.offset())),
            offset: address.offset() % self.segment_bytes,
            expected: "a fragment".to_owned(),
            found: "no such segment".to_owned(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fragment::Marshal;
    use crate::node::{OwnedNode, PageDescriptor};
    use crate::page_id::PageId;
    use crate::segments::tests::{BLOCK, SEGMENT, fill, numbered};
    use deuteron_device::{AlignedBuffer, FaultKind, FaultPlan, Operation, SimulatedDisk};

    #[test]
    fn blocks_that_lie_close_are_one_read_of_limited_length() {
        assert_eq!(blocks_of(FlashAddress::new(3 * BLOCK, 64)), (3 * BLOCK, 4 * BLOCK));
        assert_eq!(blocks_of(FlashAddress::new(3 * BLOCK + 64, 4096)), (3 * BLOCK, 5 * BLOCK));
        assert_eq!(blocks_of(FlashAddress::new(4 * BLOCK - 64, 64)), (3 * BLOCK, 4 * BLOCK));
        let stretch = |from, to| Stretch { from: from * BLOCK, to: to * BLOCK, fragments: 0..1 };
        let takes = |stretch: Stretch, from, to| stretch.takes(from * BLOCK, to * BLOCK);
        assert!(takes(stretch(1, 3), 5, 6) && !takes(stretch(1, 3), 6, 7));
        assert!(takes(stretch(10, 70), 70, 74) && !takes(stretch(10, 70), 70, 75));
        assert!(takes(stretch(10, 74), 11, 12), "it has that already");
        assert!(!takes(stretch(0, 1), 9, 10));
    }

    #[test]
    fn who_reads_a_segment_that_is_removed_meanwhile_reads_all_of_it_or_finds_none() {
        let disk = SimulatedDisk::new(1);
        let segments = &numbered(&disk);
        // At its end, which is cut first. Alone: of several that cannot be read together each is read again.
        let address = FlashAddress::new(2 * SEGMENT - BLOCK, 64);
        let content = [(100 + (address.offset() - SEGMENT) / 64) as u8; 64];
        let mut whole = 0;
        for round in 0..500 {
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    (0..round % 8).for_each(|_| std::thread::yield_now());
                    segments.remove(1).unwrap();
                });
                loop {
                    match read(segments, &[address], InFlight::Few).remove(0) {
                        Ok(read) => assert_eq!(read, content),
                        Err(LlamaError::Corrupt { found, .. }) => break assert_eq!(found, "no such segment"),
                        Err(error) => panic!("{error:?}"),
                    }
                    whole += 1;
                }
            });
            fill(segments, 1);
        }
        assert!(whole > 100, "only {whole}");
    }

    fn read(
        segments: &Segments,
        addresses: &[FlashAddress],
        in_flight: InFlight,
    ) -> Vec<Result<Vec<u8>, LlamaError>> {
        read_in_turn(segments, (addresses, &[]), in_flight)
    }

    /// Those that are asked for first, and those that are asked for while these are being read.
    fn read_in_turn(
        segments: &Segments,
        (first, more): (&[FlashAddress], &[FlashAddress]),
        in_flight: InFlight,
    ) -> Vec<Result<Vec<u8>, LlamaError>> {
        let addresses = [first, more].concat();
        let mut found: Vec<_> = addresses.iter().map(|_| None).collect();
        let take = &mut |index: usize, read: Result<ReadFragment<'_>, LlamaError>| {
            let read = read.map(|read| {
                assert_eq!(read.address(), addresses[index]);
                read.bytes.to_vec()
            });
            assert!(found[index].replace(read).is_none(), "twice");
        };
        segments.read(&mut [None, None], first, in_flight, &mut Told { more: more.to_vec(), take });
        found.into_iter().map(|read| read.expect("each is told of")).collect()
    }

    /// What is asked for later, and who is told of what was read.
    struct Told<'t> {
        more: Vec<FlashAddress>,
        take: &'t mut dyn FnMut(usize, Result<ReadFragment<'_>, LlamaError>),
    }

    impl<'b> FragmentReads<'b> for Told<'_> {
        fn more(&mut self) -> Vec<FlashAddress> {
            mem::take(&mut self.more)
        }

        fn take(&mut self, index: usize, read: Result<ReadFragment<'b>, LlamaError>) {
            (self.take)(index, read);
        }
    }

    #[test]
    fn what_is_read_together_is_what_lies_there_in_as_few_reads_as_the_rules_allow() {
        let disk = SimulatedDisk::new(1);
        let segments = numbered(&disk);
        let fragment = |block: u64, within: u64| FlashAddress::new(block * BLOCK + within, 128);
        // Neighbours, one behind a gap of two blocks, one behind a gap of three, and one of the next segment.
        let cases: [(&[FlashAddress], u64); 5] = [
            (&[fragment(3, 64)], 1),
            (&[fragment(6, 0), fragment(3, 64), fragment(3, 192)], 1),
            (&[fragment(3, 64), fragment(7, 0)], 2),
            (&[fragment(15, 64), fragment(16, 64)], 2),
            (&[], 0),
        ];
        for (addresses, reads) in cases {
            let before = disk.count(Operation::Read);
            let read = read(&segments, addresses, InFlight::Many);
            assert_eq!(disk.count(Operation::Read) - before, reads);
            for (read, &address) in read.into_iter().zip(addresses) {
                let (index, within) = (address.offset() / SEGMENT, address.offset() % SEGMENT / 64);
                let expected = [[(index * 100 + within) as u8; 64], [(index * 100 + within + 1) as u8; 64]];
                assert_eq!(read.unwrap(), expected.concat());
            }
        }
    }

    #[test]
    fn what_is_asked_for_while_the_first_are_read_is_read_too() {
        let disk = SimulatedDisk::new(1);
        let segments = numbered(&disk);
        // Of two segments and of one that is not there, some of them neighbours.
        let addresses: Vec<_> =
            (1..36).map(|block| FlashAddress::new(block * 17 % 40 * BLOCK + 64, 64)).collect();
        let known =
            |read: Vec<Result<Vec<u8>, LlamaError>>| read.into_iter().map(Result::ok).collect::<Vec<_>>();
        let expected =
            known(addresses.iter().map(|&one| read(&segments, &[one], InFlight::Few).remove(0)).collect());
        assert!(expected.iter().flatten().count() > 20 && expected.contains(&None));
        for first in 0..=addresses.len() {
            for in_flight in [InFlight::Few, InFlight::Many] {
                let found = read_in_turn(&segments, addresses.split_at(first), in_flight);
                assert_eq!(known(found), expected, "{first} {in_flight:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_of_each_and_hinders_no_other() {
        let disk = SimulatedDisk::new(1);
        let segments = numbered(&disk);
        let addresses = [2 * BLOCK, 7 * SEGMENT + 320, 3 * BLOCK].map(|offset| FlashAddress::new(offset, 64));
        // The read of two neighbours fails, and then that of one of them alone.
        let refuse = |plan: FaultPlan, read| plan.fail(Operation::Read, read, FaultKind::Refuse);
        disk.set_faults(refuse(refuse(FaultPlan::new(), 0), 2));
        let read = read(&segments, &addresses, InFlight::Few);
        assert!(read[0].is_ok());
        let Err(LlamaError::Corrupt { file, offset: 320, expected, found }) = &read[1] else { panic!() };
        let said = (file.as_str(), expected.as_str(), found.as_str());
        assert_eq!(said, (&segment_name(7)[..], "a fragment", "no such segment"));
        assert!(matches!(read[2], Err(LlamaError::Device(_))));
        let defect = Defect::new(8, "this", "that");
        let Err::<(), _>(LlamaError::Corrupt { file, offset: 328, expected, found }) =
            Err(segments.corrupt(7 * SEGMENT + 320, defect))
        else {
            panic!()
        };
        assert_eq!((file, &expected[..], &found[..]), (segment_name(7), "this", "that"));
    }

    #[test]
    fn what_nobody_waits_for_is_read_a_little_at_a_time() {
        let segments = numbered(&SimulatedDisk::new(1));
        let file = segments.file(0).unwrap();
        let count = |in_flight: InFlight, lengths: &[usize]| {
            let mut buffers: Vec<_> = lengths.iter().map(|&length| AlignedBuffer::zeroed(length)).collect();
            let reads: Vec<_> =
                buffers.iter_mut().map(|buffer| ReadRequest::new(&*file, 0, buffer)).collect();
            in_flight.count(&reads)
        };
        assert_eq!(count(InFlight::Few, &[4096; 50]), FEW_READS);
        assert_eq!(count(InFlight::Few, &[64 << 10; 50]), FEW_BYTES / (64 << 10));
        assert_eq!(count(InFlight::Few, &[256 << 10; 50]), 1);
        assert_eq!(count(InFlight::Few, &[4096; 3]), 3);
        assert_eq!(count(InFlight::Many, &[256 << 10; 50]), 50);
    }

    #[test]
    fn a_fragment_of_another_length_than_its_address_says_is_none() {
        let disk = SimulatedDisk::new(1);
        let segments = numbered(&disk);
        let base = OwnedNode::base(b"base", PageDescriptor { tree: 1, low_key: b"k", root: true }, &[]);
        let nodes = [base.as_ref()];
        let marshal = Marshal { page: PageId(3), nodes: &nodes, previous: None, packed: None };
        let mut bytes = vec![0; marshal.length().unwrap() as usize];
        marshal.encode(2 * BLOCK, &mut bytes);
        segments.file(0).unwrap().write_at(&bytes, 2 * BLOCK).unwrap();
        let checked = |length| {
            let mut outcome = None;
            let address = FlashAddress::new(2 * BLOCK, length);
            let take = &mut |_, read: Result<ReadFragment<'_>, LlamaError>| {
                let mut read = read.unwrap();
                let page = read.check().map(|fragment| fragment.page());
                outcome = Some(page.map(|page| {
                    assert_eq!(read.fragment().page(), page);
                    (page, read.payloads().map(<[u8]>::to_vec).collect::<Vec<_>>())
                }));
            };
            segments.read(&mut [None], &[address], InFlight::Few, &mut Told { more: Vec::new(), take });
            outcome.unwrap()
        };
        assert_eq!(checked(bytes.len() as u64).unwrap(), (PageId(3), vec![b"base".to_vec()]));
        assert_eq!(checked(bytes.len() as u64 + 64).unwrap_err().offset, 8);
    }
}
