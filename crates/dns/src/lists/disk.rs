//! Lists on disk: the text as it came, and the set compiled from it.
//!
//! ```text
//!  ID.txt   the text
//!  ID.set   magic, seed, lengths │ figures and source (JSON) │ complex rules │ table │ checksum │ index
//! ```
//!
//! At start the set is read without the text, so that filtering is armed at once; the index stays on
//! disk until somebody asks why a name was blocked. A download is ID.part until it is compiled, line by
//! line, so that neither text nor index is ever in memory as a whole. Both files are written beside the old ones and
//! renamed, so that a crash at any moment leaves a whole set. A file that is damaged, or of another
//! seed, is made anew from the text.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use store::Millis;

use super::{
    hash::{FLAG_BITS, HashSeed},
    index::{INDEX_LINE_BYTES, IndexFile, IndexLine, decode},
    set::{CancelledRules, ComplexRule, ComplexRules, ListFigures, ListSet, RulePlace},
    table::NameTable,
};
use crate::remote::Validators;

const MAGIC: &[u8; 8] = b"TGLIST1\n";

/// Longest part of a file that is believed.
const PART_MAX_BYTES: u64 = 1 << 30;

/// Buffer for reading a table; a multiple of a word.
const TABLE_BUFFER_BYTES: usize = 64 << 10;

/// Source of a set, kept with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceState {
    pub(super) url: String,
    #[serde(default)]
    pub(super) validators: Validators,
    /// Last time the source said that this is its list, Unix milliseconds.
    pub(super) fetched_at: i64,
    /// Time the text changed last.
    pub(super) changed_at: i64,
}

impl SourceState {
    pub(super) fn fetched_at(&self) -> Millis {
        Millis(self.fetched_at)
    }
}

#[derive(Serialize, Deserialize)]
struct SetHead {
    figures: ListFigures,
    source: SourceState,
    is_zone: bool,
    /// Offsets and numbers of the lines with complex rules.
    complex: Vec<(u32, u32)>,
    /// Checksum of the text they are in. A crash may leave the set of one text beside another.
    #[serde(default)]
    text_checksum: Option<u32>,
}

/// A compiled list that is not in use yet. Its text is where a download is.
#[derive(Debug)]
pub(super) struct ListDraft {
    pub(super) set: Arc<ListSet>,
    index: IndexFile,
}

/// The folder of lists.
#[derive(Clone, Debug)]
pub(super) struct ListFolder {
    path: PathBuf,
}

