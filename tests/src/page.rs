//! The pages of documentation: their blocks, and the marks that name what runs a block's commands.

use std::fs;
use std::path::{Path, PathBuf};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A block of a page, between two lines of three backticks.
#[derive(Debug)]
pub struct Block {
    /// Number of the block's first line.
    pub line: usize,
    /// Words behind the backticks: the language, and marks.
    pub words: Vec<String>,
    /// Text of the block, without the indentation of a list.
    pub text: String,
}

impl Block {
    /// What runs the block's commands, by its marks `run-by=FILE` or `run-by=FILE:FUNCTION,…`:
    /// files, each with a function or nothing.
    pub fn run_by(&self) -> Vec<(&str, &str)> {
        let by = self.marks("run-by").map(|by| by.split_once(':').unwrap_or((by, "")));
        by.flat_map(|(file, names)| names.split(',').map(move |name| (file, name))).collect()
    }

    /// The values of marks with this name.
    pub fn marks(&self, name: &str) -> impl Iterator<Item = &str> {
        self.words.iter().filter_map(move |word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// Commands of the block, one a line: lines that are continued are joined, and comments left
    /// out.
    pub fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        let words = |line: &str| {
            let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
            words.collect::<Vec<_>>().join(" ")
        };
        joined.lines().map(words).filter(|line| !line.is_empty()).collect()
    }
}

/// Paths of the README and of all pages but dated notes and the reference. The reference is made
/// from the program: whether its examples are understood is tested there.
pub fn pages() -> Vec<PathBuf> {
    let documents = Path::new(REPOSITORY).join("docs");
    let all = |directory: PathBuf| {
        let entries = fs::read_dir(directory).expect("there is such a directory");
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let parts = ["", "benchmarks", "design", "explanation", "how-to", "safety", "settings"];
    let mut pages: Vec<PathBuf> = parts.iter().flat_map(|part| all(documents.join(part))).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.push(Path::new(REPOSITORY).join("README.md"));
    pages.sort();
    pages
}

/// The blocks of a page's text. Also the numbers of lines outside of blocks that begin with four
/// spaces, which make a block too.
pub fn blocks(page: &str) -> (Vec<Block>, Vec<usize>) {
    let (mut blocks, mut indented, mut is_inside) = (Vec::<Block>::new(), Vec::new(), false);
    let mut indentation = 0;
    for (number, line) in page.lines().enumerate() {
        let begin = line.trim_start();
        if let Some(words) = begin.strip_prefix("```") {
            if !is_inside {
                indentation = line.len() - begin.len();
                let words = words.split_whitespace().map(str::to_owned).collect();
                blocks.push(Block { line: number + 1, words, text: String::new() });
            }
            is_inside = !is_inside;
        } else if is_inside {
            let block = blocks.last_mut().expect("a block has begun");
            block.text += line.get(indentation..).unwrap_or_default();
            block.text.push('\n');
        } else if line.starts_with("    ") {
            indented.push(number + 1);
        }
    }
    (blocks, indented)
}

/// The blocks of the page of this name, below the repository.
pub fn blocks_of(page: &str) -> Vec<Block> {
    let path = Path::new(REPOSITORY).join(page);
    blocks(&fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).0
}

/// The blocks of all pages of which a mark says that this function runs them: at least one block.
#[track_caller]
pub fn blocks_run_by(function: &str) -> Vec<Block> {
    let pages = pages();
    let texts = pages.iter().map(|page| fs::read_to_string(page).expect("a page can be read"));
    let found: Vec<Block> = texts
        .flat_map(|text| blocks(&text).0)
        .filter(|block| block.run_by().iter().any(|(_, name)| *name == function))
        .collect();
    assert!(!found.is_empty(), "no page says that {function} runs something");
    found
}

/// Commands of all blocks that this function runs.
#[track_caller]
pub fn commands_run_by(function: &str) -> Vec<String> {
    blocks_run_by(function).iter().flat_map(Block::commands).collect()
}
