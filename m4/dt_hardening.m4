# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.

# DT_TRY_HARDEN(NAME, COMPILE FLAGS, LINK FLAGS): adds what a program compiles and links with; NAME is
# what tests/test_hardening.sh then looks for in the result.
AC_DEFUN([DT_TRY_HARDEN], [
    AC_MSG_CHECKING([whether $CC takes $2 $3])
    dt_save_CFLAGS=$CFLAGS dt_save_LDFLAGS=$LDFLAGS
    CFLAGS="$CFLAGS $AM_CFLAGS_HARD -Werror $2"
    LDFLAGS="$LDFLAGS $AM_LDFLAGS_HARD $3"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <stdio.h>]], [[return printf("") != 0;]])],
                   [AC_MSG_RESULT([yes])
                    AM_CFLAGS_HARD="$AM_CFLAGS_HARD $2"
                    AM_LDFLAGS_HARD="$AM_LDFLAGS_HARD $3"
                    DT_HARDENING="$DT_HARDENING $1"],
                   [AC_MSG_RESULT([no])])
    CFLAGS=$dt_save_CFLAGS LDFLAGS=$dt_save_LDFLAGS
])

# Programs that read files of strangers: what the compiler and the linker have against a fault in
# them, on by default.  FORTIFY needs an optimising build, and would hide from ASan what it catches.
AC_DEFUN([DT_ARG_HARDENING], [
    AC_ARG_ENABLE([hardening],
        [AS_HELP_STRING([--disable-hardening],
                        [leave out RELRO, PIE, stack protector, FORTIFY and control-flow protection])],
        [], [enable_hardening=yes])
    AM_CFLAGS_HARD= AM_LDFLAGS_HARD= DT_HARDENING=
    AS_IF([test "$enable_hardening" != no],
          [DT_TRY_HARDEN([pie], [-fPIE], [-pie])
           DT_TRY_HARDEN([relro], [], [-Wl,-z,relro])
           DT_TRY_HARDEN([now], [], [-Wl,-z,now])
           DT_TRY_HARDEN([noexecstack], [], [-Wl,-z,noexecstack])
           DT_TRY_HARDEN([canary], [-fstack-protector-strong], [])
           DT_TRY_HARDEN([clash], [-fstack-clash-protection], [])
           DT_TRY_HARDEN([cfi], [-fcf-protection=full], [])
           AS_CASE([$DT_HARDENING], [*cfi*], [],
                   [DT_TRY_HARDEN([cfi], [-mbranch-protection=standard], [])])
           AS_IF([test -z "$AM_CFLAGS_SAN"],
                 [dt_before=$DT_HARDENING
                  DT_TRY_HARDEN([fortify], [-D_FORTIFY_SOURCE=3], [])
                  AS_IF([test "$DT_HARDENING" = "$dt_before"],
                        [DT_TRY_HARDEN([fortify], [-D_FORTIFY_SOURCE=2], [])])])])
    AC_SUBST([AM_CFLAGS_HARD])
    AC_SUBST([AM_LDFLAGS_HARD])
    AC_SUBST([DT_HARDENING])
])
