#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Writes the tables from the Unicode Character Database in Python's unicodedata.  Run by hand when they are to
# follow a newer Unicode version: for t in class decomp comp; do ./unicode.py $t >unicode_$t.c; done
import sys
import unicodedata as u


def ranges(test):
    out, begin = [], None
    for c in range(0x110001):
        inside = c < 0x110000 and test(c)
        if inside and begin is None:
            begin = c
        if not inside and begin is not None:
            out.append((begin, c - 1))
            begin = None
    return out


def rows(cells, width=96):
    line = "   "
    for cell in cells:
        if len(line) + len(cell) + 1 > width:
            print(line)
            line = "   "
        line += " " + cell
    print(line)


def table(ctype, name, cells):
    print(f"const {ctype} {name}[] = {{")
    rows(cells)
    print("};")
    print(f"const size_t {name}_n = sizeof({name}) / sizeof({name}[0]);\n")


def pair(c):
    """The canonical decomposition of c (one step): (first, second or 0), or None."""
    d = u.decomposition(chr(c))
    if not d or d.startswith("<"):
        return None
    parts = [int(x, 16) for x in d.split()]
    return (parts[0], parts[1] if len(parts) > 1 else 0)


print(f"""/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Made by unicode.py from the Unicode Character Database {u.unidata_version} (Copyright 1991-2021
 * Unicode, Inc., under the Unicode License, https://www.unicode.org/license.html).  Do not edit. */
#include "exec/data/unicode_table.h"
""")
print("/* clang-format off */")
what = sys.argv[1]
hangul = range(0xAC00, 0xD7A4)
decomposed = [(c, pair(c)) for c in range(0x110000) if c not in hangul and pair(c)]
if what == "class":
    for name, kind in (("dt_unicode_letters", "L"), ("dt_unicode_numbers", "N")):
        table("struct dt_unicode_range", name,
              [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(lambda c: u.category(chr(c))[0] == kind)])
    cells, begin = [], None
    for c in range(0x110001):
        ccc = u.combining(chr(c)) if c < 0x110000 else 0
        if begin is not None and ccc != begin[1]:
            cells.append(f"{{0x{begin[0]:x}, 0x{c - 1:x}, {begin[1]}}},")
            begin = None
        if ccc and begin is None:
            begin = (c, ccc)
    table("struct dt_unicode_class", "dt_unicode_classes", cells)
if what == "decomp":
    table("struct dt_unicode_pair", "dt_unicode_decompositions",
          [f"{{0x{c:x}, 0x{p[0]:x}, 0x{p[1]:x}}}," for c, p in decomposed])
if what == "comp":
    # Composition: what NFC keeps (this leaves out the composition exclusions)
    composed = sorted((p[0], p[1], c) for c, p in decomposed
                      if p[1] and u.normalize("NFC", chr(c)) == chr(c))
    table("struct dt_unicode_pair", "dt_unicode_compositions",
          [f"{{0x{c:x}, 0x{a:x}, 0x{b:x}}}," for a, b, c in composed])
