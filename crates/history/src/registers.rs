//! Registers: a read says whose value it found, if values are written once; in which order they were written is inferred.
//!
//! What is known of two versions of a key:
//! - what was there in the beginning comes before all;
//! - whoever read one and wrote the other wrote it later;
//! - in real time: if somebody who read or wrote the one had ended before somebody who read or wrote the other began, the one
//!   came first.
//!
//! If one version comes before another, so does its writer, and so does everybody who read it.
//!
//! A value that was written more than once, and the absence of a record that was deleted, do not say by themselves whose they
//! are; real time may leave one possibility. Otherwise the read says nothing.

use crate::checker::{Entry, History, NOTHING, Read, Write, writers};
use crate::graph::{Edge, EdgeKind, Edges};
use crate::report::Findings;
use crate::{Kind, Level, Outcome};

/// The version that was there in the beginning.
const INITIAL: usize = 0;

/// A version of a key.
struct Version {
    /// Who wrote it, by which write; nobody, in the beginning.
    writer: Option<(u32, u32)>,
    /// Transaction, read, whether by a range.
    readers: Vec<(u32, u32, bool)>,
    /// The earliest end of those who saw it: by then it was there.
    there_by: u64,
    /// The latest begin of those who saw it: it was still there then, or came later.
    there_from: u64,
}

/// What a read says.
enum Says {
    Version(usize),
    Nothing,
    /// It has been reported.
    Wrong,
}

struct Register<'h> {
    history: &'h History,
    strict: bool,
    /// Sorted by value.
    writes: &'h [u32],
    versions: Vec<Version>,
    /// By the place in `writes`.
    version_of: Vec<Option<usize>>,
    /// Ends of the versions' writers, with the latest begin up to each.
    ended: Vec<(u64, u64)>,
}

/// Finds what is wrong with a register, and the edges that follow from it. Returns how many reads say nothing.
pub fn edges(
    history: &History,
    level: Level,
    writes: &[u32],
    reads: &[u32],
    edges: &mut Edges,
    findings: &mut Findings,
) -> u64 {
    let mut register = Register::new(history, level, writes);
    let mut unresolved = 0;
    for &number in reads {
        let Read { transaction, by_range, .. } = history.reads[number as usize];
        if !history.happened[transaction as usize] {
            continue;
        }
        match register.says(number, findings) {
            Says::Version(version) => {
                register.versions[version].readers.push((transaction, number, by_range))
            }
            Says::Nothing => unresolved += 1,
            Says::Wrong => {}
        }
    }
    for version in &mut register.versions {
        for (reader, ..) in &version.readers {
            let Entry { begin, end, .. } = history.entries[*reader as usize];
            version.there_by = version.there_by.min(end);
            version.there_from = version.there_from.max(begin);
        }
    }
    for version in &register.versions {
        for &(reader, read, _) in &version.readers {
            if let Some((writer, _)) = version.writer {
                edges.add(writer, reader, EdgeKind::WriteRead, read);
            }
        }
    }
    let read_then_written = register.read_then_written(findings);
    register.add(&read_then_written, false, edges);
    if register.strict {
        register.add(&register.in_time(), true, edges);
    }
    unresolved
}

impl<'h> Register<'h> {
    fn new(history: &'h History, level: Level, writes: &'h [u32]) -> Self {
        let initial = Version { writer: None, readers: Vec::new(), there_by: 0, there_from: 0 };
        let mut versions = vec![initial];
        let mut version_of = Vec::with_capacity(writes.len());
        let mut ended = Vec::new();
        for &number in writes {
            let Write { transaction, last, .. } = history.writes[number as usize];
            if !last || !history.happened[transaction as usize] {
                version_of.push(None);
                continue;
            }
            version_of.push(Some(versions.len()));
            let Entry { begin, end, .. } = history.entries[transaction as usize];
            let writer = Some((transaction, number));
            versions.push(Version { writer, readers: Vec::new(), there_by: end, there_from: begin });
            ended.push((end, begin));
        }
        ended.sort_unstable();
        let mut latest = 0;
        for (_, begin) in &mut ended {
            latest = latest.max(*begin);
            *begin = latest;
        }
        Self { history, strict: level == Level::StrictSerializable, writes, versions, version_of, ended }
    }

