//! Plain sends: the frames of some reads to rows, then rows to records, answers and entries of queues.
//!
//! Between the two the caller says which queues there are.

use crate::answer::{json_answer, rocketmq_answer, Stored};
use crate::batch::{self, Parts};
use crate::header::{json_send, rocketmq_send, Send, JSON, ROCKETMQ};
use crate::input::{Cursor, Span};
use crate::keys::{put_keys, Prefix};
use crate::output::{Decimal, Full, Writer};
use crate::properties::{tags_code, text, unescape, Values, SEPARATOR};
use crate::rules::Rules;

pub const MAX_HEADER_BYTES: u32 = 256 * 1024;
/// Compressed, multi-tags, kind of compression.
const PLAIN_FLAGS: i64 = 0x703;
const BORN_V6: i64 = 0x10;
const STORE_V6: i64 = 0x20;
/// Bytes of a record in front of its hosts, and between them and the body (formats.md §2).
const FRONT_BYTES: usize = 48;
const BACK_BYTES: usize = 16;
pub const UNIT_BYTES: usize = 20;

/// A send.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Row {
    send: Send,
    body: Span,
    codec: u32,
    queue: u32,
    /// Records that it becomes: one, or as many as a batch has messages.
    record_count: usize,
}

/// A queue that sends are for. The caller fills in the second half.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Queue {
    pub topic_start: u64,
    pub topic_end: u64,
    pub queue_id: i64,
    pub unit_count: u64,
    /// 0 if no plain send may go there.
    pub is_known: i64,
    pub magic: i64,
    pub next_offset: i64,
    /// The topic's field of a record, among the fields of all.
    pub field_start: u64,
    pub field_end: u64,
    /// Index of its next entry, while they are written.
    pub next_unit: usize,
    /// What the hashes of its keys begin with.
    pub prefix: Prefix,
}

pub struct Parsed {
    pub row_count: usize,
    pub queue_count: usize,
    pub record_count: usize,
}

/// The frames of one connection among `data`, and what has become of them.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Part {
    pub start: usize,
    pub end: usize,
    /// Frames to take at most.
    pub max_count: usize,
    pub born_port: i64,
    pub born_bytes: usize,
    pub born_address: [u8; 16],
    /// Sends that parse has found: they have the rows behind those of the parts before.
    pub row_count: usize,
    // found by build
    pub taken_count: usize,
    /// Index behind the last frame that was taken.
    pub taken_end: usize,
    /// Index behind the last answer of this part.
    pub answers_end: usize,
}

/// Finds the sends at the front of each part of `data`, and their queues; as many as there are rows.
pub fn parse(data: &[u8], parts: &mut [Part], rules: &Rules, rows: &mut [Row], queues: &mut [Queue]) -> Parsed {
    let mut found = Parsed { row_count: 0, queue_count: 0, record_count: 0 };
    for part in parts {
        part.row_count = 0;
        let Some(own) = data.get(..part.end) else { continue };
        let mut cursor = Cursor::new(own, part.start);
        while part.row_count < part.max_count {
            let Some(row) = rows.get_mut(found.row_count) else { break };
            let Some((codec, send, body)) = parse_frame(own, &mut cursor, rules) else { break };
            let Some(queue) = queue_of(data, &send, queues, &mut found.queue_count) else { break };
            let record_count = if send.is_batch { batch::count(data, body, rules) } else { 1 };
            if record_count == 0 {
                break;
            }
            *row = Row { send, body, codec, queue, record_count };
            part.row_count += 1;
            found.row_count += 1;
            found.record_count += record_count;
        }
    }
    found
}

fn parse_frame(data: &[u8], cursor: &mut Cursor, rules: &Rules) -> Option<(u32, Send, Span)> {
    let size = i64::from(cursor.word()? as i32);
    let word = cursor.word()?;
    let header_bytes = word & 0x00FF_FFFF;
    let body_bytes = size - 4 - i64::from(header_bytes);
    if size > rules.max_frame_bytes || header_bytes > MAX_HEADER_BYTES || body_bytes > rules.max_body_bytes {
        return None;
    }
    let header_start = cursor.at;
    cursor.take(usize::try_from(header_bytes).ok()?)?;
    let body_start = cursor.at;
    cursor.take(usize::try_from(body_bytes).ok()?)?;
    let header = data.get(..body_start)?;
    let codec = word >> 24;
    let send = match codec {
        JSON => json_send(header, header_start)?,
        ROCKETMQ => rocketmq_send(header, header_start)?,
        _ => return None,
    };
    if send.sys_flag & !PLAIN_FLAGS != 0 {
        return None;
    }
    Some((codec, send, Span { start: body_start, end: cursor.at }))
}

