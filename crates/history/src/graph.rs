//! The graph of a history: transactions, and which must come before which.
//!
//! # Model
//! Nodes are the transactions, then helpers. A *hub* stands between many transactions that all come before many others. A
//! *moment* stands for the end of a transaction: the moments are a chain in the order of time, each transaction leads to its
//! own, and the last moment before a transaction began leads to it. So real time, of which there are as many edges as pairs,
//! takes three for each transaction. An edge out of a helper costs nothing in a cycle: what led into it is the step.

use crate::checker::History;
use std::collections::VecDeque;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// The other wrote the next version of what this one wrote.
    WriteWrite,
    /// The other read what this one wrote.
    WriteRead,
    /// The other wrote over what this one read.
    ReadWrite,
    /// The other wrote what this one had not found in a range.
    RangeWrite,
    /// The other began after this one had ended.
    RealTime,
    /// Out of a helper.
    Free,
}

impl EdgeKind {
    const ALL: [EdgeKind; 6] = [
        EdgeKind::WriteWrite,
        EdgeKind::WriteRead,
        EdgeKind::ReadWrite,
        EdgeKind::RangeWrite,
        EdgeKind::RealTime,
        EdgeKind::Free,
    ];

    /// From a read to what came after.
    pub fn before(by_range: bool) -> Self {
        if by_range { EdgeKind::RangeWrite } else { EdgeKind::ReadWrite }
    }

    /// Whether it leads from a read to what came after.
    pub fn is_anti_dependency(self) -> bool {
        matches!(self, EdgeKind::ReadWrite | EdgeKind::RangeWrite)
    }
}

/// An edge, with the read or write that is its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: u32,
    pub to: u32,
    /// The kind in the highest 3 bits, then whether it follows from real time only, then the number of a read or a write:
    /// the write that came next, or the read.
    label: u32,
}

impl Edge {
    pub fn new(from: u32, to: u32, kind: EdgeKind, cause: u32) -> Self {
        Self { from, to, label: (kind as u32) << 29 | cause }
    }

    /// The same, if it follows only from who ended before whom.
    pub fn timed(self, timed: bool) -> Self {
        Self { label: self.label | u32::from(timed) << 28, ..self }
    }

    /// Whether it follows from real time.
    pub fn is_timed(&self) -> bool {
        self.label & 1 << 28 != 0 || self.kind() == EdgeKind::RealTime
    }

    pub fn kind(&self) -> EdgeKind {
        EdgeKind::ALL[(self.label >> 29) as usize]
    }

    pub fn cause(&self) -> u32 {
        self.label & ((1 << 28) - 1)
    }
}

/// Edges as they are found.
pub struct Edges {
    list: Vec<Edge>,
    transactions: u32,
    nodes: u32,
}

impl Edges {
    pub fn new(transactions: usize) -> Self {
        Self { list: Vec::new(), transactions: transactions as u32, nodes: transactions as u32 }
    }

    pub fn add(&mut self, from: u32, to: u32, kind: EdgeKind, cause: u32) {
        self.push(Edge::new(from, to, kind, cause));
    }

