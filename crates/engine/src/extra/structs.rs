//! `struct`: packs and unpacks binary structures by a format.
//!
//! `>` and `<` set the byte order, `!n` the alignment; `b B h H l L T i I` are integers (lower case
//! signed, `i8` with a size), `f d` floats, `s` a string that ends with a zero byte, `cn` one of
//! `n` bytes (`c0`: when packing all of it, when unpacking as many as the number before says), `x`
//! a byte of padding.

use crate::script::wire::{LuaValue, PackedValue, Writer};

/// Bytes of the largest integer.
const MAX_SIZE: usize = 32;

type Result<T> = std::result::Result<T, Vec<u8>>;

/// A format being read.
struct Format<'f> {
    rest: &'f [u8],
    little: bool,
    align: usize,
}

impl<'f> Format<'f> {
    fn new(format: &'f [u8]) -> Format<'f> {
        // It is a C string.
        let end = memchr::memchr(0, format).unwrap_or(format.len());
        Format {
            rest: format.get(..end).unwrap_or_default(),
            little: cfg!(target_endian = "little"),
            align: 1,
        }
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn number(&mut self, default: usize) -> Result<usize> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = number
            .iter()
            .try_fold(0i32, |n, digit| n.checked_mul(10)?.checked_add(i32::from(digit - b'0')));
        match number.and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(n),
            None => Err(b"integral size overflow".to_vec()),
        }
    }

    /// The size of what `option` stands for.
    fn size(&mut self, option: u8) -> Result<usize> {
        Ok(match option {
            b'B' | b'b' | b'x' => 1,
            b'H' | b'h' => 2,
            b'f' => 4,
            b'L' | b'l' | b'T' | b'd' => 8,
            b'c' => self.number(1)?,
            b'i' | b'I' => {
                let size = self.number(4)?;
                if size > MAX_SIZE {
                    let text = format!("integral size {size} is larger than limit of {MAX_SIZE}");
                    return Err(text.into());
                }
                size
            }
            _ => 0,
        })
    }

    /// Bytes to skip so that something of `size` is aligned.
    fn padding(&self, at: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        size.wrapping_sub(at & (size - 1)) & (size - 1)
    }

    fn control(&mut self, option: u8, function: &str) -> Result<()> {
        match option {
            b' ' => {}
            b'>' => self.little = false,
            b'<' => self.little = true,
            b'!' => {
                let align = self.number(8)?;
                if !align.is_power_of_two() {
                    return Err(format!("alignment {align} is not a power of 2").into());
                }
                self.align = align;
            }
            _ => {
                let mut text = format!("bad argument #1 to '{function}' (invalid format option '")
                    .into_bytes();
                text.push(option);
                text.extend_from_slice(b"')");
                return Err(text);
            }
        }
        Ok(())
    }
}

fn bad_argument(n: usize, function: &str, text: &str) -> Vec<u8> {
    format!("bad argument #{n} to '{function}' ({text})").into()
}

/// Packs the values from the second on (the first is the format itself).
pub(crate) fn pack(format: &[u8], packed: &PackedValue<'_>, count: usize) -> Result<Vec<u8>> {
    let root = packed.root();
    let list = packed.table(&root).ok_or("value cannot be read")?;
    let mut format = Format::new(format);
    let mut out = Vec::new();
    let mut next = 2;
    // Alignment counts what was written.
    while let Some(option) = format.next() {
        let mut size = format.size(option)?;
        let padding = format.padding(out.len(), option, size);
        out.resize(out.len() + padding, 0);
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let n = number(list.at(next), next, count)?;
                next += 1;
                put_integer(&mut out, n, size, format.little);
            }
            b'x' => out.push(0),
            b'f' => {
                let n = number(list.at(next), next, count)? as f32;
                next += 1;
                out.extend(if format.little { n.to_le_bytes() } else { n.to_be_bytes() });
            }
            b'd' => {
                let n = number(list.at(next), next, count)?;
                next += 1;
                out.extend(if format.little { n.to_le_bytes() } else { n.to_be_bytes() });
            }
            b'c' | b's' => {
                let s = string(list.at(next), next, count)?;
                next += 1;
                if size == 0 {
                    size = s.len();
                }
                let Some(s) = s.get(..size) else {
                    return Err(bad_argument(next, "pack", "string too short"));
                };
                out.extend_from_slice(s);
                if option == b's' {
                    out.push(0);
                }
            }
            _ => format.control(option, "pack")?,
        }
    }
    Ok(out)
}

fn got(value: Option<&LuaValue<'_>>, n: usize, count: usize) -> String {
    match value {
        // The library puts a nil behind its arguments.
        None if n > count + 1 => "no value".to_owned(),
        None | Some(LuaValue::Nil) => "nil".to_owned(),
        Some(LuaValue::Bool(_)) => "boolean".to_owned(),
        Some(LuaValue::Number(_)) => "number".to_owned(),
        Some(LuaValue::String(_)) => "string".to_owned(),
        Some(LuaValue::Null) => "userdata".to_owned(),
        Some(LuaValue::Table(_) | LuaValue::Ref(_)) => "table".to_owned(),
        Some(LuaValue::Other(name)) => String::from_utf8_lossy(name).into_owned(),
    }
}

