//! Small collections in one allocation: a row of elements, each stored in as few bytes as it needs.
//!
//! Every byte string has one encoding (an integer, a UUID, a shared word or the bytes themselves),
//! so two elements are equal when their encodings are. The only exception are shared words: an
//! element stored before its word became shared keeps its bytes, which is why a search takes both.
//! Read [`Code`] (to write), [`Elem`] (to read), then [`Pack`].

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::number;

pub(crate) mod interned;

/// First byte of an encoding, up to here: the length of the bytes that follow.
const SHORT_MAX: u8 = 0x7f;
/// From here on, 64 values: the integers 0 to 63 themselves.
const SMALL_INT: u8 = 0x80;
/// Plus a number of bytes from 1 to 8: a little-endian integer of that size.
const INT: u8 = 0xc0;
/// Eight bytes of a float, only in scores.
const FLOAT: u8 = 0xc9;
/// From here on, 16 values: high bits of a shared word's number, low byte follows.
const WORD: u8 = 0xd0;
/// Sixteen bytes of a UUID in lower case.
const UUID: u8 = 0xe0;
/// A `u32` length and bytes.
const LONG: u8 = 0xf0;

/// An element encoded, ready to be searched for or stored: a head and the bytes after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code<'a> {
    head: [u8; 17],
    head_len: u8,
    tail: &'a [u8],
}

impl<'a> Code<'a> {
    /// The encoding of these bytes, without shared words.
    pub(crate) fn of(bytes: &'a [u8]) -> Code<'a> {
        if let Some(n) = number::parse_i64(bytes) {
            return Code::int(n);
        }
        if let Some(uuid) = parse_uuid(bytes) {
            let mut head = [UUID; 17];
            for (to, from) in head.iter_mut().skip(1).zip(uuid) {
                *to = from;
            }
            return Code { head, head_len: 17, tail: &[] };
        }
        let mut head = [0; 17];
        let head_len = match u8::try_from(bytes.len()) {
            Ok(len) if len <= SHORT_MAX => {
                head[0] = len;
                1
            }
            _ => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
                [head[0], head[1], head[2], head[3], head[4]] =
                    [LONG, len[0], len[1], len[2], len[3]];
                5
            }
        };
        Code { head, head_len, tail: bytes }
    }

    /// The encoding as a shared word, if these bytes are one.
    pub(crate) fn word(bytes: &[u8]) -> Option<Code<'a>> {
        interned::find(bytes).map(Code::of_word)
    }

    /// The shortest encoding; words seen often become shared on the way.
    pub(crate) fn shared(bytes: &'a [u8]) -> Code<'a> {
        let plain = Code::of(bytes);
        if plain.tail.is_empty() {
            return plain;
        }
        interned::note(bytes).map_or(plain, Code::of_word)
    }

    fn of_word(number: u16) -> Code<'a> {
        let [low, high] = number.to_le_bytes();
        let mut head = [0; 17];
        [head[0], head[1]] = [WORD | high, low];
        Code { head, head_len: 2, tail: &[] }
    }

    /// The encoding of an integer.
    pub(crate) fn int(n: i64) -> Code<'a> {
        let mut head = [0; 17];
        if let Ok(small @ 0..=63) = u8::try_from(n) {
            head[0] = SMALL_INT | small;
            return Code { head, head_len: 1, tail: &[] };
        }
        // Bytes that hold the value and its sign.
        let bits = 65 - if n < 0 { n.leading_ones() } else { n.leading_zeros() };
        let size = bits.div_ceil(8) as u8;
        head[0] = INT | size;
        for (to, from) in head.iter_mut().skip(1).zip(n.to_le_bytes()).take(size.into()) {
            *to = from;
        }
        Code { head, head_len: 1 + size, tail: &[] }
    }

    /// The encoding of a score: an integer where that says the same.
    pub(crate) fn score(score: f64) -> Code<'a> {
        let whole = score as i64;
        // Negative zero prints as `-0`, so it is kept as a float.
        if whole as f64 == score
            && whole.unsigned_abs() < 1 << 53
            && (whole != 0 || score.is_sign_positive())
        {
            return Code::int(whole);
        }
        let mut head = [FLOAT; 17];
        for (to, from) in head.iter_mut().skip(1).zip(score.to_le_bytes()) {
            *to = from;
        }
        Code { head, head_len: 9, tail: &[] }
    }

    /// Length of the encoding.
    pub(crate) fn len(&self) -> usize {
        self.head().len() + self.tail.len()
    }

    fn head(&self) -> &[u8] {
        self.head.get(..self.head_len.into()).unwrap_or_default()
    }

    /// Does an element with this encoding stand at the start of `bytes`?
    pub(crate) fn starts(&self, bytes: &[u8]) -> bool {
        bytes.strip_prefix(self.head()).is_some_and(|rest| rest.starts_with(self.tail))
    }

    /// Appends the encoding.
    pub(crate) fn push_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.head());
        bytes.extend_from_slice(self.tail);
    }

    /// The encoding in one piece.
    pub(crate) fn bytes(&self) -> SmallVec<[u8; 64]> {
        let mut bytes = SmallVec::with_capacity(self.len());
        bytes.extend_from_slice(self.head());
        bytes.extend_from_slice(self.tail);
        bytes
    }

    fn write_to(&self, bytes: &mut [u8]) {
        let (head, tail) = (self.head(), self.tail);
        if let Some((first, second)) = bytes.split_at_mut_checked(head.len()) {
            first.copy_from_slice(head);
            if let Some(second) = second.get_mut(..tail.len()) {
                second.copy_from_slice(tail);
            }
        }
    }

    /// The element this encodes.
    pub(crate) fn elem(&self) -> Elem<'_> {
        if self.tail.is_empty() && self.head_len > 0 {
            Elem::read(self.head()).0
        } else {
            Elem::Bytes(self.tail)
        }
    }
}