impl ListFolder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Reads the seed of the folder, drawn when it is opened first.
    pub(super) fn seed(&self) -> io::Result<HashSeed> {
        let path = self.path.join("seed");
        if let Ok(bytes) = fs::read(&path)
            && let Ok(bytes) = <[u8; 8]>::try_from(bytes.as_slice())
        {
            return Ok(HashSeed(u64::from_le_bytes(bytes)));
        }
        let seed = draw_seed();
        self.replace(&path, |file| file.write_all(&seed.0.to_le_bytes()))?;
        Ok(seed)
    }

    pub(super) fn text_path(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.txt"))
    }

    /// Path of a download that is not complete yet.
    pub(super) fn partial_path(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.part"))
    }

    /// Removes a download that is not put to use.
    pub(super) fn remove_partial(&self, id: &str) {
        // Left behind it takes room, nothing else; the next download writes over it.
        let _ = fs::remove_file(self.partial_path(id));
    }

    /// Path of a list that the operator put into the folder.
    pub(super) fn file_path(&self, name: &str) -> PathBuf {
        self.path.join("files").join(name)
    }

    fn set_path(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.set"))
    }

    /// Writes a file beside the one it replaces, waits until it is on disk, renames it.
    fn replace(
        &self,
        path: &Path,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let beside = path.with_extension("new");
        let mut file = BufWriter::new(File::create(&beside)?);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&beside, path)
    }

    /// Compiles a download.
    pub(super) fn compile(&self, id: &str, seed: HashSeed) -> io::Result<ListDraft> {
        self.compile_text(id, &self.partial_path(id), seed)
    }

    fn compile_text(&self, id: &str, text: &Path, seed: HashSeed) -> io::Result<ListDraft> {
        let scratch = self.path.join(format!("{id}.draft"));
        let (set, index) = ListSet::build_file(text, seed, &scratch)?;
        Ok(ListDraft { set: Arc::new(set), index })
    }

    /// Puts a draft and its text in the place of what was there.
    pub(super) fn save(
        &self,
        id: &str,
        draft: ListDraft,
        source: &SourceState,
        seed: HashSeed,
    ) -> io::Result<()> {
        let part = self.partial_path(id);
        File::open(&part)?.sync_all()?;
        fs::rename(&part, self.text_path(id))?;
        self.save_set(id, &draft, source, seed)
    }

    fn save_set(
        &self,
        id: &str,
        draft: &ListDraft,
        source: &SourceState,
        seed: HashSeed,
    ) -> io::Result<()> {
        let ListDraft { set, index } = draft;
        let head = SetHead {
            figures: set.figures.clone(),
            source: source.clone(),
            is_zone: set.is_zone,
            complex: set.complex.rules.iter().map(|rule| (rule.offset, rule.line)).collect(),
            text_checksum: match set.complex.rules.is_empty() {
                true => None,
                false => Some(checksum_of(&self.text_path(id))?),
            },
        };
        let head = serde_json::to_vec(&head)?;
        self.replace(&self.set_path(id), |file| {
            let mut file = ChecksumWriter { file, checksum: 0 };
            file.write(MAGIC)?;
            for number in
                [seed.0, head.len() as u64, set.table.words().len() as u64, index.lines() as u64]
            {
                file.write(&number.to_le_bytes())?;
            }
            file.write(&head)?;
            for word in set.table.words() {
                file.write(&word.to_le_bytes())?;
            }
            let checksum = file.checksum;
            file.write(&checksum.to_le_bytes())?;
            io::copy(&mut index.open()?, file.file)?;
            Ok(())
        })
    }

    /// Notes that a source was asked, without writing the set anew: beside it.
    pub(super) fn save_source(&self, id: &str, source: &SourceState) -> io::Result<()> {
        let text = serde_json::to_vec(source)?;
        let path = self.path.join(format!("{id}.source"));
        self.replace(&path, |file| file.write_all(&text))
    }

    fn load_source(&self, id: &str) -> Option<SourceState> {
        let text = fs::read(self.path.join(format!("{id}.source"))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Reads a set; from its text if the compiled form cannot be used.
    pub(super) fn load(&self, id: &str, seed: HashSeed) -> Option<(Arc<ListSet>, SourceState)> {
        let (set, mut source) = match self.load_set(id, seed) {
            Ok((set, source)) => (Arc::new(set), source),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(list = id, %error, "compiling the list again from its text");
                let source = self.load_source(id).unwrap_or_default();
                let draft = self.compile_text(id, &self.text_path(id), seed).ok()?;
                if let Err(error) = self.save_set(id, &draft, &source, seed) {
                    tracing::warn!(list = id, %error, "the compiled list is not kept");
                }
                (draft.set, source)
            }
        };
        if let Some(later) = self.load_source(id)
            && later.url == source.url
            && later.fetched_at >= source.fetched_at
        {
            source = later;
        }
        Some((set, source))
    }

    fn load_set(&self, id: &str, seed: HashSeed) -> io::Result<(ListSet, SourceState)> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the file is damaged");
        let mut file = ChecksumReader {
            file: BufReader::with_capacity(TABLE_BUFFER_BYTES, File::open(self.set_path(id))?),
            checksum: 0,
        };
        let header = file.read_header(seed)?;
        let head = file.read_bytes(header.head_bytes)?;
        let head: SetHead = serde_json::from_slice(&head)?;
        let table_bytes = header.words.checked_mul(8).ok_or_else(damaged)?;
        if table_bytes > PART_MAX_BYTES {
            return Err(damaged());
        }
        // Straight into the table: the bytes beside it would take as much memory once more.
        let length = file.file.get_ref().metadata()?.len();
        let mut words =
            Vec::with_capacity(usize::try_from(header.words.min(length / 8)).unwrap_or(0));
        let mut buffer = vec![0; TABLE_BUFFER_BYTES];
        let mut left = usize::try_from(table_bytes).map_err(|_| damaged())?;
        while left > 0 {
            let part = buffer.get_mut(..left.min(TABLE_BUFFER_BYTES)).unwrap_or_default();
            file.read_part(part)?;
            left -= part.len();
            let word = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap_or_default());
            words.extend(part.chunks_exact(8).map(word));
        }
        let checksum = file.checksum;
        if file.read_bytes(4)? != checksum.to_le_bytes() {
            return Err(damaged());
        }
        let table = NameTable::from_words(words).ok_or_else(damaged)?;
        let complex = match head.complex.is_empty() {
            true => ComplexRules::default(),
            false => self.load_complex(id, &head, seed)?,
        };
        let (is_zone, cancelled) = (head.is_zone, CancelledRules::default());
        let set = ListSet { table, complex, is_zone, cancelled, figures: head.figures };
        Ok((set, head.source))
    }

    /// Reads the complex rules again from their lines.
    fn load_complex(&self, id: &str, head: &SetHead, seed: HashSeed) -> io::Result<ComplexRules> {
        let text = fs::read(self.text_path(id))?;
        if head.text_checksum != Some(crc32c::crc32c(&text)) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the text is of another set"));
        }
        // A line of a zone depends on those before it.
        if head.is_zone {
            return Ok(ListSet::build(&text, seed).0.complex);
        }
        let mut lines = Vec::new();
        for (offset, line) in &head.complex {
            let start = *offset as usize;
            let rest = text.get(start..).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "the text is shorter than its set")
            })?;
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            lines.push((rest.get(..end).unwrap_or_default(), *offset, *line));
        }
        Ok(ListSet::complex_of_lines(&lines, seed))
    }

    /// Returns number and text of the line that a rule is in.
    pub(super) fn line(&self, id: &str, place: RulePlace) -> Option<(u32, String)> {
        let (offset, line) = match place {
            RulePlace::Line { offset, line } => (offset, line),
            RulePlace::Hash(hash) => self.find_in_index(id, hash).ok().flatten()?,
        };
        let mut file = File::open(self.text_path(id)).ok()?;
        file.seek(SeekFrom::Start(offset.into())).ok()?;
        let mut text = vec![0; super::rule::LINE_MAX_BYTES];
        let length = file.read(&mut text).ok()?;
        text.truncate(length);
        let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
        text.truncate(end);
        Some((line, String::from_utf8_lossy(&text).trim_end().to_owned()))
    }

    /// Binary search in the index on disk: some twenty reads of 16 bytes.
    fn find_in_index(&self, id: &str, hash: u64) -> io::Result<Option<(u32, u32)>> {
        let mut file = File::open(self.set_path(id))?;
        let mut header = [0; 40];
        file.read_exact(&mut header)?;
        let number = |at: usize| {
            let bytes = header.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let (head_bytes, words, lines) = (number(16), number(24), number(32));
        let start = 40_u64.saturating_add(head_bytes).saturating_add(words.saturating_mul(8)) + 4;
        let mut read = |at: u64| -> io::Result<IndexLine> {
            let behind = at.saturating_mul(INDEX_LINE_BYTES as u64);
            file.seek(SeekFrom::Start(start.saturating_add(behind)))?;
            let mut line = [0; INDEX_LINE_BYTES];
            file.read_exact(&mut line)?;
            Ok(decode(line))
        };
        let (mut low, mut high) = (0, lines);
        while low < high {
            let middle = low + (high - low) / 2;
            if read(middle)?.0 & !FLAG_BITS < hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low >= lines {
            return Ok(None);
        }
        let (word, offset, line) = read(low)?;
        Ok((word & !FLAG_BITS == hash).then_some((offset, line)))
    }

    /// Removes all files of a list.
    pub(super) fn remove(&self, id: &str) {
        let source = self.path.join(format!("{id}.source"));
        for path in [self.set_path(id), self.text_path(id), self.partial_path(id), source] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "a file of a list is left");
            }
        }
    }
}