fn number(value: Option<&LuaValue<'_>>, n: usize, count: usize) -> Result<f64> {
    match value {
        Some(LuaValue::Number(number)) => return Ok(*number),
        Some(LuaValue::String(s)) => {
            let trimmed = s.trim_ascii();
            if let Some((number, length)) = crate::script::cjson::strtod(trimmed)
                && length == trimmed.len()
            {
                return Ok(number);
            }
        }
        _ => {}
    }
    let got = got(value, n, count);
    Err(bad_argument(n, "pack", &format!("number expected, got {got}")))
}

fn string<'v>(
    value: Option<&'v LuaValue<'_>>,
    n: usize,
    count: usize,
) -> Result<std::borrow::Cow<'v, [u8]>> {
    match value {
        Some(LuaValue::String(s)) => Ok((*s).into()),
        Some(LuaValue::Number(number)) => Ok(crate::number::format_g(*number, 14).into()),
        other => {
            let got = got(other, n, count);
            Err(bad_argument(n, "pack", &format!("string expected, got {got}")))
        }
    }
}

fn put_integer(out: &mut Vec<u8>, n: f64, size: usize, little: bool) {
    let value = if n < 0.0 { n as i64 as u64 } else { n as u64 };
    let from = out.len();
    let bytes = value.to_le_bytes();
    out.extend((0..size).map(|i| bytes.get(i).copied().unwrap_or(0)));
    if !little && let Some(written) = out.get_mut(from..) {
        written.reverse();
    }
}

fn get_integer(bytes: &[u8], signed: bool, little: bool) -> f64 {
    let join = |l: u64, byte: &u8| l << 8 | u64::from(*byte);
    let mut l = if little { bytes.iter().rev().fold(0, join) } else { bytes.iter().fold(0, join) };
    if !signed {
        return l as f64;
    }
    let mask = u64::MAX.wrapping_shl((bytes.len() as u32).wrapping_mul(8).wrapping_sub(1));
    if l & mask != 0 {
        l |= mask;
    }
    l as i64 as f64
}

const TOO_SHORT: &str = "data string too short";

/// Most values Lua can return at once.
const MAX_RESULTS: usize = 7990;

/// A value unpacked.
enum StructItem<'d> {
    Number(f64),
    String(&'d [u8]),
}

/// Unpacks from position `at` (counted from 1) and writes the list of values and the position
/// after them; answers how many these are.
pub(crate) fn unpack(format: &[u8], data: &[u8], at: i64, out: &mut Writer) -> Result<usize> {
    let mut format = Format::new(format);
    let mut at = match usize::try_from(at) {
        Ok(0) => return Err(bad_argument(3, "unpack", "offset must be 1 or greater")),
        Ok(at) => at - 1,
        // As unsigned it is far beyond the end.
        Err(_) => usize::MAX / 2,
    };
    let mut items = Vec::new();
    while let Some(option) = format.next() {
        let mut size = format.size(option)?;
        at += format.padding(at, option, size);
        let field = at
            .checked_add(size)
            .and_then(|end| data.get(at..end))
            .ok_or_else(|| bad_argument(2, "unpack", TOO_SHORT))?;
        if items.len() >= MAX_RESULTS {
            return Err(b"stack overflow (too many results)".to_vec());
        }
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let n = get_integer(field, option.is_ascii_lowercase(), format.little);
                items.push(StructItem::Number(n));
            }
            b'x' => {}
            b'f' => {
                let bytes = field.try_into().unwrap_or_default();
                let n = if format.little {
                    f32::from_le_bytes(bytes)
                } else {
                    f32::from_be_bytes(bytes)
                };
                items.push(StructItem::Number(f64::from(n)));
            }
            b'd' => {
                let bytes = field.try_into().unwrap_or_default();
                let n = if format.little {
                    f64::from_le_bytes(bytes)
                } else {
                    f64::from_be_bytes(bytes)
                };
                items.push(StructItem::Number(n));
            }
            b'c' if size == 0 => {
                let Some(StructItem::Number(n)) = items.pop() else {
                    return Err(b"format 'c0' needs a previous size".to_vec());
                };
                size = if n < 0.0 { usize::MAX } else { n as usize };
                let field = at
                    .checked_add(size)
                    .and_then(|end| data.get(at..end))
                    .ok_or_else(|| bad_argument(2, "unpack", TOO_SHORT))?;
                items.push(StructItem::String(field));
            }
            b'c' => items.push(StructItem::String(field)),
            b's' => {
                let rest = data.get(at..).unwrap_or_default();
                let Some(length) = memchr::memchr(0, rest) else {
                    return Err(b"unfinished string in data".to_vec());
                };
                items.push(StructItem::String(rest.get(..length).unwrap_or_default()));
                size = length + 1;
            }
            _ => format.control(option, "unpack")?,
        }
        at += size;
    }
    out.array(items.len() + 1);
    for item in &items {
        match item {
            StructItem::Number(n) => out.number(*n),
            StructItem::String(s) => out.string(s),
        }
    }
    out.number((at + 1) as f64);
    Ok(items.len() + 1)
}

/// The size of a structure of this format.
pub(crate) fn size(format: &[u8]) -> Result<f64> {
    let mut format = Format::new(format);
    let mut at = 0usize;
    while let Some(option) = format.next() {
        let size = format.size(option)?;
        at = at.saturating_add(format.padding(at, option, size));
        if option == b's' {
            return Err(bad_argument(1, "size", "option 's' has no fixed size"));
        }
        if option == b'c' && size == 0 {
            return Err(bad_argument(1, "size", "option 'c0' has no fixed size"));
        }
        if !option.is_ascii_alphanumeric() {
            format.control(option, "size")?;
        }
        at = at.saturating_add(size);
    }
    Ok(at as f64)
}
