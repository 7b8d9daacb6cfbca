//! The headers of plain sends in both codecs: what the patterns of `rmqha/kernel/send_header.py` find, and no more.

use crate::input::{number, Class, Cursor, Span};

const COUNT_DIGITS: usize = 9;
const TIME_DIGITS: usize = 18;

/// Codecs of a header, as the frame's word has them.
pub const JSON: u32 = 0;
pub const ROCKETMQ: u32 = 1;

/// The fields of a send that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Send {
    pub topic: Span,
    pub queue_text: Span,
    /// As they stand in the frame: in JSON with escapes.
    pub properties: Span,
    pub queue_id: i64,
    pub sys_flag: i64,
    pub born_ms: i64,
    pub flag: i64,
    pub reconsumed: i64,
    pub opaque: i64,
    /// Its body is that of request 320.
    pub is_batch: bool,
}

/// The send in `data` whose JSON header is from `start` to the end.
pub fn json_send(data: &[u8], start: usize) -> Option<Send> {
    let mut cursor = Cursor::new(data, start);
    let mut send = Send::default();
    cursor.literal(br#"{"code":3"#)?;
    send.is_batch = cursor.literal(b"20").is_some();
    if !send.is_batch {
        cursor.literal(b"10")?;
    }
    cursor.literal(br#","extFields":{"a":""#)?;
    cursor.run(Class::TEXT);
    cursor.literal(br#"","b":""#)?;
    send.topic = cursor.run(Class::TOPIC);
    if send.topic.start == send.topic.end {
        return None;
    }
    cursor.literal(br#"","c":""#)?;
    cursor.run(Class::TEXT);
    cursor.literal(br#"","d":""#)?;
    json_number(&mut cursor, data, COUNT_DIGITS, true)?;
    cursor.literal(br#"","e":""#)?;
    (send.queue_text, send.queue_id) = json_number(&mut cursor, data, COUNT_DIGITS, false)?;
    cursor.literal(br#"","f":""#)?;
    (_, send.sys_flag) = json_number(&mut cursor, data, COUNT_DIGITS, false)?;
    cursor.literal(br#"","g":""#)?;
    (_, send.born_ms) = json_number(&mut cursor, data, TIME_DIGITS, false)?;
    cursor.literal(br#"","h":""#)?;
    (_, send.flag) = json_number(&mut cursor, data, COUNT_DIGITS, true)?;
    cursor.literal(br#"","i":""#)?;
    send.properties = cursor.run(Class::JSON_PROPERTIES);
    cursor.literal(br#"","j":""#)?;
    (_, send.reconsumed) = json_number(&mut cursor, data, COUNT_DIGITS, false)?;
    cursor.literal(br#"","k":""#)?;
    cursor.run(Class::TEXT);
    if cursor.literal(br#"","l":""#).is_some() {
        let digits = cursor.run(Class::DIGIT);
        if digits.end - digits.start > COUNT_DIGITS {
            return None;
        }
    }
    cursor.literal(br#"","m":""#)?;
    if cursor.run(Class::TEXT).of(data)? == b"true" && !send.is_batch {
        return None;
    }
    if cursor.literal(br#"","n":""#).is_some() {
        cursor.run(Class::TEXT);
    }
    json_signed(&mut cursor)?;
    cursor.literal(br#""},"flag":0,"language":""#)?;
    cursor.run(Class::TEXT);
    cursor.literal(br#"","opaque":"#)?;
    send.opaque = json_opaque(&mut cursor, data)?;
    cursor.literal(br#","serializeTypeCurrentRPC":"JSON","version":"#)?;
    let version = cursor.run(Class::DIGIT).of(data)?;
    number(version, COUNT_DIGITS, false)?;
    if version.len() > 1 && version.starts_with(b"0") {
        return None;
    }
    cursor.literal(b"}")?;
    cursor.is_at_end().then_some(send)
}

/// Goes past the fields of a signature, in any order: who looks at them has done so.
fn json_signed(cursor: &mut Cursor) -> Option<()> {
    for _ in 0..4 {
        if cursor.literal(br#"","AccessKey":""#).is_none() {
            if cursor.literal(br#"","Signature"#).is_none() {
                break;
            }
            let _ = cursor.literal(b"Form").or_else(|| cursor.literal(b"Count"));
            cursor.literal(br#"":""#)?;
        }
        cursor.run(Class::TEXT);
    }
    Some(())
}

fn json_number(cursor: &mut Cursor, data: &[u8], max_digits: usize, signed: bool) -> Option<(Span, i64)> {
    let start = cursor.at;
    let _ = cursor.literal(b"-");
    let end = cursor.run(Class::DIGIT).end;
    let text = Span { start, end };
    Some((text, number(text.of(data)?, max_digits, signed)?))
}

/// A number without leading zeros; of ten digits those that surely fit 32 bits.
pub fn json_opaque(cursor: &mut Cursor, data: &[u8]) -> Option<i64> {
    let start = cursor.at;
    let _ = cursor.literal(b"-");
    let digits = cursor.run(Class::DIGIT);
    let text = digits.of(data)?;
    match text.len() {
        1..=9 if text == b"0" || !text.starts_with(b"0") => {}
        10 if text.starts_with(b"1") || text.starts_with(b"20") => {}
        _ => return None,
    }
    number(Span { start, end: digits.end }.of(data)?, 10, true)
}

/// The send in `data` whose ROCKETMQ header is from `start` to the end.
pub fn rocketmq_send(data: &[u8], start: usize) -> Option<Send> {
    let mut cursor = Cursor::new(data, start);
    let is_batch = cursor.literal(&320u16.to_be_bytes()).is_some();
    let mut send = Send { is_batch, ..Send::default() };
    if !is_batch {
        cursor.literal(&310u16.to_be_bytes())?;
    }
    cursor.take(3)?; // language, version
    send.opaque = i64::from(cursor.word()? as i32);
    cursor.literal(&[0; 8])?; // flag, bytes of the remark
    let ext_bytes = cursor.word()?;
    if usize::try_from(ext_bytes).ok()? != cursor.rest().len() {
        return None;
    }
    field(&mut cursor, b'a', Class::TEXT)?;
    send.topic = field(&mut cursor, b'b', Class::TOPIC)?;
    if send.topic.start == send.topic.end {
        return None;
    }
    field(&mut cursor, b'c', Class::TEXT)?;
    number_field(&mut cursor, data, b'd', COUNT_DIGITS, true)?;
    (send.queue_text, send.queue_id) = number_field(&mut cursor, data, b'e', COUNT_DIGITS, false)?;
    (_, send.sys_flag) = number_field(&mut cursor, data, b'f', COUNT_DIGITS, false)?;
    (_, send.born_ms) = number_field(&mut cursor, data, b'g', TIME_DIGITS, false)?;
    (_, send.flag) = number_field(&mut cursor, data, b'h', COUNT_DIGITS, true)?;
    cursor.literal(&[0, 1, b'i'])?;
    let properties_bytes = u16::try_from(cursor.word()?).ok()?;
    send.properties = cursor.span(usize::from(properties_bytes), Class::PROPERTIES)?;
    (_, send.reconsumed) = number_field(&mut cursor, data, b'j', COUNT_DIGITS, false)?;
    field(&mut cursor, b'k', Class::TEXT)?;
    if field(&mut cursor, b'm', Class::TEXT)?.of(data)? == b"true" && !send.is_batch {
        return None;
    }
    if !cursor.is_at_end() {
        field(&mut cursor, b'n', Class::TEXT)?;
    }
    cursor.is_at_end().then_some(send)
}

/// A field with a value below 256 bytes, all of a class.
fn field(cursor: &mut Cursor, name: u8, class: Class) -> Option<Span> {
    cursor.literal(&[0, 1, name])?;
    let size = u8::try_from(cursor.word()?).ok()?;
    cursor.span(usize::from(size), class)
}

fn number_field(cursor: &mut Cursor, data: &[u8], name: u8, max_digits: usize, signed: bool) -> Option<(Span, i64)> {
    let text = field(cursor, name, Class::TEXT)?;
    Some((text, number(text.of(data)?, max_digits, signed)?))
}
