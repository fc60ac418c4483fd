/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Checkpoint folders: what is not ours stays, runs leave each other's checkpoints alone, and what
 * is gone on from is said. */
#include "base/file.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_own.h"
#include "test_util.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], ck[128];
static struct dt_error err;

static void sh(const char *command)
{
    char text[600];

    snprintf(text, sizeof(text), "cd '%s' && %s", dir, command);
    ck_assert_msg(system(text) == 0, "%s", command);
}

static bool there(const char *name)
{
    char path[400];
    struct stat sb;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return lstat(path, &sb) == 0;
}

static void setup(void)
{
    strcpy(dir,
           access("/dev/shm", W_OK) == 0 ? "/dev/shm/dt-ckdir-XXXXXX" : "/tmp/dt-ckdir-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(ck, sizeof(ck), "%s/ck", dir);
    sh("mkdir ck v && echo precious >v/a");
}

/* Whatever a test did, the folder beside the checkpoints is as it was. */
static void teardown(void)
{
    char cmd[128];

    sh("[ \"$(ls -A v)\" = a ] && [ \"$(cat v/a)\" = precious ]");
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

/* ---- warnings ---- */

static char said[8192];
static int n_said;

static void hear(void *ctx, const char *line)
{
    size_t n = strlen(said);

    (void)ctx;
    snprintf(said + n, sizeof(said) - n, "%s\n", line);
    n_said++;
}
static const struct dt_warn warn = {hear, NULL};

static void forget(void)
{
    said[0] = '\0';
    n_said = 0;
}

/* ---- a model of four numbers ---- */

static const struct dt_param param = {.name = "w", .n_dims = 1, .shape = {4}, .n = 4};
static float master[4] = {1, 2, 3, 4}, m[4], v[4];
static const struct dt_ckpt_part part = {.module = "llm",
                                         .params = &param,
                                         .n_params = 1,
                                         .master = master,
                                         .exp_avg = m,
                                         .exp_avg_sq = v};

static void save(const char *run, int64_t step, int keep)
{
    struct dt_ckpt_options opt = {.keep = keep, .warn = &warn};
    struct dt_ckpt_state state = {.step = step};
    char path[256];

    snprintf(state.run_id, sizeof(state.run_id), "%s", run);
    dt_assert_ok(dt_ckpt_save(ck, &part, 1, &state, &opt, &err, path, sizeof(path)), err);
}

/* What is found, behind its last slash; "" if nothing is. */
static const char *find(const char *run, char id[DT_RUN_ID_SIZE])
{
    static char path[256];
    bool found;

    dt_assert_ok(dt_ckpt_find_run(ck, run, &warn, &err, &found, path, sizeof(path), id), err);
    return found ? strrchr(path, '/') + 1 : "";
}

/* ---- what is not ours ---- */

START_TEST(links_are_not_followed)
{
    forget();
    sh("ln -s ../v ck/.tmp-x.999999 && ln -s ../v ck/.old-step-00000001.999999 &&"
       "ln -s ../v/a ck/latest.tmp.999999");
    dt_ckpt_tidy(ck, &warn);
    ck_assert(there("ck/.tmp-x.999999") && there("ck/.old-step-00000001.999999"));
    ck_assert(there("ck/latest.tmp.999999"));
    ck_assert_int_eq(n_said, 1);
    dt_assert_has(said, ".tmp-x.999999");
    dt_assert_has(said, ".old-step-00000001.999999");
    save("r", 1, 1); /* a save tidies, too, and says nothing again */
    save("r", 2, 1);
    ck_assert_int_eq(n_said, 1);
    ck_assert(!there("ck/step-00000001") && there("ck/step-00000002"));
}
END_TEST

START_TEST(folders_of_others_stay)
{
    forget();
    sh("mkdir ck/.tmp-step-00000007.999999 ck/.old-mine ck/step-00000003 &&"
       "echo x >ck/.tmp-step-00000007.999999/model.safetensors &&"
       "echo x >ck/step-00000003/manifest.json && echo x >ck/.old-mine/.disttrain");
    save("r", 4, 1);
    sh("cp -r ck/step-00000004 ck/.tmp-copy"); /* of ours, under a name that is not */
    dt_ckpt_tidy(ck, &warn);
    save("r", 5, 1);
    ck_assert(there("ck/.tmp-copy/manifest.json"));
    ck_assert(there("ck/.tmp-step-00000007.999999/model.safetensors"));
    ck_assert(there("ck/.old-mine/.disttrain") && there("ck/step-00000003/manifest.json"));
    ck_assert(!there("ck/step-00000004"));
    ck_assert_int_eq(n_said, 1);
    dt_assert_has(said, ".tmp-step-00000007.999999");
}
END_TEST

/* An archived step that is linked back is read and never emptied. */
START_TEST(archived_steps_stay)
{
    char id[DT_RUN_ID_SIZE];

    save("r", 1, 0);
    sh("mkdir archive && mv ck/step-00000001 archive && ln -s ../archive/step-00000001 ck");
    ck_assert_str_eq(find("r", id), "step-00000001");
    forget();
    for (int64_t step = 2; step < 5; step++)
        save("r", step, 1);
    ck_assert(there("ck/step-00000001") && !there("ck/step-00000003") && there("ck/step-00000004"));
    sh("[ $(ls archive/step-00000001 | wc -l) -eq 4 ]");
    ck_assert_int_eq(n_said, 0);
    dt_ckpt_tidy(ck, &warn);
    dt_assert_has(said, "step-00000001 (a symbolic link)");
    save("r", 1, 1); /* the same step again: the link steps aside */
    ck_assert(there("ck/step-00000001.kept") && there("ck/step-00000001/manifest.json"));
    sh("[ -L ck/step-00000001.kept ] && [ ! -L ck/step-00000001 ] &&"
       "[ $(ls archive/step-00000001 | wc -l) -eq 4 ]");
    dt_assert_has(said, "step-00000001.kept");
}
END_TEST

START_TEST(notes_in_a_step_survive)
{
    forget();
    save("r", 1, 1);
    sh("echo mine >ck/step-00000001/notes.txt && ln -s ../../v ck/step-00000001/model-1 &&"
       "mkdir ck/step-00000001/sub && ln -s ../../v/a ck/step-00000001/share-00001.json");
    save("r", 2, 1);
    sh("[ \"$(cat ck/step-00000001/notes.txt)\" = mine ] && [ -L ck/step-00000001/model-1 ] &&"
       "[ $(ls -A ck/step-00000001 | wc -l) -eq 4 ]");
    ck_assert_int_eq(n_said, 1);
    dt_assert_has(said, "step-00000001");
    save("r", 3, 1); /* said once */
    ck_assert_int_eq(n_said, 1);
    ck_assert(there("ck/step-00000001/notes.txt") && !there("ck/step-00000002"));
    /* of a step that is saved again */
    sh("echo mine >ck/step-00000003/notes.txt");
    save("r", 3, 1);
    sh("[ \"$(cat ck/step-00000003.kept/notes.txt)\" = mine ] && [ ! -e ck/step-00000003/notes.txt "
       "]");
    ck_assert_int_eq(n_said, 2);
    sh("[ \"$(ls -A ck)\" = \"$(printf 'latest\\nstep-00000001\\nstep-00000003\\n"
       "step-00000003.kept')\" ]");
}
END_TEST

/* ---- what killed processes leave ---- */

static void leave_behind(const char *name, const struct dt_ckpt_process *p)
{
    char path[400], text[256], line[512];
    int n;

    snprintf(path, sizeof(path), "%s/%s", ck, name);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    dt_ckpt_process_text(p, text, sizeof(text));
    n = snprintf(line, sizeof(line), "disttrain-checkpoint 1\nrun r\nprocess %s\n", text);
    snprintf(path, sizeof(path), "%s/%s/.disttrain", ck, name);
    dt_assert_ok(dt_file_write(path, line, (size_t)n, &err), err);
    snprintf(path, sizeof(path), "%s/%s/model-00001-of-00002.safetensors", ck, name);
    dt_assert_ok(dt_file_write(path, "x", 1, &err), err);
}

START_TEST(leaves_nothing_of_the_dead)
{
    struct dt_ckpt_process p;
    pid_t dead = fork(), lives = fork();
    int status;

    if (dead == 0)
        _exit(0);
    if (lives == 0)
        pause();
    ck_assert_int_eq(waitpid(dead, &status, 0), dead);
    forget();
    dt_ckpt_this_process(&p);
    leave_behind(".tmp-step-00000001.0000000000001", &p); /* this one's */
    p.start++;
    leave_behind(".tmp-step-00000002.0000000000002", &p); /* an earlier one of the same number */
    p.pid = (long)dead;
    leave_behind(".old-step-00000003.0000000000003", &p);
    p.pid = (long)lives;
    p.start = 0;
    leave_behind(".tmp-step-00000004.0000000000004", &p);
    strcpy(p.machine, "another/boot");
    leave_behind(".tmp-step-00000005.0000000000005", &p);
    sh("mkdir ck/.tmp-step-00000006.0000000000006 && printf 'step-0000' >ck/latest.tmp.999999 &&"
       "echo mine >ck/latest.tmp.999998 && echo mine >ck/notes.tmp.999999 &&"
       "mkdir ck/.tmp-step-00000007.0000000000007 &&"
       ": >ck/.tmp-step-00000007.0000000000007/.disttrain");
    dt_ckpt_tidy(ck, &warn);
    sh("[ \"$(ls -A ck | tr '\\n' ' ')\" = '.tmp-step-00000004.0000000000004 latest.tmp.999998 "
       "notes.tmp.999999 ' ]");
    ck_assert_int_eq(n_said, 0);
    kill(lives, SIGKILL);
    waitpid(lives, &status, 0);
    dt_ckpt_tidy("nowhere", &warn);
}
END_TEST

/* A process was killed between the two renames that a file system without exchange needs. */
START_TEST(an_old_one_comes_back)
{
    char id[DT_RUN_ID_SIZE];

    save("r", 1, 1);
    sh("mv ck/step-00000001 ck/.old-step-00000001.0000000000001");
    dt_ckpt_tidy(ck, &warn);
    ck_assert_str_eq(find("r", id), "step-00000001");
    sh("cp -r ck/step-00000001 ck/.old-step-00000001.0000000000001"); /* its successor is there */
    dt_ckpt_tidy(ck, &warn);
    sh("[ $(ls -A ck | wc -l) -eq 2 ]");
}
END_TEST

/* ---- runs ---- */

START_TEST(runs_leave_each_other_alone)
{
    char id[DT_RUN_ID_SIZE], run_a[DT_RUN_ID_SIZE], run_b[DT_RUN_ID_SIZE];

    dt_ckpt_run_id_new(run_a);
    dt_ckpt_run_id_new(run_b);
    ck_assert_uint_eq(strlen(run_a), 32);
    ck_assert_str_ne(run_a, run_b);
    ck_assert(dt_ckpt_run_id_valid(run_a) && dt_ckpt_run_id_valid("job-17.2_x"));
    ck_assert(!dt_ckpt_run_id_valid("") && !dt_ckpt_run_id_valid("a b") &&
              !dt_ckpt_run_id_valid("../x"));
    save(run_a, 10, 1);
    save(run_a, 20, 2);
    ck_assert_str_eq(find(run_b, id), ""); /* never another's */
    forget();
    save(run_b, 10, 1); /* the same step: run_a's makes way and stays */
    ck_assert_int_eq(n_said, 1);
    dt_assert_has(said, run_a);
    save(run_b, 11, 1);
    save(run_b, 12, 1);
    ck_assert_int_eq(n_said, 1);
    sh("[ $(ls -d ck/step-* | wc -l) -eq 3 ] && [ -d ck/step-00000012 ]");
    ck_assert_str_eq(find(run_b, id), "step-00000012");
    ck_assert_str_eq(id, run_b);
    ck_assert_str_eq(find(run_a, id), "step-00000020");
    ck_assert_str_eq(id, run_a);
    ck_assert_str_eq(find(NULL, id), "step-00000012"); /* what was saved last */
    sh("rm -r ck/step-00000020");
    ck_assert_int_eq(strncmp(find(run_a, id), "step-00000010.of-", 17), 0);
    ck_assert_int_eq(n_said, 1);
    save(run_a, 21, 1); /* goes on: what has made way is not counted, and stays */
    sh("ls -d ck/step-00000010.of-* ck/step-00000012 ck/step-00000021 >/dev/null");
}
END_TEST

/* Checkpoints from before there were runs. */
START_TEST(old_checkpoints_are_of_the_unnamed_run)
{
    char id[DT_RUN_ID_SIZE];

    for (int64_t step = 1; step < 3; step++) {
        save("", step, 0);
        sh("for d in ck/step-*; do rm -f $d/.disttrain; sed -i -e '/\"run_id\"/d' -e "
           "'s/\"version\": 2/\"version\": 1/' $d/manifest.json; done");
    }
    ck_assert_str_eq(find(NULL, id), "step-00000002");
    ck_assert_str_eq(id, DT_RUN_UNNAMED);
    save("another", 3, 1);
    sh("[ $(ls -d ck/step-* | wc -l) -eq 3 ]");
    sh("echo step-00000002 >ck/latest && rm -r ck/step-00000003");
    save(DT_RUN_UNNAMED, 3, 2);
    sh("[ $(ls -d ck/step-* | wc -l) -eq 2 ] && [ ! -e ck/step-00000001 ]");
}
END_TEST

/* ---- which one is taken ---- */

START_TEST(what_is_passed_over_is_said)
{
    static const char *const harm[] = {
        "rm ck/step-00000003/manifest.json", "rm -r ck/step-00000003",
        "echo junk >ck/step-00000003/manifest.json", "echo ../../etc >ck/latest",
        ": >ck/step-00000003/manifest.json"};
    char id[DT_RUN_ID_SIZE];

    for (int64_t step = 1; step < 4; step++)
        save("r", step, 0);
    forget();
    ck_assert_str_eq(find(NULL, id), "step-00000003");
    ck_assert_int_eq(n_said, 0);
    sh(harm[_i]);
    ck_assert_str_eq(find(NULL, id), _i == 3 ? "step-00000003" : "step-00000002");
    ck_assert_int_eq(n_said, 1);
    dt_assert_has(said, "latest");
    dt_assert_has(said, _i == 3 ? "holds no name" : "step-00000003/manifest.json");
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1); /* in one line */
}
END_TEST

/* Nothing complete is left: not the same as nothing ever having been there. */
START_TEST(what_is_damaged_is_no_beginning)
{
    char path[256];
    bool found;

    save("r", 1, 0);
    sh("rm ck/step-00000001/manifest.json");
    ck_assert_int_eq(dt_ckpt_find(ck, &err, &found, path, sizeof(path)), DT_ERR_INPUT);
    dt_assert_has(err.message, "step-00000001");
    dt_assert_has(err.message, "--from-scratch");
    sh("rm -r ck && mkdir ck");
    dt_assert_ok(dt_ckpt_find(ck, &err, &found, path, sizeof(path)), err);
    ck_assert(!found);
}
END_TEST

/* ---- setting aside ---- */

static void set_aside(void)
{
    forget();
    dt_assert_ok(dt_ckpt_set_aside(ck, &warn, &err), err);
}

/* All that is ours goes, damaged or not; links and what others have put there stay. */
START_TEST(earlier_runs_are_set_aside)
{
    char id[DT_RUN_ID_SIZE], path[256];

    save("a", 10, 0);
    save("a", 20, 0);
    save("b", 10, 0); /* a's makes way */
    save("b", 30, 0);
    save("b", 40, 0);
    sh("rm ck/step-00000040/manifest.json && ln -s ../v ck/step-00000050 && mkdir ck/step-00000060 "
       "&&"
       "echo mine >ck/step-00000060/notes && echo mine >ck/notes");
    set_aside();
    ck_assert_int_eq(n_said, 1);
    dt_assert_has(said, "5 checkpoints of the run before are in ");
    dt_assert_has(said, "/ck/before-1 now; \"--run-id b\" resumes step-00000030");
    sh("[ \"$(echo $(ls ck))\" = 'before-1 notes step-00000050 step-00000060' ]");
    sh("[ \"$(cat ck/before-1/latest)\" = step-00000040 ] && [ -d ck/before-1/step-00000010.of-a ] "
       "&&"
       "[ \"$(cat ck/step-00000060/notes)\" = mine ]");
    ck_assert_str_eq(find(NULL, id), "");
    ck_assert_str_eq(find("a", id), "step-00000020");
    ck_assert_str_eq(find("b", id), "step-00000030");
    ck_assert_str_eq(find("c", id), "");
    ck_assert(dt_ckpt_last_aside(ck, path, sizeof(path), id));
    dt_assert_has(path, "/ck/before-1/step-00000030");
    ck_assert_str_eq(id, "b");
}
END_TEST

/* Each time into a folder of its own; what a run saved last is what it goes on from. */
START_TEST(nothing_set_aside_is_overwritten)
{
    char id[DT_RUN_ID_SIZE], path[256];

    set_aside();
    ck_assert(n_said == 0 && !there("ck/before-1"));
    ck_assert(!dt_ckpt_last_aside(ck, path, sizeof(path), id));
    sh("mkdir ck/before-2");
    for (int64_t step = 10; step <= 30; step += 10) {
        save("a", step, 0);
        set_aside();
        dt_assert_has(said, "the run before is in ");
        ck_assert_str_eq(find(NULL, id), "");
    }
    sh("[ -d ck/before-1/step-00000010 ] && [ -d ck/before-3/step-00000020 ] &&"
       "[ -d ck/before-4/step-00000030 ] && [ -z \"$(ls ck/before-2)\" ]");
    ck_assert_str_eq(find("a", id), "step-00000030");
    save("a", 25, 0);
    ck_assert_str_eq(find("a", id), "step-00000025"); /* here, and not set aside */
    sh("rm -r ck/step-00000025 && echo nonsense >ck/latest");
    set_aside();
    dt_assert_has(said, "what was left of the run before is in ");
    sh("[ ! -e ck/latest ] && [ \"$(cat ck/before-5/latest)\" = nonsense ]");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("checkpoint folders");
    TCase *c = dt_test_case(s, "folders", 60);

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, links_are_not_followed);
    tcase_add_test(c, folders_of_others_stay);
    tcase_add_test(c, archived_steps_stay);
    tcase_add_test(c, notes_in_a_step_survive);
    tcase_add_test(c, leaves_nothing_of_the_dead);
    tcase_add_test(c, an_old_one_comes_back);
    tcase_add_test(c, runs_leave_each_other_alone);
    tcase_add_test(c, old_checkpoints_are_of_the_unnamed_run);
    tcase_add_loop_test(c, what_is_passed_over_is_said, 0, 5);
    tcase_add_test(c, what_is_damaged_is_no_beginning);
    tcase_add_test(c, earlier_runs_are_set_aside);
    tcase_add_test(c, nothing_set_aside_is_overwritten);
    return dt_test_run(s);
}
