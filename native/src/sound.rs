//! Records whose CRC holds: a stretch of the log, and those that the entries of a queue lead to.

use crate::input::Cursor;
use crate::sends::UNIT_BYTES;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const MIN_RECORD_BYTES: usize = 91;
const BODY_AT: usize = 88;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
const V6_BYTES: usize = 12;
const SECTOR_BYTES: usize = 512;
/// Bytes of the property `__CRC32#`, which ends a record.
const CRC_PROPERTY_BYTES: usize = 20;
/// Size in the entry of a message that was never there.
const PREFILL_SIZE: i32 = i32::MAX;

pub fn crc_of(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

pub fn word(record: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(record.get(at..at + 4)?.try_into().ok()?))
}

pub fn long(record: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(record.get(at..at + 8)?.try_into().ok()?))
}

pub fn short(record: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(record.get(at..at + 2)?.try_into().ok()?)))
}

/// True if one of the two bytes that begin the property `__CRC32#` stands where it would.
fn has_crc_mark(record: &[u8]) -> Option<bool> {
    let mark = record.len().checked_sub(CRC_PROPERTY_BYTES)?;
    Some(record.get(mark..mark + 2)?.contains(&b'_'))
}

/// Goes past sound records of the commonest form in `data`, whose index 0 stands at `phy_offset`; returns the index of the
/// first other one, and the newest store timestamp, `newest_ms` or one of theirs.
pub fn skip(data: &[u8], at: usize, phy_offset: i64, newest_ms: i64) -> (usize, i64) {
    let (mut at, mut newest_ms) = (at, newest_ms);
    while let Some((size, stored_ms)) = data.get(at..).and_then(|rest| {
        let position = phy_offset.checked_add(i64::try_from(at).ok()?)?;
        common(rest, position)
    }) {
        newest_ms = newest_ms.max(stored_ms);
        at += size;
    }
    (at, newest_ms)
}

/// Size and store timestamp of the record at the front of `data`; None if it is not of the commonest form, or not sound.
fn common(data: &[u8], position: i64) -> Option<(usize, i64)> {
    let size = usize::try_from(word(data, 0)? as i32).ok()?;
    let record = data.get(..size)?;
    let body_bytes = usize::try_from(word(record, 84)? as i32).ok()?;
    let topic_at = BODY_AT.checked_add(body_bytes)?;
    let tail_bytes = size.checked_sub(topic_at)?;
    if size < MIN_RECORD_BYTES
        || word(record, 4)? != MAGIC_V1
        || long(record, 28)? != position
        || word(record, 36)? as i32 & (BORN_V6 | STORE_V6) != 0
        || !(4..=SECTOR_BYTES).contains(&tail_bytes)
    {
        return None;
    }
    let topic_bytes = usize::from(*record.get(topic_at)?);
    let properties_at = topic_at + 1 + topic_bytes;
    let properties_bytes = short(record, properties_at)?;
    if topic_bytes == 0
        || properties_at + 2 + properties_bytes != size
        || (properties_bytes > 0 && record.last() == Some(&0))
        || has_crc_mark(record)?
        || crc_of(record.get(BODY_AT..topic_at)?) != word(record, 8)?
    {
        return None;
    }
    let in_sector = usize::try_from(position.checked_add(i64::try_from(topic_at).ok()?)?).ok()? % SECTOR_BYTES;
    let next_sector = topic_at + SECTOR_BYTES - in_sector;
    if next_sector < size && record.get(next_sector) == Some(&0) {
        return None;
    }
    Some((size, long(record, 56)?))
}

/// A pull: entries of a queue from `offset` on, and which of them are wanted.
pub struct Pull<'a> {
    /// A file of the log from `start` on, as far as it is written.
    pub file: &'a [u8],
    pub start: i64,
    pub units: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub offset: i64,
    pub max_count: usize,
    pub max_bytes: i64,
    /// What is below `disk_end` is bound by these, too.
    pub disk_end: i64,
    pub disk_max_count: usize,
    pub disk_max_bytes: i64,
    /// None: all are wanted.
    pub codes: Option<&'a [i64]>,
}

