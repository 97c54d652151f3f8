//! `explain`, from the query to the physical plan of the host: what goes down, what stays, and with
//! which operators it runs.

use skytether::{Pushdown, QueryOptions};

use crate::util::{batches, ingest, open};

/// `text` without the drives' names: which drive holds a small table depends on the drives' random ids.
fn without_names(text: &str) -> String {
    let mut parts = text.split("drives=[");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |done, part| {
        let (drives, rest) = part.split_once(']').unwrap();
        done + &format!("drives=[{} of them]", drives.split(',').count()) + rest
    })
}

macro_rules! explained {
    ($($name:ident: $sql:expr, $cut:ident;)*) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn plans_in_full() {
            let dir = tempfile::tempdir().unwrap();
            let fleet = open(dir.path(), 2).await.unwrap();
            ingest(&fleet, "lab.points", &batches(2, 300), false).await.unwrap();
            crate::expression::write(&fleet, "blood.cells").await;
            $({
                let options = QueryOptions { cut: Pushdown::$cut, ..QueryOptions::default() };
                let text = fleet.explain($sql, false, &options).await.unwrap();
                insta::assert_snapshot!(stringify!($name), format!("{}\ncut={}\n\n{}", $sql, Pushdown::$cut, without_names(&text)));
            })*
        }
    };
}

explained! {
    grouped_aggregate: "SELECT grp, sum(n), avg(x) FROM lab.points.data WHERE id > 10 GROUP BY grp", Full;
    grouped_aggregate_cut_at_filter: "SELECT grp, sum(n), avg(x) FROM lab.points.data WHERE id > 10 GROUP BY grp", Filter;
    grouped_aggregate_raw: "SELECT grp, sum(n), avg(x) FROM lab.points.data WHERE id > 10 GROUP BY grp", Raw;
    global_aggregate: "SELECT count(*), max(x) FROM lab.points.data", Full;
    filter_and_projection: "SELECT id + 1 AS next, upper(name) FROM lab.points.data WHERE x > 3 AND name IS NOT NULL", Full;
    top: "SELECT id, x FROM lab.points.data ORDER BY x DESC LIMIT 3", Full;
    limit: "SELECT id FROM lab.points.data LIMIT 5 OFFSET 2", Full;
    distinct: "SELECT count(DISTINCT name) FROM lab.points.data", Full;
    join: "SELECT c.cell_type, count(*) FROM blood.cells.x x JOIN blood.cells.obs c ON x.cell = c.cell WHERE x.value > 0 GROUP BY c.cell_type", Full;
    moments_over_the_dense_view: "SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') FROM blood.cells.x GROUP BY gene", Full;
}

/// A printed tree without what differs from run to run: times, sizes, and which drive had which share.
fn scrubbed(tree: &str) -> String {
    tree.lines().map(|line| scrubbed_line(line) + "\n").collect()
}

