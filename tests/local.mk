# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# tests/test_X.c is a Check program: add tests/test_X to check_PROGRAMS, nothing else is needed
# (of more than one source file: set tests_test_X_SOURCES too; headers go to EXTRA_DIST).
# Shell tests go to SHELL_TESTS.  A program that cannot run here exits 77 (skipped).
check_PROGRAMS += \
	tests/mutate \
	tests/bench/roofline \
	tests/nccl_card \
	tests/test_accuracy \
	tests/test_algorithms \
	tests/test_assign \
	tests/test_assign_choose \
	tests/test_assign_order \
	tests/test_axes \
	tests/test_base \
	tests/test_batching \
	tests/test_boundary \
	tests/test_bubbles \
	tests/test_captions \
	tests/test_chart \
	tests/test_checkpoint \
	tests/test_checkpoint_dir \
	tests/test_checkpoint_lock \
	tests/test_colocate \
	tests/test_communicator \
	tests/test_convex \
	tests/test_cores \
	tests/test_cost \
	tests/test_cost_comm \
	tests/test_cost_curve \
	tests/test_cost_many \
	tests/test_cost_stage \
	tests/test_cuda_dnn \
	tests/test_cuda_faults \
	tests/test_cuda_products \
	tests/test_cut \
	tests/test_data_image \
	tests/test_data_bad \
	tests/test_data_loader \
	tests/test_data_png \
	tests/test_data_shard \
	tests/test_data_tokenizer \
	tests/test_data_upright \
	tests/test_decay \
	tests/test_device_calls \
	tests/test_doc \
	tests/test_drift \
	tests/test_engine \
	tests/test_entrain \
	tests/test_ep \
	tests/test_execute \
	tests/test_execute_ranks \
	tests/test_experts \
	tests/test_explain \
	tests/test_extremes \
	tests/test_fake_device \
	tests/test_feed \
	tests/test_feed_faults \
	tests/test_ferry \
	tests/test_finite \
	tests/test_formula \
	tests/test_frames \
	tests/test_gain \
	tests/test_group \
	tests/test_guard \
	tests/test_guests \
	tests/test_hashtable \
	tests/test_hf_defaults \
	tests/test_hf_keys \
	tests/test_hf_models \
	tests/test_hf_numbers \
	tests/test_infer \
	tests/test_ipc \
	tests/test_ipc_ends \
	tests/test_job \
	tests/test_kernel_rules \
	tests/test_kernels_attention \
	tests/test_kernels_basic \
	tests/test_kernels_bf16 \
	tests/test_kernels_device \
	tests/test_kernels_loss \
	tests/test_kernels_norm \
	tests/test_kernels_product \
	tests/test_kernels_route \
	tests/test_launches \
	tests/test_makespan \
	tests/test_megatron \
	tests/test_memo \
	tests/test_memory \
	tests/test_memory_card \
	tests/test_memory_device \
	tests/test_offload_memory \
	tests/test_items \
	tests/test_merge \
	tests/test_cluster \
	tests/test_model \
	tests/test_model_changes \
	tests/test_modules_figures \
	tests/test_modules_grad \
	tests/test_modules_noise \
	tests/test_modules_stage \
	tests/test_modules_tp \
	tests/test_samples_fit \
	tests/test_stepccl \
	tests/test_nccl \
	tests/test_network \
	tests/test_on_queue \
	tests/test_optimizer \
	tests/test_optimizer_host \
	tests/test_orchestrate \
	tests/test_outliers \
	tests/test_overlap \
	tests/test_placement \
	tests/test_mix \
	tests/test_phases \
	tests/test_plan \
	tests/test_png \
	tests/test_point \
	tests/test_profile \
	tests/test_profile_shipped \
	tests/test_profile_fit \
	tests/test_profile_import \
	tests/test_profile_kineto \
	tests/test_profile_nccl \
	tests/test_profiler \
	tests/test_program \
	tests/test_program_mutants \
	tests/test_replicas \
	tests/test_report \
	tests/test_rows \
	tests/test_run_facts \
	tests/test_run_log \
	tests/test_run_view \
	tests/test_runs \
	tests/test_runs_hostile \
	tests/test_safetensors \
	tests/test_samples \
	tests/test_schedule \
	tests/test_search \
	tests/test_search_more \
	tests/test_serve \
	tests/test_serve_http \
	tests/test_shard_kept \
	tests/test_shard_print \
	tests/test_simulate \
	tests/test_sizing \
	tests/test_split \
	tests/test_staged \
	tests/test_step_memory \
	tests/test_supply \
	tests/test_supply_steady \
	tests/test_sweep \
	tests/test_tcp_frames \
	tests/test_tensorboard \
	tests/test_timeline \
	tests/test_trace_perfetto \
	tests/test_train \
	tests/test_train_peak \
	tests/test_transport \
	tests/test_turns \
	tests/test_classes \
	tests/test_with \
	tests/test_warmup \
	tests/test_zb_h1 \
	tests/test_offload \
	tests/test_offload_params \
	tests/test_offload_search \
	tests/test_zero
