/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/mem.h"
#include "exec/feed/net.h"
#include "exec/feed/wire.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

enum { RECONNECT_MS = 100, RECONNECT_MAX_MS = 5000, KEY_BYTES = 32, ZAP_FRAMES = 16 };
enum { ENVELOPE_BYTES = 64 }; /* around a frame that is encrypted: 33 (ZeroMQ RFC 26) */

struct dt_feed_net {
    void *ctx;
    void **socket;        /* [n], NULL = dropped; a listener's only one is 0 */
    zmq_pollitem_t *poll; /* [n + 2]: and the two below */
    void *door;           /* asks us who may connect (ZeroMQ RFC 27) */
    int n, turn;
    bool listens;
    zmq_msg_t msg;
    uint8_t allowed[DT_FEED_PEERS_MAX][KEY_BYTES];
    int n_allowed;
};

static enum dt_status zmq_failed(struct dt_error *err, const char *what)
{
    return dt_error_set(err, DT_ERR_IO, "%s: %s", what, zmq_strerror(zmq_errno()));
}

bool dt_feed_net_works(void)
{
    return zmq_has("curve") == 1;
}

enum dt_status dt_feed_net_keypair(struct dt_error *err, char own[DT_FEED_KEY_SIZE],
                                   char secret[DT_FEED_KEY_SIZE])
{
    return zmq_curve_keypair(own, secret) == 0 ? DT_OK : zmq_failed(err, "cannot make keys");
}

static enum dt_status set_int(void *s, int option, int value, struct dt_error *err)
{
    return zmq_setsockopt(s, option, &value, sizeof value) == 0
               ? DT_OK
               : zmq_failed(err, "an option of ZeroMQ");
}

static enum dt_status set_text(void *s, int option, const char *text, struct dt_error *err)
{
    return zmq_setsockopt(s, option, text, strlen(text) + (option != ZMQ_ZAP_DOMAIN)) == 0
               ? DT_OK
               : zmq_failed(err, "a key");
}

/* What waits is bounded by what was asked for, so that no frame is ever dropped for its number. */
static enum dt_status common(void *s, const char *address, int bytes_max, struct dt_error *err)
{
    int64_t max = bytes_max + ENVELOPE_BYTES;

    DT_TRY(set_int(s, ZMQ_LINGER, 0, err));
    DT_TRY(set_int(s, ZMQ_SNDHWM, 0, err));
    DT_TRY(set_int(s, ZMQ_RCVHWM, 0, err));
    if (zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &max, sizeof max) != 0)
        return zmq_failed(err, "an option of ZeroMQ");
    return set_int(s, ZMQ_IPV6, strchr(address, '[') != NULL, err);
}

enum dt_status dt_feed_net_new(int n, struct dt_error *err, struct dt_feed_net **out)
{
    struct dt_feed_net *net = dt_calloc(1, sizeof *net);

    if (!net)
        return dt_error_nomem(err, "connections");
    zmq_msg_init(&net->msg);
    net->n = n;
    net->ctx = zmq_ctx_new();
    net->socket = dt_calloc((size_t)n, sizeof *net->socket);
    net->poll = dt_calloc((size_t)n + 2, sizeof *net->poll);
    if (!net->ctx || !net->socket || !net->poll) {
        dt_feed_net_close(net);
        return dt_error_nomem(err, "connections");
    }
    *out = net;
    return DT_OK;
}

/* ---- listening ---- */

static enum dt_status guard_door(struct dt_feed_net *net, const struct dt_feed_keys *keys,
                                 struct dt_error *err)
{
    void *s = net->socket[0];

    if (!dt_feed_net_works())
        return dt_error_set(err, DT_ERR_INPUT, "this ZeroMQ has no CURVE, so no keys");
    for (int i = 0; i < keys->n_peers; i++)
        if (!zmq_z85_decode(net->allowed[net->n_allowed++], keys->peer[i]))
            return dt_error_set(err, DT_ERR_INPUT, "a peer's key is not one");
    net->door = zmq_socket(net->ctx, ZMQ_REP);
    if (!net->door || zmq_bind(net->door, "inproc://zeromq.zap.01") != 0)
        return zmq_failed(err, "cannot guard the door");
    DT_TRY(set_int(net->door, ZMQ_LINGER, 0, err));
    DT_TRY(set_int(s, ZMQ_CURVE_SERVER, 1, err));
    DT_TRY(set_text(s, ZMQ_CURVE_SECRETKEY, keys->secret, err));
    return set_text(s, ZMQ_ZAP_DOMAIN, "disttrain", err);
}

