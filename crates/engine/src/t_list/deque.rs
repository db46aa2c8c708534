//! A long list: a row of chunks, each a buffer of elements that can be walked from both ends.
//!
//! No chunk is empty. Chunks at the ends have room to grow; those between are as small as their
//! content, so a list of a million short elements takes little more than the elements.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::ListEnd;
use crate::pack::{Code, Elem, size_of_elem};

/// Bytes up to which elements go into one chunk.
const CHUNK_MAX: usize = 4096;
/// Behind an element whose encoding is this long or longer: its length as `u32`, then this byte.
const LONG: u8 = 0x80;

/// A long list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deque {
    chunks: VecDeque<DequeChunk>,
    len: usize,
    /// Bytes of heap of all chunks.
    bytes: usize,
}

/// Elements one behind the other from `head` to the end of the buffer. Behind each element stands
/// the length of its encoding.
#[derive(Debug, Clone, Default)]
struct DequeChunk {
    buffer: Vec<u8>,
    head: u32,
    count: u32,
}

/// Length of an element with the mark behind it.
fn full_size(code: usize) -> usize {
    if code < usize::from(LONG) { code + 1 } else { code + 5 }
}

fn push_mark(size: usize, buffer: &mut Vec<u8>) {
    match u8::try_from(size) {
        Ok(size) if size < LONG => buffer.push(size),
        _ => {
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            buffer.extend_from_slice(&size.to_le_bytes());
            buffer.push(LONG);
        }
    }
}

fn encoded(code: &Code<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(full_size(code.len()));
    code.push_to(&mut bytes);
    push_mark(code.len(), &mut bytes);
    bytes
}

impl DequeChunk {
    fn used(&self) -> usize {
        self.buffer.len() - self.head as usize
    }

    fn has_room(&self, code: &Code<'_>) -> bool {
        self.used() + full_size(code.len()) <= CHUNK_MAX
    }

    fn push_back(&mut self, code: &Code<'_>) {
        code.push_to(&mut self.buffer);
        push_mark(code.len(), &mut self.buffer);
        self.count += 1;
    }

    fn push_front(&mut self, code: &Code<'_>) {
        let bytes = encoded(code);
        if (self.head as usize) < bytes.len() {
            // Room for as much again, so that many pushes move the content only now and then.
            let room = bytes.len().max(self.used().min(CHUNK_MAX.saturating_sub(self.used())));
            let mut buffer = vec![0; room];
            buffer.extend_from_slice(self.buffer.get(self.head as usize..).unwrap_or_default());
            self.buffer = buffer;
            self.head = room as u32;
        }
        let start = self.head as usize - bytes.len();
        if let Some(place) = self.buffer.get_mut(start..start + bytes.len()) {
            place.copy_from_slice(&bytes);
        }
        self.head = start as u32;
        self.count += 1;
    }

    /// The element that starts at an offset, and the offset after it.
    fn at(&self, offset: usize) -> Option<(Elem<'_>, usize)> {
        let rest = self.buffer.get(offset..).filter(|rest| !rest.is_empty())?;
        let (elem, size) = Elem::read(rest);
        Some((elem, offset + full_size(size)))
    }

    /// The offset of the element that ends at an offset.
    fn before(&self, end: usize) -> Option<usize> {
        if end <= self.head as usize {
            return None;
        }
        let mark = *self.buffer.get(end - 1)?;
        if mark < LONG {
            return Some(end - 1 - usize::from(mark));
        }
        let size = self.buffer.get(end - 5..end - 1)?.try_into().ok().map(u32::from_le_bytes)?;
        Some(end - 5 - size as usize)
    }

    /// The offset of the element at an index; the end of the buffer for one past the last.
    fn offset(&self, index: usize) -> usize {
        let count = self.count as usize;
        if index <= count / 2 {
            let mut offset = self.head as usize;
            for _ in 0..index {
                offset += self.buffer.get(offset..).map_or(0, |rest| full_size(size_of_elem(rest)));
            }
            offset
        } else {
            let mut offset = self.buffer.len();
            for _ in index..count {
                offset = self.before(offset).unwrap_or(offset);
            }
            offset
        }
    }

    /// Replaces the bytes of a range of offsets.
    fn splice(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.buffer.splice(from..to.max(from), bytes.iter().copied());
    }

    /// Gives unused memory back.
    fn shrink(&mut self) {
        self.buffer.drain(..self.head as usize);
        self.head = 0;
        self.buffer.shrink_to_fit();
    }

    fn heap(&self) -> usize {
        self.buffer.capacity()
    }
}

impl Deque {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of heap.
    pub(crate) fn heap_size(&self) -> usize {
        size_of::<Deque>() + self.bytes + self.chunks.capacity() * size_of::<DequeChunk>()
    }