/// The place of a send's queue among `queues`, a new one if it occurs for the first time.
fn queue_of(data: &[u8], send: &Send, queues: &mut [Queue], count: &mut usize) -> Option<u32> {
    let topic = send.topic.of(data)?;
    let same = |queue: &Queue| {
        queue.queue_id == send.queue_id && queue.topic().and_then(|other| other.of(data)) == Some(topic)
    };
    let place = queues.get(..*count)?.iter().position(same).unwrap_or(*count);
    if place == *count {
        if send.queue_text.of(data)? != Decimal::new(send.queue_id).text() {
            return None; // two texts of one number would be two runs of one queue
        }
        *queues.get_mut(place)? = Queue {
            topic_start: u64::try_from(send.topic.start).ok()?,
            topic_end: u64::try_from(send.topic.end).ok()?,
            queue_id: send.queue_id,
            ..Queue::default()
        };
        *count += 1;
    }
    u32::try_from(place).ok()
}

impl Queue {
    pub fn topic(&self) -> Option<Span> {
        span(self.topic_start, self.topic_end)
    }
}

fn span(start: u64, end: u64) -> Option<Span> {
    Some(Span { start: usize::try_from(start).ok()?, end: usize::try_from(end).ok()? })
}

/// The log's end, as it is at the call.
pub struct Ground<'a> {
    pub phy_offset: i64,
    pub room_end: i64,
    pub stored_ms: i64,
    /// Topic fields of the queues.
    pub fields: &'a [u8],
}

/// The caller's memory for what is made. Of the lists each has a place for every record.
pub struct Made<'a> {
    pub records: Writer<'a>,
    pub answers: Writer<'a>,
    /// Entries of the index; None: nobody asks for them.
    pub keyed: Option<Writer<'a>>,
    pub sends: MadeSends<'a>,
    /// Index among the records behind each one.
    pub ends: &'a mut [i64],
    /// Each one's queue.
    pub places: &'a mut [i64],
    /// Each one's tagsCode.
    pub tags: &'a mut [i64],
    /// Entries, those of one queue together.
    pub units: &'a mut [u8],
}

/// Lists with a place for each send.
pub struct MadeSends<'a> {
    /// Index among the records at which the properties of its first one begin, with their length in front.
    pub tail_starts: &'a mut [i64],
    /// Index behind them.
    pub tail_ends: &'a mut [i64],
    /// Index behind its last record.
    pub ends: &'a mut [i64],
    /// Its queue.
    pub places: &'a mut [i64],
    /// Its records.
    pub counts: &'a mut [i64],
}

impl MadeSends<'_> {
    fn set(&mut self, number: usize, tail: Span, end: usize, place: u32, record_count: usize) -> Result<(), Full> {
        *self.tail_starts.get_mut(number).ok_or(Full)? = index(tail.start)?;
        *self.tail_ends.get_mut(number).ok_or(Full)? = index(tail.end)?;
        *self.ends.get_mut(number).ok_or(Full)? = index(end)?;
        *self.places.get_mut(number).ok_or(Full)? = i64::from(place);
        *self.counts.get_mut(number).ok_or(Full)? = index(record_count)?;
        Ok(())
    }
}

/// What all records of a part have in common.
struct Common<'a> {
    rules: &'a Rules<'a>,
    ground: &'a Ground<'a>,
    hosts: Hosts,
    v6_flags: i64,
}

impl<'a> Common<'a> {
    fn new(rules: &'a Rules, ground: &'a Ground, part: &Part) -> Result<Self, Full> {
        let born_address = part.born_address.get(..part.born_bytes).ok_or(Full)?;
        let v6_flag = |address: &[u8], flag| if address.len() == 16 { flag } else { 0 };
        Ok(Common {
            rules,
            ground,
            hosts: Hosts::new(rules, ground, born_address, part.born_port as i32)?,
            v6_flags: v6_flag(born_address, BORN_V6) | v6_flag(rules.store_address, STORE_V6),
        })
    }
}

/// Bytes from bornHost to storeHost.
struct Hosts {
    bytes: [u8; 48],
    size: usize,
}

impl Hosts {
    fn new(rules: &Rules, ground: &Ground, born_address: &[u8], born_port: i32) -> Result<Self, Full> {
        let mut bytes = [0; 48];
        let mut writer = Writer::new(&mut bytes);
        writer.put(born_address)?;
        writer.put(&born_port.to_be_bytes())?;
        writer.put(&ground.stored_ms.to_be_bytes())?;
        writer.put(rules.store_address)?;
        writer.put(&rules.store_port.to_be_bytes())?;
        let size = writer.size();
        Ok(Hosts { bytes, size })
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.size).unwrap_or_default()
    }
}