fn scrubbed_line(line: &str) -> String {
    let body = line.trim_start_matches([' ', '│', '├', '└', '─']);
    let mut words: Vec<&str> = Vec::new();
    for word in body.split_whitespace() {
        let thing = match word.trim_end_matches(',') {
            "µs" | "ms" | "s" => "<time>",
            "B" | "KiB" | "MiB" => "<size>",
            _ => "",
        };
        if !thing.is_empty() && words.last().is_some_and(|w| w.parse::<f64>().is_ok()) {
            words.pop();
            words.push(if word.ends_with(',') { if thing == "<time>" { "<time>," } else { "<size>," } } else { thing });
        } else {
            words.push(word);
        }
    }
    // `2 to 9 rows per drive`, `<time> to <time> per drive`: the shares of drives.
    while let Some(at) = words.windows(2).position(|w| w[0] == "per" && w[1].starts_with("drive")) {
        let first = at - if words[at - 1] == "rows" { 4 } else { 3 };
        words.drain(first..at + 2);
    }
    let mut text = words.join(" ").trim_end_matches(',').to_owned();
    if text.starts_with("drive-") {
        text = text.replace(", <size> of memory", "");
        text = text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
        while text.contains("##") {
            text = text.replace("##", "#");
        }
    }
    line[..line.len() - body.len()].to_owned() + &text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipt_tree_after_execution() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.points", &batches(8, 3000), false).await.unwrap();
    ingest(&fleet, "lab.few", &batches(1, 40), false).await.unwrap();
    let queries = [
        "SELECT grp, sum(n), avg(x) FROM lab.points WHERE id > 10 GROUP BY grp",
        "SELECT id, x FROM lab.points ORDER BY x DESC LIMIT 3",
        "SELECT p.grp, count(*) FROM lab.points p JOIN lab.few f ON p.id = f.id WHERE f.n > 0 GROUP BY p.grp ORDER BY p.grp",
        "SELECT p.id, f.x FROM lab.points p JOIN lab.few f ON p.id = f.id",
        "SELECT f.n, count(p.id) FROM lab.few f LEFT JOIN lab.points p ON p.id = f.id GROUP BY f.n ORDER BY f.n",
        "SELECT count(*), min(id), max(id) FROM lab.points",
        "SELECT id, x FROM lab.few ORDER BY x",
        "SELECT grp, sum(n) FROM (SELECT grp, n FROM lab.points UNION ALL SELECT grp, n FROM lab.few) GROUP BY grp",
        "SELECT grp, n, count(DISTINCT id) FROM lab.points GROUP BY GROUPING SETS ((grp), (n)) HAVING count(*) > 500",
        "SELECT id, row_number() OVER (PARTITION BY grp ORDER BY x) AS place FROM lab.points WHERE n > 50",
        "SELECT id FROM lab.points WHERE x > (SELECT avg(x) FROM lab.points)",
    ];
    let mut text = String::new();
    for sql in queries {
        let explanation = fleet.explanation(sql, true, &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await.unwrap();
        text.push_str(&format!("{sql}\n{}\n", scrubbed(&explanation.receipt.unwrap().tree())));
    }
    insta::assert_snapshot!(text);
}

/// For each kind of operator that stays on the host: the words that say why, at the operator itself,
/// in the list, and as data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_on_the_host_has_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(4, 5000), false).await.unwrap();
    ingest(&fleet, "lab.few", &batches(1, 20), false).await.unwrap();
    crate::expression::write(&fleet, "blood.cells").await;
    let merges = "it merges what the drives have aggregated";
    let not_small = "neither side is small enough for every drive: the left one has up to 20000 rows, more than a 16th of the other's 20000, the right one";
    let matches = "whether a row has a match, only the rows of all drives together tell";
    let after_merge = "it follows the merge of the drives' states";
    // Query, cut, the operator that runs it on the host (one of these), and why.
    let table: &[(&str, Pushdown, &str, &str)] = &[
        ("SELECT a.id FROM lab.t a JOIN lab.t b ON a.id = b.n", Pushdown::Full, "HashJoinExec", not_small),
        ("SELECT a.id FROM lab.t a JOIN lab.t b ON a.id = b.n", Pushdown::Filter, "HashJoinExec", "cut=filter sends no joins down"),
        ("SELECT a.id FROM lab.t a JOIN lab.t b ON a.id = b.n", Pushdown::Raw, "HashJoinExec", "cut=raw sends only scans down"),
        ("SELECT a.id FROM lab.t a JOIN lab.t b ON a.id < b.n", Pushdown::Full, "NestedLoopJoinExec", "a join without equal keys compares every pair"),
        ("SELECT a.id FROM lab.t a JOIN lab.few b ON a.id = b.n", Pushdown::Full, "HashJoinExec", "nothing above it makes few rows of many"),
        (
            "SELECT count(b.n) FROM lab.few b LEFT JOIN lab.t a ON a.id = b.n",
            Pushdown::Full,
            "HashJoinExec",
            "its right side is not small enough for every drive: it has up to 20000 rows, more than a 16th of the other's 20",
        ),
        ("SELECT count(b.n) FROM lab.few b FULL JOIN lab.t a ON a.id = b.n", Pushdown::Full, "HashJoinExec", matches),
        (
            "SELECT id FROM lab.few WHERE id IN (SELECT n FROM lab.t)",
            Pushdown::Full,
            "HashJoinExec",
            "its right side is not small enough for every drive: it has up to 20000 rows, more than a 16th of the other's 20",
        ),
        (
            "SELECT id FROM lab.t WHERE id IN (SELECT n FROM lab.t)",
            Pushdown::Full,
            "HashJoinExec",
            "its right side is not small enough for every drive: it has up to 20000 rows, more than a 16th of the other's 20000",
        ),
        ("SELECT id FROM lab.t WHERE x NOT IN (SELECT x FROM lab.few)", Pushdown::Full, "HashJoinExec", "NOT IN asks whether there is a NULL"),
        (
            "SELECT id FROM lab.t a WHERE x > (SELECT avg(x) FROM lab.t b WHERE b.grp = a.grp)",
            Pushdown::Full,
            "HashJoinExec",
            "its right side is not small enough for every drive",
        ),
        (
            "SELECT count(*) FROM blood.cells.obs a JOIN blood.cells.obs b ON a.cell = b.cell",
            Pushdown::Full,
            "HashJoinExec",
            "each of its sides lies whole on one drive",
        ),
        (
            "SELECT count(*) FROM (SELECT grp, sum(n) s FROM lab.t GROUP BY grp) a JOIN (SELECT grp, sum(id) s FROM lab.t GROUP BY grp) b ON a.s = b.s",
            Pushdown::Full,
            "HashJoinExec",
            "each of its sides is made on the host",
        ),
        (
            "SELECT count(*) FROM (SELECT grp, sum(n) s FROM lab.t GROUP BY grp) a JOIN (SELECT grp, sum(id) s FROM lab.t GROUP BY grp) b ON a.s = b.s",
            Pushdown::Full,
            "AggregateExec",
            "it follows the join on the host",
        ),
        ("SELECT sum(n) OVER (PARTITION BY grp) FROM lab.t", Pushdown::Full, "WindowAggExec", "rows of one window may lie on different drives"),
        (
            "SELECT count(*) FILTER (WHERE cell > 'c') OVER (PARTITION BY cell_type) FROM blood.cells.obs",
            Pushdown::Full,
            "WindowAggExec|BoundedWindowAggExec",
            "FILTER and DISTINCT over a window are not carried by sub-plans",
        ),
        ("SELECT id FROM lab.t ORDER BY x", Pushdown::Full, "SortPreservingMergeExec", "it merges the drives' rows, which come sorted"),
        ("SELECT id FROM lab.t ORDER BY log(x)", Pushdown::Full, "SortExec", "log is not among the functions that drives know"),
        ("SELECT id FROM lab.t ORDER BY x LIMIT 100001", Pushdown::Full, "SortExec|SortExec(TopK)", "drives sort for at most 100000 first rows"),
        ("SELECT id FROM lab.t ORDER BY x LIMIT 3", Pushdown::Full, "SortPreservingMergeExec|SortExec(TopK)", "of the first rows of each drive"),
        ("SELECT id FROM lab.t ORDER BY x LIMIT 3", Pushdown::Filter, "SortExec(TopK)", "cut=filter sends no sorts down"),
        (
            "SELECT id FROM (SELECT id FROM lab.t LIMIT 9) ORDER BY id",
            Pushdown::Full,
            "SortExec|SortExec(TopK)",
            "it follows the limit over the rows of all drives",
        ),
        ("SELECT DISTINCT grp FROM lab.t", Pushdown::Full, "AggregateExec", merges),
        ("SELECT DISTINCT grp FROM lab.t", Pushdown::Filter, "AggregateExec", "cut=filter sends no aggregates down"),
        ("SELECT count(DISTINCT grp), sum(n) FROM lab.t", Pushdown::Full, "AggregateExec", merges),
        ("SELECT count(DISTINCT grp) FROM lab.t", Pushdown::Full, "AggregateExec", after_merge),
        ("SELECT array_agg(n ORDER BY id) FROM lab.t", Pushdown::Full, "AggregateExec", "has an ORDER BY in its call"),
        ("SELECT grp, sum(n) FROM lab.t GROUP BY ROLLUP (grp)", Pushdown::Full, "AggregateExec", merges),
        ("SELECT grp, sum(n) FROM lab.t GROUP BY grp", Pushdown::Full, "AggregateExec", merges),
        ("SELECT grp, sum(n) FROM lab.t GROUP BY grp", Pushdown::Raw, "AggregateExec", "cut=raw sends only scans down"),
        ("SELECT grp, sum(n) FROM lab.t GROUP BY grp ORDER BY grp", Pushdown::Full, "SortExec", after_merge),
        ("SELECT sum(s) FROM (SELECT grp, sum(n) AS s FROM lab.t GROUP BY grp)", Pushdown::Full, "AggregateExec", after_merge),
        ("SELECT id FROM lab.t UNION ALL SELECT n FROM lab.t", Pushdown::Full, "UnionExec|InterleaveExec", "its inputs go down one by one"),
        (
            "SELECT sum(k) FROM (SELECT id AS k FROM lab.t UNION ALL SELECT n FROM lab.t)",
            Pushdown::Full,
            "UnionExec|InterleaveExec",
            "its branches go down one by one",
        ),
        ("SELECT sum(k) FROM (SELECT id AS k FROM lab.t UNION ALL SELECT n FROM lab.t)", Pushdown::Full, "AggregateExec", merges),
        (
            "SELECT id AS k FROM lab.t UNION ALL SELECT n FROM lab.t ORDER BY k LIMIT 3",
            Pushdown::Full,
            "SortPreservingMergeExec|SortExec(TopK)",
            "of the first rows of each drive",
        ),
        ("SELECT id FROM lab.t WHERE x > (SELECT avg(x) FROM lab.t)", Pushdown::Full, "FilterExec", "subqueries stay on the host"),
        ("SELECT id FROM lab.t WHERE random() < 2 AND n > 0", Pushdown::Full, "FilterExec", "random is not deterministic"),
        ("SELECT id FROM lab.t WHERE n > 0", Pushdown::Raw, "FilterExec", "cut=raw sends only scans down"),
        ("SELECT log(x) AS l FROM lab.t", Pushdown::Full, "ProjectionExec", "log is not among the functions that drives know"),
        ("SELECT arrow_cast(id, 'Timestamp(s, \"Europe/Berlin\")') AS l FROM lab.t", Pushdown::Full, "ProjectionExec", "casts to"),
        ("SELECT id FROM lab.t LIMIT 3", Pushdown::Full, "CoalescePartitionsExec|GlobalLimitExec", "it takes the first"),
        ("SELECT unnest([id, n]) AS u FROM lab.t", Pushdown::Full, "UnnestExec", "sub-plans do not carry the operator Unnest"),
        (
            "WITH RECURSIVE r AS (SELECT n AS k FROM lab.t UNION ALL SELECT k + 1 FROM r WHERE k < 5) SELECT count(*) FROM r",
            Pushdown::Full,
            "RecursiveQueryExec",
            "each round of a recursive query needs the rows of the round before",
        ),
    ];
    let mut wrong = Vec::new();
    for (sql, cut, operator, why) in table {
        let explanation = fleet.explanation(*sql, true, &QueryOptions { cut: *cut, ..QueryOptions::default() }).await.unwrap();
        let receipt = explanation.receipt.as_ref().unwrap();
        let told: Vec<_> = receipt.host.iter().filter(|o| operator.split('|').any(|name| name == o.note.name)).map(|o| o.reason.as_deref()).collect();
        let at_the_operator = told.iter().flatten().any(|reason| reason.contains(why));
        let in_the_tree = receipt.tree().lines().any(|line| line.contains(why));
        let sorts_take_memory = *operator != "SortExec" || receipt.host_peak_memory > 0;
        let named = explanation.notes.iter().all(|note| explanation.super_plan.contains(&note.node));
        if !(at_the_operator && in_the_tree && sorts_take_memory && named) {
            wrong.push(format!("{sql} ({cut}), {why}: {told:?}, {in_the_tree} {sorts_take_memory} {named}\n{explanation}"));
        }
        // Nothing that the user can see stays there without a word.
        for o in receipt.host.iter().filter(|o| !o.plumbing && o.scan.is_none() && o.reason.is_none()) {
            wrong.push(format!("{sql} ({cut}): nothing is said of {} {}", o.note.name, o.note.detail));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// What goes down whole has nothing to explain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_pushdown_has_no_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(4, 100), false).await.unwrap();
    let explanation = fleet.explanation("SELECT id + 1 AS next FROM lab.t WHERE n > 0", true, &QueryOptions::default()).await.unwrap();
    assert!(explanation.notes.is_empty());
    let host = explanation.receipt.unwrap().host;
    assert!(host.iter().all(|o| o.reason.is_none() && (o.plumbing || o.scan.is_some())), "{host:?}");
}
