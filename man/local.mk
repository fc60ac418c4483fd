# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
dist_man_MANS += \
	man/disttrain-accuracy.1 \
	man/disttrain-compare.1 \
	man/disttrain-completion.1 \
	man/disttrain-data.1 \
	man/disttrain-db.1 \
	man/disttrain-devices.1 \
	man/disttrain-eval.1 \
	man/disttrain-job.5 \
	man/disttrain-json.5 \
	man/disttrain-keys.1 \
	man/disttrain-list.1 \
	man/disttrain-loop.1 \
	man/disttrain-plan.1 \
	man/disttrain-preprocess.1 \
	man/disttrain-profile.1 \
	man/disttrain-report.1 \
	man/disttrain-reproduce.1 \
	man/disttrain-runs.1 \
	man/disttrain-sample.1 \
	man/disttrain-serve.1 \
	man/disttrain-show.1 \
	man/disttrain-simulate.1 \
	man/disttrain-trace.1 \
	man/disttrain-train.1 \
	man/disttrain-whatif.1 \
	man/disttrain.1
