//! The C ABI. Here pointers become slices; nothing else is unsafe.
//!
//! The caller keeps the memory of a call as long as it lasts, gives no memory twice, and calls from one thread at a time.

#![allow(unsafe_code)]

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice::{from_raw_parts, from_raw_parts_mut};

use crate::columns::{
    bytes_of, decode, walk, Columns, Texts, Wanted, BODY, BORN, FLAG, KEY_LIST, PHY_OFFSET, QUEUE_ID, QUEUE_OFFSET,
    STORED, SYS_FLAG, TAG, TOPIC,
};
use crate::input::Cursor;
use crate::keys::{place, put_keys, IndexFile, Placed, Prefix, ENTRY_BYTES, NEW_ENTRY_BYTES};
use crate::output::Writer;
use crate::properties::Values;
use crate::rules::Rules;
use crate::scan::{scan, Found};
use crate::sends::{build, parse, Ground, Made, MadeSends, Part, Queue, Row, UNIT_BYTES};
use crate::signed::{signed, Signed};
use crate::sound::{collect, skip, Pull};

/// Raised with each change of what stands in this file.
pub const ABI_VERSION: i64 = 12;
const LISTS: usize = 9;
/// Nothing was done: the memory for records, answers or entries of the index is too small.
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
    /// `record_limit` each. Of sends: where the tail of its first record starts and ends, ends, places, numbers of records.
    /// Of records: ends, places, tags, store timestamps.
    pub lists: *mut i64,
    /// `record_limit` entries of queues.
    pub units: *mut u8,
    /// Rows, and queues, that there is memory for.
    pub row_limit: usize,
    /// Records that there is memory for, and entries.
    pub record_limit: usize,
    pub records: *mut u8,
    pub answers: *mut u8,
    /// Entries of the index.
    pub entries: *mut u8,
    /// Bytes that there is memory for, in each of the three.
    pub byte_limit: usize,
    pub phy_offset: i64,
    pub room_end: i64,
    pub stored_ms: i64,
    /// 0: nobody asks for entries of the index.
    pub is_keyed: i64,
    /// The connections whose frames `data` has.
    pub parts: *mut Part,
    pub part_count: usize,
    // found by parse
    pub row_count: usize,
    pub queue_count: usize,
    /// Records that the rows may become.
    pub record_count: usize,
    // found by build
    pub made_count: usize,
    pub records_bytes: usize,
    pub answers_bytes: usize,
    /// By scan too.
    pub entries_bytes: usize,
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

/// Finds the sends at the front of each part of `data`; returns the number of queues that they are for.
///
/// # Safety
/// `data` has `size` bytes; the pointers of `call` point to aligned memory of what their comments say.
#[no_mangle]
pub unsafe extern "C" fn rmqha_sends_parse(data: *const u8, size: usize, call: *mut Sends) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let data = unsafe { from_raw_parts(data, size) };
        let parts = unsafe { from_raw_parts_mut(call.parts, call.part_count) };
        let rows = unsafe { from_raw_parts_mut(call.rows, call.row_limit) };
        let queues = unsafe { from_raw_parts_mut(call.queues, call.row_limit) };
        let Some(rules) = Rules::read(unsafe { from_raw_parts(call.rules, call.rules_bytes) }) else { return REFUSED };
        let found = parse(data, parts, &rules, rows, queues);
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
/// As for parse; `fields` has `fields_bytes` bytes. What parse has written is as it was.
#[no_mangle]
pub unsafe extern "C" fn rmqha_sends_build(
    data: *const u8,
    size: usize,
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
        let Some([tail_starts, tail_ends, send_ends, send_places, counts, ends, places, tags, _]) = split(lists, limit)
        else {
            return REFUSED;
        };
        let entries = unsafe { from_raw_parts_mut(call.entries, call.byte_limit) };
        let mut made = Made {
            records: Writer::new(unsafe { from_raw_parts_mut(call.records, call.byte_limit) }),
            answers: Writer::new(unsafe { from_raw_parts_mut(call.answers, call.byte_limit) }),
            keyed: (call.is_keyed != 0).then(|| Writer::new(entries)),
            sends: MadeSends { tail_starts, tail_ends, ends: send_ends, places: send_places, counts },
            ends,
            places,
            tags,
            units: unsafe { from_raw_parts_mut(call.units, limit * UNIT_BYTES) },
        };
        let Some(rules) = Rules::read(unsafe { from_raw_parts(call.rules, call.rules_bytes) }) else { return REFUSED };
        let parts = unsafe { from_raw_parts_mut(call.parts, call.part_count) };
        if parts.iter().any(|part| part.born_bytes > part.born_address.len()) {
            return REFUSED;
        }
        let (phy_offset, room_end, stored_ms) = (call.phy_offset, call.room_end, call.stored_ms);
        let ground = Ground { phy_offset, room_end, stored_ms, fields };
        let Ok(built) = build(data, parts, &rules, &ground, rows, queues, &mut made) else { return FULL };
        call.made_count = built.record_count;
        call.records_bytes = made.records.size();
        call.answers_bytes = made.answers.size();
        call.entries_bytes = made.keyed.as_ref().map_or(0, Writer::size);
        i64::try_from(built.row_count).unwrap_or(REFUSED)
    })
}

