#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Norms are compiled once for tensors that are aligned and once for others, and must give the same bits: which products are
# fused with an addition is said in the source, and CUDA's compiler is left nothing to choose.
: "${NVCC:=nvcc}"
command -v "$NVCC" >/dev/null && command -v python3 >/dev/null || { echo "SKIP: there is no nvcc or no python3"; exit 77; }
. "${srcdir:=.}/tests/shell.sh"

cat >left.py <<'END'
# Sums of a product that ptxas may fuse (mul without .rn), in any function of a PTX file.
import re, sys
products, found = set(), 0
for line in open(sys.argv[1]):
    if line.startswith((".visible", ".entry", "}")):
        products.clear()
    m = re.match(r"\s*(?:@\S+\s+)?(\w+)(\.\S+)?\s+(%\w+), (.*);", line)
    if not m:
        continue
    uses = set(re.findall(r"%\w+", m[4]))
    if m[1] in ("add", "sub") and (m[2] or "").endswith(".f32") and uses & products:
        found += 1
        print(line.strip())
    products.discard(m[3])
    if m[1] == "mul" and m[2] in (".f32", ".ftz.f32"):
        products.add(m[3])
sys.exit(found > 0)
END
for f in norm groupnorm; do
    for fmad in true false; do
        "$NVCC" -std=c++17 -O3 -arch=sm_90 -fmad=$fmad -I"$srcdir/src" -ptx -o $f-$fmad.ptx "$srcdir/src/kernels/cuda/$f.cu" >out 2>&1 || cat out
    done
    python3 left.py $f-true.ptx >out
    rc=$?
    head -3 out
    check "$f.cu: no sum of a product is left to ptxas" '[ $rc = 0 ] && grep -q "mul.rn.f32" $f-true.ptx'
    check "$f.cu: the compiler fuses none by itself" '[ "$(grep -c "fma.rn.f32" $f-true.ptx)" = "$(grep -c "fma.rn.f32" $f-false.ptx)" ]'
done
totals
