/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How ranks find each other over TCP.
 *
 *   rank 0   listens at MASTER_PORT; hears from everybody where he listens; tells all of them
 *   rank k   listens at a port of its own; connects to rank 0, then to ranks 1 .. k - 1; is connected to by k + 1 ..
 *
 * A connection begins with a greeting of both sides, so that nobody else's is taken for one. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4, struct cpu_set_t */
#endif
#include "comm/cores.h"
#include "comm/transport_tcp_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETING UINT64_C(0x3150435454524454) /* "TDRTTCP1" */
enum { GREET_S = 5, RETRY_NS = 50000000 };

/* What a rank says of itself. */
struct greeting {
    uint64_t magic;
    int32_t rank, size;
    char host[64], address[INET6_ADDRSTRLEN + 2],
        port[8]; /* where it listens, as others reach it */
    struct dt_cores cores;
};

struct meeting { /* while it is opened */
    struct dt_tcp *s;
    const struct dt_transport_launch *launch;
    struct greeting *all; /* [size] */
    uint64_t begin_ns;
};

static double left_s(const struct meeting *m)
{
    return m->s->t.limit_s - (double)(dt_clock_ns() - m->begin_ns) * 1e-9;
}

/* ---- sockets ---- */

static void set_up(int fd)
{
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

/* Reads and writes of a greeting do not wait for ever. */
static void set_patience(int fd, int seconds)
{
    struct timeval t = {.tv_sec = seconds};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

static bool put(int fd, const void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        at += (size_t)k;
    }
    return true;
}

static bool get(int fd, void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = recv(fd, (char *)p + at, n - at, 0);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        at += (size_t)k;
    }
    return true;
}

/* Listens at `port` of all addresses; "0": any.  IPv6 sockets hear IPv4, too. */
static int listen_at(const char *port)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *list, *a;
    int fd = -1, one = 1, zero = 0;

    for (int pass = 0; fd < 0 && pass < 2; pass++) {
        hints.ai_family = pass == 0 ? AF_INET6 : AF_INET;
        if (getaddrinfo(NULL, port, &hints, &list) != 0)
            continue;
        for (a = list; a && fd < 0; a = a->ai_next) {
            /* who connects and leaves at once must not hold up accept4() */
            fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            if (fd < 0)
                continue;
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
            if (a->ai_family == AF_INET6)
                setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
            if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
                close(fd);
                fd = -1;
            }
        }
        freeaddrinfo(list);
    }
    return fd;
}

static void port_of(int fd, char port[8])
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    unsigned number = 0;

    if (getsockname(fd, (struct sockaddr *)&a, &n) == 0)
        number = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                               : ((struct sockaddr_in *)&a)->sin_port);
    snprintf(port, 8, "%u", number & 0xffff);
}

/* The other side's address; an IPv4 address as such. */
static void address_of(int fd, char *text, size_t size)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);

    text[0] = '\0';
    if (getpeername(fd, (struct sockaddr *)&a, &n) != 0 ||
        getnameinfo((struct sockaddr *)&a, n, text, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0)
        return;
    if (strncmp(text, "::ffff:", 7) == 0)
        memmove(text, text + 7, strlen(text + 7) + 1);
}

