"""The console script `skytether`: the Rust command, reached through the wheel."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command with the process's arguments and returns its exit status."""
    from . import _internal

    # The command is Rust's: let ctrl-C end it the way it ends any program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _internal.cli_main(["skytether", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
