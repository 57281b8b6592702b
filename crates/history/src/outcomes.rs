//! Which transactions of unknown outcome happened: those whose writes were seen by one that happened. The others are taken not
//! to have happened, which explains everything that their happening would.

use crate::checker::{ByKey, Found, History, NOTHING, writers};
use crate::report::Findings;
use crate::{Outcome, lists};
use foldhash::{HashMap, HashMapExt};

/// Fills [`History::happened`], and takes in the lists that those transactions read.
pub fn decide(history: &mut History, writes_by_key: &ByKey, findings: &mut Findings) {
    history.happened = history.entries.iter().map(|entry| entry.outcome == Outcome::Committed).collect();
    if history.entries.iter().all(|entry| entry.outcome != Outcome::Unknown) {
        return;
    }
    let lists_read: HashMap<u32, Vec<u64>> = std::mem::take(&mut history.undecided).into_iter().collect();
    // Elements of each list whose writers have been looked at.
    let mut looked_at = HashMap::<u32, usize>::new();
    let mut to_do: Vec<u32> =
        (0..).zip(&history.happened).filter_map(|(number, yes)| yes.then_some(number)).collect();
    while let Some(transaction) = to_do.pop() {
        for read in reads_of(history, transaction) {
            let key = history.reads[read].key;
            let writes = writes_by_key.get(key as usize);
            let mut seen = Vec::new();
            match history.reads[read].found {
                Found::Value(NOTHING) => {}
                Found::Value(value) => seen.push(value),
                Found::Elements(count) => {
                    if let Some(elements) = lists_read.get(&(read as u32)) {
                        lists::extend(history, key, transaction, elements, findings);
                    }
                    let from = looked_at.entry(key).or_default();
                    let longest = &history.longest[key as usize].elements;
                    let end = (count as usize).min(longest.len());
                    seen.extend(longest.get(*from..end).unwrap_or_default());
                    *from = end.max(*from);
                }
            }
            for value in seen {
                let found = writers(history, writes, value);
                // Of several that wrote the same value it is not known whose was seen.
                if let &[write] = found {
                    let writer = history.writes[write as usize].transaction;
                    let outcome = history.entries[writer as usize].outcome;
                    if outcome == Outcome::Unknown
                        && !std::mem::replace(&mut history.happened[writer as usize], true)
                    {
                        to_do.push(writer);
                    }
                }
            }
        }
    }
}

fn reads_of(history: &History, transaction: u32) -> std::ops::Range<usize> {
    let next = history.entries.get(transaction as usize + 1);
    let end = next.map_or(history.reads.len(), |next| next.reads_from as usize);
    history.entries[transaction as usize].reads_from as usize..end
}
