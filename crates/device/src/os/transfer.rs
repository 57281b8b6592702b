//! Whole reads and writes out of the partial ones that system calls make.
//!
//! A call may transfer less than asked, or be interrupted. What follows must start on a block boundary, since the
//! file may be open for direct I/O; so a transfer that ended inside a block repeats that block.

use crate::BLOCK_BYTES;
use rustix::io::Errno;
use std::io;

/// Where to go on after a transfer of `count` bytes that began at `done`; None if that was no progress.
fn next(done: usize, count: usize, whole: usize) -> Option<usize> {
    let next = done + count;
    if next >= whole {
        return Some(whole);
    }
    let next = next - next % BLOCK_BYTES;
    (next > done).then_some(next)
}

/// Writes all of `buffer` by calls of `write(piece, offset)`.
pub(super) fn write_all(
    buffer: &[u8],
    offset: u64,
    mut write: impl FnMut(&[u8], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match write(&buffer[done..], offset + done as u64) {
            Ok(count) => match next(done, count, buffer.len()) {
                Some(next) => done = next,
                // Less than a block fits: the next attempt would not do better, and hide why.
                None => return Err(io::ErrorKind::WriteZero.into()),
            },
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fills all of `buffer` by calls of `read(piece, offset)`. `length` is asked for the file's length when a read stops
/// short.
pub(super) fn read_all(
    buffer: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    length: impl Fn() -> io::Result<u64>,
) -> io::Result<()> {
    let (mut done, whole) = (0, buffer.len());
    while done < whole {
        match read(&mut buffer[done..], offset + done as u64) {
            Ok(count) => match next(done, count, whole) {
                Some(next) => done = next,
                None if offset + whole as u64 > length()? => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => return Err(io::Error::other("the file system reads less than a block")),
            },
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_interrupted_writes_are_completed_block_by_block() {
        let data: Vec<u8> = (0..5 * BLOCK_BYTES).map(|index| (index / 16) as u8).collect();
        let mut file = vec![0; data.len()];
        let mut calls = 0;
        write_all(&data, 0, |piece, offset| {
            calls += 1;
            assert_eq!(offset as usize % BLOCK_BYTES, 0);
            if calls % 2 == 0 {
                return Err(Errno::INTR);
            }
            let count = piece.len().min(BLOCK_BYTES + 100);
            file[offset as usize..][..count].copy_from_slice(&piece[..count]);
            Ok(count)
        })
        .unwrap();
        assert_eq!(file, data);
    }

    #[test]
    fn a_write_that_makes_no_progress_is_an_error() {
        let error = write_all(&[0; 2 * BLOCK_BYTES], 0, |_, _| Ok(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn a_read_past_the_end_is_an_error() {
        let mut buffer = [0; 2 * BLOCK_BYTES];
        let file_length = BLOCK_BYTES as u64 + 10;
        let read = |piece: &mut [u8], offset| Ok(piece.len().min((file_length - offset) as usize));
        let error = read_all(&mut buffer, 0, read, || Ok(file_length)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
