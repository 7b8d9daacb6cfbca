//! The C ABI. Here pointers become slices; nothing else is unsafe.
//!
//! The caller keeps the memory of a call as long as it lasts, gives no memory twice, and calls from one thread at a time.

#![allow(unsafe_code)]

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice::{from_raw_parts, from_raw_parts_mut};

use crate::output::Writer;
use crate::rules::Rules;
use crate::scan::{scan, Found};
use crate::sends::{build, parse, Ground, Made, Queue, Row, UNIT_BYTES};

/// Raised with each change of what stands in this file.
pub const ABI_VERSION: i64 = 4;
const LISTS: usize = 6;
/// Nothing was done: the memory for records or answers is too small.
pub const FULL: i64 = -1;
/// Nothing was done: what the caller gave is not what the kernel knows.
pub const REFUSED: i64 = -2;
/// The kernel has a bug; it has printed where.
pub const PANICKED: i64 = -3;

/// What a call of `rmqha_sends_parse` and the following `rmqha_sends_build` work on, or one of `rmqha_scan`.
#[repr(C)]
pub struct Sends {
    pub rules: *const u8,
    pub rules_bytes: usize,
    pub rows: *mut Row,
    pub queues: *mut Queue,
    /// `record_limit` each: tail starts, ends, places, tags, store timestamps, records of each send.
    pub lists: *mut i64,
    /// `record_limit` entries.
    pub units: *mut u8,
    /// Rows, and queues, that there is memory for.
    pub row_limit: usize,
    /// Records that there is memory for, and entries.
    pub record_limit: usize,
    pub records: *mut u8,
    pub answers: *mut u8,
    /// Bytes that there is memory for, in each of the two.
    pub byte_limit: usize,
    pub phy_offset: i64,
    pub room_end: i64,
    pub stored_ms: i64,
    pub born_port: i64,
    pub born_bytes: usize,
    pub born_address: [u8; 16],
    // found by parse
    pub row_count: usize,
    pub queue_count: usize,
    /// Records that the rows may become.
    pub record_count: usize,
    // found by build
    pub made_count: usize,
    pub end: usize,
    pub records_bytes: usize,
    pub answers_bytes: usize,
}

/// Version of this interface.
#[no_mangle]
pub extern "C" fn rmqha_kernel_abi() -> i64 {
    ABI_VERSION
}

/// Bytes of a row, which the caller does not look into.
#[no_mangle]
pub extern "C" fn rmqha_kernel_row_bytes() -> usize {
    std::mem::size_of::<Row>()
}

/// Finds the sends at the front of `data` from `at` on, at most `max_count`; returns the number of queues that they are
/// for.
///
/// # Safety
/// `data` has `size` bytes; the pointers of `call` point to aligned memory of what their comments say.
#[no_mangle]
pub unsafe extern "C" fn rmqha_sends_parse(
    data: *const u8,
    size: usize,
    at: usize,
    max_count: usize,
    call: *mut Sends,
) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let data = unsafe { from_raw_parts(data, size) };
        let limit = call.row_limit.min(max_count);
        let rows = unsafe { from_raw_parts_mut(call.rows, limit) };
        let queues = unsafe { from_raw_parts_mut(call.queues, limit) };
        let Some(rules) = Rules::read(unsafe { from_raw_parts(call.rules, call.rules_bytes) }) else { return REFUSED };
        let found = parse(data, at, &rules, rows, queues);
        call.row_count = found.row_count;
        call.queue_count = found.queue_count;
        call.record_count = found.record_count;
        i64::try_from(found.queue_count).unwrap_or(REFUSED)
    })
}

