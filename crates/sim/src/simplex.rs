//! Linear programs that are feasible at the origin: small and dense.

/// What is below it counts as zero.
const TINY: f64 = 1e-9;

/// What limits of zero are widened by, each by another multiple, so that steps don't lead nowhere.
const WIDER: f64 = 1e-10;

/// `x >= 0` with `rows * x <= limits` that maximises `goal * x`, or as good a one as `pivots` steps find; likewise
/// where there is no maximum. `limits` are not negative, so that the origin is feasible.
#[must_use]
pub fn maximise(rows: &[Vec<f64>], limits: &[f64], goal: &[f64], pivots: usize) -> Vec<f64> {
    let (m, n) = (rows.len(), goal.len());
    // Columns: the variables, a slack per row, the right side. The last row is the goal.
    let width = n + m + 1;
    let mut table = vec![vec![0.0; width]; m + 1];
    for (at, (row, limit)) in rows.iter().zip(limits).enumerate() {
        // Rows of very different units become comparable.
        let scale = row.iter().fold(0.0_f64, |most, value| most.max(value.abs())).max(1e-300);
        for (cell, value) in table[at].iter_mut().zip(row) {
            *cell = value / scale;
        }
        table[at][n + at] = 1.0;
        table[at][width - 1] = limit / scale + WIDER * (1.0 + (at % 97) as f64);
    }
    for (cell, value) in table[m].iter_mut().zip(goal) {
        *cell = -value;
    }
    let mut basis: Vec<usize> = (n..n + m).collect();
    // Columns that nothing bounds: none, but for errors of rounding.
    let mut passed = vec![false; width - 1];
    for _ in 0..pivots {
        let best = (0..width - 1).filter(|at| !passed[*at]).min_by(|a, b| table[m][*a].total_cmp(&table[m][*b]));
        let Some(enters) = best.filter(|at| table[m][*at] < -TINY) else { break };
        let ratios = (0..m).filter(|at| table[*at][enters] > TINY).map(|at| (at, table[at][width - 1] / table[at][enters]));
        let Some((leaves, _)) = ratios.min_by(|(_, a), (_, b)| a.total_cmp(b)) else {
            passed[enters] = true;
            continue;
        };
        let pivot = table[leaves][enters];
        table[leaves].iter_mut().for_each(|cell| *cell /= pivot);
        let row = table[leaves].clone();
        for (at, other) in table.iter_mut().enumerate() {
            let factor = other[enters];
            if at != leaves && factor != 0.0 {
                other.iter_mut().zip(&row).for_each(|(cell, value)| *cell -= factor * value);
            }
        }
        basis[leaves] = enters;
    }
    let mut found = vec![0.0; n];
    for (at, column) in basis.iter().enumerate().filter(|(_, column)| **column < n) {
        found[*column] = table[at][width - 1].max(0.0);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_corner_is_found() {
        // 3x + 5y with x <= 4, 2y <= 12, 3x + 2y <= 18: the textbook's (2, 6).
        let found = maximise(&[vec![1.0, 0.0], vec![0.0, 2.0], vec![3.0, 2.0]], &[4.0, 12.0, 18.0], &[3.0, 5.0], 100);
        assert!((found[0] - 2.0).abs() < 1e-6 && (found[1] - 6.0).abs() < 1e-6, "{found:?}");
        assert_eq!(maximise(&[vec![-1.0]], &[1.0], &[1.0], 100), [0.0], "no bound");
        assert_eq!(maximise(&[vec![1.0]], &[1.0], &[-1.0], 100), [0.0]);
    }

    #[test]
    fn degenerate_programs_end() {
        // Beale's, which cycles under the rule of the steepest column: 0.75 a - 150 b + 0.02 c - 6 d, at most 0.05.
        let rows = [vec![0.25, -60.0, -0.04, 9.0], vec![0.5, -90.0, -0.02, 3.0], vec![0.0, 0.0, 1.0, 0.0]];
        let goal = [0.75, -150.0, 0.02, -6.0];
        let found = maximise(&rows, &[0.0, 0.0, 1.0], &goal, 100);
        let value: f64 = found.iter().zip(goal).map(|(x, goal)| x * goal).sum();
        assert!((value - 0.05).abs() < 1e-6, "{found:?}");
    }
}
