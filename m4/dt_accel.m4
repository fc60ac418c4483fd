# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# --with-cuda, --with-cudnn, --with-nccl, --with-mpi, --with-serve.  Each is tri-state: not given = use it if it works, yes (or a
# directory) = it must work, no = do not look.  "Works" is tried, never guessed from a file's presence.

# DT_TRISTATE(NAME, DESCRIPTION): sets with_NAME to auto, yes or no and dt_NAME_dir.
AC_DEFUN([DT_TRISTATE], [
    AC_ARG_WITH([$1],
        [AS_HELP_STRING([--with-$1@<:@=DIR@:>@], [$2 @<:@used if it works@:>@])],
        [], [with_$1=auto])
    dt_$1_dir=
    AS_CASE([$with_$1], [/*], [dt_$1_dir=$with_$1; with_$1=yes],
                        [yes|no|auto], [],
                        [AC_MSG_ERROR([--with-$1 takes yes, no or an absolute directory, not "$with_$1"])])
])

# DT_TRISTATE_RESULT(NAME, LABEL, WORKS, WHAT): error if demanded and absent; config.h; summary.
AC_DEFUN([DT_TRISTATE_RESULT], [
    AS_IF([test "$with_$1" = no], [dt_$1_found="not looked for (--without-$1)"],
          [test "$3" = yes], [dt_$1_found="found, $4"
                              AC_DEFINE([HAVE_]m4_toupper([$1]), [1], [$2 works here])],
          [test "$with_$1" = yes], [AC_MSG_ERROR([--with-$1 was given, but $2 does not work here; see config.log])],
          [dt_$1_found="not found"])
    AM_CONDITIONAL([HAVE_]m4_toupper([$1]), [test "$3" = yes])
])

# CUDA: nvcc must compile a kernel.
AC_DEFUN([DT_ARG_CUDA], [
    DT_TRISTATE([cuda], [CUDA toolkit])
    AC_ARG_VAR([NVCC], [CUDA compiler])
    AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags])
    dt_cuda_works=no
    AS_IF([test "$with_cuda" != no],
          [AC_PATH_PROG([NVCC], [nvcc], [], [${dt_cuda_dir:+$dt_cuda_dir/bin:}$PATH:/usr/local/cuda/bin])
           AC_MSG_CHECKING([whether nvcc compiles a kernel])
           cat >conftest.cu <<'DT_EOF'
__global__ void add(float *x, float y) { x[[blockIdx.x * blockDim.x + threadIdx.x]] += y; }
int run(float *x) { add<<<1, 32>>>(x, 1.0f); return cudaGetLastError() == cudaSuccess; }
DT_EOF
           AS_IF([test -n "$NVCC" && $NVCC $NVCCFLAGS -c conftest.cu -o conftest.cu.o >&AS_MESSAGE_LOG_FD 2>&1],
                 [dt_cuda_works=yes])
           rm -f conftest.cu conftest.cu.o
           AC_MSG_RESULT([$dt_cuda_works])])
    dt_cuda_asked=$with_cuda
    DT_TRISTATE_RESULT([cuda], [CUDA], [$dt_cuda_works], [$NVCC])
    AM_CONDITIONAL([BUILD_CUDA], [test "$dt_cuda_asked" = yes && test "$dt_cuda_works" = yes])
])

# A C++ compiler for the tests of the module of cards: C++20, and what makes fibers of threads.
AC_DEFUN([DT_CHECK_CXX], [
    AC_LANG_PUSH([C++])
    dt_save_CXXFLAGS=$CXXFLAGS
    CXXFLAGS="$CXXFLAGS -std=c++20"
    AC_MSG_CHECKING([whether $CXX compiles C++20])
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
        #include <type_traits>
        #if !defined(__x86_64__) && !defined(__aarch64__)
        #error "no fibers"
        #endif
        template <typename T> bool has_x() { return requires(T t) { t.x; }; }
        struct s { int x; };]], [[return has_x<s>() ? 0 : 1;]])], [dt_cxx_works=yes], [dt_cxx_works=no])
    AC_MSG_RESULT([$dt_cxx_works])
    CXXFLAGS=$dt_save_CXXFLAGS
    AC_LANG_POP([C++])
    AM_CONDITIONAL([HAVE_CXX], [test "$dt_cxx_works" = yes])
])

# NCCL: header and link.  nccl.h includes CUDA's headers.
AC_DEFUN([DT_ARG_NCCL], [
    DT_TRISTATE([nccl], [NCCL])
    dt_nccl_works=no
    AS_IF([test "$with_nccl" != no],
          [AC_MSG_CHECKING([for NCCL])
           dt_cuda_root=$dt_cuda_dir
           AS_IF([test -z "$dt_cuda_root" && test -n "$NVCC"],
                 [dt_cuda_root=`dirname "$NVCC"`; dt_cuda_root=`dirname "$dt_cuda_root"`])
           dt_save_CPPFLAGS=$CPPFLAGS dt_save_LDFLAGS=$LDFLAGS dt_save_LIBS=$LIBS
           CPPFLAGS="$CPPFLAGS ${dt_nccl_dir:+-I$dt_nccl_dir/include} ${dt_cuda_root:+-I$dt_cuda_root/include}"
           LDFLAGS="$LDFLAGS ${dt_nccl_dir:+-L$dt_nccl_dir/lib} ${dt_cuda_root:+-L$dt_cuda_root/lib64}"
           LIBS="-lnccl $LIBS"
           AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]],
                                           [[int v = 0; return ncclGetVersion(&v) == ncclSuccess ? 0 : v;]])],
                          [dt_nccl_works=yes])
           # what the header has (src/comm/nccl.h); which library is used is seen when a program runs
           AC_COMPUTE_INT([dt_nccl_code], [NCCL_VERSION_CODE], [[#include <nccl.h>]], [dt_nccl_code=0])
           CPPFLAGS=$dt_save_CPPFLAGS LDFLAGS=$dt_save_LDFLAGS LIBS=$dt_save_LIBS
           AC_MSG_RESULT([$dt_nccl_works])])
    dt_nccl_version="`expr "0$dt_nccl_code" / 10000`.`expr "0$dt_nccl_code" / 100 % 100`"
    AS_IF([test "0$dt_nccl_code" -lt 22800],
          [dt_nccl_version="$dt_nccl_version (2.28 is the first whose gathers do without thread blocks)"])
    NCCL_CPPFLAGS="${dt_nccl_dir:+-isystem $dt_nccl_dir/include} ${dt_cuda_root:+-isystem $dt_cuda_root/include}"
    AC_SUBST([NCCL_CPPFLAGS])
    DT_TRISTATE_RESULT([nccl], [NCCL], [$dt_nccl_works], [nccl.h $dt_nccl_version and -lnccl])
])

# cuDNN: header and link, beside the CUDA toolkit.  The module declares what it uses by itself and loads the library at
# run time; what is found here is for tests.  --without-cudnn: the module never looks for it.
AC_DEFUN([DT_ARG_CUDNN], [
    DT_TRISTATE([cudnn], [cuDNN])
    dt_cudnn_works=no CUDNN_LIBDIR=
    AS_IF([test "$with_cudnn" != no],
          [AC_MSG_CHECKING([for cuDNN])
           dt_cuda_root=$dt_cuda_dir
           AS_IF([test -z "$dt_cuda_root" && test -n "$NVCC"],
                 [dt_cuda_root=`dirname "$NVCC"`; dt_cuda_root=`dirname "$dt_cuda_root"`])
           dt_save_CPPFLAGS=$CPPFLAGS dt_save_LDFLAGS=$LDFLAGS dt_save_LIBS=$LIBS
           CPPFLAGS="$CPPFLAGS ${dt_cudnn_dir:+-I$dt_cudnn_dir/include} ${dt_cuda_root:+-I$dt_cuda_root/include}"
           LDFLAGS="$LDFLAGS ${dt_cudnn_dir:+-L$dt_cudnn_dir/lib} ${dt_cuda_root:+-L$dt_cuda_root/lib64}"
           LIBS="-lcudnn $LIBS"
           AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cudnn.h>]], [[return cudnnGetVersion() < 90000;]])],
                          [dt_cudnn_works=yes])
           AC_COMPUTE_INT([dt_cudnn_code], [CUDNN_VERSION], [[#include <cudnn.h>]], [dt_cudnn_code=0])
           CPPFLAGS=$dt_save_CPPFLAGS LDFLAGS=$dt_save_LDFLAGS LIBS=$dt_save_LIBS
           AS_IF([test "0$dt_cudnn_code" -lt 90000], [dt_cudnn_works=no])
           for dt_dir in ${dt_cudnn_dir:+"$dt_cudnn_dir/lib"} ${dt_cuda_root:+"$dt_cuda_root/lib64"}; do
               AS_IF([test -z "$CUDNN_LIBDIR" && test -e "$dt_dir/libcudnn.so.9"], [CUDNN_LIBDIR=$dt_dir])
           done
           AC_MSG_RESULT([$dt_cudnn_works])],
          [NVCCFLAGS="$NVCCFLAGS -DDT_WITHOUT_CUDNN"])
    dt_cudnn_version="`expr "0$dt_cudnn_code" / 10000`.`expr "0$dt_cudnn_code" / 100 % 100`"
    CUDNN_CPPFLAGS="${dt_cudnn_dir:+-isystem $dt_cudnn_dir/include} ${dt_cuda_root:+-isystem $dt_cuda_root/include}"
    AC_SUBST([CUDNN_CPPFLAGS])
    AC_SUBST([CUDNN_LIBDIR])
    DT_TRISTATE_RESULT([cudnn], [cuDNN], [$dt_cudnn_works], [cudnn.h $dt_cudnn_version and -lcudnn])
])

# MPI: Open MPI through pkg-config, else what the compiler wrapper says that it adds (Open MPI:
# --showme; MPICH: -show, whose first word is the compiler).  Compiled with $CC either way.
AC_DEFUN([DT_TRY_MPI], [
    dt_save_CPPFLAGS=$CPPFLAGS dt_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $1"
    LIBS="$2 $LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>]],
                                    [[int n; MPI_Comm_size(MPI_COMM_WORLD, &n);]])],
                   [dt_mpi_works=yes dt_mpi_how="$3" MPI_CFLAGS="$1" MPI_LIBS="$2"])
    CPPFLAGS=$dt_save_CPPFLAGS LIBS=$dt_save_LIBS
])
AC_DEFUN([DT_ARG_MPI], [
    DT_TRISTATE([mpi], [MPI])
    AC_ARG_VAR([MPICC], [MPI C compiler, asked for its flags where pkg-config does not know Open MPI])
    dt_mpi_works=no dt_mpi_how= MPI_CFLAGS= MPI_LIBS=
    AS_IF([test "$with_mpi" != no],
          [AC_PATH_PROG([MPICC], [mpicc], [], [${dt_mpi_dir:+$dt_mpi_dir/bin:}$PATH])
           AC_MSG_CHECKING([for MPI])
           AS_IF([test -z "$dt_mpi_dir" && $PKG_CONFIG --exists ompi-c 2>/dev/null],
                 [dt_flags=`$PKG_CONFIG --cflags ompi-c` dt_libs=`$PKG_CONFIG --libs ompi-c`
                  DT_TRY_MPI([$dt_flags], [$dt_libs], [pkg-config ompi-c])])
           AS_IF([test "$dt_mpi_works" = no && test -n "$MPICC"],
                 [dt_flags=`$MPICC --showme:compile 2>/dev/null` && dt_libs=`$MPICC --showme:link` || {
                      dt_flags=`$MPICC -show -c 2>/dev/null | sed 's/^[[^ ]]* *//; s/ -c *$//'`
                      dt_libs=`$MPICC -show 2>/dev/null | sed 's/^[[^ ]]* *//'`
                  }
                  DT_TRY_MPI([$dt_flags], [$dt_libs], [$MPICC])])
           AC_MSG_RESULT([$dt_mpi_works])])
    # Only what calls MPI loads it.
    AS_IF([test "$dt_mpi_works" = yes],
          [dt_save_LDFLAGS=$LDFLAGS
           LDFLAGS="$LDFLAGS -Wl,--push-state,--as-needed -Wl,--pop-state"
           AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
                          [MPI_LIBS="-Wl,--push-state,--as-needed $MPI_LIBS -Wl,--pop-state"])
           LDFLAGS=$dt_save_LDFLAGS])
    AC_SUBST([MPI_CFLAGS])
    AC_SUBST([MPI_LIBS])
    AC_SUBST([HAVE_MPI], [$dt_mpi_works])
    DT_TRISTATE_RESULT([mpi], [MPI], [$dt_mpi_works], [$dt_mpi_how])
])

