//! The program as its users meet it: arguments, output, exit status. A module for each group of commands.

mod backup;
mod history;
mod encryption;
mod measure;
mod records;
mod salvage;
mod shell;
mod support;
mod transfer;
