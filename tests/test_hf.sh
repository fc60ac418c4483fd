#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Weights go both ways between disttrain and Hugging Face's Python packages, where PyTorch,
# transformers and safetensors are installed.  PYTHON names another interpreter.
set -u
LC_ALL=C; export LC_ALL
disttrain=${DISTTRAIN:-./disttrain}
python=
for p in "${PYTHON:-python3}" /usr/bin/python3; do
    if "$p" -c 'import torch, transformers, safetensors' 2>/dev/null; then
        python=$p
        break
    fi
done
[ -n "$python" ] || { echo 'no transformers with PyTorch and safetensors: skipped'; exit 77; }
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
"$python" "${srcdir:-.}/tests/hf_compare.py" "$disttrain" "$tmp" || exit 1
tests/test_hf_models --table >"$tmp/params" &&
    "$python" "${srcdir:-.}/tests/hf_params.py" "$tmp/params" "${srcdir:-.}/tests/data/hf" || exit 1
mkdir "$tmp/numbers"
"$python" "${srcdir:-.}/tests/hf_numbers.py" tests/test_hf_numbers "$tmp/numbers" || exit 1
