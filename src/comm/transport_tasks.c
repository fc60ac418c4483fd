/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What launchers say in the environment of the processes that they start. */
#include "comm/transport.h"

#include "base/number.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TORCH_PORT = 29500 }; /* torchrun's default */

struct vars {
    const char *size, *rank;
};

/* Open MPI's mpirun; MPICH's and Intel's (Hydra), Cray's. */
static const struct vars by_mpi[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"PMI_SIZE", "PMI_RANK"},
};

/* What starts several tasks, with or without MPI.  torchrun: WORLD_SIZE. */
static const struct vars by_any[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"PMI_SIZE", "PMI_RANK"},
    {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    {"PALS_SIZE", "PALS_RANKID"},
    {"PALS_LOCAL_SIZE", "PALS_LOCAL_RANKID"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
    {"WORLD_SIZE", "RANK"},
};

/* A rank above 0 is not alone, whatever the number of tasks. */
static const char *const ranks[] = {"PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE", "SLURM_PROCID"};

static int64_t number(const char *name)
{
    const char *text = getenv(name);
    int64_t n;

    return text && dt_number_int(text, &n) ? n : -1;
}

/* srun hands down how tasks find each other only when it is asked to (--mpi). */
static bool has_pmi(void)
{
    return getenv("PMI_RANK") || getenv("PMI_FD") || getenv("PMIX_RANK") ||
           getenv("PMIX_NAMESPACE") || getenv("PMI_CONTROL_FD");
}

/* Where there is no number of the step's tasks: Slurm's number of tasks is that of the whole
 * allocation.  The shell of salloc has it without being a task (no SLURM_PROCID); so has a batch
 * script, which is task 0 of a step without number.
 */
static void slurm_task(char *text, size_t size)
{
    const char *const sizes[] = {"SLURM_NTASKS", "SLURM_NPROCS"};
    const char *kind = getenv("ENVIRONMENT");
    bool step = getenv("SLURM_STEP_ID") || getenv("SLURM_STEPID");

    if (getenv("SLURM_STEP_NUM_TASKS") || number("SLURM_PROCID") < 0 ||
        (!step && kind && strcmp(kind, "BATCH") == 0))
        return;
    for (size_t k = 0; k < 2; k++)
        if (number(sizes[k]) > 1) {
            snprintf(text, size, "%s=%lld, SLURM_PROCID=%lld", sizes[k],
                     (long long)number(sizes[k]), (long long)number("SLURM_PROCID"));
            return;
        }
}

/* Into `text`; untouched if nothing says so. */
static void look(char *text, size_t size)
{
    for (size_t k = 0; k < sizeof(by_any) / sizeof(by_any[0]); k++) {
        const struct vars *v = &by_any[k];

        if (number(v->size) > 1 && (number(v->rank) >= 0 || strcmp(v->size, "WORLD_SIZE") == 0)) {
            int n = snprintf(text, size, "%s=%lld", v->size, (long long)number(v->size));

            if (number(v->rank) >= 0)
                snprintf(text + n, size - (size_t)n, ", %s=%lld", v->rank,
                         (long long)number(v->rank));
            return;
        }
    }
    for (size_t k = 0; k < sizeof(ranks) / sizeof(ranks[0]); k++)
        if (number(ranks[k]) > 0) {
            snprintf(text, size, "%s=%lld", ranks[k], (long long)number(ranks[k]));
            return;
        }
    slurm_task(text, size);
}

/* What says that this process is one of several, or "": as it was before MPI, which changes it. */
static const char *one_of_several(void)
{
    static char text[128];
    static bool looked;

    if (!looked)
        look(text, sizeof(text));
    looked = true;
    return text;
}

bool dt_transport_mpi_launched(int *out)
{
    int64_t n = 0;

    one_of_several();
    for (size_t k = 0; k < sizeof(by_mpi) / sizeof(by_mpi[0]) && n < 1; k++)
        n = number(by_mpi[k].rank) >= 0 ? number(by_mpi[k].size) : 0;
    /* srun of one task is not taken for a launcher: a job may then start ranks of its own */
    if (n < 1 && has_pmi() && number("SLURM_PROCID") >= 0 && number("SLURM_STEP_NUM_TASKS") > 1)
        n = number("SLURM_STEP_NUM_TASKS");
    if (n < 1 && number("PMIX_RANK") >= 0 && getenv("PMIX_NAMESPACE") &&
        number("SLURM_STEP_NUM_TASKS") != 1)
        n = 1;
    if (n < 1 || n > INT_MAX)
        return false;
    if (out)
        *out = (int)n;
    return true;
}

/* torchrun's agent may listen at MASTER_PORT itself; rank 0 takes the next one then. */
bool dt_transport_tcp_launched(struct dt_transport_launch *out)
{
    const char *address = getenv("MASTER_ADDR"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    int64_t rank = number("RANK"), size = number("WORLD_SIZE"), port = number("MASTER_PORT");
    struct dt_transport_launch l = {.rank = (int)rank, .size = (int)size};

    one_of_several();
    if (port < 0 && !getenv("MASTER_PORT"))
        port = TORCH_PORT;
    if (!address || !*address || strlen(address) >= sizeof(l.address) || size < 2 ||
        size > INT_MAX || rank < 0 || rank >= size || port < 1 || port > 65534 ||
        dt_transport_mpi_launched(NULL))
        return false;
    memcpy(l.address, address, strlen(address) + 1);
    snprintf(l.port, sizeof(l.port), "%d",
             (int)port + (agent && strcmp(agent, "True") == 0 ? 1 : 0));
    if (out)
        *out = l;
    return true;
}

enum dt_status dt_transport_open_launched(struct dt_error *err, struct dt_transport **out)
{
    struct dt_transport_launch l;

    return dt_transport_tcp_launched(&l) ? dt_transport_open_tcp(&l, err, out)
                                         : dt_transport_open_mpi(err, out);
}

enum dt_status dt_transport_check_tasks(int size, struct dt_error *err)
{
    const char *text = one_of_several();

    if (size > 1 || !*text)
        return DT_OK;
    return dt_error_set(err, DT_ERR_USAGE,
                        "this process is one of several tasks (%s), but there is no MPI between "
                        "them, so each would run the whole job by itself; start them with 'srun "
                        "--mpi=pmix', with the mpirun of the MPI library that disttrain was built "
                        "with, with MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE as torchrun sets "
                        "them, or as one task with --ranks N (--ranks 1 to run alone nevertheless)",
                        text);
}
