//! `explain`, from the query to the physical plan of the host: what goes down, what stays, and with which operators it runs.

use skytether_fleet::{Cut, QueryOptions};

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
                let options = QueryOptions { cut: Cut::$cut, ..QueryOptions::default() };
                let text = fleet.explain($sql, false, &options).await.unwrap();
                insta::assert_snapshot!(stringify!($name), format!("{}\ncut={}\n\n{}", $sql, Cut::$cut, without_names(&text)));
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
