//! `sum` and `avg` of floats over frames that slide, and variances, covariances and regressions, over any rows.
//!
//! They replace DataFusion's, which are wrong where values are not finite or large: over frames that slide (see
//! `queue`); where a state joins that of no value, as over drives (a variance of `1e200` twice came as NaN); and for
//! one value, where a group gave another answer than a table. `regr_r2` of a constant `y` is 1, as in SQL.
//!
//! Moments join by Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
//! Variances" (1979).

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, UInt64Array};
use datafusion::arrow::datatypes::{Float64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::correlation::corr_udaf;
use datafusion::functions_aggregate::covariance::{covar_pop_udaf, covar_samp_udaf};
use datafusion::functions_aggregate::regr::{
    regr_avgx_udaf, regr_avgy_udaf, regr_count_udaf, regr_intercept_udaf, regr_r2_udaf, regr_slope_udaf, regr_sxx_udaf, regr_sxy_udaf, regr_syy_udaf,
};
use datafusion::functions_aggregate::stddev::{stddev_pop_udaf, stddev_udaf};
use datafusion::functions_aggregate::variance::{var_pop_udaf, var_samp_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF, EmitTo, GroupsAccumulator};

use super::queue::{Part, Queue};
use super::replacement::{Replacement, replaced};

/// The aggregates, to replace DataFusion's. `sum` and `avg` have replacements of their own, which ask [`sliding_sum`]
/// and [`sliding_average`].
pub(super) fn udafs() -> Vec<Arc<AggregateUDF>> {
    let all = [
        (var_samp_udaf(), Moment::VarSamp),
        (var_pop_udaf(), Moment::VarPop),
        (stddev_udaf(), Moment::StddevSamp),
        (stddev_pop_udaf(), Moment::StddevPop),
        (covar_samp_udaf(), Moment::CovarSamp),
        (covar_pop_udaf(), Moment::CovarPop),
        (corr_udaf(), Moment::Corr),
        (regr_slope_udaf(), Moment::Slope),
        (regr_intercept_udaf(), Moment::Intercept),
        (regr_count_udaf(), Moment::Count),
        (regr_r2_udaf(), Moment::R2),
        (regr_avgx_udaf(), Moment::AvgX),
        (regr_avgy_udaf(), Moment::AvgY),
        (regr_sxx_udaf(), Moment::Sxx),
        (regr_syy_udaf(), Moment::Syy),
        (regr_sxy_udaf(), Moment::Sxy),
    ];
    all.into_iter().map(|(original, moment)| replaced(original, moment)).collect()
}

/// The number of values and their sum.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    count: u64,
    sum: f64,
}

impl Part for Total {
    fn joined(self, other: Self) -> Self {
        Self { count: self.count + other.count, sum: self.sum + other.sum }
    }
}

/// A sum of floats over a frame that slides.
pub(super) fn sliding_sum() -> Box<dyn Accumulator> {
    Box::new(SlidingTotal { queue: Queue::default(), is_average: false })
}

/// An average of floats over a frame that slides.
pub(super) fn sliding_average() -> Box<dyn Accumulator> {
    Box::new(SlidingTotal { queue: Queue::default(), is_average: true })
}

#[derive(Debug)]
struct SlidingTotal {
    queue: Queue<Total>,
    is_average: bool,
}

impl Accumulator for SlidingTotal {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Float64Type>().iter().flatten() {
            self.queue.push(Total { count: 1, sum: value });
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        (values[0].null_count()..values[0].len()).for_each(|_| self.queue.pop());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Total { count, sum } = self.queue.total();
        let value = if self.is_average { sum / count as f64 } else { sum };
        Ok(ScalarValue::Float64((count > 0).then_some(value)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.queue.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_merged()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        not_merged()
    }
}

fn not_merged<T>() -> Result<T> {
    datafusion::common::internal_err!("frames that slide are not merged")
}

/// What is made of moments. Functions of two columns are of `(y, x)`, as `regr_slope(y, x)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Moment {
    VarSamp,
    VarPop,
    StddevSamp,
    StddevPop,
    CovarSamp,
    CovarPop,
    Corr,
    Slope,
    Intercept,
    Count,
    R2,
    AvgX,
    AvgY,
    Sxx,
    Syy,
    Sxy,
}

impl Moment {
    fn takes_one(self) -> bool {
        matches!(self, Self::VarSamp | Self::VarPop | Self::StddevSamp | Self::StddevPop)
    }

    /// The numbers of a state behind the count, which are those of DataFusion's states.
    fn state<P: Moments>(self, part: &P) -> Vec<f64> {
        let of = part.pair();
        match self {
            _ if self.takes_one() => vec![of.y, of.syy],
            Self::CovarSamp | Self::CovarPop => vec![of.y, of.x, of.sxy],
            Self::Corr => vec![of.y, of.syy, of.x, of.sxx, of.sxy],
            _ => vec![of.x, of.y, of.sxx, of.syy, of.sxy],
        }
    }