/// Finds the signed sends at the front of `data`, at most `count`, and writes what each signature is of; returns their
/// number, or FULL. `front`: what a message of our own form begins with on this connection; none: no such one is wanted.
/// `is_proven`: not 0 if sends without a signature are wanted too.
///
/// # Safety
/// `data`, `front` and `messages` have so many bytes, `rows` memory for `count` rows.
#[no_mangle]
pub unsafe extern "C" fn rmqha_signed(
    data: *const u8,
    size: usize,
    front: *const u8,
    front_bytes: usize,
    is_proven: i64,
    rows: *mut Signed,
    count: usize,
    messages: *mut u8,
    messages_bytes: usize,
) -> i64 {
    guarded(|| {
        let data = unsafe { from_raw_parts(data, size) };
        let front = unsafe { from_raw_parts(front, front_bytes) };
        let rows = unsafe { from_raw_parts_mut(rows, count) };
        let mut messages = Writer::new(unsafe { from_raw_parts_mut(messages, messages_bytes) });
        let Ok(found) = signed(data, front, is_proven != 0, rows, &mut messages) else { return FULL };
        i64::try_from(found).unwrap_or(REFUSED)
    })
}

/// Finds the plain records at the front of `data`, which begins at `phy_offset` of the log; at most `max_count`, of at
/// most `max_queues` queues, with entries of the index if `is_keyed` is not 0. Returns the number of records; of the queues
/// and of bytes of entries `call` has it.
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
    is_keyed: i64,
    call: *mut Sends,
) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let data = unsafe { from_raw_parts(data, size) };
        let limit = call.record_limit;
        let queues = unsafe { from_raw_parts_mut(call.queues, call.row_limit.min(max_queues)) };
        let lists = unsafe { from_raw_parts_mut(call.lists, limit * LISTS) };
        let Some([_, _, _, _, _, ends, places, tags, stored_ms]) = split(lists, limit) else { return REFUSED };
        let Some(ends) = ends.get_mut(..limit.min(max_count)) else { return REFUSED };
        let units = unsafe { from_raw_parts_mut(call.units, limit * UNIT_BYTES) };
        let entries = unsafe { from_raw_parts_mut(call.entries, call.byte_limit) };
        let keyed = (is_keyed != 0).then(|| Writer::new(entries));
        let mut found = Found { ends, places, tags, stored_ms, units, keyed };
        let Ok((count, queue_count)) = scan(data, phy_offset, queues, &mut found) else { return FULL };
        call.queue_count = queue_count;
        call.entries_bytes = found.keyed.as_ref().map_or(0, Writer::size);
        i64::try_from(count).unwrap_or(REFUSED)
    })
}

/// Goes past sound plain records of `data`, from index `at` on; index 0 stands at `phy_offset`. Returns the index of the
/// first other one; `newest_ms` is raised to their newest store timestamp.
///
/// # Safety
/// `data` has `size` bytes, `newest_ms` points to a number.
#[no_mangle]
pub unsafe extern "C" fn rmqha_skip_sound(
    data: *const u8,
    size: usize,
    at: usize,
    phy_offset: i64,
    newest_ms: *mut i64,
) -> i64 {
    guarded(|| {
        let data = unsafe { from_raw_parts(data, size) };
        let newest_ms = unsafe { &mut *newest_ms };
        let (end, newest) = skip(data, at, phy_offset, *newest_ms);
        *newest_ms = newest;
        i64::try_from(end).unwrap_or(REFUSED)
    })
}

/// What a call of `rmqha_collect` works on.
#[repr(C)]
pub struct Collect {
    pub start: i64,
    pub queue_id: i64,
    pub offset: i64,
    pub max_count: usize,
    pub max_bytes: i64,
    pub disk_end: i64,
    pub disk_max_count: usize,
    pub disk_max_bytes: i64,
    pub takes_all: i64,
    // found
    pub unit_count: usize,
    pub bytes: i64,
    pub is_full: i64,
    pub record_count: usize,
}

