# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtexec.a
libdtexec_a_SOURCES = \
	src/exec/checkpoint.h \
	src/exec/clock.c \
	src/exec/clock.h \
	src/exec/data/bpe.c \
	src/exec/data/caption.c \
	src/exec/data/caption.h \
	src/exec/data/document.c \
	src/exec/data/document.h \
	src/exec/data/idx.c \
	src/exec/data/idx.h \
	src/exec/data/image.c \
	src/exec/data/image.h \
	src/exec/data/image_impl.h \
	src/exec/data/image_jpeg.c \
	src/exec/data/image_webp.c \
	src/exec/data/loader.c \
	src/exec/data/loader.h \
	src/exec/data/pack.c \
	src/exec/data/pack.h \
	src/exec/data/pretoken.c \
	src/exec/data/report.c \
	src/exec/data/report.h \
	src/exec/data/resize.c \
	src/exec/data/sequence.c \
	src/exec/data/sequence.h \
	src/exec/data/shard.c \
	src/exec/data/shard.h \
	src/exec/data/shard_impl.h \
	src/exec/data/shard_index.c \
	src/exec/data/shard_list.c \
	src/exec/data/shard_write.c \
	src/exec/data/tokenizer.c \
	src/exec/data/tokenizer.h \
	src/exec/data/tokenizer_impl.h \
	src/exec/data/tokenizer_read.c \
	src/exec/data/unicode.c \
	src/exec/data/unicode.h \
	src/exec/data/unicode_class.c \
	src/exec/data/unicode_comp.c \
	src/exec/data/unicode_decomp.c \
	src/exec/data/unicode_table.h \
	src/exec/device.h \
	src/exec/modules/module.h \
	src/exec/png.c \
	src/exec/png.h \
	src/exec/safetensors.c \
	src/exec/safetensors.h \
	src/exec/safetensors_data.c \
	src/exec/safetensors_header.c \
	src/exec/safetensors_impl.h \
	src/exec/safetensors_write.c \
	src/exec/tensorboard.c \
	src/exec/tensorboard.h
EXTRA_DIST += src/exec/data/unicode.py
