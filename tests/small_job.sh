# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# For shell tests that train, on top of tests/shell.sh: data and job.yaml, a model of a few thousand parameters
# and 40 pictures of 8 x 8.
limit_s=120
. "${srcdir:=.}/tests/shell.sh"
. "$srcdir/tests/mpirun.sh"
# what MPI leaves behind when it is killed goes with the folder
OMPI_MCA_orte_tmpdir_base=$tmp OMPI_MCA_btl_vader_backing_directory=$tmp
export OMPI_MCA_orte_tmpdir_base OMPI_MCA_btl_vader_backing_directory
# checksums of all tensors of a checkpoint: files are cut by ranks
sums() { grep -o '^ *"[a-z].*\..*": "[0-9a-f]\{8\}"' "$1/manifest.json" | sort; }

# about NAME VALUE: is that member of the JSON in `out` this, within a ten-thousandth?
about() { awk -v a="$(field "$1")" -v b="$2" 'BEGIN { exit !(b > 0 && a - b < 1e-4 * b && b - a < 1e-4 * b) }'; }

# ranked N DIR COMMAND...: under mpirun, in the background ($job); DIR/0, DIR/1, ... hold the process of
# each rank
ranked() {
    ranked_n=$1 ranked_dir=$2; shift 2
    rm -rf "$ranked_dir"; mkdir "$ranked_dir"
    "$MPIRUN" -np "$ranked_n" sh -c 'echo $$ >"$0/.$OMPI_COMM_WORLD_RANK" &&
        mv "$0/.$OMPI_COMM_WORLD_RANK" "$0/$OMPI_COMM_WORLD_RANK" && exec "$@"' \
        "$tmp/$ranked_dir" "$@" >out 2>err </dev/null &
    job=$!
}
# finished PID SECONDS: waits for a child, at most so long; its exit status in $status, 124 = too long
finished() {
    finished_n=0
    while kill -0 "$1" 2>/dev/null && [ $finished_n -lt $((20 * $2)) ]; do
        sleep 0.05; finished_n=$((finished_n + 1))
    done
    if kill -0 "$1" 2>/dev/null; then status=124; else wait "$1"; status=$?; fi
}

pack_two_tones
[ $failed -eq 0 ] || exit 99
write_small_job 'steps: 1000000'
