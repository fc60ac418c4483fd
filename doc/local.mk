# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
dist_doc_DATA += \
	doc/calibration.md \
	doc/checkpoints.md \
	doc/cluster.md \
	doc/data.md \
	doc/dependencies.md \
	doc/design.md \
	doc/device.md \
	doc/executor.md \
	doc/formats.md \
	doc/gpu-estimates.md \
	doc/gpu.md \
	doc/gpu-results.md \
	doc/kernels.md \
	doc/loop.md \
	doc/modules.md \
	doc/nano-boot.png \
	doc/nano-grid.png \
	doc/performance.md \
	doc/planner.md \
	doc/strategies.md \
	doc/strategies/colocated.svg \
	doc/strategies/disttrain.svg \
	doc/strategies/homogeneous.svg \
	doc/strategies/megatron-lm.svg \
	doc/strategies/noncolocated.svg \
	doc/learning-curve.awk \
	doc/learning-curve.svg \
	doc/mllm-72b-1296.svg \
	doc/planning-days.svg \
	doc/planning-report.png \
	doc/planning.md \
	doc/program.md \
	doc/reproduction.md \
	doc/robustness.md \
	doc/samples.md \
	doc/simulator.md
