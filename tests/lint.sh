#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The walls of the house (doc/design.md, section 2): arrows between rooms run downward, a library stays in
# the rooms that may use it, a name means one thing, and every file is formatted.
: "${srcdir:=.}"
builddir=$(pwd)
. "$srcdir/tests/shell.sh"
cd "$srcdir" || exit 99

# from the ground up: a room may include those before it, and its own files
rooms="src/base
src/core/pipeline
src/core/model
src/core/profile
src/core/cost
src/core/schedule
src/core/orchestrate
src/core/job
src/report
src/fit
src/sim
src/kernels
src/kernels/cpu
src/kernels/cuda
src/serve
src/comm
src/exec/data
src/exec/feed
src/exec/modules
src/exec/checkpoint
src/exec/program
src/exec/train
src/exec/infer
src/cli"
# beside these arrows: neither driver knows the other, nor what is made of what they do
apart="src/exec src/sim
src/exec src/fit
src/comm src/core
src/comm src/sim
src/comm src/report
src/comm src/fit
src/kernels src/core
src/kernels src/sim
src/kernels src/report
src/kernels src/fit
src/serve src/core
src/serve src/sim
src/serve src/report
src/serve src/fit"
# HEADER ROOMS: the rooms (or files) that may include it
homes="mpi.h src/comm/transport_mpi.c
libfyaml.h src/base/doc.c
sqlite3.h src/core/profile src/report src/fit
gsl/ src/core src/report src/fit
pthread.h src/comm src/exec src/sim src/cli src/kernels/cpu src/kernels/cuda
threads.h -
microhttpd.h src/serve/server.c
zmq.h src/exec/feed/net_zmq.c
sndfile.h src/exec/data/audio.c
samplerate.h src/exec/data/audio.c
sodium.h -
omp.h src/kernels/cpu
cuda_runtime.h src/kernels/cuda
cublasLt.h src/kernels/cuda
nccl.h -
oneapi/dnnl src/kernels/cpu
archive src/exec/data
time.h src/base/clock.h src/comm src/exec
sys/time.h -"

