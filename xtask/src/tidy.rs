//! What no compiler checks: which crate may use which, module documents, leftovers.
//!
//! It is also a test, so that `cargo test --workspace` holds the architecture.

use crate::workspace::root;
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The crates that each crate may use, lowest first. A new edge is a change of the architecture: say so in the
/// commit, and in `ARCHITECTURE.md`.
const EDGES: &[(&str, &[&str])] = &[
    ("deuteron-canary", &[]),
    ("deuteron-device", &[]),
    ("deuteron-histogram", &[]),
    ("deuteron-epoch", &["deuteron-canary", "deuteron-histogram"]),
    ("deuteron-pool", &[]),
    ("deuteron-contract", &["deuteron-histogram"]),
    ("deuteron-history", &[]),
    ("deuteron-fuzz", &[]),
    ("deuteron-archive", &["deuteron-device"]),
    ("deuteron-encryption", &["deuteron-device"]),
    (
        "deuteron-llama",
        &["deuteron-canary", "deuteron-device", "deuteron-epoch", "deuteron-histogram", "deuteron-pool"],
    ),
    ("deuteron-bwtree", &["deuteron-canary", "deuteron-llama", "deuteron-epoch", "deuteron-histogram"]),
    (
        "deuteron-dc",
        &[
            "deuteron-contract",
            "deuteron-bwtree",
            "deuteron-llama",
            "deuteron-device",
            "deuteron-epoch",
            "deuteron-histogram",
        ],
    ),
    (
        "deuteron-store",
        &[
            "deuteron-dc",
            "deuteron-archive",
            "deuteron-contract",
            "deuteron-device",
            "deuteron-epoch",
            "deuteron-histogram",
        ],
    ),
    (
        "deuteron-log",
        &["deuteron-canary", "deuteron-contract", "deuteron-device", "deuteron-epoch", "deuteron-histogram"],
    ),
    (
        "deuteron-proxy",
        &["deuteron-canary", "deuteron-log", "deuteron-contract", "deuteron-device", "deuteron-epoch"],
    ),
    (
        "deuteron-tc",
        &["deuteron-canary", "deuteron-log", "deuteron-contract", "deuteron-epoch", "deuteron-pool"],
    ),
    (
        "deuteron",
        &[
            "deuteron-canary",
            "deuteron-tc",
            "deuteron-proxy",
            "deuteron-log",
            "deuteron-dc",
            "deuteron-archive",
            "deuteron-contract",
            "deuteron-device",
            "deuteron-epoch",
            "deuteron-histogram",
            "deuteron-history",
            "deuteron-pool",
        ],
    ),
    ("deuteron-simulation", &["deuteron"]),
    ("deuteron-bench", &["deuteron"]),
    ("deuteron-cli", &["deuteron", "deuteron-bench", "deuteron-history", "deuteron-encryption"]),
    ("xtask", &["deuteron-canary"]),
];

/// What the tests of a crate may use beyond [`EDGES`]: a device to stand on, a neighbour to talk to.
const TEST_EDGES: &[(&str, &[&str])] = &[
    ("deuteron-device", &["deuteron-encryption"]),
    ("deuteron-history", &["deuteron-fuzz"]),
    ("deuteron-log", &["deuteron-fuzz"]),
    ("deuteron-llama", &["deuteron-fuzz"]),
    ("deuteron-bwtree", &["deuteron-device", "deuteron-fuzz"]),
    ("deuteron-dc", &["deuteron-fuzz"]),
    ("deuteron-tc", &["deuteron-device", "deuteron-fuzz", "deuteron-history", "deuteron-proxy"]),
    ("deuteron", &["deuteron-encryption", "deuteron-fuzz"]),
    ("deuteron-cli", &["deuteron-fuzz"]),
];

/// Text that may not stay in the sources, and why. Cut in two, so that this file is tidy itself.
const LEFTOVERS: &[(&str, &str, &str)] = &[
    ("todo", "!(", "unfinished code does not get in"),
    ("unimplemented", "!(", "unfinished code does not get in"),
    ("dbg", "!(", "a leftover of debugging"),
    ("#[ig", "nore", "a test that is never run proves nothing"),
];

