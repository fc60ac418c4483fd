/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside the cost model: only cost*.c include this.
 *
 *   profile rows --group by slow dims--> groups --blend at a query's slow dims--> surface (memoised)
 *   surface(log fast dims) -> log efficiency -> time = units / efficiency, never below the roofline
 *   kernels + collectives of a block -> block times (memoised) -> stage times (memoised)
 */
#ifndef DT_CORE_COST_COST_INTERNAL_H
#define DT_CORE_COST_COST_INTERNAL_H

#include "core/cost/cost.h"

#include "base/hash.h"
#include "base/memo.h"

#include <gsl/gsl_interp.h>
#include <gsl/gsl_interp2d.h>
#include <math.h>
#include <string.h>

/* ---- how the dims of a family are treated ---- */
enum dt_cost_dim_role {
    DIM_NONE,  /* not part of the key */
    DIM_FAST,  /* varies from microbatch to microbatch: an axis of the surface */
    DIM_SCALE, /* fixed by model and shard; blended in log space */
    DIM_CLASS  /* categorical (kernel size, stride, gated): must match */
};
struct dt_cost_family_desc {
    unsigned char role[6];
    unsigned char n_fast;
    bool flops; /* efficiency is flop/s (else bytes/s, or bus bytes/s for collectives) */
};
extern const struct dt_cost_family_desc dt_cost_family[DT_KOP_FAMILY_N];

/* ---- surfaces ---- */
struct dt_cost_group { /* rows that share all slow dims */
    int64_t slow[6];
    int first, n; /* into sorted[] of the table */
};
struct dt_cost_group_table { /* rows of one (family, phase), by slow dims */
    bool built;
    int n_groups, n_rows;
    struct dt_cost_group *groups;
    const struct dt_profile_row **sorted;
    double min_ns;  /* fastest row: the launch floor of what lies below the measured sizes */
    double max_eff; /* fastest rate of any row */
};

struct dt_cost_surface {
    uint64_t hash;
    int family, phase;
    int64_t slow[6];
    bool slow_exact, slow_inside;
    int nu, nv; /* one of them 1: a curve over the other; lv is NULL for families of one fast dim */
    double *lu, *lv, *z; /* z[iv * nu + iu] = log efficiency, as gsl_interp2d wants it */
    unsigned char *kind; /* worst row kind behind a knot; ROW_FILLED added when no row was there */
    double min_ns;
    gsl_interp *i1;
    gsl_interp2d *i2;
    gsl_interp_accel *au, *av;
    struct dt_cost_surface *next; /* list of all, for freeing */
};
/* Flags beside the row kind of a knot: between rows of its group; beyond them. */
enum { ROW_FILLED = 0x80, ROW_BEYOND = 0x40, ROW_FLAGS = 0xc0 };

enum {
    SURFACE_ENTRIES = 1 << 13,
    BLOCK_ENTRIES = 1 << 12,
    STAGE_BITS = 17, /* of places: sweeps come back to the works of several batches */
    RECIPES = 1 << 9
};

/* ---- block and stage memo ---- */
struct dt_cost_shard_key {
    uint16_t tp, cp, ep, ip, ahead, seqpar;
    uint32_t recompute;
};
struct dt_cost_block_times {
    struct dt_cost_time fwd, dgrad, wgrad;
    struct dt_cost_time
        wgrad_only; /* extra when the block is trained but passes no gradient upstream */
    struct dt_cost_time recompute; /* forward kernels run again before the backward */
    double calls, calls_dgrad, calls_wgrad, calls_again; /* kernels that the host issues */
};
struct dt_cost_block_entry {
    uint64_t hash; /* 0 = empty */
    int module, class_;
    struct dt_cost_shard_key shard;
    struct dt_work work;
    struct dt_cost_block_times t;
};
struct dt_cost_stage_key {
    uint64_t flags; /* digest of the trainable pattern */
    struct dt_work work;
    struct dt_cost_shard_key shard;
    int32_t module, first, n, upstream;
};
struct dt_cost_stage_entry {
    uint64_t hash;
    struct dt_cost_stage_key key;
    struct dt_cost_stage_ns ns;
};
/* Surfaces of the kernels of (module, class, shard), tried before the hash table. */
struct dt_cost_recipe {
    int module, class_;
    struct dt_cost_shard_key shard;
    bool used;
    struct {
        int family;
        int64_t d[6];
        struct dt_cost_surface *s[DT_PHASE_N];
    } kernel[DT_MAX_KOPS];
};

