//! Files of a crate import each other in circles of at most three.

use std::collections::BTreeMap;

use crate::imports::{Imports, Site, Sources, imports};
use crate::workspace::{Member, members, read_sources};

/// Files that may import each other in a circle.
const MOST: usize = 3;

/// Crates with larger circles, and the number of files in them: none. A crate that comes from elsewhere may be listed
/// while its circles are removed; a figure may only shrink.
const ALLOWED: &[(&str, usize)] = &[];

type Edges = BTreeMap<(String, String), Site>;

/// The sets of files that all reach each other by imports, the largest first. Files in no circle are left out.
fn circles(edges: &Edges) -> Vec<Vec<&str>> {
    let mut search = Search::default();
    for (from, to) in edges.keys() {
        search.to.entry(from).or_default().push(to);
    }
    let files: Vec<&str> = search.to.keys().copied().collect();
    for file in files {
        if !search.seen.contains_key(file) {
            search.visit(file);
        }
    }
    let mut found = search.found;
    found.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    found
}

/// Tarjan's algorithm for strongly connected components.
#[derive(Default)]
struct Search<'a> {
    to: BTreeMap<&'a str, Vec<&'a str>>,
    /// The number of each visited file in the order of visits, and the lowest number that it reaches on the stack.
    seen: BTreeMap<&'a str, (usize, usize)>,
    stack: Vec<&'a str>,
    found: Vec<Vec<&'a str>>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, file: &'a str) -> usize {
        let number = self.seen.len();
        self.seen.insert(file, (number, number));
        self.stack.push(file);
        let mut lowest = number;
        for to in self.to.get(file).cloned().unwrap_or_default() {
            match self.seen.get(to) {
                None => lowest = lowest.min(self.visit(to)),
                Some((number, _)) if self.stack.contains(&to) => lowest = lowest.min(*number),
                Some(_) => {}
            }
        }
        self.seen.insert(file, (number, lowest));
        if lowest == number {
            let at = self.stack.iter().position(|on| *on == file).expect("a file is on the stack until its component is found");
            let mut component = self.stack.split_off(at);
            component.sort_unstable();
            if component.len() > 1 {
                self.found.push(component);
            }
        }
        lowest
    }
}

/// What is wrong with a crate that may have `allowed` files in circles of more than [`MOST`].
fn problem(name: &str, edges: &Edges, allowed: usize) -> Option<String> {
    let large: Vec<Vec<&str>> = circles(edges).into_iter().filter(|circle| circle.len() > MOST).collect();
    let files = large.iter().map(Vec::len).sum::<usize>();
    if files == allowed {
        return None;
    }
    if files < allowed {
        let todo = if files == 0 { format!("remove {name} from ALLOWED") } else { format!("set the figure of {name} in ALLOWED to {files}") };
        return Some(format!("{name}: {files} files are in circles of more than {MOST}, {allowed} were allowed: {todo} in crates/house/tests/circles.rs."));
    }
    let mut text = format!("{name}: {files} files are in circles of more than {MOST}, allowed are {allowed}.");
    for circle in large {
        text += &format!("\n  {} files import each other in a circle:", circle.len());
        for ((from, to), site) in edges.iter().filter(|((from, to), _)| circle.contains(&from.as_str()) && circle.contains(&to.as_str())) {
            text += &format!("\n    {from}:{} imports {to} ({})", site.line, site.path);
        }
    }
    Some(text + "\n  Move what two of these files share into a file of its own that both import, until the circle is gone.")
}

/// The sources of a crate below `src`.
fn sources(member: &Member) -> Sources {
    let mut found = Sources::new();
    read_sources(&member.directory, &member.directory.join("src"), &mut found);
    found
}

#[test]
fn no_circle_of_more_than_three_files() {
    let members = members();
    let mut problems = Vec::new();
    for member in &members {
        let name = &member.name;
        let Imports { edges, undeclared } = imports(&sources(member), &member.roots).unwrap_or_else(|e| panic!("{name}: {e}"));
        let allowed = ALLOWED.iter().find(|(allowed, _)| allowed == name).map_or(0, |(_, files)| *files);
        let sizes: Vec<usize> = circles(&edges).iter().map(Vec::len).collect();
        println!("{name}: {} imports between files, circles of {sizes:?} files", edges.len());
        problems.extend(problem(name, &edges, allowed));
        problems.extend(undeclared.iter().map(|file| format!("{name}: no `mod` declares {file}: declare or remove it.")));
    }
    for (name, _) in ALLOWED.iter().filter(|(name, _)| members.iter().all(|member| member.name != *name)) {
        problems.push(format!("{name}: ALLOWED in crates/house/tests/circles.rs names a crate that does not exist: remove it."));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn edges(pairs: &[(&str, &str)]) -> Edges {
    let site = |to: &str| Site { line: 7, path: format!("crate::{to}") };
    pairs.iter().map(|(from, to)| (((*from).to_owned(), (*to).to_owned()), site(to))).collect()
}

#[test]
fn circles_are_strongly_connected_components() {
    assert_eq!(circles(&edges(&[])), Vec::<Vec<&str>>::new());
    assert_eq!(circles(&edges(&[("a", "b"), ("b", "c"), ("a", "c")])), Vec::<Vec<&str>>::new());
    let two = edges(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c"), ("e", "f"), ("g", "a")]);
    assert_eq!(circles(&two), [vec!["c", "d", "e"], vec!["a", "b"]]);
    let joined = edges(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "b"), ("x", "a")]);
    assert_eq!(circles(&joined), [["a", "b", "c", "d"]]);
}

#[test]
fn problems_name_files_and_remedy() {
    let three = edges(&[("a", "b"), ("b", "c"), ("c", "a")]);
    assert_eq!(problem("x", &three, 0), None);
    let four = edges(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("d", "e")]);
    assert_eq!(problem("x", &four, 4), None);
    let text = problem("x", &four, 0).unwrap();
    assert!(text.contains("a:7 imports b (crate::b)") && text.contains("d:7 imports a") && !text.contains("imports e"), "{text}");
    assert!(problem("x", &four, 5).unwrap().contains("set the figure of x in ALLOWED to 4"));
    assert!(problem("x", &three, 5).unwrap().contains("remove x from ALLOWED"));
}