    pub(crate) fn push(&mut self, end: ListEnd, code: &Code<'_>) {
        let last = match end {
            ListEnd::Left => self.chunks.front_mut(),
            ListEnd::Right => self.chunks.back_mut(),
        };
        let fresh = match last {
            Some(chunk) if chunk.has_room(code) => false,
            Some(chunk) => {
                self.bytes -= chunk.heap();
                chunk.shrink();
                self.bytes += chunk.heap();
                true
            }
            None => true,
        };
        if fresh {
            match end {
                ListEnd::Left => self.chunks.push_front(DequeChunk::default()),
                ListEnd::Right => self.chunks.push_back(DequeChunk::default()),
            }
        }
        let last = match end {
            ListEnd::Left => self.chunks.front_mut(),
            ListEnd::Right => self.chunks.back_mut(),
        };
        if let Some(chunk) = last {
            self.bytes -= chunk.heap();
            match end {
                ListEnd::Left => chunk.push_front(code),
                ListEnd::Right => chunk.push_back(code),
            }
            self.bytes += chunk.heap();
            self.len += 1;
        }
    }

    pub(crate) fn pop(&mut self, end: ListEnd) -> Option<Vec<u8>> {
        let element;
        let empty = match end {
            ListEnd::Left => {
                let chunk = self.chunks.front_mut()?;
                let (elem, after) = chunk.at(chunk.head as usize)?;
                element = elem.to_vec();
                chunk.head = after as u32;
                chunk.count -= 1;
                chunk.count == 0
            }
            ListEnd::Right => {
                let chunk = self.chunks.back_mut()?;
                let start = chunk.before(chunk.buffer.len())?;
                element = chunk.at(start)?.0.to_vec();
                chunk.buffer.truncate(start);
                chunk.count -= 1;
                chunk.count == 0
            }
        };
        self.len -= 1;
        if empty {
            let chunk = match end {
                ListEnd::Left => self.chunks.pop_front(),
                ListEnd::Right => self.chunks.pop_back(),
            };
            self.bytes -= chunk.map_or(0, |chunk| chunk.heap());
            if self.chunks.len() * 4 < self.chunks.capacity() {
                self.chunks.shrink_to(self.chunks.len() * 2);
            }
        }
        Some(element)
    }

    /// The chunk that holds an index, and the index there, looking from the nearer end.
    fn place(&self, index: usize) -> Option<(usize, usize)> {
        if index >= self.len {
            return None;
        }
        if index < self.len / 2 {
            let mut left = index;
            for (number, chunk) in self.chunks.iter().enumerate() {
                if left < chunk.count as usize {
                    return Some((number, left));
                }
                left -= chunk.count as usize;
            }
        } else {
            let mut left = self.len - 1 - index;
            for (number, chunk) in self.chunks.iter().enumerate().rev() {
                if left < chunk.count as usize {
                    return Some((number, chunk.count as usize - 1 - left));
                }
                left -= chunk.count as usize;
            }
        }
        None
    }

