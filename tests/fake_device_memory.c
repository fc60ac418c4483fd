/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of the fake device: one file, mapped twice.
 *
 *   callers   [ nothing may be touched: PROT_NONE throughout                    ]
 *   kernels   [guard|  block 0|guard|    block 1|guard|...                      ]   = callers + SPAN
 *
 * Blocks are parts of pieces, as a driver would give them to an arena; another process maps a whole piece (ipc).  The
 * guard in front of a block says in the file, which this process cannot see there, what the block is, so that who has
 * mapped it can tell whether it is alive.  The end of the first guard of a piece counts who has mapped the piece.
 *
 * Addresses are never used again, so that whoever holds an old one is found out.  A block ends where
 * its last page ends, less what its alignment takes: a kernel that goes beyond it meets the guard. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create, REG_EFL */
#endif
#include "fake_device_impl.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define SPAN (mem.span)
#define SPAN_MOST ((size_t)1 << 40)
#define SPAN_LEAST ((size_t)1 << 34) /* what valgrind has room for, and enough for each test */
enum { ALIGN = 64, FRAMES = 24, SITES = 512, PIECE = 1 << 24 };

struct dt_fake_block {
    size_t at, bytes;       /* of the span */
    size_t pages_at, pages; /* its pages, in bytes */
    struct dt_fake *f;
    struct dt_device_memory_owner *owner;
    bool live, dropped;
    bool foreign; /* another process's piece */
};

/* In the guard in front of a block. */
struct head {
    char magic[8];
    uint64_t at, bytes; /* of the file */
    uint64_t dropped;
};
static const char magic[8] = "fakehead";
#define MAPPED_AT(page) ((page) - sizeof(uint64_t)) /* behind that */

static struct {
    pthread_mutex_t lock;
    char *base;  /* callers' */
    size_t span; /* bytes of each mapping */
    int fd;
    size_t next, end, page;       /* where the next block comes; behind all that there is */
    struct dt_fake_piece *pieces; /* by address */
    size_t n_pieces;
    struct dt_fake_block **blocks; /* by address */
    size_t n, cap;
    const char *record; /* file, or NULL: a touch ends the program */
    struct {
        void *frame[FRAMES];
        int n;
    } site[SITES];
    int n_sites;
} mem = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local const char *doing = "the host";
/* Pages that are let through while one instruction runs, two each: what is touched may lie across. */
enum { OPENED = 4 };
static _Thread_local char *opened[OPENED];
static _Thread_local int n_opened;

void dt_fake_doing(const char *what)
{
    doing = what ? what : "the host";
}

