//! The program as its users meet it: arguments, output, exit status. A module for each group of commands.

mod backup;
mod encryption;
mod history;
mod measure;
mod records;
mod salvage;
mod shell;
mod support;
mod transfer;
