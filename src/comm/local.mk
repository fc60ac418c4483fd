# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtcomm.a
libdtcomm_a_SOURCES = \
	src/comm/backoff.h \
	src/comm/cores.c \
	src/comm/cores.h \
	src/comm/lifeline.c \
	src/comm/lifeline.h \
	src/comm/load.c \
	src/comm/load.h \
	src/comm/nccl.c \
	src/comm/nccl.h \
	src/comm/reference.c \
	src/comm/reference.h \
	src/comm/supervisor.c \
	src/comm/supervisor.h \
	src/comm/supervisor_impl.h \
	src/comm/supervisor_page.c \
	src/comm/supervisor_watch.c \
	src/comm/transport.c \
	src/comm/transport.h \
	src/comm/transport_agree.c \
	src/comm/transport_agree.h \
	src/comm/transport_coll.c \
	src/comm/transport_impl.h \
	src/comm/transport_ipc.c \
	src/comm/transport_ipc.h \
	src/comm/transport_ipc_agree.c \
	src/comm/transport_ipc_edge.c \
	src/comm/transport_ipc_map.c \
	src/comm/transport_ipc_post.c \
	src/comm/transport_launcher.c \
	src/comm/transport_meet.c \
	src/comm/transport_meet.h \
	src/comm/transport_nccl.c \
	src/comm/transport_nccl_coll.c \
	src/comm/transport_nccl_connect.c \
	src/comm/transport_nccl_impl.h \
	src/comm/transport_nccl_issue.c \
	src/comm/transport_nccl_link.c \
	src/comm/transport_nccl_memory.c \
	src/comm/transport_reduce.c \
	src/comm/transport_request.c \
	src/comm/transport_staged.c \
	src/comm/transport_staged.h \
	src/comm/transport_staged_post.c \
	src/comm/transport_tasks.c \
	src/comm/transport_tcp.c \
	src/comm/transport_tcp_impl.h \
	src/comm/transport_tcp_open.c \
	src/comm/transport_threads.c \
	src/comm/transport_tp.c \
	src/comm/transport_tp_beside.c \
	src/comm/transport_tp_impl.h
if HAVE_MPI
libdtcomm_a_SOURCES += src/comm/transport_mpi.c
else
libdtcomm_a_SOURCES += src/comm/transport_nompi.c
endif
