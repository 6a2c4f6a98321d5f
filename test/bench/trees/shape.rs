//! The trees that are measured, made on the server's own disk.

use std::io::Write;
use std::path::Path;

/// How large a small file is, in bytes.
const SMALL: usize = 4096;

/// Small files, equally many in each of some directories.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub files: usize,
    /// None: all files are in the tree's root.
    pub directories: usize,
}

/// The tree that is asked for, and one that takes `cp -a` a fifth of its minutes where each round trip takes long.
pub const TREE: Shape = Shape { name: "20,000 files in 200 directories", files: 20_000, directories: 200 };
pub const SMALL_TREE: Shape = Shape { name: "4,000 files in 40 directories", files: 4_000, directories: 40 };
pub const FLAT: Shape = Shape { name: "20,000 files in one directory", files: 20_000, directories: 0 };
pub const SMALL_FLAT: Shape = Shape { name: "2,000 files in one directory", files: 2_000, directories: 0 };

impl Shape {
    /// Fills a directory.
    pub fn make(&self, root: &Path) {
        let mut bytes = Noise::new();
        for number in 0..self.files {
            let directory = number % self.directories.max(1);
            if number < self.directories {
                std::fs::create_dir(root.join(format!("directory-{directory}"))).unwrap();
            }
            let name = format!("file-{number}");
            let path = if self.directories == 0 {
                root.join(name)
            } else {
                root.join(format!("directory-{directory}")).join(name)
            };
            std::fs::write(path, bytes.next(SMALL)).unwrap();
        }
    }
}

/// A file of bytes that no compression makes smaller.
pub fn large_file(path: &Path, bytes: usize) {
    let mut file = std::fs::File::create_new(path).unwrap();
    let mut noise = Noise::new();
    for _ in 0..bytes >> 20 {
        file.write_all(noise.next(1 << 20)).unwrap();
    }
}

/// A directory of empty files.
pub fn empty_files(root: &Path, count: usize) {
    for number in 0..count {
        std::fs::File::create_new(root.join(format!("file-{number}"))).unwrap();
    }
}

/// Empty files with two names each: all first names are in one directory, so a walk meets them before all others.
pub fn linked_files(root: &Path, count: usize) {
    let [first, second] = ["first", "second"].map(|name| root.join(name));
    std::fs::create_dir(&first).unwrap();
    std::fs::create_dir(&second).unwrap();
    for number in 0..count {
        let name = format!("{number:0200}");
        std::fs::File::create_new(first.join(&name)).unwrap();
        std::fs::hard_link(first.join(&name), second.join(&name)).unwrap();
    }
}

/// Bytes without a pattern (xorshift64).
struct Noise {
    state: u64,
    bytes: Vec<u8>,
}

impl Noise {
    fn new() -> Self {
        Self { state: 0x9e37_79b9_7f4a_7c15, bytes: Vec::new() }
    }

    fn next(&mut self, count: usize) -> &[u8] {
        self.bytes.clear();
        while self.bytes.len() < count {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            self.bytes.extend_from_slice(&self.state.to_le_bytes());
        }
        &self.bytes
    }
}
