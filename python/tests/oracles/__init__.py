"""Oracles that look for wrong answers of SQL: drawn schemas, data and queries, and four ways to know that an answer is
wrong. The methods are SQLancer's, as published by Rigger and Su in 2020; the code is ours.

| module | subject |
|---|---|
| `tables`, `constants` | schemas, data with the edges of every type, constants |
| `nodes`, `printing` | the tree of a query, and its text for each engine |
| `expressions`, `calls`, `queries` | the generator: typed values, aggregates and windows, whole queries |
| `engines`, `answers` | fleets of several forms, DuckDB, DataFusion; answers and how they are compared |
| `checks` | the oracles |
| `shrinker`, `records` | a failing case made small, and written as a test |
| `known` | what is known to differ |
| `sessions`, `__main__` | a schema with some hundred queries; the command for many |

`python -m oracles --help` in `python/tests` says how to look on."""
