"""Short queries whose cost is out of proportion: each is answered, or refused with an error of Skytether's, and the
host goes on serving. `benches/hostile.py` measures how long others wait meanwhile.

They read `lab.t`: 1,000 rows of `a`, a number, and `s`, a text such as `x17`."""

from __future__ import annotations


def _chain(levels: int, body: str) -> str:
    """Common table expressions `c0` to `c{levels}`, each made of the one before by `body`."""
    steps = "".join(f", c{n} AS ({body.format(before=f'c{n - 1}')})" for n in range(1, levels + 1))
    return f"WITH c0 AS (SELECT a FROM lab.t LIMIT 1){steps} SELECT count(*) AS n FROM c{levels}"


def _nested(levels: int, expression: str) -> str:
    """A table `t` with the column `x`, an expression of itself `levels` times."""
    below = "(SELECT s AS x FROM lab.t)"
    for _ in range(levels):
        below = f"(SELECT {expression} AS x FROM {below} t)"
    return f"{below} t"


def _columns(count: int) -> str:
    return ", ".join(f"a + {n} AS c{n}" for n in range(count))


def _within(levels: int, condition: str) -> str:
    """A query whose condition has the query of the level below in the place of `{q}`."""
    query = "SELECT a FROM lab.t"
    for _ in range(levels):
        query = f"SELECT a FROM lab.t WHERE {condition.format(q=query)}"
    return query


_CONCAT = "concat(x, x, x, x, x, x, x, x)"
_CASE = "CASE WHEN x > 'a' THEN x ELSE lower(x) END"