pub struct Pulled {
    pub run_count: usize,
    pub record_count: usize,
    /// Entries that were looked at.
    pub unit_count: usize,
    pub bytes: i64,
    /// A bound is reached: nothing behind is wanted.
    pub is_full: bool,
}

/// Finds the sound records that the entries lead to, writes where each run of records that follow each other begins in
/// the file and its size; stops at the first one that is not in the file or not sound.
pub fn collect(pull: &Pull, starts: &mut [i64], sizes: &mut [i64]) -> Pulled {
    let mut found = Pulled { run_count: 0, record_count: 0, unit_count: 0, bytes: 0, is_full: false };
    let mut end = -1;
    for unit in pull.units.chunks_exact(UNIT_BYTES) {
        if found.record_count >= pull.max_count {
            found.is_full = true;
            break;
        }
        let mut cursor = Cursor::new(unit, 0);
        let (Some(position), Some(size), Some(code)) = (cursor.long(), cursor.word(), cursor.long()) else { break };
        let size = size as i32;
        if size != PREFILL_SIZE && pull.codes.map_or(true, |codes| codes.contains(&code)) {
            let bytes = found.bytes + i64::from(size);
            let is_over = bytes > pull.max_bytes
                || position < pull.disk_end
                    && (bytes > pull.disk_max_bytes || found.record_count >= pull.disk_max_count);
            if found.record_count > 0 && is_over {
                found.is_full = true;
                break;
            }
            let Some(start) = sound_at(pull, position, size, found.unit_count) else { break };
            let place = if start == end { found.run_count - 1 } else { found.run_count };
            let (Some(into_start), Some(into_size)) = (starts.get_mut(place), sizes.get_mut(place)) else {
                break;
            };
            if start == end {
                *into_size += i64::from(size);
            } else {
                (*into_start, *into_size) = (start, i64::from(size));
                found.run_count += 1;
            }
            end = start + i64::from(size);
            found.record_count += 1;
            found.bytes = bytes;
        }
        found.unit_count += 1;
    }
    found
}

/// Index in the file of the record that an entry leads to, if it is sound.
fn sound_at(pull: &Pull, position: i64, size: i32, ahead: usize) -> Option<i64> {
    let start = position.checked_sub(pull.start)?;
    let at = usize::try_from(start).ok()?;
    let record = pull.file.get(at..at.checked_add(usize::try_from(size).ok()?)?)?;
    let queue_offset = pull.offset.checked_add(i64::try_from(ahead).ok()?)?;
    is_sound(record, position, pull.topic, pull.queue_id, queue_offset)?.then_some(start)
}

fn is_sound(record: &[u8], position: i64, topic: &[u8], queue_id: i32, queue_offset: i64) -> Option<bool> {
    let size = record.len();
    let sys_flag = word(record, 36)? as i32;
    if size < MIN_RECORD_BYTES
        || word(record, 0)? != u32::try_from(size).ok()?
        || word(record, 12)? as i32 != queue_id
        || long(record, 20)? != queue_offset
        || long(record, 28)? != position
    {
        return None;
    }
    let v6_bytes = |flag| if sys_flag & flag != 0 { V6_BYTES } else { 0 };
    let body_at = BODY_AT + v6_bytes(BORN_V6) + v6_bytes(STORE_V6);
    let body_bytes = usize::try_from(word(record, body_at.checked_sub(4)?)? as i32).ok()?;
    let topic_at = body_at.checked_add(body_bytes)?;
    let (name_at, topic_bytes) = match word(record, 4)? {
        MAGIC_V1 => (topic_at + 1, usize::from(*record.get(topic_at)?)),
        MAGIC_V2 => (topic_at + 2, short(record, topic_at)?),
        _ => return None,
    };
    let properties_at = name_at + topic_bytes;
    let is_whole = record.get(name_at..properties_at)? == topic
        && properties_at + 2 + short(record, properties_at)? == size
        && !has_crc_mark(record)?; // its own checksum is the usual way's
    Some(is_whole && crc_of(record.get(body_at..topic_at)?) == word(record, 8)?)
}
