#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The page of disttrain serve in a browser.  DT_PICTURES=FOLDER keeps its pictures.
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
skip() { echo "skipped: $1"; exit 77; }
[ "${HAVE_SERVE:-yes}" = yes ] || skip "built without libmicrohttpd"
command -v python3 >/dev/null || skip "no python3"
python3 - "$srcdir/tests" <<'END' || skip "no Chromium"
import sys
sys.path.insert(0, sys.argv[1])
import browser
sys.exit(not browser.find())
END
. "$srcdir/tests/shell.sh"
PYTHONDONTWRITEBYTECODE=1 timeout -k 5 600 python3 "$srcdir/tests/serve_page.py" "$DISTTRAIN" "${DT_PICTURES:-$tmp}"
