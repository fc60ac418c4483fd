#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Token ids against the Python package tokenizers, where it is installed (else skipped).
# Environment: DISTTRAIN (the program), srcdir, PYTHON.
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}" "${PYTHON:=python3}"
command -v "$PYTHON" >/dev/null || exit 77
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
PYTHONUTF8=1 "$PYTHON" "$srcdir/tests/data_tokens_compare.py" "$DISTTRAIN" "$srcdir/tests/data/tokenizer" "$tmp"