tests_test_rows_SOURCES = tests/test_rows.c src/cli/rows.c src/cli/table.c
tests_test_point_SOURCES = \
	tests/test_point.c \
	src/cli/explain.c \
	src/cli/facts.c \
	src/cli/options.c \
	src/cli/point.c \
	src/cli/plan_classes.c \
	src/cli/point_known.c \
	src/cli/progress.c \
	src/cli/rows.c \
	src/cli/session.c \
	src/cli/session_json.c \
	src/cli/data_facts.c \
	src/cli/table.c
tests_mutate_SOURCES = tests/mutate.c tests/mutate.h tests/mutate_bytes.c
tests_test_cores_SOURCES = tests/test_cores.c tests/synth.c tests/synth.h
tests_test_engine_SOURCES = tests/test_engine.c tests/synth.c tests/synth.h
tests_test_network_SOURCES = tests/test_network.c tests/synth.c tests/synth.h
tests_test_outliers_SOURCES = tests/test_outliers.c tests/synth.c tests/synth.h
tests_test_entrain_SOURCES = tests/test_entrain.c tests/entrain_samples.h
tests_test_assign_choose_SOURCES = tests/test_assign_choose.c tests/random_plan.h
tests_test_program_SOURCES = tests/test_program.c tests/random_plan.h
tests_test_supply_SOURCES = tests/test_supply.c tests/random_plan.h
tests_test_supply_steady_SOURCES = tests/test_supply_steady.c tests/random_plan.h
tests_test_makespan_SOURCES = tests/test_makespan.c tests/random_plan.h
tests_test_replicas_SOURCES = tests/test_replicas.c tests/random_plan.h
tests_test_program_mutants_SOURCES = \
	tests/test_program_mutants.c tests/program_choose.h tests/program_oracle.c tests/program_oracle.h \
	tests/program_oracle_counts.c tests/program_oracle_impl.h tests/random_plan.h
tests_test_serve_LDADD = libdtserve.a $(LDADD)
tests_test_zb_h1_SOURCES = tests/test_zb_h1.c tests/random_plan.h
tests_test_warmup_SOURCES = tests/test_warmup.c tests/random_plan.h
tests_test_mix_SOURCES = tests/test_mix.c tests/sched_fixture.h
tests_test_phases_SOURCES = tests/test_phases.c tests/sched_fixture.h
tests_test_zero_SOURCES = tests/test_zero.c tests/random_plan.h
tests_test_offload_SOURCES = tests/test_offload.c tests/random_plan.h
tests_test_offload_params_SOURCES = tests/test_offload_params.c tests/random_plan.h
tests_test_run_view_SOURCES = tests/test_run_view.c tests/synth.c tests/synth.h
tests_test_runs_hostile_SOURCES = tests/test_runs_hostile.c tests/synth.c tests/synth.h
tests_test_timeline_SOURCES = tests/test_timeline.c tests/synth.c tests/synth.h
tests_test_trace_perfetto_SOURCES = tests/test_trace_perfetto.c tests/synth.c tests/synth.h
tests_test_transport_SOURCES = \
	tests/test_transport.c \
	tests/transport_suite.c \
	tests/transport_suite.h
tests_test_transport_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_infer_SOURCES = tests/test_infer.c tests/exec_fixture.h
tests_test_profile_import_SOURCES = \
	tests/import_fixture.h \
	tests/kernel_traces.c \
	tests/kernel_traces.h \
	tests/test_profile_import.c
tests_test_profile_kineto_SOURCES = \
	tests/import_fixture.h \
	tests/kernel_traces.c \
	tests/kernel_traces.h \
	tests/test_profile_kineto.c
# What dt_test_device_open is: the CPU, or a device of tests (fake_device.h).
check_LIBRARIES = tests/libfakedevice.a
tests_libfakedevice_a_SOURCES = \
	tests/fake_device.c \
	tests/fake_device.h \
	tests/fake_device_event.c \
	tests/fake_device_impl.h \
	tests/fake_device_ipc.c \
	tests/fake_device_kernels.c \
	tests/fake_device_memory.c \
	tests/fake_device_queue.c
