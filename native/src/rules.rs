//! Rules of a broker's configuration on sends, in the bytes that `rmqha/kernel/native_kernel.py` makes of them.

use crate::input::Cursor;

const LITERALS: usize = 7;

/// What stands between the values of an answer.
pub type Literals<'a> = [&'a [u8]; LITERALS];

pub struct Rules<'a> {
    pub max_frame_bytes: i64,
    pub max_body_bytes: i64,
    pub max_properties_bytes: i64,
    pub store_port: i32,
    pub own_properties: &'a [u8],
    pub store_address: &'a [u8],
    /// Beginning of the message ids.
    pub store_host: &'a [u8],
    pub json: Literals<'a>,
    pub rocketmq: Literals<'a>,
    pub special: Special<'a>,
}

impl<'a> Rules<'a> {
    /// None if they are not what the kernel in Python writes.
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(data, 0);
        let rules = Rules {
            max_frame_bytes: cursor.long()?,
            max_body_bytes: cursor.long()?,
            max_properties_bytes: cursor.long()?,
            store_port: cursor.word()? as i32,
            own_properties: text(&mut cursor)?,
            store_address: text(&mut cursor)?,
            store_host: text(&mut cursor)?,
            json: literals(&mut cursor)?,
            rocketmq: literals(&mut cursor)?,
            special: Special::read(cursor.rest())?,
        };
        Some(rules)
    }
}

fn text<'a>(cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let size = cursor.word()?;
    cursor.take(usize::try_from(size).ok()?)
}

fn literals<'a>(cursor: &mut Cursor<'a>) -> Option<Literals<'a>> {
    let mut found: Literals = [b""; LITERALS];
    for literal in &mut found {
        *literal = text(cursor)?;
    }
    Some(found)
}

/// Texts of which none may stand in the properties of a plain message.
pub struct Special<'a> {
    texts: &'a [u8],
    is_first: [bool; 256],
}

impl<'a> Special<'a> {
    fn read(texts: &'a [u8]) -> Option<Self> {
        let mut special = Special { texts, is_first: [false; 256] };
        let mut cursor = Cursor::new(texts, 0);
        while !cursor.is_at_end() {
            let first = *text(&mut cursor)?.first()?;
            *special.is_first.get_mut(usize::from(first))? = true;
        }
        Some(special)
    }

    pub fn is_in(&self, properties: &[u8]) -> bool {
        properties.iter().enumerate().any(|(at, &byte)| {
            self.is_first.get(usize::from(byte)).copied().unwrap_or(true)
                && self.any_begins(properties.get(at..).unwrap_or_default())
        })
    }

    fn any_begins(&self, properties: &[u8]) -> bool {
        let mut cursor = Cursor::new(self.texts, 0);
        while let Some(special) = text(&mut cursor) {
            if properties.starts_with(special) {
                return true;
            }
        }
        false
    }
}