/// An element as it comes out of a pack.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Elem<'a> {
    Bytes(&'a [u8]),
    Int(i64),
    Float(f64),
    Uuid(&'a [u8]),
}

/// Room for an element that is not stored as its bytes.
pub(crate) type Scratch = [u8; 36];

impl<'a> Elem<'a> {
    /// The element at the start of `bytes`, and the length of its encoding.
    pub(crate) fn read(bytes: &'a [u8]) -> (Elem<'a>, usize) {
        let Some((&first, rest)) = bytes.split_first() else { return (Elem::Bytes(&[]), 0) };
        let size = size_of_elem(bytes);
        let body = rest.get(..size - 1).unwrap_or_default();
        let elem = match first {
            0..=SHORT_MAX => Elem::Bytes(body),
            SMALL_INT..=0xbf => Elem::Int(i64::from(first & 0x3f)),
            FLOAT => Elem::Float(f64::from_le_bytes(body.try_into().unwrap_or_default())),
            INT..=0xcf => Elem::Int(read_int(body)),
            WORD..=0xdf => {
                let low = body.first().copied().unwrap_or_default();
                Elem::Bytes(interned::word(u16::from_le_bytes([low, first & 0x0f])))
            }
            UUID => Elem::Uuid(body),
            _ => Elem::Bytes(body.get(4..).unwrap_or_default()),
        };
        (elem, size)
    }

    /// The element's bytes, written out in `scratch` if they are not stored as such.
    pub(crate) fn bytes<'s>(&self, scratch: &'s mut Scratch) -> &'s [u8]
    where
        'a: 's,
    {
        match *self {
            Elem::Bytes(bytes) => bytes,
            Elem::Int(n) => {
                let mut buffer = itoa::Buffer::new();
                let digits = buffer.format(n).as_bytes();
                let (text, _) = scratch.split_at_mut(digits.len().min(36));
                text.copy_from_slice(digits);
                text
            }
            Elem::Uuid(uuid) => {
                format_uuid(uuid, scratch);
                scratch
            }
            Elem::Float(_) => &[],
        }
    }

    /// A copy of the element's bytes.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.bytes(&mut [0; 36]).to_vec()
    }

    /// The element as a score.
    pub(crate) fn score(self) -> f64 {
        match self {
            Elem::Int(n) => n as f64,
            Elem::Float(score) => score,
            Elem::Bytes(_) | Elem::Uuid(_) => 0.0,
        }
    }

    /// Length of the element in bytes.
    pub(crate) fn byte_len(self) -> usize {
        self.bytes(&mut [0; 36]).len()
    }
}

impl PartialEq<[u8]> for Elem<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        self.bytes(&mut [0; 36]) == other
    }
}

/// Orders two elements as their bytes are ordered.
pub(crate) fn compare(a: Elem<'_>, b: Elem<'_>) -> Ordering {
    match (a, b) {
        (Elem::Bytes(a), Elem::Bytes(b)) | (Elem::Uuid(a), Elem::Uuid(b)) => a.cmp(b),
        _ => a.bytes(&mut [0; 36]).cmp(b.bytes(&mut [0; 36])),
    }
}

