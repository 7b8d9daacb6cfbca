//! Records of a window to the buffers of Arrow columns, in one pass.

use crate::output::{Full, Writer};
use crate::sound::{crc_of, long, short, word};

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const HEAD_BYTES: usize = 88;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
const V6_BYTES: usize = 12;
const KEYS: &[u8] = b"KEYS\x01";
const TAGS: &[u8] = b"TAGS\x01";
const SEPARATOR: u8 = 2;
const BLOCK_BYTES: usize = 64;
const MICROSECONDS: i64 = 1000;
/// What is wanted of the records.
pub const BODY: i64 = 1;
pub const TOPIC: i64 = 2;
pub const KEY_LIST: i64 = 4;
pub const TAG: i64 = 8;
pub const QUEUE_ID: i64 = 16;
pub const QUEUE_OFFSET: i64 = 32;
pub const PHY_OFFSET: i64 = 64;
pub const BORN: i64 = 128;
pub const STORED: i64 = 256;
pub const SYS_FLAG: i64 = 512;
pub const FLAG: i64 = 1024;
const TEXTS: i64 = BODY | TOPIC | KEY_LIST | TAG;

const MIN_RECORD_BYTES: i64 = 91;

/// Records that a walk has followed.
pub struct Walked {
    pub count: usize,
    /// Where the last one ends.
    pub end: i64,
    /// All flags that one of them has.
    pub flags: i32,
}

/// Follows the records of a window, from index 0 on, as long as magic, size and own offset are right and all of a record
/// is there; `base` is the offset of index 0, and none begins at or ends behind `stop`. Writes where they begin into
/// `starts`.
pub fn walk(data: &[u8], base: i64, stop: i64, max_bytes: i64, starts: &mut [i64]) -> Walked {
    let mut found = Walked { count: 0, end: 0, flags: 0 };
    for place in starts {
        let Some((size, flags)) = step(data, found.end, base, stop, max_bytes) else { break };
        *place = found.end;
        found.end += size;
        found.flags |= flags;
        found.count += 1;
    }
    found
}

/// Bytes and flags of the record at index `at`.
fn step(data: &[u8], at: i64, base: i64, stop: i64, max_bytes: i64) -> Option<(i64, i32)> {
    let index = usize::try_from(at).ok()?;
    let head = data.get(index..index.checked_add(HEAD_BYTES)?)?;
    let size = i64::from(word(head, 0)? as i32);
    let magic = word(head, 4)?;
    let is_right = (magic == MAGIC_V1 || magic == MAGIC_V2)
        && size >= MIN_RECORD_BYTES
        && size <= max_bytes.min(stop.checked_sub(at)?)
        && size <= i64::try_from(data.len() - index).ok()?
        && long(head, 28)? == base.checked_add(at)?;
    is_right.then_some((size, word(head, 36)? as i32))
}

/// Bytes of all these records together, as far as they can be told.
pub fn bytes_of(data: &[u8], starts: &[i64]) -> i64 {
    let size = |&start: &i64| word(data, usize::try_from(start).ok()?).map(|size| i64::from(size as i32).max(0));
    starts.iter().filter_map(size).fold(0, i64::saturating_add)
}

/// Which records are wanted how.
pub struct Wanted {
    pub columns: i64,
    /// Flags of records that are not plain.
    pub refused_flags: i64,
    pub verifies_crc: bool,
}

/// A column of texts: where each ends, behind where the first begins, and all of them.
pub struct Texts<'a> {
    pub offsets: &'a mut [i32],
    pub data: Writer<'a>,
    /// Texts that it has.
    pub count: usize,
}

impl<'a> Texts<'a> {
    pub fn new(offsets: &'a mut [i32], memory: &'a mut [u8]) -> Self {
        offsets.iter_mut().take(1).for_each(|first| *first = 0);
        Texts { offsets, data: Writer::new(memory), count: 0 }
    }

    fn put(&mut self, text: &[u8]) -> Result<(), Full> {
        self.data.put(text)?;
        self.count += 1;
        *self.offsets.get_mut(self.count).ok_or(Full)? = i32::try_from(self.data.size()).map_err(|_| Full)?;
        Ok(())
    }
}

