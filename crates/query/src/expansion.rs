//! How much a query is once its common table expressions and grouping sets are written out.
//!
//! DataFusion puts the plan of a common table expression wherever the query names it. Each of 40 expressions that names
//! the one before twice doubles the plan, which then has more nodes than any memory holds. `CUBE` of n columns has 2^n
//! grouping sets. Both are counted before anything is planned.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, GroupByExpr, GroupByWithModifier, ObjectName, Query, Select, Visit, Visitor};
use skytether_common::{Error, Result};

use crate::identifiers::normal;

/// The most relations that a query may read, each common table expression as often as it is named.
pub(crate) const MAX_RELATIONS: u64 = 1000;

/// The most grouping sets of one `GROUP BY`.
pub(crate) const MAX_GROUPING_SETS: u64 = 4096;

/// Refuses a statement that is too much to plan.
///
/// # Errors
/// `Invalid`, with the limit.
pub(crate) fn check(statement: &Statement) -> Result<()> {
    let Statement::Statement(statement) = statement else { return Ok(()) };
    let mut counted = Counted { frames: vec![Frame::default()], sets: 0 };
    let _ = Visit::visit(statement.as_ref(), &mut counted);
    let relations = counted.frames.first().map_or(0, |frame| frame.relations);
    if relations > MAX_RELATIONS {
        let number = if relations == u64::MAX { "too many".to_owned() } else { relations.to_string() };
        return Err(Error::invalid(format!(
            "the query reads {number} relations, with each common table expression as often as it is named: at most {MAX_RELATIONS}; store what is named often as a data set"
        )));
    }
    if counted.sets > MAX_GROUPING_SETS {
        return Err(Error::invalid(format!(
            "the query has {} grouping sets in one GROUP BY: at most {MAX_GROUPING_SETS}; write the ones that you need as GROUPING SETS",
            counted.sets
        )));
    }
    Ok(())
}

/// What is known of a query while it is visited.
#[derive(Default)]
struct Frame {
    relations: u64,
    /// Relations of its common table expressions, by name.
    defined: HashMap<String, u64>,
    /// Those that were not visited yet, by the address of their query in the tree.
    pending: Vec<(*const Query, String)>,
}

struct Counted {
    frames: Vec<Frame>,
    /// The most grouping sets of any GROUP BY.
    sets: u64,
}

impl Visitor for Counted {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let mut frame = Frame::default();
        if let Some(with) = &query.with {
            for cte in &with.cte_tables {
                let name = normal(&cte.alias.name);
                if with.recursive {
                    // What it names itself is what it has so far.
                    frame.defined.insert(name.clone(), 1);
                }
                frame.pending.push((std::ptr::from_ref(cte.query.as_ref()), name));
            }
        }
        self.frames.push(frame);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let (Some(done), Some(outer)) = (self.frames.pop(), self.frames.last_mut()) else { return ControlFlow::Break(()) };
        match outer.pending.iter().position(|(pending, _)| std::ptr::eq(*pending, query)) {
            Some(at) => {
                let (_, name) = outer.pending.swap_remove(at);
                outer.defined.insert(name, done.relations.max(1));
            }
            None => outer.relations = outer.relations.saturating_add(done.relations),
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let named = match relation.0.as_slice() {
            [part] => part.as_ident().map(normal),
            _ => None,
        };
        let size = named.and_then(|name| self.frames.iter().rev().find_map(|frame| frame.defined.get(&name))).copied().unwrap_or(1);
        if let Some(frame) = self.frames.last_mut() {
            frame.relations = frame.relations.saturating_add(size);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        if let GroupByExpr::Expressions(exprs, modifiers) = &select.group_by {
            let columns = u32::try_from(exprs.len()).unwrap_or(u32::MAX);
            let by_modifier = modifiers.iter().map(|modifier| match modifier {
                GroupByWithModifier::Cube => 2_u64.saturating_pow(columns),
                GroupByWithModifier::Rollup => u64::from(columns) + 1,
                _ => 1,
            });
            let sets = exprs.iter().map(sets_of).chain(by_modifier).fold(1, u64::saturating_mul);
            self.sets = self.sets.max(sets);
        }
        ControlFlow::Continue(())
    }
}

fn sets_of(e: &Expr) -> u64 {
    match e {
        Expr::Cube(columns) => 2_u64.saturating_pow(u32::try_from(columns.len()).unwrap_or(u32::MAX)),
        Expr::Rollup(columns) => columns.len() as u64 + 1,
        Expr::GroupingSets(sets) => sets.len() as u64,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::parser::DFParser;

    fn checked(sql: &str) -> Result<()> {
        check(&DFParser::parse_sql(sql).unwrap().pop_front().unwrap())
    }

    fn doubling(levels: usize) -> String {
        let each: String = (1..levels).map(|i| format!(", c{i} AS (SELECT * FROM c{} UNION ALL SELECT * FROM c{})", i - 1, i - 1)).collect();
        format!("WITH c0 AS (SELECT a FROM lab.t){each} SELECT count(*) FROM c{}", levels - 1)
    }

    // docs/sql.md: relations that it reads, a common table expression as often as it is named
    #[test]
    fn expressions_count_as_often_as_they_are_named() {
        checked(&doubling(10)).unwrap();
        assert!(checked(&doubling(11)).unwrap_err().message().contains("1024 relations"), "512 is the last that fits");
        assert!(checked(&doubling(300)).unwrap_err().message().contains("too many relations"));
        // A name within is another one than that without; a recursive one is one step.
        checked("WITH a AS (SELECT 1 x) SELECT * FROM (WITH a AS (SELECT 2 x) SELECT * FROM a) b, a").unwrap();
        checked("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT * FROM n a, n b").unwrap();
        let nested = format!("SELECT x FROM lab.t WHERE x IN ({})", doubling(12));
        checked(&nested).unwrap_err();
    }

    // docs/sql.md: grouping sets of one `GROUP BY`
    #[test]
    fn grouping_sets_are_limited_by_their_number() {
        let columns = |n: usize| (0..n).map(|i| format!("c{i}")).collect::<Vec<_>>().join(", ");
        checked(&format!("SELECT 1 FROM t GROUP BY CUBE ({})", columns(12))).unwrap();
        for over in [format!("CUBE ({})", columns(13)), format!("CUBE ({}), ROLLUP ({})", columns(10), columns(9))] {
            assert!(checked(&format!("SELECT 1 FROM t GROUP BY {over}")).unwrap_err().message().contains("grouping sets"), "{over}");
        }
    }
}