fn checksum_of(path: &Path) -> io::Result<u32> {
    let mut file = File::open(path)?;
    let (mut buffer, mut checksum) = (vec![0; TABLE_BUFFER_BYTES], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(checksum),
            length => {
                let part = buffer.get(..length).unwrap_or_default();
                checksum = crc32c::crc32c_append(checksum, part);
            }
        }
    }
}

/// Draws a seed.
pub(super) fn draw_seed() -> HashSeed {
    let mut bytes = [0; 8];
    // Without randomness the seed is a constant: names could be chosen that collide, nothing else.
    let _ = getrandom::fill(&mut bytes);
    HashSeed(u64::from_le_bytes(bytes))
}

struct ChecksumWriter<'a> {
    file: &'a mut BufWriter<File>,
    checksum: u32,
}

impl ChecksumWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        self.file.write_all(bytes)
    }
}

struct ChecksumReader {
    file: BufReader<File>,
    checksum: u32,
}

struct SetHeader {
    head_bytes: u64,
    words: u64,
}

impl ChecksumReader {
    fn read_bytes(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let damaged = io::Error::new(io::ErrorKind::InvalidData, "the file is damaged");
        if length > PART_MAX_BYTES {
            return Err(damaged);
        }
        let mut bytes = Vec::new();
        let read = (&mut self.file).take(length).read_to_end(&mut bytes)?;
        if read as u64 != length {
            return Err(damaged);
        }
        self.checksum = crc32c::crc32c_append(self.checksum, &bytes);
        Ok(bytes)
    }

