/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One training at a time in a checkpoint folder: who is refused, who waits, what is stale. */
#include "base/file.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_host.h"
#include "exec/checkpoint/checkpoint_impl.h"
#include "exec/checkpoint/checkpoint_lock.h"
#include "base/clock.h"
#include "test_util.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], lock_path[128];
static struct dt_error err;
static struct dt_ckpt_lock *held;
static const struct dt_ckpt_lock_options plain = {.run_id = NULL};

static void setup(void)
{
    strcpy(dir, "/tmp/dt-lock-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(lock_path, sizeof(lock_path), "%s/lock", dir);
    unsetenv("DISTTRAIN_LOCK_STALE_S");
    held = NULL;
}

static void teardown(void)
{
    char cmd[128];

    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

static int entries(void)
{
    char cmd[128];
    FILE *f;
    int n = -1;

    snprintf(cmd, sizeof(cmd), "ls -A '%s' | wc -l", dir);
    f = popen(cmd, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

/* A lock of process `p`, last renewed `age_s` ago. */
static void plant(const struct dt_ckpt_process *p, const char *run, int age_s)
{
    char text[1024];
    struct timespec t[2] = {{.tv_sec = (time_t)dt_clock_wall_s() - age_s}};
    int n = snprintf(text, sizeof(text),
                     "{\n  \"format\": \"disttrain-lock\",\n  \"version\": 1,\n  \"run_id\": "
                     "\"%s\",\n  \"since\": \"2026-01-02T03:04:05Z\",\n  \"host\": \"%s\",\n  "
                     "\"pid\": %ld,\n  \"start\": %llu,\n  \"machine\": \"%s\",\n  \"nonce\": "
                     "\"nabc%d\"\n}\n",
                     run, p->host, p->pid, (unsigned long long)p->start, p->machine, age_s);

    t[1] = t[0];
    dt_assert_ok(dt_file_write(lock_path, text, (size_t)n, &err), err);
    ck_assert_int_eq(utimensat(AT_FDCWD, lock_path, t, 0), 0);
}

static struct dt_ckpt_process elsewhere(void)
{
    return (struct dt_ckpt_process){
        .host = "faraway", .machine = "another/boot", .pid = 4711, .start = 1};
}

START_TEST(one_at_a_time)
{
    struct dt_ckpt_lock *second = NULL;
    char id[DT_RUN_ID_SIZE], since[32], process[64];

    ck_assert(!dt_ckpt_last_run(dir, id, since));
    dt_assert_ok(dt_ckpt_lock(dir, &plain, &err, &held), err);
    dt_assert_ok(dt_ckpt_lock_run(held, "run-7", &err), err);
    ck_assert_int_eq(dt_ckpt_lock(dir, &plain, &err, &second), DT_ERR_INPUT);
    ck_assert_ptr_null(second);
    snprintf(process, sizeof(process), "process %ld on ", (long)getpid());
    dt_assert_has(err.message, process);
    dt_assert_has(err.message, "run run-7, since 2");
    dt_assert_has(err.message, "/lock");
    dt_assert_ok(dt_ckpt_lock_check(held, &err), err);
    ck_assert_int_eq(entries(), 2);
    dt_ckpt_unlock(held);
    ck_assert_int_eq(access(lock_path, F_OK), -1);
    ck_assert(dt_ckpt_last_run(dir, id, since));
    ck_assert_str_eq(id, "run-7");
    dt_assert_ok(dt_ckpt_lock(dir, &plain, &err, &held), err);
    dt_ckpt_unlock(held);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

/* Of a killed process, at once, and of one whose number another process has now. */
START_TEST(stale_here)
{
    struct dt_ckpt_process p;
    pid_t child = fork();
    int status;

    if (child == 0) {
        if (dt_ckpt_lock(dir, &plain, NULL, &held) != DT_OK)
            _exit(3);
        pause();
    }
    for (int i = 0; i < 2000 && access(lock_path, F_OK) != 0; i++)
        usleep(5000);
    ck_assert_int_eq(dt_ckpt_lock(dir, &plain, &err, &held), DT_ERR_INPUT);
    kill(child, SIGKILL);
    siginfo_t info; /* dead, and not yet waited for */
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    dt_assert_ok(dt_ckpt_lock(dir, &plain, &err, &held), err);
    dt_ckpt_unlock(held);
    ck_assert_int_eq(waitpid(child, &status, 0), child);

    dt_ckpt_this_process(&p);
    ck_assert_uint_gt(p.start, 0);
    p.start--;
    plant(&p, "r", 0);
    dt_assert_ok(dt_ckpt_lock(dir, &plain, &err, &held), err);
    dt_ckpt_unlock(held);
    ck_assert_int_eq(entries(), 0);
}
END_TEST

static char said[1024];
static void hear(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(said, sizeof(said), "%s", line);
}

START_TEST(of_another_host)
{
    const struct dt_warn warn = {.say = hear};
    const struct dt_ckpt_lock_options o = {.warn = &warn};
    struct dt_ckpt_process p = elsewhere();
    pid_t renews;
    uint64_t t0;
    int status;

    plant(&p, "r", 121); /* not renewed for longer than a lock lives */
    dt_assert_ok(dt_ckpt_lock(dir, &o, &err, &held), err);
    dt_ckpt_unlock(held);
    setenv("DISTTRAIN_LOCK_STALE_S", "2", 1);
    plant(&p, "r", 0); /* nobody renews it: waits until it is stale */
    t0 = dt_clock_ns();
    dt_assert_ok(dt_ckpt_lock(dir, &o, &err, &held), err);
    ck_assert_uint_gt(dt_clock_ns() - t0, 500000000);
    dt_assert_has(said, "faraway");
    dt_ckpt_unlock(held);
    setenv("DISTTRAIN_LOCK_STALE_S", "1000", 1);
    plant(&p, "r", 0); /* somebody renews it: refused */
    renews = fork();
    for (int i = 0; renews == 0 && i < 1000; i++) {
        usleep(50000);
        utimensat(AT_FDCWD, lock_path, NULL, 0);
    }
    if (renews == 0)
        _exit(0);
    ck_assert_int_eq(dt_ckpt_lock(dir, &o, &err, &held), DT_ERR_INPUT);
    dt_assert_has(err.message, "process 4711 on faraway, run r, since 2026-01-02T03:04:05Z");
    kill(renews, SIGKILL);
    waitpid(renews, &status, 0);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

/* The rest of an earlier attempt of the same run is waited for; another run is not. */
START_TEST(rest_of_itself)
{
    const struct dt_ckpt_lock_options o = {.run_id = "mine"};
    struct dt_ckpt_process p;
    pid_t child = fork();
    int status;

    if (child == 0) {
        usleep(400000);
        _exit(0);
    }
    dt_ckpt_this_process(&p);
    p.pid = (long)child;
    p.start = 0;
    plant(&p, "other", 0);
    ck_assert_int_eq(dt_ckpt_lock(dir, &o, &err, &held), DT_ERR_INPUT);
    plant(&p, "mine", 0);
    dt_assert_ok(dt_ckpt_lock(dir, &o, &err, &held), err);
    dt_ckpt_unlock(held);
    waitpid(child, &status, 0);
}
END_TEST

START_TEST(lost_and_renewed)
{
    struct dt_ckpt_process p = elsewhere();
    struct stat before, after;

    setenv("DISTTRAIN_LOCK_STALE_S", "1", 1);
    dt_assert_ok(dt_ckpt_lock(dir, &plain, &err, &held), err);
    ck_assert_int_eq(stat(lock_path, &before), 0);
    for (int i = 0; i < 500; i++) {
        usleep(20000);
        ck_assert_int_eq(stat(lock_path, &after), 0);
        if (after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
            after.st_mtim.tv_nsec != before.st_mtim.tv_nsec)
            break;
    }
    ck_assert(after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
              after.st_mtim.tv_nsec != before.st_mtim.tv_nsec);
    unlink(lock_path); /* removed by hand: it is taken again */
    dt_assert_ok(dt_ckpt_lock_check(held, &err), err);
    ck_assert_int_eq(access(lock_path, F_OK), 0);
    plant(&p, "r", 0); /* taken by another: not ours any more, nor removed */
    ck_assert_int_eq(dt_ckpt_lock_check(held, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "another training");
    dt_ckpt_unlock(held);
    ck_assert_int_eq(access(lock_path, F_OK), 0);
}
END_TEST

/* What is no lock is neither followed nor removed. */
START_TEST(planted)
{
    static const char *const what[] = {"ln -s victim lock", "mkdir lock", "mkfifo lock",
                                       "cp victim lock && touch -d 2001-01-01 lock"};
    char cmd[256];

    snprintf(cmd, sizeof(cmd), "cd '%s' && echo precious >victim && %s", dir, what[_i]);
    ck_assert_int_eq(system(cmd), 0);
    ck_assert_int_eq(dt_ckpt_lock(dir, &plain, &err, &held), DT_ERR_INPUT);
    dt_assert_has(err.message, "move it away");
    snprintf(cmd, sizeof(cmd), "cd '%s' && [ \"$(cat victim)\" = precious ]", dir);
    ck_assert_int_eq(system(cmd), 0);
    ck_assert_int_eq(entries(), 2);
}
END_TEST

START_TEST(a_run_file_of_others_stays)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/run.json", dir);
    dt_assert_ok(dt_file_write(path, "{\"mine\": 1}\n", 12, &err), err);
    dt_assert_ok(dt_ckpt_lock(dir, &plain, &err, &held), err);
    ck_assert_int_eq(dt_ckpt_lock_run(held, "r", &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "move it away");
    dt_ckpt_unlock(held);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

/* Of many that find the same stale lock exactly one has the folder at a time. */
START_TEST(only_one_of_many)
{
    enum { MANY = 8, ROUNDS = 12 };
    struct dt_ckpt_process p = elsewhere();

    for (int round = 0; round < ROUNDS; round++) {
        int got = 0, status, stay[2];
        char c;

        plant(&p, "r", 500);
        ck_assert_int_eq(pipe(stay), 0);
        for (int i = 0; i < MANY; i++) {
            if (fork() != 0)
                continue;
            close(stay[1]);
            if (dt_ckpt_lock(dir, &plain, NULL, &held) != DT_OK)
                _exit(1);
            while (read(stay[0], &c, 1) > 0) /* until all others have tried */
                ;
            _exit(dt_ckpt_lock_check(held, NULL) == DT_OK ? 0 : 2);
        }
        close(stay[0]);
        for (int i = 0; i < MANY; i++) {
            if (i == MANY - 1)
                close(stay[1]);
            ck_assert_int_gt(wait(&status), 0);
            ck_assert(WIFEXITED(status) && WEXITSTATUS(status) < 2);
            got += WEXITSTATUS(status) == 0;
        }
        ck_assert_int_eq(got, 1);
        ck_assert_int_eq(unlink(lock_path), 0);
    }
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    for (uint64_t k = 1;; k++) {
        enum dt_status st;

        dt_mem_fail_at(k);
        st = dt_ckpt_lock(dir, &plain, &err, &held);
        dt_mem_fail_at(0);
        if (st == DT_OK) {
            dt_ckpt_unlock(held);
            ck_assert_uint_gt(k, 2);
            break;
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        ck_assert_int_eq(entries(), 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("checkpoint lock");
    TCase *c = dt_test_case(s, "lock", 90);

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, one_at_a_time);
    tcase_add_test(c, stale_here);
    tcase_add_test(c, of_another_host);
    tcase_add_test(c, rest_of_itself);
    tcase_add_test(c, lost_and_renewed);
    tcase_add_loop_test(c, planted, 0, 4);
    tcase_add_test(c, a_run_file_of_others_stays);
    tcase_add_test(c, only_one_of_many);
    tcase_add_test(c, every_allocation_may_fail);
    return dt_test_run(s);
}