static int connect_once(const char *address, const char *port, char *why, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
    int fd = -1, code = getaddrinfo(address, port, &hints, &list);

    if (code != 0) {
        snprintf(why, size, "%s", gai_strerror(code));
        return -1;
    }
    for (a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        set_patience(fd, GREET_S);
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            snprintf(why, size, "%s", strerror(errno));
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* ---- greetings ---- */

static bool greet(const struct meeting *m, int fd, struct greeting *other)
{
    const struct greeting *mine = &m->all[m->launch->rank];

    return put(fd, mine, sizeof(*mine)) && get(fd, other, sizeof(*other)) &&
           other->magic == GREETING;
}

/* Rank `other` by its greeting: the same job, and not here yet. */
static enum dt_status accept_rank(struct meeting *m, int fd, const struct greeting *g,
                                  struct dt_error *err)
{
    const struct dt_transport_launch *l = m->launch;

    if (g->size != l->size)
        return dt_error_set(err, DT_ERR_INPUT,
                            "rank %d says that there are %d ranks, rank %d that there are %d",
                            g->rank, g->size, l->rank, l->size);
    if (g->rank < 0 || g->rank >= l->size || g->rank == l->rank || m->s->peer[g->rank].fd >= 0)
        return dt_error_set(err, DT_ERR_INPUT, "two processes say that they are rank %d", g->rank);
    m->s->peer[g->rank].fd = fd;
    return DT_OK;
}

static enum dt_status missing(const struct meeting *m, int first, const char *why,
                              struct dt_error *err)
{
    char ranks[128] = "";
    size_t n = 0;

    for (int k = first; k < m->s->t.size && n + 24 < sizeof(ranks); k++)
        if (k != m->launch->rank && m->s->peer[k].fd < 0)
            n += (size_t)snprintf(ranks + n, sizeof(ranks) - n, "%s%d", n ? ", " : "", k);
    return dt_error_set(err, DT_ERR_TIMEOUT, "rank %d waited %g s for rank %s of %d at %s:%s%s%s",
                        m->launch->rank, m->s->t.limit_s, ranks, m->s->t.size, m->launch->address,
                        m->launch->port, why && *why ? ": " : "", why ? why : "");
}

/* Tries until somebody answers who is that rank. */
static enum dt_status reach(struct meeting *m, int rank, const char *address, const char *port,
                            struct dt_error *err)
{
    const struct timespec pause = {.tv_nsec = RETRY_NS};
    char why[128] = "";

    while (left_s(m) > 0) {
        int fd = connect_once(address, port, why, sizeof(why));
        struct greeting g;

        if (fd >= 0 && greet(m, fd, &g) && g.rank == rank)
            return accept_rank(m, fd, &g, err);
        if (fd >= 0) {
            close(fd);
            snprintf(why, sizeof(why), "what answers at %.40s:%s is not rank %d", address, port,
                     rank);
        }
        nanosleep(&pause, NULL);
    }
    return missing(m, rank, why, err);
}

/* Ranks from `first` on connect to this one. */
static enum dt_status hear(struct meeting *m, int first, struct dt_error *err)
{
    for (int heard = 0; heard < m->s->t.size - first;) {
        struct pollfd p = {.fd = m->s->listener, .events = POLLIN};
        struct greeting g;
        int fd = -1;

        if (left_s(m) <= 0)
            return missing(m, first, NULL, err);
        if (poll(&p, 1, 100) > 0)
            fd = accept4(m->s->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        set_patience(fd, GREET_S);
        if (!greet(m, fd, &g) || g.rank < first) { /* somebody else's */
            close(fd);
            continue;
        }
        DT_TRY(accept_rank(m, fd, &g, err));
        if (first == 1) { /* rank 0 keeps what it hears, to tell the others */
            m->all[g.rank] = g;
            address_of(fd, m->all[g.rank].address, sizeof(g.address));
        }
        heard++;
    }
    return DT_OK;
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* Rank 0 has heard from all, and tells all. */
static enum dt_status tell(struct meeting *m, struct dt_error *err)
{
    size_t bytes = (size_t)m->s->t.size * sizeof(*m->all);
    bool ok = true;

    for (int k = 1; k < m->s->t.size; k++)
        ok = put(m->s->peer[k].fd, m->all, bytes) && ok;
    return ok ? DT_OK : dt_error_set(err, DT_ERR_PEER, "a rank has left before all had met");
}

static enum dt_status be_told(struct meeting *m, struct dt_error *err)
{
    size_t bytes = (size_t)m->s->t.size * sizeof(*m->all);
    double s = left_s(m);

    set_patience(m->s->peer[0].fd, s > 1 ? (int)s : 1);
    if (!get(m->s->peer[0].fd, m->all, bytes))
        return missing(m, 0, "rank 0 does not say where the others are", err);
    for (int k = 0; k < m->s->t.size; k++) {
        struct greeting *g = &m->all[k];

        g->host[sizeof(g->host) - 1] = g->address[sizeof(g->address) - 1] = '\0';
        g->port[sizeof(g->port) - 1] = '\0';
    }
    return DT_OK;
}

static enum dt_status meet(struct meeting *m, struct dt_error *err)
{
    const struct dt_transport_launch *l = m->launch;

    if (l->rank == 0) {
        DT_TRY(hear(m, 1, err));
        return tell(m, err);
    }
    DT_TRY(reach(m, 0, l->address, l->port, err));
    DT_TRY(be_told(m, err));
    for (int k = 1; k < l->rank; k++) {
        /* who reached rank 0 within its host is found, from elsewhere, where rank 0 is */
        const char *at = is_loopback(m->all[k].address) ? l->address : m->all[k].address;

        DT_TRY(reach(m, k, at, m->all[k].port, err));
    }
    return hear(m, l->rank + 1, err);
}

/* ---- opening ---- */

static void find_neighbours(struct dt_transport *t, const struct greeting *all)
{
    struct dt_cores *here = dt_calloc((size_t)t->size, sizeof(*here));

    t->local_rank = t->local_size = 0;
    for (int k = 0; k < t->size; k++) {
        if (strcmp(all[k].host, t->host) != 0)
            continue;
        if (k == t->rank)
            t->local_rank = t->local_size;
        if (here)
            here[t->local_size] = all[k].cores;
        t->local_size++;
    }
    t->sharers = 1;
    if (here)
        dt_cores_sharers(here, t->local_size, t->local_rank, &t->sharer, &t->sharers);
    dt_free(here);
}

/* A connection to each rank is more than the 1,024 files that a process may usually have. */
static void allow_files(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
}

static enum dt_status start(struct dt_tcp *s, const struct greeting *all, struct dt_error *err)
{
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll < 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "epoll_create1: %s", strerror(errno));
    for (int k = 0; k < s->t.size; k++) {
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)k};
        struct dt_tcp_peer *p = &s->peer[k];

        snprintf(p->host, sizeof(p->host), "%s", all[k].host);
        if (k == s->t.rank)
            continue;
        set_up(p->fd);
        if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, p->fd, &e) != 0)
            return dt_error_set(err, DT_ERR_INTERNAL, "epoll_ctl: %s", strerror(errno));
    }
    find_neighbours(&s->t, all);
    return DT_OK;
}

