//! Cycles: where there are any, the shortest that can be found of each kind.
//!
//! A cycle lies within a strongly connected component. The components are taken for one set of edges after the other, from the
//! gravest kind of cycle to the mildest, without real time first. In each, the cheapest way back is searched from the
//! edges that make the kind.

use crate::checker::History;
use crate::graph::{Edge, EdgeKind, Graph, Search};
use crate::{Kind, Level};

/// Components of one stage that are looked into.
const COMPONENTS_MAX: usize = 64;

/// Edges of a component from which a way back is searched.
const STARTS_MAX: usize = 256;

/// Edges that one search may look at, unless it is the last resort.
const EDGES_MAX: u64 = 1 << 20;

/// Edges that all searches together may look at.
const BUDGET: u64 = 1 << 29;

/// What a cycle is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Writes over writes.
    Writes,
    /// And reads of writes, at least one.
    Reads,
    /// And, never twice in a row, writes over what was read.
    Apart,
    /// Anything.
    All,
}

impl Stage {
    /// Bit 0 of a state: the last step was a write over what had been read.
    fn step(self, real_time: bool, state: u32, edge: &Edge) -> Option<u32> {
        if edge.is_timed() && !real_time {
            return None;
        }
        match edge.kind() {
            EdgeKind::Free => Some(state),
            EdgeKind::RealTime => Some(0),
            // An order of writes that is known from readers and time only goes with the kinds in which there are readers.
            EdgeKind::WriteWrite => {
                (!edge.is_timed() || matches!(self, Stage::Apart | Stage::All)).then_some(0)
            }
            EdgeKind::WriteRead => (self != Stage::Writes).then_some(0),
            EdgeKind::ReadWrite | EdgeKind::RangeWrite => match self {
                Stage::Writes | Stage::Reads => None,
                Stage::Apart => (state == 0).then_some(1),
                Stage::All => Some(0),
            },
        }
    }

    fn states(self) -> u32 {
        if self == Stage::Apart { 2 } else { 1 }
    }

    /// Whether a cycle of this stage is looked for from such an edge on.
    fn starts_with(self, kind: EdgeKind) -> bool {
        match self {
            Stage::Writes => kind == EdgeKind::WriteWrite,
            Stage::Reads => kind == EdgeKind::WriteRead,
            Stage::Apart | Stage::All => kind.is_anti_dependency(),
        }
    }
}

/// Calls `found` with cycles, and whether they need real time. Returns in how many components there are any.
pub fn find(graph: &Graph, level: Level, mut found: impl FnMut(&[Edge], bool)) -> u64 {
    let strict = level == Level::StrictSerializable;
    let (all, stages) = match level {
        Level::ReadCommitted => (Stage::Reads, &[Stage::Writes, Stage::Reads][..]),
        Level::Snapshot => (Stage::Apart, &[Stage::Writes, Stage::Reads, Stage::Apart][..]),
        _ => (Stage::All, &[Stage::Writes, Stage::Reads, Stage::Apart, Stage::All][..]),
    };
    let components = |stage: Stage, real_time: bool| {
        graph.components(stage.states(), |state, edge| stage.step(real_time, state, edge))
    };
    let count = components(all, strict).len() as u64;
    if count == 0 {
        return 0;
    }
    let mut search = Search::new(graph, 2, BUDGET);
    let mut component_of = vec![0u32; graph.nodes() as usize];
    let mut round = 0;
    for real_time in [false, true].into_iter().take(1 + usize::from(strict)) {
        for &stage in stages {
            let mut components = components(stage, real_time);
            components.sort_by_key(Vec::len);
            components.truncate(COMPONENTS_MAX);
            for mut component in components {
                component.iter_mut().for_each(|node| *node /= stage.states());
                component.sort_unstable();
                component.dedup();
                round += 1;
                component.iter().for_each(|node| component_of[*node as usize] = round);
                let within = |edge: &Edge| component_of[edge.to as usize] == round;
                if let Some(cycle) = shortest(graph, &mut search, stage, real_time, &component, &within) {
                    let timed = cycle.iter().any(Edge::is_timed);
                    found(&contracted(cycle, graph), timed);
                }
            }
        }
    }
    count
}

