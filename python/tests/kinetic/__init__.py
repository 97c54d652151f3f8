"""Kinetic drives as others see them: the Java client's conformance suite, its simulator, and a small client of our own.

| module | what it has |
|---|---|
| `jars` | the Java client, its simulator and its suite, fetched once |
| `suite` | runs classes of the suite against a drive |
| `targets` | the drives that tests run against: ours, or the Java simulator |
| `alone` | a command in a network namespace with nothing but the loopback interface |
| `Beyond.java` | a program of the Java client, for what its suite leaves out |
| `wire` | a client written from the published protocol, and not from our server |
"""
