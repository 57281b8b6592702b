//! The program, killed with SIGKILL at random moments, recoveries included, loses no acknowledged commit.

use std::process::Command;

/// Under a memory limit, on a device that fails, with the power cut, and without room for files.
#[test]
fn rounds_of_adversity_lose_nothing() {
    for adversity in ["memory", "device", "power", "full"] {
        // Too little memory, or no room for a file that is longer, is met by chance, and need not end the process. What must
        // end it does so after some work, before it is killed: where there is little time for that it gets more.
        let must_end = ["device", "power"].contains(&adversity);
        let mut longest = ["0.2", "2", "20"].into_iter();
        while let Some(seconds) = longest.next() {
            let report = rounds_of(adversity, seconds);
            let bad = (report["lost"].as_u64(), report["half_applied"].as_u64());
            assert_eq!(
                (bad, report["rounds"].as_u64()),
                ((Some(0), Some(0)), Some(6)),
                "{adversity}: {report}"
            );
            if !must_end || report["ended_itself"].as_u64().unwrap() > 0 {
                break;
            }
            assert!(longest.len() > 0, "{adversity}: {report}");
        }
    }
}

/// The report of six rounds with this adversity, each of so many seconds at most.
fn rounds_of(adversity: &str, seconds: &str) -> serde_json::Value {
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_deuteron"))
        .args(["kill-rounds", "--json", "--rounds", "6", "--records", "1000", "--seconds-max", seconds])
        .args(["--adversity", adversity, "--dir"])
        .arg(scratch.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{adversity}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn rounds_of_kill_lose_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_deuteron"))
        .args([
            "kill-rounds",
            "--json",
            "--rounds",
            "4",
            "--records",
            "3000",
            "--seconds-max",
            "0.5",
            "--dir",
        ])
        .arg(scratch.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["lost"].as_u64(), report["half_applied"].as_u64()), (Some(0), Some(0)), "{report}");
    assert_eq!(report["rounds"], 4);
    assert!(report["acknowledged"].as_u64().unwrap() > 0, "{report}");
    assert!(report["interrupted_recoveries"].as_u64().unwrap() > 0, "{report}");
}
