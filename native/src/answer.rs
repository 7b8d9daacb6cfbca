//! The answers to plain sends: the literals of a broker's configuration with few values between them.

use crate::output::{hexadecimal, Decimal, Full, Writer};
use crate::rules::Rules;

const FIXED_ROCKETMQ_BYTES: usize = 21;
const ROCKETMQ_WORD: u32 = 1 << 24;

/// What an answer says of a message.
pub struct Stored<'a> {
    pub opaque: i64,
    pub queue_text: &'a [u8],
    /// The first one.
    pub queue_offset: i64,
    pub unique_key: &'a [u8],
}

/// Writes a frame with a JSON header. `phy_offsets` are those of a message, or of all in a batch.
pub fn json_answer(
    rules: &Rules,
    stored: &Stored,
    phy_offsets: impl Iterator<Item = i64>,
    into: &mut Writer,
) -> Result<(), Full> {
    let start = into.size();
    into.skip(8)?;
    let [msg_id, queue_id, queue_offset, unique_key, opaque, last, _] = rules.json;
    into.put(msg_id)?;
    message_ids(rules, phy_offsets, into)?;
    into.put(queue_id)?;
    into.put(stored.queue_text)?;
    into.put(queue_offset)?;
    into.put(Decimal::new(stored.queue_offset).text())?;
    into.put(unique_key)?;
    into.put(stored.unique_key)?;
    into.put(opaque)?;
    into.put(Decimal::new(stored.opaque).text())?;
    into.put(last)?;
    frame(into, start, 0)
}

/// Writes a frame with a ROCKETMQ header, as `json_answer` does.
pub fn rocketmq_answer(
    rules: &Rules,
    stored: &Stored,
    phy_offsets: impl Iterator<Item = i64>,
    into: &mut Writer,
) -> Result<(), Full> {
    let start = into.size();
    let [head, middle, msg_id, queue_id, queue_offset, own, key_head] = rules.rocketmq;
    into.skip(8)?;
    into.put(head)?;
    into.put(&(stored.opaque as i32).to_be_bytes())?;
    into.put(middle)?;
    let ext_at = into.size();
    into.skip(4)?;
    into.put(msg_id)?;
    let ids_at = into.size();
    into.skip(4)?;
    message_ids(rules, phy_offsets, into)?;
    into.set(ids_at, &size_word(into.size() - ids_at - 4)?)?;
    into.put(queue_id)?;
    short(stored.queue_text, into)?;
    into.put(queue_offset)?;
    short(Decimal::new(stored.queue_offset).text(), into)?;
    into.put(own)?;
    into.put(key_head)?;
    into.put(&size_word(stored.unique_key.len())?)?;
    into.put(stored.unique_key)?;
    let ext_bytes = into.size() - start - 8 - FIXED_ROCKETMQ_BYTES;
    into.set(ext_at, &size_word(ext_bytes)?)?;
    frame(into, start, ROCKETMQ_WORD)
}

/// Message ids with commas between.
fn message_ids(rules: &Rules, phy_offsets: impl Iterator<Item = i64>, into: &mut Writer) -> Result<(), Full> {
    for (place, phy_offset) in phy_offsets.enumerate() {
        if place > 0 {
            into.put(b",")?;
        }
        into.put(rules.store_host)?;
        into.put(&hexadecimal(phy_offset))?;
    }
    Ok(())
}

/// A value below 256 bytes behind the last byte of its length.
fn short(value: &[u8], into: &mut Writer) -> Result<(), Full> {
    into.put(&[u8::try_from(value.len()).map_err(|_| Full)?])?;
    into.put(value)
}

fn size_word(size: usize) -> Result<[u8; 4], Full> {
    Ok(u32::try_from(size).map_err(|_| Full)?.to_be_bytes())
}

/// Fills in the two words of the frame that begins at `start` and has no body.
fn frame(into: &mut Writer, start: usize, codec: u32) -> Result<(), Full> {
    let header_bytes = u32::try_from(into.size() - start - 8).map_err(|_| Full)?;
    into.set(start, &(4 + header_bytes).to_be_bytes())?;
    into.set(start + 4, &(codec | header_bytes).to_be_bytes())
}