files=$(find src -name '*.[ch]' | sort)
for f in $files; do
    dir=${f%/*}
    echo "$rooms" | grep -qx "$dir" && ok || bad "$f: $dir is no room; name it in tests/lint.sh and doc/design.md"
done

grep -n '#include "' $files | sed 's/^\([^:]*\):\([0-9]*\):#include "\([^"]*\)".*/\1 \2 \3/' >"$tmp/includes"
grep -n '#include <' $files | sed 's/^\([^:]*\):\([0-9]*\):#include <\([^>]*\)>.*/\1 \2 \3/' >"$tmp/system"

# ---- arrows ----
echo "$rooms" >"$tmp/rooms"; echo "$apart" >"$tmp/apart"; echo "$homes" >"$tmp/homes"
awk '
    function dir(path) { sub("/[^/]*$", "", path); return path }
    function below(path, room) { return index(path "/", room "/") == 1 }
    FILENAME ~ /rooms$/ { level[$1] = FNR; next }
    FILENAME ~ /apart$/ { from[FNR] = $1; to[FNR] = $2; n = FNR; next }
    $3 == "config.h" { next }
    {
        a = dir($1); b = dir("src/" $3)
        if (!(b in level)) print $1 ":" $2 ": \"" $3 "\" is in no room; includes are written from src/ on"
        else if (level[b] > level[a]) print $1 ":" $2 ": " a " may not include " b ", which is above it"
        for (i = 1; i <= n; i++)
            if (below(a, from[i]) && below(b, to[i])) print $1 ":" $2 ": " from[i] " may not include " to[i]
    }' "$tmp/rooms" "$tmp/apart" "$tmp/includes" >"$tmp/out"
cat "$tmp/out"
check "arrows between rooms run downward" '[ -s "$tmp/includes" ] && [ ! -s "$tmp/out" ]'

# ---- libraries ----
awk '
    FILENAME ~ /homes$/ { header[FNR] = $1; $1 = ""; home[FNR] = $0; n = FNR; next }
    {
        for (i = 1; i <= n; i++) {
            if (index($3, header[i]) != 1) continue
            k = split(home[i], where, " "); fine = 0
            for (j = 1; j <= k; j++) if ($1 == where[j] || index($1, where[j] "/") == 1) fine = 1
            if (!fine) print $1 ":" $2 ": <" $3 "> belongs to" home[i]
        }
    }' "$tmp/homes" "$tmp/system" >"$tmp/out"
cat "$tmp/out"
check "libraries stay in their rooms" '[ -s "$tmp/system" ] && [ ! -s "$tmp/out" ]'

# ---- the environment changes while there is one thread: another one that reads it may crash ----
changers='src/cli/|src/kernels/device_open\.c|src/comm/(nccl|lifeline|transport_mpi)\.c'
grep -nE '\b((un)?setenv|putenv|clearenv)\(' $files $(find src -name '*.cu' | sort) | grep -vE "^($changers)" >"$tmp/out"
cat "$tmp/out"
check "the environment is changed at the start only" '[ ! -s "$tmp/out" ]'

# ---- the check of programs shares nothing with what makes them ----
checker='src/core/schedule/program_check'
awk -v checker="$checker" '
    index($1, checker) == 1 && $3 !~ "^(base|core/model|core/pipeline)/" && $3 != "core/cost/memory.h" &&
        $3 != "core/schedule/program.h" && index("src/" $3, checker) != 1 {
        print $1 ":" $2 ": the check of programs may not include " $3
    }' "$tmp/includes" >"$tmp/out"
cat "$tmp/out"
check "the check of programs includes nothing of the compiler" \
    'grep -q "^$checker" "$tmp/includes" && [ ! -s "$tmp/out" ]'
objects="$builddir/src/core/schedule"
if [ -f "$objects/program_check.o" ]; then
    nm "$objects"/program_check*.o | awk '$1 == "U" && $2 ~ /^dt_/ { print $2 }' | sort -u >"$tmp/used"
    for o in "$objects"/*.o; do
        case $o in */program_check*.o | */program.o) ;; *) nm "$o" ;; esac
    done | awk '$2 ~ /^[TDRB]$/ { print $3 }' | sort -u >"$tmp/made"
    comm -12 "$tmp/used" "$tmp/made" >"$tmp/out"
    cat "$tmp/out"
    check "the check of programs calls nothing of the compiler" \
        '[ -s "$tmp/used" ] && [ -s "$tmp/made" ] && [ ! -s "$tmp/out" ]'
else
    echo "no object files: what the check of programs calls is not checked"
fi

# ---- files that can be read in one go ----
find src -name '*.[ch]' -o -name '*.cu' | xargs wc -l | awk '$2 != "total" && $1 >= 700' >"$tmp/out"
cat "$tmp/out"
check "files of src/ have fewer than 700 lines" '[ ! -s "$tmp/out" ]'

# ---- names: what a room shows begins with one of its prefixes ----
awk '/^### Prefixes/ { on = 1; next } /^##/ { on = 0 } !on || /^```/ { next }
    /^src\// { room = $1; first = 2 } /^ / { first = 1 }
    /^src\// || /^  / { for (i = first; i <= NF; i++) print room, $i }' doc/design.md >"$tmp/prefixes"
cut -d' ' -f1 "$tmp/prefixes" | sort -u >"$tmp/named"
check "every room has its prefixes in doc/design.md" 'echo "$rooms" | sort | cmp -s - "$tmp/named"'
cut -d' ' -f2 "$tmp/prefixes" | sort | uniq -d >"$tmp/out"
cat "$tmp/out"
check "no prefix belongs to two rooms" '[ ! -s "$tmp/out" ]'

