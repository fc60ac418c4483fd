# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Shipped data, installed under $(pkgdatadir)/traces with the same folders.
nobase_dist_pkgdata_DATA +=