fn read_int(body: &[u8]) -> i64 {
    let negative = body.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut bytes = if negative { [0xff; 8] } else { [0; 8] };
    for (to, from) in bytes.iter_mut().zip(body) {
        *to = *from;
    }
    i64::from_le_bytes(bytes)
}

/// Length of the encoding at the start of `bytes`, which is not empty.
pub(crate) fn size_of_elem(bytes: &[u8]) -> usize {
    let Some(&first) = bytes.first() else { return 1 };
    match first {
        0..=SHORT_MAX => 1 + usize::from(first),
        SMALL_INT..=0xbf => 1,
        INT..=0xcf => 1 + usize::from((first & 0x0f).min(8)),
        WORD..=0xdf => 2,
        UUID => 17,
        _ => {
            let len = bytes.get(1..5).and_then(|b| <[u8; 4]>::try_from(b).ok());
            5 + u32::from_le_bytes(len.unwrap_or_default()) as usize
        }
    }
}

/// Positions of the dashes in the text of a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];

/// The sixteen bytes of a UUID in its canonical form; nothing for anything else.
fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; 36] = text.try_into().ok()?;
    if DASHES.iter().any(|at| text[*at] != b'-') {
        return None;
    }
    let mut uuid = [0u8; 16];
    let mut bad = 0u8;
    let mut at = 0;
    for byte in &mut uuid {
        at += usize::from(text[at] == b'-');
        let (high, low) = (nibble(text[at]), nibble(text[at + 1]));
        bad |= high | low;
        *byte = high << 4 | low & 0x0f;
        at += 2;
    }
    (bad <= 0x0f).then_some(uuid)
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => 0xff,
    }
}

fn format_uuid(uuid: &[u8], text: &mut Scratch) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut at = 0;
    for byte in uuid.iter().take(16) {
        if DASHES.contains(&at) {
            text[at] = b'-';
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 0x0f)];
        at += 2;
    }
}

/// Bytes before the first element: flags, and a count of elements as `u16`.
const HEADER: usize = 3;

/// A row of elements in one allocation; none at all when empty.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pack {
    bytes: Box<[u8]>,
}

/// Elements that fit in one pack.
pub(crate) const PACK_MAX: usize = u16::MAX as usize;

impl Pack {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        count_of(&self.bytes)
    }

    /// A mark its owner may set; what it means is the owner's business.
    pub(crate) fn flag(&self) -> bool {
        self.bytes.first().is_some_and(|flags| *flags != 0)
    }

    /// Bytes of heap.
    pub(crate) fn heap_size(&self) -> usize {
        crate::memory::allocated(self.bytes.len())
    }

    /// Offset of the first element.
    pub(crate) fn start(&self) -> usize {
        HEADER.min(self.bytes.len())
    }

    /// The element at an offset and the offset after it; nothing at the end.
    pub(crate) fn at(&self, offset: usize) -> Option<(Elem<'_>, usize)> {
        let rest = self.bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let (elem, size) = Elem::read(rest);
        Some((elem, offset + size))
    }

    /// The encoding at an offset, and all after it.
    pub(crate) fn rest(&self, offset: usize) -> &[u8] {
        self.bytes.get(offset..).unwrap_or_default()
    }

    /// The offset of element `index`.
    pub(crate) fn offset(&self, index: usize) -> usize {
        let mut offset = self.start();
        for _ in 0..index {
            offset += self.bytes.get(offset..).map_or(0, size_of_elem);
        }
        offset
    }

    /// All elements in order.
    pub(crate) fn iter(&self) -> Iter<'_> {
        Iter { rest: self.bytes.get(HEADER..).unwrap_or_default() }
    }

    /// The offset of the first element with one of these encodings, looking at every `step`th.
    pub(crate) fn find(
        &self,
        plain: &Code<'_>,
        word: Option<&Code<'_>>,
        step: usize,
    ) -> Option<usize> {
        find(&self.bytes, plain, word, step)
    }

    /// Begins a change that makes the pack about `more` bytes longer.
    pub(crate) fn edit(&mut self, more: usize) -> PackEdit<'_> {
        let mut bytes = std::mem::take(&mut self.bytes).into_vec();
        if bytes.is_empty() {
            bytes.reserve_exact(HEADER + more);
            bytes.resize(HEADER, 0);
        } else {
            bytes.reserve_exact(more);
        }
        PackEdit { pack: self, bytes }
    }
}

fn count_of(bytes: &[u8]) -> usize {
    match bytes {
        [_, low, high, ..] => u16::from_le_bytes([*low, *high]).into(),
        _ => 0,
    }
}

