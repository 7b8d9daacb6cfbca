//! The index of keys (formats.md §5): the hashes of a record's keys, and entries into the place that they take in a file.

use crate::output::{Full, Writer};
use crate::properties::{text, Values};

/// Key hash, physical offset and store timestamp, in the machine's own order of bytes.
pub const NEW_ENTRY_BYTES: usize = 20;
/// Key hash, physical offset, seconds and number of the entry before it, as a file holds them.
pub const ENTRY_BYTES: usize = 20;
const HEADER_BYTES: usize = 40;
const SLOT_BYTES: usize = 4;
const SIGN: u32 = 1 << 31;
const REPLACEMENT: u16 = 0xFFFD;
/// Powers of 31: of what each of four characters is multiplied with, and what stands before them.
const WEIGHTS: [u32; 4] = [31 * 31 * 31, 31 * 31, 31, 1];
const WEIGHT_4: u32 = 31 * 31 * 31 * 31;

/// Java's String.hashCode of what was hashed before, `before`, with UTF-8 text behind it. What is no UTF-8 is replaced.
fn hash(before: u32, text: &[u8]) -> u32 {
    let next = |value: u32, unit: u16| value.wrapping_mul(31).wrapping_add(u32::from(unit));
    if text.is_ascii() {
        // four at a time: one multiplication waits for the one before
        let fours = text.chunks_exact(4);
        let rest = fours.remainder();
        let value = fours.fold(before, |value, four| {
            let four = four.iter().zip(WEIGHTS).map(|(&byte, weight)| u32::from(byte) * weight).sum::<u32>();
            value.wrapping_mul(WEIGHT_4).wrapping_add(four)
        });
        return rest.iter().fold(value, |value, &byte| next(value, u16::from(byte)));
    }
    let (mut value, mut rest) = (before, text);
    while !rest.is_empty() {
        let (whole, bad_bytes) = match std::str::from_utf8(rest) {
            Ok(_) => (rest.len(), 0),
            Err(error) => {
                let whole = error.valid_up_to();
                (whole, error.error_len().unwrap_or(rest.len() - whole))
            }
        };
        let good = rest.get(..whole).and_then(|good| std::str::from_utf8(good).ok()).unwrap_or_default();
        value = good.encode_utf16().fold(value, next);
        if bad_bytes > 0 {
            value = next(value, REPLACEMENT);
        }
        rest = rest.get(whole + bad_bytes..).unwrap_or_default();
    }
    value
}

/// A hash as an entry has it: Java's absolute value, 0 for the one that has none.
fn positive(value: u32) -> i32 {
    let value = if value < SIGN { value } else { value.wrapping_neg() % SIGN };
    value as i32
}

/// Hashes of `topic#` and `topic#T#`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Prefix {
    key: u32,
    tag: u32,
}

impl Prefix {
    pub fn new(topic: &[u8]) -> Self {
        let key = hash(hash(0, topic), b"#");
        Prefix { key, tag: hash(key, b"T#") }
    }
}

/// Writes an entry for each key of a record, in RocketMQ's order: UNIQ_KEY, each of KEYS, TAGS.
pub fn put_keys(
    prefix: Prefix,
    properties: &[u8],
    values: Values,
    phy_offset: i64,
    stored_ms: i64,
    into: &mut Writer,
) -> Result<(), Full> {
    let mut add = |value: u32| {
        into.put(&positive(value).to_ne_bytes())?;
        into.put(&phy_offset.to_ne_bytes())?;
        into.put(&stored_ms.to_ne_bytes())
    };
    if let Some(unique) = values.unique_key.and_then(|span| span.of(properties)) {
        add(hash(prefix.key, unique))?;
    }
    for key in text(values.keys, properties).split(|&byte| byte == b' ').filter(|key| !key.is_empty()) {
        add(hash(prefix.key, key))?;
    }
    let tags = text(values.tags, properties);
    if !tags.is_empty() {
        add(hash(prefix.tag, tags))?;
    }
    Ok(())
}

/// An index file as it is before entries are put into it.
pub struct IndexFile<'a> {
    /// Its header and its slots at least.
    pub file: &'a [u8],
    pub slot_count: i64,
    /// Number of the first entry.
    pub first: i64,
    pub begin_ms: i64,
}

