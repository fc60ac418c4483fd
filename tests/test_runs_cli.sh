#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# A runs file that cannot be written costs no result: it is printed, and one warning names the file.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/small_job.sh"

# kept WHAT COMMAND...: it succeeds, says its result as it does with --no-runs, and warns once of bad.db
lost() {
    lost_what=$1; shift
    expect 0 "" "$@"
    check "$lost_what: the result" '[ -s out ] && grep -q "$result" out'
    check "$lost_what: one warning" '[ "$(grep -c "warning: .*bad\.db: .*--no-runs" err)" = 1 ] && [ "$(wc -l <err)" = 1 ]'
}
result='"mfu"'
simulate="$DISTTRAIN simulate --json mllm-nano-local"
printf 'SQLite format 3' >bad.db; head -c 4081 /dev/zero >>bad.db; cp bad.db before
lost "a damaged file" $simulate --runs bad.db
check "it stays as it is" 'cmp -s bad.db before'
rm -f bad.db; printf 'notes\n' >bad.db
lost "a text" $simulate --runs bad.db
check "it stays as it is" '[ "$(cat bad.db)" = notes ]'
rm -f bad.db; mkdir bad.db
expect 2 "bad.db: this is a directory" $simulate --runs bad.db # before any work is done
rmdir bad.db
lost "no folder" $simulate --runs no/bad.db
# a folder that may not be written; root may write to any, so not as root
as=
[ "$(id -u)" -ne 0 ] || as="setpriv --reuid=65534 --regid=65534 --clear-groups"
mkdir closed; chmod 555 closed; chmod a+x .
if $as "$DISTTRAIN" --version >/dev/null 2>&1; then
    lost "a folder that may not be written" $as $simulate --runs closed/bad.db
fi
lost "no folder, by the environment" env DISTTRAIN_RUNS=no/bad.db $simulate
# files that may not grow, of blocks of 512 bytes, stand for a full disk
expect 0 "" $simulate --runs good.db
blocks=$(($(wc -c <good.db) / 512))
lost "a full disk" sh -c 'ulimit -f $0; exec "$@"' $((blocks / 2)) $simulate --runs bad.db
expect 2 "empty" "$DISTTRAIN" compare --runs bad.db 1 1
rm -f bad.db*
cp good.db bad.db
lost "a full disk below a file that is there" sh -c 'ulimit -f $0; exec "$@"' $((blocks + 8)) $simulate --runs bad.db
expect 0 "median |error| 0.0 %" "$DISTTRAIN" compare --runs bad.db 1 1
check "the other run is not in it" '! "$DISTTRAIN" compare --runs bad.db 2 2 2>/dev/null'
expect 0 "" $simulate --no-runs
check "no warning" '[ ! -s err ]'
result='^iteration '
lost "as a table" "$DISTTRAIN" simulate mllm-nano-local --runs no/bad.db
expect 2 "is not auto, all or none; did you mean all" "$DISTTRAIN" simulate mllm-nano-local --timeline al

result='"steps"'
lost "training" "$DISTTRAIN" train --json job.yaml run.steps=2 --runs no/bad.db
check "names of special files are names" '"$DISTTRAIN" train --json job.yaml run.steps=1 --runs :memory: >/dev/null && [ -s :memory: ]'
totals