struct dt_cost {
    const struct dt_model *model;
    const struct dt_cluster *cluster;
    const struct dt_profile *profile;
    struct dt_cost_options opt;
    struct dt_cost_tuning tuning;
    double message_ns
        [2]; /* the smallest measured message between nodes, inside one; below 0: not looked up yet */
    double link_ratio; /* time of the bytes inside a node / that of the rows (dt_cost_link_ratio) */
    bool oom; /* a lazily built table could not be allocated; analytical times were used instead */
    struct dt_cost_group_table groups[DT_KOP_FAMILY_N][DT_PHASE_N];
    struct dt_cost_surface *surface[SURFACE_ENTRIES]; /* open addressing, never removed */
    struct dt_cost_surface *surfaces;
    int n_surfaces;
    uint16_t *class_of[DT_MAX_MODULES]; /* block -> first identical block of the module */
    uint16_t *alike[DT_MAX_MODULES];    /* block -> how many from it on are identical */
    struct dt_cost_block_entry *blocks; /* direct mapped */
    struct dt_cost_recipe *recipes;
    struct dt_memo stages; /* of dt_cost_stage_entry */
    struct dt_memo sheet_sums;
    struct dt_arena arena;
};

/* cost_rows.c */
enum { COST_MAX_CORNERS = 8, COST_NEAREST = 4 };
struct dt_cost_corner {
    const struct dt_cost_group *g;
    double w;
};
bool dt_cost_is_slow(int family, int dim);
const struct dt_cost_group_table *dt_cost_groups(struct dt_cost *c, int family, int phase);
/* Groups and weights around s->slow; sets s->slow_exact and s->slow_inside.  0 when out of memory. */
int dt_cost_corners(struct dt_cost *c, const struct dt_cost_group_table *t,
                    struct dt_cost_surface *s, struct dt_cost_corner *out);
static inline double dt_cost_log_dim(int64_t x)
{
    return log(x > 0 ? (double)x : 0.5);
}

/* cost_interp.c */
/* The surface for (family, phase) at the slow dims of d; NULL when the profile has no usable row. */
struct dt_cost_surface *dt_cost_surface(struct dt_cost *c, int family, int phase, const int64_t *d);
/* log efficiency at the fast dims (natural logs), and what it stands on.  *below: outside on the small side. */
double dt_cost_surface_eval(struct dt_cost_surface *s, double lu, double lv,
                            enum dt_cost_prov *prov, bool *below);
void dt_cost_surfaces_free(struct dt_cost *c);

/* cost_kernel.c */
/* Work of a row or kernel in the unit its efficiency is measured in (flop or bytes). */
double dt_cost_units(int family, const int64_t *d);
/* Resolve the surface of a kernel once; NULL = analytical. */
struct dt_cost_surface *dt_cost_kernel_surface(struct dt_cost *c, const struct dt_kop *op,
                                               enum dt_kop_phase phase);
/* One kernel, count not included; `s` may be NULL (looked up). */
void dt_cost_kernel_one(struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                        struct dt_cost_surface *s, struct dt_cost_time *out);

/* A collective between nodes, which no row tells of. */
bool dt_cost_leaves_node(const struct dt_cost *c, const struct dt_kop *op);
/* Applies the option `scale` of the family. */
void dt_cost_scale(const struct dt_cost *c, int family, struct dt_cost_time *t);
int dt_cost_family_source(struct dt_cost *c,
                          int family); /* family whose rows are used; -1 = none */
bool dt_cost_is_collective(int family);
/* What a row stands for.  An iteration is a sum over blocks, and sums add up means: those of measured blocks are
 * estimated from the three quantiles by Swanson's rule (30 %, 40 %, 30 %; Hurst, Brown and Swanson, AAPG Bulletin 84,
 * 2000).  Other rows are of kernels in a loop, or fitted, and their medians. */
static inline double dt_cost_row_ns(const struct dt_profile_row *r)
{
    return r->family == DT_KOP_BLOCK ? 0.3 * r->p10_ns + 0.4 * r->median_ns + 0.3 * r->p90_ns
                                     : r->median_ns;
}
static inline void dt_cost_time_set(struct dt_cost_time *t, double ns, enum dt_cost_prov p)
{
    *t = (struct dt_cost_time){.ns = ns};
    t->prov[p] = ns;
}

