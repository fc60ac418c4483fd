# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# For tests: `. "$srcdir/tests/mpirun.sh"`, then `mpi_run N PROGRAM [ARG]...`.  Sets what Open MPI
# needs in a container, and skips the test (77) where there is no mpirun or no MPI in the build.

# As root, with more ranks than cores, and where processes may not read each other's memory.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
OMPI_MCA_btl_vader_single_copy_mechanism=none
# A rank that is killed may hold a lock in PMIx' shared memory, for which mpirun waits for ever.
PMIX_MCA_gds=hash
# MPI's plug-ins leak, and are gone when their leaks are reported; ours show where ranks are threads.
ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
# Two ranks of a test on a core each is not what is tested; and no cards are looked for.
OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_base_warn_component_unused=0
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe \
    OMPI_MCA_btl_vader_single_copy_mechanism OMPI_MCA_hwloc_base_binding_policy \
    PMIX_MCA_gds OMPI_MCA_btl_base_warn_component_unused ASAN_OPTIONS

MPIRUN=${MPIRUN:-mpirun}
if ! command -v "$MPIRUN" >/dev/null 2>&1; then
    echo "skipped: there is no $MPIRUN"
    exit 77
fi
if test "${HAVE_MPI-yes}" = no; then
    echo 'skipped: built without MPI'
    exit 77
fi

mpi_run() {
    mpi_n=$1
    shift
    timeout -k 5 "${MPI_LIMIT_S:-120}" "$MPIRUN" -np "$mpi_n" "$@"
}
