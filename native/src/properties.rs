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
    properties.windows(CRC.len()).any(|text| text == CRC)
}

/// Where the value of UNIQ_KEY is.
pub fn unique_key(properties: &[u8]) -> Option<Span> {
    value(properties, UNIQUE_KEY)
}

/// The value of KEYS, empty without any.
pub fn keys(properties: &[u8]) -> &[u8] {
    value(properties, KEYS).and_then(|span| span.of(properties)).unwrap_or_default()
}

/// The value of TAGS, empty without any.
pub fn tags(properties: &[u8]) -> &[u8] {
    value(properties, TAGS).and_then(|span| span.of(properties)).unwrap_or_default()
}

/// The hash of TAGS as a queue's entry has it, 0 without any. They must be ASCII.
pub fn tags_code(properties: &[u8]) -> i64 {
    i64::from(tags(properties).iter().fold(0i32, |hash, &byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte))))
}

/// Where a property's value is: a repeated name keeps its last one.
fn value(properties: &[u8], name: &[u8]) -> Option<Span> {
    let begins_at = |&at: &usize| properties.get(at..).map_or(false, |rest| rest.starts_with(name));
    let inside = properties.iter().enumerate().rev().filter(|(_, &byte)| byte == SEPARATOR);
    let name_at = inside.map(|(at, _)| at + 1).find(begins_at).or_else(|| Some(0).filter(begins_at))?;
    let start = name_at + name.len();
    let rest = properties.get(start..)?;
    let size = rest.iter().position(|&byte| byte == SEPARATOR).unwrap_or(rest.len());
    Some(Span { start, end: start + size })
}

/// Writes properties from a JSON header, where separators are escaped. False if there is any other escape.
pub fn unescape(text: &[u8], into: &mut Writer) -> Result<bool, Full> {
    let mut parts = text.split(|&byte| byte == b'\\');
    into.put(parts.next().unwrap_or_default())?;
    for part in parts {
        let (separator, rest) = match (part.strip_prefix(b"u0001"), part.strip_prefix(b"u0002")) {
            (Some(rest), _) => (1, rest),
            (_, Some(rest)) => (SEPARATOR, rest),
            _ => return Ok(false),
        };
        into.put(&[separator])?;
        into.put(rest)?;
    }
    Ok(true)
}