# ROOM WHERE NAME: what headers declare; symbols of the objects whose source is there
headers=$(find src -name '*.h' | sort)
{
    awk '
        function is(name) { print FILENAME ":" FNR, name }
        /^(typedef )?(struct|union|enum) [a-z0-9_]+ \{/ { sub("^typedef ", ""); is($2); next }
        /^typedef .*\(\*[a-z0-9_]+\)\(/ { sub(/.*\(\*/, ""); sub(/\).*/, ""); is($0); next }
        /^extern [^(]*;/ { sub(/(\[.*)?;.*/, ""); sub(/.*[ *]/, ""); is($0); next }
        /^[a-z][^({=]*[a-z0-9_]\(/ { sub(/\(.*/, ""); sub(/.*[ *]/, ""); if ($0 != "__attribute__") is($0) }' $headers
    find "$builddir/src" -name '*.o' 2>/dev/null | while read -r o; do
        c=${o#"$builddir/"} dir=${c%/*}; c=${c##*/}; c=$dir/${c##*-}; c=${c%.o}.c
        if [ -f "$c" ]; then nm -g --defined-only "$o" | awk -v c="$c" '{ print c, $3 }'; fi
    done
} | awk '$2 != "main" && $2 !~ /^_/ { room = $1; sub("/[^/]*$", "", room); print room, $1, $2 }' | sort -u >"$tmp/names"
# what a room's header declares may be defined by another room, which implements it
grep -HoE '^struct [a-z0-9_]+;' $headers | sed -E 's/^(.*)\/[^/]*:struct (.*);/\1 \2/' >"$tmp/declared"
awk '$2 ~ /\.h:/ { print $1, $3 }' "$tmp/names" >>"$tmp/declared"
awk '
    # the room of the longest prefix that the name begins with
    function owner_of(name, part, n, i, p, room) {
        n = split(name, part, "_"); room = "no room"
        for (i = 1; i <= n; i++) { p = p (i > 1 ? "_" : "") part[i]; if (p in owner) room = owner[p] }
        return room
    }
    FILENAME ~ /prefixes$/ { owner[$2] = $1; next }
    FILENAME ~ /declared$/ { declared[$1, $2] = 1; next }
    { room = owner_of($3) }
    room != $1 && !((room, $3) in declared) { print $2 ": " $3 " has a prefix of " room ", not of " $1 }
' "$tmp/prefixes" "$tmp/declared" "$tmp/names" >"$tmp/out"
cat "$tmp/out"
check "names have a prefix of their room" '[ "$(wc -l <"$tmp/names")" -gt 500 ] && [ ! -s "$tmp/out" ]'
[ -d "$builddir/src/base" ] && ls "$builddir"/src/base/*.o >/dev/null 2>&1 || echo "no object files: only headers are checked for prefixes"

# ---- names: dt_transport_xfer and dt_device_queue are opaque: every transport, every device has one of its own ----
grep -hoE '^(typedef )?(struct|union|enum) dt_\w+ \{' $files | grep -oE 'dt_\w+' |
    grep -vxE 'dt_transport_xfer|dt_device_queue' | sort | uniq -d >"$tmp/out"
while read -r tag; do grep -nE "^(typedef )?(struct|union|enum) $tag \{" $files; done <"$tmp/out"
check "a tag is defined once" '[ ! -s "$tmp/out" ]'

# ---- kinds: -Wswitch-enum refuses a switch that lacks a kind; these go over numbers of other libraries ----
switches="src/base/doc.c src/core/profile/profile_sql.c src/report/runs_open.c"
grep -nE '^ *default:' $files | grep -v '(default:' >"$tmp/out"
for f in $switches; do sed -i "\\|^$f:|d" "$tmp/out"; done
cat "$tmp/out"
check "no switch has a silent default" '[ ! -s "$tmp/out" ]'
# make runs them as they are
find tests -name '*.sh' ! -name console.sh ! -name shell.sh ! -name small_job.sh ! -name loop_job.sh ! -name mpirun.sh ! -perm -u+x >"$tmp/out"
check "tests may be run" '[ ! -s "$tmp/out" ]'
# the log of test_x.sh and that of test_x are one file: one of them would not be run
ls tests/*.c tests/*.sh | sed 's/\.[a-z]*$//' | sort | uniq -d >"$tmp/out"
check "tests have names of their own" '[ ! -s "$tmp/out" ]'

check "a kind that a switch lacks is an error of the compiler" 'grep -q "Werror=switch-enum" configure.ac'

# ---- format ----
if command -v clang-format >/dev/null; then
    find src tests -name '*.[ch]' | sort | xargs clang-format --dry-run >"$tmp/out" 2>&1
    grep -oE '^[^:]*:[0-9]+' "$tmp/out" | sort -u | head -n 20
    check "files are as clang-format leaves them" '[ ! -s "$tmp/out" ]'
else
    echo "no clang-format: the format is not checked"
fi
totals
