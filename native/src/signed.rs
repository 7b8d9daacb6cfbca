//! Signed sends: the bytes that their signatures are of, and who says to have made them.

use crate::header::{json_opaque, JSON};
use crate::input::{number, Class, Cursor, Span};
use crate::output::{Decimal, Full, Writer};
use crate::properties::{has_no_other_escape, unescape};
use crate::sends::MAX_HEADER_BYTES;

/// Fields of a header at most.
const MAX_FIELDS: usize = 24;
const COUNT_DIGITS: usize = 18;
const VERSION_DIGITS: usize = 9;
/// The form of ours that is looked at.
const OWN_FORM: &[u8] = b"2";
/// The languages' numbers are their places.
const LANGUAGES: [&[u8]; 14] = [
    b"JAVA", b"CPP", b"DOTNET", b"PYTHON", b"DELPHI", b"ERLANG", b"RUBY", b"OTHER", b"HTTP", b"GO", b"PHP", b"OMS",
    b"RUST", b"NODE_JS",
];

/// A signed send; or, without access key, one of whoever has proved himself on the connection.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Signed {
    /// Index behind its frame.
    pub end: usize,
    pub code: i64,
    pub topic: Span,
    pub access_key: Span,
    pub signature: Span,
    /// Its count in our own form; 0: it is signed in Apache's.
    pub count: i64,
    /// Index among the messages behind its one.
    pub message_end: usize,
    /// Bytes of its body and of the values of its fields.
    pub size_bytes: usize,
}

#[derive(Clone, Copy, Default)]
struct Field<'a> {
    name: &'a [u8],
    /// As it stands in the header, with escapes.
    value: Span,
}

/// What a header says that is signed.
struct Header<'a> {
    code: i64,
    language: usize,
    version: &'a [u8],
    fields: [Field<'a>; MAX_FIELDS],
    field_count: usize,
}

/// Finds the signed sends at the front of `data`, as many as there are rows, and writes what each signature is of.
/// `front`: what a message of our own form begins with on this connection; empty: none may be in that form. `is_proven`:
/// its sends need no signature.
pub fn signed(
    data: &[u8],
    front: &[u8],
    is_proven: bool,
    rows: &mut [Signed],
    messages: &mut Writer,
) -> Result<usize, Full> {
    let (mut cursor, mut count) = (Cursor::new(data, 0), 0);
    for row in rows {
        let Some((header, body)) = frame(data, &mut cursor) else { break };
        let Some(mut found) = who(data, &header, front, is_proven) else { break };
        let start = messages.size();
        let is_plain = if found.access_key == Span::default() {
            has_no_other_escapes(data, &header)
        } else {
            put_message(data, &header, found.count > 0, front, body, messages)?
        };
        if !is_plain {
            messages.cut(start);
            break;
        }
        found.end = cursor.at;
        found.size_bytes = body.len();
        for field in header.fields.get(..header.field_count).unwrap_or_default() {
            found.size_bytes += value_bytes(field.value.of(data).unwrap_or_default());
        }
        found.message_end = messages.size();
        *row = found;
        count += 1;
    }
    Ok(count)
}

fn frame<'a>(data: &'a [u8], cursor: &mut Cursor<'a>) -> Option<(Header<'a>, &'a [u8])> {
    let size = i64::from(cursor.word()? as i32);
    let word = cursor.word()?;
    let header_bytes = word & 0x00FF_FFFF;
    if word >> 24 != JSON || header_bytes > MAX_HEADER_BYTES {
        return None;
    }
    let header_start = cursor.at;
    cursor.take(usize::try_from(header_bytes).ok()?)?;
    let header_end = cursor.at;
    let body = cursor.take(usize::try_from(size - 4 - i64::from(header_bytes)).ok()?)?;
    Some((header(data.get(..header_end)?, header_start)?, body))
}

