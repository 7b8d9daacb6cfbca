//! Writing into the caller's memory.

/// The caller's memory is too small: it must come again with more.
#[derive(Debug)]
pub struct Full;

/// Bytes that grow within memory of one size.
pub struct Writer<'a> {
    memory: &'a mut [u8],
    size: usize,
}

impl<'a> Writer<'a> {
    pub fn new(memory: &'a mut [u8]) -> Self {
        Writer { memory, size: 0 }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let end = self.size.checked_add(bytes.len()).ok_or(Full)?;
        self.memory.get_mut(self.size..end).ok_or(Full)?.copy_from_slice(bytes);
        self.size = end;
        Ok(())
    }

    /// Zeros to be overwritten by `set`.
    pub fn skip(&mut self, size: usize) -> Result<(), Full> {
        let end = self.size.checked_add(size).ok_or(Full)?;
        self.memory.get_mut(self.size..end).ok_or(Full)?.fill(0);
        self.size = end;
        Ok(())
    }

    pub fn set(&mut self, at: usize, bytes: &[u8]) -> Result<(), Full> {
        let end = at.checked_add(bytes.len()).ok_or(Full)?;
        self.memory.get_mut(at..end).ok_or(Full)?.copy_from_slice(bytes);
        Ok(())
    }

    pub fn since(&self, start: usize) -> &[u8] {
        self.memory.get(start..self.size).unwrap_or_default()
    }

    /// Takes back what was put behind `size`.
    pub fn cut(&mut self, size: usize) {
        self.size = self.size.min(size);
    }
}

/// A number's decimal digits.
pub struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    pub fn new(value: i64) -> Self {
        let mut digits = [0; 20];
        let mut start = digits.len();
        let mut rest = value.unsigned_abs();
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (rest % 10) as u8;
            start = place;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            start = start.saturating_sub(1);
            if let Some(sign) = digits.get_mut(start) {
                *sign = b'-';
            }
        }
        Decimal { digits, start }
    }

    pub fn text(&self) -> &[u8] {
        self.digits.get(self.start..).unwrap_or_default()
    }
}

/// The sixteen hexadecimal digits of an offset.
pub fn hexadecimal(value: i64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (place, digit) in digits.iter_mut().rev().enumerate() {
        let four = (value >> (4 * place)) as u8 & 15;
        *digit = if four < 10 { b'0' + four } else { b'A' + four - 10 };
    }
    digits
}
