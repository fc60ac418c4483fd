/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The device table: memory, queues, events, weights and kernels of one accelerator (or of this
 * CPU).
 *
 * Every implementation fills every entry; callers never ask which device it is.  A queue runs what
 * is put on it in order; two queues run independently unless an event orders them.  On the CPU a
 * call has run when it returns, and the same program is correct: only the events order anything.
 *
 * Work is *issued* when the call returns and *done* when its queue has passed it.  Nobody waits for what he
 * has issued unless the host itself needs the result: whoever comes after it on another queue waits there,
 * for an event, and memory goes back at once (see free).
 *
 * Errors stick to the queue.  A kernel, copy or event call returns nothing; when one fails, the
 * later calls on that queue do nothing and queue_sync reports the first failure, once.  Calls that
 * create things return a status at once.
 *
 *     dev->k->rmsnorm_fwd(q, &norm, x, gamma, y, rstd);
 *     dev->k->linear_fwd(q, rows, y, wq, NULL, NULL, qkv);
 *     DT_TRY(dev->queue_sync(q, err));
 *
 * One thread at a time uses a queue; different threads may use different queues of a device. */
#ifndef DT_KERNELS_DEVICE_H
#define DT_KERNELS_DEVICE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Grows whenever this file or kernels/kernels.h changes meaning or layout. */
#define DT_DEVICE_ABI 19u

enum dt_dtype { DT_F32, DT_BF16, DT_DTYPE_N };
static inline size_t dt_dtype_bytes(enum dt_dtype t)
{
    return t == DT_BF16 ? 2 : 4;
}

struct dt_device;
struct dt_device_queue;  /* belongs to one device */
struct dt_device_event;  /* a point in a queue */
struct dt_device_gate;   /* a number that queues raise and wait for */
struct dt_device_weight; /* a weight matrix or filter in the device's own compute layouts */
struct dt_kernels;       /* kernels/kernels.h */

enum dt_device_copy { DT_COPY_TO_DEVICE, DT_COPY_TO_HOST, DT_COPY_ON_DEVICE };

/* What a device found out by measuring, kept for the next time: which of a library's algorithms is the fastest for
 * something.  `what` says for what: shape, types, layouts, what is done on the way.  Calls come from any thread. */
struct dt_device_notes {
    void *arg;
    bool
        at_once; /* what is found is used from then on; else only what was there at first is: where several ranks
                     compute the same, all must choose alike */
    /* Is there a note of that many bytes?  Then it is copied to `value`. */
    bool (*find)(void *arg, const char *device, int64_t library, const char *what, void *value,
                 size_t bytes);
    /* It took ns; the library's own choice first_ns. */
    void (*keep)(void *arg, const char *device, int64_t library, const char *what,
                 const void *value, size_t bytes, double ns, double first_ns);
    void (*close)(void *arg); /* by the device, when it is closed */
};

struct dt_device_options {
    int index;    /* which device of the module; 0 on the CPU */
    int threads;  /* CPU: threads of a kernel; 0 = one per core that this process may use */
    bool no_bf16; /* compute in fp32 even where bf16 is faster ("on request") */
    bool
        own_kernels; /* no library's convolutions and attention: sums are in the same order in every run */
    const struct dt_warn
        *warn; /* while it is opened: what would be faster, and why it is not; NULL: nobody */
    const struct dt_device_notes
        *notes; /* NULL: a library's own choice is taken.  dt_device_open closes what the
                                            device has no use for */
};

struct dt_device_info {
    char name[64];        /* "cpu", or the card's name */
    char isa[64];         /* what the fast paths use: "AVX512-BF16", "AMX-BF16", "sm_90", … */
    enum dt_dtype fast;   /* compute type to prefer here: DT_BF16 only where it beats fp32 */
    bool bf16;            /* products of bf16 work at all; else a bf16 weight is refused */
    int threads;          /* CPU threads; 1 on a card */
    int64_t memory_bytes; /* installed memory */
    bool packs; /* keeps a weight twice, packed for products; else it reads the copy in bf16 */
    bool host_memory; /* device pointers may be read and written by the host (after queue_sync) */
    char id
        [32]; /* which one of this host, the same to all processes: "0000:1b:00.0"; "": it is no card */
    char library
        [96]; /* of convolutions and attention: "cuDNN 9.19.0"; "": our own kernels do them */
    char versions
        [160]; /* of what computes, for records: "driver 580.65.06, CUDA 13.0, cuBLASLt 13.1.0, cuDNN
                           9.19.0"; "": there is nothing but this program */
    bool gates; /* queues run on their own, so one may wait for what has not been issued yet */
};

