//! Records of a window to the buffers of Arrow columns: where the parts of each are, then the parts, column by column.

use crate::output::{Full, Writer};
use crate::sound::{crc_of, long, short, word};

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
const V6_BYTES: usize = 12;
const KEYS: &[u8] = b"KEYS\x01";
const TAGS: &[u8] = b"TAGS\x01";
const MICROSECONDS: i64 = 1000;
/// What is wanted of the records.
pub const BODY: i64 = 1;
pub const TOPIC: i64 = 2;
pub const KEY_LIST: i64 = 4;
pub const TAG: i64 = 8;
pub const NUMBERS: i64 = 16;

const MIN_RECORD_BYTES: i64 = 91;

/// Follows the records of a window, from index 0 on, as long as magic, size and own offset are right and all of a record
/// is there; `base` is the offset of index 0, and none begins at or ends behind `stop`. Returns how many it has written
/// into `starts`, and where the last one ends.
pub fn walk(data: &[u8], base: i64, stop: i64, max_bytes: i64, starts: &mut [i64]) -> (usize, i64) {
    let (mut at, mut count) = (0i64, 0);
    for place in starts {
        let Some(size) = step(data, at, base, stop, max_bytes) else { break };
        *place = at;
        at += size;
        count += 1;
    }
    (count, at)
}

/// Bytes of the record at index `at`.
fn step(data: &[u8], at: i64, base: i64, stop: i64, max_bytes: i64) -> Option<i64> {
    let index = usize::try_from(at).ok()?;
    let size = i64::from(word(data, index)? as i32);
    let magic = word(data, index + 4)?;
    let is_right = (magic == MAGIC_V1 || magic == MAGIC_V2)
        && size >= MIN_RECORD_BYTES
        && size <= max_bytes.min(stop.checked_sub(at)?)
        && size <= i64::try_from(data.len() - index).ok()?
        && long(data, index + 28)? == base.checked_add(at)?;
    is_right.then_some(size)
}

/// Where the parts of a record are in the window. A part that is not there begins at −1.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Parts {
    stored_at: i64,
    body: [i64; 2],
    topic: [i64; 2],
    keys: [i64; 2],
    tags: [i64; 2],
}

const NONE: [i64; 2] = [-1, -1];

/// Which records are wanted how.
pub struct Wanted {
    pub columns: i64,
    /// Flags of records that are not plain.
    pub refused_flags: i64,
    pub verifies_crc: bool,
}

/// Bytes of each column, and keys.
#[derive(Default)]
pub struct Sizes {
    pub body: i64,
    pub topic: i64,
    pub keys: i64,
    pub key_count: i64,
    pub tags: i64,
    pub tag_count: i64,
}

/// Finds the parts of records, which begin at `starts`; returns how many are plain in front of the first that is not.
pub fn measure(data: &[u8], starts: &[i64], wanted: &Wanted, parts: &mut [Parts], sizes: &mut Sizes) -> usize {
    let mut count = 0;
    for (&start, into) in starts.iter().zip(parts) {
        let Some(found) = usize::try_from(start).ok().and_then(|start| parts_of(data, start, wanted)) else { break };
        *into = found;
        let size = |span: [i64; 2]| span[1] - span[0];
        sizes.body += size(found.body);
        sizes.topic += size(found.topic);
        sizes.tags += size(found.tags);
        sizes.tag_count += i64::from(found.tags != NONE);
        for key in keys_of(data, found.keys) {
            sizes.keys += i64::try_from(key.len()).unwrap_or(i64::MAX);
            sizes.key_count += 1;
        }
        count += 1;
    }
    count
}

fn keys_of(data: &[u8], span: [i64; 2]) -> impl Iterator<Item = &[u8]> {
    of(data, span).unwrap_or_default().split(|&byte| byte == b' ').filter(|key| !key.is_empty())
}

fn of(data: &[u8], span: [i64; 2]) -> Option<&[u8]> {
    data.get(usize::try_from(span[0]).ok()?..usize::try_from(span[1]).ok()?)
}