/// Finds the sound records that entries of a queue lead to, in a file of the log; writes where each run of records that
/// follow each other begins in it, then, `max_count` numbers behind, its size. Returns the number of runs.
///
/// # Safety
/// `file`, `units`, `topic` and `codes` have so many bytes or numbers, `records` has `2 * max_count` numbers.
#[no_mangle]
pub unsafe extern "C" fn rmqha_collect(
    file: *const u8,
    file_bytes: usize,
    units: *const u8,
    unit_count: usize,
    topic: *const u8,
    topic_bytes: usize,
    codes: *const i64,
    code_count: usize,
    records: *mut i64,
    call: *mut Collect,
) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let codes = unsafe { from_raw_parts(codes, code_count) };
        let Ok(queue_id) = i32::try_from(call.queue_id) else { return REFUSED };
        let pull = Pull {
            file: unsafe { from_raw_parts(file, file_bytes) },
            start: call.start,
            units: unsafe { from_raw_parts(units, unit_count * UNIT_BYTES) },
            topic: unsafe { from_raw_parts(topic, topic_bytes) },
            queue_id,
            offset: call.offset,
            max_count: call.max_count,
            max_bytes: call.max_bytes,
            disk_end: call.disk_end,
            disk_max_count: call.disk_max_count,
            disk_max_bytes: call.disk_max_bytes,
            codes: if call.takes_all != 0 { None } else { Some(codes) },
        };
        let records = unsafe { from_raw_parts_mut(records, call.max_count * 2) };
        let (starts, sizes) = records.split_at_mut(call.max_count);
        let found = collect(&pull, starts, sizes);
        call.unit_count = found.unit_count;
        call.bytes = found.bytes;
        call.is_full = i64::from(found.is_full);
        call.record_count = found.record_count;
        i64::try_from(found.run_count).unwrap_or(REFUSED)
    })
}

/// Writes the index's entries of records, and returns how many bytes they take. `tails` are their properties, each with
/// its length in front; `topics` are joined, and the `topic_count` numbers of `topic_ends` say where each ends. `places`
/// has the topic of each record, nothing if there is but one.
///
/// # Safety
/// All have so many bytes or numbers: `phy_offsets` and `stored_ms` `count`, `places` `count` or none at all.
#[no_mangle]
pub unsafe extern "C" fn rmqha_index_entries(
    tails: *const u8,
    tails_bytes: usize,
    count: usize,
    topics: *const u8,
    topic_ends: *const i64,
    topic_count: usize,
    places: *const i64,
    phy_offsets: *const i64,
    stored_ms: *const i64,
    into: *mut u8,
    into_bytes: usize,
) -> i64 {
    guarded(|| {
        let mut tails = Cursor::new(unsafe { from_raw_parts(tails, tails_bytes) }, 0);
        let topic_ends = unsafe { from_raw_parts(topic_ends, topic_count) };
        let topics_bytes = topic_ends.last().map_or(0, |&end| usize::try_from(end).unwrap_or(0));
        let topics = unsafe { from_raw_parts(topics, topics_bytes) };
        let topic = |place: usize| {
            let start = if place == 0 { 0 } else { usize::try_from(*topic_ends.get(place - 1)?).ok()? };
            topics.get(start..usize::try_from(*topic_ends.get(place)?).ok()?)
        };
        let places = if topic_count > 1 { unsafe { from_raw_parts(places, count) } } else { &[] };
        let phy_offsets = unsafe { from_raw_parts(phy_offsets, count) };
        let stored_ms = unsafe { from_raw_parts(stored_ms, count) };
        let mut into = Writer::new(unsafe { from_raw_parts_mut(into, into_bytes) });
        let (mut known, mut prefix) = (usize::MAX, Prefix::default());
        for (number, (&phy_offset, &stored)) in phy_offsets.iter().zip(stored_ms).enumerate() {
            let place = places.get(number).map_or(0, |&place| usize::try_from(place).unwrap_or(usize::MAX - 1));
            if place != known {
                let Some(topic) = topic(place) else { return REFUSED };
                (known, prefix) = (place, Prefix::new(topic));
            }
            let size = tails.take(2).map_or(0, |size| size.iter().fold(0, |size, &byte| size << 8 | usize::from(byte)));
            let Some(properties) = tails.take(size) else { return REFUSED };
            if put_keys(prefix, properties, Values::of(properties), phy_offset, stored, &mut into).is_err() {
                return FULL;
            }
        }
        i64::try_from(into.size()).unwrap_or(REFUSED)
    })
}

