"""Made-up tables for round trips: `make` makes them, `carry` takes them through files and libraries, `compare` says
whether two are equal."""
