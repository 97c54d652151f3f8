"""Prints ttests.csv: moments of two samples and what scipy.stats.ttest_ind_from_stats says about them.

    pip install scipy && python make_ttests.py > ttests.csv      (written with scipy 1.17.1, numpy 2)

The third pair of columns is scanpy's t-test_overestim_var: Welch's test with the size of the first sample for both.
"""
import warnings

import numpy as np
from scipy.stats import ttest_ind_from_stats

warnings.simplefilter("ignore")
rng = np.random.default_rng(2)
print("n1,mean1,m2_1,n2,mean2,m2_2,student_t,student_p,welch_t,welch_p,over_t,over_p")


def line(n1, mean1, m2_1, n2, mean2, m2_2):
    s1, s2 = np.sqrt(m2_1 / (n1 - 1)), np.sqrt(m2_2 / (n2 - 1))
    out = []
    for equal, second in ((True, n2), (False, n2), (False, n1)):
        r = ttest_ind_from_stats(mean1, s1, n1, mean2, s2, second, equal_var=equal)
        out += [float(r.statistic), float(r.pvalue)]
    print(",".join(repr(v) for v in [n1, float(mean1), float(m2_1), n2, float(mean2), float(m2_2), *out]))


for _ in range(60):
    n1, n2 = (int(v) for v in np.exp(rng.uniform(np.log(2), np.log(60000), 2)))
    n1, n2 = max(n1, 2), max(n2, 2)
    mean1, mean2 = rng.exponential(1, 2)
    if rng.random() < 0.5:
        mean2 = mean1 * (1 + rng.normal() * 0.02)
    m2_1, m2_2 = (n1 - 1) * rng.exponential(0.5), (n2 - 1) * rng.exponential(0.5)
    line(n1, mean1, m2_1, n2, mean2, m2_2)
line(5, 1.5, 0.0, 7, 1.0, 3.0)
line(2, 0.0, 0.0, 100, 0.25, 12.0)
