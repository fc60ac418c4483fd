# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtfit.a
libdtfit_a_SOURCES = \
	src/fit/accuracy.c \
	src/fit/accuracy.h \
	src/fit/accuracy_job.c \
	src/fit/accuracy_stats.c \
	src/fit/cost_curve.c \
	src/fit/cost_curve.h \
	src/fit/cost_curve_svg.c \
	src/fit/drift.c \
	src/fit/drift.h \
	src/fit/gain.c \
	src/fit/gain.h \
	src/fit/kernel_dtype.c \
	src/fit/kernel_dtype.h \
	src/fit/kernel_import.c \
	src/fit/kernel_import.h \
	src/fit/kernel_rules.c \
	src/fit/kernel_rules.h \
	src/fit/kernel_trace.c \
	src/fit/kernel_trace.h \
	src/fit/kernel_trace_kineto.c \
	src/fit/kernel_trace_nsys.c \
	src/fit/profile_fit.c \
	src/fit/profile_fit.h \
	src/fit/profile_fit_attn.c \
	src/fit/profile_fit_comm.c \
	src/fit/profile_fit_conv.c \
	src/fit/profile_fit_gemm.c \
	src/fit/profile_fit_mem.c \
	src/fit/profile_fit_priv.h \
	src/fit/profile_import.c \
	src/fit/profile_import.h \
	src/fit/profile_import_priv.h \
	src/fit/profile_import_tables.c \
	src/fit/profile_local.c \
	src/fit/profile_local.h \
	src/fit/profile_nccl_text.c \
	src/fit/profile_nccl_text.h
