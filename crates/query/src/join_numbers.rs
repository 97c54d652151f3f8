//! Numbers of joins by `USING` and `NATURAL`, and what is learned about them while they are planned.
//!
//! The number is a further name in the join's `USING`, which no query can write. It is the same whenever the same text
//! is planned again.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::{DFSchemaRef, TableReference};
use datafusion::sql::sqlparser::ast::{
    Ident, Join, JoinConstraint, JoinOperator, ObjectName, Select, Statement, TableFactor, TableWithJoins, VisitMut, VisitorMut,
};
use parking_lot::Mutex;

use crate::merged_keys::Joins;

/// What begins the name of a number. The parser takes no such name from a text without quotes.
const JOIN: &str = "\u{1}join ";
const NATURAL: &str = "\u{1}natural ";

/// The number of a join.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) join: usize,
    /// Its names are not known yet.
    pub(crate) natural: bool,
}

impl Mark {
    /// That at the end of `names`, which are those of the query then.
    pub(crate) fn take(names: &mut Vec<ObjectName>) -> Option<Self> {
        let mark = Self::of(names)?;
        names.pop();
        Some(mark)
    }

    pub(crate) fn of(names: &[ObjectName]) -> Option<Self> {
        let name = names.last()?.0.first()?.as_ident()?.value.as_str();
        let (number, natural) = name.strip_prefix(JOIN).map(|number| (number, false)).or_else(|| Some((name.strip_prefix(NATURAL)?, true)))?;
        Some(Self { join: number.parse().ok()?, natural })
    }

    fn name(self) -> ObjectName {
        quoted(&format!("{}{}", if self.natural { NATURAL } else { JOIN }, self.join))
    }
}

fn quoted(name: &str) -> ObjectName {
    ObjectName::from(Ident::with_quote('"', name))
}

/// What is known of the joins of a query, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Learned(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The columns that `NATURAL` merges.
    natural: HashMap<usize, Vec<String>>,
    /// The columns of each relation, right below the join. None where two relations have the same name.
    sides: HashMap<(usize, String), (TableReference, Option<Vec<String>>)>,
    /// Whether the query needs more than was known when it was planned.
    open: bool,
}

impl Learned {
    /// How much is known, where the query needed more; none where it did not.
    pub(crate) fn open(&self) -> Option<usize> {
        let known = self.0.lock();
        known.open.then(|| known.natural.len() + known.sides.len())
    }

    pub(crate) fn natural(&self, join: usize, names: &[String]) {
        self.0.lock().natural.insert(join, names.to_vec());
    }

    pub(crate) fn sides(&self, join: usize, schemas: &[&DFSchemaRef]) {
        let mut of: HashMap<TableReference, Vec<String>> = HashMap::new();
        for (relation, field) in schemas.iter().flat_map(|schema| schema.iter()) {
            if let Some(relation) = relation {
                of.entry(relation.clone()).or_default().push(field.name().clone());
            }
        }
        let mut known = self.0.lock();
        for (relation, names) in of {
            let noted = known.sides.entry((join, relation.table().to_owned())).or_insert_with(|| (relation.clone(), Some(names)));
            if noted.0 != relation {
                noted.1 = None;
            }
        }
    }

    /// The columns of `relation` below the join; the inner none where two relations have that name.
    pub(crate) fn columns(&self, join: usize, relation: &str) -> Option<Option<Vec<String>>> {
        let mut known = self.0.lock();
        let columns = known.sides.get(&(join, relation.to_owned())).map(|(_, names)| names.clone());
        known.open |= columns.is_none();
        columns
    }
}

/// Numbers the joins of `statement`, and writes `NATURAL` out where its columns are known.
pub(crate) fn number(statement: &mut Statement, of: Joins, learned: &Learned) {
    learned.0.lock().open = false;
    let _ = VisitMut::visit(statement, &mut Numbers { of, next: 0, learned });
}

struct Numbers<'a> {
    of: Joins,
    next: usize,
    learned: &'a Learned,
}

impl VisitorMut for Numbers<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        select.from.iter_mut().for_each(|from| self.number(from));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            self.number(table_with_joins);
        }
        ControlFlow::Continue(())
    }
}

impl Numbers<'_> {
    fn number(&mut self, from: &mut TableWithJoins) {
        for Join { join_operator, .. } in &mut from.joins {
            if self.of.kind(join_operator).is_none() {
                continue;
            }
            let Some(constraint) = constraint(join_operator) else { continue };
            let join = self.next;
            self.next += 1;
            let mut known = self.learned.0.lock();
            let (mut names, natural) = match std::mem::replace(constraint, JoinConstraint::None) {
                JoinConstraint::Using(names) => (names, false),
                _ => match known.natural.get(&join) {
                    Some(names) => (names.iter().map(|name| quoted(name)).collect(), false),
                    None => (Vec::new(), true),
                },
            };
            known.open |= natural;
            names.push(Mark { join, natural }.name());
            *constraint = JoinConstraint::Using(names);
        }
    }
}

fn constraint(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint) => Some(constraint),
        _ => None,
    }
}
