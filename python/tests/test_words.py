"""Line widths and plain words (tools/lint_words.py): the tree has no more findings than it may,
and the check can fail."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "lint_words.py"
spec = importlib.util.spec_from_file_location("lint_words", TOOL)
lint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint)


def test_tree_has_no_more_findings_than_allowed():
    done = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.md", "Whoever reads.\n\n```\nwhoever\n```\n| whoever |\n`anew`\n" + "long " * 30, [1, 8]),
        ("a.md", "~~~ sh\nanew\n```\nanew\n~~~\nanew\n````\nanew\n```\nanew\n````\nanew\n", [6, 12]),
        ("a.rs", "// It is made anew.\nlet anew = 1;\n    /// Nobody, anew.\n", [1, 3, 3]),
        ("a.py", '"""So many."""\nx = "nobody"\ndef f():\n    """Two\n    nobody"""\n    return 1  # anew\n', [1, 5, 6]),
        ("a.rs", "let x = 'a'; // anew\nlet y = \"// anew\"; /* anew\n beside */ f('\"'); // anew\n", [1, 2, 3, 3]),
        ("a.rs", 'let x = r#"" // anew"#; let y = "\\" // anew"; // anew\nfn f<\'a>(x: &\'a str) {} // anew\n', [1, 2]),
        ("a.py", 'x = "anew"  # beside it\nanew = 1  # for `anew`\n', [1]),
        ("a.pyi", "x: int  # anew\n", [1]),
        ("a.toml", 'x = "# anew" # anew\ny = """\n# anew\n"""\n# of which\n', [1, 5]),
        ("a.R", "x <- '# anew' # anew\ny <- r\"(\" # anew)\"\n#' @param x anew\n", [1, 3]),
        ("a.sh", "echo \"# anew\" $# # anew\ncat <<END\n# anew\nEND\n# don't do it anew\n", [1, 5]),
        ("Makefile", "# It's anew\nall: x ## made anew\n\techo '# anew' $${x#anew} # anew\n", [1, 2, 3]),
        ("requirements-dev.txt", "x>=1 # anew\n# anew\n", [1, 2]),
        ("a.rs", "f(); // " + "long " * 30 + "\nlet x = \"" + "long " * 30 + '";', [1]),
        ("a.rs", "// " + "x" * 130 + "\n// https://example.org/" + "y" * 130, []),
    ],
)
def test_findings_are_in_prose_and_comments(name, text, lines):
    assert [number for number, _ in lint.findings(name, text)] == lines


def test_rule_2_of_style_lists_the_same_words():
    _, style = (TOOL.parents[1] / "CONTRIBUTING.md").read_text().split("\n## Style\n")
    (rule,) = re.findall(r"^2\. (.*?)^3\. ", style, re.M | re.S)
    assert set(re.findall(r"`([^`]+)`", rule)) == set(lint.WORDS)


def test_files_of_each_kind_are_looked_at():
    seen = lint.tracked()
    assert {"README.md", "Makefile", "Cargo.toml", ".ci/run", "fuzz/instrument.sh", "requirements-dev.txt", "python/skytether/_internal.pyi"} <= set(seen)
    assert any(name.endswith(".rs") for name in seen) and any(name.endswith(".py") for name in seen)


def test_more_findings_fail_and_fewer_ask_for_a_lower_number():
    assert lint.problems({"a.md": [(1, "x")]}, {"a.md": 1}) == []
    (more,) = lint.problems({"a.md": [(1, "x"), (2, "y")]}, {"a.md": 1})
    assert "a.md:2: y" in more
    (fewer,) = lint.problems({}, {"a.md": 1})
    assert "lower the number" in fewer


def test_update_refuses_a_larger_sum(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.md").write_text("Nobody reads it anew.\n")
    may = tmp_path / "allowed.txt"
    may.write_text("a.md 1\n")
    for name, value in {"ROOT": tmp_path, "ALLOWED": may, "tracked": lambda: ["a.md"]}.items():
        monkeypatch.setattr(lint, name, value)
    monkeypatch.setattr(sys, "argv", ["lint_words.py", "--update"])
    assert lint.main() == 1 and may.read_text() == "a.md 1\n" and "2 findings, 1 allowed" in capsys.readouterr().err
    (tmp_path / "a.md").write_text("A reader.\n")
    assert lint.main() == 0 and "a.md" not in may.read_text()
