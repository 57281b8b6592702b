//! Lists: each read shows the order of all appends before it, so that the versions of a list are the beginnings of the
//! longest one read.
//!
//! Behind the longest come, in some order, the appends that nobody read.

use crate::checker::{Found, History, NOTHING, Read, writers};
use crate::graph::{EdgeKind, Edges};
use crate::report::Findings;
use crate::{Kind, Outcome};

/// Takes a list that was read in: it must be a beginning of the longest, or the longest one of it.
pub fn extend(history: &mut History, key: u32, reader: u32, elements: &[u64], findings: &mut Findings) {
    let longest = &mut history.longest[key as usize];
    let common = longest.elements.len().min(elements.len());
    if longest.elements[..common] != elements[..common] {
        let lines = [longest.reader, reader].map(|reader| history.entries[reader as usize].line);
        let at = longest.elements.iter().zip(elements).position(|(one, other)| one != other).unwrap_or(0);
        let name = &history.names[key as usize];
        findings.add(Kind::IncompatibleOrder, false, lines.to_vec(), || {
            vec![format!(
                "T{} and T{} read {name:?} with different elements at place {at}",
                lines[0], lines[1]
            )]
        });
    } else if elements.len() > longest.elements.len() {
        longest.elements = elements.to_vec();
        longest.reader = reader;
    }
}

/// Finds what is wrong with a list, and the edges that follow from it. Returns how many reads say nothing.
pub fn edges(
    history: &History,
    key: usize,
    writes: &[u32],
    reads: &[u32],
    edges: &mut Edges,
    findings: &mut Findings,
) -> u64 {
    let longest = &history.longest[key];
    let Some(owners) = owners(history, key, writes, findings) else { return reads.len() as u64 };
    let owner = |place: usize| owners[place].map(|write| history.writes[write as usize].transaction);
    for (before, after) in owners.iter().zip(owners.iter().skip(1)) {
        if let (&Some(before), &Some(after)) = (before, after) {
            edges.add(writer(history, before), writer(history, after), EdgeKind::WriteWrite, after);
        }
    }
    // Who came last, and what nobody read.
    let mut owned: Vec<u32> = owners.iter().copied().flatten().collect();
    owned.sort_unstable();
    let is_unread = |write: &&u32| {
        history.happened[writer(history, **write) as usize] && owned.binary_search(*write).is_err()
    };
    let unread: Vec<(u32, u32)> =
        writes.iter().filter(is_unread).map(|write| (writer(history, *write), *write)).collect();
    if let Some(&Some(last)) = owners.last() {
        for &(transaction, write) in &unread {
            edges.add(writer(history, last), transaction, EdgeKind::WriteWrite, write);
        }
    }
    let mut appenders: Vec<u32> = writes.iter().map(|write| writer(history, *write)).collect();
    appenders.sort_unstable();
    // Who appended to a list that he had read, by its length.
    let mut changed: Vec<(usize, u32)> = Vec::new();
    let mut readers_of_all = Vec::new();
    for &number in reads {
        let Read { transaction, found, by_range, .. } = history.reads[number as usize];
        let count = match found {
            Found::Elements(count) => count as usize,
            Found::Value(NOTHING) => 0,
            Found::Value(value) => {
                let (line, name) = (history.entries[transaction as usize].line, &history.names[key]);
                findings.add(Kind::Garbage, false, vec![line], || {
                    vec![format!("T{line} read {name:?} = {}, which is a list", history.text(value))]
                });
                continue;
            }
        };
        // One that disagrees has been reported.
        if !history.happened[transaction as usize] || count > longest.elements.len() {
            continue;
        }
        if appenders.binary_search(&transaction).is_ok() {
            changed.push((count, transaction));
            if (0..count).any(|place| owner(place) == Some(transaction)) {
                let (line, name) = (history.entries[transaction as usize].line, &history.names[key]);
                findings.add(Kind::Internal, false, vec![line], || {
                    vec![format!("T{line} read {name:?} with an element that it appended only later")]
                });
                continue;
            }
        }
        if let Some(before) = count.checked_sub(1) {
            if intermediate(history, key, number, before, &owners, findings) {
                continue;
            }
            if let Some(write) = owners[before] {
                edges.add(writer(history, write), transaction, EdgeKind::WriteRead, number);
            }
        }
        match owners.get(count) {
            Some(_) => {
                if let Some(next) = owner(count) {
                    edges.add(transaction, next, EdgeKind::before(by_range), number);
                }
            }
            None => readers_of_all.push((transaction, number, by_range)),
        }
    }
    edges.fan(&readers_of_all, &unread, false);
    lost_updates(history, key, changed, findings);
    0
}

