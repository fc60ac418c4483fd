# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtexec.a
libdtexec_a_SOURCES = \
	src/exec/clock.c \
	src/exec/clock.h \
	src/exec/device.h