/* Shape of a weight.  Master weights and their gradients are fp32 in the Hugging Face order:
 * linear [out][in], convolution [out][in][kernel][kernel]. */
struct dt_device_weight_shape {
    enum dt_dtype dtype; /* compute type */
    int64_t out, in;
    int kernel; /* 0 = linear; else a kernel x kernel filter */
};

/* What another process of this host needs to find memory or an event of a device: bytes in the device's own words. */
struct dt_device_handle {
    unsigned char bytes[64];
};

struct dt_device_memory_owner { /* whose memory something is; outlives it */
    int64_t now_bytes;
};

struct dt_device {
    uint32_t abi; /* DT_DEVICE_ABI */
    struct dt_device_info info;
    const struct dt_kernels *k;
    void *impl;                          /* the implementation's own */
    const struct dt_device_notes *notes; /* those of the options, if it keeps any */

    void (*close)(
        struct dt_device *dev); /* everything of the device is freed first by the caller */

    /* ---- memory: 64-byte aligned, contents undefined; NULL is freed silently ---- */
    enum dt_status (*alloc)(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                            void **out);
    /* Returns at once.  Work that has been issued, on any queue, may still use `p`: it becomes other
     * memory, or faults, only when every queue has passed what is on it now.  The same goes for
     * weight_free. */
    void (*free)(const struct dt_device *dev, void *p);
    /* Host memory that copies fast and asynchronously (page-locked on a card).  It is freed when no
     * copy of it is under way; both may wait for the whole device, so neither belongs into a step. */
    enum dt_status (*host_alloc)(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                 void **out);
    void (*host_free)(const struct dt_device *dev, void *p);
    /* Bytes now and at most so far in alloc, in weights, and in the queues' workspaces together. */
    void (*memory_used)(const struct dt_device *dev, int64_t *now_bytes, int64_t *max_bytes);
    /* What the calling thread has allocated from now on, in alloc and in weights, is counted for
     * `owner` too, until it is freed by whomever; queues' workspaces are nobody's.  NULL, as at
     * first: nobody.  Returns the one before. */
    struct dt_device_memory_owner *(*memory_for)(const struct dt_device *dev,
                                                 struct dt_device_memory_owner *owner);

    /* Gives the driver back what it was asked for and nobody uses any more, where such memory is kept.  It may wait for
     * the whole device, so it does not belong into a step. */
    void (*memory_trim)(const struct dt_device *dev);
    /* A library of the card's maker has given memory of the device by itself, or taken it back (bytes < 0): it is
     * counted like the device's own. */
    void (*memory_given)(const struct dt_device *dev, struct dt_device_memory_owner *owner,
                         int64_t bytes);

    /* ---- queues ---- */
    enum dt_status (*queue_new)(const struct dt_device *dev, bool high_priority,
                                struct dt_error *err, struct dt_device_queue **out);
    void (*queue_free)(struct dt_device_queue *q); /* waits for it; NULL is ignored */
    /* Waits until all is done; reports and clears the first error. */
    enum dt_status (*queue_sync)(struct dt_device_queue *q, struct dt_error *err);
    /* The same without waiting or clearing: DT_OK as far as known. */
    enum dt_status (*queue_state)(const struct dt_device_queue *q);
    /* src and dst do not overlap.  Host memory stays valid until the queue has passed. */
    void (*copy)(struct dt_device_queue *q, void *dst, const void *src, size_t bytes,
                 enum dt_device_copy dir);
    void (*zero)(struct dt_device_queue *q, void *p, size_t bytes);
    /* A host function run in queue order; it may not touch the device.  It may wait for other processes, and for
     * functions of other queues, which it does not hold up (on a card: where info.gates). */
    void (*call)(struct dt_device_queue *q, void (*fn)(void *), void *arg);

    /* What a library of the card's maker takes for the queue (cudaStream_t), and the device becomes the calling
     * thread's, as such libraries expect it; NULL: there are none for this device. */
    void *(*queue_stream)(struct dt_device_queue *q);

    /* ---- events ---- */
    enum dt_status (*event_new)(const struct dt_device *dev, struct dt_error *err,
                                struct dt_device_event **out);
    void (*event_free)(
        struct dt_device_event *e); /* queues may still wait for it; NULL is ignored */
    /* An event stands for its last record: that is what a wait or a question means by it, whatever is
     * recorded later.  One that was never recorded is done. */
    void (*event_record)(struct dt_device_queue *q, struct dt_device_event *e);
    void (*event_wait)(struct dt_device_queue *q,
                       struct dt_device_event *e); /* q goes on after e */
    enum dt_status (*event_sync)(struct dt_device_event *e,
                                 struct dt_error *err); /* the host waits */
    bool (*event_done)(struct dt_device_event *e);
    /* Time of a recorded and done event, ns of dt_clock_ns (on a card: mapped onto it). */
    uint64_t (*event_ns)(struct dt_device_event *e);

