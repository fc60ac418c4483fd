#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# run.algorithms and run.deterministic: what a training looks for on a card (here the module built for a CPU), notes, and
# finds again; several ranks use only what was there when they began.
module=$PWD/tests/modules/CPU
[ -f "$module/disttrain-cuda.so" ] || { echo "SKIP: there is no C++20 compiler for $module/disttrain-cuda.so"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: there is no python3 to look into the file with"; exit 77; }
. "${srcdir:=.}/tests/small_job.sh"
DISTTRAIN_MODULES=$module OMP_NUM_THREADS=1
export DISTTRAIN_MODULES OMP_NUM_THREADS

# asks FILE SQL: the one number that it answers
asks() {
    python3 -c 'import sqlite3, sys; print(sqlite3.connect("file:%s?mode=ro" % sys.argv[1], uri=True).execute(sys.argv[2]).fetchone()[0])' "$@"
}
train() { expect 0 "" "$DISTTRAIN" train job.yaml run.steps=1 run.text_only=true train.global_batch=2 run.device=cuda "$@"; }

train run.algorithms=found.db run.deterministic=true
check "a deterministic run leaves no file" '[ ! -e found.db ]'
train run.device=cpu run.algorithms=found.db
check "a CPU has nothing to note" '[ ! -e found.db ]'
train run.algorithms=found.db
notes=$(asks found.db "select count(*) from note")
check "products are noted" '[ "$notes" -ge 5 ]'
check "of this card, this library, and with both times" \
    '[ "$(asks found.db "select count(*) from note where device like \"CUDA on a CPU%\" and library = 130100 and length(value) = 64 and what like \"m %epilogue %aligned %\" and ns >= 0")" = "$notes" ]'
before=$(cksum <found.db)
train run.algorithms=found.db
check "the same again looks for nothing" '[ "$(cksum <found.db)" = "$before" ]'
echo "not a database, and long enough to be told from one" >text
expect 2 "text.*notes of devices: file is not a database" "$DISTTRAIN" train job.yaml run.steps=1 run.text_only=true train.global_batch=2 run.device=cuda run.algorithms=text
totals