    /// Whose value a read found.
    fn says(&self, read: u32, findings: &mut Findings) -> Says {
        let Read { transaction, key, found, .. } = self.history.reads[read as usize];
        let crate::checker::Found::Value(value) = found else { return Says::Nothing };
        let candidates = writers(self.history, self.writes, value);
        if candidates.len() + usize::from(value == NOTHING) > 1 {
            return self.of_several(read, value, candidates, findings);
        }
        let reader = self.history.entries[transaction as usize].line;
        let (name, text) = (&self.history.names[key as usize], self.history.text(value));
        let Some(&write) = candidates.first() else {
            if value == NOTHING {
                return Says::Version(INITIAL);
            }
            findings.add(Kind::Garbage, false, vec![reader], || {
                vec![format!("T{reader} read {name:?} = {text}, which nobody wrote")]
            });
            return Says::Wrong;
        };
        let Write { transaction: from, last, .. } = self.history.writes[write as usize];
        let Entry { line: writer, outcome, .. } = self.history.entries[from as usize];
        let lines = vec![reader, writer];
        if from == transaction {
            findings.add(Kind::Internal, false, vec![reader], || {
                vec![format!("T{reader} read {name:?} = {text} before it wrote that")]
            });
        } else if outcome == Outcome::Aborted {
            findings.add(Kind::G1a, false, lines, || {
                vec![format!(
                    "T{reader} read {name:?} = {text}, which T{writer} had written, and T{writer} aborted"
                )]
            });
        } else if !last {
            findings.add(Kind::G1b, false, lines, || {
                vec![format!("T{reader} read {name:?} = {text}, which T{writer} wrote, and then wrote over")]
            });
        } else if let Some(version) = self.version(write) {
            return Says::Version(version);
        }
        Says::Wrong
    }

    /// One of several versions with the same value, if real time leaves one.
    fn of_several(&self, read: u32, value: u64, candidates: &[u32], findings: &mut Findings) -> Says {
        if !self.strict {
            return Says::Nothing;
        }
        let Read { transaction, key, .. } = self.history.reads[read as usize];
        let reader = &self.history.entries[transaction as usize];
        // The latest begin of the writes that were over before the reader began: what ended before it was written over by then.
        let over = self.ended.partition_point(|(end, _)| *end < reader.begin);
        let written_over = over.checked_sub(1).map(|last| self.ended[last].1);
        let mut possible = Vec::new();
        if value == NOTHING && written_over.is_none() {
            possible.push(INITIAL);
        }
        for &write in candidates {
            let Write { transaction: from, .. } = self.history.writes[write as usize];
            let writer = &self.history.entries[from as usize];
            let in_time = writer.begin <= reader.end && written_over.is_none_or(|begin| writer.end >= begin);
            if !in_time || from == transaction {
                continue;
            }
            match self.version(write) {
                Some(version) => possible.push(version),
                // It may have happened after all.
                None if writer.outcome == Outcome::Unknown => return Says::Nothing,
                None => {}
            }
        }
        match possible[..] {
            [version] => Says::Version(version),
            [] => {
                let (line, name) = (reader.line, &self.history.names[key as usize]);
                findings.add(Kind::GSingle, true, vec![line], || {
                    let text = self.history.text(value);
                    vec![format!("T{line} read {name:?} = {text}; whatever wrote that had been written over before T{line} began, or came later")]
                });
                Says::Wrong
            }
            _ => Says::Nothing,
        }
    }

    fn version(&self, write: u32) -> Option<usize> {
        let value = self.history.writes[write as usize].value;
        let from = self.writes.partition_point(|other| self.history.writes[*other as usize].value < value);
        let place = from + self.writes[from..].iter().position(|other| *other == write)?;
        self.version_of[place]
    }