/// What a call of `rmqha_index_place` works on.
#[repr(C)]
pub struct Place {
    pub slot_count: i64,
    pub first: i64,
    pub begin_ms: i64,
    /// A power of two.
    pub table_count: usize,
    // found
    pub new_slots: usize,
}

/// Places `count` entries in an index file of which `file` is the front, its slots too. Writes them as the file holds them,
/// and in `slots` where slots are to be written, in `words` with what. Returns the number of slots.
///
/// # Safety
/// `entries` and `into` have `count` entries, `slots` `2 * count` numbers, `words` `count` words, `table` `table_count`.
#[no_mangle]
pub unsafe extern "C" fn rmqha_index_place(
    file: *const u8,
    file_bytes: usize,
    entries: *const u8,
    count: usize,
    into: *mut u8,
    slots: *mut i64,
    words: *mut [u8; 4],
    table: *mut u32,
    call: *mut Place,
) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let (positions, heads) = unsafe { from_raw_parts_mut(slots, count * 2) }.split_at_mut(count);
        let index = IndexFile {
            file: unsafe { from_raw_parts(file, file_bytes) },
            slot_count: call.slot_count,
            first: call.first,
            begin_ms: call.begin_ms,
        };
        let entries = unsafe { from_raw_parts(entries, count * NEW_ENTRY_BYTES) };
        let mut placed = Placed {
            entries: unsafe { from_raw_parts_mut(into, count * ENTRY_BYTES) },
            positions,
            heads,
            table: unsafe { from_raw_parts_mut(table, call.table_count) },
        };
        let Some((head_count, new_slots)) = place(&index, entries, &mut placed) else { return REFUSED };
        call.new_slots = new_slots;
        let words = unsafe { from_raw_parts_mut(words, count) };
        for (word, &head) in words.iter_mut().zip(placed.heads.iter()).take(head_count) {
            *word = (head as i32).to_be_bytes();
        }
        i64::try_from(head_count).unwrap_or(REFUSED)
    })
}

/// Copies four bytes to each of `positions`, which are all multiples of four.
///
/// # Safety
/// `memory` has `size` bytes and nobody else writes them, `positions` and `words` have `count` places.
#[no_mangle]
pub unsafe extern "C" fn rmqha_put_words(
    memory: *mut u8,
    size: usize,
    positions: *const i64,
    words: *const [u8; 4],
    count: usize,
) -> i64 {
    guarded(|| {
        let (positions, words) = unsafe { (from_raw_parts(positions, count), from_raw_parts(words, count)) };
        for (&position, &word) in positions.iter().zip(words) {
            // the memory is a mapped file that others may look at: no slice of it, one store each
            match usize::try_from(position) {
                Ok(at) if at % 4 == 0 && at.checked_add(4).map_or(false, |end| end <= size) => unsafe {
                    memory.add(at).cast::<[u8; 4]>().write(word);
                },
                _ => return REFUSED,
            }
        }
        0
    })
}

/// What a call of `rmqha_columns_decode` works on.
#[repr(C)]
pub struct ColumnCall {
    pub columns: i64,
    pub refused_flags: i64,
    pub verifies_crc: i64,
    // bytes that there is memory for, and keys; then what was written
    pub body_bytes: usize,
    pub topic_bytes: usize,
    pub keys_bytes: usize,
    pub key_count: usize,
    pub tags_bytes: usize,
    pub tag_count: usize,
    // memory of what is wanted; the offsets have a place more than there are texts
    pub body_offsets: *mut i32,
    pub body: *mut u8,
    pub topic_offsets: *mut i32,
    pub topic: *mut u8,
    pub key_offsets: *mut i32,
    pub keys_offsets: *mut i32,
    pub keys: *mut u8,
    pub tags_offsets: *mut i32,
    pub tags: *mut u8,
    pub tag_bits: *mut u8,
    pub queue_ids: *mut i32,
    pub queue_offsets: *mut i64,
    pub phy_offsets: *mut i64,
    pub born_us: *mut i64,
    pub stored_us: *mut i64,
    pub sys_flags: *mut i32,
    pub flags: *mut i32,
}

/// Follows the records of a window whose index 0 is at `base`; none ends behind `stop` or has more than `max_bytes`. Returns
/// how many begin in `starts`; `found` gets where the last one ends, and all flags that one of them has.
///
/// # Safety
/// `data` has `size` bytes, `starts` `count` places, `found` points to two numbers.
#[no_mangle]
pub unsafe extern "C" fn rmqha_columns_walk(
    data: *const u8,
    size: usize,
    base: i64,
    stop: i64,
    max_bytes: i64,
    starts: *mut i64,
    count: usize,
    found: *mut [i64; 2],
) -> i64 {
    guarded(|| {
        let data = unsafe { from_raw_parts(data, size) };
        let starts = unsafe { from_raw_parts_mut(starts, count) };
        let walked = walk(data, base, stop, max_bytes, starts);
        unsafe { *found = [walked.end, i64::from(walked.flags)] };
        i64::try_from(walked.count).unwrap_or(REFUSED)
    })
}