TEST_DEVICE_LIBS = tests/libfakedevice.a $(DT_KERNEL_LIBS)
tests_test_batching_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_cuda_dnn_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_cuda_faults_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_cuda_products_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_fake_device_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_ferry_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
if HAVE_NCCL
check_PROGRAMS += tests/test_nccl_abi
endif
if HAVE_CUDNN
check_PROGRAMS += tests/test_cudnn_abi
endif
if HAVE_SNDFILE
check_PROGRAMS += tests/test_audio
endif
tests_test_audio_SOURCES = tests/test_audio.c tests/sound_fixture.h
tests_test_nccl_abi_CPPFLAGS = $(AM_CPPFLAGS) $(NCCL_CPPFLAGS)
tests_test_nccl_abi_LDADD =
tests_test_cudnn_abi_CPPFLAGS = $(AM_CPPFLAGS) $(CUDNN_CPPFLAGS)
tests_test_cudnn_abi_LDADD =
tests_bench_roofline_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_nccl_card_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_device_calls_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_ipc_SOURCES = tests/test_ipc.c tests/ipc_fixture.h
tests_test_ipc_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_ipc_ends_SOURCES = tests/test_ipc_ends.c tests/ipc_fixture.h
tests_test_ipc_ends_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_nccl_SOURCES = tests/test_nccl.c tests/nccl_fixture.h
tests_test_nccl_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_on_queue_SOURCES = tests/test_on_queue.c tests/nccl_fixture.h
tests_test_on_queue_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_launches_SOURCES = tests/test_launches.c tests/exec_fixture.h
tests_test_decay_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_launches_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_optimizer_SOURCES = tests/test_optimizer.c tests/exec_fixture.h
tests_test_optimizer_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_optimizer_host_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_overlap_SOURCES = tests/test_overlap.c tests/exec_fixture.h
tests_test_overlap_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_profiler_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_finite_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_infer_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_train_peak_LDADD = $(LDADD) $(DT_KERNEL_LIBS) $(LDADD)
tests_test_train_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_execute_SOURCES = tests/test_execute.c tests/exec_fixture.h
tests_test_memory_card_SOURCES = tests/test_memory_card.c tests/memory_fixture.h tests/exec_fixture.h
tests_test_memory_card_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_memory_device_SOURCES = tests/test_memory_device.c tests/memory_fixture.h tests/exec_fixture.h
tests_test_memory_device_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_offload_memory_SOURCES = tests/test_offload_memory.c tests/memory_fixture.h tests/exec_fixture.h
tests_test_offload_memory_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_execute_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_execute_ranks_SOURCES = \
	tests/exec_fixture.h \
	tests/execute_layouts.c \
	tests/execute_ranks.h \
	tests/execute_ranks_bf16.c \
	tests/execute_ranks_comm.c \
	tests/execute_ranks_life.c \
	tests/execute_ranks_nonfinite.c \
	tests/execute_ranks_offload.c \
	tests/execute_ranks_whole.c \
	tests/nccl_fixture.h \
	tests/test_execute_ranks.c
tests_test_execute_ranks_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_step_memory_SOURCES = tests/test_step_memory.c tests/exec_fixture.h
tests_test_step_memory_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
KERNEL_TEST_SOURCES = tests/kernel_util.h tests/ref_kernels.c tests/ref_kernels.h
tests_test_kernels_attention_SOURCES = tests/test_kernels_attention.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_attention_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_kernels_bf16_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_kernels_device_SOURCES = tests/test_kernels_device.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_device_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_kernels_basic_SOURCES = tests/test_kernels_basic.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_basic_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_kernels_loss_SOURCES = tests/test_kernels_loss.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_loss_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_kernels_norm_SOURCES = tests/test_kernels_norm.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_norm_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_kernels_product_SOURCES = tests/test_kernels_product.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_product_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_kernels_route_SOURCES = tests/test_kernels_route.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_route_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
MODULE_TEST_SOURCES = tests/module_run.c tests/module_util.c tests/module_util.h tests/ref_impl.h tests/ref_modules.c tests/ref_modules.h \
	tests/ref_unet.c
tests_test_modules_grad_SOURCES = tests/test_modules_grad.c tests/modules_dump.c $(MODULE_TEST_SOURCES)
tests_test_modules_grad_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_modules_noise_SOURCES = tests/test_modules_noise.c $(MODULE_TEST_SOURCES)
tests_test_modules_noise_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_modules_figures_SOURCES = tests/test_modules_figures.c $(MODULE_TEST_SOURCES)
tests_test_modules_figures_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_modules_stage_SOURCES = tests/test_modules_stage.c $(MODULE_TEST_SOURCES)
tests_test_modules_stage_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_modules_tp_SOURCES = tests/test_modules_tp.c $(MODULE_TEST_SOURCES)
tests_test_hf_numbers_SOURCES = tests/test_hf_numbers.c tests/hf_numbers.h
tests_test_hf_numbers_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_test_modules_tp_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)
tests_test_stepccl_SOURCES = tests/test_stepccl.c $(MODULE_TEST_SOURCES)
tests_test_stepccl_LDADD = $(TEST_DEVICE_LIBS) $(LDADD)

