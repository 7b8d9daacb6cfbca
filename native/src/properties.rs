//! The properties of a message, `name 0x01 value 0x02` each.

use crate::input::Span;
use crate::output::{Full, Writer};

pub const SEPARATOR: u8 = 2;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
const KEYS: &[u8] = b"KEYS\x01";
const TAGS: &[u8] = b"TAGS\x01";
const CRC: &[u8] = b"__CRC32#";

/// True if a record's own checksum might be among them.
pub fn has_crc(properties: &[u8]) -> bool {
    properties.contains(&b'#') && properties.windows(CRC.len()).any(|text| text == CRC)
}

/// Where the values are that queues and the index ask for. A repeated name keeps its last one.
#[derive(Clone, Copy, Default)]
pub struct Values {
    pub unique_key: Option<Span>,
    pub keys: Option<Span>,
    pub tags: Option<Span>,
}

impl Values {
    pub fn of(properties: &[u8]) -> Self {
        let (mut found, mut at) = (Values::default(), 0);
        for piece in properties.split(|&byte| byte == SEPARATOR) {
            let (name, place) = match piece.first() {
                Some(b'U') => (UNIQUE_KEY, Some(&mut found.unique_key)),
                Some(b'K') => (KEYS, Some(&mut found.keys)),
                Some(b'T') => (TAGS, Some(&mut found.tags)),
                _ => (TAGS, None),
            };
            let end = at + piece.len();
            if let Some(place) = place.filter(|_| piece.starts_with(name)) {
                *place = Some(Span { start: at + name.len(), end });
            }
            at = end + 1;
        }
        found
    }
}

/// One of the values of `properties`, empty without any.
pub fn text(value: Option<Span>, properties: &[u8]) -> &[u8] {
    value.and_then(|span| span.of(properties)).unwrap_or_default()
}

/// The hash of TAGS as a queue's entry has it, 0 without any. They must be ASCII.
pub fn tags_code(tags: &[u8]) -> i64 {
    i64::from(tags.iter().fold(0i32, |hash, &byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte))))
}

/// Writes properties from a JSON header, where separators are escaped. False if there is any other escape.
pub fn unescape(text: &[u8], into: &mut Writer) -> Result<bool, Full> {
    let mut parts = text.split(|&byte| byte == b'\\');
    into.put(parts.next().unwrap_or_default())?;
    for part in parts {
        let Some((separator, rest)) = escaped(part) else { return Ok(false) };
        into.put(&[separator])?;
        into.put(rest)?;
    }
    Ok(true)
}

/// True if `unescape` says so.
pub fn has_no_other_escape(text: &[u8]) -> bool {
    text.split(|&byte| byte == b'\\').skip(1).all(|part| escaped(part).is_some())
}

/// The separator that stands behind a backslash, and what follows it.
fn escaped(part: &[u8]) -> Option<(u8, &[u8])> {
    match (part.strip_prefix(b"u0001"), part.strip_prefix(b"u0002")) {
        (Some(rest), _) => Some((1, rest)),
        (_, Some(rest)) => Some((SEPARATOR, rest)),
        _ => None,
    }
}
