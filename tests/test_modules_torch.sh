#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Modules against PyTorch, where it is installed (Debian: python3-torch): values and gradients at 1e-4.
# PYTHON names another interpreter.
set -u
LC_ALL=C; export LC_ALL
python=
for p in "${PYTHON:-python3}" /usr/bin/python3; do
    if "$p" -c 'import torch' 2>/dev/null; then
        python=$p
        break
    fi
done
[ -n "$python" ] || { echo 'no PyTorch: skipped'; exit 77; }
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0
for kind in llama qwen gpt2 vit vit-bare unet unet-self; do
    if ! tests/test_modules_grad --dump "$kind" >"$tmp/$kind" ||
        ! "$python" "${srcdir:-.}/tests/modules_compare.py" "$kind" "$tmp/$kind" 2>"$tmp/err"; then
        cat "$tmp/err"
        echo "FAIL: $kind"
        failed=1
    fi
done
exit $failed
