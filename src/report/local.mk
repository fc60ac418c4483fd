# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtreport.a
libdtreport_a_SOURCES = \
	src/report/chart.c \
	src/report/chart.h \
	src/report/chart_impl.h \
	src/report/chart_style.c \
	src/report/chart_svg.c \
	src/report/chart_text.c \
	src/report/compare.c \
	src/report/compare.h \
	src/report/critical.c \
	src/report/explain.c \
	src/report/explain.h \
	src/report/html.c \
	src/report/html.h \
	src/report/interval.c \
	src/report/outliers.c \
	src/report/outliers.h \
	src/report/report.c \
	src/report/report.h \
	src/report/run_facts.c \
	src/report/run_facts.h \
	src/report/run_view.c \
	src/report/run_view.h \
	src/report/run_view_read.c \
	src/report/runs.c \
	src/report/runs.h \
	src/report/runs_check.c \
	src/report/runs_open.c \
	src/report/runs_open.h \
	src/report/sanity.c \
	src/report/sanity.h \
	src/report/timeline_draw.h \
	src/report/timeline_svg.c \
	src/report/timeline_text.c \
	src/report/trace_export.c \
	src/report/trace_export.h \
	src/report/trace_perfetto.c \
	src/report/trace_read.c \
	src/report/trace_read.h