/// Makes records, answers and entries of what parse has found in the same `data`, as far as it is plain; returns the
/// number of sends. There must be memory for `record_count` records.
///
/// # Safety
/// As for parse; `fields` has `fields_bytes` bytes. `at` and what parse has written are as they were.
#[no_mangle]
pub unsafe extern "C" fn rmqha_sends_build(
    data: *const u8,
    size: usize,
    at: usize,
    fields: *const u8,
    fields_bytes: usize,
    call: *mut Sends,
) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let data = unsafe { from_raw_parts(data, size) };
        let fields = unsafe { from_raw_parts(fields, fields_bytes) };
        let (rows_limit, limit) = (call.row_limit, call.record_limit);
        if call.row_count > rows_limit || call.queue_count > rows_limit || call.record_count > limit {
            return REFUSED;
        }
        let rows = unsafe { from_raw_parts(call.rows, call.row_count) };
        let queues = unsafe { from_raw_parts_mut(call.queues, call.queue_count) };
        let lists = unsafe { from_raw_parts_mut(call.lists, limit * LISTS) };
        let Some([tail_starts, ends, places, tags, _, counts]) = split(lists, limit) else { return REFUSED };
        let mut made = Made {
            records: Writer::new(unsafe { from_raw_parts_mut(call.records, call.byte_limit) }),
            answers: Writer::new(unsafe { from_raw_parts_mut(call.answers, call.byte_limit) }),
            tail_starts,
            ends,
            places,
            tags,
            counts,
            units: unsafe { from_raw_parts_mut(call.units, limit * UNIT_BYTES) },
        };
        let rules = Rules::read(unsafe { from_raw_parts(call.rules, call.rules_bytes) });
        let (Some(rules), Some(born_address)) = (rules, call.born_address.get(..call.born_bytes)) else {
            return REFUSED;
        };
        let Ok(born_port) = i32::try_from(call.born_port) else { return REFUSED };
        let (phy_offset, room_end, stored_ms) = (call.phy_offset, call.room_end, call.stored_ms);
        let ground = Ground { phy_offset, room_end, stored_ms, born_address, born_port, fields };
        let Ok(built) = build(data, at, &rules, &ground, rows, queues, &mut made) else { return FULL };
        call.end = built.end;
        call.made_count = built.record_count;
        call.records_bytes = made.records.size();
        call.answers_bytes = made.answers.size();
        i64::try_from(built.row_count).unwrap_or(REFUSED)
    })
}

/// Finds the plain records at the front of `data`, which begins at `phy_offset` of the log; at most `max_count`, of at
/// most `max_queues` queues. Returns the number of records; of the queues `call` has it.
///
/// # Safety
/// As for parse.
#[no_mangle]
pub unsafe extern "C" fn rmqha_scan(
    data: *const u8,
    size: usize,
    phy_offset: i64,
    max_count: usize,
    max_queues: usize,
    call: *mut Sends,
) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let data = unsafe { from_raw_parts(data, size) };
        let limit = call.record_limit;
        let queues = unsafe { from_raw_parts_mut(call.queues, call.row_limit.min(max_queues)) };
        let lists = unsafe { from_raw_parts_mut(call.lists, limit * LISTS) };
        let Some([tail_starts, ends, places, tags, stored_ms, _]) = split(lists, limit) else { return REFUSED };
        let Some(ends) = ends.get_mut(..limit.min(max_count)) else { return REFUSED };
        let units = unsafe { from_raw_parts_mut(call.units, limit * UNIT_BYTES) };
        let mut found = Found { tail_starts, ends, places, tags, stored_ms, units };
        let Ok((count, queue_count)) = scan(data, phy_offset, queues, &mut found) else { return REFUSED };
        call.queue_count = queue_count;
        i64::try_from(count).unwrap_or(REFUSED)
    })
}

/// The lists in one piece of memory, `limit` long each.
fn split(lists: &mut [i64], limit: usize) -> Option<[&mut [i64]; LISTS]> {
    let mut parts = lists.chunks_exact_mut(limit.max(1));
    Some([parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?])
}

/// A panic must not reach the caller's stack.
fn guarded(work: impl FnOnce() -> i64) -> i64 {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED)
}
