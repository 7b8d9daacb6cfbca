//! A block of the log to what is derived from it: entries of queues and of the index.

use crate::input::{Class, Cursor, Span};
use crate::keys::{put_keys, Prefix};
use crate::output::{Full, Writer};
use crate::properties::{tags_code, text, Values};
use crate::sends::{entries, Queue};

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const MIN_RECORD_BYTES: usize = 91;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
/// Flags of a record that its queue and the index need not look at.
const PLAIN_FLAGS: i32 = 0x703 | BORN_V6 | STORE_V6;
const MAX_TOPIC_BYTES: usize = 255;
/// Its entries say when a message is due.
const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";

/// The caller's memory for what is found: of the lists a place for each record that it wants at most.
pub struct Found<'a> {
    /// Index behind each one.
    pub ends: &'a mut [i64],
    /// Each one's queue.
    pub places: &'a mut [i64],
    pub tags: &'a mut [i64],
    pub stored_ms: &'a mut [i64],
    pub units: &'a mut [u8],
    /// Entries of the index; None: nobody asks for them.
    pub keyed: Option<Writer<'a>>,
}

struct Record {
    end: usize,
    topic: Span,
    tail_start: usize,
    queue_id: i32,
    queue_offset: i64,
    stored_ms: i64,
}

/// Finds the whole plain records at the front of `data`, which begins at `phy_offset` of the log, of as many queues as
/// there is memory for; returns the numbers of records and queues.
pub fn scan(data: &[u8], phy_offset: i64, queues: &mut [Queue], found: &mut Found) -> Result<(usize, usize), Full> {
    let (mut at, mut count, mut queue_count) = (0, 0, 0);
    while count < found.ends.len() {
        let Some(record) = locate(data, at, phy_offset) else { break };
        let Some(properties) = data.get(record.tail_start + 2..record.end) else { break };
        let values = Values::of(properties);
        let tags = text(values.tags, properties);
        if !tags.is_ascii() {
            break;
        }
        let Some(place) = queue_of(data, &record, queues, &mut queue_count) else { break };
        if let Some(keyed) = &mut found.keyed {
            let prefix = queues.get(place).ok_or(Full)?.prefix;
            let start = phy_offset.checked_add(index(at)?).ok_or(Full)?;
            put_keys(prefix, properties, values, start, record.stored_ms, keyed)?;
        }
        *found.ends.get_mut(count).ok_or(Full)? = index(record.end)?;
        *found.places.get_mut(count).ok_or(Full)? = index(place)?;
        *found.tags.get_mut(count).ok_or(Full)? = tags_code(tags);
        *found.stored_ms.get_mut(count).ok_or(Full)? = record.stored_ms;
        count += 1;
        at = record.end;
    }
    let queues = queues.get_mut(..queue_count).ok_or(Full)?;
    let places = found.places.get(..count).ok_or(Full)?;
    entries(places, found.ends, found.tags, queues, phy_offset, found.units)?;
    Ok((count, queue_count))
}

fn index(size: usize) -> Result<i64, Full> {
    i64::try_from(size).map_err(|_| Full)
}

/// The plain record at `at`, all of whose lengths fit (formats.md §2).
fn locate(data: &[u8], at: usize, phy_offset: i64) -> Option<Record> {
    let mut cursor = Cursor::new(data, at);
    let size = usize::try_from(cursor.word()? as i32).ok()?;
    let end = at.checked_add(size)?;
    let data = data.get(..end)?;
    let topic_field = match cursor.word()? {
        MAGIC_V1 => 1,
        MAGIC_V2 => 2,
        _ => return None,
    };
    cursor.word()?; // bodyCRC
    let queue_id = cursor.word()? as i32;
    cursor.word()?; // flag
    let queue_offset = cursor.long()?;
    let physical = cursor.long()?;
    let sys_flag = cursor.word()? as i32;
    if size < MIN_RECORD_BYTES
        || Some(physical) != phy_offset.checked_add(i64::try_from(at).ok()?)
        || sys_flag & !PLAIN_FLAGS != 0
        || queue_id < 0
        || queue_offset < 0
    {
        return None;
    }
    cursor.take(if sys_flag & BORN_V6 != 0 { 28 } else { 16 })?; // bornTimestamp, bornHost
    let stored_ms = cursor.long()?;
    cursor.take(if sys_flag & STORE_V6 != 0 { 32 } else { 20 })?; // storeHost to preparedTransactionOffset
    let body_bytes = cursor.word()? as i32;
    let mut cursor = Cursor::new(data, cursor.at);
    cursor.take(usize::try_from(body_bytes).ok()?)?;
    let topic_bytes = cursor.take(topic_field)?.iter().fold(0, |size, &byte| size << 8 | usize::from(byte));
    if topic_bytes == 0 || topic_bytes > MAX_TOPIC_BYTES {
        return None;
    }
    let topic = cursor.span(topic_bytes, Class::TOPIC)?;
    let tail_start = cursor.at;
    let tail_bytes = cursor.take(2)?.iter().fold(0, |size, &byte| size << 8 | usize::from(byte));
    if cursor.rest().len() != tail_bytes || topic.of(data)? == SCHEDULE_TOPIC {
        return None;
    }
    Some(Record { end, topic, tail_start, queue_id, queue_offset, stored_ms })
}

/// The place of a record's queue among `queues`; None if the record does not come next in it, or there is no room.
fn queue_of(data: &[u8], record: &Record, queues: &mut [Queue], count: &mut usize) -> Option<usize> {
    let topic = record.topic.of(data)?;
    let queue_id = i64::from(record.queue_id);
    let same =
        |queue: &Queue| queue.queue_id == queue_id && queue.topic().and_then(|other| other.of(data)) == Some(topic);
    let place = queues.get(..*count)?.iter().position(same).unwrap_or(*count);
    let queue = queues.get_mut(place)?;
    if place == *count {
        *queue = Queue {
            topic_start: u64::try_from(record.topic.start).ok()?,
            topic_end: u64::try_from(record.topic.end).ok()?,
            queue_id,
            next_offset: record.queue_offset,
            prefix: Prefix::new(topic),
            ..Queue::default()
        };
        *count += 1;
    }
    let due = queue.next_offset.checked_add(i64::try_from(queue.unit_count).ok()?)?;
    if record.queue_offset != due {
        return None;
    }
    queue.unit_count += 1;
    Some(place)
}