static enum dt_status listen_to(struct dt_feed_net *net, const char *address,
                                const struct dt_feed_keys *keys, struct dt_error *err)
{
    void *s = net->socket[0] = zmq_socket(net->ctx, ZMQ_ROUTER);

    if (!s)
        return zmq_failed(err, "cannot make a socket");
    net->listens = true;
    DT_TRY(common(s, address, DT_FEED_REQUEST_BYTES_MAX, err));
    DT_TRY(set_int(s, ZMQ_ROUTER_MANDATORY, 1, err));
    if (keys)
        DT_TRY(guard_door(net, keys, err));
    if (zmq_bind(s, address) != 0)
        return dt_error_set(err, DT_ERR_INPUT, "cannot listen on %s: %s", address,
                            zmq_strerror(zmq_errno()));
    return DT_OK;
}

enum dt_status dt_feed_net_listen(const char *address, const struct dt_feed_keys *keys,
                                  struct dt_error *err, struct dt_feed_net **out)
{
    struct dt_feed_net *net;
    enum dt_status st;

    DT_TRY(dt_feed_net_new(1, err, &net));
    st = listen_to(net, address, keys, err);
    if (st == DT_OK)
        *out = net;
    else
        dt_feed_net_close(net);
    return st;
}

void dt_feed_net_where(const struct dt_feed_net *net, char out[DT_FEED_ADDRESS_SIZE])
{
    size_t size = DT_FEED_ADDRESS_SIZE;

    if (zmq_getsockopt(net->socket[0], ZMQ_LAST_ENDPOINT, out, &size) != 0)
        out[0] = '\0';
}

static bool may_enter(const struct dt_feed_net *net, const char *mechanism, size_t n,
                      const void *key, size_t key_n)
{
    if (n != 5 || memcmp(mechanism, "CURVE", 5) != 0 || key_n != KEY_BYTES)
        return false;
    for (int i = 0; i < net->n_allowed; i++)
        if (memcmp(net->allowed[i], key, KEY_BYTES) == 0)
            return true;
    return false;
}

/* A question: version, request, domain, address, identity, mechanism, key. */
static void answer_door(struct dt_feed_net *net)
{
    zmq_msg_t part[ZAP_FRAMES];
    int n = 0, more = 1;
    bool enter;

    while (more && n < ZAP_FRAMES) {
        zmq_msg_init(&part[n]);
        if (zmq_msg_recv(&part[n], net->door, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part[n]);
            break;
        }
        more = zmq_msg_more(&part[n++]);
    }
    if (n >= 2 && !more) {
        enter = n == 7 && may_enter(net, zmq_msg_data(&part[5]), zmq_msg_size(&part[5]),
                                    zmq_msg_data(&part[6]), zmq_msg_size(&part[6]));
        zmq_send(net->door, "1.0", 3, ZMQ_SNDMORE);
        zmq_send(net->door, zmq_msg_data(&part[1]), zmq_msg_size(&part[1]), ZMQ_SNDMORE);
        zmq_send(net->door, enter ? "200" : "400", 3, ZMQ_SNDMORE);
        zmq_send(net->door, enter ? "OK" : "unknown key", enter ? 2 : 11, ZMQ_SNDMORE);
        zmq_send(net->door, "", 0, ZMQ_SNDMORE);
        zmq_send(net->door, "", 0, 0);
    }
    while (n > 0)
        zmq_msg_close(&part[--n]);
}

/* ---- connecting ---- */

void dt_feed_net_drop(struct dt_feed_net *net, int i)
{
    if (net->socket[i])
        zmq_close(net->socket[i]);
    net->socket[i] = NULL;
}

static enum dt_status connect_to(void *s, const char *address, const struct dt_feed_keys *keys,
                                 struct dt_error *err)
{
    DT_TRY(common(s, address, DT_FEED_ANSWER_BYTES_MAX, err));
    DT_TRY(set_int(s, ZMQ_RECONNECT_IVL, RECONNECT_MS, err));
    DT_TRY(set_int(s, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS, err));
    if (keys) {
        DT_TRY(set_text(s, ZMQ_CURVE_SERVERKEY, keys->peer[0], err));
        DT_TRY(set_text(s, ZMQ_CURVE_PUBLICKEY, keys->own, err));
        DT_TRY(set_text(s, ZMQ_CURVE_SECRETKEY, keys->secret, err));
    }
    if (zmq_connect(s, address) != 0)
        return dt_error_set(err, DT_ERR_INPUT, "cannot connect to %s: %s", address,
                            zmq_strerror(zmq_errno()));
    return DT_OK;
}

