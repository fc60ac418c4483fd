#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The build knows every file: what is kept in the repository is compiled, installed or distributed, and
# every source says its licence.
set -u
LC_ALL=C; export LC_ALL
: "${srcdir:=.}"
cd "$srcdir" || exit 99
passed=0 failed=0

if [ -e .git ] && command -v git >/dev/null && files=$(git ls-files src tests traces man doc 2>/dev/null) &&
    [ -n "$files" ]; then
    :
else
    files=$(find src tests traces man doc -type f)
fi
listed=$(sed 's/[[:space:]\\]\{1,\}/\n/g' src/*/local.mk src/kernels/cuda/local.mk tests/local.mk traces/local.mk man/local.mk doc/local.mk)
for f in $files; do
    [ -e "$f" ] || continue
    case $f in
    */local.mk | tests/fuzz/corpus/* | tests/golden/* | tests/data/* | *~ | *.o) continue ;;
    *.c) name=${f%.c} ;; # programs are listed by name
    *) name=$f ;;
    esac
    if echo "$listed" | grep -qxF -e "$f" -e "$name"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $f is in no local.mk"
    fi
done
for f in $files; do
    case $f in
    *.c | *.h | *.sh | *.mk | man/*) ;;
    *) continue ;;
    esac
    [ -e "$f" ] || continue
    if head -n 3 "$f" | grep -q 'SPDX-License-Identifier: GPL-3.0-or-later'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $f does not name its licence"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
