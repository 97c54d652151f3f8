"""Runs the commands of a guide whose servers stay in the background."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from fleets import PROGRAM
from test_docs import blocks, free_port


def run_guide(document: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Runs the examples of `document` in order, in `place`, on ports of this process's own: how many servers it
    started, and what each other command printed."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", os.fspath(PROGRAM.parent), prepend=os.pathsep)
    examples = [(language, text) for language, text in blocks(document) if language in ("sh", "python")]
    ports = {port: str(free_port()) for _, text in examples for port in re.findall(r"127\.0\.0\.1:(\d{4})\b", text)}
    serving: list[subprocess.Popen[str]] = []
    printed: list[str] = []
    try:
        for language, text in examples:
            text = re.sub(r"(127\.0\.0\.1:)(\d{4})\b", lambda m: m[1] + ports[m[2]], text)
            for command in [f"python - <<'END'\n{text}END\n"] if language == "python" else text.replace("\\\n", " ").splitlines():
                if " serve " in command:
                    serving.append(subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
                    assert "://" in serving[-1].stdout.readline(), serving[-1].stderr.read()
                else:
                    done = subprocess.run(["bash", "-eu", "-c", command], capture_output=True, text=True, timeout=120)
                    assert done.returncode == 0, (command, done.stdout, done.stderr)
                    printed.append(done.stdout)
    finally:
        for process in serving:
            process.kill()
            process.communicate()
    return len(serving), printed
