//! Progress on standard error: only on a terminal, and only for what takes longer than a second.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What takes less is not worth a bar.
const HIDDEN_FOR: Duration = Duration::from_secs(1);

/// A bar, or a spinner where the length is unknown.
pub struct Progress {
    bar: ProgressBar,
    begin: Instant,
    shown: Cell<bool>,
}

impl Progress {
    /// Counts up to `total`, of which `unit` names one.
    pub fn counting(total: u64, what: &'static str, unit: &str) -> Self {
        let template =
            format!("{{msg}} [{{wide_bar}}] {{human_pos}}/{{human_len}} {unit}, {{per_sec}}, {{eta}} left");
        Self::new(ProgressBar::hidden(), Some(total), what, &template)
    }

    /// Counts bytes up to `total`.
    pub fn of_bytes(total: u64, what: &'static str) -> Self {
        let template = "{msg} [{wide_bar}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
        Self::new(ProgressBar::hidden(), Some(total), what, template)
    }

    /// Counts without knowing the end.
    pub fn open_ended(what: &'static str, unit: &str) -> Self {
        let template = format!("{{spinner}} {{msg}}: {{human_pos}} {unit}, {{per_sec}}, {{elapsed}}");
        Self::new(ProgressBar::hidden(), None, what, &template)
    }

    /// Turns while something works that tells nothing, on a thread of its own; the first turn comes after a second.
    pub fn turning(what: &'static str) -> Self {
        let progress = Self::new(ProgressBar::hidden(), None, what, "{spinner} {msg}, {elapsed}");
        progress.show();
        progress.bar.enable_steady_tick(HIDDEN_FOR);
        progress
    }

    /// A line of text that changes.
    pub fn of_text() -> Self {
        let progress = Self::new(ProgressBar::hidden(), None, "", "{spinner} {msg}");
        progress.show();
        progress
    }

    fn new(bar: ProgressBar, total: Option<u64>, what: &'static str, template: &str) -> Self {
        if let Some(total) = total {
            bar.set_length(total);
        }
        // The templates are constants of this file.
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
        bar.set_style(style);
        bar.set_message(what);
        Self { bar, begin: Instant::now(), shown: Cell::new(false) }
    }

    /// How far it is.
    pub fn set(&self, position: u64) {
        self.bar.set_position(position);
        if !self.shown.get() && self.begin.elapsed() >= HIDDEN_FOR {
            self.show();
        }
    }

    /// The text of [`Progress::of_text`].
    pub fn text(&self, text: String) {
        self.bar.set_message(text);
        self.bar.tick();
    }

    /// Prints a line above the bar (on standard error).
    pub fn note(&self, line: &str) {
        self.bar.suspend(|| output::note(line));
    }

    fn show(&self) {
        self.shown.set(true);
        // The library draws nothing if standard error is not a terminal.
        self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