#: Name and text.
QUERIES: dict[str, str] = {
    "CTEs that double 14 times": _chain(14, "SELECT * FROM {before} UNION ALL SELECT * FROM {before}"),
    "CTEs that double 39 times": _chain(39, "SELECT * FROM {before} UNION ALL SELECT * FROM {before}"),
    "CTEs that are joined with themselves": _chain(12, "SELECT x.a FROM {before} x JOIN {before} y ON x.a = y.a"),
    "CUBE of 12 columns": f"SELECT count(*) AS n FROM (SELECT {', '.join(f'c{n}' for n in range(12))} FROM (SELECT {_columns(12)} FROM lab.t) t GROUP BY CUBE ({', '.join(f'c{n}' for n in range(12))})) u",
    "CUBE of 20 columns": f"SELECT count(*) AS n FROM (SELECT {', '.join(f'c{n}' for n in range(20))} FROM (SELECT {_columns(20)} FROM lab.t) t GROUP BY CUBE ({', '.join(f'c{n}' for n in range(20))})) u",
    "two ROLLUPs of 60 columns": f"SELECT count(*) AS n FROM (SELECT c0 FROM (SELECT {_columns(120)} FROM lab.t) t GROUP BY ROLLUP ({', '.join(f'c{n}' for n in range(60))}), ROLLUP ({', '.join(f'c{n}' for n in range(60, 120))})) u",
    "60 joins": "SELECT count(*) AS n FROM lab.t t0 " + " ".join(f"JOIN lab.t t{n} ON t{n}.a = t{n - 1}.a" for n in range(1, 60)),
    "a cross product of four": "SELECT count(*) AS n FROM lab.t a, lab.t b, lab.t c, lab.t d WHERE a.a + b.a + c.a + d.a = -1",
    "900 unions": " UNION ALL ".join(["SELECT a FROM lab.t"] * 900),
    "300 subqueries below one another": "SELECT count(*) AS n FROM (" * 300 + "SELECT a FROM lab.t" + ") z" * 300,
    "100,000 values of IN": "SELECT count(*) AS n FROM lab.t WHERE a IN (" + ",".join(map(str, range(100_000))) + ")",
    "10,000 ORs": "SELECT count(*) AS n FROM lab.t WHERE " + " OR ".join(f"a = {n}" for n in range(10_000)),
    "200 ORs of pairs": "SELECT count(*) AS n FROM lab.t WHERE " + " OR ".join(f"(a >= {n} AND s = 'x{n}')" for n in range(200)),
    "CASE 2,000 deep": "SELECT " + "CASE WHEN a = 1 THEN 2 ELSE " * 2000 + "0" + " END" * 2000 + " AS x FROM lab.t LIMIT 1",
    "a sum of 900 columns": "SELECT " + " + ".join(["a"] * 900) + " AS x FROM lab.t LIMIT 1",
    "parentheses 100,000 deep": "SELECT " + "(" * 100_000 + "1" + ")" * 100_000,
    "repeat of 2 GB": "SELECT length(repeat('x', 2000000000)) AS n FROM lab.t WHERE a = 1",
    "repeat of 1 MB in each row": "SELECT count(DISTINCT repeat(s, 1000000)) AS n FROM lab.t",
    "lpad of 1 GB": "SELECT length(lpad(s, 1000000000, 'y')) AS n FROM lab.t",
    "concat of long texts": f"SELECT length(concat({', '.join(['repeat(s, 1000)'] * 60)})) AS n FROM lab.t",
    "|| of long texts": f"SELECT length({' || '.join(['repeat(s, 1000)'] * 60)}) AS n FROM lab.t",
    "a condition on a column of columns": f"SELECT count(*) AS n FROM {_nested(9, _CONCAT)} WHERE x IS NULL",
    "a condition on a CASE of CASEs": f"SELECT count(*) AS n FROM {_nested(20, _CASE)} WHERE x > 'a'",
    "columns of columns": f"SELECT count(x) AS n FROM {_nested(9, _CONCAT)}",
    "CASEs of CASEs": f"SELECT count(x) AS n FROM {_nested(20, _CASE)}",
    "IN below OR, 10 levels": _within(10, "a IN ({q}) OR a = 1"),
    "NOT IN below NOT, 8 levels": _within(8, "NOT (a NOT IN ({q}) AND s = 'x1')"),
    "NOT IN below NOT, 12 levels": _within(12, "NOT (a NOT IN ({q}) AND s = 'x1')"),
    "BETWEEN of subqueries, 10 levels": _within(10, "(SELECT max(a) FROM ({q}) x) BETWEEN 1 AND 9"),
    "BETWEEN of subqueries, 15 levels": _within(15, "(SELECT max(a) FROM ({q}) x) BETWEEN 1 AND 9"),
    "concat_ws with a long separator": "SELECT length(concat_ws(repeat('x', 100000000), " + ", ".join(["'a'"] * 20) + ")) AS n",
    "array_to_string with a long separator": "SELECT length(array_to_string(array_repeat('', 2000), repeat('x', 1000000))) AS n",
    "regexp_replace of each letter": "SELECT length(regexp_replace(repeat('a', 1000000), 'a', repeat('x', 2000), 'g')) AS n",
    "array_resize with a long text": "SELECT cardinality(array_resize(array_repeat('', 1), 2000, repeat('x', 1000000))) AS n",
    "array_repeat of a long list": "SELECT cardinality(array_repeat(make_array(repeat('x', 1000000)), 2000)) AS n",
    "array_replace_all with a long text": "SELECT cardinality(array_replace_all(array_repeat('y', 2000), 'y', repeat('x', 1000000))) AS n",
    "lpad with wide letters": "SELECT length(lpad('', 120000000, '漢')) AS n",
    "translate to wide letters": "SELECT length(translate(repeat('a', 100000000), 'a', '漢')) AS n",
    "|| of long lists": "SELECT cardinality(" + " || ".join(["array_repeat(repeat('x', 10000000), 5)"] * 20) + ") AS n",
    "range of 10 billion": "SELECT cardinality(range(0, 10000000000)) AS n",
    "series of 10 billion rows": "SELECT count(*) AS n FROM generate_series(0, 10000000000) WHERE value % 7 = 9",
    "a recursion without an end": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) AS n FROM r",
    "a recursion that doubles": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT r.n + 1 FROM r, lab.t WHERE r.n < 9) SELECT count(*) AS n FROM r",
    "a regular expression that backtracks": "SELECT count(*) AS n FROM lab.t WHERE s ~ '(((((x+)+)+)+)+)+$' OR s ~ 'x{1000}{1000}'",
    "groups of a cross product": "SELECT count(*) AS n FROM (SELECT DISTINCT a.a * 1000000 + b.a * 1000 + c.a AS x FROM lab.t a, lab.t b, lab.t c) t",
    "a sort of a cross product": "SELECT a.s || b.s || c.s AS x FROM lab.t a, lab.t b, lab.t c ORDER BY x DESC LIMIT 1 OFFSET 100000000",
    "array_agg of a cross product": "SELECT cardinality(array_agg(a.s || b.s)) AS n FROM lab.t a, lab.t b, lab.t c",
    "string_agg of a cross product": "SELECT length(string_agg(a.s || b.s, ',')) AS n FROM lab.t a, lab.t b, lab.t c",
    "a window over a cross product": "SELECT max(r) AS n FROM (SELECT row_number() OVER (ORDER BY a.a * b.a, c.a) AS r FROM lab.t a, lab.t b, lab.t c) t",
}