# libmicrohttpd through pkg-config, for disttrain serve.
AC_DEFUN([DT_ARG_SERVE], [
    DT_TRISTATE([serve], [libmicrohttpd, for disttrain serve])
    dt_serve_works=no SERVE_CFLAGS= SERVE_LIBS=
    AS_IF([test "$with_serve" != no],
          [AC_MSG_CHECKING([for libmicrohttpd >= 0.9.71])
           AS_IF([PKG_CONFIG_PATH="${dt_serve_dir:+$dt_serve_dir/lib/pkgconfig:}$PKG_CONFIG_PATH"
                  export PKG_CONFIG_PATH
                  $PKG_CONFIG --exists "libmicrohttpd >= 0.9.71" 2>/dev/null],
                 [SERVE_CFLAGS=`$PKG_CONFIG --cflags libmicrohttpd` SERVE_LIBS=`$PKG_CONFIG --libs libmicrohttpd`
                  dt_save_CPPFLAGS=$CPPFLAGS dt_save_LIBS=$LIBS
                  CPPFLAGS="$CPPFLAGS $SERVE_CFLAGS" LIBS="$SERVE_LIBS $LIBS"
                  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <microhttpd.h>]],
                                                  [[return MHD_get_version() == 0;]])],
                                 [dt_serve_works=yes], [SERVE_CFLAGS= SERVE_LIBS=])
                  CPPFLAGS=$dt_save_CPPFLAGS LIBS=$dt_save_LIBS])
           AC_MSG_RESULT([$dt_serve_works])])
    AC_SUBST([SERVE_CFLAGS])
    AC_SUBST([SERVE_LIBS])
    AC_SUBST([HAVE_SERVE], [$dt_serve_works])
    DT_TRISTATE_RESULT([serve], [libmicrohttpd (libmicrohttpd-dev)], [$dt_serve_works],
                       [`$PKG_CONFIG --modversion libmicrohttpd`])
])

