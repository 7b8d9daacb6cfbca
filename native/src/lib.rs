//! The batch kernel of rmqha behind a C ABI: what `rmqha/kernel/python_kernel.py` does, byte for byte.
//!
//! All memory is the caller's, and nothing is remembered between calls. Only `border` is unsafe: it makes slices of the
//! caller's pointers. The rest indexes nothing without a check, so hostile bytes end as "not plain" and never as a panic.

#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answer;
mod batch;
pub mod border;
mod columns;
mod header;
mod input;
mod keys;
mod output;
mod properties;
mod rules;
mod scan;
mod sends;
mod signed;
mod sound;

#[cfg(test)]
mod tests;