    fn of_state<P: Moments>(self, count: u64, of: &[f64]) -> P {
        P::of_pair(match (self, of) {
            (_, [y, syy]) => Pair { count, y: *y, syy: *syy, ..Pair::default() },
            (_, [y, x, sxy]) => Pair { count, y: *y, x: *x, sxy: *sxy, ..Pair::default() },
            (Self::Corr, [y, syy, x, sxx, sxy]) => Pair { count, y: *y, x: *x, syy: *syy, sxx: *sxx, sxy: *sxy },
            (_, [x, y, sxx, syy, sxy]) => Pair { count, y: *y, x: *x, syy: *syy, sxx: *sxx, sxy: *sxy },
            _ => Pair::default(),
        })
    }

    /// How many numbers a state has behind its count.
    fn width(self) -> usize {
        self.state(&Pair::default()).len()
    }

    /// The result, in PostgreSQL's way: of no value, and of one where the sample's size less one divides, NULL.
    fn result(self, of: &Pair) -> Option<f64> {
        let n = of.count as f64;
        let has_slope = of.count > 1 && of.sxx != 0.0;
        match self {
            Self::VarSamp => (of.count > 1).then(|| of.syy / (n - 1.0)),
            Self::VarPop => (of.count > 0).then(|| of.syy / n),
            Self::StddevSamp => Self::VarSamp.result(of).map(f64::sqrt),
            Self::StddevPop => Self::VarPop.result(of).map(f64::sqrt),
            Self::CovarSamp => (of.count > 1).then(|| of.sxy / (n - 1.0)),
            Self::CovarPop => (of.count > 0).then(|| of.sxy / n),
            Self::Corr => (has_slope && of.syy != 0.0).then(|| of.sxy / (of.sxx * of.syy).sqrt()),
            Self::Slope => has_slope.then(|| of.sxy / of.sxx),
            Self::Intercept => has_slope.then(|| of.y - of.sxy / of.sxx * of.x),
            Self::R2 if of.syy == 0.0 => has_slope.then_some(1.0),
            Self::R2 => has_slope.then(|| of.sxy / of.sxx * (of.sxy / of.syy)),
            Self::Count => Some(n),
            Self::AvgX => (of.count > 0).then_some(of.x),
            Self::AvgY => (of.count > 0).then_some(of.y),
            Self::Sxx => (of.count > 0).then_some(of.sxx),
            Self::Syy => (of.count > 0).then_some(of.syy),
            Self::Sxy => (of.count > 0).then_some(of.sxy),
        }
    }

    fn scalar<P: Moments>(self, of: &P) -> ScalarValue {
        match self {
            Self::Count => ScalarValue::UInt64(Some(of.pair().count)),
            _ => ScalarValue::Float64(self.result(&of.pair())),
        }
    }
}

/// `$of` over the moments that `$moment` is made of.
macro_rules! of_moments {
    ($of:ident, $moment:expr) => {
        if $moment.takes_one() {
            Box::new($of::<Single> { moment: $moment, values: Default::default() })
        } else {
            Box::new($of::<Pair> { moment: $moment, values: Default::default() })
        }
    };
}

impl Replacement for Moment {
    fn accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct { original.accumulator(args) } else { Ok(of_moments!(One, *self)) }
    }

    fn groups_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>> {
        if args.is_distinct { original.create_groups_accumulator(args) } else { Ok(of_moments!(Groups, *self)) }
    }

    fn sliding_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct { original.create_sliding_accumulator(args) } else { Ok(of_moments!(Sliding, *self)) }
    }
}

/// Moments of rows.
trait Moments: Part + Debug + Send + Sync + 'static {
    /// Adds a row: `y`, and `x` where there are two columns.
    fn add(&mut self, y: f64, x: f64);

    fn pair(&self) -> Pair;

    fn of_pair(pair: Pair) -> Self;
}

/// Those of one column: how many values there are, their mean, and the sum of the squares of what they differ by.
#[derive(Debug, Clone, Copy, Default)]
struct Single {
    count: u64,
    y: f64,
    syy: f64,
}

/// Those of two columns.
#[derive(Debug, Clone, Copy, Default)]
struct Pair {
    count: u64,
    y: f64,
    x: f64,
    syy: f64,
    sxx: f64,
    sxy: f64,
}

impl Moments for Single {
    fn add(&mut self, y: f64, _: f64) {
        self.count += 1;
        let before = y - self.y;
        self.y += before / self.count as f64;
        self.syy += before * (y - self.y);
    }

    fn pair(&self) -> Pair {
        Pair { count: self.count, y: self.y, syy: self.syy, ..Pair::default() }
    }

    fn of_pair(of: Pair) -> Self {
        Self { count: of.count, y: of.y, syy: of.syy }
    }
}

impl Moments for Pair {
    fn add(&mut self, y: f64, x: f64) {
        self.count += 1;
        let (before_y, before_x) = (y - self.y, x - self.x);
        self.y += before_y / self.count as f64;
        self.x += before_x / self.count as f64;
        self.syy += before_y * (y - self.y);
        self.sxx += before_x * (x - self.x);
        self.sxy += before_x * (y - self.y);
    }

