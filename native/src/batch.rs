//! The messages in the body of a batch (formats.md §12.4).

use crate::input::{Cursor, Span};
use crate::properties::{has_crc, text, Values};
use crate::rules::Rules;

/// As `MAX_BATCH_COUNT` of `rmqha/kernel/batch_kernel.py`.
const MAX_COUNT: usize = 2048;
/// Bytes of a part beside its body and its properties.
pub const FIXED_BYTES: usize = 22;

pub struct Part {
    pub flag: i64,
    pub body: Span,
    /// Properties with their length in front.
    pub tail: Span,
}

impl Part {
    /// Where its properties are.
    pub fn properties(&self) -> Span {
        Span { start: self.tail.start + 2, end: self.tail.end }
    }

    pub fn size(&self) -> usize {
        FIXED_BYTES + (self.body.end - self.body.start) + (self.tail.end - self.tail.start - 2)
    }
}

/// The parts of a body, as far as their lengths fit.
#[derive(Clone)]
pub struct Parts<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Parts<'a> {
    /// None if `body` is not within `data`.
    pub fn new(data: &'a [u8], body: Span) -> Option<Self> {
        Some(Parts { data: data.get(..body.end)?, at: body.start })
    }

    fn is_at_end(&self) -> bool {
        self.at == self.data.len()
    }

    fn locate(&self) -> Option<Part> {
        let mut cursor = Cursor::new(self.data, self.at);
        let end = self.at.checked_add(usize::try_from(cursor.word()? as i32).ok()?)?;
        cursor.take(8)?; // magic, bodyCRC
        let flag = i64::from(cursor.word()? as i32);
        let body_bytes = usize::try_from(cursor.word()? as i32).ok()?;
        let start = cursor.at;
        cursor.take(body_bytes)?;
        let body = Span { start, end: cursor.at };
        let tail_bytes = cursor.take(2)?.iter().fold(0, |size, &byte| size << 8 | usize::from(byte));
        cursor.take(tail_bytes)?;
        (cursor.at == end).then_some(Part { flag, body, tail: Span { start: body.end, end } })
    }
}

impl Iterator for Parts<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let part = self.locate()?;
        self.at = part.tail.end;
        Some(part)
    }
}

/// The number of messages in `body`, 0 if it is not plain.
pub fn count(data: &[u8], body: Span, rules: &Rules) -> usize {
    let Some(mut parts) = Parts::new(data, body) else { return 0 };
    let mut count = 0;
    for part in parts.by_ref() {
        let properties = part.properties().of(data).unwrap_or_default();
        let fits = i64::try_from(properties.len()).map_or(false, |size| size <= rules.max_properties_bytes);
        let has_plain_tags = || properties.is_ascii() || text(Values::of(properties).tags, properties).is_ascii();
        if count == MAX_COUNT || !fits || properties.contains(&0) || has_crc(properties) || !has_plain_tags() {
            return 0;
        }
        count += 1;
    }
    if parts.is_at_end() {
        count
    } else {
        0
    }
}
