# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.

# oneDNN 2.x, C API, no .pc file in Debian.  3.x has no *_desc_init: the symbol tells them apart.
AC_DEFUN([DT_DNNL], [
    DNNL_LIBS=
    dt_dnnl=no
    AC_CHECK_HEADER([oneapi/dnnl/dnnl.h],
        [dt_save=$LIBS
         AC_CHECK_LIB([dnnl], [dnnl_matmul_desc_init], [DNNL_LIBS=-ldnnl; dt_dnnl=yes])
         LIBS=$dt_save])
    AS_IF([test "$dt_dnnl" = no], [DT_MISSING="$DT_MISSING libdnnl-dev"])
    AC_SUBST([DNNL_LIBS])
])

# Threads and vectors of the kernels.  oneDNN runs on GCC's OpenMP library; a second one (clang's) in the
# same program would fight it for the cores, so there our own loops run on one thread.
AC_DEFUN([DT_KERNEL_FLAGS], [
    AC_CACHE_CHECK([whether $CC is clang], [dt_cv_clang],
        [AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#ifndef __clang__
#error no
#endif]], [[]])], [dt_cv_clang=yes], [dt_cv_clang=no])])
    OPENMP_CFLAGS=
    AS_IF([test "$dt_cv_clang" = no], [AC_OPENMP])
    AC_SUBST([OPENMP_CFLAGS])
    AS_IF([test -n "$OPENMP_CFLAGS"], [dt_openmp=$OPENMP_CFLAGS],
          [dt_openmp="no (kernels on one thread)"])
    DT_CHECK_FLAGS([KERNELS_CFLAGS_FP], m4_normalize([-ffp-contract=fast -fno-trapping-math
        -ftree-vectorize -fvect-cost-model=dynamic -fopenmp-simd]))
    dt_x86=no
    X86_V3_CFLAGS="-mavx2 -mfma -mbmi2 -mf16c"
    X86_V4_CFLAGS="$X86_V3_CFLAGS -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl -mprefer-vector-width=512"
    dt_save=$CFLAGS
    CFLAGS="$CFLAGS $X86_V4_CFLAGS"
    AC_MSG_CHECKING([whether $CC compiles for AVX2 and AVX-512])
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#ifndef __x86_64__
#error no
#endif]], [[__builtin_cpu_init();
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");]])],
        [dt_x86=yes])
    AC_MSG_RESULT([$dt_x86])
    CFLAGS=$dt_save
    AC_SUBST([X86_V3_CFLAGS])
    AC_SUBST([X86_V4_CFLAGS])
    AM_CONDITIONAL([CPU_X86], [test "$dt_x86" = yes])
])