    /// Pairs of versions, the second of which was written by somebody who had read the first; and what was there in the
    /// beginning, before those that nobody is known to have made of another.
    fn read_then_written(&self, findings: &mut Findings) -> Vec<(usize, usize)> {
        let mut version_by: Vec<(u32, usize)> = (0..)
            .zip(&self.versions)
            .filter_map(|(number, version)| Some((version.writer?.0, number)))
            .collect();
        version_by.sort_unstable();
        let mut pairs = Vec::new();
        let mut has_predecessor = vec![false; self.versions.len()];
        for (before, version) in self.versions.iter().enumerate() {
            let mut first: Option<(u32, u32)> = None;
            for &(reader, read, _) in &version.readers {
                let Ok(place) = version_by.binary_search_by_key(&reader, |(writer, _)| *writer) else {
                    continue;
                };
                let after = version_by[place].1;
                has_predecessor[after] = true;
                pairs.push((before, after));
                match first {
                    None => first = Some((reader, read)),
                    Some((other, _)) if other != reader => self.lost_update(other, reader, read, findings),
                    Some(_) => {}
                }
            }
        }
        let without = (1..self.versions.len()).filter(|version| !has_predecessor[*version]);
        pairs.extend(without.map(|version| (INITIAL, version)));
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    fn lost_update(&self, one: u32, other: u32, read: u32, findings: &mut Findings) {
        let Read { key, found, .. } = self.history.reads[read as usize];
        let crate::checker::Found::Value(value) = found else { return };
        let lines = [one, other].map(|number| self.history.entries[number as usize].line);
        findings.add(Kind::LostUpdate, false, lines.to_vec(), || {
            let (name, text) = (&self.history.names[key as usize], self.history.text(value));
            vec![format!("T{} and T{} both read {name:?} = {text} and wrote the key", lines[0], lines[1])]
        });
    }

    /// Pairs of versions, the first of which was there before the second could be, without those that follow from others.
    ///
    /// A version is an interval from when it was there at the latest to when it was there still. One comes before another if it was
    /// there before the other was seen by somebody for the last time. Between versions that agree with each other this is an
    /// interval order; where two do not, each before the other, both pairs are returned.
    fn in_time(&self) -> Vec<(usize, usize)> {
        let at = |version: usize| (self.versions[version].there_by, self.versions[version].there_from);
        let mut order: Vec<usize> = (1..self.versions.len()).collect();
        order.sort_unstable_by_key(|version| at(*version));
        let mut pairs = Vec::new();
        // The three that were there longest, among the first so many: (from, version).
        let mut longest = vec![[(0, usize::MAX); 3]];
        for &version in &order {
            let mut three = longest[longest.len() - 1];
            let (by, from) = at(version);
            let (other_from, other) = three[0];
            if other != usize::MAX && at(other).0 < from && by < other_from {
                pairs.extend([(version, other), (other, version)]);
            }
            let entry = (from, version);
            let place = three.iter().position(|(other, _)| *other <= from);
            if let Some(place) = place {
                three[place..].rotate_right(1);
                three[place] = entry;
            }
            longest.push(three);
        }
        for &after in &order {
            let before_it = order.partition_point(|version| at(*version).0 < at(after).1);
            let mut others = longest[before_it].iter().filter(|(_, version)| *version != after);
            let &(bound, longest_one) = others.next().expect("two are not this one");
            let next_bound = others.next().map_or(0, |(from, _)| *from);
            let mut has_longest = false;
            for &before in order[..before_it].iter().rev() {
                if at(before).0 < bound {
                    break;
                }
                has_longest |= before == longest_one;
                if before != after {
                    pairs.push((before, after));
                }
            }
            if longest_one != usize::MAX && !has_longest && at(longest_one).0 >= next_bound {
                pairs.push((longest_one, after));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    /// The edges of pairs of versions, sorted by the first.
    fn add(&self, pairs: &[(usize, usize)], timed: bool, edges: &mut Edges) {
        for group in pairs.chunk_by(|one, other| one.0 == other.0) {
            let before = &self.versions[group[0].0];
            let writers: Vec<(u32, u32)> =
                group.iter().filter_map(|(_, after)| self.versions[*after].writer).collect();
            if let Some((writer, _)) = before.writer {
                for &(next, write) in &writers {
                    edges.push(Edge::new(writer, next, EdgeKind::WriteWrite, write).timed(timed));
                }
            }
            edges.fan(&before.readers, &writers, timed);
        }
    }
}
