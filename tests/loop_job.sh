# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# For tests of disttrain loop, on top of tests/shell.sh: 40 pictures and job.yaml, a model whose steps take milliseconds.
. "${srcdir:=.}/tests/shell.sh"
ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}; export ASAN_OPTIONS # as in tests/mpirun.sh
command -v mpirun >/dev/null || { echo 'no mpirun: skipped'; exit 77; }
pack_two_tones
write_quick_job
