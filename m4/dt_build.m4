# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.

# DT_CHECK_FLAGS(VARIABLE, FLAGS): substitutes those of FLAGS that the compiler takes.
# The user's CFLAGS stay as they are.
AC_DEFUN([DT_CHECK_FLAGS], [
    $1=
    for dt_flag in $2; do
        AC_MSG_CHECKING([whether $CC takes $dt_flag])
        dt_save=$CFLAGS
        CFLAGS="$CFLAGS -Werror $dt_flag"
        AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[extern int used;]], [[]])],
                          [AC_MSG_RESULT([yes]); $1="$$1 $dt_flag"], [AC_MSG_RESULT([no])])
        CFLAGS=$dt_save
    done
    AC_SUBST([$1])
])

# DT_CHECK_STD: C11 with the common extensions, whatever the compiler's default is.
AC_DEFUN([DT_CHECK_STD], [
    DT_CHECK_FLAGS([AM_CFLAGS_STD], [-std=gnu11])
    AS_IF([test -z "$AM_CFLAGS_STD"], [AC_MSG_ERROR([a C11 compiler is needed])])
])

# DT_LIBRARY(PREFIX, MODULE, PACKAGE): pkg-config; what is missing is collected in DT_MISSING so
# that the user hears of all of it at once.
AC_DEFUN([DT_LIBRARY], [
    PKG_CHECK_MODULES([$1], [$2], [], [DT_MISSING="$DT_MISSING $3"])
])

# Sanitizers, coverage and fuzzing add to AM_CFLAGS and AM_LDFLAGS, never to CFLAGS.
AC_DEFUN([DT_NEED_FLAG], [
    AC_MSG_CHECKING([whether $CC links with $1])
    dt_save=$CFLAGS
    CFLAGS="$CFLAGS $1"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
                   [AC_MSG_RESULT([no])
                    AC_MSG_ERROR([$2 was asked for, but $CC cannot link with $1])])
    CFLAGS=$dt_save
])

AC_DEFUN([DT_ARG_SANITIZERS], [
    AC_ARG_ENABLE([asan], [AS_HELP_STRING([--enable-asan], [build with AddressSanitizer])],
                  [], [enable_asan=no])
    AC_ARG_ENABLE([ubsan],
                  [AS_HELP_STRING([--enable-ubsan], [build with UndefinedBehaviorSanitizer])],
                  [], [enable_ubsan=no])
    AM_CFLAGS_SAN=
    dt_sanitizers=
    AS_IF([test "$enable_asan" != no],
          [DT_NEED_FLAG([-fsanitize=address], [--enable-asan])
           AM_CFLAGS_SAN="-fsanitize=address"
           dt_sanitizers="address "])
    AS_IF([test "$enable_ubsan" != no],
          [DT_NEED_FLAG([-fsanitize=undefined], [--enable-ubsan])
           AM_CFLAGS_SAN="$AM_CFLAGS_SAN -fsanitize=undefined -fno-sanitize-recover=undefined"
           dt_sanitizers="${dt_sanitizers}undefined"])
    AS_IF([test -n "$AM_CFLAGS_SAN"],
          [AM_CFLAGS_SAN="$AM_CFLAGS_SAN -fno-omit-frame-pointer"], [dt_sanitizers=no])
    AC_SUBST([AM_CFLAGS_SAN])
])

AC_DEFUN([DT_ARG_COVERAGE], [
    AC_ARG_ENABLE([coverage],
                  [AS_HELP_STRING([--enable-coverage],
                                  [count executed lines; then "make coverage" reports them])],
                  [], [enable_coverage=no])
    AM_CFLAGS_COV=
    AS_IF([test "$enable_coverage" != no],
          [DT_NEED_FLAG([--coverage], [--enable-coverage])
           AM_CFLAGS_COV="--coverage -O0 -fprofile-update=atomic"])
    AC_SUBST([AM_CFLAGS_COV])
    AM_CONDITIONAL([COVERAGE], [test "$enable_coverage" != no])
])

AC_DEFUN([DT_ARG_FUZZING], [
    AC_ARG_ENABLE([fuzzing],
                  [AS_HELP_STRING([--enable-fuzzing],
                                  [build the fuzz targets with libFuzzer (CC=clang); then "make fuzz"])],
                  [], [enable_fuzzing=no])
    AM_CFLAGS_FUZZ=
    AS_IF([test "$enable_fuzzing" != no],
          [AC_MSG_CHECKING([whether $CC has libFuzzer])
           dt_save=$CFLAGS
           CFLAGS="$CFLAGS -fsanitize=fuzzer"
           AC_LINK_IFELSE([AC_LANG_SOURCE([[
#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) { return data && size > 1 ? 0 : 0; }
]])],             [AC_MSG_RESULT([yes])],
                  [AC_MSG_RESULT([no])
                   AC_MSG_ERROR([--enable-fuzzing needs clang and its libFuzzer: configure with CC=clang
(on Debian: apt-get install clang libclang-rt-dev)])])
           CFLAGS=$dt_save
           AM_CFLAGS_FUZZ=-fsanitize=fuzzer-no-link])
    AC_SUBST([AM_CFLAGS_FUZZ])
    AM_CONDITIONAL([FUZZING], [test "$enable_fuzzing" != no])
])