# ZeroMQ through pkg-config, for data from other machines.
AC_DEFUN([DT_ARG_ZMQ], [
    DT_TRISTATE([zmq], [ZeroMQ, for disttrain preprocess])
    dt_zmq_works=no ZMQ_CFLAGS= ZMQ_LIBS=
    AS_IF([test "$with_zmq" != no],
          [AC_MSG_CHECKING([for libzmq >= 4.2])
           AS_IF([PKG_CONFIG_PATH="${dt_zmq_dir:+$dt_zmq_dir/lib/pkgconfig:}$PKG_CONFIG_PATH"
                  export PKG_CONFIG_PATH
                  $PKG_CONFIG --exists "libzmq >= 4.2" 2>/dev/null],
                 [ZMQ_CFLAGS=`$PKG_CONFIG --cflags libzmq` ZMQ_LIBS=`$PKG_CONFIG --libs libzmq`
                  dt_save_CPPFLAGS=$CPPFLAGS dt_save_LIBS=$LIBS
                  CPPFLAGS="$CPPFLAGS $ZMQ_CFLAGS" LIBS="$ZMQ_LIBS $LIBS"
                  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <zmq.h>]],
                                                  [[return zmq_has("curve") < 0;]])],
                                 [dt_zmq_works=yes], [ZMQ_CFLAGS= ZMQ_LIBS=])
                  CPPFLAGS=$dt_save_CPPFLAGS LIBS=$dt_save_LIBS])
           AC_MSG_RESULT([$dt_zmq_works])])
    AC_SUBST([ZMQ_CFLAGS])
    AC_SUBST([ZMQ_LIBS])
    AC_SUBST([HAVE_ZMQ], [$dt_zmq_works])
    DT_TRISTATE_RESULT([zmq], [ZeroMQ (libzmq3-dev)], [$dt_zmq_works],
                       [`$PKG_CONFIG --modversion libzmq`])
])

