#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# What is not a regular file is refused as an input, and not waited for: a named pipe that nobody
# writes to, a folder, a device that never ends.  Pipes that the user opened are read by their names.
# And a limited address space ends in one message.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
limit_s=60 # a pipe would be waited for for ever
mkfifo pipe pipe.csv pipe.yaml pipe.tar pipe.safetensors pipe.sql pipe.db pipe.json
mkdir folder folder.csv folder.yaml folder.tar folder.sql folder.db folder.json folder.safetensors
for x in '' .csv .yaml .tar .sql .db .json .safetensors; do ln -s /dev/zero "device$x"; done

# refused EXT COMMAND...: with a pipe, a folder and a device in place of @
refused() {
    ext=$1; shift
    for kind in pipe folder device; do
        case "$kind $not" in "folder folder") continue ;; esac
        line=
        for word; do
            case $word in *@*) word=${word%%@*}$kind$ext${word#*@} ;; esac
            line="$line '$word'"
        done
        case $kind in folder) says='a directory' ;; *) says="a $kind" ;; esac
        eval "expect 2 'this is $says, not a regular file' $line"
        check "one message for $kind$ext of $*" '[ "$(grep -c "^disttrain: " err)" -eq 1 ]'
    done
}
not= # kinds that are something else there

pack_two_tones
printf 'op,phase,dtype,d0,d1,d2,d3,d4,d5,n,median_ns,p10_ns,p90_ns\ngemm,fwd,bf16,4096,4096,4096,0,0,0,50,5,4,6\n' >table.csv
write_small_job 'steps: 1'
mkfifo nofolder # a name without a slash may be a preset's
expect 2 "nofolder: this is a pipe" "$DISTTRAIN" simulate nofolder
rm nofolder
for command in plan simulate train eval "sample -t dark" profile loop; do refused .yaml "$DISTTRAIN" $command ./@; done # no quotes: a command and its option
refused .json "$DISTTRAIN" simulate --no-runs --plan ./@ job.yaml
refused .json "$DISTTRAIN" plan --plan ./@ job.yaml
refused .sql "$DISTTRAIN" plan job.yaml profile=./@
refused .db "$DISTTRAIN" plan job.yaml profile=./@
refused .csv "$DISTTRAIN" plan job.yaml samples=./@
refused .csv "$DISTTRAIN" plan job.yaml 'samples={csv: ./@}'
refused .yaml "$DISTTRAIN" plan job.yaml cluster=./@
refused .json "$DISTTRAIN" plan job.yaml 'model={modules: {llm: {hf: ./@}}}'
refused .json "$DISTTRAIN" train --no-runs job.yaml run.tokenizer=./@
refused .csv "$DISTTRAIN" accuracy --table ./@
refused .sql "$DISTTRAIN" db show ./@
refused .csv "$DISTTRAIN" db import --device x --source y -o new.sql rows ./@
refused .json "$DISTTRAIN" data tokens --tokenizer ./@ job.yaml
refused .csv "$DISTTRAIN" data tokens ./@
refused '' "$DISTTRAIN" profile import -o new.sql ./@
refused .yaml "$DISTTRAIN" profile import -o new.sql --rules ./@ table.csv
refused '' "$DISTTRAIN" data pack --idx ./@ --labels labels --label-names dark,light -o new
refused .db "$DISTTRAIN" trace --runs ./@ export 1
refused .db "$DISTTRAIN" compare --runs ./@ 1 2
refused .db "$DISTTRAIN" simulate --runs ./@ job.yaml
not=folder # of shards, of tensors
refused .tar "$DISTTRAIN" train --no-runs job.yaml run.data=./@
refused .tar "$DISTTRAIN" data scan ./@
refused .safetensors "$DISTTRAIN" train --no-runs --init-from ./@ job.yaml
mkdir saved saved/step-00000001
mkfifo saved/latest saved/step-00000001/manifest.json
refused .safetensors "$DISTTRAIN" train --no-runs --init-from ./@ job.yaml
expect 2 "saved/latest: this is a pipe" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=saved
mkdir pictures; mkfifo pictures/a.jpg
expect 2 "a.jpg: this is a pipe" "$DISTTRAIN" data pack -o packed pictures

expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=made