fn find(bytes: &[u8], plain: &Code<'_>, word: Option<&Code<'_>>, step: usize) -> Option<usize> {
    let mut offset = HEADER;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        if plain.starts(rest) || word.is_some_and(|word| word.starts(rest)) {
            return Some(offset);
        }
        for _ in 0..step {
            offset += bytes.get(offset..).map_or(0, size_of_elem);
        }
    }
    None
}

/// The elements of a pack.
#[derive(Debug, Clone)]
pub(crate) struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Elem<'a>;

    fn next(&mut self) -> Option<Elem<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let (elem, size) = Elem::read(self.rest);
        self.rest = self.rest.get(size..).unwrap_or_default();
        Some(elem)
    }
}

/// A change to a pack, complete when dropped.
#[derive(Debug)]
pub(crate) struct PackEdit<'a> {
    pack: &'a mut Pack,
    bytes: Vec<u8>,
}

impl PackEdit<'_> {
    /// See [`Pack::find`].
    pub(crate) fn find(
        &self,
        plain: &Code<'_>,
        word: Option<&Code<'_>>,
        step: usize,
    ) -> Option<usize> {
        find(&self.bytes, plain, word, step)
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        count_of(&self.bytes)
    }

    /// Offset of the first element.
    pub(crate) fn start(&self) -> usize {
        HEADER
    }

    /// Bytes the pack takes now.
    pub(crate) fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// See [`Pack::flag`].
    pub(crate) fn flag(&self) -> bool {
        self.bytes.first().is_some_and(|flags| *flags != 0)
    }

    /// Sets the owner's mark.
    pub(crate) fn set_flag(&mut self) {
        if let Some(flags) = self.bytes.first_mut() {
            *flags = 1;
        }
    }

    /// The element at an offset and the offset after it; nothing at the end.
    pub(crate) fn at(&self, offset: usize) -> Option<(Elem<'_>, usize)> {
        let rest = self.bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let (elem, size) = Elem::read(rest);
        Some((elem, offset + size))
    }

    /// Appends an element.
    pub(crate) fn push(&mut self, code: &Code<'_>) {
        code.push_to(&mut self.bytes);
        self.count(1);
    }

    /// Puts elements in at an offset.
    pub(crate) fn insert(&mut self, offset: usize, codes: &[Code<'_>]) {
        let more: usize = codes.iter().map(Code::len).sum();
        let end = self.bytes.len();
        let mut offset = offset.min(end);
        self.bytes.resize(end + more, 0);
        self.bytes.copy_within(offset..end, offset + more);
        for code in codes {
            if let Some(place) = self.bytes.get_mut(offset..) {
                code.write_to(place);
            }
            offset += code.len();
        }
        self.count(codes.len() as isize);
    }

    /// Replaces the element at an offset.
    pub(crate) fn replace(&mut self, offset: usize, code: &Code<'_>) {
        let old = self.bytes.get(offset..).map_or(0, size_of_elem);
        let (end, new) = (self.bytes.len(), code.len());
        if new > old {
            self.bytes.resize(end + new - old, 0);
        }
        if new != old && offset + old <= end {
            self.bytes.copy_within(offset + old..end, offset + new);
            self.bytes.truncate(end + new - old);
        }
        if let Some(place) = self.bytes.get_mut(offset..) {
            code.write_to(place);
        }
    }

    /// Takes `count` elements out from an offset on.
    pub(crate) fn remove(&mut self, offset: usize, count: usize) {
        let mut after = offset;
        for _ in 0..count {
            after += self.bytes.get(after..).map_or(0, size_of_elem);
        }
        let after = after.min(self.bytes.len());
        self.bytes.drain(offset.min(after)..after);
        self.count(-(count as isize));
    }

    fn count(&mut self, more: isize) {
        let count = count_of(&self.bytes).saturating_add_signed(more);
        if let [_, low, high, ..] = self.bytes.as_mut_slice() {
            [*low, *high] = u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes();
        }
    }
}