fn parts_of(data: &[u8], start: usize, wanted: &Wanted) -> Option<Parts> {
    let rest = data.get(start..)?;
    let record = rest.get(..usize::try_from(word(rest, 0)? as i32).ok()?)?;
    let sys_flag = word(record, 36)? as i32;
    if i64::from(sys_flag) & wanted.refused_flags != 0 {
        return None;
    }
    let v6_bytes = |flag| if sys_flag & flag != 0 { V6_BYTES } else { 0 };
    let stored_at = 56 + v6_bytes(BORN_V6);
    let body_at = stored_at + 32 + v6_bytes(STORE_V6);
    let body_end = body_at.checked_add(usize::try_from(word(record, body_at - 4)? as i32).ok()?)?;
    let (topic_at, topic_bytes) = match word(record, 4)? {
        MAGIC_V1 => (body_end + 1, usize::from(*record.get(body_end)?)),
        MAGIC_V2 => (body_end + 2, short(record, body_end)?),
        _ => return None,
    };
    let topic_end = topic_at + topic_bytes;
    let properties = record.get(topic_end + 2..)?;
    if short(record, topic_end)? != properties.len() {
        return None;
    }
    if wanted.columns & BODY != 0 && wanted.verifies_crc && crc_of(record.get(body_at..body_end)?) != word(record, 8)? {
        return None;
    }
    for time in [long(record, 40)?, long(record, stored_at)?] {
        if wanted.columns & NUMBERS != 0 && time.checked_mul(MICROSECONDS).map_or(true, |time| time == i64::MIN) {
            return None;
        }
    }
    let span = |from: usize, to: usize| Some([i64::try_from(start + from).ok()?, i64::try_from(start + to).ok()?]);
    let mut found =
        Parts { stored_at: span(stored_at, stored_at)?[0], body: [0, 0], topic: [0, 0], keys: NONE, tags: NONE };
    if wanted.columns & BODY != 0 {
        found.body = span(body_at, body_end)?;
    }
    if wanted.columns & TOPIC != 0 {
        is_text(record.get(topic_at..topic_end)?)?;
        found.topic = span(topic_at, topic_end)?;
    }
    if wanted.columns & (KEY_LIST | TAG) != 0 {
        let mut at = topic_end + 2;
        for piece in properties.split(|&byte| byte == 2) {
            let value = |name: &[u8]| piece.strip_prefix(name).filter(|value| !value.is_empty());
            let end = at + piece.len();
            if let Some(text) = value(KEYS).filter(|_| wanted.columns & KEY_LIST != 0) {
                is_text(text)?;
                found.keys = span(end - text.len(), end)?;
            } else if let Some(text) = value(TAGS).filter(|_| wanted.columns & TAG != 0) {
                is_text(text)?;
                found.tags = span(end - text.len(), end)?;
            }
            at = end + 1;
        }
    }
    Some(found)
}

fn is_text(text: &[u8]) -> Option<()> {
    (text.is_ascii() || std::str::from_utf8(text).is_ok()).then_some(())
}

/// A column of texts: where each ends, behind where the first begins, and all of them.
pub struct Texts<'a> {
    pub offsets: &'a mut [i32],
    pub data: Writer<'a>,
    /// Texts that it has.
    pub count: usize,
}

impl Texts<'_> {
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
    pub queue_ids: &'a mut [i32],
    pub queue_offsets: &'a mut [i64],
    pub phy_offsets: &'a mut [i64],
    pub born_us: &'a mut [i64],
    pub stored_us: &'a mut [i64],
}

/// Writes what is wanted of records whose parts `measure` has found in the same window.
pub fn write(data: &[u8], starts: &[i64], parts: &[Parts], wanted: i64, into: &mut Columns) -> Result<(), Full> {
    for (row, (&start, found)) in starts.iter().zip(parts).enumerate() {
        if wanted & BODY != 0 {
            into.body.put(of(data, found.body).ok_or(Full)?)?;
        }
        if wanted & TOPIC != 0 {
            into.topic.put(of(data, found.topic).ok_or(Full)?)?;
        }
        if wanted & KEY_LIST != 0 {
            for key in keys_of(data, found.keys) {
                into.keys.put(key)?;
            }
            *into.key_offsets.get_mut(row + 1).ok_or(Full)? = i32::try_from(into.keys.count).map_err(|_| Full)?;
        }
        if wanted & TAG != 0 {
            if found.tags != NONE {
                *into.tag_bits.get_mut(row / 8).ok_or(Full)? |= 1 << (row % 8);
            }
            into.tags.put(of(data, found.tags).unwrap_or_default())?;
        }
        if wanted & NUMBERS != 0 {
            let start = usize::try_from(start).map_err(|_| Full)?;
            let stored_at = usize::try_from(found.stored_at).map_err(|_| Full)?;
            *into.queue_ids.get_mut(row).ok_or(Full)? = word(data, start + 12).ok_or(Full)? as i32;
            *into.queue_offsets.get_mut(row).ok_or(Full)? = long(data, start + 20).ok_or(Full)?;
            *into.phy_offsets.get_mut(row).ok_or(Full)? = long(data, start + 28).ok_or(Full)?;
            *into.born_us.get_mut(row).ok_or(Full)? = long(data, start + 40).ok_or(Full)?.saturating_mul(MICROSECONDS);
            *into.stored_us.get_mut(row).ok_or(Full)? = long(data, stored_at).ok_or(Full)?.saturating_mul(MICROSECONDS);
        }
    }
    Ok(())
}
