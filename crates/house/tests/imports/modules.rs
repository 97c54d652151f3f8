//! The modules of a crate, the files that define them, and the imports between these files.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::{Token, behind, tokens, without_tests};

/// The texts of sources by path. Paths have `/`, and are relative to the directory of the crate or of the workspace.
pub(crate) type Sources = BTreeMap<String, String>;

/// Where a file imports another first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Site {
    /// From 1 on.
    pub(crate) line: usize,
    /// The path as it is written, without braces: `crate::a::B`.
    pub(crate) path: String,
}

/// The imports between the files of a crate.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    /// By importing and imported file. A file that imports itself has no entry.
    pub(crate) edges: BTreeMap<(String, String), Site>,
    /// Files that no `mod` declares, tests included.
    pub(crate) undeclared: BTreeSet<String>,
}

/// The imports between the files of a crate whose library and programs begin at `roots`.
///
/// # Errors
/// A declared module, or a root, has no file in `sources`.
pub(crate) fn imports(sources: &Sources, roots: &[String]) -> Result<Imports, String> {
    let mut found = Imports { undeclared: undeclared(sources, roots)?, ..Imports::default() };
    for root in roots {
        Tree::read(sources, root, false)?.add_imports(&mut found.edges);
    }
    Ok(found)
}

/// The files of `sources` that none of the programs, libraries and tests that begin at `roots` contains.
///
/// # Errors
/// A declared module, or a root, has no file in `sources`.
pub(crate) fn undeclared(sources: &Sources, roots: &[String]) -> Result<BTreeSet<String>, String> {
    let mut left: BTreeSet<String> = sources.keys().cloned().collect();
    for root in roots {
        for module in Tree::read(sources, root, true)?.modules {
            left.remove(&module.file);
        }
    }
    Ok(left)
}

/// A path within a module: of `use` or inline.
struct Path<'a> {
    segments: Vec<&'a str>,
    line: usize,
    /// What it is called within the module: `None` for inline paths, globs and `_`.
    name: Option<&'a str>,
    glob: bool,
}

#[derive(Default)]
struct Module<'a> {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<&'a str, usize>,
    paths: Vec<Path<'a>>,
}

/// The modules of one library or program. The first one is the root.
struct Tree<'a> {
    modules: Vec<Module<'a>>,
}

/// Globs may lead to globs; a chain this long has come back to itself.
const MAX_GLOBS: usize = 8;

impl<'a> Tree<'a> {
    fn read(sources: &'a Sources, root: &str, tests: bool) -> Result<Self, String> {
        let mut tree = Self { modules: vec![Module { file: root.to_owned(), ..Module::default() }] };
        let directory = root.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
        tree.read_file(sources, 0, directory, tests)?;
        Ok(tree)
    }

    /// Reads the file of a module; `directory` is where the files of its children are.
    fn read_file(&mut self, sources: &'a Sources, module: usize, directory: String, tests: bool) -> Result<(), String> {
        let file = &self.modules[module].file;
        let source = sources.get(file).ok_or_else(|| format!("{file} does not exist"))?;
        let mut read = tokens(source);
        if !tests {
            read = without_tests(&read).0;
        }
        self.read_body(sources, &read, module, &directory, tests)
    }