    fn pair(&self) -> Pair {
        *self
    }

    fn of_pair(of: Pair) -> Self {
        of
    }
}

impl Part for Single {
    fn joined(self, other: Self) -> Self {
        // No value has no mean, from which an infinite one would differ by infinity.
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        let count = self.count + other.count;
        let (share, apart) = (other.count as f64 / count as f64, other.y - self.y);
        Self { count, y: self.y + apart * share, syy: self.syy + other.syy + apart * apart * share * self.count as f64 }
    }
}

impl Part for Pair {
    fn joined(self, other: Self) -> Self {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        let count = self.count + other.count;
        let share = other.count as f64 / count as f64;
        let (y, x, of) = (other.y - self.y, other.x - self.x, share * self.count as f64);
        Self {
            count,
            y: self.y + y * share,
            x: self.x + x * share,
            syy: self.syy + other.syy + y * y * of,
            sxx: self.sxx + other.sxx + x * x * of,
            sxy: self.sxy + other.sxy + x * y * of,
        }
    }
}

/// Calls `each` with the place and the values of each row that has them all.
fn rows(values: &[ArrayRef], mut each: impl FnMut(usize, f64, f64)) {
    let y = values[0].as_primitive::<Float64Type>();
    let x = values.get(1).map_or(y, |x| x.as_primitive::<Float64Type>());
    for at in 0..y.len() {
        if y.is_valid(at) && x.is_valid(at) {
            each(at, y.value(at), x.value(at));
        }
    }
}

/// Calls `each` with the place of each state, and with the state.
fn states<P: Moments>(moment: Moment, states: &[ArrayRef], mut each: impl FnMut(usize, P)) {
    let (counts, numbers) = (states[0].as_primitive::<UInt64Type>(), states[1..].iter().map(|of| of.as_primitive::<Float64Type>()).collect::<Vec<_>>());
    let mut of = vec![0.0; numbers.len()];
    for at in 0..counts.len() {
        of.iter_mut().zip(&numbers).for_each(|(to, from)| *to = from.value(at));
        each(at, moment.of_state(counts.value(at), &of));
    }
}

/// A frame that slides.
#[derive(Debug)]
struct Sliding<P> {
    moment: Moment,
    values: Queue<P>,
}

impl<P: Moments> Accumulator for Sliding<P> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        rows(values, |_, y, x| {
            let mut part = P::default();
            part.add(y, x);
            self.values.push(part);
        });
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        rows(values, |_, _, _| self.values.pop());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.moment.scalar(&self.values.total()))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_merged()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        not_merged()
    }
}

/// All rows of a table, or of a frame that only grows.
#[derive(Debug)]
struct One<P> {
    moment: Moment,
    values: P,
}

impl<P: Moments> Accumulator for One<P> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        rows(values, |_, y, x| self.values.add(y, x));
        Ok(())
    }

    fn merge_batch(&mut self, of: &[ArrayRef]) -> Result<()> {
        states(self.moment, of, |_, part| self.values = self.values.joined(part));
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let numbers = self.moment.state(&self.values).into_iter().map(ScalarValue::from);
        Ok(std::iter::once(ScalarValue::from(self.values.pair().count)).chain(numbers).collect())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.moment.scalar(&self.values))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The rows of each group.
struct Groups<P> {
    moment: Moment,
    values: Vec<P>,
}

impl<P: Moments> Groups<P> {
    fn arrays(&self, parts: &[P]) -> Vec<ArrayRef> {
        let counts: UInt64Array = parts.iter().map(|part| Some(part.pair().count)).collect();
        let mut numbers = vec![Vec::with_capacity(parts.len()); self.moment.width()];
        for part in parts {
            numbers.iter_mut().zip(self.moment.state(part)).for_each(|(column, value)| column.push(value));
        }
        std::iter::once(Arc::new(counts) as ArrayRef).chain(numbers.into_iter().map(|column| Arc::new(Float64Array::from(column)) as ArrayRef)).collect()
    }
}

impl<P: Moments> GroupsAccumulator for Groups<P> {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.values.resize(total.max(self.values.len()), P::default());
        rows(values, |at, y, x| {
            if filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at)) {
                self.values[groups[at]].add(y, x);
            }
        });
        Ok(())
    }

    fn merge_batch(&mut self, of: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.values.resize(total.max(self.values.len()), P::default());
        states(self.moment, of, |at, part| self.values[groups[at]] = self.values[groups[at]].joined(part));
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let parts = emit_to.take_needed(&mut self.values);
        Ok(match self.moment {
            Moment::Count => Arc::new(parts.iter().map(|part| Some(part.pair().count)).collect::<UInt64Array>()),
            of => Arc::new(parts.iter().map(|part| of.result(&part.pair())).collect::<Float64Array>()),
        })
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let parts = emit_to.take_needed(&mut self.values);
        Ok(self.arrays(&parts))
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let mut parts = vec![P::default(); values[0].len()];
        rows(values, |at, y, x| {
            if filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at)) {
                parts[at].add(y, x);
            }
        });
        Ok(self.arrays(&parts))
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<P>()
    }
}