/// The caller's memory for what is to be written.
pub struct Placed<'a> {
    /// A file's entry for each new one.
    pub entries: &'a mut [u8],
    /// Where slots are to be written, and with what.
    pub positions: &'a mut [i64],
    pub heads: &'a mut [i64],
    /// A power of two, more than there are entries.
    pub table: &'a mut [u32],
}

/// Places new entries behind those that a file has; returns the number of slots to write, and of those among them that
/// no entry had used. None if the file is none, or the memory too small.
pub fn place(index: &IndexFile, new: &[u8], placed: &mut Placed) -> Option<(usize, usize)> {
    placed.table.fill(0);
    // first all slots are read, in no order that a cache could know: one need not wait for the one before
    let (mut begin_ms, mut number) = (index.begin_ms, index.first);
    let mut into = Writer::new(placed.entries);
    for entry in new.chunks_exact(NEW_ENTRY_BYTES) {
        let key_hash = i32::from_ne_bytes(entry.get(..4)?.try_into().ok()?);
        let phy_offset = i64::from_ne_bytes(entry.get(4..12)?.try_into().ok()?);
        let stored_ms = i64::from_ne_bytes(entry.get(12..20)?.try_into().ok()?);
        let position = index.position(key_hash)?;
        into.put(&key_hash.to_be_bytes()).ok()?;
        into.put(&phy_offset.to_be_bytes()).ok()?;
        into.put(&seconds(stored_ms, begin_ms).to_be_bytes()).ok()?;
        into.put(index.file.get(position..position + SLOT_BYTES)?).ok()?;
        if number == 1 {
            begin_ms = stored_ms;
        }
        number = number.checked_add(1)?;
    }
    let size = into.size();
    let (mut head_count, mut new_slots) = (0, 0);
    number = index.first;
    for entry in placed.entries.get_mut(..size)?.chunks_exact_mut(ENTRY_BYTES) {
        let key_hash = i32::from_be_bytes(entry.get(..4)?.try_into().ok()?);
        let word = entry.get_mut(ENTRY_BYTES - SLOT_BYTES..)?;
        let position = index.position(key_hash)?;
        let previous = match find(placed.table, placed.positions, position)? {
            Found::Known(head) => {
                let head = placed.heads.get_mut(head)?;
                std::mem::replace(head, number)
            }
            Found::Free(bucket) => {
                *placed.table.get_mut(bucket)? = u32::try_from(head_count + 1).ok()?;
                *placed.positions.get_mut(head_count)? = i64::try_from(position).ok()?;
                *placed.heads.get_mut(head_count)? = number;
                head_count += 1;
                let before = i64::from(i32::from_be_bytes((&*word).try_into().ok()?));
                if before > 0 && before < index.first {
                    before
                } else {
                    new_slots += 1;
                    0
                }
            }
        };
        word.copy_from_slice(&i32::try_from(previous).ok()?.to_be_bytes());
        number += 1;
    }
    Some((head_count, new_slots))
}

impl IndexFile<'_> {
    /// Where the slot of a hash is in the file; None for what is no hash.
    fn position(&self, key_hash: i32) -> Option<usize> {
        let slot = u32::try_from(key_hash).ok()?.checked_rem(u32::try_from(self.slot_count).ok()?)?;
        Some(HEADER_BYTES + SLOT_BYTES * usize::try_from(slot).ok()?)
    }
}

/// Whole seconds since the file's begin, within what an entry can hold.
fn seconds(stored_ms: i64, begin_ms: i64) -> i32 {
    if begin_ms <= 0 {
        return 0;
    }
    let seconds = (i128::from(stored_ms) - i128::from(begin_ms)).div_euclid(1000);
    i32::try_from(seconds.clamp(0, i128::from(i32::MAX))).unwrap_or_default()
}

enum Found {
    /// Place among the heads.
    Known(usize),
    /// Bucket of the table that is to have it.
    Free(usize),
}

/// The slot at `position` among those that have got an entry.
fn find(table: &[u32], positions: &[i64], position: usize) -> Option<Found> {
    let mask = table.len().checked_sub(1)?;
    let mut bucket = position.wrapping_mul(0x9E37_79B9) >> 7 & mask;
    for _ in 0..table.len() {
        match usize::try_from(*table.get(bucket)?).ok()?.checked_sub(1) {
            None => return Some(Found::Free(bucket)),
            Some(head) if usize::try_from(*positions.get(head)?).ok()? == position => return Some(Found::Known(head)),
            Some(_) => bucket = (bucket + 1) & mask,
        }
    }
    None
}