/// Bytes of the records that begin at `starts` together.
///
/// # Safety
/// `data` has `size` bytes, `starts` `count` places.
#[no_mangle]
pub unsafe extern "C" fn rmqha_columns_bytes(data: *const u8, size: usize, starts: *const i64, count: usize) -> i64 {
    guarded(|| bytes_of(unsafe { from_raw_parts(data, size) }, unsafe { from_raw_parts(starts, count) }))
}

/// Writes the columns of `count` records that begin at `starts` in a window of the log; returns how many are plain in
/// front of the first that is not, or FULL.
///
/// # Safety
/// `data` has `size` bytes, `starts` `count` places. What is wanted has memory: a place for each record, one more in
/// offsets, a bit in `tag_bits`, and what `call` says of texts and keys.
#[no_mangle]
pub unsafe extern "C" fn rmqha_columns_decode(
    data: *const u8,
    size: usize,
    starts: *const i64,
    count: usize,
    call: *mut ColumnCall,
) -> i64 {
    guarded(|| {
        let call = unsafe { &mut *call };
        let data = unsafe { from_raw_parts(data, size) };
        let starts = unsafe { from_raw_parts(starts, count) };
        let (columns, refused_flags) = (call.columns, call.refused_flags);
        let wanted = Wanted { columns, refused_flags, verifies_crc: call.verifies_crc != 0 };
        let size_if = |part: i64, size: usize| if columns & part != 0 { size } else { 0 };
        let texts = |part, offsets, count, bytes, byte_count| {
            let offsets = unsafe { memory(offsets, size_if(part, count + 1)) };
            Texts::new(offsets, unsafe { memory(bytes, size_if(part, byte_count)) })
        };
        let mut into = Columns {
            body: texts(BODY, call.body_offsets, count, call.body, call.body_bytes),
            topic: texts(TOPIC, call.topic_offsets, count, call.topic, call.topic_bytes),
            keys: texts(KEY_LIST, call.keys_offsets, call.key_count, call.keys, call.keys_bytes),
            key_offsets: unsafe { memory(call.key_offsets, size_if(KEY_LIST, count + 1)) },
            tags: texts(TAG, call.tags_offsets, count, call.tags, call.tags_bytes),
            tag_bits: unsafe { memory(call.tag_bits, size_if(TAG, (count + 7) / 8)) },
            tag_count: 0,
            queue_ids: unsafe { memory(call.queue_ids, size_if(QUEUE_ID, count)) },
            queue_offsets: unsafe { memory(call.queue_offsets, size_if(QUEUE_OFFSET, count)) },
            phy_offsets: unsafe { memory(call.phy_offsets, size_if(PHY_OFFSET, count)) },
            born_us: unsafe { memory(call.born_us, size_if(BORN, count)) },
            stored_us: unsafe { memory(call.stored_us, size_if(STORED, count)) },
            sys_flags: unsafe { memory(call.sys_flags, size_if(SYS_FLAG, count)) },
            flags: unsafe { memory(call.flags, size_if(FLAG, count)) },
        };
        let Ok(plain_count) = decode(data, starts, &wanted, &mut into) else { return FULL };
        call.body_bytes = into.body.data.size();
        call.topic_bytes = into.topic.data.size();
        call.keys_bytes = into.keys.data.size();
        call.key_count = into.keys.count;
        call.tags_bytes = into.tags.data.size();
        call.tag_count = into.tag_count;
        i64::try_from(plain_count).unwrap_or(REFUSED)
    })
}

/// The caller's memory; none where `size` is 0, wherever the pointer points.
unsafe fn memory<'a, T>(pointer: *mut T, size: usize) -> &'a mut [T] {
    if size == 0 {
        &mut []
    } else {
        unsafe { from_raw_parts_mut(pointer, size) }
    }
}

/// The lists in one piece of memory, `limit` long each.
fn split(lists: &mut [i64], limit: usize) -> Option<[&mut [i64]; LISTS]> {
    let mut parts = lists.chunks_exact_mut(limit.max(1));
    let mut next = || parts.next();
    Some([next()?, next()?, next()?, next()?, next()?, next()?, next()?, next()?, next()?])
}

/// A panic must not reach the caller's stack.
fn guarded(work: impl FnOnce() -> i64) -> i64 {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED)
}