# started by shell tests under mpirun
if HAVE_MPI
noinst_PROGRAMS = tests/supervisor_ranks
endif

SHELL_TESTS = \
	tests/lint.sh \
	tests/test_advice.sh \
	tests/test_batch_order.sh \
	tests/test_bundle.sh \
	tests/test_quickstart.sh \
	tests/test_checkpoint_folder.sh \
	tests/test_checkpoint_job.sh \
	tests/test_checkpoint_kills.sh \
	tests/test_checkpoint_ranks.sh \
	tests/test_cli.sh \
	tests/test_effort.sh \
	tests/test_entrain_plans.sh \
	tests/test_mix_train.sh \
	tests/test_cluster_keys.sh \
	tests/test_compare.sh \
	tests/test_completion.sh \
	tests/test_data_cli.sh \
	tests/test_data_shares.sh \
	tests/test_data_tokens.sh \
	tests/test_decide.sh \
	tests/test_device_delays.sh \
	tests/test_cuda_cpu.sh \
	tests/test_cudnn_plans.sh \
	tests/test_cudnn_train.sh \
	tests/test_roofline.sh \
	tests/test_devices.sh \
	tests/test_eval.sh \
	tests/test_execute_mpi.sh \
	tests/test_faults.sh \
	tests/test_fused.sh \
	tests/test_golden.sh \
	tests/test_gpu_jobs.sh \
	tests/test_hardening.sh \
	tests/test_ipc_train.sh \
	tests/test_isa.sh \
	tests/test_nccl_environment.sh \
	tests/test_hf.sh \
	tests/test_hosts.sh \
	tests/test_inputs.sh \
	tests/test_json.sh \
	tests/test_expert_jobs.sh \
	tests/test_job_facts.sh \
	tests/test_launch.sh \
	tests/test_licences.sh \
	tests/test_lists.sh \
	tests/test_loop.sh \
	tests/test_loop_orders.sh \
	tests/test_loop_strategies.sh \
	tests/test_man.sh \
	tests/test_measured.sh \
	tests/test_merge_train.sh \
	tests/test_modules_torch.sh \
	tests/test_mpi.sh \
	tests/test_mutants.sh \
	tests/test_neighbours.sh \
	tests/test_neighbours.sh \
	tests/test_never_slower.sh \
	tests/test_nonfinite.sh \
	tests/test_page.sh \
	tests/test_page_browser.sh \
	tests/test_pages.sh \
	tests/test_plan_file.sh \
	tests/test_plan_memory.sh \
	tests/test_planning.sh \
	tests/test_reorder.sh \
	tests/test_profile_import_files.sh \
	tests/test_profile_job.sh \
	tests/test_preprocess.sh \
	tests/test_preprocess_kills.sh \
	tests/test_preprocess_simulated.sh \
	tests/test_python.sh \
	tests/test_doc_jobs.sh \
	tests/test_readme.sh \
	tests/test_reproduction.sh \
	tests/test_reproduction_runs.sh \
	tests/test_run_algorithms.sh \
	tests/test_runs_cli.sh \
	tests/test_runs_keep.sh \
	tests/test_serve_page.sh \
	tests/test_stated.sh \
	tests/test_tables.sh \
	tests/test_tcp.sh \
	tests/test_trace.sh \
	tests/test_train_audio.sh \
	tests/test_train_cli.sh \
	tests/test_train_cp.sh \
	tests/test_train_drawn.sh \
	tests/test_hf_planned.sh \
	tests/test_hf_weights.sh \
	tests/test_train_ep.sh \
	tests/test_train_groups.sh \
	tests/test_train_offload.sh \
	tests/test_offload_auto.sh \
	tests/test_train_mpi.sh \
	tests/test_supervisor.sh \
	tests/test_whatif.sh \
	tests/test_whatif_target.sh \
	tests/test_windows.sh

TESTS += $(check_PROGRAMS) $(SHELL_TESTS)
TEST_EXTENSIONS = .sh
EXTRA_DIST += $(SHELL_TESTS) \
	tests/bench/loop_orders.sh \
	tests/bench/pair.py \
	tests/bench/peers.sh \
	tests/bench/producers.sh \
	tests/bench/slow_producer.sh \
	tests/bench/ranks.sh \
	tests/bench/roofline.py \
	tests/bench/torch_step.py \
	tests/bench/whatif.sh \
	tests/browser.py \
	tests/data/hf \
	tests/data/runs-before.sql \
	tests/golden \
	tests/data/tokenizer \
	tests/data_fixture.h \
	tests/jpeg_file.h \
	tests/feed_fixture.h \
	tests/data_tokens_compare.py \
	tests/hf_compare.py \
	tests/hf_numbers.py \
	tests/hf_params.py \
	tests/hf_weights.py \
	tests/modules_compare.py \
	tests/laion.h \
	tests/loader_fixture.h \
	tests/loop_job.sh \
	tests/mpirun.sh \
	tests/cost_fixture.h \
	tests/plan_modes.h \
	tests/sched_fixture.h \
	tests/serve_page.py \
	tests/console.sh \
	tests/shell.sh \
	tests/small_job.sh \
	tests/small_world.h \
	tests/brute_plans.h \
	tests/test_util.h
