"""Prints students.csv: t, df and the two-sided p-value of Student's t to 17 digits.

    pip install mpmath scipy && python make_students.py > students.csv      (written with mpmath 1.4.1, scipy 1.17.1)

p = I_x(df/2, 1/2) with x = df/(df + t^2), by the power series of I_x, or of its complement where x is large, in
arithmetic of 60 or 400 digits. scipy only proposes the t at which p is about 1e-20, 1e-100 and 1e-300; their p is
computed like all others.
"""
from mpmath import mp, mpf, beta, nstr
from scipy.stats import t as students

DFS = [1, 1.5, 2, 5, 10, 29, 30, 31, 100, 1e3, 2.7e3, 5e4, 1e6]
TS = [1e-8, 1e-4, 0.01, 0.3, 0.68, 1, 1.7, 2.5, 4, 8, 15, 25, 40]


def series(p, q, z):
    term = total = mpf(1)
    n = 0
    while True:
        ratio = (p + n) / (q + n) * z
        term *= ratio
        total += term
        n += 1
        if ratio < 1 and term < total * (1 - max(ratio, z)) * mpf(10) ** -mp.dps:
            return total


def two_sided(t, df):
    a, half = df / 2, mpf(1) / 2
    x, y = df / (df + t * t), t * t / (df + t * t)
    front = x**a * y**half / beta(a, half)
    if x < 0.3:
        return front / a * series(a + half, a + 1, x)
    return 1 - front * 2 * series(a + half, mpf(3) / 2, y)


print("t,df,p")
for df in map(float, DFS):
    far = [float(students.isf(10.0**e / 2, df)) for e in (-20, -100, -300)]
    for t in list(map(float, TS)) + [t for t in far if 0 < t < 1e290]:
        mp.dps = 400
        p = two_sided(mpf(t), mpf(df))
        if p > mpf("1e-305"):
            print(f"{t!r},{df!r},{nstr(p, 17, min_fixed=0, max_fixed=0)}")
