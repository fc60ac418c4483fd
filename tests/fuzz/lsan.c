/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * libfyaml 0.7.12 loses an iterator's 512-byte buffer on some single-quoted scalars, for instance
 * {'''''\f'''''''.  It is the library's, bounded, and freed with the process; leaks of our own are still
 * reported. */
const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libfyaml.so\n";
}
