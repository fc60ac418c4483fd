# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Part of libdtexec.a.
libdtexec_a_SOURCES += \
	src/kernels/kernels.h