    pub(crate) fn get(&self, index: usize) -> Option<Elem<'_>> {
        let (number, index) = self.place(index)?;
        let chunk = self.chunks.get(number)?;
        chunk.at(chunk.offset(index)).map(|(elem, _)| elem)
    }

    pub(crate) fn set(&mut self, index: usize, code: &Code<'_>) -> bool {
        let Some((number, index)) = self.place(index) else { return false };
        self.change(number, |chunk| {
            let from = chunk.offset(index);
            if let Some((_, to)) = chunk.at(from) {
                chunk.splice(from, to, &encoded(code));
            }
        });
        self.split_if_long(number);
        true
    }

    /// Puts an element in before the one at `index`, or at the end.
    pub(crate) fn insert(&mut self, index: usize, code: &Code<'_>) {
        let Some((number, index)) = self.place(index) else {
            return self.push(ListEnd::Right, code);
        };
        self.change(number, |chunk| {
            let at = chunk.offset(index);
            chunk.splice(at, at, &encoded(code));
            chunk.count += 1;
        });
        self.len += 1;
        self.split_if_long(number);
    }

    /// Drops elements from one end.
    pub(crate) fn drop_from(&mut self, end: ListEnd, count: usize) {
        let mut left = count.min(self.len);
        while left > 0 {
            let chunk = match end {
                ListEnd::Left => self.chunks.front_mut(),
                ListEnd::Right => self.chunks.back_mut(),
            };
            let Some(chunk) = chunk else { return };
            let whole = chunk.count as usize;
            if whole <= left {
                left -= whole;
                self.len -= whole;
                let chunk = match end {
                    ListEnd::Left => self.chunks.pop_front(),
                    ListEnd::Right => self.chunks.pop_back(),
                };
                self.bytes -= chunk.map_or(0, |chunk| chunk.heap());
                continue;
            }
            match end {
                ListEnd::Left => {
                    chunk.head = chunk.offset(left) as u32;
                    chunk.count -= left as u32;
                }
                ListEnd::Right => {
                    let from = chunk.offset(whole - left);
                    chunk.buffer.truncate(from);
                    chunk.count -= left as u32;
                }
            }
            self.len -= left;
            left = 0;
        }
    }

    /// Takes out elements equal to `code`, at most `most`, from one end on; answers how many.
    pub(crate) fn remove_equal(&mut self, code: &Code<'_>, most: usize, from: ListEnd) -> usize {
        let before = self.len;
        let count = self.chunks.len();
        for step in 0..count {
            let number = if from == ListEnd::Left { step } else { count - 1 - step };
            let left = most - (before - self.len);
            if left == 0 {
                break;
            }
            let Some(chunk) = self.chunks.get(number) else { break };
            let mut found = Vec::new();
            let mut offset = chunk.head as usize;
            while let Some((_, after)) = chunk.at(offset) {
                if chunk.buffer.get(offset..).is_some_and(|rest| code.starts(rest)) {
                    found.push((offset, after));
                }
                offset = after;
            }
            if from == ListEnd::Right {
                found.drain(..found.len().saturating_sub(left));
            } else {
                found.truncate(left);
            }
            if found.is_empty() {
                continue;
            }
            self.len -= found.len();
            self.change(number, |chunk| {
                for (from, to) in found.iter().rev() {
                    chunk.splice(*from, *to, &[]);
                }
                chunk.count -= found.len() as u32;
            });
        }
        if before != self.len {
            self.join_short();
        }
        before - self.len
    }

    /// Walks over elements from an index towards one end until `visit` breaks.
    pub(crate) fn walk<'d>(
        &'d self,
        index: usize,
        towards: ListEnd,
        mut visit: impl FnMut(Elem<'d>, &'d [u8]) -> ControlFlow<()>,
    ) {
        let Some((mut number, index)) = self.place(index) else { return };
        let Some(mut chunk) = self.chunks.get(number) else { return };
        let mut offset = chunk.offset(index);
        loop {
            let Some((elem, after)) = chunk.at(offset) else { return };
            let encoding = chunk.buffer.get(offset..).unwrap_or_default();
            if visit(elem, encoding).is_break() {
                return;
            }
            let next = match towards {
                ListEnd::Right => Some(after).filter(|after| *after < chunk.buffer.len()),
                ListEnd::Left => chunk.before(offset),
            };
            offset = match (next, towards) {
                (Some(next), _) => next,
                (None, ListEnd::Right) => {
                    number += 1;
                    let Some(next) = self.chunks.get(number) else { return };
                    chunk = next;
                    chunk.head as usize
                }
                (None, ListEnd::Left) => {
                    let Some(next) = number.checked_sub(1).and_then(|n| self.chunks.get(n)) else {
                        return;
                    };
                    number -= 1;
                    chunk = next;
                    chunk.before(chunk.buffer.len()).unwrap_or(chunk.head as usize)
                }
            };
        }
    }

    fn change(&mut self, number: usize, change: impl FnOnce(&mut DequeChunk)) {
        if let Some(chunk) = self.chunks.get_mut(number) {
            self.bytes -= chunk.heap();
            change(chunk);
            self.bytes += chunk.heap();
        }
    }

    fn split_if_long(&mut self, number: usize) {
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        if chunk.used() <= CHUNK_MAX || chunk.count < 2 {
            return;
        }
        self.bytes -= chunk.heap();
        let half = chunk.count / 2;
        let at = chunk.offset(half as usize);
        let mut second =
            DequeChunk { buffer: chunk.buffer.split_off(at), head: 0, count: chunk.count - half };
        chunk.count = half;
        chunk.shrink();
        second.shrink();
        self.bytes += chunk.heap() + second.heap();
        self.chunks.insert(number + 1, second);
        // A long element can leave a half that is still too long.
        self.split_if_long(number + 1);
        self.split_if_long(number);
    }

    /// Drops empty chunks and joins neighbours that fit in half a chunk.
    fn join_short(&mut self) {
        let mut joined: VecDeque<DequeChunk> = VecDeque::with_capacity(self.chunks.len());
        for chunk in std::mem::take(&mut self.chunks) {
            match joined.back_mut() {
                _ if chunk.count == 0 => {}
                Some(last) if last.used() + chunk.used() <= CHUNK_MAX / 2 => {
                    let content = chunk.buffer.get(chunk.head as usize..).unwrap_or_default();
                    last.buffer.extend_from_slice(content);
                    last.count += chunk.count;
                }
                _ => joined.push_back(chunk),
            }
        }
        joined.shrink_to_fit();
        self.bytes = joined.iter().map(DequeChunk::heap).sum();
        self.chunks = joined;
    }
}