fn header(data: &[u8], start: usize) -> Option<Header<'_>> {
    let mut cursor = Cursor::new(data, start);
    let mut found = Header { code: 310, language: 0, version: b"", fields: Default::default(), field_count: 0 };
    cursor.literal(br#"{"code":3"#)?;
    if cursor.literal(b"20").is_some() {
        found.code = 320;
    } else {
        cursor.literal(b"10")?;
    }
    cursor.literal(br#","extFields":{"#)?;
    loop {
        cursor.literal(b"\"")?;
        let name = cursor.run(Class::LETTER).of(data)?;
        cursor.literal(br#"":""#)?;
        let value = cursor.run(Class::JSON_PROPERTIES);
        cursor.literal(b"\"")?;
        *found.fields.get_mut(found.field_count)? = Field { name, value };
        found.field_count += 1;
        if cursor.literal(b",").is_none() {
            break;
        }
    }
    cursor.literal(br#"},"flag":0,"language":""#)?;
    let language = cursor.run(Class::TEXT).of(data)?;
    found.language = LANGUAGES.iter().position(|&known| known == language)?;
    cursor.literal(br#"","opaque":"#)?;
    json_opaque(&mut cursor, data)?;
    cursor.literal(br#","serializeTypeCurrentRPC":"JSON","version":"#)?;
    found.version = cursor.run(Class::DIGIT).of(data)?;
    number(found.version, VERSION_DIGITS, false)?;
    if found.version.len() > 1 && found.version.starts_with(b"0") {
        return None;
    }
    cursor.literal(b"}")?;
    let fields = found.fields.get_mut(..found.field_count)?;
    fields.sort_unstable_by_key(|field| field.name);
    let is_repeated = fields.iter().zip(fields.iter().skip(1)).any(|(one, next)| one.name == next.name);
    (cursor.is_at_end() && !is_repeated).then_some(found)
}

fn who(data: &[u8], header: &Header, front: &[u8], is_proven: bool) -> Option<Signed> {
    let mut found = Signed { code: header.code, ..Signed::default() };
    let (mut form, mut count, mut says_who) = (None, None, false);
    for field in header.fields.get(..header.field_count)? {
        match field.name {
            b"b" => found.topic = field.value,
            b"AccessKey" => found.access_key = field.value,
            b"Signature" => found.signature = field.value,
            b"SignatureForm" => form = field.value.of(data),
            b"SignatureCount" => count = field.value.of(data),
            _ => continue,
        }
        says_who |= field.name != b"b";
    }
    let needed = [found.topic, found.access_key, found.signature];
    let is_unsigned = is_proven && !says_who;
    for name in needed.iter().take(if is_unsigned { 1 } else { needed.len() }) {
        let text = name.of(data)?;
        if text.is_empty() || text.contains(&b'\\') {
            return None;
        }
    }
    match (form, count) {
        (None, None) => {}
        (Some(form), Some(count)) if form == OWN_FORM && !front.is_empty() => {
            found.count = number(count, COUNT_DIGITS, false).filter(|&count| count > 0)?;
        }
        _ => return None,
    }
    Some(found)
}

/// False if a value has an escape of another kind than properties have.
fn put_message(
    data: &[u8],
    header: &Header,
    is_own: bool,
    front: &[u8],
    body: &[u8],
    into: &mut Writer,
) -> Result<bool, Full> {
    let fields = header.fields.get(..header.field_count).unwrap_or_default();
    let signed = fields.iter().filter(|field| field.name != b"Signature");
    if is_own {
        into.put(front)?;
        put_number(header.code, into)?;
        into.put(b",0,")?;
        into.put(header.version)?;
        for size in [header.language, body.len(), fields.len() - 1, 0] {
            into.put(b",")?;
            put_size(size, into)?;
        }
        into.put(b":")?;
    }
    for field in signed {
        let value = field.value.of(data).unwrap_or_default();
        if is_own {
            put_size(field.name.len(), into)?;
            into.put(b":")?;
            into.put(field.name)?;
            put_size(value_bytes(value), into)?;
            into.put(b":")?;
        }
        if !unescape(value, into)? {
            return Ok(false);
        }
    }
    into.put(body)?;
    Ok(true)
}

/// False if a value has an escape of another kind than properties have.
fn has_no_other_escapes(data: &[u8], header: &Header) -> bool {
    let fields = header.fields.get(..header.field_count).unwrap_or_default();
    fields.iter().all(|field| has_no_other_escape(field.value.of(data).unwrap_or_default()))
}

/// Bytes of a value without its escapes, which are separators: `\u0001`.
fn value_bytes(value: &[u8]) -> usize {
    let escape_count = value.iter().filter(|&&byte| byte == b'\\').count();
    value.len().saturating_sub(5 * escape_count)
}

fn put_size(size: usize, into: &mut Writer) -> Result<(), Full> {
    put_number(i64::try_from(size).map_err(|_| Full)?, into)
}

fn put_number(value: i64, into: &mut Writer) -> Result<(), Full> {
    into.put(Decimal::new(value).text())
}