/// Two that appended to the same state of a list, which both had read.
fn lost_updates(history: &History, key: usize, mut changed: Vec<(usize, u32)>, findings: &mut Findings) {
    changed.sort_unstable();
    changed.dedup();
    for pair in changed.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let lines = [pair[0].1, pair[1].1].map(|number| history.entries[number as usize].line);
        let (name, count) = (&history.names[key], pair[0].0);
        findings.add(Kind::LostUpdate, false, lines.to_vec(), || {
            vec![format!(
                "T{} and T{} both read {name:?} with {count} elements and appended to it",
                lines[0], lines[1]
            )]
        });
    }
}

fn writer(history: &History, write: u32) -> u32 {
    history.writes[write as usize].transaction
}

/// The write of each element of the longest list; `None` at all if elements were appended more than once.
fn owners(
    history: &History,
    key: usize,
    writes: &[u32],
    findings: &mut Findings,
) -> Option<Vec<Option<u32>>> {
    let longest = &history.longest[key];
    let values =
        |pair: &[u32]| history.writes[pair[0] as usize].value == history.writes[pair[1] as usize].value;
    if writes.windows(2).any(values) {
        return None;
    }
    let name = &history.names[key];
    let reader = history.entries.get(longest.reader as usize).map_or(0, |entry| entry.line);
    let mut owners = Vec::with_capacity(longest.elements.len());
    for &element in &longest.elements {
        let owner = writers(history, writes, element).first().copied();
        match owner.map(|write| &history.entries[writer(history, write) as usize]) {
            None => findings.add(Kind::Garbage, false, vec![reader], || {
                vec![format!(
                    "T{reader} read in {name:?} the element {}, which nobody appended",
                    history.text(element)
                )]
            }),
            Some(entry) if entry.outcome == Outcome::Aborted => {
                let lines = vec![reader, entry.line];
                findings.add(Kind::G1a, false, lines, || {
                    let (element, aborted) = (history.text(element), entry.line);
                    vec![format!("T{reader} read in {name:?} the element {element}, which T{aborted} had appended, and T{aborted} aborted")]
                });
            }
            Some(_) => {}
        }
        owners.push(owner);
    }
    let mut sorted: Vec<u64> = longest.elements.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        findings.add(Kind::Duplicate, false, vec![reader], || {
            vec![format!("T{reader} read the element {} twice in {name:?}", history.text(twice[0]))]
        });
        return None;
    }
    Some(owners)
}

/// Whether the last element that a read saw is one of several that its writer appended, and not the last of them.
fn intermediate(
    history: &History,
    key: usize,
    read: u32,
    place: usize,
    owners: &[Option<u32>],
    findings: &mut Findings,
) -> bool {
    let reader = history.reads[read as usize].transaction;
    let Some(write) = owners[place] else { return false };
    let from = writer(history, write);
    let later = |other: usize| other > write as usize && history.writes[other].key as usize == key;
    let is_intermediate = from != reader && history.writes_of(from).any(later);
    if is_intermediate {
        let lines = [reader, from].map(|number| history.entries[number as usize].line);
        let name = &history.names[key];
        findings.add(Kind::G1b, false, lines.to_vec(), || {
            vec![format!(
                "T{} read {name:?} while T{} had appended some of its elements, but not all",
                lines[0], lines[1]
            )]
        });
    }
    is_intermediate
}