AM_TESTS_ENVIRONMENT = \
	LC_ALL=C; export LC_ALL; \
	GOMP_SPINCOUNT=1000; export GOMP_SPINCOUNT; \
	srcdir='$(abs_srcdir)'; export srcdir; \
	DISTTRAIN='$(abs_builddir)/disttrain$(EXEEXT)'; export DISTTRAIN; \
	HAVE_MPI='$(HAVE_MPI)'; export HAVE_MPI; \
	HAVE_SERVE='$(HAVE_SERVE)'; export HAVE_SERVE; \
	CUDNN_LIBDIR='$(CUDNN_LIBDIR)'; export CUDNN_LIBDIR; \
	HARDENING='$(DT_HARDENING)'; export HARDENING;

# Modules of devices for tests/test_devices.sh: one that is right, others that are not.
DEVICE_MODULES = \
	tests/modules/OLD/disttrain-cuda.so \
	tests/modules/OTHER/disttrain-cuda.so \
	tests/modules/RIGHT/disttrain-cuda.so
check_DATA = $(DEVICE_MODULES)
CLEANFILES += $(DEVICE_MODULES)
EXTRA_DIST += tests/device_module.c
$(DEVICE_MODULES): tests/device_module.c src/kernels/device.h
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) -DFAKE_MODULE_$$(basename $(@D)) $(AM_CPPFLAGS) $(CPPFLAGS) \
	    $(AM_CFLAGS) $(CFLAGS) -fPIC -shared -o $@ $(srcdir)/tests/device_module.c

# NCCL for tests, and where configure finds it, its header against what is declared of it here.
FAKE_NCCL = tests/modules/NCCL/libnccl.so.2
check_DATA += $(FAKE_NCCL)
CLEANFILES += $(FAKE_NCCL)
FAKE_NCCL_FILES = tests/fake_nccl.c tests/fake_nccl_meet.c tests/fake_nccl_memory.c
EXTRA_DIST += $(FAKE_NCCL_FILES) tests/fake_nccl.h tests/fake_nccl_impl.h tests/test_nccl_abi.c
$(FAKE_NCCL): $(FAKE_NCCL_FILES) tests/fake_nccl.h tests/fake_nccl_impl.h src/comm/nccl.h
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) $(AM_CFLAGS) \
	    $(CFLAGS) -fPIC -fvisibility=hidden -shared -o $@ \
	    $(FAKE_NCCL_FILES:%=$(srcdir)/%) -lpthread

# ---- the module of cards, for a CPU ----
# The same sources, by g++ against imitations of CUDA's runtime, of cuBLASLt and of cuDNN (tests/cuda_cpu).
CUDA_CPU = tests/modules/CPU/disttrain-cuda.so
CUDA_CPU_FILES = \
	tests/cuda_cpu/block.cc \
	tests/cuda_cpu/calls.cc \
	tests/cuda_cpu/card.cc \
	tests/cuda_cpu/dnn.cc \
	tests/cuda_cpu/dnn_run.cc \
	tests/cuda_cpu/dry.cc \
	tests/cuda_cpu/events.cc \
	tests/cuda_cpu/ipc.cc \
	tests/cuda_cpu/lt.cc \
	tests/cuda_cpu/runtime.cc
CUDA_CPU_INCLUDED = \
	tests/cuda_cpu/cuda_cpu.h \
	tests/cuda_cpu/cuda_cpu_impl.h \
	tests/cuda_cpu/dnn.h \
	tests/cuda_cpu/include/cublasLt.h \
	tests/cuda_cpu/include/cuda_runtime.h
CUDA_FAULTS = tests/cuda_cpu/faults
CUDNN_PLANS = tests/cuda_cpu/cudnn_plans
CUDNN_PLANS_OBJECTS = src/kernels/cuda/dnn_attention.cpu.o src/kernels/cuda/dnn_conv.cpu.o \
	src/kernels/cuda/dnn_graph.cpu.o
