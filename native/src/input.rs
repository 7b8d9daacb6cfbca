//! Reading of bytes that nobody has checked.

const TEXT: u8 = 1;
const TOPIC: u8 = 2;
const DIGIT: u8 = 4;
const JSON_PROPERTIES: u8 = 8;
const PROPERTIES: u8 = 16;
const LETTER: u8 = 32;

/// A set of bytes.
#[derive(Clone, Copy)]
pub struct Class(u8);

impl Class {
    /// Printable ASCII without quotation mark and backslash: the same in both codecs.
    pub const TEXT: Class = Class(TEXT);
    pub const TOPIC: Class = Class(TOPIC);
    pub const DIGIT: Class = Class(DIGIT);
    pub const LETTER: Class = Class(LETTER);
    /// Printable ASCII without quotation mark.
    pub const JSON_PROPERTIES: Class = Class(JSON_PROPERTIES);
    /// Printable ASCII and the separators of properties.
    pub const PROPERTIES: Class = Class(PROPERTIES);

    pub fn has(self, byte: u8) -> bool {
        CLASSES.get(usize::from(byte)).map_or(false, |classes| classes & self.0 != 0)
    }

    pub fn has_all(self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.has(byte))
    }
}

static CLASSES: [u8; 256] = classes();

#[allow(clippy::indexing_slicing)] // evaluated by the compiler
const fn classes() -> [u8; 256] {
    let mut found = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let value = byte as u8;
        let is_digit = value >= b'0' && value <= b'9';
        let is_letter = value >= b'a' && value <= b'z' || value >= b'A' && value <= b'Z';
        let is_printable = value >= b' ' && value <= b'~';
        let mut classes = 0;
        if is_printable && value != b'"' && value != b'\\' {
            classes |= TEXT;
        }
        if is_digit || is_letter || value == b'%' || value == b'|' || value == b'_' || value == b'-' {
            classes |= TOPIC;
        }
        if is_digit {
            classes |= DIGIT;
        }
        if is_letter {
            classes |= LETTER;
        }
        if is_printable && value != b'"' {
            classes |= JSON_PROPERTIES;
        }
        if is_printable || value == 1 || value == 2 {
            classes |= PROPERTIES;
        }
        found[byte] = classes;
        byte += 1;
    }
    found
}

/// A part of the bytes of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn of(self, data: &[u8]) -> Option<&[u8]> {
        data.get(self.start..self.end)
    }
}

/// A place in bytes that ends where they end.
pub struct Cursor<'a> {
    data: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Cursor { data, at }
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.data.len()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.at..).unwrap_or_default()
    }

    /// Goes past `expected`, which must stand here.
    pub fn literal(&mut self, expected: &[u8]) -> Option<()> {
        self.rest().starts_with(expected).then(|| self.at += expected.len())
    }

    pub fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(size)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    pub fn word(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_be_bytes(bytes))
    }

    pub fn long(&mut self) -> Option<i64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(i64::from_be_bytes(bytes))
    }

    /// The bytes of a class that stand here, as many as there are.
    pub fn run(&mut self, class: Class) -> Span {
        let rest = self.rest();
        let size = rest.iter().position(|&byte| !class.has(byte)).unwrap_or(rest.len());
        let start = self.at;
        self.at += size;
        Span { start, end: self.at }
    }

    /// `size` bytes, all of a class.
    pub fn span(&mut self, size: usize, class: Class) -> Option<Span> {
        let start = self.at;
        class.has_all(self.take(size)?).then_some(Span { start, end: self.at })
    }
}

/// The number that `text` is: 1 to `max_digits` digits, at most 18, perhaps behind a minus.
pub fn number(text: &[u8], max_digits: usize, signed: bool) -> Option<i64> {
    let (digits, sign) = match text.strip_prefix(b"-") {
        Some(digits) if signed => (digits, -1),
        Some(_) => return None,
        None => (text, 1),
    };
    if digits.is_empty() || digits.len() > max_digits.min(18) || !Class::DIGIT.has_all(digits) {
        return None;
    }
    Some(sign * digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
}
