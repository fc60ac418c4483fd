# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtsim.a
libdtsim_a_SOURCES = \
	src/sim/cores.c \
	src/sim/cores.h \
	src/sim/engine.c \
	src/sim/engine.h \
	src/sim/engine_internal.h \
	src/sim/engine_parts.c \
	src/sim/engine_prepare.c \
	src/sim/engine_reset.c \
	src/sim/engine_ring.c \
	src/sim/engine_window.c \
	src/sim/goodput.c \
	src/sim/network.c \
	src/sim/network.h \
	src/sim/network_heap.c \
	src/sim/network_internal.h \
	src/sim/network_maxmin.c \
	src/sim/network_path.c \
	src/sim/noise.c \
	src/sim/noise.h \
	src/sim/queue.h \
	src/sim/feed.c \
	src/sim/feed.h \
	src/sim/simulate.c \
	src/sim/simulate.h
