#!/usr/bin/env bash
# Runs the tests of the R package r/msgexpress with the Python of .venv; `make test` calls it.
#
# Where R, a package of R's or a Python that R can load is absent, it says so and succeeds. With SKYTETHER_R=required
# (.ci/run) that is a failure, and so is a test that is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${RETICULATE_PYTHON:-$PWD/.venv/bin/python}"

absent() {
  echo "The tests of r/msgexpress DID NOT RUN: $1." >&2
  echo "  On Debian: apt-get install --no-install-recommends $(grep -v '^#' r/debian-packages.txt | tr '\n' ' ')" >&2
  [ "${SKYTETHER_R:-}" != required ] || exit 1
  exit 0
}

command -v Rscript >/dev/null || absent "there is no R here (no Rscript on the path)"
missing="$(Rscript --vanilla -e 'cat(Filter(function(name) !requireNamespace(name, quietly = TRUE), c("reticulate", "testthat", "Matrix", "knitr")))')"
[ -z "$missing" ] || absent "R lacks $missing"
"$python" -c 'import sys, sysconfig; sys.exit(not any(map(sysconfig.get_config_var, ("Py_ENABLE_SHARED", "PYTHONFRAMEWORK"))))' ||
  absent "$python has no shared library, which R would load (take another Python: make clean, then make test PYTHON=...)"
RETICULATE_PYTHON="$python" exec Rscript --vanilla r/test.R
