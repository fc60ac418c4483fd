# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# libdtkernels.a: the CPU device and what is compiled once.  The *_simd.c files are compiled once per
# instruction set, each into a library of its own; the device picks one at run time.
# A program that uses kernels has $(DT_KERNEL_LIBS) in front of $(LDADD).
KERNELS_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) $(KERNELS_CFLAGS_FP) -fno-math-errno
noinst_LIBRARIES += libdtkernels.a libdtkernels_base.a
libdtkernels_a_CFLAGS = $(KERNELS_CFLAGS) -DDT_BUILD_MODULES='"$(abs_top_builddir)"' -DDT_PKGLIBEXECDIR='"$(pkglibexecdir)"'
libdtkernels_a_SOURCES = \
	src/kernels/cpu/bf16.c \
	src/kernels/cpu/bf16.h \
	src/kernels/cpu/bf16_amx.h \
	src/kernels/cpu/cpu.h \
	src/kernels/cpu/device.c \
	src/kernels/cpu/dnnl.c \
	src/kernels/cpu/dnnl.h \
	src/kernels/cpu/ipc.c \
	src/kernels/cpu/pack.c \
	src/kernels/cpu/pack.h \
	src/kernels/cpu/pieces.c \
	src/kernels/cpu/products.c \
	src/kernels/cpu/products.h \
	src/kernels/choose.h \
	src/kernels/device.h \
	src/kernels/device_open.c \
	src/kernels/device_open.h \
	src/kernels/kernels.h
KERNELS_SIMD = \
	src/kernels/cpu/act_simd.c \
	src/kernels/cpu/attention_bf16.h \
	src/kernels/cpu/attention_bf16_bwd_simd.c \
	src/kernels/cpu/attention_bf16_simd.c \
	src/kernels/cpu/attention_bwd_simd.c \
	src/kernels/cpu/attention_simd.c \
	src/kernels/cpu/elementwise_simd.c \
	src/kernels/cpu/groupnorm_simd.c \
	src/kernels/cpu/image_simd.c \
	src/kernels/cpu/norm_simd.c \
	src/kernels/cpu/optimizer_simd.c \
	src/kernels/cpu/random_simd.c \
	src/kernels/cpu/route_simd.c \
	src/kernels/cpu/rows_simd.c \
	src/kernels/cpu/simd.h \
	src/kernels/cpu/softmax_simd.c \
	src/kernels/cpu/table_simd.c \
	src/kernels/cpu/tile.h
libdtkernels_base_a_CFLAGS = $(KERNELS_CFLAGS) -DDT_ISA=base
libdtkernels_base_a_SOURCES = $(KERNELS_SIMD)
DT_KERNEL_SIMD_LIBS = libdtkernels_base.a
if CPU_X86
noinst_LIBRARIES += libdtkernels_v3.a libdtkernels_v4.a
libdtkernels_a_CFLAGS += -DDT_CPU_X86
libdtkernels_v3_a_CFLAGS = $(KERNELS_CFLAGS) $(X86_V3_CFLAGS) -DDT_ISA=v3
libdtkernels_v3_a_SOURCES = $(KERNELS_SIMD)
libdtkernels_v4_a_CFLAGS = $(KERNELS_CFLAGS) $(X86_V4_CFLAGS) -DDT_ISA=v4
libdtkernels_v4_a_SOURCES = $(KERNELS_SIMD)
DT_KERNEL_SIMD_LIBS += libdtkernels_v3.a libdtkernels_v4.a
endif
DT_KERNEL_LIBS = libdtkernels.a $(DT_KERNEL_SIMD_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS)
