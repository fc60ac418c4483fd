# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# For tests of pages of doc/, on top of tests/shell.sh: the commands of their console blocks print what stands there.
mkdir bin && ln -s "$DISTTRAIN" bin/disttrain
PATH=$tmp/bin:$PATH; export PATH

# console_said PAGE: cmd.N, the commands of the page (lines that end in \ go on), and said.N, what it says that they print;
# their number in $n
console_said() {
    awk '
        /^```console$/ { on = 1; next }
        /^```$/ { on = 0; more = 0; next }
        !on { next }
        /^\$ / { n++; printf "" >("said." n); print substr($0, 3) >("cmd." n); more = /\\$/; next }
        more { print >("cmd." n); more = /\\$/; next }
        { print >("said." n) }
        END { print n + 0 >"count" }' "$1"
    n=$(cat count)
}
# console_run I: did.I, what command I prints
console_run() {
    case $(cat "cmd.$1") in
    "disttrain serve "*) # any port that is free, and a token that nobody knows
        timeout -s INT 20 sh -c "exec $(cat "cmd.$1") --port 0" >out 2>err &
        while kill -0 $! 2>/dev/null && [ ! -s out ]; do sleep 0.2; done
        kill -INT $! 2>/dev/null
        wait $!
        sed 's,127.0.0.1:[0-9]*/[0-9a-f]\{32\}/,127.0.0.1:8642/TOKEN/,' out >"did.$1"
        ;;
    *) sh "cmd.$1" >"did.$1" 2>err </dev/null || bad "fails: $(cat "cmd.$1")" ;;
    esac
}
# console_update PAGE: what the commands have printed is what it says
console_update() {
    awk '
        /^```console$/ { on = 1; print; next }
        /^```$/ { if (on) flush(); on = 0; more = 0; print; next }
        !on { print; next }
        /^\$ / { flush(); n++; pending = n; print; more = /\\$/; next }
        more { print; more = /\\$/ }
        function flush(  line) { while (pending && (getline line <("did." pending)) > 0) print line; pending = 0 }' \
        "$1" >new && cp new "$1"
}
# console PAGE MIN UPDATE [LONG]: it has at least MIN commands, run in its order and in one folder; those with LONG in
# them in make check-full only
console() {
    console_said "$1"
    check "the page has commands" '[ "$n" -ge '"$2"' ]'
    i=1
    while [ "$i" -le "$n" ]; do
        if [ "$3" != --update ] && [ "${4:-}" ] && ! all_of_it && grep -qF -- "$4" cmd.$i; then
            i=$((i + 1))
            continue
        fi
        console_run $i
        [ "$3" = --update ] || cmp -s said.$i did.$i && ok || { diff said.$i did.$i >out; bad "prints something else: $(cat cmd.$i)"; }
        i=$((i + 1))
    done
    [ "$3" != --update ] || console_update "$1"
}