pub struct Built {
    pub row_count: usize,
    pub record_count: usize,
}

/// Makes the records, answers and entries of as many rows of each part as are plain. `Full` if the memory is too small
/// for them.
pub fn build(
    data: &[u8],
    parts: &mut [Part],
    rules: &Rules,
    ground: &Ground,
    rows: &[Row],
    queues: &mut [Queue],
    made: &mut Made,
) -> Result<Built, Full> {
    for queue in queues.iter_mut() {
        queue.unit_count = 0;
        queue.prefix = Prefix::new(text(queue.topic(), data));
    }
    let mut built = Built { row_count: 0, record_count: 0 };
    let mut rest = rows;
    for part in parts.iter_mut() {
        let Some(own) = rest.get(..part.row_count) else { break };
        rest = rest.get(part.row_count..).unwrap_or_default();
        let common = Common::new(rules, ground, part)?;
        (part.taken_count, part.taken_end) = (0, part.start);
        for row in own {
            let Some(queue) = usize::try_from(row.queue).ok().and_then(|place| queues.get_mut(place)) else { break };
            let sizes = (made.records.size(), made.answers.size(), made.keyed.as_ref().map_or(0, Writer::size));
            let add = if row.send.is_batch { add_batch } else { add_single };
            let Some(tail) = add(data, &common, row, queue, built.record_count, made)? else {
                made.records.cut(sizes.0);
                made.answers.cut(sizes.1);
                made.keyed.iter_mut().for_each(|keyed| keyed.cut(sizes.2));
                break;
            };
            let record_count = row.record_count;
            let added = built.record_count..built.record_count + record_count;
            queue.unit_count += u64::try_from(record_count).map_err(|_| Full)?;
            made.places.get_mut(added).ok_or(Full)?.fill(i64::from(row.queue));
            made.sends.set(built.row_count, tail, made.records.size(), row.queue, record_count)?;
            built.row_count += 1;
            built.record_count += record_count;
            part.taken_count += 1;
            part.taken_end = row.body.end;
        }
        part.answers_end = made.answers.size();
    }
    let places = made.places.get(..built.record_count).unwrap_or_default();
    entries(places, made.ends, made.tags, queues, ground.phy_offset, made.units)?;
    Ok(built)
}

fn index(size: usize) -> Result<i64, Full> {
    i64::try_from(size).map_err(|_| Full)
}

impl Queue {
    /// Offset of the entry that is `ahead` behind those that it has got.
    fn offset(&self, ahead: usize) -> Option<i64> {
        let count = i64::try_from(self.unit_count).ok()?.checked_add(i64::try_from(ahead).ok()?)?;
        self.next_offset.checked_add(count)
    }
}

/// Makes one send's record, the `number`th of all, and its answer; returns where among the records its properties are.
/// None if the send is not plain: what has been written of it must be cut then.
fn add_single(
    data: &[u8],
    common: &Common,
    row: &Row,
    queue: &Queue,
    number: usize,
    made: &mut Made,
) -> Result<Option<Span>, Full> {
    let send = &row.send;
    let Some(inputs) = Inputs::new(data, common, row, queue) else { return Ok(None) };
    let records = &mut made.records;
    let start = records.size();
    let tail_start = begin(common, inputs.body, inputs.field, records)?;
    records.skip(2)?;
    let Some(values) = put_properties(common.rules, row.codec, inputs.properties, records)? else { return Ok(None) };
    let sent = records.since(tail_start + 2);
    let tags = tags_code(text(values.tags, sent));
    if !matches!(sent.last(), None | Some(&SEPARATOR)) {
        records.put(&[SEPARATOR])?;
    }
    records.put(common.rules.own_properties)?;
    let properties_bytes = records.size() - tail_start - 2;
    let Ok(tail_bytes) = u16::try_from(properties_bytes) else { return Ok(None) };
    records.set(tail_start, &tail_bytes.to_be_bytes())?;
    let phy_offset = common.ground.phy_offset.checked_add(index(start)?).ok_or(Full)?;
    let Some(queue_offset) = queue.offset(0) else { return Ok(None) };
    let place = Place { start, phy_offset, queue_offset };
    if i64::from(tail_bytes) > common.rules.max_properties_bytes
        || !fits(common, records.size())
        || !finish(common, send, send.flag, queue, inputs.body, &place, records)?
    {
        return Ok(None);
    }
    *made.ends.get_mut(number).ok_or(Full)? = index(records.size())?;
    *made.tags.get_mut(number).ok_or(Full)? = tags;
    let properties = records.since(tail_start + 2);
    if let Some(keyed) = &mut made.keyed {
        put_keys(queue.prefix, properties, Values::of(properties), phy_offset, common.ground.stored_ms, keyed)?;
    }
    let unique_key = text(values.unique_key, properties);
    let stored = Stored { opaque: send.opaque, queue_text: inputs.queue_text, queue_offset, unique_key };
    answer(common.rules, row.codec, &stored, std::iter::once(phy_offset), &mut made.answers)?;
    Ok(Some(Span { start: tail_start, end: made.records.size() }))
}

