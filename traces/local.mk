# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Shipped data, installed under $(pkgdatadir)/traces with the same folders.
nobase_dist_pkgdata_DATA += \
	traces/samples/audio.yaml \
	traces/samples/interleaved-8k.yaml \
	traces/samples/laion-8k.yaml \
	traces/samples/text.yaml
