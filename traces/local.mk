# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Shipped data, installed under $(pkgdatadir)/traces with the same folders.
nobase_dist_pkgdata_DATA += \
	traces/clusters/a100.yaml \
	traces/clusters/a40.yaml \
	traces/clusters/a800-1296.yaml \
	traces/clusters/a800-96.yaml \
	traces/clusters/a800.yaml \
	traces/clusters/h100.yaml \
	traces/clusters/h20.yaml \
	traces/clusters/h200.yaml \
	traces/clusters/h800.yaml \
	traces/clusters/l40s.yaml \
	traces/clusters/local.yaml \
	traces/jobs/gpt3-175b-1024.yaml \
	traces/jobs/mimo-14b-72.yaml \
	traces/jobs/llama-70b-96.yaml \
	traces/jobs/mixtral-8x7b-64.yaml \
	traces/jobs/mllm-15b-1296.yaml \
	traces/jobs/mllm-15b-96.yaml \
	traces/jobs/mllm-3b-entrain-64.yaml \
	traces/jobs/mllm-72b-1296.yaml \
	traces/jobs/mllm-72b-96.yaml \
	traces/jobs/mllm-9b-1296.yaml \
	traces/jobs/mllm-9b-96.yaml \
	traces/jobs/mllm-audio-64.yaml \
	traces/jobs/mllm-nano-audio.yaml \
	traces/jobs/mllm-nano-local.yaml \
	traces/jobs/mllm-nano-moe.yaml \
	traces/jobs/mllm-nano-train.yaml \
	traces/jobs/mllm-tiny-local.yaml \
	traces/jobs/mllm-tiny-train.yaml \
	traces/jobs/qwen3-30b-a3b-64.yaml \
	traces/measured/megatron.csv \
	traces/models/audioldm-unet.yaml \
	traces/models/beats.yaml \
	traces/models/gpt-22b.yaml \
	traces/models/gpt-530b.yaml \
	traces/models/gpt3-175b.yaml \
	traces/models/llama-13b.yaml \
	traces/models/llama-70b.yaml \
	traces/models/llama-7b.yaml \
	traces/models/llama3-1b.yaml \
	traces/models/llama3-3b.yaml \
	traces/models/mixtral-8x7b.yaml \
	traces/models/mllm-15b.yaml \
	traces/models/mllm-72b.yaml \
	traces/models/mllm-9b.yaml \
	traces/models/mllm-audio.yaml \
	traces/models/mllm-nano-audio.yaml \
	traces/models/mllm-nano-moe.yaml \
	traces/models/mllm-nano.yaml \
	traces/models/mllm-tiny.yaml \
	traces/models/qwen2.5-vl-vit.yaml \
	traces/models/qwen3-30b-a3b.yaml \
	traces/models/sd21-unet.yaml \
	traces/models/vit-huge.yaml \
	traces/profiles/a100.sql \
	traces/profiles/a800.sql \
	traces/profiles/h100.sql \
	traces/rules/default.yaml \
	traces/samples/audio.yaml \
	traces/samples/interleaved-8k.yaml \
	traces/samples/laion-8k.yaml \
	traces/samples/text.yaml
EXTRA_DIST += traces/profiles/build.sh

# Rebuilds the shipped profiles from the published tables that they name: make profiles DATA=dir
# (sources and folders: traces/profiles/build.sh); the result is compared byte for byte.
profiles: all
	@test -d "$(DATA)" || { echo 'usage: make profiles DATA=DIRECTORY_OF_TABLES' >&2; exit 1; }
	$(MKDIR_P) profiles-new
	$(srcdir)/traces/profiles/build.sh ./disttrain$(EXEEXT) "$(DATA)" profiles-new
	for p in a100 a800 h100; do cmp profiles-new/$$p.sql $(srcdir)/traces/profiles/$$p.sql || exit 1; done
.PHONY: profiles
