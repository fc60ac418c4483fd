#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# bench_step's GPT-2 124M in other programs, right behind it on the same machine: PyTorch where it is
# installed (Debian: python3-torch; PYTHON names another interpreter).
set -u
LC_ALL=C; export LC_ALL
: "${OMP_WAIT_POLICY:=passive}"; export OMP_WAIT_POLICY
for p in "${PYTHON:-python3}" /usr/bin/python3; do
    if "$p" -c 'import torch' 2>/dev/null; then
        exec "$p" "${srcdir:-.}/tests/bench/torch_step.py"
    fi
done
echo '# no PyTorch: GPT-2 124M not compared'
