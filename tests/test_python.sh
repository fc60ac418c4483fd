#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Files that Python programs should read are read by them, where they are installed: safetensors
# (with NumPy) and TensorBoard.  Classes of characters and NFC are those of Python's own Unicode
# database, for the characters of both.  PYTHON names another interpreter.
set -u
LC_ALL=C; export LC_ALL
: "${PYTHON:=python3}"
command -v "$PYTHON" >/dev/null || { echo 'no Python: skipped'; exit 77; }
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0

check() { # NAME, program on standard input
    if "$PYTHON" - "$tmp"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $1"
    fi
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
check unicode <<'END'
import os, random, subprocess, unicodedata as u
seed = int(os.environ.get("DT_TEST_SEED") or 20251120)
rng = random.Random(seed)
print("seed", seed)
chars = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and u.category(chr(c)) != "Cn"]
marks = [c for c in chars if u.combining(chr(c))]
parts = [*range(0x1100, 0x1200), *range(0xAC00, 0xAC80)]
texts = [chr(c) for c in chars]
for _ in range(20000):
    texts.append("".join(chr(rng.choice(rng.choice((chars, marks, marks, parts)))) for _ in range(rng.randrange(1, 12))))
out = subprocess.run(["tests/test_data_tokenizer", "--unicode"], stdout=subprocess.PIPE, check=True,
                     input=b"".join(t.encode() + b"\0" for t in texts)).stdout
classes, forms = out.split(b"\n", 1)
classes = classes.decode()
assert len(classes) == 0x110000, len(classes)
white = {9, 10, 11, 12, 13, 0x85}
both = 0
for c in chars:
    if classes[c] == "?": # this Python is newer
        continue
    both += 1
    k = u.category(chr(c))[0]
    want = k if k in "LN" else "S" if k == "Z" or c in white else "-"
    assert classes[c] == want, (hex(c), classes[c], want)
forms = forms.split(b"\0")[:-1]
assert len(forms) == len(texts)
for t, got in zip(texts, forms):
    if any(classes[ord(x)] == "?" for x in t):
        continue
    assert got.decode() == u.normalize("NFC", t), (ascii(t), ascii(got.decode()))
assert both > 280000, both
print(both, "characters of both; Python's Unicode is", u.unidata_version)
END
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
