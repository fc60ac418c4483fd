# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
bin_PROGRAMS += disttrain
disttrain_SOURCES = \
	src/cli/accuracy.h \
	src/cli/accuracy_checks.c \
	src/cli/accuracy_run.c \
	src/cli/advice.c \
	src/cli/cli.h \
	src/cli/cmd_accuracy.c \
	src/cli/cmd_compare.c \
	src/cli/cmd_completion.c \
	src/cli/cmd_data.c \
	src/cli/cmd_db.c \
	src/cli/cmd_devices.c \
	src/cli/cmd_eval.c \
	src/cli/cmd_keys.c \
	src/cli/cmd_list.c \
	src/cli/cmd_loop.c \
	src/cli/cmd_plan.c \
	src/cli/cmd_preprocess.c \
	src/cli/cmd_profile.c \
	src/cli/cmd_profile_data.c \
	src/cli/cmd_profile_fit.c \
	src/cli/cmd_profile_import.c \
	src/cli/cmd_profile_job.c \
	src/cli/cmd_report.c \
	src/cli/cmd_reproduce.c \
	src/cli/cmd_sample.c \
	src/cli/cmd_runs.c \
	src/cli/cmd_serve.c \
	src/cli/cmd_show.c \
	src/cli/cmd_simulate.c \
	src/cli/cmd_trace.c \
	src/cli/cmd_train.c \
	src/cli/cmd_whatif.c \
	src/cli/commands.c \
	src/cli/data.h \
	src/cli/data_facts.c \
	src/cli/data_index.c \
	src/cli/data_pack.c \
	src/cli/compare.h \
	src/cli/compare_check.c \
	src/cli/compare_ops.c \
	src/cli/compare_rows.c \
	src/cli/completion.h \
	src/cli/completion_fish.c \
	src/cli/completion_zsh.c \
	src/cli/explain.c \
	src/cli/facts.c \
	src/cli/facts.h \
	src/cli/help.c \
	src/cli/launch.c \
	src/cli/launch.h \
	src/cli/launch_args.c \
	src/cli/limits.c \
	src/cli/loop.h \
	src/cli/loop_cores.c \
	src/cli/loop_layouts.c \
	src/cli/loop_orders.c \
	src/cli/loop_run.c \
	src/cli/loop_strategies.c \
	src/cli/loop_turns.c \
	src/cli/main.c \
	src/cli/options.c \
	src/cli/page.h \
	src/cli/page_assumptions.c \
	src/cli/page_fill.c \
	src/cli/page_rerun.c \
	src/cli/page_sources.c \
	src/cli/page_text.c \
	src/cli/plan_decisions.c \
	src/cli/plan_entrain.c \
	src/cli/plan_entrain.h \
	src/cli/plan_explain.c \
	src/cli/plan_bubbles.c \
	src/cli/plan_bubbles.h \
	src/cli/plan_classes.c \
	src/cli/plan_table.c \
	src/cli/point.c \
	src/cli/point.h \
	src/cli/point_known.c \
	src/cli/point_known.h \
	src/cli/profile.h \
	src/cli/profile_import.h \
	src/cli/profile_import_report.c \
	src/cli/progress.c \
	src/cli/progress.h \
	src/cli/ranks.c \
	src/cli/ranks.h \
	src/cli/reproduce.h \
	src/cli/reproduce_cases.c \
	src/cli/reproduce_data.c \
	src/cli/reproduce_entrain.c \
	src/cli/reproduce_figures.c \
	src/cli/reproduce_mimo.c \
	src/cli/reproduce_mimo_apart.h \
	src/cli/reproduce_mimo_tables.h \
	src/cli/rows.c \
	src/cli/rows.h \
	src/cli/runs.h \
	src/cli/runs_plot.c \
	src/cli/runs_show.c \
	src/cli/serve.h \
	src/cli/serve_answer.c \
	src/cli/serve_keys.c \
	src/cli/session.c \
	src/cli/session.h \
	src/cli/session_json.c \
	src/cli/spin.c \
	src/cli/table.c \
	src/cli/table.h \
	src/cli/terminal.c \
	src/cli/terminal.h \
	src/cli/timeline.c \
	src/cli/train_summary.c \
	src/cli/train_summary.h \
	src/cli/trained.c \
	src/cli/trained.h \
	src/cli/whatif.h \
	src/cli/whatif_chart.c \
	src/cli/whatif_deal.c \
	src/cli/whatif_engine.c \
	src/cli/whatif_idle.c \
	src/cli/whatif_print.c \
	src/cli/whatif_ranks.c \
	src/cli/whatif_run.c \
	src/cli/whatif_setup.c \
	src/cli/whatif_target.c
disttrain_LDADD = $(DT_KERNEL_LIBS) libdtserve.a $(DT_LIBS) $(SERVE_LIBS)

# The completions are printed by the program itself.
if !CROSS
bashcomp_DATA = completion/disttrain
zshcomp_DATA = completion/_disttrain
fishcomp_DATA = completion/disttrain.fish
CLEANFILES += completion/disttrain completion/_disttrain completion/disttrain.fish
completion/disttrain: disttrain$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) completion && ./disttrain$(EXEEXT) completion bash >$@.tmp && mv $@.tmp $@
completion/_disttrain: disttrain$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) completion && ./disttrain$(EXEEXT) completion zsh >$@.tmp && mv $@.tmp $@
completion/disttrain.fish: disttrain$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) completion && ./disttrain$(EXEEXT) completion fish >$@.tmp && mv $@.tmp $@
endif