    /// An edge, unless it goes in a circle by itself.
    pub fn push(&mut self, edge: Edge) {
        if edge.from != edge.to {
            self.list.push(edge);
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn retain(&mut self, keep: impl FnMut(&Edge) -> bool) {
        self.list.retain(keep);
    }

    /// From each of the readers (transaction, read, whether by a range) to each of the writers (transaction, write) but itself: edge by edge
    /// while they are few, through a hub if not.
    pub fn fan(&mut self, readers: &[(u32, u32, bool)], writers: &[(u32, u32)], timed: bool) {
        let edge =
            |reader, to, by_range, read| Edge::new(reader, to, EdgeKind::before(by_range), read).timed(timed);
        if readers.len() * writers.len() <= 4 * (readers.len() + writers.len()) + 64 {
            for &(reader, read, by_range) in readers {
                for &(writer, _) in writers {
                    self.push(edge(reader, writer, by_range, read));
                }
            }
            return;
        }
        let mut sorted: Vec<u32> = writers.iter().map(|(writer, _)| *writer).collect();
        sorted.sort_unstable();
        let hub = self.nodes;
        self.nodes += 1;
        for &writer in &sorted {
            self.list.push(Edge::new(hub, writer, EdgeKind::Free, 0));
        }
        // Who is on both sides would come before itself. Two of those are a cycle, so few are enough.
        let (both, readers): (Vec<_>, Vec<_>) =
            readers.iter().partition(|(reader, ..)| sorted.binary_search(reader).is_ok());
        for (reader, read, by_range) in readers {
            self.list.push(edge(reader, hub, by_range, read));
        }
        for (index, &(reader, read, by_range)) in both.iter().enumerate() {
            let targets = if index < 4 { &sorted[..] } else { &[both[0].0] };
            for &writer in targets {
                self.push(edge(reader, writer, by_range, read));
            }
        }
    }
}

/// Edges by the node that they leave.
pub struct Graph {
    /// The nodes that are transactions come first.
    pub transactions: u32,
    starts: Vec<u32>,
    edges: Vec<Edge>,
}

impl Graph {
    /// Without real time.
    pub fn of(edges: Edges) -> Self {
        let Edges { mut list, transactions, nodes } = edges;
        let mut starts = vec![0u32; nodes as usize + 1];
        for edge in &list {
            starts[edge.from as usize + 1] += 1;
        }
        for node in 0..nodes as usize {
            starts[node + 1] += starts[node];
        }
        list.sort_unstable_by_key(|edge| edge.from);
        Self { transactions, starts, edges: list }
    }

    /// With the real time of the transactions that happened.
    pub fn in_real_time(mut edges: Edges, history: &History) -> Self {
        let mut ends: Vec<(u64, u32)> = (0..)
            .zip(&history.entries)
            .filter(|(number, entry)| history.happened[*number as usize] && entry.end != u64::MAX)
            .map(|(number, entry)| (entry.end, number))
            .collect();
        ends.sort_unstable();
        let first = edges.nodes;
        edges.nodes += ends.len() as u32;
        for (moment, &(_, number)) in (first..).zip(&ends) {
            edges.list.push(Edge::new(number, moment, EdgeKind::RealTime, 0));
            if moment > first {
                edges.list.push(Edge::new(moment - 1, moment, EdgeKind::Free, 0));
            }
        }
        for (number, entry) in (0..).zip(&history.entries) {
            let before = ends.partition_point(|(end, _)| *end < entry.begin) as u32;
            if before > 0 && history.happened[number as usize] {
                edges.list.push(Edge::new(first + before - 1, number, EdgeKind::Free, 0));
            }
        }
        Self::of(edges)
    }

    pub fn nodes(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// The edges that leave a node.
    pub fn edges(&self, node: u32) -> &[Edge] {
        &self.edges[self.range(node)]
    }

    fn range(&self, node: u32) -> std::ops::Range<usize> {
        self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize
    }

    /// The strongly connected components of more than one node. `states` is how many states each node has; a step from a
    /// state over an edge leads to a state of the edge's end, or nowhere. Tarjan's algorithm, without recursion: a history's
    /// paths are as long as the history.
    pub fn components(&self, states: u32, step: impl Fn(u32, &Edge) -> Option<u32>) -> Vec<Vec<u32>> {
        const UNSEEN: u32 = u32::MAX;
        let count = (self.nodes() * states) as usize;
        let (mut index, mut low) = (vec![UNSEEN; count], vec![0u32; count]);
        let mut on_stack = vec![false; count];
        let (mut stack, mut calls): (Vec<u32>, Vec<(u32, usize)>) = (Vec::new(), Vec::new());
        let (mut next, mut components) = (0, Vec::new());
        for root in 0..count as u32 {
            if index[root as usize] != UNSEEN {
                continue;
            }
            calls.push((root, usize::MAX));
            while let Some((node, at)) = calls.pop() {
                let range = self.range(node / states);
                let mut at = at;
                if at == usize::MAX {
                    (index[node as usize], low[node as usize]) = (next, next);
                    next += 1;
                    stack.push(node);
                    on_stack[node as usize] = true;
                    at = range.start;
                }
                let mut down = None;
                while at < range.end {
                    let edge = &self.edges[at];
                    at += 1;
                    let Some(state) = step(node % states, edge) else { continue };
                    let to = edge.to * states + state;
                    if index[to as usize] == UNSEEN {
                        down = Some(to);
                        break;
                    }
                    if on_stack[to as usize] {
                        low[node as usize] = low[node as usize].min(index[to as usize]);
                    }
                }
                if let Some(to) = down {
                    calls.push((node, at));
                    calls.push((to, usize::MAX));
                    continue;
                }
                if let Some((above, _)) = calls.last() {
                    low[*above as usize] = low[*above as usize].min(low[node as usize]);
                }
                if low[node as usize] == index[node as usize] {
                    let from = stack.iter().rposition(|other| *other == node).expect("it is on the stack");
                    let members = stack.split_off(from);
                    members.iter().for_each(|member| on_stack[*member as usize] = false);
                    if members.len() > 1 {
                        components.push(members);
                    }
                }
            }
        }
        components
    }
}

/// A search from one state of a node for the cheapest way to another, of steps that cost one or nothing.
pub struct Search {
    /// By state of a node: the search that has been there, what it cost, and from where.
    seen: Vec<(u32, u32, u32)>,
    /// The edge by which it came, as its place among those of the node before.
    by: Vec<u32>,
    round: u32,
    states: u32,
    /// Edges that may still be looked at.
    pub budget: u64,
}

impl Search {
    pub fn new(graph: &Graph, states: u32, budget: u64) -> Self {
        let count = (graph.nodes() * states) as usize;
        Self { seen: vec![(0, 0, 0); count], by: vec![0; count], round: 0, states, budget }
    }

    /// The edges of the cheapest way from (`from`, `state`) to a state of `to` that `arrived` accepts, looking at so many edges at most.
    pub fn path(
        &mut self,
        graph: &Graph,
        (from, state): (u32, u32),
        to: u32,
        step: impl Fn(u32, &Edge) -> Option<u32>,
        arrived: impl Fn(u32) -> bool,
        edges_max: u64,
    ) -> Option<Vec<Edge>> {
        self.round += 1;
        let start = from * self.states + state;
        self.seen[start as usize] = (self.round, 0, start);
        let mut queue = VecDeque::from([(start, 0)]);
        let mut looked_at = 0;
        while let Some((node, cost)) = queue.pop_front() {
            if self.seen[node as usize].1 < cost {
                continue;
            }
            if node / self.states == to && arrived(node % self.states) {
                return Some(self.way(graph, start, node));
            }
            for (place, edge) in graph.edges(node / self.states).iter().enumerate() {
                looked_at += 1;
                let Some(state) = step(node % self.states, edge) else { continue };
                let next = edge.to * self.states + state;
                let free = edge.kind() == EdgeKind::Free;
                let cost = cost + u32::from(!free);
                let seen = self.seen[next as usize];
                if seen.0 == self.round && seen.1 <= cost {
                    continue;
                }
                self.seen[next as usize] = (self.round, cost, node);
                self.by[next as usize] = place as u32;
                if free {
                    queue.push_front((next, cost));
                } else {
                    queue.push_back((next, cost));
                }
            }
            if looked_at > edges_max {
                break;
            }
        }
        self.budget = self.budget.saturating_sub(looked_at);
        None
    }

    fn way(&mut self, graph: &Graph, start: u32, mut node: u32) -> Vec<Edge> {
        let mut way = Vec::new();
        while node != start {
            let before = self.seen[node as usize].2;
            way.push(graph.edges(before / self.states)[self.by[node as usize] as usize]);
            node = before;
        }
        way.reverse();
        way
    }
}