enum dt_status dt_feed_net_connect(struct dt_feed_net *net, int i, const char *address,
                                   const struct dt_feed_keys *keys, struct dt_error *err)
{
    enum dt_status st;

    dt_feed_net_drop(net, i);
    net->socket[i] = zmq_socket(net->ctx, ZMQ_DEALER);
    if (!net->socket[i])
        return zmq_failed(err, "cannot make a socket");
    st = connect_to(net->socket[i], address, keys, err);
    if (st != DT_OK)
        dt_feed_net_drop(net, i);
    return st;
}

/* ---- frames ---- */

bool dt_feed_net_send(struct dt_feed_net *net, const struct dt_feed_peer *to, const uint8_t *p,
                      size_t n)
{
    int i = net->listens ? 0 : to->id[0] | to->id[1] << 8;
    void *s = net->socket[i];

    if (!s || (net->listens && zmq_send(s, to->id, to->n, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0))
        return false;
    return zmq_send(s, p, n, ZMQ_DONTWAIT) >= 0;
}

/* One message of socket i; parts that do not belong there are dropped with it. */
static bool take(struct dt_feed_net *net, int i, struct dt_feed_peer *from)
{
    int parts = 0, want = net->listens ? 2 : 1, more = 1;
    bool fine = true;

    *from = (struct dt_feed_peer){2, {(uint8_t)i, (uint8_t)(i >> 8)}};
    while (more) {
        zmq_msg_close(&net->msg);
        zmq_msg_init(&net->msg);
        if (zmq_msg_recv(&net->msg, net->socket[i], ZMQ_DONTWAIT) < 0)
            return false;
        more = zmq_msg_more(&net->msg);
        if (net->listens && ++parts == 1) {
            size_t n = zmq_msg_size(&net->msg);

            fine = n <= sizeof from->id;
            from->n = fine ? (uint8_t)n : 0;
            memcpy(from->id, zmq_msg_data(&net->msg), from->n);
        } else if (!net->listens) {
            parts++;
        }
    }
    return fine && parts == want;
}

bool dt_feed_net_recv(struct dt_feed_net *net, int fd, int timeout_ms, struct dt_feed_peer *from,
                      const uint8_t **p, size_t *n)
{
    int used = 0, which[2] = {-1, -1};

    for (int i = 0; i < net->n; i++) /* in turns, so that none is kept waiting by another */
        if (net->socket[(i + net->turn) % net->n])
            net->poll[used++] =
                (zmq_pollitem_t){net->socket[(i + net->turn) % net->n], 0, ZMQ_POLLIN, 0};
    if (net->door) {
        which[0] = used;
        net->poll[used++] = (zmq_pollitem_t){net->door, 0, ZMQ_POLLIN, 0};
    }
    if (fd >= 0) {
        which[1] = used;
        net->poll[used++] = (zmq_pollitem_t){NULL, fd, ZMQ_POLLIN, 0};
    }
    if (zmq_poll(net->poll, used, timeout_ms) <= 0)
        return false;
    if (which[0] >= 0 && net->poll[which[0]].revents)
        answer_door(net);
    for (int k = 0; k < used; k++)
        for (int i = 0; net->poll[k].revents && i < net->n; i++) {
            if (!net->poll[k].socket || net->socket[i] != net->poll[k].socket)
                continue;
            net->turn = (i + 1) % net->n;
            if (!take(net, i, from))
                return false;
            *p = zmq_msg_data(&net->msg);
            *n = zmq_msg_size(&net->msg);
            return true;
        }
    return false;
}

void dt_feed_net_close(struct dt_feed_net *net)
{
    if (!net)
        return;
    for (int i = 0; net->socket && i < net->n; i++)
        dt_feed_net_drop(net, i);
    if (net->door)
        zmq_close(net->door);
    zmq_msg_close(&net->msg);
    if (net->ctx)
        zmq_ctx_term(net->ctx);
    dt_free(net->socket);
    dt_free(net->poll);
    memset(net, 0, sizeof *net);
    dt_free(net);
}