/// Makes the records of a batch, the first of them the `number`th of all, and its answer; as `add_single`.
fn add_batch(
    data: &[u8],
    common: &Common,
    row: &Row,
    queue: &Queue,
    number: usize,
    made: &mut Made,
) -> Result<Option<Span>, Full> {
    let send = &row.send;
    let (Some(inputs), Some(parts)) = (Inputs::new(data, common, row, queue), Parts::new(data, row.body)) else {
        return Ok(None);
    };
    let Some(first_offset) = queue.offset(0) else { return Ok(None) };
    let start = made.records.size();
    let overhead = FRONT_BYTES + common.hosts.size + BACK_BYTES + inputs.field.len() + 2;
    let record_bytes = |part: &batch::Part| overhead + part.size() - batch::FIXED_BYTES;
    // the batch's own properties are no part of a record: they stand where the first will stand
    let Some(values) = put_properties(common.rules, row.codec, inputs.properties, &mut made.records)? else {
        return Ok(None);
    };
    let properties = made.records.since(start);
    let properties_bytes = index(properties.len() + common.rules.own_properties.len())?;
    if properties_bytes > common.rules.max_properties_bytes {
        return Ok(None);
    }
    let mut next = common.ground.phy_offset.checked_add(index(start)?).ok_or(Full)?;
    let phy_offsets = parts.clone().map(|part| {
        let phy_offset = next;
        next = next.saturating_add(i64::try_from(record_bytes(&part)).unwrap_or(i64::MAX));
        phy_offset
    });
    let unique_key = text(values.unique_key, properties);
    let stored = Stored { opaque: send.opaque, queue_text: inputs.queue_text, queue_offset: first_offset, unique_key };
    answer(common.rules, row.codec, &stored, phy_offsets, &mut made.answers)?;
    let records = &mut made.records;
    records.cut(start);
    let mut first_tail = None;
    for (ahead, part) in parts.enumerate() {
        let (Some(body), Some(tail), Some(queue_offset)) =
            (part.body.of(data), part.tail.of(data), queue.offset(ahead))
        else {
            return Ok(None);
        };
        let start = records.size();
        let phy_offset = common.ground.phy_offset.checked_add(index(start)?).ok_or(Full)?;
        let tail_start = begin(common, body, inputs.field, records)?;
        records.put(tail)?;
        let place = Place { start, phy_offset, queue_offset };
        if !fits(common, records.size()) || !finish(common, send, part.flag, queue, body, &place, records)? {
            return Ok(None);
        }
        let properties = tail.get(2..).unwrap_or_default();
        let values = Values::of(properties);
        if let Some(keyed) = &mut made.keyed {
            put_keys(queue.prefix, properties, values, phy_offset, common.ground.stored_ms, keyed)?;
        }
        *made.ends.get_mut(number + ahead).ok_or(Full)? = index(records.size())?;
        *made.tags.get_mut(number + ahead).ok_or(Full)? = tags_code(text(values.tags, properties));
        first_tail = first_tail.or(Some(Span { start: tail_start, end: records.size() }));
    }
    Ok(first_tail)
}

/// What a row refers to.
struct Inputs<'a> {
    body: &'a [u8],
    properties: &'a [u8],
    queue_text: &'a [u8],
    field: &'a [u8],
}

impl<'a> Inputs<'a> {
    /// None if its queue is not known.
    fn new(data: &'a [u8], common: &Common<'a>, row: &Row, queue: &Queue) -> Option<Self> {
        if queue.is_known == 0 {
            return None;
        }
        Some(Inputs {
            body: row.body.of(data)?,
            properties: row.send.properties.of(data)?,
            queue_text: row.send.queue_text.of(data)?,
            field: span(queue.field_start, queue.field_end)?.of(common.ground.fields)?,
        })
    }
}