/// The caller's memory for columns; what is not wanted has none.
pub struct Columns<'a> {
    pub body: Texts<'a>,
    pub topic: Texts<'a>,
    pub keys: Texts<'a>,
    /// Number of keys before those of each record, and of all.
    pub key_offsets: &'a mut [i32],
    pub tags: Texts<'a>,
    /// A bit for each record that has tags.
    pub tag_bits: &'a mut [u8],
    /// Records that have tags.
    pub tag_count: usize,
    pub queue_ids: &'a mut [i32],
    pub queue_offsets: &'a mut [i64],
    pub phy_offsets: &'a mut [i64],
    pub born_us: &'a mut [i64],
    pub stored_us: &'a mut [i64],
    pub sys_flags: &'a mut [i32],
    pub flags: &'a mut [i32],
}

/// Writes what is wanted of the records that begin at `starts`, as far as they are plain; returns how many are in front
/// of the first that is not.
pub fn decode(data: &[u8], starts: &[i64], wanted: &Wanted, into: &mut Columns) -> Result<usize, Full> {
    into.key_offsets.iter_mut().take(1).for_each(|first| *first = 0);
    into.tag_bits.fill(0);
    for (row, &start) in starts.iter().enumerate() {
        let Some(record) = usize::try_from(start).ok().and_then(|start| record_at(data, start)) else {
            return Ok(row);
        };
        let is_plain = i64::from(record.sys_flag) & wanted.refused_flags == 0;
        if !is_plain || put_numbers(&record, row, into).is_none() {
            return Ok(row);
        }
        if wanted.columns & TEXTS != 0 {
            let Some(texts) = texts_of(&record, wanted) else { return Ok(row) };
            put_texts(&texts, row, wanted.columns, into)?;
        }
    }
    Ok(starts.len())
}

/// A record, and what its head says.
struct Record<'a> {
    bytes: &'a [u8],
    head: &'a [u8],
    sys_flag: i32,
    stored_at: usize,
}

fn record_at(data: &[u8], start: usize) -> Option<Record<'_>> {
    let rest = data.get(start..)?;
    let bytes = rest.get(..usize::try_from(word(rest, 0)? as i32).ok()?)?;
    let head = bytes.get(..HEAD_BYTES)?;
    let sys_flag = word(head, 36)? as i32;
    Some(Record { bytes, head, sys_flag, stored_at: 56 + v6_bytes(sys_flag, BORN_V6) })
}

fn v6_bytes(sys_flag: i32, flag: i32) -> usize {
    if sys_flag & flag != 0 {
        V6_BYTES
    } else {
        0
    }
}

/// Writes the wanted numbers; None for a time that no timestamp can hold.
#[inline]
fn put_numbers(record: &Record, row: usize, into: &mut Columns) -> Option<()> {
    let head = record.head;
    // what is not wanted has no places
    if let Some(place) = into.queue_ids.get_mut(row) {
        *place = word(head, 12)? as i32;
    }
    if let Some(place) = into.flags.get_mut(row) {
        *place = word(head, 16)? as i32;
    }
    if let Some(place) = into.queue_offsets.get_mut(row) {
        *place = long(head, 20)?;
    }
    if let Some(place) = into.phy_offsets.get_mut(row) {
        *place = long(head, 28)?;
    }
    if let Some(place) = into.sys_flags.get_mut(row) {
        *place = record.sys_flag;
    }
    let microseconds = |time: i64| time.checked_mul(MICROSECONDS).filter(|&time| time != i64::MIN);
    if let Some(place) = into.born_us.get_mut(row) {
        *place = microseconds(long(head, 40)?)?;
    }
    if let Some(place) = into.stored_us.get_mut(row) {
        *place = microseconds(long(record.bytes, record.stored_at)?)?;
    }
    Some(())
}

/// The texts of a record; empty, or None, is what is not there or not wanted.
struct RecordTexts<'a> {
    body: &'a [u8],
    topic: &'a [u8],
    keys: &'a [u8],
    tags: Option<&'a [u8]>,
}

