#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Layouts of tests/execute_layouts.c under mpirun: losses and gradients are those of one process.
# A few layouts, or all with DT_CHECK_FULL=1.
# Environment: srcdir (the source directory).
set -u
: "${srcdir:=.}"
. "$srcdir/tests/mpirun.sh"
program=./tests/test_execute_ranks
OMP_NUM_THREADS=1; export OMP_NUM_THREADS
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0

"$program" --list >"$tmp/list" || exit 99
while read -r number ranks name; do
    if mpi_run "$ranks" "$program" --mpi "$number" >"$tmp/out" 2>&1 </dev/null &&
        grep "^equivalence: .* mpi:" "$tmp/out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $name"
        sed 's/^/    /' "$tmp/out" | head -30
    fi
done <"$tmp/list"
echo "$passed layouts passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
