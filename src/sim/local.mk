# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtsim.a
libdtsim_a_SOURCES = \
	src/sim/engine.h \
	src/sim/network.h \
	src/sim/noise.h \
	src/sim/simulate.h