/// The shortest cycle of a component that is found with reasonable effort.
fn shortest(
    graph: &Graph,
    search: &mut Search,
    stage: Stage,
    real_time: bool,
    component: &[u32],
    within: &impl Fn(&Edge) -> bool,
) -> Option<Vec<Edge>> {
    let starts: Vec<Edge> = component
        .iter()
        .flat_map(|node| graph.edges(*node))
        .filter(|edge| stage.starts_with(edge.kind()) && within(edge) && (real_time || !edge.is_timed()))
        .copied()
        .collect();
    let mut best: Option<Vec<Edge>> = None;
    let try_from =
        |search: &mut Search, start: Edge, single: bool, edges_max: u64, best: &mut Option<Vec<Edge>>| {
            // A cycle with one write over what was read is the graver one.
            let rest = if single { Stage::Reads } else { stage };
            let state = u32::from(rest == Stage::Apart);
            let step =
                |state: u32, edge: &Edge| within(edge).then(|| rest.step(real_time, state, edge)).flatten();
            let path = search.path(graph, (start.to, state), start.from, step, |state| state == 0, edges_max);
            if let Some(path) = path {
                let cost = |way: &[Edge]| way.iter().filter(|edge| edge.kind() != EdgeKind::Free).count();
                if best.as_ref().is_none_or(|best| cost(&path) + 1 < cost(best)) {
                    let mut cycle = vec![start];
                    cycle.extend(path);
                    *best = Some(cycle);
                }
            }
        };
    let stride = starts.len().div_ceil(STARTS_MAX).max(1);
    for single in [true, false] {
        if single && !matches!(stage, Stage::Apart) {
            continue;
        }
        for start in starts.iter().step_by(stride) {
            if search.budget == 0 {
                break;
            }
            try_from(search, *start, single, EDGES_MAX, &mut best);
        }
        if best.is_some() {
            return best;
        }
    }
    // What is there is found, if it takes a while: but some components have no cycle with such an edge.
    for start in starts.iter().step_by(stride).take(2) {
        try_from(search, *start, false, u64::MAX, &mut best);
    }
    best
}

/// The cycle without helpers: from one transaction to the next.
fn contracted(cycle: Vec<Edge>, graph: &Graph) -> Vec<Edge> {
    let mut steps: Vec<Edge> = Vec::new();
    for edge in cycle {
        match steps.last_mut() {
            Some(before) if before.to >= graph.transactions => before.to = edge.to,
            _ => steps.push(edge),
        }
    }
    steps
}

/// The kind of a cycle.
pub fn classify(cycle: &[Edge], history: &History) -> Kind {
    let anti = |edge: &Edge| edge.kind().is_anti_dependency();
    let count = cycle.iter().filter(|edge| anti(edge)).count();
    let key = |edge: &Edge| match edge.kind() {
        EdgeKind::WriteWrite => Some(history.writes[edge.cause() as usize].key),
        EdgeKind::ReadWrite | EdgeKind::WriteRead | EdgeKind::RangeWrite => {
            Some(history.reads[edge.cause() as usize].key)
        }
        EdgeKind::RealTime | EdgeKind::Free => None,
    };
    let of_writes = |edge: &Edge| anti(edge) || edge.kind() == EdgeKind::WriteWrite;
    match count {
        0 if cycle.iter().any(|edge| edge.kind() == EdgeKind::WriteRead) => Kind::G1c,
        0 => Kind::G0,
        _ if cycle.len() == 2 && cycle.iter().all(of_writes) && key(&cycle[0]) == key(&cycle[1]) => {
            Kind::LostUpdate
        }
        1 => Kind::GSingle,
        _ if (0..cycle.len()).all(|at| !anti(&cycle[at]) || !anti(&cycle[(at + 1) % cycle.len()])) => {
            Kind::GNonadjacent
        }
        _ if cycle.iter().any(|edge| edge.kind() == EdgeKind::RangeWrite) => Kind::G2,
        _ => Kind::G2Item,
    }
}
