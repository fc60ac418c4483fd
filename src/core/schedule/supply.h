/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * When the input of a program's FETCHes is there: preprocessing as queues of cores.
 *
 *     FETCHes in the order of need --> images and texts --> cores, first come first served
 *                                                             |
 *        colocated: those of the node that fetches            +--> there
 *        disaggregated: of CPU node k mod n for sample k,     +--> the link into the node, one by one --> there
 *        as producers of data deal them (exec/feed/client.h)
 *
 * Colocated loaders that know no plan decode on every lane all samples of a slot, those of other replicas too (`reads`),
 * a sample at a time.
 *
 * An image takes w h / decode + w h / resize (where its module resizes) seconds of a core, a text 4 bytes a token /
 * tokenize, a clip of sound its seconds / sound.  What is sent is what training gets: 3 bytes a pixel after resizing, 4
 * a token, and 4 a value of a spectrogram (of 128 filters where the encoder does not say).  The cores may
 * begin a batch when the iteration `prefetch` before its own begins (0: with its own), and take it after the batch before
 * it. */
#ifndef DT_CORE_SCHEDULE_SUPPLY_H
#define DT_CORE_SCHEDULE_SUPPLY_H

#include "core/model/cluster.h"
#include "core/schedule/timeline.h"

enum dt_sched_supply_mode {
    DT_SCHED_SUPPLY_NONE, /* all input is there from the begin */
    DT_SCHED_SUPPLY_COLOCATED,
    DT_SCHED_SUPPLY_DISAGGREGATED,
    DT_SCHED_SUPPLY_N
};
extern const char *const dt_sched_supply_names[DT_SCHED_SUPPLY_N + 1];
enum dt_sched_supply_reads { DT_SCHED_READS_OWN, DT_SCHED_READS_SLOT, DT_SCHED_READS_N };
extern const char *const dt_sched_supply_reads_names[DT_SCHED_READS_N + 1];

#define DT_SCHED_SUPPLY_DTYPE "u8" /* of rows of cpu_prep */
enum { DT_SCHED_SUPPLY_CORES_MAX = 1 << 20, DT_SCHED_SUPPLY_PREFETCH_MAX = 64 };

struct dt_sched_supply {
    enum dt_sched_supply_mode mode;
    enum dt_sched_supply_reads reads;  /* colocated: what a lane decodes */
    int cores_per_node;                /* colocated: of each node that fetches, for preprocessing */
    int cpu_nodes, cores_per_cpu_node; /* disaggregated */
    int slow_nodes; /* of the CPU nodes, the first: their cores take slow_factor times as long */
    double slow_factor;
    int prefetch;                     /* batches that may be made ahead */
    double latency_s, bw_bytes_per_s; /* disaggregated: of a message, and into a node */
    double decode_px_per_s, resize_px_per_s, tokenize_bytes_per_s; /* of a core */
    double sound_s_per_s;                                          /* the same */
    bool measured; /* these are a profile's (dt_sched_supply_rates) */
};
/* The rates of one core that hold where no profile says more, and all else 0 but prefetch 1. */
void dt_sched_supply_defaults(struct dt_sched_supply *s);
/* Rates from a profile's rows of family cpu_prep; DT_ERR_INPUT, naming what lacks, where one that the model needs is
 * not there: those of images and text always, that of sound where a module reads or makes some. */
enum dt_status dt_sched_supply_rates(const struct dt_profile *p, const struct dt_model *m,
                                     struct dt_error *err, struct dt_sched_supply *s);

/* Batches one after the other: cores and links go on where the batch before left them, so that a light batch makes up
 * for a heavy one, as far as `prefetch` allows.  The run begins with nothing made. */
struct dt_sched_stream;
struct dt_sched_supplied {
    double core_s,
        bytes; /* of the batch, on cores that are not slow; bytes are those that CPU nodes send */
    double node_core_s, node_bytes; /* of them, what the GPU node fetches that fetches the most */
    int cores;                      /* that work on it */
    int nodes;                      /* that fetch */
};
/* What the batch of a program is; nothing is timed. */
enum dt_status dt_sched_supply_batch(const struct dt_sched_supply *s, const struct dt_model *m,
                                     const struct dt_cluster *c, const struct dt_samples *set,
                                     const struct dt_program *p, struct dt_error *err,
                                     struct dt_sched_supplied *out);
/* The mode is one of the latter two, whose numbers are above 0; all but err are borrowed until the stream is freed. */
enum dt_status dt_sched_stream_new(const struct dt_sched_supply *s, const struct dt_model *m,
                                   const struct dt_cluster *c, const struct dt_samples *set,
                                   struct dt_error *err, struct dt_sched_stream **out);
/* release_ns[p->n_ops], from its begin on, of the program that is the next iteration; 0 of all but FETCHes.
 * The program's own release_ns is not looked at.  dur_ns: of its ops, without contention; they say in which order input
 * is needed.  O(images log cores + ops). */
enum dt_status dt_sched_stream_next(struct dt_sched_stream *x, const struct dt_program *p,
                                    const int64_t *dur_ns, struct dt_error *err,
                                    int64_t *release_ns, struct dt_sched_supplied *out);
/* How long that iteration took. */
void dt_sched_stream_ran(struct dt_sched_stream *x, int64_t iteration_ns);
/* The batches come again from the first one, as they have since the last call: is it certain that each pass from here on takes as
 * long as those before it?  (Or so many of them together as are a period; supply_steady.c.)  Until it is, a call may move the
 * stream on. */
enum dt_status dt_sched_stream_settled(struct dt_sched_stream *x, struct dt_error *err, bool *yes);
void dt_sched_stream_free(struct dt_sched_stream *x);

#endif