static enum dt_status open_all(struct dt_tcp *s, const struct dt_transport_launch *l,
                               struct greeting *all, struct dt_error *err)
{
    struct meeting m = {.s = s, .launch = l, .all = all, .begin_ns = dt_clock_ns()};
    struct greeting *mine = &all[l->rank];

    DT_TRY(dt_transport_base_init(&s->t, &dt_tcp_wire, err));
    allow_files();
    s->listener = listen_at(l->rank == 0 ? l->port : "0");
    if (s->listener < 0)
        return dt_error_set(err, DT_ERR_INPUT, "rank %d cannot listen at port %s: %s", l->rank,
                            l->rank == 0 ? l->port : "0", strerror(errno));
    mine->magic = GREETING;
    mine->rank = l->rank;
    mine->size = l->size;
    memcpy(mine->host, s->t.host, sizeof(mine->host));
    port_of(s->listener, mine->port);
    dt_cores_here(&mine->cores);
    DT_TRY(meet(&m, err));
    close(s->listener);
    s->listener = -1;
    return start(s, all, err);
}

enum dt_status dt_transport_open_tcp(const struct dt_transport_launch *l, struct dt_error *err,
                                     struct dt_transport **out)
{
    struct dt_tcp *s = dt_calloc(1, sizeof(*s));
    struct greeting *all = dt_calloc((size_t)l->size, sizeof(*all));
    enum dt_status st;

    if (s)
        s->peer = dt_calloc((size_t)l->size, sizeof(*s->peer));
    if (!s || !all || !s->peer) {
        dt_free(s);
        dt_free(all);
        return dt_error_nomem(err, "the transport over TCP");
    }
    s->epoll = s->listener = -1;
    pthread_mutex_init(&s->lock, NULL);
    for (int k = 0; k < l->size; k++) {
        struct dt_tcp_peer *p = &s->peer[k];

        p->fd = -1;
        p->sends.last = &p->sends.first;
        p->recvs.last = &p->recvs.first;
        p->early.last = &p->early.first;
    }
    s->t.impl = s;
    s->t.rank = l->rank;
    s->t.size = l->size;
    s->t.close = dt_tcp_close;
    s->t.abort = dt_tcp_abort;
    snprintf(s->t.name, sizeof(s->t.name), "tcp");
    if (gethostname(s->t.host, sizeof(s->t.host) - 1) != 0)
        snprintf(s->t.host, sizeof(s->t.host), "unknown");
    st = open_all(s, l, all, err);
    dt_free(all);
    if (st != DT_OK) {
        dt_tcp_free(s);
        return st;
    }
    *out = &s->t;
    return DT_OK;
}