/// Runs the checks and prints what is wrong.
pub fn run() -> Result<bool, String> {
    let problems = problems(root())?;
    for problem in &problems {
        println!("{problem}");
    }
    Ok(problems.is_empty())
}

/// Everything that is wrong, a line each.
fn problems(root: &Path) -> Result<Vec<String>, String> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .map_err(|error| format!("cannot read the workspace: {error}"))?;
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    let models = std::fs::read_to_string(root.join("docs/models.md")).unwrap_or_default();
    let mut problems = edge_problems(&edges(&metadata));
    problems.extend(document_problems(&metadata, &architecture));
    for directory in ["crates", "xtask"] {
        for file in rust_files(&root.join(directory))? {
            let text = std::fs::read_to_string(&file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            problems.extend(source_problems(&name, &text));
            problems.extend(model_problems(&name, &text, &models));
        }
    }
    Ok(problems)
}

/// The edges of one crate that are in the workspace.
#[derive(Debug, Default)]
struct CrateEdges {
    /// Of the library and its build.
    uses: Vec<String>,
    /// Of its tests.
    tests_use: Vec<String>,
}

/// What each crate of the workspace uses of the workspace.
fn edges(metadata: &Metadata) -> BTreeMap<String, CrateEdges> {
    let members = metadata.workspace_packages();
    let is_member = |name: &str| members.iter().any(|member| member.name.as_str() == name);
    members
        .iter()
        .map(|member| {
            let mut edges = CrateEdges::default();
            for dependency in member.dependencies.iter().filter(|dependency| is_member(&dependency.name)) {
                match dependency.kind {
                    DependencyKind::Development => edges.tests_use.push(dependency.name.clone()),
                    _ => edges.uses.push(dependency.name.clone()),
                }
            }
            (member.name.to_string(), edges)
        })
        .collect()
}

fn allowed(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(listed, _)| *listed == name).map(|&(_, uses)| uses)
}

fn edge_problems(found: &BTreeMap<String, CrateEdges>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, edges) in found {
        let Some(uses) = allowed(EDGES, name) else {
            problems.push(format!("crate {name} is not in the list of edges (xtask/src/tidy.rs)"));
            continue;
        };
        let tests_use = allowed(TEST_EDGES, name).unwrap_or_default();
        for used in &edges.uses {
            if !uses.contains(&used.as_str()) {
                problems.push(format!("{name} may not use {used}: the architecture has no such edge"));
            }
        }
        for used in &edges.tests_use {
            if !uses.contains(&used.as_str()) && !tests_use.contains(&used.as_str()) {
                problems.push(format!(
                    "the tests of {name} may not use {used}: the architecture has no such edge"
                ));
            }
        }
    }
    problems
}

/// Every crate has its place in `ARCHITECTURE.md`.
fn document_problems(metadata: &Metadata, architecture: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for member in metadata.workspace_packages() {
        let directory =
            member.manifest_path.parent().map(|path| path.as_std_path().to_owned()).unwrap_or_default();
        let place = directory.strip_prefix(root()).unwrap_or(&directory).display().to_string();
        if !architecture.contains(&place) {
            problems.push(format!("ARCHITECTURE.md does not name {place}"));
        }
    }
    problems
}

/// One file's module document and leftovers.
fn source_problems(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        problems.push(format!("{name}:1: the file has no module document (//!)"));
    }
    for (number, line) in text.lines().enumerate() {
        for (start, end, why) in LEFTOVERS {
            if line.find(start).is_some_and(|at| line[at + start.len()..].starts_with(end)) {
                problems.push(format!("{name}:{}: {start}{end}: {why}", number + 1));
            }
        }
    }
    problems
}