/// Writes a header's properties; returns where the values are among them, None if they are not plain.
fn put_properties(rules: &Rules, codec: u32, properties: &[u8], into: &mut Writer) -> Result<Option<Values>, Full> {
    let start = into.size();
    if codec != JSON {
        into.put(properties)?;
    } else if !unescape(properties, into)? {
        return Ok(None);
    }
    let sent = into.since(start);
    let values = Values::of(sent);
    let key = text(values.unique_key, sent);
    let is_plain = !rules.special.is_in(sent) && !key.is_empty() && !key.contains(&1);
    Ok(is_plain.then_some(values))
}

fn answer(
    rules: &Rules,
    codec: u32,
    stored: &Stored,
    phy_offsets: impl Iterator<Item = i64>,
    into: &mut Writer,
) -> Result<(), Full> {
    if codec == ROCKETMQ {
        rocketmq_answer(rules, stored, phy_offsets, into)
    } else {
        json_answer(rules, stored, phy_offsets, into)
    }
}

/// True if the file has room for records up to `end`, counted from the log's end.
fn fits(common: &Common, end: usize) -> bool {
    let room_bytes = common.ground.room_end.saturating_sub(common.ground.phy_offset);
    i64::try_from(end).map_or(false, |end| end <= room_bytes)
}

/// Writes a record up to its properties, without what `finish` writes; returns where they begin.
fn begin(common: &Common, body: &[u8], field: &[u8], records: &mut Writer) -> Result<usize, Full> {
    records.skip(FRONT_BYTES + common.hosts.size + BACK_BYTES)?;
    records.put(body)?;
    records.put(field)?;
    Ok(records.size())
}

/// Where a record stands: among the records, in the log and in its queue.
struct Place {
    start: usize,
    phy_offset: i64,
    queue_offset: i64,
}

/// Writes the head of the last record, which is whole otherwise. False if a number does not fit.
fn finish(
    common: &Common,
    send: &Send,
    flag: i64,
    queue: &Queue,
    body: &[u8],
    place: &Place,
    records: &mut Writer,
) -> Result<bool, Full> {
    let (Ok(size), Ok(body_bytes)) = (i32::try_from(records.size() - place.start), i32::try_from(body.len())) else {
        return Ok(false);
    };
    let mut front = [0; FRONT_BYTES];
    let mut head = Writer::new(&mut front);
    head.put(&size.to_be_bytes())?;
    head.put(&(queue.magic as u32).to_be_bytes())?;
    head.put(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes())?;
    head.put(&(send.queue_id as i32).to_be_bytes())?;
    head.put(&(flag as i32).to_be_bytes())?;
    head.put(&place.queue_offset.to_be_bytes())?;
    head.put(&place.phy_offset.to_be_bytes())?;
    head.put(&((send.sys_flag | common.v6_flags) as i32).to_be_bytes())?;
    head.put(&send.born_ms.to_be_bytes())?;
    let mut back = [0; BACK_BYTES];
    let mut foot = Writer::new(&mut back);
    foot.put(&(send.reconsumed as i32).to_be_bytes())?;
    foot.skip(8)?; // preparedTransactionOffset
    foot.put(&body_bytes.to_be_bytes())?;
    records.set(place.start, &front)?;
    records.set(place.start + FRONT_BYTES, common.hosts.bytes())?;
    records.set(place.start + FRONT_BYTES + common.hosts.size, &back)?;
    Ok(true)
}

/// Writes the queues' entries (formats.md §3): physical offset, size, tagsCode; those of one queue together. A record
/// ends at its one of `ends`, counted from `phy_offset`.
pub fn entries(
    places: &[i64],
    ends: &[i64],
    tags: &[i64],
    queues: &mut [Queue],
    phy_offset: i64,
    units: &mut [u8],
) -> Result<(), Full> {
    let mut units = Writer::new(units);
    for queue in queues.iter_mut() {
        queue.next_unit = units.size();
        units.skip(usize::try_from(queue.unit_count).map_err(|_| Full)?.saturating_mul(UNIT_BYTES))?;
    }
    let mut start = 0;
    for ((&place, &end), &tags) in places.iter().zip(ends).zip(tags) {
        let queue = usize::try_from(place).ok().and_then(|place| queues.get_mut(place)).ok_or(Full)?;
        let at = queue.next_unit;
        units.set(at, &(phy_offset + start).to_be_bytes())?;
        units.set(at + 8, &((end - start) as i32).to_be_bytes())?;
        units.set(at + 12, &tags.to_be_bytes())?;
        queue.next_unit = at + UNIT_BYTES;
        start = end;
    }
    Ok(())
}
