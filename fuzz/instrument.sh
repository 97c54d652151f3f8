#!/bin/sh
# Cargo's wrapper for the crates of this workspace: coverage for libFuzzer, which a stable compiler can make. Other
# crates stay as every build has them.
case " $* " in
*" --crate-name skytether_"* | *" --crate-name fuzz "*)
  exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
  ;;
*) exec "$@" ;;
esac