/// Every loom model is in the table of `docs/models.md`.
fn model_problems(name: &str, text: &str, models: &str) -> Vec<String> {
    let begin = match name.ends_with("loom_tests.rs") {
        true => Some(0),
        false => text.find("\n#[cfg(all(test, loom))]\nmod loom_tests {"),
    };
    let tests = begin.map_or("", |begin| &text[begin..]);
    // What is indented less than the module's contents is behind it.
    let tests = tests.split_once("\n}\n\n#[cfg(").map_or(tests, |(tests, _)| tests);
    let mut lines = tests.lines().map(str::trim);
    let mut problems = Vec::new();
    while lines.any(|line| line == "#[test]") {
        let mut declared = lines.by_ref().filter_map(|line| line.strip_prefix("fn "));
        let model = declared.next().and_then(|rest| rest.split_once('(')).map_or("", |(model, _)| model);
        if !models.contains(&format!("`{model}`")) {
            problems.push(format!("{name}: docs/models.md does not name the model {model}"));
        }
    }
    problems
}

/// All Rust sources under a directory, sorted.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(directory)
        .map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let problems = problems(root()).unwrap();
        assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    }

    #[test]
    fn the_list_of_edges_has_no_cycle() {
        // Lowest first: a crate uses only what stands above it in the list.
        for (index, (name, uses)) in EDGES.iter().enumerate() {
            for used in *uses {
                assert!(EDGES[..index].iter().any(|(lower, _)| lower == used), "{name} uses {used}");
            }
        }
    }

    #[test]
    fn a_forbidden_edge_is_caught() {
        let upward = |name: &str, uses: &[&str], tests_use: &[&str]| {
            let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            edge_problems(&BTreeMap::from([(
                name.to_owned(),
                CrateEdges { uses: own(uses), tests_use: own(tests_use) },
            )]))
        };
        assert_eq!(upward("deuteron-tc", &["deuteron-dc"], &[]).len(), 1);
        assert_eq!(upward("deuteron-tc", &["deuteron-proxy"], &[]).len(), 1);
        assert_eq!(upward("deuteron-tc", &[], &["deuteron-bwtree"]).len(), 1);
        assert_eq!(upward("deuteron-new", &[], &[]).len(), 1);
        assert!(upward("deuteron-tc", &["deuteron-log"], &["deuteron-proxy"]).is_empty());
    }

    #[test]
    fn a_model_without_its_line_is_caught() {
        let tests =
            "mod a {\n    #[test]\n    fn one() {}\n\n    #[test]\n    #[should_panic]\n    fn two() {}\n}\n";
        let table = "| `a.rs` | `one` | a property |";
        assert_eq!(model_problems("a/loom_tests.rs", tests, table).len(), 1);
        let inline = "#[cfg(all(test, not(loom)))]\nmod tests {\n    #[test]\n    fn three() {}\n}\n\n";
        let inline = format!("{inline}#[cfg(all(test, loom))]\n{}", tests.replace("mod a", "mod loom_tests"));
        assert_eq!(model_problems("b.rs", &inline, table).len(), 1);
        let behind = "\n#[cfg(all(test, not(loom)))]\nmod tests {\n    #[test]\n    fn three() {}\n}\n";
        assert_eq!(model_problems("b.rs", &format!("{inline}{behind}"), table).len(), 1);
        assert!(model_problems("c.rs", "mod tests {\n    #[test]\n    fn four() {}\n}\n", table).is_empty());
    }

    #[test]
    fn leftovers_and_missing_documents_are_caught() {
        for (start, end, _) in LEFTOVERS {
            let text = format!("//! A module.\nfn f() {{ {start}{end} }}\n");
            let problems = source_problems("a.rs", &text);
            assert_eq!(problems.len(), 1, "{start}{end}");
            assert!(problems[0].starts_with("a.rs:2: "), "{problems:?}");
        }
        assert_eq!(source_problems("a.rs", "fn f() {}\n").len(), 1);
        assert!(source_problems("a.rs", "//! A module.\nfn f() {}\n").is_empty());
    }
}