/// The texts of a record; None if it is not plain.
#[inline]
fn texts_of<'a>(record: &Record<'a>, wanted: &Wanted) -> Option<RecordTexts<'a>> {
    let bytes = record.bytes;
    let body_at = record.stored_at + 32 + v6_bytes(record.sys_flag, STORE_V6);
    let body_bytes = word(bytes, body_at - 4)? as i32;
    let body_end = body_at.checked_add(usize::try_from(body_bytes).ok()?)?;
    let (topic_at, topic_bytes) = match word(record.head, 4)? {
        MAGIC_V1 => (body_end + 1, usize::from(*bytes.get(body_end)?)),
        MAGIC_V2 => (body_end + 2, short(bytes, body_end)?),
        _ => return None,
    };
    let topic_end = topic_at + topic_bytes;
    let properties = bytes.get(topic_end + 2..)?;
    if short(bytes, topic_end)? != properties.len() {
        return None;
    }
    let mut texts = RecordTexts { body: b"", topic: b"", keys: b"", tags: None };
    if wanted.columns & BODY != 0 {
        texts.body = bytes.get(body_at..body_end)?;
        if wanted.verifies_crc && crc_of(texts.body) != word(record.head, 8)? {
            return None;
        }
    }
    if wanted.columns & TOPIC != 0 {
        texts.topic = bytes.get(topic_at..topic_end)?;
        is_text(texts.topic)?;
    }
    if wanted.columns & (KEY_LIST | TAG) != 0 {
        find_values(properties, &mut texts);
        is_text(texts.keys)?;
        is_text(texts.tags.unwrap_or_default())?;
    }
    Some(texts)
}

fn is_text(text: &[u8]) -> Option<()> {
    (text.is_ascii() || std::str::from_utf8(text).is_ok()).then_some(())
}

/// Finds the last KEYS and the last TAGS among properties that are not empty.
fn find_values<'a>(properties: &'a [u8], texts: &mut RecordTexts<'a>) {
    let mut start = 0;
    let mut look = |end: usize| {
        let piece = properties.get(start..end).unwrap_or_default();
        start = end + 1;
        if piece.len() <= KEYS.len() {
            return; // no value
        }
        if let Some(value) = piece.strip_prefix(KEYS) {
            texts.keys = value;
        } else if let Some(value) = piece.strip_prefix(TAGS) {
            texts.tags = Some(value);
        }
    };
    let blocks = properties.chunks_exact(BLOCK_BYTES);
    let rest = blocks.remainder();
    let mut base = 0;
    for block in blocks {
        each_bit(mask_of(block), |bit| look(base + bit));
        base += BLOCK_BYTES;
    }
    if !rest.is_empty() {
        let mut block = [0; BLOCK_BYTES];
        block.iter_mut().zip(rest).for_each(|(place, &byte)| *place = byte);
        each_bit(mask_of(&block), |bit| look(base + bit));
    }
    look(properties.len());
}

fn each_bit(mut mask: u64, mut work: impl FnMut(usize)) {
    while mask != 0 {
        work(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}

/// A bit for each separator of a block.
fn mask_of(block: &[u8]) -> u64 {
    const LOW: u64 = 0x7F7F_7F7F_7F7F_7F7F;
    let mut mask = 0;
    for (place, eight) in block.chunks_exact(8).enumerate() {
        let word = eight.try_into().map_or(0, u64::from_le_bytes) ^ (u64::from(SEPARATOR) * 0x0101_0101_0101_0101);
        let is_zero = !(((word & LOW) + LOW) | word | LOW); // 0x80 in each byte that is 0
        mask |= ((is_zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * place);
    }
    mask
}

#[inline]
fn put_texts(texts: &RecordTexts, row: usize, columns: i64, into: &mut Columns) -> Result<(), Full> {
    if columns & BODY != 0 {
        into.body.put(texts.body)?;
    }
    if columns & TOPIC != 0 {
        into.topic.put(texts.topic)?;
    }
    if columns & KEY_LIST != 0 {
        for key in texts.keys.split(|&byte| byte == b' ').filter(|key| !key.is_empty()) {
            into.keys.put(key)?;
        }
        *into.key_offsets.get_mut(row + 1).ok_or(Full)? = i32::try_from(into.keys.count).map_err(|_| Full)?;
    }
    if columns & TAG != 0 {
        if texts.tags.is_some() {
            *into.tag_bits.get_mut(row / 8).ok_or(Full)? |= 1 << (row % 8);
            into.tag_count += 1;
        }
        into.tags.put(texts.tags.unwrap_or_default())?;
    }
    Ok(())
}