FAKE_DRIVER = tests/modules/DRIVER/libcuda.so.1
CUDA_CPU_OBJECTS = $(CUDA_FILES:.cu=.cpu.o) $(CUDA_CPU_FILES:.cc=.cpu.o)
CUDA_CPU_FLAGS = -std=c++20 -O2 -g -fPIC -fvisibility=hidden -fno-math-errno -ftls-model=initial-exec -Wall \
	-Wno-unknown-pragmas -I$(srcdir)/src -I$(srcdir)/tests/cuda_cpu -I$(srcdir)/tests/cuda_cpu/include
EXTRA_DIST += $(CUDA_CPU_FILES) $(CUDA_CPU_INCLUDED) tests/cuda_cpu/faults.cc tests/cuda_cpu/cudnn_plans.cc \
	tests/fake_driver.c tests/test_cudnn_abi.c
CLEANFILES += $(CUDA_CPU) $(CUDA_CPU_OBJECTS) $(CUDA_FAULTS) $(CUDNN_PLANS) $(FAKE_DRIVER)
if HAVE_CXX
check_DATA += $(CUDA_CPU) $(CUDA_FAULTS) $(CUDNN_PLANS)
$(CUDA_CPU_OBJECTS): $(CUDA_INCLUDED) $(CUDA_CPU_INCLUDED)
$(CUDA_FILES:.cu=.cpu.o): %.cpu.o: %.cu
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(CXX) $(CUDA_CPU_FLAGS) $(CXXFLAGS) -x c++ -include cuda_cpu.h \
	    -c $< -o $@
$(CUDA_CPU_FILES:.cc=.cpu.o): %.cpu.o: %.cc
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(CXX) $(CUDA_CPU_FLAGS) $(CXXFLAGS) -c $< -o $@
$(CUDA_CPU): $(CUDA_CPU_OBJECTS) $(CUDA_BASE:.c=.pic.o)
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(CXX) -shared $(CXXFLAGS) -o $@ $(CUDA_CPU_OBJECTS) \
	    $(CUDA_BASE:.c=.pic.o) -lpthread
# cuDNN's own plans for graphs of ours: what makes them is compiled like the module's files, and needs nothing of CUDA.
$(CUDNN_PLANS): tests/cuda_cpu/cudnn_plans.cc $(CUDNN_PLANS_OBJECTS) $(FAKE_DRIVER)
	$(AM_V_GEN)$(CXX) $(CUDA_CPU_FLAGS) $(CXXFLAGS) -o $@ $(srcdir)/tests/cuda_cpu/cudnn_plans.cc \
	    $(CUDNN_PLANS_OBJECTS) -ldl