    fn read_body(&mut self, sources: &'a Sources, body: &[Token<'a>], module: usize, directory: &str, tests: bool) -> Result<(), String> {
        let text = |at: usize| body.get(at).map_or("", |token| token.text);
        let mut at = 0;
        let mut path_attribute = None;
        while at < body.len() {
            let token = body[at];
            match token.text {
                "[" if text(at + 1) == "path" && text(at + 2) == "=" => path_attribute = Some(text(at + 3).trim_matches('"')),
                "mod" if is_word(text(at + 1)) && text(at + 2) == "{" => {
                    let end = behind(body, at + 2);
                    let name = text(at + 1);
                    let child = self.add(module, name, self.modules[module].file.clone());
                    self.read_body(sources, &body[at + 3..end - 1], child, &join(directory, name), tests)?;
                    at = end;
                    continue;
                }
                "mod" if is_word(text(at + 1)) && text(at + 2) == ";" => {
                    self.read_child(sources, module, text(at + 1), directory, path_attribute.take(), tests)?;
                    at += 3;
                    continue;
                }
                // `use<'a>` is a bound, no import.
                "use" if text(at + 1) != "<" => {
                    let end = at + body[at..].iter().position(|token| token.text == ";").unwrap_or(body.len() - at);
                    if text(at + 1) != "::" {
                        read_use(&body[at + 1..end], &mut Vec::new(), &mut self.modules[module].paths);
                    }
                    at = end;
                    continue;
                }
                ";" | "{" | "}" => path_attribute = None,
                _ if is_word(token.text) && begins_path(body, at) => {
                    let mut segments = vec![token.text];
                    while text(at + 1) == "::" && is_word(text(at + 2)) {
                        segments.push(text(at + 2));
                        at += 2;
                    }
                    if segments.len() > 1 {
                        self.modules[module].paths.push(Path { segments, line: token.line, name: None, glob: false });
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Ok(())
    }

    fn add(&mut self, parent: usize, name: &'a str, file: String) -> usize {
        self.modules.push(Module { file, parent: Some(parent), ..Module::default() });
        let child = self.modules.len() - 1;
        self.modules[parent].children.insert(name, child);
        child
    }

    fn read_child(&mut self, sources: &'a Sources, module: usize, name: &'a str, directory: &str, path: Option<&str>, tests: bool) -> Result<(), String> {
        let parent = &self.modules[module].file;
        let (file, directory) = match path {
            Some(path) => {
                let of = parent.rsplit_once('/').map_or("", |(of, _)| of);
                let file = join(of, path);
                let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
                (file, directory)
            }
            None => {
                let inner = join(directory, name);
                let file = [format!("{inner}.rs"), format!("{inner}/mod.rs")].into_iter().find(|file| sources.contains_key(file));
                (file.ok_or_else(|| format!("{parent} declares `mod {name};`, but neither {inner}.rs nor {inner}/mod.rs exists"))?, inner)
            }
        };
        let child = self.add(module, name, file);
        self.read_file(sources, child, directory, tests)
    }

    /// The module at the longest prefix of `segments`, seen from `module`, and the number of segments that lead there.
    /// `None` if the first segment is no module of this crate.
    fn resolve(&self, module: usize, segments: &[&str], globs: usize) -> Option<(usize, usize)> {
        let (mut at, mut used) = match segments.first().copied()? {
            "crate" => (0, 1),
            "self" => (module, 1),
            "super" => (module, 0),
            name => (self.lookup(module, name, globs)?, 1),
        };
        while segments.get(used) == Some(&"super") {
            at = self.modules[at].parent?;
            used += 1;
        }
        while let Some(child) = segments.get(used).and_then(|name| self.modules[at].children.get(name)) {
            at = *child;
            used += 1;
        }
        Some((at, used))
    }

    /// The module that `name` alone means within `module`: a child, one that `use` brings in, or one that a glob does.
    fn lookup(&self, module: usize, name: &str, globs: usize) -> Option<usize> {
        let of = &self.modules[module];
        if let Some(child) = of.children.get(name) {
            return Some(*child);
        }
        if globs == MAX_GLOBS {
            return None;
        }
        // `use name::..` does not bring in itself: what it calls `name` is found only by other paths.
        let named = of.paths.iter().filter(|path| path.name == Some(name) && path.segments.first() != Some(&name));
        for path in named {
            if let Some((at, used)) = self.resolve(module, &path.segments, globs + 1)
                && used == path.segments.len()
            {
                return Some(at);
            }
        }
        of.paths.iter().filter(|path| path.glob && path.segments.first() != Some(&name)).find_map(|path| {
            let (at, used) = self.resolve(module, &path.segments, globs + 1)?;
            if used == path.segments.len() && at != module { self.lookup(at, name, globs + 1) } else { None }
        })
    }

    fn add_imports(&self, edges: &mut BTreeMap<(String, String), Site>) {
        for (number, module) in self.modules.iter().enumerate() {
            for path in &module.paths {
                let Some((to, _)) = self.resolve(number, &path.segments, 0) else { continue };
                let to = &self.modules[to].file;
                if *to == module.file {
                    continue;
                }
                let site = Site { line: path.line, path: path.segments.join("::") + if path.glob { "::*" } else { "" } };
                let first = edges.entry((module.file.clone(), to.clone())).or_insert_with(|| site.clone());
                if site.line < first.line {
                    *first = site;
                }
            }
        }
    }
}

/// Adds the paths of a tree behind `use`, without the semicolon: `a::{self, b as c, d::*}`.
fn read_use<'a>(tree: &[Token<'a>], prefix: &mut Vec<&'a str>, paths: &mut Vec<Path<'a>>) {
    let before = prefix.len();
    let mut name = None;
    let mut at = 0;
    while at < tree.len() {
        let token = tree[at];
        match token.text {
            "{" => {
                let end = behind(tree, at).max(at + 2) - 1;
                let mut from = at + 1;
                while from < end {
                    let to = (from..end).scan(0, |depth, i| {
                        *depth += i32::from(tree[i].text == "{") - i32::from(tree[i].text == "}");
                        Some((i, *depth))
                    });
                    let to = to.into_iter().find(|(i, depth)| *depth == 0 && tree[*i].text == ",").map_or(end, |(i, _)| i);
                    read_use(&tree[from..to], prefix, paths);
                    from = to + 1;
                }
                prefix.truncate(before);
                return;
            }
            "*" => {
                paths.push(Path { segments: prefix.clone(), line: token.line, name: None, glob: true });
                prefix.truncate(before);
                return;
            }
            "as" => {
                name = tree.get(at + 1).map(|token| token.text);
                break;
            }
            // `$crate` is `crate`, other variables of macros are unknown.
            "$" if tree.get(at + 1).is_none_or(|token| token.text != "crate") => {
                prefix.truncate(before);
                return;
            }
            "::" | "$" => {}
            // In braces, `self` is the prefix itself.
            "self" if !prefix.is_empty() => {}
            text => prefix.push(text),
        }
        at += 1;
    }
    if let Some(last) = tree.first()
        && !prefix.is_empty()
    {
        let name = name.or_else(|| prefix.last().copied()).filter(|name| *name != "_");
        paths.push(Path { segments: prefix.clone(), line: last.line, name, glob: false });
    }
    prefix.truncate(before);
}

/// Whether a path begins at the word at `at`, and not in the middle of another one, of a method's name or of a
/// visibility.
fn begins_path(body: &[Token<'_>], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map_or("", |at| body[at].text);
    match before(1) {
        "::" | "." => false,
        "$" => body[at].text == "crate",
        "in" => !(before(2) == "(" && before(3) == "pub"),
        _ => true,
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && !text.contains(['"', '\''])
}

/// The path of `name` in `directory`, with `..` resolved.
fn join(directory: &str, name: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in name.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::{Sources, imports};

    /// `from -> to` of every import of the files, whose root is `src/lib.rs`; names without `src/` and `.rs`.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        edges_from(files, &["lib"])
    }

    fn edges_from(files: &[(&str, &str)], roots: &[&str]) -> Vec<String> {
        let sources: Sources = files.iter().map(|(name, text)| (format!("src/{name}.rs"), (*text).to_owned())).collect();
        let roots: Vec<String> = roots.iter().map(|name| format!("src/{name}.rs")).collect();
        let found = imports(&sources, &roots).unwrap();
        assert!(found.undeclared.is_empty(), "{:?}", found.undeclared);
        let short = |name: &str| name.trim_start_matches("src/").trim_end_matches(".rs").to_owned();
        found.edges.keys().map(|(from, to)| format!("{} -> {}", short(from), short(to))).collect()
    }

    const NONE: &[&str] = &[];

    #[test]
    fn declarations_are_no_imports() {
        assert_eq!(edges(&[("lib", "pub mod a; mod b;"), ("a", ""), ("b/mod", "mod c;"), ("b/c", "")]), NONE);
    }

    #[test]
    fn paths_from_crate_self_and_super() {
        let found = edges(&[
            ("lib", "mod a; mod b;"),
            ("a", "mod c; use crate::b::X; use self::c::Y;"),
            ("a/c", "use super::super::b::Z; use super::item;"),
            ("b", "mod d;"),
            ("b/d", "use self::super::super::a::W;"),
        ]);
        assert_eq!(found, ["a -> a/c", "a -> b", "a/c -> a", "a/c -> b", "b/d -> a"]);
    }

    #[test]
    fn nested_braces_globs_and_names() {
        let found = edges(&[
            ("lib", "mod a; mod b; mod c; mod d; mod e;"),
            ("a", "use crate::{b::{X, Y as Z}, c::{self as see, f}, d::*, e as _};"),
            ("b", "use {crate::c, std::fmt::{self, Debug}};"),
            ("c", ""),
            ("d", "use crate::{\n    e::{self},\n};"),
            ("e", ""),
        ]);
        assert_eq!(found, ["a -> b", "a -> c", "a -> d", "a -> e", "b -> c", "d -> e"]);
    }

    #[test]
    fn inline_paths() {
        let found = edges(&[
            ("lib", "mod a; mod b; mod c; mod d; fn f() { a::g(); <c::T as b::U>::h() }"),
            ("a", "impl From<crate::b::X> for Y { fn f(self) { for i in crate::c::all() { i.d::<u8>() } } }"),
            ("b", "macro_rules! m { ($x:ident) => { $crate::c::n($x::d::o) } }"),
            ("c", "fn f() { let x = [0..crate::d::N, 1]; }"),
            ("d", ""),
        ]);
        assert_eq!(found, ["a -> b", "a -> c", "b -> c", "c -> d", "lib -> a", "lib -> b", "lib -> c"]);
    }

    #[test]
    fn a_file_that_imports_itself_has_no_edge() {
        let found = edges(&[
            ("lib", "mod a;"),
            ("a", "use crate::a::X; use self::Kind::*; mod inner { use super::X; pub fn f() {} } fn f() { inner::f(); crate::a::inner::f() }"),
        ]);
        assert_eq!(found, NONE);
    }

    #[test]
    fn an_item_that_lib_re_exports_counts_for_lib() {
        let found = edges(&[("lib", "mod a; mod b; pub use a::Item;"), ("a", "pub struct Item;"), ("b", "use crate::Item; fn f() -> crate::Item {}")]);
        assert_eq!(found, ["b -> lib", "lib -> a"]);
    }

    /// The longest prefix that is declared counts: the file that re-exports the module.
    #[test]
    fn path_through_a_re_exported_module_counts_for_its_prefix() {
        let found = edges(&[("lib", "mod a; mod b; pub use a::inner as door;"), ("a", "pub mod inner;"), ("a/inner", ""), ("b", "use crate::door::Item;")]);
        assert_eq!(found, ["b -> lib", "lib -> a/inner"]);
    }

    #[test]
    fn names_of_imported_modules_are_followed() {
        let found = edges(&[
            ("lib", "mod a; mod b; mod c;"),
            ("a", "use crate::b; use crate::c as see; fn f() { b::deep::g(); see::deep::g(); other::h() }"),
            ("b", "pub mod deep;"),
            ("b/deep", "use std::fmt; fn f() -> fmt::Result {}"),
            ("c", "pub mod deep;"),
            ("c/deep", ""),
        ]);
        assert_eq!(found, ["a -> b", "a -> b/deep", "a -> c", "a -> c/deep"]);
    }

    #[test]
    fn names_that_a_glob_brings_in_are_followed() {
        let found = edges(&[
            ("lib", "mod a; mod b;"),
            ("a", "mod c; mod d; use crate::b;"),
            ("a/c", "use super::*; fn f() { d::g(); b::g() }"),
            ("a/d", "use super::c::*;"),
            ("b", ""),
        ]);
        assert_eq!(found, ["a -> b", "a/c -> a", "a/c -> a/d", "a/c -> b", "a/d -> a/c"]);
    }

    #[test]
    fn cyclic_names_are_followed_no_further() {
        assert_eq!(
            edges(&[("lib", "mod a; mod b;"), ("a", "use serde::serde; use x::y; use y::x; fn f() { x::g() }"), ("b", "use super::*; use self::*;")]),
            ["b -> lib"]
        );
    }

    #[test]
    fn visibilities_bounds_and_other_crates_are_no_imports() {
        let found = edges(&[
            ("lib", "mod a; mod b;"),
            ("a", "pub(in crate::b) fn f() -> impl Send + use<'_> { ::b::g() } pub(crate) struct S; use ::b::X; use std::b; fn h() { std::b::i() }"),
            ("b", ""),
        ]);
        assert_eq!(found, NONE);
    }

    #[test]
    fn comments_strings_and_tests_are_no_imports() {
        let found = edges(&[
            ("lib", "mod a; mod b;"),
            ("a", "/// [`crate::b::X`]\nconst A: &str = \"crate::b::X\"; // crate::b::X\n#[cfg(test)] mod tests { use crate::b::X; }"),
            ("b", "#[cfg(test)] mod tests; #[cfg(test)] use crate::a;"),
            ("b/tests", "use crate::a::A;"),
        ]);
        assert_eq!(found, NONE);
    }

    #[test]
    fn files_of_inline_modules_and_of_path_attributes() {
        let found = edges(&[
            ("lib", "mod a { mod b; pub mod c { pub fn f() {} } } #[path = \"other/d.rs\"] mod e; #[doc = \"x\"] mod g;"),
            ("a/b", "use super::c::f; use crate::e::X; use crate::g::h;"),
            ("other/d", "mod i;"),
            ("other/i", "use super::X;"),
            ("g", ""),
        ]);
        assert_eq!(found, ["a/b -> g", "a/b -> lib", "a/b -> other/d", "other/i -> other/d"]);
    }

    #[test]
    fn a_library_and_a_program_are_read_each_from_its_root() {
        let found = edges_from(
            &[("lib", "mod a; pub struct X;"), ("a", "use crate::X;"), ("main", "mod b; fn main() { b::run() }"), ("b", "use crate::main;")],
            &["lib", "main"],
        );
        assert_eq!(found, ["a -> lib", "b -> main", "main -> b"]);
    }

    #[test]
    fn the_first_line_of_an_import_is_kept() {
        let sources: Sources = [("src/lib.rs", "mod a;\nmod b;"), ("src/a.rs", "//! Doc\nuse crate::{\n    b::X,\n    b::Y,\n};"), ("src/b.rs", "")]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into();
        let found = imports(&sources, &["src/lib.rs".to_owned()]).unwrap();
        let site = &found.edges[&("src/a.rs".to_owned(), "src/b.rs".to_owned())];
        assert_eq!((site.line, site.path.as_str()), (3, "crate::b::X"));
    }

    #[test]
    fn undeclared_and_missing_files_are_found() {
        let sources: Sources =
            [("src/lib.rs", "#[cfg(test)] mod a;"), ("src/a.rs", ""), ("src/b.rs", "")].map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        assert_eq!(imports(&sources, &["src/lib.rs".to_owned()]).unwrap().undeclared.into_iter().collect::<Vec<_>>(), ["src/b.rs"]);
        let sources: Sources = [("src/lib.rs".to_owned(), "mod gone;".to_owned())].into();
        assert!(imports(&sources, &["src/lib.rs".to_owned()]).unwrap_err().contains("src/gone/mod.rs"));
    }
}