impl Drop for PackEdit<'_> {
    fn drop(&mut self) {
        self.pack.bytes = std::mem::take(&mut self.bytes).into_boxed_slice();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check_round_trip(bytes: &[u8]) {
        let code = Code::of(bytes);
        assert_eq!(code.elem().to_vec(), bytes);
        let mut encoded = Vec::new();
        code.push_to(&mut encoded);
        assert_eq!(encoded.len(), code.len());
        encoded.push(7);
        let (elem, size) = Elem::read(&encoded);
        assert_eq!(elem.to_vec(), bytes);
        assert_eq!(size, code.len());
        assert!(code.starts(&encoded));
    }

    #[test]
    fn every_element_comes_back_as_it_went_in() {
        for n in [0, 1, 63, 64, 127, 128, -1, -128, -129, 32767, 32768, 1 << 40, i64::MAX, i64::MIN]
        {
            check_round_trip(n.to_string().as_bytes());
        }
        for text in ["", "-0", "01", "+1", " 1", "1.5", "9223372036854775808", "abc"] {
            check_round_trip(text.as_bytes());
        }
        check_round_trip(b"550e8400-e29b-41d4-a716-446655440000");
        check_round_trip(b"550E8400-e29b-41d4-a716-446655440000");
        check_round_trip(b"550e8400-e29b-41d4-a716-44665544000g");
        check_round_trip(&[b'x'; 127]);
        check_round_trip(&[b'x'; 128]);
        check_round_trip(&[b'x'; 100_000]);
        assert_eq!(Code::of(b"550e8400-e29b-41d4-a716-446655440000").len(), 17);
        assert_eq!(Code::of(b"1704067200123456").len(), 8);
    }

    #[test]
    fn scores_come_back_bit_for_bit() {
        for score in [0.0, -0.0, 1.5, -1.5, 1e300, f64::INFINITY, f64::NEG_INFINITY, 1.7e15, 9e18] {
            let mut encoded = Vec::new();
            Code::score(score).push_to(&mut encoded);
            assert_eq!(Elem::read(&encoded).0.score().to_bits(), f64::to_bits(score), "{score}");
        }
    }

    #[test]
    fn a_word_seen_often_is_stored_once() {
        let word = b"a word of this test and no other";
        for _ in 0..100 {
            Code::shared(word);
        }
        let code = Code::shared(word);
        assert_eq!(code.len(), 2);
        assert_eq!(code.elem().to_vec(), word);
        assert!(Code::word(word).is_some());
    }

    #[derive(Debug, Clone)]
    enum PackStep {
        Insert(usize, Vec<u8>),
        Replace(usize, Vec<u8>),
        Remove(usize, usize),
    }

    fn element() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            any::<i64>().prop_map(|n| n.to_string().into_bytes()),
            (-100i64..100).prop_map(|n| n.to_string().into_bytes()),
            any::<u128>().prop_map(|n| {
                let hex = format!("{n:032x}");
                let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
                parts.join("-").into_bytes()
            }),
        ]
    }

    fn step() -> impl Strategy<Value = PackStep> {
        prop_oneof![
            3 => (any::<usize>(), element()).prop_map(|(at, e)| PackStep::Insert(at, e)),
            1 => (any::<usize>(), element()).prop_map(|(at, e)| PackStep::Replace(at, e)),
            1 => (any::<usize>(), 1usize..4).prop_map(|(at, n)| PackStep::Remove(at, n)),
        ]
    }

    proptest! {
        #[test]
        fn a_pack_behaves_as_a_vector(steps in proptest::collection::vec(step(), 1..60)) {
            let (mut pack, mut model) = (Pack::default(), Vec::<Vec<u8>>::new());
            for step in steps {
                match step {
                    PackStep::Insert(at, element) => {
                        let at = at % (model.len() + 1);
                        let offset = pack.offset(at);
                        pack.edit(10).insert(offset.max(HEADER), &[Code::of(&element)]);
                        model.insert(at, element);
                    }
                    PackStep::Replace(at, element) if !model.is_empty() => {
                        let at = at % model.len();
                        let offset = pack.offset(at);
                        pack.edit(0).replace(offset, &Code::of(&element));
                        model[at] = element;
                    }
                    PackStep::Remove(at, count) if !model.is_empty() => {
                        let at = at % model.len();
                        let count = count.min(model.len() - at);
                        let offset = pack.offset(at);
                        pack.edit(0).remove(offset, count);
                        model.drain(at..at + count);
                    }
                    _ => {}
                }
                prop_assert_eq!(pack.len(), model.len());
                let read: Vec<Vec<u8>> = pack.iter().map(Elem::to_vec).collect();
                prop_assert_eq!(&read, &model);
            }
            for element in &model {
                let at = pack.find(&Code::of(element), None, 1).unwrap();
                prop_assert_eq!(&pack.at(at).unwrap().0.to_vec(), element);
            }
        }

        #[test]
        fn elements_are_ordered_as_their_bytes(a in element(), b in element()) {
            prop_assert_eq!(compare(Code::of(&a).elem(), Code::of(&b).elem()), a.cmp(&b));
        }
    }
}