    fn read_part(&mut self, part: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(part)?;
        self.checksum = crc32c::crc32c_append(self.checksum, part);
        Ok(())
    }

    fn read_header(&mut self, seed: HashSeed) -> io::Result<SetHeader> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "of another version or seed");
        if self.read_bytes(8)? != MAGIC {
            return Err(damaged());
        }
        let mut number = || -> io::Result<u64> {
            let bytes = self.read_bytes(8)?;
            Ok(u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
        };
        if number()? != seed.0 {
            return Err(damaged());
        }
        let (head_bytes, words, _lines) = (number()?, number()?, number()?);
        Ok(SetHeader { head_bytes, words })
    }
}

impl ListSet {
    /// Compiles the complex rules of lines again.
    fn complex_of_lines(lines: &[(&[u8], u32, u32)], seed: HashSeed) -> ComplexRules {
        let mut text = Vec::new();
        let mut places = Vec::new();
        for (line, offset, number) in lines {
            text.extend_from_slice(line);
            text.push(b'\n');
            places.push((*offset, *number));
        }
        let (set, _) = Self::build(&text, seed);
        let mut rules: Vec<ComplexRule> = set.complex.rules;
        for rule in &mut rules {
            if let Some(place) = places.get((rule.line as usize).saturating_sub(1)) {
                (rule.offset, rule.line) = *place;
            }
        }
        ComplexRules::new(rules, seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lists::set::{ClientFacts, MatchName, RuleEffect};

    const TEXT: &str = "\
# a list
||ads.example^
0.0.0.0 tracker.example
||typed.example^$dnstype=AAAA
/^ad[0-9]+\\./
@@||good.ads.example^
";

    fn find(
        set: &ListSet,
        seed: HashSeed,
        name: &str,
        qtype: u16,
    ) -> Option<super::super::set::RuleMatch> {
        let client = ClientFacts { address: [127, 0, 0, 1].into(), id: "", name: "", tags: &[] };
        set.find(&MatchName::new(seed, &name.parse().unwrap(), qtype, client))
    }

    #[test]
    fn a_set_is_read_back_and_tells_its_lines() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = ListFolder::open(scratch.path()).unwrap();
        let seed = folder.seed().unwrap();
        assert_eq!(folder.seed().unwrap(), seed, "kept");
        let (set, _) = ListSet::build(TEXT.as_bytes(), seed);
        let source = SourceState { url: "file:x".to_owned(), ..SourceState::default() };
        fs::write(folder.partial_path("x"), TEXT).unwrap();
        let draft = folder.compile("x", seed).unwrap();
        folder.save("x", draft, &source, seed).unwrap();
        let (loaded, loaded_source) = folder.load("x", seed).unwrap();
        assert_eq!((loaded_source, &loaded.figures), (source, &set.figures));
        for (name, qtype, line, text) in [
            ("a.ads.example", 1, 2, "||ads.example^"),
            ("tracker.example", 1, 3, "0.0.0.0 tracker.example"),
            ("typed.example", 28, 4, "||typed.example^$dnstype=AAAA"),
            ("ad7.test", 1, 5, "/^ad[0-9]+\\./"),
            ("x.good.ads.example", 1, 6, "@@||good.ads.example^"),
        ] {
            let found = find(&loaded, seed, name, qtype).unwrap();
            assert_eq!(Some(&found), find(&set, seed, name, qtype).as_ref());
            assert_eq!(folder.line("x", found.place), Some((line, text.to_owned())), "{name}");
        }
        assert_eq!(find(&loaded, seed, "other.example", 1), None);
    }

    #[test]
    fn a_set_beside_the_text_of_another_is_made_anew() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = ListFolder::open(scratch.path()).unwrap();
        let seed = folder.seed().unwrap();
        fs::write(folder.partial_path("x"), TEXT).unwrap();
        let draft = folder.compile("x", seed).unwrap();
        folder.save("x", draft, &SourceState::default(), seed).unwrap();
        // A crash between the two renames; the lines are not where they were.
        let later = TEXT.replace("# a list", "# a list that is a little longer");
        let later = later.replace("typed.example", "other.example");
        fs::write(folder.text_path("x"), &later).unwrap();
        let (loaded, _) = folder.load("x", seed).unwrap();
        assert_eq!(find(&loaded, seed, "typed.example", 28), None);
        let found = find(&loaded, seed, "other.example", 28).unwrap();
        let line = (4, "||other.example^$dnstype=AAAA".to_owned());
        assert_eq!(folder.line("x", found.place), Some(line));
        let read = loaded.complex.rules.iter().map(|rule| rule.line).collect::<Vec<_>>();
        assert_eq!(read, [4, 5], "no other rules");
    }

    #[test]
    fn a_damaged_file_is_made_anew_from_the_text() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = ListFolder::open(scratch.path()).unwrap();
        let seed = folder.seed().unwrap();
        fs::write(folder.partial_path("x"), TEXT).unwrap();
        let draft = folder.compile("x", seed).unwrap();
        let index_bytes = draft.index.lines() * INDEX_LINE_BYTES;
        folder.save("x", draft, &SourceState::default(), seed).unwrap();
        let path = folder.set_path("x");
        let whole = fs::read(&path).unwrap();
        let loaded_end = whole.len() - index_bytes;
        for at in (0..loaded_end).step_by(7) {
            let mut broken = whole.clone();
            broken[at] ^= 0x55;
            fs::write(&path, &broken).unwrap();
            let (loaded, _) = folder.load("x", seed).unwrap();
            let found = find(&loaded, seed, "ads.example", 1).unwrap();
            assert_eq!(found.effect, RuleEffect::Block, "byte {at}");
        }
        for length in [0, 5, 30, whole.len() / 2] {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(folder.load("x", seed).is_some(), "{length} bytes");
        }
        assert!(folder.load("absent", seed).is_none());
    }
}