$(FAKE_DRIVER): tests/fake_driver.c
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) $(AM_CFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -shared \
	    -Wl,-soname,libcuda.so.1 -o $@ $(srcdir)/tests/fake_driver.c
CUDA_FAULTS_OBJECTS = tests/cuda_cpu/block.cpu.o tests/cuda_cpu/calls.cpu.o tests/cuda_cpu/card.cpu.o \
	tests/cuda_cpu/dry.cpu.o tests/cuda_cpu/events.cpu.o tests/cuda_cpu/ipc.cpu.o tests/cuda_cpu/runtime.cpu.o
$(CUDA_FAULTS): tests/cuda_cpu/faults.cc $(CUDA_FAULTS_OBJECTS)
	$(AM_V_GEN)$(CXX) $(CUDA_CPU_FLAGS) $(CXXFLAGS) -o $@ $(srcdir)/tests/cuda_cpu/faults.cc \
	    $(CUDA_FAULTS_OBJECTS) -lpthread
endif

# ---- fuzzing ----
# tests/fuzz/fuzz_X.c defines LLVMFuzzerTestOneInput; tests/fuzz/corpus/X/ are its seeds.  Add X to
# FUZZ_TARGETS, and its _SOURCES and _LDFLAGS as below.
FUZZ_TARGETS = \
	tests/fuzz/fuzz_audio \
	tests/fuzz/fuzz_axes \
	tests/fuzz/fuzz_captions \
	tests/fuzz/fuzz_csv \
	tests/fuzz/fuzz_doc \
	tests/fuzz/fuzz_feed \
	tests/fuzz/fuzz_hf \
	tests/fuzz/fuzz_idx \
	tests/fuzz/fuzz_image \
	tests/fuzz/fuzz_job \
	tests/fuzz/fuzz_kineto \
	tests/fuzz/fuzz_measured \
	tests/fuzz/fuzz_nccl \
	tests/fuzz/fuzz_plan \
	tests/fuzz/fuzz_rules \
	tests/fuzz/fuzz_safetensors \
	tests/fuzz/fuzz_samples_csv \
	tests/fuzz/fuzz_serve \
	tests/fuzz/fuzz_shard_index \
	tests/fuzz/fuzz_sqlite \
	tests/fuzz/fuzz_tar \
	tests/fuzz/fuzz_tokenizer
EXTRA_DIST += tests/fuzz/corpus tests/fuzz/driver.c tests/fuzz/lsan.c
FUZZ_SECONDS = 60
if FUZZING
# libFuzzer brings main(): the targets are programs to run by hand or with "make fuzz", not tests.
FUZZ_DRIVER = tests/fuzz/lsan.c
EXTRA_PROGRAMS += $(FUZZ_TARGETS)
FUZZ_LINK = -fsanitize=fuzzer
fuzz: $(FUZZ_TARGETS)
	@for t in $(FUZZ_TARGETS); do \
	    x=`basename $$t | sed 's/^fuzz_//'`; \
	    mkdir -p fuzz-found/$$x || exit 1; \
	    echo "fuzzing $$x for $(FUZZ_SECONDS) s"; \
	    $$t -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -rss_limit_mb=4096 -print_final_stats=1 \
	        -artifact_prefix=fuzz-found/$$x- fuzz-found/$$x $(srcdir)/tests/fuzz/corpus/$$x || exit 1; \
	done
else
FUZZ_DRIVER = tests/fuzz/driver.c tests/fuzz/lsan.c
check_PROGRAMS += $(FUZZ_TARGETS)
FUZZ_LINK =
fuzz:
	@echo 'configure with CC=clang --enable-fuzzing --enable-asan --enable-ubsan' >&2; exit 1
endif
tests_fuzz_fuzz_axes_SOURCES = tests/fuzz/fuzz_axes.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_axes_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_captions_SOURCES = tests/fuzz/fuzz_captions.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_captions_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_csv_SOURCES = tests/fuzz/fuzz_csv.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_csv_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_doc_SOURCES = tests/fuzz/fuzz_doc.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_doc_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_hf_SOURCES = tests/fuzz/fuzz_hf.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_hf_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_job_SOURCES = tests/fuzz/fuzz_job.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_job_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_measured_SOURCES = tests/fuzz/fuzz_measured.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_measured_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_kineto_SOURCES = tests/fuzz/fuzz_kineto.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_kineto_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_nccl_SOURCES = tests/fuzz/fuzz_nccl.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_nccl_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_rules_SOURCES = tests/fuzz/fuzz_rules.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_rules_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_plan_SOURCES = tests/fuzz/fuzz_plan.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_plan_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_safetensors_SOURCES = tests/fuzz/fuzz_safetensors.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_safetensors_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_samples_csv_SOURCES = tests/fuzz/fuzz_samples_csv.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_samples_csv_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_serve_SOURCES = tests/fuzz/fuzz_serve.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_serve_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_serve_LDADD = libdtserve.a $(LDADD)
tests_fuzz_fuzz_shard_index_SOURCES = tests/fuzz/fuzz_shard_index.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_shard_index_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_sqlite_SOURCES = tests/fuzz/fuzz_sqlite.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_sqlite_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_feed_SOURCES = tests/fuzz/fuzz_feed.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_feed_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_audio_SOURCES = tests/fuzz/fuzz_audio.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_audio_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_idx_SOURCES = tests/fuzz/fuzz_idx.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_idx_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_image_SOURCES = tests/fuzz/fuzz_image.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_image_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_tar_SOURCES = tests/fuzz/fuzz_tar.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_tar_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)
tests_fuzz_fuzz_tokenizer_SOURCES = tests/fuzz/fuzz_tokenizer.c $(FUZZ_DRIVER)
tests_fuzz_fuzz_tokenizer_LDFLAGS = $(AM_LDFLAGS) $(FUZZ_LINK)

# ---- every layout over ranks ----
check-full: all $(check_PROGRAMS)
	@$(AM_TESTS_ENVIRONMENT) DT_CHECK_FULL=1 ./tests/test_execute_ranks$(EXEEXT)
	@$(AM_TESTS_ENVIRONMENT) DT_CHECK_FULL=1 $(SHELL) $(srcdir)/tests/test_execute_mpi.sh || test $$? -eq 77
	@$(AM_TESTS_ENVIRONMENT) DT_CHECK_FULL=1; export DT_CHECK_FULL; \
	    DT_MUTATIONS=$${DT_MUTATIONS:-3200}; export DT_MUTATIONS; \
	    for t in advice checkpoint_kills checkpoint_ranks device_delays faults hosts loop loop_orders mutants pages preprocess_kills reproduction_runs; do \
	        $(SHELL) $(srcdir)/tests/test_$$t.sh || test $$? -eq 77 || exit 1; \
	    done
	@$(AM_TESTS_ENVIRONMENT) DT_CHECK_FULL=1 ./tests/test_search$(EXEEXT)
	@$(AM_TESTS_ENVIRONMENT) DT_CHECK_FULL=1 ./tests/test_supply_steady$(EXEEXT)
	@for seed in 1 2 3; do \
	    $(AM_TESTS_ENVIRONMENT) DT_SEED=$$seed DT_CASES=50 $(SHELL) $(srcdir)/tests/test_never_slower.sh || exit 1; \
	    $(AM_TESTS_ENVIRONMENT) DT_SEED=$$seed DT_CASES=10 DT_VALUES=7 $(SHELL) $(srcdir)/tests/test_stated.sh || exit 1; \
	done
