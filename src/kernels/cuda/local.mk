# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# disttrain-cuda.so: cards of NVIDIA, a module that disttrain loads when a device of it is asked for.  It links
# nothing of NVIDIA's but the static runtime of the toolkit that built it; cuBLASLt and cuDNN are loaded at run time.
# Tests build the same files for a CPU (tests/cuda_cpu).
CUDA_FILES = \
	src/kernels/cuda/act.cu \
	src/kernels/cuda/attention.cu \
	src/kernels/cuda/attention_mma.cu \
	src/kernels/cuda/call.cu \
	src/kernels/cuda/conv.cu \
	src/kernels/cuda/device.cu \
	src/kernels/cuda/dnn.cu \
	src/kernels/cuda/dnn_attention.cu \
	src/kernels/cuda/dnn_conv.cu \
	src/kernels/cuda/dnn_graph.cu \
	src/kernels/cuda/elementwise.cu \
	src/kernels/cuda/embedding.cu \
	src/kernels/cuda/groupnorm.cu \
	src/kernels/cuda/image.cu \
	src/kernels/cuda/ipc.cu \
	src/kernels/cuda/loss.cu \
	src/kernels/cuda/lt_call.cu \
	src/kernels/cuda/memory.cu \
	src/kernels/cuda/norm.cu \
	src/kernels/cuda/optimizer.cu \
	src/kernels/cuda/products.cu \
	src/kernels/cuda/products_act.cu \
	src/kernels/cuda/queue.cu \
	src/kernels/cuda/random.cu \
	src/kernels/cuda/route.cu \
	src/kernels/cuda/rows.cu \
	src/kernels/cuda/search.cu \
	src/kernels/cuda/weights.cu
CUDA_LT = src/kernels/cuda/lt.cu
CUDA_INCLUDED = \
	src/base/normal_as241.h \
	src/kernels/cuda/attention.h \
	src/kernels/cuda/cuda.h \
	src/kernels/cuda/device.h \
	src/kernels/cuda/dnn.h \
	src/kernels/cuda/dnn_api.h \
	src/kernels/cuda/dnn_graph.h \
	src/kernels/cuda/products.h \
	src/kernels/cuda/ptx.h \
	src/kernels/choose.h \
	src/kernels/device.h \
	src/kernels/kernels.h
# what a module needs of the ground floor, compiled once more for a shared object
CUDA_BASE = src/base/clock.c src/base/mem.c src/base/status.c src/base/utf8.c
EXTRA_DIST += $(CUDA_FILES) $(CUDA_LT) $(CUDA_INCLUDED)

CUDA_OBJECTS = $(CUDA_FILES:.cu=.cu.o) $(CUDA_LT:.cu=.cu.o) $(CUDA_BASE:.c=.pic.o)
CUDA_ARCH = --generate-code=arch=compute_80,code=sm_80 --generate-code=arch=compute_90,code=[sm_90,compute_90]
CLEANFILES += disttrain-cuda.so $(CUDA_OBJECTS)

$(CUDA_BASE:.c=.pic.o): src/base/mem.h src/base/status.h
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) $(AM_CFLAGS) \
	    $(CFLAGS) -fPIC -fvisibility=hidden -c $(srcdir)/$(@:.pic.o=.c) -o $@

# No program is linked from X.cu.o: make's own rule would make X.cu so, the source, once there is the object.
%: %.o

if BUILD_CUDA
moduledir = $(pkglibexecdir)
module_DATA = disttrain-cuda.so
$(CUDA_FILES:.cu=.cu.o) $(CUDA_LT:.cu=.cu.o): $(CUDA_INCLUDED)
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(NVCC) -std=c++17 -O3 $(CUDA_ARCH) -Werror all-warnings -I$(srcdir)/src \
	    -Xcompiler -fPIC,-fvisibility=hidden,-Wall $(NVCCFLAGS) -c $(srcdir)/$(@:.cu.o=.cu) -o $@
$(CUDA_FILES:.cu=.cu.o): %.cu.o: %.cu
$(CUDA_LT:.cu=.cu.o): %.cu.o: %.cu
disttrain-cuda.so: $(CUDA_OBJECTS)
	$(AM_V_GEN)$(NVCC) -shared -cudart static $(NVCCFLAGS) -o $@ $(CUDA_OBJECTS) -ldl -lpthread

# Registers and shared memory of every kernel, and estimates of what they take (doc/gpu-estimates.md).
CUDA_PTXAS = ptxas-80.txt ptxas-90.txt
CLEANFILES += $(CUDA_PTXAS) $(CUDA_PTXAS:.txt=.txt.cubin) $(CUDA_PTXAS:.txt=.txt.new)
$(CUDA_PTXAS):
	$(AM_V_GEN)for f in $(CUDA_FILES); do $(NVCC) -std=c++17 -O3 -arch=sm_$$(echo $@ | tr -dc 0-9) -I$(srcdir)/src \
	    -Xptxas -v -cubin -o $@.cubin $(srcdir)/$$f || exit 1; done >$@.new 2>&1 && mv $@.new $@
roofline: $(CUDA_PTXAS) tests/bench/roofline $(CUDA_CPU)
	@python3 $(srcdir)/tests/bench/roofline.py tests/bench/roofline $(CUDA_CPU) $(CUDA_PTXAS)
.PHONY: roofline $(CUDA_PTXAS)
endif
