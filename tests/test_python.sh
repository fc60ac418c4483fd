#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Files that Python programs should read are read by them, where they are installed: safetensors
# (with NumPy) and TensorBoard.  PYTHON names another interpreter.
set -u
LC_ALL=C; export LC_ALL
: "${PYTHON:=python3}"
command -v "$PYTHON" >/dev/null || { echo 'no Python: skipped'; exit 77; }
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0 done=0

check() { # NAME, program on standard input
    if "$PYTHON" - "$tmp"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $1"
    fi
    done=$((done + 1))
}

if "$PYTHON" -c 'import safetensors, numpy' 2>/dev/null; then
    tests/test_safetensors --example "$tmp/example.safetensors" || exit 99
    check safetensors <<'END'
import sys, numpy, safetensors
with safetensors.safe_open(sys.argv[1] + "/example.safetensors", "np") as f:
    assert f.metadata() == {"format": "pt", "note": 'a "b"\n'}, f.metadata()
    assert len(f.keys()) == 5, f.keys()
    w = f.get_tensor("wte.weight")
    assert w.shape == (2, 3) and w.dtype == numpy.float32 and w[0, 0] == numpy.float32(2.385), w
    assert list(f.get_tensor("ids")) == [50256, -0x0102030405060708]
    h = f.get_tensor("half")
    assert h.shape == (1, 2, 1) and h.ravel()[1] == numpy.float16(0.1), h
    assert f.get_tensor("empty").shape == (0, 9)
END
fi
if "$PYTHON" -c 'import tensorboard' 2>/dev/null; then
    tests/test_tensorboard --example "$tmp/log" >/dev/null || exit 99
    check tensorboard <<'END'
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1] + "/log")
a.Reload()
assert sorted(a.Tags()["scalars"]) == ["loss/caption", "lr"], a.Tags()
s = a.Scalars("loss/caption")
assert [x.step for x in s] == [0, 100, 200], s
assert abs(s[1].value - 2.385 / 2) < 1e-6 and s[2].wall_time == 1700000002.25, s
END
fi
[ "$done" -gt 0 ] || { echo 'neither safetensors nor TensorBoard for Python is installed: skipped'; exit 77; }
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