void dt_fake_stop(const char *fmt, ...)
{
    void *frame[FRAMES];
    va_list ap;

    va_start(ap, fmt);
    fputs("fake device: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputs("\n", stderr);
    va_end(ap);
    backtrace_symbols_fd(frame, backtrace(frame, FRAMES), STDERR_FILENO);
    abort();
}

/* ---- finding ---- */

/* Locked: the last block that begins at or before the offset. */
static struct dt_fake_block *block_at(size_t at)
{
    size_t lo = 0, hi = mem.n;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (mem.blocks[mid]->at <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 ? mem.blocks[lo - 1] : NULL;
}

struct dt_fake *dt_fake_of_block(const void *p)
{
    struct dt_fake_block *b;

    pthread_mutex_lock(&mem.lock);
    b = block_at((size_t)((const char *)p - mem.base));
    pthread_mutex_unlock(&mem.lock);
    return b ? b->f : NULL;
}

/* Another process's memory: is what lies there alive?  `at` of the span. */
static void check_foreign(const struct dt_fake_block *b, size_t at, const char *what)
{
    const char *may = getenv("DISTTRAIN_FAKE_IPC");
    size_t page = at / mem.page * mem.page;
    struct head h = {"", 0, 0, 0};

    while (page > b->at && memcmp(h.magic, magic, sizeof(magic)) != 0) {
        page -= mem.page;
        memcpy(&h, mem.base + SPAN + page, sizeof(h));
    }
    if (h.dropped && may && strcmp(may, "freed") == 0)
        return;
    if (memcmp(h.magic, magic, sizeof(magic)) != 0 || h.dropped)
        dt_fake_stop("%s is given memory of another process that %s", what,
                     h.dropped ? "has been freed there" : "is in no block");
}

bool dt_fake_is_device(const void *p)
{
    const char *c = p;

    return mem.base && c >= mem.base && c < mem.base + 2 * SPAN;
}

static void *alias(const void *p, const char *what, bool kept)
{
    const char *c = p;
    struct dt_fake_block *b;
    bool live, inside;
    size_t at;

    if (!p)
        return NULL;
    if (!mem.base || c < mem.base || c >= mem.base + SPAN)
        dt_fake_stop("%s is given %p, which is not device memory", what, p);
    at = (size_t)(c - mem.base);
    pthread_mutex_lock(&mem.lock);
    b = block_at(at);
    inside = b && at <= b->at + b->bytes;
    live = inside && (b->live || (kept && !b->dropped));
    pthread_mutex_unlock(&mem.lock);
    if (!inside)
        dt_fake_stop("%s is given %p, which is in no block of device memory", what, p);
    if (!live)
        dt_fake_stop("%s is given %p, in %zu bytes that have been freed", what, p, b->bytes);
    if (b->foreign)
        check_foreign(b, at, what);
    return mem.base + SPAN + at;
}

void *dt_fake_alias(const void *p, const char *what)
{
    return alias(p, what, false);
}

void *dt_fake_alias_kept(const void *p, const char *what)
{
    return alias(p, what, true);
}

/* ---- faults ---- */

static void say_where(const char *c)
{
    bool kernel = c >= mem.base + SPAN;
    size_t at = (size_t)(c - mem.base) - (kernel ? SPAN : 0);
    struct dt_fake_block *b = block_at(at); /* not locked: the program is at its end */
    char text[256];
    int n;

    n = b ? snprintf(text, sizeof(text),
                     "fake device: %s touches %s memory at byte %zu of a block of %zu (%s)\n",
                     doing, kernel ? "a kernel's view of" : "device", at - b->at, b->bytes,
                     !b->live                 ? "freed"
                     : at >= b->at + b->bytes ? "beyond its end"
                                              : "alive")
          : snprintf(text, sizeof(text), "fake device: %s touches memory before any block\n",
                     doing);
    if (write(STDERR_FILENO, text, (size_t)n) < 0)
        return;
}

static void note_site(void)
{
    void *frame[FRAMES];
    int n = backtrace(frame, FRAMES), k;

    for (k = 0; k < mem.n_sites; k++)
        if (mem.site[k].n == n && memcmp(mem.site[k].frame, frame, (size_t)n * sizeof(*frame)) == 0)
            return;
    if (mem.n_sites == SITES)
        return;
    memcpy(mem.site[k].frame, frame, (size_t)n * sizeof(*frame));
    mem.site[mem.n_sites++].n = n;
    k = open(mem.record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (k < 0)
        return;
    if (write(k, "touch by the host:\n", 19) == 19)
        backtrace_symbols_fd(frame + 2, n > 2 ? n - 2 : 0, k); /* less this and the handler */
    close(k);
}

/* Lets the one instruction through, then closes the page again. */
static bool let_through(char *c, void *context)
{
#ifdef __x86_64__
    ucontext_t *u = context;

    if (n_opened == OPENED || !mem.record || c >= mem.base + SPAN)
        return false;
    note_site();
    opened[n_opened] = mem.base + (size_t)(c - mem.base) / mem.page * mem.page;
    mprotect(opened[n_opened++], 2 * mem.page, PROT_READ | PROT_WRITE);
    u->uc_mcontext.gregs[REG_EFL] |= 0x100; /* trap */
    return true;
#else
    (void)c;
    (void)context;
    return false;
#endif
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    char *c = info->si_addr;
    void *frame[FRAMES];

    if (dt_fake_is_device(c)) {
        if (let_through(c, context))
            return;
        say_where(c);
    }
    backtrace_symbols_fd(frame, backtrace(frame, FRAMES), STDERR_FILENO);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void on_trap(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)info;
#ifdef __x86_64__
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)0x100;
#else
    (void)context;
#endif
    while (n_opened > 0)
        mprotect(opened[--n_opened], 2 * mem.page, PROT_NONE);
}

/* ---- blocks ---- */

/* As many addresses as there are. */
static void *reserve(void)
{
    void *base = MAP_FAILED;

    for (mem.span = SPAN_MOST; base == MAP_FAILED && mem.span >= SPAN_LEAST; mem.span /= 2)
        base =
            mmap(NULL, 2 * mem.span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mem.span *= 2; /* the last that was tried */
    return base;
}

/* Locked. */
static bool open_memory(void)
{
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    void *base, *frame[1];

    if (mem.base)
        return true;
    mem.page = (size_t)sysconf(_SC_PAGESIZE);
    mem.fd = memfd_create("fake device", MFD_CLOEXEC);
    base = mem.fd >= 0 ? reserve() : MAP_FAILED;
    if (base == MAP_FAILED || ftruncate(mem.fd, (off_t)SPAN) != 0)
        return false;
    for (int k = 0; k < 2; k++)
        if (mmap((char *)base + (size_t)k * SPAN, SPAN, PROT_NONE,
                 MAP_SHARED | MAP_FIXED | MAP_NORESERVE, mem.fd, 0) == MAP_FAILED)
            return false;
    backtrace(frame, 1); /* loads what it needs, which a handler may not */
    mem.record = getenv("DISTTRAIN_FAKE_RECORD");
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGBUS, &fault, NULL);
    sigaction(SIGTRAP, &trap, NULL);
    mem.base = base;
    mem.end = mem.page;
    return true;
}

/* Locked: the next block begins in a piece with room for it and the guard behind. */
static bool find_piece(size_t bytes)
{
    struct dt_fake_piece *last = mem.n_pieces ? &mem.pieces[mem.n_pieces - 1] : NULL, *grown;
    size_t need = bytes + 2 * mem.page;

    if (last && mem.next + bytes + mem.page <= last->at + last->bytes)
        return true;
    grown = realloc(mem.pieces, (mem.n_pieces + 1) * sizeof(*grown));
    if (!grown)
        return false;
    mem.pieces = grown;
    grown[mem.n_pieces++] =
        (struct dt_fake_piece){mem.fd, mem.end, need > PIECE ? need : (size_t)PIECE};
    mem.next = mem.end + mem.page; /* a guard before the first */
    mem.end += need > PIECE ? need : (size_t)PIECE;
    return mem.end <= SPAN;
}

/* In the file only: nobody here sees it. */
static void say_head(const struct dt_fake_block *b)
{
    struct head h = {.at = b->at, .bytes = b->bytes, .dropped = b->dropped};

    memcpy(h.magic, magic, sizeof(magic));
    if (pwrite(mem.fd, &h, sizeof(h), (off_t)(b->pages_at - mem.page)) != (ssize_t)sizeof(h))
        dt_fake_stop("the head of a block cannot be written");
}

/* Locked: in the order of addresses. */
static struct dt_fake_block *block_add(const struct dt_fake_block *b)
{
    struct dt_fake_block *kept = malloc(sizeof(*kept));
    size_t k;

    if (kept && mem.n == mem.cap) {
        size_t cap = 2 * mem.cap + 64;
        struct dt_fake_block **grown = realloc((void *)mem.blocks, cap * sizeof(*grown));

        if (!grown) {
            free(kept);
            return NULL;
        }
        mem.blocks = grown;
        mem.cap = cap;
    }
    if (!kept)
        return NULL;
    for (k = mem.n++; k > 0 && mem.blocks[k - 1]->at > b->at; k--)
        mem.blocks[k] = mem.blocks[k - 1];
    *kept = *b;
    mem.blocks[k] = kept;
    return kept;
}

/* Locked: room for another process's piece. */
static struct dt_fake_block *place_foreign(size_t bytes)
{
    struct dt_fake_block b = {.at = mem.end,
                              .bytes = bytes,
                              .pages_at = mem.end,
                              .pages = bytes,
                              .live = true,
                              .foreign = true};

    if (mem.end + bytes + mem.page > SPAN)
        return NULL;
    mem.end += bytes + mem.page;
    return block_add(&b);
}

/* Locked. */
static struct dt_fake_block *place(size_t bytes)
{
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    size_t pages = (room + mem.page - 1) / mem.page * mem.page;
    struct dt_fake_block b = {.bytes = bytes, .pages = pages, .live = true}, *kept;

    if (!find_piece(pages))
        return NULL;
    b.pages_at = mem.next;
    b.at = mem.next + pages - room;
    if (mprotect(mem.base + SPAN + mem.next, pages, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    kept = block_add(&b);
    if (!kept)
        return NULL;
    mem.next += pages + mem.page;
    say_head(kept);
    return kept;
}

void *dt_fake_block_new(struct dt_fake *f, size_t bytes)
{
    struct dt_fake_block *b = NULL;
    float *p;

    pthread_mutex_lock(&mem.lock);
    if (open_memory())
        b = place(bytes > 0 ? bytes : 1);
    pthread_mutex_unlock(&mem.lock);
    if (!b)
        return NULL;
    b->f = f;
    b->owner = dt_fake_owner;
    p = (float *)(void *)(mem.base + SPAN + b->pages_at);
    for (size_t i = 0; i < b->pages / sizeof(*p); i++)
        p[i] = 1e36f; /* finite in both precisions, and not for long */
    return mem.base + b->at;
}

struct dt_fake_block *dt_fake_block_of(const void *p)
{
    struct dt_fake_block *b = NULL;

    if (mem.base && (const char *)p >= mem.base && (const char *)p < mem.base + SPAN) {
        pthread_mutex_lock(&mem.lock);
        b = block_at((size_t)((const char *)p - mem.base));
        pthread_mutex_unlock(&mem.lock);
    }
    if (!b || mem.base + b->at != (const char *)p)
        dt_fake_stop("%p is freed, which is the beginning of no block", p);
    if (!b->live)
        dt_fake_stop("%p is freed a second time", p);
    return b;
}

void dt_fake_block_retire(struct dt_fake_block *b)
{
    pthread_mutex_lock(&mem.lock);
    b->live = false;
    pthread_mutex_unlock(&mem.lock);
}

size_t dt_fake_block_drop(struct dt_fake_block *b)
{
    pthread_mutex_lock(&mem.lock);
    b->dropped = true;
    say_head(b);
    pthread_mutex_unlock(&mem.lock);
    mprotect(mem.base + SPAN + b->pages_at, b->pages, PROT_NONE);
    fallocate(mem.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->pages_at,
              (off_t)b->pages);
    return b->bytes;
}

size_t dt_fake_block_bytes(const struct dt_fake_block *b)
{
    return b->bytes;
}

struct dt_device_memory_owner *dt_fake_block_owner(const struct dt_fake_block *b)
{
    return b->owner;
}

/* ---- pieces, for other processes ---- */

struct dt_fake_piece dt_fake_piece_of(const void *p, size_t *offset)
{
    size_t at, k = 0;

    (void)dt_fake_alias(p, "a handle");
    at = (size_t)((const char *)p - mem.base);
    pthread_mutex_lock(&mem.lock);
    while (k < mem.n_pieces &&
           (at < mem.pieces[k].at || at - mem.pieces[k].at >= mem.pieces[k].bytes))
        k++;
    pthread_mutex_unlock(&mem.lock);
    if (k == mem.n_pieces)
        dt_fake_stop("%p is another process's, and so is its handle", p);
    *offset = at - mem.pieces[k].at;
    return mem.pieces[k];
}

static void count_mapping(const struct dt_fake_block *b, int change)
{
    atomic_uint_fast64_t *n = (void *)(mem.base + SPAN + b->at + MAPPED_AT(mem.page));

    atomic_fetch_add(n, (uint64_t)(int64_t)change);
}

bool dt_fake_pieces_mapped(void)
{
    uint64_t n = 0, all = 0;

    pthread_mutex_lock(&mem.lock);
    for (size_t k = 0; k < mem.n_pieces; k++)
        if (pread(mem.fd, &n, sizeof(n), (off_t)(mem.pieces[k].at + MAPPED_AT(mem.page))) ==
            (ssize_t)sizeof(n))
            all += n;
    pthread_mutex_unlock(&mem.lock);
    return all > 0;
}

/* Where nobody looks for blocks of this process: its piece ends. */
void *dt_fake_piece_map(const struct dt_fake_piece *theirs)
{
    struct dt_fake_block *b = NULL;
    void *p = MAP_FAILED;

    pthread_mutex_lock(&mem.lock);
    if (open_memory() && (b = place_foreign(theirs->bytes)))
        p = mmap(mem.base + SPAN + b->at, theirs->bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, theirs->fd, (off_t)theirs->at);
    if (b && p == MAP_FAILED)
        b->live = false;
    if (b && p != MAP_FAILED)
        count_mapping(b, 1);
    pthread_mutex_unlock(&mem.lock);
    return p == MAP_FAILED ? NULL : mem.base + b->at;
}

void dt_fake_piece_unmap(void *p)
{
    struct dt_fake_block *b = dt_fake_block_of(p);

    if (!b->foreign)
        dt_fake_stop("%p is unmapped, which is this process's own", p);
    pthread_mutex_lock(&mem.lock);
    b->live = false;
    b->dropped = true;
    count_mapping(b, -1);
    pthread_mutex_unlock(&mem.lock);
    mmap(mem.base + SPAN + b->at, b->bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