# libsndfile and libsamplerate through pkg-config: sound in training data.
AC_DEFUN([DT_ARG_SNDFILE], [
    DT_TRISTATE([sndfile], [libsndfile and libsamplerate, for training on sound])
    dt_sndfile_works=no SNDFILE_CFLAGS= SNDFILE_LIBS=
    AS_IF([test "$with_sndfile" != no],
          [AC_MSG_CHECKING([for sndfile >= 1.0.31 and samplerate >= 0.1.9])
           AS_IF([PKG_CONFIG_PATH="${dt_sndfile_dir:+$dt_sndfile_dir/lib/pkgconfig:}$PKG_CONFIG_PATH"
                  export PKG_CONFIG_PATH
                  $PKG_CONFIG --exists "sndfile >= 1.0.31 samplerate >= 0.1.9" 2>/dev/null],
                 [SNDFILE_CFLAGS=`$PKG_CONFIG --cflags sndfile samplerate`
                  SNDFILE_LIBS=`$PKG_CONFIG --libs sndfile samplerate`
                  dt_save_CPPFLAGS=$CPPFLAGS dt_save_LIBS=$LIBS
                  CPPFLAGS="$CPPFLAGS $SNDFILE_CFLAGS" LIBS="$SNDFILE_LIBS $LIBS"
                  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <sndfile.h>
                                                    #include <samplerate.h>]],
                                                  [[return !sf_version_string() || !src_is_valid_ratio(1);]])],
                                 [dt_sndfile_works=yes], [SNDFILE_CFLAGS= SNDFILE_LIBS=])
                  CPPFLAGS=$dt_save_CPPFLAGS LIBS=$dt_save_LIBS])
           AC_MSG_RESULT([$dt_sndfile_works])])
    AC_SUBST([SNDFILE_CFLAGS])
    AC_SUBST([SNDFILE_LIBS])
    AC_SUBST([HAVE_SNDFILE], [$dt_sndfile_works])
    DT_TRISTATE_RESULT([sndfile], [libsndfile with libsamplerate (libsndfile1-dev, libsamplerate0-dev)],
                       [$dt_sndfile_works],
                       [`$PKG_CONFIG --modversion sndfile` and `$PKG_CONFIG --modversion samplerate`])
])