# --- what the user opened for us ---
cat job.yaml | timeout -k 5 60 "$DISTTRAIN" plan - >out 2>err; check "standard input" '[ $? -eq 0 ]'
cat job.yaml | timeout -k 5 60 "$DISTTRAIN" plan /dev/stdin >out 2>err
check "a pipe by the name of standard input" 'grep -q "llm" out'
{ sleep 1; cat job.yaml; } | timeout -k 5 60 "$DISTTRAIN" plan /dev/fd/0 >out 2>err
check "as the shell names a process, which takes its time" 'grep -q "llm" out'
expect 0 "" sh -c '"$DISTTRAIN" plan /dev/stdin <job.yaml'
check "a regular file by that name" 'grep -q llm out'

# --- empty names ---
for o in "--init-from=" "--runs="; do
    expect 2 "option ${o%=} needs the name of a file; it was given an empty one" "$DISTTRAIN" train "$o" job.yaml
done
expect 2 "option --init-from needs the name" "$DISTTRAIN" train --init-from '' job.yaml
expect 2 "option --checkpoint needs the name of a folder" "$DISTTRAIN" eval -c '' job.yaml
expect 2 "option --output needs the name" "$DISTTRAIN" plan --output '' job.yaml
expect 2 "option --table needs the name" "$DISTTRAIN" accuracy --table ''
for key in init_from log_dir tokenizer checkpoint.dir; do
    expect 2 "command line:1:.*: ${key#*.}: an empty path" "$DISTTRAIN" train --no-runs job.yaml "run.$key=''"
done
expect 2 "an empty name" "$DISTTRAIN" train --no-runs ''
# --- a limited address space ends in success or in one message ---
# limited KIB COMMAND...: in libraries of the system's loader (127) nothing of ours runs yet
limited() {
    kib=$1; shift
    timeout -k 5 60 sh -c 'ulimit -v "$0" && exec "$@"' "$kib" "$@" >out 2>err </dev/null
    got=$?
    case $got in
    0) check "$kib KiB, $*: quiet" '[ "$(wc -l <err)" -eq 0 ]' ;;
    1) check "$kib KiB, $*: one message" '[ "$(wc -l <err)" -eq 1 ] && grep -q "^disttrain: .*\(out of memory\|ulimit -v\|limit\)" err' ;;
    *) bad "$kib KiB, $*: status $got" ;;
    esac
}
least=16000 # KiB with which the program can be loaded
while ! sh -c 'ulimit -v "$0" && exec "$@"' $least "$DISTTRAIN" --version >/dev/null 2>&1 && [ $least -lt 2000000 ]; do
    least=$((least * 9 / 8))
done
if [ $least -lt 400000 ]; then # not where a sanitizer wants terabytes
    for more in 0 4000 16000 64000 128000 256000 512000; do
        for command in train 'profile -o p.sql --seconds 0 --repeats 1' 'simulate --no-runs' plan; do
            case $command in train) no=--no-runs ;; *) no= ;; esac
            limited $((least + more)) "$DISTTRAIN" $command $no job.yaml
        done
        limited $((least + more)) "$DISTTRAIN" sample -t dark job.yaml run.checkpoint.dir=made
    done
    expect 1 "limited to .* MiB (ulimit -v); this command needs .* MiB" \
        sh -c 'ulimit -v "$0" && exec "$@"' $((least + 64000)) "$DISTTRAIN" train --no-runs job.yaml
    expect 1 "for each rank" sh -c 'ulimit -v "$0" && exec "$@"' $((least + 512000)) "$DISTTRAIN" train --ranks 2 --no-runs job.yaml
    # a crash: near the limit it says so, without one it is what it was
    crashed() { # KIB
        (ulimit -c 0; ulimit -v "$1"; exec "$DISTTRAIN" plan - <slow >out 2>err) & pid=$!
        exec 3>slow; sleep 1
        kill -SEGV $pid; exec 3>&-; wait $pid; got=$?
    }
    mkfifo slow
    crashed $((least + 16000))
    check "a crash near the limit: status $got" '[ $got -eq 1 ] && grep -q "out of memory: a library crashed near the limit" err'
    crashed unlimited
    check "a crash elsewhere: status $got" '[ $got -eq 139 ]'
fi
totals
