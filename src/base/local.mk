# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtbase.a
libdtbase_a_SOURCES = \
	src/base/arena.c \
	src/base/bf16.h \
	src/base/clock.c \
	src/base/clock.h \
	src/base/crc32c.c \
	src/base/doc.c \
	src/base/doc.h \
	src/base/docedit.c \
	src/base/docget.c \
	src/base/docimpl.h \
	src/base/file.c \
	src/base/file.h \
	src/base/finite.c \
	src/base/finite.h \
	src/base/hash.h \
	src/base/hashtable.c \
	src/base/hashtable.h \
	src/base/heap.h \
	src/base/json.c \
	src/base/json.h \
	src/base/keys.c \
	src/base/keys.h \
	src/base/mem.c \
	src/base/mem.h \
	src/base/memo.c \
	src/base/memo.h \
	src/base/normal.c \
	src/base/normal_as241.h \
	src/base/number.c \
	src/base/number.h \
	src/base/protobuf.c \
	src/base/protobuf.h \
	src/base/quantile.c \
	src/base/quantile.h \
	src/base/reduce.c \
	src/base/reduce.h \
	src/base/rng.c \
	src/base/rng.h \
	src/base/status.c \
	src/base/status.h \
	src/base/suggest.c \
	src/base/text.c \
	src/base/text.h \
	src/base/utf8.c \
	src/base/utf8.h