/* cost_collective.c */
/* The link that the profile's rows were measured over / the cluster's; 1 where the former is not known. */
double dt_cost_link_ratio(const struct dt_profile *p, const struct dt_cluster *cl);
double dt_cost_bus_factor(int family, int gpus);

/* cost_block.c */
struct dt_cost_block_kernels { /* a block's kernels and their times, count included */
    struct dt_cost *c;
    const struct dt_block *block;
    enum dt_block_recompute recompute;
    int n;
    struct dt_kop k[DT_MAX_KOPS];
    struct dt_cost_surface *s[DT_MAX_KOPS][DT_PHASE_N];
    struct dt_cost_time t[DT_MAX_KOPS][DT_PHASE_N];
};
void dt_cost_block_kernels(struct dt_cost *c, int module, int class_,
                           const struct dt_block_shard *shard, const struct dt_work *work,
                           struct dt_cost_block_kernels *b);
/* Fills t[i]. */
void dt_cost_kernel_times(struct dt_cost_block_kernels *b, int i);
/* The GEMMs [first, last) that collective i is pipelined with. */
bool dt_cost_partner(const struct dt_cost_block_kernels *b, int i, int *first, int *last);
/* Adds kernel i to each time of its block: one term at most to each. */
void dt_cost_kernel_add(struct dt_cost_block_kernels *b, int i, struct dt_cost_block_times *out);
void dt_cost_block(struct dt_cost *c, int module, int class_, const struct dt_block_shard *shard,
                   const struct dt_work *work, struct dt_cost_block_times *out);
/* The kernels of a block and what each adds to its times; arrays of DT_MAX_KOPS; returns how many. */
int dt_cost_block_parts(struct dt_cost *c, int module, int class_,
                        const struct dt_block_shard *shard, const struct dt_work *work,
                        struct dt_kop *kop, struct dt_cost_block_times *part);
/* cost_stage.c: what a block waits for the host in forward and backward together; of it in the forward. */
double dt_cost_host_wait(const struct dt_cost *c, const struct dt_cost_block_times *t, bool above,
                         bool trained, double *fwd_ns);
struct dt_cost_shard_key dt_cost_shard_key(const struct dt_block_shard *s);
struct dt_cost_stage_run { /* identical blocks in the same state */
    int class_, n;
    bool above, trained; /* something before them, or they themselves, are trained */
    bool head;           /* LM heads */
};
/* The run at block *at of a stage that ends before `end`; moves *at and *above on.  False at the end. */
bool dt_cost_stage_run(const struct dt_cost *c, int module, int end, const unsigned char *trainable,
                       int *at, bool *above, struct dt_cost_stage_run *run);
void dt_cost_stage_add(const struct dt_cost *c, const struct dt_cost_stage_run *run,
                       const struct dt_cost_block_times *t, struct dt_cost_stage *out);
void dt_cost_stage_key(const struct dt_cost *c, struct dt_cost_stage_key *key, int module,
                       int first, int n, const struct dt_block_shard *shard,
                       const unsigned char *trainable, bool upstream); /* all but the work */
/* The answer's hash, of whose bits from DT_COST_STAGE_SHIFT on its place in the memo is made. */
enum { DT_COST_STAGE_SHIFT = 11 };
uint64_t dt_cost_stage_hash(const struct dt_cost_stage_key *key);
/* e may be NULL. */
static inline bool dt_cost_stage_known(const struct dt_cost_stage_entry *e,
                                       const struct dt_cost_stage_key *key, uint64_t hash)
{
    return e && e->hash == hash && !memcmp(&e->key, key, sizeof(*key));
}

/* cost_sheet.c: the memo of blocks; false: out of memory. */
bool dt_cost_sheet_sums_init(struct dt_memo *m);

/* cost_whole.c: the same from rows of the block as a whole, into zeros; false without such rows. */
bool dt_cost_whole_block(struct dt_cost *c, int module, int class_,
                         const struct dt_block_shard *shard, const struct dt_work *work,
                         struct dt_cost_block_times *out);
bool dt_cost_block_measured(struct dt_cost *c, const struct dt_block *b,
                            const struct dt_block_shard *s);

#endif
