# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# make bundle: bundle.tar.xz, a tree that runs from any folder, for a machine with a card and little else.
EXTRA_DIST += tools/bundle tools/cuda-toolkit tools/gpu-check \
	tools/gpu-jobs/llama.yaml \
	tools/gpu-jobs/make-data \
	tools/gpu-jobs/mllm.yaml \
	tools/gpu-jobs/small \
	tools/gpu-jobs/torch_steps.py \
	tools/gpu-jobs/unet.yaml \
	tools/gpu-jobs/vit.yaml
BUNDLE_TESTS = \
	tests/bench/roofline \
	tests/nccl_card \
	tests/test_cuda_dnn \
	tests/test_device_calls \
	tests/test_execute \
	tests/test_execute_ranks \
	tests/test_infer \
	tests/test_kernels_attention \
	tests/test_kernels_basic \
	tests/test_kernels_device \
	tests/test_kernels_loss \
	tests/test_kernels_norm \
	tests/test_kernels_product \
	tests/test_kernels_route \
	tests/test_modules_grad
BUNDLE_MIB = 60
.PHONY: bundle
bundle: disttrain$(EXEEXT) $(BUNDLE_TESTS) $(module_DATA)
	rm -rf bundle && $(SHELL) $(srcdir)/tools/bundle . $(srcdir) bundle
	tar cf - bundle | xz -T0 -6 >bundle.tar.xz
	test "`wc -c <bundle.tar.xz`" -le `expr $(BUNDLE_MIB) \* 1048576`
CLEANFILES += bundle.tar.xz
mostlyclean-local:
	rm -rf bundle