    /* ---- gates ----
     * An event tells of what has been issued; a gate, of what will be, by another thread.  It has a number, 0
     * at first, which only grows.  Only where info.gates: what a queue waits for must then come from another
     * one, and whoever lets queues wait must see to it that it comes, or queue_free waits for ever. */
    enum dt_status (*gate_new)(const struct dt_device *dev, struct dt_error *err,
                               struct dt_device_gate **out);
    void (*gate_free)(struct dt_device_gate *g); /* as event_free */
    void (*gate_raise)(struct dt_device_queue *q, struct dt_device_gate *g,
                       uint64_t n); /* to n at least, when q comes to it */
    void (*gate_wait)(struct dt_device_queue *q, struct dt_device_gate *g,
                      uint64_t n); /* q goes on when it is n or more */

    /* ---- between processes of a host (CUDA IPC) ----
     * A device that has no such thing says so, DT_ERR_INPUT with the reason, and so does one that another process's
     * handle is of no use to. */
    /* Which of the driver's blocks `p` lies in, and how many bytes into it.  A block is the same one, and stays, until
     * the device is closed, whatever is freed in it: who has mapped it must have unmapped it by then, or there was an
     * ipc_leave. */
    enum dt_status (*ipc_memory)(const struct dt_device *dev, const void *p, struct dt_error *err,
                                 struct dt_device_handle *block, size_t *offset);
    /* The beginning of another process's block, for copies.  Each is mapped once at a time.  It is unmapped when no
     * queue has anything of it any more; both may wait for the whole device. */
    enum dt_status (*ipc_map)(const struct dt_device *dev, const struct dt_device_handle *block,
                              struct dt_error *err, void **out);
    void (*ipc_unmap)(const struct dt_device *dev, void *p);
    /* Others may have mapped for ever what ipc_memory has named: close leaves it to the end of the process. */
    void (*ipc_leave)(const struct dt_device *dev);
    /* An event that this process records and others, who open it, may wait for and ask about once they have been told
     * of the record.  It has no time.  event_free ends both; that of the one who has opened it comes first. */
    enum dt_status (*ipc_event_new)(const struct dt_device *dev, struct dt_error *err,
                                    struct dt_device_event **out, struct dt_device_handle *handle);
    enum dt_status (*ipc_event_open)(const struct dt_device *dev,
                                     const struct dt_device_handle *handle, struct dt_error *err,
                                     struct dt_device_event **out);

    /* ---- better ways ----
     * Kernels that have come often (DT_KERNEL_SETTLES) may have a better way that takes long to make ready, and whose code
     * is to be loaded, for which the device may wait for all its queues.  It is made ready here, and nowhere else: between
     * iterations, when no queue waits for other ranks.  Until then the kernels do without. */
    void (*settle)(const struct dt_device *dev);

    /* ---- weights ----
     * A weight reads the fp32 master or, where the caller keeps one, its copy in bf16 (NULL: none; both are
     * device memory and outlive it).  It keeps what else the kernels want of it: rounded, packed, per use.
     * Packing happens at first use after weight_changed, so a frozen weight is packed once and a trained one
     * once per optimizer step, for all microbatches.  Who keeps a copy writes it whenever he writes the
     * master, or instead: with it nothing reads the master, which may be NULL then. */
    enum dt_status (*weight_new)(const struct dt_device *dev,
                                 const struct dt_device_weight_shape *shape, const float *master,
                                 const void *rounded, struct dt_error *err,
                                 struct dt_device_weight **out);
    void (*weight_free)(struct dt_device_weight *w);
    /* What it reads was written (in q's order): what was packed is old. */
    void (*weight_changed)(struct dt_device_queue *q, struct dt_device_weight *w);
};

/* ---- implementations ---- */

/* The CPU: built in, always there. */
enum dt_status dt_device_open_cpu(const struct dt_device_options *opt, struct dt_error *err,
                                  struct dt_device **out);

/* A module loaded at run time exports exactly one symbol, of this type and name; it returns NULL
 * for an ABI that it does not speak.  The table lives as long as the module. */
struct dt_device_module {
    uint32_t abi;
    const char *name; /* "cuda" */
    /* Devices that can be opened now; 0 with `err` filled when there is none (no driver, …). */
    int (*count)(struct dt_error *err);
    enum dt_status (*open)(const struct dt_device_options *opt, struct dt_error *err,
                           struct dt_device **out);
};
typedef const struct dt_device_module *dt_device_module_fn(uint32_t abi);
#define DT_DEVICE_MODULE_SYMBOL "dt_device_module"

#endif