.PHONY: check-full

# ---- predicted against measured runs ----
accuracy: all
	@$(AM_TESTS_ENVIRONMENT) ACCURACY_EVERY=1 $(SHELL) $(srcdir)/tests/test_measured.sh || test $$? -eq 77
.PHONY: accuracy

# ---- benchmarks ----
# tests/bench/bench_X.c prints "bench: NAME VALUE UNIT [ratio R of WHAT]" lines: add it here.
BENCHES = \
	tests/bench/bench_assign \
	tests/bench/bench_cost \
	tests/bench/bench_data \
	tests/bench/bench_documents \
	tests/bench/bench_engine \
	tests/bench/bench_index \
	tests/bench/bench_job \
	tests/bench/bench_kernels \
	tests/bench/bench_samples \
	tests/bench/bench_search \
	tests/bench/bench_step \
	tests/bench/bench_timeline
if HAVE_MPI
BENCHES += tests/bench/bench_transport
endif
EXTRA_PROGRAMS += $(BENCHES)
tests_bench_bench_kernels_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_bench_bench_data_SOURCES = tests/bench/bench_data.c tests/bench/data_bench.h
tests_bench_bench_documents_SOURCES = tests/bench/bench_documents.c tests/bench/data_bench.h
tests_bench_bench_step_SOURCES = \
	tests/bench/bench_step.c \
	tests/bench/gemm.c \
	tests/bench/gemm.h \
	tests/bench/record.c \
	tests/bench/record.h
tests_bench_bench_step_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
tests_bench_bench_step_LDADD = $(DT_KERNEL_LIBS) $(LDADD)
tests_bench_bench_engine_SOURCES = tests/bench/bench_engine.c tests/synth.c tests/synth.h
bench: all $(BENCHES)
	@for b in $(BENCHES); do $(AM_TESTS_ENVIRONMENT) ./$$b || exit 1; done
	@$(AM_TESTS_ENVIRONMENT) $(SHELL) $(srcdir)/tests/bench/ranks.sh
	@$(AM_TESTS_ENVIRONMENT) $(SHELL) $(srcdir)/tests/bench/peers.sh
	@$(AM_TESTS_ENVIRONMENT) $(SHELL) $(srcdir)/tests/bench/whatif.sh
	@$(AM_TESTS_ENVIRONMENT) $(SHELL) $(srcdir)/tests/bench/producers.sh
	@$(AM_TESTS_ENVIRONMENT) $(SHELL) $(srcdir)/tests/bench/slow_producer.sh
	@$(AM_TESTS_ENVIRONMENT) $(SHELL) $(srcdir)/tests/bench/loop_orders.sh

# ---- the tests under valgrind, and line coverage of what is pure ----
# What the first does on purpose is an error there; the others run kernels on stacks of their own, which it does not follow.
NOT_VALGRIND = tests/test_fake_device$(EXEEXT) tests/test_cuda_%$(EXEEXT)
check-valgrind:
	@test -n "$(VALGRIND)" || { echo 'valgrind is not installed' >&2; exit 1; }
	$(MAKE) check TESTS='$(filter-out $(FUZZ_TARGETS) $(NOT_VALGRIND),$(check_PROGRAMS))' \
	    LOG_COMPILER='env CK_TIMEOUT_MULTIPLIER=30 $(VALGRIND) -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite'

if COVERAGE
coverage:
	@test -n "$(LCOV)" || { echo 'lcov is not installed' >&2; exit 1; }
	find . -name '*.gcda' -exec rm -f {} +
	$(MAKE) check
	$(LCOV) -q --capture --directory . --base-directory $(abs_srcdir) --output-file coverage-all.info
	$(LCOV) -q --extract coverage-all.info '*/src/base/*' '*/src/core/*' '*/src/fit/*' '*/src/report/*' \
	    --output-file coverage.info
	$(LCOV) --list coverage.info
	@$(LCOV) --summary coverage.info 2>&1 | sed -n 's/^ *lines[.]*: /line coverage of base, core, fit and report: /p'
CLEANFILES += coverage.info coverage-all.info
clean-local:
	find . \( -name '*.gcda' -o -name '*.gcno' \) -exec rm -f {} +
else
coverage:
	@echo 'configure with --enable-coverage (and CFLAGS=-g)' >&2; exit 1
endif
.PHONY: fuzz bench check-valgrind coverage
